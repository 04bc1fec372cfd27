"""One round of capped sums: the exact privacy of what is released, the choice of the cap, counts and intervals."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

import mpmath
import numpy as np
import pytest

from discreet.accounting.laplace import rho_laplace
from discreet.mechanisms import Request, light
from discreet.mechanisms.auto import Auto, hidden_epsilon
from discreet.mechanisms.light import CAPS, SPLIT, Cap, Light, measured
from discreet.mechanisms.two_round import Sizes
from discreet.noise import DiscreteLaplace, KeyedBits
from discreet.testing import pairs as reference
from discreet.testing.pairs import ArrayPairs, gathered
from discreet.values import CAPPED_BASKET, WEIGHT_UNIT, Cost

from .draws import RecordedBits, release

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
    (3, [["a"], ["a"]], ["a", "y", "z"]),
    (6, [["a"]], ["a", "z"]),
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
        (CASES[9], "no cap"),
        (CASES[7], "a lower threshold"),
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


@pytest.mark.parametrize("most", [2, 3, 4, 6])
def test_a_cap_is_taken_where_users_have_up_to_so_many_items(most):
    """It has more accurate counts than two rounds, intervals that cover, and is charged as one of a user's item."""
    pairs = few_items(most, items=3_000)
    auto = Auto.at_epsilon(Fraction(1), DELTA, Request(None, 10_000))
    outcome, other = auto.release(pairs, bits()), auto.two_round.release(pairs, bits())
    cap = min(most, 5)
    assert (outcome.chosen, outcome.why.split(":")[0]) == ("light", f"most users have up to {cap} items")
    true = pairs.counts[outcome.positions]
    accurate = np.abs(outcome.counts - true) <= 0.1 * true
    assert accurate.sum() > 1.1 * len(other.positions)
    assert np.mean((outcome.low <= true) & (true <= outcome.high)) > 0.93
    tests = auto.two_round.budget.histogram + int(auto.two_round.mu**2 * 2**40 / 499)
    hidden = hidden_epsilon(auto.light.epsilon, auto.two_round.measure_sizes(pairs, bits()).users)
    light = replace(auto.light, epsilon=auto.light.epsilon - hidden)
    assert outcome.cost == light.worst_cost() + Cost(rho_laplace(hidden, 1)) + Cost(Fraction(tests, 2**41))
    assert outcome.cost.within(auto.light.worst_cost() + Cost(Fraction(tests, 2**41)))


def test_two_rounds_are_taken_where_a_cap_would_remove_too_much():
    """Where users have more than six items, and for a top k whose items stand out."""
    auto = Auto.at_epsilon(Fraction(1), DELTA, Request(None, 10_000))
    assert auto.release(few_items(15), bits()).chosen == "two-round"
    top = Auto.at_epsilon(Fraction(1), DELTA, Request(100, 10_000))
    assert top.release(few_items(4), bits()).chosen != "light"


def test_a_shared_budget_is_charged_the_histogram_and_the_round():
    """In zCDP, below epsilon^2 / 2."""
    limit = Cost(Fraction(3), DELTA)
    auto = Auto.within_cost(limit, Request(None, 10_000))
    outcome = auto.release(one_item(), bits())
    assert outcome.chosen == "light"
    tests = auto.two_round.budget.histogram + int(auto.two_round.mu**2 * 2**40 / 499)
    assert outcome.cost == auto.light.worst_cost() + Cost(Fraction(tests, 2**41))
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


class Capped(NamedTuple):
    """One round with its cap, as a mechanism."""

    mechanism: Light
    cap: Cap

    def release(self, pairs, drawn):
        """Release by one round."""
        return self.mechanism.release(self.cap, pairs, drawn)


def weight(n, cap):
    """Return the weight of a user of n items, in units of 2^-20."""
    return 0 if n > 10 * cap else max(0, math.floor(2**20 * min(Fraction(1), Fraction(cap, n))) - 1)


