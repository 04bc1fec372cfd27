"""A suite for stores of budgets: nobody overspends, whatever happens in whatever order. Needs pytest and hypothesis.

class TestMyStore(BudgetStoreSuite):
    @contextlib.contextmanager
    def opened(self, clock):
        store = MyStore.empty(clock)
        yield store
        store.close()
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest

from discreet.budget.errors import ClockError, KeyReused, LeaseLost, UnknownAccount
from discreet.budget.model import (
    Account,
    Act,
    Calendar,
    Claim,
    Forever,
    InFlight,
    Refusal,
    Replay,
    Reservation,
    Sliding,
)
from discreet.budget.periods import DAY_US, SECOND_US
from discreet.budget.states import State
from discreet.errors import DiscreetError, InputError, InvariantViolated
from discreet.values import DELTA_QUANTUM, RHO_QUANTUM, Cost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from discreet.budget.model import Period
    from discreet.budget.store import BudgetStore

NOON_US = 1_760_011_200 * SECOND_US
"""2025-10-09 12:00 UTC, a Thursday."""

ACT = Act("suite", "a test")
"""Who does it all."""

UNIT = Cost(Fraction(1, 1000), Fraction(1, 10**9))
"""A cost; limits are multiples of it."""

TOTAL = Fraction(1, 100)
"""Total delta of the accounts."""


class FakeClock:
    """A clock that stands still until it is told otherwise."""

    def __init__(self, now_us: int = NOON_US) -> None:
        self.now_us = now_us

    def __call__(self) -> int:
        """The time, in microseconds since 1970 UTC."""
        return self.now_us

    def go(self, days: float = 0, seconds: float = 0) -> None:
        """Move on, or back."""
        self.now_us += round(days * DAY_US) + round(seconds * SECOND_US)


def key_of(name: str) -> bytes:
    """A release key for *name*."""
    return hashlib.sha256(name.encode()).digest()


def account(name: str, units: int = 10, parent: str | None = None, period: Period = Forever()) -> Account:  # noqa: B008
    """An account with so many units of `UNIT`."""
    return Account(name, UNIT * units, TOTAL, parent, period)


def claim(name: str, who: str = "ann", release: str | None = None, worst: Cost = UNIT * 3, **rest: Any) -> Claim:
    """A claim; its release is its name unless given."""
    return Claim(name, who, key_of(release or name), worst, **rest)


def spend(store: BudgetStore, wish: Claim, actual: Cost = UNIT, result: bytes = b"answer") -> Cost:
    """Reserve, start and settle; what was charged."""
    admitted = store.reserve(wish)
    if isinstance(admitted, Replay):
        return admitted.charged
    assert isinstance(admitted, Reservation), admitted
    store.start(admitted.id)
    return store.settle(admitted.id, actual, result).charged


def units(store: BudgetStore, name: str) -> tuple[Fraction | int, ...]:
    """Used, held and forfeited of an account, in units of `UNIT`."""
    balance = store.balance(name)
    for part in (balance.used, balance.held, balance.forfeited):
        assert part.rho / UNIT.rho == part.delta / UNIT.delta
    return balance.used.rho / UNIT.rho, balance.held.rho / UNIT.rho, balance.forfeited.rho / UNIT.rho


class BudgetStoreSuite:
    """Tests every store has to pass; a subclass says how one is opened. Each ends with a verified ledger."""

    def opened(self, clock: FakeClock) -> AbstractContextManager[BudgetStore]:
        """A new, empty store that reads *clock*, and closes at the end."""
        raise NotImplementedError

    @contextlib.contextmanager
    def books(self, period: Period = Forever(), limit: int = 10) -> Iterator[tuple[BudgetStore, FakeClock]]:  # noqa: B008
        """A store with ann and bob of one organisation with one dataset; it verifies in the end."""
        clock = FakeClock()
        with self.opened(clock) as store:
            store.create(account("data", 1_000, period=period), ACT)
            store.create(account("org", 2 * limit, "data", period), ACT)
            for name in ("ann", "bob"):
                store.create(account(name, limit, "org", period), ACT)
            yield store, clock
            store.verify()

    # ---------------------------------------------------------------------------------------------- the stair

    def test_the_worst_case_is_held_and_the_actual_cost_is_charged_on_the_whole_path(self) -> None:
        """Pay what you get, analyst, organisation and dataset alike."""
        with self.books() as (store, _):
            admitted = store.reserve(claim("a"))
            assert isinstance(admitted, Reservation)
            assert admitted.state is State.HELD
            assert [hold.account for hold in admitted.holds] == ["ann", "org", "data"]
            assert [units(store, n) for n in ("ann", "org", "data", "bob")] == [(0, 3, 0)] * 3 + [(0, 0, 0)]
            assert store.start("a").state is State.RUNNING
            settled = store.settle("a", UNIT, b"bytes")
            assert (settled.charged, settled.release.result) == (UNIT, b"bytes")
            assert [units(store, n) for n in ("ann", "org", "data", "bob")] == [(1, 0, 0)] * 3 + [(0, 0, 0)]

    @pytest.mark.parametrize("short", ["ann", "org", "data"])
    def test_a_refusal_names_who_falls_short_and_holds_nothing_anywhere(self, short: str) -> None:
        """I1: all or nothing on the path."""
        with self.books() as (store, _):
            store.alter(dataclasses.replace(store.path(short)[0], limit=UNIT * 2), ACT)
            refused = store.reserve(claim("a"))
            assert isinstance(refused, Refusal)
            assert (refused.account, refused.needed, refused.remaining) == (short, UNIT * 3, UNIT * 2)
            assert [units(store, n) for n in ("ann", "org", "data")] == [(0, 0, 0)] * 3
            assert store.reservation("a") is None

    def test_all_of_a_limit_can_be_spent_and_not_a_quantum_more(self) -> None:
        """I1, in rho and in delta; what is held counts as what is spent."""
        with self.books() as (store, _):
            spend(store, claim("a", worst=UNIT * 7), UNIT * 7)
            assert isinstance(store.reserve(claim("b", worst=UNIT * 3)), Reservation)
            for n, crumb in enumerate((Cost(RHO_QUANTUM), Cost(Fraction(0), DELTA_QUANTUM))):
                assert isinstance(store.reserve(claim(f"c{n}", worst=crumb)), Refusal)
            assert store.balance("ann").remaining == Cost()
            assert isinstance(store.reserve(claim("d", worst=Cost())), Reservation)

    def test_amounts_are_exact_beyond_64_bits(self) -> None:
        """A limit of a billion to the last quantum."""
        with self.opened(FakeClock()) as store:
            large = Cost(Fraction(10**9) + RHO_QUANTUM, Fraction(1, 2) + DELTA_QUANTUM)
            store.create(Account("ann", large, Fraction(3, 4)), ACT)
            spend(store, claim("a", worst=large - Cost(RHO_QUANTUM)), large - Cost(RHO_QUANTUM))
            assert store.balance("ann").remaining == Cost(RHO_QUANTUM)
            store.verify()

    def test_an_answer_that_costs_more_than_its_worst_case_is_refused(self) -> None:
        """A bug of the caller's: nothing changes, nothing is stored."""
        with self.books() as (store, _):
            store.reserve(claim("a"))
            store.start("a")
            for cost in (UNIT * 4, UNIT * 3 + Cost(RHO_QUANTUM), UNIT * 3 + Cost(Fraction(0), DELTA_QUANTUM)):
                with pytest.raises(InvariantViolated):
                    store.settle("a", cost, b"x")
            assert units(store, "ann") == (0, 3, 0)
            assert store.release(key_of("a")) is None

    def test_only_what_the_table_allows_happens(self) -> None:
        """HELD cannot be settled or forfeited, RUNNING cannot be voided; what has ended is lost to its caller."""
        with self.books() as (store, _):
            store.reserve(claim("a"))
            with pytest.raises(InvariantViolated):
                store.settle("a", UNIT, b"x")
            with pytest.raises(InvariantViolated):
                store.forfeit("a")
            store.start("a")
            with pytest.raises(InvariantViolated):
                store.void("a")
            assert units(store, "ann") == (0, 3, 0)
            store.settle("a", UNIT, b"x")
            for event in (store.start, store.void, store.forfeit):
                with pytest.raises(LeaseLost):
                    event("a")
            with pytest.raises(LeaseLost):
                store.start("never-reserved")
            assert units(store, "ann") == (1, 0, 0)

    def test_what_is_repeated_changes_nothing(self) -> None:
        """Whoever did not hear the answer asks again: claims and events are known by name and state."""
        with self.books() as (store, _):
            for _ in range(3):
                assert isinstance(store.reserve(claim("a")), Reservation)
            assert {store.start("a").state for _ in range(3)} == {State.RUNNING}
            assert {store.settle("a", UNIT, b"x").charged for _ in range(3)} == {UNIT}
            again = store.reserve(claim("a"))
            assert isinstance(again, Replay)
            assert again.charged == Cost()
            store.reserve(claim("b"))
            store.void("b")
            store.void("b")
            store.reserve(claim("c"))
            store.start("c")
            store.forfeit("c")
            store.forfeit("c")
            assert units(store, "ann") == (1, 0, 3)
            with pytest.raises(InvariantViolated):
                store.reserve(claim("a", worst=UNIT))

    # ---------------------------------------------------------------------------------------------- failures

    def test_a_void_is_free_and_a_failure_is_charged(self) -> None:
        """I3: no data was asked; data was asked."""
        with self.books() as (store, _):
            store.reserve(claim("a"))
            store.void("a")
            assert units(store, "ann") == (0, 0, 0)
            store.reserve(claim("b"))
            store.start("b")
            store.forfeit("b")
            assert [units(store, n) for n in ("ann", "org", "data")] == [(0, 0, 3)] * 3
            assert store.balance("ann").remaining == UNIT * 7

    def test_a_forfeit_pays_for_a_retry_of_the_same_release_and_nothing_else(self) -> None:
        """I3: the user pays once in the end, and only once she has her answer."""
        with self.books(limit=3) as (store, _):
            store.reserve(claim("a", release="q"))
            store.start("a")
            store.forfeit("a")
            assert isinstance(store.reserve(claim("b", release="other", worst=UNIT)), Refusal)
            assert isinstance(store.reserve(claim("c", release="q")), Reservation)
            assert units(store, "ann") == (0, 3, 0)
            store.start("c")
            assert store.settle("c", UNIT, b"x").charged == UNIT
            assert [units(store, n) for n in ("ann", "org", "data")] == [(1, 0, 0)] * 3

    def test_a_voided_retry_refunds_no_failure(self) -> None:
        """I3: what came out of a forfeit goes back to it, however often."""
        with self.books() as (store, _):
            store.reserve(claim("a", release="q"))
            store.start("a")
            store.forfeit("a")
            for n in range(3):
                store.reserve(claim(f"b{n}", release="q"))
                store.void(f"b{n}")
                assert units(store, "ann") == (0, 0, 3)
            spend(store, claim("c", release="q"))
            assert units(store, "ann") == (1, 0, 0)

    def test_two_failures_of_one_release_are_both_charged(self) -> None:
        """They ran at the same time; a retry takes one of them."""
        with self.books() as (store, _):
            for name in ("a", "b"):
                store.reserve(claim(name, release="q"))
                store.start(name)
            for name in ("a", "b"):
                store.forfeit(name)
            assert units(store, "ann") == (0, 0, 6)
            store.reserve(claim("c", release="q"))
            assert units(store, "ann") == (0, 3, 3)

    def test_a_dead_reservation_is_voided_if_held_and_forfeited_if_running(self) -> None:
        """I3, when its lease is over and not before."""
        with self.books() as (store, clock):
            store.reserve(claim("a", lease_ms=1_000))
            store.reserve(claim("b", lease_ms=1_000))
            store.start("b")
            clock.go(seconds=0.999)
            assert store.expire() == 0
            clock.go(seconds=0.001)
            with pytest.raises(LeaseLost):
                store.start("a")
            assert store.expire() == 2
            assert units(store, "ann") == (0, 0, 3)
            assert [store.reservation(n).state for n in "ab"] == [State.VOID, State.FORFEIT]  # type: ignore[union-attr]

    def test_a_zombie_gets_no_row_and_its_answer_is_dropped(self) -> None:
        """I3: a worker that wakes up after its lease was taken settles nothing, even if a retry is under way."""
        with self.books() as (store, clock):
            store.reserve(claim("a", release="q", lease_ms=1))
            store.start("a")
            clock.go(seconds=1)
            store.expire()
            store.reserve(claim("b", release="q"))
            store.start("b")
            with pytest.raises(LeaseLost):
                store.settle("a", UNIT, b"zombie")
            assert store.release(key_of("q")) is None
            assert store.settle("b", UNIT * 2, b"alive").release.result == b"alive"
            with pytest.raises(LeaseLost):
                store.settle("a", UNIT, b"zombie")
            assert units(store, "ann") == (2, 0, 0)

    # ---------------------------------------------------------------------------------------------- stored releases

    def test_the_same_question_is_free_for_her_who_paid(self) -> None:
        """I7: the exact bytes, no charge, even with nothing left."""
        with self.books(limit=3) as (store, _):
            spend(store, claim("a", release="q"), UNIT * 3, b"\x00bytes\xff")
            assert store.balance("ann").remaining == Cost()
            again = store.reserve(claim("b", release="q"))
            assert isinstance(again, Replay)
            assert (again.release.result, again.charged) == (b"\x00bytes\xff", Cost())
            assert store.entitled("ann", key_of("q"))
            assert not store.entitled("bob", key_of("q"))

    def test_another_analyst_pays_for_the_same_bytes_and_shared_accounts_do_not(self) -> None:
        """I7: her own account in full, what it cost; organisation and dataset have paid."""
        with self.books() as (store, _):
            spend(store, claim("a", release="q"), UNIT * 2, b"bytes")
            shared = store.reserve(claim("b", "bob", "q"))
            assert isinstance(shared, Replay)
            assert (shared.release.result, shared.charged) == (b"bytes", UNIT * 2)
            assert [units(store, n)[0] for n in ("ann", "bob", "org", "data")] == [2] * 4
            assert spend(store, claim("c", "bob", "q")) == Cost()

    def test_a_refusal_tells_nothing_about_a_release_not_paid_for(self) -> None:
        """I9: the worst case has to fit, whether the release is stored or not."""
        with self.books() as (store, _):
            spend(store, claim("a", release="q"))
            store.alter(dataclasses.replace(store.path("bob")[0], limit=UNIT * 2), ACT)
            answers = [store.reserve(claim(name, "bob", name)) for name in ("q", "r")]
            assert answers[0] == answers[1]
            assert isinstance(answers[0], Refusal)

    def test_of_two_first_requests_the_faster_one_is_answered_to_both(self) -> None:
        """I7: first writer wins; each analyst pays once, the shared accounts once together."""
        with self.books() as (store, _):
            for name, who in (("a", "ann"), ("a2", "ann"), ("b", "bob")):
                store.reserve(claim(name, who, "q"))
                store.start(name)
            assert units(store, "org") == (0, 9, 0)
            first = store.settle("a", UNIT, b"first")
            second = store.settle("a2", UNIT * 3, b"second")
            third = store.settle("b", UNIT * 3, b"third")
            assert {s.release.result for s in (first, second, third)} == {b"first"}
            assert [s.charged for s in (first, second, third)] == [UNIT, Cost(), UNIT]
            assert [units(store, n) for n in ("ann", "bob", "org", "data")] == [(1, 0, 0)] * 4

    # ---------------------------------------------------------------------------------------------- idempotency

    def test_an_idempotency_key_is_one_charge_and_one_answer(self) -> None:
        """I4: in flight, then replayed; another question with it is a conflict; it is the account's own."""
        with self.books() as (store, _):
            keyed: dict[str, Any] = {"key": "k", "digest": b"d"}
            assert isinstance(store.reserve(claim("a", release="q", **keyed)), Reservation)
            waiting = store.reserve(claim("b", release="q", **keyed))
            assert isinstance(waiting, InFlight)
            assert waiting.reservation == "a"
            assert units(store, "ann") == (0, 3, 0)
            with pytest.raises(KeyReused):
                store.reserve(claim("c", release="r", key="k", digest=b"e"))
            store.start("a")
            store.settle("a", UNIT, b"x")
            assert isinstance(store.reserve(claim("d", release="q", **keyed)), Replay)
            with pytest.raises(KeyReused):
                store.reserve(claim("e", release="r", key="k", digest=b"e"))
            assert isinstance(store.reserve(claim("f", "bob", "r", key="k", digest=b"e")), Reservation)
            assert units(store, "ann") == (1, 0, 0)

    def test_a_key_whose_reservation_ended_unsettled_is_used_again(self) -> None:
        """I4: a void frees it, a failure is retried with it, a refusal never took it."""
        with self.books(limit=3) as (store, _):
            keyed: dict[str, Any] = {"key": "k", "digest": b"d", "release": "q"}
            assert isinstance(store.reserve(claim("z", worst=UNIT * 4, key="k", digest=b"d")), Refusal)
            store.reserve(claim("a", **keyed))
            store.void("a")
            assert isinstance(store.reserve(claim("b", **keyed)), Reservation)
            store.start("b")
            store.forfeit("b")
            assert isinstance(store.reserve(claim("c", **keyed)), Reservation)
            assert units(store, "ann") == (0, 3, 0)

    def test_a_key_is_remembered_by_a_free_replay(self) -> None:
        """I4: it was used, so that another question with it is a conflict."""
        with self.books() as (store, _):
            spend(store, claim("a", release="q"))
            assert isinstance(store.reserve(claim("b", release="q", key="k", digest=b"d")), Replay)
            with pytest.raises(KeyReused):
                store.reserve(claim("c", release="r", key="k", digest=b"e"))

    # ---------------------------------------------------------------------------------------------- periods

    def test_a_sliding_window_holds_the_limit_wherever_it_begins(self) -> None:
        """I6: a charge counts until it is as old as the window, and its whole day with it."""
        with self.books(Sliding(30), limit=3) as (store, clock):
            spend(store, claim("a"), UNIT * 3)
            for n in range(30):
                clock.go(days=1)
                assert isinstance(store.reserve(claim(f"b{n}", worst=UNIT)), Refusal)
            clock.go(days=0.5)
            assert store.balance("ann").remaining == UNIT * 3
            assert isinstance(store.reserve(claim("c")), Reservation)

    def test_a_calendar_period_begins_anew_at_its_boundary(self) -> None:
        """The paper's way: two limits within a minute, at midnight of the zone."""
        with self.books(Calendar("month", "Europe/Berlin"), limit=3) as (store, clock):
            clock.now_us = 1_761_951_599 * SECOND_US  # 2025-10-31 22:59:59 UTC: a second before November in Berlin
            store.confirm_clock(ACT)
            spend(store, claim("a"), UNIT * 3)
            assert isinstance(store.reserve(claim("b", worst=UNIT)), Refusal)
            clock.go(seconds=1)
            spend(store, claim("c"), UNIT * 3)
            assert isinstance(store.reserve(claim("d", worst=UNIT)), Refusal)
            clock.go(days=30, seconds=-1)
            store.confirm_clock(ACT)
            assert isinstance(store.reserve(claim("e", worst=UNIT)), Refusal)
            clock.go(seconds=1)
            spend(store, claim("f"), UNIT * 3)
            assert units(store, "ann") == (3, 0, 0)

    def test_a_charge_belongs_to_the_period_of_its_reservation(self) -> None:
        """I6: refreshed while it runs, it is settled where it was held."""
        with self.books(Calendar("day"), limit=3) as (store, clock):
            store.reserve(claim("a", lease_ms=86_400_000))
            store.start("a")
            clock.go(days=0.6)
            assert store.refresh() == 4
            assert units(store, "ann") == (0, 0, 0)
            store.settle("a", UNIT * 3, b"x")
            assert units(store, "ann") == (0, 0, 0)
            assert isinstance(store.reserve(claim("b")), Reservation)

    def test_a_sliding_charge_settled_on_another_day_still_counts(self) -> None:
        """I6: in the bucket of its reservation, which is among those that count."""
        with self.books(Sliding(7), limit=3) as (store, clock):
            store.reserve(claim("a", lease_ms=86_400_000))
            store.start("a")
            clock.go(days=0.9)
            store.refresh()
            store.settle("a", UNIT * 2, b"x")
            assert units(store, "ann") == (2, 0, 0)
            clock.go(days=6.5)
            store.confirm_clock(ACT)
            assert isinstance(store.reserve(claim("b", worst=UNIT * 2)), Refusal)

    def test_a_forfeit_that_counts_no_more_pays_for_nothing(self) -> None:
        """Its period is over: the retry is charged in the new one, in full."""
        with self.books(Calendar("day"), limit=4) as (store, clock):
            store.reserve(claim("a", release="q"))
            store.start("a")
            store.forfeit("a")
            clock.go(days=1)
            spend(store, claim("z", worst=UNIT * 2), UNIT * 2)
            assert isinstance(store.reserve(claim("b", release="q")), Refusal)

    def test_time_that_goes_back_makes_no_budget(self) -> None:
        """I6: it is taken as the latest seen; the past period does not open again."""
        with self.books(Calendar("day"), limit=3) as (store, clock):
            spend(store, claim("a"), UNIT * 3)
            clock.go(days=1)
            spend(store, claim("b"), UNIT * 3)
            store.refresh()
            for days in (-1, -40):
                clock.go(days=days)
                assert isinstance(store.reserve(claim(f"c{days}", worst=UNIT)), Refusal)
                assert store.refresh() == 0
            clock.go(days=41)
            assert isinstance(store.reserve(claim("d", worst=UNIT)), Refusal)

    def test_a_clock_that_runs_ahead_makes_no_budget_until_an_officer_confirms_it(self) -> None:
        """I6: beyond two days nothing is refreshed and no lease ends, but what was paid for is still answered."""
        with self.books(Sliding(30), limit=3) as (store, clock):
            spend(store, claim("a", release="q"), UNIT * 2)
            store.reserve(claim("r", worst=UNIT))
            clock.go(days=40)
            for ask in (lambda: store.reserve(claim("b")), store.refresh):
                with pytest.raises(ClockError):
                    ask()
            store.heartbeat()
            with pytest.raises(ClockError):
                store.reserve(claim("c"))
            assert store.expire() == 0
            assert isinstance(store.reserve(claim("d", release="q")), Replay)
            assert units(store, "ann") == (2, 1, 0)
            store.confirm_clock(ACT)
            assert store.expire() == 1
            assert isinstance(store.reserve(claim("e")), Reservation)

    def test_heartbeats_carry_the_clock_forward(self) -> None:
        """Forty days with a heartbeat a day need no officer."""
        with self.books(Sliding(30), limit=3) as (store, clock):
            spend(store, claim("a"), UNIT * 3)
            for _ in range(40):
                clock.go(days=1)
                store.heartbeat()
            assert isinstance(store.reserve(claim("b")), Reservation)

    # ---------------------------------------------------------------------------------------------- officers

    def test_a_limit_may_be_lowered_below_what_is_used(self) -> None:
        """Nothing is left then, and nothing is taken from what is held; what costs nothing more still goes on."""
        with self.books() as (store, _):
            spend(store, claim("a", release="q"), UNIT * 3)
            store.reserve(claim("b"))
            store.alter(dataclasses.replace(store.path("ann")[0], limit=UNIT), ACT)
            assert store.balance("ann").remaining == Cost()
            assert isinstance(store.reserve(claim("c", worst=Cost(RHO_QUANTUM))), Refusal)
            assert isinstance(store.reserve(claim("d", release="q")), Replay)
            store.start("b")
            store.settle("b", UNIT * 3, b"x")
            assert units(store, "ann") == (6, 0, 0)

    def test_an_observed_account_charges_and_never_refuses(self) -> None:
        """The phased launch: the same charges, no refusal."""
        with self.books(limit=3) as (store, _):
            store.alter(dataclasses.replace(store.path("ann")[0], mode="observe"), ACT)
            for n in range(2):
                spend(store, claim(f"a{n}"), UNIT * 3)
            assert units(store, "ann") == (6, 0, 0)
            assert isinstance(store.reserve(claim("b", worst=UNIT)), Refusal)  # the organisation enforces

    @pytest.mark.parametrize(
        ("before", "after"),
        [(Sliding(3), Sliding(30)), (Calendar("day"), Sliding(30)), (Forever(), Sliding(2)), (Sliding(1), Forever())],
    )
    def test_another_period_forgets_no_charge_that_it_counts(self, before: Period, after: Period) -> None:
        """I6: charges of buckets that had stopped counting count again."""
        with self.books(before, limit=3) as (store, clock):
            spend(store, claim("a"), UNIT * 3)
            for _ in range(4):
                clock.go(days=1)
                store.refresh()
            short = isinstance(after, Sliding) and after.days == 2
            if before != Forever():
                assert store.balance("ann").remaining == UNIT * 3
            for name in ("ann", "org", "data"):
                store.alter(dataclasses.replace(store.path(name)[0], period=after), ACT)
            assert isinstance(store.reserve(claim("b", worst=UNIT)), Refusal)
            for _ in range(4 if short else 0):
                clock.go(days=1)
                store.refresh()
            assert isinstance(store.reserve(claim("c", worst=UNIT)), Reservation if short else Refusal)

    def test_refunds_are_capped_and_charges_by_hand_are_not(self) -> None:
        """A tenth of the limit in all, and never more than is used; a charge may pass the limit."""
        with self.books() as (store, _):
            with pytest.raises(InputError):
                store.refund("ann", UNIT, ACT)
            spend(store, claim("a"), UNIT * 3)
            store.refund("ann", UNIT, ACT)
            with pytest.raises(InputError):
                store.refund("ann", Cost(RHO_QUANTUM), ACT)
            assert units(store, "ann") == (2, 0, 0)
            store.charge("ann", UNIT * 20, ACT)
            assert units(store, "ann") == (22, 0, 0)
            assert isinstance(store.reserve(claim("b")), Refusal)

    def test_a_refund_makes_room_no_longer_than_the_charge_took_it(self) -> None:
        """It comes out of the oldest bucket, so that what is left of the newest counts to its end."""
        with self.books(Sliding(3), limit=10) as (store, clock):
            spend(store, claim("a"), UNIT)
            clock.go(days=1)
            spend(store, claim("b"), UNIT)
            store.refund("ann", UNIT, ACT)
            for _ in range(4):
                assert units(store, "ann") == (1, 0, 0)
                clock.go(days=1)
                store.heartbeat()
            assert units(store, "ann") == (0, 0, 0)

    def test_accounts_are_checked_when_they_are_made(self) -> None:
        """One of a name, parents that exist and stay, names that exist, zones that exist."""
        with self.books() as (store, _):
            for wrong in (
                account("ann"),
                account("eve", parent="none"),
                account("eve", period=Calendar("day", "Mars/X")),
            ):
                with pytest.raises(InputError):
                    store.create(wrong, ACT)
            with pytest.raises(InputError):
                store.alter(dataclasses.replace(store.path("ann")[0], parent=None), ACT)
            for ask in (store.path, store.balance, lambda name: store.charge(name, UNIT, ACT)):
                with pytest.raises(UnknownAccount):
                    ask("nobody")
            with pytest.raises(UnknownAccount):
                store.reserve(claim("a", "nobody"))
            assert [one.id for one in store.accounts()] == ["ann", "bob", "data", "org"]

    # ---------------------------------------------------------------------------------------------- many at once

    @pytest.mark.parametrize("threads", [8, 32])
    def test_threads_that_race_for_the_last_unit_overspend_nothing(self, threads: int) -> None:
        """I1: exactly as many are admitted as fit, with no spurious refusal, and the shared account adds up."""
        with self.books(limit=20) as (store, _):
            barrier = threading.Barrier(threads)

            def ask(n: int) -> int:
                barrier.wait(30)
                return sum(
                    isinstance(store.reserve(claim(f"r{n}-{i}", ("ann", "bob")[n % 2])), Reservation) for i in range(3)
                )

            with ThreadPoolExecutor(threads) as pool:
                admitted = sum(pool.map(ask, range(threads)))
            assert admitted == 12  # 20 // 3 for each of two
            assert [units(store, n)[1] for n in ("ann", "bob", "org")] == [18, 18, 36]

    def test_fifty_requests_with_one_key_are_one_charge(self) -> None:
        """I4: one is admitted, the others wait for it and get its bytes."""
        with self.books() as (store, _):
            barrier = threading.Barrier(50)

            def ask(n: int) -> Reservation | Replay | InFlight | Refusal:
                barrier.wait(30)
                return store.reserve(claim(f"r{n}", release="q", key="k", digest=b"d"))

            with ThreadPoolExecutor(50) as pool:
                answers = list(pool.map(ask, range(50)))
            (first,) = [a for a in answers if isinstance(a, Reservation)]
            assert {a.reservation for a in answers if isinstance(a, InFlight)} == {first.id}
            store.start(first.id)
            store.settle(first.id, UNIT, b"once")
            for n in range(3):
                again = store.reserve(claim(f"s{n}", release="q", key="k", digest=b"d"))
                assert isinstance(again, Replay)
                assert (again.release.result, again.charged) == (b"once", Cost())
            assert units(store, "ann") == (1, 0, 0)

    # ---------------------------------------------------------------------------------------------- the ledger

    def test_every_change_is_a_line_and_the_lines_add_up(self) -> None:
        """I5: the ledger alone gives every balance; lines are read from anywhere."""
        with self.books() as (store, _):
            spend(store, claim("a"))
            store.reserve(claim("b"))
            store.void("b")
            store.reserve(claim("c", worst=UNIT * 50))
            store.note(ACT, {"what": "a key was made"})
            heads = store.heads()
            lines = [line for head in heads for line in store.lines(head.chain)]
            kinds = [line.body.split("\t")[3] for line in lines]
            expected = ["create"] * 4 + ["reserve", "start", "settle", "reserve", "void", "refuse", "note"]
            assert sorted(kinds) == sorted(expected)
            verified = store.verify()
            assert (verified.heads, verified.lines) == (heads, len(lines))
            for name in ("ann", "bob", "org", "data"):
                assert verified.in_force(name).used.cost == store.balance(name).used
            for head in heads:
                whole = [line for line in lines if line.chain == head.chain]
                tail = list(store.lines(head.chain, 1, 2))
                assert tail == whole[1:3]

    def test_what_is_refused_with_an_error_leaves_no_line(self) -> None:
        """A method that raises has changed nothing."""
        with self.books() as (store, _):
            store.reserve(claim("a", key="k", digest=b"d"))
            before = store.heads()
            asks: list[Callable[[], object]] = [
                lambda: store.reserve(claim("b", key="k", digest=b"e")),
                lambda: store.settle("a", UNIT, b""),
                lambda: store.refund("ann", UNIT, ACT),
                lambda: store.start("zz"),
                lambda: store.create(account("ann"), ACT),
            ]
            for ask in asks:
                with pytest.raises(DiscreetError):
                    ask()
            assert store.heads() == before
