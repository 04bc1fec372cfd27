"""Exact audits of released sums: labels, counts and sums together, for one user with any items and sums in bounds."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from discreet.accounting.convert import delta_tight
from discreet.errors import InputError
from discreet.head_request import ROW_UNIT, SumBounds
from discreet.mechanisms import KnownGumbel, KnownLaplace, UnknownGumbel, UnknownLaplace, sums
from discreet.mechanisms.anchored import SharedNoise
from discreet.mechanisms.base import noise_of
from discreet.mechanisms.sums import (
    KnownGumbelSums,
    KnownLaplaceSums,
    ListedSums,
    UnknownGumbelSums,
    UnknownLaplaceSums,
)
from discreet.noise import DiscreteGaussian, DiscreteLaplace, KeyedBits
from discreet.testing.audit import distribution, divergence, head_of, merge_equal_ratios, moved_noise, pmf, radius
from discreet.testing.mechanisms import sums_divergence
from discreet.values import ExactHead

from .neighbours import LEEWAY, capped, histograms, named, shapes, sums_delta_of, users

pytestmark = pytest.mark.exact

HALF, TWENTIETH, TINY = Fraction(1, 2), Fraction(1, 20), Fraction(1, 10**6)
BOUNDS = [SumBounds(-1, 2), SumBounds(-3, 1), SumBounds(2, 3)]


@pytest.mark.parametrize("summed", BOUNDS)
@pytest.mark.parametrize(
    ("k", "counts", "tau", "epsilon", "delta"),
    [
        (1, None, 1, HALF, TINY),
        (1, "laplace", 2, HALF, TWENTIETH),
        (2, "laplace", 1, Fraction(2), TINY),
        (3, None, 1, HALF, TWENTIETH),
    ],
)
def test_sums_of_unknown_gumbel_are_private(k, counts, tau, epsilon, delta, summed):
    """K peels, counts and sums are (k + k/2 + k/2) epsilon-DP but for the mass that the race alone may lose."""
    ranking = UnknownGumbel(k, 3, epsilon, delta, tau, counts)
    mechanism = UnknownGumbelSums(ranking, summed, k, "laplace")
    claimed = mechanism.direct_epsilon()
    assert claimed == epsilon * (k + Fraction(k, 2) * (2 if counts else 1))
    found, where = sums_delta_of(mechanism, float(claimed), shapes(3, 1), summed, tau=tau)
    lost = capped(float(delta), float(epsilon), tau)
    assert found <= lost / (1 + lost) + LEEWAY, where
    assert found == pytest.approx(lost / (1 + lost), rel=1e-5), where


@pytest.mark.parametrize("summed", BOUNDS)
@pytest.mark.parametrize("groups", [1, 2])
def test_sums_of_users_with_few_items_cost_no_more_than_they_have(groups, summed):
    """Where a user has Delta items at most, three sums cost what Delta of them do."""
    mechanism = UnknownGumbelSums(UnknownGumbel(3, 3, HALF, TWENTIETH, 1, None), summed, groups, "laplace")
    claimed = mechanism.direct_epsilon()
    assert claimed == HALF * (3 + Fraction(groups, 2))
    found, where = sums_delta_of(mechanism, float(claimed), shapes(3, 2), summed, groups)
    assert found <= 0.05 + LEEWAY, where


def zcdp_holds(mechanism, start, summed, groups=None, **more):
    """Return whether delta at any epsilon is at most the lost mass and the conversion of the claimed rho."""
    rho, lost = float(mechanism.worst_cost().rho), float(mechanism.worst_cost().delta)
    start = list(start)
    return all(
        sums_delta_of(mechanism, epsilon, iter(start), summed, groups, **more)[0]
        <= lost + (1 - lost) * delta_tight(rho, epsilon) + LEEWAY
        for epsilon in (rho, 3 * rho + 0.5, 3 * rho + 2)
    )


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("summed", BOUNDS)
def test_sums_cost_their_stated_zcdp(summed, noise):
    """Every mechanism: approximate zCDP at the ranking's price and C^2 / 2 s^2 for each sum.

    Gaussian sums that share noise are audited in test_shared_noise_exact.py.
    """
    unknown = UnknownGumbelSums(UnknownGumbel(1, 2, Fraction(1), TWENTIETH, 1, noise), summed, 1, noise)
    assert unknown.worst_cost().rho == Fraction(3, 8)
    assert zcdp_holds(unknown, shapes(3, 1), summed)
    known = KnownGumbelSums(KnownGumbel(2, 2, Fraction(1), 1, None), summed, 2, noise)
    assert known.worst_cost().rho == Fraction(4, 8)
    if noise == "laplace":
        assert zcdp_holds(known, iter([(1, 0), (1, 1)]), summed, known_domain=True)
    bounded = UnknownLaplaceSums(UnknownLaplace(None, 2, 1, Fraction(3, 2), TWENTIETH, 1, noise), summed, 1, noise)
    assert abs(bounded.worst_cost().rho - Fraction(4, 9)) <= Fraction(2, 10**18)
    assert zcdp_holds(bounded, histograms(2, 2), summed, 1)
    for moved in (1, 2):
        listed = ListedSums(2, summed, moved, Fraction(3), noise)
        assert abs(listed.worst_cost().rho - Fraction(moved * summed.most**2, 18)) <= Fraction(1, 10**18)
        if isinstance(listed.released_noise(), SharedNoise):
            with pytest.raises(InputError, match="share a part of their noise"):
                zcdp_holds(listed, iter([(1, 0)]), summed, known_domain=True)
        else:
            assert zcdp_holds(listed, iter([(1, 0)]), summed, moved, known_domain=True)


@pytest.mark.parametrize("summed", BOUNDS)
@pytest.mark.parametrize("groups", [1, 2])
def test_sums_of_unknown_laplace_are_private(summed, groups):
    """(Delta tau/b + Delta C/s, delta)-DP, with the noisy threshold and all sums above it."""
    ranking = UnknownLaplace(None, 2, groups, Fraction(2), TWENTIETH, 1, "laplace")
    mechanism = UnknownLaplaceSums(ranking, summed, groups, "laplace")
    assert mechanism.direct_epsilon() == groups
    found, where = sums_delta_of(mechanism, float(mechanism.direct_epsilon()), histograms(2, 2), summed, groups)
    assert 0.05 / 20 < found <= 0.05 + LEEWAY, where


@pytest.mark.parametrize("summed", BOUNDS)
def test_sums_of_known_domains_are_private(summed):
    """Pure DP without lost mass; without a race a slightly smaller epsilon is not enough."""
    tight = [
        KnownLaplaceSums(KnownLaplace(None, 2, 2, Fraction(2), 1, "laplace"), summed, 2, "laplace"),
        ListedSums(2, summed, 2, Fraction(summed.most * 2), "laplace"),
        ListedSums(2, summed, 1, Fraction(summed.most * 2), "laplace"),
    ]
    for mechanism in (*tight, KnownGumbelSums(KnownGumbel(2, 2, HALF, 1, "laplace"), summed, 2, "laplace")):
        epsilon = float(mechanism.direct_epsilon())
        world = [(1, 0)], summed, mechanism.moved
        assert sums_delta_of(mechanism, epsilon, *world, known_domain=True)[0] <= LEEWAY
        if mechanism in tight:
            assert sums_delta_of(mechanism, epsilon - 0.01, *world, known_domain=True)[0] > 1e-4


@pytest.mark.parametrize(("all_of_them", "accepted"), [(False, True), (True, False)])
def test_the_sum_of_the_one_that_is_returned_costs_one_sum(all_of_them, accepted):
    """KnownLap with k = 1 and a user with both items: noisy counts and the winner's sum; both sums cost more."""
    mechanism = KnownLaplaceSums(KnownLaplace(1, 2, 2, Fraction(2), 1, "laplace"), SumBounds(-1, 2), 1, "laplace")
    assert mechanism.direct_epsilon() == Fraction(3, 2)
    z = np.arange(-90, 100)
    counted = noise_of("laplace", Fraction(2))
    one, other = (np.outer(pmf(counted, z - a), pmf(counted, z - b)) for a, b in ((3, 2), (4, 3)))
    wins = np.sign(z[:, None] - z[None, :]) / 2 + 0.5  # of the first; ties are broken by a coin
    moved = [moved_noise(mechanism.sum_noise(), by) for by in (2, -1)]
    if all_of_them:
        shown = [(np.ones_like(wins), tuple(np.outer(a, b).ravel() for a, b in zip(*moved, strict=True)))]
    else:
        shown = [(wins, moved[0]), (1 - wins, moved[1])]
    found = np.zeros(2)
    for chance, (before, after) in shown:
        p, q = ((chance * w)[:, :, None] * s for w, s in ((one, before), (other, after)))
        found += [np.maximum(a - np.exp(1.5) * b, 0).sum() for a, b in ((p, q), (q, p))]
    assert (found.max() <= LEEWAY) == accepted


