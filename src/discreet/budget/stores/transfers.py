"""Transfers of shares of split budgets between stores, by the rules of `discreet.budget.escrow`."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, TypeVar

from discreet.budget import escrow
from discreet.budget.errors import UnknownAccount
from discreet.budget.escrow import Decision, Receipt, Transfer, first_grant, granted
from discreet.budget.ledger import canonical, settings_text, transfer_detail
from discreet.budget.model import NOTHING, Amount
from discreet.budget.stores import statements
from discreet.budget.stores.operations import add_account, change_settings
from discreet.budget.stores.rows import outgoing_of, terms_of
from discreet.budget.stores.transaction import buckets_detail
from discreet.budget.stores.verify import holdings
from discreet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from discreet.budget.escrow import Holding, Outgoing, ShareRequest
    from discreet.budget.model import Account
    from discreet.budget.stores.rows import AccountRow
    from discreet.budget.stores.store import BudgetStore
    from discreet.budget.stores.transaction import Transaction

Answer = TypeVar("Answer")

_AS_AT_HOME: dict[str, object] = {"actor": "discreet", "reason": "as in the data centre where the account was made"}


class ShareStore:
    """Transfers the shares of a store. Each method is one transaction, which may be repeated if its result was lost.

    Methods raise `StoreUnavailable`, `UnknownAccount` and `ClockError` like those of `BudgetStore`.
    """

    def __init__(self, store: BudgetStore) -> None:
        self._store = store

    @property
    def id(self) -> str:
        """The id of the store."""
        return self._store.id

    def grant(self, peer: str, request: ShareRequest, need: Amount = NOTHING) -> Transfer | None:
        """Send *peer* a part of the share of an account that it requests: the amount by `escrow.granted`.

        Returns:
            the pending transfer, new or older; None if there is none.
        """
        return self._write(functools.partial(_grant, here=self.id, peer=peer, request=request, need=need))

    def announce(self, peer: str, account: str, centres: int) -> Transfer | None:
        """Send *peer* an account that was created here: its first share, or later only its settings.

        Args:
            centres: the number of data centres, including this one.

        Returns:
            the pending transfer; None if there is nothing to send.
        """
        return self._write(functools.partial(_announce, here=self.id, peer=peer, account=account, centres=centres))

    def receive(self, transfer: Transfer) -> Receipt | None:
        """Take a transfer, or decline it, once: see `escrow.decide`.

        A first transaction opens the account, with a limit of zero, if this store does not have it.

        Returns:
            the receipt with the decision, made now or earlier; None if it is too early to decide.

        Raises:
            InputError: the transfer is for another store.
            StoreBehind: this store lost transfers that it had taken.
        """
        self._write(functools.partial(_open_account, here=self.id, transfer=transfer))
        return self._write(functools.partial(_receive, here=self.id, transfer=transfer))

    def acknowledge(self, receipt: Receipt) -> None:
        """End the transfer that *receipt* is about; if it was declined its amount returns to the limit.

        Raises:
            InputError: the receipt is for another store.
            StoreBehind: this store lost the transfer.
        """
        self._write(functools.partial(_acknowledge, here=self.id, receipt=receipt))

    def pending(self, peer: str, most: int) -> list[Transfer]:
        """Return at most *most* transfers to *peer* that have no receipt, parents before children."""
        rows = self._store.read(lambda db: db.query((statements.PENDING, (peer, most))))[0]
        return [_transfer(self.id, peer, outgoing_of(row[:5]), terms_of(row[5]).account) for row in rows]

    def unannounced(self, peer: str, most: int) -> list[str]:
        """Return at most *most* accounts created here whose settings *peer* lacks, parents before children."""
        values = (peer, self.id, self.id, most)
        return [name for (name,) in self._store.read(lambda db: db.query((statements.UNANNOUNCED, values)))[0]]

    def holdings(self, after: str = "", most: int | None = None) -> list[Holding]:
        """Return at most *most* accounts, ordered by name, starting after the name *after*."""
        return self._store.read(lambda db: holdings(db, after, most))

    def _write(self, work: Callable[[Transaction], Answer]) -> Answer:
        return self._store.write(work, repeat=True)


def _grant(transaction: Transaction, here: str, peer: str, request: ShareRequest, need: Amount) -> Transfer | None:
    row = transaction.begin_account(request.account)
    outgoing = transaction.outgoing(row.id, peer)
    if outgoing.pending is None:
        transaction.advance(row)
        amount = granted(request, row.left, Amount.of(row.terms.account.total_limit), need)
        if not amount:
            return None
        outgoing = _send(transaction, here, row, peer, outgoing, amount)
    return _transfer(here, peer, outgoing, row.terms.account)


def _announce(transaction: Transaction, here: str, peer: str, account: str, centres: int) -> Transfer | None:
    row = transaction.begin_account(account)
    outgoing = transaction.outgoing(row.id, peer)
    if outgoing.pending is None:
        share = escrow.split(row.terms.account, here).share
        if share is None or share.home != here or outgoing.version >= share.version:
            return None
        transaction.advance(row)
        amount = NOTHING if outgoing.number else first_grant(row.left, Amount.of(share.total), centres)
        outgoing = _send(transaction, here, row, peer, outgoing, amount)
    return _transfer(here, peer, outgoing, row.terms.account)


def _open_account(transaction: Transaction, here: str, transfer: Transfer) -> None:
    """Create the account of a transfer that can be taken, with a limit of zero, if it does not exist."""
    terms = transfer.terms
    if transaction.has_account(terms.id):
        return
    if terms.parent is not None and not transaction.has_account(terms.parent):
        return
    account = escrow.opened(terms)
    chain, known = transaction.begin_creation(account)
    if known:
        return
    incoming = transaction.incoming(terms.id, transfer.donor)
    now_us = transaction.clock.now_us
    if escrow.decide(transfer, None, incoming, now_us, here=here, parent_is_here=True) is Decision.TAKE:
        add_account(transaction, account, chain, dict(_AS_AT_HOME))


def _receive(transaction: Transaction, here: str, transfer: Transfer) -> Receipt | None:
    """Decide on the transfer of an existing account."""
    try:
        row = transaction.begin_account(transfer.terms.id)
    except UnknownAccount:
        return None
    own = row.terms.account
    incoming = transaction.incoming(row.id, transfer.donor)
    decision = escrow.decide(transfer, own, incoming, transaction.clock.now_us, here=here, parent_is_here=True)
    if decision is Decision.WAIT:
        return None
    detail = transfer_detail(transfer.donor, transfer.number, transfer.amount)
    if decision is Decision.TAKE:
        transaction.advance(row)
        newer = escrow.adopted(own, transfer.terms)
        if newer is not own:
            change_settings(transaction, row, newer, dict(_AS_AT_HOME))
        incoming = escrow.taken(incoming, transfer)
        _resize(row, transfer.amount)
        transaction.append(row, "take", detail=buckets_detail(row, detail))
        transaction.put_incoming(row.id, transfer.donor, incoming)
    elif decision is Decision.DECLINE:
        incoming = escrow.declined(incoming, transfer)
        transaction.append(row, "decline", detail=canonical(detail | {"account": row.id}))
        transaction.put_incoming(row.id, transfer.donor, incoming)
    version = _version(row.terms.account)
    return Receipt(row.id, transfer.donor, here, incoming.number, incoming.taken, version)


def _acknowledge(transaction: Transaction, here: str, receipt: Receipt) -> None:
    if receipt.donor != here:
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


def _transfer(here: str, peer: str, outgoing: Outgoing, account: Account) -> Transfer:
    """Return the last transfer to *peer*, to send it again."""
    amount = outgoing.pending or NOTHING
    return Transfer(here, peer, outgoing.number, amount, outgoing.sent_us, escrow.opened(account))


def _send(
    transaction: Transaction, here: str, row: AccountRow, peer: str, outgoing: Outgoing, amount: Amount
) -> Outgoing:
    """Lower the limit by *amount* and record its transfer to *peer* as pending."""
    outgoing = escrow.sent(outgoing, amount, row.left, transaction.clock.now_us)
    row.settings = settings_text(escrow.split(row.terms.account, here))
    _resize(row, -amount)
    transaction.append(row, "send", detail=buckets_detail(row, transfer_detail(peer, outgoing.number, amount)))
    transaction.put_outgoing(row.id, peer, outgoing)
    return outgoing


def _resize(row: AccountRow, change: Amount) -> None:
    row.settings, row.changed = settings_text(escrow.resized(row.terms.account, change)), True


def _version(account: Account) -> int:
    return account.share.version if account.share else 0
