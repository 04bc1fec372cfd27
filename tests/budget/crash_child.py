"""A process that runs one round of queries and kills itself at a step of a transaction."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
from fractions import Fraction

from discreet.budget.manager import BudgetManager
from discreet.budget.model import Account, AdminAction, Claim, Fingerprint, Replay, Sliding
from discreet.budget.rules import DAY_US
from discreet.budget.stores.sqlite import SQLiteStore
from discreet.values import Cost

# as in tests.budget.suite, which imports pytest: a child process should start fast
ACT, UNIT, TOTAL, NOON_US = (
    AdminAction("child", "a test"),
    Cost(Fraction(1, 1000), Fraction(1, 10**9)),
    Fraction(1, 100),
    10**15,
)

STEPS = (
    "begin", "locked", "decided", "reservations", "accounts", "releases", "fingerprints", "entitlements", "forfeits",
    "actions", "records", "ledger", "meta", "commit", "committed",
)  # fmt: skip

PRUNE_STEPS = (
    "begin",
    "locked",
    "archive",
    "decided",
    "base",
    "ledger",
    "events",
    "totals",
    "spending",
    "keys",
    "reservations",
    "meta",
    "commit",
    "committed",
)

PUT = ("key", "k", "a text", AdminAction("child", "a record", "put-1"))
"""A record that is put, and put again after a crash."""


def key_of(name):
    """Return a release key for *name*."""
    return hashlib.sha256(name.encode()).digest()


def claim(name, who="ann", release=None):
    """Return a claim of three units."""
    return Claim(name, who, key_of(release or name), UNIT * 3)


class KillAtStep:
    """Kills the process at the n-th time that a step is reached."""

    def __init__(self, step, nth):
        self._step, self._left = step, nth

    def __call__(self, step):
        """Handle a step."""
        if step == self._step:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def opened(folder, step=lambda _: None, now_us=NOON_US):
    """Open the store in *folder*, with its accounts."""
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(contextlib.closing(SQLiteStore(folder / "budget.db", lambda: now_us, step)))
        if not store.accounts():
            for name, parent in (("data", None), ("org", "data"), ("ann", "org"), ("bob", "org")):
                store.create(Account(name, UNIT * 30, TOTAL, parent, Sliding(30)), ACT)
        stack.pop_all()
    return store


def ask(store, folder, name, who):
    """Run one query, and write its answer to a file in place of sending it."""
    admitted = store.reserve(claim(f"{name}-{who}", who, name))
    if isinstance(admitted, Replay):
        return
    store.start(admitted.id)
    settled = store.settle(admitted.id, UNIT, name.encode(), Fingerprint(key_of(f"head of {name}"), key_of(name)))
    with (folder / "answered").open("ab") as out:
        out.write(b"%s %s\n" % (who.encode(), key_of(settled.release.result.decode()).hex().encode()))
        out.flush()
        os.fsync(out.fileno())


def do_round(store, folder):
    """Run queries of two analysts, a void, a failure and a retry, and put a record."""
    store.put_record(*PUT)
    ask(store, folder, "one", "ann")
    ask(store, folder, "one", "bob")
    store.reserve(claim("v"))
    store.void("v")
    store.reserve(claim("f", release="two"))
    store.start("f")
    store.forfeit("f")
    ask(store, folder, "two", "ann")
    store.put_record("key", "k", None, ACT)


def do_prune(store, folder, step=lambda _: None):
    """Move the lines of a round to a file."""

    def archive(lines):
        with (folder / "archive").open("w") as out:
            for line in lines:
                step("archive")
                out.write(json.dumps([line.chain, line.seq, line.body, line.hash.hex()]) + "\n")
            out.flush()
            os.fsync(out.fileno())

    return BudgetManager(store, str).prune(NOON_US + DAY_US, ACT, archive)


def run(folder, step, nth, prune=None):
    """Run a round up to the step, or a round and the pruning of its lines up to a step of that."""
    kill = KillAtStep(step, nth)
    opened(folder).close()
    store = opened(folder) if prune else opened(folder, kill)
    do_round(store, folder)
    store.close()
    if prune:
        store = opened(folder, kill, NOON_US + 2 * DAY_US)
        do_prune(store, folder, kill)
        store.close()
