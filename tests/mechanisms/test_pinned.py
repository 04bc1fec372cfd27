"""The numbers that a key releases, kept: a stored release, its replay and a peer's copy must agree for years."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from discreet.mechanisms import CountRelease, KnownGumbel, KnownLaplace, TopStable, UnknownGumbel, UnknownLaplace
from discreet.noise import KeyedBits
from discreet.values import Cost, ExactHead

DELTA = Fraction(1, 10**6)
COUNTS = [900, 700, 700, 500, 60, 50, 8, 2, 0]
F = Fraction


def released(mechanism):
    """Return all fields of a release of nine items, or of those that the mechanism reads."""
    head = ExactHead(np.array(COUNTS[: mechanism.head_limit + 1], dtype=np.int64), mechanism.head_limit)
    outcome = mechanism.release(head, KeyedBits(bytes(range(32)), "pinned"))
    lists = [outcome.positions, outcome.counts, outcome.low, outcome.high]
    return [None if values is None else values.tolist() for values in lists]


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
    "known-gumbel": (KnownGumbel(3, 9, F(1, 8), 2), [[0, 2, 1], [885, 626, 713], [822, 563, 650], [948, 689, 776]]),
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
}


@pytest.mark.parametrize(("mechanism", "expected"), PINNED.values(), ids=PINNED)
def test_a_key_releases_what_it_always_did(mechanism, expected):
    """Positions, counts, and both ends of the intervals."""
    assert released(mechanism) == expected