@pytest.mark.parametrize("epsilon", [Fraction(1), Fraction(5)])
@pytest.mark.parametrize("error", [TENTH, Fraction(2, 5)])
@pytest.mark.parametrize("k", [None, 4, 300])
@pytest.mark.parametrize(
    "cap", [Cap(1, 1.0, 0.0, 0.0), Cap(2, 0.8, 0.04, 0.1), Cap(2, 0.9, 0.12, 0.02), Cap(5, 0.9, 0.1, 0.05)]
)
def test_a_release_follows_from_what_it_drew(epsilon, error, k, cap):
    """Sums of weights, thresholds, errors and intervals, as docs/mechanisms/light.md defines them."""
    rng = np.random.default_rng(3)
    baskets = [
        sorted(set(np.floor(300 * rng.random(n) ** 3).astype(int).tolist()))
        for n in np.append(rng.geometric(0.5, 4000), [9, 11, 40, 60, 120])
    ]
    pairs, scale = table(baskets), float(cap.items / epsilon)
    sums = Counter()
    for basket in baskets:
        sums.update(dict.fromkeys(basket, weight(len(basket), cap.items)))
    items = sorted(sums)
    threshold = max(1 + scale * math.log(cap.items / (2 * DELTA)), 0.1 + scale * math.log(10 * cap.items / (2 * DELTA)))
    mechanism, expected = Light(epsilon, DELTA, error, k=k), []
    outcome, draws = release(Capped(mechanism, cap), pairs)
    spread = math.sqrt(2) * scale / cap.kept
    for number, noise in enumerate(draws.added["capped"].values.tolist()):
        y = (sums[items[number]] + noise) / 2**20
        count, half = y / cap.kept, math.log(20) / math.sqrt(2)
        std = math.hypot(spread, 0.5 * cap.spread * count)
        precise = std <= 0.85 * error * count and math.log(10) * scale <= error * y
        if sums[items[number]] > 0 and y >= threshold and (k or precise):
            up = math.hypot(spread, cap.unseen * round(count))
            low, high = round(count) - half * std, round(count) + half * up
            expected.append((-round(count), number, std, max(math.floor(low), 0), math.ceil(high)))
    expected.sort()
    assert 3 < len(expected) < len(items)
    counts, positions, errors, low, high = (list(column) for column in zip(*expected[:k], strict=True))
    assert outcome.positions.tolist() == positions
    assert outcome.counts.tolist() == [-count for count in counts]
    assert outcome.std_errors.tolist() == pytest.approx(errors, rel=1e-6)
    assert outcome.low.tolist() == low
    assert outcome.high.tolist() == high
    lists = outcome.positions, outcome.counts, outcome.low, outcome.high
    assert all(values.dtype == np.int64 for values in lists)
    assert (outcome.ordered, outcome.complete) == (True, len(positions) == k)
    assert outcome.cost == mechanism.worst_cost()
    labels = Light(epsilon, DELTA, error, counts=False, k=k).release(cap, pairs, RecordedBits(0))
    assert labels.positions.tolist() == positions
    assert labels.counts is labels.std_errors is labels.low is labels.high is None
    assert (labels.ordered, labels.complete, labels.cost) == (True, outcome.complete, outcome.cost)


def sizes(by_size, continued, likely=None):
    """Return a histogram of users by their number of items, as the first step of two rounds measures it."""
    likely = by_size if likely is None else likely
    return Sizes(np.array(by_size), np.array(continued), 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, np.array(likely))


