"""F12: a restore drill, as docs/service/running.md describes it, and pruning that removes lines before a restore."""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
from datetime import date

import apsw
import pyarrow as pa
import pyarrow.parquet
import pytest

from discreet.budget.errors import StoreBehind
from discreet.budget.model import AdminAction
from discreet.cli import main
from discreet.errors import InputError
from discreet.values import Cost
from tests.service.answering.test_running import STREAM_TABLE, board, load, record, refresh, visits
from tests.service.deployment import ACT, CATALOG, CHECKPOINTS, TOP, Deployment

from .processes import stepping_store


@pytest.fixture
def deployment(tmp_path, monkeypatch):
    """Return a deployment with checkpoints, whose clock is that of the command line, too."""
    made = Deployment(tmp_path / "deployment", rest=CHECKPOINTS)
    monkeypatch.setattr("discreet.service.stores.utc_now", made.clock)
    return made


@pytest.fixture
def run_in(capsys):
    """Return a function that runs a command of `discreet ledger` and returns its exit code and all that it says."""

    def run_in(deployment, *arguments):
        with pytest.raises(SystemExit) as ended:
            main(["ledger", *map(str, arguments), "--config", str(deployment.folder / "discreet.toml")])
        said = capsys.readouterr()
        return ended.value.code, said.out + said.err

    return run_in


@pytest.fixture
def run(deployment, run_in):
    """Return a function that runs a command of `discreet ledger` on the deployment."""
    return functools.partial(run_in, deployment)


def back_up(deployment, target):
    """Copy the store, which a service may have open, like the command .backup of sqlite3."""
    with (
        contextlib.closing(apsw.Connection(str(deployment.folder / "budget.db"), apsw.SQLITE_OPEN_READONLY)) as source,
        contextlib.closing(apsw.Connection(str(target))) as copy,
        copy.backup("main", source, "main") as running,
    ):
        running.step()


def put_back(deployment, backup):
    """Replace the store by a backup."""
    for rest in ("-wal", "-shm"):
        (deployment.folder / f"budget.db{rest}").unlink(missing_ok=True)
    shutil.copy(backup, deployment.folder / "budget.db")


def test_a_backup_is_restored_as_the_documentation_says(deployment, run, tmp_path):
    """The older copy is refused; after the drill nothing can be spent twice, and releases stay the same."""
    with deployment.open() as service:
        first = service.ask(epsilon=0.5)
        service.maintenance.once()
        back_up(deployment, tmp_path / "backup.db")
        later = service.ask(TOP.replace("5", "4"))
        assert later.status_code == 200
        service.maintenance.once()
    put_back(deployment, tmp_path / "backup.db")
    deployment.responses.clear()  # the charge of one of them is lost with the store
    with pytest.raises(StoreBehind), deployment.open():
        pass
    assert run("verify")[0] == 3
    assert run("accept", "--reason", "restored")[0] == 2
    # 1. rename the file of checkpoints, and accept the store
    (deployment.folder / "checkpoints").rename(deployment.folder / "checkpoints.old")
    assert run("verify")[0] == 3
    code, said = run("accept", "--reason", "restored the backup of Monday")
    assert (code, said.count("accepted")) == (0, 1)
    with deployment.open() as service:
        assert service.ask(epsilon=0.5).content == first.content, "what the backup has is replayed"
        # 2. charge every account what it has left
        for name in ("ann@sales", "bob@sales", "sales"):
            left = service.balance(name).remaining
            service.store.charge(name, left, ACT)
            assert service.balance(name).remaining == Cost()
        assert service.ask(TOP.replace("5", "4")).status_code == 403
        service.maintenance.once()
        # 3. once the charges no longer count, the same query has the same release, charged
        service.clock.pass_(days=32)
        service.store.confirm_clock(ACT)
        assert service.ask(TOP.replace("5", "4")).content == later.content
        assert service.balance().used == service.balance().spent != Cost()
        service.maintenance.once()
    assert run("verify")[0] == 0
    assert "restored the backup of Monday" in run("show", "--last", 1_000)[1]


def test_a_backup_with_the_lines_of_the_last_checkpoint_is_served_at_once(deployment, run, tmp_path):
    """A service that was stopped before its backup has lost nothing."""
    with deployment.open() as service:
        paid = service.ask()
        service.maintenance.finish()
    back_up(deployment, tmp_path / "backup.db")
    put_back(deployment, tmp_path / "backup.db")
    assert run("verify")[0] == 0
    with deployment.open() as service:
        assert service.ask().content == paid.content


