"""The SQLite store passes the suite of stores, in a file and in memory."""

from __future__ import annotations

import contextlib

import pytest

from discreet.budget.stores.sqlite import SQLiteStore
from tests.budget.suite import BudgetStoreSuite


class TestInAFile(BudgetStoreSuite):
    """As a service keeps it."""

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path):
        self.folder = tmp_path

    @contextlib.contextmanager
    def opened(self, clock):
        """A file of its own."""
        store = SQLiteStore(self.folder / "budget.db", clock)
        yield store
        store.close()


class TestInMemory(BudgetStoreSuite):
    """As tests keep it."""

    @contextlib.contextmanager
    def opened(self, clock):
        """In memory."""
        store = SQLiteStore.in_memory(clock)
        yield store
        store.close()
