"""Charges, computed again in exact fractions from the noise that was drawn and the definitions in docs/mechanisms."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest

from discreet.head_request import ROW_UNIT, SumBounds
from discreet.mechanisms import (
    CountRelease,
    KnownAuto,
    KnownGumbel,
    KnownLaplace,
    Request,
    SelectVerify,
    TopStable,
    TwoRound,
    UnknownGumbel,
    UnknownLaplace,
)
from discreet.mechanisms.auto import Auto
from discreet.mechanisms.sums import ListedSums, UnknownGumbelSums, UnknownLaplaceSums
from discreet.mechanisms.two_round import COST_UNIT, UNCLIPPED
from discreet.noise.bits import PrefixedBits
from discreet.testing.pairs import ArrayPairs
from discreet.values import WEIGHT_UNIT, Cost, ExactHead, Sensitivity

from .draws import RecordedBits, release

pytestmark = pytest.mark.exact

LIMIT = Cost(Fraction(1, 5), Fraction(1, 10**6))
STEEP = [50_000 // (n + 1) for n in range(11)]
HEADS = [[], [3], [40_000], STEEP, [40_000] * 5 + [3], [900, 850, 800, 750, 60, 20]]
RUNS = range(6)
TWO_ITEMS = Sensitivity(2)


def head(counts, limit, *, known=False, sums=None):
    """Return a head of *counts*; a known domain has *limit* of them."""
    listed = np.array(((counts + [0] * limit)[:limit] if known else counts[: limit + 1]), dtype=np.int64)
    return ExactHead(listed, limit, None, None if sums is None else listed * sums)


def releases(mechanism, request, sums=None):
    """Return (head, outcome, draws) of releases from all heads."""
    for counts in HEADS:
        for run in RUNS:
            given = head(counts, mechanism.head_limit, known=request.known_domain, sums=sums)
            yield given, *release(mechanism, given, run)


def assert_charged(outcome, rho, steps=4000):
    """Assert that *rho* is charged, each step rounded up to the quantum of costs."""
    assert 0 <= outcome.cost.rho - rho <= Fraction(steps, 10**18)


def peels(raced, tau, ended):
    """Return the cost of the returned items of a race, and of its end if it was seen."""
    return (len(raced.order) + ended) * (raced.race.scale * tau) ** 2 / 8


NOISES = [("gaussian", 1, True), ("laplace", 1, True), ("gaussian", 3, True), ("gaussian", 1, False)]


@pytest.mark.parametrize(("noise", "tau", "counts"), NOISES)
@pytest.mark.parametrize("optimise", [False, True])
def test_unknown_gumbel_pays_the_peels_the_cutoff_and_the_counts_it_drew(noise, tau, counts, optimise):
    """A peel for each item, for the threshold if it was reached, and for the cut-off; noise for each count."""
    request = Request(4, 9, Sensitivity(None, tau), counts, noise, optimise_cutoff=optimise)
    mechanism, lengths = UnknownGumbel.within_cost(LIMIT, request), set()
    for _, outcome, draws in releases(mechanism, request):
        race = draws.raced["race"]
        rho = peels(race, tau, race.reached)
        rho += peels(draws.raced["cutoff"], tau, ended=False) if optimise else 0
        rho += draws.added["counts"].rho(tau) if counts else 0
        assert_charged(outcome, rho)
        cutoff = 4 + int(draws.raced["cutoff"].order[0]) if optimise else 9
        assert race.race.rival.factor >= cutoff / outcome.cost.delta
        lengths.add(len(outcome.positions))
    assert len(lengths) >= 3


@pytest.mark.parametrize(("noise", "tau", "counts"), NOISES)
def test_known_gumbel_pays_all_peels_and_counts(noise, tau, counts):
    """K of each, which it always draws; variances of shared noise are rounded up, so that it costs a little less."""
    request = Request(4, 9, Sensitivity(None, tau), counts, noise, known_domain=True)
    for _, outcome, draws in releases(KnownGumbel.within_cost(LIMIT, request), request):
        rho = peels(draws.raced["race"], tau, ended=False)
        counted = sum(draw.rho(tau) for draw in draws.starting("counts"))
        if "counts/anchor" in draws.added:
            # Gaussian counts cost as much as the peels; few Laplace counts less, at the same pure epsilon.
            assert (0.8 if noise == "laplace" else 0.999) * rho < counted <= rho
            counted = rho
        assert_charged(outcome, rho + counted)


@pytest.mark.parametrize(("noise", "tau", "counts"), NOISES)
@pytest.mark.parametrize("kind", [KnownLaplace, UnknownLaplace])
def test_laplace_pays_for_the_values_that_one_user_moves(kind, noise, tau, counts):
    """Two of the values, all of which have one scale, and the threshold among them."""
    request = Request(None, 9, Sensitivity(2, tau), counts, noise, known_domain=kind is KnownLaplace)
    for _, outcome, draws in releases(kind.within_cost(LIMIT, request), request):
        drawn = [variance for draw in draws.added.values() for variance in draw.variances]
        assert len(set(drawn)) == 1
        assert_charged(outcome, 2 * tau**2 / drawn[0] / (2 if noise == "gaussian" else 1))


def test_top_stable_pays_for_threshold_and_gaps():
    """Epsilon is that of the threshold's noise and twice that of a gap's together."""
    request = Request(4, 9, Sensitivity(None, 3), counts=False)
    for _, outcome, draws in releases(TopStable.within_cost(LIMIT, request), request):
        (threshold,), gaps = draws.added["threshold"].variances, draws.added["gaps"].variances
        assert len(set(gaps)) == 1
        # rho of pure DP is epsilon^2 / 2, and epsilon^2 of Laplace noise is 2 s^2 / variance
        squares = 2 * 9 / threshold, 2 * 36 / gaps[0]
        epsilon = sum(math.sqrt(square) for square in squares)
        assert float(outcome.cost.rho) == pytest.approx(epsilon**2 / 2, rel=1e-12)


@pytest.mark.parametrize("counts", [True, False])
def test_count_release_pays_every_peel_and_every_count(counts):
    """The items of every level, the threshold where it was reached, and a last try whose count no longer fits."""
    request = Request(None, 9, counts=counts)
    mechanism = CountRelease.within_cost(LIMIT, request)
    for _, outcome, draws in releases(mechanism, request):
        spent, released = Fraction(0), 0
        for level, race in enumerate(draws.raced.values()):
            peel = race.race.scale**2 / 8
            price = 1 / (2 * _sigma(mechanism, race.race.scale) ** 2) if counts else 0
            for _ in race.order.tolist():
                if spent + peel > LIMIT.rho:
                    break
                spent += peel
                if spent + price > LIMIT.rho:
                    break
                spent, released = spent + price, released + 1
            else:
                if race.reached and released < 9 and spent + peel <= LIMIT.rho:
                    spent += peel
            if counts:
                assert set(draws.added[f"counts/{level}"].variances) <= {_sigma(mechanism, race.race.scale) ** 2}
        assert released == len(outcome.positions)
        assert_charged(outcome, spent)


def _sigma(mechanism, epsilon):
    """Return sigma as docs/mechanisms/count_release.md defines it."""
    likely = 1 + math.log(mechanism.head_limit / (mechanism.limit.delta / 2000)) / float(epsilon)
    return Fraction(math.ceil(float(mechanism.relative_error) * likely / 1.645 * 1024), 1024)


@pytest.mark.parametrize(("counts", "tau", "k"), [(True, 1, None), (True, 3, None), (False, 1, None), (True, 1, 2)])
def test_head_pays_every_step_of_every_race_also_the_one_that_ends_it(counts, tau, k):
    """Anchor, tail, all steps of all races, and second counts; only the last race may have been cut by the budget."""
    request = Request(k, 9, Sensitivity(None, tau), counts)
    mechanism, failures = SelectVerify.within_cost(LIMIT, request), 0
    radius = math.sqrt(2 * math.log(500 / LIMIT.delta))
    for given, outcome, draws in releases(mechanism, request):
        tail = given.count_at(10)
        anchor, tail_noise = draws.added["anchor"], draws.added["tail"]
        spent = anchor.rho(tau) + tail_noise.rho(tau)
        noisy_tail = 2 * tail + anchor.values[0] + tail_noise.values[0]
        ended_at, last = [], Fraction(0)
        for number, race in enumerate(draws.raced.values()):
            counted = draws.added[f"counts/{number}"]
            level = race.race.scale * tau
            variance = counted.variances[0] if len(race.order) else Fraction(1)
            doubled = 2 * race.race.scores[race.order] + anchor.values[0] + counted.values
            margin = math.ceil(radius * math.sqrt(variance + tail_noise.variances[0]) * (1 + 1e-12))
            failed = ~(doubled - noisy_tail > 2 * tau + margin)
            passed = int(failed.argmax()) if failed.any() else len(race.order)
            failures += bool(failed.any())
            step = level**2 / 8 + tau**2 / (2 * _first_variance(level, tau))
            assert not len(race.order) or set(counted.variances) == {_first_variance(level, tau)}
            spent += (passed + bool(failed.any() or race.reached)) * step
            ended_at.append(passed)
            last = step
        again = [draws.added[label] for label in ("second anchor", "second counts") if label in draws.added]
        spent += sum((draw.rho(tau) for draw in again), Fraction(0))
        # The last race may have been stopped after any of its steps.
        unpaid = spent - outcome.cost.rho
        steps = round(unpaid / last) if last else 0
        assert 0 <= steps <= ended_at[-1] + 1
        assert_charged(outcome, spent - steps * last)
        released = sum(ended_at) - max(0, steps - 1)
        assert len(outcome.positions) in {min(released, k or released), min(sum(ended_at) - steps, k or released)}
        assert abs(outcome.cost.delta - len(draws.raced) * LIMIT.delta / 500) <= len(draws.raced) * Fraction(1, 10**27)
    assert failures > 5


def _first_variance(epsilon, tau):
    """Return the variance of a first count in half counts, (2 sigma)^2 with sigma as docs/mechanisms define it."""
    sigma = Fraction(2 * 0.09 * (tau * math.log1p(9) / float(epsilon)))
    return Fraction(math.ceil(sigma**2 * 1024), 1024)


class Asked(ArrayPairs):
    """Pairs that record what they were asked."""

    def __init__(self, users, items):
        super().__init__(users, items)
        self.asked = {}

    def weighted_sums(self, limit):
        """Record the limit."""
        self.asked["limit"] = Fraction(limit)
        return super().weighted_sums(limit)

    def capped_sums(self, cap):
        """Record the cap."""
        self.asked["cap"] = cap
        return super().capped_sums(cap)

    def clipped_sums(self, items, costs, bound):
        """Record costs and bound, unless it asks for exact counts."""
        if bound != UNCLIPPED:
            self.asked["costs"], self.asked["bound"] = costs.tolist(), bound
        return super().clipped_sums(items, costs, bound)


def table(kind):
    """Return pairs: users with one item each, with few, or few users with many items."""
    rng = np.random.default_rng(8)
    sizes = {"one": np.ones(4000, int), "few": rng.geometric(0.25, 4000), "many": np.full(60, 80), "none": []}[kind]
    users = np.repeat(np.arange(len(sizes)), np.asarray(sizes, dtype=int))
    return Asked(users, np.floor(150 * rng.random(len(users)) ** 3).astype(np.int64))


def histogram_cost(draws, label, bins):
    """Return what a user in one bin costs, the noise of all *bins* being equal."""
    (variance,) = set(draws.added[label].variances)
    assert len(draws.added[label].variances) == bins
    return 1 / variance


def two_rounds_cost(pairs, draws):
    """Return mu^2 of what two rounds drew: a user's largest squared shift over variance in each step, added up."""
    histograms = {"sizes": 18, "scales": 18, "rest": 26, "clipping": 26}
    square = sum(histogram_cost(draws, label, bins) for label, bins in histograms.items() if label in draws.added)
    first = set(draws.added["first"].variances) or {None}
    (variance,) = first
    if variance is not None:  # a user's squared weights add up to (W limit)^2
        square += (WEIGHT_UNIT * pairs.asked["limit"]) ** 2 / variance
    # A user moves twice each count less the number of users, and that number, by 1 each.
    anchored = [draws.added[label].variances for label in ("large", "users") if label in draws.added]
    square += sum((WEIGHT_UNIT**2 / variance for variances in anchored for variance in variances), Fraction(0))
    if "second" not in draws.added:
        return square
    # A user's weights are such that their squares times the costs add up to W^2 bound.
    second = draws.added["second"].variances
    exceeded = (WEIGHT_UNIT**2 / (variance * cost) for variance, cost in zip(second, pairs.asked["costs"], strict=True))
    return square + max(exceeded, default=Fraction(0)) * pairs.asked["bound"]