@pytest.mark.parametrize("items", CAPS)
def test_a_cap_loses_what_the_histogram_says(items):
    """The loss of an item is a mean over its users: a user with n items counts n times; a tail may hide users."""
    by_size = [900.0, 300.0, 60.0, 20.0, 0.0, 3.0, 0.0]
    more = [900.0, 300.0, 60.0, 20.0, 9.0, 6.0, 4.0]
    middles = [1, 2, 2**1.5, 2**2.5, 2**3.5, 2**4.5, 2**5.5]

    def loss(users, power):
        mass = [count * n for count, n in zip(users, middles, strict=True)]
        lost = [1 if n > 10 * items else 1 - min(1, items / n) for n in middles]
        return sum(m * x**power for m, x in zip(mass, lost, strict=True)) / sum(mass)

    cap = measured(items, sizes(by_size, more))
    assert cap.items == items
    assert cap.kept == pytest.approx(1 - loss(by_size, 1))
    assert cap.spread == pytest.approx(math.sqrt(loss(by_size, 2)))
    hidden = loss(more, 1) - loss(by_size, 1)
    assert cap.unseen == pytest.approx(math.hypot(0.5 * math.sqrt(loss(more, 2)), hidden) / cap.kept)
    assert measured(items, sizes([0.0] * 7, [0.0] * 7)) == Cap(items, 1.0, math.inf, 0.0)
    assert measured(items, sizes([0.5] + [0.0] * 6, [0.5] + [0.0] * 6)) == Cap(items, 1.0, 0.0, 0.0)
    probable = measured(items, sizes(by_size, by_size, more))
    assert probable.hidden == cap.unseen
    assert cap.hidden == probable.unseen == pytest.approx(cap.spread / 2 / cap.kept)
    far = sizes([0.0] * 7 + [9.0], [0.0] * 7 + [9.0])
    assert measured(items, far).kept == 0.05
    assert measured(items, far, np.ones(6)).kept == 0.05


@pytest.mark.parametrize("items", CAPS[2:])
def test_a_split_of_the_histogram_shows_what_a_cap_loses(items):
    """Users of 3 to 8 items count as what they have; a bin is divided by what is above 0."""
    by_size, more = [90.0, 30.0, 600.0, 800.0, 3.0], [90.0, 30.0, 600.0, 800.0, 9.0]
    cap = measured(items, sizes(by_size, more), np.array([20.0, 40.0, 10.0, -5.0, 30.0, 0.0]))
    users = {1: 90, 2: 30, 3: 200, 4: 400, 5: 200, 7: 600, 2**3.5: 3}

    def loss(users, power):
        mass = sum(count * n for n, count in users.items())
        return sum(count * n * max(0, 1 - items / n) ** power for n, count in users.items()) / mass

    assert cap.kept == pytest.approx(1 - loss(users, 1))
    assert cap.spread == pytest.approx(math.sqrt(loss(users, 2)))
    with_tail = users | {2**3.5: 9}
    hidden = loss(with_tail, 1) - loss(users, 1)
    assert cap.unseen == pytest.approx(math.hypot(0.5 * math.sqrt(loss(with_tail, 2)), hidden) / cap.kept)
    even = measured(items, sizes(by_size, more), np.array([-1.0, -1.0, 0.0, 0.0, 0.0, 0.0]))
    assert even == measured(items, sizes(by_size, more), np.ones(6))


def test_larger_caps_need_a_split_and_no_users_whom_noise_probably_hides(monkeypatch):
    """No cap is taken if the histogram probably hides users above it; but one, none if users stand out beyond it."""
    mechanism = Light(Fraction(1), DELTA, TENTH)
    caps = [Cap(items, 1.0, 0.0, 0.9, 0.1) for items in CAPS]
    monkeypatch.setattr(light, "measured", lambda items, *_: caps[items - 1])
    histogram = sizes([9.0], [9.0])
    strays = replace(histogram, stray=3.51)
    even = np.ones(6)

    def chosen(histogram, split):
        cap = mechanism.cap(histogram, 0.1, split)
        return None if cap is None else cap.items

    assert chosen(histogram, None) == chosen(histogram, even) == chosen(strays, even) == 1
    caps[0] = Cap(1, 1.0, 0.0, 0.0, 0.1001)
    assert [chosen(histogram, None), chosen(histogram, even), chosen(strays, even)] == [2, 2, None]
    assert chosen(replace(histogram, stray=3.5), even) == 2
    assert mechanism.cap(histogram, 0.1, most_hidden=math.inf).items == 1
    caps[0] = caps[1] = Cap(1, 1.0, 0.13, 0.0)
    assert [chosen(histogram, None), chosen(histogram, even), chosen(strays, even)] == [None, 3, None]
    assert mechanism.may_have_cap(histogram, 0.1)
    assert not mechanism.may_have_cap(strays, 0.1)
    caps[2] = Cap(3, 1.0, 0.0, 0.0, 0.1001)
    assert chosen(histogram, even) == 4
    caps[5] = Cap(6, 1.0, 0.0, 0.0)
    caps[3] = caps[4] = Cap(4, 0.6, 0.0, 0.0)
    assert chosen(histogram, even) == 6


