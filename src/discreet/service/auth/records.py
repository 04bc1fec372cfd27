"""A cache of the API keys and grants in the store, at most a second old."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from discreet.budget.stores.store import BudgetStore

FRESH = timedelta(seconds=1)
"""How long a key that was revoked by another process is still accepted."""

KEY, GRANT, USED = "key", "grant", "used"
"""Kinds of records: API keys by id, grants by account and dataset, when keys were last used."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The records at one time.

    Args:
        version: of the records; it changes with every change of a record.
        keys: texts of API keys, by id.
        grants: texts of grants, by name.
    """

    version: int
    keys: Mapping[str, str]
    grants: Mapping[str, str]


class RecordCache:
    """The records, read again after a change. Usable from several threads.

    Args:
        store: of the records.
        clock: the time.
    """

    def __init__(self, store: BudgetStore, clock: Callable[[], datetime]) -> None:
        self._store, self._clock = store, clock
        self._lock = threading.Lock()
        self._last: tuple[datetime, Snapshot] | None = None

    def cached(self) -> Snapshot | None:
        """Return the records from memory, without waiting; None if they are older than a second."""
        last = self._last
        # The difference is absolute, for a clock that is put back must not keep anything fresh.
        return last[1] if last is not None and abs(self._clock() - last[0]) <= FRESH else None

    def read(self) -> Snapshot:
        """Return the records from memory if they are fresh, otherwise from the store.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        with self._lock:
            return self.cached() or self._read()

    def invalidate(self) -> None:
        """Read the records again next time, because this process changed one."""
        with self._lock:  # a read under way may have read what was before
            self._last = None

    def _read(self) -> Snapshot:
        # The version first: if the records change in between, the next read sees another version.
        now, version = self._clock(), self._store.records_version()
        if self._last is None or self._last[1].version != version:
            keys, grants = (dict(self._store.records(kind)) for kind in (KEY, GRANT))
            snapshot = Snapshot(version, keys, grants)
        else:
            snapshot = self._last[1]
        self._last = now, snapshot
        return snapshot
