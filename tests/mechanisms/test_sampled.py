"""Releases follow the distributions of the exact audits: chi-square tests and statistical audits."""

from __future__ import annotations

import itertools
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from discreet.mechanisms import CountRelease, KnownGumbel, KnownLaplace, TopStable, UnknownGumbel, UnknownLaplace
from discreet.mechanisms.base import noise_of
from discreet.testing.audit import distribution, head_of, pmf, radius, sample, statistical_audit
from discreet.values import Cost

from .neighbours import fit
from .pcr_reference import Pcr, found_by, transcripts

pytestmark = pytest.mark.statistical

SECRETS = b"what is sampled on this side....", b"what is sampled on that side...."
HALF, TWENTIETH = Fraction(1, 2), Fraction(1, 20)
SURE = 1e-3
"""Keys are fixed: a p-value below this is a wrong distribution, or one look in a thousand at a right one."""


def sampled(mechanism, histogram, trials, side=0, view=None):
    """Return releases in the default view or another."""
    known = isinstance(mechanism, (KnownGumbel, KnownLaplace))
    head = head_of(histogram, mechanism.head_limit, known_domain=known)
    return sample(mechanism, head, trials, SECRETS[side], *([] if view is None else [view]))


def labels_of(labels, outcome):
    """Return the labels, in order."""
    return tuple(labels[i] for i in outcome.positions)


def merged(expected, view):
    """Return a distribution as *view* sees its outcomes."""
    seen = Counter()
    for outcome, p in expected.items():
        seen[view(outcome)] += p
    return seen


GUMBELS = [
    (UnknownGumbel(2, 3, HALF, TWENTIETH, counts=None), {"a": 8, "b": 8, "c": 5, "d": 1}),
    (UnknownGumbel(3, 3, Fraction(2), HALF, 2, None), {"a": 3, "b": 2, "c": 2}),
    (
        UnknownGumbel(1, 5, HALF, TWENTIETH, 1, None, optimise_cutoff=True),
        {"a": 12, "b": 9, "c": 8, "d": 2, "e": 2, "f": 1},
    ),
    (UnknownGumbel(2, 4, HALF, TWENTIETH, 3, None, optimise_cutoff=True), {"a": 40, "b": 31, "c": 30}),
    (KnownGumbel(3, 4, HALF, 1, None), {"a": 2, "b": 1, "c": 0, "d": 0}),
    (KnownGumbel(1, 4, Fraction(3), 2, None), {"a": 2, "b": 1, "c": 0, "d": 0}),
]


@pytest.mark.parametrize(("mechanism", "histogram"), GUMBELS)
def test_gumbel_releases_follow_the_exact_distribution(mechanism, histogram):
    """Labels in order, with the threshold and the optimised cut-off, are Plackett-Luce."""
    known = isinstance(mechanism, KnownGumbel)
    exact = distribution(mechanism, head_of(histogram, mechanism.head_limit, known_domain=known))
    assert fit(sampled(mechanism, histogram, 1500), merged(exact, lambda outcome: outcome[1])) > SURE


def test_a_cutoff_that_is_chosen_in_another_way_does_not_fit():
    """The chi-square test can fail: it rejects a fixed cut-off where an optimised one is expected."""
    histogram = {"a": 14, "b": 3, "c": 3, "d": 3, "e": 3, "f": 3}
    chosen, fixed = (UnknownGumbel(1, 5, HALF, TWENTIETH, 1, None, optimise) for optimise in (True, False))
    exact = merged(distribution(chosen, head_of(histogram, 5)), lambda outcome: outcome[1])
    assert fit(sampled(chosen, histogram, 1500), exact) > SURE
    assert fit(sampled(fixed, histogram, 1500), exact) < 1e-9


