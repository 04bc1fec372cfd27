"""Claims, reservations, accounts and records, for both databases. Each function runs in one transaction.

The methods of `BudgetStore` document the functions.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from discreet.budget import escrow, rules
from discreet.budget.errors import AccountChanged, ClockError, DataChanged, KeyReused, LeaseLost, UnknownAccount
from discreet.budget.ledger import Head, canonical, settings_text
from discreet.budget.model import (
    EMPTY,
    NOTHING,
    Amount,
    Refusal,
    Replay,
    Reservation,
    Settled,
    State,
    StoredRelease,
    Suspension,
    Tally,
)
from discreet.budget.periods import bucket_end, check_period
from discreet.budget.rules import TERMINAL, Event, requested, transition
from discreet.budget.stores import statements
from discreet.budget.stores.rows import AccountRow, ForfeitRow, ReservationRow, cost_of
from discreet.budget.stores.transaction import buckets_detail
from discreet.errors import InputError, InvariantViolated
from discreet.values import Cost

if TYPE_CHECKING:
    from collections.abc import Mapping

    from discreet.budget.model import Account, AccountHold, AdminAction, Admission, Claim, Fingerprint
    from discreet.budget.stores.transaction import ClaimFacts, Transaction


# ------------------------------------------------------------------------------------------------------ claims


def reserve(transaction: Transaction, claim: Claim) -> Admission:
    """Answer a claim, in the order that `BudgetStore.reserve` documents."""
    facts = transaction.begin_claim(claim)
    if facts.known is not None:
        return _answer_repeated_claim(claim, facts.known, facts.release)
    if facts.key is not None and facts.key.digest != claim.digest:
        raise KeyReused
    if facts.in_flight is not None:
        return facts.in_flight
    if facts.key is not None and facts.key.answered is not None:
        # the same request has another release key now, for example because the data has a new version
        return Replay(facts.key.answered, Cost())
    if not facts.path:
        raise UnknownAccount(claim.account)
    account = facts.path[0]
    if account.paid:
        transaction.remember_key(claim)
        return Replay(_require_release(facts.release), Cost())
    until_us = account.suspended_until_us(transaction.clock.now_us)
    if until_us is not None:
        detail = canonical({"by": claim.account, "suspended_until_us": str(until_us)})
        transaction.append(account, "refuse", claim.reservation, detail)
        return Suspension(account.id, until_us)
    return _admit(transaction, claim, facts)


def _answer_repeated_claim(claim: Claim, known: ReservationRow, release: StoredRelease | None) -> Admission:
    """Answer a claim that was sent before."""
    if (known.account, known.release_key, known.worst) != (claim.account, claim.release_key, Amount.of(claim.worst)):
        raise InvariantViolated("the id of a reservation is used once")
    if known.state is State.SETTLED:
        return Replay(_require_release(release), Cost())
    if known.state in {State.VOID, State.FORFEIT}:
        raise LeaseLost
    return known.reservation


def _admit(transaction: Transaction, claim: Claim, facts: ClaimFacts) -> Admission:
    """Answer a claim that has to be paid for."""
    path = facts.path
    for account in path:
        transaction.advance(account)
    forfeits = _newest_forfeits(transaction, path, claim.release_key) if facts.forfeits else {}
    holds = rules.admit([_state_of(account, forfeits.get(account.id)) for account in path], Amount.of(claim.worst))
    if isinstance(holds, rules.Shortfall):
        return _refuse(transaction, claim, holds, path)
    changes = _use_forfeits(transaction, path, forfeits)
    transaction.remember_key(claim)
    if facts.release is not None:
        return _charge_stored(transaction, claim, facts.release, path, holds, changes)
    return _make_reservation(transaction, claim, path, holds, changes)


def _newest_forfeits(transaction: Transaction, path: list[AccountRow], release_key: bytes) -> dict[str, ForfeitRow]:
    """Return the newest forfeit in a bucket that still counts, for each account that has not paid."""
    rows = transaction.forfeits(path[0].id, release_key)
    forfeits: dict[str, ForfeitRow] = {}
    for account in path:
        own = [row for row in rows if row.account == account.id and not account.paid]
        closed = transaction.closed_buckets(account) if own else []
        counting = {account.bucket} | {bucket.number for bucket in closed if bucket.counting}
        for row in own:
            if row.bucket in counting:
                forfeits[account.id] = row
    return forfeits


def _state_of(account: AccountRow, forfeit: ForfeitRow | None) -> rules.AccountState:
    terms, amount = account.terms, NOTHING if forfeit is None else forfeit.amount
    return rules.AccountState(
        account.id, terms.limit, terms.enforced, account.bucket, account.spent, account.paid, amount
    )


def _use_forfeits(
    transaction: Transaction, path: list[AccountRow], forfeits: dict[str, ForfeitRow]
) -> list[tuple[str, int, Tally]]:
    """Spend the forfeits that pay for a retry; return the changes of their buckets."""
    changes: list[tuple[str, int, Tally]] = []
    for account in path:
        forfeit = forfeits.get(account.id)
        if forfeit is not None:
            transaction.drop_forfeit(forfeit)
            transaction.change(account, forfeit.bucket, Tally(forfeited=-forfeit.amount), changes)
    return changes


def _refuse(transaction: Transaction, claim: Claim, short: rules.Shortfall, path: list[AccountRow]) -> Refusal:
    account = next(account for account in path if account.id == short.account)
    detail = {"by": claim.account, "short": short.account, "rho": str(short.needed.rho)}
    transaction.append(path[0], "refuse", claim.reservation, canonical(detail | {"delta": str(short.needed.delta)}))
    return Refusal(short.account, short.needed.cost, short.remaining.cost, transaction.resets_us(account))


def _charge_stored(
    transaction: Transaction,
    claim: Claim,
    release: StoredRelease,
    path: list[AccountRow],
    holds: tuple[AccountHold, ...],
    changes: list[tuple[str, int, Tally]],
) -> Replay:
    """Charge a stored release to the accounts that have not paid for it."""
    cost, taken = Amount.of(release.cost), len(changes)
    for account, hold in zip(path, holds, strict=True):
        charge = rules.held(hold) + rules.settled(hold, cost, account.paid)
        transaction.change(account, hold.bucket, charge, changes)
    transaction.entitle([account.id for account in path if not account.paid], claim.release_key)
    detail = _reservation_detail(claim.account, claim.release_key, release.result)
    transaction.append(path[0], "replay", claim.reservation, detail, changes)
    return Replay(release, changes[taken][2].used.cost)


def _make_reservation(
    transaction: Transaction,
    claim: Claim,
    path: list[AccountRow],
    holds: tuple[AccountHold, ...],
    changes: list[tuple[str, int, Tally]],
) -> Reservation:
    """Make a new reservation."""
    until_us = transaction.clock.now_us + claim.lease_ms * 1000
    worst = Amount.of(claim.worst)
    row = ReservationRow(
        claim.reservation, claim.account, claim.release_key, worst, holds, State.HELD, until_us, claim.lease_ms
    )
    transaction.add_reservation(row)
    for account, hold in zip(path, holds, strict=True):
        transaction.change(account, hold.bucket, rules.held(hold), changes)
    transaction.append(
        path[0], "reserve", claim.reservation, _reservation_detail(claim.account, claim.release_key), changes
    )
    return row.reservation


# ------------------------------------------------------------------------------------------------------ events


def start(transaction: Transaction, reservation: str) -> Reservation:
    """Record that the data will be queried now."""
    facts = transaction.begin_event(statements.START, reservation)
    row = _require(facts.row)
    after = requested(row.state, Event.START)
    if after is row.state:
        return row.reservation
    if row.lease_until_us <= transaction.clock.now_us:
        raise LeaseLost
    until_us = transaction.clock.now_us + row.lease_ms * 1000
    transaction.update_reservation(reservation, after, lease_until_us=until_us)
    transaction.append(facts.path[0], "start", reservation)
    return Reservation(row.id, row.account, row.release_key, cost_of(row.worst), row.holds, after, until_us)


def settle(
    transaction: Transaction, reservation: str, actual: Amount, result: bytes, fingerprint: Fingerprint | None = None
) -> Settled:
    """Charge a reservation and store the answer.

    If two transactions store the same release at once, the insert of the second one fails; it is repeated, and finds
    the release of the first one.
    """
    facts = transaction.begin_settle(reservation, fingerprint)
    row, path, release = _require(facts.row), facts.path, facts.release
    if requested(row.state, Event.SETTLE) is row.state:
        return Settled(_require_release(release), cost_of(row.charged or NOTHING))
    if not actual.within(row.worst):
        raise InvariantViolated("an answer cost more than its worst case")
    if fingerprint is not None:
        _check_fingerprint(transaction, fingerprint, facts.head_digest)
    if release is None:
        release = StoredRelease(row.release_key, result, cost_of(actual), transaction.clock.now_us)
        transaction.add_release(release)
    cost, changes = Amount.of(release.cost), list[tuple[str, int, Tally]]()
    for account, hold in zip(path, row.holds, strict=True):
        transaction.change(account, hold.bucket, rules.settled(hold, cost, account.paid), changes)
    charged = changes[0][2].used
    transaction.entitle([account.id for account in path if not account.paid], row.release_key)
    transaction.update_reservation(reservation, State.SETTLED, charged=charged)
    detail = _reservation_detail(row.account, row.release_key, release.result)
    transaction.append(path[0], "settle", reservation, detail, changes)
    return Settled(release, cost_of(charged))


def end(transaction: Transaction, reservation: str, event: Event) -> None:
    """Void or forfeit a reservation."""
    facts = transaction.begin_event(statements.END, reservation)
    row = _require(facts.row)
    after = requested(row.state, event)
    if after is not row.state:
        _end_reservation(transaction, facts.path, row, after, event)


def expire(transaction: Transaction, reservation: str) -> bool:
    """End a reservation if its lease is over; return True if it was."""
    facts = transaction.begin_event(statements.END, reservation)
    row = _require(facts.row)
    if row.state in TERMINAL or row.lease_until_us > transaction.clock.now_us:
        return False  # it was ended or prolonged in between
    _end_reservation(transaction, facts.path, row, transition(row.state, Event.EXPIRE), Event.EXPIRE)
    return True


def lose(transaction: Transaction, reservation: str) -> bool:
    """End a reservation whose process ended or whose client disconnected; return True if it was open."""
    facts = transaction.begin_event(statements.END, reservation)
    row = _require(facts.row)
    if row.state in TERMINAL:
        return False
    _end_reservation(transaction, facts.path, row, transition(row.state, Event.LOSE), Event.LOSE)
    return True


def _end_reservation(
    transaction: Transaction, path: list[AccountRow], row: ReservationRow, after: State, event: Event
) -> None:
    """End a reservation as VOID or FORFEIT."""
    changes: list[tuple[str, int, Tally]] = []
    for account, hold in zip(path, row.holds, strict=True):
        ended = rules.ended(hold, after)
        transaction.change(account, hold.bucket, ended, changes)
        if ended.forfeited:
            transaction.add_forfeit(hold, row.release_key, ended.forfeited)
    if event is Event.FORFEIT:
        path[0].failures = rules.failed(path[0].failures, transaction.clock.now_us)
    transaction.update_reservation(row.id, after)
    transaction.append(path[0], event.value, row.id, _reservation_detail(row.account, row.release_key), changes)


def _check_fingerprint(transaction: Transaction, fingerprint: Fingerprint, known: bytes | None) -> None:
    """Store the digest of an engine's result, or compare it with the stored one."""
    if known is None:
        transaction.add_fingerprint(fingerprint)
    elif known != fingerprint.digest:
        raise DataChanged


