"""How a claim is answered, in one transaction of any store: `BudgetStore.reserve`, step by step."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from discreet.budget import rules
from discreet.budget.errors import KeyReused, LeaseLost, UnknownAccount
from discreet.budget.fixed_point import NOTHING, Amount, Tally
from discreet.budget.ledger import canonical
from discreet.budget.model import InFlight, Refusal, Replay, State, StoredRelease, Suspension
from discreet.budget.stores.rows import Fund, Kept
from discreet.errors import InvariantViolated
from discreet.values import Cost

if TYPE_CHECKING:
    from discreet.budget.model import Claim, Hold
    from discreet.budget.store import Admission
    from discreet.budget.stores.books import Books, ClaimFacts
    from discreet.budget.stores.rows import Keyed, Page


def reserve(books: Books, claim: Claim) -> Admission:
    """See `BudgetStore.reserve`."""
    facts = books.begin_claim(claim)
    if facts.known is not None:
        return _again(claim, facts.known, facts.release)
    under_way = None if facts.keyed is None else _under_way(claim, facts.keyed)
    if under_way is not None:
        return under_way
    if facts.keyed is not None and facts.keyed.answered is not None:
        # the same words mean another question by now, as with a new version of the data; the request is the same
        return Replay(facts.keyed.answered, Cost())
    if not facts.path:
        raise UnknownAccount(claim.account)
    asking = facts.path[0]
    if asking.paid:
        books.remember_key(claim)
        return Replay(stored(facts.release), Cost())
    until_us = asking.suspended_until_us(books.clock.now_us)
    if until_us is not None:
        detail = canonical({"by": claim.account, "suspended_until_us": str(until_us)})
        books.append(asking, "refuse", claim.reservation, detail)
        return Suspension(asking.id, until_us)
    return _admit(books, claim, facts)


def _admit(books: Books, claim: Claim, facts: ClaimFacts) -> Admission:
    """The answer to a claim that has to be paid for."""
    path = facts.path
    for page in path:
        books.advance(page)
    funds = _funds(books, path, claim.release_key) if facts.forfeits else {}
    worst = Amount.of(claim.worst)
    holds = rules.admit([_standing(page, funds.get(page.id)) for page in path], worst)
    if isinstance(holds, rules.Shortfall):
        return _refuse(books, claim, holds, path)
    changes = _take(books, path, funds)
    books.remember_key(claim)
    if facts.release is not None:
        return _charge_stored(books, claim, facts.release, path, holds, changes)
    return _hold(books, claim, path, holds, changes)


def _again(claim: Claim, known: Kept, release: StoredRelease | None) -> Admission:
    """The answer to a claim that was sent before."""
    if (known.account, known.release_key, known.worst) != (claim.account, claim.release_key, Amount.of(claim.worst)):
        raise InvariantViolated("a reservation's name is used once")
    if known.state is State.SETTLED:
        return Replay(stored(release), Cost())
    if known.state in {State.VOID, State.FORFEIT}:
        raise LeaseLost
    return known.reservation


def _under_way(claim: Claim, keyed: Keyed) -> InFlight | None:
    """The reservation under way with the claim's idempotency key.

    Raises:
        KeyReused: the key came with another question.
    """
    if keyed.digest != claim.digest:
        raise KeyReused
    return None if keyed.reservation is None else InFlight(keyed.reservation, keyed.lease_until_us)


def _funds(books: Books, path: list[Page], release_key: bytes) -> dict[str, Fund]:
    """The newest forfeit of each account that has not paid, in a bucket that counts."""
    rows = books.forfeits([page.id for page in path if not page.paid], release_key)
    funds: dict[str, Fund] = {}
    for page in path:
        own = [fund for name, fund in rows if name == page.id]
        counting = {page.bucket} | {each.number for each in books.closed(page) if each.counting} if own else set()
        for fund in own:
            if fund.bucket in counting:
                funds[page.id] = fund
    return funds


def _standing(page: Page, fund: Fund | None) -> rules.Standing:
    terms, forfeit = page.terms, NOTHING if fund is None else fund.amount
    return rules.Standing(page.id, terms.limit, terms.enforced, page.bucket, page.spent, page.paid, forfeit)


def _take(books: Books, path: list[Page], funds: dict[str, Fund]) -> list[tuple[str, int, Tally]]:
    """Take what pays for a retry out of its buckets; the changes."""
    changes: list[tuple[str, int, Tally]] = []
    for page in path:
        fund = funds.get(page.id)
        if fund is not None:
            books.drop_forfeit(fund)
            books.change(page, fund.bucket, Tally(forfeited=-fund.amount), changes)
    return changes


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
    changes: list[tuple[str, int, Tally]],
) -> Replay:
    """Charge a stored release to accounts that have not paid for it."""
    cost, taken = Amount.of(release.cost), len(changes)
    for page, hold in zip(path, holds, strict=True):
        books.change(page, hold.bucket, rules.held(hold) + rules.settled(hold, cost, page.paid), changes)
    books.entitle([page.id for page in path if not page.paid], claim.release_key)
    detail = detail_of(claim.account, claim.release_key, release.result)
    books.append(path[0], "replay", claim.reservation, detail, changes)
    return Replay(release, changes[taken][2].used.cost)


def _hold(
    books: Books, claim: Claim, path: list[Page], holds: tuple[Hold, ...], changes: list[tuple[str, int, Tally]]
) -> Admission:
    """A new reservation."""
    until_us = books.clock.now_us + claim.lease_ms * 1000
    worst = Amount.of(claim.worst)
    kept = Kept(claim.reservation, claim.account, claim.release_key, worst, holds, State.HELD, until_us, claim.lease_ms)
    books.add_reservation(kept)
    for page, hold in zip(path, holds, strict=True):
        books.change(page, hold.bucket, rules.held(hold), changes)
    books.append(path[0], "reserve", claim.reservation, detail_of(claim.account, claim.release_key), changes)
    return kept.reservation


def stored(release: StoredRelease | None) -> StoredRelease:
    """*release*, which has to be there."""
    if release is None:
        raise InvariantViolated("a release that was paid for is not stored")
    return release


def detail_of(account: str, release_key: bytes, result: bytes | None = None) -> str:
    """What a line says about a reservation: canonical JSON, written out because every question needs it."""
    end = "" if result is None else f',"result":"{hashlib.sha256(result).hexdigest()}"'
    return f'{{"by":{json.dumps(account)},"release":"{release_key.hex()}"{end}}}'
