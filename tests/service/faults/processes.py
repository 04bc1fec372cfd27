"""Services in processes of their own, which die, stop or wait where a test says; started from one that waits ready.

`Points` are the steps of a query, and the steps of the store's transactions within: killed at
one of these, a process leaves what it leaves, and says nothing any more.
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
"""What the steps are that a service tells its tracer, by name and how many of that name came before."""

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
"""Wherever a process can be killed on its way from a question to an answer, in order."""


@dataclasses.dataclass(frozen=True)
class Orders:
    """What is to happen in a process.

    Args:
        die: at this point.
        wait: at this point, for the other end of the pipe to say go on.
        note: True to write down all points that are reached.
        later: seconds that its clock is ahead, if its store is a file.
        lease_spare_ms: how much longer a lease is than the engine may take.
    """

    die: str | None = None
    wait: str | None = None
    note: bool = False
    later: float = 0.0
    lease_spare_ms: int = 60_000


class Process:
    """A service in a process of its own.

    Args:
        deployment: that it stands on.
        orders: what is to happen.
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
        """Of the process."""
        return self.process.pid

    def waits(self):
        """Wait until it waits."""
        assert self._pipe.recv() == "waiting"

    def go_on(self):
        """Let it go on."""
        self._pipe.send("go on")

    def died(self):
        """Wait until it has killed itself."""
        self.process.join(60)
        assert self.process.exitcode == -signal.SIGKILL

    def kill(self):
        """Kill it."""
        self.process.kill()
        self.process.join()
        self._pipe.close()

    def end(self):
        """Stop it as its operator would."""
        if self.process.is_alive():
            os.kill(self.pid, signal.SIGTERM)
        self.process.join(60)
        self._pipe.close()
        assert self.process.exitcode is not None


@contextlib.contextmanager
def serving(deployment, orders=Orders()):
    """A service; killed in the end if it does not end when it is told to."""
    service = Process(deployment, orders)
    try:
        yield service
        service.end()
    finally:
        service.kill()


def reached(folder):
    """The points that were written down."""
    return (folder / "points").read_text().splitlines()


class _Dies:
    """What is to happen at the points."""

    def __init__(self, orders, folder, pipe):
        self._orders, self._pipe, self._notes = orders, pipe, folder / "points"
        self._seen, self._within = {}, None

    def reach(self, point):
        """A point was reached."""
        if self._orders.note:
            with self._notes.open("a") as notes:
                notes.write(f"{point}\n")
        if point == self._orders.die:
            os.kill(os.getpid(), signal.SIGKILL)
        if point == self._orders.wait:
            self._pipe.send("waiting")
            self._pipe.recv()

    @contextlib.contextmanager
    def span(self, step, facts, parent=None):  # noqa: ARG002
        """See `discreet.service.observability.traces.Tracer`: a step."""
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
        """See `discreet.service.observability.traces.Tracer`."""

    def step(self, name):
        """A step of a transaction."""
        if self._within is not None:
            self.reach(f"{self._within}: {name}")

    def replying(self, app):
        """*app*, whose replies to questions can be cut."""

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
    """Serve, in a process that was forked for that."""
    from discreet.service import app, server
    from discreet.service.app import Runtime
    from discreet.service.settings import load_settings

    place = Path(folder)
    os.dup2(os.open(place / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), sys.stdout.fileno())
    dies = _Dies(orders, place, pipe)
    open_service = app.open_service
    began = datetime.fromisoformat(now) + timedelta(seconds=orders.later)

    @contextlib.contextmanager
    def opened(settings, variables):
        with open_service(settings, variables, sys.stdout, Runtime(lambda: began), dies) as service:
            yield dataclasses.replace(service, app=dies.replying(service.app))

    app.open_store = functools.partial(_store, dies.step)
    app._LEASE_SPARE_MS = orders.lease_spare_ms
    server.open_service = opened
    server.serve(load_settings(place / "discreet.toml"), environment, pipe.send)


def _store(step, store, environment, clock):
    """As `discreet.service.stores.open_store`, with a step."""
    if store.file is not None:
        from discreet.budget.periods import microseconds
        from discreet.budget.stores.sqlite import SQLiteStore

        return SQLiteStore(store.file, lambda: microseconds(clock()), step)
    from discreet.budget.stores.postgres import PostgresStore
    from discreet.service.stores import store_url

    return PostgresStore(store_url(store, environment), step)
