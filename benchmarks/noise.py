"""The cost of exact sampling: Discreet's samplers compared with numpy's, which are not exact."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np

from benchmarks.timing import in_turns, table
from discreet.noise import DiscreteGaussian, DiscreteLaplace, KeyedBits, Race, Rival

COUNTS, PLACES, DRAWS = 1_000_000, 1_000, 100_000
ROUNDS = 15


def run() -> list[str]:
    """Exact keyed noise against numpy's floating-point noise, in one process, in turns."""
    counts = np.sort(np.random.default_rng(1).zipf(1.3, COUNTS).clip(max=10**7))[::-1].astype(np.int64)
    random, label = np.random.default_rng(2), itertools.count()

    def bits() -> KeyedBits:
        return KeyedBits(bytes(32), next(label))

    def race() -> None:
        Race(counts, Fraction(1, 10), Rival(100, Fraction(10**9))).run(bits(), "race", PLACES)

    def numpy_race() -> None:
        keys = counts * 0.1 + random.gumbel(size=COUNTS)
        best = np.argpartition(-keys, PLACES)[:PLACES]
        best[np.argsort(-keys[best])]

    def numpy_normal() -> None:
        np.rint(random.normal(0.0, 250.0, DRAWS))

    def numpy_laplace() -> None:
        np.rint(random.laplace(0.0, 250.0, DRAWS))

    pairs = [
        (f"Gumbel order, top {PLACES:,} of {COUNTS:,}", race, numpy_race),
        (
            f"{DRAWS:,} discrete Gaussian",
            lambda: DiscreteGaussian(Fraction(250**2)).draw(bits(), "z", DRAWS),
            numpy_normal,
        ),
        (f"{DRAWS:,} discrete Laplace", lambda: DiscreteLaplace(Fraction(250)).draw(bits(), "z", DRAWS), numpy_laplace),
    ]
    rows = []
    for name, ours, floor in pairs:
        exact, rounded = in_turns([ours, floor], ROUNDS)
        rows.append([name, f"{1e3 * exact:.1f} ms", f"{1e3 * rounded:.1f} ms", f"{exact / rounded:.2f}x"])
    return table(["noise", "exact and keyed", "numpy, floats", "ratio"], rows)
