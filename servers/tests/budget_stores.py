"""A store of budgets in PostgreSQL with a few accounts, opened as often as a test likes. A plugin of such tests."""

from __future__ import annotations

import contextlib

import pytest
from tests.budget.suite import ACT, account

from discreet.budget.stores.postgres import PostgresStore
from servers.tests.budget_places import new_place


@pytest.fixture
def place(server):
    """Of a store with ann and bob of an organisation, which may spend 20, with a dataset; it verifies in the end."""
    where = new_place(server("postgres"))
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
def open_store(place):
    """Opens stores and closes them in the end."""
    with contextlib.ExitStack() as stack:
        yield lambda url=place, **parts: stack.enter_context(contextlib.closing(PostgresStore(url, **parts)))
