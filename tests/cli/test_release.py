"""`discreet top` and `discreet release`: results, outputs and formats."""

from __future__ import annotations

import csv
import datetime
import io
import json
import os
import signal
import subprocess
import sys
import time

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from discreet.noise import KeyedBits
from discreet.release import NoiseKey
from discreet.table import scan
from tests.cli.conftest import READERS


@pytest.fixture
def key(tmp_path):
    """Return a file with a secret that only its owner can read."""
    path = tmp_path / "noise.key"
    path.write_bytes(bytes(range(32)))
    path.chmod(0o600)
    return path


def test_top_prints_records_to_stdout_and_notes_to_stderr(ask):
    """Only the table of items on standard output; mechanism and guarantee on standard error."""
    ran = ask("top", "-k", 3, "--epsilon", 5)
    lines = ran.out.splitlines()
    assert (ran.code, lines[0].split()) == (0, ["rank", "article", "count", "std_error", "95", "%", "interval"])
    assert {line.split()[1] for line in lines[1:]} == {"bees", "tides", "moss"}
    assert "3 of 3 items by unknown-gumbel" in ran.err
    assert ran.err.splitlines()[-1].startswith(
        "this answer keeps differential privacy with epsilon = 5 and delta = 1e-08 for every user; it spent all "
        "of that (rho = "
    )


def test_quiet_prints_nothing_but_records(ask):
    """With --quiet, standard error is empty, even of warnings."""
    assert ask("top", "--quiet", "--delta", "1e-3").err == ""


def test_a_large_delta_is_a_warning(ask):
    """Delta above 1e-4 is allowed with a warning."""
    ran = ask("top", "--delta", "2e-4")
    assert ran.code == 0
    assert "note: delta = 0.0002 is large" in ran.err


def test_json_has_the_documented_shape(ask):
    """Every documented field, and no others; counts are integers, rank only for a top k."""
    body = json.loads(ask("top", "-k", 3, "--epsilon", 5, "--format", "json").out)
    assert set(body) == {
        "items",
        "mechanism",
        "chosen",
        "why",
        "complete",
        "clipped",
        "clipping",
        "privacy",
        "charged",
        "query",
        "seconds",
    }
    assert [set(item) for item in body["items"]] == [{"rank", "article", "count", "std_error", "low", "high"}] * 3
    assert all(isinstance(item["count"], int) for item in body["items"])
    assert [item["rank"] for item in body["items"]] == [1, 2, 3]
    assert body["complete"] is True
    assert body["privacy"]["unit"] == "user"
    assert body["privacy"]["epsilon"] <= 5
    assert body["privacy"]["delta"] <= 1e-8
    released = json.loads(ask("release", "--epsilon", 5, "--format", "json").out)
    assert all("rank" not in item for item in released["items"])
    assert released["mechanism"] == "auto"
    assert released["chosen"] in ("light", "two-round", "head")


def test_csv_is_csv(ask):
    """A header and a row for each item."""
    rows = list(csv.DictReader(io.StringIO(ask("release", "--epsilon", 8, "--format", "csv").out)))
    assert {row["article"] for row in rows} <= set(READERS)
    assert list(rows[0]) == ["article", "count", "std_error", "low", "high"]


def test_the_format_follows_the_extension_of_the_output(ask, tmp_path):
    """--output x.parquet, x.json, x.csv need no --format, and nothing goes to standard output."""
    for ending in ("parquet", "json", "csv", "txt"):
        assert ask("top", "-k", 3, "--epsilon", 5, "--output", tmp_path / f"x.{ending}").out == ""
    assert pq.read_table(tmp_path / "x.parquet").num_rows == 3
    assert len(json.loads((tmp_path / "x.json").read_text())["items"]) == 3
    assert (tmp_path / "x.csv").read_text().startswith('"rank","article"')
    assert (tmp_path / "x.txt").read_text().startswith("rank  article")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.csv", "x.json", "x.parquet", "x.txt"]


def test_a_plot_is_written_beside_the_records(ask, tmp_path):
    """The picture of --plot has the printed records."""
    ran = ask("top", "-k", 3, "--epsilon", 5, "--plot", tmp_path / "x.png")
    assert "bees" in ran.out
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_key_gives_the_same_answer_with_a_computational_guarantee(ask, key):
    """Consistent noise: equal bytes except for the time; another data version gives another answer."""
    arguments = ("top", "-k", 3, "--epsilon", 5, "--format", "json", "--key", key)
    one, same, other = (json.loads(ask(*arguments, *more).out) for more in ((), (), ("--data-version", "2")))
    assert one["items"] == same["items"]
    assert one["items"] != other["items"]
    assert one["privacy"]["computational"] is True


def test_the_default_data_version_changes_with_the_file(reads, tmp_path, run, key):
    """A rewritten file gets other noise, although its content is the same."""
    copy = tmp_path / "copy.parquet"
    copy.write_bytes(reads.read_bytes())
    arguments = ("top", copy, "--user", "reader", "--item", "article", "--epsilon", 5, "--format", "json", "--key", key)
    before = json.loads(run(*arguments).out)["items"]
    os.utime(copy, ns=(0, copy.stat().st_mtime_ns + 1))
    assert json.loads(run(*arguments).out)["items"] != before


def test_a_key_file_readable_by_others_is_noted(ask, key):
    """The noise is as secret as its key."""
    key.chmod(0o644)
    assert "chmod 600" in ask("top", "--key", key).err


