"""Published statements that are wrong: the audit that accepts ours rejects each by a named counterexample."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from functools import cache

import mpmath
import numpy as np
import pytest

from discreet.mechanisms import Request, TopStable, UnknownGumbel
from discreet.noise import Race, Rival
from discreet.testing.audit import distribution, divergence, head_of, race_distribution, renyi
from discreet.values import Cost

from .neighbours import LEEWAY, delta_of, distributions, named, pairs, shapes

pytestmark = pytest.mark.exact

HALF, TWENTIETH = Fraction(1, 2), Fraction(1, 20)


class WithFactor(UnknownGumbel):
    """UnkGumb with another weight of the threshold, or another place for it."""

    lift = None

    def factor(self, cutoff):
        """Return the factor of the threshold's weight."""
        return cutoff / self.delta

    def race(self, head, cutoff):
        """See `UnknownGumbel.race`."""
        sound = UnknownGumbel.race(self, head, cutoff)
        below = sound.rival.score - self.rows_per_group
        lift = self.rows_per_group if self.lift is None else self.lift
        return Race(sound.scores, sound.scale, Rival(below + lift, Fraction(self.factor(cutoff))))


class LeastOfTwoSides(WithFactor):
    """LinkedIn 2021, Algorithm 4: ln(min{kbar, dbar - kbar} / delta), with dbar one above the cut-off."""

    read = 4

    def factor(self, cutoff):
        """Return the factor; the smallest positive number stands for ln 0, where kbar = dbar."""
        return max(Fraction(min(cutoff, self.read - cutoff)), Fraction(1, 10**300)) / self.delta


class StrictWithGroups(WithFactor):
    """The strict rule joined with ln(Delta / delta), for Delta = 1."""

    def factor(self, cutoff):  # noqa: ARG002
        """Return Delta / delta."""
        return 1 / self.delta


class WithoutTau(WithFactor):
    """The threshold stands at the count below the cut, not tau above it."""

    lift = 0


def labels_only(made, cutoff, delta=TWENTIETH):
    """Return a mechanism for the top 1 at epsilon .5."""
    return made(1, cutoff, HALF, delta, 1, None)


def between(mechanism, one, other, epsilon=0.5):
    """Return delta of one pair of histograms."""
    return divergence(*(distribution(mechanism, head_of(h, mechanism.head_limit)) for h in (one, other)), epsilon)


@pytest.mark.parametrize(
    ("wrong", "cutoff", "one", "other", "delta"),
    [
        # dbar is not the domain's size: 2.6 times what is claimed
        (LeastOfTwoSides, 3, {}, {"a": 1, "b": 1, "c": 1}, 0.130435),
        # the threshold vanishes: a table with one user is certainly distinguished from an empty one
        (LeastOfTwoSides, 4, {}, {"d": 1}, 1.0),
        # one user pushes all tied items out
        (StrictWithGroups, 3, {"a": 2, "b": 3, "c": 3, "d": 3}, {"a": 3, "b": 3, "c": 3, "d": 3}, 0.130435),
        (StrictWithGroups, 4, {"a": 2, "b": 3, "c": 3, "d": 3, "e": 3}, dict.fromkeys("abcde", 3), 0.166667),
        (WithoutTau, 3, {}, {"a": 1, "b": 1, "c": 1}, 0.07616),
    ],
)
def test_a_wrong_threshold_is_rejected_by_its_counterexample(wrong, cutoff, one, other, delta):
    """The counterexample exceeds the claimed .05 by its independently computed amount; ours stays below it."""
    found = between(labels_only(wrong, cutoff), one, other)
    assert found == pytest.approx(delta, rel=1e-4)
    assert between(labels_only(UnknownGumbel, cutoff), one, other) <= 0.05


@pytest.mark.parametrize(
    ("wrong", "cutoff", "groups", "delta"),
    [
        (LeastOfTwoSides, 3, None, 0.130435),
        (LeastOfTwoSides, 4, None, 1.0),
        (StrictWithGroups, 3, 1, 0.130435),
        (StrictWithGroups, 4, 1, 0.166667),
        (WithoutTau, 3, None, 0.07616),
    ],
)
def test_a_wrong_threshold_is_rejected_by_the_whole_audit(wrong, cutoff, groups, delta):
    """Over all pairs of four or five labels the worst delta has its published value; ours is delta / (1 + delta)."""
    labels = 4 if cutoff == 3 else 5
    for made, expected in ((wrong, delta), (UnknownGumbel, 0.05 / 1.05 if groups is None else None)):
        found, _ = delta_of(labels_only(made, cutoff), 0.5, pairs(shapes(labels, 3), 1, groups))
        assert found == pytest.approx(expected, rel=1e-4) if expected else found <= 0.05 / 1.05 + LEEWAY