def _require(row: ReservationRow | None) -> ReservationRow:
    if row is None:
        raise LeaseLost
    return row


def _require_release(release: StoredRelease | None) -> StoredRelease:
    if release is None:
        raise InvariantViolated("a release that was paid for is not stored")
    return release


def _reservation_detail(account: str, release_key: bytes, result: bytes | None = None) -> str:
    """Return the detail of a ledger line about a reservation: canonical JSON, formatted by hand for speed."""
    end = "" if result is None else f',"result":"{hashlib.sha256(result).hexdigest()}"'
    return f'{{"by":{json.dumps(account)},"release":"{release_key.hex()}"{end}}}'


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
    """Alter an account. *store* is the id of the store; *read*, if not None, is the account as the caller read it."""
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
    change_settings(transaction, row, escrow.altered(before, account, row.spent, store), detail)


def change_settings(transaction: Transaction, row: AccountRow, account: Account, detail: dict[str, object]) -> None:
    """Replace the settings of *row* by those of *account*, with a ledger line.

    Raises:
        ClockError: the period changes, and the clock ran ahead.
    """
    before = row.terms.account
    check_period(account.period)
    row.settings, row.changed = settings_text(account), True
    if account.period != before.period:
        if transaction.clock.ahead:
            raise ClockError
        transaction.open_bucket(row, min(row.end_us, transaction.clock.now_us + 1), "alter", detail)
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
    """Open the next bucket of an account if the open one is over; return True if it was."""
    return transaction.advance(transaction.begin_account(account))


