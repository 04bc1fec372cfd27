"""Workers that read statements and compute rows, each for one request; see `discreet.service.answering.worker`."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

import pyarrow as pa
from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict

from discreet.catalog.model import Catalog
from discreet.errors import InputError, NotFound, SQLError, WhereError
from discreet.query.output import Mark
from discreet.query.parse_tree import check_size
from discreet.query.saved import TABLE, SavedTable
from discreet.query.statement import SCHEMAS, Statement
from discreet.release.postprocess import MAX_ROWS
from discreet.service.answering.trino.commands import COMMAND, Command
from discreet.service.answering.trino.dialect import TrinoSession
from discreet.service.answering.trino.errors import KINDS, TrinoError
from discreet.service.answering.worker import (
    MAX_FRAMES,
    MAX_REASON_LENGTH,
    MAX_RESULT_BYTES,
    MAX_SECONDS,
    RESPONSE,
    RowsForm,
    decode_statement,
    outline_of,
)
from discreet.service.problems import ClientDisconnected, StatementFailed, StatementsUnavailable, TooManyRequests
from discreet.values import Cost
from discreet.wire.queries import StatementQuery

Argument = TypeVar("Argument")
Decoded = TypeVar("Decoded")
Step = TypeVar("Step")

MAX_WAIT_SECONDS = 10.0
"""How long a statement waits for a worker before anything is paid; a paid one waits until there is one."""

QUICK_SECONDS = 0.1
"""CPU seconds after which a step of a statement is slow: it begins again, at the lowest priority, in one of the slots
that slow ones may have, which are half of all."""

MAX_QUICK_SECONDS = 0.5
"""CPU seconds of workers that an account may use within about `FORGOTTEN_SECONDS`; beyond it, all its statements count
as slow. About twenty usual statements."""

FORGOTTEN_SECONDS = 15.0
"""Seconds after which `MAX_QUICK_SECONDS` that an account used no longer count."""

MAX_ACCOUNTS = 10_000
"""Accounts whose use of workers is known; the one that used them longest ago is forgotten first."""

_COLUMNS: TypeAdapter[list[tuple[str, str]]] = TypeAdapter(list[tuple[str, str]])
_TICK_SECONDS = 0.05
_PROCESS_CLOCK = 2  # CPUCLOCK_SCHED: clock_getcpuclockid(3), which Python lacks
_MAX_RESPONSE_BYTES = MAX_RESULT_BYTES + 2**20  # with the queries
_ENDED = "the statement cannot be computed: its process ended early, most likely because it takes too much memory"
_SLOW = f"the statement takes more than {MAX_SECONDS:g} seconds to {{}}"
_READ = "read"
_COMPUTE = "compute from its answers"
_LOADER = "import sys; sys.path[:] = {path!r}; from discreet.service.answering.worker import main; main()"
_ENVIRONMENT = {
    # One arena of malloc and none of Arrow's: what they reserve ahead would count as used address space.
    "MALLOC_ARENA_MAX": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "OPENBLAS_NUM_THREADS": "1",
}


@dataclass(frozen=True, slots=True)
class WrittenRows:
    """The rows of a statement, as they are sent.

    Args:
        content: the rows and queries in the form that was asked for.
        rows: the number of rows, with those that were left out.
        queries: the queries that the rows were computed from.
        charged: the total charge of the queries.
    """

    content: bytes
    rows: int
    queries: tuple[StatementQuery, ...] = ()
    charged: Cost = field(default_factory=Cost)


class StatementPool:
    """Reads statements and computes their rows in processes of their own. Usable from several threads.

    Args:
        most: statements that are read or computed at once; half of them for one account.
        clock: returns monotonic seconds.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max = most
        self._share = max(most // 2, 1)
        self._clock = clock
        self._used: dict[str, tuple[float, float]] = {}  # by account: CPU seconds of workers at a time, and that time
        self._taken: Counter[tuple[str, bool]] = Counter()  # slots by account and by whether they are for slow steps
        self._waiting: dict[int, tuple[str, bool]] = {}  # the same, by their number in the order of arrival
        self._numbers = itertools.count()
        self._free = threading.Condition()  # guards the slots
        self._lock = threading.Lock()  # guards what follows
        self._parent: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._started: deque[socket.socket] = deque()
        self._closed = False
        with self._lock:
            self._start()

    def read(
        self,
        account: str,
        text: str,
        session: TrinoSession,
        prepared: Mapping[str, str],
        catalog: Catalog,
        disconnected: Callable[[], bool] = lambda: False,
    ) -> Command:
        """Return what a statement of a Trino client asks for; see `discreet.service.answering.trino.commands.read`.

        Raises:
            TrinoError: the statement is not supported, or names something that does not exist.
            SQLError: it is too long.
            InputError, TooManyRequests, ClientDisconnected, StatementsUnavailable, StatementFailed: as `check`.
        """
        if text.strip():
            check_size(text)
        job: dict[str, Any] = {"kind": "read", "text": text, "prepared": dict(prepared)}
        job |= {"schema": session.schema, "user": session.user, "now": session.now.timestamp()}
        job |= {"catalog": outline_of(catalog)}
        return self._decoded(account, job, disconnected, _READ, COMMAND.validate_json)

    def split(
        self,
        account: str,
        text: str,
        catalog: Catalog | None,
        schemas: Collection[str] = SCHEMAS,
        *,
        intervals: bool = False,
        today: str | None = None,
        saved: Mapping[str, SavedTable] | None = None,
        disconnected: Callable[[], bool] = lambda: False,
    ) -> Statement:
        """Return the queries of a statement; see `discreet.query.statement.split_statement`.

        Raises:
            SQLError, WhereError: part of the statement is not allowed.
            NotFound: there is no such dataset.
            InputError: reading takes too much memory or time.
            TooManyRequests, ClientDisconnected, StatementsUnavailable, StatementFailed: as `check`.
        """
        check_size(text)
        outline = None if catalog is None else outline_of(catalog)
        job: dict[str, Any] = {"kind": "split", "text": text, "catalog": outline, "schemas": sorted(schemas)}
        tables = {name: TABLE.dump_python(table, mode="json") for name, table in (saved or {}).items()}
        job |= {"intervals": intervals, "today": today, "saved": tables}
        return self._decoded(account, job, disconnected, _READ, decode_statement)

    def check(
        self,
        account: str,
        outer: str,
        types: Mapping[str, Mapping[str, str]],
        disconnected: Callable[[], bool] = lambda: False,
    ) -> list[tuple[str, str]]:
        """Return the columns of *outer* over tables with these columns, with their types; see `check_outer`.

        Args:
            account: whose share of the workers is used.
            disconnected: returns True once the client has disconnected; the worker is then killed.

        Raises:
            SQLError: the statement is not valid.
            InputError: checking takes too much memory or time.
            TooManyRequests: no worker is free within `MAX_WAIT_SECONDS`.
            ClientDisconnected: *disconnected* returned True.
            StatementsUnavailable: no worker can be started.
            StatementFailed: the worker met a bug.
        """
        job = {"kind": "check", "outer": outer, "types": {name: dict(columns) for name, columns in types.items()}}
        return self._decoded(account, job, disconnected, _COMPUTE, _COLUMNS.validate_json)

    def compute(
        self,
        account: str,
        outer: str,
        tables: Mapping[str, pa.Table],
        *,
        form: RowsForm,
        queries: str,
        max_rows: int | None = None,
        page_rows: int | None = None,
        made_up: bool = False,
        marks: Sequence[Mark] | None = (),
        disconnected: Callable[[], bool] = lambda: False,
    ) -> WrittenRows:
        """Return the result of *outer* over answers in *form*; see `compute_outer` and `encode_result`.

        Args:
            page_rows: the rows of a page in the form of Trino's protocol.
            made_up: True to add a column made_up that is true in every row.

        Raises:
            InputError: the statement fails on these answers, takes too much memory or time, or its result is too large.
            ClientDisconnected, StatementsUnavailable, StatementFailed: as `check`.
        """
        job: dict[str, Any] = {"kind": "compute", "outer": outer, "form": form, "queries": queries}
        job |= {"max_rows": max_rows, "page_rows": page_rows or MAX_ROWS, "made_up": made_up, "marks": marks}
        return self._run(account, _request(job, tables), disconnected, math.inf, _COMPUTE)

    def close(self) -> None:
        """End all workers."""
        with self._lock:
            self._closed = True
            self._stop()

    def _decoded(
        self,
        account: str,
        job: Mapping[str, Any],
        disconnected: Callable[[], bool],
        step: str,
        decode: Callable[[bytes], Decoded],
    ) -> Decoded:
        """Return the decoded result of a job without answers."""
        content = self._run(account, _request(job, {}), disconnected, MAX_WAIT_SECONDS, step).content
        try:
            return decode(content)
        except ValueError:  # a statement that controls its process can send anything
            raise InputError(_ENDED) from None

    def _run(
        self, account: str, request: bytes, disconnected: Callable[[], bool], patience: float, step: str
    ) -> WrittenRows:
        response = None
        if self._used_now(account) <= MAX_QUICK_SECONDS:
            with contextlib.suppress(_Slow):
                response = self._exchange(account, request, disconnected, patience, step, slow=False)
        if response is None:
            response = self._exchange(account, request, disconnected, patience, step, slow=True)
        computed, rows, _ = RESPONSE.unpack_from(response)
        content = bytes(memoryview(response)[RESPONSE.size :])
        if not computed:
            raise _error(content)
        return WrittenRows(content, rows)

    def _exchange(
        self,
        account: str,
        request: bytes,
        disconnected: Callable[[], bool],
        patience: float,
        step: str,
        *,
        slow: bool,
    ) -> bytearray:
        """Send a request to a worker and return its response; raise `_Slow` if it takes long in a quick slot."""
        with self._slot(account, disconnected, patience, slow=slow), self._worker() as (channel, process):
            limits = _Limits(process, disconnected, step, slow=slow)
            try:
                rest = memoryview(request)
                while rest:
                    rest = rest[limits.wait(channel.send, rest) :]
                response = bytearray()
                size = RESPONSE.size
                while len(response) < size:
                    part = limits.wait(channel.recv, 2**20)
                    response += part
                    if len(response) >= RESPONSE.size:
                        size = RESPONSE.size + RESPONSE.unpack_from(response)[2]
                    if not part or size > _MAX_RESPONSE_BYTES:
                        raise InputError(_ENDED)
                return response
            finally:
                self._use(account, limits.cpu_seconds())

    def _used_now(self, account: str) -> float:
        """Return the CPU seconds that an account has used; what it used is forgotten at an even rate."""
        with self._free:
            seconds, at = self._used.get(account, (0.0, 0.0))
            return max(seconds - (self._clock() - at) * MAX_QUICK_SECONDS / FORGOTTEN_SECONDS, 0.0)

    def _use(self, account: str, seconds: float) -> None:
        """Add CPU seconds to those of an account, up to twice the limit: it soon gets quick slots again."""
        used = min(self._used_now(account) + seconds, 2 * MAX_QUICK_SECONDS)
        with self._free:
            self._used[account] = used, self._clock()
            if len(self._used) > MAX_ACCOUNTS:
                del self._used[min(self._used, key=lambda name: self._used[name][1])]

    @contextlib.contextmanager
    def _slot(self, account: str, disconnected: Callable[[], bool], patience: float, *, slow: bool) -> Iterator[None]:
        """Wait for a slot of *account*, and occupy it until the context ends; see `_next`."""
        place = (account, slow)
        until = time.monotonic() + patience
        number = next(self._numbers)
        with self._free:
            self._waiting[number] = place
            try:
                while self._next() != number:
                    if disconnected():
                        raise ClientDisconnected
                    if time.monotonic() > until:
                        raise TooManyRequests(MAX_SECONDS)
                    self._free.wait(_TICK_SECONDS)
                self._taken[place] += 1
            finally:
                del self._waiting[number]
                self._free.notify_all()
        try:
            yield
        finally:
            with self._free:
                self._taken[place] -= 1
                if not self._taken[place]:
                    del self._taken[place]
                self._free.notify_all()

    def _next(self) -> int | None:
        """Return the number of the step that gets the next slot, or None if none is free for those that wait.

        Quick steps are first, then accounts that occupy the fewest slots, then those that used workers the least, then
        the first that came. Half of the slots are never occupied by slow steps.
        """
        if self._taken.total() >= self._max:
            return None
        full = sum(count for (_, slow), count in self._taken.items() if slow) >= max(self._max // 2, 1)
        able = []
        for number, (account, slow) in self._waiting.items():
            slots = self._taken[account, False] + self._taken[account, True]
            if slots < self._share and not (slow and full):
                able.append((slow, slots, self._used_now(account), number))
        return min(able)[3] if able else None

    @contextlib.contextmanager
    def _worker(self) -> Iterator[tuple[socket.socket, int]]:
        """Yield the connection to an unused worker and its process id; kill it when the context ends."""
        for _ in range(self._max + 2):  # the process that forks, or workers, may have been killed since they started
            with self._lock:
                self._start()  # first, because workers end with the process that forked them
                channel = self._started.popleft() if self._started else None
                control = self._control
                self._start()
            if channel is None:
                continue
            with channel:
                channel.settimeout(30)  # of the first one, whose parent may be importing its libraries
                message = b""
                with contextlib.suppress(OSError):
                    message = channel.recv(8, socket.MSG_WAITALL)
                channel.settimeout(0)
                try:
                    alive = len(message) == 8 and channel.recv(1, socket.MSG_PEEK) != b""
                except BlockingIOError:  # the connection is open, and nothing else was sent
                    alive = True
                except OSError:
                    alive = False
                if not alive:
                    continue
                channel.settimeout(_TICK_SECONDS)
                try:
                    yield channel, int.from_bytes(message, "big")
                    return
                finally:
                    with self._lock, contextlib.suppress(OSError):  # its parent is dead, and so is the worker
                        if control is self._control and control is not None:
                            control.sendall(message)
        raise StatementsUnavailable

    def _start(self) -> None:
        """Start workers until as many are ready as may be used at once; the lock is held."""
        if self._closed:
            return
        if self._parent is None or self._parent.poll() is not None:
            self._stop()
            self._control, theirs = socket.socketpair()
            with theirs:
                try:
                    self._parent = subprocess.Popen(  # noqa: S603 - this interpreter
                        [sys.executable, "-I", "-c", _LOADER.format(path=[path for path in sys.path if path])],
                        env=_ENVIRONMENT,
                        stdin=theirs.fileno(),
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,
                        cwd="/",
                        # Ctrl-C is for the service, which then ends it. In a session of their own Linux would weigh all
                        # workers together like the service, whatever their priority (autogroup of sched(7)).
                        process_group=0,
                    )
                except OSError:
                    return
        while len(self._started) < self._max and self._control is not None:
            ours, theirs = socket.socketpair()
            with theirs:
                try:
                    socket.send_fds(self._control, [bytes(8)], [theirs.fileno()])
                except OSError:
                    ours.close()
                    return
            self._started.append(ours)

    def _stop(self) -> None:
        """End the process that forks, which kills its workers; the lock is held."""
        for channel in self._started:
            channel.close()
        self._started.clear()
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._parent is not None:
            try:
                self._parent.wait(5)
            except subprocess.TimeoutExpired:
                self._parent.kill()
                self._parent.wait()
            self._parent = None


class _Slow(Exception):
    """A step takes too long for a quick slot."""


class _Limits:
    """The limits of one exchange with a worker, which begins now."""

    def __init__(self, process: int, disconnected: Callable[[], bool], name: str, *, slow: bool) -> None:
        self._process = process
        self._disconnected = disconnected
        self._name = name
        self._start = time.monotonic()
        self._slow = slow
        if slow:
            with contextlib.suppress(OSError):  # it has ended
                os.setpriority(os.PRIO_PROCESS, process, 19)

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of the worker; where there is no clock of another process, those since the start."""
        try:
            return time.clock_gettime((~self._process << 3) | _PROCESS_CLOCK)
        except OSError:
            return time.monotonic() - self._start

    def wait(self, step: Callable[[Argument], Step], argument: Argument) -> Step:
        """Repeat *step* until it does not time out, and return its result; raises the errors of `StatementPool`."""
        while True:
            took = time.monotonic() - self._start
            if took > MAX_SECONDS:
                raise InputError(_SLOW.format(self._name))
            if self._disconnected():
                raise ClientDisconnected
            if not self._slow and self.cpu_seconds() > QUICK_SECONDS:
                raise _Slow
            try:
                return step(argument)
            except TimeoutError:
                continue
            except OSError:
                raise InputError(_ENDED) from None


class _Refusal(TypedDict):
    type: Literal["SQLError", "WhereError", "InputError", "NotFound", "TrinoError", "StatementFailed"]
    name: str | None
    reason: Annotated[str, Field(max_length=MAX_REASON_LENGTH)]
    position: Annotated[int, Field(ge=0)] | None


_REFUSAL: TypeAdapter[_Refusal] = TypeAdapter(_Refusal)


_TYPES = re.compile(r"[A-Za-z_]{1,60}(?: from [A-Za-z_]{1,60}){0,9}")
_FRAME = re.compile(r"[a-z][a-z_/]{0,80}\.py:[0-9]{1,6}")
"""What the log takes of a bug: a worker that a statement controls could send text of its answers."""


def _error(content: bytes) -> InputError | TrinoError | StatementFailed:
    """Return the error that a worker sent."""
    error: InputError | TrinoError | StatementFailed = InputError(_ENDED)
    try:
        sent = _REFUSAL.validate_json(content)
    except ValueError:
        return error
    match sent:
        case {"type": "SQLError", "reason": reason, "position": position}:
            error = SQLError(reason, position)
        case {"type": "WhereError", "reason": reason, "position": position}:
            error = WhereError(reason, position)
        case {"type": "NotFound", "reason": reason}:
            error = NotFound(reason)
        case {"type": "InputError", "reason": reason}:
            error = InputError(reason)
        case {"type": "TrinoError", "name": str(name), "reason": reason, "position": position} if name in KINDS:
            error = TrinoError(name, reason, position)
        case {"type": "StatementFailed", "name": str(name), "reason": reason} if _TYPES.fullmatch(name):
            error = StatementFailed(error=name, frames=tuple(filter(_FRAME.fullmatch, reason.split()))[:MAX_FRAMES])
    return error


def _request(job: Mapping[str, Any], tables: Mapping[str, pa.Table]) -> bytes:
    """Return a request, as `discreet.service.answering.worker` describes it."""
    parts = [json.dumps({**job, "tables": list(tables)}).encode()]
    for table in tables.values():
        stream = pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, table.schema) as writer:
            writer.write_table(table)
        parts.append(stream.getvalue().to_pybytes())
    return b"".join(piece for part in parts for piece in (len(part).to_bytes(8, "big"), part))
