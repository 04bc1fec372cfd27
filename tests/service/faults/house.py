"""A folder with all that a service needs, on either store, and services on it that may be opened again and again.

Whatever happens in between, `House.check` holds: the ledger verifies, no account is overspent (I1), and every answer
that left a service has a settlement and was charged to whoever got it (I2).
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import json
import os
import secrets
import shutil
from fractions import Fraction
from urllib.parse import urlsplit

import anyio
import anyio.from_thread
import httpx
import pyarrow as pa
import pyarrow.parquet

from discreet.budget.fixed_point import Amount
from discreet.budget.manager import BudgetManager
from discreet.budget.model import Account, AdminAction, Sliding
from discreet.budget.stores.sqlite import SQLiteStore
from discreet.service.app import open_service
from discreet.service.auth.api_keys import KeyRecord, digest_of, microseconds, new_key
from discreet.service.auth.grants import GRANT, KEY, grant_name, grant_text
from discreet.service.context import Runtime
from discreet.service.settings import load_settings
from discreet.service.stores import open_store
from tests.service.shelf import NOON, Clock

ACT = AdminAction("founder", "the first day")
DELTA = Fraction(1, 10**6)
TOP = "SELECT article, COUNT(DISTINCT reader) FROM reads GROUP BY article LIMIT 5"
KNOWN = "SELECT country, COUNT(DISTINCT reader) FROM reads GROUP BY country"
"""Over a known domain: by the mechanism laplace it costs its worst case, whatever the data holds."""

WITNESS = """
[witness]
file = "witness"
signing_key_file = "witness.key"
"""

CATALOG = """
[datasets.reads]
source = "reads.parquet"
user = "reader"
data_version = "1"
columns.article = { type = "text", group = true, filter = true }
columns.country = { type = "text", group = true, filter = true, domain = ["IN", "US", "XX"] }
columns.minutes = { type = "integer", sum = { low = 0, high = 60 } }
columns.hidden = { type = "text", group = true, filter = true }

[datasets.loose]
source = "loose.db"
table = "v"
user = "reader"
columns.article = { type = "text", group = true }

