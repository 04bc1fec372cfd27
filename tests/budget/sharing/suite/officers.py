"""Operations of officers, and invalid or restored stores."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from discreet.budget.errors import StoreBehind, UnknownAccount
from discreet.budget.model import NOTHING, Amount, Share, Sliding
from discreet.budget.sharing.escrow import Receipt, ShareRequest
from discreet.errors import InputError
from discreet.values import RHO_QUANTUM, Cost
from tests.budget.sharing.suite.base import (
    ONE,
    PLENTY,
    ShareSuite,
    add_up,
    announce,
    carry,
    holding,
    limits,
    moved,
)
from tests.budget.suite.base import ACT, TOTAL, UNIT, account, claim, spend, units

if TYPE_CHECKING:
    from collections.abc import Callable

    from discreet.budget.model import Account
    from discreet.budget.stores.store import BudgetStore


class OfficerTests(ShareSuite):
    """I8: no administrative action creates budget."""

    def test_settings_are_changed_at_home_and_adopted_by_the_others(self) -> None:
        """Mode, period and total delta change everywhere; each share stays the same, and charges still count."""
        with self.centres(3) as (stores, _):
            announce(*stores)
            home, *others = stores
            spend(others[0], claim("a"), UNIT)
            ann = home.path("ann")[0]
            home.alter(dataclasses.replace(ann, mode="observe", period=Sliding(7), delta=TOTAL / 2), ACT)
            assert home.shares.unannounced(others[0].id, PLENTY) == ["ann"]
            announce(*stores)
            assert limits(stores) == [4, 4, 4]
            for store in stores:
                found = store.path("ann")[0]
                assert (found.mode, found.period, found.delta) == ("observe", Sliding(7), TOTAL / 2)
                assert found.share == Share(UNIT * 12, home.id, 2)
                store.verify()
            assert units(others[0], "ann") == (1, 0, 0)
            assert home.shares.unannounced(others[0].id, PLENTY) == []

    def test_settings_come_with_a_share_from_any_store(self) -> None:
        """Settings arrive with a transfer of any store, and older ones are not applied."""
        with self.centres(3) as (stores, _):
            announce(*stores)
            home, second, third = stores
            old = second.shares.grant(third.id, ShareRequest("ann", NOTHING, Amount(ONE.rho, ONE.delta)), NOTHING)
            assert old is not None
            home.alter(dataclasses.replace(home.path("ann")[0], period=Sliding(7)), ACT)
            home.shares.announce(third.id, "ann", 3)
            carry(home, third)
            assert third.shares.receive(old) is not None
            assert third.path("ann")[0].period == Sliding(7)
            carry(second, third)
            transfer = third.shares.grant(second.id, ShareRequest("ann", NOTHING, Amount(ONE.rho, ONE.delta)), NOTHING)
            assert transfer is not None
            carry(third, second)
            assert second.path("ann")[0].period == Sliding(7)

    def test_the_total_is_changed_at_home(self) -> None:
        """The total rises by any amount and falls by at most what is left at home; it changes the home's share."""
        with self.centres() as (stores, _):
            announce(*stores)
            home = stores[0]
            spend(home, claim("a"), UNIT)
            for total, share in ((20, 14), (7, 1)):
                home.alter(home.path("ann")[0].with_limit(UNIT * total, TOTAL), ACT)
                announce(*stores)
                assert limits(stores) == [share, 6]
                assert [store.path("ann")[0].total_limit for store in stores] == [UNIT * total] * 2
                add_up(stores)
            with pytest.raises(InputError, match="what is left in this data centre"):
                home.alter(home.path("ann")[0].with_limit(UNIT * 7 - Cost(RHO_QUANTUM), TOTAL), ACT)
            assert home.balance("ann").remaining == Cost()

    def test_a_change_based_on_an_outdated_share_is_refused(self) -> None:
        """I8: a change based on an outdated share, a share set by hand and a change in the wrong store are refused."""
        with self.centres() as (stores, _):
            first, second = stores
            read = first.path("ann")[0]
            announce(*stores)
            wrong: list[tuple[BudgetStore, Account]] = [
                (first, dataclasses.replace(read, mode="observe")),
                (first, dataclasses.replace(first.path("ann")[0], limit=UNIT * 12)),
                (first, dataclasses.replace(first.path("ann")[0], share=None)),
                (second, dataclasses.replace(second.path("ann")[0], mode="observe")),
                (second, second.path("ann")[0].with_limit(UNIT * 99, TOTAL)),
            ]
            before = [store.heads() for store in stores]
            for store, wish in wrong:
                with pytest.raises(InputError):
                    store.alter(wish, ACT)
            with pytest.raises(InputError, match="not split over"):
                first.create(dataclasses.replace(read, id="bob", share=Share(UNIT * 99, first.id, 1)), ACT)
            assert [store.heads() for store in stores] == before

    def test_a_charge_beyond_a_share_is_requested_from_the_others(self) -> None:
        """The account is overdrawn then, gives nothing, and gets what is available."""
        with self.centres() as (stores, _):
            announce(*stores)
            first, second = stores
            second.charge("ann", UNIT * 8, ACT)
            assert second.shares.grant(first.id, ShareRequest("ann", NOTHING, ONE), NOTHING) is None
            moved(first, second)
            carry(first, second)
            assert limits(stores) == [2, 10]

    def test_a_share_for_another_store_is_refused(self) -> None:
        """A store copied from another's database would spend the same budget again."""
        with self.centres(3) as (stores, _):
            announce(*stores)
            first, second, third = stores
            transfer = first.shares.grant(second.id, ShareRequest("ann", NOTHING, ONE), NOTHING)
            assert transfer is not None
            wrong: list[Callable[[], object]] = [
                lambda: third.shares.receive(transfer),
                lambda: second.shares.receive(dataclasses.replace(transfer, donor=second.id)),
                lambda: third.shares.acknowledge(Receipt("ann", first.id, second.id, 2, True, 1)),
            ]
            for each in wrong:
                with pytest.raises(InputError, match="store of its own"):
                    each()

    def test_a_restored_store_is_detected_by_the_others(self) -> None:
        """F12: the other store receives transfers with unknown numbers, and changes nothing."""
        with self.centres() as (stores, _):
            announce(*stores)
            first, second = stores
            transfer = first.shares.grant(second.id, ShareRequest("ann", NOTHING, ONE), NOTHING)
            assert transfer is not None
            with pytest.raises(StoreBehind):
                second.shares.receive(dataclasses.replace(transfer, number=transfer.number + 1))
            with pytest.raises(StoreBehind):
                first.shares.acknowledge(Receipt("ann", first.id, second.id, transfer.number + 1, True, 1))
            assert limits(stores) == [3, 6]

    def test_accounts_that_were_not_created_are_unknown(self) -> None:
        """Every operation on them is refused."""
        with self.centres() as (stores, _):
            first, second = stores
            wrong: list[Callable[[], object]] = [
                lambda: first.shares.grant(second.id, ShareRequest("eve", NOTHING), NOTHING),
                lambda: first.shares.announce(second.id, "eve", 2),
                lambda: first.shares.acknowledge(Receipt("eve", first.id, second.id, 1, True, 1)),
            ]
            for each in wrong:
                with pytest.raises(UnknownAccount):
                    each()

    def test_holdings_are_read_page_by_page(self) -> None:
        """Holdings are ordered by name, with the amounts sent and received."""
        with self.centres() as (stores, _):
            announce(*stores)
            first, second = stores
            assert [each.account.id for each in first.shares.holdings()] == ["ann", "org"]
            assert [each.account.id for each in first.shares.holdings("ann", 5)] == ["org"]
            assert [each.account.id for each in first.shares.holdings("", 1)] == ["ann"]
            assert first.shares.holdings("org") == []
            half = Amount(ONE.rho * 6, ONE.delta * 6)
            assert holding(first).outgoing[second.id].given == holding(second).incoming[first.id].received == half
            assert (holding(first).total, holding(first).left) == (Amount(ONE.rho * 12, ONE.delta * 12), half)

    def test_every_move_is_a_line_in_both_ledgers(self) -> None:
        """I5: sent, taken, declined, acknowledged and returned amounts are in both ledgers, with their numbers."""
        with self.centres() as (stores, _):
            announce(*stores)
            first, second = stores
            first.create(account("bob", 3), ACT)
            second.create(account("bob", 3), ACT)
            announce(*stores)
            kinds = [
                sorted(line.body.split("\t")[3] for head in store.heads() for line in store.lines(head.chain))
                for store in stores
            ]
            assert kinds == [
                sorted(["create"] * 3 + ["send"] * 3 + ["delivered"] * 2 + ["return"]),
                sorted(["create"] * 3 + ["take"] * 2 + ["decline"]),
            ]
