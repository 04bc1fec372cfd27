"""Two rounds on small fixed tables: the numbers that each step and a release by a key have, kept.

The constants of `Tuning` and the treatment of histograms were chosen by experiments, and change accuracy only. So
there is nothing to prove about them, but no change should go unnoticed. What is charged is in `test_charges`.
"""

from __future__ import annotations

from dataclasses import astuple
from fractions import Fraction
from functools import cache

import numpy as np
import pytest

from discreet.mechanisms import Request, TwoRound
from discreet.mechanisms.two_round import _clipping_loss, believable, continued
from discreet.noise import KeyedBits
from discreet.testing.pairs import ArrayPairs

DELTA = Fraction(1, 10**8)


@cache
def pairs(name):
    """Return a table by its name."""
    rng = np.random.default_rng(11)
    sizes = {
        "few": lambda: rng.geometric(0.25, 6000),
        "one": lambda: np.ones(8000, dtype=int),
        "steep": lambda: np.ceil(rng.pareto(1.1, 5000)).clip(1, 700).astype(int),
        "many": lambda: rng.integers(60, 90, 700),
        "two": lambda: np.array([1, 1]),
    }[name]()
    users = np.repeat(np.arange(len(sizes)), sizes)
    return ArrayPairs(users, np.floor(300 * rng.random(len(users)) ** 3).astype(np.int64))


def bits():
    """Return bits."""
    return KeyedBits(bytes(range(32)), "two rounds")


def rounded(values, digits=6):
    """Return numbers with so many significant digits."""
    return [float(f"{float(value):.{digits}g}") for value in values]


def steps(mechanism, table):
    """Return what the steps measure: sizes, first round, scale of the second, its widening and its loss."""
    given, drawn = pairs(table), bits()
    sizes = mechanism.measure_sizes(given, drawn)
    by_size, tail, *numbers = astuple(sizes)
    first, power = mechanism._first_round(sizes, given, drawn), mechanism._power(sizes)
    scale = mechanism._scale(first, power, given, drawn)
    cut = mechanism._cut(scale, first.std)
    items, rough = first.above(mechanism._least(cut, first.std))
    costs = mechanism._precisions(scale * (rough / cut) ** power)
    return {
        "users": rounded([sizes.users, by_size @ np.arange(18), tail @ np.arange(18)]),
        "sizes": rounded(numbers),
        "first": [len(first.items), *rounded([first.std, first.values.sum()])],
        "second": rounded([power, scale, cut, len(items), costs.sum()]),
        "clipped": rounded(mechanism._clipped(items, costs, given, drawn)),
    }


def released(mechanism, table):
    """Return how many items are released, the first three with all that is said of them, and the sums of these."""
    outcome = mechanism.release(pairs(table), bits())
    if outcome.counts is None:
        return [len(outcome.positions), outcome.positions[:9].tolist()]
    lists = outcome.positions, outcome.counts, outcome.std_errors, outcome.low, outcome.high
    assert [values.dtype for values in lists] == [np.int64, np.int64, np.float64, np.int64, np.int64]
    order = np.arange(len(outcome.positions)) + 1
    return [len(order), *(rounded([*values[:3], values @ order]) for values in lists)]


def made(epsilon, k=None, error=Fraction(1, 10), *, counts=True):
    """Return a mechanism."""
    return TwoRound.at_epsilon(Fraction(epsilon), DELTA, Request(k, 1000, counts=counts, relative_error=error))


