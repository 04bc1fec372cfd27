"""PCR: an exact audit of a naive reference, which `test_sampled` ties to the code, and what the code draws."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache

import numpy as np
import pytest

from discreet.mechanisms import CountRelease
from discreet.noise import DiscreteGaussian
from discreet.testing.audit import divergence
from discreet.values import Cost, ExactHead

from .draws import release
from .neighbours import named, pairs, shapes, worst
from .pcr_reference import Pcr, transcripts

pytestmark = pytest.mark.exact


class Spendthrift(Pcr):
    """A planted defect: each try may lose the mass of ten."""

    @property
    def mass(self):
        """Return the mass that a try may lose."""
        return self.delta / 200


def lost_by(pcr, tau):
    """Return the largest delta over all pairs at the largest epsilon of a run's tries, and the allowed mass.

    Every try is epsilon-DP but for a mass of delta / 2,000, and no run makes more tries than the longest one found.
    """

    @cache
    def runs(counts):
        return {tries: p for (tries, _), p in transcripts(pcr, named(counts), 1e-10).items()}

    worlds = list(pairs(shapes(3, 4 - tau), tau))
    tries = {t for pair in worlds for counts in pair for t in runs(counts)}
    epsilon = max(math.fsum(e for e, _ in t) for t in tries)
    found, _ = worst(lambda one, other: divergence(runs(one), runs(other), epsilon), iter(worlds))
    return found, max(map(len, tries)) * float(pcr.delta) / 2000


@pytest.mark.parametrize(("cutoff", "tau"), [(1, 1), (2, 1), (2, 2)])
def test_count_release_is_private(cutoff, tau):
    """Labels, levels and the end of the run: each try costs its epsilon, and loses delta / 2,000 at most."""
    pcr = Pcr(Fraction(8), Fraction(9, 10), cutoff, Fraction(1, 2), tau, counts=False)
    found, allowed = lost_by(pcr, tau)
    assert 0.9 * allowed < found <= allowed


def test_tries_that_lose_more_are_rejected():
    """The audit can fail: it detects tries that lose ten times the mass."""
    found, allowed = lost_by(Spendthrift(Fraction(8), Fraction(9, 10), 2, Fraction(1, 2), 1, counts=False), 1)
    assert found > allowed


@pytest.mark.parametrize(("relative_error", "tau"), [(Fraction(1, 10), 1), (Fraction(1, 3), 3)])
def test_released_counts_are_the_true_ones_and_the_noise_that_was_drawn(relative_error, tau):
    """Each item once, in the order of the races, with the error and the interval of its level's noise."""
    mechanism = CountRelease(Cost(Fraction(1, 2), Fraction(1, 10**6)), 9, relative_error, tau)
    expected = mechanism.expectation()
    head = ExactHead(np.array([90_000, 50_000, 20_000, 900, 800, 700, 60, 20, 5, 1]), 9)
    lengths = set()
    for run in range(12):
        outcome, draws = release(mechanism, head, run)
        added = [draws.added[f"counts/{level}"] for level in range(len(draws.raced))]
        drawn = np.concatenate([draw.values for draw in added])
        variances = [variance for draw in added for variance in draw.variances]
        assert len(set(outcome.positions.tolist())) == len(outcome.positions) == len(drawn)
        assert outcome.counts.tolist() == (head.counts[outcome.positions] + drawn).tolist()
        assert outcome.std_errors.tolist() == [math.sqrt(variance) for variance in variances]
        widths = [DiscreteGaussian(variance).half_width() for variance in variances]
        assert outcome.low.tolist() == np.maximum(outcome.counts - widths, 0).tolist()
        assert outcome.high.tolist() == np.maximum(outcome.counts + widths, 0).tolist()
        assert outcome.std_errors.max() <= expected.max_std_error
        assert outcome.std_errors.min() >= expected.min_std_error
        assert outcome.ordered is True
        assert outcome.complete is False
        lengths.add(len(drawn))
    assert max(lengths) >= 5


def test_the_expected_errors_are_those_of_the_first_and_of_the_last_affordable_level():
    """Levels double epsilon from a 4,096th of the greatest; the last one pays its try and its count, and all before."""
    limit, mass = Cost(Fraction(1, 2), Fraction(1, 10**6)), Fraction(1, 10**6) / 2000
    for counts in (True, False):
        mechanism = CountRelease(limit, 100, Fraction(1, 10), 2, counts)

        def sigma(epsilon):
            likely = 2 * (1 + math.log(100 / mass) / epsilon)
            return math.ceil(likely / 16.45 * 1024) / 1024, likely

        epsilon, spent = math.sqrt(8 * 0.5) / 4096, 0.0
        first = epsilon
        while spent + epsilon**2 / 8 + (4 / (2 * sigma(epsilon)[0] ** 2) if counts else 0) <= 0.5:
            spent, last, epsilon = spent + epsilon**2 / 8, epsilon, 2 * epsilon
        expected = mechanism.expectation()
        assert expected.smallest_count == math.ceil(sigma(last)[1])
        if counts:
            assert expected.min_std_error == pytest.approx(sigma(last)[0], rel=1e-3)
            assert expected.max_std_error == pytest.approx(sigma(first)[0], rel=1e-3)
        else:
            assert expected.min_std_error is expected.max_std_error is None


def test_a_count_that_no_longer_fits_ends_the_run():
    """Nine items win the first race and two counts fit; a larger epsilon, which still would, is not tried."""
    mechanism = CountRelease(Cost(Fraction(1, 2), Fraction(1, 10**6)), 9, Fraction(1, 20_000))
    outcome, draws = release(mechanism, ExactHead(np.full(9, 10**9), 9))
    assert len(outcome.positions) == 2
    assert list(draws.raced) == ["race/0"]
    assert len(draws.raced["race/0"].order) == 9
    assert draws.raced["race/0"].reached


def test_a_run_that_finds_nothing_has_integers_all_the_same():
    """No counts, and no ends of intervals."""
    outcome, _ = release(
        CountRelease(Cost(Fraction(1, 2), Fraction(1, 10**6)), 9, Fraction(1, 10)), ExactHead(np.zeros(0, np.int64), 9)
    )
    for values in (outcome.positions, outcome.counts, outcome.low, outcome.high):
        assert values.dtype == np.int64
        assert values.shape == (0,)


def test_intervals_end_at_zero_and_not_above():
    """With noise far above the counts, whose ends would often be negative."""

    class Noisy(CountRelease):
        def _count_noise(self, epsilon):
            del epsilon
            return DiscreteGaussian(Fraction(10**14))

    mechanism, head = (
        Noisy(Cost(Fraction(1, 2), Fraction(1, 10**6)), 9, Fraction(1, 10)),
        ExactHead(np.full(9, 10**6), 9),
    )
    outcomes = [release(mechanism, head, run)[0] for run in range(20)]
    width = DiscreteGaussian(Fraction(10**14)).half_width()
    for outcome in outcomes:
        assert outcome.low.tolist() == np.maximum(outcome.counts - width, 0).tolist()
        assert outcome.high.tolist() == np.maximum(outcome.counts + width, 0).tolist()
    assert min(outcome.high.min() for outcome in outcomes) == min(outcome.low.min() for outcome in outcomes) == 0
