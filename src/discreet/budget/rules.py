"""Rules for holds, charges and refunds, the states of a reservation, and periods. Pure: no function reads a clock.

An event that is not in this table of states raises and changes nothing.

    HELD ── start ──> RUNNING ── settle ──> SETTLED     the actual cost is charged
      │                  └── forfeit, expire, lose ──> FORFEIT  data was queried: the worst case stays charged
      └── void, expire, lose ──> VOID                           no data was queried: the hold is free again

From `start` on the engine may receive the query, so that it is unknown whether data was read: a failed run is never
refunded, or failures would reveal data for free. A forfeit pays for a retry of the same release. `lose` ends a
reservation whose process ended or whose client disconnected: it does not count towards a suspension.

A period says when charges stop counting against a limit. Timestamps are whole microseconds since 1970 UTC.

An account's charges are summed in buckets, numbered from 0, and a charge stays in the bucket of its reservation. A
bucket is open until its end; then the next one opens, and the closed one never opens again. Whenever a bucket opens, it
is decided which closed buckets still count against the limit:

- Sliding(days): a bucket is a day of UTC. It counts until its youngest possible charge is `days` old, so that up to
  days + 1 buckets count and any window of `days` days, wherever it begins, holds at most the limit.
- Calendar(unit, zone): a bucket is a month, week or day of the zone. Only the open one counts, so that a window that
  overlaps two buckets can hold twice the limit (`limits_per_window`).
- Forever: one bucket that never ends.
"""

from __future__ import annotations

import functools
import zoneinfo
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from fractions import Fraction
from typing import assert_never

from discreet.budget.errors import ClockError, LeaseLost
from discreet.budget.model import NOTHING, AccountHold, Amount, Calendar, Forever, Period, Sliding, State, Tally
from discreet.errors import InputError, InvariantViolated

SECOND_US = 1_000_000
DAY_US = 86_400 * SECOND_US


class Event(Enum):
    """Events of a reservation; the values are the kinds of their ledger lines."""

    START = "start"
    SETTLE = "settle"
    VOID = "void"
    FORFEIT = "forfeit"
    EXPIRE = "expire"
    LOSE = "lose"


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.HELD, Event.START): State.RUNNING,
    (State.HELD, Event.VOID): State.VOID,
    (State.HELD, Event.EXPIRE): State.VOID,
    (State.HELD, Event.LOSE): State.VOID,
    (State.RUNNING, Event.SETTLE): State.SETTLED,
    (State.RUNNING, Event.FORFEIT): State.FORFEIT,
    (State.RUNNING, Event.EXPIRE): State.FORFEIT,
    (State.RUNNING, Event.LOSE): State.FORFEIT,
}

TERMINAL = frozenset({State.SETTLED, State.VOID, State.FORFEIT})

REACHED = {
    Event.START: State.RUNNING,
    Event.SETTLE: State.SETTLED,
    Event.VOID: State.VOID,
    Event.FORFEIT: State.FORFEIT,
}
"""The state that a requested event leads to. If the event is requested again in that state, nothing changes: a caller
may repeat a request whose result was lost."""


def transition(state: State, event: Event) -> State:
    """Return the state after *event*; raise `InvariantViolated` if the event cannot happen in *state*."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise InvariantViolated(f"a reservation that is {state.value} cannot {event.value}") from None


def requested(state: State, event: Event) -> State:
    """Return the state after a caller requested *event*; *state* itself if the event had happened already.

    Raises:
        LeaseLost: the reservation has ended in another state.
        InvariantViolated: the event cannot happen in *state*.
    """
    if REACHED[event] is state:
        return state
    if state in TERMINAL:
        raise LeaseLost
    return transition(state, event)


REFUND_SHARE = Fraction(1, 10)
"""The part of an account's limit that may be refunded in the buckets that still count."""

MAX_FAILURES = 5
"""Failed runs within `SUSPENSION_US` after which an account is suspended."""

SUSPENSION_US = DAY_US
"""The time for which a failed run counts towards a suspension."""


@dataclass(frozen=True, slots=True)
class AccountState:
    """The state of an account on the path of a claim, after buckets that are over were closed.

    Args:
        limit: the most that it may spend.
        enforced: False if it never refuses.
        bucket: the number of its open bucket.
        spent: used, held and forfeited in all buckets that still count.
        paid: True if it has paid for the release.
        forfeit: one forfeit of this release in a bucket that still counts, or zero.
    """

    account: str
    limit: Amount
    enforced: bool
    bucket: int
    spent: Amount
    paid: bool = False
    forfeit: Amount = NOTHING


@dataclass(frozen=True, slots=True)
class Shortfall:
    """An account that cannot hold the worst case.

    Args:
        needed: the worst case, less the forfeit.
        remaining: the amount left, never negative.
    """

    account: str
    needed: Amount
    remaining: Amount