PINNED = {
    ("many", 1, None, "1/10"): {
        "users": [815, 4600, 5436.05],
        "sizes": [37.7933, 0.502574, 10.7173, 21.5647, 21.7378],
        "first": [121, 75.1996, 25309.4],
        "second": [0.75, 13.0756, 272.409, 21, 87221500000],
        "clipped": [1.12652, 0.0463586, 0.0494333, 0.198531],
        "released": [
            18,
            [1, 0, 2, 2348],
            [728, 715, 554, 60818],
            [37.9546, 37.0654, 30.331, 3786.89],
            [653, 642, 494, 53294],
            [1021, 1003, 778, 85703],
        ],
    },
    ("steep", 12, None, "1/20"): {
        "users": [4997.43, 5232.61, 5356.5],
        "sizes": [1.44029, 0.50116, 1.46092, 3469.73, 3134.87],
        "first": [238, 2.87392, 16819.8],
        "second": [0.410156, 1.84771, 63.7141, 54, 10975800000000],
        "clipped": [1.57598, 0.00950004, 0.024448, 0.193552],
        "released": [
            48,
            [0, 1, 2, 38923],
            [1591, 598, 413, 136777],
            [29.8307, 12.7565, 9.61344, 4763.29],
            [1532, 572, 394, 126805],
            [2198, 827, 571, 190134],
        ],
    },
    ("few", 4, None, "1/10"): {
        "users": [5972, 9928, 10436.1],
        "sizes": [3.15885, 0.507893, 1, 1890.56, 1836.3],
        "first": [205, 6.21952, 18942.3],
        "second": [0, 3.40764, 58.7524, 81, 7669690000000],
        "clipped": [1.09643, 0.0284819, 0.0471388, 0.0409791],
        "released": [
            81,
            [0, 1, 2, 193839],
            [2505, 831, 603, 304256],
            [82.1385, 27.4805, 20.0945, 16228.4],
            [2344, 777, 563, 270648],
            [2763, 917, 666, 346240],
        ],
    },
    ("few", 2, 20, "1/4"): {
        "users": [5969, 9925, 10587.3],
        "sizes": [6.00481, 0.50852, 1, 994.036, 967.705],
        "first": [252, 11.8084, 20710.8],
        "second": [0, 5.71917, 39.4426, 178, 5983470000000],
        "clipped": [1.21525, 0.055909, 0.124538, 0.112352],
        "released": [
            20,
            [0, 1, 2, 2825],
            [2500, 822, 587, 50611],
            [207.292, 68.438, 49.1442, 4457.61],
            [2093, 687, 490, 41774],
            [3185, 1048, 749, 64904],
        ],
    },
    ("few", 8, None, "1/20"): {
        "users": [6009, 10105, 10139.1],
        "sizes": [1.7124, 0.500775, 1.0219, 3509.11, 3509.11],
        "first": [185, 3.4195, 18565],
        "second": [0.0234375, 1.91864, 66.16, 64, 18479700000000],
        "clipped": [1.12652, 0.0107581, 0.0238135, 0.041991],
        "released": [
            64,
            [0, 1, 2, 90643],
            [2492, 831, 609, 229406],
            [41.5275, 14.0177, 10.3938, 6058.37],
            [2410, 803, 588, 216546],
            [2713, 905, 664, 252873],
        ],
    },
    ("one", 1, None, "1/10"): {
        "users": [8004, 0, 121.363],
        "sizes": [11.5444, 1, 1, 693.323, 693.323],
        "first": [10, 11.5444, 2652.45],
        "second": [0, 5.7722, 99.5208, 10, 330002000000],
        "clipped": [1, 0, 0, 0.0371385],
        "released": [
            10,
            [0, 1, 2, 338],
            [1209, 317, 198, 8352],
            [5.77114, 5.75661, 5.73648, 312.896],
            [1197, 305, 186, 7692],
            [1298, 343, 217, 9267],
        ],
    },
    ("steep", 8, None, "1/10"): {
        "users": [4973.2, 5056.42, 5388.7],
        "sizes": [1.7124, 0.501646, 1.0219, 2904.23, 1969.9],
        "first": [270, 3.41357, 15548.1],
        "second": [0.0234375, 3.4248, 59.0483, 50, 4539330000000],
        "clipped": [1.04427, 0.0203039, 0.0497445, 0.262924],
        "released": [
            50,
            [0, 1, 2, 43071],
            [1595, 586, 412, 136978],
            [55.2098, 20.568, 14.7205, 6653.58],
            [1486, 545, 383, 123253],
            [2425, 891, 627, 209485],
        ],
    },
    ("steep", 3, None, "1/2"): {
        "users": [4945.06, 4896.3, 5644.87],
        "sizes": [4.11643, 0.535949, 1, 1201.3, 849.635],
        "first": [284, 7.68065, 14877.8],
        "second": [0, 3.79528, 13.0872, 280, 21373200000000],
        "clipped": [2, 0.175261, 0.293019, 0.289707],
        "released": [
            45,
            [0, 1, 2, 32768],
            [1760, 591, 397, 104205],
            [286.439, 96.8656, 65.0741, 18439.4],
            [1198, 401, 269, 67513],
            [2907, 977, 657, 174197],
        ],
    },
    ("steep", 30, None, "1/50"): {
        "users": [4995.65, 5220.8, 5331.18],
        "sizes": [0.677152, 0.500044, 1.44518, 7377.44, 6736.69],
        "first": [195, 1.35418, 15568.8],
        "second": [0.398437, 0.922017, 79.4842, 41, 34873500000000],
        "clipped": [1.16372, 0.00368569, 0.00888689, 0.232885],
        "released": [
            41,
            [0, 1, 2, 23534],
            [1573, 580, 416, 108608],
            [10.5567, 4.39036, 3.36549, 1273.55],
            [1552, 571, 409, 105736],
            [2292, 845, 606, 158733],
        ],
    },
    ("many", 8, None, "1/10"): {
        "users": [702, 4168, 4294],
        "sizes": [5.69776, 0.502491, 11.3137, 123.206, 125.004],
        "first": [300, 11.339, 34072.2],
        "second": [0.75, 3.77544, 78.655, 160, 6455240000000],
        "clipped": [1, 0, 0, 0.0280193],
        "released": [
            160,
            [0, 1, 2, 1511730],
            [710, 703, 571, 1487280],
            [18.2957, 17.7595, 16.2221, 62276.1],
            [674, 668, 539, 1358760],
            [763, 755, 616, 1641430],
        ],
    },
    ("many", 4, 9, "1/5"): {
        "users": [718, 4230, 4474.23],
        "sizes": [10.5677, 0.50179, 11.1918, 67.9431, 68.5241],
        "first": [291, 21.0599, 34026.6],
        "second": [0.75, 6.56177, 68.3518, 205, 2620680000000],
        "clipped": [1, 0.059117, 0.0969831, 0.165847],
        "released": [
            9,
            [1, 0, 2, 254],
            [756, 741, 566, 22500],
            [59.8733, 59.4837, 47.9091, 1905.12],
            [638, 624, 472, 18745],
            [1029, 1009, 773, 30728],
        ],
    },
    ("two", 1, None, "1/10"): {
        "users": [0, 0, 0],
        "sizes": [11.5444, 1, 1, 0, 0],
        "first": [0, 11.5444, 0],
        "second": [0, 5.7722, 99.5208, 0, 0],
        "clipped": [1, 0, 0, 0.07],
        "released": [0, [0], [0], [0], [0], [0]],
    },
}


