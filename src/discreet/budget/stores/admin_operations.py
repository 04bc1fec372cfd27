"""What administrators and the service itself do to accounts and records, for both databases.

Each function is the work of one transaction, and `BudgetStore` documents what it does.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from discreet.budget import rules
from discreet.budget.errors import AccountChanged, ClockError, KeyReused
from discreet.budget.escrow import protocol
from discreet.budget.fixed_point import EMPTY, Amount, Tally
from discreet.budget.ledger import Head, canonical, settings_text
from discreet.budget.periods import bucket_end, check_period
from discreet.budget.stores.rows import AccountRow
from discreet.budget.stores.transaction import buckets_detail
from discreet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from discreet.budget.model import Account, AdminAction
    from discreet.budget.stores.transaction import Transaction
    from discreet.values import Cost


def create(transaction: Transaction, account: Account, action: AdminAction) -> None:
    """Create an account."""
    (chain, known), settings = transaction.begin_creation(account), settings_text(account)
    detail = _record_action(transaction, action, "create", settings)
    if detail is None:
        return
    if known:
        raise InputError(f"there is an account {account.id!r} already")
    if account.share is not None:
        raise InputError("a new account is not split over data centres; it is made in one, and shares go to the others")
    add_account(transaction, account, chain, detail)


def add_account(transaction: Transaction, account: Account, chain: int, detail: dict[str, object]) -> None:
    """Write a new account and the line that creates it."""
    check_period(account.period)
    end_us, head = bucket_end(account.period, transaction.clock.now_us), Head.empty(chain) if chain else None
    row = AccountRow(account.id, settings_text(account), 0, end_us, EMPTY, EMPTY, head=head)
    transaction.append(row, "create", detail=buckets_detail(row, detail))
    transaction.add_account(row)


def alter(
    transaction: Transaction, account: Account, action: AdminAction, store: str, read: Account | None = None
) -> None:
    """Change an account; *store* is the id of the store, *read* what the account is expected to be."""
    row, settings = transaction.begin_account(account.id), settings_text(account)
    detail = _record_action(transaction, action, "alter", settings)
    if detail is None:
        return
    before = row.terms.account
    if read is not None and read != before:
        raise AccountChanged
    if account.parent != before.parent:
        raise InputError("the parent of an account never changes")
    if before.share is not None:
        transaction.advance(row)
    change_settings(transaction, row, protocol.altered(before, account, row.spent, store), detail)


def change_settings(transaction: Transaction, row: AccountRow, account: Account, detail: dict[str, object]) -> None:
    """Give *row* the settings of *account*, with a line.

    Raises:
        ClockError: the period changes, and the clock ran ahead.
    """
    before = row.terms.account
    check_period(account.period)
    row.settings, row.changed = settings_text(account), True
    if account.period != before.period:
        if transaction.clock.ahead:
            raise ClockError
        transaction.turn(row, min(row.end_us, transaction.clock.now_us + 1), "alter", detail)
        return
    transaction.append(row, "alter", detail=buckets_detail(row, detail))


def charge(transaction: Transaction, account: str, cost: Cost, action: AdminAction) -> None:
    """Charge an account by hand."""
    row, amount = transaction.begin_account(account), Amount.of(cost)
    detail = _record_action(transaction, action, "charge", account, f"{amount.rho} {amount.delta}")
    if detail is None:
        return
    transaction.advance(row)
    changes: list[tuple[str, int, Tally]] = []
    transaction.change(row, row.bucket, Tally(used=amount), changes)
    transaction.append(row, "charge", detail=canonical(detail), changes=changes)


def refund(transaction: Transaction, account: str, cost: Cost, action: AdminAction) -> None:
    """Give back charges, oldest bucket first."""
    row, amount = transaction.begin_account(account), Amount.of(cost)
    detail = _record_action(transaction, action, "refund", account, f"{amount.rho} {amount.delta}")
    if detail is None:
        return
    transaction.advance(row)
    rules.check_refund(row.terms.limit, row.tally + row.older, amount)
    closed = transaction.closed_buckets(row)
    buckets = [(bucket.number, bucket.tally.used) for bucket in closed if bucket.counting]
    changes: list[tuple[str, int, Tally]] = []
    for number, part in rules.refunded([*buckets, (row.bucket, row.tally.used)], amount):
        transaction.change(row, number, Tally(used=-part), changes)
    transaction.change(row, row.bucket, Tally(refunded=amount), changes)
    transaction.append(row, "refund", detail=canonical(detail), changes=changes)


def lift(transaction: Transaction, account: str, action: AdminAction) -> None:
    """End a suspension."""
    row = transaction.begin_account(account)
    detail = _record_action(transaction, action, "lift", account)
    if detail is not None:
        row.failures, row.changed = (), True
        transaction.append(row, "lift", detail=canonical(detail | {"account": account}))


def refresh(transaction: Transaction, account: str) -> bool:
    """Open the next bucket of an account if the open one is over, and return whether it was."""
    return transaction.advance(transaction.begin_account(account))


def confirm_clock(transaction: Transaction, action: AdminAction) -> None:
    """Take the time of the database as right."""
    transaction.begin_store()
    detail = _record_action(transaction, action, "clock")
    if detail is not None:
        before_us = transaction.clock.seen_us
        transaction.trust_clock()
        transaction.append(None, "clock", detail=canonical(detail | {"seen_us": str(before_us)}))


def note(transaction: Transaction, action: AdminAction, text: Mapping[str, str]) -> None:
    """Append an action that changes no balance."""
    if not all(isinstance(value, str) for value in text.values()):  # other values are ours: an action, a record
        raise InputError("a note holds text only")
    transaction.begin_store()
    detail = _record_action(transaction, action, "note", canonical(text))
    if detail is not None:
        transaction.append(None, "note", detail=canonical(dict(text) | detail))


def put_record(transaction: Transaction, kind: str, name: str, text: str | None, action: AdminAction) -> None:
    """Write or remove a record; the line holds the digest of its text."""
    digest = None if text is None else hashlib.sha256(text.encode()).hexdigest()
    transaction.begin_store()
    detail = _record_action(transaction, action, "record", kind, name, digest or "")
    if detail is not None:
        transaction.put_record(kind, name, text)
        record = {"kind": kind, "name": name, "sha256": digest}
        transaction.append(None, "note", detail=canonical(detail | {"record": record}))


def _record_action(transaction: Transaction, action: AdminAction, *what: str) -> dict[str, object] | None:
    """Return what the ledger says of an action; None if it was done before.

    Raises:
        KeyReused: an action of that id did something else.
    """
    detail: dict[str, object] = {"actor": action.actor, "reason": action.reason}
    if action.id is None:
        return detail
    digest = hashlib.sha256(canonical(detail | {"what": what}).encode()).digest()
    known = transaction.action_digest(action.id)
    if known is None:
        transaction.add_action(action.id, digest)
        return detail | {"action": {"id": action.id, "sha256": digest.hex()}}
    if known != digest:
        raise KeyReused
    return None
