"""How shares of budgets move, in any store: see `discreet.budget.escrow`. Each function is one transaction's work."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, TypeVar

from discreet.budget.errors import UnknownAccount
from discreet.budget.escrow import protocol as escrow
from discreet.budget.escrow.protocol import Receipt, Transfer, Verdict
from discreet.budget.escrow.rebalance import first_gift, gift
from discreet.budget.fixed_point import EMPTY, NOTHING, Amount
from discreet.budget.ledger import canonical, settings_text, transfer_detail
from discreet.budget.periods import bucket_end, check_period
from discreet.budget.stores.acts import change_settings
from discreet.budget.stores.books import Books, opened
from discreet.budget.stores.rows import Page
from discreet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from discreet.budget.escrow.protocol import Incoming, Outgoing
    from discreet.budget.escrow.rebalance import Ask
    from discreet.budget.escrow.transfers import Holding
    from discreet.budget.model import Account

Answer = TypeVar("Answer")

_AS_AT_HOME: dict[str, object] = {"actor": "discreet", "reason": "as in the data centre where the account was made"}


class ShareBooks(Books):
    """A writing transaction in which shares can move."""

    @abstractmethod
    def has_account(self, account: str) -> bool:
        """True if there is one of that name."""

    @abstractmethod
    def outgoing(self, account: str, peer: str) -> Outgoing:
        """What the account gave to the store *peer*; the account is locked."""

    @abstractmethod
    def incoming(self, account: str, peer: str) -> Incoming:
        """What the account took from the store *peer*; the account is locked, or there is none."""

    @abstractmethod
    def put_outgoing(self, account: str, peer: str, outgoing: Outgoing) -> None:
        """Write what the account gave to the store *peer*."""

    @abstractmethod
    def put_incoming(self, account: str, peer: str, incoming: Incoming) -> None:
        """Write what the account took from the store *peer*."""


class StoredShares(ABC):
    """The writing methods of a `discreet.budget.escrow.transfers.ShareStore`.

    Args:
        here: id of the store.
        write: runs something in a transaction, again if nobody knows whether that was committed, and returns what it
            returned once it is durable.
    """

    def __init__(self, here: str, write: Callable[[Callable[[Any], Any]], Any]) -> None:
        self._here, self._write = here, write

    @property
    def id(self) -> str:
        """See `ShareStore.id`."""
        return self._here

    def give(self, peer: str, ask: Ask, need: Amount = NOTHING) -> Transfer | None:
        """See `ShareStore.give`."""
        return self._done(lambda books: give(books, self._here, peer, ask, need))

    def introduce(self, peer: str, account: str, centres: int) -> Transfer | None:
        """See `ShareStore.introduce`."""
        return self._done(lambda books: introduce(books, self._here, peer, account, centres))

    def receive(self, transfer: Transfer) -> Receipt | None:
        """See `ShareStore.receive`; an account that is new here is opened, empty, in a transaction before."""
        self._done(lambda books: open_account(books, self._here, transfer))
        return self._done(lambda books: receive(books, self._here, transfer))

    def hear(self, receipt: Receipt) -> None:
        """See `ShareStore.hear`."""
        self._done(lambda books: hear(books, self._here, receipt))

    @abstractmethod
    def pending(self, peer: str, most: int) -> list[Transfer]:
        """See `ShareStore.pending`."""

    @abstractmethod
    def unknown(self, peer: str, most: int) -> list[str]:
        """See `ShareStore.unknown`."""

    @abstractmethod
    def holdings(self, after: str = "", most: int | None = None) -> list[Holding]:
        """See `ShareStore.holdings`."""

    def _done(self, work: Callable[[ShareBooks], Answer]) -> Answer:
        answer: Answer = self._write(work)
        return answer


def give(books: ShareBooks, here: str, peer: str, ask: Ask, need: Amount) -> Transfer | None:
    """See `ShareStore.give`."""
    page = books.begin_account(ask.account)
    outgoing = books.outgoing(page.id, peer)
    if outgoing.pending is None:
        books.advance(page)
        amount = gift(ask, _left(page), Amount.of(page.terms.account.whole), need)
        if not amount:
            return None
        outgoing = _send(books, here, page, peer, outgoing, amount)
    return transfer_of(here, peer, outgoing, page.terms.account)


def introduce(books: ShareBooks, here: str, peer: str, account: str, centres: int) -> Transfer | None:
    """See `ShareStore.introduce`."""
    page = books.begin_account(account)
    outgoing = books.outgoing(page.id, peer)
    if outgoing.pending is None:
        share = escrow.split(page.terms.account, here).share
        if share is None or share.home != here or outgoing.version >= share.version:
            return None
        books.advance(page)
        amount = NOTHING if outgoing.number else first_gift(_left(page), Amount.of(share.total), centres)
        outgoing = _send(books, here, page, peer, outgoing, amount)
    return transfer_of(here, peer, outgoing, page.terms.account)


def open_account(books: ShareBooks, here: str, transfer: Transfer) -> None:
    """Open the account of a transfer that can be taken, with nothing to spend, if there is none yet."""
    terms = transfer.terms
    if books.has_account(terms.id):
        return
    known = terms.parent is None or books.has_account(terms.parent)
    account = escrow.opened(terms)
    if not known or books.begin_creation(account):
        return
    incoming = books.incoming(terms.id, transfer.donor)
    verdict = escrow.judge(transfer, None, incoming, books.clock.now_us, here=here, parent_is_here=known)
    if verdict is Verdict.TAKE:
        check_period(account.period)
        end_us = bucket_end(account.period, books.clock.now_us)
        page = Page(account.id, settings_text(account), 0, end_us, EMPTY, EMPTY)
        books.append(page, "create", detail=opened(page, dict(_AS_AT_HOME)))
        books.add_account(page, account)


def receive(books: ShareBooks, here: str, transfer: Transfer) -> Receipt | None:
    """See `ShareStore.receive`, of an account that is open."""
    try:
        page = books.begin_account(transfer.terms.id)
    except UnknownAccount:
        return None
    own = page.terms.account
    incoming = books.incoming(page.id, transfer.donor)
    verdict = escrow.judge(transfer, own, incoming, books.clock.now_us, here=here, parent_is_here=True)
    if verdict is Verdict.WAIT:
        return None
    said = transfer_detail(transfer.donor, transfer.number, transfer.amount)
    if verdict is Verdict.TAKE:
        books.advance(page)
        newer = escrow.adopted(own, transfer.terms)
        if newer is not own:
            change_settings(books, page, newer, dict(_AS_AT_HOME))
        incoming = escrow.taken(incoming, transfer)
        _resize(page, transfer.amount)
        books.append(page, "take", detail=opened(page, said))
        books.put_incoming(page.id, transfer.donor, incoming)
    elif verdict is Verdict.DECLINE:
        incoming = escrow.declined(incoming, transfer)
        books.append(page, "decline", detail=canonical(said | {"account": page.id}))
        books.put_incoming(page.id, transfer.donor, incoming)
    version = _version(page.terms.account)
    return Receipt(page.id, transfer.donor, here, incoming.number, incoming.taken, version)


def hear(books: ShareBooks, here: str, receipt: Receipt) -> None:
    """See `ShareStore.hear`."""
    if receipt.donor != here:
        raise InputError("a receipt for another store was sent here; each data centre needs a store of its own")
    page = books.begin_account(receipt.account)
    outgoing = books.outgoing(page.id, receipt.recipient)
    after, back = escrow.heard(outgoing, receipt, _version(page.terms.account))
    if outgoing.pending is None or after is outgoing:
        return
    said = transfer_detail(receipt.recipient, outgoing.number, outgoing.pending)
    if receipt.taken:
        books.append(page, "delivered", detail=canonical(said | {"account": page.id}))
    else:
        _resize(page, back)
        books.append(page, "return", detail=opened(page, said))
    books.put_outgoing(page.id, receipt.recipient, after)


def transfer_of(here: str, peer: str, outgoing: Outgoing, account: Account) -> Transfer:
    """The transfer that is pending."""
    amount = outgoing.pending or NOTHING
    return Transfer(here, peer, outgoing.number, amount, outgoing.sent_us, escrow.opened(account))


def _send(books: ShareBooks, here: str, page: Page, peer: str, outgoing: Outgoing, amount: Amount) -> Outgoing:
    """Lower the limit by *amount*, which is on its way to *peer* then."""
    outgoing = escrow.sent(outgoing, amount, _left(page), books.clock.now_us)
    page.settings = settings_text(escrow.split(page.terms.account, here))
    _resize(page, -amount)
    books.append(page, "send", detail=opened(page, transfer_detail(peer, outgoing.number, amount)))
    books.put_outgoing(page.id, peer, outgoing)
    return outgoing


def _resize(page: Page, change: Amount) -> None:
    page.settings, page.changed = settings_text(escrow.resized(page.terms.account, change)), True


def _left(page: Page) -> Amount:
    return page.terms.limit - page.spent


def _version(account: Account) -> int:
    return account.share.version if account.share else 0
