"""The arithmetic of the audits compared with fractions, scipy, mpmath and brute force."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import stats

from discreet.errors import InputError
from discreet.mechanisms import CountRelease, KnownLaplace, TopStable, UnknownGumbel, UnknownLaplace
from discreet.noise import DiscreteGaussian, DiscreteLaplace, Race, Rival
from discreet.testing.audit import (
    ROUNDING,
    binomial_bounds,
    distribution,
    divergence,
    head_of,
    hockey_stick,
    pmf,
    race_distribution,
    radius,
    renyi,
    statistical_audit,
    values_divergence,
)
from discreet.values import Cost

LN2 = math.log(2)
COIN, BIASED = {"a": 0.5, "b": 0.5}, {"a": 0.75, "b": 0.25}


@pytest.mark.parametrize(
    ("one", "other", "epsilon", "delta"),
    [
        (COIN, COIN, 0, 0),
        (COIN, BIASED, 0, 0.25),
        (BIASED, COIN, math.log(1.25), 0.125),
        (COIN, BIASED, LN2, 0),
        (COIN, {"a": 1.0}, LN2, 0.5),  # b cannot happen there
        ({"a": 0.4}, {"a": 1.0}, 0, 0.6),  # the missing mass is lost
    ],
)
def test_the_hockey_stick_divergence_is_the_mass_above_the_other_side(one, other, epsilon, delta):
    """Calculated by hand: never too small, and too large by rounding only."""
    assert delta <= hockey_stick(one, other, epsilon) <= delta + 2 * ROUNDING


def test_the_divergence_is_symmetric():
    """The order of the arguments does not matter."""
    leak = {"a": 0.9, "b": 0.1}
    assert divergence({"a": 1.0}, leak, 1) == divergence(leak, {"a": 1.0}, 1) == pytest.approx(0.1)


def test_the_divergence_is_the_worst_event():
    """The sum over outcomes equals the maximum over all events by brute force."""
    one, other = {"a": 0.1, "b": 0.2, "c": 0.7}, {"a": 0.3, "b": 0.1, "c": 0.6}
    events = [s for n in range(4) for s in itertools.combinations("abc", n)]
    best = max(sum(one[o] for o in s) - math.exp(0.1) * sum(other[o] for o in s) for s in events)
    assert hockey_stick(one, other, 0.1) == pytest.approx(best)


def test_the_renyi_divergence_is_the_published_one():
    """Order 2 by hand, infinity as the largest log ratio, and infinite for disjoint support."""
    assert renyi(COIN, BIASED, 2) == pytest.approx(math.log(0.25 / 0.75 + 0.25 / 0.25))
    assert renyi(COIN, BIASED, math.inf) == pytest.approx(LN2)
    assert renyi(COIN, {"a": 1.0}, 2) == math.inf


def test_a_head_is_sorted_by_count_then_label_and_cut():
    """A head has one item more than its limit, and items without users only in a known domain."""
    counts = {"b": 2, "a": 2, "d": 0, "c": 5, "e": 1}
    cut = head_of(counts, 2)
    assert (cut.labels, cut.counts.tolist()) == (("c", "a", "b"), [5, 2, 2])
    assert head_of(counts, 9).labels == ("c", "a", "b", "e")
    assert head_of(counts, 9, known_domain=True).labels == ("c", "a", "b", "e", "d")


def brute_force_race(weights, rival, limit):
    """Return the outcomes of Plackett-Luce in fractions: products of peels for every full order, cut as a race is."""
    found = {}
    for order in itertools.permutations(range(len(weights))):
        p, left = Fraction(1), sum(weights)
        for i in order:
            p, left = p * weights[i] / left, left - weights[i]
        before = order[: order.index(rival)] if rival in order else order
        key = (before[:limit], len(before) < limit and rival in order)
        found[key] = found.get(key, 0) + p
    return found


@pytest.mark.parametrize("limit", [1, 2, 3, 5])
@pytest.mark.parametrize("with_rival", [True, False])
def test_race_distributions_equal_brute_force(limit, with_rival):
    """Weights are powers of e^scale as exact fractions; divisors and the rival's factor are included."""
    scores, divisors = [3, 1, 1, 0], [1, 2, 3, 1]
    rival = Rival(2, Fraction(7, 3)) if with_rival else None
    race = Race(np.array(scores), Fraction(1, 3), rival, np.array(divisors))
    grain = Fraction(math.exp(1 / 3))
    weights = [grain**s / d for s, d in zip(scores, divisors, strict=True)]
    weights += [grain**2 * Fraction(7, 3)] if with_rival else []
    expected = brute_force_race(weights, 4 if with_rival else None, limit)
    found = race_distribution(race, limit)
    assert found.keys() == expected.keys()
    assert all(found[key] == pytest.approx(float(p), rel=1e-13) for key, p in expected.items())


