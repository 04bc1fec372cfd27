"""Checkpoints: older copies and other stores are detected, also if checkpoints are lost or incomplete."""

from __future__ import annotations

import itertools
import os
import shutil

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from discreet.budget.checkpoints import Checkpoint, Checkpointer, CheckpointFile
from discreet.budget.errors import LedgerBroken, StoreBehind, StoreUnavailable
from discreet.budget.ledger import Head
from discreet.budget.manager import BudgetManager
from discreet.budget.model import AdminAction
from discreet.budget.rules import DAY_US
from discreet.budget.stores.sqlite import SQLiteStore
from tests.budget.stores.test_sqlite_faults import ReopenedStore, small
from tests.budget.suite import ACT, NOON_US, UNIT, FakeClock, account, claim, key_of, spend


def _checkpointer(tmp_path):
    return Checkpointer(
        CheckpointFile(tmp_path / "checkpoints"), Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    )


def test_a_restored_backup_is_behind_its_checkpoint(tmp_path):
    """I11, F12: an older copy of the database is consistent, and refused."""
    checkpointer = _checkpointer(tmp_path)
    store = small(tmp_path)
    checkpointer.begin(store)
    manager = BudgetManager(store, map(str, itertools.count()).__next__, checkpointer=checkpointer)
    spend(store, claim("a"))
    manager.maintain()
    store.close()
    shutil.copy(tmp_path / "budget.db", tmp_path / "backup")
    with ReopenedStore(tmp_path) as again:
        BudgetManager(again, lambda: "x", checkpointer=checkpointer)
        spend(again, claim("b"))
        checkpointer.write(again)
    shutil.copy(tmp_path / "backup", tmp_path / "budget.db")
    with ReopenedStore(tmp_path) as restored:
        restored.verify()
        with pytest.raises(StoreBehind):
            BudgetManager(restored, lambda: "x", checkpointer=checkpointer)
        spend(restored, claim("c"))  # it adds other lines: as many, and not those of the checkpoint
        with pytest.raises(LedgerBroken):
            BudgetManager(restored, lambda: "x", checkpointer=checkpointer)


def test_pruning_keeps_the_lines_of_the_last_checkpoint(tmp_path):
    """F12: the checkpoint accepts the pruned store, but not an unpruned copy or one pruned in another way."""
    checkpointer = _checkpointer(tmp_path)
    store = small(tmp_path)
    checkpointer.begin(store)
    spend(store, claim("a"))
    store.close()
    shutil.copy(tmp_path / "budget.db", tmp_path / "backup")
    with ReopenedStore(tmp_path, NOON_US + 2 * DAY_US) as again:
        manager = BudgetManager(again, str, checkpointer=checkpointer)
        assert manager.prune(NOON_US + DAY_US, ACT, list) > 0
        manager.verify()  # the checkpoint is older than the removal
        manager.maintain()
        manager.verify()
    shutil.copy(tmp_path / "backup", tmp_path / "budget.db")
    with ReopenedStore(tmp_path, NOON_US + 2 * DAY_US) as restored:
        BudgetManager(restored, str).prune(NOON_US + DAY_US, AdminAction("eve", "another past"), list)
        restored.verify()
        with pytest.raises((StoreBehind, LedgerBroken)):
            checkpointer.check(restored)


def test_a_new_store_cannot_replace_one_with_checkpoints(tmp_path):
    """An empty store would refund all charges."""
    checkpointer = _checkpointer(tmp_path)
    store = small(tmp_path)
    checkpointer.begin(store)
    other = SQLiteStore(None, FakeClock())
    with pytest.raises(StoreBehind, match="another store"):
        checkpointer.check(other)
    checkpointer.check(store)
    for one in (store, other):
        one.close()


