"""Connections to the PostgreSQL database of budgets: what they are set to, and when something is asked again."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg import errors
from psycopg.types.numeric import Int8Dumper
from psycopg_pool import ConnectionPool

from discreet.budget.errors import StoreUnavailable
from discreet.budget.stores.postgres_schema import migrate
from discreet.errors import DiscreetError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Answer = TypeVar("Answer")

CONNECTIONS_MOST = 16
"""Of a process; who needs another one waits."""

_WAIT_SECONDS = 5.0
_ATTEMPTS = 5

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
    "idle_in_transaction_session_timeout": "10s",  # nobody waits longer for the locks of a process that is cut off
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",  # rows are found by their keys: tables that are empty when a plan is made
    "enable_hashjoin": "off",  # must not leave one behind that reads all of them
    "enable_mergejoin": "off",
    "jit": "off",
}

_ON_DISK = (
    "SELECT set_config('synchronous_commit', 'on', false) "
    "WHERE current_setting('synchronous_commit') NOT IN ('on', 'remote_apply')"
)

_AGAIN = (errors.UniqueViolation, errors.DeadlockDetected, errors.SerializationFailure)
"""Somebody was faster, and nothing was done."""

_HUNG_UP = ("08", "57P", "25P03")
"""How codes of errors begin after which the server hangs up."""


class Connections:
    """A few connections that all threads of the process share, to a database whose schema is brought up to date.

    Args:
        url: of the database.

    Attributes:
        store: the store's own name.

    Raises:
        StoreUnavailable: the database cannot be had, or has a newer schema than this program knows.
    """

    def __init__(self, url: str) -> None:
        with _explained(), psycopg.connect(url, **_CONNECTION) as db:
            if db.info.parameter_status("server_encoding") != "UTF8":
                raise StoreUnavailable("the database of the budget store does not keep text as UTF8")
            self.store = migrate(db)
        self._pool = ConnectionPool(
            url, kwargs=_CONNECTION, configure=_configure, min_size=1, max_size=CONNECTIONS_MOST, open=True
        )

    def ask(self, work: Callable[[psycopg.Connection[Any], threading.Event], Answer], *, repeat: bool) -> Answer:
        """What *work* does with a connection; again if it was lost, or if somebody was faster.

        Args:
            work: gets the event, too, and sets it before it commits.
            repeat: False if it must not be done again once it may have been committed.

        Raises:
            StoreUnavailable: there is no connection, or the server cannot do it.
            DiscreetError: as *work* raises.
        """
        for left in reversed(range(_ATTEMPTS)):
            sent = threading.Event()
            with _explained():
                db = self._pool.getconn(_WAIT_SECONDS)
            try:
                return work(db, sent)
            except psycopg.Error as error:
                lost = db.closed or (error.sqlstate or "08").startswith(_HUNG_UP)
                if lost:
                    db.close()
                else:
                    undo(db)
                again = isinstance(error, _AGAIN) or (lost and (repeat or not sent.is_set()))
                if not again or not left:
                    raise _unavailable(error) from None
                if lost:
                    self._pool.check()  # the others are lost, too, if the server was restarted
            except DiscreetError:
                raise
            except BaseException:
                db.close()
                raise
            finally:
                self._pool.putconn(db)
        raise AssertionError  # the last attempt returns or raises

    def close(self) -> None:
        """Let go of the database."""
        self._pool.close()


def _configure(db: psycopg.Connection[Any]) -> None:
    """Whatever the server's defaults are: what is answered is on disk."""
    db.isolation_level, db.read_only = psycopg.IsolationLevel.READ_COMMITTED, False
    db.adapters.register_dumper(int, Int8Dumper)  # one type, one prepared statement
    for name, value in _SETTINGS.items():
        db.execute("SELECT set_config(%s, %s, false)", (name, value))
    db.execute(_ON_DISK)


def undo(db: psycopg.Connection[Any]) -> None:
    """Roll back; a connection that is lost has done so."""
    with contextlib.suppress(psycopg.Error):
        db.rollback()


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """What PostgreSQL says becomes `StoreUnavailable`."""
    try:
        yield
    except psycopg.Error as error:
        raise _unavailable(error) from None


def _unavailable(error: psycopg.Error) -> StoreUnavailable:
    """In words of ours: the server's may hold keys."""
    return StoreUnavailable(
        f"the budget store cannot be asked now ({type(error).__name__}), so nothing was answered and it is not known "
        "what was charged"
    )
