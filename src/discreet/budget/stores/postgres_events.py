"""What the PostgreSQL store does for a reservation once there is one. Each function is one transaction."""

# ruff: noqa: S608 - statements are put together here, from constants; values are bound

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from discreet.budget import rules
from discreet.budget.amount import NOTHING, Amount, Tally
from discreet.budget.errors import LeaseLost
from discreet.budget.model import Reservation, Settled, StoredRelease
from discreet.budget.states import Event, State, asked, transition
from discreet.budget.stores.postgres_books import ACCOUNT_OF_RESERVATION, PATH_OF_RESERVATION
from discreet.budget.stores.postgres_claims import change, detail_of, entitle, paid_by, stored
from discreet.budget.stores.postgres_rows import KEPT, RELEASE, amount_array, kept_of, release_of
from discreet.budget.stores.sqlite_rows import cost_of
from discreet.errors import InvariantViolated

if TYPE_CHECKING:
    from discreet.budget.stores.postgres_books import Books
    from discreet.budget.stores.postgres_rows import Page
    from discreet.budget.stores.sqlite_rows import Kept

_EVENT = f"""
SELECT budget_now_us(), m.seen_us, {KEPT}
FROM budget_meta m LEFT JOIN budget_reservations r ON r.id = %s
"""

_SETTLE = f"""
SELECT budget_now_us(), m.seen_us, {KEPT}, {RELEASE}
FROM budget_meta m
LEFT JOIN budget_reservations r ON r.id = %s
LEFT JOIN budget_releases s ON s.release_key = r.release_key
"""

_DEAD = (
    "SELECT id FROM budget_reservations WHERE state IN ('held', 'running') AND lease_until_us <= %s "
    "ORDER BY lease_until_us, id LIMIT 1000"
)
_OPEN = {"held", "running"}


def start(books: Books, reservation: str) -> Reservation:
    """See `BudgetStore.start`."""
    path, kept, _ = _known(books, reservation, ACCOUNT_OF_RESERVATION)
    after = asked(kept.state, Event.START)
    if after is kept.state:
        return kept.reservation
    if kept.lease_until_us <= books.clock.now_us:
        raise LeaseLost
    until_us = books.clock.now_us + kept.lease_ms * 1000
    books.write(
        "UPDATE budget_reservations SET state = %s, lease_until_us = %s WHERE id = %s",
        (after.value, until_us, reservation),
    )
    books.append(path[0], "start", reservation)
    return Reservation(kept.id, kept.account, kept.release_key, cost_of(kept.worst), kept.holds, after, until_us)


def settle(books: Books, reservation: str, actual: Amount, result: bytes) -> Settled:
    """See `BudgetStore.settle`.

    Of two that store the same release at once, the slower one's insert fails; it is asked again, and finds the other's.
    """
    path, kept, row = _known(books, reservation, facts=_SETTLE)
    release = release_of(row)
    if asked(kept.state, Event.SETTLE) is kept.state:
        return Settled(stored(release), cost_of(kept.charged or NOTHING))
    if not actual.within(kept.worst):
        raise InvariantViolated("an answer cost more than its worst case")
    if release is None:
        release = StoredRelease(kept.release_key, result, cost_of(actual), books.clock.now_us)
        books.write(
            "INSERT INTO budget_releases (release_key, result, cost, time_us) VALUES (%s, %s, %s::numeric[], %s)",
            (release.release_key, result, amount_array(actual), release.time_us),
        )
        paid = set[str]()
    else:
        paid = paid_by(books, path, release)
    cost, changes = Amount.of(release.cost), list[tuple[str, int, Tally]]()
    for page, hold in zip(path, kept.holds, strict=True):
        change(books, page, hold.bucket, rules.settled(hold, cost, page.id in paid), changes)
    charged = changes[0][2].used
    entitle(books, path, paid, kept.release_key)
    books.write(
        "UPDATE budget_reservations SET state = 'settled', charged = %s::numeric[] WHERE id = %s",
        (amount_array(charged), reservation),
    )
    detail = detail_of(kept.account, kept.release_key, release.result)
    books.append(path[0], "settle", reservation, detail, changes)
    return Settled(release, cost_of(charged))


def end(books: Books, reservation: str, event: Event) -> None:
    """See `BudgetStore.void` and `forfeit`."""
    path, kept, _ = _known(books, reservation)
    after = asked(kept.state, event)
    if after is not kept.state:
        _end(books, path, kept, after, event)


def dead(books: Books) -> list[str]:
    """Reservations that are over, those first whose lease ended first."""
    books.begin()
    return [name for (name,) in books.rows(_DEAD, (books.clock.now_us,))]


def expire(books: Books, reservation: str) -> bool:
    """End a reservation if it is over; see `BudgetStore.expire`."""
    path, kept, _ = _known(books, reservation)
    if kept.state.value not in _OPEN or kept.lease_until_us > books.clock.now_us:
        return False  # somebody was faster
    _end(books, path, kept, transition(kept.state, Event.EXPIRE), Event.EXPIRE)
    return True


def _end(books: Books, path: list[Page], kept: Kept, after: State, event: Event) -> None:
    """A reservation ends as VOID or FORFEIT."""
    changes = list[tuple[str, int, Tally]]()
    for page, hold in zip(path, kept.holds, strict=True):
        change(books, page, hold.bucket, rules.ended(hold, after), changes)
        left = rules.forfeit_of(hold, after)
        if left:
            books.write(
                "INSERT INTO budget_forfeits (account, release_key, bucket, amount) VALUES (%s, %s, %s, %s::numeric[])",
                (hold.account, kept.release_key, hold.bucket, amount_array(left)),
            )
    books.write("UPDATE budget_reservations SET state = %s WHERE id = %s", (after.value, kept.id))
    books.append(path[0], event.value, kept.id, detail_of(kept.account, kept.release_key), changes)


def _known(
    books: Books, reservation: str, lock: str = PATH_OF_RESERVATION, facts: str = _EVENT
) -> tuple[list[Page], Kept, tuple[Any, ...]]:
    """Begin with a reservation: its accounts, it, and what else is asked.

    Raises:
        LeaseLost: there is no such reservation.
    """
    path, row = books.begin(lock, (reservation,), facts, (reservation,))
    kept = kept_of(row[:9])
    if kept is None:
        raise LeaseLost
    return path, kept, row[9:]
