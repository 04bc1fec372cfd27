"""All tables of a store against what its ledger alone says."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from discreet.budget.errors import LedgerBroken
from discreet.budget.fixed_point import EMPTY, Amount, Tally

if TYPE_CHECKING:
    from collections.abc import Iterable

    from discreet.budget.ledger_replay import Verified
    from discreet.budget.model import Hold
    from discreet.budget.stores.rows import Page


@dataclass(frozen=True, slots=True)
class Tables:
    """What a store holds; large tables are read as they are asked for, all in one state of the store.

    Args:
        accounts: rows of all accounts.
        buckets: account, number and content of all closed buckets.
        reservations: name, state and holds of those that have not ended.
        releases: key, SHA-256 of the bytes, cost.
        entitlements: account and release key.
        forfeits: account, bucket, release key and amount.
        records: kind, name and text.
        records_version: as `BudgetStore.records_version`.
        acts: id and digest.
    """

    accounts: list[Page]
    buckets: Iterable[tuple[str, int, Tally]]
    reservations: Iterable[tuple[str, str, tuple[Hold, ...]]]
    releases: Iterable[tuple[bytes, bytes, Amount]]
    entitlements: Iterable[tuple[str, bytes]]
    forfeits: Iterable[tuple[str, int, bytes, Amount]]
    records: Iterable[tuple[str, str, str]]
    records_version: int
    acts: Iterable[tuple[str, bytes]]


def check(said: Verified, tables: Tables) -> None:
    """Raise unless the store holds what its ledger says.

    Raises:
        LedgerBroken: it does not.
    """
    tallies = _check_accounts(said, tables)
    _check_reservations(said, tables, tallies)
    _check_releases(said, tables)
    _check_entitlements(said, tables)
    _check_forfeits(said, tables)
    _check_acts(said, tables)


def _check_accounts(said: Verified, tables: Tables) -> dict[tuple[str, int], Tally]:
    """Settings, balances, failures; returns what each bucket holds."""
    tallies = {(account, bucket): tally for account, bucket, tally in tables.buckets}
    courses = {}
    for page in tables.accounts:
        tallies[page.id, page.bucket] = page.tally
        courses[page.id] = (page.settings, page.bucket, page.end_us)
        if page.id not in said.courses or said.in_force(page.id) != page.tally + page.older:
            raise LedgerBroken(f"the balance of account {page.id!r} is not what its lines add up to")
        if page.failures != said.failures.get(page.id, ()):
            raise LedgerBroken(f"account {page.id!r} failed otherwise than it shows")
    if courses != {name: (course.settings, course.bucket, course.end_us) for name, course in said.courses.items()}:
        raise LedgerBroken("an account is not as the ledger says")
    if {where: tally for where, tally in tallies.items() if tally} != said.tallies:
        raise LedgerBroken("a bucket does not hold what its lines add up to")
    return tallies


def _check_reservations(said: Verified, tables: Tables, tallies: dict[tuple[str, int], Tally]) -> None:
    """What is held is what open reservations hold, and those are the open ones of the ledger."""
    states, held = {}, dict.fromkeys(tallies, EMPTY)
    for name, state, holds in tables.reservations:
        states[name] = state
        for hold in holds:
            where = hold.account, hold.bucket
            held[where] = held.get(where, EMPTY) + Tally(held=hold.amount)
    if states != {name: state.value for name, state in said.running.items()}:
        raise LedgerBroken("a reservation is not as the ledger says")
    if any(tallies.get(where, EMPTY).held != part.held for where, part in held.items()):
        raise LedgerBroken("an account holds what no reservation holds")


def _check_releases(said: Verified, tables: Tables) -> None:
    """The bytes that are answered again are those that were answered first, at the same price."""
    found = 0
    for release_key, digest, cost in tables.releases:
        found += 1
        answered = said.answered.get(release_key.hex())
        if answered is None or answered.cost != cost or answered.result not in {None, digest.hex()}:
            raise LedgerBroken("a stored release is not what was answered and charged")
    if found != len(said.answered):
        raise LedgerBroken("a release that was answered is not stored")


def _check_entitlements(said: Verified, tables: Tables) -> None:
    """Whoever asked and was answered has paid, and her parents; nobody else."""
    payers = {by: frozenset(name for one in by for name in said.path(one)) for by in _askers(said)}
    found = 0
    for account, release_key in tables.entitlements:
        found += 1
        answered = said.answered.get(release_key.hex())
        if answered is None or account not in payers[answered.by]:
            raise LedgerBroken(f"account {account!r} has not paid for what it may see")
    if found != sum(len(payers[answered.by]) for answered in said.answered.values()):
        raise LedgerBroken("an account may not see what it has paid for")


def _askers(said: Verified) -> set[frozenset[str]]:
    """All sets of accounts that were answered the same release."""
    found = {answered.by for answered in said.answered.values()}
    if any(name not in said.courses for by in found for name in by):
        raise LedgerBroken("an account was answered that was never made")
    return found


def _check_forfeits(said: Verified, tables: Tables) -> None:
    """What pays for retries is what was forfeited and has not paid yet."""
    owed: dict[tuple[str, int, str], Counter[Amount]] = {}
    for account, bucket, release_key, amount in tables.forfeits:
        owed.setdefault((account, bucket, release_key.hex()), Counter())[amount] += 1
    if owed != said.owed:
        raise LedgerBroken("what was forfeited is not as the ledger says")


def _check_acts(said: Verified, tables: Tables) -> None:
    """Records are those that were put last, and no act can be done twice."""
    records = {(kind, name): hashlib.sha256(text.encode()).hexdigest() for kind, name, text in tables.records}
    if records != said.records or tables.records_version != said.records_version:
        raise LedgerBroken("a record is not what was put there")
    if {act: digest.hex() for act, digest in tables.acts} != said.acts:
        raise LedgerBroken("an act is not as the ledger says")
