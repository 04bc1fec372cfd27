"""One round of capped sums: the exact privacy of what is released, the choice of the cap, counts and intervals."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from discreet.mechanisms import Request, light
from discreet.mechanisms.auto import Auto
from discreet.mechanisms.light import CAPS, Cap, Light
from discreet.noise import DiscreteLaplace, KeyedBits
from discreet.testing import pairs as reference
from discreet.testing.pairs import ArrayPairs, gathered
from discreet.values import CAPPED_BASKET, WEIGHT_UNIT, Cost

DELTA = Fraction(1, 10**8)
TENTH = Fraction(1, 10)
UNIT = 16
"""The unit of weights in exact audits, small enough to enumerate all noise."""


def bits(run=0):
    """Return bits that follow from *run*."""
    return KeyedBits(b"a secret for one single round of noise", run)


def table(baskets):
    """Return the pairs of users given by their items."""
    users = [user for user, basket in enumerate(baskets) for _ in basket]
    return ArrayPairs(users, [item for basket in baskets for item in basket])


def outputs(monkeypatch, mechanism, cap, baskets, values):
    """Return what is published of each item if its noise is each of *values*: tuples by item, None if not released."""
    pairs = table(baskets)
    names = sorted({item for basket in baskets for item in basket})
    published = {name: [] for name in names}
    for value in values.tolist():
        monkeypatch.setattr(DiscreteLaplace, "draw", lambda *args, value=value: np.full(args[3], value))
        outcome = mechanism.release(cap, pairs, bits())
        columns = (outcome.counts, outcome.std_errors, outcome.low, outcome.high)
        shown = dict(zip(outcome.positions.tolist(), zip(*(c.tolist() for c in columns), strict=True), strict=True))
        for place, name in enumerate(names):
            published[name].append(shown.get(place))
    return published


def distributions(monkeypatch, mechanism, cap, baskets, names):
    """Return the distribution of what is published of each of *names*; an item that no user has is never released."""
    scale = float(mechanism._noise(cap.items).scale)
    values = np.arange(-int(45 * scale), int(45 * scale) + 1)
    decay = math.exp(-1 / scale)
    mass = (1 - decay) / (1 + decay) * decay ** np.abs(values)
    published = outputs(monkeypatch, mechanism, cap, baskets, values)
    found = {}
    for name in names:
        found[name] = {None: 1.0} if name not in published else {}
        for result, probability in zip(published.get(name, []), mass.tolist(), strict=False):
            found[name][result] = found[name].get(result, 0.0) + probability
    return found


def divergence(first, second, epsilon):
    """Return delta at *epsilon* of two products of distributions, by enumeration."""
    total = 0.0
    for combined in itertools.product(*(first[name].items() for name in first)):
        p = math.prod(probability for _, probability in combined)
        q = math.prod(second[name].get(result, 0.0) for name, (result, _) in zip(first, combined, strict=True))
        total += max(p - math.exp(epsilon) * q, 0.0)
    return total


def both_directions(monkeypatch, mechanism, cap, baskets, basket):
    """Return the larger delta at the mechanism's epsilon between *baskets* and the same with one user more."""
    names = sorted({item for other in [*baskets, basket] for item in other})
    sides = [distributions(monkeypatch, mechanism, cap, side, names) for side in (baskets, [*baskets, basket])]
    epsilon = float(mechanism.epsilon)
    return max(divergence(*sides, epsilon), divergence(*sides[::-1], epsilon))


@pytest.fixture
def coarse(monkeypatch):
    """Make weights multiples of 1/16, so that all noise can be enumerated."""
    monkeypatch.setattr(light, "WEIGHT_UNIT", UNIT)
    monkeypatch.setattr(reference, "WEIGHT_UNIT", UNIT)


LOST = Fraction(1, 100)
CASES = [
    (1, [["a"], ["a"], ["b"]], ["a"]),
    (1, [["a"], ["a"], ["a"]], ["z"]),
    (1, [["a"], ["b"]], ["a", "b"]),
    (2, [["a"], ["a", "b"]], ["a", "b"]),
    (2, [["a"], ["a"]], ["a", "y", "z"]),
    (1, [], ["z"]),
    (1, [], ["y", "z"]),
    (1, [["a"], ["b"]] * 7, ["a", "b"]),
]
"""The cap, the items of the other users, and those of one user more; letters are numbered below."""


