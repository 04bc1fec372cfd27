"""What the ledger says of the past: what accounts spent, and what another limit would have refused. Pure."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from discreet.budget.fixed_point import NOTHING, Amount
from discreet.budget.periods import DAY_US, NEVER_US, bucket_end, counts
from discreet.budget.rules import AccountState, Shortfall, admit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from discreet.budget.ledger import Entry
    from discreet.budget.model import Account


@dataclass(frozen=True, slots=True)
class Preview:
    """What an account's limit would have done to the queries of the past.

    Args:
        asked: queries that were charged to the account in the time looked at.
        refused: how many of them the limit would have refused.
        first_us: when the first of these was asked, or None.
    """

    asked: int
    refused: int
    first_us: int | None


def preview(entries: Iterable[Entry], account: Account, since_us: int) -> Preview:
    """Return what the limit and the period of *account* would have refused, if it had enforced them all along.

    Refused queries charge nothing, here as in reality. Its parents and children are left out: their limits stay.

    Args:
        entries: of the ledger, all chains together in the order of time.
        account: with the settings to try.
        since_us: queries before count as spent, but not as asked.
    """
    limit = Amount.of(account.limit)
    bucket_of: dict[str, int] = {}  # the end of its bucket, by reservation
    spent: defaultdict[int, Amount] = defaultdict(lambda: NOTHING)  # by end of the bucket
    refused: set[str] = set()
    asked, lost, first = 0, 0, None
    for number, entry in enumerate(entries):
        change, name = _change(entry, account.id), entry.reservation or f"action {number}"
        if change is None or name in refused:
            continue
        if entry.kind == "reserve":
            asked += entry.time_us >= since_us
            counted = sum((held for end, held in spent.items() if _counts(account, end, entry.time_us)), start=NOTHING)
            if isinstance(admit([AccountState(account.id, limit, True, 0, counted)], change), Shortfall):
                refused.add(name)
                if entry.time_us >= since_us:
                    lost, first = lost + 1, first or entry.time_us
                continue
        spent[bucket_of.setdefault(name, bucket_end(account.period, entry.time_us))] += change
    return Preview(asked, lost, first)


def spent_by_day(entries: Iterable[Entry], since_us: int) -> Mapping[str, Mapping[int, Amount]]:
    """Return what was used or forfeited, by account and day since 1970 UTC."""
    found: defaultdict[str, defaultdict[int, Amount]] = defaultdict(lambda: defaultdict(lambda: NOTHING))
    for entry in entries:
        if entry.time_us < since_us:
            continue
        for account, _, tally in entry.changes:
            found[account][entry.time_us // DAY_US] += tally.used + tally.forfeited
    return found


def days_until(spent: Mapping[int, Amount], limit: Amount, percent: int) -> int | None:
    """Return how many days after its first charge an account had used a part of its limit, or None if it has not.

    Args:
        spent: by day.
        percent: of the limit, by rho or delta, whichever is used up first.
    """
    total, days = NOTHING, sorted(day for day, amount in spent.items() if amount != NOTHING)
    for day in days:
        total += spent[day]
        parts = ((total.rho, limit.rho), (total.delta, limit.delta))
        if any(used and 100 * used >= percent * most for used, most in parts):
            return day - days[0]
    return None


def _change(entry: Entry, account: str) -> Amount | None:
    """Return by how much an entry changes what counts against the limit of an account; None if it does not."""
    changes = [tally.used + tally.held + tally.forfeited for name, _, tally in entry.changes if name == account]
    return sum(changes, start=NOTHING) if changes else None


def _counts(account: Account, end_us: int, now_us: int) -> bool:
    return now_us < end_us or end_us == NEVER_US or counts(account.period, end_us, now_us)
