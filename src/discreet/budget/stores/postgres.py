"""Budgets in a PostgreSQL database that any number of service processes share."""

# ruff: noqa: S608 - statements are put together here, from constants; values are bound

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg

from discreet.budget.errors import UnknownAccount
from discreet.budget.ledger import Head, Line
from discreet.budget.periods import GUARD_US
from discreet.budget.stores import acts, events, postgres_view
from discreet.budget.stores.postgres_pool import Connections, undo
from discreet.budget.stores.postgres_rows import KEPT, RELEASE, kept_of, release_of
from discreet.budget.stores.postgres_shares import PostgresShareBooks, PostgresShares
from discreet.budget.stores.rows import terms_of
from discreet.budget.stores.transactions import LAST, Transactions, check_page
from discreet.errors import DiscreetError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator

    from discreet.budget.ledger_replay import Verified
    from discreet.budget.model import Account, Balance, Paid, Reservation, StoredRelease
    from discreet.budget.stores.postgres_books import PostgresBooks
    from discreet.budget.stores.transactions import Work

Answer = TypeVar("Answer")

_LINES_AT_ONCE = 10_000


def _no_step(name: str) -> None:
    """What happens at a step of a store that is not tested for faults."""


class PostgresStore(Transactions):
    """A `discreet.budget.store.BudgetStore` in a PostgreSQL database.

    A method that writes locks the accounts of the path, the asking one first, and writes and commits in one more round
    trip; each account has its own chain of the ledger, so that analysts wait for each other only at the accounts that
    they share. Time is the server's.

    If the connection breaks, claims and their events are asked again: if they had been committed, nothing changes.

    Args:
        url: of the database, for an account that may create tables in its first schema; see libpq's connection URIs.
            Not of a pooler that gives each transaction another session.
        step: called with the name of each step of a transaction, so that tests can break it off there: "locked",
            "decided", "committed".
        guard_us: how far the clock may run ahead of the last time seen.

    Raises:
        StoreUnavailable: the database cannot be had, or has a newer schema than this program knows.
    """

    def __init__(self, url: str, step: Callable[[str], None] = _no_step, guard_us: int = GUARD_US) -> None:
        self._step, self._guard_us = step, guard_us
        self._seen_us = 0
        self._connections = Connections(url)

    @property
    def id(self) -> str:
        """See `BudgetStore.id`."""
        return self._connections.store

    @property
    def shares(self) -> PostgresShares:
        """Moves of shares between data centres; see `discreet.budget.escrow.transfers.ShareStore`."""
        return PostgresShares(self.id, functools.partial(self._transact, repeat=True), self._read)

    def expire(self) -> int:
        """See `BudgetStore.expire`; each reservation in a transaction of its own."""
        ended, found = 0, 1
        while found:
            names = self._transact(lambda books: books.dead(), repeat=True)
            found = sum(self._write(functools.partial(events.expire, reservation=name), repeat=True) for name in names)
            ended += found
        return ended

    def refresh(self) -> int:
        """See `BudgetStore.refresh`; each account in a transaction of its own."""
        names = self._transact(lambda books: books.due(), repeat=True)
        return sum(self._write(functools.partial(acts.refresh, account=name), repeat=True) for name in names)

    def heartbeat(self) -> None:
        """See `BudgetStore.heartbeat`."""
        self._write(lambda books: books.begin_store(), repeat=True)

    def path(self, account: str) -> tuple[Account, ...]:
        """See `BudgetStore.path`."""
        query = (
            "SELECT a.settings FROM budget_accounts p JOIN budget_accounts a ON a.id = ANY (p.path) "
            "WHERE p.id = %s ORDER BY a.depth DESC"
        )
        rows = self._rows(query, (account,))
        if not rows:
            raise UnknownAccount(account)
        return tuple(terms_of(settings).account for (settings,) in rows)

    def account(self, name: str) -> Account:
        """See `BudgetStore.account`."""
        return self.path(name)[0]

    def accounts(self) -> list[Account]:
        """See `BudgetStore.accounts`."""
        rows = self._rows("SELECT settings FROM budget_accounts ORDER BY id")
        return [terms_of(settings).account for (settings,) in rows]

    def balance(self, account: str) -> Balance:
        """See `BudgetStore.balance`; `as_of` is a line of the account's own chain."""
        return self._read(lambda db: postgres_view.balance(db, account, self._seen_us, self._guard_us))

    def reservation(self, reservation: str) -> Reservation | None:
        """See `BudgetStore.reservation`."""
        rows = self._rows(f"SELECT {KEPT} FROM budget_reservations r WHERE r.id = %s", (reservation,))
        kept = kept_of(rows[0]) if rows else None
        return None if kept is None else kept.reservation

    def release(self, release_key: bytes) -> StoredRelease | None:
        """See `BudgetStore.release`."""
        rows = self._rows(f"SELECT {RELEASE} FROM budget_releases s WHERE s.release_key = %s", (release_key,))
        return release_of(rows[0]) if rows else None

    def entitled(self, account: str, release_key: bytes) -> bool:
        """See `BudgetStore.entitled`."""
        query = "SELECT 1 FROM budget_entitlements WHERE account = %s AND release_key = %s"
        return bool(self._rows(query, (account, release_key)))

    def history(self, account: str, before: int | None = None, most: int = 50) -> list[Paid]:
        """See `BudgetStore.history`."""
        check_page(most)
        return self._read(lambda db: postgres_view.history(db, account, LAST if before is None else before, most))

    def record(self, kind: str, name: str) -> str | None:
        """See `BudgetStore.record`."""
        rows = self._rows("SELECT text FROM budget_records WHERE kind = %s AND name = %s", (kind, name))
        return rows[0][0] if rows else None

    def records(self, kind: str) -> list[tuple[str, str]]:
        """See `BudgetStore.records`."""
        return self._rows("SELECT name, text FROM budget_records WHERE kind = %s ORDER BY name", (kind,))

    def records_version(self) -> int:
        """See `BudgetStore.records_version`."""
        ((version,),) = self._rows("SELECT records FROM budget_meta")
        return int(version)

    def heads(self) -> tuple[Head, ...]:
        """See `BudgetStore.heads`; chain 0 is the store's, and each account has its own."""
        return tuple(Head(*row) for row in self._rows(postgres_view.HEADS))

    def lines(self, chain: int = 0, after: int = 0, most: int | None = None) -> Iterator[Line]:
        """See `BudgetStore.lines`."""
        query = "SELECT chain, seq, body, hash FROM budget_ledger WHERE chain = %s AND seq > %s ORDER BY seq LIMIT %s"
        while most is None or most > 0:
            at_once = _LINES_AT_ONCE if most is None else min(most, _LINES_AT_ONCE)
            rows = self._rows(query, (chain, after, at_once))
            for row in rows:
                yield Line(*row)
            if len(rows) < at_once:
                return
            after = rows[-1][1]
            most = None if most is None else most - len(rows)

    def verify(self) -> Verified:
        """See `BudgetStore.verify`."""

        def one_state(db: psycopg.Connection[Any]) -> Verified:
            db.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            try:
                db.execute("SET LOCAL statement_timeout = 0")
                return postgres_view.verify(db)
            finally:
                undo(db)

        return self._read(one_state)

    def close(self) -> None:
        """See `BudgetStore.close`."""
        self._connections.close()

    # ------------------------------------------------------------------------------------------------ inside

    def _rows(self, query: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        return self._read(lambda db: db.execute(query, values).fetchall())

    def _read(self, work: Callable[[psycopg.Connection[Any]], Answer]) -> Answer:
        """What *work* reads; again if its connection was lost."""
        return self._connections.ask(lambda db, _: work(db), repeat=True)

    def _write(self, work: Work[Answer], *, repeat: bool) -> Answer:
        return self._transact(work, repeat=repeat)

    def _transact(self, work: Callable[[PostgresBooks], Answer], *, repeat: bool) -> Answer:
        return self._connections.ask(functools.partial(self._once, work, repeat), repeat=repeat)

    def _once(
        self, work: Callable[[PostgresBooks], Answer], repeat: bool, db: psycopg.Connection[Any], sent: threading.Event
    ) -> Answer:
        """Run *work* in a transaction and return what it returns, once that is durable; *sent* before that is asked."""
        with db.pipeline() as line:
            books = PostgresShareBooks(db, line, self._seen_us, self._step, self._guard_us)
            try:
                answer = work(books)
            except DiscreetError:
                with contextlib.suppress(psycopg.Error):
                    db.execute("COMMIT")  # of nothing; rolling back would forget all prepared statements
                raise
            self._step("decided")
            books.flush()
            if not repeat:
                line.sync()  # if this fails, nothing was committed, and all can be done again
            sent.set()
            db.execute("COMMIT")
        self._step("committed")
        self._seen_us = max(self._seen_us, books.clock.now_us)
        return answer
