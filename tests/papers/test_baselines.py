"""The baselines of count releases behave as published."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from discreet.mechanisms import CountRelease
from discreet.noise import KeyedBits
from discreet.values import Cost, ExactHead
from papers import baselines
from papers.user_items import UserItems
from tests.papers.checks import FAR, far_from


def table(*of_users):
    """Return a table from the items of each user."""
    pairs = [(user, item) for user, items in enumerate(of_users) for item in items]
    users, items = np.array(pairs, dtype=np.int64).T
    return UserItems("t", users, items)


class TestPlume:
    """The two-pass release with bounded contributions."""

    def test_bounding_keeps_at_most_the_bound_of_every_user(self):
        """Exactly min(own, most) pairs each, for rows in any order."""
        users = np.array([2, 0, 1, 0, 0, 1, 0, 3])
        keep = baselines.bounding_mask(users, 2, np.random.default_rng(1))
        assert np.bincount(users[keep]).tolist() == [2, 2, 1, 1]
        assert baselines.bounding_mask(users, 4, np.random.default_rng(1)).all()

    @pytest.mark.statistical
    def test_every_subset_is_equally_likely(self):
        """All six pairs of four items, for any other users; keeping the first items is rejected."""
        users = np.array([0, 0, 0, 1, 1, 1, 1, 2])
        rng = np.random.default_rng(2)
        trials = 6000
        seen = Counter(tuple(np.flatnonzero(baselines.bounding_mask(users, 2, rng)[3:7])) for _ in range(trials))
        fair = {(i, j): 1 / 6 for i in range(4) for j in range(i + 1, 4)}
        assert not far_from(seen, fair, trials)
        assert far_from({(0, 1): trials}, fair, trials)

    def test_the_percentile_is_over_users_with_items(self):
        """The inverse of the empirical distribution, an integer that occurs."""
        contributions = np.array([0, 0, 1, 2, 3, 10])
        found = [baselines.non_private_percentile(contributions, percent) for percent in (0, 50, 75, 76, 100)]
        assert found == [1, 2, 3, 10, 10]

    @pytest.mark.parametrize(("sigma", "most", "delta"), [(2.5, 1, 1e-6), (40.0, 450, 5e-9), (1.0, 30, 0.05)])
    def test_the_selection_loses_exactly_delta(self, sigma, most, delta):
        """*most* items of count 1 all stay below the threshold with probability 1 - delta (scipy)."""
        threshold = baselines.selection_threshold(sigma, most, delta)
        missed = -math.expm1(most * stats.norm.logsf(-(threshold - 1) / sigma))
        assert missed == pytest.approx(delta, rel=1e-6)

    @pytest.mark.statistical
    def test_items_are_selected_by_gaussian_noise_of_their_share_of_rho(self):
        """Of 4,000 items at one count the share of the normal distribution is found, and half of rho is left."""
        rho, delta, share, count = 0.5, 1e-6, 0.25, 9
        items = np.repeat(np.arange(4000), count)
        everyone = UserItems("one item each", np.arange(len(items)), items)
        release = baselines.plume(everyone, [(rho, delta)], 95, np.random.default_rng(3), share)[0]
        sigma = math.sqrt(1 / (2 * share * rho))
        threshold = 1 + sigma * stats.norm.isf(delta)
        expected = 4000 * stats.norm.sf((threshold - count) / sigma)
        assert abs(len(release.items) - expected) < FAR * math.sqrt(expected)
        # planted: the same rule with all of rho would find many more
        wrong = 4000 * stats.norm.sf((1 + stats.norm.isf(delta) - count) / 1.0)
        assert abs(wrong - expected) > 50 * math.sqrt(expected)
        assert release.sigma[0] == pytest.approx(math.sqrt(1 / (2 * (1 - share) * rho)))
        error = release.counts - count
        assert abs(error.std() / release.sigma[0] - 1) < FAR / math.sqrt(2 * len(error))

    def test_counts_are_those_of_the_table_bounded_on_what_was_found(self):
        """99 users share an item and one has 200 rare ones, which are not found: the bound has no effect."""
        heavy = table(*([[0]] * 2000), list(range(201)))
        release = baselines.plume(heavy, [(50.0, 1e-9)], 99, np.random.default_rng(4))[0]
        assert release.items.tolist() == [0]
        assert release.bounds == (1, 1)
        assert abs(release.counts[0] - 2001) <= 2

    def test_bounding_biases_counts_downwards(self):
        """Half of the users have four items, half one: with a bound of one, items lose three quarters of the former."""
        four = table(*([[0, 1, 2, 3]] * 2000), *([[0]] * 2000))
        low, high = (baselines.plume(four, [(1e4, 1e-9)], p, np.random.default_rng(5))[0] for p in (50, 95))
        assert low.bounds == (1, 1)
        assert low.counts == pytest.approx([2500, 500, 500, 500], abs=100)
        assert high.bounds == (4, 4)
        assert high.counts == pytest.approx([4000, 2000, 2000, 2000], abs=1)

    def test_nothing_found_is_an_empty_release(self):
        """A threshold on an empty release leaves it empty."""
        release = baselines.plume(table([0], [1]), [(0.01, 1e-9)], 95, np.random.default_rng(6))[0]
        assert len(release.items) == len(release.counts) == len(release.above(1).items) == 0

    def test_a_threshold_keeps_the_items_that_reach_it(self):
        """Items, counts and sigmas stay aligned."""
        cut = baselines.Counted(np.array([4, 5, 6]), np.array([9.0, 11.0, 10.0]), np.array([1.0, 2.0, 3.0])).above(10)
        assert (cut.items.tolist(), cut.counts.tolist(), cut.sigma.tolist()) == ([5, 6], [11, 10], [2, 3])


class TestCountReleaseAsPublished:
    """PCR in floating point."""

    HEAD = np.array([900, 700, 500, 400, 300, 220, 150, 90, 60, 30, 10, 3], dtype=np.int64)
    LIMIT = (0.05, 5e-9)

    def published(self, trials, constant):
        """Return how often each rank is released."""
        rng = np.random.default_rng(7)
        runs = [
            baselines.published_count_release(self.HEAD, self.LIMIT, 10_000, rng, constant=constant)
            for _ in range(trials)
        ]
        return Counter(rank for run in runs for rank in run.items.tolist()), runs

    @pytest.mark.statistical
    def test_with_our_constant_it_releases_what_our_mechanism_releases(self):
        """Each rank as often; with the paper's constant some ranks are released more often."""
        ours = CountRelease(Cost(Fraction(1, 20), Fraction(5, 10**9)), 10_000, Fraction(1, 10))
        head, trials = ExactHead(self.HEAD, 10_000), 150
        bits = [KeyedBits(b"a key of thirty-two public bytes", trial) for trial in range(trials)]
        found = Counter(rank for b in bits for rank in ours.release(head, b).positions.tolist())
        expected = {rank: n / 1500 for rank, n in self.published(1500, 1.645)[0].items()}
        assert not far_from(found, expected, trials)
        assert far_from(found, {rank: n / 1500 for rank, n in self.published(1500, 1.0)[0].items()}, trials)

    def test_the_budget_is_never_exceeded(self):
        """Counts alone cost less than rho, and no rank comes twice."""
        for run in self.published(100, 1.0)[1]:
            assert (1 / (2 * run.sigma**2)).sum() < self.LIMIT[0]
            assert len(set(run.items.tolist())) == len(run.items)

    def test_noise_has_the_published_sigma(self):
        """Ten per cent of the threshold at the level where an item was found: a halving ladder of sigmas."""
        sigmas = {sigma for run in self.published(50, 1.0)[1] for sigma in run.sigma.tolist()}
        level = math.sqrt(8 * self.LIMIT[0]) / 4096
        ladder = [0.1 * (1 + math.log(10_000 / (self.LIMIT[1] / 2000)) / (level * 2**n)) for n in range(13)]
        assert sigmas
        assert all(min(abs(sigma / step - 1) for step in ladder) < 1e-12 for sigma in sigmas)

    def test_items_at_or_below_the_cut_are_not_released(self):
        """The strict rule: only counts above the one below the cut take part."""
        head = np.array([10**6, 10**6, 10**5, 10**5], dtype=np.int64)
        run = baselines.published_count_release(head, (1.0, 1e-6), 3, np.random.default_rng(8))
        assert sorted(run.items.tolist()) == [0, 1]


