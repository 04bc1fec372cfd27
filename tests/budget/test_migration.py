"""A store that an earlier program left behind goes on where it stopped."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from discreet.budget.errors import LedgerBroken, StoreUnavailable
from discreet.budget.model import AdminAction, Fingerprint, Replay, Reservation, Suspension
from discreet.budget.periods import DAY_US
from discreet.budget.stores.sqlite import SQLiteStore
from discreet.budget.stores.sqlite_schema import MIGRATIONS
from tests.budget.suite import ACT, NOON_US, UNIT, FakeClock, claim, spend, units

ROWS = Path(__file__).with_name("schema_1.sql")

LEFT_US = NOON_US + 64_800_000_000 + 362_000_000
"""When the earlier program stopped."""


def goes_on(store):
    """I1-I5: all that was there is there, and all that is new works on it."""
    store.verify()
    assert units(store, "ann") == (3, 3, 12)
    assert units(store, "bob") == (2, 0, 3)
    assert units(store, "org") == units(store, "data") == (3, 3, 15)
    for name, answers in (("ann", b"third nothing first"), ("bob", b"first"), ("org", b"third nothing first")):
        assert [paid.release.result for paid in store.history(name)] == answers.split()
    assert [paid.charged for paid in store.history("ann")] == [UNIT, UNIT * 0, UNIT * 2]
    assert (store.records("key"), store.records_version()) == ([], 0)
    # six failed runs, the first of which counts no more
    until_us = NOON_US + 2_000_000 + 2 * 60_000_000 + DAY_US
    assert store.reserve(claim("no")) == Suspension("ann", until_us)
    again = store.reserve(claim("again", release="q"))
    assert isinstance(again, Replay)
    assert (again.release.result, again.charged) == (b"first", UNIT * 0)
    assert store.settle("open", UNIT, b"late", Fingerprint(bytes(32), bytes(32))).charged == UNIT
    store.lift("ann", AdminAction("officer", "an old matter", "lift-1"))
    assert isinstance(store.reserve(claim("retry", release="fails")), Reservation)
    assert units(store, "ann") == (4, 3, 9)  # the failure pays for the retry
    spend(store, claim("more"))
    assert [paid.release.result for paid in store.history("ann", most=2)] == [b"answer", b"late"]
    assert len({paid.number for paid in store.history("org")}) == 5
    store.put_record("key", "a", "{}", ACT)
    store.verify()


def _left_behind(path):
    """A file as the earlier program left it."""
    with apsw.Connection(str(path)) as db:
        db.execute(MIGRATIONS[0])
        db.execute("DELETE FROM meta")
        db.execute(ROWS.read_text())
        db.execute("PRAGMA user_version = 1")
    db.close()


def test_a_store_of_the_first_schema_goes_on(tmp_path):
    """With its accounts, releases, forfeits and failures; opened a second time there is nothing left to do."""
    _left_behind(tmp_path / "budget.db")
    for _ in range(2):
        store = SQLiteStore(tmp_path / "budget.db", FakeClock(LEFT_US))
        store.verify()
        store.close()
    store = SQLiteStore(tmp_path / "budget.db", FakeClock(LEFT_US))
    goes_on(store)
    store.close()


def test_a_store_whose_migration_is_broken_off_is_as_it_was(tmp_path, monkeypatch):
    """All or nothing: a program of either schema can open what is left."""
    _left_behind(tmp_path / "budget.db")
    with monkeypatch.context() as patched:
        broken = (*MIGRATIONS, "CREATE TABLE more (n); INSERT INTO nothing VALUES (1)")
        patched.setattr("discreet.budget.stores.sqlite_schema.migrate.__defaults__", (broken,))
        with pytest.raises(StoreUnavailable):
            SQLiteStore(tmp_path / "budget.db", FakeClock(LEFT_US))
    with apsw.Connection(str(tmp_path / "budget.db")) as db:
        assert db.execute("PRAGMA user_version").fetchall() == [(1,)]
        assert not db.execute("SELECT 1 FROM sqlite_master WHERE name IN ('records', 'more')").fetchall()
    db.close()
    store = SQLiteStore(tmp_path / "budget.db", FakeClock(LEFT_US))
    goes_on(store)
    store.close()


def test_an_old_store_whose_ledger_was_changed_is_not_migrated(tmp_path):
    """What failed is read from it, so that it has to be whole."""
    _left_behind(tmp_path / "budget.db")
    with apsw.Connection(str(tmp_path / "budget.db")) as db:
        db.execute("UPDATE ledger SET body = replace(body, 'forfeit', 'void') WHERE body LIKE '%forfeit%'")
    db.close()
    for _ in range(2):
        with pytest.raises(LedgerBroken):
            SQLiteStore(tmp_path / "budget.db", FakeClock(LEFT_US))
