"""Shares of budgets in the SQLite store: the suite, crashes at every step, and stores that were tampered with."""

from __future__ import annotations

import contextlib
import itertools

import pytest

from discreet.budget.stores.sqlite import SQLiteStore
from tests.budget.share_suite import ShareStoreSuite


class TestInFiles(ShareStoreSuite):
    """As services keep them."""

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path):
        self.folder, self.numbers = tmp_path, itertools.count()

    @contextlib.contextmanager
    def opened(self, clock):
        """A file of its own."""
        store = SQLiteStore(self.folder / f"budget{next(self.numbers)}.db", clock)
        yield store
        store.close()


class TestInMemory(ShareStoreSuite):
    """As tests keep them."""

    @contextlib.contextmanager
    def opened(self, clock):
        """In memory."""
        store = SQLiteStore(None, clock)
        yield store
        store.close()
