"""Two rounds, step by step: what each step may cost, what is verified, and what is stated, from the definitions."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from discreet.accounting.gaussian import mu_gaussian
from discreet.errors import InputError
from discreet.head_request import SumBounds
from discreet.mechanisms import Request, TwoRound, two_round
from discreet.mechanisms.two_round import COST_UNIT, TUNING, UNCLIPPED, Counted, FirstRound, add_noise_in_batches
from discreet.noise import KeyedBits, rounded_gaussian
from discreet.testing.pairs import ArrayPairs
from discreet.values import Cost, Sensitivity

from .draws import release

DELTA = Fraction(1, 10**8)
REQUEST = Request(None, 1000)
ALIKE = replace(TUNING, head_share=0.0, top_share=0.0, alone_noise=0.0)
"""No item is counted apart from the others."""


def alike(epsilon, **changed):
    """Return a mechanism whose second round measures all items alike."""
    return replace(TwoRound.at_epsilon(epsilon, DELTA, replace(REQUEST, **changed)), tuning=ALIKE)


class Asked(ArrayPairs):
    """Pairs that record what they were asked."""

    def __init__(self, users, items):
        super().__init__(users, items)
        self.asked = {"scales": []}

    def users_by_size(self, bounds):
        self.asked["sizes"] = bounds.tolist()
        return super().users_by_size(bounds)

    def weighted_sums(self, limit):
        self.asked["limit"] = limit
        return super().weighted_sums(limit)

    def users_by_scale(self, items, last_scale, costs, bounds):
        assert all(values.dtype == np.int64 for values in (items, last_scale, costs, bounds))
        self.asked["scales"].append((items.tolist(), last_scale.tolist(), costs.tolist(), bounds.tolist()))
        return super().users_by_scale(items, last_scale, costs, bounds)

    def clipped_sums(self, items, costs, bound):
        if bound == UNCLIPPED:
            return super().clipped_sums(items, costs, bound)
        sums = super().clipped_sums(items, costs, bound)
        self.asked["second"] = items, costs, bound, sums
        return sums


def table(most, users=3000):
    """Return users with one to *most* items, more of the popular ones."""
    rng = np.random.default_rng(5)
    sizes = rng.integers(1, most, users, endpoint=True)
    return Asked(np.repeat(np.arange(users), sizes), np.floor(200 * rng.random(sizes.sum()) ** 3).astype(np.int64))


@pytest.mark.parametrize("epsilon", [Fraction(1, 4000), Fraction(1, 2), Fraction(3), Fraction(40)])
@pytest.mark.parametrize("most", [1, 5, 120])
def test_no_step_costs_more_than_its_share(epsilon, most):
    """Of mu^2, 0.008 or 0.004 for a histogram, a fifth of the rest for the first round; the second has what is left."""
    mechanism, pairs = alike(epsilon), table(most)
    _, draws = release(mechanism, pairs)
    square = mechanism.mu**2
    assert pairs.asked["sizes"] == [2**b for b in range(18)]
    for label in ("sizes", "scales", "clipping"):
        (variance,) = set(draws.added[label].variances)
        assert 0 <= Fraction(8, 1000) * square - 1 / variance < Fraction(2, 2**40)
    (variance,) = set(draws.added["rest"].variances)
    assert 0 <= Fraction(4, 1000) * square - 1 / variance < Fraction(2, 2**40)
    histogram, rest, first = mechanism.budget.histogram, mechanism.budget.rest, mechanism.budget.first
    assert -1 < (square * COST_UNIT - 3 * histogram - rest) / 5 - first < 2
    (variance,) = set(draws.added["first"].variances)
    per_unit = Fraction(pairs.asked["limit"]) ** 2 / (variance / 2**40)  # what the first round costs at most
    assert first * (1 - Fraction(1, 10**5)) < per_unit * COST_UNIT <= first
    (_, costs, bound, _) = pairs.asked["second"]
    assert bound == mechanism.budget.second
    assert [Fraction(2**80, cost) for cost in costs.tolist()] == draws.added["second"].variances
    assert all(1 <= cost <= bound for cost in costs.tolist())
    items, last, _, bounds = pairs.asked["scales"][2]
    assert last == [25] * len(items)
    assert bounds == [max(1, bound * 2**b // 2**16) for b in range(26)]


@pytest.mark.parametrize("k", [None, 300])
def test_only_verified_items_are_released(k):
    """With a k, exactly those whose second value is z standard errors above one user's weight; Q(z) is beta / K."""
    mechanism, found = alike(Fraction(4), k=k, relative_error=Fraction(1, 2)), 0
    with mpmath.workdps(40):
        beta = mpmath.mpf(1) / 10**17 / 2  # half of a thousandth of delta, over 10^6 items
        z = mpmath.findroot(lambda x: mpmath.erfc(x / mpmath.sqrt(2)) / 2 / beta - 1, 8.5)
    for run in range(8):
        pairs = table(5, 400)
        outcome, draws = release(mechanism, pairs, run)
        items, costs, _, sums = pairs.asked["second"]
        values = sums + draws.added["second"].values
        least = [2**20 + math.ceil(2**20 * z / math.sqrt(cost / 2**40)) for cost in costs.tolist()]
        verified = {item for item, value, t in zip(items.tolist(), values.tolist(), least, strict=True) if value >= t}
        assert set(outcome.positions.tolist()) <= verified
        assert k is None or set(outcome.positions.tolist()) == verified
        found += len(verified) and len(items) - len(verified)
    assert found > 10


