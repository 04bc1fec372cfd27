"""Queries of a budget service on the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet
import pytest

import discreet
from discreet.cli.query import estimate_as_text
from discreet.wire.document import encode, question_of, write_table
from discreet.wire.queries import Estimate
from tests.client.scripted_server import ScriptedServer, problem, reply

KEY = "dsc_0123456789abcdef_" + "5ec2e7" * 10 + "abcd"
SQL = "SELECT article, COUNT(DISTINCT reader) FROM reads GROUP BY article LIMIT 3"
ESTIMATE = {
    "dataset": "reads",
    "data_version": "1",
    "question": {},
    "mechanism": "unknown-gumbel",
    "worst_cost": {"rho": 0.0165, "delta": 5e-09},
    "information": 7,
    "calls": 1,
    "privacy": {"unit": "user", "neighbours": "x", "epsilon": 1.0, "delta": 1e-8, "rho": 0.0165, "computational": True},
    "expected": {
        "min_std_error": 24.6,
        "max_std_error": 24.6,
        "smallest_count": 1322,
        "sum_std_error": None,
        "likely": [],
        "basis": None,
        "min_half_width": None,
        "max_half_width": None,
    },
    "paid": False,
    "fits": False,
    "accounts": [
        {
            "account": "ann@sales",
            "fits": True,
            "left": {"rho": 1.0, "delta": 1e-7},
            "left_after": {"rho": 0.9835, "delta": 9.5e-8},
        },
        {
            "account": "sales",
            "fits": False,
            "left": {"rho": 0.01, "delta": 1e-9},
            "left_after": {"rho": 0.0, "delta": 0.0},
        },
    ],
    "queries_left": 3,
    "runs_out": "delta",
    "daily": None,
    "notes": ["epsilon above 10 protects little"],
}


@pytest.fixture
def release(reads):
    """Return a release of three articles."""
    return discreet.scan(reads, user="reader").top("article", k=3, epsilon=8.0)


@pytest.fixture
def answered(release):
    """Return the bytes of an answer with a cost."""
    document = encode(
        release, id="ab" * 32, dataset="reads", question=question_of(release.query, "reads"), data_version="1"
    )
    return lambda **headers: reply(200, document, **{"Discreet_Release": "ab" * 32, **headers})


@pytest.fixture
def ask(run, tmp_path, monkeypatch):
    """Run a command with a server that returns this response."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DISCREET_KEY", KEY)
    servers = []

    def ask(answer, *arguments):
        servers.append(ScriptedServer([answer]))
        ran = run(*arguments, "--url", servers[-1].url, "--timeout", 20)
        return ran, servers[-1].sent

    yield ask
    for server in servers:
        server.close()


def test_an_answer_has_the_output_of_the_other_commands(ask, answered, release):
    """The counts on standard output; notes with the price on standard error."""
    fields = answered(Discreet_Charged="rho=0.5, delta=1e-09", Discreet_Replayed="?0")
    ran, _ = ask(fields, "query", "--sql", SQL)
    assert (ran.code, ran.out) == (0, str(release))
    assert "3 of 3 items by unknown-gumbel" in ran.err
    assert ran.err.endswith("charged rho = 0.5, delta = 1e-09\n")


def test_a_whole_statement_is_sent_in_one_request(ask):
    """Its rows on standard output, and the charge of each of its queries as notes."""
    query = {"sql": SQL, "dataset": "reads", "status": "released", "charged": {"rho": 0.5, "delta": 0}, "id": "ab"}
    table = pa.table({"n": [3]}).replace_schema_metadata({"discreet.queries": json.dumps([query])})
    fields = reply(200, write_table(table, "arrow"), "application/vnd.apache.arrow.stream")
    sql = f"SELECT COUNT(*) AS n FROM ({SQL})"
    for options, shown in (((), "n\n3\n"), (("--format", "csv"), '"n"\n3\n'), (("--format", "json"), '"n": 3')):
        ran, sent = ask(fields, "query", "--sql", sql, *options)
        assert (ran.code, shown in ran.out) == (0, True)
        assert sent[0].line.startswith("POST /v1/sql ")
        assert ran.err == f"released, charged rho = 0.5, delta = 0: {SQL}\n"


