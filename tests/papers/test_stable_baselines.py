"""The baselines of stable sets behave as published, including the published errors."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import integrate, stats

from discreet.mechanisms import TopStable, UnknownGumbel
from discreet.testing.audit import distribution, head_of, race_distribution
from discreet.values import ExactHead
from papers import stable_baselines
from tests.papers.checks import far_from


class TestTopStable:
    """The threshold, the rule, and the rule that was run."""

    @pytest.mark.parametrize(
        ("n", "k", "epsilon", "delta_q", "threshold", "per_round", "bar"),
        [
            (107_092, 10, 0.8, 5.06e-7, 57.5, 0.0917, 152.4),
            (107_092, 50, 0.4, 9.94e-8, 128.0, 0.0218, 710.3),
            (51_406, 10, 1, 1.07e-6, 43.7, 0.1161, 114.3),
            (2_293, 3, 1, 8.48e-5, 29.8, 0.25, 36.3),
        ],
    )
    def test_parameters_as_run(self, n, k, epsilon, delta_q, threshold, per_round, bar):
        """Independent values by the public code's rule, to the given digits."""
        q, t = stable_baselines.threshold_as_run(epsilon, 1 / n, k)
        per = stable_baselines.epsilon_per_round_as_run(epsilon, k + 1, 1 / (2 * n))
        assert float(f"{q:.2e}") == pytest.approx(delta_q, rel=0.005)
        assert t == pytest.approx(threshold, abs=0.06)
        assert per == pytest.approx(per_round, abs=5.1e-5)
        assert 1 + math.log(k * n) / per == pytest.approx(bar, abs=0.06)
        exact = stable_baselines.theorem1_epsilon_per_round(epsilon, k + 1, 1 / (2 * n))
        assert 0 <= exact - per < 1e-4

    def test_the_published_threshold(self):
        """Independent values: epsilon .8, delta 1e-5, kbar 50."""
        delta_q, threshold = stable_baselines.published_threshold(0.8, 1e-5, 50)
        assert delta_q == pytest.approx(1.0752300e-7, rel=1e-6)
        assert threshold == pytest.approx(63.672861, abs=1e-5)
        assert stable_baselines.unstable_mass(1e-4, 0.74 / 0.63) == pytest.approx(1.695165e-4, rel=1e-4)

    @pytest.mark.parametrize(("epsilon", "delta", "k"), [(0.4, 1e-5, 50), (1.0, 1e-3, 3)])
    def test_an_unstable_gap_passes_the_published_threshold_with_less_than_delta(self, epsilon, delta, k):
        """The lemma is loose, but not by much: the exact tail (mpmath) uses 85 to 100 per cent of delta / k."""
        _, threshold = stable_baselines.published_threshold(epsilon, delta, k)
        a, b, t = mpmath.mpf(epsilon) * 63 / 200, mpmath.mpf(epsilon) * 37 / 100, mpmath.mpf(threshold)
        tail = (b**2 * mpmath.exp(-a * t) - a**2 * mpmath.exp(-b * t)) / (2 * (b**2 - a**2))
        assert 0.85 < tail / (delta / k) <= 1

    @pytest.mark.statistical
    @pytest.mark.parametrize(("rule", "shift"), [("published", 0), ("as run", 1)])
    def test_sizes_have_the_distribution_of_the_rule(self, rule, shift):
        """Against quadrature over the shared threshold; the other rule's distribution is rejected."""
        counts, k, epsilon, delta, trials = np.array([60, 45, 15, 9, 2]), 3, 0.5, 0.05, 40_000

        def expected(shift, threshold):
            gaps = [max(counts[i + shift] - counts[i + shift + 1] - 1, 0) for i in range(k)]
            bar, noise = stats.laplace(threshold, 1 / (0.37 * epsilon)), stats.laplace(0, 2 / (0.63 * epsilon))

            def mass(size):
                def density(z):
                    p = bar.pdf(z) * (noise.sf(z - gaps[size - 1]) if size else 1)
                    return p * math.prod(noise.cdf(z - gap) for gap in gaps[size:])

                return integrate.quad(density, threshold - 150, threshold + 150, points=[threshold], limit=400)[0]

            return {size: mass(size) for size in range(k + 1)}

        find = stable_baselines.published_threshold if rule == "published" else stable_baselines.threshold_as_run
        threshold = find(epsilon, delta, k)[1]
        rng = np.random.default_rng(9)
        sizes = Counter(stable_baselines.stable_sizes(counts, k, epsilon, delta, trials, rng, rule=rule).tolist())
        assert not far_from(sizes, expected(shift, threshold), trials)
        assert far_from(sizes, expected(1 - shift, threshold), trials)

    def test_the_rule_that_was_run_releases_one_of_two_tied_items(self):
        """Of {a: 200, b: 200} it returns one item always: not private. The published rule never does."""
        args = np.array([200, 200]), 1, 1.0, 1e-5, 500
        assert (stable_baselines.stable_sizes(*args, np.random.default_rng(1), rule="as run") == 1).all()
        assert (stable_baselines.stable_sizes(*args, np.random.default_rng(1)) == 0).all()

    @pytest.mark.statistical
    def test_the_discrete_sizes_are_those_of_our_mechanism(self):
        """Against the audit's exact distribution; the published, higher threshold is rejected."""
        mechanism = TopStable(3, Fraction(1, 2), Fraction(1, 20))
        head = head_of({"a": 60, "b": 45, "c": 18, "d": 2}, 3)
        exact = {len(labels): p for labels, p in distribution(mechanism, head).items()}
        scales = float(mechanism.threshold_noise().scale), float(mechanism.gap_noise().scale)

        def sizes(threshold):
            rng = np.random.default_rng(10)
            gaps = mechanism.gaps(head)
            return Counter(stable_baselines.discrete_stable_sizes(gaps, threshold, *scales, 40_000, rng).tolist())

        assert not far_from(sizes(mechanism.threshold()), exact, 40_000)
        assert far_from(sizes(mechanism.threshold() + 1), exact, 40_000)

    def test_the_largest_index_that_passed_wins(self):
        """Scanning from k down; 0 if none."""
        passed = np.array([[True, False, True, False], [False] * 4, [True] * 4])
        assert stable_baselines.largest_passed(passed).tolist() == [3, 0, 4]


