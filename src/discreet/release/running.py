"""Running counts of a table, refreshed period by period (docs/running-counts.md).

The state of a stream is its key and one Parquet file: the declaration, and the answers of all periods so far. The list
of items is the union of the answers, so nothing is listed that was not shown. Keys depend on the declaration, which
holds a random id, and on nothing else: not on the version of the software or of the data, nor on the period.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import TypeAdapter

from discreet.accounting.convert import Guarantee
from discreet.budget.memory import Budget
from discreet.engines.base import Engine, RequestQueue, arrow_array
from discreet.errors import InputError, file_error
from discreet.head_request import HeadRequest
from discreet.mechanisms.base import INTERVAL
from discreet.mechanisms.running import CorrectedCounts, RunningCounts
from discreet.noise.bits import MIN_SECRET_BYTES
from discreet.query.query import Query, QueryOptions
from discreet.release.corrected import AnsweredPeriod, CorrectedState, PeriodReader
from discreet.release.declaration import GRACE, RunningDeclaration
from discreet.release.files import write_durably
from discreet.release.keys import derived_key
from discreet.release.result import Release
from discreet.values import Cost, ExactHead, float_above

if sys.platform != "win32":
    import fcntl

FORMAT = "discreet-running-3"
"""Part of every key. Another one ends the streams of earlier versions: their constants or noise are others."""
_STATE = b"discreet-running"
_USERS = "users"
_LEVEL = TypeAdapter(RunningCounts)


def stream_key(key: bytes, use: str, declared: str) -> bytes:
    """Return the key of a stream for one use, from the key of all streams and the JSON of its declaration."""
    return derived_key(key, (FORMAT, use, declared))


@dataclass(frozen=True, repr=False)
class RunningCounter:
    """Computes the answers of a stream, period after period; what was answered so far is kept by its callers.

    Args:
        key: at least 32 random bytes; the same for the whole stream. With it the noise can be removed. None to show
            only what was answered.
        clock: returns the time in UTC, with its zone.
    """

    declaration: RunningDeclaration
    engine: Engine
    queue: RequestQueue
    key: bytes | None
    clock: Callable[[], datetime.datetime]

    def due(self, period: str | datetime.date | None = None) -> int:
        """Return the number of a period that is complete, by default the last one.

        Raises:
            InputError: it is not complete, or not in the stream.
        """
        declared = self.declaration
        complete = declared.complete(self.clock().astimezone(datetime.UTC).replace(tzinfo=None))
        number = max(complete, 1) if period is None else declared.number(period)
        if number > complete:
            end = declared.start(number + 1) + GRACE
            raise InputError(f"{declared.name(number)} is complete at {end.isoformat(' ')} UTC, not before")
        return number

    def begin_state(self) -> tuple[RunningState, Cost]:
        """Return the state of a stream that begins, with the price of all its periods. No row is read.

        Raises:
            InputError: the engine cannot count it, or there is no key.
        """
        mechanism = self.declaration.mechanism()
        self._derived("key", "")  # raises without a key
        self.declaration.check(self.engine)
        fixed = {"id": os.urandom(16).hex()} | self.declaration.to_dict()
        of_level = ("variance", "quantile", "least") if isinstance(mechanism, RunningCounts) else ()
        fixed |= {name: str(getattr(mechanism, name)) for name in (*of_level, "rho", "mass")}
        return RunningState(json.dumps(fixed), [], pa.table({})), mechanism.worst_cost()

    def answer(self, state: RunningState, number: int, *, erased: bool) -> RunningState:
        """Return the state with the answer of a period that is due, and later than all that were answered.

        Args:
            erased: as in `RunningStream.refresh`.

        Raises:
            InputError: rows of the last answered period or of earlier ones have changed.
            EngineError: the engine failed; the period can be tried again.
        """
        mechanism = state.mechanism
        last = state.last
        reader = PeriodReader(
            self.declaration,
            state.answered,
            number,
            lambda request: self._head(state, request),
            lambda use: self._derived(use, state.declared),
        )
        corrected = None
        if isinstance(mechanism, CorrectedCounts):
            before = state.corrected or reader.begin(2 * mechanism.rho, mechanism.mass)
            corrected, period, labels, counts, seal_now = reader.answer(before)
        else:
            earlier = self._labels(state, last) if last else None
            labels, _, counts, _, (seal, seal_now) = reader.count_in_one_level(mechanism, earlier, "counts")
            period = AnsweredPeriod(number, seal, reader.digests)
        if last and not erased and seal_now != state.answered[-1].seal:
            raise InputError(
                f"rows of {self.declaration.name(last)} or before were added, changed or deleted after the answer, and "
                "the same noise on other rows reveals them: nothing was answered; if all rows of some users were "
                "erased and nothing else, allow it with erased=True, or --erased"
            )
        answer = self.rows(number, labels, counts)
        rows = pa.concat_tables([state.rows, answer]) if len(state.rows) else answer
        return RunningState(state.declared, [*state.answered, period], rows, corrected)

    def _head(self, state: RunningState, request: HeadRequest) -> ExactHead:
        with self.queue.slot():
            self.engine.check(request)
            return self.engine.head(request, seed=self._derived("order", state.declared))

    def _request(self, mechanism: RunningCounts | CorrectedCounts, number: int) -> HeadRequest:
        """Return the request for the users so far in period *number*."""
        declared = self.declaration
        return declared.arrived(declared.first, number, mechanism.groups_per_user, mechanism.least)

    def release(self, state: RunningState, number: int) -> Release:
        """Return the release of an answered period."""
        declared = self.declaration
        mechanism = state.mechanism
        labels = self._labels(state, number)
        counts = self._rows(state, number).column(-1).to_numpy()
        level = mechanism if isinstance(mechanism, RunningCounts) else mechanism.published
        since = [1] * len(labels) if state.corrected is None else state.corrected.since(labels)
        errors = level.std_errors(number, since) / state.period(number).whole
        width = np.ceil(INTERVAL * errors).astype(np.int64)
        options = QueryOptions(declared.epsilon, declared.delta)
        return Release(
            labels,
            counts,
            errors,
            np.maximum(counts - width, 0),
            np.maximum(counts + width, 0),
            ordered=True,
            complete=False,
            mechanism=mechanism.name,
            guarantee=Guarantee(
                declared.epsilon, float_above(declared.delta), float_above(mechanism.rho), computational=True
            ),
            charged=Cost(),
            query=Query(self._request(mechanism, number), options),
        )

    def _derived(self, use: str, declared: str) -> bytes:
        """Return the key of this stream for one use.

        Raises:
            InputError: there is no key, or it is short.
        """
        if self.key is None or len(self.key) < MIN_SECRET_BYTES:
            raise InputError(f"the key of running counts has at least {MIN_SECRET_BYTES} bytes")
        return stream_key(self.key, use, declared)

    def rows(self, number: int, labels: pa.Table, counts: Any) -> pa.Table:  # noqa: ANN401 - int64 counts
        """Return the rows of a state for the answer of a period."""
        periods = pa.array([self.declaration.value(number)] * len(labels), self.declaration.type)
        return pa.table([periods, *labels.columns, arrow_array(counts)], names=self.columns)

    def period_key(self, state: RunningState, number: int) -> bytes:
        """Return the key of the release of a period: 32 bytes that differ for other streams and periods."""
        return derived_key(self._derived("period", state.declared), number)

    @property
    def columns(self) -> list[str]:
        """The names of the columns of the rows: the period, the items and the users."""
        period = self.declaration.each
        items = (f"{item}_" if item in {period, _USERS} else item for item in self.declaration.request.items)
        return [period, *items, _USERS]

    def _rows(self, state: RunningState, number: int) -> pa.Table:
        """Return the rows of the answer of a period."""
        if not state.rows.num_columns:
            return state.rows
        import pyarrow.compute as pc

        value = pa.scalar(self.declaration.value(number), self.declaration.type)
        return state.rows.filter(pc.equal(state.rows.column(0), value))

    def _labels(self, state: RunningState, number: int) -> pa.Table:
        """Return the labels of the answer of a period."""
        rows = self._rows(state, number)
        items = list(self.declaration.request.items)
        return rows.select(range(1, len(items) + 1)).rename_columns(items)

    def text_of(self, state: RunningState) -> str:
        """Return a state as JSON, without its rows."""
        key = self._derived("key", state.declared).hex()
        answered = [dataclasses.astuple(period) for period in state.answered]
        corrected = None if state.corrected is None else state.corrected.to_dict()
        values = {
            "format": FORMAT,
            "declared": state.declared,
            "key": key,
            "answered": answered,
            "corrected": corrected,
        }
        return json.dumps(values, default=str)

    def state_of(self, text: str, rows: pa.Table, name: str) -> RunningState:
        """Return the state that was written as JSON.

        Args:
            name: of the stream, for messages.

        Raises:
            InputError: it is no state of this stream, or has another key.
        """
        try:
            state = json.loads(text)
            key = state["key"]
            is_earlier = state.get("format") != FORMAT  # whose standard errors follow from other weights
            declared = json.loads(state["declared"])
            before = {field: declared.get(field) for field in self.declaration.to_dict()}
        except _MALFORMED:
            raise _not_a_state(name) from None
        for field, value in self.declaration.to_dict().items():
            if before[field] != value and field != "table":  # which may be moved
                raise InputError(
                    f"the stream of {name} was declared with {field} = {before[field]!r}, not {value!r}; "
                    "another declaration is another stream, with its own name and price"
                )
        if is_earlier or (self.key is not None and key != self._derived("key", state["declared"]).hex()):
            raise InputError(
                f"the stream of {name} has another key, or an earlier version began it; with new noise it would show "
                "its counts, so begin another one"
            )
        try:
            return replace(RunningState.of_text(text), rows=rows)
        except _MALFORMED:
            raise _not_a_state(name) from None


_MALFORMED = KeyError, TypeError, ValueError, AttributeError, pa.ArrowException
"""What reading a text raises that is not that of a state."""


def _not_a_state(name: str) -> InputError:
    return InputError(f"{name} does not hold the answers of a stream; restore it, or begin another one")


@dataclass(frozen=True, repr=False)
class RunningStream(RunningCounter):
    """Running counts of a table, kept in a file; made by `discreet.Table.running` and `discreet.Warehouse.running`.

    Args:
        answers: the path of the Parquet file of the answers, which is the state of the stream. Others are those of
            `RunningCounter`.
    """

    answers: Path

    @property
    def has_begun(self) -> bool:
        """True if there is a file of answers."""
        return self.answers.exists()

    def begin(self, budget: Budget | None = None) -> Cost:
        """Begin the stream: charge its whole price to *budget*, and write its file. No row is read.

        Raises:
            InputError: it has begun already, or the engine cannot count it; nothing was charged.
            BudgetExceeded: the price does not fit; nothing was written.
        """
        state, cost = self.begin_state()
        port = Budget.of_cost(cost) if budget is None else budget
        with self._locked():
            if self.answers.exists():
                raise InputError(f"the stream of {self.answers.name} has begun already; refresh it")
            hold = port.reserve(cost)
            try:
                self._write(state)
            except BaseException:
                port.void(hold)
                raise
            port.start(hold)
            port.settle(hold, cost, None)
        return cost

    def refresh(self, period: str | datetime.date | None = None, *, erased: bool = False) -> Release:
        """Answer a period, and return its release; one that was answered is returned as it was, without reading.

        Args:
            period: its start, or a moment in it; by default the last complete one.
            erased: True if all rows of some users were erased since the last answer, which changes its counts.

        Raises:
            InputError: it is not complete or not in the stream, a later one was answered, or the file is lost or of
                another stream or key, and nothing was read; or rows of the last answered period or of earlier ones
                have changed. Nothing was written.
            EngineError: the engine failed; the period can be tried again.
        """
        declared = self.declaration
        with self._locked():
            state = self._read()
            if period is not None and declared.number(period) in state.numbers:
                return self.release(state, declared.number(period))
            number = self.due(period)
            if number in state.numbers:
                return self.release(state, number)
            if number < state.last:
                raise InputError(
                    f"periods are answered in their order, and {declared.name(state.last)} was answered, so "
                    f"{declared.name(number)} never will be"
                )
            state = self.answer(state, number, erased=erased)
            self._write(state)
        return self.release(state, number)

    def show(self, period: str | datetime.date | None = None) -> Release:
        """Return the release of an answered period, by default the last one, from the file; nothing is computed.

        Raises:
            InputError: it was not answered, or the file is lost.
        """
        return self.release(*self._answered(period))

    def kept_share(self, period: str | datetime.date | None = None) -> float | None:
        """Return the share of users' pairs with listed items that their bounds kept, from noisy numbers.

        Counts were divided by it. It is None if they are not corrected. Args and errors are those of `show`.
        """
        state, number = self._answered(period)
        return None if state.corrected is None else state.period(number).whole

    def _answered(self, period: str | datetime.date | None) -> tuple[RunningState, int]:
        state = self._read()
        number = state.last if period is None else self.declaration.number(period)
        if number not in state.numbers:
            answered = f"the last is {self.declaration.name(state.last)}" if state.last else "none was"
            raise InputError(f"this period was not answered; {answered}")
        return state, number

    def _read(self) -> RunningState:
        """Return the state of the file.

        Raises:
            InputError: there is none, or it is another stream's.
        """
        try:
            table = pq.read_table(self.answers)
        except FileNotFoundError:
            raise InputError(
                f"there are no answers in {self.answers.name}: begin the stream, with begin() or --begin; if they were "
                "lost, it has ended, and another one has its own price"
            ) from None
        except OSError as error:
            raise file_error(self.answers, "read", error) from None
        except pa.ArrowException:
            table = pa.table({})
        text = (table.schema.metadata or {}).get(_STATE, b"").decode()
        state = self.state_of(text, table.replace_schema_metadata(None), self.answers.name)
        if state.answered and table.column_names != list(self.columns):
            raise _not_a_state(self.answers.name)
        return state

    def _write(self, state: RunningState) -> None:
        table = state.rows.replace_schema_metadata({_STATE: self.text_of(state)})
        write_durably(self.answers, lambda path: pq.write_table(table, path))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold a lock of the folder, so that no two processes answer at once."""
        try:
            folder = os.open(self.answers.resolve().parent, os.O_RDONLY)
        except OSError as error:
            raise file_error(self.answers, "written", error) from None
        try:
            if sys.platform != "win32":  # which locks no folders
                fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)


