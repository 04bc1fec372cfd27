"""How shares of budgets move in the PostgreSQL store."""

# ruff: noqa: S608 - statements are put together here, from constants; values are bound

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from discreet.budget.escrow.protocol import Incoming, Outgoing, Transfer
from discreet.budget.escrow.transfers import Holding
from discreet.budget.stores.postgres_books import PostgresBooks
from discreet.budget.stores.postgres_rows import amount_array, amount_of, tally_of
from discreet.budget.stores.rows import terms_of
from discreet.budget.stores.shares import ShareBooks, StoredShares, transfer_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import psycopg

_GIVEN = "number, given::text, pending::text, sent_us, version"
_TAKEN = "number, taken, received::text"

_PENDING = f"""
SELECT {", ".join(f"g.{column}" for column in _GIVEN.split(", "))}, a.settings
FROM budget_shares_given g JOIN budget_accounts a ON a.id = g.account
WHERE g.peer = %s AND g.pending IS NOT NULL ORDER BY a.depth, a.id LIMIT %s
"""

_UNKNOWN = """
SELECT a.id FROM budget_accounts a LEFT JOIN budget_shares_given g ON g.account = a.id AND g.peer = %(peer)s
WHERE coalesce(a.settings::json -> 'share' ->> 2, %(here)s) = %(here)s AND (
    g.number IS NULL OR (g.pending IS NULL AND g.version < (a.settings::json -> 'share' ->> 3)::bigint)
) ORDER BY a.depth, a.id LIMIT %(most)s
"""

_HOLDINGS = """
SELECT a.settings, a.tally::text, a.older::text, (
    SELECT json_agg(json_build_array(g.peer, g.number, g.given::text, g.pending::text, g.sent_us, g.version))
    FROM budget_shares_given g WHERE g.account = a.id
), (
    SELECT json_agg(json_build_array(t.peer, t.number, t.taken, t.received::text))
    FROM budget_shares_taken t WHERE t.account = a.id
)
FROM budget_accounts a WHERE a.id > %s ORDER BY a.id LIMIT %s
"""


class PostgresShareBooks(PostgresBooks, ShareBooks):
    """See `ShareBooks`."""

    def has_account(self, account: str) -> bool:
        """See `ShareBooks.has_account`."""
        return bool(self._rows("SELECT 1 FROM budget_accounts WHERE id = %s", (account,)))

    def outgoing(self, account: str, peer: str) -> Outgoing:
        """See `ShareBooks.outgoing`."""
        query = f"SELECT {_GIVEN} FROM budget_shares_given WHERE account = %s AND peer = %s"
        rows = self._rows(query, (account, peer))
        return _outgoing(rows[0]) if rows else Outgoing()

    def incoming(self, account: str, peer: str) -> Incoming:
        """See `ShareBooks.incoming`."""
        query = f"SELECT {_TAKEN} FROM budget_shares_taken WHERE account = %s AND peer = %s"
        rows = self._rows(query, (account, peer))
        return _incoming(rows[0]) if rows else Incoming()

    def put_outgoing(self, account: str, peer: str, outgoing: Outgoing) -> None:
        """See `ShareBooks.put_outgoing`."""
        pending = None if outgoing.pending is None else amount_array(outgoing.pending)
        self._add(
            "INSERT INTO budget_shares_given (account, peer, number, given, pending, sent_us, version) "
            "VALUES (%s, %s, %s, %s::numeric[], %s::numeric[], %s, %s) ON CONFLICT (account, peer) DO UPDATE SET "
            "number = excluded.number, given = excluded.given, pending = excluded.pending, "
            "sent_us = excluded.sent_us, version = excluded.version",
            (account, peer, outgoing.number, amount_array(outgoing.given), pending, outgoing.sent_us, outgoing.version),
        )

    def put_incoming(self, account: str, peer: str, incoming: Incoming) -> None:
        """See `ShareBooks.put_incoming`."""
        self._add(
            "INSERT INTO budget_shares_taken (account, peer, number, taken, received) "
            "VALUES (%s, %s, %s, %s, %s::numeric[]) ON CONFLICT (account, peer) DO UPDATE SET "
            "number = excluded.number, taken = excluded.taken, received = excluded.received",
            (account, peer, incoming.number, incoming.taken, amount_array(incoming.received)),
        )


class PostgresShares(StoredShares):
    """A `discreet.budget.escrow.transfers.ShareStore`.

    Args:
        here: id of the store.
        write: see `StoredShares`.
        read: asks something of what is committed.
    """

    def __init__(
        self,
        here: str,
        write: Callable[[Callable[[Any], Any]], Any],
        read: Callable[[Callable[[psycopg.Connection[Any]], Any]], Any],
    ) -> None:
        super().__init__(here, write)
        self._read = read

    def pending(self, peer: str, most: int) -> list[Transfer]:
        """See `ShareStore.pending`."""
        rows = self._rows(_PENDING, (peer, most))
        return [transfer_of(self.id, peer, _outgoing(row[:5]), terms_of(row[5]).account) for row in rows]

    def unknown(self, peer: str, most: int) -> list[str]:
        """See `ShareStore.unknown`."""
        return [name for (name,) in self._rows(_UNKNOWN, {"peer": peer, "here": self.id, "most": most})]

    def holdings(self, after: str = "", most: int | None = None) -> list[Holding]:
        """See `ShareStore.holdings`."""
        found: list[Holding] = self._read(functools.partial(holdings, after=after, most=most))
        return found

    def _rows(self, query: str, values: Sequence[Any] | dict[str, Any]) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = self._read(lambda db: db.execute(query, values).fetchall())
        return rows


def holdings(db: psycopg.Connection[Any], after: str = "", most: int | None = None) -> list[Holding]:
    """See `ShareStore.holdings`."""
    return [
        Holding(
            terms_of(settings).account,
            (tally_of(tally) + tally_of(older)).total,
            {peer: _outgoing(row) for peer, *row in given or ()},
            {peer: _incoming(row) for peer, *row in taken or ()},
        )
        for settings, tally, older, given, taken in db.execute(_HOLDINGS, (after, most))
    ]


def _outgoing(row: Sequence[Any]) -> Outgoing:
    number, given, pending, sent_us, version = row
    return Outgoing(number, amount_of(given), None if pending is None else amount_of(pending), sent_us, version)


def _incoming(row: Sequence[Any]) -> Incoming:
    number, taken, received = row
    return Incoming(number, taken, amount_of(received))