@pytest.mark.parametrize("kind", ["one", "few", "many", "none"])
@pytest.mark.parametrize("epsilon", [Fraction(1, 2), Fraction(4)])
def test_two_rounds_pay_what_a_user_can_move_in_all_steps(kind, epsilon):
    """mu^2 / 2 is charged, and the steps use it up where there are items to measure."""
    mechanism = TwoRound.at_epsilon(epsilon, LIMIT.delta, Request(None, 9))
    for run in RUNS:
        pairs = table(kind)
        outcome, draws = release(mechanism, pairs, run)
        spent = two_rounds_cost(pairs, draws) / 2
        assert spent <= outcome.cost.rho
        if "second" not in draws.added or draws.added["second"].variances:
            assert spent > outcome.cost.rho * Fraction(99, 100)


@pytest.mark.parametrize("k", [None, 6])
@pytest.mark.parametrize("kind", ["one", "few", "many", "none"])
def test_auto_pays_the_gap_the_histogram_and_the_branch(k, kind):
    """Whichever of them were drawn (docs/mechanisms/auto.md); `test_auto_exact` has the race."""
    mechanism, seen = Auto.at_epsilon(Fraction(2), LIMIT.delta, Request(k, 20)), set()
    histogram = Fraction(mechanism.two_round.budget.histogram, COST_UNIT)
    for run in RUNS:
        pairs = table(kind)
        outcome, draws = release(mechanism, pairs, run)
        number = Fraction(int(mechanism.two_round.mu**2 * COST_UNIT / (499 if k is None else 494)), 2 * COST_UNIT)
        gap = number + (draws.added["gap"].rho() if k else 0)
        seen.add(outcome.chosen)
        if outcome.chosen == "two-round":
            spent = two_rounds_cost(pairs, draws) / 2 + gap
            assert spent <= outcome.cost.rho
            # A top k whose largest items are counted alone needs neither scales nor the rest, and pays for them.
            left = Fraction(985 if "scales" not in draws.added else 995, 1000)
            assert ("second" in draws.added and not draws.added["second"].variances) or spent > outcome.cost.rho * left
            continue
        if outcome.chosen == "light":  # Laplace noise of scale s on sums that a user moves by cap units in l1
            (variance,) = set(draws.added["capped"].variances)
            moved = float(pairs.asked["cap"] * WEIGHT_UNIT / (variance / 2) ** Fraction(1, 2))
            spent = moved - 1 + math.exp(-moved) + float(gap + histogram / 2)
            assert spent < float(outcome.cost.rho) < spent * (1 + 1e-8)
            continue
        assert histogram_cost(draws, "sizes", 18) == histogram
        spent = release(mechanism.head, pairs.head(mechanism.head_limit), run)[0].cost.rho
        assert_charged(outcome, spent + gap + histogram / 2)
    assert seen == {"one": {"light"}, "few": {"two-round"}}.get(kind, {"head"})