def test_a_pruned_store_is_verified_and_restored_like_another(deployment, run, tmp_path):
    """I5: the lines are in the archive; an older copy, pruned or not, is refused, and the pruned store is not."""
    archive, reason = tmp_path / "old.jsonl", ("--reason", "a day is enough")
    with deployment.open() as service:
        paid = service.ask()
        service.maintenance.once()
    back_up(deployment, tmp_path / "before.db")
    deployment.clock.pass_(days=2)
    with deployment.manager() as manager:
        manager.store.confirm_clock(ACT)
    code, said = run("prune", "--before", f"{deployment.clock():%Y-%m-%d}", "--archive", archive, *reason)
    assert (code, "24 hours" in said) == (2, True)
    assert not archive.exists()
    deployment.clock.pass_(days=1)
    day = f"{deployment.clock.now.replace(day=deployment.clock.now.day - 1):%Y-%m-%d}"
    code, said = run("prune", "--before", day, "--archive", archive, *reason)
    removed = int(said.split()[0])
    assert (code, removed) == (0, len(archive.read_text().splitlines()))
    assert removed > 10
    back_up(deployment, tmp_path / "pruned.db")
    assert run("verify")[0] == run("verify", "--archive", archive)[0] == 0
    with deployment.open() as service:
        assert service.ask().content == paid.content, "entitlements outlive their lines"
        assert service.ask(epsilon=0.25).status_code == 200
        service.maintenance.once()
    put_back(deployment, tmp_path / "pruned.db")
    assert run("verify")[0] == 3
    put_back(deployment, tmp_path / "before.db")
    assert run("verify")[0] == 3
    with deployment.manager() as manager:  # without checkpoints: another past, pruned in the same way
        manager.store.confirm_clock(AdminAction("eve", "another past"))
        manager.prune(int((deployment.clock.now.timestamp() - 90_000) * 1e6), AdminAction("eve", "hide it"), list)
        manager.verify()
    assert run("verify")[0] == 3
    with pytest.raises(StoreBehind), deployment.open():
        pass


@pytest.mark.parametrize("bound", ["groups_per_user = 2\n", ""], ids=["one level", "two levels"])
def test_a_stream_goes_on_from_a_backup_with_the_same_numbers(tmp_path, monkeypatch, bound):
    """The noise of a period follows from the store, the key and the rows: what was shown is shown again.

    If rows have changed, other noise is added to them, which follows from other digests of what was read. That is not
    known before they are read, so accepting the store charges the stream once more.
    """
    catalog = CATALOG + STREAM_TABLE.replace("groups_per_user = 2\n", bound).replace("epsilon = 4", "epsilon = 8")
    accounts = board(epsilon=30.0)
    parts = {"catalog": catalog, "accounts": accounts, "granted": {"visits": None}}
    deployment = Deployment(tmp_path / "deployment", rest=CHECKPOINTS, **parts)
    monkeypatch.setattr("discreet.service.stores.utc_now", deployment.clock)

    def answered_until(days, late=()):
        load(deployment, days)
        loaded = visits(days)
        rows = pa.Table.from_pylist([*loaded.to_pylist(), *late], loaded.schema)
        pyarrow.parquet.write_table(rows, deployment.folder / "visits.parquet")
        with deployment.open() as service:
            service.store.confirm_clock(ACT)
            refresh(service)
            assert service.streams.problems == {}
            service.maintenance.once()
            releases = record(service).releases
            rows = [service.store.release(bytes.fromhex(release)).result for release in releases.values()]
            digests = json.loads(record(service).state)["answered"][-1][2]
            return rows, digests, service.manager.get("board").balance.spent

    answered_until(1)
    back_up(deployment, tmp_path / "backup.db")
    answers, digests, spent = answered_until(3)
    assert len(answers) == 3
    late = {"reader": 10**6, "article": "article 1", "loaded": date(2026, 11, 3)}
    for rows in ([], [late]):
        put_back(deployment, tmp_path / "backup.db")
        with pytest.raises(StoreBehind), deployment.open():
            pass
        (deployment.folder / "checkpoints").rename(deployment.folder / f"checkpoints.{len(rows)}")
        with pytest.raises(SystemExit):
            main(["ledger", "accept", "--reason", "restored", "--config", str(deployment.folder / "discreet.toml")])
        again, read, spent_again = answered_until(3, rows)
        assert spent_again == Cost(2 * spent.rho, 2 * spent.delta)
        assert (read == digests) == (not rows)
        assert again[: 2 if rows else 3] == answers[: 2 if rows else 3]