class TestSelectionsAndOnePass:
    """The rivals of `benchmarks.accuracy_rivals`: their noise, thresholds and the share of items of single users."""

    table = table(*[[0]] * 400, *[[1]] * 30, [2])

    def test_one_pass_keeps_what_is_above_its_threshold(self):
        """With hardly any noise, counts are exact, and an item of one user is left out in all runs."""
        for laplace in (True, False):
            found = baselines.one_pass(
                self.table, np.ones(431, dtype=bool), 1, 0.01, 1e-8, np.random.default_rng(1), laplace
            )
            assert found.items.tolist() == [0, 1]
            assert np.abs(found.counts - [400, 30]).max() < 0.1

    @pytest.mark.parametrize("laplace", [True, False])
    def test_one_pass_releases_items_of_single_users_with_probability_delta(self, laplace):
        """1,000 such items at a delta of 0.05, of users with one item each."""
        alone = UserItems("alone", np.arange(20_000), np.arange(20_000))
        kept = np.ones(20_000, dtype=bool)
        found = baselines.one_pass(alone, kept, 1, 3.0, 0.05, np.random.default_rng(2), laplace)
        assert 0.045 < len(found.items) / 20_000 < 0.055

    def test_weighted_selection_divides_by_the_root_of_the_items(self):
        """A user's weights have an l2 norm of 1, and items come by their sums."""
        users = np.repeat(np.arange(100), 4)
        items = np.tile(np.arange(4), 100)
        single = UserItems("four", np.append(users, np.arange(100, 160)), np.append(items, np.full(60, 3)))
        kept = np.ones(460, dtype=bool)
        assert baselines.weighted_selection(single, kept, 4, 0.1, 1e-8, np.random.default_rng(3))[0] == 3
        assert not len(baselines.weighted_selection(single, kept, 4, 25.0, 1e-8, np.random.default_rng(3)))
        assert len(baselines.weighted_selection(single, kept, 4, 7.0, 1e-8, np.random.default_rng(3))) >= 3

    def test_the_second_pass_has_the_noise_of_its_mu(self):
        """The standard deviation is the root of the bound over mu."""
        found = baselines.two_passes(self.table, np.array([0, 1]), 0.5, 99, np.random.default_rng(4))
        assert found.sigma.tolist() == [2.0, 2.0]
        assert np.abs(found.counts - [400, 30]).max() < 10
