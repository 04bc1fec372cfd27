"""Released numbers minus the true ones: their variance is the stated one, and no smaller than what is charged allows.

Every mechanism draws its real noise, with fixed keys, many times or for many items. Noise that costs rho on a value
that one user moves by 1 has a variance of 1 / 2 rho at least.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

import discreet
from discreet.head_request import ROW_UNIT, SumBounds
from discreet.mechanisms import (
    CountRelease,
    KnownGumbel,
    KnownLaplace,
    Request,
    SelectVerify,
    TwoRound,
    UnknownGumbel,
    UnknownLaplace,
    two_round,
)
from discreet.mechanisms.auto import Auto
from discreet.mechanisms.sums import (
    KnownGumbelSums,
    KnownLaplaceSums,
    ListedSums,
    UnknownGumbelSums,
    UnknownLaplaceSums,
)
from discreet.mechanisms.two_round import COST_UNIT
from discreet.noise import KeyedBits
from discreet.testing.pairs import ArrayPairs
from discreet.values import Cost, ExactHead, Sensitivity

from .draws import release

pytestmark = pytest.mark.statistical

SECRET = b"a secret for what is released..."
M = 3000
"""Items of a release."""

TRUE = np.append(10**6 - 100 * np.arange(M), 10)
"""So far apart that no noise decides which are released; the last is the one below the cut."""

LIMIT = Cost(Fraction(2), Fraction(1, 10**6))
SURE = 1e-3
"""Keys are fixed: a p-value below this is a wrong distribution, or one look in a thousand at a right one."""


def bits(run=0):
    """Return bits that follow from *run*."""
    return KeyedBits(SECRET, run)


def assert_distributed(z, law="gaussian"):
    """Assert that *z* have variance 1 within four standard errors of an estimate, and the distribution of *law*."""
    kurtosis, of = (3, stats.norm()) if law == "gaussian" else (6, stats.laplace(scale=1 / math.sqrt(2)))
    assert abs((z**2).mean() - 1) < 4 * math.sqrt((kurtosis - 1) / len(z))
    assert stats.kstest(z, of.cdf).pvalue > SURE


def without_shared(errors, stated, shared):
    """Return M errors and stated errors without the shared part, and the factor of the variance."""
    if shared is None:
        return errors, stated, 1.0
    assert abs(errors.mean()) < 4 * shared
    return errors - errors.mean(), np.sqrt(stated**2 - shared**2), ((1 + math.sqrt(M)) / (2 * math.sqrt(M))) ** 2


COUNTED = [
    (KnownLaplace, Request(None, M, Sensitivity(M), known_domain=True), 1),
    (KnownLaplace, Request(None, M, Sensitivity(M), noise="laplace", known_domain=True, independent=True), 1),
    (UnknownLaplace, Request(None, M, Sensitivity(M)), 1),
    (UnknownLaplace, Request(None, M, Sensitivity(M), noise="laplace"), 1),
    (KnownGumbel, Request(M, M, known_domain=True), 2),
    (KnownGumbel, Request(M, M, noise="laplace", known_domain=True, independent=True), 2),
    (UnknownGumbel, Request(M, M), 2),
    (UnknownGumbel, Request(M, M, noise="laplace"), 2),
]


@pytest.mark.parametrize(("kind", "request_", "prices"), COUNTED)
def test_counts_have_the_stated_error_and_the_one_that_is_charged(kind, request_, prices):
    """All counts of one release: M values share the charge, or M peels and M values."""
    outcome = kind.within_cost(LIMIT, request_).release(
        ExactHead(TRUE[: M if request_.known_domain else None], M), bits()
    )
    assert len(outcome.positions) == M
    errors = outcome.counts - TRUE[outcome.positions]
    rho = float(outcome.cost.rho) / (prices * M)
    least = 1 / (2 * rho) if request_.noise == "gaussian" else 1 / rho  # b of Laplace noise costs 1 / 2 b^2
    errors, own, factor = without_shared(errors, outcome.std_errors, outcome.shared_error)
    least *= factor
    assert (outcome.shared_error is None) == (request_.noise == "laplace" or not request_.known_domain)
    assert_distributed(errors / own, request_.noise)
    assert outcome.std_errors[0] ** 2 == pytest.approx(least, rel=0.01)


@pytest.mark.parametrize(
    "mechanism",
    [
        KnownLaplace(None, 3, 3, Fraction(9), 2),
        KnownGumbel(3, 3, Fraction(1, 3), 2),
        KnownLaplace(1, 3, 3, Fraction(9)),
    ],
)
def test_counts_that_share_noise_have_the_stated_covariance(mechanism):
    """Over 4,000 releases; counts of the largest item alone have it as well, but there is only one."""
    true = np.array([5000, 3000, 1000])
    runs = [mechanism.release(ExactHead(true, 3), bits(run)) for run in range(4000)]
    errors = np.stack([outcome.counts - true[outcome.positions] for outcome in runs])
    stated = np.full((errors.shape[1],) * 2, runs[0].shared_error ** 2)
    np.fill_diagonal(stated, runs[0].std_errors ** 2)
    assert (errors.T @ errors) / len(runs) == pytest.approx(stated, rel=0.12)  # 4 standard errors
    assert np.mean([outcome.low <= true[outcome.positions] for outcome in runs]) > 0.95


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("kind", [KnownGumbelSums, UnknownGumbelSums, KnownLaplaceSums, UnknownLaplaceSums, ListedSums])
def test_sums_have_the_stated_error_and_the_one_that_is_charged(kind, noise):
    """A sum that one user moves by 7 has seven times the error of a count of the same price."""
    is_known = kind not in (UnknownGumbelSums, UnknownLaplaceSums)
    k = M if kind in (KnownGumbelSums, UnknownGumbelSums) else None
    counts = kind is not ListedSums
    bounds = Sensitivity(None if k else M)
    request_ = Request(k, M, bounds, counts=counts, noise=noise, known_domain=is_known, summed=SumBounds(0, 7))
    request_ = replace(request_, independent=noise == "laplace")
    true = TRUE[: M if is_known else None]
    sums = 5 * true[::-1].copy()
    outcome = kind.within_cost(LIMIT, request_).release(ExactHead(true, M, None, sums), bits())
    assert len(outcome.positions) == M
    measured = outcome.measured
    assert (outcome.shared_error is None) == (noise == "laplace" or not is_known)
    errors = measured.values - sums[outcome.positions]
    errors, own, factor = without_shared(errors, measured.std_errors, outcome.shared_error)
    assert_distributed(errors / own, noise)
    prices = (2 if counts else 1) + (k is not None)
    rho = float(outcome.cost.rho) / (prices * M) / 49
    least = 1 / (2 * rho) if noise == "gaussian" else 1 / rho
    assert measured.std_errors[0] ** 2 == pytest.approx(least * factor, rel=0.01)


def test_averages_have_the_error_of_a_quotient():
    """The noise of sum and count together, to the first order."""
    request_ = Request(M, M, counts=False, summed=SumBounds(0, 7, rows=1))
    rows = ROW_UNIT * TRUE
    outcome = UnknownGumbelSums.within_cost(LIMIT, request_).release(
        ExactHead(TRUE, M, None, 5 * rows, rows=rows), bits()
    )
    assert_distributed((outcome.measured.values - 5) / outcome.measured.std_errors)


def test_counts_of_count_release_have_the_stated_error():
    """Whatever the level at which an item was found."""
    mechanism = CountRelease.within_cost(Cost(Fraction(1, 10), Fraction(1, 10**6)), Request(None, 2000))
    z = []
    for run in range(12):
        outcome = mechanism.release(ExactHead(TRUE[:201] // 500, 2000), bits(run))
        z.append((outcome.counts - (TRUE // 500)[outcome.positions]) / outcome.std_errors)
    assert len(np.concatenate(z)) > 1000
    assert_distributed(np.concatenate(z))


def test_every_step_of_the_head_has_the_error_that_is_charged_and_counts_no_more_than_stated():
    """All that is drawn, over the errors that test_charges.py computes the charge from; and the released counts.

    Stated errors allow for anchors that a few items know better than they assume: the squares are 0.63 of them here.
    """
    mechanism = SelectVerify.within_cost(Cost(Fraction(1, 10), Fraction(1, 10**6)), Request(None, 30))
    true = 40_000 + 4_000 * np.arange(12)[::-1]  # so far apart that their order says nothing
    released, steps = [], {}
    for run in range(200):
        outcome, draws = release(mechanism, ExactHead(true, 30), run)
        assert len(outcome.positions) == 12
        released.append((outcome.counts - true[outcome.positions]) / outcome.std_errors)
        for draw in draws.added.values():
            z = draw.values / np.sqrt([float(variance) for variance in draw.variances])
            steps.setdefault(draw.label.split("/")[0], []).append(z)
    assert set(steps) == {"anchor", "tail", "counts", "second anchor", "second counts"}
    for z in map(np.concatenate, steps.values()):
        assert len(z) >= 200
        assert_distributed(z)
    assert 0.5 < (np.array(released) ** 2).mean() < 0.75


def one_item_each(items, users=400):
    """Return pairs of users with one item each: nothing is clipped, so that all of an error is noise."""
    return ArrayPairs(np.arange(items * users), np.repeat(np.arange(items), users))


class TestTwoRounds:
    """Two rounds, and what they add at every step."""

    mechanism = TwoRound.at_epsilon(Fraction(1, 2), Fraction(1, 10**8), Request(None, 0))

    def test_counts_have_the_stated_error_and_not_less_than_is_charged(self):
        """A user of one item pays mu^2 in all, of which the two rounds use what the histograms leave."""
        items = 1500
        outcome = self.mechanism.release(one_item_each(items), bits())
        assert len(outcome.positions) == items
        errors = outcome.counts - 400
        assert_distributed(errors / outcome.std_errors)
        left = float(self.mechanism.mu**2) * (1 - 3 * 0.008 - 0.004)
        assert 1 / left < outcome.std_errors.min() ** 2 < 1.3 / left
        assert errors.var() > (1 - 4 * math.sqrt(2 / items)) / left

    def test_every_step_adds_the_noise_it_is_charged_for(self, monkeypatch):
        """Four histograms and two rounds: exact values as they come, noisy values as they go."""
        steps = {}
        add = two_round.add_noise

        def seen(values, unit, precisions, drawn, label):
            noisy = add(values, unit, precisions, drawn, label)
            shares = {"first": budget.first, "second": budget.second, "rest": budget.rest}
            charged = shares.get(label, budget.histogram)
            steps.setdefault(label, []).append((noisy - values) / (unit * math.sqrt(COST_UNIT / charged)))
            return noisy

        def in_batches(batches, n, unit, precision, drawn, label):
            whole = two_round.RoundedGaussians(drawn, label, COST_UNIT * unit**2, n)
            for values in batches:
                noisy = values + whole.draw(np.full(len(values), precision))
                steps.setdefault(label, []).append((noisy - values) / (unit * math.sqrt(COST_UNIT / budget.first)))
                yield noisy

        monkeypatch.setattr(two_round, "add_noise", seen)
        monkeypatch.setattr(two_round, "add_noise_in_batches", in_batches)
        budget, pairs = self.mechanism.budget, one_item_each(60)
        for run in range(60):
            self.mechanism.release(pairs, bits(run))
        assert {label: len(np.concatenate(z)) for label, z in steps.items()} == {
            **dict.fromkeys(("sizes", "scales"), 60 * 18),
            **dict.fromkeys(("rest", "clipping"), 60 * 26),
            **dict.fromkeys(("first", "second"), 60 * 60),
        }
        for z in steps.values():
            assert_distributed(np.concatenate(z))


class TestAuto:
    """The gap, which is published in words, and the counts of the branches."""

    mechanism = Auto.at_epsilon(Fraction(1), Fraction(1, 10**8), Request(6, 100))  # noise much wider than the integers
    sizes = tuple(12_000 - 1_200 * n for n in range(6))

    def test_the_gap_has_the_error_that_is_charged(self):
        """N(0, 100 / mu^2) of the two rounds and the gap together, rounded."""
        pairs = ArrayPairs(np.arange(sum(self.sizes)), np.repeat(np.arange(6), self.sizes))
        gaps = []
        for run in range(400):
            outcome = self.mechanism.release(pairs, bits(run))
            assert outcome.chosen == "unknown-gumbel"
            gaps.append(int(outcome.why.split(" above ")[0].split(" about ")[1].replace(",", "")))
        rho = float(outcome.cost.rho - 12 * self.mechanism.race.epsilon**2 / 8)  # of the gap and the histogram
        charged = rho - self.mechanism.two_round.budget.histogram / (2 * COST_UNIT)
        assert_distributed((np.array(gaps) - self.sizes[-1]) * math.sqrt(2 * charged))

    def test_counts_of_a_race_have_the_stated_error(self):
        """The same as those of unknown-gumbel alone."""
        pairs = ArrayPairs(np.arange(sum(self.sizes)), np.repeat(np.arange(6), self.sizes))
        z = []
        for run in range(200):
            outcome = self.mechanism.release(pairs, bits(run))
            z.append((outcome.counts - pairs.head(100).counts[outcome.positions]) / outcome.std_errors)
        assert_distributed(np.concatenate(z))


def in_pairs(items, users):
    """Return a table of users with one item each, every row of which is there twice."""
    numbers = np.arange(items * users)
    return discreet.scan(pa.table({"user": np.tile(numbers, 2), "item": np.tile(numbers // users, 2)}), user="user")


def test_the_default_release_from_a_table_has_the_stated_errors():
    """From rows to counts: one round over DuckDB's pairs."""
    released = in_pairs(500, 1200).release("item", epsilon=0.05, bits=bits())
    assert (released.chosen, len(released)) == ("light", 500)
    assert_distributed((released.counts - 1200) / released.std_errors, "laplace")
    assert released.std_errors[0] == pytest.approx(math.sqrt(2) / (0.889 * 0.05), rel=0.01)


def test_a_release_within_a_shared_budget_has_the_stated_errors():
    """From rows to counts: two rounds over DuckDB's pairs."""
    budget = discreet.Budget(0.5, 1e-8)
    released = in_pairs(600, 400).release("item", epsilon=0.5, budget=budget, bits=bits())
    assert (released.chosen, len(released)) == ("two-round", 600)
    assert_distributed((released.counts - 400) / released.std_errors)


def test_the_default_top_from_a_table_has_the_stated_errors():
    """From rows to counts: the race after the gap. Counts share a part of their noise, so one of each run is taken."""
    sizes = 4000 - 100 * np.arange(20)
    users = np.arange(sizes.sum())
    table = discreet.scan(pa.table({"user": users, "item": np.repeat(np.arange(20), sizes)}), user="user")
    z = []
    for run in range(60):
        top = table.top("item", k=20, epsilon=4, bits=bits(run), head_limit=1000)
        assert (top.chosen, len(top)) == ("unknown-gumbel", 20)
        z.append((top.counts[run % 20] - sizes[top.labels["item"].to_numpy()[run % 20]]) / top.std_errors[0])
    assert_distributed(np.array(z))
