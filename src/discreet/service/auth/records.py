"""What the store's records say - keys and grants - from memory, at most a second old."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

FRESH = timedelta(seconds=1)
"""How long what was read is taken for what there is: so long works a key that was revoked elsewhere."""

KEY, GRANT, USED = "key", "grant", "used"
"""Kinds of records: API keys by id, grants by account and dataset, when keys were last used."""


class Records(Protocol):
    """Where the records are; a `discreet.budget.manager.BudgetManager` has these methods."""

    def records(self, kind: str) -> list[tuple[str, str]]:
        """Names and texts of all records of a kind, by name."""
        ...

    def records_version(self) -> int:
        """A number that rises with every change of any record."""
        ...


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The records as they were.

    Args:
        version: of the records; what was worked out from a snapshot holds as long as it is the same.
        keys: texts of API keys, by id.
        grants: texts of grants, by name.
    """

    version: int
    keys: Mapping[str, str]
    grants: Mapping[str, str]


class RecordCache:
    """The records, read again when they changed. Usable from several threads.

    Args:
        records: where they are.
        clock: the time.
    """

    def __init__(self, records: Records, clock: Callable[[], datetime]) -> None:
        self._records, self._clock = records, clock
        self._lock = threading.Lock()
        self._last: tuple[datetime, Snapshot] | None = None

    def cached(self) -> Snapshot | None:
        """From memory alone, or None if that is older than a second: for those who must not wait."""
        last = self._last
        # A clock that was put back must not keep anything fresh.
        return last[1] if last is not None and abs(self._clock() - last[0]) <= FRESH else None

    def read(self) -> Snapshot:
        """From memory if it is fresh, otherwise from the store.

        Raises:
            StoreUnavailable: the store cannot be asked.
        """
        with self._lock:
            return self.cached() or self._look()

    def invalidate(self) -> None:
        """Read again next time: something was changed here."""
        with self._lock:  # whoever is reading now may have read what was before
            self._last = None

    def _look(self) -> Snapshot:
        # The version before the records: if they change in between, the next look sees another version.
        now, version = self._clock(), self._records.records_version()
        if self._last is None or self._last[1].version != version:
            keys, grants = (dict(self._records.records(kind)) for kind in (KEY, GRANT))
            snapshot = Snapshot(version, keys, grants)
        else:
            snapshot = self._last[1]
        self._last = now, snapshot
        return snapshot
