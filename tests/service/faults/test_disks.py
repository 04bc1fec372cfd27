"""F11, F12: full or failing disks, removed files, second processes, restored copies."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from fractions import Fraction
from pathlib import Path

import apsw
import httpx
import pyarrow.parquet
import pytest

from discreet.budget.errors import StoreBehind, StoreUnavailable
from discreet.budget.model import Account
from discreet.cli import main
from discreet.errors import InputError
from discreet.values import Cost
from tests.budget.bad_disk import BadDisk, failing
from tests.service.deployment import CHECKPOINTS, TOP, Deployment, slug, table_of

from .processes import WITHIN, Process, serving, stepping_store

FULL, BROKEN = failing(apsw.FullError(), "xWrite"), failing(apsw.IOError(), "xSync")


@pytest.fixture
def disk(monkeypatch):
    """Return the disk of stores that are opened from now on."""
    made = BadDisk()
    made.install(monkeypatch)
    yield made
    made.unregister()


def fine(_):
    """Let an operation of the disk succeed."""


def test_a_full_disk_changes_nothing_and_the_store_recovers_when_there_is_room(disk, deployment):
    """I12, F11: an answer that cannot be written is not sent; the retry is charged once, by the same service."""
    with deployment.open() as service:
        service.maintenance.once()
        assert service.send("GET", "/readyz", None).status_code == 200
        disk.before = FULL
        refused = service.ask(key="once")
        assert (refused.status_code, slug(refused), refused.headers["retry-after"]) == (503, "store-unavailable", "2")
        assert service.engines.queried == 0
        ready = service.send("GET", "/readyz", None)
        assert (ready.status_code, ready.json()["checks"]["store"]) == (503, "unavailable"), "from the first failure on"
        service.clock.pass_(seconds=10)  # a heartbeat at the same moment would not write
        service.maintenance.once()
        assert service.send("GET", "/readyz", None).status_code == 503, "the disk is still full"
        disk.before = fine
        service.maintenance.once()
        assert service.send("GET", "/readyz", None).status_code == 200
        answered = service.ask(key="once")
        assert answered.status_code == 200
        assert service.balance().used == service.balance("sales").used == service.balance().spent


def test_a_disk_that_is_full_at_settlement_releases_nothing(disk, deployment, monkeypatch):
    """I2, F11: data was read, so the run is forfeited when its lease is over, and pays for the retry."""

    def fill(count, _):
        head = count()
        disk.before = FULL
        return head

    with deployment.open() as service:
        service.engines.head = fill
        refused = service.ask(key="once")
        assert (refused.status_code, slug(refused)) == (503, "store-unavailable")
        disk.before, service.engines.head = fine, None
        monkeypatch.setattr("discreet.service.doors.http.query.JOIN_SECONDS", 0)  # the first request never ends
        assert (service.ask(key="once").status_code, service.engines.queried) == (409, 1)
        service.clock.pass_(minutes=10)
        assert service.manager.maintain() == 1
        assert service.balance().forfeited == service.balance().spent != Cost()
        assert service.ask(key="once").status_code == 200
        assert service.balance().used == service.balance().spent


ROUNDS = int(os.environ.get("DISCREET_ROUNDS", "1"))
"""How often the store fails at each step below."""


@pytest.mark.parametrize("event", ["start", "settle"])
def test_runs_that_a_failing_store_loses_are_charged_and_suspend_nobody(event, tmp_path, monkeypatch):
    """I3: the store fails at each step of the transaction; what was held pays for the retry, at once."""
    wide = Account("ann@sales", Cost(Fraction(10**6), Fraction(1, 2)), Fraction(3, 4))
    deployment = Deployment(tmp_path / "deployment", accounts=[wide])
    armed = []  # the step at which the store fails, once

    def step(name):
        if name in armed:
            armed.clear()
            raise apsw.FullError

    monkeypatch.setattr("discreet.service.app.open_store", functools.partial(stepping_store, step))
    with deployment.open() as service:
        for n, where in enumerate(WITHIN[event] * ROUNDS):

            def fail_at_start(where=where):
                armed.append(where)

            def fail_at_settlement(count, _, where=where):
                head = count()
                armed.append(where)
                return head

            service.engines.check = fail_at_start if event == "start" else None
            service.engines.head = fail_at_settlement if event == "settle" else None
            question, before = TOP.replace("GROUP", f"WHERE article <> '{n}' GROUP"), service.balance().spent
            refused = service.ask(question, key=str(n), epsilon=0.1)
            assert (refused.status_code, slug(refused), armed) == (503, "store-unavailable", []), where
            service.engines.check = service.engines.head = None
            held = service.balance().spent
            assert (held == before) is (event == "start" and where != "committed"), where
            assert service.ask(question, key=str(n), epsilon=0.1).status_code == 200, where
            assert service.balance().spent == service.balance().used, where
            assert held == before or service.balance().used.within(held), where
        assert service.manager.verify().failures == {}
        assert service.balance().suspended_until_us is None


def test_a_failed_disk_stops_answers_until_maintenance_finds_it_well(disk, deployment):
    """F11: after a failed flush the state of the disk is unknown; a retry is charged once."""

    def fail(count, _):
        head = count()
        disk.before = BROKEN
        return head

    with deployment.open(checked=False) as service:
        service.engines.head = fail
        assert slug(service.ask(key="once")) == "store-unavailable"
        disk.before, service.engines.head = fine, None
        assert slug(service.ask(key="once")) == "store-unavailable"
        assert slug(service.ask(key="another", epsilon=0.5)) == "store-unavailable"
        assert service.engines.queried == 1
        checks = service.send("GET", "/readyz", None).json()["checks"]
        assert (checks["maintenance"], checks["store"]) == ("stale", "unavailable")
        service.clock.pass_(minutes=10)
        service.maintenance.once()
        assert service.send("GET", "/readyz", None).json()["checks"]["store"] == "ok"
        assert service.ask(key="once").status_code == 200
        assert service.balance().used == service.balance().spent


def mount(*words):
    """Run a command of an administrator; skip the test where it is not allowed."""
    try:
        subprocess.run(words, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs root and mount")


@pytest.fixture
def file_system(tmp_path):
    """Return a folder on an ext4 file system of its own."""
    image, folder = tmp_path / "image", tmp_path / "mounted"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(32 << 20)
    mount("mkfs.ext4", "-q", "-F", image)
    mount("mount", "-o", "loop,errors=remount-ro", image, folder)
    yield folder
    mount("umount", "--lazy", folder)


def test_a_file_system_that_becomes_read_only_stops_answers_and_loses_no_charge(file_system, tmp_path, capsys):
    """F11: as ext4 does after an error, under a running service; reading goes on, and a restart serves again."""
    deployment = Deployment(file_system / "deployment", rest=CHECKPOINTS)
    mount("sync", "--file-system", file_system)  # the files that the test wrote
    device = next(line.split()[0] for line in Path("/proc/mounts").read_text().splitlines() if str(file_system) in line)
    error = Path("/sys/fs/ext4") / Path(device).name / "trigger_fs_error"
    if not error.exists():
        pytest.skip("needs ext4 in sysfs")

    def run(*command):
        with pytest.raises(SystemExit) as ended:
            main([*command, "--config", str(deployment.folder / "discreet.toml")])
        return ended.value.code, capsys.readouterr().err

    with deployment.open(checked=False) as service:
        paid = service.ask(key="first")
        service.maintenance.once()
        error.write_text("1")
        for _ in range(2):
            refused = service.ask(key="second", epsilon=0.5)
            assert (refused.status_code, slug(refused)) == (503, "store-unavailable")
            assert service.send("GET", "/readyz", None).status_code == 503
        service.clock.pass_(seconds=10)
        service.maintenance.once()
        assert service.send("GET", "/readyz", None).status_code == 503
        assert service.ask().content == paid.content, "what is in memory was paid for"
        assert service.engines.queried == 1
    assert run("ledger", "verify") == (0, "")
    for command in (["key", "admin", "--reason", "lost"], ["ledger", "prune", "--before", "2020-01-01"]):
        rest = ["--archive", str(tmp_path / "old"), "--reason", "old"] if "prune" in command else []
        code, said = run(*command, *rest)
        assert (code, said.count("\n")) == (3, 1), said
    with pytest.raises(StoreUnavailable), deployment.open():
        pass
    mount("umount", file_system)
    mount("mount", "-o", "loop,errors=remount-ro", tmp_path / "image", file_system)
    with deployment.open() as service:
        assert service.ask(key="first").content == paid.content
        assert service.ask(key="second", epsilon=0.5).status_code == 200
        assert service.balance().used == service.balance().spent
        assert service.manager.verify().failures == {}


def test_a_second_service_on_one_file_is_refused(deployment):
    """The second process exits before it listens."""
    with serving(deployment) as service:
        second = Process(deployment)
        assert (second.url, second.process.exitcode) == (None, 1)
        reply = httpx.post(f"{service.url}/v1/query", json={"sql": TOP}, headers=deployment.headers("ann"))
        deployment.note("ann", reply)
        assert reply.status_code == 200
    with deployment.manager() as manager:
        deployment.check(manager)


def _with_checkpoints(tmp_path):
    deployment = Deployment(tmp_path / "deployment", rest=CHECKPOINTS)
    with deployment.open() as service:
        assert service.ask(key="first").status_code == 200
        service.manager.maintain()
    return deployment


def test_a_service_with_a_restored_store_does_not_start(tmp_path):
    """F12, T25: yesterday's copy is consistent; only the checkpoint shows that budget was spent since."""
    deployment = _with_checkpoints(tmp_path)
    backup = shutil.copytree(deployment.folder, tmp_path / "backup")
    with deployment.open() as service:
        assert service.ask(key="second", epsilon=2.0).status_code == 200
        service.manager.maintain()
    shutil.copy(backup / "budget.db", deployment.folder / "budget.db")
    with pytest.raises(StoreBehind), deployment.open():
        pass
    assert Process(deployment).url is None


