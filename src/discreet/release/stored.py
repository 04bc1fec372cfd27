"""The main path with budgets that outlive a crash: `discreet.release.answer` with a store under each step.

    reserve -> (paid before: replay) -> probe -> start -> head -> noise -> encode -> settle -> answer

Nothing leaves before `settle` has made it durable with its charge, and what leaves is what `settle` returns. What fails
before `start` costs nothing. What fails after it is forfeited, whatever failed: nobody can know any more that no data
was asked, and a failure may tell about the data. It pays for asking the same again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import hmac
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from discreet.budget.errors import StoreUnavailable
from discreet.budget.model import Fingerprint, InFlight, Replay
from discreet.errors import DiscreetError
from discreet.noise import bits as encoding
from discreet.release.key import encodable
from discreet.release.result import Release

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    import pyarrow as pa

    from discreet.budget.manager import BudgetManager
    from discreet.budget.model import Reservation, Settled
    from discreet.engines.base import Engine
    from discreet.noise import Bits
    from discreet.query.plan import Plan
    from discreet.question import HeadRequest
    from discreet.values import Cost, ExactHead

    Steps: TypeAlias = Callable[
        [Literal["reserve", "engine", "noise", "encode", "settle"]], AbstractContextManager[None]
    ]

PROBE = "SELECT 1"
"""What every engine answers without looking at a table."""


class RunFailed(DiscreetError):
    """A run failed after the data was asked; its cause is chained.

    What it could cost stays charged, and pays for asking the same again.

    Attributes:
        reservation: that was forfeited.
    """

    def __init__(self, reservation: str) -> None:
        self.reservation = reservation
        super().__init__("the data was asked, and no answer came; asking the same question again is paid for")


@dataclass(frozen=True, slots=True)
class Answered:
    """What may leave.

    Args:
        release_key: the name of the answer. It is another than was asked for if the same request was answered before
            and its words mean another question by now, as with a new version of the data.
        body: the bytes that were settled.
        charged: what the asking account paid just now.
        replayed: True if they were there already, so that no data was asked.
        reservation: that paid for it, or None.
    """

    release_key: bytes
    body: bytes
    charged: Cost
    replayed: bool
    reservation: str | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """Everything that a run needs besides the budget.

    Args:
        plan: how the question is answered.
        engine: where the exact head comes from.
        bits: source of randomness.
        encode: makes the bytes that are kept and answered.
        computational: True if *bits* are keyed, so that the guarantee rests on cryptography.
        fingerprint_key: recognises what the engine returns in one version of the data; None if it has no version.
        progress: called with the share of the counting that is done; whatever it raises stops the run.
    """

    plan: Plan
    engine: Engine
    bits: Bits
    encode: Callable[[Release], bytes]
    computational: bool
    fingerprint_key: bytes | None
    progress: Callable[[float], None]


def answer_stored(
    plan: Plan,
    engine: Engine,
    manager: BudgetManager,
    account: str,
    release_key: bytes,
    bits: Bits,
    encode: Callable[[Release], bytes],
    *,
    fingerprint_key: bytes | None,
    computational: bool = False,
    key: str | None = None,
    digest: bytes = b"",
    progress: Callable[[float], None] | None = None,
    steps: Steps = lambda _: contextlib.nullcontext(),
) -> Answered | InFlight:
    """Answer *plan* at the expense of *account* and its parents, or from what is stored.

    Args:
        plan: made for a shared budget.
        engine: where the exact head comes from; `Warehouse.steady`.
        manager: of the budgets.
        account: who asks.
        release_key: names the answer, see `discreet.release.seals`.
        bits: source of randomness: keyed with what *release_key* names, or the system's for data without a version.
        encode: makes the bytes that are kept and answered.
        fingerprint_key: recognises what the engine returns in one version of the data; None if it has no version.
        computational: True if *bits* are keyed.
        key: the caller's idempotency key, or None.
        digest: of the request that came with it.
        progress: called with the share of the counting that is done; whatever it raises stops the run.
        steps: a context around each step: reserve, engine, noise, encode, settle.

    Returns:
        what may leave, or what is under way with the same idempotency key.

    Raises:
        BudgetRefused: the worst case does not fit; nothing was held.
        EngineError: the engine cannot be asked; nothing was charged.
        RunFailed: something failed after the data was asked; it is forfeited.
        StoreUnavailable: nothing may leave; what was settled without us hearing of it is free when asked again.
        DiscreetError: see `BudgetManager.reserve` and `BudgetManager.start`; nothing was charged.
    """
    asked = Asked(plan, engine, bits, encode, computational, fingerprint_key, progress or _go_on)
    with steps("reserve"):
        admitted = manager.reserve(account, release_key, plan.worst_cost, key, digest)
    if isinstance(admitted, InFlight):
        return admitted
    if isinstance(admitted, Replay):
        return Answered(admitted.release.release_key, admitted.release.result, admitted.charged, replayed=True)
    _start(asked, manager, admitted, steps)
    settled = _run(asked, manager, admitted, steps)
    return Answered(release_key, settled.release.result, settled.charged, replayed=False, reservation=admitted.id)


def fingerprint(head: ExactHead, request: HeadRequest, seed: bytes, key: bytes) -> Fingerprint:
    """What an engine returned for *request*, as a keyed digest that tells nothing and changes with any of it.

    Args:
        head: what it returned.
        request: what was asked of it.
        seed: which random groups of users were kept, as it was asked.
        key: of the table and the version of its data.
    """
    listed = None if request.domain is None else _lossless(request.domain)
    asked = encodable(dataclasses.replace(request, domain=None)), listed, seed
    returned = _lossless(head.labels), head.counts.tobytes(), None if head.sums is None else head.sums.tobytes()
    return Fingerprint(*(hmac.digest(key, encoding.encode(part), hashlib.sha256) for part in (asked, returned)))


def _lossless(table: pa.Table) -> tuple[str, bytes]:
    """*table* as text that no other table has: all text is in quotes, so that a missing label is not an empty one."""
    import pyarrow.csv

    rows = io.BytesIO()
    pyarrow.csv.write_csv(table, rows)
    return str(table.schema.remove_metadata()), rows.getvalue()


def _start(asked: Asked, manager: BudgetManager, reservation: Reservation, steps: Steps) -> None:
    """From HELD to RUNNING, if somebody still waits and the engine is there."""
    try:
        asked.progress(0.0)
        with steps("engine"):
            asked.engine.fetch(PROBE)
        with steps("reserve"):
            manager.start(reservation.id)
    except BaseException:
        _give_up(manager.void, reservation)
        raise


def _run(asked: Asked, manager: BudgetManager, reservation: Reservation, steps: Steps) -> Settled:
    """From RUNNING to SETTLED, or to FORFEIT."""
    try:
        return _settle(asked, manager, reservation, steps)
    except StoreUnavailable:
        _give_up(manager.forfeit, reservation)  # if it was settled after all, this changes nothing
        raise
    except Exception as error:
        _give_up(manager.forfeit, reservation)
        raise RunFailed(reservation.id) from error
    except BaseException:
        _give_up(manager.forfeit, reservation)
        raise


def _settle(asked: Asked, manager: BudgetManager, reservation: Reservation, steps: Steps) -> Settled:
    plan, request = asked.plan, asked.plan.request
    seed = asked.bits.uint64("groups", 4).tobytes() if request.groups_per_user is not None else b""
    with steps("engine"):
        head = asked.engine.head(request, seed=seed, progress=asked.progress)
    with steps("noise"):
        outcome = plan.mechanism.release(head, asked.bits)
    with steps("encode"):
        release = Release.of(plan, head.labels, outcome, computational=asked.computational)
        body = asked.encode(release)
        seen = None if asked.fingerprint_key is None else fingerprint(head, request, seed, asked.fingerprint_key)
    with steps("settle"):
        return manager.settle(reservation.id, outcome.cost, body, seen)


def _give_up(end: Callable[[str], None], reservation: Reservation) -> None:
    """End a reservation as far as that can be done now; its lease ends it otherwise, and never to anybody's gain."""
    with contextlib.suppress(DiscreetError):
        end(reservation.id)


def _go_on(_: float) -> None:
    """Somebody waits."""