def test_items_far_above_the_cut_are_candidates_at_every_scale():
    """An item is one up to the scale at which it falls below the cut; there are 18 scales."""
    mechanism = TwoRound.at_epsilon(Fraction(30), DELTA, REQUEST)
    users = [100_000, 10_000, 1000, 100]
    pairs = Asked(np.arange(sum(users)), np.repeat(np.arange(4), users))
    release(mechanism, pairs)
    least = math.sqrt(COST_UNIT / mechanism.budget.second)  # its cut is this over 0.048
    items, last, _, _ = pairs.asked["scales"][0]
    assert items == [0, 1, 2, 3]
    assert last == [min(math.floor(2 * math.log2(count * 0.048 / least)), 17) for count in users]
    assert last[0] == 17


@pytest.mark.parametrize("epsilon", [Fraction(1), Fraction(3)])
def test_without_a_k_only_precise_counts_are_released(epsilon):
    """Those of a top k whose error is at most 0.85 of the relative error, also among the verified."""
    dropped = 0
    for run in range(6):
        one, other = (
            release(TwoRound.at_epsilon(epsilon, DELTA, replace(REQUEST, k=k)), table(70, 1500), run)[0]
            for k in (None, 1000)
        )
        precise = other.std_errors <= 0.085 * (other.counts + 0.5)
        unsure = abs(other.std_errors - 0.085 * other.counts) <= 0.085 / 2
        assert set(other.positions[precise & ~unsure].tolist()) <= set(one.positions.tolist())
        assert set(one.positions.tolist()) <= set(other.positions[precise].tolist())
        dropped += len(other.positions) - len(one.positions)
    assert dropped > 0


def test_a_value_at_the_threshold_is_verified(monkeypatch):
    """And one unit below it is not."""
    mechanism = alike(Fraction(4), k=300)

    def run(below):
        def exactly(values, unit, precisions, bits, label):
            if label != "second":
                return original(values, unit, precisions, bits, label)
            sigma = np.sqrt(2**40 / precisions)
            return 2**20 + np.ceil(2**20 * mechanism._evidence() * sigma).astype(np.int64) - below

        original = two_round.add_noise
        with monkeypatch.context() as patch:
            patch.setattr(two_round, "add_noise", exactly)
            pairs = table(5)
            outcome = mechanism.release(pairs, KeyedBits(bytes(32), 1))
        return len(outcome.positions), len(pairs.asked["second"][0])

    found, candidates = run(0)
    assert found == candidates > 10
    assert run(1) == (0, candidates)


