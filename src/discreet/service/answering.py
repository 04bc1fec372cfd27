"""One question, from what was sent to what may leave: planned, sealed, walked down the stair, told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from discreet.budget.errors import BudgetRefused, DataChanged, KeyReused, LeaseLost, StoreUnavailable, Suspended
from discreet.budget.model import InFlight, Replay
from discreet.budget.stored import StoredBudget
from discreet.errors import EngineError, EngineTimeout, InputError
from discreet.noise import SystemBits
from discreet.release.answer import answer
from discreet.service.asking import most_that_fits, wanted
from discreet.service.observability.events import Forfeited, Refused, Released
from discreet.service.observability.traces import SpanAttributes, spans_of
from discreet.service.problems import BudgetShort, ClientDisconnected, RequestInFlight, RunFailed
from discreet.values import Cost, float_above
from discreet.wire.document import encode, question_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from discreet.budget.model import Settled
    from discreet.budget.report import Report
    from discreet.catalog.model import Catalog
    from discreet.noise import Bits
    from discreet.query.planning import Plan
    from discreet.release import Release
    from discreet.release.keys import DerivedKeys
    from discreet.service.asking import Wanted
    from discreet.service.observability.events import Cause
    from discreet.service.parts import Parts
    from discreet.warehouse import Warehouse
    from discreet.wire.questions import Question


@dataclass(frozen=True, slots=True)
class Sent:
    """A question as it came.

    Args:
        question: what it asks.
        request_id: of the request.
        digest: of its body.
        key: its idempotency key, or None.
        reused: True if the key came with another request before, as far as this process knows; the store may know more.
        gone: tells whether nobody waits for the answer any more.
    """

    question: Question
    request_id: str
    digest: bytes
    key: str | None
    reused: bool
    gone: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Given:
    """An answer that may leave.

    Args:
        id: of the release.
        document: its stored bytes.
        charged: what the account was charged just now.
        replayed: True if it was there already.
        dataset: its name in the catalog.
        mechanism: by name.
        data_version: of the data; None if it has none, or the answer is about another one than now.
        report: how the account stands now.
        catalog: as the asker saw it.
    """

    id: str
    document: bytes
    charged: Cost
    replayed: bool
    dataset: str
    mechanism: str
    data_version: str | None
    report: Report
    catalog: Catalog


@dataclass(frozen=True, slots=True)
class _Sealed:
    """What names an answer and draws its noise.

    Args:
        release_key: its name.
        bits: its randomness.
        data_version: of the data, or None.
        fingerprint_key: for what the engine returns, or None without a version.
    """

    release_key: bytes
    bits: Bits
    data_version: str | None
    fingerprint_key: bytes | None


class Run:
    """Answers one question at the expense of an account.

    Args:
        parts: of the service.
        seals: names answers and draws their noise.
        account: who asks.
        sent: what she sent.
    """

    def __init__(self, parts: Parts, seals: DerivedKeys, account: str, sent: Sent) -> None:
        self._parts, self._manager, self._seals = parts, parts.manager, seals
        self._account, self._sent = account, sent
        self._facts = SpanAttributes(sent.request_id, account=account)

    def answer(self, view: Warehouse) -> Given:
        """The answer; raises what `discreet.service.desk.Desk.query` does.

        Args:
            view: what the asker may see.
        """
        settings = self._parts.settings
        with self._parts.tracer.span("plan", self._facts):
            asked = wanted(self._sent.question, view, settings.defaults, settings.limits)
            plan = asked.plan(view)
            sealed = self._sealed(plan, asked.dataset)
        if self._sent.reused:
            raise KeyReused
        budget = StoredBudget(self._manager, self._account, sealed.release_key, self._sent.key, self._sent.digest)
        try:
            answered = self._answered(plan, asked, sealed, budget)
        except BudgetRefused as error:
            raise self._short(error, plan) from error
        except Suspended as error:
            self._parts.log.event(Refused(self._sent.request_id, self._account, "suspended", error.account))
            raise
        except StoreUnavailable:
            raise
        except Exception as error:
            if not budget.forfeited or budget.reservation is None:
                raise
            self._parts.log.event(
                Forfeited(self._sent.request_id, self._account, asked.dataset, _cause(error), budget.reservation)
            )
            raise RunFailed(budget.reservation) from error
        if isinstance(answered, InFlight):
            raise RequestInFlight
        return self._given(answered, budget.reservation, asked, plan, sealed, view.catalog)

    def _sealed(self, plan: Plan, dataset: str) -> _Sealed:
        version, table = self._parts.warehouse.context(dataset)
        if version is not None:
            return _Sealed(
                self._seals.release_key(plan, table, version),
                self._seals.bits(plan, table, version),
                version,
                self._seals.fingerprint_key(table, version),
            )
        # Nobody can say that the data is what it was, so only the same request is the same question.
        once = self._seals.release_key_once(
            self._account, self._sent.key or self._parts.random(32).hex(), self._sent.digest
        )
        return _Sealed(once, SystemBits(), None, None)

    def _answered(
        self, plan: Plan, asked: Wanted, sealed: _Sealed, budget: StoredBudget
    ) -> Settled | Replay | InFlight:
        def document(release: Release) -> bytes:
            return encode(
                release,
                id=sealed.release_key.hex(),
                dataset=asked.dataset,
                question=question_of(plan.query, asked.dataset),
                data_version=sealed.data_version,
            )

        def progress(_: float) -> None:
            if self._sent.gone():
                raise ClientDisconnected

        return answer(
            plan,
            self._parts.warehouse.steady(asked.dataset, sealed.data_version),
            budget,
            sealed.bits,
            encode=document,
            fingerprint_key=sealed.fingerprint_key,
            computational=sealed.data_version is not None,
            progress=progress,
            span=spans_of(self._parts.tracer, self._facts),
        )

    def _given(
        self,
        answered: Settled | Replay,
        reservation: str | None,
        asked: Wanted,
        plan: Plan,
        sealed: _Sealed,
        catalog: Catalog,
    ) -> Given:
        id_, charged, replayed = answered.release.release_key.hex(), answered.charged, isinstance(answered, Replay)
        self._parts.log.event(
            Released(
                self._sent.request_id,
                self._account,
                asked.dataset,
                plan.mechanism.name,
                id_,
                float_above(charged.rho),
                float_above(charged.delta),
                "store" if replayed else "engine",
                reservation,
            )
        )
        return Given(
            id_,
            answered.release.result,
            charged,
            replayed,
            asked.dataset,
            plan.mechanism.name,
            sealed.data_version if answered.release.release_key == sealed.release_key else None,
            self._manager.get(self._account),
            catalog,
        )

    def _short(self, error: BudgetRefused, plan: Plan) -> BudgetShort:
        refusal = error.refusal
        self._parts.log.event(
            Refused(
                self._sent.request_id,
                self._account,
                "budget-short",
                refusal.account,
                float_above(refusal.needed.rho),
                float_above(refusal.needed.delta),
            )
        )
        if self._parts.peers is not None:
            self._parts.peers.refused(refusal)
        return BudgetShort(refusal, most_that_fits(plan, self._least_left()))

    def _least_left(self) -> Cost:
        """What every account on the path that refuses has left."""
        path = [self._manager.get(member.id).balance for member in self._manager.path(self._account)]
        rest = [balance.remaining for balance in path if balance.account.enforced]
        return Cost(min(cost.rho for cost in rest), min(cost.delta for cost in rest)) if rest else Cost()


def _cause(error: Exception) -> Cause:
    match error:
        case EngineTimeout():
            return "timeout"
        case EngineError() | InputError():
            return "engine"
        case ClientDisconnected():
            return "client-gone"
        case DataChanged():
            return "data-changed"
        case LeaseLost():
            return "lease-lost"
    return "internal"
