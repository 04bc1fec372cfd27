"""A pytest plugin: a PostgreSQL budget store with a few accounts, which tests can open several times."""

from __future__ import annotations

import contextlib

import pytest

from discreet.budget.stores.postgres import PostgresStore
from tests.budget.suite import ACT, account
from tests.servers.budget_schemas import new_schema


@pytest.fixture
def store_url(server):
    """Return the URL of a store with ann and bob in an organisation of limit 20 on a dataset; verify it at the end."""
    where = new_schema(server("postgres"))
    with contextlib.closing(PostgresStore(where)) as store:
        store.create(account("data", 1_000), ACT)
        store.create(account("org", 20, "data"), ACT)
        for name in ("ann", "bob"):
            store.create(account(name, 15, "org"), ACT)
        yield where
        store.verify()
        for each in store.accounts():
            assert store.balance(each.id).spent.within(each.limit)


@pytest.fixture
def open_store(store_url):
    """Return a function that opens stores, which are closed at the end."""
    with contextlib.ExitStack() as stack:
        yield lambda url=store_url, **parts: stack.enter_context(contextlib.closing(PostgresStore(url, **parts)))