@pytest.mark.parametrize(("table", "epsilon", "k", "error"), PINNED, ids=str)
def test_a_key_releases_what_it_always_did(table, epsilon, k, error):
    """All steps, and the release."""
    mechanism = made(epsilon, k, Fraction(error))
    expected = PINNED[table, epsilon, k, error]
    assert {**steps(mechanism, table), "released": released(mechanism, table)} == expected
    found, *lists = released(made(epsilon, k, Fraction(error), counts=False), table)
    assert found == expected["released"][0]
    assert lists[0][:3] == expected["released"][1][: min(found, 3)]


HISTOGRAMS = [
    (
        [500, 900, 300, 80, 9, -5, 12, -3, 11],
        [500, 900, 300, 80, 0, 0, 0, 0, 0],
        [500, 900, 300, 80, 12, 5.68889, 1.51704, 0, 0],
        [500, 900, 300, 80, 12, 5.68889, 1.51704, 0, 0],
    ),
    ([5, -3, 8], [0, 0, 0], [0, 0, 0], [0, 0, 0]),
    (
        [500, 0, 0, 60],
        [500, 18.2831, 14.0639, 10.8184],
        [500, 18.2831, 14.0639, 10.8184],
        [500, 18.2831, 14.0639, 10.8184],
    ),
    (
        [900, 700, 400, 350, 120, 60, 31, 9, 4, -2, 3],
        [900, 700, 400, 350, 120, 60, 31, 0, 0, 0, 0],
        [900, 700, 400, 350, 120, 60, 31, 12, 6.15967, 2.74571, 1.22392],
        [900, 700, 400, 350, 120, 60, 31, 9, 3.89689, 1.73706, 0],
    ),
    (
        [20, 30, 25, 40, 100, 20, 10],
        [20, 30, 25, 40, 100, 0, 0],
        [20, 30, 25, 40, 100, 20, 3.24],
        [20, 30, 25, 40, 100, 20, 3.24],
    ),
    (
        [1000, 30, 2, 1, 0, 0, 0, 0],
        [1000, 30, 0, 0, 0, 0, 0, 0],
        [1000, 30, 2, 0, 0, 0, 0, 0],
        [1000, 30, 2, 0, 0, 0, 0, 0],
    ),
    (
        [50, 400, 410, 130, 140, 45, 14, -8, 7, 22],
        [50, 400, 410, 130, 140, 45, 0, 0, 0, 0],
        [50, 400, 410, 130, 140, 45, 14, 4.64923, 1.4944, 0],
        [50, 400, 410, 130, 140, 45, 14, 4.64923, 1.4944, 0],
    ),
    ([19, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]),
    ([18, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]),
    ([17, 5, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]),
    ([100, 60, -50], [100, 60, 0], [100, 60, 0], [100, 60, 0]),
    ([24, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]),
    ([300, 20, 100, 5], [300, 20, 100, 0], [300, 20, 100, 11], [300, 20, 100, 5]),
    (
        [300, 20, 100, 60, 9, -3, 8, 2],
        [300, 20, 100, 60, 0, 0, 0, 0],
        [300, 20, 100, 60, 9, 7.67544, 7.67544, 4.97368],
        [300, 20, 100, 60, 9, 4.38596, 4.38596, 2.84211],
    ),
    ([1000, 30, 1, 0, 0], [1000, 30, 0, 0, 0], [1000, 30, 1, 0, 0], [1000, 30, 1, 0, 0]),
    ([1, 19, 0, 0], [1, 0, 0, 0], [1, 19, 0, 0], [1, 19, 0, 0]),
    ([70, 0, 0, 5, 3], [70, 0, 0, 0, 0], [70, 12, 4.62857, 1.1902, 0], [70, 5.2966, 2.04298, 0, 0]),
    ([1000, 30, -50, -9, 0], [1000, 30, 0, 0, 0], [1000, 30, 0, 0, 0], [1000, 30, 0, 0, 0]),
    ([-7, 400, 100, 20, 1], [0, 400, 100, 0, 0], [0, 400, 100, 20, 6.25], [0, 400, 100, 20, 6.25]),
    (
        [2000, 1000, 500, 250, 120, 22, 20, 18, 14, 30],
        [2000, 1000, 500, 250, 120, 28.5752, 21.9809, 16.9084, 13.0065, 10.005],
        [2000, 1000, 500, 250, 120, 28.5752, 21.9809, 16.9084, 13.0065, 10.005],
        [2000, 1000, 500, 250, 120, 28.5752, 21.9809, 16.9084, 13.0065, 10.005],
    ),
    ([400, 90, 8, 2, 0, 0], [400, 90, 0, 0, 0, 0], [400, 90, 12, 4.55625, 1.02516, 0], [400, 90, 8, 2.55796, 0, 0]),
]
"""Noisy histograms; made plausible; with a tail for intervals, and one for choices."""