def test_the_command_line_makes_the_same_query_as_python(ask, key, reads):
    """With the same key and any options, both interfaces give the same answer."""
    cases = [
        (("top", "-k", 2, "--no-counts"), ("top", {"k": 2, "counts": False})),
        (("top", "-k", 2, "--noise", "laplace"), ("top", {"k": 2, "noise": "laplace"})),
        (("release", "--relative-error", "0.2"), ("release", {"relative_error": "0.2"})),
        (("release", "--groups-per-user", 2), ("release", {"groups_per_user": 2})),
        (
            ("release", "--groups-per-user", 2, "--rows-per-group", 3),
            ("release", {"groups_per_user": 2, "rows_per_group": 3}),
        ),
        (("top", "-k", 2, "--head-limit", 3), ("top", {"k": 2, "head_limit": 3})),
        (("top", "-k", 2, "--mechanism", "gumbel"), ("top", {"k": 2, "mechanism": "gumbel"})),
        (("top", "-k", 2, "--mechanism", "auto"), ("top", {"k": 2})),
    ]
    for arguments, (method, options) in cases:
        body = ask(*arguments, "--epsilon", 8, "--key", key, "--data-version", "1", "--format", "json").out
        table = scan(reads, user="reader")
        release = getattr(table, method)("article", epsilon=8, bits=NoiseKey(key.read_bytes(), "1"), **options)
        assert json.loads(body)["items"] == release.to_dict()["items"]
        assert len(release) > 0


def test_filters_domains_and_tables_reach_the_engine(run, reads, tmp_path):
    """--where, --domain and --table have their documented effects."""
    database = tmp_path / "reads.db"
    with duckdb.connect(str(database)) as connection:
        connection.execute("CREATE TABLE other (x INTEGER)")
        connection.execute(f"CREATE TABLE reads AS FROM '{reads}'")
    domain = tmp_path / "domain.csv"
    domain.write_text("article\nbees\nfern\n")
    arguments = ("--user", "reader", "--item", "article", "--epsilon", 20, "--domain", domain, "--format", "json")
    body = json.loads(run("release", database, "--table", "reads", "--where", "year = 2021", *arguments).out)
    counts = {item["article"]: item["count"] for item in body["items"]}
    assert set(counts) == {"bees", "fern"}
    assert abs(counts["bees"] - 180) < 20
    assert abs(counts["fern"]) < 20


def test_several_items_are_several_columns(run, reads):
    """Each --item adds a column to the records."""
    ran = run(
        "top", reads, "--user", "reader", "--item", "article", "--item", "year", "--epsilon", 20, "--format", "csv"
    )
    assert ran.out.splitlines()[0] == '"rank","article","year","count","std_error","low","high"'


def test_ctrl_c_leaves_no_file(tmp_path):
    """Interrupted during a count: exit 130, one sentence, no partial file."""
    slow = tmp_path / "slow.db"
    with duckdb.connect(str(slow)) as connection:
        connection.execute(
            "CREATE VIEW slow AS SELECT hash(a.range * 7919 + b.range) AS reader, hash(b.range) AS article "
            "FROM range(200000) a, range(200000) b"
        )
    command = [sys.executable, "-m", "discreet", "release", slow, "--user", "reader", "--item", "article"]
    process = subprocess.Popen(
        [*map(str, command), "--output", str(tmp_path / "out.csv")], stderr=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + 60
        while not _counting(process.pid):
            assert process.poll() is None
            assert time.monotonic() < deadline
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60)[1].strip() == "discreet: interrupted; nothing was written"
    finally:
        process.kill()  # its query would take all memory and never end
    assert process.returncode == 130
    assert [path.name for path in tmp_path.iterdir()] == ["slow.db"]


def _counting(pid: int) -> bool:
    """Return True if the process has begun to count: the database is open and threads use CPU time."""
    with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123 - /proc is no file for pathlib
        return int(file.read().rpartition(")")[2].split()[11]) > 150


def test_a_key_is_not_a_bits_object_by_chance(key):
    """Keyed answers are made by the key's own context, not by the bare secret."""
    assert repr(KeyedBits(key.read_bytes(), "x")) == "KeyedBits(...)"


def test_years_of_a_release_are_in_their_order(run, tmp_path):
    """In the table, in CSV and of a catalog; a top k and a statement, which may be ordered by counts, keep theirs."""
    path, catalog = tmp_path / "visits.parquet", tmp_path / "catalog.toml"
    users = {2021: 500, 2020: 900, 2022: 700}
    rows = [(user, datetime.date(year, 5, 1)) for year, n in users.items() for user in range(n)]
    pq.write_table(pa.table({"user": [user for user, _ in rows], "day": [day for _, day in rows]}), path)
    catalog.write_text(
        f'[datasets.v]\nsource = "{path}"\nuser = "user"\n[datasets.v.columns.day]\ntype = "date"\ngroup = true\n'
    )

    def years(*arguments):
        ran = run(*arguments, "--epsilon", 5, "--quiet", "--format", "csv")
        return [line[:4] for line in ran.out.splitlines()[1:]]

    by_item = ("--item", "day:year")
    assert years("release", path, "--user", "user", *by_item) == ["2020", "2021", "2022"]
    assert years("release", "v", "--catalog", catalog, "--item", "day") == ["2020", "2021", "2022"]
    statement = "SELECT day, COUNT(DISTINCT user) AS n FROM v GROUP BY day ORDER BY n DESC"
    assert years("release", "v", "--catalog", catalog, "--sql", statement) == ["2020", "2022", "2021"]
    shown = run("top", path, "--user", "user", *by_item, "-k", 3, "--epsilon", 5).out
    assert [line.split()[1][:4] for line in shown.splitlines()[1:]] == ["2020", "2022", "2021"]