def test_a_store_whose_log_was_removed_after_a_crash_does_not_serve(tmp_path):
    """F11, F12: without its -wal a store is older than it was, which the checkpoint shows."""
    deployment = _with_checkpoints(tmp_path)
    with deployment.open() as service:
        assert service.ask(key="second", epsilon=2.0).status_code == 200
        service.manager.maintain()
        crashed = deployment.copy_to(tmp_path / "crashed")  # as after kill -9
    with crashed.copy_to(tmp_path / "whole").open() as service:
        assert len(service.manager.store.history("ann@sales")) == 2
    (crashed.folder / "budget.db-wal").unlink()
    with pytest.raises(StoreBehind), crashed.open():
        pass


def test_another_store_cannot_replace_the_one_with_checkpoints(tmp_path):
    """F12: an empty store would have the full budget left."""
    deployment = _with_checkpoints(tmp_path)
    other = Deployment(tmp_path / "other", rest=CHECKPOINTS)
    shutil.copy(other.folder / "budget.db", deployment.folder / "budget.db")
    with pytest.raises(StoreBehind), deployment.open():
        pass


def test_a_store_restored_under_a_running_service_is_not_served_from(tmp_path):
    """F12: maintenance detects that lines of the checkpoint are missing; checkpoints and ledger are not changed."""
    deployment = _with_checkpoints(tmp_path)

    def lose(transaction):
        transaction.db.write([("DELETE FROM budget_ledger WHERE seq = (SELECT max(seq) FROM budget_ledger)", ())])

    with deployment.open(checked=False) as service:
        service.opened.maintenance.once()
        assert service.send("GET", "/readyz", None).status_code == 200
        written, paid = (deployment.folder / "checkpoints").read_bytes(), service.ask(key="first").content
        service.manager.store.write(lose, "lose a line")
        heads = service.manager.store.heads()
        for _ in range(2):
            service.opened.maintenance.once()
            reply = service.ask(key="second", epsilon=2.0)
            assert (reply.status_code, slug(reply)) == (503, "store-unavailable")
            ready = service.send("GET", "/readyz", None)
            assert (ready.status_code, ready.json()["checks"]["checkpoints"]) == (503, "stale")
        assert (deployment.folder / "checkpoints").read_bytes() == written
        assert service.manager.store.heads() == heads
        assert service.engines.queried == 0
        assert service.ask().content == paid, "what is in memory was paid for"


