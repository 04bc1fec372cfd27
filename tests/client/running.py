"""A whole service on a free port of this machine, with accounts, keys and grants."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import secrets
import socket
import threading
from fractions import Fraction
from typing import TYPE_CHECKING

import uvicorn

from discreet.budget.manager import BudgetManager
from discreet.budget.model import Account, AdminAction, Sliding
from discreet.budget.stores.sqlite import SQLiteStore
from discreet.catalog.loader import load_catalog
from discreet.service.app import open_service
from discreet.service.auth.api_keys import KeyRecord, digest_of, microseconds, new_key
from discreet.service.auth.grants import GRANT, KEY, grant_name, grant_text
from discreet.service.context import utc_now
from discreet.service.observability.logging import capture_library_logs
from discreet.service.settings import load_settings

if TYPE_CHECKING:
    from pathlib import Path

    from discreet.service.observability.traces import Tracer

ACT = AdminAction("founder", "the first day")

SETTINGS = """
[service]
catalog = "catalog.toml"
port = 0
requests_per_minute = 0
{service}
[store]
url = "sqlite:store/budget.db"
[noise]
key_file = "noise.key"
"""


def found(folder: Path, catalog: str, service: str = "", noise: bytes = b"n" * 32) -> dict[str, str]:
    """Put into *folder* what a service needs; the texts of the keys, by what they are for.

    Accounts are ann@sales and bob@sales under sales; every dataset is granted to sales.
    """
    (folder / "store").mkdir()
    (folder / "catalog.toml").write_text(catalog)
    (folder / "noise.key").write_bytes(noise)
    (folder / "noise.key").chmod(0o600)
    (folder / "discreet.toml").write_text(SETTINGS.format(service=service))
    with contextlib.closing(SQLiteStore(folder / "store/budget.db", lambda: microseconds(utc_now()))) as store:
        manager = BudgetManager(store, lambda: secrets.token_hex(16), computational=True)
        manager.store.create(Account.of_epsilon("sales", 40.0, Fraction(1, 10**6), period=Sliding(30)), ACT)
        for name in ("ann@sales", "bob@sales"):
            manager.store.create(Account.of_epsilon(name, 20.0, Fraction(1, 10**7), "sales", Sliding(30)), ACT)
        for dataset in load_catalog(folder / "catalog.toml").datasets:
            manager.store.put_record(GRANT, grant_name("sales", dataset), grant_text(None), ACT)
        roles = {
            "ann": ("ann@sales", ("analyst",)),
            "bob": ("bob@sales", ("analyst",)),
            "officer": (None, ("officer",)),
            "admin": (None, ("admin",)),
        }
        return {name: _key(manager, account, role) for name, (account, role) in roles.items()}


def _key(manager, account, roles):
    made = new_key(secrets.token_bytes)
    record = KeyRecord(digest_of(made.text).hex(), account, roles, microseconds(utc_now()), None, "")
    manager.store.put_record(KEY, made.id, record.text, ACT)
    return made.text


class Gate:
    """Engines that count only when they may, so that a test decides what happens while they do.

    While it is shut, an engine that counts has arrived, and asks again and again whether anybody waits for it. Failing,
    it raises that when it may go on.
    """

    def __init__(self, warehouse):
        self._steady, warehouse.steady = warehouse.steady, self.steady
        self.open, self.arrived, self.left = threading.Event(), threading.Semaphore(0), threading.Semaphore(0)
        self.open.set()
        self.failing: Exception | None = None

    def steady(self, dataset, version):
        """The engine behind the gate."""
        return _Gated(self._steady(dataset, version), self)


class _Gated:
    def __init__(self, engine, gate):
        self._engine, self._gate = engine, gate

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def head(self, request, *, seed=b"", progress=None):
        self._gate.arrived.release()
        try:
            while not self._gate.open.wait(0.01):
                if progress is not None:
                    progress(0.5)
            if self._gate.failing is not None:
                raise self._gate.failing
            return self._engine.head(request, seed=seed, progress=progress)
        finally:
            self._gate.left.release()


@dataclasses.dataclass
class Running:
    """A service that runs.

    Args:
        url: where.
        parts: what it is made of.
        gate: that its engines stand behind.
        stream: its log.
    """

    url: str
    parts: object
    gate: Gate
    stream: io.StringIO

    def events(self, name):
        """The events of that name in the log."""
        lines = map(json.loads, self.stream.getvalue().splitlines())
        return [line for line in lines if line["event"] == name]

    def spent(self, account):
        """What the account has paid: settled, and forfeited."""
        balance = self.parts.manager.get(account).balance
        return balance.used.rho, balance.forfeited.rho, balance.held.rho


@contextlib.contextmanager
def running(folder: Path, tracer: Tracer | None = None):
    """Run the service of *folder* until the context ends; its books must be right then.

    Args:
        folder: that `found` was called with.
        tracer: where spans go, instead of where the settings say.
    """
    stream = io.StringIO()
    with contextlib.ExitStack() as stack:
        parts = stack.enter_context(open_service(load_settings(folder / "discreet.toml"), {}, stream, tracer=tracer))
        stack.callback(parts.manager.verify)
        gate = Gate(parts.warehouse)
        stack.enter_context(capture_library_logs(parts.log))
        listener = stack.enter_context(contextlib.closing(socket.create_server(("127.0.0.1", 0), backlog=512)))
        server = uvicorn.Server(uvicorn.Config(parts.app, access_log=False, log_config=None))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield Running(f"http://127.0.0.1:{listener.getsockname()[1]}", parts, gate, stream)
        finally:
            gate.open.set()
            server.should_exit = True
            thread.join()
