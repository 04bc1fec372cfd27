"""Answer a planned query. The library, the CLI and the service all call `answer`, and nothing else reads exact data.

    hold    = budget.reserve(plan.worst_cost)      or a stored release: it is returned, and no data is read
    queue.slot()                                   wait until the engine may run another query
    engine.check(plan.request)
    budget.start(hold)
    head    = engine.head(plan.request)            or pairs, for mechanisms that query user-item pairs
    outcome = plan.mechanism.release(head, bits)
    return    budget.settle(hold, outcome.cost, encode(release))

`start` decides what a failure costs, whatever failed and whichever budget pays. Before it no part of the request was
sent: the hold is voided and nothing is charged. After it the failure may depend on the data, so that a refund would
reveal something for free: the hold is forfeited and the worst case stays charged. All that can be refused without
data (a busy engine, a request that it cannot answer, no connection, a caller that has gone) is therefore checked before
it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar

from discreet.budget.memory import Budget, Hold
from discreet.errors import DiscreetError, InputError
from discreet.release.keys import RecordedPairs, fingerprint
from discreet.release.result import Release, arrow_array

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from fractions import Fraction

    import pyarrow as pa

    from discreet.budget.model import Fingerprint
    from discreet.engines.base import Reader, RequestQueue
    from discreet.noise import Bits
    from discreet.query.planning import Plan
    from discreet.values import Cost, Outcome

Step: TypeAlias = Literal["reserve", "queue", "engine", "noise", "encode", "settle"]
"""A step of `answer`, for tracing."""

Answer = TypeVar("Answer")
Answer_co = TypeVar("Answer_co", covariant=True)


class BudgetPort(Protocol[Answer_co]):
    """The budget of one query: `discreet.Budget`, or a stored account (`discreet.budget.manager.StoredBudget`).

    *Answer* is what the caller of `answer` gets: the `Release`, or the stored release that the store says to return.
    """

    def reserve(self, cost: Cost) -> Hold | Answer_co:
        """Hold *cost*, or return the answer that is stored already.

        Raises:
            BudgetExceeded: it does not fit; nothing changed.
        """
        ...

    def start(self, hold: Hold) -> None:
        """Record that the data will be read now."""
        ...

    def settle(self, hold: Hold, cost: Cost, result: Any, fingerprint: Fingerprint | None = None) -> Answer_co:  # noqa: ANN401 - what `encode` returns
        """Charge *cost*, at most what was held, free the rest, and keep *result* with it, in one transaction."""
        ...

    def void(self, hold: Hold) -> None:
        """Free all that was held; only before `start`."""
        ...

    def forfeit(self, hold: Hold) -> None:
        """Charge all that was held; only after `start`."""
        ...


def answer(
    plan: Plan,
    engine: Reader,
    budget: BudgetPort[Answer] | None,
    bits: Bits,
    *,
    queue: RequestQueue | None = None,
    computational: bool = False,
    encode: Callable[[Release], Any] | None = None,
    fingerprint_key: bytes | None = None,
    progress: Callable[[float], None] | None = None,
    span: Callable[[Step], AbstractContextManager[None]] = lambda _: contextlib.nullcontext(),
) -> Answer:
    """Answer *plan* from the table of *engine*, and charge *budget*.

    Args:
        budget: shared with other queries, or None if the plan's own guarantee is all that is promised.
        bits: source of randomness.
        queue: of the engine, if there can be several queries at once.
        computational: True if *bits* are keyed, so that the guarantee rests on cryptography.
        encode: makes what the budget keeps with the charge; by default the release itself.
        fingerprint_key: recognises what the engine returned in one version of the data; None if it has no version.
        progress: called with the share of the counting that is done; an exception from it stops the query.
        span: a context around each step.

    Raises:
        BudgetExceeded: the worst case does not fit; nothing was read.
        InputError: the engine cannot answer such a request; nothing was charged.
        EngineBusy: too many queries run on the engine; nothing was charged.
        EngineUnreachable: there is no connection; nothing was charged.
        EngineError: reading failed; the worst case is charged.
        DiscreetError: as the methods of the budget.
    """
    # Without a shared budget, the plan's worst case is the whole budget of this query.
    port: BudgetPort[Any] = Budget.of_cost(plan.worst_cost) if budget is None else budget
    with span("reserve"):
        hold = port.reserve(plan.worst_cost)
    if not isinstance(hold, Hold):
        stored: Answer = hold
        return stored
    with contextlib.ExitStack() as reading:
        try:
            if progress is not None:
                progress(0.0)
            if queue is not None:
                with span("queue"):
                    reading.enter_context(queue.slot(progress))
            with span("engine"):
                engine.check(plan.request)
            with span("reserve"):
                port.start(hold)
        except BaseException:
            _end(port.void, hold)
            raise
        try:
            labels, outcome, seen = _read(plan, engine, bits, fingerprint_key, progress, span)
            reading.close()
            with span("encode"):
                release = Release.of(plan, labels, outcome, computational=computational)
                result = release if encode is None else encode(release)
            with span("settle"):
                settled: Answer = port.settle(hold, outcome.cost, result, seen)
        except BaseException:
            _end(port.forfeit, hold)  # if it was settled after all, this changes nothing
            raise
    return settled


def _read(
    plan: Plan,
    engine: Reader,
    bits: Bits,
    key: bytes | None,
    progress: Callable[[float], None] | None,
    span: Callable[[Step], AbstractContextManager[None]],
) -> tuple[pa.Table, Outcome, Fingerprint | None]:
    """Read the exact data and release from it; returns the released labels, the outcome and the fingerprint."""
    if plan.reads_pairs:  # they are queried and get noise in turns
        with span("engine"), engine.pairs(plan.request, progress=progress) as pairs:
            recorded = RecordedPairs(pairs)
            outcome = plan.mechanism.release(recorded, bits)
            labels = recorded.labels(outcome.positions)
        return labels, outcome, None if key is None else recorded.fingerprint(plan, key)
    seed = bits.uint64("groups", 4).tobytes() if plan.request.groups_per_user is not None else b""
    with span("engine"):
        head = engine.head(plan.request, seed=seed, progress=progress)
    with span("noise"):
        outcome = plan.mechanism.release(head, bits)
    seen = None if key is None else fingerprint(head, plan.request, seed, key)
    return head.labels.take(arrow_array(outcome.positions)), outcome, seen


def _end(end: Callable[[Hold], None], hold: Hold) -> None:
    """Void or forfeit *hold*. If the store fails, the lease ends it later, as void before `start` and forfeit after."""
    with contextlib.suppress(DiscreetError):
        end(hold)


def delta_of(delta: float | str | Fraction | None, budget: Budget | None) -> float | str | Fraction:
    """Return *delta*, or its default: 1e-8, or a hundredth of the budget's.

    Raises:
        InputError: *budget* is no budget.
    """
    if not isinstance(budget, Budget | None):
        raise InputError("a budget is a discreet.Budget")
    if delta is not None:
        return delta
    return "1e-8" if budget is None else budget.delta / 100
