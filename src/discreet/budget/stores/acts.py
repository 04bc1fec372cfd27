"""What officers and the service do in any store, with a name and a reason. Each function is one transaction's work."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from discreet.budget import rules
from discreet.budget.errors import AccountChanged, ClockError, KeyReused
from discreet.budget.escrow import protocol as escrow
from discreet.budget.fixed_point import EMPTY, Amount, Tally
from discreet.budget.ledger import canonical, settings_text
from discreet.budget.periods import bucket_end, check_period
from discreet.budget.stores.books import opened
from discreet.budget.stores.rows import Page
from discreet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from discreet.budget.model import Account, AdminAction
    from discreet.budget.stores.books import Books
    from discreet.values import Cost


def create(books: Books, account: Account, act: AdminAction) -> None:
    """See `BudgetStore.create`."""
    known, settings = books.begin_creation(account), settings_text(account)
    said = _said(books, act, "create", settings)
    if said is None:
        return
    if known:
        raise InputError(f"there is an account {account.id!r} already")
    if account.share is not None:
        raise InputError("a new account is not split over data centres; it is made in one, and shares go to the others")
    check_period(account.period)
    page = Page(account.id, settings, 0, bucket_end(account.period, books.clock.now_us), EMPTY, EMPTY)
    books.append(page, "create", detail=opened(page, said))
    books.add_account(page, account)


def alter(books: Books, account: Account, act: AdminAction, here: str, read: Account | None = None) -> None:
    """See `BudgetStore.alter`; *here* is the id of the store, *read* what the account is taken to be."""
    page, settings = books.begin_account(account.id), settings_text(account)
    said = _said(books, act, "alter", settings)
    if said is None:
        return
    before = page.terms.account
    if read is not None and read != before:
        raise AccountChanged
    if account.parent != before.parent:
        raise InputError("the parent of an account never changes")
    if before.share is not None:
        books.advance(page)
    change_settings(books, page, escrow.altered(before, account, page.spent, here), said)


def change_settings(books: Books, page: Page, account: Account, said: dict[str, object]) -> None:
    """Give *page* the settings of *account*, with a line that says who did so and why.

    Raises:
        ClockError: as `BudgetStore.alter`.
    """
    before = page.terms.account
    check_period(account.period)
    page.settings, page.changed = settings_text(account), True
    if account.period != before.period:
        if books.clock.ahead:
            raise ClockError
        books.turn(page, min(page.end_us, books.clock.now_us + 1), "alter", said)
        return
    books.append(page, "alter", detail=opened(page, said))


def charge(books: Books, account: str, cost: Cost, act: AdminAction) -> None:
    """See `BudgetStore.charge`."""
    page, amount = books.begin_account(account), Amount.of(cost)
    said = _said(books, act, "charge", account, f"{amount.rho} {amount.delta}")
    if said is None:
        return
    books.advance(page)
    changes: list[tuple[str, int, Tally]] = []
    books.change(page, page.bucket, Tally(used=amount), changes)
    books.append(page, "charge", detail=canonical(said), changes=changes)


def refund(books: Books, account: str, cost: Cost, act: AdminAction) -> None:
    """See `BudgetStore.refund`."""
    page, amount = books.begin_account(account), Amount.of(cost)
    said = _said(books, act, "refund", account, f"{amount.rho} {amount.delta}")
    if said is None:
        return
    books.advance(page)
    rules.check_refund(page.terms.limit, page.tally + page.older, amount)
    buckets = [(closed.number, closed.tally.used) for closed in books.closed(page) if closed.counting]
    changes: list[tuple[str, int, Tally]] = []
    for number, part in rules.refunded([*buckets, (page.bucket, page.tally.used)], amount):
        books.change(page, number, Tally(used=-part), changes)
    books.change(page, page.bucket, Tally(refunded=amount), changes)
    books.append(page, "refund", detail=canonical(said), changes=changes)


def lift(books: Books, account: str, act: AdminAction) -> None:
    """See `BudgetStore.lift`."""
    page = books.begin_account(account)
    said = _said(books, act, "lift", account)
    if said is not None:
        page.failures, page.changed = (), True
        books.append(page, "lift", detail=canonical(said | {"account": account}))


def refresh(books: Books, account: str) -> bool:
    """See `BudgetStore.refresh`, of one account."""
    return books.advance(books.begin_account(account))


def confirm_clock(books: Books, act: AdminAction) -> None:
    """See `BudgetStore.confirm_clock`."""
    books.begin_store()
    said = _said(books, act, "clock")
    if said is not None:
        before_us = books.clock.seen_us
        books.trust_clock()
        books.append(None, "clock", detail=canonical(said | {"seen_us": str(before_us)}))


def note(books: Books, act: AdminAction, detail: Mapping[str, str]) -> None:
    """See `BudgetStore.note`."""
    if not all(isinstance(text, str) for text in detail.values()):  # what is no text is ours: an act, a record
        raise InputError("a note holds text only")
    books.begin_store()
    said = _said(books, act, "note", canonical(detail))
    if said is not None:
        books.append(None, "note", detail=canonical(dict(detail) | said))


def put_record(books: Books, kind: str, name: str, text: str | None, act: AdminAction) -> None:
    """See `BudgetStore.put_record`."""
    digest = None if text is None else hashlib.sha256(text.encode()).hexdigest()
    books.begin_store()
    said = _said(books, act, "record", kind, name, digest or "")
    if said is not None:
        books.put_record(kind, name, text)
        record = {"kind": kind, "name": name, "sha256": digest}
        books.append(None, "note", detail=canonical(said | {"record": record}))


def _said(books: Books, act: AdminAction, *what: str) -> dict[str, object] | None:
    """What the ledger says of who did something and why; None if it has said so before.

    Raises:
        KeyReused: an act of that id did something else.
    """
    said: dict[str, object] = {"actor": act.actor, "reason": act.reason}
    if act.id is None:
        return said
    digest = hashlib.sha256(canonical(said | {"what": what}).encode()).digest()
    known = books.act_digest(act.id)
    if known is None:
        books.add_act(act.id, digest)
        return said | {"act": {"id": act.id, "sha256": digest.hex()}}
    if known != digest:
        raise KeyReused
    return None
