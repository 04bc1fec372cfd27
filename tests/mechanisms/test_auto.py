"""The branches that `auto` makes, what it may cost, how it chooses, and what it says of the choice."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from discreet.mechanisms import Likely, Request, SelectVerify, TwoRound, UnknownGumbel, auto
from discreet.mechanisms.auto import Auto
from discreet.mechanisms.light import Cap, Light
from discreet.mechanisms.two_round import COST_UNIT, Sizes
from discreet.noise import KeyedBits
from discreet.testing.pairs import ArrayPairs, in_batches
from discreet.values import Cost, ExactHead

DELTA = Fraction(1, 10**8)
LIMIT = Cost(Fraction(1, 5), DELTA)
REQUEST = Request(None, 1000)
TOP = Request(7, 1000)


def cost_of_tests(mechanism):
    """Return the rho of the histogram and that of the gap."""
    gap = math.floor(mechanism.two_round.mu**2 * COST_UNIT / 99) if mechanism.race else 0
    return Fraction(mechanism.two_round.budget.histogram, 2 * COST_UNIT), Fraction(gap, 2 * COST_UNIT)


@pytest.mark.parametrize("request_", [REQUEST, TOP, replace(TOP, counts=False, relative_error=Fraction(1, 4))])
def test_in_a_shared_budget_branches_get_all_that_the_tests_leave(request_):
    """Two rounds pay the histogram themselves, and 1 % less for a gap; the others get the limit without both tests."""
    mechanism = Auto.within_cost(LIMIT, request_)
    histogram, gap = cost_of_tests(mechanism)
    assert mechanism.two_round == TwoRound.within_cost(
        Cost.at_most(LIMIT.rho * (1 if request_.k is None else Fraction(99, 100)), DELTA), request_
    )
    rest = Cost.at_most(LIMIT.rho - histogram - gap, DELTA)
    assert mechanism.head == SelectVerify.within_cost(rest, request_)
    assert mechanism.light == Light.within_cost(rest, request_)
    assert mechanism.race == (None if request_.k is None else UnknownGumbel.within_cost(rest, request_))
    assert (mechanism.epsilon, mechanism.delta, mechanism.direct_epsilon()) == (None, 0, None)
    assert mechanism.head_limit == 1000
    assert mechanism.worst_cost().within(LIMIT)


ALONE = {
    (Fraction(1, 2), None): [0.1012313, 0.004453712, 0.451545],
    (Fraction(1, 2), 7): [0.1007239, 0.004359718, 0.4261962],
    (Fraction(4), None): [0.7156849, 0.226947, 3.629265],
    (Fraction(4), 7): [0.7120975, 0.2219128, 3.433639],
}
"""By epsilon and k: mu of two rounds, rho of the head, and epsilon of one round."""


@pytest.mark.parametrize(("epsilon", "k"), ALONE, ids=str)
def test_alone_branches_get_what_theorem_2_allows(epsilon, k):
    """Kept numbers, which docs/mechanisms/auto.md and the audits of Theorem 2 explain."""
    request_ = replace(TOP, k=k, relative_error=Fraction(1, 4), counts=k is None)
    mechanism = Auto.at_epsilon(epsilon, DELTA, request_)
    found = mechanism.two_round.mu, mechanism.head.limit.rho, mechanism.light.epsilon
    assert [float(f"{float(value):.7g}") for value in found] == ALONE[epsilon, k]
    assert mechanism.two_round == replace(
        TwoRound.within_cost(Cost(Fraction(1), DELTA), request_), mu=mechanism.two_round.mu
    )
    assert mechanism.head == SelectVerify.within_cost(Cost(mechanism.head.limit.rho, DELTA / 5), request_)
    assert mechanism.light == Light(mechanism.light.epsilon, DELTA * Fraction(3, 10), Fraction(1, 4), k is None, k)
    assert mechanism.race == (None if k is None else UnknownGumbel.within_cost(mechanism.head.limit, request_))
    assert (mechanism.epsilon, mechanism.delta, mechanism.direct_epsilon()) == (epsilon, DELTA, epsilon)


def test_the_numbers_for_theorem_2_are_rounded_against_us(monkeypatch):
    """Floats of masses and of the tests are no smaller than the exact values, those of delta no larger."""
    given = {}

    def recorded(name):
        original = getattr(auto, name)
        monkeypatch.setattr(auto, name, lambda *args: given.setdefault(name, args) and original(*args))

    for name in ("mu_gaussian", "rho_of_branch", "epsilon_of_branch"):
        recorded(name)
    for delta in (DELTA, Fraction(1, 3 * 10**7), Fraction(7, 10**9)):
        given.clear()
        mechanism = Auto.at_epsilon(Fraction(2), delta, TOP)
        test = sum(cost_of_tests(mechanism))
        assert given["mu_gaussian"][1] <= delta * Fraction(24, 25)
        mu = auto.mu_gaussian(*given["mu_gaussian"])
        assert mechanism.two_round.mu**2 / Fraction(99, 100) <= Fraction(mu) ** 2
        epsilon, allowed, of_mu, of_test, lost, lost_head = given["rho_of_branch"]
        assert (epsilon, of_mu) == (2, mu)
        assert allowed <= delta * Fraction(199, 200) < allowed * (1 + 1e-9)
        assert 2 * test <= Fraction(of_test) ** 2 < 2 * test * (1 + Fraction(1, 10**9))
        assert mechanism.two_round.lost <= lost < mechanism.two_round.lost * (1 + 1e-9)
        assert delta / 5 <= lost_head < delta / 5 * (1 + 1e-9)
        assert mechanism.head.limit.rho <= auto.rho_of_branch(*given["rho_of_branch"])
        assert given["epsilon_of_branch"][2:5] == (mu, of_test, lost)
        assert given["epsilon_of_branch"][0] == 2
        assert given["epsilon_of_branch"][1] <= delta < given["epsilon_of_branch"][1] * (1 + 1e-9)
        assert given["epsilon_of_branch"][5] >= mechanism.head.limit.rho
        assert given["epsilon_of_branch"][6] == lost_head
        assert delta * Fraction(3, 10) <= given["epsilon_of_branch"][7] < delta * Fraction(3, 10) * (1 + 1e-9)


@pytest.mark.parametrize("name", ["rho_of_branch", "epsilon_of_branch"])
def test_without_a_budget_for_a_branch_there_is_no_theorem(name, monkeypatch):
    """The shared budget's instance is used then; so it is for noise that is not Gaussian."""
    monkeypatch.setattr(auto, name, lambda *_: 0.0)
    assert Auto.at_epsilon(Fraction(1), DELTA, REQUEST) is None
    assert Auto.at_epsilon(Fraction(1), DELTA, replace(REQUEST, noise="laplace", counts=False)) is None
    assert Auto.by_step(Fraction(1), DELTA, REQUEST) is None