@pytest.mark.parametrize(
    ("alone", "sizes"),
    [
        (True, [1] * 1_500),
        (True, [1] * 1_000 + [2] * 250 + [4] * 120 + [9] * 80),
        (False, [1] * 300),
        (False, [1] * 240 + [3] * 20 + [6] * 10),
    ],
)
def test_auto_pays_a_second_histogram_and_what_follows_it(alone, sizes):
    """Laplace noise of scale 1/e costs e - 1 + exp(-e), of the histogram as of the sums; or the head has less."""
    request = Request(None, 20)
    mechanism = Auto.at_epsilon(Fraction(1), LIMIT.delta, request)
    if not alone:  # one round needs a large share of a budget, for which fewer users are few
        mechanism = Auto.within_cost(Cost(Fraction(2), LIMIT.delta), request)
    users = np.repeat(np.arange(len(sizes)), sizes)
    pairs = Asked(users, np.concatenate([np.arange(n) * 7 + user % 7 for user, n in enumerate(sizes)]))
    outcome, draws = release(mechanism, pairs, 1)
    number = Fraction(int(mechanism.two_round.mu**2 * COST_UNIT / 499), 2 * COST_UNIT)
    spent = float(number + Fraction(mechanism.two_round.budget.histogram, 2 * COST_UNIT))
    (variance,) = set(draws.added["sizes again"].variances)
    moved = (2 / float(variance)) ** 0.5
    spent += moved - 1 + math.exp(-moved)
    if outcome.chosen == "light":
        (variance,) = set(draws.added["capped"].variances)
        sums = float(pairs.asked["cap"] * WEIGHT_UNIT) * (2 / float(variance)) ** 0.5
        spent += sums - 1 + math.exp(-sums)
        assert moved + sums <= float(mechanism.light.epsilon) * (1 + 1e-12)
    else:
        spent += float(mechanism.second_head.release(pairs.head(20), PrefixedBits(RecordedBits(1), 2)).cost.rho)
    assert outcome.chosen == ("light" if len(set(sizes)) == 1 else "head")
    assert spent < float(outcome.cost.rho) < spent * (1 + 1e-2)
    assert outcome.cost.within(mechanism.worst_cost())