class NoiseForCounts(KnownGumbelSums):
    """Sums get the noise of counts."""

    def sum_noise(self, _most=None):
        """Return noise calibrated to tau, which is unrelated to what a user adds to a sum."""
        return noise_of(self.noise, self.ranking.value_scale(self.ranking.rows_per_group))


class Upwards(SumBounds):
    """A planted defect: only the upper bound is considered."""

    @property
    def most(self):
        """Return |high|."""
        return abs(self.high)


class Free(KnownGumbelSums):
    """A planted defect: sums cost nothing."""

    def direct_epsilon(self):
        """Return the ranking's."""
        return self.ranking.direct_epsilon()

    def worst_cost(self):
        """Return the ranking's."""
        return self.ranking.worst_cost()


RANKING, SUMMED = KnownGumbel(1, 2, Fraction(1), 1, None), SumBounds(-2, 1)
SOUND = KnownGumbelSums(RANKING, SUMMED, 1, "laplace")
DEFECTS = [
    (SOUND, SOUND, True),
    (NoiseForCounts(RANKING, SUMMED, 1, "laplace"), SOUND, False),
    (upwards := KnownGumbelSums(RANKING, Upwards(-2, 1), 1, "laplace"), upwards, False),
    (free := Free(RANKING, SUMMED, 1, "laplace"), free, False),
]
"""What releases, what says how much it costs, and whether that is true."""


