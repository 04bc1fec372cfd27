"""A whole service in a folder: a table, a catalog, a store in a file, accounts, keys, grants, and who calls it."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import shutil
from fractions import Fraction

import anyio
import anyio.from_thread
import duckdb
import httpx
import pyarrow as pa
import pyarrow.parquet

from discreet.budget.model import Account, AdminAction, Sliding
from discreet.budget.stores.sqlite import SQLiteStore
from discreet.service.app import open_service
from discreet.service.auth.api_keys import KeyRecord, digest_of, microseconds, new_key
from discreet.service.auth.grants import GRANT, KEY, grant_name, grant_text
from discreet.service.context import Runtime
from discreet.service.settings import load_settings

from .shelf import Clock

ACT = AdminAction("officer", "test")
DELTA = Fraction(1, 10**6)
TOP = "SELECT article, COUNT(DISTINCT reader) FROM reads GROUP BY article LIMIT 5"
CATALOG = """
[datasets.reads]
description = "Who read what."
source = "reads.parquet"
user = "reader"
rows_per_group = 3
data_version = "2026-11"
k_most = 50
columns.article = { type = "text", group = true, filter = true }
columns.country = { type = "text", group = true, filter = true, domain = ["IN", "US", "XX"] }
columns.minutes = { type = "integer", sum = { low = 0, high = 60 } }
columns.day = { type = "date", group = true, filter = true }
columns.hidden = { type = "text", group = true, filter = true, sum = { low = 0, high = 1 } }

[datasets.daily]
source = "reads.parquet"
user = "reader"
data_version = { schedule = "daily", at = "04:00", zone = "UTC" }
columns.article = { type = "text", group = true }

[datasets.loose]
source = "loose.db"
table = "v"
user = "reader"
columns.article = { type = "text", group = true }

[datasets.broken]
source = "missing.parquet"
user = "reader"
data_version = "1"
columns.article = { type = "text", group = true }

