"""Running counts: the exact law of two days against the theorem, planted errors, and released answers."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import chisquare, norm

from discreet.accounting.gaussian import delta_gaussian
from discreet.errors import InputError, InvariantViolated
from discreet.head_request import MAX_RUNNING_GROUPS, MAX_RUNNING_PERIODS
from discreet.mechanisms.running import RunningCounts, price
from discreet.noise import CorrelatedGaussians
from discreet.noise.correlated import noise_variances, scales
from discreet.values import Cost

NODES, WEIGHTS = np.polynomial.legendre.leggauss(12)
EARLY, LATE = (math.ceil(math.sqrt(gamma) * 2**20) / 2**20 for gamma in (1.25, 1 + 1e-9))
KEPT = EARLY - LATE / 2
"""The noise of two days is sigma times EARLY g(1), and KEPT g(1) + LATE g(2)."""
STDS = EARLY, math.hypot(KEPT, LATE)
HIDDEN = -1

OTHERS = ((0, 0), (0, 1), (0, 3), (1, 1), (1, 2), (1, 5), (2, 2), (2, 5), (4, 4), (40, 43))
ERASED = ((1, 0), (2, 0), (2, 1), (3, 1), (5, 1), (40, 2))
OWN = ((1, 1), (0, 1))


def small(sigma, tail, least):
    """Return a stream of two days and one item of a user, whose quantile has the tail *tail*; *least* is m."""
    stream = RunningCounts.within(2, 1, *price(2, 1.0, Fraction(1, 10**3)))
    quantile = Fraction(math.ceil(norm.isf(tail) * 1024), 1024)
    return dataclasses.replace(stream, variance=Fraction(sigma) ** 2, quantile=quantile, least=least)


def noisy(stream, counts, error=None, hidden_below=-math.inf):
    """Return numbers, and the joint law of both days' counts with noise as a matrix of them.

    Args:
        counts: the users of the item by day 1 and by day 2.
        error: a planted error.
        hidden_below: what is not shown on day 1, where an error depends on that.
    """
    sigma = math.sqrt(stream.variance)
    reach = math.ceil(10 * sigma * STDS[1])
    y = np.arange(-reach, reach + 50)
    first, second = counts
    early, kept = (LATE, LATE / 2) if error == "not scaled by day" else (EARLY, KEPT)
    joint = np.zeros((len(y), len(y)))
    for row, value in enumerate(y.tolist()):
        g = (value - first + NODES / 2) / (sigma * early)
        weight = WEIGHTS / 2 / (sigma * early) * norm.pdf(g)
        if error == "same noise on other rows":
            if 0 <= (column := row + second - first) < len(y):
                joint[row, column] = weight.sum()
            continue
        fresh = error == "fresh noise" or (error == "redrawn while hidden" and value < hidden_below)
        spread, centre = (sigma * STDS[1], np.zeros(len(g))) if fresh else (sigma * LATE, sigma * kept * g)
        ends = (np.append(y, y[-1] + 1)[None, :] - 0.5 - second - centre[:, None]) / spread
        joint[row] = weight @ np.diff(norm.cdf(ends), axis=1)
    return y, joint


@functools.lru_cache(4096)
def law(stream, counts, error=None):
    """Return the joint law of both days' answers as a matrix; its last row and column are for a hidden item.

    Args:
        counts: the users of the item by day 1 and by day 2.
        error: a planted error.
    """
    first, second = counts
    least, thresholds = stream.least, [stream.threshold(1), stream.threshold(2)]
    if error == "threshold of one user":
        thresholds = [threshold - least + 1 for threshold in thresholds]
    y, joint = noisy(stream, counts, error, thresholds[0])
    on_first = (first >= least) & (y >= thresholds[0])
    on_second = (second >= least) & (y >= thresholds[1])
    shown = on_first[:, None] | on_second[None, :]
    if error == "listed items need m users":
        shown = shown & (second >= least)
    if error == "listed by each day alone":
        shown = np.broadcast_to(on_second[None, :], shown.shape)
    result = np.zeros((len(y) + 1, len(y) + 1))
    result[:-1, :-1] = joint * on_first[:, None] * shown
    result[-1, :-1] = (joint * ~on_first[:, None] * shown).sum(0)
    result[:-1, -1] = (joint * on_first[:, None] * ~shown).sum(1)
    result[-1, -1] = (joint * ~on_first[:, None] * ~shown).sum()
    return result


def excess(stream, worlds, error=None, union="both days", half=0.5):
    """Return the largest true delta above beta + curve, over worlds, epsilons and directions; at most 0 if it holds.

    Beta is the exact union bound at the integer thresholds, so that their rounding hides nothing.
    """
    sigma = math.sqrt(stream.variance)
    tails = [norm.sf((stream.threshold(day) - stream.least - half) / (sigma * std)) for day, std in enumerate(STDS, 1)]
    beta = sum(tails) if union == "both days" else max(tails)
    mu = 1 / sigma
    worst = -math.inf
    for others, own in itertools.product(worlds, OWN):
        one = law(stream, others, error)
        other = law(stream, (others[0] + own[0], others[1] + own[1]), error)
        for epsilon in (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0):
            for left, right in ((one, other), (other, one)):
                delta = np.maximum(left - math.exp(epsilon) * right, 0).sum()
                worst = max(worst, delta - beta - delta_gaussian(mu, epsilon))
    return worst


STREAMS = [
    small(2, 0.01, 2),
    small(2, 0.01, 1),
    small(Fraction(3, 2), 0.05, 2),
    small(2, 5e-7, 2),
    small(Fraction(1, 2), 0.02, 1),
    small(3, 0.02, 3),
]


@pytest.mark.parametrize("stream", STREAMS, ids=["2", "2, m=1", "1.5", "rare", "m=1", "m=3"])
def test_two_days_satisfy_the_theorem(stream):
    """I1 for streams: every answer of two days, on every pair of neighbours, also where others are erased between."""
    assert excess(stream, OTHERS) <= 1e-9
    assert excess(stream, ERASED) <= 1e-9


@pytest.mark.parametrize(
    ("planted", "worlds"),
    [
        ({"error": "fresh noise"}, OTHERS),
        ({"error": "same noise on other rows"}, OTHERS),
        ({"union": "one day"}, OTHERS),
        ({"half": 0.0}, OTHERS),
        ({"error": "threshold of one user"}, OTHERS),
        ({"error": "listed items need m users"}, ERASED),
        ({"error": "redrawn while hidden"}, OTHERS),
        ({"error": "not scaled by day"}, OTHERS),
    ],
    ids=lambda value: next(iter(value.values())) if isinstance(value, dict) else "",
)
def test_planted_errors_break_it(planted, worlds):
    """The law finds them: noise drawn anew, used again or too narrow, a union over one day, no half, and cut-offs."""
    assert max(excess(stream, worlds, **planted) for stream in STREAMS) > 1e-4


def counted(stream, counts, secret):
    """Release one item of each of many equal pairs of *counts* on two days, and count the answers as `law` does."""
    n = 30_000
    noise = CorrelatedGaussians(secret, "counted", stream.variance, 2)
    names = [str(k).encode() for k in range(n)]
    listed = np.zeros(n, dtype=bool)
    answers = np.full((2, n), HIDDEN, dtype=np.int64)
    reach = math.ceil(10 * math.sqrt(stream.variance) * STDS[1])
    size = 2 * reach + 51
    for day in (1, 2):
        users = np.full(n, counts[day - 1], dtype=np.int64)
        positions, shown = stream.release(users, listed, names, day, noise)
        listed = listed.copy()
        listed[positions] = True
        answers[day - 1] = size - 1
        answers[day - 1, positions] = shown + reach
    return np.bincount(answers[0] * size + answers[1], minlength=size**2)


@pytest.mark.statistical
@pytest.mark.parametrize("counts", [(9, 9), (2, 12), (1, 9), (0, 1)])
def test_what_is_released_has_that_law(counts):
    """Chi-square of 30,000 released pairs of days; the law with fresh noise, or without the list, does not fit."""
    stream = small(2, 0.01, 2)
    observed = counted(stream, counts, b"thirty-two bytes of a public key")

    def fit(error):
        expected = law(stream, counts, error).ravel() * observed.sum()
        rare = expected < 8
        bins = np.append(observed[~rare], observed[rare].sum()), np.append(expected[~rare], expected[rare].sum())
        if len(bins[0]) == 2 and bins[1][1] < 1e-6:
            return float(bins[0][1] == 0)
        keep = bins[1] > 0
        assert not bins[0][~keep].any()
        return chisquare(bins[0][keep], bins[1][keep] * bins[0][keep].sum() / bins[1][keep].sum()).pvalue

    assert fit(None) > 1e-3
    if counts == (9, 9):
        assert fit("fresh noise") < 1e-6
        assert fit("listed by each day alone") < 1e-6


@pytest.mark.parametrize(
    ("periods", "groups", "epsilon", "delta"),
    [(1, 1, 0.5, "1e-6"), (28, 1, 4.0, "1e-8"), (90, 4, 1.0, "1e-8"), (3_653, 1_000, 1e-3, "1e-12")],
)
def test_the_parameters_spend_what_was_declared_and_not_more(periods, groups, epsilon, delta):
    """The squared shift of C items, the curve and C T tests with rounded noise, each within a hundredth."""
    delta = Fraction(delta)
    stream = RunningCounts.within(periods, groups, *price(periods, epsilon, delta))
    mu = math.sqrt(2 * stream.rho)
    assert 0.99 * mu**2 < groups / float(stream.variance) <= mu**2
    assert 0.49 < delta_gaussian(mu, epsilon) / float(delta) <= 0.5
    assert stream.least == math.ceil(math.sqrt(stream.variance) * scales(periods)[0] / 2)
    tails = [
        norm.sf(
            (stream.threshold(day) - stream.least - 0.5) / math.sqrt(stream.variance * noise_variances(periods, day)[0])
        )
        for day in {1, 2, periods // 2 + 1, periods}
        if day <= periods
    ]
    assert max(tails) * groups * periods <= stream.mass == delta / 2
    assert stream.worst_cost() == Cost(stream.rho, delta / 2)
    assert stream.groups_per_user == groups
    assert 0 <= stream.variance - groups / (2 * stream.rho) < Fraction(1, 1024)
    assert (1024 * stream.variance).denominator == (1024 * stream.quantile).denominator == 1


def test_a_threshold_that_may_be_a_whole_number_is_the_next_one():
    """Roots and products are floats: 10.5 + 1/2 may stand for a little more than 11."""
    for whole in range(2, 40):
        quantile = Fraction(2 * whole - 1, 4)
        stream = dataclasses.replace(
            small(2, 0.01, 2), variance=4 / Fraction(noise_variances(2, 1)[0]), quantile=quantile
        )
        assert stream.threshold(1) == stream.least + whole + 1


def test_released_counts_are_those_with_noise_and_state_its_spread():
    """The noise of the day is added; its variance is that of R D^-1 and 1/12 for rounding."""
    stream = small(2, 0.01, 2)
    noise = CorrelatedGaussians(b"thirty-two bytes of a public key", "spread", stream.variance, 2)
    names = [b"%d" % k for k in range(9)]
    for day, std in enumerate(STDS, 1):
        positions, counts = stream.release(np.full(9, 50), np.ones(9, dtype=bool), names, day, noise)
        assert counts.tolist() == (50 + noise.draw(names, day))[positions].tolist()
        assert stream.std_errors(day, [1]) == pytest.approx(math.sqrt(4 * std**2 + 1 / 12), rel=1e-8)
    assert stream.std_errors(2, [1, 2])[1] == pytest.approx(math.sqrt(4 * LATE**2 + 1 / 12), rel=1e-8)


def test_equal_noisy_counts_are_in_the_order_of_their_labels():
    """The order of the head, that of the true counts, must not show in the answer."""
    stream = small(2, 0.01, 2)
    noise = CorrelatedGaussians(b"thirty-two bytes of a public key", "order", stream.variance, 2)
    names = [f"{k * 7919 % 1000:03}".encode() for k in range(200)]
    positions, counts = stream.release(np.arange(239, 39, -1), np.ones(200, dtype=bool), names, 1, noise)
    ranked = [(-count, names[place]) for count, place in zip(counts, positions, strict=True)]
    assert ranked == sorted(ranked)
    assert len({count for count, _ in ranked}) < 200


def test_what_is_out_of_range_is_refused():
    """Periods, items of a user, days outside the stream, and noise of another scale."""
    for periods, groups in ((0, 1), (MAX_RUNNING_PERIODS + 1, 1), (2, 0), (2, MAX_RUNNING_GROUPS + 1)):
        with pytest.raises(InputError, match="from 1 to"):
            RunningCounts.within(periods, groups, *price(periods, 1.0, Fraction(1, 10**8)))
    stream = small(2, 0.01, 2)
    sigma = stream.variance
    for day, variance, periods in ((0, sigma, 2), (3, sigma, 2), (1, sigma + 1, 2), (1, sigma, 3)):
        noise = CorrelatedGaussians(b"thirty-two bytes of a public key", "x", variance, periods)
        with pytest.raises(InvariantViolated, match="belongs to its stream"):
            stream.release(np.array([50]), np.array([True]), [b"a"], day, noise)