WAYS = {"few": "scaled", "many": "shared", "none": "shared"}


@pytest.mark.parametrize(
    ("kind", "shared_budget", "way"),
    [
        ("one", False, "capped"),
        ("one", True, "scaled"),
        *((kind, shared, way) for kind, way in WAYS.items() for shared in (False, True)),
    ],
)
def test_counts_of_listed_items_pay_for_the_histogram_and_the_way(kind, shared_budget, way):
    """Whichever way was taken (docs/mechanisms/known_auto.md)."""
    request, seen = Request(None, 150, known_domain=True), set()
    alone = KnownAuto.at_epsilon(Fraction(2), LIMIT.delta, request)
    mechanism = KnownAuto.within_cost(LIMIT, request) if shared_budget else alone
    for run in RUNS:
        pairs = table(kind)
        outcome, draws = release(mechanism, pairs, run)
        if "sizes again" in draws.added:  # noise passed for few users
            continue
        spent = histogram_cost(draws, "sizes", 9) / 2
        seen.add(outcome.chosen)
        if outcome.chosen == "capped":
            (variance,) = set(draws.added["capped"].variances)
            moved = float(pairs.asked["cap"] * WEIGHT_UNIT / (variance / 2) ** Fraction(1, 2))
            spent = Fraction(float(spent) + moved - 1 + math.exp(-moved))
        elif outcome.chosen == "scaled":
            (variance,) = set(draws.added["scaled"].variances)
            spent += (WEIGHT_UNIT * pairs.asked["limit"]) ** 2 / variance / 2
        else:
            spent += sum((draw.rho() for draw in draws.starting("counts")), Fraction(0))
        assert outcome.cost.rho * Fraction(998, 1000) < spent <= outcome.cost.rho * (1 + Fraction(1, 10**12))
        assert len(outcome.positions) == 150
    assert way in seen