def test_numbers_without_an_interval_are_noted(ask):
    """And marked in each row of CSV and JSON, because the note is elsewhere."""
    about = {"discreet.queries": "[]", "discreet.no_interval": '["n"]'}
    fields = reply(
        200,
        write_table(pa.table({"n": [3]}).replace_schema_metadata(about), "arrow"),
        "application/vnd.apache.arrow.stream",
    )
    sql = f"SELECT COUNT(*) AS n FROM ({SQL})"
    for form, shown in (("table", "n\n3\n"), ("csv", '"n","no_interval"\n3,"n"\n'), ("json", '"no_interval": "n"')):
        ran, _ = ask(fields, "query", "--sql", sql, "--format", form)
        assert shown in ran.out
        assert ran.err == "no interval: n; --intervals adds those that there are\n"
    ran, sent = ask(fields, "query", "--sql", sql, "--intervals")
    assert ran.err == "no interval: n\n"
    assert json.loads(sent[0].body)["intervals"] is True


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        (
            {"Discreet_Charged": "rho=0, delta=0", "Discreet_Replayed": "?1"},
            ["charged nothing: it was paid for before"],
        ),
        ({"Discreet_Charged": "rho=0, delta=0", "Discreet_Replayed": "?0"}, ["charged nothing"]),
        (
            {"Discreet_Charged": "rho=1.0, delta=0.0", "Discreet_Mode": "observe"},
            [
                "charged rho = 1, delta = 0",
                "the account is only observed, so nothing is guaranteed for all releases together",
            ],
        ),
    ],
)
def test_an_estimate_shows_the_price_and_whether_the_account_only_observes(ask, answered, headers, message):
    """Price and mode are those of the response's headers."""
    ran, _ = ask(answered(**headers), "query", "--sql", SQL)
    assert ran.err.splitlines()[-len(message) :] == message


def test_only_the_given_options_are_sent(ask, answered):
    """The service sets defaults for the others; the key is in a header only."""
    _, sent = ask(answered(), "query", "--sql", SQL)
    assert json.loads(sent[0].body) == {"sql": SQL}
    assert sent[0].headers["authorization"] == f"Bearer {KEY}"
    options = ["--delta", "1e-8", "--epsilon", "0.5", "--relative-error", "0.2", "--mechanism", "gumbel"]
    options += ["--noise", "laplace", "--head-limit", "50", "--no-counts", "-q"]
    _, sent = ask(answered(), "query", "--sql", SQL, *options)
    assert json.loads(sent[0].body) == {
        "sql": SQL,
        "epsilon": 0.5,
        "delta": "1e-8",
        "relative_error": "0.2",
        "mechanism": "gumbel",
        "noise": "laplace",
        "head_limit": 50,
        "counts": False,
    }
    _, sent = ask(answered(), "query", "--sql", SQL, "--epsilon-per", "0.15", "--information", "9")
    assert json.loads(sent[0].body) == {"sql": SQL, "epsilon_per": "0.15", "information": 9}


@pytest.mark.parametrize("form", ["csv", "json", "parquet"])
def test_an_answer_is_written_to_a_file_in_any_format(ask, answered, tmp_path, form):
    """The extension of --output selects the format."""
    ran, _ = ask(answered(), "query", "--sql", SQL, "--output", f"out.{form}", "-q")
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    assert (tmp_path / f"out.{form}").stat().st_size > 0


def test_an_output_that_cannot_be_written_is_refused_before_the_charge(ask, answered, tmp_path):
    """No request is sent if the output cannot be written."""
    (tmp_path / "kept.csv").write_text("kept")
    ran, sent = ask(answered(), "query", "--sql", SQL, "--output", "kept.csv")
    assert (ran.code, ran.out, sent) == (2, "", [])
    assert "'kept.csv' exists; --force overwrites it" in ran.err


@pytest.mark.parametrize(
    ("answer", "code", "sentence"),
    [
        (problem(400, "malformed", "The statement is odd."), 2, "discreet: The statement is odd.\n"),
        (problem(401, "unauthorized", "Nobody knows the key."), 2, "discreet: Nobody knows the key.\n"),
        (problem(403, "budget-short", "Too little is left."), 2, "discreet: Too little is left.\n"),
        (problem(403, "suspended", "Suspended."), 2, "discreet: Suspended.\n"),
        (problem(404, "not-found", "There is none."), 2, "discreet: There is none.\n"),
        (problem(422, "out-of-range", "Too much."), 2, "discreet: Too much.\n"),
        (problem(500, "internal", "Our fault."), 3, "discreet: Our fault.\n"),
        (problem(503, "engine-failed", "It failed."), 3, "discreet: It failed.\n"),
        (reply(500, b"<html>", "text/html"), 3, "replied with HTTP status 500 and is not a Discreet service\n"),
    ],
)
def test_an_error_is_one_sentence_with_an_exit_code_by_its_kind(ask, answer, code, sentence):
    """2 for 4xx, 3 for 5xx; nothing on standard output."""
    ran, _ = ask(answer, "query", "--sql", SQL)
    assert (ran.code, ran.out) == (code, "")
    assert ran.err.endswith(sentence)
    assert ran.err.count("\n") == 1