[datasets.secret]
source = "reads.parquet"
user = "reader"
data_version = "1"
columns.article = { type = "text", group = true }
"""
GRANTED = {"reads": ("article", "country", "minutes"), "loose": None}

SETTINGS = """
[service]
port = 0
body_most_bytes = 4096
requests_per_minute = 0
{service}
[store]
url = "{url}"
{password}
[noise]
key_file = "noise.key"
[limits]
epsilon_most = 8
{rest}
"""


def usual_accounts():
    """Accounts of ann and bob, and of sales, which is charged for what they ask."""
    sales = Account.of_epsilon("sales", 40.0, DELTA, period=Sliding(30))
    return [sales, *(Account.of_epsilon(f"{name}@sales", 10.0, DELTA, "sales", Sliding(30)) for name in ("ann", "bob"))]


def table_of(readers, *, more=0):
    """Article n has 300 n readers of 20 minutes each, half of them in IN; *more* users read all of them."""
    rows = [(reader, n) for n in range(1, 4) for reader in range(300 * n)] if readers else []
    rows += [(10_000 + reader, n) for n in range(1, 4) for reader in range(more)]
    return pa.table(
        {
            "reader": pa.array([reader for reader, _ in rows], pa.int64()),
            "article": pa.array([f"article {n}" for _, n in rows], pa.string()),
            "country": pa.array(["IN" if reader % 2 else "US" for reader, _ in rows], pa.string()),
            "minutes": pa.array([20] * len(rows), pa.int64()),
            "hidden": pa.array(["h"] * len(rows), pa.string()),
        }
    )


class House:
    """Files, accounts, keys and grants of a service.

    Args:
        folder: an empty one.
        service: more settings of the section service.
        rest: more sections of the settings.
        catalog: the text of the catalog.
        store: the URL of a PostgreSQL store with its password; by default a file.
        accounts: to be opened, parents first; each name before an @ gets an analyst's key.
        table: the data.
        granted: columns by dataset, or None for all of them, to the first account.
        noise: the secret.
        now: when it is founded.
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
    ):
        self.folder, self.clock = folder, Clock()
        self.clock.now = now
        folder.mkdir(exist_ok=True)
        pyarrow.parquet.write_table(table_of(readers=True) if table is None else table, folder / "reads.parquet")
        _write_loose(folder)
        for name, secret in (("noise.key", noise), ("witness.key", b"w" * 32)):
            (folder / name).write_bytes(secret)
            (folder / name).chmod(0o600)
        (folder / "catalog.toml").write_text(catalog)
        url, password, self.environment = "sqlite:budget.db", "", {}
        if store is not None:
            parts = urlsplit(store)
            self.environment = {"BUDGETS": parts.password}
            url, password = store.replace(f":{parts.password}@", "@"), 'password_env = "BUDGETS"'
        (folder / "discreet.toml").write_text(SETTINGS.format(service=service, rest=rest, url=url, password=password))
        self.settings = load_settings(folder / "discreet.toml")
        if store is None:
            SQLiteStore(folder / "budget.db", self.now_us).close()
        self.left = set()  # what has left a service: account, id and body
        self.keys = {}
        with self.books() as manager:
            self._found(manager, accounts or usual_accounts(), granted)

    def copied(self, folder):
        """A copy of it, files and all."""
        shutil.copytree(self.folder, folder)
        return self.at(folder)

    def at(self, folder):
        """The same accounts and keys, with the files of *folder*."""
        other = copy.copy(self)
        other.folder, other.left, other.clock = folder, set(), Clock()
        other.settings = load_settings(folder / "discreet.toml")
        return other

    def now_us(self):
        """The time of the store, if that is a file."""
        return microseconds(self.clock())

    @contextlib.contextmanager
    def books(self, **parts):
        """A manager of the store, as long as no service has it."""
        with contextlib.closing(open_store(self.settings.store, self.environment, self.clock)) as store:
            yield BudgetManager(store, lambda: secrets.token_hex(16), computational=True, **parts)

    @contextlib.contextmanager
    def opened(self, *, checked=True, **parts):
        """A service in this process; what it is made of is checked in the end.

        Args:
            checked: False if the store cannot be read any more by then.
            parts: of the runtime of the service.
        """
        stream = io.StringIO()
        with open_service(self.settings, self.environment, stream, Runtime(**{"clock": self.clock, **parts})) as opened:
            service = Service(self, opened, stream)
            with service:
                yield service
            if checked:
                self.check(opened.manager)

    def check(self, manager, *, lowered=()):
        """The books are in order.

        Args:
            manager: of them.
            lowered: accounts whose limit an officer lowered below what was spent.
        """
        said = manager.verify()
        for account in manager.store.accounts():
            if account.enforced and account.id not in lowered:
                assert manager.get(account.id).balance.spent.within(account.limit), "I1"
        for account, id_, body in self.left:
            answered, stored = said.releases[id_], manager.store.release(bytes.fromhex(id_))
            assert stored.result == body, "I2: what left is what was settled"
            assert answered.result == hashlib.sha256(body).hexdigest(), "I2: and the ledger says so"
            assert account in answered.by, "I2: and who was answered"
            assert manager.store.entitled(account, bytes.fromhex(id_)), "I2: and paid"
            assert answered.cost == Amount.of(stored.cost), "I2: and for how much"

    def note(self, who, reply):
        """Remember an answer that left."""
        if reply.status_code == 200 and reply.headers.get("content-type") == "application/json":
            self.left.add((f"{who}@sales", reply.headers["discreet-release"], reply.content))

    def _found(self, manager, accounts, granted):
        for account in accounts:
            manager.store.create(account, ACT)
        for dataset, columns in granted.items():
            text = grant_text(None if columns is None else frozenset(columns))
            manager.store.put_record(GRANT, grant_name(accounts[0].id, dataset), text, ACT)
        for account in accounts:
            if "@" in account.id:
                self._key(manager, account.id.partition("@")[0], account.id, ("analyst",))
        for role in ("officer", "admin"):
            self._key(manager, role, None, (role,))

    def _key(self, manager, name, account, roles):
        made = new_key(os.urandom)
        manager.store.put_record(KEY, made.id, KeyRecord(digest_of(made.text).hex(), account, roles, 0).text, ACT)
        self.keys[name] = made.text

    def headers(self, who, key=None):
        """Of a request by *who*, a name or the text of a key, with an idempotency key."""
        text = self.keys.get(who, who)
        return {
            **({} if text is None else {"Authorization": f"Bearer {text}"}),
            **({} if key is None else {"Idempotency-Key": key}),
        }