@pytest.mark.parametrize(("noisy", "plausible", "most", "probable"), HISTOGRAMS)
def test_histograms_are_made_plausible_as_they_always_were(noisy, plausible, most, probable):
    """With a standard error of 6 users, and 4 of them as evidence."""
    values = np.array(noisy, dtype=np.float64)
    assert rounded(believable(values, 6.0, 4.0)) == plausible
    assert rounded(continued(values, 6.0, 4.0, 1.0)) == most
    assert rounded(continued(values, 6.0, 4.0, 0.0)) == probable
    assert values.tolist() == noisy


LOSSES = [
    ({16: 1000}, {16: 1000}, 0, 0.05, [1, 0, 0, 0, 0]),
    ({16: 1000, 18: 40}, {16: 1000, 18: 40}, 0, 0.05, [1.46092, 0.0181149, 0.0487759, 0.0487759, 0]),
    ({16: 1000, 18: 40}, {16: 1000, 18: 40, 20: 9}, 50, 0.05, [1.46092, 0.0181149, 0.0487759, 0.0675376, 0.0604658]),
    ({10: 500, 17: 100, 25: 3}, {10: 500, 17: 100, 25: 9}, 20, 0.1, [2, 0.7, 0.839874, 0.84022, 0.0680287]),
    ({0: 100, 25: 50}, {0: 100, 24: 9, 25: 50}, 5, 0.2, [2, 0.7, 0.894888, 0.894893, 0]),
    ({}, {}, 7, 0.1, [1, 0, 0, 0.2, 0]),
    ({3: 20}, {3: 20, 25: 1}, 7, 0.3, [1, 0, 0, 12.0482, 0.947439]),
    ({20: 10}, {20: 10}, 0, 0.01, [2, 0.405396, 0.405396, 0.405396, 0]),
    ({0: 5}, {0: 5}, 0, 0.1, [1, 0, 0, 0, 0]),
    ({25: 10}, {25: 10}, 0, 0.1, [2, 0.7, 0.894888, 0.894888, 0]),
    ({20: 10}, {0: 500, 20: 10}, 3, 0.5, [1.68179, 0.5, 0.5, 0.500948, 0]),
    ({17: 9, 18: 9, 19: 9}, {17: 9, 18: 9, 19: 9}, 0, 0.2, [1.75625, 0.149478, 0.197741, 0.197741, 0]),
]
"""Users by bin, the same with a tail, users that noise hides, the allowed loss; and what follows."""


