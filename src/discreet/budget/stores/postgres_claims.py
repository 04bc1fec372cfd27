"""How the PostgreSQL store answers a claim, in one transaction."""

# ruff: noqa: S608 - statements are put together here, from constants; values are bound

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from discreet.budget import rules
from discreet.budget.amount import NOTHING, Amount, Tally
from discreet.budget.errors import KeyReused, LeaseLost, UnknownAccount
from discreet.budget.model import InFlight, Refusal, Replay, Reservation, StoredRelease
from discreet.budget.settings import canonical
from discreet.budget.states import State
from discreet.budget.stores.postgres_books import PATH
from discreet.budget.stores.postgres_rows import KEPT, RELEASE, amount_array, amount_of, kept_of, release_of
from discreet.budget.stores.sqlite_rows import holds_text
from discreet.errors import InvariantViolated
from discreet.values import Cost

if TYPE_CHECKING:
    from discreet.budget.model import Claim, Hold
    from discreet.budget.store import Admission
    from discreet.budget.stores.postgres_books import Books
    from discreet.budget.stores.postgres_rows import Page
    from discreet.budget.stores.sqlite_rows import Kept

_CLAIM = f"""
SELECT budget_now_us(), m.seen_us, EXISTS (
    SELECT FROM budget_forfeits f
    WHERE f.account = ANY ((SELECT a.path FROM budget_accounts a WHERE a.id = %(account)s)::text[])
        AND f.release_key = %(release_key)s
), {RELEASE}, {KEPT} {{}}
FROM budget_meta m
LEFT JOIN budget_releases s ON s.release_key = %(release_key)s
LEFT JOIN budget_reservations r ON r.id = %(reservation)s {{}}
"""

_CLAIM_WITHOUT_KEY = _CLAIM.format(", NULL, NULL, NULL, NULL", "")
_CLAIM_WITH_KEY = _CLAIM.format(
    ", k.digest, w.id, w.state, w.lease_until_us",
    "LEFT JOIN budget_keys k ON k.account = %(account)s AND k.key = %(key)s "
    "LEFT JOIN budget_reservations w ON w.id = k.reservation",
)

_PAID = "SELECT account FROM budget_entitlements WHERE account = ANY (%s::text[]) AND release_key = %s"

_OPEN = {"held", "running"}


@dataclass(frozen=True, slots=True)
class _Fund:
    """What an account forfeited for a release, in a bucket that counts."""

    number: int
    bucket: int
    amount: Amount


def reserve(books: Books, claim: Claim) -> Admission:
    """See `BudgetStore.reserve`."""
    values = {"account": claim.account, "reservation": claim.reservation, "release_key": claim.release_key}
    facts = _CLAIM_WITHOUT_KEY if claim.key is None else _CLAIM_WITH_KEY
    path, row = books.begin(PATH, (claim.account,), facts, values | {"key": claim.key})
    forfeits, release, kept = row[0], release_of(row[1:5]), kept_of(row[5:14])
    digest, name, state, until_us = row[14:]
    if kept is not None:
        return _again(claim, kept, release)
    if digest is not None and digest != claim.digest:
        raise KeyReused
    if state in _OPEN:
        return InFlight(name, until_us)
    if not path:
        raise UnknownAccount(claim.account)
    paid = paid_by(books, path, release)
    if release is not None and claim.account in paid:
        _remember_key(books, claim)
        return Replay(release, Cost())
    for page in path:
        books.advance(page)
    funds = _funds(books, path, paid, claim.release_key) if forfeits else {}
    worst = Amount.of(claim.worst)
    holds = rules.admit([_standing(page, page.id in paid, funds.get(page.id)) for page in path], worst)
    if isinstance(holds, rules.Shortfall):
        return _refuse(books, claim, holds, path)
    changes = _take(books, path, funds)
    _remember_key(books, claim)
    if release is not None:
        return _charge_stored(books, claim, release, path, holds, paid, changes)
    until_us = books.clock.now_us + claim.lease_ms * 1000
    books.write(
        "INSERT INTO budget_reservations (id, account, release_key, worst, holds, state, lease_until_us, lease_ms) "
        "VALUES (%s, %s, %s, %s::numeric[], %s, 'held', %s, %s)",
        (
            claim.reservation,
            claim.account,
            claim.release_key,
            amount_array(worst),
            holds_text(holds),
            until_us,
            claim.lease_ms,
        ),
    )
    for page, hold in zip(path, holds, strict=True):
        change(books, page, hold.bucket, rules.held(hold), changes)
    books.append(path[0], "reserve", claim.reservation, detail_of(claim.account, claim.release_key), changes)
    return Reservation(claim.reservation, claim.account, claim.release_key, claim.worst, holds, State.HELD, until_us)


