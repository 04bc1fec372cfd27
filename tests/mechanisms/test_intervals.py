"""Counts and their errors: 95 % intervals cover, selected or not; noise is unbiased and has the stated width."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from discreet.mechanisms import CountRelease, KnownGumbel, KnownLaplace, SelectVerify, UnknownGumbel, UnknownLaplace
from discreet.mechanisms.base import noise_of
from discreet.noise import KeyedBits
from discreet.values import Cost, ExactHead

pytestmark = pytest.mark.statistical

EPSILON, DELTA = Fraction(1, 5), Fraction(1, 10**6)
SECRET = b"a secret for repeated releases.."


def released(mechanism, counts, runs):
    """Return, for each run that released something, its outcome and the errors of its counts."""
    counts = np.array(counts, dtype=np.int64)
    head = ExactHead(counts, mechanism.head_limit)
    outcomes = [mechanism.release(head, KeyedBits(SECRET, run)) for run in range(runs)]
    return [(outcome, outcome.counts - counts[outcome.positions]) for outcome in outcomes if len(outcome.positions)]


def missed(counts, runs, low=None, high=None):
    """Return the mean share of released counts whose interval misses the truth (the false coverage rate)."""
    shares = []
    for outcome, _ in runs:
        truth = np.array(counts)[outcome.positions]
        lower, upper = (outcome.low, outcome.high) if low is None else (outcome.counts - low, outcome.counts + high)
        shares.append(float(((truth < lower) | (truth > upper)).mean()))
    return float(np.mean(shares)), float(np.std(shares)) / math.sqrt(len(shares))


FRESH = [
    (UnknownGumbel(20, 25, EPSILON, DELTA, counts="gaussian"), 1),
    (UnknownGumbel(20, 25, EPSILON, DELTA, 3, "laplace"), 1),
    (KnownGumbel(20, 25, EPSILON, 1, "laplace"), 1),
    (KnownGumbel(20, 25, EPSILON, 2, "gaussian"), 1),
    (KnownLaplace(None, 25, 4, Fraction(15, 2)), 1),
    (KnownLaplace(None, 25, 4, Fraction(15, 2), 1, "laplace"), 1),
    (CountRelease(Cost(Fraction(2), DELTA), 25, Fraction(1, 10)), 2),
]


@pytest.mark.parametrize(("mechanism", "scarce"), FRESH)
def test_noise_that_did_not_select_is_unbiased_and_covered(mechanism, scarce):
    """Fresh counts have mean error 0 and the stated standard error, and about 5 % of the intervals miss."""
    counts = [3_000 - 20 * i for i in range(25)]
    runs = released(mechanism, counts, 300 // scarce)
    scores = np.concatenate([errors / outcome.std_errors for outcome, errors in runs])
    n = len(scores)
    assert n > 1800
    assert abs(scores.mean()) < 4 / math.sqrt(n)
    tails = 5 if getattr(mechanism, "noise", getattr(mechanism, "counts", None)) == "laplace" else 2
    assert abs((scores**2).mean() - 1) < 4 * math.sqrt(tails / n)
    share, error = missed(counts, runs)
    assert 0.02 < share < 0.05 + 4 * error


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("unknown", [False, True])
def test_counts_that_were_selected_by_their_noise_are_covered(noise, unknown):
    """The winner's curse: the largest of 200 equal counts are biased upwards; only wide intervals cover."""
    scale = Fraction(10)
    if unknown:
        mechanism = UnknownLaplace(None, 200, 1, scale, Fraction(1, 100), noise=noise)
        counts = [mechanism.margin() + 1 - 15] * 200
    else:
        mechanism, counts = KnownLaplace(5, 200, 1, scale, noise=noise), [50] * 200
    runs = released(mechanism, counts, 500)
    assert len(runs) > 300
    share, error = missed(counts, runs)
    assert share <= 0.05 + 3 * error
    plain = noise_of(noise, scale).half_width()
    share, error = missed(counts, runs, plain, plain)
    assert share > 0.05 + 5 * error


@pytest.mark.parametrize("k", [3, None])
def test_counts_above_a_noisy_threshold_are_covered(k):
    """A head of clear, doubtful and hopeless counts, all of it or the largest three."""
    mechanism = UnknownLaplace(k, 60, 2, Fraction(6), Fraction(1, 1000), 2, "laplace")
    edge = mechanism.margin() + 2
    counts = [4 * edge, 3 * edge] + [edge + 3] * 8 + [edge - 10] * 50
    runs = released(mechanism, counts, 500)
    share, error = missed(counts, runs)
    assert share <= 0.05 + 3 * error


def test_few_of_many_get_wider_intervals_than_all():
    """With S of m selected the level is 1 - .05 S/m (Benjamini & Yekutieli): exactly the noise's half width there."""
    counts = [1_000 - 10 * i for i in range(40)]
    noise = noise_of("laplace", Fraction(4))
    for k, selected in ((None, 40), (10, 10), (1, 1)):
        (outcome, _), *_ = released(KnownLaplace(k, 40, 1, Fraction(4), noise="laplace"), counts, 1)
        width = noise.half_width(0.05 * selected / 40)
        assert (outcome.high - outcome.counts == width).all()
        assert (outcome.counts - outcome.low == width).all()


def test_intervals_end_at_zero():
    """No true count is negative, so no interval is; the count itself stays unbiased."""
    mechanism = KnownLaplace(None, 300, 1, Fraction(20))
    ((outcome, errors),) = released(mechanism, [0] * 300, 1)
    assert (outcome.counts < 0).any()
    assert (outcome.low == np.maximum(outcome.counts - 40, 0)).all()
    assert (outcome.high == np.maximum(outcome.counts + 40, 0)).all()
    assert abs(errors.mean()) < 4 * 20 / math.sqrt(300)


def test_counts_of_the_head_mechanism_are_covered_and_use_the_whole_budget():
    """First and second counts have different anchors; 95 % intervals of their averages cover, 20 % wider at most."""
    limit = Cost(Fraction(1), DELTA)
    counts = [6_000 // (i + 1) for i in range(100)]
    runs = released(SelectVerify(limit, 100, Fraction(1, 10)), counts, 60)
    share, error = missed(counts, runs)
    assert 0.015 < share < 0.05 + 4 * error
    for outcome, _ in runs:
        assert outcome.cost.within(limit)
        assert outcome.cost.rho > Fraction(999_999, 1_000_000)
        own = outcome.std_errors**2 - outcome.std_errors.min() ** 2
        smaller = outcome.counts < np.median(outcome.counts)
        assert own[smaller].mean() < own[~smaller].mean()
