"""Grants of datasets and columns to accounts. Datasets and columns without a grant do not exist for an account."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

from discreet.budget.ledger import canonical
from discreet.budget.stores.store import BudgetStore
from discreet.catalog.model import Catalog, ImpliedColumn

if TYPE_CHECKING:
    from discreet.warehouse import Warehouse


FRESH = timedelta(seconds=1)
"""How long records are cached, and so how long a key that another process revoked is still accepted."""

KEY = "key"
GRANT = "grant"
USED = "used"
LOGOUT = "logout"
"""Kinds of records: API keys by id, grants by account and dataset, the last use of keys, logouts by caller."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The records of keys, grants and logouts, read at one time.

    Args:
        version: a number that changes with every change of a record.
        logouts: how often each caller has logged out of the web page; callers who never did are missing.
    """

    version: int
    keys: Mapping[str, str]
    grants: Mapping[str, str]
    logouts: Mapping[str, str]


class RecordCache:
    """A cache of the records that is at most a second old. Usable from several threads."""

    def __init__(self, store: BudgetStore, clock: Callable[[], datetime]) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._last: tuple[datetime, Snapshot] | None = None

    def cached(self) -> Snapshot | None:
        """Return the records from memory, without blocking; None if they are older than a second."""
        last = self._last
        # The absolute difference, because a clock that was set back must not extend the cache.
        return last[1] if last is not None and abs(self._clock() - last[0]) <= FRESH else None

    def read(self) -> Snapshot:
        """Return the records from memory if they are fresh, otherwise from the store.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        with self._lock:
            return self.cached() or self._read()

    def invalidate(self) -> None:
        """Empty the cache, because this process changed a record."""
        with self._lock:  # a concurrent read may have read the records before the change
            self._last = None

    def _read(self) -> Snapshot:
        # Read the version first: if the records change in between, the next read sees a new version.
        now = self._clock()
        version = self._store.records_version()
        if self._last is None or self._last[1].version != version:
            snapshot = Snapshot(version, *(dict(self._store.records(kind)) for kind in (KEY, GRANT, LOGOUT)))
        else:
            snapshot = self._last[1]
        self._last = now, snapshot
        return snapshot


Columns: TypeAlias = frozenset[str] | None
"""The granted columns of a dataset; None for all, including columns that are added later."""


def grant_name(account: str, dataset: str) -> str:
    """Return the name of the record of a grant."""
    return f"{account}\t{dataset}"  # account names contain no tabs


def account_and_dataset(name: str) -> tuple[str, str]:
    """Return the account and the dataset in the name of the record of a grant."""
    account, _, dataset = name.partition("\t")
    return account, dataset


def grant_text(columns: Columns) -> str:
    """Return the text of the record of a grant."""
    return canonical({"columns": None if columns is None else sorted(columns)})


def granted_columns(text: str) -> Columns:
    """Return the columns in the text of the record of a grant."""
    columns = json.loads(text)["columns"]
    return None if columns is None else frozenset(columns)


class Grants:
    """The catalogs of accounts: the datasets and columns granted to each. Usable from several threads.

    An account inherits the grants of its parents: a grant to an organisation applies to all its analysts.

    Args:
        warehouse: has the present catalog of all datasets.
    """

    def __init__(self, warehouse: Warehouse, records: RecordCache, store: BudgetStore) -> None:
        self._warehouse = warehouse
        self._records = records
        self._store = store
        self._lock = threading.Lock()
        self._paths: dict[str, tuple[str, ...]] = {}  # never invalidated: parents do not change
        self._seen: tuple[tuple[int, Catalog] | None, dict[str, Catalog]] = None, {}

    def cached(self, account: str) -> Catalog | None:
        """Return the catalog of *account* from memory, without blocking; None if it is older than a second."""
        snapshot = self._records.cached()
        seen, catalogs = self._seen
        current = snapshot is not None and seen is not None and seen[0] == snapshot.version
        return catalogs.get(account) if current and seen is not None and seen[1] is self._warehouse.catalog else None

    def catalog_for(self, account: str) -> Catalog:
        """Return the catalog of *account*: the same object until a record or the catalog changes.

        Raises:
            UnknownAccount: there is no such account.
            StoreUnavailable: the store cannot be read.
        """
        snapshot = self._records.read()
        with self._lock:
            catalog = self._warehouse.catalog
            seen, catalogs = self._seen
            if seen is None or seen[0] != snapshot.version or seen[1] is not catalog:
                catalogs = {}
                self._seen = (snapshot.version, catalog), catalogs
            if account not in catalogs:
                catalogs[account] = _granted_catalog(catalog, snapshot, frozenset(self._path(account)))
            return catalogs[account]

    def _path(self, account: str) -> tuple[str, ...]:
        if account not in self._paths:
            self._paths[account] = tuple(member.id for member in self._store.path(account))
        return self._paths[account]


def _granted_catalog(catalog: Catalog, snapshot: Snapshot, accounts: frozenset[str]) -> Catalog:
    """Return *catalog* with the datasets and columns that are granted to any of *accounts*."""
    granted: dict[str, Columns] = {}
    for name, text in snapshot.grants.items():
        account, dataset = account_and_dataset(name)
        if account in accounts:
            more = granted_columns(text)
            before = granted.get(dataset, frozenset())
            granted[dataset] = None if more is None or before is None else before | more
    datasets = {}
    for name, declared in catalog.datasets.items():
        if name not in granted:
            continue
        columns = granted[name]
        update = {}
        if columns is not None:
            allowed = {
                column: uses
                for column, uses in declared.columns.items()
                if column in columns or (isinstance(uses, ImpliedColumn) and uses.source in columns)
            }
            update = {"columns": MappingProxyType(allowed)}
        datasets[name] = declared.model_copy(update=update) if update else declared
    return catalog.model_copy(update={"datasets": MappingProxyType(datasets)})
