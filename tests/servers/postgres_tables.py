"""A pytest plugin: PostgreSQL tables that are created by their owner and read by an engine as the reader.

Nothing is dropped, because the server's data is discarded with the server.
"""

from __future__ import annotations

import itertools
import os
import re

import pytest

from discreet.engines.postgres import PostgresEngine
from tests.servers import postgres as server_of

_NUMBERS = itertools.count()
_TYPES = (
    "CREATE EXTENSION IF NOT EXISTS citext",
    "DROP TYPE IF EXISTS mood CASCADE",
    "CREATE TYPE mood AS ENUM ('z', 'a')",
    "DROP DOMAIN IF EXISTS cents, word CASCADE",
    "CREATE DOMAIN cents AS numeric(9, 2)",
    "CREATE DOMAIN word AS citext",
    "DROP COLLATION IF EXISTS blind CASCADE",
    "CREATE COLLATION blind (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
)


def _new_name():
    return f"t{os.getpid()}_{next(_NUMBERS)}"


@pytest.fixture(scope="session")
def postgres_url(server):
    """Return the URL of the running PostgreSQL server, with the reader's credentials."""
    return server("postgres")


@pytest.fixture(scope="session")
def owner(postgres_url):
    """Return a connection with the owner's rights."""
    with server_of.owner(postgres_url) as connection:
        for statement in _TYPES:
            connection.execute(statement)
        yield connection


@pytest.fixture(scope="session")
def loaded(postgres_url):
    """Return a function that loads an Arrow table under a new name, which it returns."""

    def load(table):
        name = _new_name()
        server_of.load(postgres_url, table, name)
        return name

    return load


@pytest.fixture
def make_table(owner):
    """Return a function that runs statements as the owner with T replaced by a new name, which it returns."""

    def execute(*statements):
        name = _new_name()
        for statement in statements:
            owner.execute(re.sub(r"\bT(?=\b|_)", name, statement))
        return name

    return execute


@pytest.fixture
def reader(postgres_url):
    """Return a function that opens engines as the reader; they are closed at the end."""
    opened = []

    def open_(table=None, url=postgres_url, **parts):
        opened.append(PostgresEngine(url, table=table, **parts))
        return opened[-1]

    yield open_
    for each in opened:
        each.close()


@pytest.fixture
def column(make_table, reader):
    """Return a function that opens an engine on a table with columns who (1, 2, ...) and item, given in SQL."""

    def make(type_, *values):
        rows = ", ".join(f"({n}, {value})" for n, value in enumerate(values, 1))
        return reader(make_table(f"CREATE TABLE T (who int, item {type_})", f"INSERT INTO T VALUES {rows}"))

    return make
