"""`discreet ledger`: verify and read the ledger of a store, also while its service runs."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import apsw
import pytest

from discreet.budget.model import AdminAction
from discreet.errors import DiscreetError
from discreet.service.app import open_service
from discreet.service.settings import load_settings
from discreet.values import Cost
from tests.cli.test_serve_init import keys_in


@pytest.fixture
def folder(run, tmp_path, monkeypatch):
    """Return a service that was started once and not queried."""
    monkeypatch.chdir(tmp_path)
    run("init")
    return tmp_path


@pytest.fixture
def served(folder):
    """Return the same while it is served: new lines are in the write-ahead log of the database only."""
    with open_service(load_settings(folder / "discreet.toml"), {}) as parts:
        act = AdminAction("key:1", "was answered, by mail")
        parts.manager.store.charge("ann@example", Cost.at_most(1e-3, 1e-9), act)
        parts.manager.maintain()
        yield parts


def tamper(statement, *values):
    """Edit the database directly."""
    db = apsw.Connection("budget.db")
    db.execute(statement, values)
    db.close()


def test_a_valid_ledger_verifies(run, folder):
    """The output has the number of lines, and whether the end was checked."""
    ran = run("ledger", "verify")
    assert (ran.code, ran.out) == (0, "sound: 7 lines, 3 accounts; its end is that of the last checkpoint\n")
    named = run("ledger", "verify", "--store", "sqlite:budget.db")
    unchecked = "its end is not checked, so a rollback cannot be excluded: there are no checkpoints"
    assert (named.code, named.out) == (0, f"sound: 7 lines, 3 accounts; {unchecked}\n")
    assert run("ledger", "verify", "--config", folder / "discreet.toml").out == ran.out


def test_a_ledger_is_verified_while_its_service_runs(run, served):
    """An audit does not stop the service, which keeps writing."""
    assert run("ledger", "verify").out.startswith("sound: 9 lines")
    served.manager.store.charge("ann@example", Cost.at_most(1e-3, 0), AdminAction("key:1", "again"))
    served.manager.maintain()
    assert run("ledger", "verify").out.startswith("sound: 10 lines")
    assert served.manager.verify().lines == 10


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE budget_ledger SET body = replace(body, 'discreet init', 'discreet unit') WHERE seq = 2",
        "DELETE FROM budget_ledger WHERE seq = 3",
        "UPDATE budget_accounts SET settings = replace(settings, 'enforce', 'observe')",
        "DELETE FROM budget_records WHERE kind = 'grant'",
        "UPDATE budget_records SET text = replace(text, 'analyst', 'officer')",
    ],
)
def test_external_changes_are_detected(run, statement):
    """T26: exit code 3 and a sentence; for lines, accounts, keys and grants alike."""
    tamper(statement)
    ran = run("ledger", "verify")
    assert (ran.code, ran.out, ran.err.count("\n")) == (3, "", 1)
    assert "cannot be trusted" in ran.err


def test_a_ledger_without_its_checkpoint_may_be_an_older_copy(run, folder):
    """F12, T25: exit code 3 until an operator accepts the store, which the ledger records; then as before."""
    checkpoints, accept = folder / "checkpoints.log", ["accept", "--reason", "the disk was lost"]
    assert "nothing to accept" in run("ledger", *accept).err
    for lose in (checkpoints.unlink, lambda: checkpoints.write_bytes(b""), lambda: checkpoints.write_bytes(b"{cut")):
        lose()
        for command in (["ledger", "verify"], ["serve"], ["key", "admin", "--reason", "lost"]):
            ran = run(*command)
            assert (ran.code, ran.out, ran.err.count("\n")) == (3, "", 1), command
            assert "a rollback to an older copy of the store cannot be excluded" in ran.err
        lines = int(run("ledger", "verify", "--store", "sqlite:budget.db").out.split()[1])
        ran = run("ledger", *accept)
        assert (ran.code, ran.out) == (
            0,
            f"accepted: {lines} lines, as they are; 'checkpoints.log' has the first checkpoint\n",
        )
        (line,) = run("ledger", "show", "--last", 1).out.splitlines()
        assert "discreet the disk was lost" in line
        assert run("ledger", "verify").out.startswith(f"sound: {lines + 1} lines")
        assert "nothing to accept" in run("ledger", *accept).err


def test_a_ledger_that_was_changed_is_not_accepted(run, folder):
    """Accepting means that lines may be missing at the end, not that the others may be wrong."""
    (folder / "checkpoints.log").unlink()
    tamper("DELETE FROM budget_ledger WHERE seq = 3")
    ran = run("ledger", "accept", "--reason", "why not")
    assert (ran.code, "cannot be trusted" in ran.err) == (3, True)
    assert not (folder / "checkpoints.log").exists()


def test_without_checkpoints_in_the_settings_there_is_nothing_to_accept(run, folder):
    """Exit code 2; the service starts without them anyway."""
    settings = folder / "discreet.toml"
    text = settings.read_text()
    settings.write_text(text[: text.index("[checkpoints]")] + text[text.index("[defaults]") :])
    ran = run("ledger", "accept", "--reason", "why not")
    assert (ran.code, "no section checkpoints" in ran.err) == (2, True)


@pytest.mark.usefixtures("folder")
def test_the_checkpoint_detects_missing_lines_at_the_end(run):
    """T25: the remaining lines are consistent, and still incomplete."""
    shutil.copy("budget.db", "backup.db")
    with open_service(load_settings("discreet.toml"), {}) as parts:
        parts.manager.store.charge("ann@example", Cost.at_most(1e-3, 0), AdminAction("key:1", "why"))
        parts.manager.maintain()
    shutil.move("backup.db", "budget.db")
    ran = run("ledger", "verify")
    assert ran.code == 3
    assert "older than its last checkpoint" in ran.err
    assert run("ledger", "verify", "--store", "sqlite:budget.db").code == 0


def test_a_copy_that_cannot_be_written_can_be_checked(run, folder):
    """On a read-only disk no temporary file can be created beside it, here because its path is taken."""
    before = (folder / "budget.db").read_bytes()
    (folder / "backup" / "budget.db-shm").mkdir(parents=True)
    shutil.copy("budget.db", "backup/budget.db")
    assert run("ledger", "verify", "--store", "sqlite:backup/budget.db").code == 0
    assert (folder / "backup" / "budget.db").read_bytes() == before


@pytest.mark.usefixtures("served")
def test_the_last_lines_are_shown(run):
    """Time, place, action, actor, reason and change of each."""
    (line,) = run("ledger", "show", "--last", 1).out.splitlines()
    assert "charge" in line
    assert "key:1 was answered, by mail" in line
    assert "ann@example used +0.001 +1e-09" in line
    assert len(run("ledger", "show", "--last", 3).out.splitlines()) == 3


@pytest.mark.usefixtures("served")
def test_lines_of_one_account_are_shown(run):
    """Lines that name the account, whether they charge or create it."""
    lines = run("ledger", "show", "--account", "ann@example").out.splitlines()
    assert [line.split()[2] for line in lines] == ["create", "charge"]
    assert run("ledger", "show", "--account", "nobody").out == ""


@pytest.mark.usefixtures("served")
def test_exported_lines_can_be_verified_without_the_store(run):
    """I5: the chain can be recomputed from the export, without our code."""
    last = hashlib.sha256(b"discreet ledger 1 0").digest()
    lines = [json.loads(line) for line in run("ledger", "export").out.splitlines()]
    assert [line["seq"] for line in lines] == list(range(1, 10))
    for line in lines:
        last = hashlib.sha256(last + line["body"].encode()).digest()
        assert line["hash"] == last.hex()


@pytest.mark.usefixtures("folder")
def test_pruned_lines_are_in_the_archive_and_verify_with_it(run, monkeypatch):
    """I5: from the sums without the archive, from the first line with it; the checkpoint accepts both."""
    later = datetime.now(UTC) + timedelta(days=3)
    monkeypatch.setattr("discreet.service.stores.utc_now", lambda: later)
    before = ["--before", f"{later - timedelta(days=1):%Y-%m-%d}", "--reason", "a year is enough"]
    assert run("ledger", "prune", *before, "--archive", "old.jsonl").out == (
        "7 lines are in old.jsonl, and no longer in the store\n"
    )
    vouched = "3 accounts; its end is that of the last checkpoint\n"
    assert run("ledger", "verify").out == f"sound: 2 lines after 7 that were removed, {vouched}"
    assert run("ledger", "verify", "--archive", "old.jsonl").out == f"sound: 9 lines, {vouched}"
    again = run("ledger", "prune", *before, "--archive", "old.jsonl")
    assert (again.code, "--force" in again.err) == (2, True)
    Path("old.jsonl").write_text(Path("old.jsonl").read_text().replace("discreet init", "discreet unit"))
    assert run("ledger", "verify", "--archive", "old.jsonl").code == 3
    Path("old.jsonl").write_text("no line")
    assert run("ledger", "verify", "--archive", "old.jsonl").code == 2
    assert "24 hours" in run("ledger", "prune", "--before", "2999-01-01", *before[2:], "--archive", "new.jsonl").err


@pytest.mark.usefixtures("served")
def test_a_service_with_an_sqlite_store_has_to_be_stopped_for_pruning(run):
    """Only one process can write the file of the store."""
    ran = run("ledger", "prune", "--before", "2020-01-01", "--archive", "old.jsonl", "--reason", "old")
    assert (ran.code, "another process" in ran.err) == (3, True)
    assert not Path("old.jsonl").exists()


@pytest.mark.usefixtures("served")
def test_a_table_has_a_row_for_each_change(run, folder):
    """Commas and quotes are escaped; lines without a change have one row, too."""
    ran = run("ledger", "export", "--format", "csv", "--output", folder / "ledger.csv")
    assert (ran.code, ran.out) == (0, "")
    rows = list(csv.DictReader(io.StringIO((folder / "ledger.csv").read_text())))
    assert len(rows) == 9
    charged = rows[-1]
    assert (charged["kind"], charged["reason"]) == ("charge", "was answered, by mail")
    assert (charged["account"], charged["part"], float(charged["rho"])) == ("ann@example", "used", 0.001)
    assert rows[-1]["hash"] == json.loads(run("ledger", "export").out.splitlines()[-1])["hash"]


@pytest.mark.parametrize("reason", ['=HYPERLINK("http://x.example")', "+1", "-1", "@x"])
def test_a_reason_cannot_compute_in_a_spreadsheet(run, folder, served, reason):
    """A text that begins like a formula has an apostrophe before it in CSV; JSON has it as it is."""
    served.manager.store.charge("ann@example", Cost.at_most(1e-3, 0), AdminAction("key:1", reason))
    served.manager.maintain()
    run("ledger", "export", "--format", "csv", "--output", folder / "ledger.csv")
    rows = list(csv.DictReader(io.StringIO((folder / "ledger.csv").read_text())))
    assert rows[-1]["reason"] == f"'{reason}"
    assert json.loads(run("ledger", "export").out.splitlines()[-1])["detail"]["reason"] == reason


def test_the_output_contains_no_key(run, tmp_path, monkeypatch):
    """T9: the ledger has digests of records, not even the hash of a key."""
    monkeypatch.chdir(tmp_path)
    keys = keys_in(run("init").out)
    text = run("ledger", "export").out + run("ledger", "show").out
    for key in keys.values():
        assert key.rpartition("_")[2] not in text
        assert hashlib.sha256(key.encode()).hexdigest() not in text


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["verify", "--config", "none.toml"], 2, "there is no such file"),
        (["verify", "--store", "sqlite:none.db"], 2, "there is no budget store 'none.db'"),
        (["verify", "--store", "none.db"], 2, "--store must be sqlite:FILE"),
        (["verify", "--store", "sqlite:budget.db", "--config", "discreet.toml"], 2, "either --config or --store"),
        (["verify", "--store", "sqlite:catalog.toml"], 3, "cannot be read"),
        (["verify", "--store", "postgresql://nobody@127.0.0.1:9/none"], 3, "store"),
        (["export", "--output", "discreet.toml"], 2, "exists"),
        (["show", "--last", "0"], 2, "--last"),
    ],
)
def test_a_file_that_cannot_be_read_is_reported(run, arguments, code, sentence):
    """One sentence; exit code 2 for invalid arguments, 3 for invalid files."""
    ran = run("ledger", *arguments)
    assert (ran.code, ran.out) == (code, "")
    assert sentence in ran.err


@pytest.mark.parametrize("seed", range(6))
def test_a_damaged_store_gets_one_sentence_from_every_command(run, folder, seed):
    """F11: a page of garbage or of zeros, changed bytes, a part of the file; whichever command reads it."""
    random = Random(seed)  # noqa: S311
    whole, settings = (folder / "budget.db").read_bytes(), folder / "discreet.toml"
    refused = 0
    for _ in range(10):
        at = random.randrange(len(whole))
        page = at // 4096 * 4096
        damage = {
            "garbage": lambda page=page: whole[:page] + random.randbytes(4096) + whole[page + 4096 :],
            "zeros": lambda page=page: whole[:page] + bytes(4096) + whole[page + 4096 :],
            "bytes": lambda at=at: whole[:at] + random.randbytes(9) + whole[at + 9 :],
            "part": lambda at=at: whole[:at],
        }
        damaged = random.choice([*damage.values()])()
        for command in (
            *(["ledger", name] for name in ("verify", "show", "export")),
            ["ledger", "export", "--format", "csv"],
            ["ledger", "prune", "--before", "2020-01-01", "--archive", "old.jsonl", "--reason", "old", "--force"],
            ["key", "admin", "--reason", "lost"],
            ["serve"],
        ):
            for rest in ("-wal", "-shm"):
                (folder / f"budget.db{rest}").unlink(missing_ok=True)
            (folder / "budget.db").write_bytes(damaged)
            if command == ["serve"]:  # without waiting for requests
                with (
                    contextlib.suppress(DiscreetError),
                    open_service(load_settings(settings), {}, io.StringIO()) as served,
                ):
                    served.maintenance.once()
                continue
            ran = run(*command)
            assert ran.code in {0, 2, 3}, command
            assert ran.err.count("\n") == (ran.code > 0), command
            refused += ran.code > 0
    assert refused > 10


@pytest.mark.usefixtures("folder")
def test_a_store_of_another_version_is_refused(run):
    """Reading a ledger never migrates its store."""
    tamper("UPDATE budget_meta SET version = 1")
    ran = run("ledger", "verify")
    assert ran.code == 3
    assert "schema 1" in ran.err