def numbered(case):
    """Return a case with numbers for letters."""
    cap, baskets, basket = case
    return cap, [[ord(item) - 97 for item in other] for other in baskets], [ord(item) - 97 for item in basket]


@pytest.mark.exact
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("epsilon", [Fraction(1), Fraction(3)])
def test_what_is_released_is_private_but_for_the_lost_mass(case, epsilon, monkeypatch, coarse):  # noqa: ARG001
    """Delta at epsilon of everything that is published is at most *lost*: enumerated, in both directions."""
    cap, baskets, basket = numbered(case)
    mechanism = Light(epsilon, LOST, Fraction(9, 10), k=3)
    assert both_directions(monkeypatch, mechanism, Cap(cap, 1.0, 0.0, 0.0), baskets, basket) <= LOST * (1 + 1e-9)


@pytest.mark.exact
@pytest.mark.parametrize(
    ("case", "defect"),
    [
        (CASES[0], "half the noise"),
        (CASES[7], "no cap"),
        (CASES[5], "a lower threshold"),
    ],
)
def test_planted_defects_are_detected(case, defect, monkeypatch, coarse):  # noqa: ARG001
    """The audit sees noise of half the scale, weights without a cap, and a threshold that is too low."""
    cap, baskets, basket = numbered(case)
    mechanism = Light(Fraction(1), LOST, Fraction(9, 10), k=3)
    if defect == "half the noise":
        exact = Light._noise
        monkeypatch.setattr(Light, "_noise", lambda self, cap: DiscreteLaplace(exact(self, cap).scale / 2))
    elif defect == "no cap":
        monkeypatch.setattr(ArrayPairs, "capped_sums", lambda self, _: self.weighted_sums(1e9))
    else:
        monkeypatch.setattr(Light, "_threshold", lambda *_: UNIT + 4)
    assert both_directions(monkeypatch, mechanism, Cap(cap, 1.0, 0.0, 0.0), baskets, basket) > LOST


@pytest.mark.exact
@pytest.mark.parametrize("cap", CAPS)
@pytest.mark.parametrize("epsilon", [Fraction(1, 2), Fraction(2), Fraction(8)])
@pytest.mark.parametrize("lost", [Fraction(1, 100), Fraction(1, 2 * 10**8)])
def test_items_that_one_user_alone_has_pass_with_the_lost_probability_at_most(cap, epsilon, lost):
    """The exact tail of the noise, for users with every number of items up to the last one with a weight."""
    mechanism = Light(epsilon, lost, TENTH)
    scale = float(cap * WEIGHT_UNIT / epsilon)
    threshold = mechanism._threshold(cap)

    def passed(n):
        weight = int(next(table([range(n)]).capped_sums(cap))[0])
        if weight == 0:
            return 0.0
        at_least = threshold - weight
        return n * math.exp(-at_least / scale) / (1 + math.exp(-1 / scale))

    largest = max(passed(n) for n in range(1, CAPPED_BASKET * cap + 3))
    assert largest <= lost
    assert largest > 0.9 * lost  # the threshold is not much higher than it must be


def test_an_item_whose_users_have_no_weight_is_never_released(monkeypatch):
    """A user may have a million of them, each of which would pass with the probability of the threshold."""
    monkeypatch.setattr(DiscreteLaplace, "draw", lambda *args: np.full(args[3], 2**40))
    outcome = Light(Fraction(1), DELTA, TENTH).release(Cap(1, 1.0, 0.0, 0.0), table([range(11)]), bits())
    assert len(outcome.positions) == 0


@pytest.mark.parametrize("cap", CAPS)
def test_weights_of_a_user_stay_below_the_cap(cap):
    """In l1, for every number of items; the noise is as wide as the cap."""
    for n in (1, 2, 3, 4, 5, 7, 10, 11, 40, 80, 81, 1000):
        sums = gathered(table([range(n)]).capped_sums(cap))
        assert sums.sum() < cap * WEIGHT_UNIT
        assert (sums > 0).all() == (n <= CAPPED_BASKET * cap)


def one_item(users=200_000, items=2_000, seed=0):
    """Return a table in which each user has one item, the popular ones more often."""
    rng = np.random.default_rng(seed)
    return ArrayPairs(np.arange(users), np.floor(items * rng.random(users) ** 3).astype(np.int64))


