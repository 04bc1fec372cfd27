"""What becomes of a reservation, in any store. Each function is one transaction's work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from discreet.budget import rules
from discreet.budget.errors import DataChanged, LeaseLost
from discreet.budget.fixed_point import NOTHING, Amount, Tally
from discreet.budget.model import Reservation, Settled, State, StoredRelease
from discreet.budget.states import TERMINAL, Event, asked, transition
from discreet.budget.stores.claims import detail_of, stored
from discreet.budget.stores.rows import cost_of
from discreet.errors import InvariantViolated

if TYPE_CHECKING:
    from discreet.budget.model import Fingerprint
    from discreet.budget.stores.books import Books
    from discreet.budget.stores.rows import Kept, Page


def start(books: Books, reservation: str) -> Reservation:
    """See `BudgetStore.start`."""
    facts = books.begin_start(reservation)
    kept = _known(facts.kept)
    after = asked(kept.state, Event.START)
    if after is kept.state:
        return kept.reservation
    if kept.lease_until_us <= books.clock.now_us:
        raise LeaseLost
    until_us = books.clock.now_us + kept.lease_ms * 1000
    books.update_reservation(reservation, after, lease_until_us=until_us)
    books.append(facts.path[0] if facts.path else None, "start", reservation)
    return Reservation(kept.id, kept.account, kept.release_key, cost_of(kept.worst), kept.holds, after, until_us)


def settle(
    books: Books, reservation: str, actual: Amount, result: bytes, fingerprint: Fingerprint | None = None
) -> Settled:
    """See `BudgetStore.settle`.

    Where two can store the same release at once, the slower one's insert fails; it is asked again, and finds the
    other's.
    """
    facts = books.begin_settle(reservation, fingerprint)
    kept, path, release = _known(facts.kept), facts.path, facts.release
    if asked(kept.state, Event.SETTLE) is kept.state:
        return Settled(stored(release), cost_of(kept.charged or NOTHING))
    if not actual.within(kept.worst):
        raise InvariantViolated("an answer cost more than its worst case")
    if fingerprint is not None:
        _compare(books, fingerprint, facts.head_digest)
    if release is None:
        release = StoredRelease(kept.release_key, result, cost_of(actual), books.clock.now_us)
        books.add_release(release)
    cost, changes = Amount.of(release.cost), list[tuple[str, int, Tally]]()
    for page, hold in zip(path, kept.holds, strict=True):
        books.change(page, hold.bucket, rules.settled(hold, cost, page.paid), changes)
    charged = changes[0][2].used
    books.entitle([page.id for page in path if not page.paid], kept.release_key)
    books.update_reservation(reservation, State.SETTLED, charged=charged)
    books.append(path[0], "settle", reservation, detail_of(kept.account, kept.release_key, release.result), changes)
    return Settled(release, cost_of(charged))


def end(books: Books, reservation: str, event: Event) -> None:
    """See `BudgetStore.void` and `forfeit`."""
    facts = books.begin_end(reservation)
    kept = _known(facts.kept)
    after = asked(kept.state, event)
    if after is not kept.state:
        _end(books, facts.path, kept, after, event)


def expire(books: Books, reservation: str) -> bool:
    """End a reservation if it is over; see `BudgetStore.expire`."""
    facts = books.begin_end(reservation)
    kept = _known(facts.kept)
    if kept.state in TERMINAL or kept.lease_until_us > books.clock.now_us:
        return False  # somebody was faster
    _end(books, facts.path, kept, transition(kept.state, Event.EXPIRE), Event.EXPIRE)
    return True


def _compare(books: Books, fingerprint: Fingerprint, known: bytes | None) -> None:
    """Keep what an engine returned, or hold it against what it returned before."""
    if known is None:
        books.add_fingerprint(fingerprint)
    elif known != fingerprint.digest:
        raise DataChanged


def _end(books: Books, path: list[Page], kept: Kept, after: State, event: Event) -> None:
    """A reservation ends as VOID or FORFEIT."""
    changes: list[tuple[str, int, Tally]] = []
    for page, hold in zip(path, kept.holds, strict=True):
        books.change(page, hold.bucket, rules.ended(hold, after), changes)
        left = rules.forfeit_of(hold, after)
        if left:
            books.add_forfeit(hold, kept.release_key, left)
    if after is State.FORFEIT:
        path[0].failures = rules.failed(path[0].failures, books.clock.now_us)
    books.update_reservation(kept.id, after)
    books.append(path[0], event.value, kept.id, detail_of(kept.account, kept.release_key), changes)


def _known(kept: Kept | None) -> Kept:
    if kept is None:
        raise LeaseLost
    return kept