[datasets.secret]
source = "reads.parquet"
user = "reader"
data_version = "1"
columns.article = { type = "text", group = true }
""".replace(", sum = { low = 0, high = 1 } }", " }")
SETTINGS = """
[noise]
key_file = "noise.key"
[service]
body_most_bytes = 4096
{service}
[limits]
k_most = 100
epsilon_most = 4
head_limit_most = 20000
{rest}
"""


class Ticks:
    """Seconds that only rise, when they are told to."""

    def __init__(self):
        self.now = 100.0
        self.pauses = []

    def __call__(self):
        """The time."""
        return self.now

    async def pause(self, seconds):
        """Let them pass, and remember them."""
        self.pauses.append(seconds)
        self.now += seconds


class Transport(httpx.AsyncBaseTransport):
    """Calls an application as a server does: the body in one message, and then nothing until the answer is there."""

    def __init__(self, app):
        self._app = app

    async def handle_async_request(self, request):
        """Send *request*."""
        parts = [{"type": "http.request", "body": await request.aread(), "more_body": False}]
        sent, never = [], anyio.Event()

        async def receive():
            if not parts:
                await never.wait()
            return parts.pop()

        async def send(message):
            sent.append(message)

        path, _, query = request.url.raw_path.partition(b"?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": "http",
            "path": request.url.path,
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
            "server": ("discreet.example", 80),
            "client": ("192.0.2.7", 1),
            "state": {},
        }
        await self._app(scope, receive, send)
        body = b"".join(message.get("body", b"") for message in sent)
        return httpx.Response(sent[0]["status"], headers=sent[0]["headers"], content=body, request=request)


class World:
    """A service whose parts can be reached.

    Accounts ann@sales and bob@sales share the account sales. Both may ask about reads (but not its column hidden),
    daily, loose and broken; nobody may ask about secret.

    Args:
        folder: where its files are.
        tables: a folder with the tables, which are copied.
        service: more settings of the section service.
        rest: more sections of the settings.
        catalog: the text of the catalog.
    """

    def __init__(self, folder, tables, *, service="requests_per_minute = 0", rest="", catalog=CATALOG, tracer=None):
        self.folder = folder
        shutil.copytree(tables, folder, dirs_exist_ok=True)
        (folder / "catalog.toml").write_text(catalog)
        (folder / "discreet.toml").write_text(SETTINGS.format(service=service, rest=rest))
        self.settings = load_settings(folder / "discreet.toml")
        self.clock, self.ticks, self.lines = Clock(), Ticks(), io.StringIO()
        names = itertools.count()
        self.runtime = Runtime(self.clock, self.ticks, self.ticks.pause, lambda: f"name-{next(names)}", os.urandom)
        self._stack = contextlib.ExitStack()
        with contextlib.closing(SQLiteStore(folder / "budget.db", lambda: microseconds(self.clock()))) as self.store:
            self.open_account("sales", 40.0)
            for name in ("ann@sales", "bob@sales"):
                self.open_account(name, 10.0, "sales")
            self.grant("sales", "reads", ["article", "country", "minutes", "day"])
            for dataset in ("daily", "loose", "broken"):
                self.grant("sales", dataset)
            self.keys = {name: self.make_key(f"{name}@sales") for name in ("ann", "bob")}
        self.open(tracer=tracer)

    def open(self, tracer=None):
        """Open the service, after closing it if it was open."""
        self._stack.close()
        opened = open_service(self.settings, {}, self.lines, self.runtime, tracer)
        self.service = self._stack.enter_context(opened)
        self.app, self.manager, self.store = self.service.app, self.service.manager, self.service.manager.store
        self.warehouse, self.metrics, self.maintenance = (
            self.service.warehouse,
            self.service.metrics,
            self.service.maintenance,
        )

    def __enter__(self):
        self.portal_of = anyio.from_thread.start_blocking_portal()
        self.portal = self.portal_of.__enter__()
        return self

    def __exit__(self, *error):
        self.portal_of.__exit__(*error)
        self._stack.close()

    # -------------------------------------------------------------------------------------------- what officers do

    def open_account(self, name, epsilon, parent=None, **parts):
        """An account of so much epsilon within any 30 days."""
        self.store.create(Account.of_epsilon(name, epsilon, DELTA, parent, **{"period": Sliding(30), **parts}), ACT)

    def grant(self, account, dataset, columns=None):
        """Let an account and those below it ask about a dataset."""
        text = grant_text(None if columns is None else frozenset(columns))
        self.store.put_record(GRANT, grant_name(account, dataset), text, ACT)

    def revoke(self, account, dataset):
        """Take a grant back."""
        self.store.put_record(GRANT, grant_name(account, dataset), None, ACT)

    def make_key(self, account, roles=("analyst",)):
        """A new key."""
        made = new_key(os.urandom)
        record = KeyRecord(digest_of(made.text).hex(), account, roles, 0)
        self.store.put_record(KEY, made.id, record.text, ACT)
        return made.text

    # -------------------------------------------------------------------------------------------- what analysts do

    def send(self, method, path, who="ann", **request):
        """What the service answers; *who* is a name, the text of a key, or None."""
        return self.portal.call(lambda: self.sending(method, path, who, **request))

    async def sending(self, method, path, who="ann", *, headers=None, **request):
        """The same, to be awaited."""
        key = self.keys.get(who, who)
        sent = {} if key is None else {"Authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(transport=Transport(self.app), base_url="http://discreet.example") as client:
            return await client.request(method, path, headers={**sent, **(headers or {})}, **request)

    def ask(self, question=TOP, who="ann", *, headers=None, **options):
        """POST /v1/query with a statement or a query."""
        asked = {"sql": question} if isinstance(question, str) else {"query": question}
        return self.send("POST", "/v1/query", who, json={**asked, **options}, headers=headers)

    def estimate(self, question=TOP, who="ann", **options):
        """POST /v1/estimate."""
        asked = {"sql": question} if isinstance(question, str) else {"query": question}
        return self.send("POST", "/v1/estimate", who, json={**asked, **options})

    def get(self, path, who="ann", **request):
        """GET."""
        return self.send("GET", path, who, **request)

    # -------------------------------------------------------------------------------------------- what is there

    def balance(self, account="ann@sales"):
        """How an account stands, exactly."""
        return self.manager.get(account).balance

    def events(self, name=None):
        """What was logged, all of it or the events of one kind."""
        found = [json.loads(line) for line in self.lines.getvalue().splitlines()]
        return [event for event in found if name in {None, event["event"]}]

    def no_engine(self):
        """From now on whoever asks the engine of reads for a head gets an AssertionError."""
        self.warehouse.engine("reads").head = _never


def _never(*_, **__):
    raise AssertionError("the engine was asked")


def declared(api):
    """The operations that the methods of a class declare."""
    return [member.operation for member in vars(api).values() if hasattr(member, "operation")]


def write_tables(folder):
    """Article n has 300 n readers of 20 minutes each, half of them in IN; the same in a table without a version."""
    rows = [(reader, n) for n in range(1, 4) for reader in range(300 * n)]
    table = pa.table(
        {
            "reader": [reader for reader, _ in rows],
            "article": [f"article {n}" for _, n in rows],
            "country": ["IN" if reader % 2 else "US" for reader, _ in rows],
            "minutes": [20] * len(rows),
            "day": pa.array([20_000 + n for _, n in rows], pa.int32()).view(pa.date32()),
            "hidden": ["h"] * len(rows),
        }
    )
    pyarrow.parquet.write_table(table, folder / "reads.parquet")
    for name in ("noise.key", "witness.key"):
        (folder / name).write_bytes(b"n" * 32)
        (folder / name).chmod(0o600)
    with duckdb.connect(str(folder / "loose.db")) as connection:
        connection.execute(f"CREATE TABLE t AS FROM '{folder / 'reads.parquet'}'; CREATE VIEW v AS FROM t")