def _again(claim: Claim, known: Kept, release: StoredRelease | None) -> Admission:
    """The answer to a claim that was sent before."""
    if (known.account, known.release_key, known.worst) != (claim.account, claim.release_key, Amount.of(claim.worst)):
        raise InvariantViolated("a reservation's name is used once")
    if known.state is State.SETTLED:
        return Replay(stored(release), Cost())
    if known.state in {State.VOID, State.FORFEIT}:
        raise LeaseLost
    return known.reservation


def paid_by(books: Books, path: list[Page], release: StoredRelease | None) -> set[str]:
    """Who on the path has paid for the release."""
    if release is None:
        return set()
    return {name for (name,) in books.rows(_PAID, ([page.id for page in path], release.release_key))}


def _standing(page: Page, paid: bool, fund: _Fund | None) -> rules.Standing:
    terms, forfeit = page.terms, NOTHING if fund is None else fund.amount
    return rules.Standing(page.id, terms.limit, terms.enforced, page.bucket, page.spent, paid, forfeit)


def _remember_key(books: Books, claim: Claim) -> None:
    if claim.key is not None:
        books.write(
            "INSERT INTO budget_keys (account, key, digest, reservation) VALUES (%s, %s, %s::bytea, %s) "
            "ON CONFLICT (account, key) DO UPDATE SET reservation = excluded.reservation",
            (claim.account, claim.key, claim.digest, claim.reservation),
        )


def _funds(books: Books, path: list[Page], paid: set[str], release_key: bytes) -> dict[str, _Fund]:
    """The newest forfeit of each account that has not paid, in a bucket that counts."""
    names = [page.id for page in path if page.id not in paid]
    rows = books.rows(
        "SELECT account, number, bucket, amount::text FROM budget_forfeits "
        "WHERE account = ANY (%s::text[]) AND release_key = %s ORDER BY number",
        (names, release_key),
    )
    funds: dict[str, _Fund] = {}
    for page in path:
        own = [_Fund(number, bucket, amount_of(text)) for name, number, bucket, text in rows if name == page.id]
        counting = {page.bucket} | {each.number for each in books.closed(page) if each.counting} if own else set()
        for fund in own:
            if fund.bucket in counting:
                funds[page.id] = fund
    return funds


def _take(books: Books, path: list[Page], funds: dict[str, _Fund]) -> list[tuple[str, int, Tally]]:
    """Take what pays for a retry out of its buckets; the changes."""
    changes = list[tuple[str, int, Tally]]()
    for page in path:
        fund = funds.get(page.id)
        if fund is not None:
            books.write("DELETE FROM budget_forfeits WHERE number = %s", (fund.number,))
            change(books, page, fund.bucket, Tally(forfeited=-fund.amount), changes)
    return changes


def change(books: Books, page: Page, bucket: int, change: Tally, changes: list[tuple[str, int, Tally]]) -> None:
    """Change a bucket, and remember that for the ledger."""
    books.change(page, bucket, change)
    changes.append((page.id, bucket, change))


def _refuse(books: Books, claim: Claim, short: rules.Shortfall, path: list[Page]) -> Refusal:
    page = next(page for page in path if page.id == short.account)
    detail = {"by": claim.account, "short": short.account, "rho": str(short.needed.rho)}
    books.append(path[0], "refuse", claim.reservation, canonical(detail | {"delta": str(short.needed.delta)}))
    return Refusal(short.account, short.needed.cost, short.remaining.cost, books.resets_us(page))


def _charge_stored(
    books: Books,
    claim: Claim,
    release: StoredRelease,
    path: list[Page],
    holds: tuple[Hold, ...],
    paid: set[str],
    changes: list[tuple[str, int, Tally]],
) -> Replay:
    """Charge a stored release to accounts that have not paid for it."""
    cost, taken = Amount.of(release.cost), len(changes)
    for page, hold in zip(path, holds, strict=True):
        change(books, page, hold.bucket, rules.held(hold) + rules.settled(hold, cost, page.id in paid), changes)
    entitle(books, path, paid, claim.release_key)
    detail = detail_of(claim.account, claim.release_key, release.result)
    books.append(path[0], "replay", claim.reservation, detail, changes)
    return Replay(release, changes[taken][2].used.cost)


def entitle(books: Books, path: list[Page], paid: set[str], release_key: bytes) -> None:
    """Remember that all on the path have paid now."""
    new = [value for page in path if page.id not in paid for value in (page.id, release_key)]
    if new:
        rows = ", ".join(["(%s, %s)"] * (len(new) // 2))
        books.write(f"INSERT INTO budget_entitlements (account, release_key) VALUES {rows}", new)


def stored(release: StoredRelease | None) -> StoredRelease:
    """*release*, which has to be there."""
    if release is None:
        raise InvariantViolated("a release that was paid for is not stored")
    return release


def detail_of(account: str, release_key: bytes, result: bytes | None = None) -> str:
    """What a line of the ledger says about a reservation."""
    detail: dict[str, Any] = {"by": account, "release": release_key.hex()}
    if result is not None:
        detail["result"] = hashlib.sha256(result).hexdigest()
    return canonical(detail)
