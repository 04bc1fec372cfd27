"""Crashes, full disks, second processes: no overspending, no unpaid answer."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys

import apsw
import pytest

from discreet.budget.errors import LedgerBroken, ReleaseDamaged, StoreUnavailable
from discreet.budget.ledger import Line
from discreet.budget.model import AdminAction, Fingerprint, Replay, State, Suspension
from discreet.budget.rules import DAY_US
from discreet.budget.stores import sqlite
from discreet.budget.stores.sqlite import LedgerFile, SQLiteStore
from tests.budget import crash_child
from tests.budget.bad_disk import BadDisk, failing
from tests.budget.crash_child import PRUNE_STEPS, PUT, STEPS, do_prune, do_round, opened
from tests.budget.suite import ACT, NOON_US, UNIT, FakeClock, account, claim, key_of, spend, units
from tests.forkserver import CONTEXT


def _crash(folder, step, nth, *rest):
    """Return whether the child reached the step and died there."""
    folder.mkdir(exist_ok=True)
    child = CONTEXT.Process(target=crash_child.run, args=(folder, step, nth, *rest))
    child.start()
    child.join()
    assert child.exitcode in {0, -signal.SIGKILL}
    return child.exitcode != 0


def _check_after(folder):
    """Check I1-I5 after a restart: all answers were paid for, and can be replayed."""
    store = opened(folder)
    store.verify()
    answered = folder / "answered"
    for line in answered.read_text().splitlines() if answered.exists() else ():
        who, digest = line.split()
        assert store.entitled(who, bytes.fromhex(digest))
        assert digest in {paid.release.release_key.hex() for paid in store.history(who)}
    before = {name: units(store, name) for name in ("ann", "bob", "org", "data")}
    assert all(sum(parts) <= 30 for parts in before.values())
    states = {n: store.reservation(n) for n in ("one-ann", "one-bob", "two-ann", "v", "f")}
    open_ones = [r for r in states.values() if r is not None and r.state in {State.HELD, State.RUNNING}]
    # retries of a client whose reply was lost
    for wanted in open_ones:
        if wanted.state is State.HELD:
            store.start(wanted.id)
        store.settle(wanted.id, UNIT, b"late")
    again = spend(store, claim("again", release="one"))
    assert again in (UNIT, UNIT * 0)
    # the record exists or not; putting it again does nothing if it existed, even if it was removed since
    heads, there, version = store.heads(), store.record("key", "k"), store.records_version()
    assert (there, version) in {(None, 0), ("a text", 1), (None, 2)}
    store.put_record(*PUT)
    assert (store.heads() == heads) is (version > 0)
    assert store.record("key", "k") == ("a text" if version < 2 else None)
    assert spend(store, claim("again-2", release="one")) == UNIT * 0
    held = {name: units(store, name)[1] for name in before}
    assert held == dict.fromkeys(before, 0)
    store.verify()
    store.close()


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_loses_no_charge_and_releases_no_uncharged_answer(step, tmp_path):
    """I1-I5: the process is killed at each step of the first, a middle and the last transaction."""
    died = [nth for nth in (1, 2, 9) if _crash(tmp_path / str(nth), step, nth)]
    assert 1 in died
    for nth in died:
        _check_after(tmp_path / str(nth))


def test_a_round_without_a_crash_reaches_every_step(tmp_path):
    """The test above depends on it."""
    reached = []
    opened(tmp_path).close()
    store = opened(tmp_path, reached.append)
    do_round(store, tmp_path)
    store.close()
    assert set(reached) == set(STEPS)


@pytest.mark.parametrize("step", PRUNE_STEPS)
def test_a_crash_at_any_step_of_pruning_loses_no_line(step, tmp_path):
    """I5: each line is in the store or in the archive, and pruning again removes the rest."""
    nth = 2 if step in {"begin", "locked", "commit", "committed"} else 1  # the first is that of the note before
    assert _crash(tmp_path, step, nth, "prune")
    after = opened(tmp_path, now_us=NOON_US + 2 * DAY_US)
    archived = [Line(chain, seq, body, bytes.fromhex(digest)) for chain, seq, body, digest in _archive(tmp_path)]
    removed = after.verify().base is not None
    assert removed == (step == "committed")
    last = sum(head.seq for head in after.heads())
    assert after.verify([archived] if removed else []).lines == last
    if not removed:
        archived = do_prune(after, tmp_path) and [
            Line(*line[:3], bytes.fromhex(line[3])) for line in _archive(tmp_path)
        ]
        assert after.verify([archived]).lines == last + 2
    assert after.verify().lines < len(archived)
    after.close()


def _archive(folder):
    """Return the complete lines of the archive, if it exists."""
    path = folder / "archive"
    return [json.loads(line) for line in (path.read_text().split("\n")[:-1] if path.exists() else [])]


def test_pruning_without_a_crash_reaches_every_step(tmp_path):
    """The test above depends on it."""
    reached = []
    store = opened(tmp_path)
    do_round(store, tmp_path)
    store.close()
    store = opened(tmp_path, reached.append, NOON_US + 2 * DAY_US)
    do_prune(store, tmp_path, reached.append)
    store.close()
    assert set(reached) == set(PRUNE_STEPS)


def test_an_answer_settled_before_a_crash_is_replayed_after_it(tmp_path):
    """I2: the process is killed after the commit of the settlement, before the reply."""
    assert _crash(tmp_path, "committed", 4)  # the transactions of a record, reserve, start, settle
    assert not (tmp_path / "answered").exists()
    store = opened(tmp_path)
    again = store.reserve(claim("a", release="one"))
    assert isinstance(again, Replay)
    assert (again.release.result, again.charged) == (b"one", UNIT * 0)
    store.verify()
    store.close()


def small(tmp_path, name="budget.db", **rest):
    """Return a store whose account `ann` has 1,000 units."""
    store = SQLiteStore(tmp_path / name, FakeClock(), **rest)
    store.create(account("ann", 1_000), ACT)
    return store


def test_a_full_disk_changes_nothing_and_the_store_recovers_when_there_is_room(tmp_path):
    """F11: a transaction that does not fit raises and changes nothing; later ones succeed."""
    store = small(tmp_path)
    ((pages,),) = store._db.execute("PRAGMA page_count")
    store._db.execute(f"PRAGMA max_page_count = {pages + 3}").fetchall()
    failed, settled = None, []
    for n in range(100):
        try:
            store.reserve(claim(f"r{n}", worst=UNIT))
            store.start(f"r{n}")
            store.settle(f"r{n}", UNIT, bytes(3_000))
        except StoreUnavailable:
            failed = f"r{n}"
            break
        settled.append(f"r{n}")
    assert settled
    assert failed is not None
    store.verify()
    assert units(store, "ann")[0] == len(settled)
    assert store.release(key_of(failed)) is None
    store._db.execute("PRAGMA max_page_count = 100000").fetchall()
    for left in [failed] if store.reservation(failed) else []:
        store.start(left)
        store.settle(left, UNIT, b"now")
    spend(store, claim("after"))
    store.verify()
    store.close()


@pytest.fixture
def disk(monkeypatch):
    """Return the disk of stores that are opened from now on."""
    made = BadDisk()
    made.install(monkeypatch)
    yield made
    made.unregister()


@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from then on"])
def test_an_input_or_output_error_at_any_operation_loses_no_charge(lasting, disk, tmp_path):
    """F11: EIO at the n-th operation of the disk, from opening to closing; then the store is opened on a good disk."""
    failed = []
    for nth in range(1, 1_000, 3):
        folder, left, hit = tmp_path / str(nth), [nth], []
        folder.mkdir()
        opened(folder).close()

        def before(operation, left=left, hit=hit):
            left[0] -= 1
            if left[0] == 0 or (lasting and left[0] < 0):
                hit.append(operation)
                raise apsw.IOError

        disk.before = before
        with contextlib.suppress(StoreUnavailable), contextlib.closing(opened(folder)) as store:
            do_round(store, folder)
        disk.before = lambda _: None
        if not hit:
            break
        _check_after(folder)
        failed.append(hit[0])
    assert {"xOpen", "xRead", "xWrite", "xSync", "xFileSize", "xLock"} <= set(failed)
    assert len(failed) > 40


def test_a_failed_flush_settles_nothing(tmp_path, disk):
    """F11: nothing is settled without being on disk; the store heals with the disk, at the next heartbeat."""
    store = small(tmp_path)
    store.reserve(claim("a"))
    store.start("a")
    assert (store.writable, store.behind) == (True, False)
    disk.before = failing(apsw.IOError(), "xSync")
    with pytest.raises(StoreUnavailable):
        store.settle("a", UNIT, b"x")
    with pytest.raises(StoreUnavailable):
        store.heartbeat()
    disk.before = lambda _: None
    with pytest.raises(StoreUnavailable):  # a flush that succeeds after one that failed may have flushed nothing
        store.settle("a", UNIT, b"x")
    assert store.writable is False
    store.heartbeat()  # opens the file again
    assert store.writable is True
    assert store.settle("a", UNIT, b"x").charged == UNIT
    store.close()
    with ReopenedStore(tmp_path) as again:
        # the commit may have reached the disk or not: a retry shows it, and is charged once
        assert again.settle("a", UNIT, b"x").charged == UNIT
        assert units(again, "ann") == (1, 0, 0)
        again.verify()


class ReopenedStore:
    """Reopen the store of a folder."""

    def __init__(self, folder, now_us=NOON_US):
        self._store = SQLiteStore(folder / "budget.db", FakeClock(now_us))

    def __enter__(self):
        return self._store

    def __exit__(self, *_):
        self._store.close()


def test_an_unforeseen_error_changes_nothing_and_blocks_no_request(tmp_path):
    """A bug in one transaction is rolled back; the next one succeeds."""
    armed = []

    def step(name):
        if armed and name == armed[0]:
            armed.clear()
            raise ZeroDivisionError

    store = small(tmp_path, step=step)
    store.reserve(claim("a"))
    store.start("a")
    seen = Fingerprint(key_of("head"), key_of("data"))
    for at in ("begin", "releases", "fingerprints", "accounts", "entitlements", "ledger", "meta", "commit"):
        armed.append(at)
        with pytest.raises(StoreUnavailable):
            store.settle("a", UNIT, b"x", seen)
        assert not armed
        assert units(store, "ann") == (0, 3, 0)
        store.verify()
    assert store.settle("a", UNIT, b"x", seen).charged == UNIT
    put = AdminAction("officer", "a record", "put-1")
    for at in ("begin", "actions", "records", "ledger", "commit"):
        armed.append(at)
        with pytest.raises(StoreUnavailable):
            store.put_record("key", "k", "a text", put)
        assert not armed
        assert (store.record("key", "k"), store.records_version()) == (None, 0)
    store.put_record("key", "k", "a text", put)
    for n in range(5):
        store.reserve(claim(f"f{n}", worst=UNIT))
        store.start(f"f{n}")
        for at in ("forfeits", "accounts", "ledger", "commit"):
            armed.append(at)
            with pytest.raises(StoreUnavailable):
                store.forfeit(f"f{n}")
        assert store.balance("ann").suspended_until_us is None
        store.forfeit(f"f{n}")
    assert store.balance("ann").suspended_until_us == NOON_US + DAY_US
    armed.append("accounts")
    with pytest.raises(StoreUnavailable):
        store.lift("ann", ACT)
    assert isinstance(store.reserve(claim("no")), Suspension)
    store.verify()
    store.close()


def test_a_free_replay_writes_nothing(tmp_path):
    """It does not wait for the disk; neither does a repeated void."""
    store = small(tmp_path)
    spend(store, claim("a", release="q"))
    before = store._db.total_changes()
    assert isinstance(store.reserve(claim("b", release="q")), Replay)
    store.settle("a", UNIT, b"again")
    assert store._db.total_changes() == before
    store.heartbeat()
    store.close()


def test_a_second_process_is_refused(tmp_path):
    """One writer: the process that opened the file first owns it until it closes or dies."""
    store = small(tmp_path)
    code = (
        "import sys; from pathlib import Path; from discreet.budget.stores.sqlite import LedgerFile, SQLiteStore; "
        "from discreet.budget.errors import LedgerBroken, ReleaseDamaged, StoreUnavailable\n"
        "try: SQLiteStore(Path(sys.argv[1]), lambda: 0).close()\n"
        "except StoreUnavailable as error: sys.exit(str(error))"
    )
    second = [sys.executable, "-c", code, str(tmp_path / "budget.db")]
    refused = subprocess.run(second, capture_output=True, text=True, check=False)
    assert "another process" in refused.stderr
    with pytest.raises(StoreUnavailable, match="another process"):
        SQLiteStore(tmp_path / "budget.db", FakeClock())
    store.close()
    assert subprocess.run(second, check=False).returncode == 0


def test_a_closed_store_is_unavailable(tmp_path):
    """Every operation of a closed store raises StoreUnavailable."""
    store = small(tmp_path)
    store.close()
    for ask in (lambda: store.reserve(claim("a")), lambda: store.balance("ann"), store.heads):
        with pytest.raises(StoreUnavailable):
            ask()


def test_another_schema_is_refused(tmp_path):
    """A store with another schema version may have other rules."""
    store = small(tmp_path)
    store._db.execute("UPDATE budget_meta SET version = version + 1")
    store.close()
    with pytest.raises(StoreUnavailable, match="schema"):
        SQLiteStore(tmp_path / "budget.db", FakeClock())


def test_a_file_that_is_no_database_is_refused(tmp_path):
    """The file is not changed by the failed attempt to open it."""
    (tmp_path / "budget.db").write_bytes(b"a letter to a friend\n" * 100)
    with pytest.raises(StoreUnavailable):
        SQLiteStore(tmp_path / "budget.db", FakeClock())


@pytest.mark.parametrize(("kind", "fine"), [("ext4", True), ("nfs4", False), ("cifs", False), ("fuse.sshfs", False)])
def test_network_file_systems_are_refused(kind, fine, tmp_path):
    """Their locks and flushes are unreliable; the nearest mount point decides."""
    mounts = ["/dev/a / nfs rw 0 0", f"/dev/b {tmp_path} {kind} rw 0 0", f"/dev/c {tmp_path}/other nfs rw 0 0"]
    if fine:
        sqlite.check_disk(tmp_path / "budget.db", mounts)
    else:
        with pytest.raises(StoreUnavailable):
            sqlite.check_disk(tmp_path / "budget.db", mounts)


@pytest.mark.parametrize(("version", "fine"), [("3.40.1", False), ("3.51.2", False), ("3.51.3", True), ("4.0.0", True)])
def test_an_old_sqlite_is_refused(version, fine):
    """Earlier versions can lose committed transactions."""
    if fine:
        sqlite.check_library(version)
    else:
        with pytest.raises(StoreUnavailable):
            sqlite.check_library(version)


def test_damaged_bytes_of_a_release_are_not_replayed_and_cost_nothing(tmp_path):
    """I2: the rest of a history is listed; `verify` names the damaged release."""
    store = small(tmp_path)
    for name in ("a", "b"):
        spend(store, claim(name, release=name))
    damaged = key_of("a")
    store._db.execute("UPDATE budget_releases SET result = CAST('other' AS BLOB) WHERE release_key = ?", (damaged,))
    before = store.heads()
    for ask in (
        lambda: store.reserve(claim("again", release="a")),
        lambda: store.settle("a", UNIT, b"answer"),
        lambda: store.release(damaged),
        store.verify,
    ):
        with pytest.raises(ReleaseDamaged, match=damaged.hex()):
            ask()
    assert store.heads() == before
    assert [(paid.release_key, paid.release is None) for paid in store.history("ann")] == [
        (key_of("b"), False),
        (damaged, True),
    ]
    assert [release.release_key for release in store.releases([damaged, key_of("b")])] == [key_of("b")]
    assert isinstance(store.reserve(claim("free", release="b")), Replay)
    store.close()


def _damage_index(path):
    """Change one bit of the index of stored releases by their keys, in which a paid release is not found then."""
    with contextlib.closing(apsw.Connection(str(path))) as db:
        ((page,),) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'sqlite_autoindex_budget_releases_1'")
        ((size,),) = db.execute("PRAGMA page_size")
    content = bytearray(path.read_bytes())
    content[content.index(key_of("a"), (page - 1) * size, page * size)] ^= 0x80
    path.write_bytes(content)


@pytest.mark.parametrize("unclean", [False, True])
def test_a_flipped_bit_of_an_index_is_noticed(unclean, tmp_path):
    """I1: `verify` reads the indexes too, and so does the next start after a crash; the paid query is not found."""
    store, path = small(tmp_path), tmp_path / "budget.db"
    spend(store, claim("a", release="a"))
    store.close()
    _damage_index(path)
    if unclean:
        with contextlib.closing(apsw.Connection(str(path))) as db:
            db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            db.execute("UPDATE budget_meta SET seen_us = seen_us + 1")
        assert path.with_name("budget.db-wal").stat().st_size
        with pytest.raises(StoreUnavailable, match="damaged"):
            SQLiteStore(path, FakeClock())
    else:
        with contextlib.closing(LedgerFile(path)) as file, pytest.raises(LedgerBroken, match="index"):
            file.verify()
        with contextlib.closing(SQLiteStore(path, FakeClock())) as again:
            assert again.release(key_of("a")) is None
            with pytest.raises(LedgerBroken, match="index"):
                again.verify()


def test_changes_left_in_the_log_are_written_to_the_file_when_it_is_opened(tmp_path):
    """F11: a change whose flush failed can be read, and is on disk only if it is written once more."""
    store, path = small(tmp_path), tmp_path / "budget.db"
    store.close()
    with contextlib.closing(apsw.Connection(str(path))) as db:  # as after a kill
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        db.execute("UPDATE budget_meta SET seen_us = 1")
    log = path.with_name("budget.db-wal")
    assert log.stat().st_size
    with contextlib.closing(SQLiteStore(path, FakeClock())):
        assert log.stat().st_size == 0
        with contextlib.closing(apsw.Connection(f"{path.as_uri()}?immutable=1", flags=0x41)) as alone:
            assert alone.execute("SELECT seen_us FROM budget_meta").fetchall() == [(1,)]
