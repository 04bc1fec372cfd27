"""A store that an earlier version wrote: lines without questions, names and shown values, settings without suspension.

`old_store.sql` is what SQLite's `.dump` wrote of it. It is never written again.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from discreet.budget.ledger import account_of, settings_text
from discreet.budget.model import Reservation, Suspension
from discreet.budget.stores.sqlite import SQLiteStore
from tests.budget.suite import ACT, UNIT, FakeClock, claim

OLD = Path(__file__).with_name("old_store.sql")


@pytest.fixture
def old(tmp_path):
    """Open the store."""
    path = tmp_path / "budget.db"
    with sqlite3.connect(path) as database:
        database.executescript(OLD.read_text())
    database.close()
    store = SQLiteStore(path, FakeClock())
    yield store
    store.close()


def test_an_old_store_verifies_with_its_suspensions(old):
    """Its failed runs and the settings of its accounts are what the ledger says, to the byte."""
    assert old.verify().lines == old.heads()[0].seq == 58
    assert len(old.verify().failures["ann"]) == 5
    for settings in old.verify().accounts.values():
        assert settings_text(account_of(settings.settings)) == settings.settings


def test_an_old_store_can_be_suspended_and_lifted(old):
    """The new lines follow the old ones, and all of them verify together."""
    old.suspend("org", ACT)
    assert old.reserve(claim("no", "bob")) == Suspension("org", None)
    old.verify()
    for name in ("org", "ann"):
        old.lift(name, ACT)
    assert isinstance(old.reserve(claim("yes", worst=UNIT, question='{"dataset":"reads"}')), Reservation)
    old.put_record("grant", "ann\treads", "{}", ACT, {"columns": None})
    old.verify()
