"""Tables in PostgreSQL, made by their owner and read by an engine as the reader. A plugin of the tests that need them.

Nothing is dropped: what a server holds ends with it.
"""

from __future__ import annotations

import itertools
import os
import re

import pytest

from discreet.engines.postgres import PostgresEngine
from servers import postgres as server_of

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
    """Of the running PostgreSQL, as the reader."""
    return server("postgres")


@pytest.fixture(scope="session")
def owner(postgres_url):
    """A connection with all rights."""
    with server_of.owner(postgres_url) as connection:
        for statement in _TYPES:
            connection.execute(statement)
        yield connection


@pytest.fixture(scope="session")
def loaded(postgres_url):
    """Loads an Arrow table under a new name; returns it."""

    def load(table):
        name = _new_name()
        server_of.load(postgres_url, table, name)
        return name

    return load


@pytest.fixture
def run(owner):
    """Runs statements of the owner's in which T is a new name; returns it."""

    def execute(*statements):
        name = _new_name()
        for statement in statements:
            owner.execute(re.sub(r"\bT(?=\b|_)", name, statement))
        return name

    return execute


@pytest.fixture
def reader(postgres_url):
    """Opens engines as the reader, and closes them in the end."""
    opened = []

    def open_(table=None, url=postgres_url, **parts):
        opened.append(PostgresEngine(url, table=table, **parts))
        return opened[-1]

    yield open_
    for each in opened:
        each.close()


@pytest.fixture
def column(run, reader):
    """Opens an engine on a table with the columns who (1, 2, ...) and item, of a type and with values in SQL."""

    def make(type_, *values):
        rows = ", ".join(f"({n}, {value})" for n, value in enumerate(values, 1))
        return reader(run(f"CREATE TABLE T (who int, item {type_})", f"INSERT INTO T VALUES {rows}"))

    return make
