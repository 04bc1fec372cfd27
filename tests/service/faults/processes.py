"""Services in processes that are killed or paused at a point of a query.

Points are the steps of a query and the steps of the store's transactions within them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import signal
import sys
from datetime import datetime, timedelta
from pathlib import Path

from tests.forkserver import CONTEXT

STEPS = {
    ("plan", 1): "plan",
    ("reserve", 1): "reserve",
    ("engine", 1): "probe",
    ("reserve", 2): "start",
    ("engine", 2): "head",
    ("noise", 1): "noise",
    ("encode", 1): "encode",
    ("settle", 1): "settle",
}
"""Steps by the name of their span and the number of spans of that name so far."""

WITHIN = {
    "reserve": (
        *("begin", "locked", "decided", "keys", "reservations", "accounts", "ledger", "meta"),
        *("commit", "committed"),
    ),
    "start": ("begin", "locked", "decided", "reservations", "ledger", "meta", "commit", "committed"),
    "settle": (
        *("begin", "locked", "decided", "fingerprints", "releases", "entitlements", "reservations", "accounts"),
        *("ledger", "meta", "commit", "committed"),
    ),
}
"""Steps of the transactions of an SQLite store."""

POINTS = (
    *(
        point
        for step in STEPS.values()
        for point in (f"before {step}", *(f"{step}: {inner}" for inner in WITHIN.get(step, ())), f"after {step}")
    ),
    "before reply",
    "within reply",
    "after reply",
)
"""All points of a query at which a process can be killed, in order."""


@dataclasses.dataclass(frozen=True)
class Orders:
    """Instructions for a process at its points.

    Args:
        die: the point at which it kills itself.
        wait: the point at which it waits for a message.
        note: True to log the points that are reached.
        later: seconds that its clock is ahead, if its store is a file.
        lease_spare_ms: how much longer a lease is than the engine may take.
    """

    die: str | None = None
    wait: str | None = None
    note: bool = False
    later: float = 0.0
    lease_spare_ms: int = 60_000


class Process:
    """Runs a service in another process.

    Args:
        deployment: its files.
        orders: what it does at its points.
    """

    def __init__(self, deployment, orders=Orders()):
        self._pipe, theirs = CONTEXT.Pipe()
        arguments = (str(deployment.folder), deployment.environment, deployment.clock().isoformat(), theirs, orders)
        self.process = CONTEXT.Process(target=_run, args=arguments, daemon=True)
        self.process.start()
        theirs.close()
        try:
            self.url = self._pipe.recv()
        except EOFError:
            self.url = None  # it ended before it served
            self.process.join()

    @property
    def pid(self):
        """Return the id of the process."""
        return self.process.pid

    def wait_until_reached(self):
        """Block until it waits at its point."""
        assert self._pipe.recv() == "waiting"

    def resume(self):
        """Let it continue."""
        self._pipe.send("go on")

    def wait_until_killed(self):
        """Block until it has killed itself."""
        self.process.join(60)
        assert self.process.exitcode == -signal.SIGKILL

    def kill(self):
        """Kill it."""
        self.process.kill()
        self.process.join()
        self._pipe.close()

    def end(self):
        """Stop it by SIGTERM."""
        if self.process.is_alive():
            os.kill(self.pid, signal.SIGTERM)
        self.process.join(60)
        self._pipe.close()
        assert self.process.exitcode is not None


@contextlib.contextmanager
def serving(deployment, orders=Orders()):
    """Run a service; kill it at the end if SIGTERM does not stop it."""
    service = Process(deployment, orders)
    try:
        yield service
        service.end()
    finally:
        service.kill()


def reached(folder):
    """Return the points that were logged."""
    return (folder / "points").read_text().splitlines()


class _Points:
    """The tracer and the step hook of a process; executes its orders."""

    def __init__(self, orders, folder, pipe):
        self._orders, self._pipe, self._notes = orders, pipe, folder / "points"
        self._seen, self._within = {}, None

    def reach(self, point):
        """Handle a point."""
        if self._orders.note:
            with self._notes.open("a") as notes:
                notes.write(f"{point}\n")
        if point == self._orders.die:
            os.kill(os.getpid(), signal.SIGKILL)
        if point == self._orders.wait:
            self._pipe.send("waiting")
            self._pipe.recv()

    @contextlib.contextmanager
    def span(self, step, request_id, account=None, parent=None):  # noqa: ARG002
        """Open a span, whose beginning is a step."""
        if step == "request":
            self._seen = {}
        self._seen[step] = self._seen.get(step, 0) + 1
        name = STEPS.get((step, self._seen[step]))
        if name is None:
            yield
            return
        self._within = name
        self.reach(f"before {name}")
        yield
        self.reach(f"after {name}")
        self._within = None

    def close(self):
        """Do nothing."""

    def step(self, name):
        """Handle a step of a transaction."""
        if self._within is not None:
            self.reach(f"{self._within}: {name}")

    def replying(self, app):
        """Return *app* with points before and after its replies to queries."""

        async def replies(scope, receive, send):
            if scope["type"] != "http" or scope["path"] != "/v1/query":
                await app(scope, receive, send)
                return

            async def sends(message):
                start = message["type"] == "http.response.start"
                if start:
                    self.reach("before reply")
                await send(message)
                self.reach("within reply" if start else "after reply")

            await app(scope, receive, sends)

        return replies


def _run(folder, environment, now, pipe, orders):
    """Serve, in the forked process."""
    from discreet.service import app, catalog_file, server
    from discreet.service.runtime import Runtime
    from discreet.service.settings import load_settings

    folder = Path(folder)
    os.dup2(os.open(folder / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), sys.stdout.fileno())
    points = _Points(orders, folder, pipe)
    open_service = app.open_service
    began = datetime.fromisoformat(now) + timedelta(seconds=orders.later)

    @contextlib.contextmanager
    def opened(settings, variables):
        with open_service(settings, variables, sys.stdout, Runtime(lambda: began), points) as service:
            yield dataclasses.replace(service, app=points.replying(service.app))

    app.open_store = functools.partial(stepping_store, points.step)
    assert catalog_file._LEASE_SPARE_MS == 60_000  # to patch a name that is gone would change nothing
    catalog_file._LEASE_SPARE_MS = orders.lease_spare_ms
    server.open_service = opened
    server.serve(load_settings(folder / "discreet.toml"), environment, pipe.send)


def stepping_store(step, store, environment, clock):
    """Open a store like `discreet.service.stores.open_store`, with a step hook."""
    if store.file is not None:
        from discreet.budget.rules import clock_us
        from discreet.budget.stores.sqlite import SQLiteStore

        return SQLiteStore(store.file, clock_us(clock), step)
    from discreet.budget.stores.postgres import PostgresStore
    from discreet.service.stores import store_url

    return PostgresStore(store_url(store, environment), step)


def kill_refresh(deployment, transaction, step):
    """Refresh the running counts of a service in a process that kills itself at a step of one of its transactions.

    Args:
        transaction: its number, from 1 on, among those of the refresh.
    """
    arguments = (deployment.folder, deployment.environment, deployment.clock(), transaction, step)
    process = CONTEXT.Process(target=_refresh, args=arguments, daemon=True)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL


def _refresh(folder, environment, now, transaction, step):
    """Refresh, in the forked process."""
    from discreet.service import app
    from discreet.service.runtime import Runtime
    from discreet.service.settings import load_settings

    begun = None

    def reach(name):
        nonlocal begun
        if begun is not None:
            begun += name == "begin"
            if (begun, name) == (transaction, step):
                os.kill(os.getpid(), signal.SIGKILL)

    app.open_store = functools.partial(stepping_store, reach)
    with app.open_service(load_settings(folder / "discreet.toml"), environment, sys.stdout, Runtime(lambda: now)) as it:
        begun = 0
        it.streams.refresh()
