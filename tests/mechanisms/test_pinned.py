"""The numbers that a key releases, kept: a stored release, its replay and a peer's copy must agree for years."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest

from discreet.head_request import ROW_UNIT, SumBounds
from discreet.mechanisms import (
    CountRelease,
    KnownGumbel,
    KnownLaplace,
    SelectVerify,
    TopStable,
    UnknownGumbel,
    UnknownLaplace,
)
from discreet.mechanisms.sums import (
    KnownGumbelSums,
    KnownLaplaceSums,
    ListedSums,
    UnknownGumbelSums,
    UnknownLaplaceSums,
)
from discreet.noise import KeyedBits
from discreet.values import Cost, ExactHead

DELTA = Fraction(1, 10**6)
COUNTS = [900, 700, 700, 500, 60, 50, 8, 2, 0]
F = Fraction


def released(mechanism):
    """Return all fields of a release of nine items, or of the first items up to the mechanism's head limit."""
    head = ExactHead(np.array(COUNTS[: mechanism.head_limit + 1], dtype=np.int64), mechanism.head_limit)
    outcome = mechanism.release(head, KeyedBits(bytes(range(32)), "pinned"))
    lists = [outcome.positions, outcome.counts, outcome.low, outcome.high]
    return [None if values is None else values.tolist() for values in lists]


class PinnedSums(NamedTuple):
    """A `HeadAndSums` of items with *counts*, and users of lengths that are not theirs."""

    counts: np.ndarray
    summed: SumBounds
    moved: int

    def head(self, limit):
        """Return the counts."""
        return ExactHead(self.counts, limit)

    def sums_of(self, positions):
        """Return sums that rise with the bound."""
        squares = np.array(self.summed.squared_lengths(min(len(positions), self.moved)))
        scaled = ROW_UNIT * np.minimum.outer(4 * self.counts[positions], self.counts.max() * squares)
        users = np.resize([200, 400, 900, 300, 40], len(squares))
        return ExactHead(np.zeros(len(scaled), dtype=np.int64), len(scaled), scaled=scaled, users=users)


def summed(mechanism):
    """Return what a release of nine items says about sums of 4 for each user, of which the bounds clip some."""
    n = mechanism.head_limit + 1 if mechanism.name.startswith("unknown") else mechanism.head_limit
    counts = np.array(COUNTS[:n], dtype=np.int64)
    parts, average = mechanism.summed.parts, mechanism.summed.rows is not None
    rows = parts * counts if average else None
    head = ExactHead(counts, mechanism.head_limit, None, 4 * parts * counts, rows=rows)
    if mechanism.summed.private:
        head = PinnedSums(counts, mechanism.summed, mechanism.moved)
        head = head.sums_of(np.arange(n)) if isinstance(mechanism, ListedSums) else head
    outcome = mechanism.release(head, KeyedBits(bytes(range(32)), "pinned"))
    found = outcome.measured
    lists = [outcome.positions, *(np.round(v, 3) for v in (found.values, found.std_errors, found.low, found.high))]
    return [*(values.tolist() for values in lists), found.name, found.clipping and round(found.clipping.share, 6)]


