"""Ends of charges, and wrong clocks."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from discreet.budget.errors import ClockError
from discreet.budget.model import Calendar, Refusal, Replay, Reservation, Sliding
from discreet.budget.rules import SECOND_US
from tests.budget.suite.base import ACT, UNIT, Suite, claim, spend, units

if TYPE_CHECKING:
    from discreet.budget.model import Period


class Periods(Suite):
    """Tests of buckets and of time."""

    # ---------------------------------------------------------------------------------------------- periods

    def test_a_sliding_window_holds_the_limit_wherever_it_begins(self) -> None:
        """I6: a charge counts until it is as old as the window, together with all charges of its day."""
        with self.accounts(Sliding(30), limit=3) as (store, clock):
            spend(store, claim("a"), UNIT * 3)
            for n in range(30):
                clock.advance(days=1)
                assert isinstance(store.reserve(claim(f"b{n}", worst=UNIT)), Refusal)
            clock.advance(days=0.5)
            assert store.balance("ann").remaining == UNIT * 3
            assert isinstance(store.reserve(claim("c")), Reservation)

    def test_a_calendar_period_begins_anew_at_its_boundary(self) -> None:
        """As in the paper: two limits within a minute, at midnight of the zone."""
        with self.accounts(Calendar("month", "Europe/Berlin"), limit=3) as (store, clock):
            clock.now_us = 1_761_951_599 * SECOND_US  # 2025-10-31 22:59:59 UTC: a second before November in Berlin
            store.confirm_clock(ACT)
            spend(store, claim("a"), UNIT * 3)
            assert isinstance(store.reserve(claim("b", worst=UNIT)), Refusal)
            clock.advance(seconds=1)
            spend(store, claim("c"), UNIT * 3)
            assert isinstance(store.reserve(claim("d", worst=UNIT)), Refusal)
            clock.advance(days=30, seconds=-1)
            store.confirm_clock(ACT)
            assert isinstance(store.reserve(claim("e", worst=UNIT)), Refusal)
            clock.advance(seconds=1)
            spend(store, claim("f"), UNIT * 3)
            assert units(store, "ann") == (3, 0, 0)

    def test_a_charge_belongs_to_the_period_of_its_reservation(self) -> None:
        """I6: a query that is settled after a new period began is charged to the period that held it."""
        with self.accounts(Calendar("day"), limit=3) as (store, clock):
            store.reserve(claim("a", lease_ms=86_400_000))
            store.start("a")
            clock.advance(days=0.6)
            assert store.refresh() == 4
            assert units(store, "ann") == (0, 0, 0)
            store.settle("a", UNIT * 3, b"x")
            assert units(store, "ann") == (0, 0, 0)
            assert isinstance(store.reserve(claim("b")), Reservation)

    def test_a_sliding_charge_settled_on_another_day_still_counts(self) -> None:
        """I6: it is in the bucket of its reservation, which still counts."""
        with self.accounts(Sliding(7), limit=3) as (store, clock):
            store.reserve(claim("a", lease_ms=86_400_000))
            store.start("a")
            clock.advance(days=0.9)
            store.refresh()
            store.settle("a", UNIT * 2, b"x")
            assert units(store, "ann") == (2, 0, 0)
            clock.advance(days=6.5)
            store.confirm_clock(ACT)
            assert isinstance(store.reserve(claim("b", worst=UNIT * 2)), Refusal)

    def test_a_forfeit_of_another_day_pays_while_it_counts(self) -> None:
        """I3: it is in a closed bucket of a sliding window, and is charged no second time."""
        with self.accounts(period=Sliding(3), limit=3) as (store, clock):
            store.reserve(claim("a", release="q"))
            store.start("a")
            store.forfeit("a")
            clock.advance(days=1)
            refused = store.reserve(claim("b", release="other"))
            assert isinstance(refused, Refusal)
            assert refused.resets_at_us == store.balance("ann").resets_at_us
            assert refused.resets_at_us is not None
            assert spend(store, claim("c", release="q"), UNIT * 3) == UNIT * 3
            assert [units(store, name) for name in ("ann", "org", "data")] == [(3, 0, 0)] * 3

    @pytest.mark.parametrize("period", [Sliding(4), Calendar("week")], ids=["sliding", "calendar"])
    def test_a_balance_is_the_same_before_the_next_bucket_is_opened(self, period: Period) -> None:
        """Reading writes nothing: what closes, what still counts and when it stops are computed."""
        with self.accounts(period) as (store, clock):
            for day in range(9):
                shown = store.balance("ann")
                store.refresh()
                opened = store.balance("ann")
                assert dataclasses.replace(shown, as_of=opened.as_of) == opened
                if day in {0, 1, 3}:
                    spend(store, claim(f"a{day}"), UNIT)
                clock.advance(days=1)

    def test_an_expired_forfeit_pays_for_nothing(self) -> None:
        """After its period, the retry is charged in full in the new one."""
        with self.accounts(Calendar("day"), limit=4) as (store, clock):
            store.reserve(claim("a", release="q"))
            store.start("a")
            store.forfeit("a")
            clock.advance(days=1)
            spend(store, claim("z", worst=UNIT * 2), UNIT * 2)
            assert isinstance(store.reserve(claim("b", release="q")), Refusal)

    def test_a_clock_that_goes_back_creates_no_budget(self) -> None:
        """I6: the time is at least the latest seen; a past period does not open again."""
        with self.accounts(Calendar("day"), limit=3) as (store, clock):
            spend(store, claim("a"), UNIT * 3)
            clock.advance(days=1)
            spend(store, claim("b"), UNIT * 3)
            store.refresh()
            for days in (-1, -40):
                clock.advance(days=days)
                assert isinstance(store.reserve(claim(f"c{days}", worst=UNIT)), Refusal)
                assert store.refresh() == 0
            clock.advance(days=41)
            assert isinstance(store.reserve(claim("d", worst=UNIT)), Refusal)

    def test_a_clock_that_runs_ahead_creates_no_budget_until_an_officer_confirms_it(self) -> None:
        """I6: beyond two days nothing is refreshed and no lease ends, but replays are still answered."""
        with self.accounts(Sliding(30), limit=3) as (store, clock):
            spend(store, claim("a", release="q"), UNIT * 2)
            store.reserve(claim("r", worst=UNIT))
            clock.advance(days=40)
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
        """Forty days with a daily heartbeat need no confirmation by an officer."""
        with self.accounts(Sliding(30), limit=3) as (store, clock):
            spend(store, claim("a"), UNIT * 3)
            for _ in range(40):
                clock.advance(days=1)
                store.heartbeat()
            assert isinstance(store.reserve(claim("b")), Reservation)