class TestGumbel:
    """The Gumbel method, right and as it was run."""

    def test_theorem_1_is_the_least_of_three(self):
        """Each of the three is the least somewhere (mpmath)."""
        for epsilon, rounds, delta, which in ((0.3, 3, 1e-6, 0), (1.0, 10_000, 1e-6, 1), (0.01, 500, 1e-6, 2)):
            e, log = mpmath.mpf(epsilon), mpmath.log(1 / mpmath.mpf(delta))
            terms = [
                rounds * e,
                rounds * e * (mpmath.exp(e) - 1) / (mpmath.exp(e) + 1) + e * mpmath.sqrt(2 * rounds * log),
                rounds * e**2 / 2 + e * mpmath.sqrt(rounds * log / 2),
            ]
            assert min(terms) == terms[which]
            found = stable_baselines.theorem1_epsilon(epsilon, rounds, delta)
            assert found == pytest.approx(float(min(terms)), rel=1e-12)
            back = stable_baselines.theorem1_epsilon_per_round(found, rounds, delta)
            assert back == pytest.approx(epsilon, rel=1e-9)

    def test_the_right_cutoffs_have_the_distribution_of_our_mechanism(self):
        """Against the audit; the rule as run prefers the highest threshold, which ours likes least."""
        counts, k, epsilon, delta = np.array([30, 25, 20, 9, 4, 4, 1, 1, 0, 0, 0]), 2, Fraction(1, 4), Fraction(1, 100)
        mechanism = UnknownGumbel(k, 5 * k, epsilon, delta, counts=None, optimise_cutoff=True)
        exact = race_distribution(mechanism.cutoff_race(ExactHead(counts, 5 * k)), 1)
        cutoffs, shares = stable_baselines.cutoff_probabilities(counts, k, float(epsilon), float(delta), "right")
        found = {((int(cutoff) - k,), False): float(p) for cutoff, p in zip(cutoffs, shares, strict=True)}
        assert found == pytest.approx(exact)
        run, wrong = stable_baselines.cutoff_probabilities(counts, k, float(epsilon), float(delta), "as run")
        assert (run[0], run[-1]) == (k, 5 * k - 1)
        thresholds = counts[run - 1] + np.log(run / float(delta)) / float(epsilon)
        assert np.argmax(wrong) == np.argmax(thresholds)
        assert wrong / wrong[0] == pytest.approx(np.exp(0.25 * (thresholds - thresholds[0])))

    @pytest.mark.statistical
    def test_sets_have_the_distribution_of_our_mechanism(self):
        """Against the audit, for two cut-offs; leaving ties in is rejected where there is a tie with the cut."""
        counts, k, trials = np.array([14, 12, 12, 7, 7, 6, 0, 0, 0, 0, 0]), 2, 40_000
        mechanism = UnknownGumbel(k, 5 * k, Fraction(1, 2), Fraction(1, 5), counts=None)
        head = ExactHead(counts, 5 * k)

        def frequencies(cutoff, strict):
            rng = np.random.default_rng(11)
            cutoffs = np.full(trials, cutoff)
            sets = stable_baselines.gumbel_sets(counts, k, cutoffs, 0.5, 0.2, rng, strict=strict)
            return Counter(tuple(np.flatnonzero(row).tolist()) for row in sets)

        for cutoff in (4, 6):
            exact = Counter()
            for (order, _), p in race_distribution(mechanism.race(head, cutoff), k).items():
                exact[tuple(sorted(order))] += p
            assert not far_from(frequencies(cutoff, strict=True), exact, trials)
            if counts[cutoff - 1] == counts[cutoff]:
                assert far_from(frequencies(cutoff, strict=False), exact, trials)

    def test_metrics_by_hand(self):
        """P counts ranks 1..k; as run, rank k + 1 is a hit too; S is a ratio of sums."""
        counts = np.array([10, 6, 4, 1])
        chosen = np.array([[True, False, True, False], [True, True, False, False], [False] * 4])
        found = stable_baselines.metrics_of_ranks(counts, 2, chosen)
        assert found.proportion.tolist() == [0.5, 1, 0]
        assert found.proportion_run.tolist() == [1, 1, 0]
        assert found.relative_sum.tolist() == [14 / 16, 1, 0]
        sizes = stable_baselines.metrics_of_sizes(counts, 2, np.array([1, 2, 0]))
        assert sizes.proportion.tolist() == sizes.proportion_run.tolist() == [0.5, 1, 0]
        assert sizes.relative_sum.tolist() == [10 / 16, 1, 0]
