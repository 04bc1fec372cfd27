"""Transfers of shares: lost, late, duplicate, declined."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

from discreet.budget.model import NOTHING, Amount, Refusal, Reservation, Share, Sliding
from discreet.budget.sharing.escrow import Receipt, ShareRequest
from discreet.values import RHO_QUANTUM, Cost
from tests.budget.sharing.suite.base import (
    ONE,
    PLENTY,
    ShareSuite,
    add_up,
    announce,
    asks,
    carry,
    limits,
    moved,
)
from tests.budget.suite.base import ACT, TOTAL, UNIT, account, claim, spend, units


class TransferTests(ShareSuite):
    """I8: what one data centre gives, another receives once."""

    def test_a_new_account_is_shared_in_equal_parts(self) -> None:
        """Shares have the same settings and parents, and the name of the home in each store."""
        with self.centres(3, Sliding(30)) as (stores, _):
            home = stores[0]
            assert home.shares.unannounced(stores[1].id, PLENTY) == ["org", "ann"]
            announce(home, *stores[1:])
            assert (limits(stores, "org"), limits(stores)) == ([8, 8, 8], [4, 4, 4])
            for store in stores:
                ann = store.path("ann")[0]
                assert ann.share == Share(UNIT * 12, home.id, 1)
                assert (ann.delta, ann.period, ann.parent) == (TOTAL, Sliding(30), "org")
                assert ann.total_limit == UNIT * 12
            assert home.shares.unannounced(stores[1].id, PLENTY) == []
            assert home.shares.pending(stores[1].id, PLENTY) == []
            assert stores[1].shares.unannounced(stores[2].id, PLENTY) == []

    def test_a_share_in_transit_is_held_by_no_data_centre(self) -> None:
        """I8: neither the donor nor the recipient holds it; the sum is right after every step."""
        with self.centres() as (stores, _):
            announce(*stores)
            first, second = stores
            spend(second, claim("a", worst=UNIT * 6), UNIT * 6)
            transfer = moved(first, second)
            assert (transfer.amount, limits(stores)) == (Amount(ONE.rho * 3, ONE.delta * 3), [3, 6])
            add_up(stores)
            receipt = second.shares.receive(transfer)
            assert receipt == Receipt("ann", first.id, second.id, 2, True, 1)
            assert limits(stores) == [3, 9]
            add_up(stores)
            first.shares.acknowledge(receipt)
            assert limits(stores) == [3, 9]

    def test_duplicate_late_and_reordered_transfers_change_nothing(self) -> None:
        """I8: numbers identify seen transfers; the receipt of a transfer is the same each time."""
        with self.centres() as (stores, _):
            announce(*stores)
            first, second = stores
            spend(second, claim("a", worst=UNIT * 6), UNIT * 6)
            old = moved(first, second)
            assert first.shares.grant(second.id, asks(second), NOTHING) == old
            assert first.shares.announce(second.id, "ann", 2) == old
            receipts = {second.shares.receive(old) for _ in range(3)}
            (receipt,) = receipts
            assert receipt is not None
            for _ in range(3):
                first.shares.acknowledge(receipt)
            spend(second, claim("b"), UNIT * 3)
            new = moved(first, second)
            assert new.number == old.number + 1
            carry(first, second)
            assert limits(stores) == [Fraction(3, 2), Fraction(21, 2)]
            before = [store.heads() for store in stores]
            late = second.shares.receive(old)
            assert late is not None
            assert late.number == new.number
            for sent_receipt in (late, receipt, dataclasses.replace(receipt, taken=False)):
                first.shares.acknowledge(sent_receipt)
            assert [store.heads() for store in stores] == before

    def test_a_lost_transfer_is_pending_until_its_receipt(self) -> None:
        """I8: neither a lost transfer nor a lost receipt loses or creates budget."""
        with self.centres() as (stores, _):
            announce(*stores)
            first, second = stores
            spend(second, claim("a", worst=UNIT * 6), UNIT * 6)
            lost = moved(first, second)
            assert first.shares.pending(second.id, PLENTY) == [lost]
            second.shares.receive(lost)
            assert first.shares.pending(second.id, PLENTY) == [lost]
            add_up(stores)
            carry(first, second)
            assert first.shares.pending(second.id, PLENTY) == []
            assert limits(stores) == [3, 9]

    def test_held_and_spent_amounts_are_not_granted(self) -> None:
        """I1, I8: a donor keeps what its own queries hold or have spent."""
        with self.centres() as (stores, _):
            announce(*stores)
            first, second = stores
            spend(first, claim("a"), UNIT)
            held = first.reserve(claim("b", worst=UNIT * 5))
            assert isinstance(held, Reservation)
            spend(second, claim("c", worst=UNIT * 6), UNIT * 6)
            assert first.shares.grant(second.id, asks(second, need=Amount(ONE.rho * 5, ONE.delta * 5)), NOTHING) is None
            first.void("b")
            transfer = first.shares.grant(second.id, asks(second, need=Amount(ONE.rho * 5, ONE.delta * 5)), NOTHING)
            assert transfer is not None
            assert transfer.amount == Amount(ONE.rho * 5, ONE.delta * 5)
            assert first.balance("ann").remaining == Cost()
            assert isinstance(first.reserve(claim("d", worst=Cost(RHO_QUANTUM))), Refusal)

    def test_a_data_centre_that_is_cut_off_spends_its_share_and_no_more(self) -> None:
        """I8: it spends its share and then refuses; the other stores go on."""
        with self.centres() as (stores, _):
            announce(*stores)
            first, second = stores
            assert first.shares.grant(second.id, ShareRequest("org", NOTHING), NOTHING)  # never arrives
            for store in stores:
                spend(store, claim("a", worst=UNIT * 4), UNIT * 4)
                assert isinstance(store.reserve(claim("b", worst=UNIT * 3)), Refusal)
                spend(store, claim("c", worst=UNIT * 2), UNIT * 2)
                assert isinstance(store.reserve(claim("d", worst=Cost(RHO_QUANTUM))), Refusal)
                assert units(store, "ann") == (6, 0, 0)

    def test_children_wait_for_their_parents(self) -> None:
        """An account is opened where its parent exists; a transfer that came too early is sent again."""
        with self.centres() as (stores, _):
            first, second = stores
            child = first.shares.announce(second.id, "ann", 2)
            assert child is not None
            assert second.shares.receive(child) is None
            assert second.accounts() == []
            first.shares.announce(second.id, "org", 2)
            assert [transfer.terms.id for transfer in first.shares.pending(second.id, PLENTY)] == ["org", "ann"]
            assert len(carry(first, second)) == 2

    def test_an_account_of_the_same_name_is_another_account(self) -> None:
        """The donor gets its transfer back once; the limit of the other account never changes."""
        with self.centres() as (stores, _):
            first, second = stores
            second.create(account("org", 7), ACT)
            transfer = first.shares.announce(second.id, "org", 2)
            assert transfer is not None
            assert limits(stores, "org") == [12, 7]
            receipts = {second.shares.receive(transfer) for _ in range(3)}
            (receipt,) = receipts
            assert receipt == Receipt("org", first.id, second.id, 1, False, 0)
            for _ in range(3):
                first.shares.acknowledge(receipt)
            assert limits(stores, "org") == [24, 7]
            assert first.shares.unannounced(second.id, PLENTY) == ["ann"]
