"""What the SQLite store does for a reservation, from the claim to its end. Each function is one transaction's work."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from discreet.budget import rules
from discreet.budget.amount import NOTHING, Amount, Tally
from discreet.budget.errors import KeyReused, LeaseLost
from discreet.budget.model import InFlight, Refusal, Replay, Reservation, Settled, StoredRelease
from discreet.budget.settings import canonical
from discreet.budget.states import Event, State, asked, transition
from discreet.budget.stores.sqlite_books import release_of
from discreet.budget.stores.sqlite_rows import all_of, amount_of, amount_text, cost_of, holds_text, one_of
from discreet.errors import InvariantViolated
from discreet.values import Cost

if TYPE_CHECKING:
    from discreet.budget.model import Claim, Hold
    from discreet.budget.store import Admission
    from discreet.budget.stores.sqlite_books import Books, Page
    from discreet.budget.stores.sqlite_rows import Kept

_EXPIRE_MOST = 1_000  # in one transaction


def reserve(books: Books, claim: Claim) -> Admission:
    """See `BudgetStore.reserve`."""
    known = books.kept(claim.reservation)
    if known is not None:
        return _again(books, claim, known)
    under_way = _keyed(books, claim)
    if under_way is not None:
        return under_way
    path = books.path(claim.account, claim.release_key)
    if path[0].paid:
        _remember_key(books, claim)
        return Replay(_stored(books, claim.release_key), Cost())
    for page in path:
        books.advance(page)
    funds = {page.id: _forfeit(books, page, claim.release_key) for page in path if page.forfeits and not page.paid}
    standings = [
        rules.Standing(
            page.id,
            page.terms.limit,
            page.terms.enforced,
            page.bucket,
            page.spent,
            page.paid,
            funds.get(page.id, (0, 0, NOTHING))[2],
        )
        for page in path
    ]
    worst = Amount.of(claim.worst)
    holds = rules.admit(standings, worst)
    if isinstance(holds, rules.Shortfall):
        return _refuse(books, claim, holds, path)
    changes = _take_forfeits(books, path, funds)
    release = release_of(books.db, claim.release_key)
    _remember_key(books, claim)
    if release is not None:
        return _charge_stored(books, claim, release, path, holds, changes)
    until_us = books.clock.now_us + claim.lease_ms * 1000
    books.db.execute(
        "INSERT INTO reservations VALUES (?, ?, ?, ?, ?, 'held', ?, ?, NULL)",
        (
            claim.reservation,
            claim.account,
            claim.release_key,
            amount_text(worst),
            holds_text(holds),
            until_us,
            claim.lease_ms,
        ),
    )
    books.step("reservation")
    for page, hold in zip(path, holds, strict=True):
        change = rules.held(hold)
        page.tally += change
        books.save(page)
        changes.append((page.id, page.bucket, change))
    books.append("reserve", claim.reservation, _detail(claim.account, claim.release_key), changes)
    return Reservation(claim.reservation, claim.account, claim.release_key, claim.worst, holds, State.HELD, until_us)


def start(books: Books, reservation: str) -> Reservation:
    """See `BudgetStore.start`."""
    kept = _known(books, reservation)
    after = asked(kept.state, Event.START)
    if after is kept.state:
        return kept.reservation
    if kept.lease_until_us <= books.clock.now_us:
        raise LeaseLost
    until_us = books.clock.now_us + kept.lease_ms * 1000
    books.db.execute(
        "UPDATE reservations SET state = ?, lease_until_us = ? WHERE id = ?", (after.value, until_us, reservation)
    )
    books.append("start", reservation)
    return Reservation(kept.id, kept.account, kept.release_key, cost_of(kept.worst), kept.holds, after, until_us)


def settle(books: Books, reservation: str, actual: Amount, result: bytes) -> Settled:
    """See `BudgetStore.settle`."""
    kept = _known(books, reservation)
    if asked(kept.state, Event.SETTLE) is kept.state:
        return Settled(_stored(books, kept.release_key), cost_of(kept.charged or NOTHING))
    if not actual.within(kept.worst):
        raise InvariantViolated("an answer cost more than its worst case")
    release = release_of(books.db, kept.release_key)
    if release is None:
        release = StoredRelease(kept.release_key, result, cost_of(actual), books.clock.now_us)
        books.db.execute(
            "INSERT INTO releases VALUES (?, ?, ?, ?)",
            (release.release_key, result, amount_text(actual), release.time_us),
        )
        books.step("release")
    cost = Amount.of(release.cost)
    changes = []
    path = books.path(kept.account, kept.release_key)
    for page, hold in zip(path, kept.holds, strict=True):
        change = rules.settled(hold, cost, page.paid)
        books.add(page, hold.bucket, change)
        books.save(page)
        changes.append((page.id, hold.bucket, change))
    charged = changes[0][2].used
    _entitle(books, path, kept.release_key)
    books.db.execute(
        "UPDATE reservations SET state = 'settled', charged = ? WHERE id = ?", (amount_text(charged), reservation)
    )
    books.append("settle", reservation, _detail(kept.account, kept.release_key, release.result), changes)
    return Settled(release, cost_of(charged))


def end(books: Books, reservation: str, event: Event) -> None:
    """See `BudgetStore.void` and `forfeit`."""
    kept = _known(books, reservation)
    after = asked(kept.state, event)
    if after is not kept.state:
        _end(books, kept, after, event)


def expire(books: Books) -> int:
    """See `BudgetStore.expire`; at most a thousand."""
    dead = all_of(
        books.db,
        "SELECT id FROM reservations WHERE state IN ('held', 'running') AND lease_until_us <= ? "
        "ORDER BY lease_until_us, id LIMIT ?",
        (books.clock.now_us, _EXPIRE_MOST),
    )
    for (name,) in dead:
        kept = _known(books, name)
        _end(books, kept, transition(kept.state, Event.EXPIRE), Event.EXPIRE)
    return len(dead)


def _again(books: Books, claim: Claim, known: Kept) -> Admission:
    """The answer to a claim that was sent before."""
    if (known.account, known.release_key, known.worst) != (claim.account, claim.release_key, Amount.of(claim.worst)):
        raise InvariantViolated("a reservation's name is used once")
    if known.state is State.SETTLED:
        return Replay(_stored(books, claim.release_key), Cost())
    if known.state in {State.VOID, State.FORFEIT}:
        raise LeaseLost
    return known.reservation


def _keyed(books: Books, claim: Claim) -> InFlight | None:
    """The reservation under way with the claim's idempotency key.

    Raises:
        KeyReused: the key came with another question.
    """
    if claim.key is None:
        return None
    row = one_of(
        books.db, "SELECT digest, reservation FROM keys WHERE account = ? AND key = ?", (claim.account, claim.key)
    )
    if row is None:
        return None
    digest, reservation = row
    if digest != claim.digest:
        raise KeyReused
    kept = books.kept(reservation) if reservation is not None else None
    if kept is None or kept.state not in {State.HELD, State.RUNNING}:
        return None
    return InFlight(kept.id, kept.lease_until_us)


def _remember_key(books: Books, claim: Claim) -> None:
    if claim.key is not None:
        books.db.execute(
            "INSERT INTO keys VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET reservation = excluded.reservation",
            (claim.account, claim.key, claim.digest, claim.reservation),
        )


def _forfeit(books: Books, page: Page, release_key: bytes) -> tuple[int, int, Amount]:
    """Row, bucket and amount of the account's newest forfeit for the release in a bucket that counts."""
    counting = {page.bucket} | {bucket for bucket, _, _ in books.closed(page)}
    rows = all_of(
        books.db,
        "SELECT number, bucket, amount FROM forfeits WHERE account = ? AND release_key = ? ORDER BY number DESC",
        (page.id, release_key),
    )
    found = next((row for row in rows if row[1] in counting), None)
    return (0, 0, NOTHING) if found is None else (found[0], found[1], amount_of(found[2]))


