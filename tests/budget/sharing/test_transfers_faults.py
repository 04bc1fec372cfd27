"""Processes killed during a transfer, and stores that were tampered with: no share is created or lost."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from discreet.budget.errors import LedgerBroken, StoreBehind
from discreet.budget.model import NOTHING, Amount
from discreet.budget.sharing.escrow import ShareRequest
from discreet.budget.stores.sqlite import SQLiteStore
from tests.budget.sharing.escrow_child import STEPS, exchange, opened, prepare
from tests.budget.sharing.suite.base import add_up, announce, asks, carry, check_whole, in_flight, limits
from tests.budget.suite.base import ACT, UNIT, FakeClock, account
from tests.budget.tampering import SHARE_CHANGES, prepare_shares

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def killed():
    """Return a function that runs a round killed at the n-th time of a step; True if that was reached."""
    command = [sys.executable, "-m", "tests.budget.sharing.escrow_child"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:

        def kill(folder, step, nth):
            folder.mkdir()
            child.stdin.write(f"{folder} {step} {nth}\n")
            child.stdin.flush()
            return {"died\n": True, "lived\n": False}[child.stdout.readline()]

        yield kill
        child.stdin.close()


@contextlib.contextmanager
def _again(folder):
    """Open both stores after a restart."""
    stores = opened(folder)
    yield stores
    for store in stores:
        store.close()


@pytest.mark.parametrize(("step", "every"), [(step, 1 if step in {"ledger", "shares"} else 3) for step in STEPS])
def test_a_kill_at_any_step_of_a_transfer_creates_and_loses_no_budget(step, every, killed, tmp_path):
    """I8: after the restart the shares add up at once, and transfers in flight are completed."""
    for nth in itertools.count(1, every):
        folder = tmp_path / str(nth)
        died = killed(folder, step, nth)
        with _again(folder) as stores:
            add_up(stores)
            exchange(*stores)
            add_up(stores)
            assert limits(stores, "eve") == [12, 12]
            assert sum(limits(stores)) == sum(limits(stores, "org")) == 12
            assert all(not store.shares.pending(other.id, 10) for store, other in (stores, stores[::-1]))
        if not died:
            break
        shutil.rmtree(folder)
    assert nth > 10


def test_a_round_without_a_kill_reaches_every_step(tmp_path):
    """The test above depends on it."""
    reached = []
    prepare(tmp_path)
    stores = opened(tmp_path, reached.append)
    exchange(*stores)
    for store in stores:
        store.close()
    assert set(reached) > set(STEPS)


def _in_files(folder, clock):
    return [SQLiteStore(folder / f"{name}.db", clock) for name in ("here", "there")]


def test_a_restored_backup_of_either_side_is_detected_by_the_other(tmp_path):
    """F12: a store that lost what it sent, and one that lost what it received."""
    for behind in (0, 1):
        folder = tmp_path / str(behind)
        folder.mkdir()
        clock = FakeClock()
        stores = _in_files(folder, clock)
        stores[0].create(account("ann", 12), ACT)
        announce(*stores)
        for store in stores:
            store.close()
        name = ("here", "there")[behind]
        shutil.copy(folder / f"{name}.db", folder / "backup")
        with contextlib.ExitStack() as stack:
            first, second = (stack.enter_context(contextlib.closing(store)) for store in _in_files(folder, clock))
            second.charge("ann", UNIT * 6, ACT)
            for _ in range(2):
                assert first.shares.grant(second.id, asks(second), NOTHING)
                carry(first, second)
                second.charge("ann", UNIT * 3, ACT)
        shutil.copy(folder / "backup", folder / f"{name}.db")
        with contextlib.ExitStack() as stack:
            first, second = (stack.enter_context(contextlib.closing(store)) for store in _in_files(folder, clock))
            first.verify()
            second.verify()
            with pytest.raises(LedgerBroken, match="do not add up"):
                check_whole({store.id: store.shares.holdings() for store in (first, second)})
            transfer = first.shares.grant(second.id, ShareRequest("ann", NOTHING, Amount.of(UNIT)), NOTHING)
            with pytest.raises(StoreBehind):
                first.shares.acknowledge(second.shares.receive(transfer))


@pytest.mark.parametrize("change", SHARE_CHANGES)
def test_every_external_change_is_detected(change, tmp_path):
    """I5: sent, received and pending amounts that are edited or removed in the database."""
    stores = _in_files(tmp_path, FakeClock())
    prepare_shares(*stores)
    holdings = {store.id: store.shares.holdings()[0] for store in stores}
    assert in_flight(holdings).rho > 0
    stores[0]._db.execute(SHARE_CHANGES[change])
    assert stores[0]._db.changes() == 1
    with pytest.raises(LedgerBroken):
        stores[0].verify()
    for store in stores:
        store.close()
