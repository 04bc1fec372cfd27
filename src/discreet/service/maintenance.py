"""Regular maintenance of the budgets and of the sources of data while the service runs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

from discreet.budget.errors import LedgerBroken, StoreBehind
from discreet.budget.manager import BudgetManager
from discreet.budget.rules import microseconds
from discreet.service.auth.api_keys import ApiKeys
from discreet.service.catalog_file import CatalogFile
from discreet.service.observability import (
    DatasetAvailable,
    DatasetUnavailable,
    Failed,
    LeasesExpired,
    Log,
    Metrics,
    SourceReplaced,
)
from discreet.warehouse import Warehouse

INTERVAL_SECONDS = 10.0

CLOCK_TOLERANCE = timedelta(minutes=5)
"""The maximum difference between the clocks of the store and the service."""


class Maintenance:
    """End expired reservations, write checkpoints, compare clocks, store the last use of keys, open changed sources.

    Args:
        warehouse: the datasets; only maintenance opens and checks their sources, never a request.
        catalog: the file of their catalog.
        has_checkpoints: True if the manager writes checkpoints.
        update_index: brings the index of the ledger up to date.
        refresh_running: begins and refreshes running counts.

    Attributes:
        clocks_agree: False if the clock of the store differs from that of the service by more than `CLOCK_TOLERANCE`.
    """

    def __init__(
        self,
        manager: BudgetManager,
        warehouse: Warehouse,
        catalog: CatalogFile,
        keys: ApiKeys,
        metrics: Metrics,
        log: Log,
        clock: Callable[[], datetime],
        monotonic: Callable[[], float],
        *,
        has_checkpoints: bool,
        update_index: Callable[[], None],
        refresh_running: Callable[[], None],
    ) -> None:
        self._manager = manager
        self._keys = keys
        self._metrics = metrics
        self._log = log
        self._warehouse = warehouse
        self._catalog = catalog
        self._update_index = update_index
        self._refresh_running = refresh_running
        self._clock = clock
        self._monotonic = monotonic
        self.has_checkpoints = has_checkpoints
        self.clocks_agree = True
        self._done: float | None = None  # the time of the last success, and of the last checkpoint
        self._checkpoint: float | None = None
        self._account: str | None = None

    @property
    def age_seconds(self) -> float:
        """Return the time since the last success; infinite if there was none."""
        return self._since(self._done)

    @property
    def checkpoint_seconds(self) -> float:
        """Return the time since the last checkpoint; infinite if there was none."""
        return self._since(self._checkpoint)

    def once(self) -> None:
        """Do all maintenance once; a failure is logged, and the next run retries."""
        try:
            ended = self._manager.maintain()
            self._checkpoint = self._monotonic()
            self._metrics.maintained(sum(head.seq for head in self._manager.store.heads()))
            if self._account is None:
                self._account = next((account.id for account in self._manager.store.accounts()), None)
            if self._account is not None:  # any account: a balance has the time of the store
                apart_us = self._manager.get(self._account).balance.time_us - microseconds(self._clock())
                self.clocks_agree = abs(apart_us) <= CLOCK_TOLERANCE // timedelta(microseconds=1)
            self._keys.save_last_used(at_once=False)
        except Exception as error:  # noqa: BLE001 - the thread must go on
            self._log.event(Failed.of(error, "maintenance"))
            if isinstance(error, StoreBehind | LedgerBroken):
                self._done = self._checkpoint = None  # the store can no longer be used: report unready at once
            return
        self._done = self._monotonic()
        if ended:
            self._log.event(LeasesExpired(ended))
        for work in (self._keys.import_key_file, self._update_index):
            try:
                work()
            except Exception as error:  # noqa: BLE001 - as above
                self._log.event(Failed.of(error, "maintenance"))

    def refresh_sources(self) -> None:
        """Use the catalog as it was last read, and open and check sources that are new, have changed or failed.

        Queries switch to those that passed.
        """
        before = self._warehouse.unavailable().keys()
        replaced = self._warehouse.replaced()
        try:
            self._catalog.apply()
        except Exception as error:  # noqa: BLE001 - the thread must go on, with the catalog that it has
            self._log.event(Failed.of(error, "catalog"))
        self._warehouse.refresh()
        for name in sorted(self._warehouse.replaced() - replaced):
            self._log.event(SourceReplaced(name))
        after = self._warehouse.unavailable().keys()
        for name in sorted(before ^ after):
            self._log.event(DatasetUnavailable(name) if name in after else DatasetAvailable(name))

    def refresh_streams(self) -> None:
        """Open and check sources, and then refresh running counts, whose rows may be in new ones."""
        self.refresh_sources()
        self._refresh_running()

    def finish(self) -> None:
        """Do all maintenance for the last time, before the service stops."""
        self.once()
        with contextlib.suppress(Exception):  # a failure loses only the last use of keys
            self._keys.save_last_used(at_once=True)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Do all maintenance every ten seconds until the context ends; what may read much, in another thread."""
        with (
            repeating(self.once, INTERVAL_SECONDS, "maintenance"),
            repeating(self.refresh_streams, INTERVAL_SECONDS, "sources", patience=1.0),
        ):
            yield

    def _since(self, moment: float | None) -> float:
        return float("inf") if moment is None else self._monotonic() - moment


@contextlib.contextmanager
def repeating(work: Callable[[], None], seconds: float, name: str, *, patience: float | None = None) -> Iterator[None]:
    """Call *work* regularly in a thread until the context ends; the context waits for a running call.

    Args:
        work: must not raise, because an exception would end the thread.
        seconds: the pause before each call.
        patience: the most seconds that the context waits for a running call, or None.
    """
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(seconds):
            work()

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(patience)