@pytest.mark.parametrize(("mechanism", "claim", "accepted"), DEFECTS)
def test_sums_with_too_little_noise_or_too_small_a_price_are_rejected(mechanism, claim, accepted):
    """The audit can fail: noise for counts, for the upper bound only, or free of charge is not epsilon-DP."""
    found, _ = sums_delta_of(mechanism, float(claim.direct_epsilon()), iter([(0, 3)]), SUMMED, known_domain=True)
    assert (found <= LEEWAY) == accepted


@pytest.mark.parametrize(("mechanism", "claim", "accepted"), DEFECTS)
def test_sums_with_too_small_a_zcdp_price_are_rejected(mechanism, claim, accepted):
    """The audit can fail for Gaussian sums and their rho."""
    rho = float(replace(claim, noise="gaussian").worst_cost().rho)
    gaussian = replace(mechanism, noise="gaussian")
    assert accepted == all(
        sums_delta_of(gaussian, epsilon, iter([(1, 1)]), SUMMED, known_domain=True)[0]
        <= delta_tight(rho, epsilon) + LEEWAY
        for epsilon in (0.5, 1, 2)
    )


def test_more_items_than_declared_break_a_price_by_items():
    """Delta must be enforced: two items of a user, where one is declared, cost more than claimed."""
    for mechanism in (
        KnownLaplaceSums(KnownLaplace(None, 2, 1, Fraction(2), 1, "laplace"), SUMMED, 1, "laplace"),
        ListedSums(2, SUMMED, 1, Fraction(4), "laplace"),
    ):
        epsilon, start = float(mechanism.direct_epsilon()), [(3, 3)]
        assert sums_delta_of(mechanism, epsilon, iter(start), SUMMED, 1, known_domain=True)[0] <= LEEWAY
        assert sums_delta_of(mechanism, epsilon, iter(start), SUMMED, 2, known_domain=True)[0] > 0.01


