"""The ledger: lines that are only ever added, each hashed together with the one before. Pure.

A line's body is text, fields between tabs, in one form only:

    chain  seq  time_us  kind  reservation or -  detail  {account  bucket  part  rho  delta}*

The detail is canonical JSON; then come the changes of the accounts' buckets, of a part each: u(sed), h(eld),
f(orfeited), r(efunded). All balances are sums of these. hash = SHA-256(hash of the line before + body), where the line
before the first is the chain's number with `GENESIS`. Editing, removing, moving or adding a line breaks the chain
behind it; whoever rewrites everything behind it is found by the witness (`discreet.budget.witness`).

A store may keep several chains, so that writers need not wait for each other: the lines of a reservation, and those
that make or alter an account or open its buckets, are in the chain of the account. Sums do not depend on their order.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from discreet.budget.amount import Amount, Tally
from discreet.budget.errors import LedgerBroken
from discreet.budget.periods import counts
from discreet.budget.settings import account_of, canonical
from discreet.budget.states import TERMINAL, TRANSITIONS, Event, State

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

GENESIS = b"discreet ledger 1 "

ACCOUNT_KINDS = frozenset({"create", "alter", "refresh"})
"""Their detail says how an account's buckets go on: {"account": settings, "bucket": n, "end_us": ...}."""

KINDS = ACCOUNT_KINDS | {"reserve", "replay", "refuse", "charge", "refund", "clock", "note"} | {e.value for e in Event}

