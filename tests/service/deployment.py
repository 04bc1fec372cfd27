"""The files of a service, on either store, and services in this process that run on them.

Whatever happens in between, `Deployment.check` holds: the ledger verifies, no account is overspent (I1), and every
response that left a service was settled and charged to the account that received it (I2).
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import functools
import hashlib
import io
import itertools
import json
import os
import secrets
import shutil
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from urllib.parse import urlsplit

import anyio
import anyio.from_thread
import duckdb
import httpx
import pyarrow as pa
import pyarrow.parquet

from discreet.budget.manager import BudgetManager
from discreet.budget.model import Account, AdminAction, Amount, Sliding
from discreet.budget.rules import microseconds
from discreet.budget.stores.sqlite import SQLiteStore
from discreet.catalog.loader import load_catalog
from discreet.service.answering.pool import StatementPool
from discreet.service.app import open_service
from discreet.service.auth.access import GRANT, KEY, KeyRecord, digest_of, grant_name, grant_text, new_key
from discreet.service.runtime import Runtime
from discreet.service.settings import load_settings
from discreet.service.stores import checkpointer_of, open_store

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
ACT = AdminAction("officer", "a test")
DELTA = Fraction(1, 10**6)
TOP = "SELECT article, COUNT(DISTINCT reader) FROM reads GROUP BY article LIMIT 5"
KNOWN = "SELECT country, COUNT(DISTINCT reader) FROM reads GROUP BY country"
"""A query over a known domain: by the mechanism laplace it costs its worst case, for any data."""

CHECKPOINTS = """
[checkpoints]
file = "checkpoints"
signing_key_file = "checkpoints.key"
"""

CATALOG = """
[datasets.reads]
description = "Who read what."
source = "reads.parquet"
user = "reader"
rows_per_group = 3
data_version = "2026-11"
max_k = 50
columns.article = { type = "text", group = true, filter = true }
columns.country = { type = "text", group = true, filter = true, domain = ["IN", "US", "XX"] }
columns.minutes = { type = "integer", sum = { low = 0, high = 60 } }
columns.day = { type = "date", group = true, filter = true }
columns.hidden = { type = "text", group = true, filter = true }

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
"""
"""The dataset secret and the column hidden of reads are granted to no account."""

AWAY = """
[engines.away]
url = "postgresql://reader@127.0.0.1:9/nothing"