@pytest.mark.parametrize("shared_budget", [False, True])
@pytest.mark.parametrize(
    ("sizes", "ways"),
    [
        ([1] * 1_000, ({"capped"}, {"scaled"})),
        ([1] * 700 + [4] * 60 + [7] * 80, ({"capped", "scaled", "shared"}, {"scaled"})),
    ],
)
def test_counts_of_listed_items_of_few_users_pay_for_a_second_histogram(sizes, ways, shared_budget):
    """Laplace noise of scale 1/e costs e - 1 + exp(-e), of the histogram as of the sums; shared noise has less."""
    request = Request(None, 12, known_domain=True)
    mechanism = KnownAuto.at_epsilon(Fraction(1), LIMIT.delta, request)
    if shared_budget:  # Laplace noise needs a large share of a budget, for which fewer users are few
        mechanism, sizes = KnownAuto.within_cost(Cost(Fraction(1, 2), LIMIT.delta), request), sizes[::3]
    users = np.repeat(np.arange(len(sizes)), sizes)
    seen = set()
    for run in RUNS:
        pairs = Asked(users, np.concatenate([(np.arange(n) + user) % 12 for user, n in enumerate(sizes)]))
        outcome, draws = release(mechanism, pairs, run)
        assert outcome.cost.within(mechanism.worst_cost())
        if "sizes again" not in draws.added:
            continue
        seen.add(outcome.chosen)
        (variance,) = set(draws.added["sizes again"].variances)
        moved = (2 / float(variance)) ** 0.5
        spent = float(mechanism._measuring) + moved - 1 + math.exp(-moved)
        if outcome.chosen == "capped":
            (variance,) = set(draws.added["capped"].variances)
            sums = float(pairs.asked["cap"] * WEIGHT_UNIT) * (2 / float(variance)) ** 0.5
            spent += sums - 1 + math.exp(-sums)
            assert moved + sums <= float(mechanism.pure) * (1 + 1e-12)
        elif outcome.chosen == "scaled":
            spent += float((WEIGHT_UNIT * pairs.asked["limit"]) ** 2 / draws.added["scaled"].variances[0] / 2)
        else:
            spent += float(sum((draw.rho() for draw in draws.starting("counts")), Fraction(0)))
        assert float(outcome.cost.rho) * 0.99 < spent <= float(outcome.cost.rho) * (1 + 1e-9)
    assert seen == ways[shared_budget]


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("private", [False, True])
def test_sums_pay_for_each_returned_sum_and_for_a_chosen_bound(noise, private):
    """Beside the ranking: C^2 / 2 s^2 for each sum; and a count for the choice of the length of all together."""
    summed = SumBounds(0, 8, private=True) if private else SumBounds(-3, 8)
    request = Request(4, 9, noise=noise, summed=summed)
    mechanism = UnknownGumbelSums.within_cost(LIMIT, request)
    for counts in HEADS:
        for run in RUNS:
            plain = head(counts, 9, sums=3)
            outcome, draws = release(mechanism, ThreeEach(plain) if private else plain, run)
            race = draws.raced["race"]
            rho = peels(race, 1, race.reached) + draws.added["counts"].rho()
            n = len(outcome.positions)
            if not private:
                rho += draws.added["sums"].rho(8)
            elif n:
                users = draws.added["users"]
                rho += users.rho() / len(users.variances)  # a user moves one bin
                bound = outcome.measured.clipping.bound
                (square,) = (s for s in summed.squared_lengths(n) if math.ceil(math.sqrt(s)) == bound)
                rho += square * draws.added["sums"].rho(ROW_UNIT) / n  # all sums together move by the bound
            assert_charged(outcome, rho)


