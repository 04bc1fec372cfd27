"""Keep the latest plans and answers of accounts in memory, so that a repeated request is neither planned nor stored.

A stored answer never changes, nor does it that an account has paid for it. What can change is what a request means:
what its account may query, and which state of the data it is about. So an entry holds for one catalog object and one
version of the data, and only where that version can be had without querying an engine.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from discreet.catalog.engine_pool import scheduled_version
from discreet.catalog.model import Schedule

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from discreet.catalog.model import Catalog, Dataset
    from discreet.service.queries import PlannedQuery
    from discreet.service.serializers import Form


@dataclass(slots=True)
class _Entry:
    """What is kept of a request.

    Args:
        minute: in which the version was last compared with the clock; schedules know nothing shorter.
        answers: that left, in the forms that were wanted.
    """

    catalog: Catalog
    planned: PlannedQuery
    minute: int
    answers: dict[Form, bytes] = field(default_factory=dict)

    def bytes(self, body: bytes) -> int:
        """Return about how much memory this takes; a plan is many times as large as its text."""
        return 4_000 + 40 * len(body) + sum(map(len, self.answers.values()))


class ReplayCache:
    """Least recently used plans and answers, by account and body of the request. Usable from several threads.

    Args:
        clock: the time with its zone.
    """

    def __init__(self, clock: Callable[[], datetime], bytes_most: int = 64 * 2**20) -> None:
        self._clock, self._bytes_most = clock, bytes_most
        self._entries: OrderedDict[tuple[str, bytes], _Entry] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def plan(self, account: str, body: bytes, catalog: Catalog) -> PlannedQuery | None:
        """Return the plan of a request, if it still is one.

        Args:
            catalog: what the account may query now.
        """
        with self._lock:
            entry = self._current(account, body, catalog)
            return None if entry is None else entry.planned

    def answer(self, account: str, body: bytes, catalog: Catalog, form: Form) -> tuple[PlannedQuery, bytes] | None:
        """Return the plan of a request and its answer in *form*, which the account has paid for; see `plan`."""
        with self._lock:
            entry = self._current(account, body, catalog)
            return None if entry is None or form not in entry.answers else (entry.planned, entry.answers[form])

    def keep(
        self, account: str, body: bytes, catalog: Catalog, planned: PlannedQuery, form: Form, answer: bytes
    ) -> None:
        """Keep the plan and the answer of a request, if it can be known later that they are current."""
        now = self._clock()
        if known_version(catalog.datasets[planned.dataset], now) is None:
            return
        with self._lock:
            entry = self._entries.pop((account, body), None)
            self._bytes -= 0 if entry is None else entry.bytes(body)
            if entry is None or entry.catalog is not catalog or entry.planned.release_key != planned.release_key:
                entry = _Entry(catalog, planned, _minute(now))
            entry.answers[form] = answer
            self._entries[account, body] = entry
            self._bytes += entry.bytes(body)
            while self._bytes > self._bytes_most:
                self._drop(next(iter(self._entries)))

    def _current(self, account: str, body: bytes, catalog: Catalog) -> _Entry | None:
        entry = self._entries.get((account, body))
        if entry is None:
            return None
        now = self._clock()
        current = entry.catalog is catalog
        if current and _minute(now) != entry.minute:
            entry.minute = _minute(now)
            dataset = catalog.datasets[entry.planned.dataset]
            current = known_version(dataset, now) == entry.planned.data_version
        if not current:
            self._drop((account, body))
            return None
        self._entries.move_to_end((account, body))
        return entry

    def _drop(self, name: tuple[str, bytes]) -> None:
        self._bytes -= self._entries.pop(name).bytes(name[1])


def known_version(dataset: Dataset, now: datetime) -> str | None:
    """Return the version of a dataset's data where catalog and clock determine it; None where an engine has to."""
    match dataset.data_version:
        case str() as text:
            return text
        case Schedule() as schedule:
            return scheduled_version(schedule, now)
    return None


def _minute(now: datetime) -> int:
    return int(now.timestamp() // 60)
