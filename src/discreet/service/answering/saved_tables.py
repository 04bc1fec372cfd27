"""Saved tables of accounts, kept as records of the budget store; see `discreet.query.saved`.

A table belongs to an account, which alone changes it. Others name it with its owner, as saved."team/ann.top", and pay
for its releases once, unless an officer published it. Views are for their owner only. The streams of running counts
are tables too, for the account that paid for them and all accounts below it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from discreet.budget.ledger import canonical
from discreet.budget.model import MAX_RECORD_LENGTH, AdminAction
from discreet.budget.stores.store import BudgetStore
from discreet.errors import InputError, NotFound
from discreet.query.query import SAVED
from discreet.query.saved import TABLE, SavedTable, TableChange, changed, check_table_name, tables_in
from discreet.service.answering.running import StoredStream, stored_stream, stored_streams

RECORD = "saved-table"
PUBLISHED = "published-table"
"""Kinds of records: saved tables, and those that an officer published, by account and name."""

MAX_TABLES = 1_000
"""The largest number of saved tables of an account."""

MAX_COMMENT_LENGTH = 2_000


@dataclass(frozen=True, slots=True)
class OwnedTable:
    """A saved table, its owner, and its name for the account that reads it.

    Args:
        published: True if an officer decided that all accounts below the owner's parent read it free.
        stream: the stream whose answers it holds, which all accounts below its payer read free; None for saved ones.
    """

    owner: str
    name: str
    table: SavedTable
    published: bool = False
    stream: StoredStream | None = None


class SavedTables:
    """The saved tables of all accounts. Usable from several threads, and by several processes."""

    def __init__(self, store: BudgetStore) -> None:
        self._store = store

    def find(self, account: str, name: str) -> OwnedTable:
        """Return a table as *account* names it.

        Raises:
            NotFound: there is no such table, it is a view of another account, or it holds running counts that only
                accounts below another root read.
        """
        owner, dot, short = name.rpartition(".")
        owner = owner if dot and owner != account else account
        table = _table_of(self._store.record(RECORD, _record_name(owner, short.lower())))
        running = self._running(account, name.lower()) if table is None else None
        if running is not None:
            return running
        if table is None or (owner != account and (table.view or self._is_of_others(account, owner, table))):
            raise NotFound(f"there is no saved table {name[:300]!r}")
        shown = short.lower() if owner == account else f"{owner}.{short.lower()}"
        published = self._store.record(PUBLISHED, _record_name(owner, short.lower())) is not None
        return OwnedTable(owner, shown, table, published)

    def used_by(self, account: str, sql: str) -> tuple[dict[str, SavedTable], dict[str, str]]:
        """Return the tables that a statement may name, and who paid for the releases that are published to the account.

        The payers are by the ids of releases: of running counts, `StoredStream.paid`; of others, "".

        Raises:
            InputError: it reads too many.
        """
        free: dict[str, str] = {}

        def read(name: str) -> SavedTable | None:
            try:
                owned = self.find(account, name)
            except NotFound:
                return None
            if owned.published and self._is_below(account, owned.owner):
                free.update(dict.fromkeys(owned.table.releases, "" if owned.stream is None else owned.stream.paid))
            return owned.table

        return tables_in(sql, read), free

    def listed(self, account: str) -> list[OwnedTable]:
        """Return the tables of an account, and those that are published to it, by name."""
        public = dict(self._store.records(PUBLISHED))
        own = [
            OwnedTable(account, name, TABLE.validate_json(text), _record_name(account, name) in public)
            for name, text in self._store.records_of(RECORD, account)
        ]
        others = []
        for record in public:
            owner, _, name = record.partition("\t")
            text = self._store.record(RECORD, record)
            if owner != account and text is not None and self._is_below(account, owner):
                table = TABLE.validate_json(text)
                others += [] if table.view else [OwnedTable(owner, f"{owner}.{name}", table, published=True)]
        names = {table.name for table in own}
        running = [self._running(account, name) for name in stored_streams(self._store) if name not in names]
        return own + others + [table for table in running if table is not None]

    def before(self, account: str, change: TableChange) -> SavedTable | None:
        """Return the table that a change is about, or None.

        Raises:
            InputError: it is in another schema, or its name is not allowed.
        """
        if change.path not in {(SAVED,), ("discreet", SAVED)}:
            raise InputError(f"tables are saved in the schema {SAVED}: name it {SAVED}.{change.name[:100]}")
        return _table_of(self._store.record(RECORD, _record_name(account, check_table_name(change.name))))

    def save(self, account: str, change: TableChange, new: SavedTable) -> None:
        """Create a table or add a part to it; its releases are paid for. Errors as in `query.saved.changed`."""
        name = check_table_name(change.name)
        new = replace(new, comment=_checked(change.comment))
        is_new = change.action != "insert" and len(self._store.records_of(RECORD, account)) >= MAX_TABLES

        def with_part(text: str | None) -> str | None:
            before = _table_of(text)
            if before is None:
                self._check_free(account, name)
            if is_new and before is None:
                raise InputError(f"an account has at most {MAX_TABLES:,} saved tables; DROP some first")
            after = changed(before, change, new)
            return text if after is before else _text_of(after)

        shown = {"table": name, "releases": sorted(new.parts[0].answers.values())}
        self._change(self._store, account, name, with_part, change.action, shown)

    def alter(self, account: str, change: TableChange) -> bool:
        """Drop or rename a table, or change its comment; return False if it is not there, and that is allowed.

        Raises:
            NotFound: there is no such table.
            InputError: a view was called a table, or the new name is taken or not allowed.
        """
        name = check_table_name(change.name)

        def changed_text(text: str | None) -> str | None:
            table = _present(text, change, name)
            return _text_of(replace(table, comment=_checked(change.sql))) if change.action == "comment" else None

        def work(store: BudgetStore) -> None:
            if change.action == "rename":
                to = check_table_name(change.sql)
                self._check_free(account, to)

                def renamed(existing: str | None) -> str | None:
                    text = store.record(RECORD, _record_name(account, name))
                    _present(text, change, name)
                    if existing is not None:
                        raise InputError(f"there is {SAVED}.{to} already; DROP it first")
                    return text

                self._change(store, account, to, renamed, "rename")
            self._change(store, account, name, changed_text, change.action)

        try:
            self._store.together(work)
        except NotFound:
            if change.lenient:
                return False
            raise
        return True

    def publish(self, owner: str, name: str, action: AdminAction, *, published: bool) -> None:
        """Let all accounts below the owner's parent read a table free, with all that is added to it, or end that.

        Raises:
            NotFound: there is no such table; views are for their owner.
        """
        self._store.account(owner)
        name = name.lower()
        record = _record_name(owner, name)
        owned = self.find(owner, name) if published else None
        if owned is not None and (owned.table.view or owned.stream is not None):
            what = "a view" if owned.table.view else "running counts"
            raise NotFound(f"there is no saved table {name!r} of {owner!r}, which is {what}")
        text = canonical({"by": action.actor}) if published else None
        self._store.put_record(PUBLISHED, record, text, action, {"table": name, "published": str(published).lower()})

    def _check_free(self, account: str, name: str) -> None:
        """Raise `InputError` if a name is that of running counts for an account."""
        if self._running(account, name) is not None:
            raise InputError(f"{SAVED}.{name} are running counts; choose another name")

    def _running(self, account: str, name: str) -> OwnedTable | None:
        """Return the table of a stream that has answers, and whose payer is *account* or above it."""
        stream = stored_stream(self._store, name)
        if stream is None or not stream.releases or not self._is_below(account, stream.account):
            return None
        return OwnedTable(stream.account, name, stream.table, published=True, stream=stream)

    def _is_of_others(self, account: str, owner: str, table: SavedTable) -> bool:
        """Return True if a table holds answers of a stream that an account of another root than *account* paid."""
        if self._store.path(account)[-1].id == self._store.path(owner)[-1].id:
            return False
        streams = stored_streams(self._store).values()
        return any(not set(table.releases).isdisjoint(stream.releases.values()) for stream in streams)

    def _is_below(self, account: str, owner: str) -> bool:
        """Return True if an account is below the parent of *owner*, or below *owner* if that has none."""
        parent = self._store.account(owner).parent or owner
        return parent in {member.id for member in self._store.path(account)}

    def _change(
        self,
        store: BudgetStore,
        account: str,
        name: str,
        change: Callable[[str | None], str | None],
        reason: str,
        shown: Mapping[str, Any] | None = None,
    ) -> None:
        record = _record_name(account, name)
        store.change_record(RECORD, record, change, AdminAction(account, reason), shown or {"table": name})


def _record_name(account: str, name: str) -> str:
    return f"{account}\t{name}"  # account names contain no tabs


def _table_of(text: str | None) -> SavedTable | None:
    return None if text is None else TABLE.validate_json(text)


def _present(text: str | None, change: TableChange, name: str) -> SavedTable:
    """Return the table that is changed, or raise an error if it is not there, or is dropped as another kind."""
    table = _table_of(text)
    if table is None:
        raise NotFound(f"there is no saved table {name!r}")
    kind = "view" if table.view else "table"
    if change.action in {"drop table", "drop view"} and change.action != f"drop {kind}":
        raise InputError(f"{SAVED}.{name} is a {kind}: DROP {kind.upper()} drops it")
    return table


def _text_of(table: SavedTable) -> str:
    text = canonical(TABLE.dump_python(table, mode="json"))
    if len(text) > MAX_RECORD_LENGTH:
        most = f"{MAX_RECORD_LENGTH:,} characters, with those of the tables that it is made from"
        raise InputError(f"the statements of a saved table have up to {most}")
    return text


def _checked(comment: str) -> str:
    if len(comment) > MAX_COMMENT_LENGTH:
        raise InputError(f"a comment has up to {MAX_COMMENT_LENGTH:,} characters")
    return comment