@dataclass(frozen=True, slots=True)
class RunningState:
    """What the file of a stream holds.

    Args:
        declared: JSON of the declaration, with the id of the stream and the numbers of its mechanism.
        answered: the answered periods, in order.
        rows: the start of the period, the items and users, by period and rank; no columns before the first answer.
            Those of the last answered period are enough to go on.
        corrected: of a stream whose counts are corrected, its list and noisy counts; None before the first answer.
    """

    declared: str
    answered: list[AnsweredPeriod]
    rows: pa.Table
    corrected: CorrectedState | None = None

    @property
    def mechanism(self) -> RunningCounts | CorrectedCounts:
        """The mechanism, with the numbers that were fixed when the stream began."""
        if self.corrected is not None:
            return self.corrected.mechanism
        values = json.loads(self.declared)
        if values["groups_per_user"] is None:
            square = 2 * Fraction(values["rho"])
            mass = Fraction(values["mass"])
            return CorrectedCounts.within(values["periods"], square, mass, has_pilot=values["pilot"] is not None)
        return _LEVEL.validate_python(values)

    @classmethod
    def of_text(cls, text: str) -> RunningState:
        """Return the state of `RunningCounter.text_of`, without its rows; not compared with a declaration or a key."""
        state = json.loads(text)
        corrected = None if state["corrected"] is None else CorrectedState.of_dict(state["corrected"])
        answered = [AnsweredPeriod(*period) for period in state["answered"]]
        return cls(state["declared"], answered, pa.table({}), corrected)

    def smallest(self, number: int) -> int | None:
        """Return about the users from which on an item is shown in an answered period; None if none is."""
        return self.mechanism.smallest(number, self.period(number).whole)

    @property
    def numbers(self) -> list[int]:
        """The numbers of the answered periods."""
        return [period.number for period in self.answered]

    def period(self, number: int) -> AnsweredPeriod:
        """Return an answered period."""
        return self.answered[self.numbers.index(number)]

    @property
    def last(self) -> int:
        """The number of the last answered period, or 0."""
        return max(self.numbers, default=0)