@cache
def least_plus_gumbel(exponents):
    """Return Pr[argmin(exponent + Gumbel) = i] in closed form.

    All others are above x with probability prod (1 - exp(-e^(a_j - x))); expanded and integrated, each product of
    subsets is a Gumbel race of its own. The signs alternate, so 50 digits are carried.
    """
    with mpmath.workdps(50):
        weights = [mpmath.exp(exponent - max(exponents)) for exponent in exponents]
        chances = {}
        for i, own in enumerate(weights):
            others = weights[:i] + weights[i + 1 :]
            chances[i] = sum(
                (-1) ** n * own / (own + sum(subset))
                for n in range(len(others) + 1)
                for subset in itertools.combinations(others, n)
            )
        return {i: float(chance) for i, chance in chances.items()}


@pytest.mark.parametrize(("rivals", "least", "found"), [(2, 1.9, 1.984), (5, 4.83, 4.922), (10, 9.41, 9.719)])
def test_the_least_score_plus_gumbel_is_not_the_exponential_mechanism(rivals, least, found):
    """LinkedIn 2021, Algorithm 4's cut-off: with 5 rivals one user moves log-odds by 4.83 epsilon, with 10 by 9.41."""
    scores = [(gap, *[0] * rivals) for gap in (10, 11)]

    def moved(choose):
        p, q = map(choose, scores)
        losses = [math.log(p[i] / q[i]) for i in p]
        return 2 * (max(losses) - min(losses))

    def ours(counts):
        race = Race(-np.array(counts, dtype=np.int64), HALF)
        return {order: p for (order, _), p in race_distribution(race, 1).items()}

    published = moved(lambda counts: least_plus_gumbel(tuple(count / 2 for count in counts)))
    assert published >= least
    assert published == pytest.approx(found, abs=1e-3)
    assert moved(ours) <= 1 + 1e-12


def test_the_wrong_cutoff_breaks_the_price_that_ours_keeps():
    """Over all pairs of five labels, the published choice of the cut-off passes e^epsilon; ours does not."""
    mechanism = UnknownGumbel(1, 5, HALF, TWENTIETH, 1, None, optimise_cutoff=True)

    def published(race):
        """The least of the thresholds with Gumbel noise, where ours is the greatest of their negatives with it."""
        weights = zip(race.scores.tolist(), race.divisors.tolist(), strict=True)
        return least_plus_gumbel(tuple(math.log(divisor) - score / 2 for score, divisor in weights))

    def price(choose, pair):
        p, q = (choose(mechanism.cutoff_race(head_of(named(counts), 5))) for counts in pair)
        return max(renyi(p, q, math.inf), renyi(q, p, math.inf))

    candidates = list(pairs(shapes(5, 3)))
    assert max(price(published, pair) for pair in candidates) > 1.05 * 0.5
    assert max(price(lambda race: race_distribution(race, 1), pair) for pair in candidates) <= 0.5 * (1 + 1e-12)


class GapBelowTheNext(TopStable):
    """The public code of the Top Stable paper: it tests the gap below rank i + 1, and releases ranks 1..i."""

    def gaps(self, head):
        """Return max(h_(i+1) - h_(i+2) - tau, 0)."""
        longer = TopStable(self.k + 1, self.epsilon, self.delta, self.rows_per_group)
        return longer.gaps(head)[1:]


def test_a_gap_one_rank_too_low_is_rejected():
    """{a: 200, b: 200} gives {a} always, and one more user with b gives {b}: delta is 1, where 1e-5 is claimed."""
    one, other = {"a": 200, "b": 200}, {"a": 200, "b": 201}
    deltas = [
        between(made(1, Fraction(1), Fraction(1, 10**5)), one, other, 1.0) for made in (GapBelowTheNext, TopStable)
    ]
    assert deltas[0] > 0.999
    assert deltas[1] <= 1e-5


@pytest.mark.parametrize("k", [1, 2, 4])
def test_the_reservation_for_k_labels_and_counts_covers_every_answer(k):
    """LinkedIn 2021, Algorithm 5 admits 2k and charges 2k + 1 for a full answer; ours is at most 2k (+1 cut-off)."""
    for optimise in (False, True):
        mechanism = UnknownGumbel(k, 4, HALF, TWENTIETH, 1, "gaussian", optimise)
        reserved = 2 * k + optimise
        assert mechanism.worst_cost() == Cost(reserved * HALF**2 / 8, TWENTIETH)
        of = distributions(mechanism)
        charges, published = set(), set()
        for counts in shapes(4, 2):
            for _, labels, reached in of(counts):
                charges.add(2 * len(labels) + reached + optimise)
                published.add(2 * len(labels) + (0 if reached else 1) if len(labels) == k else 2 * (len(labels) + 1))
        assert max(charges) == reserved
        assert max(published) == 2 * k + 1  # as the paper counts: 2|o| with the threshold in o, 2|o| + 1 without


def test_a_budget_of_exactly_two_k_units_is_kept():
    """`within_cost` of a limit of 2k units, k labels with k counts cost exactly the limit."""
    limit = Cost(6 * HALF**2 / 8, TWENTIETH)
    mechanism = UnknownGumbel.within_cost(limit, Request(3, 5))
    assert mechanism.epsilon == HALF
    assert mechanism.worst_cost() == limit
