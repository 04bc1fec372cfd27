"""Shares of budgets in the SQLite store: the suite, crashes at every step, and stores that were tampered with."""

from __future__ import annotations

import contextlib
import itertools

import pytest

from discreet.budget.stores.sqlite import SQLiteStore
from tests.budget.sharing.suite import ShareStoreSuite


class TestInFiles(ShareStoreSuite):
    """Stores in files, as services use them."""

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path):
        self.folder, self.numbers = tmp_path, itertools.count()

    @contextlib.contextmanager
    def opened(self, clock):
        """Open a store in a new file."""
        store = SQLiteStore(self.folder / f"budget{next(self.numbers)}.db", clock)
        yield store
        store.close()


class TestInMemory(ShareStoreSuite):
    """Stores in memory, as tests use them."""

    @contextlib.contextmanager
    def opened(self, clock):
        """Open a store in memory."""
        store = SQLiteStore(None, clock)
        yield store
        store.close()