@pytest.mark.parametrize("counts", ["gaussian", "laplace"])
def test_counts_do_not_change_the_labels(counts):
    """Counts change nothing about the labels, and their noise does not depend on them."""
    mechanism = UnknownGumbel(2, 3, HALF, TWENTIETH, counts=counts)
    histogram = GUMBELS[0][1]
    outcomes = sampled(mechanism, histogram, 1500)
    exact = merged(distribution(mechanism, head_of(histogram, 3)), lambda outcome: outcome[1])
    assert fit([tuple(label for label, _ in outcome) for outcome in outcomes], exact) > SURE
    noise = noise_of(counts, 2 / HALF)
    z = np.arange(-radius(noise), radius(noise) + 1)
    first = [outcome[0][1] - histogram[outcome[0][0]] for outcome in outcomes if outcome]
    assert fit(first, dict(zip(z.tolist(), pmf(noise, z).tolist(), strict=True))) > SURE


@pytest.mark.parametrize(
    ("mechanism", "histogram"),
    [
        (TopStable(3, Fraction(2), TWENTIETH), {"a": 20, "b": 12, "c": 5, "d": 4}),
        (TopStable(4, Fraction(3), HALF, 2), {"a": 20, "b": 12, "c": 5}),
    ],
)
def test_stable_sets_follow_the_exact_distribution(mechanism, histogram):
    """Sets have their probabilities, and within a set every order is equally likely."""
    exact = distribution(mechanism, head_of(histogram, mechanism.k))
    assert fit(sampled(mechanism, histogram, 1500), exact) > SURE
    orders = sampled(mechanism, histogram, 1000, 1, labels_of)
    for stable, p in exact.items():
        if p > 0.1 and len(stable) > 1:
            shown = [order for order in orders if frozenset(order) == stable]
            uniform = {order: 1 / len(list(itertools.permutations(stable))) for order in itertools.permutations(stable)}
            assert fit(shown, uniform) > SURE


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_threshold_releases_follow_the_exact_distribution(noise):
    """UnkLap: which labels exceed the noisy threshold, and the value of one that did, summed over the threshold."""
    mechanism = UnknownLaplace(None, 2, 1, Fraction(3), TWENTIETH, noise=noise)
    histogram = {"a": 19, "b": 15, "c": 2}
    outcomes = sampled(mechanism, histogram, 1500)
    z = np.arange(-120, 160)
    law = noise_of(noise, Fraction(3))
    bars = pmf(law, z - 2 - 1 - mechanism.margin())
    above = {label: np.array([pmf(law, z[z > bar] - histogram[label]).sum() for bar in z]) for label in "ab"}
    exact = {}
    for a, b in itertools.product((True, False), repeat=2):
        chance = bars * (above["a"] if a else 1 - above["a"]) * (above["b"] if b else 1 - above["b"])
        exact["a" * a + "b" * b] = float(chance.sum())
    assert fit(["".join(sorted(label for label, _ in outcome)) for outcome in outcomes], exact) > SURE
    value = pmf(law, z - histogram["a"]) * (np.cumsum(bars) - bars)
    shown = [v for outcome in outcomes for label, v in outcome if label == "a"]
    assert fit(shown, dict(zip(z.tolist(), (value / value.sum()).tolist(), strict=True))) > SURE


def test_the_largest_of_a_known_domain_follow_the_exact_distribution():
    """KnownLap's top 2 of three, labels only: every triple of values, ties in every order."""
    mechanism = KnownLaplace(2, 3, 1, Fraction(1), noise="laplace", counts=False)
    histogram = {"a": 2, "b": 1, "c": 1}
    z = np.arange(-25, 28)
    masses = [pmf(noise_of("laplace", Fraction(1)), z - n) for n in histogram.values()]
    exact = {}
    for i, j, k in itertools.permutations(range(3)):
        x, y, w = masses[i], masses[j], masses[k]
        below = np.cumsum(w) - w
        upto = np.cumsum(y * (below + w / 2)) - y * (below + w / 2)  # y < x, w below y or tied with it
        tied = y * (below / 2 + w / 6)  # y = x: half of the orders; all three equal: a sixth
        exact["abc"[i], "abc"[j]] = float((x * (upto + tied)).sum())
    assert sum(exact.values()) == pytest.approx(1)
    assert fit(sampled(mechanism, histogram, 1500), exact) > SURE


