"""The datasets of a catalog, opened once for however many analysts: their engines, listed items and versions."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from discreet.catalog.check import misfits
from discreet.catalog.connect import open_dataset
from discreet.catalog.domain import known_domain
from discreet.catalog.version import current_version
from discreet.errors import EngineError, InputError

if TYPE_CHECKING:
    import datetime
    from collections.abc import Callable, Iterator, Mapping

    import pyarrow as pa

    from discreet.catalog.model import Catalog, Dataset
    from discreet.engines.base import Engine


class OpenDatasets:
    """What was read from a catalog's engines before any question, and the engines. Usable from several threads.

    Nothing raised here names a file, a host or a column that analysts are not to know of; the cause, chained, does.

    Args:
        catalog: all that is declared.
        clock: the time with its zone, for data versions on a schedule.
        environment: the variables in which passwords of engines are.
    """

    def __init__(
        self, catalog: Catalog, clock: Callable[[], datetime.datetime], environment: Mapping[str, str]
    ) -> None:
        self.catalog = catalog
        self._clock = clock
        self._environment = environment
        self._locks = {name: threading.Lock() for name in catalog.datasets}  # a slow engine delays its own alone
        self._engines: dict[str, Engine] = {}
        self._scales: dict[tuple[str, str], int] = {}
        self._domains: dict[tuple[str, tuple[str, ...]], tuple[str | None, pa.Table | None]] = {}

    def engine(self, name: str) -> Engine:
        """The engine of a dataset, connected to once.

        Args:
            name: as the catalog has it, here and below.

        Raises:
            EngineError: it cannot be reached, or the table is not what the catalog says.
        """
        if name not in self._engines:
            with self._locks[name]:
                if name not in self._engines:
                    with _owners(name):
                        self._engines[name] = self._opened(name)
        return self._engines[name]

    def version(self, name: str) -> str | None:
        """The version of a dataset's data now, or None if nobody says it.

        Raises:
            EngineError: the engine failed, or the owner's statement does not return a version.
        """
        with _owners(name):
            return current_version(self.catalog.datasets[name], self.engine(name), self._clock())

    def has_pairs(self, name: str) -> bool:
        """Return whether a dataset's engine has pair queries; True if the engine cannot be opened now, as most have."""
        try:
            return self.engine(name).has_pairs
        except (EngineError, InputError):
            return True

    def scale(self, name: str, column: str) -> int:
        """Digits behind the point of a dataset's column; kept, because an engine that counts may not answer at once.

        Raises:
            EngineError: the engine failed.
        """
        if (name, column) not in self._scales:
            with _owners(name):
                self._scales[name, column] = self.engine(name).scale(column)
        return self._scales[name, column]

    def domain(self, name: str, items: tuple[str, ...]) -> pa.Table | None:
        """All items there can be, where the catalog lists those of every item column; kept until the data changes.

        Raises:
            EngineError: the engine failed, or what the owner lists is no domain.
        """
        dataset = self.catalog.datasets[name]
        if not items or any(dataset.columns[item].domain is None for item in items):
            return None
        version = None if _is_written_out(dataset, items) else self.version(name)
        kept = self._domains.get((name, items))
        if kept is None or kept[0] != version or (version is None and not _is_written_out(dataset, items)):
            with _owners(name):
                kept = version, known_domain(dataset, items, self.engine(name))
            self._domains[name, items] = kept
        return kept[1]

    def close(self) -> None:
        """Give up all connections."""
        while self._engines:
            self._engines.popitem()[1].close()

    def _opened(self, name: str) -> Engine:
        opened = open_dataset(self.catalog, name, self._environment)
        try:
            wrong = misfits(self.catalog.datasets[name], opened.columns())
        except BaseException:
            opened.close()
            raise
        if wrong:
            opened.close()
            raise InputError(wrong[0])
        return opened


def _is_written_out(dataset: Dataset, items: tuple[str, ...]) -> bool:
    """True if the catalog itself lists all labels, so that they are the same in every version of the data."""
    return all(isinstance(dataset.columns[item].domain, tuple) for item in items)


@contextmanager
def _owners(name: str) -> Iterator[None]:
    """Whatever fails here is the owner's to mend, and says nothing to anybody else."""
    try:
        yield
    except (InputError, EngineError, OSError) as error:
        raise EngineError(
            f"the dataset {name!r} cannot be asked now: its owner should run discreet catalog check"
        ) from error