def admit(path: Iterable[AccountState], worst: Amount) -> tuple[AccountHold, ...] | Shortfall:
    """Return the holds of a claim on the accounts of its path, or the first account that cannot hold the worst case.

    An account that has paid for the release holds nothing. A forfeit of the same release pays first, with its whole
    amount: holding more than the worst case of a retry is safe, holding less would refund a failure.
    """
    holds = []
    for account in path:
        amount = NOTHING
        funded = NOTHING
        if not account.paid:
            funded = account.forfeit
            amount = worst.most(funded)
        needed = amount - funded
        if account.enforced and not _fits(needed, account.limit - account.spent):
            remaining = (account.limit - account.spent).most(NOTHING)
            return Shortfall(account.account, needed, remaining)
        holds.append(AccountHold(account.account, account.bucket, amount, funded))
    return tuple(holds)


def held(hold: AccountHold) -> Tally:
    """Return the change of a hold's bucket when the hold is made, without the forfeit, which has its own bucket."""
    return Tally(held=hold.amount)


def settled(hold: AccountHold, actual: Amount, paid: bool) -> Tally:
    """Return the change of a hold's bucket when the reservation is settled.

    Args:
        paid: True if the account has paid for the release already.

    Raises:
        InvariantViolated: the release cost more than its worst case.
    """
    if paid:
        return Tally(held=-hold.amount)
    if not NOTHING.within(actual) or not actual.within(hold.amount):
        raise InvariantViolated("an answer cost more than its worst case")
    return Tally(used=actual, held=-hold.amount)


def ended(hold: AccountHold, state: State) -> Tally:
    """Return the change of a hold's bucket when the reservation ends as VOID or FORFEIT.

    The forfeited amount pays for a retry of the same release. A voided hold returns the part that came out of a forfeit
    to that forfeit: otherwise a retry that is voided would refund a failure.
    """
    if state not in {State.VOID, State.FORFEIT}:
        raise InvariantViolated("a reservation that ends unsettled is void or forfeit")
    stays = hold.funded if state is State.VOID else hold.amount
    return Tally(held=-hold.amount, forfeited=stays)


def failed(failures: Sequence[int], now_us: int) -> tuple[int, ...]:
    """Append *now_us* to the timestamps of failed runs; return the last `MAX_FAILURES`."""
    return (*failures, now_us)[-MAX_FAILURES:]


def suspended_until_us(failures: Sequence[int], now_us: int) -> int | None:
    """Return when the suspension of an account ends, or None if it is not suspended.

    Whether a run fails may depend on the data, and is not covered by differential privacy: failures are
    charged, and their number is bounded here. Runs lost with their process or their client are not included: their
    loss does not depend on the data.

    Args:
        failures: timestamps of the last runs that failed after the data was queried, oldest first; at most
            `MAX_FAILURES`.
    """
    if len(failures) < MAX_FAILURES:
        return None
    until_us = failures[0] + SUSPENSION_US
    return until_us if now_us < until_us else None


def check_refund(limit: Amount, tally: Tally, amount: Amount) -> None:
    """Raise `InputError` if *amount* exceeds the used amount, or the part of the limit that may be refunded.

    Args:
        amount: the refund; neither part negative.
    """
    if not amount.within(tally.used):
        raise InputError("a refund cannot be more than what is used")
    cap = Amount(
        limit.rho * REFUND_SHARE.numerator // REFUND_SHARE.denominator,
        limit.delta * REFUND_SHARE.numerator // REFUND_SHARE.denominator,
    )
    if not (tally.refunded + amount).within(cap):
        raise InputError(f"refunds cannot be more than {REFUND_SHARE} of the limit in a period")


def refunded(buckets: Iterable[tuple[int, Amount]], amount: Amount) -> list[tuple[int, Amount]]:
    """Split a refund over buckets; return the number of each bucket and the amount taken from it.

    Args:
        buckets: number and used amount of each bucket that still counts, oldest first: their charges stop counting
            soonest anyway, so that a refund never frees an amount for longer than the charge would have used it.
        amount: the refund, at most the used amount of all buckets.
    """
    parts = []
    for number, used in buckets:
        part = used.least(amount)
        if part:
            parts.append((number, part))
            amount -= part
    if amount:
        raise InvariantViolated("a refund is more than what is used")
    return parts


def _fits(needed: Amount, remaining: Amount) -> bool:
    """Return True if each part of *needed* fits into *remaining*; a part of zero always does, even if overdrawn."""
    return (needed.rho <= 0 or needed.rho <= remaining.rho) and (needed.delta <= 0 or needed.delta <= remaining.delta)


NEVER_US = 2**62
"""The end of a bucket that never ends."""

