"""Released sums and averages follow their distributions, have covering intervals, and reveal no more than claimed."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from discreet.head_request import SumBounds
from discreet.mechanisms import KnownLaplace, UnknownGumbel, UnknownLaplace
from discreet.mechanisms.base import noise_of
from discreet.mechanisms.sums import KnownLaplaceSums, ListedSums, UnknownGumbelSums, UnknownLaplaceSums
from discreet.noise import KeyedBits
from discreet.testing.audit import distribution, head_of, pmf, radius, sample, statistical_audit
from discreet.values import ExactHead

from .neighbours import fit

pytestmark = pytest.mark.statistical

SECRETS = b"what is summed on this side.....", b"what is summed on that side....."
HALF, TWENTIETH = Fraction(1, 2), Fraction(1, 20)
SURE = 1e-3
"""Keys are fixed: a p-value below this is a wrong distribution, or one look in a thousand at a right one."""

COUNTS, SUMS = {"a": 8, "b": 8, "c": 5, "d": 1}, {"a": 20, "b": -9, "c": 400, "d": 0}


def law(noise):
    """Return the distribution of *noise*, value by value."""
    z = np.arange(-radius(noise), radius(noise) + 1)
    return dict(zip(z.tolist(), pmf(noise, z).tolist(), strict=True))


def signs(noise):
    """Return how often *noise* is below, at and above 0."""
    at = law(noise)[0]
    return {-1: (1 - at) / 2, 0: at, 1: (1 - at) / 2}


def errors(labels, outcome):
    """Return the labels, and the errors of the first one's count and sum."""
    seen = tuple(labels[i] for i in outcome.positions)
    if not seen:
        return seen, None
    return seen, (int(outcome.counts[0]) - COUNTS[seen[0]], int(outcome.measured.values[0]) - SUMS[seen[0]])


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_sums_get_noise_of_their_own(noise):
    """Labels are those without sums, and the first label's sum has its own noise, for any count."""
    mechanism = UnknownGumbelSums(UnknownGumbel(2, 3, HALF, TWENTIETH, 1, noise), SumBounds(-2, 3), 2, noise)
    head = head_of(COUNTS, 3, sums=SUMS)
    outcomes = sample(mechanism, head, 2500, SECRETS[0], errors)
    exact = {}
    for (_, labels, _), p in distribution(mechanism.ranking, head).items():
        exact[labels] = exact.get(labels, 0) + p
    assert fit([labels for labels, _ in outcomes], exact) > SURE
    counted, summed = noise_of(noise, 2 / HALF), noise_of(noise, 3 * 2 / HALF)
    assert mechanism.sum_noise() == summed
    pairs = [pair for _, pair in outcomes if pair is not None]
    assert fit([error for _, error in pairs], law(summed)) > SURE
    both = itertools.product(signs(counted).items(), signs(summed).items())
    assert fit(list(map(tuple, np.sign(pairs).tolist())), {(i, j): p * q for (i, p), (j, q) in both}) > SURE


def test_sums_of_a_listed_domain_come_in_the_order_of_their_noisy_values():
    """The largest noisy sum is first, and noise is independent."""
    mechanism = ListedSums(3, SumBounds(-4, 2), 3, Fraction(5), "laplace")
    head = head_of({"a": 9, "b": 5, "c": 0}, 3, known_domain=True, sums={"a": -3, "b": 5, "c": 0})

    def view(labels, outcome):
        assert outcome.measured.values.tolist() == sorted(outcome.measured.values.tolist(), reverse=True)
        shown = dict(zip((labels[i] for i in outcome.positions), outcome.measured.values.tolist(), strict=True))
        return shown["a"] + 3, shown["b"] - 5, shown["c"]

    shown = sample(mechanism, head, 1500, SECRETS[0], view)
    noise = mechanism.sum_noise()
    for error in zip(*shown, strict=True):
        assert fit(error, law(noise)) > SURE
    pairs = {(i, j): p * q for (i, p), (j, q) in itertools.product(signs(noise).items(), repeat=2)}
    assert fit([tuple(np.sign(row[:2]).tolist()) for row in shown], pairs) > SURE


def test_equal_noisy_sums_come_in_random_order():
    """The order is not that of the head, which is by counts: of three sums each is first equally often."""
    mechanism = ListedSums(3, SumBounds(-4, 2), 3, Fraction(1, 50), "laplace")
    head = head_of({"a": 9, "b": 5, "c": 0}, 3, known_domain=True, sums=dict.fromkeys("abc", 4))
    first = sample(mechanism, head, 600, SECRETS[0], lambda labels, outcome: labels[outcome.positions[0]])
    assert fit(first, dict.fromkeys("abc", 1 / 3)) > SURE


