"""Replay of the ledger: check its lines, add them up, compute spending and the effect of other limits. Pure.

A reader's memory does not grow with time, except for about 300 bytes for each stored release.

After a pruning, a base replaces the removed lines. It is the state of a reader after them, as text in one form only:
lines of canonical JSON, each a list that begins with its kind, in chunks. The ledger's line of kind "prune" holds the
SHA-256 of all chunks, so that a base is as hard to change as a line. Later lines are checked from the heads in the
base, and added to its sums.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from discreet.budget.errors import LedgerBroken
from discreet.budget.ledger import (
    ACCOUNT_KINDS,
    ACTION_KINDS,
    KINDS,
    MOVE_KINDS,
    PARTS,
    Entry,
    Head,
    Line,
    account_of,
    canonical,
)
from discreet.budget.model import NOTHING, Account, Amount, State, Tally
from discreet.budget.rules import (
    DAY_US,
    NEVER_US,
    TERMINAL,
    TRANSITIONS,
    AccountState,
    Event,
    Shortfall,
    admit,
    bucket_end,
    failed,
    still_counts,
)
from discreet.budget.sharing.escrow import Holding, Incoming, Outgoing

_EVENTS = {event.value: event for event in Event}


@dataclass(slots=True)
class ReplayedAccount:
    """An account and its buckets.

    Args:
        settings: the current settings, as text.
        bucket: number of the open bucket.
        end_us: when the open bucket ends.
        closed: number and end of the closed buckets that still count.
    """

    settings: str
    bucket: int
    end_us: int
    closed: list[tuple[int, int]] = field(default_factory=list)

    @property
    def counting(self) -> list[int]:
        """The numbers of all buckets that still count, oldest first."""
        return [number for number, _ in self.closed] + [self.bucket]


def _apply_settings(
    accounts: dict[str, ReplayedAccount], closed: list[tuple[int, int]], kind: str, time_us: int, detail: dict[str, Any]
) -> None:
    """Apply a line that opens a bucket or changes settings.

    Args:
        accounts: the accounts by name, which are changed in place.
        closed: number and end of all buckets of the account that were ever closed; the next one is appended.

    Raises:
        ValueError: the line contradicts earlier lines.
    """
    settings = canonical(detail["account"])
    account = account_of(settings)
    bucket = int(detail["bucket"])
    end_us = int(detail["end_us"])
    before = accounts.get(account.id)
    if (before is None) != (kind == "create"):
        raise ValueError
    if before is not None and bucket == before.bucket:  # other settings than the period
        if end_us != before.end_us:
            raise ValueError
        accounts[account.id] = ReplayedAccount(settings, bucket, end_us, before.closed)
        return
    if before is not None:
        if bucket != before.bucket + 1:
            raise ValueError
        # Another period closes the open bucket early, with the microsecond of the line as its last
        # (`Transaction.change_settings`).
        closed.append((before.bucket, min(before.end_us, time_us + 1)))
    counting = [(number, end) for number, end in closed if still_counts(account.period, end, time_us)]
    accounts[account.id] = ReplayedAccount(settings, bucket, end_us, counting)


@dataclass(slots=True)
class StoreTransfers:
    """The transfers of a store, without the versions of the settings in other stores.

    Attributes:
        incoming: transfers by account and other store, as in *outgoing*.
    """

    outgoing: dict[tuple[str, str], Outgoing] = field(default_factory=lambda: defaultdict(Outgoing))
    incoming: dict[tuple[str, str], Incoming] = field(default_factory=lambda: defaultdict(Incoming))

    def read(self, kind: str, time_us: int, detail: Mapping[str, Any]) -> None:
        """Add a line of one of `MOVE_KINDS`.

        Raises:
            ValueError: the line contradicts earlier lines.
        """
        transfer = detail["transfer"]
        number = int(transfer["number"])
        amount = Amount(int(transfer["rho"]), int(transfer["delta"]))
        account = detail["account"]
        where = (account if isinstance(account, str) else account["id"]), transfer["peer"]
        if kind in {"take", "decline"}:
            before = self.incoming[where]
            received = before.received + (amount if kind == "take" else NOTHING)
            self.incoming[where] = Incoming(number, kind == "take", received)
            follows = number == before.number + 1
        elif kind == "send":
            last = self.outgoing[where]
            self.outgoing[where] = Outgoing(number, last.given + amount, amount, time_us)
            follows = number == last.number + 1 and last.pending is None
        else:
            last = self.outgoing[where]
            back = amount if kind == "return" else NOTHING
            self.outgoing[where] = Outgoing(number, last.given - back, None, last.sent_us)
            follows = number == last.number and amount == last.pending
        if not follows or amount.rho < 0 or amount.delta < 0:
            raise ValueError(kind)


@dataclass(slots=True)
class ReplayedRelease:
    """A stored release.

    Args:
        result: SHA-256 of its bytes in hexadecimal, or None if no line has it.
        by: the accounts that received it, without their parents.
    """

    result: str | None
    cost: Amount
    by: frozenset[str]


@dataclass(slots=True)
class LedgerTotals:
    """The state of a store according to its ledger.

    Args:
        tallies: the tally of each bucket that was ever changed, by account and number.
        open: states of the reservations that have not ended.
        releases: all stored releases, by release key in hexadecimal.
        forfeits: forfeited amounts that have not paid for a retry, by account, bucket and release key in hexadecimal.
        failures: timestamps of the last failed runs, which count towards a suspension, by account.
        actions: the SHA-256 of the action's content, in hexadecimal, by the action's id.
        records: the SHA-256 of each record's text, by kind and name.
        records_version: the number of times that records were put or removed.
        transfers: transfers of shares to and from other data centres.
        lines: the number of lines read.
        base: the SHA-256 of the stored base in hexadecimal, if lines were removed (`chunks_of`).
    """

    heads: tuple[Head, ...] = ()
    lines: int = 0
    tallies: dict[tuple[str, int], Tally] = field(default_factory=dict)
    accounts: dict[str, ReplayedAccount] = field(default_factory=dict)
    open: dict[str, State] = field(default_factory=dict)
    releases: dict[str, ReplayedRelease] = field(default_factory=dict)
    forfeits: dict[tuple[str, int, str], Counter[Amount]] = field(default_factory=dict)
    failures: dict[str, tuple[int, ...]] = field(default_factory=dict)
    actions: dict[str, str] = field(default_factory=dict)
    records: dict[tuple[str, str], str] = field(default_factory=dict)
    records_version: int = 0
    transfers: StoreTransfers = field(default_factory=StoreTransfers)
    base: str | None = None

    def counting_tally(self, account: str) -> Tally:
        """Return the sum over the buckets of an account that still count."""
        total = Tally()
        for bucket in self.accounts[account].counting:
            total += self.tallies.get((account, bucket), Tally())
        return total

    def path(self, account: str) -> list[str]:
        """Return the account and its parents."""
        names = [account]
        parent = account_of(self.accounts[account].settings).parent
        while parent is not None:
            names.append(parent)
            parent = account_of(self.accounts[parent].settings).parent
        return names


class _InvalidLine(ValueError):
    """A line that contradicts the lines before it."""


@functools.lru_cache(maxsize=4096)  # queries of one kind have the same cost
def _amount(rho: str, delta: str) -> Amount:
    return Amount(int(rho), int(delta))


@functools.lru_cache(maxsize=4096)  # many releases were received by the same sets of accounts
def _set_of_accounts(*names: str) -> frozenset[str]:
    return frozenset(names)


class LedgerReader:
    """Adds up lines. The loop in `read` runs ten million times, so it is written for speed.

    Attributes:
        heads: the end of each chain after the lines that were read, by number.
        sums: rho and delta in quanta of each part of each bucket, by account, bucket and part.
        totals: everything else that the lines add up to; `replay` fills in heads and tallies.
        closed_buckets: number and end of all buckets of an account that were ever closed.
    """

    def __init__(self) -> None:
        self.heads: dict[int, Head] = {}
        self.sums: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0])
        self.totals = LedgerTotals()
        self.closed_buckets: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self.account_sets: dict[frozenset[str], frozenset[str]] = {}  # to keep each set in memory once
        self.by_kind = {
            "settle": self._add_release,
            "replay": self._add_release,
            "forfeit": self._add_failure,
            **dict.fromkeys(ACTION_KINDS | ACCOUNT_KINDS | MOVE_KINDS, self._add_action),
        }

    def read(self, chain: int, lines: Iterable[Line]) -> None:
        """Add up *lines*, which continue the chain after the lines read so far.

        Raises:
            LedgerBroken: a line was changed, moved, removed or added.
        """
        sha256 = hashlib.sha256
        sums = self.sums
        by_kind = self.by_kind
        head = self.heads.get(chain) or Head.empty(chain)
        seq = head.seq
        last = head.hash
        for line in lines:
            seq += 1
            body = line.body
            if sha256(last + body.encode("utf-8", "surrogatepass")).digest() != line.hash:
                raise LedgerBroken("its hash does not follow from the lines before", chain, seq)
            last = line.hash
            fields = body.split("\t")
            if line.seq != seq or line.chain != chain or fields[1] != str(seq) or fields[0] != str(chain):
                raise LedgerBroken("lines are missing or were moved", chain, seq)
            try:
                kind = fields[3]
                name = fields[4]
                after = self._state_after(kind, name)
                has_forfeits = False
                for n in range(6, len(fields), 5):
                    account, bucket, part, rho, delta = fields[n : n + 5]
                    sum_ = sums[account, bucket, part]
                    sum_[0] += int(rho)
                    sum_[1] += int(delta)
                    has_forfeits = has_forfeits or part == "f"
                if kind in by_kind:
                    by_kind[kind](fields, after)
                if has_forfeits:
                    self._add_forfeits(fields)
            except _InvalidLine:
                raise LedgerBroken("a line contradicts those before it", chain, seq) from None
            except (ValueError, KeyError, IndexError, TypeError, AttributeError):
                raise LedgerBroken("a line cannot be read", chain, seq) from None
        self.totals.lines += seq - head.seq
        self.heads[chain] = Head(chain, seq, last)

    def _state_after(self, kind: str, name: str) -> State | None:
        """Return the state of a reservation after a line; None if the line does not change it."""
        if kind not in KINDS:
            raise _InvalidLine
        if name == "-":
            return None
        states = self.totals.open
        if kind == "reserve":
            if name in states:
                raise _InvalidLine
            states[name] = State.HELD
            return State.HELD
        event = _EVENTS.get(kind)
        if event is None:
            return None
        after = TRANSITIONS.get((states.get(name, State.VOID), event))
        if after is None:
            raise _InvalidLine
        if after in TERMINAL:
            del states[name]
        else:
            states[name] = after
        return after

    def _add_release(self, fields: list[str], _: State | None) -> None:
        """Add a release and its cost."""
        detail = json.loads(fields[5])
        account = _set_of_accounts(detail["by"])
        release = detail["release"]
        result = detail.get("result")
        replayed = self.totals.releases.get(release)
        if replayed is None:
            replayed = self.totals.releases[release] = ReplayedRelease(result, NOTHING, account)
        elif result != replayed.result:
            raise _InvalidLine  # a release key has one result
        elif not account <= replayed.by:
            replayed.by = self.account_sets.setdefault(replayed.by | account, replayed.by | account)
        for at, part in enumerate(fields[8::5]):
            if part == "u":
                cost = _amount(fields[9 + 5 * at], fields[10 + 5 * at])
                if replayed.cost not in {NOTHING, cost}:
                    raise _InvalidLine  # all accounts pay the same cost
                replayed.cost = cost

    def _add_failure(self, fields: list[str], _: State | None) -> None:
        """Add a run that failed."""
        name = json.loads(fields[5])["by"]
        self.totals.failures[name] = failed(self.totals.failures.get(name, ()), int(fields[2]))

    def _add_forfeits(self, fields: list[str]) -> None:
        """Add forfeited amounts, and remove those that pay for a retry."""
        release = json.loads(fields[5])["release"]
        for n in range(6, len(fields), 5):
            if fields[n + 2] == "f":
                where = fields[n], int(fields[n + 1]), release
                amount = Amount(int(fields[n + 3]), int(fields[n + 4]))
                sign = 1
                if amount.rho < 0 or amount.delta < 0:
                    amount = -amount
                    sign = -1
                amounts = self.totals.forfeits.setdefault(where, Counter())
                amounts[amount] += sign
                if not amounts[amount]:
                    del amounts[amount]
                if not amounts:
                    del self.totals.forfeits[where]

    def _add_action(self, fields: list[str], _: State | None) -> None:
        """Add an administrative action, a transfer, or a bucket that opens."""
        kind = fields[3]
        detail = json.loads(fields[5])
        totals = self.totals
        if isinstance(detail.get("action"), dict):
            action = detail["action"]["id"]
            if action in totals.actions:
                raise _InvalidLine
            totals.actions[action] = detail["action"]["sha256"]
        if isinstance(detail.get("record"), dict):
            record = detail["record"]
            totals.records_version += 1
            totals.records.pop((record["kind"], record["name"]), None)
            if record["sha256"] is not None:
                totals.records[record["kind"], record["name"]] = record["sha256"]
        if kind in MOVE_KINDS:
            totals.transfers.read(kind, int(fields[2]), detail)
        if kind == "prune":
            totals.base = detail["base"]
        if kind == "lift":
            totals.failures.pop(detail["account"], None)
        if kind in ACCOUNT_KINDS:
            _apply_settings(totals.accounts, self.closed_buckets[detail["account"]["id"]], kind, int(fields[2]), detail)


def replay(chains: Iterable[tuple[int, Iterable[Line]]], reader: LedgerReader | None = None) -> LedgerTotals:
    """Add up all lines of all chains.

    Args:
        chains: number and lines of each chain.
        reader: a reader after all earlier lines; None if the chains begin with their first lines.

    Raises:
        LedgerBroken: a line was changed, moved, removed or added. Missing lines at the end are detected by checkpoints,
            and by comparison with the balances.
    """
    reader = reader or LedgerReader()
    for chain, lines in chains:
        reader.read(chain, lines)
    parts: dict[tuple[str, int], list[Amount]] = defaultdict(lambda: [Amount()] * 4)
    for (account, bucket, part), (rho, delta) in reader.sums.items():
        if rho < 0 or delta < 0:
            raise LedgerBroken(f"the balance of account {account!r} is negative")
        parts[account, int(bucket)][PARTS.index(part)] = Amount(rho, delta)
    totals = reader.totals
    if any(account not in totals.accounts for account, _ in parts):
        raise LedgerBroken("an account was charged that was never created")
    if any(times < 0 for amounts in totals.forfeits.values() for times in amounts.values()):
        raise LedgerBroken("retries were paid with more than was forfeited")
    totals.tallies = {where: Tally(*amounts) for where, amounts in parts.items() if any(amounts)}
    totals.heads = tuple(head for _, head in sorted(reader.heads.items()) if head.seq)
    return totals


def check_holdings(store: str, holdings: Iterable[Holding], transfers: StoreTransfers) -> None:
    """Raise `LedgerBroken` unless a store's shares equal the sums of its ledger's transfers."""
    outgoing = {}
    incoming = {}
    for holding in holdings:
        account = holding.account
        limit = NOTHING
        for peer, out in holding.outgoing.items():
            outgoing[account.id, peer] = Outgoing(out.number, out.given, out.pending, out.sent_us)
            limit -= out.given
        for peer, into in holding.incoming.items():
            incoming[account.id, peer] = into
            limit += into.received
        if account.share is not None and account.share.home == store:
            limit += holding.total
        if (account.share is not None or limit) and limit != holding.limit:
            raise LedgerBroken(f"the share of account {account.id!r} is not what its transfers add up to")
    if outgoing != transfers.outgoing or incoming != transfers.incoming:
        raise LedgerBroken("a transfer of a share is not as the ledger says")


# ------------------------------------------------------------------------------------------------------------- the base

_CHUNK_LINES = 1_000
"""The number of lines in a chunk."""


def chunks_of(reader: LedgerReader) -> Iterator[str]:
    """Serialize *reader* as a base; yield its chunks."""
    rows = map(json.dumps, _base_rows(reader))
    while chunk := "\n".join(itertools.islice(rows, _CHUNK_LINES)):
        yield chunk


def digest_of(chunks: Iterable[str]) -> str | None:
    """Return the SHA-256 of a base in hexadecimal; None if there is no base."""
    has_chunks = False
    digest = hashlib.sha256()
    for chunk in chunks:
        has_chunks = True
        digest.update(f"{chunk}\n".encode())
    return digest.hexdigest() if has_chunks else None


def reader_of(chunks: Iterable[str]) -> LedgerReader:
    """Parse a reader that `chunks_of` serialized, or raise `LedgerBroken`."""
    reader = LedgerReader()
    try:
        for chunk in chunks:
            for line in chunk.split("\n"):
                _read_base_row(reader, json.loads(line))
    except (ValueError, KeyError, TypeError):
        raise LedgerBroken("the base of removed lines cannot be read") from None
    return reader


def _base_rows(reader: LedgerReader) -> Iterator[list[Any]]:  # noqa: C901 - a loop for each kind
    """Yield the state of a reader as rows of JSON, in an order that depends on the state alone."""
    totals = reader.totals
    for _, head in sorted(reader.heads.items()):
        yield ["head", head.chain, head.seq, head.hash.hex()]
    for name, account in sorted(totals.accounts.items()):
        yield ["account", name, account.settings, account.bucket, account.end_us, account.closed]
        yield ["closed", name, reader.closed_buckets[name]]
    for where, (rho, delta) in sorted(reader.sums.items()):
        if rho or delta:
            yield ["sum", *where, rho, delta]
    for name, state in sorted(totals.open.items()):
        yield ["open", name, state.value]
    for key, release in sorted(totals.releases.items()):
        yield ["release", key, release.result, *_pair(release.cost), sorted(release.by)]
    for owed, amounts in sorted(totals.forfeits.items()):
        yield ["forfeits", *owed, sorted((*_pair(amount), times) for amount, times in amounts.items())]
    for name, times in sorted(totals.failures.items()):
        yield ["failures", name, times]
    for action, digest in sorted(totals.actions.items()):
        yield ["action", action, digest]
    for record, digest in sorted(totals.records.items()):
        yield ["record", *record, digest]
    yield ["records", totals.records_version]
    for share, out in sorted(totals.transfers.outgoing.items()):
        pending = None if out.pending is None else _pair(out.pending)
        yield ["outgoing", *share, out.number, *_pair(out.given), pending, out.sent_us]
    for share, into in sorted(totals.transfers.incoming.items()):
        yield ["incoming", *share, into.number, into.taken, *_pair(into.received)]


def _read_base_row(reader: LedgerReader, row: list[Any]) -> None:  # noqa: C901, PLR0912 - a case for each kind
    """Add a row of `_base_rows` to the state of a reader."""
    totals = reader.totals
    match row:
        case ["head", chain, seq, digest]:
            reader.heads[chain] = Head(chain, seq, bytes.fromhex(digest))
        case ["account", name, settings, bucket, end_us, closed]:
            totals.accounts[name] = ReplayedAccount(settings, bucket, end_us, [(number, end) for number, end in closed])
        case ["closed", name, closed]:
            reader.closed_buckets[name] = [(number, end) for number, end in closed]
        case ["sum", account, bucket, part, rho, delta]:
            reader.sums[account, bucket, part] = [rho, delta]
        case ["open", name, state]:
            totals.open[name] = State(state)
        case ["release", key, result, rho, delta, by]:
            totals.releases[key] = ReplayedRelease(result, Amount(rho, delta), _set_of_accounts(*by))
        case ["forfeits", account, bucket, key, amounts]:
            owed = {Amount(rho, delta): times for rho, delta, times in amounts}
            totals.forfeits[account, bucket, key] = Counter(owed)
        case ["failures", name, times]:
            totals.failures[name] = tuple(times)
        case ["action", action, digest]:
            totals.actions[action] = digest
        case ["record", kind, name, digest]:
            totals.records[kind, name] = digest
        case ["records", version]:
            totals.records_version = version
        case ["outgoing", account, peer, number, rho, delta, pending, sent_us]:
            out = Outgoing(number, Amount(rho, delta), None if pending is None else Amount(*pending), sent_us)
            totals.transfers.outgoing[account, peer] = out
        case ["incoming", account, peer, number, taken, rho, delta]:
            totals.transfers.incoming[account, peer] = Incoming(number, taken, Amount(rho, delta))
        case _:
            raise ValueError(row)


def _pair(amount: Amount) -> tuple[int, int]:
    return amount.rho, amount.delta


# ------------------------------------------------------------------------------------------------------------- the past


@dataclass(frozen=True, slots=True)
class PastRefusals:
    """The effect that an account's limit would have had on past queries.

    Args:
        queries: the number of queries charged to the account.
        refused: the number of them that the limit would have refused.
        first_us: the time of the first of those refusals, or None.
    """

    queries: int
    refused: int
    first_us: int | None


def preview(entries: Iterable[Entry], account: Account, since_us: int) -> PastRefusals:
    """Count the past queries that *account* would have refused, had it always enforced its limit and period.

    Refused queries are charged nothing, as in practice. The limits of its parents and children are ignored.

    Args:
        entries: the ledger, all chains together in the order of time.
        account: the account with the settings to try.
        since_us: only queries from this timestamp on are counted; earlier ones are charged, too.
    """
    limit = Amount.of(account.limit)
    bucket_of: dict[str, int] = {}  # end of the bucket, by reservation
    spent: defaultdict[int, Amount] = defaultdict(lambda: NOTHING)  # by end of the bucket
    refused: set[str] = set()
    queries = 0
    lost = 0
    first = None
    for number, entry in enumerate(entries):
        changes = [tally.used + tally.held + tally.forfeited for name, _, tally in entry.changes if name == account.id]
        query = entry.reservation or f"action {number}"
        if not changes or query in refused:
            continue
        change = sum(changes, start=NOTHING)
        if entry.kind == "reserve":
            queries += entry.time_us >= since_us
            counted = NOTHING
            for end_us, amount in spent.items():
                if end_us == NEVER_US or entry.time_us < end_us or still_counts(account.period, end_us, entry.time_us):
                    counted += amount
            if isinstance(admit([AccountState(account.id, limit, True, 0, counted)], change), Shortfall):
                refused.add(query)
                if entry.time_us >= since_us:
                    lost = lost + 1
                    first = first or entry.time_us
                continue
        spent[bucket_of.setdefault(query, bucket_end(account.period, entry.time_us))] += change
    return PastRefusals(queries, lost, first)


def spent_by_day(entries: Iterable[Entry], since_us: int) -> Mapping[str, Mapping[int, Amount]]:
    """Return the amounts used or forfeited, by account and by day since 1970 UTC."""
    amounts: defaultdict[str, defaultdict[int, Amount]] = defaultdict(lambda: defaultdict(lambda: NOTHING))
    for entry in entries:
        if entry.time_us < since_us:
            continue
        for account, _, tally in entry.changes:
            amounts[account][entry.time_us // DAY_US] += tally.used + tally.forfeited
    return amounts


def days_until(spent: Mapping[int, Amount], limit: Amount, percent: int) -> int | None:
    """Return the days from its first charge until an account had used *percent* of its limit, or None if it has not.

    Args:
        spent: the amounts that it spent, by day.
        percent: percent of the limit, by rho or delta, whichever is reached first.
    """
    total = NOTHING
    days = sorted(day for day, amount in spent.items() if amount != NOTHING)
    for day in days:
        total += spent[day]
        parts = ((total.rho, limit.rho), (total.delta, limit.delta))
        if any(used and 100 * used >= percent * most for used, most in parts):
            return day - days[0]
    return None
