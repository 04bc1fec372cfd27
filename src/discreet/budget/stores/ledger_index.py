"""An index of the ledger by account and time, for lists of what was asked and changed.

It is derived from the lines, behind which it may lag, and is never read for a budget: `update` reads the lines that
were added since, `rebuild` starts again. An event is all lines of one reservation, or one other line.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from discreet.budget.ledger import Entry, Line, entry_of
from discreet.budget.ledger_replay import spent_by_day
from discreet.budget.model import NOTHING, Amount
from discreet.budget.rules import DAY_US
from discreet.budget.stores import statements
from discreet.budget.stores.store import BudgetStore
from discreet.budget.stores.transaction import (
    LAST,
    Answer,
    StoreConnection,
    Transaction,
    amount_of,
    amount_text,
    reads,
    writes,
)

LINES_AT_ONCE = 2_000
"""Lines that one transaction indexes."""

_OPEN = frozenset({"reserve", "start"})
_LOW_BITS = 36  # sums of the low and of the high part of an amount fit 64 bits


@dataclass(frozen=True, slots=True)
class Description:
    """What the index holds of an event.

    Args:
        account: the account that asked or was changed.
        subject: what an action changed, the same text for all actions on it; None if it is no action.
        question: what was asked, as canonical JSON.
        charged: what the account was charged.
    """

    kind: str
    account: str | None = None
    dataset: str | None = None
    subject: str | None = None
    question: str | None = None
    charged: Amount = NOTHING


@dataclass(frozen=True, slots=True)
class LedgerFilter:
    """Which events are meant: of these kinds, begun in a time, in microseconds since 1970, and so on.

    Args:
        account: of this account and of those below it.
        before: only events before this place, which is the time, the chain and the number of the first line.
    """

    kinds: tuple[str, ...]
    since_us: int = 0
    until_us: int = LAST
    account: str | None = None
    dataset: str | None = None
    subject: str | None = None
    before: tuple[int, int, int] | None = None


@dataclass(frozen=True, slots=True)
class Total:
    """The number of events of an account with one kind and question, and what it was charged for them."""

    account: str | None
    kind: str
    question: str | None
    events: int
    charged: Amount


EventLines = list[tuple["Line", "Entry"]]


class LedgerIndex:
    """The index of a store.

    Args:
        describe: returns the description of an event from its lines.
    """

    def __init__(self, store: BudgetStore, describe: Callable[[EventLines], Description]) -> None:
        self._store = store
        self._describe = describe

    def write(self, work: Callable[[Transaction], Answer], operation: str) -> Answer:
        """Run *work* in a transaction of the store."""
        return self._store.write(work, operation)

    def read(self, work: Callable[[StoreConnection], Answer], operation: str) -> Answer:
        """Run *work* on the committed state of the store."""
        return self._store.read(work, operation)

    def update(self) -> None:
        """Index the lines that were added since."""
        while True:
            indexed = self._indexed()
            complete = True
            for head in self._store.heads():
                after = indexed.get(head.chain, 0)
                if head.seq > after:
                    complete = head.seq - after <= LINES_AT_ONCE and complete
                    self._index(head.chain, after)
            if complete:
                return

    @writes
    def rebuild(self, transaction: Transaction) -> None:
        """Empty the index, so that the next `update` reads the whole ledger."""
        transaction.begin_store()
        transaction.db.write([(statement, ()) for statement in statements.EMPTY_INDEX])

    @reads
    def events(self, db: StoreConnection, filters: LedgerFilter, most: int) -> list[EventLines]:
        """Return the lines of at most *most* events, the latest first."""
        until = (filters.until_us, 0, 0) if filters.before is None else min((filters.until_us, 0, 0), filters.before)
        times = "time_us >= ? AND (time_us, chain, seq) < (?, ?, ?)"
        where, values = _conditions(filters, times, [filters.since_us, *until], ("dataset", "subject"))
        (rows,) = db.query((statements.EVENTS.replace("WHERE TRUE", where), (*values, most)))
        places: defaultdict[int, list[int]] = defaultdict(list)
        for _, chain, numbers in rows:
            places[chain] += map(int, numbers.split(" "))
        lines = {}
        for chain, place in places.items():
            for line in _lines_at(db, chain, place):
                lines[chain, line.seq] = line, entry_of(line)
        events = ([lines.get((chain, int(number))) for number in numbers.split(" ")] for _, chain, numbers in rows)
        return [stored for event in events if (stored := [line for line in event if line is not None])]

    @reads
    def totals(self, db: StoreConnection, filters: LedgerFilter) -> list[Total]:
        """Return the number of events and the charges by account, kind and question.

        Args:
            filters: its times are days in UTC, of which the first and the last count whole; its subject and its place
                are ignored.
        """
        days = [filters.since_us // DAY_US, -(-filters.until_us // DAY_US)]
        where, values = _conditions(filters, "day >= ? AND day < ?", days, ("dataset",))
        (rows,) = db.query((statements.TOTALS.replace("WHERE TRUE", where), values))
        texts = dict(db.query((statements.QUESTIONS, ()))[0])
        return [
            Total(
                account or None, kind, texts.get(question), int(events), Amount(_joined(*sums[:2]), _joined(*sums[2:]))
            )
            for account, kind, question, events, *sums in rows
        ]

    @reads
    def spending(self, db: StoreConnection, first_day: int) -> dict[str, dict[int, Amount]]:
        """Return what accounts used or forfeited, by account and by day since 1970 UTC, from *first_day* on."""
        amounts: defaultdict[str, dict[int, Amount]] = defaultdict(dict)
        for account, day, amount in db.query((statements.SPENDING, (first_day,)))[0]:
            amounts[account][day] = amount_of(amount)
        return amounts

    @reads
    def complete_from_us(self, db: StoreConnection) -> int:
        """Return the time from which on no line was removed; 0 if none was."""
        base, lines = db.query((statements.BASE_BEGIN, ()), (statements.FIRST_LINES, ()))
        return max((int(body.split("\t", 3)[2]) for (body,) in lines), default=0) if base else 0

    # ---------------------------------------------------------------------------------------------- updating

    @reads
    def _indexed(self, db: StoreConnection) -> dict[int, int]:
        return dict(db.query((statements.INDEXED, ()))[0])

    @reads
    def _open_events(self, db: StoreConnection, chain: int) -> dict[str, list[int]]:
        """Return the numbers of the lines of open reservations whose events may go on."""
        rows = db.query((statements.OPEN_EVENTS, (chain,)))[0]
        return {reservation: list(map(int, numbers.split(" "))) for reservation, numbers in rows}

    @reads
    def _lines(self, db: StoreConnection, chain: int, numbers: Sequence[int]) -> list[Line]:
        return _lines_at(db, chain, numbers)

    def _index(self, chain: int, after: int) -> None:
        """Index the next lines of a chain."""
        lines = list(self._store.lines(chain, after, LINES_AT_ONCE))
        groups: defaultdict[str, EventLines] = defaultdict(list)
        entries = [entry_of(line) for line in lines]
        for line, entry in zip(lines, entries, strict=True):
            groups[entry.reservation or f"line {line.seq}"].append((line, entry))
        begun = {name: numbers for name, numbers in self._open_events(chain).items() if name in groups}
        earlier = {line.seq: line for line in self._lines(chain, list(itertools.chain(*begun.values())))}
        for name, before in begun.items():
            groups[name][:0] = [(earlier[seq], entry_of(earlier[seq])) for seq in before if seq in earlier]
        rows = []
        totals: defaultdict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0] * 5)
        questions = {}
        for event in groups.values():
            facts = self._describe(event)
            first, entry = event[0]
            question = None
            if facts.question is not None:
                question = int.from_bytes(hashlib.sha256(facts.question.encode()).digest()[:7])
                questions[question] = facts.question
            reservation = entry.reservation if event[-1][1].kind in _OPEN else None
            numbers = " ".join(str(line.seq) for line, _ in event)
            amounts = (*_split(facts.charged.rho), *_split(facts.charged.delta))
            names = facts.kind, facts.account, facts.dataset, facts.subject, reservation, numbers, question
            rows.append((entry.time_us, chain, first.seq, *names, *amounts))
            if reservation is None:
                key = entry.time_us // DAY_US, facts.account or "", facts.dataset or "", facts.kind, question or 0
                totals[key] = [one + more for one, more in zip(totals[key], (1, *amounts), strict=True)]
        sums = [(*key, *values) for key, values in totals.items()]
        self._save(chain, after, lines[-1].seq, rows, sums, questions, spent_by_day(entries, 0))

    @writes
    def _save(
        self,
        transaction: Transaction,
        chain: int,
        after: int,
        last: int,
        rows: Sequence[Sequence[Any]],
        totals: Sequence[Sequence[Any]],
        questions: Mapping[int, str],
        spent: Mapping[str, Mapping[int, Amount]],
    ) -> None:
        """Write rows, unless another process did."""
        transaction.begin_store()
        db = transaction.db
        first_day = min((day for days in spent.values() for day in days), default=0)
        indexed, stored = db.query((statements.INDEXED, ()), (statements.SPENDING, (first_day,)))
        if dict(indexed).get(chain, 0) != after:
            return
        sums = {(account, day): amount_of(amount) for account, day, amount in stored}
        days = [
            (account, day, amount_text(sums.get((account, day), NOTHING) + part))
            for account, by_day in spent.items()
            for day, part in by_day.items()
        ]
        db.write_many(statements.SAVE_EVENT, rows)
        db.write_many(statements.ADD_TOTAL, totals)
        db.write_many(statements.ADD_QUESTION, list(questions.items()))
        db.write_many(statements.SAVE_SPENDING, days)
        db.write_many(statements.SAVE_INDEXED, [(chain, last)])


def _conditions(
    filters: LedgerFilter, times: str, limits: Sequence[int], names: Sequence[str]
) -> tuple[str, list[Any]]:
    conditions = [times, "kind IN {any_text}"]
    values: list[Any] = [*limits, json.dumps(filters.kinds)]
    for name in names:
        if (value := getattr(filters, name)) is not None:
            conditions.append(f"{name} = ?")
            values.append(value)
    if filters.account is not None:
        conditions.append("account IN (SELECT account FROM budget_paths WHERE member = ?)")
        values.append(filters.account)
    return f"WHERE {' AND '.join(conditions)}", values


def _lines_at(db: StoreConnection, chain: int, numbers: Iterable[int]) -> list[Line]:
    return [Line(*row) for row in db.query((statements.LINES_AT, (chain, json.dumps(list(numbers)))))[0]]


def _split(quanta: int) -> tuple[int, int]:
    return quanta >> _LOW_BITS, quanta & (1 << _LOW_BITS) - 1


def _joined(high: int, low: int) -> int:
    return (int(high) << _LOW_BITS) + int(low)