def missed(mechanism, counts, sums, runs):
    """Return the mean share of released values whose interval misses the truth, its standard error, and their count."""
    parts = mechanism.summed.parts
    rows = parts * np.array(counts) if mechanism.average else None
    head = ExactHead(np.array(counts), mechanism.head_limit, None, parts * np.array(sums), rows=rows)
    truth = np.array(sums) / np.array(counts) if mechanism.average else np.array(sums)
    shares, released = [], 0
    for run in range(runs):
        outcome = mechanism.release(head, KeyedBits(SECRETS[0], run))
        if released_now := len(outcome.positions):
            true, found = truth[outcome.positions], outcome.measured
            shares.append(float(((true < found.low) | (true > found.high)).mean()))
            released += released_now
    return float(np.mean(shares)), float(np.std(shares)) / math.sqrt(len(shares)), released


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_sums_are_covered(noise):
    """Fresh noise: 5 % of the intervals miss, whether noisy counts or a race selected the items."""
    counts = [3_000 - 20 * i for i in range(25)]
    sums = [(-1) ** i * 7 * n for i, n in enumerate(counts)]
    summed = SumBounds(-9, 9)
    for mechanism in (
        UnknownGumbelSums(UnknownGumbel(20, 25, HALF, TWENTIETH, 1, noise), summed, 20, noise),
        KnownLaplaceSums(KnownLaplace(5, 25, 2, Fraction(8), 1, noise), summed, 2, noise),
        ListedSums(25, summed, 2, Fraction(40), noise),
    ):
        share, error, released = missed(mechanism, counts, sums, 150)
        assert released >= 750
        assert 0.02 < share < 0.05 + 4 * error


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("low", [-20, 0])
def test_averages_are_covered(low, noise):
    """At least 95 %, for small and large counts compared with their noise; the intervals can miss.

    The noise of sums and rows is independent, or correlated where sums are at least 0.
    """
    summed = SumBounds(low, 60, rows=2)
    counts = [2_000, 900, 300, 100, 60, 40] + [30] * 24
    sums = [n * (-15 if low else 25, 50, 3)[i % 3] for i, n in enumerate(counts)]
    for mechanism in (
        UnknownGumbelSums(UnknownGumbel(20, 29, Fraction(1), TWENTIETH, 1, noise), summed, 20, noise),
        KnownLaplaceSums(KnownLaplace(None, 30, 2, Fraction(8), 1, noise), summed, 2, noise),
        ListedSums(30, summed, 2, Fraction(40 * 256), noise),
    ):
        share, error, released = missed(mechanism, counts, sums, 150)
        assert released >= 600
        assert 0 < share < 0.05 + 3 * error


def test_averages_of_items_that_were_selected_by_their_noise_are_covered():
    """Fresh noise of sums and rows: the largest of 200 equal counts are no worse than others."""
    summed, sound = SumBounds(0, 90, rows=1), KnownLaplace(5, 200, 1, Fraction(10), counts=False)
    share, error, released = missed(KnownLaplaceSums(sound, summed, 1), [50] * 200, [50 * 60] * 200, 300)
    assert released == 1500
    assert share <= 0.05 + 3 * error
    unknown = UnknownLaplace(None, 200, 1, Fraction(10), TWENTIETH, counts=False)
    users = unknown.margin() - 12
    mechanism = UnknownLaplaceSums(unknown, summed, 1)
    share, error, released = missed(mechanism, [users] * 200, [users * 60] * 200, 300)
    assert released > 300
    assert share <= 0.05 + 3 * error


class NoiseForCounts(ListedSums):
    """Sums get the noise of counts."""

    def sum_noise(self, _=None):
        """Return noise of scale 1 / epsilon."""
        return noise_of(self.noise, self.scale / self.summed.most)


@pytest.mark.parametrize(("kind", "seen"), [(ListedSums, False), (NoiseForCounts, True)])
def test_sampled_totals_are_private(kind, seen):
    """One user who adds -3 or is absent: samples are 1-DP, and with the noise of counts they are not."""
    mechanism = kind(1, SumBounds(-3, 1), 1, Fraction(3), "laplace")
    assert mechanism.direct_epsilon() == 1
    sides = [
        sample(
            mechanism,
            head_of({"all": n}, 1, known_domain=True, sums={"all": -3 * n}),
            2000,
            SECRETS[n],
            lambda _, outcome: int(outcome.measured.values[0]),
        )
        for n in (0, 1)
    ]
    assert (statistical_audit(*sides, 1.0) > 0.1) == seen
    assert seen or statistical_audit(*sides, 1.0) == 0
    assert statistical_audit(*sides, 0.2) > 0.05