@pytest.mark.parametrize(
    ("bins", "possible"),
    [
        ([0.0, 0.0, 900.0, 0.0], True),
        ([0.0, 0.0, 300.0, 900.0], True),
        ([0.0, 0.0, 300.0, 900.0, 5.0], True),
        ([0.0, 0.0, 300.0, 900.0, 300.0], False),
        ([0.0, 0.0, 0.0, 0.0, 900.0], False),
    ],
)
def test_a_split_is_drawn_only_where_a_cap_may_be_possible(bins, possible):
    """With the fewest items that the bins allow."""
    assert Light(Fraction(1), DELTA, TENTH).may_have_cap(sizes(bins, bins), 0.1) == possible


def test_the_split_counts_users_of_three_to_eight_items():
    """And a user is in one of its bins at most."""
    pairs = table([range(n) for n in (1, 2, 3, 3, 4, 5, 6, 6, 7, 8, 8, 9, 500)])
    assert pairs.users_by_size(SPLIT)[1:-1].tolist() == [2, 1, 1, 2, 1, 2]


def test_a_cap_is_possible_where_laplace_noise_is_better_and_it_removes_little(monkeypatch):
    """By epsilon and mu, by the spread, and the one with the least noise; none without any."""
    mechanism = Light(Fraction(13, 10), DELTA, TENTH)
    assert mechanism.possible(1.0) == [1]
    assert mechanism.possible(1.0001) == []
    assert mechanism.possible(1 / 1.415) == [1, 2]
    assert mechanism.possible(1 / 2.46) == [1, 2, 3, 4, 5, 6]
    assert mechanism.possible(1 / 2.44) == [1, 2, 3, 4, 5]
    large = replace(mechanism, relative_error=Fraction(1, 5))
    thresholds = [large._threshold(cap) * 1.3 / cap / 2**20 / (5 * math.log(10)) for cap in (3, 4)]
    assert all(1.8 < each < 2.0 for each in thresholds)  # by so much the threshold is above the least precise count
    assert large.possible(1 / (1.001 * thresholds[0] * math.sqrt(3))) == [1, 2, 3]
    assert large.possible(0.999 / (thresholds[0] * math.sqrt(3))) == [1, 2, 3]
    assert large.possible(1.001 / (thresholds[0] * math.sqrt(3))) == [1, 2]
    assert replace(large, k=5).possible(1.001 / (thresholds[0] * math.sqrt(3))) == [1, 2, 3, 4, 5, 6]
    assert mechanism.possible(1 / 1.413) == [1]
    histogram = sizes([9.0], [9.0])
    for caps, mu, chosen in (
        ([Cap(1, 0.6, 0.12, 0.0), Cap(2, 1.0, 0.0, 0.0)], 0.1, 1),
        ([Cap(1, 0.4, 0.12, 0.0), Cap(2, 1.0, 0.0, 0.0)], 0.1, 2),
        ([Cap(1, 0.6, 0.1201, 0.0), Cap(2, 1.0, 0.0, 0.0)], 0.1, 2),
        ([Cap(1, 0.6, 0.1201, 0.0), Cap(2, 1.0, 0.1201, 0.0)], 0.1, None),
        ([Cap(1, 0.4, 0.12, 0.0), Cap(2, 1.0, 0.0, 0.0)], 1.0, 1),
        ([Cap(1, 0.4, 0.12, 0.0), Cap(2, 1.0, 0.0, 0.0)], 1.1, None),
    ):
        monkeypatch.setattr(
            light, "measured", lambda items, given, _, caps=caps: given is histogram and caps[items - 1]
        )
        assert mechanism.cap(histogram, mu) == (None if chosen is None else caps[chosen - 1])


