"""What officers do in the SQLite store. Each function is one transaction's work."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from discreet.budget import rules
from discreet.budget.amount import EMPTY, Amount, Tally
from discreet.budget.errors import ClockError
from discreet.budget.periods import bucket_end, check_period
from discreet.budget.settings import canonical, settings_text
from discreet.budget.stores.sqlite_rows import all_of, one_of, tally_text
from discreet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from discreet.budget.model import Account, Act
    from discreet.budget.stores.sqlite_books import Books
    from discreet.values import Cost


def create(books: Books, account: Account, act: Act) -> None:
    """See `BudgetStore.create`."""
    if one_of(books.db, "SELECT 1 FROM accounts WHERE id = ?", (account.id,)):
        raise InputError(f"there is an account {account.id!r} already")
    if account.parent is not None:
        books.page(account.parent)
    check_period(account.period)
    end_us, settings = bucket_end(account.period, books.clock.now_us), settings_text(account)
    empty = tally_text(EMPTY)
    books.db.execute(
        "INSERT INTO accounts VALUES (?, ?, ?, 0, ?, ?, ?)",
        (account.id, account.parent, settings, end_us, empty, empty),
    )
    opened = {"account": json.loads(settings), "bucket": 0, "end_us": end_us}
    books.append("create", detail=canonical(_who(act) | opened))


def alter(books: Books, account: Account, act: Act) -> None:
    """See `BudgetStore.alter`."""
    page = books.page(account.id)
    before = page.terms.account
    if account.parent != before.parent:
        raise InputError("the parent of an account never changes")
    check_period(account.period)
    page.settings = settings_text(account)
    if account.period != before.period:
        if books.clock.ahead:
            raise ClockError
        books.turn(page, min(page.end_us, books.clock.now_us + 1), "alter", _who(act))
        return
    books.db.execute("UPDATE accounts SET settings = ? WHERE id = ?", (page.settings, page.id))
    opened = {"account": json.loads(page.settings), "bucket": page.bucket, "end_us": page.end_us}
    books.append("alter", detail=canonical(_who(act) | opened))


def charge(books: Books, account: str, cost: Cost, act: Act) -> None:
    """See `BudgetStore.charge`."""
    page = books.page(account)
    books.advance(page)
    change = Tally(used=Amount.of(cost))
    page.tally += change
    books.save(page)
    books.append("charge", detail=canonical(_who(act)), changes=[(page.id, page.bucket, change)])


def refund(books: Books, account: str, cost: Cost, act: Act) -> None:
    """See `BudgetStore.refund`."""
    page = books.page(account)
    books.advance(page)
    amount = Amount.of(cost)
    rules.check_refund(page.terms.limit, page.tally + page.older, amount)
    buckets = [(number, tally.used) for number, _, tally in books.closed(page)] + [(page.bucket, page.tally.used)]
    changes = [(page.id, number, Tally(used=-part)) for number, part in rules.refunded(buckets, amount)]
    changes.append((page.id, page.bucket, Tally(refunded=amount)))
    for _, number, change in changes:
        books.add(page, number, change)
    books.save(page)
    books.append("refund", detail=canonical(_who(act)), changes=changes)


def refresh(books: Books) -> int:
    """See `BudgetStore.refresh`."""
    now_us = max(books.clock.raw_us, books.clock.seen_us)
    due = all_of(books.db, "SELECT id FROM accounts WHERE end_us <= ?", (now_us,))
    return sum(books.advance(books.page(name)) for (name,) in due)


def confirm_clock(books: Books, act: Act) -> None:
    """See `BudgetStore.confirm_clock`."""
    before_us = books.clock.seen_us
    books.trust_clock()
    books.append("clock", detail=canonical(_who(act) | {"seen_us": str(before_us)}))


def note(books: Books, act: Act, detail: Mapping[str, str]) -> None:
    """See `BudgetStore.note`."""
    books.append("note", detail=canonical(dict(detail) | _who(act)))


def _who(act: Act) -> dict[str, object]:
    return {"actor": act.actor, "reason": act.reason}
