"""Which parts of the catalog accounts may query. What was not granted does not exist for an account."""

from __future__ import annotations

import json
import threading
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

from discreet.budget.ledger import canonical

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from discreet.budget.stores.store import BudgetStore
    from discreet.catalog.model import Catalog, Dataset
    from discreet.service.auth.records import RecordCache, Snapshot

Columns: TypeAlias = frozenset[str] | None
"""The granted columns of a dataset; None for all, including those that are added later."""


def grant_name(account: str, dataset: str) -> str:
    """Return the name of the record of a grant."""
    return f"{account}\t{dataset}"  # a tab is in no account's name


def named_in(name: str) -> tuple[str, str]:
    """Return the account and the dataset in the name of a record."""
    account, _, dataset = name.partition("\t")
    return account, dataset


def grant_text(columns: Columns) -> str:
    """Return the text of the record of a grant."""
    return canonical({"columns": None if columns is None else sorted(columns)})


def columns_in(text: str) -> Columns:
    """Return the columns in the text of a record."""
    columns = json.loads(text)["columns"]
    return None if columns is None else frozenset(columns)


class Grants:
    """The catalog as each account may query it. Usable from several threads.

    An account has the grants of its parents too: a grant to an organisation is one to all its analysts.

    Args:
        catalog: all datasets.
        records: the grants.
        store: of the accounts.
    """

    def __init__(self, catalog: Catalog, records: RecordCache, store: BudgetStore) -> None:
        self._catalog, self._records, self._store = catalog, records, store
        self._lock = threading.Lock()
        self._paths: dict[str, tuple[str, ...]] = {}  # never invalidated: parents do not change
        self._seen: tuple[int, dict[str, Catalog]] = -1, {}

    def cached(self, account: str) -> Catalog | None:
        """Return the catalog of *account* from memory, without waiting; None if it is older than a second."""
        snapshot = self._records.cached()
        version, catalogs = self._seen
        return catalogs.get(account) if snapshot is not None and snapshot.version == version else None

    def catalog_for(self, account: str) -> Catalog:
        """Return the catalog of *account*: the same object as long as no record changes.

        Raises:
            UnknownAccount: there is no such account.
            StoreUnavailable: the store cannot be read.
        """
        snapshot = self._records.read()
        with self._lock:
            version, catalogs = self._seen
            if snapshot.version != version:
                catalogs = {}
                self._seen = snapshot.version, catalogs
            if account not in catalogs:
                catalogs[account] = _part(self._catalog, _granted(snapshot, self._path(account)))
            return catalogs[account]

    def _path(self, account: str) -> tuple[str, ...]:
        if account not in self._paths:
            path: list[str] = []
            above: str | None = account
            while above is not None:
                path.append(above)
                above = self._store.account(above).parent
            self._paths[account] = tuple(path)
        return self._paths[account]


def _granted(snapshot: Snapshot, path: Iterable[str]) -> dict[str, Columns]:
    """Return the granted columns by dataset of all accounts on *path* together."""
    accounts = frozenset(path)
    granted: dict[str, Columns] = {}
    for name, text in snapshot.grants.items():
        account, dataset = named_in(name)
        if account in accounts:
            more, before = columns_in(text), granted.get(dataset, frozenset())
            granted[dataset] = None if more is None or before is None else before | more
    return granted


def _part(catalog: Catalog, granted: Mapping[str, Columns]) -> Catalog:
    datasets = {
        name: _narrowed(dataset, granted[name]) for name, dataset in catalog.datasets.items() if name in granted
    }
    return catalog.model_copy(update={"datasets": MappingProxyType(datasets)})


def _narrowed(dataset: Dataset, columns: Columns) -> Dataset:
    if columns is None:
        return dataset
    kept = {name: column for name, column in dataset.columns.items() if name in columns}
    return dataset.model_copy(update={"columns": MappingProxyType(kept)})
