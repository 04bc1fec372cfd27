"""Transfers of shares of split budgets between stores, by the rules of `discreet.budget.sharing.escrow`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from discreet.budget.errors import UnknownAccount
from discreet.budget.ledger import canonical, settings_text, transfer_detail
from discreet.budget.model import NOTHING, Account, Amount
from discreet.budget.sharing import escrow
from discreet.budget.sharing.escrow import (
    Decision,
    Holding,
    Outgoing,
    Receipt,
    ShareRequest,
    Transfer,
    first_grant,
    granted,
)
from discreet.budget.stores import statements
from discreet.budget.stores.transaction import (
    AccountRow,
    Database,
    StoreConnection,
    Transaction,
    buckets_detail,
    outgoing_of,
    reads,
    terms_of,
    writes,
)
from discreet.budget.stores.verify import holdings
from discreet.errors import InputError

Answer = TypeVar("Answer")

_AS_AT_HOME: dict[str, object] = {"actor": "discreet", "reason": "as in the data centre where the account was made"}


class ShareStore:
    """Transfers the shares of a store. A method marked `writes` may be repeated if its result was lost.

    Methods raise `StoreUnavailable`, `UnknownAccount` and `ClockError` like those of `BudgetStore`.
    """

    def __init__(self, store: Database, id: str) -> None:  # noqa: A002 - as in `BudgetStore`
        self._store = store
        self.id = id

    def write(self, work: Callable[[Transaction], Answer], operation: str) -> Answer:
        """Run *work* in a transaction of the store."""
        return self._store.write(work, operation)

    def read(self, work: Callable[[StoreConnection], Answer], operation: str) -> Answer:
        """Run *work* on the committed state of the store."""
        return self._store.read(work, operation)

    @writes
    def grant(
        self, transaction: Transaction, peer: str, request: ShareRequest, need: Amount = NOTHING
    ) -> Transfer | None:
        """Send *peer* a part of the share of an account that it requests: the amount by `escrow.granted`.

        Returns:
            the pending transfer, new or older; None if there is none.
        """
        row = transaction.begin_account(request.account)
        outgoing = transaction.outgoing(row.id, peer)
        if outgoing.pending is None:
            transaction.advance(row)
            amount = granted(request, row.left, Amount.of(row.terms.account.total_limit), need)
            if not amount:
                return None
            outgoing = _send(transaction, self.id, row, peer, outgoing, amount)
        return _transfer(self.id, peer, outgoing, row.terms.account)

    @writes
    def announce(self, transaction: Transaction, peer: str, account: str, centres: int) -> Transfer | None:
        """Send *peer* an account that was created here: its first share, or later only its settings.

        Args:
            centres: the number of data centres, including this one.

        Returns:
            the pending transfer; None if there is nothing to send.
        """
        row = transaction.begin_account(account)
        outgoing = transaction.outgoing(row.id, peer)
        if outgoing.pending is None:
            share = escrow.split(row.terms.account, self.id).share
            if share is None or share.home != self.id or outgoing.version >= share.version:
                return None
            transaction.advance(row)
            amount = NOTHING if outgoing.number else first_grant(row.left, Amount.of(share.total), centres)
            outgoing = _send(transaction, self.id, row, peer, outgoing, amount)
        return _transfer(self.id, peer, outgoing, row.terms.account)

    def receive(self, transfer: Transfer) -> Receipt | None:
        """Take a transfer, or decline it, once: see `escrow.decide`.

        A first transaction opens the account, with a limit of zero, if this store does not have it.

        Returns:
            the receipt with the decision, made now or earlier; None if it is too early to decide.

        Raises:
            InputError: the transfer is for another store.
            StoreBehind: this store lost transfers that it had taken.
        """
        self._open_account(transfer)
        return self._decide(transfer)

    @writes
    def _open_account(self, transaction: Transaction, transfer: Transfer) -> None:
        """Create the account of a transfer that can be taken, with a limit of zero, if it does not exist."""
        terms = transfer.terms
        if transaction.has_account(terms.id):
            return
        if terms.parent is not None and not transaction.has_account(terms.parent):
            return
        account = escrow.opened(terms)
        chain, exists = transaction.begin_creation(account)
        if exists:
            return
        incoming = transaction.incoming(terms.id, transfer.donor)
        now_us = transaction.clock.now_us
        if escrow.decide(transfer, None, incoming, now_us, store=self.id, parent_is_here=True) is Decision.TAKE:
            transaction.add_account(account, chain, dict(_AS_AT_HOME))

    @writes
    def _decide(self, transaction: Transaction, transfer: Transfer) -> Receipt | None:
        """Take a transfer or decline it, and return the receipt; an earlier decision stands.

        Returns:
            None if it is too early: the account does not exist, or `escrow.decide` says so. The donor sends it again.
        """
        try:
            row = transaction.begin_account(transfer.terms.id)
        except UnknownAccount:
            return None
        own = row.terms.account
        incoming = transaction.incoming(row.id, transfer.donor)
        decision = escrow.decide(transfer, own, incoming, transaction.clock.now_us, store=self.id, parent_is_here=True)
        if decision is Decision.WAIT:
            return None
        detail = transfer_detail(transfer.donor, transfer.number, transfer.amount)
        if decision is Decision.TAKE:
            transaction.advance(row)
            newer = escrow.adopted(own, transfer.terms)
            if newer is not own:
                transaction.change_settings(row, newer, dict(_AS_AT_HOME))
            incoming = escrow.taken(incoming, transfer)
            _resize(row, transfer.amount)
            transaction.append(row, "take", detail=buckets_detail(row, detail))
            transaction.put_incoming(row.id, transfer.donor, incoming)
        elif decision is Decision.DECLINE:
            incoming = escrow.declined(incoming, transfer)
            transaction.append(row, "decline", detail=canonical(detail | {"account": row.id}))
            transaction.put_incoming(row.id, transfer.donor, incoming)
        version = _version(row.terms.account)
        return Receipt(row.id, transfer.donor, self.id, incoming.number, incoming.taken, version)

    @writes
    def acknowledge(self, transaction: Transaction, receipt: Receipt) -> None:
        """End the transfer that *receipt* is about; if it was declined its amount returns to the limit.

        Raises:
            InputError: the receipt is for another store.
            StoreBehind: this store lost the transfer.
        """
        if receipt.donor != self.id:
            raise InputError("a receipt for another store was sent here; each data centre needs a store of its own")
        row = transaction.begin_account(receipt.account)
        outgoing = transaction.outgoing(row.id, receipt.recipient)
        after, back = escrow.acknowledged(outgoing, receipt, _version(row.terms.account))
        if outgoing.pending is None or after is outgoing:
            return
        detail = transfer_detail(receipt.recipient, outgoing.number, outgoing.pending)
        if receipt.taken:
            transaction.append(row, "delivered", detail=canonical(detail | {"account": row.id}))
        else:
            _resize(row, back)
            transaction.append(row, "return", detail=buckets_detail(row, detail))
        transaction.put_outgoing(row.id, receipt.recipient, after)

    @reads
    def pending(self, db: StoreConnection, peer: str, most: int) -> list[Transfer]:
        """Return at most *most* transfers to *peer* that have no receipt, parents before children."""
        (rows,) = db.query((statements.PENDING, (peer, most)))
        return [_transfer(self.id, peer, outgoing_of(row[:5]), terms_of(row[5]).account) for row in rows]

    @reads
    def unannounced(self, db: StoreConnection, peer: str, most: int) -> list[str]:
        """Return at most *most* accounts created here whose settings *peer* lacks, parents before children."""
        (rows,) = db.query((statements.UNANNOUNCED, (peer, self.id, self.id, most)))
        return [name for (name,) in rows]

    @reads
    def holdings(self, db: StoreConnection, after: str = "", most: int | None = None) -> list[Holding]:
        """Return at most *most* accounts, ordered by name, starting after the name *after*."""
        return holdings(db, after, most)


def _transfer(store: str, peer: str, outgoing: Outgoing, account: Account) -> Transfer:
    """Return the last transfer to *peer*, to send it again."""
    amount = outgoing.pending or NOTHING
    return Transfer(store, peer, outgoing.number, amount, outgoing.sent_us, escrow.opened(account))


def _send(
    transaction: Transaction, store: str, row: AccountRow, peer: str, outgoing: Outgoing, amount: Amount
) -> Outgoing:
    """Lower the limit by *amount* and record its transfer to *peer* as pending."""
    outgoing = escrow.sent(outgoing, amount, row.left, transaction.clock.now_us)
    row.settings = settings_text(escrow.split(row.terms.account, store))
    _resize(row, -amount)
    transaction.append(row, "send", detail=buckets_detail(row, transfer_detail(peer, outgoing.number, amount)))
    transaction.put_outgoing(row.id, peer, outgoing)
    return outgoing


def _resize(row: AccountRow, change: Amount) -> None:
    row.settings = settings_text(escrow.resized(row.terms.account, change))
    row.changed = True


def _version(account: Account) -> int:
    return account.share.version if account.share else 0