PINNED = {
    "known-laplace": (
        KnownLaplace(None, 9, 2, F(9, 2), 1),
        [
            [0, 2, 1, 3, 4, 5, 6, 8, 7],
            [898, 701, 689, 497, 48, 45, 8, 6, -1],
            [889, 692, 680, 488, 39, 36, 0, 0, 0],
            [907, 710, 698, 506, 57, 54, 17, 15, 8],
        ],
    ),
    "known-laplace, ties": (
        KnownLaplace(None, 9, 2, F(1, 100)),
        [
            [0, 2, 1, 3, 4, 5, 6, 7, 8],
            [900, 700, 700, 500, 60, 50, 8, 2, 0],
            [899, 699, 699, 499, 59, 49, 7, 1, 0],
            [901, 701, 701, 501, 61, 51, 9, 3, 1],
        ],
    ),
    "known-laplace, three labels": (
        KnownLaplace(3, 9, 2, F(80), 1, "laplace", counts=False),
        [[0, 1, 2], None, None, None],
    ),
    "unknown-laplace": (
        UnknownLaplace(None, 8, 2, F(5), DELTA, 2),
        [[0, 2, 1, 3, 4], [897, 702, 687, 496, 53], [886, 691, 676, 485, 42], [908, 713, 698, 507, 64]],
    ),
    "unknown-laplace, two of laplace": (
        UnknownLaplace(2, 8, 2, F(5), DELTA, 1, "laplace"),
        [[0, 1], [911, 703], [889, 681], [933, 725]],
    ),
    "known-gumbel": (KnownGumbel(3, 9, F(1, 8), 2), [[0, 2, 1], [890, 677, 712], [840, 627, 662], [940, 727, 762]]),
    "known-gumbel, labels": (KnownGumbel(5, 9, F(1, 100), 1, None), [[0, 2, 1, 8, 3], None, None, None]),
    "unknown-gumbel": (
        UnknownGumbel(4, 8, F(1, 4), DELTA, 1, "laplace", optimise_cutoff=True),
        [[0, 2, 1, 3], [917, 705, 699, 515], [893, 681, 675, 491], [941, 729, 723, 539]],
    ),
    "unknown-gumbel, labels": (UnknownGumbel(6, 8, F(1, 4), DELTA, 1, None), [[0, 2, 1, 3], None, None, None]),
    "top-stable": (TopStable(4, F(1, 2), DELTA), [[3, 2, 0, 1], None, None, None]),
    "pcr": (
        CountRelease(Cost(F(1, 2), DELTA), 8, F(1, 10), 2),
        [[0, 1, 2, 3, 4], [930, 695, 748, 472, 62], [840, 649, 702, 426, 56], [1020, 741, 794, 518, 68]],
    ),
    "pcr, labels": (
        CountRelease(Cost(F(1, 2), DELTA), 8, F(1, 10), counts=False),
        [[0, 2, 1, 3, 4, 5], None, None, None],
    ),
    "head": (
        SelectVerify(Cost(F(1, 2), DELTA), 8, F(1, 10), 2),
        [[0, 2, 1, 3, 4, 5], [910, 697, 691, 511, 57, 50], [891, 679, 674, 496, 48, 41], [928, 715, 709, 526, 66, 59]],
    ),
    "head, three labels": (
        SelectVerify(Cost(F(1, 2), DELTA), 8, F(1, 10), counts=False, k=3),
        [[0, 1, 2], None, None, None],
    ),
    "head, five of a large budget": (
        SelectVerify(Cost(F(9), DELTA), 8, F(1, 50), k=5),
        [[0, 2, 1, 3, 4], [899, 701, 701, 500, 60], [897, 699, 698, 497, 57], [902, 703, 703, 502, 62]],
    ),
}