def test_labels_alone_say_the_same_of_themselves():
    """That they are in order, whether they are all, and what they cost."""
    for k in (None, 5, 1000):
        outcome, labels = (
            release(TwoRound.at_epsilon(Fraction(4), DELTA, replace(REQUEST, k=k, counts=counts)), table(5))[0]
            for counts in (True, False)
        )
        assert (labels.ordered, labels.complete, labels.cost) == (True, k == 5, outcome.cost)
        assert labels.positions.tolist() == outcome.positions.tolist()
        assert labels.counts is labels.std_errors is labels.low is labels.high is None


def test_intervals_end_at_zero():
    """The lower end of a count whose error is above half of it."""
    mechanism = TwoRound.at_epsilon(Fraction(4), DELTA, REQUEST)
    outcome = mechanism._outcome(Counted(np.array([3, 8]), np.array([5.0, 90.0]), np.array([4.0, 6.0]), 0.1))
    assert outcome.positions.tolist() == [8, 3]
    assert outcome.low.tolist() == [78, 0]
    assert outcome.high.tolist() == [112, 13]


@pytest.mark.parametrize("rho", [Fraction(1, 5), Fraction(1, 3 * 10**4), Fraction(7)])
def test_a_shared_budget_is_used_up_and_not_exceeded(rho):
    """Half of mu squared is rho, rounded down to 28 bits; a thousandth of delta may be lost."""
    request = Request(9, 1000, counts=False, relative_error=Fraction(1, 4))
    mechanism = TwoRound.within_cost(Cost(rho, DELTA), request)
    assert mechanism == TwoRound(mechanism.mu, DELTA / 1000, Fraction(1, 4), counts=False, k=9)
    assert 2 * rho * (1 - Fraction(1, 2**25)) < mechanism.mu**2 <= 2 * rho
    assert mechanism.worst_cost() == Cost(mechanism.mu**2 / 2, DELTA / 1000)
    assert mechanism.direct_epsilon() is None
    assert mechanism.head_limit == 0
    assert TwoRound.by_step(Fraction(1), DELTA, request) is None


def test_the_largest_float_below_the_root_of_a_limit_is_not_exceeded():
    """Where the root of rho is a number of 28 bits, it must not be the next float above it that is rounded down."""
    for root in (Fraction(3, 2), Fraction(2**27 + 1, 2**27), Fraction(1), Fraction(2**28 - 1, 2**28)):
        assert TwoRound.within_cost(Cost(root**2 / 2, DELTA), REQUEST).mu < root


def test_alone_the_curve_has_all_of_delta_but_the_lost_mass(monkeypatch):
    """Beta + (1 - beta) curve(mu, epsilon) is at most delta."""
    given = []
    monkeypatch.setattr(
        "discreet.mechanisms.two_round.mu_gaussian", lambda *args: given.append(args) or mu_gaussian(*args)
    )
    request = Request(9, 1000, counts=False, relative_error=Fraction(1, 4))
    for delta in (DELTA, Fraction(1, 3 * 10**6), Fraction(1, 7)):
        mechanism = TwoRound.at_epsilon(Fraction(2), delta, request)
        epsilon, allowed = given.pop()
        lost = delta / 1000
        assert epsilon == 2
        assert lost + (1 - lost) * Fraction(allowed) <= delta
        assert lost + (1 - lost) * Fraction(allowed) * (1 + Fraction(1, 10**12)) > delta
        mu = mu_gaussian(epsilon, allowed)
        assert mu * (1 - 2**-26) < mechanism.mu <= mu
        assert mechanism == TwoRound(mechanism.mu, lost, Fraction(1, 4), False, 9, Fraction(2), delta)
        assert mechanism.direct_epsilon() == 2
        assert mechanism.worst_cost() == Cost(mechanism.mu**2 / 2, delta)
    assert TwoRound.at_epsilon(Fraction(2), DELTA, replace(REQUEST, noise="laplace")) is None


def test_outcomes_cost_the_same_whatever_they_return():
    """Mu squared over 2, and the lost mass."""
    mechanism = TwoRound.at_epsilon(Fraction(4), DELTA, REQUEST)
    for pairs in (table(1), table(5), Asked([1], [0])):
        outcome, _ = release(mechanism, pairs)
        assert outcome.cost == Cost(mechanism.mu**2 / 2, DELTA / 1000)
        assert (outcome.ordered, outcome.complete) == (True, False)


