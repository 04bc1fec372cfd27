"""DuckDB engines that are closed when the test ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from discreet.engines.duckdb import DuckDBEngine
from discreet.head_request import HeadRequest
from discreet.query.predicates import bind_where
from discreet.query.sql import parse_where
from discreet.testing.engines import rows_of


@pytest.fixture
def engine():
    """Return a function that opens an engine on a source and a table's name."""
    made = []

    def make(source, table=None):
        made.append(DuckDBEngine(source, table))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def head(engine):
    """Return a function that reads the head of a source as plain values, from the columns user and item."""
    frames = {}  # frames, some of which can be read once, and engines on them, by id; files may change during a test

    def count(source, *items, table=None, where=None, limit=1000, **parts):
        _, opened = frames.get(id(source)) or (source, engine(source, table))
        if not isinstance(source, str | Path):
            frames[id(source)] = source, opened
        bound = None if where is None else bind_where(parse_where(where), opened.columns())
        return rows_of(opened, HeadRequest("user", items or ("item",), limit, bound, **parts))

    return count