[datasets.away]
engine = "away"
table = "reads"
user = "reader"
data_version = "1"
columns.article = { type = "text", group = true }
"""
"""More of a catalog: a dataset whose server cannot be reached."""

GRANTED = {"reads": ("article", "country", "minutes", "day"), "daily": None, "loose": None, "broken": None}

SETTINGS = """
[service]
port = 0
hosts = ["discreet.example", "private.example.org"]
{service}
[store]
url = "{url}"
{password}
[noise]
key_file = "noise.key"
[limits]
max_k = 100
max_epsilon = {max_epsilon}
max_head_limit = 20000
{rest}
"""


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self, now: datetime = NOON) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now

    def pass_(self, **time: float) -> None:
        """Advance it, in the units of `timedelta`; negative to set it back."""
        self.now += timedelta(**time)


class FakeMonotonic:
    """Seconds that only a test advances; `pause` advances them at once and records for how long."""

    def __init__(self):
        self.now, self.pauses = 100.0, []

    def __call__(self):
        return self.now

    async def pause(self, seconds):
        """Advance the time."""
        self.pauses.append(seconds)
        self.now += seconds


def usual_accounts():
    """Return the accounts of ann and bob, and of sales, their parent, which is charged for their queries too."""
    sales = Account.of_epsilon("sales", 40.0, DELTA, period=Sliding(30))
    return [sales, *(Account.of_epsilon(f"{name}@sales", 10.0, DELTA, "sales", Sliding(30)) for name in ("ann", "bob"))]


def table_of(readers, *, more=0):
    """Return the rows: article n has 300 n readers of 20 minutes each, half in IN; *more* users read all articles."""
    rows = [(reader, n) for n in range(1, 4) for reader in range(300 * n)] if readers else []
    rows += [(10_000 + reader, n) for n in range(1, 4) for reader in range(more)]
    return pa.table(
        {
            "reader": pa.array([reader for reader, _ in rows], pa.int64()),
            "article": pa.array([f"article {n}" for _, n in rows], pa.string()),
            "country": pa.array(["IN" if reader % 2 else "US" for reader, _ in rows], pa.string()),
            "minutes": pa.array([20] * len(rows), pa.int64()),
            "day": pa.array([20_000 + n for _, n in rows], pa.int32()).view(pa.date32()),
            "hidden": pa.array(["h"] * len(rows), pa.string()),
        }
    )


class Deployment:
    """The files, accounts, API keys and grants of a service.

    Args:
        folder: where the files are written.
        service: more settings of the section service.
        rest: more sections of the settings.
        catalog: the text of the catalog.
        store: the URL of a PostgreSQL store with its password; by default a file.
        accounts: to be opened, parents first; each name before an @ gets an analyst's key.
        table: the data; the default is `table_of`'s.
        granted: columns by dataset, or None for all of them, to the first account; None for every dataset.
        noise: the secret.
        now: the time at which it is made.
        max_epsilon: of the section limits.
        environment: variables that the settings name.
    """

    def __init__(
        self,
        folder,
        *,
        service="",
        rest="",
        catalog=CATALOG,
        store=None,
        accounts=None,
        table=None,
        granted=GRANTED,
        noise=b"n" * 32,
        now=NOON,
        max_epsilon=8,
        environment=None,
    ):
        self.folder, self.clock = folder, Clock(now)
        folder.mkdir(exist_ok=True)
        pyarrow.parquet.write_table(table_of(readers=True) if table is None else table, folder / "reads.parquet")
        with duckdb.connect(str(folder / "loose.db")) as connection:
            connection.execute(f"CREATE TABLE t AS FROM '{folder / 'reads.parquet'}'; CREATE VIEW v AS FROM t")
        for name, secret in (("noise.key", noise), ("checkpoints.key", b"w" * 32)):
            (folder / name).write_bytes(secret)
            (folder / name).chmod(0o600)
        (folder / "catalog.toml").write_text(catalog)
        url, password, self.environment = "sqlite:budget.db", "", dict(environment or {})
        if store is not None:
            parts = urlsplit(store)
            self.environment["BUDGETS"] = parts.password
            url, password = store.replace(f":{parts.password}@", "@"), 'password_env = "BUDGETS"'
        for name, value in (("requests_per_minute", 0), ("max_body_bytes", 4096)):
            if name not in service:
                service += f"\n{name} = {value}"
        (folder / "discreet.toml").write_text(
            SETTINGS.format(service=service, rest=rest, url=url, password=password, max_epsilon=max_epsilon)
        )
        self.settings = load_settings(folder / "discreet.toml")
        if store is None:
            SQLiteStore(folder / "budget.db", self.now_us).close()
        self.responses = set()  # by account, id and body
        self.keys = {}
        with self.manager(checkpointer=checkpointer_of(self.settings.checkpoints)) as manager:
            self._create(manager, accounts or usual_accounts(), granted)

    def copy_to(self, folder):
        """Return a copy of the deployment, files and all."""
        shutil.copytree(self.folder, folder)
        return self.with_files(folder)

    def with_files(self, folder):
        """Return a deployment with the same accounts and keys, and the files of *folder*."""
        other = copy.copy(self)
        other.folder, other.responses, other.clock, other.keys = folder, set(), Clock(), dict(self.keys)
        other.settings = load_settings(folder / "discreet.toml")
        return other

    def now_us(self):
        """Return the time of a store in a file, in microseconds."""
        return microseconds(self.clock())

    @contextlib.contextmanager
    def manager(self, **settings):
        """Open a budget manager on the store, which no service has open."""
        with contextlib.closing(open_store(self.settings.store, self.environment, self.clock)) as store:
            yield BudgetManager(store, lambda: secrets.token_hex(16), computational=True, **settings)

    @contextlib.contextmanager
    def open(self, *, checked=True, tracer=None, **runtime):
        """Open a service in this process; the deployment is checked when it is closed.

        Args:
            checked: False if the store cannot be read any more by then.
            tracer: receives the spans.
            runtime: what replaces the machine's clock, ids and randomness.
        """
        with Service(self, tracer, {"clock": self.clock, **runtime}) as service:
            yield service
            if checked:
                self.check(service.manager)

    def check(self, manager, *, lowered=()):
        """Check the budgets and every response that left.

        Args:
            manager: of the store.
            lowered: accounts whose limit an officer lowered below what was spent.
        """
        ledger = manager.verify()
        for account in manager.store.accounts():
            if account.enforced and account.id not in lowered:
                assert manager.get(account.id).balance.spent.within(account.limit), "I1"
        for account, id_, body in self.responses:
            answered, stored = ledger.releases[id_], manager.store.release(bytes.fromhex(id_))
            assert stored.result == body, "I2: what left is what was settled"
            assert answered.result == hashlib.sha256(body).hexdigest(), "I2: and the ledger says so"
            assert account in answered.by, "I2: and who received it"
            assert manager.store.entitled(account, bytes.fromhex(id_)), "I2: and paid"
            assert answered.cost == Amount.of(stored.cost), "I2: and for how much"

    def note(self, who, reply):
        """Record a response to a query."""
        if reply.status_code == 200 and reply.headers.get("content-type") == "application/json":
            self.responses.add((f"{who}@sales", reply.headers["discreet-release"], reply.content))

    def headers(self, who, key=None):
        """Return the headers of a request by *who*, an account or the text of an API key, with an idempotency key."""
        text = self.keys.get(who, who)
        return {
            **({} if text is None else {"Authorization": f"Bearer {text}"}),
            **({} if key is None else {"Idempotency-Key": key}),
        }

    def _create(self, manager, accounts, granted):
        for account in accounts:
            manager.store.create(account, ACT)
        if granted is None:
            granted = dict.fromkeys(load_catalog(self.folder / "catalog.toml").datasets)
        for dataset, columns in granted.items():
            put_grant(manager.store, accounts[0].id, dataset, columns)
        for account in accounts:
            name, at, _ = account.id.partition("@")
            if at:
                self.keys[name] = put_key(manager.store, account.id, ("analyst",))
        for role in ("officer", "admin"):
            self.keys[role] = put_key(manager.store, None, (role,))


def put_grant(store, account, dataset, columns=None):
    """Grant a dataset, or some of its columns, to an account and those below it."""
    text = grant_text(None if columns is None else frozenset(columns))
    store.put_record(GRANT, grant_name(account, dataset), text, ACT)


def put_key(store, account, roles):
    """Create an API key and return its text."""
    made = new_key(os.urandom)
    store.put_record(KEY, made.id, KeyRecord(digest_of(made.text).hex(), account, roles, 0).text, ACT)
    return made.text


@functools.cache
def shared_pool():
    """Return a pool for all services of this process: it takes a second to import its libraries."""
    pool = StatementPool(4)
    atexit.register(pool.close)
    return pool


class Transport(httpx.AsyncBaseTransport):
    """Calls an application as a server does: the body in one message, and no disconnect before the response."""

    def __init__(self, app, client="192.0.2.7"):
        self._app, self._client = app, client

    async def handle_async_request(self, request):
        """Send a request and return the response."""
        messages = [{"type": "http.request", "body": await request.aread(), "more_body": False}]
        sent, never = [], anyio.Event()

        async def receive():
            if not messages:
                await never.wait()
            return messages.pop()

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
            "client": (self._client, 1),
            "state": {},
        }
        await self._app(scope, receive, send)
        body = b"".join(message.get("body", b"") for message in sent)
        return httpx.Response(sent[0]["status"], headers=sent[0]["headers"], stream=httpx.ByteStream(body))


class Service:
    """A service in this process that is called without a network.

    Args:
        deployment: that it runs on.
        tracer: receives the spans.
        runtime: its clock, ids and randomness; the machine's where none are given.
    """

    def __init__(self, deployment, tracer=None, runtime=None):
        self.deployment, self.folder, self.keys = deployment, deployment.folder, deployment.keys
        self.settings, self.clock, self.log = deployment.settings, deployment.clock, io.StringIO()
        self.runtime = Runtime(**(runtime or {"clock": self.clock}))
        self.monotonic, self._tracer = self.runtime.monotonic, tracer
        self._opened, self._stack = contextlib.ExitStack(), contextlib.ExitStack()

    def __enter__(self):
        self.reopen(self._tracer)
        self.portal = self._stack.enter_context(anyio.from_thread.start_blocking_portal())
        return self

    def __exit__(self, *error):
        self._stack.close()
        self._opened.close()

    def reopen(self, tracer=None):
        """Close the service, if it is open, and open it again on the same files."""
        self._opened.close()
        environment = self.deployment.environment
        opened = self._opened.enter_context(
            open_service(self.settings, environment, self.log, self.runtime, tracer, shared_pool())
        )
        self.opened, self.app, self.manager = opened, opened.app, opened.manager
        self.store, self.warehouse = opened.manager.store, opened.warehouse
        self.metrics, self.maintenance, self.streams = opened.metrics, opened.maintenance, opened.streams
        self.engines = Engines(opened.warehouse)

    # ------------------------------------------------------------------------------------------------ administration

    def open_account(self, name, epsilon, parent=None, **settings):
        """Open an account with a limit of so much epsilon within any 30 days."""
        account = Account.of_epsilon(name, epsilon, DELTA, parent, **{"period": Sliding(30), **settings})
        self.store.create(account, ACT)

    def grant(self, account, dataset, columns=None):
        """Grant a dataset, or some of its columns, to an account and those below it."""
        put_grant(self.store, account, dataset, columns)

    def revoke(self, account, dataset):
        """Revoke a grant."""
        self.store.put_record(GRANT, grant_name(account, dataset), None, ACT)

    def make_key(self, account, roles=("analyst",)):
        """Create an API key and return its text."""
        return put_key(self.store, account, roles)

    def act(self, method, path, **body):
        """Send a request as an officer."""
        return self.send(method, path, "officer", json={"reason": "a test", **body})

    # ------------------------------------------------------------------------------------------------------- queries

    def send(self, method, path, who="ann", **request):
        """Send a request by *who*, an account, the text of an API key, or None."""
        return self.portal.call(lambda: self.sending(method, path, who, **request))

    async def sending(self, method, path, who="ann", *, key=None, headers=None, client="192.0.2.7", **request):
        """Send a request from the event loop; *client* is its address."""
        headers = {**self.deployment.headers(who, key), **(headers or {})}
        transport = Transport(self.app, client)
        async with httpx.AsyncClient(transport=transport, base_url="http://discreet.example") as http:
            reply = await http.request(method, path, headers=headers, **request)
        if path == "/v1/query":
            self.deployment.note(who, reply)
        return reply

    def ask(self, question=TOP, who="ann", *, key=None, headers=None, **options):
        """POST /v1/query with a statement or a query."""
        return self.send("POST", "/v1/query", who, key=key, headers=headers, json={**_body(question), **options})

    def estimate(self, question=TOP, who="ann", **options):
        """POST /v1/estimate with a statement or a query."""
        return self.send("POST", "/v1/estimate", who, json={**_body(question), **options})

    def get(self, path, who="ann", **request):
        """GET."""
        return self.send("GET", path, who, **request)

    def together(self, requests):
        """Return the responses to queries that are sent concurrently: each an account, query, key and options."""

        async def one(replies, n, who, question, key, options):
            replies[n] = await self.sending("POST", "/v1/query", who, key=key, json={"sql": question, **options})

        async def all_of_them():
            replies = {}
            async with anyio.create_task_group() as group:
                for n, (who, question, key, options) in enumerate(requests):
                    group.start_soon(one, replies, n, who, question, key, options)
            return [replies[n] for n in range(len(requests))]

        return self.portal.call(all_of_them)

    # --------------------------------------------------------------------------------------------------------- state

    def balance(self, account="ann@sales"):
        """Return the exact balance of an account."""
        return self.manager.get(account).balance

    def events(self, name=None):
        """Return the logged events, all of them or those of one name."""
        found = [json.loads(line) for line in self.log.getvalue().splitlines()]
        return [event for event in found if name in {None, event["event"]}]

    def no_engine(self):
        """Make every further head of the dataset reads raise an AssertionError."""
        self.warehouse.engine("reads").head = _never


class Engines:
    """The engines of a service, wrapped by the hooks of a test.

    Attributes:
        head: is called with the function that counts, and with the one that reports progress; None to count.
        check: is called before the engine's own check.
        asked: the number of heads that were queried.
    """

    def __init__(self, warehouse):
        self._versioned_reader, warehouse.versioned_reader = warehouse.versioned_reader, self.versioned_reader
        self.head, self.check, self.queried = None, None, 0

    def versioned_reader(self, dataset, version):
        """Return the engine."""
        return _Engine(self._versioned_reader(dataset, version), self)


class _Engine:
    def __init__(self, engine, engines):
        self._engine, self._engines = engine, engines

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def check(self, request):
        if self._engines.check is not None:
            self._engines.check()
        self._engine.check(request)

    def head(self, request, *, seed=b"", progress=None):
        self._engines.queried += 1

        def count():
            return self._engine.head(request, seed=seed, progress=progress)

        return count() if self._engines.head is None else self._engines.head(count, progress)


def fake_runtime(clock):
    """Return a runtime whose clock stands still and whose ids are numbered."""
    monotonic, numbers = FakeMonotonic(), itertools.count()
    return {
        "clock": clock,
        "monotonic": monotonic,
        "pause": monotonic.pause,
        "new_id": lambda: f"name-{next(numbers)}",
    }


def slug(reply):
    """Return the kind of problem of a response."""
    assert reply.headers["content-type"] == "application/problem+json", reply.text
    return reply.json()["type"].removeprefix("/problems/")


def declared(api):
    """Return the operations that the methods of a class declare."""
    return [member.operation for member in vars(api).values() if hasattr(member, "operation")]


def _body(question):
    return {"sql": question} if isinstance(question, str) else {"query": question}


def _never(*_, **__):
    raise AssertionError("the engine was queried")