def test_data_that_changes_within_its_version_is_not_released(deployment):
    """T13: equal noise on other data would show the difference, and fresh noise would average out."""
    narrow, wide = TOP, TOP.replace("LIMIT 5", "LIMIT 4")  # the same head is read for both
    with deployment.open() as service:
        first = service.ask(narrow)
        assert first.status_code == 200
    pyarrow.parquet.write_table(table_of(readers=True, more=1), deployment.folder / "reads.parquet")
    with deployment.open() as service:
        assert service.ask(narrow).content == first.content, "what was paid for is replayed"
        used, engine_asked = service.balance().used, service.engines.queried
        refused = [service.ask(wide, key=str(n)) for n in range(2)]
        assert [(reply.status_code, slug(reply)) for reply in refused] == [(503, "data-changed")] * 2
        assert refused[0].json()["detail"] == refused[1].json()["detail"]
        assert service.engines.queried == engine_asked + 2
        assert service.balance().used == used
        assert service.balance().forfeited != Cost()
        assert {event["cause"] for event in service.events("forfeited")} == {"data-changed"}


def test_a_service_without_its_store_does_not_start(deployment):
    """A missing store is not replaced by an empty one."""
    (deployment.folder / "budget.db").unlink()
    with pytest.raises(InputError, match="no budget store"), deployment.open():
        pass
    assert not (deployment.folder / "budget.db").exists()