@pytest.mark.parametrize("laplace", [True, False])
@pytest.mark.parametrize("moved", [1, 2, -3])
def test_outcomes_of_equal_likelihood_ratio_can_be_merged(laplace, moved):
    """Any divergence of noise and shifted noise is unchanged, with far fewer outcomes."""
    noise = DiscreteLaplace(Fraction(3)) if laplace else DiscreteGaussian(Fraction(9))
    z = np.arange(-radius(noise) - 3, radius(noise) + 4)
    one, other = (dict(enumerate(pmf(noise, z - at).tolist())) for at in (0, moved))
    few = [dict(enumerate(cells.tolist())) for cells in moved_noise(noise, moved)]
    assert (len(few[0]) == abs(moved) + 1) == laplace
    for epsilon in (0.0, 0.1, 0.4):
        assert divergence(*few, epsilon) == pytest.approx(divergence(one, other, epsilon), abs=1e-12)
    assert [
        len(cells)
        for cells in merge_equal_ratios(np.array([[0.1, 0.2], [0.4, 0.3]]), np.array([[0.2, 0.4], [0.1, 0.3]]))
    ] == [3, 3]


@pytest.mark.parametrize("known", [True, False])
def test_sums_divergence_equals_brute_force_over_all_values(known):
    """Two returned labels with counts and sums, value by value."""
    scale = Fraction(1, 2) * 2
    if known:
        ranking = KnownGumbel(1, 2, Fraction(2), 1, "laplace")
        mechanism = KnownGumbelSums(ranking, SumBounds(-1, 2), 1, "laplace")
    else:
        ranking = UnknownGumbel(1, 1, Fraction(2), HALF, 1, "laplace")
        mechanism = UnknownGumbelSums(ranking, SumBounds(-1, 2), 1, "laplace")
    heads = [
        head_of(counts, ranking.head_limit, known_domain=known, sums=sums)
        for counts, sums in (({"a": 3, "b": 0}, {"a": 4, "b": 0}), ({"a": 4, "b": 1}, {"a": 6, "b": -1}))
    ]
    z = np.arange(-45, 60)
    p = []
    for head in heads:
        outcomes = {}
        values = dict(zip(head.labels, zip(head.counts.tolist(), head.sums.tolist(), strict=True), strict=True))
        for outcome, mass in distribution(ranking, head).items():
            if not outcome[1]:
                outcomes[outcome] = mass
                continue
            (count, total) = values[outcome[1][0]]
            joint = np.outer(pmf(DiscreteLaplace(scale), z - count), pmf(DiscreteLaplace(2 * scale), z - total))
            outcomes |= {(outcome, i): mass * cell for i, cell in enumerate(joint.ravel().tolist())}
        p.append(outcomes)
    for epsilon in (0.5, 2.0, 4.0):
        assert sums_divergence(mechanism, *heads, epsilon) == pytest.approx(
            divergence(*p, epsilon), rel=1e-9, abs=1e-11
        )


def test_all_possible_users_are_enumerated():
    """Three labels, two values and absence: 26 users; of two labels only, 18; with up to two rows, 124."""
    assert len(set(users(3, SumBounds(1, 2)))) == 26
    assert len(set(users(3, SumBounds(1, 2), groups=2))) == 18
    assert len(set(users(3, SumBounds(-1, 0), tau=2))) == 124