@pytest.mark.parametrize(("users", "tail", "unseen", "allowed", "expected"), LOSSES)
def test_losses_by_clipping_are_what_they_always_were(users, tail, unseen, allowed, expected):
    """The factor that widens the noise, mean and root mean square of the loss, and what intervals add to them."""
    given = [np.array([counts.get(bin_, 0) for bin_ in range(26)], dtype=np.float64) for counts in (users, tail)]
    assert rounded(_clipping_loss(*given, unseen, allowed)) == expected


def test_three_standard_errors_are_needed_for_any_bin():
    """However little evidence is asked for; at exactly three they are there."""
    assert believable(np.array([18.0, 0.0]), 6.0, 2.0).tolist() == [18, 0]
    assert believable(np.array([17.9, 0.0]), 6.0, 2.0).tolist() == [0, 0]


def test_the_scale_of_the_first_round_keeps_half_of_the_mass():
    """A user of n items counts n times; users of more items than fit lose a share of each."""
    mechanism = made(1)
    assert mechanism._first_scale(np.zeros(18)) == (1.0, 1.0)
    half = np.zeros(18)
    half[1] = 0.5  # users of two items
    assert mechanism._first_scale(half) == (1.0, pytest.approx(2**-0.25))
    half[9] = 2.0  # of 257 to 512
    scale, kept = mechanism._first_scale(half)
    assert rounded([scale, kept]) == [9.51366, 0.500488]
    half[:] = 0
    half[17] = 1.0
    assert mechanism._first_scale(half)[1] == pytest.approx(0.5, abs=0.005)
