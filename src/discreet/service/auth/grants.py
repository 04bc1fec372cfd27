"""Who may ask about what. What was not granted does not exist: everybody sees a catalog of her own."""

from __future__ import annotations

import json
import threading
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, TypeAlias

from discreet.budget.ledger import canonical

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from discreet.budget.model import Account
    from discreet.catalog.model import Catalog, Dataset
    from discreet.service.auth.records import RecordCache, Snapshot

Columns: TypeAlias = frozenset[str] | None
"""The columns of a dataset that somebody may ask about; None for all, also those that the catalog will get."""


class Accounts(Protocol):
    """Where accounts are; a store of budgets has this method."""

    def account(self, name: str) -> Account:
        """The account of that name.

        Raises:
            UnknownAccount: there is none.
        """
        ...


def grant_name(account: str, dataset: str) -> str:
    """The name of the record of a grant."""
    return f"{account}\t{dataset}"  # a tab is in no account's name


def named_in(name: str) -> tuple[str, str]:
    """The account and the dataset that the name of a record says."""
    account, _, dataset = name.partition("\t")
    return account, dataset


def grant_text(columns: Columns) -> str:
    """The text of the record of a grant."""
    return canonical({"columns": None if columns is None else sorted(columns)})


def columns_in(text: str) -> Columns:
    """The columns that the text of a record says."""
    columns = json.loads(text)["columns"]
    return None if columns is None else frozenset(columns)


class Grants:
    """Which part of the catalog each account sees. Usable from several threads.

    An account sees what was granted to it or to a parent: a grant to the organisation is one to all its analysts.

    Args:
        catalog: all there is.
        registry: where the grants are.
        accounts: where the accounts are.
    """

    def __init__(self, catalog: Catalog, registry: RecordCache, accounts: Accounts) -> None:
        self._catalog, self._registry, self._accounts = catalog, registry, accounts
        self._lock = threading.Lock()
        self._paths: dict[str, tuple[str, ...]] = {}  # for ever: parents never change
        self._seen: tuple[int, dict[str, Catalog]] = -1, {}

    @property
    def catalog(self) -> Catalog:
        """All there is: for officers."""
        return self._catalog

    def cached(self, account: str) -> Catalog | None:
        """What *account* sees, from memory alone; None if memory does not hold it or is older than a second."""
        snapshot = self._registry.cached()
        version, catalogs = self._seen
        return catalogs.get(account) if snapshot is not None and snapshot.version == version else None

    def catalog_for(self, account: str) -> Catalog:
        """The catalog as *account* sees it: the same object as long as no record changes.

        Raises:
            UnknownAccount: there is none.
            StoreUnavailable: the store cannot be asked.
        """
        snapshot = self._registry.read()
        with self._lock:
            version, catalogs = self._seen
            if snapshot.version != version:
                catalogs = {}
                self._seen = snapshot.version, catalogs
            if account not in catalogs:
                catalogs[account] = _part(self._catalog, _granted(snapshot, self._path(account)))
            return catalogs[account]

    def listed(self) -> list[tuple[str, str, Columns]]:
        """All grants: account, dataset and columns, by account and dataset.

        Raises:
            StoreUnavailable: the store cannot be asked.
        """
        grants = self._registry.read().grants
        return sorted(
            ((*named_in(name), columns_in(text)) for name, text in grants.items()), key=lambda grant: grant[:2]
        )

    def _path(self, account: str) -> tuple[str, ...]:
        if account not in self._paths:
            path: list[str] = []
            above: str | None = account
            while above is not None:
                path.append(above)
                above = self._accounts.account(above).parent
            self._paths[account] = tuple(path)
        return self._paths[account]


def _granted(snapshot: Snapshot, path: Iterable[str]) -> dict[str, Columns]:
    """The datasets, and the columns of each, that any account on *path* was granted."""
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