def _take_forfeits(
    books: Books, path: list[Page], funds: dict[str, tuple[int, int, Amount]]
) -> list[tuple[str, int, Tally]]:
    """Take what pays for a retry out of its buckets; the changes."""
    changes = []
    for page in path:
        number, bucket, amount = funds.get(page.id, (0, 0, NOTHING))
        if amount:
            books.db.execute("DELETE FROM forfeits WHERE number = ?", (number,))
            change = Tally(forfeited=-amount)
            books.add(page, bucket, change)
            changes.append((page.id, bucket, change))
    return changes


def _refuse(books: Books, claim: Claim, short: rules.Shortfall, path: list[Page]) -> Refusal:
    page = next(page for page in path if page.id == short.account)
    detail = {"by": claim.account, "short": short.account, "rho": str(short.needed.rho)}
    books.append("refuse", claim.reservation, canonical(detail | {"delta": str(short.needed.delta)}))
    return Refusal(short.account, short.needed.cost, short.remaining.cost, books.resets_us(page))


def _charge_stored(
    books: Books,
    claim: Claim,
    release: StoredRelease,
    path: list[Page],
    holds: tuple[Hold, ...],
    changes: list[tuple[str, int, Tally]],
) -> Replay:
    """Charge a stored release to accounts that have not paid for it."""
    cost, charged = Amount.of(release.cost), NOTHING
    for page, hold in zip(path, holds, strict=True):
        change = rules.held(hold) + rules.settled(hold, cost, page.paid)
        page.tally += change
        books.save(page)
        changes.append((page.id, page.bucket, change))
        if page is path[0]:
            charged = change.used
    _entitle(books, path, claim.release_key)
    books.append("replay", claim.reservation, _detail(claim.account, claim.release_key, release.result), changes)
    return Replay(release, charged.cost)


def _entitle(books: Books, path: list[Page], release_key: bytes) -> None:
    for page in path:
        if not page.paid:
            books.db.execute("INSERT INTO entitlements VALUES (?, ?)", (page.id, release_key))
    books.step("entitlement")


def _end(books: Books, kept: Kept, after: State, event: Event) -> None:
    """A reservation ends as VOID or FORFEIT."""
    changes = []
    for hold in kept.holds:
        page = books.page(hold.account)
        change = rules.ended(hold, after)
        books.add(page, hold.bucket, change)
        books.save(page)
        changes.append((page.id, hold.bucket, change))
        left = rules.forfeit_of(hold, after)
        if left:
            books.db.execute(
                "INSERT INTO forfeits (account, release_key, bucket, amount) VALUES (?, ?, ?, ?)",
                (hold.account, kept.release_key, hold.bucket, amount_text(left)),
            )
    books.db.execute("UPDATE reservations SET state = ? WHERE id = ?", (after.value, kept.id))
    books.append(event.value, kept.id, _detail(kept.account, kept.release_key), changes)


def _known(books: Books, reservation: str) -> Kept:
    kept = books.kept(reservation)
    if kept is None:
        raise LeaseLost
    return kept


def _stored(books: Books, release_key: bytes) -> StoredRelease:
    release = release_of(books.db, release_key)
    if release is None:
        raise InvariantViolated("a release that was paid for is not stored")
    return release


def _detail(account: str, release_key: bytes, result: bytes | None = None) -> str:
    """Canonical JSON, written out because it is needed with every question."""
    end = "" if result is None else f',"result":"{hashlib.sha256(result).hexdigest()}"'
    return f'{{"by":{json.dumps(account)},"release":"{release_key.hex()}"{end}}}'