def test_releases_that_cannot_be_audited_are_refused():
    """The k largest of noisy counts, and heads without sums."""
    largest = KnownLaplaceSums(KnownLaplace(1, 2, 2, Fraction(2)), SUMMED, 1)
    head = head_of(named((2, 1)), 2, sums=named((0, 0)))
    with pytest.raises(InputError, match="not enumerated"):
        sums_divergence(largest, head, head, 1.0)
    with pytest.raises(InputError, match="heads with sums"):
        sums_divergence(SOUND, head_of(named((2, 1)), 2), head, 1.0)


class MovedNoise:
    """Stands for `with_noise`; records the noise of values, and by how much one user moves them."""

    def __init__(self):
        self.calls = []

    def __call__(self, exact, noise, bits, label):
        """As `with_noise`."""
        self.calls.append((noise, exact))
        return exact + noise.draw(bits, label, len(exact))


def largest_cost_of_averages(monkeypatch, summed, noise):
    """Return what a user moves at most in the noisy values of an average, in multiples of its rho and its epsilon."""
    mechanism = ListedSums(1, summed, 1, Fraction(3 * summed.most), noise)
    low, high = summed.units
    worst_rho, worst_epsilon = 0.0, 0.0
    for total in range(ROW_UNIT * low, ROW_UNIT * high + 1, ROW_UNIT // 2):
        for rows in range(0, summed.most_rows + 1, ROW_UNIT // 2):
            calls = []
            for user in ((0, 0), (total, rows)):
                record = MovedNoise()
                monkeypatch.setattr(sums, "with_noise", record)
                head = ExactHead(np.array([5]), 1, None, np.array([2**61 + user[0]]))  # floats would round its products
                head = replace(head, rows=np.array([2**60 + user[1]]))
                mechanism.release(head, KeyedBits(bytes(32), "differences"))
                calls.append(record.calls)
            moved = [(n, abs(int(after[0] - before[0]))) for (n, before), (_, after) in zip(*calls, strict=True)]
            worst_rho = max(worst_rho, float(sum(n.rho(shift) for n, shift in moved)))
            if noise == "laplace":
                worst_epsilon = max(worst_epsilon, float(sum(shift / n.scale for n, shift in moved)))
    epsilon = mechanism.direct_epsilon()
    return worst_rho / float(mechanism.worst_cost().rho), worst_epsilon / float(epsilon or 1)


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("summed", [SumBounds(0, 7, rows=2), SumBounds(2, 3, rows=5), SumBounds(-3, 2, rows=2)])
def test_averages_cost_no_more_than_their_sum_and_their_rows(monkeypatch, summed, noise):
    """All users with a sum and a number of rows within bounds, at noisy sums, rows and, above 0, their differences."""
    rho, epsilon = largest_cost_of_averages(monkeypatch, summed, noise)
    assert rho == pytest.approx(1)
    assert epsilon == pytest.approx(1 if noise == "laplace" else 0)


@pytest.mark.parametrize(
    ("summed", "planted", "expected"),
    [
        (SumBounds(-3, 2, rows=2), {"difference_noise": ListedSums.sum_noise}, 3),
        (SumBounds(0, 7, rows=2), {"_difference_factors": lambda _: (1, 0)}, 1.5),
        (SumBounds(0, 7, rows=2), {"_difference_factors": lambda _: (2, -7)}, 3),
    ],
)
def test_differences_that_one_user_moves_further_are_noticed(monkeypatch, summed, planted, expected):
    """Of sums of both signs, of sums alone, and sums in place of differences."""
    for name, value in planted.items():
        monkeypatch.setattr(sums, name, value)
    assert largest_cost_of_averages(monkeypatch, summed, "gaussian")[0] >= expected - 1e-9
