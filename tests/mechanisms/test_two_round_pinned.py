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
from discreet.mechanisms.anchored import Anchored
from discreet.mechanisms.two_round import _clipping_loss, _usual_items, believable, continued
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
    by_size, tail, *numbers, _ = astuple(sizes)
    first, power = mechanism._first_round(sizes, given, drawn), mechanism._power(sizes)
    scale, spread = mechanism._scale(first, power, given, drawn)
    cut = mechanism._cut(scale, first.std)
    items, rough = first.above(mechanism._least(cut, first.std))
    budget = mechanism.budget.second
    costs = mechanism._precisions(scale * (rough / cut) ** power, budget)
    places, values = first.largest()
    large = Anchored.of(values ** min(0.5, power))
    alone = mechanism._alone(values, large, _usual_items(by_size))
    return {
        "users": rounded([sizes.users, by_size @ np.arange(18), tail @ np.arange(18)]),
        "sizes": rounded(numbers),
        "first": [len(first.items), *rounded([first.std, first.values.sum()])],
        "second": rounded([power, scale, spread, cut, len(items), costs.sum()]),
        "large": rounded([len(places), alone, mechanism._rest(first, cut, given, drawn)]),
        "clipped": rounded(mechanism._clipped(items, costs, budget, given, drawn)),
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
        "sizes": [37.871, 0.502574, 10.7173, 21.5204, 21.6932, 0.768794],
        "first": [121, 75.3542, 25322.4],
        "second": [0.75, 13.1025, 0.0475683, 272.969, 21, 87091000000],
        "large": [0, 0, 21.8633],
        "clipped": [1.12652, 0.0464385, 0.0494759, 0.197871],
        "released": [
            18,
            [1, 0, 2, 2348],
            [728, 715, 554, 60772],
            [37.9753, 37.0811, 30.3408, 3789.07],
            [653, 642, 494, 53248],
            [1020, 1002, 777, 85606],
        ],
    },
    ("steep", 12, None, "1/20"): {
        "users": [4997.43, 5232.61, 5356.5],
        "sizes": [1.44325, 0.50116, 1.46092, 3462.61, 3128.44, 1.18923],
        "first": [238, 2.87983, 16820],
        "second": [0.410156, 1.85151, 0.0239172, 63.8451, 54, 10949200000000],
        "large": [223, 46, 0],
        "clipped": [1.28287, 0.0358027, 0.0247288, 0.220637],
        "released": [
            53,
            [0, 1, 2, 52094],
            [1574, 578, 434, 157826],
            [5.89741, 4.95144, 9.56307, 5277.05],
            [1562, 568, 415, 146751],
            [1586, 588, 618, 224628],
        ],
    },
    ("few", 4, None, "1/10"): {
        "users": [5972, 9928, 10436.1],
        "sizes": [3.16534, 0.507893, 1, 1886.69, 1832.54, 2.81987],
        "first": [205, 6.2323, 18943],
        "second": [0, 3.41464, 0.0484347, 58.8732, 81, 7638250000000],
        "large": [92, 36, 0],
        "clipped": [1.09643, 0.0284819, 0.0471388, 0.0409791],
        "released": [
            81,
            [0, 1, 2, 193710],
            [2491, 829, 617, 306967],
            [14.1842, 11.8659, 20.7278, 16136.1],
            [2463, 805, 576, 273704],
            [2519, 853, 902, 450172],
        ],
    },
    ("few", 2, 20, "1/4"): {
        "users": [5969, 9925, 10587.3],
        "sizes": [6.01715, 0.50852, 1, 991.997, 965.72, 2.09025],
        "first": [252, 11.8327, 20712.5],
        "second": [0, 5.73093, 0.124704, 39.5236, 178, 5958950000000],
        "large": [34, 34, 125.989],
        "clipped": [1.21525, 0.055909, 0.124538, 0.112352],
        "released": [
            20,
            [0, 1, 2, 2809],
            [2495, 829, 602, 51735],
            [18.0435, 13.6877, 12.7854, 2137.79],
            [2459, 802, 576, 47470],
            [2531, 856, 628, 56000],
        ],
    },
    ("few", 8, None, "1/20"): {
        "users": [6009, 10105, 10139.1],
        "sizes": [1.71592, 0.500775, 1.0219, 3501.91, 3501.91, 0.760555],
        "first": [184, 3.42653, 18529.9],
        "second": [0.0234375, 1.92258, 0.0245257, 66.2959, 62, 17810800000000],
        "large": [184, 35, 0],
        "clipped": [1.12652, 0.0105081, 0.0235352, 0.0394704],
        "released": [
            62,
            [0, 1, 2, 82564],
            [2483, 827, 617, 221525],
            [7.24798, 6.06163, 10.6364, 5702.72],
            [2468, 815, 596, 209381],
            [2498, 839, 656, 238521],
        ],
    },
    ("one", 1, None, "1/10"): {
        "users": [8004, 0, 121.363],
        "sizes": [11.5681, 1, 1, 691.901, 691.901, 1.29767],
        "first": [10, 11.5681, 2652.48],
        "second": [0, 5.78407, 0, 99.7253, 10, 328650000000],
        "large": [10, 10, 0],
        "clipped": [1, 0, 0, 0.0371385],
        "released": [
            10,
            [0, 1, 2, 338],
            [1209, 317, 198, 8357],
            [5.78407, 5.78407, 5.78407, 318.124],
            [1197, 305, 186, 7697],
            [1228, 329, 210, 9024],
        ],
    },
    ("steep", 8, None, "1/10"): {
        "users": [4973.2, 5056.42, 5388.7],
        "sizes": [1.71592, 0.501646, 1.0219, 2898.27, 1965.86, 3.22676],
        "first": [269, 3.42058, 15530.8],
        "second": [0.0234375, 3.43184, 0.0491933, 59.1697, 50, 4521170000000],
        "large": [146, 50, 0],
        "clipped": [1.01089, 0.0249807, 0.0495557, 0.266717],
        "released": [
            57,
            [0, 1, 2, 64144],
            [1576, 578, 417, 174011],
            [7.24822, 5.47265, 5.00183, 5726.92],
            [1561, 567, 407, 162014],
            [1591, 589, 427, 186008],
        ],
    },
    ("steep", 3, None, "1/2"): {
        "users": [4945.06, 4896.3, 5644.87],
        "sizes": [4.12489, 0.535949, 1, 1198.83, 847.892, 2.19084],
        "first": [284, 7.69643, 14878.6],
        "second": [0, 3.78254, 0.249728, 13.0433, 280, 21517400000000],
        "large": [38, 38, 170.769],
        "clipped": [1.07876, 0.355915, 0.249074, 0.373921],
        "released": [
            59,
            [0, 1, 2, 78661],
            [1605, 589, 404, 153571],
            [35.1322, 28.3643, 26.5986, 24641.3],
            [1536, 533, 351, 104403],
            [1674, 645, 457, 264516],
        ],
    },
    ("steep", 30, None, "1/50"): {
        "users": [4995.65, 5220.8, 5331.18],
        "sizes": [0.678544, 0.500044, 1.44518, 7362.31, 6722.87, 2.15641],
        "first": [195, 1.35697, 15568.9],
        "second": [0.398437, 0.923912, 0.00849111, 79.6476, 41, 34787700000000],
        "large": [195, 41, 0],
        "clipped": [1.16372, 0.00368391, 0.00888474, 0.233049],
        "released": [
            41,
            [0, 1, 2, 23564],
            [1570, 577, 421, 111099],
            [1.95388, 1.48378, 1.36007, 860.347],
            [1566, 574, 418, 109145],
            [1574, 580, 424, 113053],
        ],
    },
    ("many", 8, None, "1/10"): {
        "users": [702, 4168, 4294],
        "sizes": [5.70947, 0.502491, 11.3137, 122.954, 124.748, 2.15117],
        "first": [300, 11.3624, 34072.9],
        "second": [0.75, 3.7832, 0.0489559, 78.8167, 159, 6371020000000],
        "large": [111, 111, 48.2291],
        "clipped": [1, 0, 0, 0.0276211],
        "released": [
            159,
            [0, 1, 2, 1480510],
            [709, 668, 597, 1475190],
            [8.32549, 8.27017, 8.10604, 61628],
            [692, 651, 581, 1347940],
            [726, 685, 613, 1627190],
        ],
    },
    ("many", 4, 9, "1/5"): {
        "users": [718, 4230, 4474.23],
        "sizes": [10.5894, 0.50179, 11.1918, 67.8037, 68.3835, 1.15358],
        "first": [291, 21.1032, 34028.6],
        "second": [0.75, 6.53975, 0.0999295, 68.1224, 206, 2650040000000],
        "large": [38, 38, 178.682],
        "clipped": [1.00543, 0.0628658, 0.0985654, 0.125617],
        "released": [
            9,
            [0, 1, 2, 239],
            [704, 666, 600, 22211],
            [4.08679, 4.06344, 3.94879, 171.229],
            [695, 658, 592, 21850],
            [713, 674, 608, 22572],
        ],
    },
    ("two", 1, None, "1/10"): {
        "users": [0, 0, 0],
        "sizes": [11.5681, 1, 1, 0, 0, 1.29767],
        "first": [0, 11.5681, 0],
        "second": [0, 5.78407, 0, 99.7253, 0, 0],
        "large": [0, 0, 0],
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
        [500, 18.2831, 14.0639, 60],
        [500, 18.2831, 14.0639, 60],
        [500, 18.2831, 14.0639, 60],
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
    assert rounded(_clipping_loss(given[0], *given, unseen, allowed)) == expected


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