def few_items(most, users=60_000, items=500):
    """Return a table in which users have up to *most* distinct items, mostly the popular ones."""
    rng = np.random.default_rng(1)
    sizes = rng.integers(1, most, users, endpoint=True)
    return ArrayPairs(
        np.repeat(np.arange(users), sizes), np.floor(items * rng.random(sizes.sum()) ** 3).astype(np.int64)
    )


@pytest.mark.statistical
@pytest.mark.parametrize("epsilon", [Fraction(1, 2), Fraction(4)])
def test_released_counts_have_the_stated_error(epsilon):
    """The variance of released minus true counts is that of the stated errors, and of noise of scale 1/epsilon."""
    pairs = one_item()
    mechanism = Light(epsilon, DELTA, TENTH)
    errors, stated = [], []
    for run in range(6):
        outcome = mechanism.release(Cap(1, 1.0, 0.0, 0.0), pairs, bits(run))
        large = outcome.counts > 40 / epsilon  # a condition on smaller ones would be one on the noise
        errors.append((outcome.counts - pairs.counts[outcome.positions])[large])
        stated.append(outcome.std_errors[large])
    error, std = np.concatenate(errors), np.concatenate(stated)
    assert len(error) > 1_500
    assert np.allclose(std, math.sqrt(2) / float(epsilon), rtol=1e-3)
    assert 0.9 < error.std() / std[0] < 1.15  # counts are rounded to integers


@pytest.mark.parametrize("epsilon", [Fraction(1, 10), Fraction(1, 2), Fraction(1)])
def test_auto_takes_one_round_where_users_have_one_item(epsilon):
    """It has several times the accurate counts of two rounds, and intervals that cover."""
    pairs = one_item()
    auto = Auto.at_epsilon(epsilon, DELTA, Request(None, 10_000))
    outcome, other = auto.release(pairs, bits()), auto.two_round.release(pairs, bits())
    true = pairs.counts[outcome.positions]
    assert outcome.chosen == "light"
    assert len(outcome.positions) > 1.5 * len(other.positions)
    assert np.mean((outcome.low <= true) & (true <= outcome.high)) > 0.93
    assert outcome.why == "most users have one item: about 100% of the counts are kept with a cap there"
    assert outcome.cost.within(auto.worst_cost())


def test_a_cap_of_two_is_taken_where_users_have_up_to_two_items():
    """And where users have more, two rounds: the cap would remove too much."""
    auto = Auto.at_epsilon(Fraction(1), DELTA, Request(None, 10_000))
    outcome = auto.release(few_items(2), bits())
    assert (outcome.chosen, outcome.why.split(":")[0]) == ("light", "most users have up to 2 items")
    assert auto.release(few_items(8), bits()).chosen == "two-round"


def test_a_shared_budget_is_charged_the_histogram_and_the_round():
    """In zCDP, below epsilon^2 / 2."""
    limit = Cost(Fraction(3), DELTA)
    auto = Auto.within_cost(limit, Request(None, 10_000))
    outcome = auto.release(one_item(), bits())
    assert outcome.chosen == "light"
    assert outcome.cost == auto.light.worst_cost() + Cost(Fraction(auto.two_round.budget.histogram, 2**41))
    assert outcome.cost.within(limit)
    assert auto.light.worst_cost().rho < auto.light.epsilon**2 / 2
    assert (
        Auto.within_cost(Cost(Fraction(1, 50), DELTA), Request(None, 10_000)).release(one_item(), bits()).chosen
        != "light"
    )


def test_a_top_k_has_the_largest_verified_items():
    """Without the rule for the standard error, and only labels if no counts were requested."""
    pairs = one_item()
    auto = Auto.at_epsilon(Fraction(1, 10), DELTA, Request(400, 10_000))
    outcome = auto.release(pairs, bits())
    labels = Auto.at_epsilon(Fraction(1, 10), DELTA, Request(400, 10_000, counts=False)).release(pairs, bits())
    assert outcome.chosen == labels.chosen == "light"
    assert 0 < len(outcome.positions) <= 400
    assert (np.diff(outcome.counts) <= 0).all()
    assert labels.counts is None
    assert labels.positions.tolist() == outcome.positions.tolist()


@pytest.mark.parametrize("baskets", [[], [[0]], [[0], [0]]])
def test_tiny_tables_release_nothing(baskets):
    """No row decides about the cost, and no item of two users is released."""
    auto = Auto.at_epsilon(Fraction(1), DELTA, Request(None, 100))
    assert len(auto.release(table(baskets), bits()).positions) == 0
