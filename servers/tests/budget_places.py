"""ConcurrencyLimit for stores of budgets in PostgreSQL, and what tests do there."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

from tests.budget.suite import UNIT, claim

from discreet.budget.model import Fingerprint
from servers import postgres as server_of

_NUMBERS = itertools.count()
_ROOT = Path(__file__).parents[2]


def new_place(url):
    """A new schema on the server of *url*, as the URL of a store in it."""
    name = f"budget{os.getpid()}_{next(_NUMBERS)}"
    with server_of.owner(url) as owner:
        owner.execute(f"CREATE SCHEMA {name}")
    rights = f"{server_of.OWNER}:{server_of.OWNER}"
    return url.replace("reader:reader", rights) + f"?options=-csearch_path%3D{name}"


def connected(place):
    """A connection of a test's own to the tables of a store."""
    connection = server_of.owner(place.partition("?")[0])
    connection.execute(f"SET search_path = {place.partition('%3D')[2]}")
    return connection


def child(code, *words):
    """Another process that runs *code* and is talked to."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *words], cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def ends(child):
    """Wait until it ends; how it did."""
    child.stdin.close()
    child.stdout.close()
    return child.wait(60)


def bring(store, method):
    """Do what comes before *method*; returns it."""
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
"""What is used, held and forfeited on the whole path after a method."""


def until(found):
    """Ask until there is one."""
    while not found()[0]:
        pass
