"""Child process that moves shares between two stores, repeatedly, and is killed at a given step.

python -m tests.budget.sharing.escrow_child     # reads lines "FOLDER STEP NTH", answers "died" or "lived" to each
"""

from __future__ import annotations

import os
import sys
from fractions import Fraction
from pathlib import Path

from discreet.budget.model import NOTHING, Account, AdminAction, Amount, Claim, Reservation, Sliding
from discreet.budget.sharing.escrow import ShareRequest
from discreet.budget.stores.sqlite import SQLiteStore
from discreet.values import Cost
from tests.budget.crash_child import KillAtStep

# as in tests.budget.suite.base, which imports pytest: a child process should start fast
ACT, UNIT, NOON_US = AdminAction("child", "a test"), Cost(Fraction(1, 1000), Fraction(1, 10**9)), 10**15

STEPS = ("begin", "accounts", "ledger", "shares", "commit", "committed")


def opened(folder, step=lambda _: None):
    """Open both stores in *folder*; the accounts ann and org are made in the first, eve in both."""
    return [SQLiteStore(folder / name, lambda: NOON_US, step) for name in ("here.db", "there.db")]


def prepare(folder):
    """Make the accounts."""
    here, there = opened(folder)
    for store, names in ((here, ("org", "ann", "eve")), (there, ("eve",))):
        for name in names:
            parent = "org" if name == "ann" else None
            store.create(Account(name, UNIT * 12, Fraction(1, 100), parent, Sliding(30)), ACT)
    here.close()
    there.close()


def carry(donor, recipient):
    """Deliver pending transfers and their receipts, each twice."""
    for transfer in donor.shares.pending(recipient.id, 10):
        for _ in range(2):
            receipt = recipient.shares.receive(transfer)
            if receipt is not None:
                donor.shares.acknowledge(receipt)


def exchange(here, there):
    """Run one round; from any state it ends with equal shares of ann's account and nothing in flight."""
    carry(here, there)
    carry(there, here)
    for name in here.shares.unannounced(there.id, 10):
        here.shares.announce(there.id, name, 2)
    carry(here, there)
    for n, (one, other) in enumerate(((here, there), (there, here))):
        name = f"question-{n}"
        if isinstance(one.reserve(Claim(name, "ann", name.encode() * 2, UNIT * 2)), Reservation):
            one.start(name)
            one.settle(name, UNIT, b"x")
        left = next(each.left for each in one.shares.holdings() if each.account.id == "ann")
        other.shares.grant(one.id, ShareRequest("ann", left, Amount.of(UNIT * 7)), NOTHING)
        carry(other, one)


def run(folder, step, nth):
    """Run a round that is killed at the step; return True if the step was not reached."""
    here, there = opened(folder, KillAtStep(step, nth))
    exchange(here, there)
    here.close()
    there.close()


def main():
    """Run rounds until standard input ends."""
    for line in sys.stdin:
        folder, step, nth = line.split()
        prepare(Path(folder))
        child = os.fork()  # this process has one thread and no open store
        if child == 0:
            run(Path(folder), step, int(nth))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        sys.stdout.write("lived\n" if status == 0 else "died\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
