"""What is read from a store without writing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from discreet.budget.errors import ClockError, UnknownAccount
from discreet.budget.escrow.holdings import Holding
from discreet.budget.fixed_point import EMPTY
from discreet.budget.ledger import Line
from discreet.budget.model import Balance, Paid
from discreet.budget.periods import NEVER_US, Clock, bucket_end, counts
from discreet.budget.stores import statements
from discreet.budget.stores.rows import AccountRow, Bucket, account_row, release_row, tally_of, terms_of
from discreet.budget.stores.transaction import incoming_of, outgoing_of
from discreet.errors import InputError

if TYPE_CHECKING:
    from discreet.budget.model import Account
    from discreet.budget.stores.transaction import Connection


HISTORY_PAGE_MOST = 1_000
"""Releases on a page of a history."""

LAST = 2**63 - 1
"""Above every number of a row."""

LINES_AT_ONCE = 10_000


def path(db: Connection, account: str) -> tuple[Account, ...]:
    """Return the account and its parents, that account first."""
    (rows,) = db.ask((statements.PATH, (account,)))
    if not rows:
        raise UnknownAccount(account)
    return tuple(terms_of(settings).account for (settings,) in rows)


def balance(db: Connection, account: str, seen_us: int, guard_us: int) -> Balance:
    """Return the balance as the next transaction would find it.

    Args:
        db: a connection.
        account: its name.
        seen_us: the latest time that this process has seen.
        guard_us: how far the clock may run ahead of the last time seen.
    """
    (rows,) = db.ask((statements.BALANCE, (account,)))
    if not rows:
        raise UnknownAccount(account)
    raw_us, recorded_us, seq, _ = rows[0][:4]
    row = account_row(rows[0][4:14])
    closed = [Bucket(each[14], each[15], True, tally_of(each[16])) for each in rows if each[14] is not None]
    clock = Clock(raw_us, max(recorded_us, seen_us), guard_us)
    _turn(row, closed, clock)
    total = row.tally + row.older
    return Balance(
        row.terms.account,
        total.used.cost,
        total.held.cost,
        total.forfeited.cost,
        row.resets_us(closed, clock.now_us),
        clock.now_us,
        row.head.seq if row.head else seq,
        row.suspended_until_us(clock.now_us),
    )


def _turn(row: AccountRow, closed: list[Bucket], clock: Clock) -> None:
    """Change *row* and *closed* as the next transaction will, if the next bucket is due to open."""
    if row.end_us == NEVER_US:
        return
    try:
        due = clock.opening(row.end_us)
    except ClockError:
        return
    if not due:
        return
    period, now_us = row.terms.period, clock.now_us
    closed.append(Bucket(row.bucket, row.end_us, True, row.tally))
    closed[:] = [bucket for bucket in closed if counts(period, bucket.end_us, now_us)]
    row.bucket, row.end_us, row.tally, row.older = row.bucket + 1, bucket_end(period, now_us), EMPTY, EMPTY
    for bucket in closed:
        row.older += bucket.tally


def history(db: Connection, account: str, before: int | None, most: int) -> list[Paid]:
    """Return what the account paid for, newest first.

    Raises:
        InputError: *most* is outside its range.
    """
    if not 1 <= most <= HISTORY_PAGE_MOST:
        raise InputError(f"a page of a history has from 1 to {HISTORY_PAGE_MOST:,} releases, not {most}")
    values = (account, LAST if before is None else before, most)
    rows, known = db.ask((statements.HISTORY, values), (statements.HAS_ACCOUNT, (account,)))
    if not known:
        raise UnknownAccount(account)
    found = ((number, time_us, release_row(columns)) for number, time_us, *columns in rows)
    return [Paid(number, release, release.cost, time_us) for number, time_us, release in found if release is not None]


def lines(db: Connection, chain: int, after: int, most: int) -> list[Line]:
    """Return at most *most* lines of a chain, from the one after *after*."""
    (rows,) = db.ask((statements.LINES, (chain, after, most)))
    return [Line(*row) for row in rows]


def holdings(db: Connection, after: str = "", most: int | None = None) -> list[Holding]:
    """Return accounts with their shares by name, from the one after *after*, at most *most*."""
    (rows,) = db.ask((statements.HOLDINGS, (after, LAST if most is None else most)))
    found: dict[str, Holding] = {}
    for name, settings, tally, older, peer, *columns in rows:
        if name not in found:
            found[name] = Holding(terms_of(settings).account, (tally_of(tally) + tally_of(older)).total, {}, {})
        if peer is not None:
            outgoing, incoming = outgoing_of(columns[:5]), incoming_of(columns[5:])
            if outgoing.number:
                found[name].outgoing[peer] = outgoing
            if incoming.number:
                found[name].incoming[peer] = incoming
    return list(found.values())