class Service:
    """A service that is called without a network.

    Args:
        house: that it stands on.
        parts: what it is made of.
        stream: its log.
    """

    def __init__(self, house, parts, stream):
        self.house, self.stream = house, stream
        self.engines = Engines(parts.warehouse)
        self.parts, self.app = parts, parts.app
        self.manager, self.clock = parts.manager, house.clock

    def __enter__(self):
        self._portal = anyio.from_thread.start_blocking_portal()
        self.portal = self._portal.__enter__()
        return self

    def __exit__(self, *error):
        self._portal.__exit__(*error)

    def send(self, method, path, who="ann", **request):
        """What is answered."""
        return self.portal.call(lambda: self.sending(method, path, who, **request))

    async def sending(self, method, path, who="ann", *, key=None, headers=None, **request):
        """The same, to be awaited."""
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        sent = {**self.house.headers(who, key), **(headers or {})}
        async with httpx.AsyncClient(transport=transport, base_url="http://discreet.example") as client:
            reply = await client.request(method, path, headers=sent, **request)
        if path == "/v1/query":
            self.house.note(who, reply)
        return reply

    def ask(self, question=TOP, who="ann", *, key=None, headers=None, **options):
        """POST /v1/query."""
        return self.send("POST", "/v1/query", who, key=key, headers=headers, json={"sql": question, **options})

    def together(self, requests):
        """The replies to requests that are sent at once: each who, question, key and options."""

        async def one(replies, n, who, question, key, options):
            replies[n] = await self.sending("POST", "/v1/query", who, key=key, json={"sql": question, **options})

        async def all_of_them():
            replies = {}
            async with anyio.create_task_group() as group:
                for n, (who, question, key, options) in enumerate(requests):
                    group.start_soon(one, replies, n, who, question, key, options)
            return [replies[n] for n in range(len(requests))]

        return self.portal.call(all_of_them)

    def act(self, method, path, **body):
        """What an officer does."""
        return self.send(method, path, "officer", json={"reason": "a test", **body})

    def balance(self, account="ann@sales"):
        """How an account stands, exactly."""
        return self.manager.get(account).balance

    def events(self, name):
        """Events of a kind in the log."""
        found = [json.loads(line) for line in self.stream.getvalue().splitlines()]
        return [event for event in found if event["event"] == name]


class Engines:
    """The engines of a service, behind a test that says what happens when they are asked for a head.

    Attributes:
        head: is called with the function that counts, and with the one that tells progress; None to count.
        asked: how often a head was asked for.
    """

    def __init__(self, warehouse):
        self._steady, warehouse.steady = warehouse.steady, self.steady
        self.head, self.check, self.asked = None, None, 0

    def steady(self, dataset, version):
        """The engine."""
        return _Engine(self._steady(dataset, version), self)


class _Engine:
    def __init__(self, engine, engines):
        self._engine, self._engines = engine, engines

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def check(self, request):
        """The check before the data is read."""
        if self._engines.check is not None:
            self._engines.check()
        self._engine.check(request)

    def head(self, request, *, seed=b"", progress=None):
        """The head."""
        self._engines.asked += 1

        def count():
            return self._engine.head(request, seed=seed, progress=progress)

        return count() if self._engines.head is None else self._engines.head(count, progress)


def slug(reply):
    """The kind of problem that was answered."""
    assert reply.headers["content-type"] == "application/problem+json", reply.text
    return reply.json()["type"].removeprefix("/problems/")


def _write_loose(folder):
    import duckdb

    with duckdb.connect(str(folder / "loose.db")) as connection:
        connection.execute(f"CREATE TABLE t AS FROM '{folder / 'reads.parquet'}'; CREATE VIEW v AS FROM t")
