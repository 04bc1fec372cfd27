"""What has to happen every ten seconds while the service runs, and whether it did."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from discreet.budget.checkpoints import Checkpointer
from discreet.budget.errors import LedgerBroken, StoreBehind
from discreet.service.auth.api_keys import microseconds
from discreet.service.observability.events import Failed, LeasesExpired

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    from discreet.budget.manager import BudgetManager
    from discreet.budget.stores.store import BudgetStore
    from discreet.service.auth.api_keys import ApiKeys
    from discreet.service.observability.logging import Log


EVERY_SECONDS = 10.0
"""How often."""

CLOCKS_APART = timedelta(minutes=5)
"""How far the clock of the store may be from ours."""


class Meter(Protocol):
    """Is told how the upkeep went; a `discreet.service.observability.metrics.Metrics`."""

    def tended(self, ledger_lines: int) -> None:
        """It succeeded just now."""
        ...


@dataclass(slots=True)
class MaintenanceStatus:
    """When something last succeeded, in seconds that only rise; None if it never did.

    Args:
        tended: the whole upkeep.
        sealed: the witness was told the end of the ledger.
        clocks_agree: False if the store's clock was far from ours when they were last compared.
    """

    tended: float | None = None
    sealed: float | None = None
    clocks_agree: bool = True


@dataclass(frozen=True, slots=True)
class TimedCheckpointer(Checkpointer):
    """A checkpointer that leaves a mark when it sealed.

    Args:
        marks: where.
        monotonic: seconds that only rise.
    """

    marks: MaintenanceStatus
    monotonic: Callable[[], float]

    def write(self, store: BudgetStore) -> None:
        """See `Checkpointer.write`."""
        Checkpointer.write(self, store)
        self.marks.sealed = self.monotonic()


class Maintenance:
    """Tends the budgets.

    Args:
        manager: of the budgets.
        locksmith: keeps when keys were used.
        meter: is told how it went.
        log: likewise.
        clock: the time.
        monotonic: seconds that only rise.
        marks: what became of it, for whoever wants to know.
        witnessed: True if the manager has a witness, whose checkpointer leaves marks too.
    """

    def __init__(
        self,
        manager: BudgetManager,
        locksmith: ApiKeys,
        meter: Meter,
        log: Log,
        clock: Callable[[], datetime],
        monotonic: Callable[[], float],
        marks: MaintenanceStatus,
        *,
        witnessed: bool,
    ) -> None:
        self._manager, self._locksmith, self._meter, self._log = manager, locksmith, meter, log
        self._clock, self._monotonic, self._marks = clock, monotonic, marks
        self.witnessed = witnessed
        self._account: str | None = None

    @property
    def age_seconds(self) -> float:
        """Since it last succeeded; infinite if it never did."""
        return self._since(self._marks.tended)

    @property
    def sealed_seconds(self) -> float:
        """Since the witness was last told; infinite if it never was."""
        return self._since(self._marks.sealed)

    @property
    def clocks_agree(self) -> bool:
        """False if the clock of the store ran away from ours, or stands still until an officer confirms it."""
        return self._marks.clocks_agree

    def once(self) -> None:
        """Do all of it once; what fails is told and tried again the next time."""
        try:
            ended = self._manager.maintain()
            self._meter.tended(sum(head.seq for head in self._manager.store.heads()))
            self._marks.clocks_agree = self._compare_clocks()
            self._locksmith.remember(at_once=False)
        except Exception as error:  # noqa: BLE001 - a thread that ends tends nothing
            self._log.event(Failed.of(error, "upkeep"))
            if isinstance(error, StoreBehind | LedgerBroken):
                self._marks.tended = self._marks.sealed = None  # nothing is answered from here on
            return
        self._marks.tended = self._monotonic()
        if ended:
            self._log.event(LeasesExpired(ended))

    def last(self) -> None:
        """What has to happen before the service stops."""
        self.once()
        with contextlib.suppress(Exception):  # only when keys were used is lost
            self._locksmith.remember(at_once=True)

    @contextlib.contextmanager
    def going_on(self) -> Iterator[None]:
        """While it is entered, a thread does it every ten seconds."""
        with repeating(self.once, EVERY_SECONDS, "upkeep"):
            yield

    def _compare_clocks(self) -> bool:
        """A store whose clock ran ahead tells the time at which it did, so that it differs from ours."""
        if self._account is None:
            self._account = next((account.id for account in self._manager.store.accounts()), None)
        if self._account is None:
            return True
        apart_us = self._manager.get(self._account).balance.time_us - microseconds(self._clock())
        return abs(apart_us) <= CLOCKS_APART // timedelta(microseconds=1)

    def _since(self, mark: float | None) -> float:
        return float("inf") if mark is None else self._monotonic() - mark


@contextlib.contextmanager
def repeating(work: Callable[[], None], seconds: float, name: str) -> Iterator[None]:
    """While it is entered, a thread does *work*, with so many seconds between; on leaving, what is under way ends.

    Args:
        work: raises nothing: a thread that ends does nothing any more.
        seconds: above 0.
        name: of the thread.
    """
    stop = threading.Event()

    def go_on() -> None:
        while not stop.wait(seconds):
            work()

    thread = threading.Thread(target=go_on, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
