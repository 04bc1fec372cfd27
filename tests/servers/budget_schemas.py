"""Schemas for budget stores in PostgreSQL, and helpers of their tests."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

from discreet.budget.model import Fingerprint
from tests.budget.suite import UNIT, claim
from tests.servers import postgres as server_of

_NUMBERS = itertools.count()
_ROOT = Path(__file__).parents[2]


def new_schema(url):
    """Create a schema on the server of *url* and return the URL of a store in it."""
    name = f"budget{os.getpid()}_{next(_NUMBERS)}"
    with server_of.owner(url) as owner:
        owner.execute(f"CREATE SCHEMA {name}")
    rights = f"{server_of.OWNER}:{server_of.OWNER}"
    return url.replace("reader:reader", rights) + f"?options=-csearch_path%3D{name}"


def connect_to(store_url):
    """Return a separate connection to the tables of a store."""
    connection = server_of.owner(store_url.partition("?")[0])
    connection.execute(f"SET search_path = {store_url.partition('%3D')[2]}")
    return connection


def start_child(code, *words):
    """Start another process that runs *code*, with pipes to its stdin and stdout."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *words], cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def exit_code(child):
    """Wait until the process ends and return its exit code."""
    child.stdin.close()
    child.stdout.close()
    return child.wait(60)


def prepare(store, method):
    """Run the steps that precede *method* and return a callable for that step."""
    if method != "reserve":
        store.reserve(claim("a"))
    if method in {"settle", "forfeit"}:
        store.start("a")
    steps = {
        "reserve": lambda: store.reserve(claim("a")),
        "start": lambda: store.start("a"),
        "settle": lambda: store.settle("a", UNIT, b"x", Fingerprint(bytes(32), bytes(32))),
        "void": lambda: store.void("a"),
        "forfeit": lambda: store.forfeit("a"),
    }
    return steps[method]


AFTER = {"reserve": (0, 3, 0), "start": (0, 3, 0), "settle": (1, 0, 0), "void": (0, 0, 0), "forfeit": (0, 0, 3)}
"""The used, held and forfeited units of every account on the path after a method."""


def wait_until(found):
    """Call *found* until the first column of its row is true."""
    while not found()[0]:
        pass
