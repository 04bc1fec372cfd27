"""trino-jdbc and trino-cli, from Maven Central."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.clients.environments import ROOT, run
from tests.servers.downloads import fetched

_CENTRAL = "https://repo1.maven.org/maven2/io/trino"
_JDBC = (
    f"{_CENTRAL}/trino-jdbc/482/trino-jdbc-482.jar",
    "441d8958bef18055d6b1de6f1bc3dae74e6000090a8e7931fe34bd3bb01c815d",
)
_CLI = (
    f"{_CENTRAL}/trino-cli/476/trino-cli-476-executable.jar",
    "fe4e9c7fb569cd67673afa1622945f6308e1e59bdb825419352b80887661757b",
)
LINES = (
    "show catalogs;",
    "show tables;",
    "describe reads;",
    "show session like 'epsilon';",
    "set session epsilon = 0.25;",
    "use discreet.main;",
    "SELECT country, COUNT(DISTINCT reader) AS n FROM reads GROUP BY country;",
    "EXPLAIN SELECT article, COUNT(DISTINCT reader) FROM reads GROUP BY article;",
    "SELECT\n * FROM reads;",
    "prepare p from SELECT COUNT(DISTINCT reader) AS n FROM reads WHERE country = ?;",
    "execute p using 'DE';",
    "deallocate prepare p;",
)
CLI = """
import json, os
import pexpect

command = json.loads(os.environ["COMMAND"])
shell = pexpect.spawn(command[0], command[1:], encoding="utf-8", timeout=120, env=dict(os.environ))
shell.setwinsize(60, 200)
shell.expect("trino:main>")
shown = []
for typed, expected in json.loads(os.environ["STEPS"]):
    shell.send(typed)
    shell.expect(expected)
    shown.append(shell.before + shell.after)
shell.sendline("quit")
shell.expect(pexpect.EOF)
print(json.dumps(shown))
"""
ANSWERED = r"(\d+ node|SESSION|USE|PREPARE|DEALLOCATE|Query [0-9a-z_]+ failed).*?trino:main>"
"""What the CLI prints after a statement."""


def typed(service, folder, steps, terminal="dumb"):
    """Type into trino-cli on a terminal; return what it showed after each step.

    Args:
        steps: what is typed, and a pattern of what is waited for.
    """
    command = ["java", "-jar", str(fetched(*_CLI)), "--server", service.url, "--user", "ann"]
    command += ["--extra-credential", f"key={service.key}", "--catalog", "discreet", "--schema", "main"]
    given = {"COMMAND": json.dumps(command), "STEPS": json.dumps(steps)}
    output = run("notebook", "-c", CLI, **given, TERM=terminal, HOME=str(folder), TRINO_PAGER="cat")
    return json.loads(output.splitlines()[-1])


@pytest.fixture(scope="module")
def steps(service):
    """Return the result of each step of the metadata crawl, and the charges."""
    service.charged()
    command = ["java", "-cp", str(fetched(*_JDBC)), str(ROOT / "tests/clients/Metadata.java")]
    place = service.url.removeprefix("http://")
    ended = subprocess.run(
        [*command, f"jdbc:trino://{place}/discreet/main"],
        env={"PATH": "/usr/bin:/bin", "DISCREET_KEY": service.key},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return dict(line.split("\t") for line in ended.stdout.splitlines()), service.charged()


def test_jdbc_reads_all_metadata(steps):
    """What DBeaver, DataGrip and Metabase ask before they show a table."""
    found, _ = steps
    assert {name for name, result in found.items() if result.startswith("FAILED")} == {"refused"}
    assert found["catalogs"] == "discreet"
    assert found["tables"] == "main,reads,Which reader read which article; made up."
    assert "country,varchar,12;at,timestamp(6),93;day,date,91" in found["columns"]
    assert found["valid"] == "true"


def test_jdbc_answers_statements_with_their_charge_as_a_warning(steps):
    """Three queries were charged: a statement, one with typed columns, and a prepared one."""
    found, charged = steps
    assert {row.split(",")[0] for row in found["answer"].split(" ")[0].split(";")} == {"BR", "DE", "IN", "KE", "US"}
    assert " of the budget of " in found["answer"]
    assert found["typed"] == (
        "date timestamp(6) bigint double boolean decimal(20,2) 2026-01-01 2026-01-01 00:00:00.0 true true"
    )
    assert found["columns of a prepared statement"] == "n bigint 3"
    assert int(found["prepared"]) > 0
    assert found["session"] == "true"
    assert "rows are never shown" in found["refused"]
    assert charged == (3, 0)


def test_the_cli_answers_on_a_terminal(service, tmp_path):
    """Its completion, its progress and its session work; an error names the line."""
    steps = [(f"{line}\n", ANSWERED) for line in LINES]
    shown = dict(zip(LINES, typed(service, tmp_path, steps), strict=True))
    assert "discreet" in shown["show catalogs;"]
    assert "reads" in shown["show tables;"]
    assert "timestamp(6)" in shown["describe reads;"]
    assert "KE" in shown[LINES[6]]
    assert "rho" in shown[LINES[7]]
    assert "LINE 2:" in shown[LINES[8]]
    assert "rows are never shown" in shown[LINES[8]]
    assert "1 row" in shown[LINES[10]]
