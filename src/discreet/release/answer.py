"""Answer a planned query. The library, the CLI and the service all call `answer`; no other code reads exact data.

    hold    = budget.reserve(plan.worst_cost)      if this returns a stored release, no data is read
    queue.slot()                                   wait until the engine may run another query
    engine.check(plan.request)
    budget.start(hold)
    head    = engine.head(plan.request)            `RecordedPairs` for mechanisms that read more than a head
    outcome = plan.mechanism.release(head, bits)
    return    budget.settle(hold, outcome.cost, encode(release))

The call of `start` decides the charge of a failure, of any kind and for any budget. Before `start`, no query was sent:
the hold is voided and nothing is charged. After it, the failure may depend on the data, so that a refund would reveal
something for free: the hold is forfeited and the worst case stays charged. All conditions that do not depend on the
data (a busy engine, a request that it cannot answer, no connection, a caller that has disconnected) are therefore
checked before `start`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from discreet.accounting.convert import share_of_delta
from discreet.budget.memory import Budget, Hold
from discreet.budget.model import Fingerprint
from discreet.engines.base import Reader, RequestQueue, arrow_array
from discreet.errors import DiscreetError, InputError
from discreet.noise import Bits
from discreet.release.keys import RecordedPairs, fingerprint
from discreet.release.result import Release
from discreet.values import Cost, Outcome, number

if TYPE_CHECKING:
    from discreet.query.planning import Plan
    from discreet.query.query import Options, Query

Step: TypeAlias = Literal["reserve", "queue", "engine", "noise", "encode", "settle"]
"""A step of `answer`, for tracing."""

Answer = TypeVar("Answer")
Answer_co = TypeVar("Answer_co", covariant=True)


class BudgetPort(Protocol[Answer_co]):
    """The budget of one query: `discreet.Budget`, or a stored account (`discreet.budget.manager.StoredBudget`).

    *Answer* is the type that `answer` returns: a `Release`, or a stored release.
    """

    def reserve(self, cost: Cost) -> Hold | Answer_co:
        """Reserve *cost*, or return the stored answer if there is one.

        Raises:
            BudgetExceeded: the cost does not fit; nothing changed.
        """
        ...

    def start(self, hold: Hold) -> None:
        """Record that reading the data starts now."""
        ...

    def settle(self, hold: Hold, cost: Cost, result: Any, fingerprint: Fingerprint | None = None) -> Answer_co:  # noqa: ANN401 - a result of `encode`
        """Charge *cost*, at most the held amount, free the rest, and store *result*, in one transaction."""
        ...

    def void(self, hold: Hold) -> None:
        """Free the held amount; only before `start`."""
        ...

    def forfeit(self, hold: Hold) -> None:
        """Charge the held amount; only after `start`."""
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
        budget: a budget shared with other queries, or None if the guarantee is for this query alone.
        bits: source of randomness.
        queue: the engine's queue, or None if it runs no other queries at the same time.
        computational: True if *bits* are keyed, so that the guarantee rests on cryptography.
        encode: converts the release to the result that the budget stores; by default the release is stored.
        fingerprint_key: key for the fingerprint of the engine's results; None if the data has no version.
        progress: called with the finished share of the counting; an exception from it stops the query.
        span: a context around each step.

    Raises:
        BudgetExceeded: the worst case does not fit; nothing was read.
        InputError: the engine cannot answer this request; nothing was charged.
        EngineBusy: too many queries run on the engine; nothing was charged.
        EngineUnreachable: there is no connection; nothing was charged.
        EngineError: reading failed; the worst case is charged.
        DiscreetError: an error of the budget's methods.
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
                if plan.reads_pairs:
                    engine.check_pairs()
            with span("reserve"):
                port.start(hold)
        except BaseException:
            _end(port.void, hold)
            raise
        try:
            labels, outcome, seen = _read(plan, engine, bits, fingerprint_key, progress, span)
            reading.close()
            with span("encode"):
                if plan.query.min_users is not None or plan.query.patterns:
                    labels, outcome = shown(plan.query, labels, outcome)
                release = Release.of(plan, labels, outcome, computational=computational)
                result = release if encode is None else encode(release)
            with span("settle"):
                settled: Answer = port.settle(hold, outcome.cost, result, seen)
        except BaseException:
            _end(port.forfeit, hold)  # no effect if settling succeeded despite the error
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
    """Read the exact data and add noise; returns the released labels, the outcome and the fingerprint."""
    drawn = plan.request.each or plan.request.groups_per_user is not None
    seed = bits.uint64("groups", 4).tobytes() if drawn else b""
    if plan.reads_pairs or plan.reads_sums:  # the mechanism alternates between queries and noise
        with span("engine"), RecordedPairs(engine, plan.request, seed=seed, progress=progress) as recorded:
            outcome = plan.mechanism.release(recorded, bits)
            labels = recorded.labels(outcome.positions)
        return labels, outcome, None if key is None else recorded.fingerprint(plan, key)
    with span("engine"):
        head = engine.head(plan.request, seed=seed, progress=progress)
    with span("noise"):
        outcome = plan.mechanism.release(head, bits)
    seen = None if key is None else fingerprint(head, plan.request, seed, key)
    return head.labels.take(arrow_array(outcome.positions)), outcome, seen


def shown(query: Query, labels: pa.Table, outcome: Outcome) -> tuple[pa.Table, Outcome]:
    """Return the items of *outcome* that the data owner lets be shown, in their order, at the same cost.

    Noisy counts and released labels alone decide, never rows. With `Query.min_users`, an item is shown if the lower end
    of its 95 % interval is at least that number, so if its noisy count is higher by 1.96 standard errors. Where rows
    are counted, that number is multiplied by the most rows of one user. With `Query.patterns`, an item is shown if its
    labels match; a missing label does.

    Args:
        labels: the items, in the order of *outcome*.
    """
    is_shown = np.ones(len(outcome.positions), dtype=bool)
    if query.min_users is not None and query.request.items and outcome.low is not None:
        is_shown &= outcome.low >= query.min_users * query.request.rows_per_group
    for column, pattern in query.patterns:
        is_shown &= matching(labels.column(column), pattern)
    if is_shown.all():
        return labels, outcome
    return labels.take(np.flatnonzero(is_shown)), dataclasses.replace(outcome.take(is_shown), complete=False)


def matching(labels: pa.ChunkedArray, pattern: str) -> NDArray[np.bool_]:
    """Return whether the whole of each label matches a regular expression, in time linear in its length (RE2)."""
    import pyarrow.compute as pc

    matches = pc.match_substring_regex(labels.cast(pa.string()), rf"\A(?:{pattern})\z")
    return matches.fill_null(fill_value=True).to_numpy().astype(bool)  # type: ignore[no-any-return]


def _end(end: Callable[[Hold], None], hold: Hold) -> None:
    """Void or forfeit *hold*. If the store fails, this happens when the lease of *hold* ends."""
    with contextlib.suppress(DiscreetError):
        end(hold)


def default_delta(budget: Budget | None, options: Options) -> str | Fraction:
    """Return the default of delta: 1e-8, or the query's share of *budget*, at most a hundredth of its delta.

    Args:
        options: the options of the query, of which epsilon decides about its share.

    Raises:
        InputError: *budget* is not a `Budget`, or epsilon is not a number.
    """
    if not isinstance(budget, Budget | None):
        raise InputError("a budget is a discreet.Budget")
    own_epsilon = options.get("epsilon")
    epsilon = 1.0 if own_epsilon is None else number(own_epsilon, "epsilon")
    if budget is None or not 0 < epsilon < math.inf:  # planning refuses such an epsilon
        return "1e-8"
    return share_of_delta(epsilon, budget.limit, budget.delta / 100)
