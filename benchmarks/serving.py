"""The service that `benchmarks.service` queries, in its own process, and its baselines: the raw head and an echo."""

from __future__ import annotations

import json
import os
import secrets
import sys
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from discreet.budget.manager import BudgetManager
from discreet.budget.model import Account, AdminAction
from discreet.budget.rules import clock_us, microseconds
from discreet.budget.stores.sqlite import SQLiteStore
from discreet.query.sql import parse_select
from discreet.service.answering.queries import planning_options
from discreet.service.app import open_service
from discreet.service.auth.access import GRANT, KEY, KeyRecord, digest_of, grant_name, grant_text, new_key
from discreet.service.middleware import read_bytes, run_in_thread
from discreet.service.settings import load_settings
from discreet.service.stores import utc_now
from discreet.wire.queries import QueryRequest, read_body

if TYPE_CHECKING:
    from starlette.requests import Request

ACT = AdminAction("officer", "to be measured")
ACCOUNT = "ann@org"
CATALOG = """
[datasets.reads]
source = "reads.db"
table = "reads"
user = "reader"
data_version = "1"
columns.article = { type = "text", group = true }
columns.visits = { type = "integer", filter = true }
"""
SETTINGS = """
[service]
requests_per_minute = 0
max_concurrent_queries = {most}
{memory}
[noise]
key_file = "noise.key"
[defaults]
epsilon = 1
delta = 1e-8
"""


def prepare(folder: Path, rows: int, most: int = 16, mib: int | None = None) -> str:
    """Write a table, catalog, settings and store into *folder*; return the key of an analyst with sufficient budget.

    Args:
        folder: an empty folder.
        rows: the number of rows of the table.
        most: the setting `max_concurrent_queries`.
        mib: the setting `max_dataset_memory`.
    """
    with duckdb.connect(str(folder / "reads.db")) as connection:
        connection.execute(
            "SELECT setseed(0.5); CREATE TABLE reads AS SELECT CAST(power(random(), 2) * 200000 AS INTEGER) AS reader, "
            "'article ' || CAST(exp(random() * 10) AS INTEGER) AS article, CAST(random() * 50 AS INTEGER) AS visits "
            f"FROM range({rows})"
        )
    return configure(folder, CATALOG, "reads", most, mib)


def configure(folder: Path, catalog: str, dataset: str, most: int = 16, mib: int | None = None) -> str:
    """Write a catalog, settings and store into *folder*; return the key of an analyst who may query *dataset*."""
    (folder / "catalog.toml").write_text(catalog)
    (folder / "discreet.toml").write_text(
        SETTINGS.format(most=most, memory="" if mib is None else f"max_dataset_memory = {mib}")
    )
    (folder / "noise.key").touch(0o600)
    (folder / "noise.key").write_bytes(secrets.token_bytes(32))
    store = SQLiteStore(folder / "budget.db", clock_us(utc_now))
    manager = BudgetManager(store, ids=lambda: secrets.token_hex(16))
    manager.store.create(Account.of_epsilon("data", 1e6, Fraction(1, 2)), ACT)
    manager.store.create(Account.of_epsilon("org", 1e6, Fraction(1, 2), "data"), ACT)
    manager.store.put_record(GRANT, grant_name("org", dataset), grant_text(None), ACT)
    store.close()
    return add_analyst(folder, ACCOUNT)


def add_analyst(folder: Path, account: str) -> str:
    """Open an account in the store in *folder*, which no service has open, and return its key."""
    store = SQLiteStore(folder / "budget.db", clock_us(utc_now))
    manager = BudgetManager(store, ids=lambda: secrets.token_hex(16))
    manager.store.create(Account.of_epsilon(account, 1e6, Fraction(1, 2), "org"), ACT)
    key = new_key(secrets.token_bytes)
    record = KeyRecord(digest_of(key.text).hex(), account, ("analyst",), microseconds(utc_now()))
    manager.store.put_record(KEY, key.id, record.text, ACT)
    store.close()
    return key.text


def serve(folder: Path, port: int) -> None:
    """Serve the service with one more route, which plans the same query and returns the exact head."""
    settings = load_settings(folder / "discreet.toml")
    with open_service(settings, os.environ, stream=(folder / "log.jsonl").open("w")) as service:

        async def raw(request: Request) -> Response:
            asker = await run_in_thread(service.authenticator.authenticate, request.headers["authorization"])
            body = await read_bytes(request, "application/json", 65_536)
            return Response(await run_in_thread(head, asker.account or "", body), media_type="application/json")

        def head(account: str, body: bytes) -> bytes:
            view = service.warehouse.restricted_to(service.grants.catalog_for(account))
            question = read_body(QueryRequest, body)
            select = parse_select(question.sql or "")
            options = planning_options(question.options, select.k, settings.defaults, settings.limits)
            plan = view.plan(select, shared=True, **options)
            found = service.warehouse.engine(select.dataset).head(plan.request)
            rows = [
                {**label, "count": count}
                for label, count in zip(found.labels.to_pylist(), found.counts.tolist(), strict=True)
            ]
            return json.dumps({"items": rows[: plan.query.k]}).encode()

        service.app.routes.append(Route("/raw", raw, methods=["POST"]))
        _run(service.app, port)


def echo(port: int) -> None:
    """Serve Starlette with one echo route."""

    async def same(request: Request) -> Response:
        return JSONResponse(await request.json())

    _run(Starlette(routes=[Route("/echo", same, methods=["POST"])]), port)


def _run(app: Starlette, port: int) -> None:
    uvicorn.run(app, port=port, access_log=False, log_config=None, timeout_keep_alive=600)


if __name__ == "__main__":
    if sys.argv[1] == "echo":
        echo(int(sys.argv[2]))
    else:
        serve(Path(sys.argv[1]), int(sys.argv[2]))
