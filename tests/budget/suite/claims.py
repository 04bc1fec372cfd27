"""From a claim to its end: the pipeline, failures, stored releases, idempotency keys."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import pytest

from discreet.budget.errors import LeaseLost
from discreet.budget.model import Account, Refusal, Replay, Reservation, State
from discreet.errors import InvariantViolated
from discreet.values import DELTA_QUANTUM, RHO_QUANTUM, Cost
from tests.budget.suite.base import ACT, UNIT, FakeClock, Suite, claim, key_of, spend, units


class Claims(Suite):
    """Tests of `BudgetStore.reserve` and of the steps after it."""

    # ------------------------------------------------------------------------------------------- the pipeline

    def test_the_worst_case_is_held_and_the_actual_cost_is_charged_on_the_whole_path(self) -> None:
        """Pay what you get, for analyst, organisation and dataset alike."""
        with self.accounts() as (store, _):
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
    def test_a_refusal_names_the_short_account_and_holds_nothing(self, short: str) -> None:
        """I1: a claim is admitted on the whole path or holds nothing."""
        with self.accounts() as (store, _):
            store.alter(dataclasses.replace(store.path(short)[0], limit=UNIT * 2), ACT)
            refused = store.reserve(claim("a"))
            assert isinstance(refused, Refusal)
            assert (refused.account, refused.needed, refused.remaining) == (short, UNIT * 3, UNIT * 2)
            assert [units(store, n) for n in ("ann", "org", "data")] == [(0, 0, 0)] * 3
            assert store.reservation("a") is None

    def test_all_of_a_limit_can_be_spent_and_not_a_quantum_more(self) -> None:
        """I1, in rho and in delta; held amounts count like spent ones."""
        with self.accounts() as (store, _):
            spend(store, claim("a", worst=UNIT * 7), UNIT * 7)
            assert isinstance(store.reserve(claim("b", worst=UNIT * 3)), Reservation)
            for n, crumb in enumerate((Cost(RHO_QUANTUM), Cost(Fraction(0), DELTA_QUANTUM))):
                assert isinstance(store.reserve(claim(f"c{n}", worst=crumb)), Refusal)
            assert store.balance("ann").remaining == Cost()
            assert isinstance(store.reserve(claim("d", worst=Cost())), Reservation)

    def test_amounts_are_exact_beyond_64_bits(self) -> None:
        """A limit of a billion is exact to the last quantum."""
        with self.opened(FakeClock()) as store:
            large = Cost(Fraction(10**9) + RHO_QUANTUM, Fraction(1, 2) + DELTA_QUANTUM)
            store.create(Account("ann", large, Fraction(3, 4)), ACT)
            spend(store, claim("a", worst=large - Cost(RHO_QUANTUM)), large - Cost(RHO_QUANTUM))
            assert store.balance("ann").remaining == Cost(RHO_QUANTUM)
            store.verify()

    def test_an_answer_that_costs_more_than_its_worst_case_is_refused(self) -> None:
        """Such a settlement is a bug of the caller: nothing changes, nothing is stored."""
        with self.accounts() as (store, _):
            store.reserve(claim("a"))
            store.start("a")
            for cost in (UNIT * 4, UNIT * 3 + Cost(RHO_QUANTUM), UNIT * 3 + Cost(Fraction(0), DELTA_QUANTUM)):
                with pytest.raises(InvariantViolated):
                    store.settle("a", cost, b"x")
            assert units(store, "ann") == (0, 3, 0)
            assert store.release(key_of("a")) is None

    def test_other_transitions_than_those_of_the_table_are_refused(self) -> None:
        """HELD cannot be settled or forfeited, RUNNING cannot be voided; the caller of an ended one gets an error."""
        with self.accounts() as (store, _):
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

    def test_repeated_events_change_nothing(self) -> None:
        """A retry after a lost reply is idempotent: claims and events are identified by name and state."""
        with self.accounts() as (store, _):
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
        """I3: a void happens before data is read, a failure after it."""
        with self.accounts() as (store, _):
            store.reserve(claim("a"))
            store.void("a")
            assert units(store, "ann") == (0, 0, 0)
            store.reserve(claim("b"))
            store.start("b")
            store.forfeit("b")
            assert [units(store, n) for n in ("ann", "org", "data")] == [(0, 0, 3)] * 3
            assert store.balance("ann").remaining == UNIT * 7

    def test_a_forfeit_pays_for_a_retry_of_the_same_release_and_nothing_else(self) -> None:
        """I3: the account pays once, and only when it is answered."""
        with self.accounts(limit=3) as (store, _):
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
        """I3: an amount from a forfeit returns to it, however often."""
        with self.accounts() as (store, _):
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
        """Two analysts ran it at the same time; a retry takes one of the forfeits out of the shared accounts."""
        with self.accounts() as (store, _):
            for name, who in (("a", "ann"), ("b", "bob")):
                store.reserve(claim(name, who, "q"))
                store.start(name)
            for name in ("a", "b"):
                store.forfeit(name)
            assert units(store, "org") == (0, 0, 6)
            store.reserve(claim("c", release="q"))
            assert units(store, "org") == (0, 3, 3)

    def test_a_dead_reservation_is_voided_if_held_and_forfeited_if_running(self) -> None:
        """I3: when its lease is over and not before."""
        with self.accounts() as (store, clock):
            store.reserve(claim("a", lease_ms=1_000))
            store.reserve(claim("b", lease_ms=1_000))
            store.start("b")
            clock.advance(seconds=0.999)
            assert store.expire() == 0
            clock.advance(seconds=0.001)
            with pytest.raises(LeaseLost):
                store.start("a")
            assert store.expire() == 2
            assert units(store, "ann") == (0, 0, 3)
            assert [store.reservation(n).state for n in "ab"] == [State.VOID, State.FORFEIT]  # type: ignore[union-attr]

    def test_a_worker_that_resumes_after_its_lease_settles_nothing(self) -> None:
        """I3: a worker that resumes after its lease ended settles nothing, even if a retry is running."""
        with self.accounts() as (store, clock):
            store.reserve(claim("a", release="q", lease_ms=1))
            store.start("a")
            clock.advance(seconds=1)
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