@pytest.mark.parametrize("lose", ["removed", "emptied", "cut off"])
def test_a_store_whose_checkpoints_are_lost_may_be_an_older_copy(lose, tmp_path):
    """I11, F12: the file is created with the store, so without it neither the next manager nor a running one serves."""
    checkpointer, file = _checkpointer(tmp_path), tmp_path / "checkpoints"
    store = SQLiteStore(tmp_path / "budget.db", FakeClock())
    manager = BudgetManager(store, map(str, itertools.count()).__next__, checkpointer=checkpointer)  # a new store
    store.create(account("ann", 1_000), ACT)
    manager.maintain()
    before = file.read_bytes()
    file.unlink()
    if lose != "removed":
        file.write_bytes(b"" if lose == "emptied" else b'\n{"content": "cut')
    for refused in (
        lambda: BudgetManager(store, str, checkpointer=checkpointer),
        manager.maintain,
        manager.verify,
        lambda: manager.reserve("ann", key_of("a"), UNIT),
        lambda: checkpointer.write(store),
    ):
        with pytest.raises(StoreBehind):
            refused()
    file.write_bytes(before)
    manager.maintain()
    assert manager.reserve("ann", key_of("a"), UNIT)
    store.close()


def test_a_checkpoint_that_was_cut_off_is_a_missing_one(tmp_path):
    """I11, F12: the one before it does not replace it, because an older copy of the store would agree with that."""
    checkpointer, file = _checkpointer(tmp_path), tmp_path / "checkpoints"
    store = small(tmp_path)
    checkpointer.begin(store)
    store.close()
    shutil.copy(tmp_path / "budget.db", tmp_path / "backup")
    with ReopenedStore(tmp_path) as again:
        spend(again, claim("a"))
        checkpointer.write(again)
    shutil.copy(tmp_path / "backup", tmp_path / "budget.db")
    whole = file.read_bytes()
    for cut in (1, 2, 100):
        file.write_bytes(whole[:-cut])
        with ReopenedStore(tmp_path) as restored:
            assert checkpointer.file.latest() is None
            for refused in (checkpointer.check, checkpointer.write):
                with pytest.raises(StoreBehind, match="no checkpoint"):
                    refused(restored)
    with ReopenedStore(tmp_path) as restored:
        checkpointer.begin(restored)  # as its operator decides
        checkpointer.check(restored)
        assert checkpointer.file.latest().heads == restored.heads()


def test_forged_and_unreadable_checkpoints_are_refused(tmp_path):
    """A checkpoint of another key, or text that is none, vouches for nothing."""
    checkpointer = _checkpointer(tmp_path)
    store = small(tmp_path)
    checkpointer.file.append(Checkpoint.signed(store.id, (), Ed25519PrivateKey.generate()))
    with pytest.raises(LedgerBroken, match="signed"):
        checkpointer.check(store)
    (tmp_path / "checkpoints").write_text("{}\n")
    with pytest.raises(LedgerBroken):
        checkpointer.check(store)
    store.close()


def test_a_checkpoint_that_does_not_fit_the_disk_leaves_the_last_one(tmp_path, monkeypatch):
    """F11: what was written of it is removed, so that the service goes on once there is room."""
    checkpointer = _checkpointer(tmp_path)
    store = small(tmp_path)
    checkpointer.begin(store)
    before = checkpointer.file.latest()
    spend(store, claim("a"))
    write = os.write
    monkeypatch.setattr("os.write", lambda file, data: write(file, data[: len(data) // 2]))
    with pytest.raises(StoreUnavailable):
        checkpointer.write(store)
    monkeypatch.undo()
    assert checkpointer.file.latest() == before
    checkpointer.write(store)
    assert checkpointer.file.latest().heads == store.heads()
    store.close()


def test_an_unchanged_store_gets_no_second_checkpoint(tmp_path):
    """An idle store is compared every ten seconds, and its file of checkpoints does not grow."""
    checkpointer = _checkpointer(tmp_path)
    store = small(tmp_path)
    checkpointer.begin(store)
    for _ in range(3):
        checkpointer.write(store)
    before = (tmp_path / "checkpoints").read_text()
    assert before.count("signature") == 1
    store.note(ACT, {"what": "something"})
    checkpointer.write(store)
    assert (tmp_path / "checkpoints").read_text().count("signature") == 2
    store.close()


@pytest.mark.parametrize("chains", [1, 700, 3_000])
def test_the_last_checkpoint_is_found_from_the_end(chains, tmp_path):
    """Its own length and earlier lines make no difference."""
    key = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    file = CheckpointFile(tmp_path / "checkpoints")
    assert file.latest() is None
    for last in range(1, 5):
        heads = [Head(chain, last, bytes([last]) * 32) for chain in range(chains)]
        file.append(Checkpoint.signed("store", heads, key))
        assert file.latest().heads == tuple(heads)
