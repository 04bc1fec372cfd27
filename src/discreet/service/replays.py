"""Answers that are asked for again and again, from memory, in the event loop.

A stored answer never changes, and neither does it that an account has paid for it. What may change is what a question
means: who may ask it, and which state of the data it is about. So an answer is kept with the catalog that its asker
sees and the version of the data, and only where that version can be had without asking an engine.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from discreet.catalog.schedule import Schedule
from discreet.catalog.version import scheduled_version

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from discreet.catalog.model import Catalog, Dataset

FRESH_SECONDS = 1.0
"""How long what was read of a budget is taken for how it stands."""

KEYS_MOST = 100_000
"""Idempotency keys that are remembered, the latest."""

Fields: TypeAlias = list[tuple[bytes, bytes]]
"""Headers as ASGI has them."""

Name: TypeAlias = tuple[str, bytes, str]
"""Account, body of the request, form of the answer."""


@dataclass(slots=True)
class Kept:
    """An answer in memory.

    Args:
        body: as it leaves.
        headers: that leave with it and never change, as ASGI has them.
        id: of the release.
        dataset: its name in the catalog.
        mechanism: by name.
        catalog: as the asker saw it.
        data_version: that it is about.
        minute: in which the version was last held against the clock.
    """

    body: bytes
    headers: Fields
    id: str
    dataset: str
    mechanism: str
    catalog: Catalog
    data_version: str
    minute: int = -1


class Replays:
    """Keeps the answers that were asked for last.

    Args:
        clock: the time with its zone.
        bytes_most: of requests and answers together.
    """

    def __init__(self, clock: Callable[[], datetime], bytes_most: int = 64 * 2**20) -> None:
        self._clock, self._most = clock, bytes_most
        self._kept: OrderedDict[Name, Kept] = OrderedDict()
        self._bytes = 0

    def recall(self, name: Name, catalog: Catalog | None) -> Kept | None:
        """The answer, if it still is one.

        Args:
            name: of the request.
            catalog: what the asker may ask about now; None if nobody knows without asking the store.
        """
        kept = self._kept.get(name)
        if kept is None or catalog is None:
            return None
        if kept.catalog is not catalog or not self._is_current(kept):
            self._drop(name)
            return None
        self._kept.move_to_end(name)
        return kept

    def keep(self, name: Name, kept: Kept) -> None:
        """Remember an answer, if it can be known later that it still is one."""
        if known_version(kept.catalog.datasets[kept.dataset], self._clock()) is None:
            return
        if name in self._kept:
            self._drop(name)
        self._kept[name] = kept
        self._bytes += _size(name, kept)
        while self._bytes > self._most:
            self._drop(next(iter(self._kept)))

    def _is_current(self, kept: Kept) -> bool:
        now = self._clock()
        minute = int(now.timestamp() // 60)
        if minute != kept.minute:  # schedules know nothing shorter
            kept.minute = minute
            return known_version(kept.catalog.datasets[kept.dataset], now) == kept.data_version
        return True

    def _drop(self, name: Name) -> None:
        self._bytes -= _size(name, self._kept.pop(name))


class UsedKeys:
    """Idempotency keys, the requests that they came with, and the answers that they got.

    The store knows those of questions that it was asked, for ever. Here are those of answers from memory too, which
    were free: if this process forgets one, nobody is charged twice, but its coming with another request goes unnoticed.
    """

    def __init__(self) -> None:
        self._used: OrderedDict[tuple[str, str], tuple[bytes, str]] = OrderedDict()

    def allow(self, account: str, key: str | None, body: bytes) -> bool:
        """True unless the key came with another request of the account."""
        known = None if key is None else self._used.get((account, key))
        return known is None or known[0] == _digest(body)

    def fits(self, account: str, key: str | None, release: str) -> bool:
        """False if the key got another answer before, as it may have before the data got its next version."""
        known = None if key is None else self._used.get((account, key))
        return known is None or known[1] == release

    def note(self, account: str, key: str | None, body: bytes, release: str) -> None:
        """Remember the key of a request that was answered with the release of that id."""
        if key is None:
            return
        self._used[account, key] = _digest(body), release
        if len(self._used) > KEYS_MOST:
            self._used.popitem(last=False)


class Standings:
    """How accounts stood a moment ago, as the headers that say it.

    Args:
        clock: seconds that only rise.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._known: dict[str, tuple[float, Fields]] = {}

    def recall(self, account: str) -> Fields | None:
        """The headers, or None if they are older than a second."""
        known = self._known.get(account)
        return known[1] if known is not None and self._clock() - known[0] <= FRESH_SECONDS else None

    def note(self, account: str, fields: Fields) -> Fields:
        """Remember the headers of an account that was looked at just now."""
        self._known[account] = self._clock(), fields
        return fields


def known_version(dataset: Dataset, now: datetime) -> str | None:
    """The version of a dataset's data where the catalog and the clock say it; None where an engine has to."""
    match dataset.data_version:
        case str() as text:
            return text
        case Schedule() as schedule:
            return scheduled_version(schedule, now)
    return None


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()


def _size(name: Name, kept: Kept) -> int:
    return len(name[1]) + len(kept.body) + 2_000  # for all that is small
