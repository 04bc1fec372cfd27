"""Engines that are closed when the test ends."""

from __future__ import annotations

import pytest

from discreet.engines.duckdb import DuckDBEngine
from discreet.query.predicates import bind_where
from discreet.query.sql import parse_where
from discreet.question import HeadRequest
from discreet.testing.engines import rows_of


@pytest.fixture
def engine():
    """Makes engines from a source and a table's name."""
    made = []

    def make(source, table=None):
        made.append(DuckDBEngine(source, table))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def head(engine):
    """The head of a source as plain values; the user column is called user, the item column item."""

    def count(source, *items, table=None, where=None, limit=1000, **parts):
        opened = engine(source, table)
        bound = None if where is None else bind_where(parse_where(where), opened.columns())
        return rows_of(opened, HeadRequest("user", items or ("item",), limit, bound, **parts))

    return count
