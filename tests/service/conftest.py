"""A service of its own for each test."""

from __future__ import annotations

import contextlib

import pytest

from .world import World, write_tables


@pytest.fixture(scope="session")
def tables(tmp_path_factory):
    """The tables of all services."""
    folder = tmp_path_factory.mktemp("tables")
    write_tables(folder)
    return folder


@pytest.fixture
def world(tmp_path, tables):
    """A service with usual settings."""
    with World(tmp_path, tables) as made:
        yield made


@pytest.fixture
def worlds(tmp_path, tables):
    """Makes services with settings of their own."""
    with contextlib.ExitStack() as stack:

        def make(name="other", **settings):
            folder = tmp_path / name
            folder.mkdir()
            return stack.enter_context(World(folder, tables, **settings))

        yield make
