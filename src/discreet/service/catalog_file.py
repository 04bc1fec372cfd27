"""The catalog file of a service, which is read again on request while the service runs."""

from __future__ import annotations

import json
import secrets
import threading
from pathlib import Path

from discreet.budget.ledger import canonical
from discreet.budget.manager import BudgetManager
from discreet.budget.model import MAX_LEASE_MS, AdminAction
from discreet.catalog.loader import load_with_digest
from discreet.catalog.model import Catalog
from discreet.service.observability import CatalogRead, Log
from discreet.warehouse import Warehouse

_LEASE_SPARE_MS = 60_000
_RECORD = "catalog", "file"
"""Kind and name of the record with the SHA-256 of the file that all processes should serve."""


def lease_ms(catalog: Catalog) -> int:
    """Return the lease of queries: a run may take as long as the slowest engine, and a minute more."""
    longest = max((engine.timeout_seconds for engine in catalog.engines.values()), default=60)
    return min(1_000 * longest + _LEASE_SPARE_MS, MAX_LEASE_MS)


class CatalogFile:
    """The file of the catalog that a warehouse serves. Usable from several threads.

    A request to read it again checks it at once, and writes its digest to the store, with a line in the ledger. Every
    process then reads its own copy of the file, and serves it if it has that digest.

    Args:
        digest: the SHA-256 of the file that *warehouse* serves, in hexadecimal digits.
    """

    def __init__(self, path: Path, digest: str, warehouse: Warehouse, manager: BudgetManager, log: Log) -> None:
        self._path = path
        self._digest = digest
        self._warehouse = warehouse
        self._manager = manager
        self._log = log
        self._requested = threading.Event()
        # What was requested before the start is served, or was edited since.
        self._done = manager.store.record(*_RECORD)

    @property
    def current(self) -> Catalog:
        """The catalog that is served."""
        return self._warehouse.catalog

    def request(self) -> None:
        """Have the next `apply` read the file, as `reload` does; never blocks, for signals."""
        self._requested.set()

    def reload(self, action: AdminAction) -> None:
        """Read the file, and have all processes serve it if it is valid.

        Raises:
            InputError: the file cannot be used; nothing changes.
        """
        digest, catalog = load_with_digest(self._path)
        text = canonical({"sha256": digest, "request": action.id or secrets.token_hex(8)})
        self._manager.store.put_record(*_RECORD, text, action, {"sha256": digest, "datasets": list(catalog.datasets)})

    def apply(self) -> None:
        """Serve the file if that was requested, in this process or another, since the last call.

        Raises:
            InputError: the file cannot be used; nothing changes.
        """
        if self._requested.is_set():
            self._requested.clear()
            self.reload(AdminAction("discreet", "the service received SIGHUP"))
        requested = self._manager.store.record(*_RECORD)
        if requested is None or requested == self._done:
            return
        digest, catalog = load_with_digest(self._path)
        if json.loads(requested)["sha256"] != digest:
            return  # the file of this machine is another one, so far, or was edited since
        if digest != self._digest:
            self._manager.lease_ms = lease_ms(catalog)
            self._warehouse.replace_catalog(catalog)
            self._digest = digest
            self._log.event(CatalogRead(len(catalog.datasets)))
        self._done = requested
