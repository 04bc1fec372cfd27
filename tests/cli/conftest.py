"""A table of articles that many readers read, and a way to run the command line on it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from discreet.cli import main

if TYPE_CHECKING:
    from pathlib import Path

READERS = {"bees": 900, "tides": 700, "moss": 500, "owls": 2}


@dataclass(frozen=True)
class Ran:
    """What a run of the command line left behind."""

    code: int
    out: str
    err: str


@pytest.fixture
def run(capsys, monkeypatch):
    """Run `discreet` with arguments, in this process."""
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # main() replaces it

    def run(*arguments: object) -> Ran:
        with pytest.raises(SystemExit) as caught:
            main([str(argument) for argument in arguments])
        shown = capsys.readouterr()
        return Ran(int(caught.value.code or 0), shown.out, shown.err)

    return run


@pytest.fixture(scope="session")
def reads(tmp_path_factory) -> Path:
    """A Parquet file: reader, article, and columns that cannot be items."""
    rows = [(reader, article) for article, n in READERS.items() for reader in range(n)]
    path = tmp_path_factory.mktemp("reads") / "reads.parquet"
    pq.write_table(
        pa.table(
            {
                "reader": [reader for reader, _ in rows],
                "article": [article for _, article in rows],
                "year": [2020 + reader % 5 for reader, _ in rows],
                "score": [0.5] * len(rows),
            }
        ),
        path,
    )
    return path


@pytest.fixture
def ask(run, reads):
    """Run a command on that table."""

    def ask(command: str, *arguments: object) -> Ran:
        return run(command, reads, "--user", "reader", "--item", "article", *arguments)

    return ask
