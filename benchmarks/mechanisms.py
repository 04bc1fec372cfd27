"""The time of a release without counting."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np

from benchmarks.timing import in_turns, table
from discreet.accounting.convert import limit_for
from discreet.mechanisms import CountRelease, Request, TopStable, UnknownGumbel, UnknownLaplace
from discreet.noise import KeyedBits
from discreet.values import ExactHead, Sensitivity

ROUNDS = 41
DELTA = Fraction(1, 10**8)


def zipf_head(items: int) -> ExactHead:
    """Return a head of *items* + 1 counts that fall like 200,000 / (rank + 6)."""
    return ExactHead((200_000 / (np.arange(items + 1) + 6)).astype(np.int64), items)


def run() -> list[str]:
    """Milliseconds of one release from a head in memory, with keyed bits (medians)."""
    head, wide, label = zipf_head(1_000), zipf_head(10_000), itertools.count()
    small, large = limit_for(1.0, DELTA), limit_for(8.0, DELTA)
    bounded = Sensitivity(groups_per_user=20)
    cases = [
        (
            "unknown-gumbel, k = 10, head limit 1,000, epsilon 1",
            UnknownGumbel.within_cost(small, Request(10, 1_000)),
            head,
        ),
        (
            "unknown-laplace, head limit 1,000, epsilon 1",
            UnknownLaplace.within_cost(small, Request(None, 1_000, bounded)),
            head,
        ),
        ("top-stable, k = 10, epsilon 1", TopStable.within_cost(small, Request(10, 10, counts=False)), zipf_head(10)),
        ("pcr, head limit 10,000, epsilon 8", CountRelease.within_cost(large, Request(None, 10_000)), wide),
    ]
    rows = []
    for name, mechanism, counted in cases:
        (seconds,) = in_turns([lambda m=mechanism, h=counted: m.release(h, KeyedBits(bytes(32), next(label)))], ROUNDS)
        released = len(mechanism.release(counted, KeyedBits(bytes(32), "n")).positions)
        rows.append([name, f"{1e3 * seconds:.2f} ms", str(released)])
    return table(["mechanism", "median", "items"], rows)