@pytest.mark.parametrize("request_", [REQUEST, TOP])
@pytest.mark.parametrize("alone", [True, False])
def test_the_worst_cost_is_that_of_the_largest_branch_with_the_tests(request_, alone):
    """Whichever it is."""
    make = Auto.at_epsilon(Fraction(1), DELTA, request_) if alone else Auto.within_cost(LIMIT, request_)
    histogram, gap = cost_of_tests(make)
    large = Cost(Fraction(3), DELTA / 2)
    branches = {
        "two_round": replace(make.two_round, mu=Fraction(9), lost=DELTA * 2),
        "head": SelectVerify.within_cost(large, request_),
        "light": Light.within_cost(large, request_),
    }
    for name, branch in branches.items():
        mechanism = replace(make, **{name: branch}, delta=make.delta)
        if name == "two_round":
            _, gap_of_nine = cost_of_tests(mechanism)
            assert mechanism.worst_cost() == Cost(Fraction(81, 2) + gap_of_nine, DELTA * 2)
        else:
            assert mechanism.worst_cost() == Cost(branch.worst_cost().rho + histogram + gap, DELTA)


PRICES = {
    (None, True): [
        (1.5649, None, 26),
        ("two-round", 5.1806, None, 0.085, 61, 915),
        ("head", 7.15, None, 0.1, 143, 1001),
        ("light", 1.5649, None, 0.085, 26, 58),
    ],
    (None, False): [
        (None, None, 26),
        ("two-round", None, None, None, 61, 915),
        ("head", None, None, None, 83, 581),
        ("light", None, None, None, 26, 58),
    ],
    (6, True): [
        (1.6573, None, 25),
        ("unknown-gumbel", 19.1341, 19.1341, None, 259, 259),
        ("two-round", 5.2067, None, 0.1166, 51, 764),
        ("head", 7.25, None, 0.1, 145, 1015),
        ("light", 1.6573, None, 0.1, 25, 59),
    ],
    (6, False): [
        (None, None, 25),
        ("unknown-gumbel", None, None, None, 184, 184),
        ("two-round", None, None, None, 51, 764),
        ("head", None, None, None, 83, 581),
        ("light", None, None, None, 25, 59),
    ],
    (300, True): [
        (1.6573, None, 25),
        ("two-round", 5.2067, None, 0.1166, 51, 764),
        ("head", 7.25, None, 0.1, 145, 1015),
        ("light", 1.6573, None, 0.1, 25, 59),
        ("unknown-gumbel", 135.2987, 135.2987, None, 1824, 1824),
    ],
    (300, False): [
        (None, None, 25),
        ("two-round", None, None, None, 51, 764),
        ("head", None, None, None, 83, 581),
        ("light", None, None, None, 25, 59),
        ("unknown-gumbel", None, None, None, 1290, 1290),
    ],
}
"""By k and counts: what a price says without data."""


