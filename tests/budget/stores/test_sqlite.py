"""The SQLite store passes the suite of stores, in a file and in memory."""

from __future__ import annotations

import contextlib

import pytest

from discreet.budget.errors import LeaseLost
from discreet.budget.model import Calendar, Refusal, Reservation
from discreet.budget.rules import DAY_US
from discreet.budget.stores import statements
from discreet.budget.stores.sqlite import SQLiteStore
from discreet.errors import InputError
from tests.budget.suite import ACT, NOON_US, UNIT, BudgetStoreSuite, FakeClock, account, claim, spend, units


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


def test_each_operation_is_timed_by_its_name(tmp_path):
    """A graph of the store's times shows which operation is slow, those of upkeep and officers, too."""
    names = []

    def timed(name):
        names.append(name)
        return contextlib.nullcontext()

    with contextlib.closing(SQLiteStore(tmp_path / "budget.db", FakeClock())) as store:
        store.timed = timed
        for work in (
            store.heartbeat,
            store.expire,
            store.recover,
            store.refresh,
            lambda: store.together(lambda _: None),
            store.verify,
            lambda: store.create(account("ann"), ACT),
            lambda: store.account("ann"),
        ):
            work()
        with pytest.raises(InputError):
            store.cut(NOON_US, store.heads(), list)
    assert names == ["beat", "expired", "lost", "due", "together", "verify", "create", "path", "heads", "cut"]


@pytest.mark.parametrize("at_once", [1, 3, 4, 100])
def test_lines_are_read_in_pages_without_gaps(at_once, monkeypatch):
    """Whatever the size of a page, at most so many lines are read, and no page beyond the last one."""
    with contextlib.closing(SQLiteStore(None, FakeClock())) as store:
        store.create(account("ann"), ACT)
        for n in range(6):
            store.note(ACT, {"n": str(n)})
        lines = list(store.lines())
        assert [line.seq for line in lines] == list(range(1, len(lines) + 1))
        assert {line.chain for line in lines} == {0}
        monkeypatch.setattr("discreet.budget.stores.store.LINES_AT_ONCE", at_once)
        pages = []
        store.timed = lambda name: pages.append(name) or contextlib.nullcontext()
        for after in (0, 2, len(lines)):
            for most in (None, *range(9)):
                pages.clear()
                expected = lines[after:] if most is None else lines[after : after + most]
                assert list(store.lines(0, after, most)) == expected
                if most is not None and most <= len(lines) - after:
                    assert len(pages) == -(-most // at_once)


def test_a_transaction_of_several_changes_reads_as_the_store_does():
    """Its parts have the store's id, and the balance of a bucket that is over is that of the next one."""
    clock = FakeClock()
    with contextlib.closing(SQLiteStore(None, clock, guard_us=10 * DAY_US)) as store:
        store.create(account("ann", period=Calendar("month")), ACT)
        store.charge("ann", UNIT, ACT)
        store.heartbeat()
        for days in (0, 5, 9, 30):
            clock.advance(days=days)
            assert store.together(lambda within: within.id) == store.id
            assert store.together(lambda within: within.balance("ann")) == store.balance("ann")
            assert store.together(lambda within: within.verify()) == store.verify()


def test_accounts_without_a_parent_are_refused_and_answered_like_others():
    """Their lines are in the chain of their own tree, which has one account."""
    with contextlib.closing(SQLiteStore(None, FakeClock())) as store:
        for name in ("ann", "bob"):
            store.create(account(name, 3), ACT)
        assert spend(store, claim("a", release="q"), UNIT * 3) == UNIT * 3
        assert isinstance(store.reserve(claim("b")), Refusal)
        assert spend(store, claim("c", "bob", "q")) == UNIT * 3
        store.verify()


def test_all_leases_that_are_over_end_also_if_they_are_found_in_parts(monkeypatch):
    """And their number is that of all parts."""
    monkeypatch.setattr(statements, "EXPIRED", statements.EXPIRED.replace("LIMIT 1000", "LIMIT 2"))
    clock = FakeClock()
    with contextlib.closing(SQLiteStore(None, clock)) as store:
        store.create(account("ann", 30), ACT)
        for n in range(5):
            store.reserve(claim(f"r{n}"))
        clock.advance(days=1)
        assert (store.expire(), store.expire()) == (5, 0)
        assert units(store, "ann") == (0, 0, 0)