PRICES = {
    "release": (Light(Fraction(1), DELTA, TENTH), [1.4142, 0.085, 24, 157]),
    "top": (Light(Fraction(1), DELTA, TENTH, k=10), [1.4142, 0.105, 21, 149]),
    "labels": (Light(Fraction(1), DELTA, TENTH, counts=False), [None, None, 24, 157]),
    "labels of a top": (Light(Fraction(1), DELTA, TENTH, counts=False, k=10), [None, None, 21, 149]),
    "a large error": (Light(Fraction(1, 2), DELTA, Fraction(4, 5)), [2.8284, 0.68, 41, 5240]),
    "a top with a large error": (Light(Fraction(1, 2), DELTA, Fraction(9, 10), k=1), [2.8284, 10.8915, 41, 5240]),
}


@pytest.mark.parametrize(("mechanism", "expected"), PRICES.values(), ids=PRICES)
def test_the_price_of_one_round(mechanism, expected):
    """Kept numbers: the least error, the smallest count, and the likely range with one and with six items a user."""
    found = mechanism.expectation()
    (likely,) = found.likely
    assert (likely.name, likely.max_std_error, found.max_std_error, found.sum_std_error) == ("light", None, None, None)
    assert likely.min_std_error == found.min_std_error
    assert likely.interval == pytest.approx(2.1183, abs=1e-4), "the 95 % interval of Laplace noise"
    assert likely.smallest_count == found.smallest_count
    shown = [found.min_std_error, likely.max_relative_error, likely.smallest_count, likely.max_smallest_count]
    assert [value and round(value, 4) for value in shown] == expected


def test_one_round_gets_all_of_a_shared_budget():
    """Its epsilon is the largest whose rho is that of the limit; all else is that of the request."""
    request = Request(7, 1000, counts=False, relative_error=Fraction(1, 4))
    limit = Cost(Fraction(1, 3), DELTA)
    mechanism = Light.within_cost(limit, request)
    assert mechanism == Light(mechanism.epsilon, DELTA, Fraction(1, 4), counts=False, k=7)
    assert mechanism.worst_cost() == Cost(rho_laplace(mechanism.epsilon, 2**20), DELTA)
    assert limit.rho * (1 - Fraction(1, 10**7)) < mechanism.worst_cost().rho <= limit.rho


def test_a_sum_at_the_threshold_is_released(monkeypatch):
    """And one unit below it is not."""
    mechanism, pairs = Light(Fraction(1), DELTA, TENTH, k=1), table([[0]] * 3)
    needed = mechanism._threshold(1) - 3 * (2**20 - 1)
    for noise, found in ((needed, 1), (needed - 1, 0)):
        monkeypatch.setattr(DiscreteLaplace, "draw", lambda *args, noise=noise: np.full(args[3], noise))
        assert len(mechanism.release(Cap(1, 1.0, 0.0, 0.0), pairs, bits()).positions) == found


def test_intervals_end_at_zero():
    """Where a cap removed very different shares from users."""
    outcome = Light(Fraction(1), DELTA, TENTH, k=5).release(Cap(1, 1.0, 1.0, 0.0), one_item(), bits())
    assert outcome.low.tolist() == [0] * 5


@pytest.mark.parametrize("cap", CAPS)
def test_thresholds_are_rounded_up(cap):
    """At 40 digits, with so much noise that floats have no digits left for fractions of a unit."""
    for epsilon in (Fraction(cap, 1_000_000), Fraction(cap, 666_667), Fraction(1, 100)):
        with mpmath.workdps(40):
            scale = mpmath.mpf(cap * 2**20) * epsilon.denominator / epsilon.numerator
            noise = scale * mpmath.log(10 * cap / (2 * mpmath.mpf(10) ** -8))
            threshold = Light(epsilon, DELTA, TENTH)._threshold(cap)
            assert noise + 2**20 / 10 <= threshold <= noise * (1 + mpmath.mpf(10) ** -11) + 2**20 / 10 + 2
            assert isinstance(threshold, int)
    assert threshold == math.ceil(noise) + 104_858