def test_the_least_budget_has_two_thousand_units():
    """One unit less is refused."""
    mechanism = TwoRound(Fraction(1), DELTA, Fraction(1, 10))
    for units, refused in ((2000, False), (1999, True)):
        # The least fraction of 60 bits whose square has that many units.
        mu = Fraction(math.isqrt(units * 2**80) + 1, 2**60)
        assert math.floor(mu**2 * COST_UNIT) == units
        if refused:
            with pytest.raises(InputError, match="too small"):
                replace(mechanism, mu=mu).budget  # noqa: B018
        else:
            budget = replace(mechanism, mu=mu).budget
            assert (budget.histogram, budget.rest, budget.first, budget.second) == (16, 8, 388, 1556)


EXPECTED = {
    (None, "1/10", True): [5.1734, 0.085, 61, 913],
    (None, "1/10", False): [None, None, 61, 913],
    (None, "1/2", True): [5.1734, 0.425, 13, 183],
    (None, "1/2", False): [None, None, 13, 183],
    (7, "1/10", True): [5.1734, 0.1166, 51, 759],
    (7, "1/10", False): [None, None, 51, 759],
    (7, "1/2", True): [5.1734, 0.425, 51, 759],
    (7, "1/2", False): [None, None, 51, 759],
}
"""By k, relative error and counts: the least error, the smallest count, and the likely range."""


@pytest.mark.parametrize("key", EXPECTED, ids=str)
def test_expectations_are_what_they_always_were(key):
    """Kept numbers."""
    k, error, counts = key
    found = TwoRound.at_epsilon(Fraction(1), DELTA, Request(k, 1000, counts=counts, relative_error=Fraction(error)))
    found = found.expectation()
    (likely,) = found.likely
    assert (likely.name, likely.max_std_error, found.max_std_error, found.sum_std_error) == ("two-round",) + (None,) * 3
    assert (likely.min_std_error, likely.smallest_count) == (found.min_std_error, found.smallest_count)
    shown = found.min_std_error, likely.max_relative_error, likely.smallest_count, likely.max_smallest_count
    assert [value and round(value, 4) for value in shown] == EXPECTED[key]


def test_candidates_are_those_above_a_value():
    """Or at it."""
    first = FirstRound(np.array([2, 5, 9]), np.array([4.0, 3.0, 7.0]), 1.0, np.zeros(3, bool))
    for least, items, values in ((4.0, [2, 9], [4.0, 7.0]), (3.0, [2, 5, 9], [4.0, 3.0, 7.0]), (8.0, [], [])):
        found = first.above(least)
        assert [column.tolist() for column in found] == [items, values]


def test_noise_in_batches_is_that_of_one_array():
    """Of variance 2^40 unit^2 over the precision."""
    values = np.arange(50) * 10**9
    expected = values + rounded_gaussian(KeyedBits(bytes(32), 1), "x", 2**40 * 7**2, np.full(50, 3))
    batches = add_noise_in_batches(np.split(values, [3, 3, 40]), 50, 7, 3, KeyedBits(bytes(32), 1), "x")
    assert np.concatenate(list(batches)).tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (replace(REQUEST, known_domain=True), "finds the items itself"),
        (replace(REQUEST, sensitivity=Sensitivity(None, 2)), "needs no bound"),
        (replace(REQUEST, sensitivity=Sensitivity(3)), "needs no bound"),
        (replace(REQUEST, summed=SumBounds(0, 8)), "adds up no column"),
        (replace(REQUEST, relative_error=Fraction(1)), "above 0 and below 1"),
        (replace(REQUEST, noise="laplace"), "^a two-round release adds gaussian noise only$"),
    ],
)
def test_the_refusal_says_why(request_, message):
    """Before data is read, by whichever way it is made."""
    with pytest.raises(InputError, match=message):
        TwoRound.within_cost(Cost(Fraction(1), DELTA), request_)
    if request_.noise == "gaussian":
        with pytest.raises(InputError, match=message):
            TwoRound.at_epsilon(Fraction(1), DELTA, request_)
