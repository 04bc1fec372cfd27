"""A small dataset, and an engine with given columns and answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from discreet.catalog.loader import load_catalog
from discreet.errors import EngineError, InputError

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from discreet.catalog.model import Catalog, Dataset
    from discreet.head_request import Kind


def catalog_of(folder: Path, settings: str) -> Catalog:
    """Write a catalog with one dataset d and more settings into *folder*."""
    start = "[datasets.d]" if "source =" in settings else '[datasets.d]\nsource = "t.parquet"'
    column = "" if "columns" in settings else 'columns.a = { type = "text", group = true }\n'
    path = folder / "catalog.toml"
    path.write_text(f'{start}\nuser = "u"\n{column}{settings}\n', "utf-8")
    return load_catalog(path)


def dataset(folder: Path, settings: str) -> Dataset:
    """Return the dataset of `catalog_of`."""
    return catalog_of(folder, settings).datasets["d"]


class FakeEngine:
    """Has given columns and responses, and records whether it was closed."""

    has_pairs = False

    def __init__(
        self,
        columns: dict[str, Kind] | None = None,
        answers: dict[str, pa.Table] | None = None,
        version: str | None = None,
    ) -> None:
        self.closed = False
        self._columns = columns
        self._answers = answers or {}
        self._version = version

    def columns(self) -> dict[str, Kind]:
        """Return the columns, or raise an error if there are none."""
        if self._columns is None:
            raise EngineError("the engine cannot be reached")
        return self._columns

    def scale(self, _column: str) -> int:
        """Return 0 digits."""
        return 0

    def check_sum(self, column: str) -> None:
        """Refuse one column."""
        if column == "long":
            raise InputError("column 'long' cannot be summed: it is too long")

    def account_notes(self) -> list[str]:
        """Return no notes."""
        return []

    def fetch(self, statement: str) -> pa.Table:
        """Return the response to a known statement."""
        if statement not in self._answers:
            raise EngineError("the engine could not run a statement")
        return self._answers[statement]

    def data_version(self) -> str | None:
        """Return the given version."""
        return self._version

    def close(self) -> None:
        """Close the engine once."""
        self.closed = True
