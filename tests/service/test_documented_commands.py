"""The commands of docs/service/running.md and index.md work as described, in a project of `discreet init`."""

from __future__ import annotations

import io
import json
import os
import re
from pathlib import Path

import anyio.from_thread
import duckdb
import httpx
import pytest

import discreet
from discreet.service.app import open_service
from discreet.service.init_project import CATALOG, QUESTION, create_project, write_reads
from discreet.service.settings import load_settings

PAGE = Path(__file__).resolve().parents[2] / "docs/service/running.md"
ANALYSTS = PAGE.with_name("index.md")
COMMAND = re.compile(
    r"curl -s (?:-X (\w+) )?\$URL(\S+) -H \"Authorization: Bearer \$(\w+)\".*? -d '(.*?)'\n", re.DOTALL
)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """Return an open, initialized project, its keys, and a function that sends requests to it."""
    folder = tmp_path_factory.mktemp("project")
    made = create_project(folder)
    opened = open_service(load_settings(folder / "discreet.toml"), os.environ, io.StringIO())
    with opened as service, anyio.from_thread.start_blocking_portal() as portal:

        def send(method, path, key, body=None):
            async def sending():
                transport = httpx.ASGITransport(service.app)
                async with httpx.AsyncClient(transport=transport, base_url="http://discreet.example") as client:
                    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
                    return await client.request(method, path, headers=headers, content=body)

            return portal.call(sending)

        yield service, made.keys, send


def ask(send, key, sql=QUESTION, **options):
    """POST /v1/query."""
    return send("POST", "/v1/query", key, json.dumps({"sql": sql, **options}))


def test_the_commands_of_the_page_open_an_account_that_can_query(project):
    """Account, grant and key, in the order of their dependencies; then the example's query."""
    _, keys, send = project
    commands = {path.split("/")[3]: (method, path, role) for method, path, role, _ in COMMAND.findall(PAGE.read_text())}
    bodies = {path.split("/")[3]: body for _, path, _, body in COMMAND.findall(PAGE.read_text())}
    assert set(commands) == {"accounts", "grants", "keys"}
    for part in ("accounts", "grants", "keys"):
        method, path, role = commands[part]
        made = send(method or "POST", path, keys[role.lower()], bodies[part])
        assert made.status_code in {200, 201}, made.text
    sql = "SELECT article, COUNT(DISTINCT reader) FROM reads GROUP BY article LIMIT 3"
    assert ask(send, made.json()["key"], sql).status_code == 200


def test_the_requests_of_the_page_for_analysts_are_answered(project):
    """Every `ask` of docs/service/index.md, with the key of the example's analyst."""
    _, keys, send = project
    asks = re.findall(r"^ask \$SERVICE(\S+)(?:.*?--data '(.*?)')?$", _shell(ANALYSTS), re.MULTILINE)
    assert {path for path, _ in asks} == {
        "/v1/datasets",
        "/v1/datasets/reads",
        "/v1/budget",
        "/v1/estimate",
        "/v1/query",
    }
    for path, body in asks:
        answer = send("POST" if body else "GET", path, keys["analyst"], body or None)
        assert answer.status_code == 200, (path, answer.text)


def _shell(page):
    """Return the shell blocks of a page, with one line for each command."""
    blocks = re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    return "".join(blocks).replace("\\\n", "")


def test_the_default_prices_allow_twenty_queries_and_a_tenth_of_the_shared_delta(project):
    """With the default prices twenty different queries fit; one analyst can spend a tenth of the shared delta."""
    service, keys, send = project
    for k in range(1, 21):
        assert ask(send, keys["analyst"], QUESTION.replace("LIMIT 10", f"LIMIT {k}")).status_code == 200
    accounts = {account.id: account for account in service.manager.store.accounts()}
    for above in ("example", "data"):
        assert accounts["ann@example"].limit.delta <= accounts[above].limit.delta / 10
        assert accounts["ann@example"].limit.rho < accounts[above].limit.rho / 3


def test_a_query_with_the_delta_of_all_analysts_is_refused(project):
    """`max_delta`: one query with the delta of all analysts is refused before anything is reserved."""
    service, keys, send = project
    refused = ask(send, keys["analyst"], epsilon=1.0, delta="1e-6")
    assert (refused.status_code, refused.json()["type"]) == (422, "/problems/out-of-range")
    assert "delta must be at most 1e-08" in refused.json()["detail"]
    delta = service.manager.store.account("data").limit.delta
    assert send("GET", "/v1/admin/settings", keys["officer"]).json()["max_delta"] <= float(delta / 50)


def test_the_example_s_sums_are_hardly_clipped(project):
    """The bound on a reader's minutes is above nearly all sums."""
    _, keys, send = project
    shown = [
        ask(send, keys["analyst"], f"SELECT country, {measure} FROM reads GROUP BY country", epsilon=1.0).json()[
            "items"
        ]
        for measure in ("SUM(minutes)", "COUNT(DISTINCT reader)")
    ]
    sums, users = ({item["country"]: item for item in items} for items in shown)
    assert all(200 < sums[country]["sum"] / users[country]["count"] < 250 for country in sums)
    # Minutes are uniform from 1 to 44.
    (item,) = ask(send, keys["analyst"], "SELECT AVG(minutes) FROM reads", epsilon=1.0).json()["items"]
    assert abs(item["average"] - 22.5) < 0.05 * 22.5


def test_the_example_s_averages_of_few_rows_are_precise(tmp_path):
    """Of an article most readers have one row, far below the declared bound: nearly all averages are within 5 %."""
    write_reads(tmp_path / "reads.parquet")
    (tmp_path / "catalog.toml").write_text(CATALOG)
    truth = dict(duckdb.sql(f"SELECT article, avg(minutes) FROM '{tmp_path}/reads.parquet' GROUP BY 1").fetchall())
    sql = "SELECT article, AVG(minutes) FROM reads GROUP BY article ORDER BY COUNT(DISTINCT reader) DESC LIMIT 3"
    errors = []
    with discreet.connect(tmp_path / "catalog.toml") as warehouse:
        for number in range(8):
            released = warehouse.query(sql, epsilon=1.0, key=bytes([number]) * 32)
            errors += [item["average"] / truth[item["article"]] - 1 for item in released.to_dict()["items"]]
    assert len(errors) == 24
    assert sum(abs(error) <= 0.05 for error in errors) >= 22