def test_the_published_example_of_unkgumb_is_reproduced():
    """With h = {a:3, b:2, c:1}, kbar 2, epsilon .5, delta .05: a .0386581642, b .0234473618, rival .9378944739."""
    mechanism = UnknownGumbel(1, 2, Fraction(1, 2), Fraction(1, 20), counts=None)
    found = distribution(mechanism, head_of({"a": 3, "b": 2, "c": 1}, 2))
    expected = {(2, ("a",), False): 0.0386581642, (2, ("b",), False): 0.0234473618, (2, (), True): 0.9378944739}
    assert found == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("k", [1, 3, 5])
def test_stable_sets_equal_a_sum_over_the_shared_threshold(k):
    """The rule of TopStable, computed with mpmath at 30 digits."""
    mechanism = TopStable(k, Fraction(3), Fraction(1, 20))
    counts = [9, 6, 6, 1]
    gaps = [max(a - b - 1, 0) for a, b in itertools.pairwise((counts + [0] * 9)[: k + 1])]
    expected = {}
    with mpmath.workdps(30):
        bar_rate, gap_rate = mpmath.mpf(3) * 37 / 100, mpmath.mpf(3) * 63 / 200

        def mass(rate, z):
            return mpmath.tanh(rate / 2) * mpmath.exp(-rate * abs(z))

        def above(n):
            q = mpmath.exp(-gap_rate)
            return q ** (n + 1) / (1 + q) if n >= 0 else 1 - q ** (-n) / (1 + q)

        for y in range(-60, 61):
            left = mass(bar_rate, y)
            for i in range(k, 0, -1):
                passed = above(mechanism.threshold() + y - gaps[i - 1])
                key = frozenset("abcd"[: min(i, 4)])
                expected[key] = expected.get(key, 0) + left * passed
                left *= 1 - passed
            expected[frozenset()] = expected.get(frozenset(), 0) + left
    found = distribution(mechanism, head_of(dict(zip("abcd", counts, strict=True)), k))
    assert found == pytest.approx({key: float(p) for key, p in expected.items()}, rel=1e-12)


@pytest.mark.parametrize("noise", [DiscreteLaplace(Fraction(5, 2)), DiscreteGaussian(Fraction(7, 2))])
def test_noise_has_the_published_mass(noise):
    """Equals scipy for Laplace and a long direct sum for Gaussian noise; nearly all mass is within the radius."""
    z = np.arange(-radius(noise), radius(noise) + 1)
    if isinstance(noise, DiscreteLaplace):
        expected = stats.dlaplace.pmf(z, float(1 / noise.scale))
    else:
        total = mpmath.nsum(lambda x: mpmath.exp(-(x**2) / 7), [-mpmath.inf, mpmath.inf])
        expected = [float(mpmath.exp(-(mpmath.mpf(int(x)) ** 2) / 7) / total) for x in z]
    assert pmf(noise, z) == pytest.approx(expected, rel=1e-12)
    assert 1 - 1e-15 < math.fsum(pmf(noise, z)) <= 1 + 1e-15


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
@pytest.mark.parametrize("other", [{"a": 3, "b": 3}, {"a": 3, "b": 2, "c": 1}, {"a": 2, "b": 3, "c": 1}])
def test_values_divergence_equals_brute_force_over_all_values(noise, other):
    """UnkLap on three labels: every threshold, every value of every item, one by one."""
    mechanism = UnknownLaplace(None, 2, 2, Fraction(1, 2), Fraction(1, 5), noise=noise)
    heads = [head_of({"a": 2, "b": 2, "c": 1}, 2), head_of(other, 2)]
    z = np.arange(-14, 20)
    p = []
    for head in heads:
        outcomes = {}
        stored = dict(zip(head.labels[:2], head.counts[:2].tolist(), strict=True))
        at = {label: pmf(_noise(mechanism), z - count) for label, count in stored.items()}
        bottom = pmf(_noise(mechanism), z - head.count_at(3) - 1 - mechanism.margin())
        for i, bar in enumerate(z.tolist()):
            shown = [
                [(label, None)] if label not in stored else [(label, None), *((label, v) for v in range(bar + 1, 20))]
                for label in "abc"
            ]
            hidden = {label: at[label][: i + 1].sum() for label in stored}
            for values in itertools.product(*shown):
                probability = bottom[i]
                for label, value in values:
                    if label in stored:
                        probability *= hidden[label] if value is None else at[label][value + 14]
                outcomes[bar, values] = probability
        p.append(outcomes)
    for epsilon in (0.5, 4.0):
        expected = divergence(*p, epsilon)
        assert values_divergence(mechanism, *heads, epsilon) == pytest.approx(expected, rel=1e-8, abs=1e-10)


