"""A table of articles with many readers each, and a function that runs the command line on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Ran

READERS = {"bees": 900, "tides": 700, "moss": 500, "owls": 2}


@pytest.fixture(scope="session")
def reads(tmp_path_factory) -> Path:
    """Return a Parquet file: reader, article, and columns that cannot be items."""
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
