"""The ledger of an SQLite store, read beside the service that has the store, or from a copy of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import apsw

from discreet.budget.errors import StoreUnavailable
from discreet.budget.ledger import Head, Line
from discreet.budget.stores import place, sqlite_view
from discreet.budget.stores.sqlite_rows import all_of
from discreet.budget.stores.sqlite_schema import MIGRATIONS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from discreet.budget.ledger_replay import Verified


class SQLiteReader:
    """What a file of budgets holds at one moment. It takes no lock, so that a service goes on writing meanwhile.

    Args:
        path: of the file.

    Raises:
        StoreUnavailable: it cannot be read, or has another schema than this program.
    """

    def __init__(self, path: Path) -> None:
        place.check_library(apsw.sqlite_lib_version())
        try:
            self._db = _opened(path)
            ((version,),) = all_of(self._db, "PRAGMA user_version")
            if version != len(MIGRATIONS):
                self._db.close()
                raise StoreUnavailable(
                    f"the store has schema {version}, and this program reads schema {len(MIGRATIONS)}; "
                    "serve it once with this version, which brings older ones up to date"
                )
            ((self._id,),) = all_of(self._db, "SELECT value FROM meta WHERE name = 'id'")
        except (apsw.Error, ValueError) as error:
            raise StoreUnavailable("the file of the budget store cannot be read") from error

    @property
    def id(self) -> str:
        """See `BudgetStore.id`."""
        return str(self._id)

    def heads(self) -> tuple[Head, ...]:
        """See `BudgetStore.heads`."""
        return tuple(
            Head(0, *row) for row in all_of(self._db, "SELECT seq, hash FROM ledger ORDER BY seq DESC LIMIT 1")
        )

    def lines(self, chain: int = 0, after: int = 0, most: int | None = None) -> Iterator[Line]:
        """See `BudgetStore.lines`."""
        query = "SELECT seq, body, hash FROM ledger WHERE seq > ? AND ? = 0 ORDER BY seq LIMIT ?"
        rows: Iterator[Any] = iter(self._db.cursor().execute(query, (after, chain, -1 if most is None else most)))
        return (Line(0, seq, body, hash_) for seq, body, hash_ in rows)

    def verify(self) -> Verified:
        """See `BudgetStore.verify`."""
        return sqlite_view.verify(self._db)

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()


def _opened(path: Path) -> apsw.Connection:
    """A connection that sees one state of everything."""
    try:
        db = apsw.Connection(str(path), apsw.SQLITE_OPEN_READONLY)
        db.execute("BEGIN; SELECT 1 FROM meta")
    except (apsw.CantOpenError, apsw.ReadOnlyError):
        # A copy in a folder that cannot be written: nobody changes it, so nothing has to be kept beside it.
        uri = f"{path.absolute().as_uri()}?immutable=1"
        db = apsw.Connection(uri, apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
        db.execute("BEGIN; SELECT 1 FROM meta")
    return db