GUARD_US = 2 * DAY_US
"""How far the clock may run ahead of the last time seen before it has to be confirmed."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST_YEAR = 9_990  # calendars of the standard library end with the year 9999


@dataclass(frozen=True, slots=True)
class Clock:
    """The time of the database's clock, and the latest time that the store has accepted from it.

    Args:
        raw_us: the time of the database's clock.
        seen_us: the latest time that a transaction or heartbeat accepted.
        guard_us: how far the clock may run ahead of the last time seen.
    """

    raw_us: int
    seen_us: int
    guard_us: int = GUARD_US

    @property
    def ahead(self) -> bool:
        """True if the clock is further ahead of the last time seen than the guard allows."""
        return self.raw_us > self.seen_us + self.guard_us

    @property
    def now_us(self) -> int:
        """The time of leases and ledger lines, which is recorded as seen.

        It is never before the last time seen; as long as the clock is ahead and not confirmed, it does not change.
        """
        return self.seen_us if self.ahead else max(self.raw_us, self.seen_us)

    def has_passed(self, end_us: int) -> bool:
        """Return True if a bucket that ends at *end_us* is over, so that the next one opens.

        Raises:
            ClockError: it is over only by a clock that is too far ahead.
        """
        if self.raw_us < end_us:
            return self.seen_us >= end_us
        if self.ahead:
            raise ClockError
        return True


def bucket_end(period: Period, now_us: int) -> int:
    """Return the end of the bucket that is open at *now_us*: the first timestamp after it.

    Raises:
        InputError: the time zone is unknown, or the time is beyond the calendar.
    """
    match period:
        case Sliding():
            return (now_us // DAY_US + 1) * DAY_US
        case Calendar():
            return _calendar(period, now_us)[1]
        case Forever():
            return NEVER_US
        case _:
            assert_never(period)


def still_counts(period: Period, end_us: int, now_us: int) -> bool:
    """Return True if charges of a closed bucket, made before *end_us*, still count at *now_us*."""
    match period:
        case Sliding(days):
            return end_us + days * DAY_US > now_us
        case Calendar():
            return end_us > _calendar(period, now_us)[0]
        case Forever():
            return True
        case _:
            assert_never(period)


def stops_counting_us(period: Period, end_us: int, now_us: int) -> int | None:
    """Return when charges of a bucket that still counts stop counting; None if never.

    Args:
        end_us: the end of the bucket, open or closed.
    """
    match period:
        case Sliding(days):
            return -(-end_us // DAY_US) * DAY_US + days * DAY_US  # buckets close at midnight, even those cut short
        case Calendar():
            return _calendar(period, now_us)[1]
        case Forever():
            return None
        case _:
            assert_never(period)


def limits_per_window(period: Period) -> int:
    """Return how many limits can be spent in a window as long as the period: 2 for Calendar, else 1.

    With 30-day data an analyst can spend a monthly limit on the 31st and the next on the 1st, on nearly the same rows;
    LinkedIn's published 34.9 is then 54.3. This assumes that data is kept no longer than the period.
    """
    return 2 if isinstance(period, Calendar) else 1


def check_period(period: Period) -> None:
    """Raise `InputError` if the time zone of *period* is not known."""
    if isinstance(period, Calendar):
        _zone(period.zone)


def microseconds(moment: datetime) -> int:
    """Return the whole microseconds from 1970 UTC to *moment*, which has a time zone."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def clock_us(clock: Callable[[], datetime]) -> Callable[[], int]:
    """Return a function that returns the time of *clock* in whole microseconds since 1970 UTC, for `SQLiteStore`."""
    return lambda: microseconds(clock())


@functools.lru_cache(maxsize=64)
def _zone(name: str) -> zoneinfo.ZoneInfo:
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise InputError(f"there is no time zone {name!r}; use a name such as Europe/Berlin") from None


def _calendar(period: Calendar, now_us: int) -> tuple[int, int]:
    """Return the first timestamps of the calendar period that contains *now_us*, and of the next one."""
    zone = _zone(period.zone)
    moment = _EPOCH + timedelta(microseconds=now_us)
    if moment.year > _LATEST_YEAR:
        raise InputError("the clock of the database is beyond the calendar")
    today = moment.astimezone(zone).date()
    match period.unit:
        case "month":
            first = today.replace(day=1)
            following = date(first.year + first.month // 12, first.month % 12 + 1, 1)
        case "week":
            first = today - timedelta(days=today.weekday())
            following = first + timedelta(days=7)
        case _:
            first = today
            following = today + timedelta(days=1)
    # Where the clock is put back at midnight, midnight occurs twice: the day begins at the first one.
    midnights = (datetime(day.year, day.month, day.day, tzinfo=zone) for day in (first, following))
    begin, end = map(microseconds, midnights)
    return begin, end