def price(mechanism):
    """Return the bounds of all branches, and each branch's name and range, rounded."""
    found = mechanism.expectation()
    ranges = [tuple(getattr(each, name) for name in Likely.__slots__) for each in found.likely]
    kept = [(found.min_std_error, found.max_std_error, found.smallest_count), *ranges]
    return [tuple(round(v, 4) if isinstance(v, float) else v for v in row) for row in kept]


@pytest.mark.parametrize("request_", PRICES, ids=str)
def test_a_price_is_a_range_for_each_branch(request_):
    """Kept numbers, the likeliest branch first."""
    k, counts = request_
    assert price(Auto.at_epsilon(Fraction(1), DELTA, Request(k, 1000, counts=counts))) == PRICES[request_]


def sizes(users_per_noise, continued_per_noise):
    """Return a histogram of a table whose two rounds have these ratios of users to noise."""
    return Sizes(np.array([1234.4]), np.array([1234.4]), 5.26, 1.0, 1.0, users_per_noise, continued_per_noise)


@pytest.mark.parametrize(
    ("users", "continued", "chosen"),
    [
        (285.0, 150.0, "two-round"),
        (284.9, 284.9, "head"),
        (380.0, 200.0, "two-round"),
        (381.0, 200.0, "head"),
        (10_000.0, 9_000.0, "two-round"),
    ],
)
def test_two_rounds_are_taken_where_there_are_many_users_for_the_noise(users, continued, chosen, monkeypatch):
    """285 per noise of an item, unless a hidden tail lowers that by more than 1.9."""
    monkeypatch.setattr(TwoRound, "measure_sizes", lambda *_: sizes(users, continued))
    monkeypatch.setattr(Light, "cap", lambda *_: None)
    outcome = Auto.at_epsilon(Fraction(1), DELTA, REQUEST).release(ArrayPairs([1, 2, 3], [0, 0, 1]), bits())
    assert outcome.chosen == chosen
    start = {
        "two-round": "many users for the number of items they have",
        "head": "few users for the number of items they have",
    }
    assert outcome.why == f"{start[chosen]}: about 1,234 users, and noise of 5.3 users per item in the first round"


def bits():
    """Return bits."""
    return KeyedBits(bytes(32), "auto")


@pytest.mark.parametrize(
    ("items", "why"),
    [
        (1, "most users have one item: about 93% of the counts are kept with a cap there"),
        (2, "most users have up to 2 items: about 93% of the counts are kept with a cap there"),
    ],
)
def test_one_round_is_taken_where_a_cap_is_possible(items, why, monkeypatch):
    """It is asked with the histogram and the mu of two rounds, and costs the histogram beside its own."""
    asked, measured = [], sizes(9.0, 9.0)
    monkeypatch.setattr(TwoRound, "measure_sizes", lambda *_: measured)
    monkeypatch.setattr(Light, "cap", lambda *args: asked.append(args) or Cap(items, 0.931, 0.0, 0.0))
    mechanism = Auto.at_epsilon(Fraction(1), DELTA, REQUEST)
    pairs = ArrayPairs(np.arange(500), np.repeat([0, 1], 250))
    outcome = mechanism.release(pairs, bits())
    assert asked == [(mechanism.light, measured, float(mechanism.two_round.mu))]
    assert (outcome.chosen, outcome.why) == ("light", why)
    alone = mechanism.light.release(Cap(items, 0.931, 0.0, 0.0), pairs, bits())
    assert len(outcome.positions) == 2
    assert outcome.counts.tolist() == alone.counts.tolist()
    assert outcome.cost == mechanism.light.worst_cost() + Cost(cost_of_tests(mechanism)[0])