@pytest.mark.parametrize(
    ("days", "step", "charges"),
    [(3, None, 2), (28, None, 1), (3, "commit", 2), (3, "committed", 3)],
    ids=["a stream that goes on", "one whose last period was answered", "before the charge", "after the charge"],
)
def test_accepting_a_store_charges_streams_once_more(tmp_path, monkeypatch, run_in, days, step, charges):
    """I1: their periods may be answered again from other rows; a crash charges more, and nothing is served uncharged.

    The price is charged beyond the limit too, which the first run may have spent, and the stream goes on.
    """
    parts = {"catalog": CATALOG + STREAM_TABLE, "accounts": board(epsilon=4.1), "granted": {"visits": None}}
    deployment = Deployment(tmp_path / "deployment", rest=CHECKPOINTS, **parts)
    monkeypatch.setattr("discreet.service.stores.utc_now", deployment.clock)
    load(deployment, days)
    with deployment.open() as service:
        service.store.confirm_clock(ACT)
        refresh(service)
        service.maintenance.once()
        price = record(service).cost
    (deployment.folder / "checkpoints").rename(deployment.folder / "checkpoints.old")
    if step is not None:

        def crash(reached):
            if reached == step:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr("discreet.service.stores.open_store", functools.partial(stepping_store, crash))
            run_in(deployment, "accept", "--reason", "restored")
        with pytest.raises(StoreBehind), deployment.open():
            pass
    code, said = run_in(deployment, "accept", "--reason", "restored")
    assert code == 0
    assert ("running counts were charged once more: by_article" in said) == (charges > 1)
    load(deployment, min(days + 1, 28))
    with deployment.open(checked=False) as service:
        refresh(service)
        deployment.check(service.manager, lowered=("board",))
        assert service.streams.problems == {}
        assert service.manager.get("board").balance.spent == Cost(charges * price.rho, charges * price.delta)
        assert record(service).cost == service.manager.get("board").balance.spent
        assert (f"for all periods, {charges} times, until" in record(service).paid) == (charges > 1)
        assert len(record(service).releases) == min(days + 1, 28)
        (listed,) = service.get("/v1/admin/running", "officer").json()["streams"]
        assert listed["paid"]["rho"] == pytest.approx(charges * float(price.rho))
        assert listed["epsilon"] == charges * 4
        about = service.get("/v1/tables/by_article", "ann").json()
        assert about["running"]["epsilon"] == charges * 4
        assert about["paid"] == listed["paid"]


def test_a_stream_whose_key_or_last_answer_is_lost_has_ended(tmp_path, monkeypatch, capsys):
    """With another key, though it was accepted, or without the list: a sentence says so, and nothing is charged."""
    parts = {"catalog": CATALOG + STREAM_TABLE, "accounts": board(), "granted": {"visits": None}}
    deployment = Deployment(tmp_path / "deployment", **parts)
    monkeypatch.setattr("discreet.service.stores.utc_now", deployment.clock)
    load(deployment, 1)
    with deployment.open() as service:
        service.store.confirm_clock(ACT)
        refresh(service)
        paid = record(service)
    load(deployment, 2)
    noise = (deployment.folder / "noise.key").read_bytes()
    (deployment.folder / "noise.key").write_bytes(b"o" * 32)
    with pytest.raises(InputError, match="noise key is not the one of the store"), deployment.open():
        pass
    with pytest.raises(SystemExit):
        main(["key", "accept", "--reason", "lost", "--config", str(deployment.folder / "discreet.toml")])
    assert "running counts end with another key: by_article; what they answered stays" in capsys.readouterr().out
    with deployment.open() as service:
        refresh(service)
        assert "another key, or an earlier version began it; with new noise" in service.streams.problems["by_article"]
        assert record(service) == paid
    (deployment.folder / "noise.key").write_bytes(noise)
    with pytest.raises(SystemExit):
        main(["key", "accept", "--reason", "found", "--config", str(deployment.folder / "discreet.toml")])
    assert "running counts" not in capsys.readouterr().out
    with deployment.open() as service:
        monkeypatch.setattr(type(service.store), "release", lambda *_: None)
        refresh(service)
        assert "the last answer of the stream is lost, so it has ended" in service.streams.problems["by_article"]
        assert record(service) == paid
        monkeypatch.undo()
        assert service.manager.get("board").balance.spent == paid.cost