def confirm_clock(transaction: Transaction, action: AdminAction) -> None:
    """Accept the time of the database, however far it ran ahead."""
    transaction.begin_store()
    detail = _record_action(transaction, action, "clock")
    if detail is not None:
        before_us = transaction.clock.seen_us
        transaction.trust_clock()
        transaction.append(None, "clock", detail=canonical(detail | {"seen_us": str(before_us)}))


def note(transaction: Transaction, action: AdminAction, text: Mapping[str, str]) -> None:
    """Append an action that changes no balance."""
    if not all(isinstance(value, str) for value in text.values()):  # other types are reserved: an action, a record
        raise InputError("a note holds text only")
    transaction.begin_store()
    detail = _record_action(transaction, action, "note", canonical(text))
    if detail is not None:
        transaction.append(None, "note", detail=canonical(dict(text) | detail))


def put_record(transaction: Transaction, kind: str, name: str, text: str | None, action: AdminAction) -> None:
    """Write or remove a record; the ledger line holds the digest of its text."""
    digest = None if text is None else hashlib.sha256(text.encode()).hexdigest()
    transaction.begin_store()
    detail = _record_action(transaction, action, "record", kind, name, digest or "")
    if detail is not None:
        transaction.put_record(kind, name, text)
        record = {"kind": kind, "name": name, "sha256": digest}
        transaction.append(None, "note", detail=canonical(detail | {"record": record}))


def _record_action(transaction: Transaction, action: AdminAction, *what: str) -> dict[str, object] | None:
    """Return the ledger detail of an action, or None if the same action was done before.

    Raises:
        KeyReused: another action has its id.
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