SUMS = {
    "unknown-gumbel+sum": (
        UnknownGumbelSums(UnknownGumbel(4, 8, F(1, 4), DELTA), SumBounds(-3, 5), 3),
        [
            [0, 2, 1, 3],
            [3655, 2803, 2805, 1962],
            [40.0, 40.0, 40.0, 40.0],
            [3576, 2724, 2726, 1883],
            [3734, 2882, 2884, 2041],
            "sum",
            None,
        ],
    ),
    "unknown-gumbel+average": (
        UnknownGumbelSums(UnknownGumbel(4, 8, F(1, 4), DELTA), SumBounds(0, 5, rows=2), 4),
        [
            [0, 2, 1, 3],
            [3.945, 4.04, 3.963, 3.931],
            [0.049, 0.067, 0.064, 0.09],
            [3.851, 3.912, 3.84, 3.762],
            [4.043, 4.174, 4.092, 4.114],
            "average",
            None,
        ],
    ),
    "unknown-gumbel+sum, private": (
        UnknownGumbelSums(
            UnknownGumbel(4, 8, F(1, 2), DELTA, 1, "laplace"), SumBounds(0, 16, private=True), 4, "laplace"
        ),
        [
            [0, 2, 1, 3],
            [3574, 2711, 2610, 2031],
            [90.51, 90.51, 90.51, 90.51],
            [3382, 2518, 2417, 1839],
            [3766, 2903, 2802, 2223],
            "sum",
            0.0,
        ],
    ),
    "unknown-laplace+sum": (
        UnknownLaplaceSums(UnknownLaplace(None, 8, 2, F(5), DELTA), SumBounds(0, 7), 2, "laplace"),
        [
            [0, 2, 1, 3, 4],
            [3586, 2751, 2696, 2017, 207],
            [49.496, 49.496, 49.496, 49.496, 49.496],
            [3481, 2646, 2591, 1912, 102],
            [3691, 2856, 2801, 2122, 312],
            "sum",
            None,
        ],
    ),
    "known-gumbel+sum": (
        KnownGumbelSums(KnownGumbel(3, 9, F(1, 8)), SumBounds(-3, 5), 3, "laplace"),
        [
            [0, 2, 1],
            [3567, 2688, 2562],
            [113.136, 113.136, 113.136],
            [3327, 2448, 2322],
            [3807, 2928, 2802],
            "sum",
            None,
        ],
    ),
    "known-laplace+average": (
        KnownLaplaceSums(KnownLaplace(None, 9, 2, F(3)), SumBounds(-3, 5, rows=2), 2),
        [
            [0, 2, 1, 3, 4, 5, 6, 8, 7],
            [3.979, 4.03, 3.994, 3.958, 3.528, 3.548, 1.371, 5.0, 5.0],
            [0.031, 0.041, 0.04, 0.056, 0.401, 0.5, 1.785, 8.0, 8.0],
            [3.919, 3.951, 3.917, 3.85, 2.84, 2.715, -3.0, -3.0, -3.0],
            [4.041, 4.111, 4.075, 4.07, 4.457, 4.763, 5.0, 5.0, 5.0],
            "average",
            None,
        ],
    ),
    "listed+sum": (
        ListedSums(9, SumBounds(-3, 5), 2, F(40)),
        [
            [0, 2, 1, 3, 4, 5, 7, 8, 6],
            [3655, 2805, 2803, 1962, 208, 158, 66, 45, -20],
            [40.0, 40.0, 40.0, 40.0, 40.0, 40.0, 40.0, 40.0, 40.0],
            [3576, 2726, 2724, 1883, 129, 79, -13, -34, -99],
            [3734, 2884, 2882, 2041, 287, 237, 145, 124, 59],
            "sum",
            None,
        ],
    ),
    "listed+sum, private": (
        ListedSums(9, SumBounds(0, 9, private=True), 2, F(40)),
        [
            [0, 2, 1, 3, 4, 5, 7, 8, 6],
            [3701, 2860, 2859, 2022, 229, 183, 37, 22, 7],
            [20.535, 20.535, 20.535, 20.535, 20.535, 20.535, 20.535, 20.535, 20.535],
            [3587, 2762, 2762, 1942, 184, 140, 0, 0, 0],
            [3902, 3024, 3024, 2151, 281, 234, 81, 66, 50],
            "sum",
            0.017751,
        ],
    ),
}


@pytest.mark.parametrize(("mechanism", "expected"), PINNED.values(), ids=PINNED)
def test_a_key_releases_what_it_always_did(mechanism, expected):
    """Positions, counts, and both ends of the intervals."""
    assert released(mechanism) == expected


@pytest.mark.parametrize(("mechanism", "expected"), SUMS.values(), ids=SUMS)
def test_a_key_releases_the_sums_that_it_always_did(mechanism, expected):
    """Positions, sums or averages, errors, both ends of the intervals, and what was said about clipping."""
    assert summed(mechanism) == expected