class ThreeEach(NamedTuple):
    """A `HeadAndSums` of users who add 3 to their only item."""

    plain: ExactHead

    def head(self, _):
        """Return the counts."""
        return self.plain

    def sums_of(self, positions):
        """Return the sums of users of length 3."""
        squares = np.array(SumBounds(0, 8, private=True).squared_lengths(len(positions)))
        counts = self.plain.counts[positions]
        weights = np.where(squares >= 9, ROW_UNIT, np.floor(ROW_UNIT * np.sqrt(squares / 9)) - 1).astype(np.int64)
        users = np.where(np.arange(len(squares)) == np.searchsorted(squares, 9), counts.sum(), 0)
        none = np.zeros(len(positions), dtype=np.int64)
        return ExactHead(none, len(none), scaled=np.outer(3 * counts, weights), users=users)


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_sums_of_bounded_users_pay_for_the_sums_that_one_user_moves(noise):
    """Two sums, of a listed domain or above a threshold; or one, if no more is returned."""
    request = Request(None, 9, TWO_ITEMS, noise=noise, summed=SumBounds(-3, 8))
    for given, outcome, draws in releases(UnknownLaplaceSums.within_cost(LIMIT, request), request, sums=2):
        (scale,) = {v for label in ("threshold", "counts") for v in draws.added[label].variances}
        factor = 2 if noise == "gaussian" else 1
        sums = draws.added["sums"].variances
        assert_charged(outcome, 2 / scale / factor + sum(64 / v / factor for v in sums[:2]))
        assert given.sums is not None
    listed = Request(None, 9, TWO_ITEMS, counts=False, noise=noise, known_domain=True, summed=SumBounds(-3, 8))
    for _, outcome, draws in releases(ListedSums.within_cost(LIMIT, listed), listed, sums=2):
        assert_charged(outcome, sum(64 / v / factor for v in draws.added["sums"].variances[:2]))