def _noise(mechanism):
    return DiscreteLaplace(mechanism.scale) if mechanism.noise == "laplace" else DiscreteGaussian(mechanism.scale**2)


def test_values_divergence_of_a_known_domain_is_that_of_the_noise():
    """One count moved by one: the divergence of discrete Laplace noise from itself shifted, in closed form."""
    mechanism = KnownLaplace(None, 3, 1, Fraction(2), noise="laplace")
    heads = [head_of({"a": 2, "b": 2, "c": n}, 3, known_domain=True) for n in (0, 1)]
    # values up to 0 are e^(1/2) likelier in the first table, and have mass 1/(1+q)
    q = math.exp(-0.5)
    expected = (1 - math.exp(0.2) * q) / (1 + q)
    assert values_divergence(mechanism, *heads, 0.2) == pytest.approx(expected)
    assert values_divergence(mechanism, *heads, 0.5 + 1e-12) < 2 * ROUNDING


def test_mechanisms_with_values_are_not_enumerated():
    """An audit that is not possible raises an error."""
    pcr = CountRelease(Cost(Fraction(1), Fraction(1, 10)), 3, Fraction(1, 10))
    with pytest.raises(InputError, match="not enumerated"):
        distribution(pcr, head_of({"a": 1}, 3))


@pytest.mark.parametrize(("x", "n"), [(0, 10), (1, 10), (10, 10), (7, 1000), (993, 1000), (40, 20_000)])
@pytest.mark.parametrize("miss", [0.05, 1e-7])
def test_binomial_bounds_are_those_of_clopper_and_pearson(x, n, miss):
    """Bounds equal the quantiles of the beta distribution."""
    low, high = binomial_bounds(x, n, miss)
    assert low == pytest.approx(0.0 if x == 0 else stats.beta.ppf(miss, x, n - x + 1), rel=1e-6)
    assert 1 - high == pytest.approx(0.0 if x == n else stats.beta.ppf(miss, n - x, x + 1), rel=1e-6)


def test_no_trials_give_trivial_bounds():
    """Without a sample every probability is possible, and no delta is shown."""
    assert binomial_bounds(0, 0, 0.01) == (0.0, 1.0)
    assert statistical_audit([], [], 1.0) == 0.0


def test_the_statistical_audit_finds_a_leak_and_stays_below_the_truth():
    """Two coins with delta .25 at epsilon 0: the bound is near from below, in either order."""
    rng = np.random.default_rng(1)
    one, other = (rng.choice(["a", "b"], 20_000, p=p).tolist() for p in ([0.5, 0.5], [0.75, 0.25]))
    for pair in ((one, other), (other, one)):
        assert 0.19 < statistical_audit(*pair, 0.0) < 0.25
    assert statistical_audit(one, one, 0.0) == 0.0
    assert statistical_audit(one, other, LN2) == 0.0


def test_the_statistical_audit_is_seldom_above_the_truth():
    """200 pairs of samples from equal distributions, at 20 %: the bound passes 0 in fewer than that."""
    rng = np.random.default_rng(2)
    shown = [statistical_audit(*rng.integers(0, 3, (2, 200)).tolist(), 0.0, miss=0.2) > 0 for _ in range(200)]
    assert sum(shown) < 40
