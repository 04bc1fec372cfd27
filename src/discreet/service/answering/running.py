"""Running counts that a service begins and refreshes: maintenance calls `Streams.refresh` (docs/running-counts.md).

    begin      in one transaction: charge the whole price, and store the record of the stream
    refresh    reserve nothing; read; in one transaction: store the release of a period, and the record that lists it

The record and the releases are all that a stream needs beside the key of the service. A refresh that ends before its
transaction changes nothing, so the next one computes the same numbers from the same list. The record is replaced only
if it is as it was read: periods are answered once, in their order, also by several processes.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import partial

import pyarrow as pa
from pydantic import TypeAdapter

from discreet.budget.errors import BudgetRefused
from discreet.budget.ledger import canonical
from discreet.budget.manager import BudgetManager, StoredBudget
from discreet.budget.memory import Hold
from discreet.budget.model import MAX_RECORD_LENGTH, Account, AdminAction, Forever, Refusal
from discreet.budget.stores.store import BudgetStore
from discreet.catalog.engine_pool import scheduled_version
from discreet.catalog.model import Catalog, RunningTable, Schedule
from discreet.engines.sql import quoted
from discreet.errors import DiscreetError, InputError, InvariantViolated, NotFound
from discreet.query.predicates import columns_of
from discreet.query.query import DatasetQuery, Select
from discreet.query.saved import SavedPart, SavedTable
from discreet.query.statement import split_statement
from discreet.release.declaration import GRACE, moment
from discreet.release.periods import LENGTHS
from discreet.release.postprocess import arrow_types
from discreet.release.running import RunningCounter, RunningState, stream_key
from discreet.values import Cost
from discreet.warehouse import Warehouse
from discreet.wire.administration import PaidStream
from discreet.wire.document import decode, encode
from discreet.wire.queries import RunningAbove, RunningSummary, spend_above

RECORD = "running-counts"
"""The kind of the records of streams, by name in lower case."""

MAX_TRIES = 3
"""How often a period is tried; then it stays missed."""

PAUSE = timedelta(minutes=15)
"""The pause after a refresh that failed."""


@dataclass(frozen=True, slots=True)
class StoredStream:
    """The record of a stream.

    Args:
        account: the account that paid for it.
        rho: the price of a run, a fraction.
        delta: the part of the price that may be lost, a fraction.
        epsilon: of the guarantee of the whole stream.
        last: the start of the last period.
        sql: the SELECT of a period, with {} for the constant of its start.
        query: the query in it, as releases answer it.
        state: JSON of the state, without its rows.
        columns: the names of the columns of its table, and their SQL types; none before the first answer.
        releases: the ids of the releases, by the constant of the period, in their order.
        erased: True if an officer said that all rows of some users were erased since the last answer.
        runs: how often the price was charged.
    """

    account: str
    rho: str
    delta: str
    epsilon: float
    last: str
    sql: str
    query: str
    state: str
    columns: tuple[tuple[str, str], ...] = ()
    releases: dict[str, str] = field(default_factory=dict)
    erased: bool = False
    runs: int = 1

    @property
    def cost(self) -> Cost:
        """What the whole stream cost, in all runs."""
        return Cost(self.runs * Fraction(self.rho), self.runs * Fraction(self.delta))

    @property
    def charged(self) -> float:
        """Epsilon of all runs together, with as many times delta."""
        return self.runs * self.epsilon

    @property
    def paid(self) -> str:
        """Who paid what, how often if not once, until when."""
        often = "" if self.runs == 1 else f", {self.runs} times"
        return f"{self.account} paid epsilon {self.epsilon:g} for all periods{often}, until {self.last}"

    @property
    def answered(self) -> str | None:
        """The start of the last answered period."""
        return next(reversed(self.releases)).partition("'")[2].rstrip("'") if self.releases else None

    @property
    def summary(self) -> RunningSummary:
        """What it cost, from when until when, and what it shows; once there is an answer."""
        state = RunningState.of_text(self.state)
        return RunningSummary(
            epsilon=self.charged,
            first=json.loads(state.declared)["first"],
            answered=self.answered or "",
            until=self.last,
            groups_per_user=state.mechanism.groups_per_user,
            kept_share=None if state.corrected is None else state.period(state.last).whole,
            smallest=state.smallest(state.last),
        )

    @property
    def table(self) -> SavedTable:
        """The table of all periods that were answered; its rows are theirs."""
        parts = tuple(
            SavedPart(self.sql.replace("{}", period, 1), "", {self.query: release})
            for period, release in self.releases.items()
        )
        return SavedTable(parts, self.columns, comment=f"Users so far; {self.paid}.")


STREAM: TypeAdapter[StoredStream] = TypeAdapter(StoredStream)
"""Writes records of streams as JSON, and reads them."""


def stored_streams(store: BudgetStore) -> dict[str, StoredStream]:
    """Return all streams that have begun, by name."""
    return {name: STREAM.validate_json(text) for name, text in store.records(RECORD)}


def stored_stream(store: BudgetStore, name: str) -> StoredStream | None:
    """Return a stream by its name, whatever its case; None if it has not begun."""
    text = store.record(RECORD, name.lower())
    return None if text is None else STREAM.validate_json(text)


def charge_again(store: BudgetStore, action: AdminAction) -> list[str]:
    """Charge every stream that goes on once more, whatever the limit of its account, and return their names.

    A store that may be an older copy answers again what was answered since, perhaps from other rows and then with
    independent noise: another run, at the same price (docs/running-counts.md#why-it-holds).
    """
    streams = _going_on(store)
    for name, stream in streams.items():
        store.charge(stream.account, Cost(Fraction(stream.rho), Fraction(stream.delta)), action)
        again = replace(stream, runs=stream.runs + 1)
        store.put_record(RECORD, name, _text_of(again), action, {"stream": name, "runs": again.runs})
    return list(streams)


def streams_above(store: BudgetStore, accounts: Sequence[str]) -> list[RunningAbove]:
    """Return the answered streams that one of *accounts* paid for, by name."""
    if not accounts:
        return []
    return [
        RunningAbove(name=name, account=stream.account, epsilon=stream.charged)
        for name, stream in sorted(stored_streams(store).items())
        if stream.account in accounts and stream.releases
    ]


def ended_with(store: BudgetStore, key: bytes) -> list[str]:
    """Return the names of the streams that would go on, but began with another key of all streams than this one."""
    ended = []
    for name, stream in _going_on(store).items():
        state = json.loads(stream.state)
        if state["key"] != stream_key(key, "key", state["declared"]).hex():
            ended.append(name)
    return ended


def _going_on(store: BudgetStore) -> dict[str, StoredStream]:
    """Return the streams whose last period was not answered, by name."""
    return {name: stream for name, stream in stored_streams(store).items() if stream.answered != stream.last}


def _check_payer(account: Account) -> None:
    """Raise `InputError` unless an account may pay for running counts.

    In a budget that comes back, the price would come back while the counts that it paid for are still published. And
    accounts beside the payer's would read for free what their own parents never paid.
    """
    wrong = (
        "has a parent"
        if account.parent is not None
        else "has a budget that comes back"
        if not isinstance(account.period, Forever)
        else "only observes"
        if not account.enforced
        else "is split over data centres"
        if account.share is not None
        else "is suspended"
        if account.suspended
        else None
    )
    if wrong is not None:
        raise InputError(
            f"running counts are paid by an account without a parent, with one limit for ever; {account.id} {wrong}"
        )


class Streams:
    """The streams that the catalog declares with an account. One thread calls `refresh`.

    Args:
        key: the key of the noise of all streams.

    Attributes:
        problems: why the last try of a stream failed, in a sentence, by its name in lower case.
    """

    def __init__(
        self,
        manager: BudgetManager,
        warehouse: Warehouse,
        key: bytes,
        clock: Callable[[], datetime],
        failed: Callable[[Exception], None],
    ) -> None:
        self._manager = manager
        self._store = manager.store
        self._warehouse = warehouse
        self._key = key
        self._clock = clock
        self._failed = failed
        self._tries = Counter[tuple[str, int]]()  # that failed, by stream and period
        self._paused: dict[str, tuple[RunningTable, datetime]] = {}
        self.problems: dict[str, str] = {}

    def refresh(self) -> None:
        """Begin the streams whose first period is complete, and answer the periods that are; failures are logged."""
        for name, (dataset, declared) in self._warehouse.catalog.streams.items():
            now = self._clock()
            paused, until = self._paused.get(name.lower(), (declared, now))
            if declared.account is None or (declared == paused and now < until):  # another declaration is tried at once
                continue
            try:
                while self._answer_next(name, dataset, declared):
                    pass
                self.problems.pop(name.lower(), None)
            except Exception as error:  # noqa: BLE001 - the thread must go on
                self._failed(error)
                self._paused[name.lower()] = declared, now + PAUSE
                is_known = isinstance(error, InputError | BudgetRefused)
                self.problems[name.lower()] = str(error) if is_known else "the engine or the store failed"

    def listed(self) -> list[PaidStream]:
        """Return all streams that the catalog declares with an account, or that have begun, by name."""
        stored = stored_streams(self._store)
        payers = {
            name.lower(): (declared.account, float(declared.epsilon), _begins(declared))
            for name, (_, declared) in self._warehouse.catalog.streams.items()
            if declared.account is not None
        }
        payers |= {name: (stream.account, stream.charged, None) for name, stream in stored.items()}
        listed = []
        for name, (account, epsilon, begins) in sorted(payers.items()):
            stream = stored.get(name)
            listed.append(
                PaidStream(
                    name=name,
                    account=account,
                    epsilon=epsilon,
                    paid=None if stream is None else spend_above(stream.cost),
                    periods=0 if stream is None else len(stream.releases),
                    until=None if stream is None else stream.last,
                    begins=begins,
                    problem=self.problems.get(name),
                )
            )
        return listed

    def allow_erased(self, name: str, action: AdminAction) -> None:
        """Let the next answer be of rows from which all rows of some users were erased, and nothing else changed.

        Raises:
            NotFound: no stream of this name has begun.
        """

        def allowed(text: str | None) -> str:
            if text is None:
                raise NotFound(f"no running counts {name[:300]!r} have begun")
            return _text_of(replace(STREAM.validate_json(text), erased=True))

        self._store.change_record(RECORD, name.lower(), allowed, action, {"stream": name, "erased": True})
        self._paused.pop(name.lower(), None)

    def _answer_next(self, name: str, dataset: str, declared: RunningTable) -> bool:
        """Answer the period after the last answered one; return False if it is not complete, or another process does.

        Raises:
            InputError: the stream cannot begin, or rows have changed; nothing was charged.
            BudgetRefused: its account cannot pay the price.
            DiscreetError: the engine or the store failed; the period can be tried again.
        """
        counter = self._warehouse.running_counter(name, self._key)
        complete = self._complete(counter, dataset)
        if not complete:
            return False
        account = self._store.account(declared.account or "")
        _check_payer(account)
        stream = stored_stream(self._store, name)
        if stream is None:
            stream = self._begin(name, dataset, declared, counter, account)
        if stream.account != account.id:
            raise InputError(f"the stream of {name} was begun by {stream.account}, not {account.id}")
        state = counter.state_of(stream.state, pa.table({}), name)
        state = replace(state, rows=self._rows(counter, stream, state))
        number = state.last + 1
        while self._tries[name, number] == MAX_TRIES:
            number += 1
        if number > complete:
            return False
        try:
            return self._answer(name, stream, counter, state, number)
        except Exception:
            self._tries[name, number] += 1
            raise

    def _complete(self, counter: RunningCounter, dataset: str) -> int:
        """Return the number of the last period that is complete, and whose rows the data has."""
        now = self._clock().astimezone(UTC)
        schedule = self._warehouse.catalog.datasets[dataset].data_version
        if isinstance(schedule, Schedule):
            now = min(now, datetime.fromisoformat(scheduled_version(schedule, now)) + GRACE)
        return counter.declaration.complete(now.astimezone(UTC).replace(tzinfo=None))

    def _begin(
        self, name: str, dataset: str, declared: RunningTable, counter: RunningCounter, account: Account
    ) -> StoredStream:
        """Charge the price of a stream, and store its record; no row is read."""
        state, cost = counter.begin_state()
        declaration = counter.declaration
        user = self._warehouse.catalog.datasets[dataset].user
        period, *names, users = counter.columns
        items = [quoted(item) for item in declared.items]
        shown = [f"{item} AS {quoted(shown)}" for item, shown in zip(items, names, strict=True)]
        where = "" if declared.where is None else f" WHERE {declared.where}"
        sql = (
            f"SELECT {{}} AS {period}, {', '.join(shown)}, COUNT(DISTINCT {quoted(user)}) AS {users} "  # noqa: S608
            f"FROM {quoted(dataset)}{where} GROUP BY {', '.join(items)}"
        )
        select, query = _query_in(sql, self._warehouse.catalog)
        question = DatasetQuery(select, dataset, self._warehouse.catalog.datasets[dataset])
        self._warehouse.plan(question, shared=True)  # raises unless the catalog permits its columns in such a query
        stream = StoredStream(
            account.id,
            str(cost.rho),
            str(cost.delta),
            declaration.epsilon,
            declaration.name(declaration.periods),
            sql,
            query,
            counter.text_of(state),
        )
        reason = f"running counts {name}, until {stream.last}"

        def work(store: BudgetStore) -> None:
            store.charge(account.id, cost, AdminAction(account.id, reason))
            balance = store.balance(account.id)
            _check_payer(balance.account)  # the charge has locked it until the record is written
            if not balance.spent.within(balance.account.limit):
                raise BudgetRefused(Refusal(account.id, cost, balance.remaining, balance.resets_at_us))
            self._put(store, name, None, stream, reason)

        self._store.together(work)
        return stream

    def _answer(
        self, name: str, stream: StoredStream, counter: RunningCounter, state: RunningState, number: int
    ) -> bool:
        """Answer a period, and store its release with the record that lists it; False if another process does."""
        key = counter.period_key(state, number)
        select, _ = _query_in(stream.sql, self._warehouse.catalog)
        question = select.to_dict()
        described = canonical(question | {"where": sorted(columns_of(select.where)) if select.where else []})
        budget = StoredBudget(self._store, partial(self._manager.reserve, stream.account, key, question=described))
        hold = budget.reserve(Cost())
        if not isinstance(hold, Hold):
            return False
        try:
            budget.start(hold)
        except BaseException:
            with contextlib.suppress(DiscreetError):
                budget.void(hold)
            raise
        try:
            after = counter.answer(state, number, erased=stream.erased)
            release = counter.release(after, number)
            result = encode(release, id=key.hex(), dataset=select.dataset, question=question, data_version=None)
            period = counter.declaration.value(number)
            literal = f"{'TIMESTAMP' if isinstance(period, datetime) else 'DATE'} '{period}'"
            answered = replace(
                stream,
                state=counter.text_of(after),
                columns=tuple(arrow_types({name: after.rows.slice(0, 0)})[name].items()),
                releases={**stream.releases, literal: key.hex()},
                erased=False,
            )

            def work(store: BudgetStore) -> None:
                store.settle(hold.id, Cost(), result)
                self._put(store, name, stream, answered, f"running counts {name}, {counter.declaration.name(number)}")

            self._store.together(work)
        except BaseException:
            with contextlib.suppress(DiscreetError):
                budget.forfeit(hold)  # no amount is held; no effect if the release was stored despite the error
            raise
        return True

    def _rows(self, counter: RunningCounter, stream: StoredStream, state: RunningState) -> pa.Table:
        """Return the rows of the last answered period, which hold the whole list."""
        if not stream.releases:
            return state.rows
        stored = self._store.release(bytes.fromhex(list(stream.releases.values())[-1]))
        if stored is None:
            raise InputError("the last answer of the stream is lost, so it has ended; another one has its own price")
        release = decode(stored.result)
        return counter.rows(state.last, release.labels, release.counts)

    def _put(
        self, store: BudgetStore, name: str, before: StoredStream | None, after: StoredStream, reason: str
    ) -> None:
        """Write the record of a stream if it is still as it was."""

        def replaced(text: str | None) -> str:
            if (None if text is None else STREAM.validate_json(text)) != before:
                raise InputError(f"another process refreshed the stream of {name} at the same time")
            written = _text_of(after)
            if len(written) > MAX_RECORD_LENGTH:
                raise InputError(
                    f"the list of the stream of {name} has outgrown its record of {MAX_RECORD_LENGTH:,} characters, so "
                    "the stream has ended; one with groups_per_user, or with a file, has room for more"
                )
            return written

        shown = {"stream": name, "periods": len(after.releases)}
        store.change_record(RECORD, name.lower(), replaced, AdminAction(after.account, reason), shown)


def _begins(declared: RunningTable) -> str | None:
    """Return when the first period is complete, in UTC; None if the catalog names no start of one."""
    with contextlib.suppress(InputError):
        return f"{moment(declared.first, 'the first period') + LENGTHS[declared.each] + GRACE:%Y-%m-%d %H:%M}"
    return None


def _text_of(stream: StoredStream) -> str:
    return canonical(STREAM.dump_python(stream, mode="json"))


def _query_in(sql: str, catalog: Catalog) -> tuple[Select, str]:
    """Return the query in the SELECT of a period, as it is asked and as releases answer it."""
    (leaf,) = split_statement(sql.replace("{}", "NULL", 1), catalog).leaves
    if leaf.select is None:
        raise InvariantViolated("a stream counts users")
    return leaf.select, leaf.sql
