"""A dataset of a few lines, and an engine that answers what it is told to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from discreet.catalog.loader import load_catalog
from discreet.errors import EngineError, InputError

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from discreet.catalog.model import Catalog, Dataset
    from discreet.question import Kind


def catalog_of(folder: Path, settings: str) -> Catalog:
    """A catalog in *folder* with one dataset d, with some settings more."""
    start = "[datasets.d]" if "source =" in settings else '[datasets.d]\nsource = "t.parquet"'
    column = "" if "columns" in settings else 'columns.a = { type = "text", group = true }\n'
    path = folder / "catalog.toml"
    path.write_text(f'{start}\nuser = "u"\n{column}{settings}\n', "utf-8")
    return load_catalog(path)


def dataset(folder: Path, settings: str) -> Dataset:
    """Its dataset."""
    return catalog_of(folder, settings).datasets["d"]


class FakeEngine:
    """Holds columns and answers, remembers whether it was closed."""

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
        """Fails if it has none."""
        if self._columns is None:
            raise EngineError("the engine cannot be reached")
        return self._columns

    def scale(self, _column: str) -> int:
        """Whole numbers."""
        return 0

    def check_sum(self, column: str) -> None:
        """Whatever it is called, but for one."""
        if column == "long":
            raise InputError("column 'long' cannot be summed: it is too long")

    def fetch(self, statement: str) -> pa.Table:
        """Fails at statements it does not know."""
        if statement not in self._answers:
            raise EngineError("the engine could not run a statement")
        return self._answers[statement]

    def data_version(self) -> str | None:
        """What it was told."""
        return self._version

    def close(self) -> None:
        """Once is enough."""
        self.closed = True
