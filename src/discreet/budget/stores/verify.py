"""The check of all tables of a store against its ledger."""

from __future__ import annotations

import hashlib
import heapq
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence

from discreet.budget.errors import LedgerBroken, ReleaseDamaged
from discreet.budget.ledger import Head, Line
from discreet.budget.ledger_replay import LedgerReader, LedgerTotals, check_holdings, digest_of, reader_of, replay
from discreet.budget.model import EMPTY, Amount, Tally
from discreet.budget.sharing.escrow import Holding
from discreet.budget.stores import statements
from discreet.budget.stores.transaction import (
    LAST,
    StoreConnection,
    account_row,
    amount_of,
    holds_of,
    incoming_of,
    outgoing_of,
    tally_of,
    terms_of,
)
from discreet.errors import DiscreetError


def holdings(db: StoreConnection, after: str = "", most: int | None = None) -> list[Holding]:
    """Return at most *most* accounts with their shares, ordered by name, starting after the name *after*."""
    (rows,) = db.query((statements.HOLDINGS, (after, LAST if most is None else most)))
    by_account: dict[str, Holding] = {}
    for name, settings, tally, older, peer, *columns in rows:
        if name not in by_account:
            by_account[name] = Holding(terms_of(settings).account, (tally_of(tally) + tally_of(older)).total, {}, {})
        if peer is not None:
            outgoing = outgoing_of(columns[:5])
            incoming = incoming_of(columns[5:])
            if outgoing.number:
                by_account[name].outgoing[peer] = outgoing
            if incoming.number:
                by_account[name].incoming[peer] = incoming
    return list(by_account.values())


def verify(db: StoreConnection, archived: Sequence[Iterable[Line]] = ()) -> LedgerTotals:
    """Check the ledger, and compare all tables with it.

    Args:
        db: a connection that sees one snapshot of all tables.
        archived: all removed lines, each sequence ordered by chain and number, to check the ledger from its first line;
            empty to start from the base that replaced them.

    Raises:
        LedgerBroken: the ledger was changed, or a table differs from it.
    """
    if db.is_damaged():
        raise LedgerBroken("the file is damaged, or an index contradicts its table; restore the store from a backup")
    try:
        chunks = [chunk for (chunk,) in db.stream(statements.BASE)]
        lines: Iterable[Line] = itertools.starmap(Line, db.stream(statements.ALL_LINES))
        if archived:
            lines = heapq.merge(*archived, lines, key=lambda line: (line.chain, line.seq))
        reader = LedgerReader() if archived else reader_of(chunks)
        ledger = replay(itertools.groupby(lines, lambda line: line.chain), reader)
        if ledger.base != digest_of(chunks):
            raise LedgerBroken("the base of removed lines is not the one that was recorded when they were removed")
        (heads,) = db.query((statements.NEXT_HEADS, ()))
        if ledger.heads != tuple(itertools.starmap(Head, heads)):
            raise LedgerBroken("a chain does not end where its account says")
        tallies = _check_accounts(db, ledger)
        _check_reservations(db, ledger, tallies)
        _check_releases(db, ledger)
        _check_forfeits(db, ledger)
        rows = db.stream(statements.ALL_RECORDS)
        records = {(kind, name): hashlib.sha256(text.encode()).hexdigest() for kind, name, text in rows}
        ((version,),) = db.query((statements.RECORDS_VERSION, ()))[0]
        if records != ledger.records or version != ledger.records_version:
            raise LedgerBroken("a record is not as the ledger says")
        if {action: digest.hex() for action, digest in db.stream(statements.ALL_ACTIONS)} != ledger.actions:
            raise LedgerBroken("an action is not as the ledger says")
        ((store,),) = db.query((statements.STORE_ID, ()))[0]
        check_holdings(store, holdings(db), ledger.transfers)
    except DiscreetError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:  # of a value that is damaged
        raise LedgerBroken("a row cannot be read") from error
    return ledger


