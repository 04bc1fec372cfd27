"""The SQLite store passes the suite of stores, in a file and in memory."""

from __future__ import annotations

import contextlib

import pytest

from discreet.budget.errors import LeaseLost
from discreet.budget.model import Reservation
from discreet.budget.stores.sqlite import SQLiteStore
from tests.budget.suite import ACT, UNIT, BudgetStoreSuite, FakeClock, account, claim, units


class TestInAFile(BudgetStoreSuite):
    """A store in a file, as a service uses it."""

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path):
        self.folder = tmp_path

    @contextlib.contextmanager
    def opened(self, clock):
        """Open a store in a file."""
        store = SQLiteStore(self.folder / "budget.db", clock)
        yield store
        store.close()


def test_runs_of_a_dead_process_are_ended_at_once_and_suspend_no_account(tmp_path):
    """I3: its runs are forfeited and pay for retries; a crash of the service is no failure of the analyst."""
    clock = FakeClock()
    with contextlib.closing(SQLiteStore(tmp_path / "budget.db", clock)) as store:
        store.create(account("ann", 30), ACT)
        for n in range(7):
            store.reserve(claim(f"r{n}", release=f"q{n}", key=f"k{n}"))
            if n:
                store.start(f"r{n}")
    with contextlib.closing(SQLiteStore(tmp_path / "budget.db", clock)) as store:
        assert (store.recover(), store.recover()) == (7, 0)
        assert units(store, "ann") == (0, 0, 18)
        assert store.balance("ann").suspended_until_us is None
        with pytest.raises(LeaseLost):
            store.settle("r1", UNIT, b"late")
        assert isinstance(store.reserve(claim("again", release="q1", key="k1")), Reservation)
        assert units(store, "ann") == (0, 3, 15)


class TestInMemory(BudgetStoreSuite):
    """A store in memory, as tests use it."""

    @contextlib.contextmanager
    def opened(self, clock):
        """Open a store in memory."""
        store = SQLiteStore(None, clock)
        yield store
        store.close()
