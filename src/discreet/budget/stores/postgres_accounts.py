"""What officers do in the PostgreSQL store. Each function is one transaction's work."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from discreet.budget import rules
from discreet.budget.amount import EMPTY, Amount, Tally
from discreet.budget.errors import ClockError, UnknownAccount
from discreet.budget.ledger import Head
from discreet.budget.periods import bucket_end, check_period
from discreet.budget.settings import canonical, settings_text
from discreet.budget.stores.postgres_rows import Page, tally_array
from discreet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from discreet.budget.model import Account, Act
    from discreet.budget.stores.postgres_books import Books
    from discreet.values import Cost

_NEW = """
SELECT budget_now_us(), m.seen_us, nextval('budget_chains'), a.id, p.path
FROM budget_meta m LEFT JOIN budget_accounts a ON a.id = %s LEFT JOIN budget_accounts p ON p.id = %s::text
"""


def create(books: Books, account: Account, act: Act) -> None:
    """See `BudgetStore.create`."""
    _, (chain, known, above) = books.begin(facts=_NEW, values=(account.id, account.parent))
    if known is not None:
        raise InputError(f"there is an account {account.id!r} already")
    if account.parent is not None and above is None:
        raise UnknownAccount(account.parent)
    check_period(account.period)
    end_us, settings, path = bucket_end(account.period, books.clock.now_us), settings_text(account), above or []
    page = Page(account.id, settings, Head.empty(chain), 0, end_us, EMPTY, EMPTY)
    opened = {"account": json.loads(settings), "bucket": 0, "end_us": end_us}
    books.append(page, "create", detail=canonical(_who(act) | opened))
    empty = tally_array(EMPTY)
    books.write(
        "INSERT INTO budget_accounts (id, path, depth, settings, chain, seq, hash, bucket, end_us, tally, older) "
        "VALUES (%s, %s::text[], %s, %s, %s, %s, %s, 0, %s, %s::numeric[], %s::numeric[])",
        (page.id, [page.id, *path], len(path), settings, chain, page.head.seq, page.head.hash, end_us, empty, empty),
    )


def alter(books: Books, account: Account, act: Act) -> None:
    """See `BudgetStore.alter`."""
    page = books.begin_account(account.id)
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
    opened = {"account": json.loads(page.settings), "bucket": page.bucket, "end_us": page.end_us}
    books.append(page, "alter", detail=canonical(_who(act) | opened))


def charge(books: Books, account: str, cost: Cost, act: Act) -> None:
    """See `BudgetStore.charge`."""
    page = books.begin_account(account)
    books.advance(page)
    change = Tally(used=Amount.of(cost))
    books.change(page, page.bucket, change)
    books.append(page, "charge", detail=canonical(_who(act)), changes=[(page.id, page.bucket, change)])


def refund(books: Books, account: str, cost: Cost, act: Act) -> None:
    """See `BudgetStore.refund`."""
    page = books.begin_account(account)
    books.advance(page)
    amount = Amount.of(cost)
    rules.check_refund(page.terms.limit, page.tally + page.older, amount)
    buckets = [(closed.number, closed.tally.used) for closed in books.closed(page) if closed.counting]
    taken = rules.refunded([*buckets, (page.bucket, page.tally.used)], amount)
    changes = [(page.id, number, Tally(used=-part)) for number, part in taken]
    changes.append((page.id, page.bucket, Tally(refunded=amount)))
    for _, number, change in changes:
        books.change(page, number, change)
    books.append(page, "refund", detail=canonical(_who(act)), changes=changes)


def due(books: Books) -> list[str]:
    """Accounts whose period has moved on."""
    books.begin()
    now_us = max(books.clock.raw_us, books.clock.seen_us)
    rows = books.rows("SELECT id FROM budget_accounts WHERE end_us <= %s ORDER BY id", (now_us,))
    return [name for (name,) in rows]


def refresh(books: Books, account: str) -> bool:
    """See `BudgetStore.refresh`, of one account."""
    return books.advance(books.begin_account(account))


def heartbeat(books: Books) -> None:
    """See `BudgetStore.heartbeat`."""
    books.begin_store()


def confirm_clock(books: Books, act: Act) -> None:
    """See `BudgetStore.confirm_clock`."""
    books.begin_store()
    before_us = books.clock.seen_us
    books.trust_clock()
    books.append(None, "clock", detail=canonical(_who(act) | {"seen_us": str(before_us)}))


def note(books: Books, act: Act, detail: Mapping[str, str]) -> None:
    """See `BudgetStore.note`."""
    books.begin_store()
    books.append(None, "note", detail=canonical(dict(detail) | _who(act)))


def _who(act: Act) -> dict[str, object]:
    return {"actor": act.actor, "reason": act.reason}