def _check_accounts(db: StoreConnection, ledger: LedgerTotals) -> dict[tuple[str, int], Tally]:
    """Check settings, paths, balances and failures; return the tally of each bucket."""
    tallies = {(account, bucket): tally_of(tally) for account, bucket, tally in db.stream(statements.ALL_BUCKETS)}
    accounts = {}
    for row in map(account_row, db.stream(statements.ALL_ACCOUNTS)):
        tallies[row.id, row.bucket] = row.tally
        accounts[row.id] = (row.settings, row.bucket, row.end_us)
        if row.id not in ledger.accounts or ledger.counting_tally(row.id) != row.tally + row.older:
            raise LedgerBroken(f"the balance of account {row.id!r} is not what its lines add up to")
        if row.failures != ledger.failures.get(row.id, ()):
            raise LedgerBroken(f"the failed runs of account {row.id!r} are not as the ledger says")
    if accounts != {name: (state.settings, state.bucket, state.end_us) for name, state in ledger.accounts.items()}:
        raise LedgerBroken("an account is not as the ledger says")
    if {where: tally for where, tally in tallies.items() if tally} != ledger.tallies:
        raise LedgerBroken("a bucket does not hold what its lines add up to")
    paths: dict[str, list[str]] = {}
    for account, member in db.stream(statements.ALL_PATHS):
        paths.setdefault(account, []).append(member)
    if paths != {name: ledger.path(name) for name in ledger.accounts}:
        raise LedgerBroken("the path of an account is not that of its parents")
    return tallies


def _check_reservations(db: StoreConnection, ledger: LedgerTotals, tallies: dict[tuple[str, int], Tally]) -> None:
    """Check that open reservations are those of the ledger, and that their holds add up to the amounts held."""
    states = {}
    by_bucket = dict.fromkeys(tallies, EMPTY)
    for name, state, holds in db.stream(statements.OPEN_RESERVATIONS):
        states[name] = state
        for hold in holds_of(holds):
            where = hold.account, hold.bucket
            by_bucket[where] = by_bucket.get(where, EMPTY) + Tally(held=hold.amount)
    if states != {name: state.value for name, state in ledger.open.items()}:
        raise LedgerBroken("a reservation is not as the ledger says")
    if any(tallies.get(where, EMPTY).held != part.held for where, part in by_bucket.items()):
        raise LedgerBroken("an account holds what no reservation holds")


def _check_forfeits(db: StoreConnection, ledger: LedgerTotals) -> None:
    """Check the amounts that can pay for retries."""
    forfeits: dict[tuple[str, int, str], Counter[Amount]] = {}
    for account, bucket, release_key, amount in db.stream(statements.ALL_FORFEITS):
        forfeits.setdefault((account, bucket, release_key.hex()), Counter())[amount_of(amount)] += 1
    if forfeits != ledger.forfeits:
        raise LedgerBroken("what was forfeited is not as the ledger says")


def _check_releases(db: StoreConnection, ledger: LedgerTotals) -> None:
    """Check that stored releases are those of the ledger, and were paid for by who received them and the parents."""
    number = 0
    for release_key, digest, cost, stored in db.stream(statements.ALL_RELEASES):
        number += 1
        answered = ledger.releases.get(release_key.hex())
        if stored not in {None, digest}:
            raise ReleaseDamaged(release_key)
        if answered is None or answered.cost != amount_of(cost) or answered.result not in {None, digest.hex()}:
            raise LedgerBroken("a stored release is not what was answered and charged")
    if number != len(ledger.releases):
        raise LedgerBroken("a release that was answered is not stored")
    sets = {answered.by for answered in ledger.releases.values()}
    if any(name not in ledger.accounts for by in sets for name in by):
        raise LedgerBroken("a release was returned to an account that was never created")
    payers = {by: frozenset(name for one in by for name in ledger.path(one)) for by in sets}
    number = 0
    for account, release_key in db.stream(statements.ALL_ENTITLEMENTS):
        number += 1
        answered = ledger.releases.get(release_key.hex())
        if answered is None or account not in payers[answered.by]:
            raise LedgerBroken(f"account {account!r} can read a release that it has not paid for")
    if number != sum(len(payers[answered.by]) for answered in ledger.releases.values()):
        raise LedgerBroken("an account cannot read a release that it has paid for")
