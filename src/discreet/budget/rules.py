"""What a claim holds, what a reservation pays, what may be refunded, and the states of a reservation. Pure.

An event that is not in the table of states raises and changes nothing.

    HELD ── start ──> RUNNING ── settle ──> SETTLED     charged what the answer cost
      │                  └── forfeit, expire, lose ──> FORFEIT  data was queried: the worst case stays charged
      └── void, expire, lose ──> VOID                           no data was queried: all is free again

From `start` on the engine may see the query, so that it is unknown whether data was read: a failed run is never
refunded, or failures would reveal data for free. What was forfeited pays for a retry of the same release. `lose` is a
restarted process ending the reservations of its former self: it does not count towards a suspension.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import TYPE_CHECKING

from discreet.budget.errors import LeaseLost
from discreet.budget.model import NOTHING, AccountHold, Amount, State, Tally
from discreet.budget.periods import DAY_US
from discreet.errors import InputError, InvariantViolated

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Event(Enum):
    """What happens to a reservation; the values are the kinds of ledger lines."""

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
"""The state that a requested event leads to. Requested again in that state, the event has happened already, and nothing
changes: a caller may repeat a request whose answer was lost."""


def transition(state: State, event: Event) -> State:
    """Return the state after *event*; raise `InvariantViolated` if it cannot happen in *state*."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise InvariantViolated(f"a reservation that is {state.value} cannot {event.value}") from None


def requested(state: State, event: Event) -> State:
    """Return the state after a caller requested *event*; *state* itself if it had happened already.

    Raises:
        LeaseLost: the reservation ended in another way: the caller is too late.
        InvariantViolated: it cannot happen in *state*.
    """
    if REACHED[event] is state:
        return state
    if state in TERMINAL:
        raise LeaseLost
    return transition(state, event)


REFUND_SHARE = Fraction(1, 10)
"""The part of an account's limit that may be refunded in the buckets that count."""

FAILURES_MOST = 5
"""Failed runs within `SUSPENSION_US` after which an account is suspended."""

SUSPENSION_US = DAY_US
"""How long a failed run counts towards a suspension."""


@dataclass(frozen=True, slots=True)
class AccountState:
    """What a claim is decided by, of an account on its path; buckets that are over have been closed.

    Args:
        limit: what it may spend.
        enforced: False if it never refuses.
        bucket: the number of its open bucket.
        spent: used, held and forfeited in all buckets that count.
        paid: True if it has paid for the release.
        forfeit: one forfeit of this release in a bucket that counts, or nothing.
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
        needed: the worst case, less what a forfeit pays.
        remaining: what is left, never below nothing.
    """

    account: str
    needed: Amount
    remaining: Amount


def admit(path: Iterable[AccountState], worst: Amount) -> tuple[AccountHold, ...] | Shortfall:
    """Return what a claim holds on each account of its path, or the first account that falls short.

    An account that has paid for the release holds nothing. A forfeit of the same release pays first, wholly: holding
    more than the worst case of a retry would be safe, holding less would refund a failure.
    """
    holds = []
    for account in path:
        amount, funded = NOTHING, NOTHING
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
    """Return the change of a hold's bucket when it is made; its forfeit is taken out of its own bucket."""
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

    What is forfeited pays for a retry of the same release. A void gives back to the forfeit what came out of it:
    otherwise a retry that is voided would refund a failure.
    """
    if state not in {State.VOID, State.FORFEIT}:
        raise InvariantViolated("a reservation that ends unsettled is void or forfeit")
    stays = hold.funded if state is State.VOID else hold.amount
    return Tally(held=-hold.amount, forfeited=stays)


def failed(failures: Sequence[int], now_us: int) -> tuple[int, ...]:
    """Return when the last runs failed, with one that fails at *now_us*; at most `FAILURES_MOST`."""
    return (*failures, now_us)[-FAILURES_MOST:]


def suspended_until_us(failures: Sequence[int], now_us: int) -> int | None:
    """Return until when an account is suspended, or None.

    Whether a run fails may depend on the data, and is not covered by differential privacy: failures are
    charged, and their number is bounded here. Runs that were lost, with their process or their client, do not count:
    the data does not decide about that.

    Args:
        failures: when its last runs failed after the data was queried, oldest first; at most `FAILURES_MOST`.
    """
    if len(failures) < FAILURES_MOST:
        return None
    until_us = failures[0] + SUSPENSION_US
    return until_us if now_us < until_us else None


def check_refund(limit: Amount, tally: Tally, amount: Amount) -> None:
    """Raise `InputError` if *amount* is more than is used, or than the part of the limit that may be refunded.

    Args:
        amount: neither part negative.
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
    """Return what a refund takes from which bucket.

    Args:
        buckets: number and used amount of each that counts, oldest first: what is taken there stops counting soonest
            anyway, so that a refund never makes room for longer than the charge would have taken it.
        amount: at most what is used in all of them.
    """
    taken = []
    for number, used in buckets:
        part = used.least(amount)
        if part:
            taken.append((number, part))
            amount -= part
    if amount:
        raise InvariantViolated("a refund is more than what is used")
    return taken


def _fits(needed: Amount, left: Amount) -> bool:
    """Return True if each part that is needed is left: nothing always fits, also in an overdrawn account."""
    return (needed.rho <= 0 or needed.rho <= left.rho) and (needed.delta <= 0 or needed.delta <= left.delta)