_EVENTS = {event.value: event for event in Event}
_PARTS = "uhfr"


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the ledger.

    Args:
        chain: number of its chain.
        seq: its place in it, from 1.
        body: see above.
        hash: 32 bytes.
    """

    chain: int
    seq: int
    body: str
    hash: bytes


@dataclass(frozen=True, slots=True)
class Head:
    """The end of a chain: its number, the place and the hash of its last line."""

    chain: int
    seq: int
    hash: bytes

    @classmethod
    def empty(cls, chain: int = 0) -> Head:
        """Of a chain without lines."""
        return cls(chain, 0, hashlib.sha256(GENESIS + str(chain).encode()).digest())


@dataclass(frozen=True, slots=True)
class Entry:
    """What a line says.

    Args:
        time_us: of the database.
        kind: one of `KINDS`.
        reservation: its name, or None.
        detail: what else there is to say; never a secret.
        changes: account, number of the bucket, and what changed in it.
    """

    time_us: int
    kind: str
    reservation: str | None = None
    detail: str = "{}"
    changes: Sequence[tuple[str, int, Tally]] = ()


def next_line(head: Head, entry: Entry) -> Line:
    """*entry* as the line after *head*."""
    fields = [
        str(head.chain),
        str(head.seq + 1),
        str(entry.time_us),
        entry.kind,
        entry.reservation or "-",
        entry.detail,
    ]
    for account, bucket, change in entry.changes:
        parts = (change.used, change.held, change.forfeited, change.refunded)
        for part, amount in zip(_PARTS, parts, strict=True):
            if amount:
                fields += (account, str(bucket), part, str(amount.rho), str(amount.delta))
    body = "\t".join(fields)
    return Line(head.chain, head.seq + 1, body, hashlib.sha256(head.hash + body.encode()).digest())


def head_of(line: Line) -> Head:
    """The head that *line* makes."""
    return Head(line.chain, line.seq, line.hash)


def entry_of(line: Line) -> Entry:
    """What *line* says.

    Raises:
        LedgerBroken: it is no line of ours.
    """
    try:
        _, _, time, kind, reservation, detail, *rest = line.body.split("\t")
        tallies: dict[tuple[str, int], Tally] = {}
        for n in range(0, len(rest), 5):
            account, bucket, part, rho, delta = rest[n : n + 5]
            parts = [Amount()] * 4
            parts[_PARTS.index(part)] = Amount(int(rho), int(delta))
            where = account, int(bucket)
            tallies[where] = tallies.get(where, Tally()) + Tally(*parts)
        changes = tuple((account, bucket, tally) for (account, bucket), tally in tallies.items())
        return Entry(int(time), kind, None if reservation == "-" else reservation, detail, changes)
    except ValueError:
        raise LedgerBroken("a line cannot be read", line.chain, line.seq) from None


@dataclass(slots=True)
class Course:
    """How an account's buckets went, by the ledger.

    Args:
        settings: its settings as text, as they are now.
        bucket: number of the open one.
        end_us: when it ends.
        closed: number and end of those that were closed and still count.
    """

    settings: str
    bucket: int
    end_us: int
    closed: list[tuple[int, int]] = field(default_factory=list)

    @property
    def counting(self) -> list[int]:
        """Numbers of all buckets that count, oldest first."""
        return [number for number, _ in self.closed] + [self.bucket]


@dataclass(slots=True)
class Verified:
    """What the ledger alone says.

    Args:
        heads: of the chains, by number.
        tallies: of each bucket of each account that was ever changed.
        courses: of the accounts, by name.
        running: states of the reservations that have not ended.
        lines: how many there are.
    """

    heads: tuple[Head, ...]
    tallies: dict[tuple[str, int], Tally]
    courses: dict[str, Course]
    running: dict[str, State]
    lines: int

    def in_force(self, account: str) -> Tally:
        """The sum over the buckets of an account that count."""
        total = Tally()
        for bucket in self.courses[account].counting:
            total += self.tallies.get((account, bucket), Tally())
        return total


class _Reader:
    """Sums up lines. The loop in `read` is all that happens ten million times, so it is written for speed."""

    def __init__(self) -> None:
        self.sums: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0])
        self.courses: dict[str, Course] = {}
        self.every_closed: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self.states: dict[str, State] = {}
        self.lines = 0

    def read(self, head: Head, lines: Iterable[Line]) -> Head:
        """The head after *lines*, which follow *head*."""
        sha256, sums = hashlib.sha256, self.sums
        chain, seq, last = head.chain, head.seq, head.hash
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
                kind, name = fields[3], fields[4]
                if kind not in KINDS or (name != "-" and not self._follows(kind, name)):
                    raise LedgerBroken("something happens that cannot happen", chain, seq)
                for n in range(6, len(fields), 5):
                    account, bucket, part, rho, delta = fields[n : n + 5]
                    sum_ = sums[account, bucket, part]
                    sum_[0] += int(rho)
                    sum_[1] += int(delta)
                if kind in ACCOUNT_KINDS:
                    self._open(kind, int(fields[2]), json.loads(fields[5]))
            except (ValueError, KeyError, IndexError):
                raise LedgerBroken("a line cannot be read", chain, seq) from None
        self.lines += seq - head.seq
        return Head(chain, seq, last)

    def _follows(self, kind: str, name: str) -> bool:
        """False if a reservation cannot do this now."""
        if kind == "reserve":
            fresh = name not in self.states
            self.states[name] = State.HELD
            return fresh
        event = _EVENTS.get(kind)
        if event is None:
            return True
        after = TRANSITIONS.get((self.states.get(name, State.VOID), event))
        if after in TERMINAL:
            del self.states[name]
        elif after is not None:
            self.states[name] = after
        return after is not None

    def _open(self, kind: str, time_us: int, detail: dict[str, Any]) -> None:
        """A bucket opens, or settings change."""
        settings = canonical(detail["account"])
        account = account_of(settings)
        bucket, end_us = int(detail["bucket"]), int(detail["end_us"])
        before = self.courses.get(account.id)
        if (before is None) != (kind == "create"):
            raise ValueError
        closed = self.every_closed[account.id]
        if before is not None and bucket != before.bucket:
            if bucket != before.bucket + 1:
                raise ValueError
            closed.append((before.bucket, min(before.end_us, time_us + 1)))
        elif before is not None and end_us != before.end_us:
            raise ValueError
        if before is not None and bucket == before.bucket:
            still = before.closed
        else:
            still = [(number, end) for number, end in closed if counts(account.period, end, time_us)]
        self.courses[account.id] = Course(settings, bucket, end_us, still)


def verify(chains: Iterable[tuple[int, Iterable[Line]]]) -> Verified:
    """Read all lines of all chains and sum them up.

    Args:
        chains: number and lines of each, from its first line.

    Raises:
        LedgerBroken: a line was changed, moved, removed or added. That lines are missing at the end is for the witness
            to tell, and for the balances.
    """
    reader = _Reader()
    heads = [reader.read(Head.empty(chain), lines) for chain, lines in chains]
    parts: dict[tuple[str, int], list[Amount]] = defaultdict(lambda: [Amount()] * 4)
    for (account, bucket, part), (rho, delta) in reader.sums.items():
        if rho < 0 or delta < 0:
            raise LedgerBroken(f"account {account!r} holds less than nothing")
        parts[account, int(bucket)][_PARTS.index(part)] = Amount(rho, delta)
    if any(account not in reader.courses for account, _ in parts):
        raise LedgerBroken("an account was charged that was never made")
    tallies = {where: Tally(*amounts) for where, amounts in parts.items() if any(amounts)}
    kept = tuple(head for head in heads if head.seq)
    return Verified(kept, tallies, reader.courses, reader.states, reader.lines)
