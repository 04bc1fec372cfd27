"""How shares of budgets move in the SQLite store."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from discreet.budget.escrow.protocol import Incoming, Outgoing, Transfer
from discreet.budget.escrow.transfers import Holding
from discreet.budget.stores.rows import terms_of
from discreet.budget.stores.shares import ShareBooks, StoredShares, transfer_of
from discreet.budget.stores.sqlite_books import SQLiteBooks
from discreet.budget.stores.sqlite_rows import all_of, amount_of, amount_text, one_of, tally_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import apsw

_GIVEN = "number, given, pending, sent_us, version"
_TAKEN = "number, taken, received"

# how many parents the account a has
_DEPTH = """(
    WITH RECURSIVE above (id, depth) AS (
        SELECT a.parent, 1 UNION ALL SELECT p.parent, depth + 1 FROM above JOIN accounts p USING (id)
    )
    SELECT max(depth) FROM above
)"""

_PENDING = f"""
SELECT g.number, g.given, g.pending, g.sent_us, g.version, a.settings
FROM shares_given g JOIN accounts a ON a.id = g.account
WHERE g.peer = ? AND g.pending IS NOT NULL ORDER BY {_DEPTH}, a.id LIMIT ?
"""  # noqa: S608 - a constant

_UNKNOWN = f"""
SELECT a.id FROM accounts a LEFT JOIN shares_given g ON g.account = a.id AND g.peer = ?
WHERE coalesce(json_extract(a.settings, '$.share[2]'), ?) = ? AND (
    g.number IS NULL
    OR (g.pending IS NULL AND g.version < CAST(json_extract(a.settings, '$.share[3]') AS INTEGER))
) ORDER BY {_DEPTH}, a.id LIMIT ?
"""  # noqa: S608 - likewise

_HOLDINGS = "SELECT id, settings, tally, older FROM accounts WHERE id > ? ORDER BY id LIMIT ?"


class SQLiteShareBooks(SQLiteBooks, ShareBooks):
    """See `ShareBooks`."""

    def has_account(self, account: str) -> bool:
        """See `ShareBooks.has_account`."""
        return one_of(self.db, "SELECT 1 FROM accounts WHERE id = ?", (account,)) is not None

    def outgoing(self, account: str, peer: str) -> Outgoing:
        """See `ShareBooks.outgoing`."""
        query = f"SELECT {_GIVEN} FROM shares_given WHERE account = ? AND peer = ?"  # noqa: S608 - constants
        row = one_of(self.db, query, (account, peer))
        return _outgoing(row) if row else Outgoing()

    def incoming(self, account: str, peer: str) -> Incoming:
        """See `ShareBooks.incoming`."""
        query = f"SELECT {_TAKEN} FROM shares_taken WHERE account = ? AND peer = ?"  # noqa: S608 - constants
        row = one_of(self.db, query, (account, peer))
        return _incoming(row) if row else Incoming()

    def put_outgoing(self, account: str, peer: str, outgoing: Outgoing) -> None:
        """See `ShareBooks.put_outgoing`."""
        self.db.execute(
            "INSERT OR REPLACE INTO shares_given VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                account,
                peer,
                outgoing.number,
                amount_text(outgoing.given),
                None if outgoing.pending is None else amount_text(outgoing.pending),
                outgoing.sent_us,
                outgoing.version,
            ),
        )
        self._step("share")

    def put_incoming(self, account: str, peer: str, incoming: Incoming) -> None:
        """See `ShareBooks.put_incoming`."""
        self.db.execute(
            "INSERT OR REPLACE INTO shares_taken VALUES (?, ?, ?, ?, ?)",
            (account, peer, incoming.number, incoming.taken, amount_text(incoming.received)),
        )
        self._step("share")


class SQLiteShares(StoredShares):
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
        read: Callable[[Callable[[apsw.Connection], Any]], Any],
    ) -> None:
        super().__init__(here, write)
        self._read = read

    def pending(self, peer: str, most: int) -> list[Transfer]:
        """See `ShareStore.pending`."""
        rows = self._read(functools.partial(all_of, query=_PENDING, values=(peer, most)))
        return [transfer_of(self.id, peer, _outgoing(row[:5]), terms_of(row[5]).account) for row in rows]

    def unknown(self, peer: str, most: int) -> list[str]:
        """See `ShareStore.unknown`."""
        values = (peer, self.id, self.id, most)
        return [name for (name,) in self._read(functools.partial(all_of, query=_UNKNOWN, values=values))]

    def holdings(self, after: str = "", most: int | None = None) -> list[Holding]:
        """See `ShareStore.holdings`."""
        found: list[Holding] = self._read(functools.partial(holdings, after=after, most=most))
        return found


def holdings(db: apsw.Connection, after: str = "", most: int | None = None) -> list[Holding]:
    """See `ShareStore.holdings`."""
    with db:
        accounts = all_of(db, _HOLDINGS, (after, -1 if most is None else most))
        among = (accounts[0][0], accounts[-1][0]) if accounts else ("", "")
        given = all_of(db, f"SELECT account, peer, {_GIVEN} FROM shares_given WHERE account BETWEEN ? AND ?", among)  # noqa: S608
        taken = all_of(db, f"SELECT account, peer, {_TAKEN} FROM shares_taken WHERE account BETWEEN ? AND ?", among)  # noqa: S608
    outgoing: dict[str, dict[str, Outgoing]] = {}
    incoming: dict[str, dict[str, Incoming]] = {}
    for account, peer, *row in given:
        outgoing.setdefault(account, {})[peer] = _outgoing(row)
    for account, peer, *row in taken:
        incoming.setdefault(account, {})[peer] = _incoming(row)
    return [
        Holding(
            terms_of(settings).account,
            (tally_of(tally) + tally_of(older)).total,
            outgoing.get(account, {}),
            incoming.get(account, {}),
        )
        for account, settings, tally, older in accounts
    ]


def _outgoing(row: tuple[Any, ...] | list[Any]) -> Outgoing:
    number, given, pending, sent_us, version = row
    return Outgoing(number, amount_of(given), None if pending is None else amount_of(pending), sent_us, version)


def _incoming(row: tuple[Any, ...] | list[Any]) -> Incoming:
    number, taken, received = row
    return Incoming(number, bool(taken), amount_of(received))
