"""Budgets in a PostgreSQL database that any number of service processes share."""

from __future__ import annotations

import contextlib
import functools
import secrets
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import psycopg
from psycopg import errors
from psycopg.types.numeric import Int8Dumper
from psycopg_pool import ConnectionPool

from discreet.budget.errors import StoreUnavailable
from discreet.budget.ledger import Head
from discreet.budget.rules import GUARD_US
from discreet.budget.stores import statements
from discreet.budget.stores.statements import for_postgres
from discreet.budget.stores.store import BudgetStore, no_step
from discreet.budget.stores.transaction import StoreConnection, Transaction
from discreet.errors import DiscreetError

Answer = TypeVar("Answer")

MAX_CONNECTIONS = 16
"""The most connections of a process; further threads wait for a free one."""

_WAIT_SECONDS = 5.0
_ATTEMPTS = 5
_ROWS_AT_ONCE = 10_000

_CONNECTION: dict[str, Any] = {
    "autocommit": True,
    "prepare_threshold": 0,
    "application_name": "discreet budget",
    "client_encoding": "UTF8",
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "tcp_user_timeout": 10_000,
}

_SETTINGS = {
    "statement_timeout": "10s",
    "idle_in_transaction_session_timeout": "10s",  # the longest wait for the locks of a process that is unreachable
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",  # rows are found by their keys: a plan made while a table is empty
    "enable_hashjoin": "off",  # must not scan it later, when it is large
    "enable_mergejoin": "off",
    "jit": "off",
}

_ON_DISK = (
    "SELECT set_config('synchronous_commit', 'on', false) "
    "WHERE current_setting('synchronous_commit') NOT IN ('on', 'remote_apply')"
)

_RETRIED = (errors.UniqueViolation, errors.DeadlockDetected, errors.SerializationFailure)
"""Errors from a concurrent transaction: this one was rolled back and can be repeated."""

_CONNECTION_LOST = ("08", "57P", "25P03")
"""Prefixes of the error codes after which the server closes the connection."""

_SCHEMA_LOCK = 0x64697363_72656574
"""The key of the advisory lock under which one process at a time creates the tables."""

_SESSION_LOCK = 0x64697363
"""The first key of the advisory locks that live processes hold; the second key is random."""