def test_a_service_that_cannot_be_reached_is_code_3(run, monkeypatch):
    """The query is not at fault."""
    monkeypatch.setenv("DISCREET_KEY", KEY)
    ran = run("query", "--sql", SQL, "--url", "http://127.0.0.1:9", "--timeout", "0.05")
    assert (ran.code, ran.out, ran.err) == (3, "", "discreet: http://127.0.0.1:9 cannot be reached\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sql", SQL], "Missing option '--url'"),
        (["--url", "http://localhost:9"], "Missing option '--sql'"),
        (["--url", "localhost", "--sql", SQL], "the URL of a service looks like"),
        (["--url", "http://localhost:9", "--sql", SQL], "or set DISCREET_KEY"),
        (["--url", "http://localhost:9", "--sql", SQL, "--key-file", "none"], "the key 'none' cannot be read"),
        (["--url", "http://localhost:9", "--sql", SQL, "--epsilon", "much"], "epsilon must be a number, not 'much'"),
        (["--url", "http://localhost:9", "--sql", SQL, "--format", "xml"], "'xml' is not one of"),
        (["--url", "http://localhost:9", "--sql", SQL, "--estimate", "--format", "csv"], "an estimate is printed as"),
        (["--url", "http://localhost:9", "--sql", SQL, "--plan"], "There is no option --plan: use --estimate"),
    ],
)
def test_an_impossible_query_is_refused_with_a_sentence(run, monkeypatch, arguments, message):
    """Exit code 2, and no request is sent."""
    monkeypatch.delenv("DISCREET_KEY", raising=False)
    monkeypatch.delenv("DISCREET_URL", raising=False)
    ran = run("query", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err


def test_url_and_key_come_from_the_environment(answered, run, monkeypatch):
    """The options need not be repeated."""
    server = ScriptedServer([answered()])
    monkeypatch.setenv("DISCREET_URL", server.url)
    monkeypatch.setenv("DISCREET_KEY", KEY)
    ran = run("query", "--sql", SQL)
    server.close()
    assert ran.code == 0
    assert server.sent[0].headers["authorization"] == f"Bearer {KEY}"


def test_a_key_is_read_from_a_file_that_others_cannot_read(ask, answered, tmp_path):
    """As with the noise key; a file that others can read is refused before anything is sent."""
    (tmp_path / "key").write_text("dsc_other\n")
    (tmp_path / "key").chmod(0o600)
    _, sent = ask(answered(), "query", "--sql", SQL, "--key-file", "key")
    assert sent[0].headers["authorization"] == "Bearer dsc_other"
    (tmp_path / "key").chmod(0o644)
    ran, sent = ask(answered(), "query", "--sql", SQL, "--key-file", "key")
    assert (ran.code, sent) == (2, [])
    assert "others can read or write the key 'key'; run chmod 600" in ran.err


def test_a_rehearsal_shows_made_up_rows_and_sends_no_query(ask, tmp_path):
    """The rows come from the free sample alone; the note says that they are made up."""
    table = pa.table({"reader": ["r1"], "minutes": [7]})
    document = write_table(table.replace_schema_metadata({"discreet.queries": "[]"}), "arrow")
    fields = reply(200, document, "application/vnd.apache.arrow.stream")
    ran, sent = ask(fields, "rehearse", "--dataset", "reads", "--rows", "1", "--format", "csv")
    assert (ran.code, ran.out) == (0, '"reader","minutes"\n"r1",7\n')
    assert ran.err == "made-up rows: only columns, types and listed labels are those of the dataset\n"
    assert [each.line.split()[:2] for each in sent] == [["GET", "/v1/datasets/reads/sample?rows=1"]]
    ran, _ = ask(fields, "rehearse", "--dataset", "reads", "--output", "rows.parquet", "--quiet")
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    assert pa.parquet.read_table(tmp_path / "rows.parquet").equals(table)
    ran, sent = ask(fields, "rehearse", "--dataset", "reads", "--rows", "0")
    assert (ran.code, sent) == (2, [])


def test_a_rehearsal_sends_a_statement_that_is_computed_from_made_up_rows(ask):
    """With the options of a query, whose error is shown; options of the other kind of rehearsal are refused."""
    query = {"sql": SQL, "dataset": "reads", "status": "made up", "charged": {"rho": 0, "delta": 0}}
    table = pa.table({"n": [3], "made_up": [True]}).replace_schema_metadata({"discreet.queries": json.dumps([query])})
    fields = reply(200, write_table(table, "arrow"), "application/vnd.apache.arrow.stream")
    ran, sent = ask(fields, "rehearse", "--sql", SQL, "--epsilon", "2", "--format", "csv")
    assert (ran.code, ran.out) == (0, '"n","made_up"\n3,true\n')
    assert ran.err == "made-up rows: only columns, types and listed labels are those of the dataset\n"
    assert json.loads(sent[0].body) == {"sql": SQL, "epsilon": 2.0, "rehearse": True}
    for wrong in (
        [],
        ["--sql", SQL, "--dataset", "reads"],
        ["--sql", SQL, "--rows", "9"],
        ["--dataset", "reads", "--epsilon", "2"],
    ):
        ran, sent = ask(fields, "rehearse", *wrong)
        assert (ran.code, sent) == (2, []), wrong


def test_an_estimate_requests_the_price_only(ask):
    """The output is that of discreet plan; no data is read."""
    ran, sent = ask(reply(body=json.dumps(ESTIMATE).encode()), "query", "--sql", SQL, "--estimate", "--epsilon", "1")
    assert sent[0].line == "POST /v1/estimate HTTP/1.1"
    assert "idempotency-key" not in sent[0].headers
    assert ran.code == 0
    assert ran.out.splitlines() == [
        "mechanism       unknown-gumbel",
        "guarantee       epsilon = 1, delta = 1e-08 for every user",
        "worst cost      rho = 0.0165, delta = 5e-09 (7 units, 1 calls)",
        "standard error  24.6",
        "smallest count  about 1,322, more if many items are nearly as large",
        "budget          ann@sales would have rho = 0.9835, delta = 9.5e-08 left",
        "budget          sales refuses it: rho = 0.01, delta = 1e-09 are left",
        "                enough for about 3 such queries; delta runs out first",
    ]
    assert ran.err == "note: epsilon above 10 protects little\n"


def test_an_estimate_of_a_paid_query_shows_that_it_is_free(ask):
    """A paid query is free; without counts or thresholds no expected error is shown."""
    nothing = {"min_std_error": None, "max_std_error": None, "smallest_count": None, "sum_std_error": None}
    fields = ESTIMATE | {"paid": True, "information": None, "calls": None, "expected": nothing}
    ran, _ = ask(reply(body=json.dumps(fields).encode()), "query", "--sql", SQL, "--estimate", "-q")
    assert ran.out.splitlines()[2:] == [
        "worst cost      rho = 0.0165, delta = 5e-09",
        "standard error  no counts are released",
        "smallest count  any: every listed item can appear",
        "budget          it was paid for before and is free",
    ]
    assert ran.err == ""


def test_an_estimate_comes_as_json_too(ask):
    """The JSON has all values of the service."""
    ran, _ = ask(reply(body=json.dumps(ESTIMATE).encode()), "query", "--sql", SQL, "--estimate", "--format", "json")
    assert json.loads(ran.out) == ESTIMATE


def test_the_key_is_not_printed(answered, tmp_path):
    """T9: not by a whole process either, which gets it by a channel that other users cannot see."""
    server = ScriptedServer([answered()])
    command = [sys.executable, "-m", "discreet", "query", "--url", server.url, "--sql", SQL]
    done = subprocess.run(
        command, env={**os.environ, "DISCREET_KEY": KEY}, capture_output=True, text=True, cwd=tmp_path, check=True
    )
    server.close()
    assert server.sent[0].headers["authorization"] == f"Bearer {KEY}"
    assert KEY not in done.stdout + done.stderr


def test_ctrl_c_reports_what_the_query_may_have_cost(run, monkeypatch):
    """Closing the connection stops the run, which is charged and pays for the same query again."""

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(discreet.Client, "answer", interrupted)
    monkeypatch.setenv("DISCREET_KEY", KEY)
    ran = run("query", "--url", "http://localhost:1", "--sql", SQL)
    assert (ran.code, ran.out) == (130, "")
    assert "if the service was reading data, the worst case is charged" in ran.err


def test_a_least_error_is_not_shown_as_likely():
    """Where the data decide, the likeliest branch comes first, then the range of all others."""
    race = {"name": "unknown-gumbel", "min_std_error": 24.7, "max_std_error": 24.7, "max_relative_error": None}
    others = {"name": "two-round", "min_std_error": 5.2, "max_std_error": None, "max_relative_error": 0.1181}
    likely = [race | {"smallest_count": 334, "max_smallest_count": 334}]
    likely.append(others | {"smallest_count": 51, "max_smallest_count": 1_014})
    expected = ESTIMATE["expected"] | {"min_std_error": 4.79, "max_std_error": None, "likely": likely}
    shown = estimate_as_text(Estimate.model_validate(ESTIMATE | {"expected": expected}))
    assert "standard error  probably unknown-gumbel: 24.7; otherwise two-round: 5.2 up to 12 % of the count\n" in shown
    assert "smallest count  probably 334; otherwise 51 to 1,014, more if" in shown
    expected |= {"likely": []}  # by a service without ranges
    assert "standard error  4.79 or more\n" in estimate_as_text(
        Estimate.model_validate(ESTIMATE | {"expected": expected})
    )