def test_a_race_is_taken_from_the_least_gap_on(monkeypatch):
    """What it says of the gap are the noisy gap and the least one."""
    sizes_ = [9000, 8000, 7000, 3, 2]
    pairs = ArrayPairs(np.concatenate([np.arange(n) for n in sizes_]), np.repeat(np.arange(5), sizes_))
    mechanism, seen = Auto.at_epsilon(Fraction(1), DELTA, Request(2, 3)), []
    for gap, race in ((5999, False), (6000, True), (7001, True)):
        monkeypatch.setattr(Auto, "_gap", lambda *args, gap=gap: seen.append(args) or (gap, 6000))
        outcome = mechanism.release(pairs, bits())
        assert (outcome.chosen == "unknown-gumbel") == race
        if race:
            assert outcome.why == f"count 2 is about {gap:,} above the cut-off; 6,000 are enough to release all 2"
            assert len(outcome.positions) == 2
    assert all(args[1] is mechanism.race for args in seen)
    assert seen[0][2].counts.tolist() == sizes_[:4]


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_gap_is_between_count_k_and_the_count_below_the_cutoff(k):
    """The least gap is a complete race's threshold, 3 / epsilon and 1.5 standard errors of the gap more."""
    mechanism = Auto.at_epsilon(Fraction(8), DELTA, Request(k, 3))
    counts = [900_000, 500_000, 300_000, 100_000]
    precision = mechanism.two_round.mu**2 / 99
    std = 1 / math.sqrt(precision)
    race = mechanism.race
    least = race.expectation().smallest_count + 3 / float(race.epsilon) + 1.5 * std
    errors = []
    for run in range(300):
        gap, needed = mechanism._gap(race, ExactHead(np.array(counts), 3), KeyedBits(bytes(32), run))
        assert needed - 1 < least <= needed
        errors.append(gap - (counts[k - 1] - 100_000))
    assert abs(np.mean(errors)) < 4 * std / math.sqrt(300)
    assert 0.85 < np.std(errors) / std < 1.15


def test_the_head_has_the_largest_counts_of_the_same_pairs():
    """Exact counts of users, ties by number, whatever the batches; and the positions are numbers of items."""
    sizes_ = [3, 40, 7, 40, 1, 9, 40, 2]

    class Divided(ArrayPairs):
        def weighted_sums(self, limit):
            for sums in super().weighted_sums(limit):
                yield from in_batches(sums, 3)

    rows = np.concatenate([np.arange(n) for n in sizes_]), np.repeat(np.arange(8), sizes_)
    for pairs in (ArrayPairs(*rows), Divided(*rows)):
        for limit in (1, 2, 5, 8, 20):
            numbers, counts = auto._largest_counts(pairs, limit)
            expected = [1, 3, 6, 5, 2, 0, 7, 4][:limit]
            assert numbers.tolist() == expected
            assert counts.tolist() == [sizes_[number] for number in expected]

    class Large(ArrayPairs):
        def weighted_sums(self, limit):
            del limit
            yield (2**20 - 1) * np.array([3_000_000, 5_000_000_000])

    assert auto._largest_counts(Large([], []), 2)[1].tolist() == [5_000_000_000, 3_000_000]
    empty = auto._largest_counts(ArrayPairs([], []), 5)
    assert [values.dtype for values in empty] == [np.int64, np.int64]
    assert [len(values) for values in empty] == [0, 0]


def test_positions_of_the_head_are_item_numbers(monkeypatch):
    """The release is that of the head alone, from a head with one count below the cut."""
    sizes_ = [3, 4000, 7, 9000, 5000]
    pairs = ArrayPairs(np.concatenate([np.arange(n) for n in sizes_]), np.repeat(np.arange(5), sizes_))
    monkeypatch.setattr(TwoRound, "measure_sizes", lambda *_: sizes(1.0, 1.0))
    monkeypatch.setattr(Light, "cap", lambda *_: None)
    mechanism = Auto.at_epsilon(Fraction(8), DELTA, Request(None, 2))
    outcome = mechanism.release(pairs, bits())
    alone = mechanism.head.release(ExactHead(np.array([9000, 5000, 4000]), 2), bits())
    assert outcome.positions.tolist() == [[3, 4][i] for i in alone.positions]
    assert len(outcome.positions) > 0
    assert outcome.counts.tolist() == alone.counts.tolist()
    assert outcome.cost == alone.cost + Cost(cost_of_tests(mechanism)[0])


def test_a_race_is_named_first_where_a_typical_count_k_passes_its_threshold(monkeypatch):
    """Count k of a table whose counts are a number over the rank, 10,000 by default."""
    mechanism = Auto.at_epsilon(Fraction(1), DELTA, Request(12, 1000))
    smallest = mechanism.race.expectation().smallest_count
    for typical, place in ((12 * smallest, 0), (12 * smallest - 1, 3)):
        monkeypatch.setattr(auto, "TYPICAL_COUNTS", typical)
        assert [each.name for each in mechanism.expectation().likely].index("unknown-gumbel") == place


def test_of_many_equal_counts_the_first_items_are_in_the_head():
    """On every machine: the sort is stable."""
    sizes_ = [2 + item % 3 for item in range(600)]
    pairs = ArrayPairs(np.concatenate([np.arange(n) for n in sizes_]), np.repeat(np.arange(600), sizes_))
    numbers, counts = auto._largest_counts(pairs, 500)
    assert numbers.tolist() == sorted(range(600), key=lambda item: -sizes_[item])[:500]
    assert counts.tolist() == sorted(sizes_, reverse=True)[:500]