class PostgresConnection:
    """A `transaction.Connection` to PostgreSQL.

    Args:
        pipeline: the pipeline of a writing transaction; None for reading. Every round trip ends with a Sync: the
            server aborts the transaction of a process that hangs (`idle_in_transaction_session_timeout`), and so
            releases its locks, only if the last message that it received was a Sync.
    """

    serial = False

    def __init__(self, db: psycopg.Connection[Any], pipeline: psycopg.Pipeline | None = None) -> None:
        self._db = db
        self._pipeline = pipeline
        self._begun = False

    def query(self, *queries: tuple[str, Sequence[Any]]) -> list[list[Any]]:
        if self._pipeline is not None and not self._begun:
            self._begun = True
            self._db.execute("BEGIN")
        cursors = [self._db.execute(for_postgres(statement), values) for statement, values in queries]
        if self._pipeline is not None:
            self._pipeline.sync()
        return [cursor.fetchall() for cursor in cursors]

    def stream(self, statement: str) -> Iterator[Any]:
        with self._db.cursor("rows", binary=True) as cursor:
            cursor.itersize = _ROWS_AT_ONCE
            cursor.execute(for_postgres(statement))
            yield from cursor

    def is_damaged(self) -> bool:
        return False  # checksums of its pages and pg_amcheck are for its administrator

    def write(self, writes: Sequence[tuple[str, Sequence[Any]]]) -> None:
        parts = [f"w{n} AS ({for_postgres(statement)})" for n, (statement, _) in enumerate(writes)]
        self._db.execute(f"WITH {', '.join(parts)} SELECT", [value for _, values in writes for value in values])

    def write_many(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        if rows:
            with self._db.cursor() as cursor:
                cursor.executemany(for_postgres(statement), rows)


class PostgresStore(BudgetStore):
    """A `BudgetStore` in a PostgreSQL database.

    A transaction locks the accounts of the path, the claim's account first, and writes and commits in one more round
    trip. Each account has its own chain of the ledger, so that analysts wait for each other only at the accounts that
    they share. Timestamps come from the server's clock.

    While this process is alive, one of its connections holds an advisory lock, so that `recover` in another process
    leaves its reservations alone.

    If the connection breaks, claims and their events are repeated: if they had been committed, nothing changes.

    Args:
        url: libpq connection URI of the database, for a role that may create tables in its first schema. A pooler that
            gives each transaction another session does not work.
        step: called with the name of each step of a transaction, so that fault tests can interrupt there: "locked",
            "decided", "committed".
        guard_us: how far the clock may run ahead of the last time seen.

    Raises:
        StoreUnavailable: the database cannot be reached, or its schema is not that of this program.
    """

    def __init__(self, url: str, step: Callable[[str], None] = no_step, guard_us: int = GUARD_US) -> None:
        super().__init__(guard_us)
        self._step = step
        with _translate_errors(), psycopg.connect(url, **_CONNECTION) as db:
            if db.info.parameter_status("server_encoding") != "UTF8":
                raise StoreUnavailable("the database of the budget store does not keep text as UTF8")
            self._id = _prepare(db)
        self._url = url
        self._session = secrets.randbits(31)
        self._alive: list[psycopg.Connection[Any]] = []
        weakref.finalize(self, _close_all, self._alive)
        self._hold_session()
        self._pool = ConnectionPool(
            url, kwargs=_CONNECTION, configure=self._configure, min_size=1, max_size=MAX_CONNECTIONS, open=True
        )

    @property
    def id(self) -> str:
        return self._id

    def _write(self, work: Callable[[Transaction], Answer]) -> Answer:
        return self._with_connection(functools.partial(self._transact, work))

    def _read(self, work: Callable[[StoreConnection], Answer]) -> Answer:
        return self._with_connection(lambda db, _: work(PostgresConnection(db)))

    def heartbeat(self) -> None:
        self._hold_session()
        super().heartbeat()

    def close(self) -> None:
        self._pool.close()
        _close_all(self._alive)

    def _hold_session(self) -> None:
        """Take the advisory lock of this live process, unless its connection still has it."""
        for connection in self._alive:
            with contextlib.suppress(psycopg.Error):
                connection.execute("SELECT 1")
                return
        _close_all(self._alive)
        with _translate_errors():
            self._alive.append(psycopg.connect(self._url, **_CONNECTION))
            self._alive[0].execute("SELECT pg_advisory_lock(%s, %s)", (_SESSION_LOCK, self._session))

    def _configure(self, db: psycopg.Connection[Any]) -> None:
        """Configure a connection so that commits are durable whatever the server's defaults are."""
        db.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        db.read_only = False
        db.adapters.register_dumper(int, Int8Dumper)  # one type, one prepared statement
        for name, value in (_SETTINGS | {"discreet.session": f"{_SESSION_LOCK} {self._session}"}).items():
            db.execute("SELECT set_config(%s, %s, false)", (name, value))
        db.execute(_ON_DISK)

    def _snapshot(self, work: Callable[[StoreConnection], Answer]) -> Answer:
        def one_state(db: psycopg.Connection[Any], _: threading.Event) -> Answer:
            db.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            try:
                db.execute("SET LOCAL statement_timeout = 0")
                return work(PostgresConnection(db))
            finally:
                _roll_back(db)

        return self._with_connection(one_state)

    def _transact(
        self,
        work: Callable[[Transaction], Answer],
        db: psycopg.Connection[Any],
        unrepeatable: threading.Event,
    ) -> Answer:
        """Run *work* in a transaction and return its result; set *unrepeatable* if a COMMIT must not be repeated."""
        with db.pipeline() as pipeline:
            connection = PostgresConnection(db, pipeline)
            transaction = Transaction(connection, self._seen_us, self._guard_us, self._step)
            try:
                answer = work(transaction)
            except DiscreetError:
                with contextlib.suppress(psycopg.Error):
                    # If nothing was written: a ROLLBACK would discard all prepared statements.
                    db.execute("ROLLBACK" if transaction.flushed else "COMMIT")
                raise
            transaction.flush()
            if not transaction.repeatable:
                pipeline.sync()  # if this fails, nothing was committed, and *work* can be repeated
                unrepeatable.set()
            db.execute("COMMIT")
        self._step("committed")
        self._seen_us = max(self._seen_us, transaction.clock.now_us)
        return answer

    def _with_connection(self, work: Callable[[psycopg.Connection[Any], threading.Event], Answer]) -> Answer:
        """Call *work* with a connection and return its result; retry if the connection is lost or a conflict occurs.

        Args:
            work: takes a connection, and an event that it sets when it must not be repeated any more.

        Raises:
            StoreUnavailable: there is no connection, or the server failed.
            DiscreetError: an error of *work*.
        """
        for left in reversed(range(_ATTEMPTS)):
            unrepeatable = threading.Event()
            with _translate_errors():
                db = self._pool.getconn(_WAIT_SECONDS)
            try:
                return work(db, unrepeatable)
            except psycopg.Error as error:
                lost = db.closed or (error.sqlstate or "08").startswith(_CONNECTION_LOST)
                if lost:
                    db.close()
                else:
                    _roll_back(db)
                again = isinstance(error, _RETRIED) or (lost and not unrepeatable.is_set())
                if not again or not left:
                    raise _unavailable(error) from None
                if lost:
                    self._pool.check()  # after a restart of the server all other connections are lost, too
            except DiscreetError:
                raise
            except BaseException:
                db.close()
                raise
            finally:
                self._pool.putconn(db)
        raise AssertionError  # the last attempt returns or raises


def _prepare(db: psycopg.Connection[Any]) -> str:
    """Create or upgrade the tables of the store, in one transaction, and return the store's id.

    Raises:
        StoreUnavailable: the schema of the store is not that of this program.
    """
    with db.transaction():
        db.execute("SELECT pg_advisory_xact_lock(%s)", (_SCHEMA_LOCK,))
        if db.execute("SELECT to_regclass('budget_meta')").fetchall() == [(None,)]:
            db.execute(for_postgres(statements.CREATE), prepare=False)  # several statements cannot be prepared as one
            db.execute(for_postgres(statements.ADD_META), (statements.VERSION, Head.empty().hash))
        read = "SELECT version, id FROM budget_meta"
        ((version, store),) = db.execute(read).fetchall()
        if version == statements.VERSION - 1:
            db.execute(for_postgres(statements.UPGRADE), prepare=False)
            ((version, store),) = db.execute(read).fetchall()
    if version != statements.VERSION:
        raise StoreUnavailable(statements.other_version(version))
    return str(store)


def _close_all(connections: list[psycopg.Connection[Any]]) -> None:
    while connections:
        connections.pop().close()


def _roll_back(db: psycopg.Connection[Any]) -> None:
    """Roll back; the server does so itself if the connection is lost."""
    with contextlib.suppress(psycopg.Error):
        db.rollback()


@contextlib.contextmanager
def _translate_errors() -> Iterator[None]:
    """Translate PostgreSQL's errors into `StoreUnavailable`."""
    try:
        yield
    except psycopg.Error as error:
        raise _unavailable(error) from None


def _unavailable(error: psycopg.Error) -> StoreUnavailable:
    """Return an error without the server's message, which may hold keys."""
    return StoreUnavailable(
        f"the budget store cannot be reached now ({type(error).__name__}), so nothing was answered and it is not known "
        "what was charged"
    )
