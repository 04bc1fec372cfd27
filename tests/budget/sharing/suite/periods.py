"""Shares, clocks and periods."""

from __future__ import annotations

import pytest

from discreet.budget.errors import ClockError
from discreet.budget.model import NOTHING, Amount, Calendar, Sliding
from discreet.budget.sharing.escrow import ShareRequest
from tests.budget.sharing.suite.base import (
    ONE,
    ShareSuite,
    announce,
)
from tests.budget.suite.base import ACT, UNIT, claim, spend


class PeriodTests(ShareSuite):
    """I6, I8: no clock of any data centre creates budget."""

    def test_a_share_is_not_taken_before_it_was_sent(self) -> None:
        """I6, I8: the recipient's own clock decides, so that no budget of one day is spent in two."""
        with self.centres(period=Calendar("day")) as (stores, clocks):
            announce(*stores)
            first, second = stores
            clocks[1].advance(seconds=-3600)
            clocks[0].advance(days=0.5)
            clocks[1].advance(days=0.5)
            spend(first, claim("a", worst=UNIT * 6), UNIT * 6)  # midnight: all of today's
            spend(second, claim("b", worst=UNIT * 6), UNIT * 6)  # an hour before: all of yesterday's
            transfer = first.shares.grant(second.id, ShareRequest("ann", NOTHING), NOTHING)
            assert transfer is None
            clocks[0].advance(days=1)
            clocks[1].advance(days=1)
            transfer = first.shares.grant(second.id, ShareRequest("ann", NOTHING), NOTHING)
            assert transfer is not None
            assert transfer.amount == Amount(ONE.rho * 3, ONE.delta * 3)
            assert second.shares.receive(transfer) is None
            clocks[1].advance(seconds=3599)
            assert second.shares.receive(transfer) is None
            clocks[1].advance(seconds=1)
            assert second.shares.receive(transfer) is not None
            assert second.balance("ann").remaining == UNIT * 9

    def test_nothing_moves_by_a_clock_that_ran_ahead(self) -> None:
        """I6: a future period has no budget to give, and takes none."""
        with self.centres(period=Sliding(3)) as (stores, clocks):
            announce(*stores)
            first, second = stores
            for clock in clocks:
                clock.advance(days=40)
            with pytest.raises(ClockError):
                first.shares.grant(second.id, ShareRequest("ann", NOTHING), NOTHING)
            first.confirm_clock(ACT)
            transfer = first.shares.grant(second.id, ShareRequest("ann", NOTHING), NOTHING)
            assert transfer is not None
            assert second.shares.receive(transfer) is None
            second.confirm_clock(ACT)
            assert second.shares.receive(transfer) is not None

    def test_charges_older_than_the_window_can_be_granted_again(self) -> None:
        """In a sliding window, each data centre frees its own old charges."""
        with self.centres(period=Sliding(2)) as (stores, clocks):
            announce(*stores)
            first, second = stores
            spend(first, claim("a", worst=UNIT * 6), UNIT * 6)
            need = Amount(ONE.rho * 6, ONE.delta * 6)
            for days in (0, 1, 1):
                for clock in clocks:
                    clock.advance(days=days)
                assert first.shares.grant(second.id, ShareRequest("ann", NOTHING, need), NOTHING) is None
            for clock in clocks:
                clock.advance(days=1)
            assert first.shares.grant(second.id, ShareRequest("ann", NOTHING, need), NOTHING) is not None