@pytest.mark.parametrize(
    ("pcr", "histogram"),
    [
        (Pcr(Fraction(4), Fraction(9, 10), 4, HALF), {"a": 14, "b": 9, "c": 6}),
        (Pcr(Fraction(4), Fraction(9, 10), 4, HALF, 2, counts=False), {"a": 20, "b": 12, "c": 12}),
    ],
)
def test_count_release_is_distributed_as_a_sequence_of_single_calls(pcr, histogram):
    """A race at each level equals UnkGumb with k = 1 for every try: labels and cost, run by run."""
    mechanism = CountRelease(Cost(pcr.rho, pcr.delta), pcr.cutoff, HALF, pcr.tau, pcr.counts)
    exact = merged(transcripts(pcr, histogram, 1e-8), lambda run: (found_by(run[0]), round(float(run[1]), 9)))

    def view(labels, outcome):
        return labels_of(labels, outcome), round(float(outcome.cost.rho), 9)

    assert fit(sampled(mechanism, histogram, 500, 0, view), exact) > SURE


class Eager(TopStable):
    """A planted defect: tests the gap below the next rank, as the public code of the paper does."""

    def gaps(self, head):
        """Return the gaps of ranks 2..k + 1."""
        return TopStable(self.k + 1, self.epsilon, self.delta, self.rows_per_group).gaps(head)[1:]


class UnderstatesEpsilon(UnknownGumbel):
    """A planted defect: races with an epsilon five times what it claims."""

    def race(self, head, cutoff):
        """See `UnknownGumbel.race`."""
        return UnknownGumbel(self.k, self.head_limit, 5 * self.epsilon, self.delta, counts=None).race(head, cutoff)


AUDITS = [
    (UnknownGumbel(1, 1, Fraction(1), HALF, counts=None), {}, {"a": 1}, 1.0, True),
    (UnknownGumbel(2, 3, HALF, HALF, counts=None), {"a": 3, "b": 3}, {"a": 3, "b": 4}, 1.0, False),
    (
        UnknownGumbel(1, 4, HALF, HALF, counts=None, optimise_cutoff=True),
        {"a": 5},
        {"a": 5, "b": 1, "c": 1},
        1.0,
        False,
    ),
    (TopStable(1, Fraction(1), HALF), {}, {"a": 1}, 1.0, True),
    (UnknownLaplace(None, 1, 1, Fraction(2), HALF, noise="laplace"), {}, {"a": 1}, 0.5, True),
    (
        KnownLaplace(1, 3, 1, Fraction(1), noise="laplace", counts=False),
        {"a": 1, "b": 0, "c": 0},
        {"a": 1, "b": 1, "c": 0},
        1.0,
        False,
    ),
    (KnownGumbel(2, 3, HALF, counts=None), {"a": 1, "b": 0, "c": 0}, {"a": 1, "b": 1, "c": 0}, 1.0, False),
]


@pytest.mark.parametrize(("mechanism", "one", "other", "epsilon", "seen"), AUDITS)
def test_sampled_outcomes_show_no_more_than_delta(mechanism, one, other, epsilon, seen):
    """The lower bound for delta is below the claim, and above 0 where the claim is nearly attained."""
    sides = [sampled(mechanism, counts, 2000, i, labels_of) for i, counts in enumerate((one, other))]
    delta = float(mechanism.worst_cost().delta)
    bound = statistical_audit(*sides, epsilon)
    assert bound <= delta
    assert (bound > delta / 4) == seen


@pytest.mark.parametrize(
    ("wrong", "one", "other", "epsilon"),
    [
        (Eager(1, Fraction(1), Fraction(1, 10**5)), {"a": 200, "b": 200}, {"a": 200, "b": 201}, 1.0),
        (UnderstatesEpsilon(1, 2, HALF, TWENTIETH, counts=None), {"a": 9, "b": 9}, {"a": 9, "b": 10}, 0.5),
    ],
)
def test_sampled_outcomes_of_wrong_mechanisms_show_more_than_delta(wrong, one, other, epsilon):
    """The statistical audit can fail: it rejects from samples what the exact one rejects."""
    sides = [sampled(wrong, counts, 2000, i, labels_of) for i, counts in enumerate((one, other))]
    assert statistical_audit(*sides, epsilon) > wrong.delta
