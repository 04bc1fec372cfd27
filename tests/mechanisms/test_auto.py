"""The branches that `auto` makes, what it may cost, how it chooses, and what it says of the choice."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from discreet.accounting.laplace import rho_laplace
from discreet.mechanisms import KnownAuto, Likely, Request, SelectVerify, TwoRound, UnknownGumbel, auto
from discreet.mechanisms.auto import Auto, hidden_epsilon
from discreet.mechanisms.light import Cap, Light
from discreet.mechanisms.two_round import COST_UNIT, SCALES, Sizes, are_few, most_second, second_epsilon
from discreet.mechanisms.unknown_gumbel import AnchoredGumbel
from discreet.noise import DiscreteLaplace, KeyedBits
from discreet.testing.pairs import ArrayPairs, in_batches
from discreet.values import Cost, ExactHead

DELTA = Fraction(1, 10**8)
LIMIT = Cost(Fraction(1, 5), DELTA)
REQUEST = Request(None, 1000)
TOP = Request(7, 1000)


def cost_of_tests(mechanism):
    """Return the rho of the histogram, and that of the gap and of one number after the histogram."""
    whole = mechanism.two_round.mu**2 * COST_UNIT / (Fraction(494, 500) if mechanism.race else Fraction(499, 500))
    others = math.floor(whole / 500) + (math.floor(whole / 100) if mechanism.race else 0)
    return Fraction(mechanism.two_round.budget.histogram, 2 * COST_UNIT), Fraction(others, 2 * COST_UNIT)


@pytest.mark.parametrize("request_", [REQUEST, TOP, replace(TOP, counts=False, relative_error=Fraction(1, 4))])
def test_in_a_shared_budget_branches_get_all_that_the_tests_leave(request_):
    """Two rounds pay the histogram themselves, and get what other tests leave; the others, the limit without all."""
    mechanism = Auto.within_cost(LIMIT, request_)
    histogram, gap = cost_of_tests(mechanism)
    assert mechanism.two_round == TwoRound.within_cost(
        Cost.at_most(LIMIT.rho * (Fraction(499, 500) if request_.k is None else Fraction(494, 500)), DELTA), request_
    )
    rest = Cost.at_most(LIMIT.rho - histogram - gap, DELTA)
    assert mechanism.head == SelectVerify.within_cost(rest, request_)
    assert mechanism.light == Light.within_cost(rest, request_)
    second = mechanism.light.epsilon / 8
    assert mechanism.second_head.limit == Cost.at_most(rest.rho - rho_laplace(second, 1), DELTA)
    assert mechanism.second_head == replace(mechanism.head, limit=mechanism.second_head.limit)
    assert mechanism.race == (None if request_.k is None else AnchoredGumbel.within_cost(rest, request_))
    assert (mechanism.epsilon, mechanism.delta, mechanism.direct_epsilon()) == (None, 0, None)
    assert mechanism.head_limit == 1000
    assert mechanism.worst_cost().within(LIMIT)


ALONE = {
    (Fraction(1, 2), None): [0.10113, 0.004438402, 0.4456549, 0.003444519],
    (Fraction(1, 2), 7): [0.1006221, 0.004334613, 0.4218037, 0.003388355],
    (Fraction(4), None): [0.7149688, 0.226132, 3.584178, 0.177342],
    (Fraction(4), 7): [0.7113778, 0.2204539, 3.398176, 0.1745982],
}
"""By epsilon and k: mu of two rounds, rho of the head, epsilon of one round, and rho after a second histogram."""


@pytest.mark.parametrize(("epsilon", "k"), ALONE, ids=str)
def test_alone_branches_get_what_theorem_2_allows(epsilon, k):
    """Kept numbers, which docs/mechanisms/auto.md and the audits of Theorem 2 explain."""
    request_ = replace(TOP, k=k, relative_error=Fraction(1, 4), counts=k is None)
    mechanism = Auto.at_epsilon(epsilon, DELTA, request_)
    second = mechanism.second_head.limit.rho
    found = mechanism.two_round.mu, mechanism.head.limit.rho, mechanism.light.epsilon, second
    # Processors with and without AVX-512 add floats in another order: a search then ends 5 * 10^-5 apart.
    assert list(map(float, found)) == pytest.approx(ALONE[epsilon, k], rel=1e-4)
    assert mechanism.two_round == replace(
        TwoRound.within_cost(Cost(Fraction(1), DELTA), request_), mu=mechanism.two_round.mu
    )
    assert mechanism.head == SelectVerify.within_cost(Cost(mechanism.head.limit.rho, DELTA / 5), request_)
    assert mechanism.second_head == SelectVerify.within_cost(Cost(second, DELTA / 5), request_)
    assert mechanism.light == Light(mechanism.light.epsilon, DELTA * Fraction(3, 10), Fraction(1, 4), k is None, k)
    assert mechanism.race == (None if k is None else AnchoredGumbel.within_cost(mechanism.head.limit, request_))
    assert (mechanism.epsilon, mechanism.delta, mechanism.direct_epsilon()) == (epsilon, DELTA, epsilon)


def test_the_numbers_for_theorem_2_are_rounded_against_us(monkeypatch):
    """Floats of masses and of the tests are no smaller than the exact values, those of delta no larger."""
    given = {}

    def recorded(name):
        original = getattr(auto, name)
        monkeypatch.setattr(auto, name, lambda *args: given.setdefault(name, args) and original(*args))

    for name in ("mu_gaussian", "rho_of_branch", "epsilon_of_branch", "rho_after_second_test"):
        recorded(name)
    for delta in (DELTA, Fraction(1, 3 * 10**7), Fraction(7, 10**9)):
        given.clear()
        mechanism = Auto.at_epsilon(Fraction(2), delta, TOP)
        test = sum(cost_of_tests(mechanism))
        assert given["mu_gaussian"][1] <= delta * Fraction(24, 25)
        mu = auto.mu_gaussian(*given["mu_gaussian"])
        assert mechanism.two_round.mu**2 / Fraction(494, 500) <= Fraction(mu) ** 2
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
        assert given["rho_after_second_test"][:7] == given["epsilon_of_branch"][:7]
        assert given["rho_after_second_test"][7] >= mechanism.light.epsilon
        assert given["rho_after_second_test"][8] == given["epsilon_of_branch"][7]
        assert mechanism.light.epsilon / 8 <= given["rho_after_second_test"][9]
        assert mechanism.second_head.limit.rho <= auto.rho_after_second_test(*given["rho_after_second_test"])


@pytest.mark.statistical
@pytest.mark.parametrize("kind", [Auto, KnownAuto])
def test_users_with_most_of_the_pairs_whom_the_histogram_shows_are_not_overlooked(kind):
    """5,000 users have one item and 500 have 150, none between: counts are near the truth and in their intervals."""
    rng = np.random.default_rng(1)
    items = [rng.integers(0, 200, 5_000), *(rng.choice(200, 150, replace=False) for _ in range(500))]
    users = np.repeat(np.arange(5_500), [1] * 5_000 + [150] * 500)
    pairs = ArrayPairs(users, np.concatenate(items))
    mechanism = kind.at_epsilon(Fraction(1), DELTA, Request(None, 200, known_domain=kind is KnownAuto))
    errors, covered = [], []
    for run in range(6):
        outcome = mechanism.release(pairs, KeyedBits(bytes(32), run))
        true = pairs.counts[outcome.positions]
        errors += np.abs(outcome.counts / true - 1).tolist()
        covered += ((outcome.low <= true) & (true <= outcome.high)).tolist()
    assert len(errors) > 100
    assert np.median(errors) < 0.1
    assert np.mean(covered) > 0.9


@pytest.mark.parametrize("name", ["rho_of_branch", "epsilon_of_branch", "rho_after_second_test"])
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
            _, others_of_nine = cost_of_tests(mechanism)
            assert mechanism.worst_cost() == Cost(Fraction(81, 2) + others_of_nine, DELTA * 2)
        else:
            assert mechanism.worst_cost() == Cost(branch.worst_cost().rho + histogram + gap, DELTA)


PRICES = {
    (None, True): [
        (1.5853, None, 26),
        ("two-round", 5.1858, None, 0.085, 62, 916, 1.96),
        ("head", 7.15, None, 0.1, 143, 1141, 1.96),
        ("light", 1.5853, None, 0.085, 26, 177, 2.1183),
    ],
    (None, False): [
        (None, None, 26),
        ("two-round", None, None, None, 62, 916, 1.96),
        ("head", None, None, None, 83, 658, 1.96),
        ("light", None, None, None, 26, 177, 2.1183),
    ],
    (6, True): [
        (1.6747, None, 26),
        ("unknown-gumbel", 13.5149, 15.267, None, 260, 294, 1.96),
        ("two-round", 5.2119, None, 0.1166, 51, 765, 1.96),
        ("head", 7.25, None, 0.1, 145, 1148, 1.96),
        ("light", 1.6747, None, 0.1016, 26, 187, 2.1183),
    ],
    (6, False): [
        (None, None, 26),
        ("unknown-gumbel", None, None, None, 184, 208, 1.96),
        ("two-round", None, None, None, 51, 765, 1.96),
        ("head", None, None, None, 84, 658, 1.96),
        ("light", None, None, None, 26, 187, 2.1183),
    ],
    (300, True): [
        (1.6747, None, 26),
        ("two-round", 5.2119, None, 0.1166, 51, 765, 1.96),
        ("head", 7.25, None, 0.1, 145, 1148, 1.96),
        ("light", 1.6747, None, 0.1016, 26, 187, 2.1183),
        ("unknown-gumbel", 71.7788, 81.0841, None, 1830, 2067, 1.96),
    ],
    (300, False): [
        (None, None, 26),
        ("two-round", None, None, None, 51, 765, 1.96),
        ("head", None, None, None, 84, 658, 1.96),
        ("light", None, None, None, 26, 187, 2.1183),
        ("unknown-gumbel", None, None, None, 1294, 1462, 1.96),
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


def test_a_price_without_one_round_has_the_range_of_the_head_alone():
    """Only where a cap is possible is there a second histogram, after which the head has less of the budget."""
    mechanism = Auto.within_cost(Cost(Fraction(1, 50), Fraction(1, 10**9)), REQUEST)
    assert mechanism.light.possible(float(mechanism.two_round.mu)) == []
    assert mechanism.expectation().likely[1:] == mechanism.head.expectation().likely


def sizes(users_per_noise, continued_per_noise):
    """Return a histogram of a table whose two rounds have these ratios of users to noise."""
    users = np.array([12344.4])
    return Sizes(users, users, 5.26, 1.0, 1.0, users_per_noise, continued_per_noise, 0.0, users)


@pytest.mark.parametrize(
    ("users", "continued", "chosen"),
    [
        (285.0, 150.0, "two-round"),
        (284.9, 284.9, "enough"),
        (130.0, 130.0, "enough"),
        (129.9, 129.9, "head"),
        (284.9, 149.0, "head"),
        (380.0, 200.0, "two-round"),
        (381.0, 200.0, "head"),
        (10_000.0, 9_000.0, "two-round"),
    ],
)
def test_two_rounds_are_taken_where_there_are_many_users_for_the_noise(users, continued, chosen, monkeypatch):
    """285 per noise of an item, 130 if popular items are no obstacle, unless a hidden tail lowers it by over 1.9."""
    monkeypatch.setattr(TwoRound, "measure_sizes", lambda *_: sizes(users, continued))
    monkeypatch.setattr(Light, "cap", lambda *_, **__: None)
    outcome = Auto.at_epsilon(Fraction(1), DELTA, REQUEST).release(ArrayPairs([1, 2, 3], [0, 0, 1]), bits())
    assert outcome.chosen == ("head" if chosen == "head" else "two-round")
    start = {"two-round": "many", "enough": "enough", "head": "few"}[chosen]
    measured = "about 12,344 users, and noise of 5.3 users per item in the first round"
    assert outcome.why == f"{start} users for the number of items they have: {measured}"


@pytest.mark.parametrize(
    ("users", "many", "k", "chosen"),
    [(4_000, 0, None, "two-round"), (3_800, 0, None, "head"), (3_700, 300, None, "head"), (4_000, 0, 7, "head")],
)
def test_two_rounds_need_fewer_users_who_all_have_about_as_many_items(users, many, k, chosen, monkeypatch):
    """105 per noise of the second round, if clipping takes no more from those with many items."""
    by_size = np.zeros(SCALES)
    by_size[[6, 10]] = [users, many]
    monkeypatch.setattr(TwoRound, "measure_sizes", lambda *_: replace(sizes(100.0, 100.0), by_size=by_size))
    monkeypatch.setattr(Light, "cap", lambda *_, **__: None)
    monkeypatch.setattr(Auto, "_gap", lambda *_: (0, 1))
    outcome = Auto.at_epsilon(Fraction(1), DELTA, replace(REQUEST, k=k)).release(
        ArrayPairs([1, 2, 3], [0, 0, 1]), bits()
    )
    assert outcome.chosen == chosen


def bits():
    """Return bits."""
    return KeyedBits(bytes(32), "auto")


@pytest.mark.parametrize(("size", "chosen"), [(3, "two-round"), (9_000, "head")])
@pytest.mark.parametrize("k", [None, 7])
def test_popular_items_decide_between_the_head_and_two_rounds(size, chosen, k, monkeypatch):
    """The noisy count at rank 50, beside a fifth of the users; for a top k, only the ratio of users to noise does."""
    monkeypatch.setattr(TwoRound, "measure_sizes", lambda *_: sizes(200.0, 200.0))
    monkeypatch.setattr(Light, "cap", lambda *_, **__: None)
    pairs = ArrayPairs(np.tile(np.arange(size), 55), np.repeat(np.arange(55), size))
    mechanism = Auto.at_epsilon(Fraction(2), DELTA, replace(REQUEST, k=k))
    monkeypatch.setattr(Auto, "_gap", lambda *_: (0, 1))
    outcome = mechanism.release(pairs, bits())
    assert outcome.chosen == (chosen if k is None else "head")
    assert outcome.cost.within(mechanism.worst_cost())


def test_the_count_at_a_rank_has_the_noise_of_its_share():
    """That at rank 50, or the one below the cut-off."""
    counts = np.arange(100, 0, -1) * 1000
    mechanism = Auto.at_epsilon(Fraction(8), DELTA, REQUEST)
    precision = int(mechanism.two_round.mu**2 * COST_UNIT / 499)
    std = math.sqrt(COST_UNIT / precision)
    for limit, count in ((80, 51_000), (20, 80_000)):
        limited = replace(mechanism, head=replace(mechanism.head, head_limit=limit))
        errors = [
            limited._count_at_rank(ExactHead(counts[: limit + 1], limit), precision, KeyedBits(bytes(32), run)) - count
            for run in range(300)
        ]
        assert abs(np.mean(errors)) < 4 * std / math.sqrt(300)
        assert 0.85 < np.std(errors) / std < 1.15


SPLIT_CASES = {
    "a cap of two": ((1, 2), 3_000, "light", [("rest of items", 1)]),
    "a cap of two, few items": ((1, 2), 20, "two-round", [("rest of items", 1)]),
    "a cap of four": ((2, 4), 3_000, "light", [("split of sizes", 2), ("rest of items", 2)]),
    "a cap of four, few items": ((2, 4), 20, "two-round", [("split of sizes", 2), ("rest of items", 2)]),
    "no cap, many users": ((3, 8), 3_000, "two-round", [("split of sizes", 2)]),
    "no cap, few users": ((12, 40), 3_000, "two-round", [("rank", 1)]),
}
"""The least and the largest number of items of a user, the number of items, the branch, and the numbers that are drawn
after the histogram, with the part of their share that each has."""


@pytest.mark.parametrize("case", SPLIT_CASES)
@pytest.mark.parametrize("enough", [True, False])
def test_numbers_after_the_histogram_share_one_price(case, enough, monkeypatch):
    """Whichever are drawn: the split of the histogram, the rest of the items, or the count at a rank."""
    (least, most), items, chosen, numbers = SPLIT_CASES[case]
    rng = np.random.default_rng(2)
    sizes_ = rng.integers(least, most, 40_000, endpoint=True)
    pairs = ArrayPairs(np.repeat(np.arange(len(sizes_)), sizes_), rng.integers(0, items, sizes_.sum()))
    drawn = []
    exact = auto.add_noise

    def recorded(values, unit, precisions, bits, label):
        drawn.append((label, unit, precisions.tolist()))
        return exact(values, unit, precisions, bits, label)

    monkeypatch.setattr(auto, "add_noise", recorded)
    if enough:  # the ratio of users to noise at which the count at a rank would decide
        monkeypatch.setattr(auto, "USERS_PER_NOISE", math.inf)
        monkeypatch.setattr(auto, "FEWER_USERS_PER_NOISE", 0)
        monkeypatch.setattr(auto, "POPULAR", 1.0)
    mechanism = Auto.at_epsilon(Fraction(2), DELTA, REQUEST)
    outcome = mechanism.release(pairs, bits())
    assert outcome.chosen == chosen
    share = int(mechanism.two_round.mu**2 * COST_UNIT / 499)
    assert sum(precisions[0] for _, _, precisions in drawn) <= share
    expected = [number for number in numbers if enough or number[0] != "rank"]
    if enough and case == "no cap, many users":
        expected.append(("rank", 2))
    assert [(label, len(precisions)) for label, _, precisions in drawn] == [
        (label, 6 if label == "split of sizes" else 1) for label, _ in expected
    ]
    for (_, unit, precisions), (label, part) in zip(drawn, expected, strict=True):
        assert set(precisions) == {share // part}
        assert unit % 2**20 == 0 if label == "rest of items" else unit == 1
    assert outcome.cost.within(mechanism.worst_cost())


def test_a_table_of_few_users_gets_no_larger_cap():
    """The test of few items would not be conclusive, and noise may hide one user in a hundred with many items."""
    rng = np.random.default_rng(2)
    sizes_ = rng.integers(2, 4, 40_000, endpoint=True)
    users, items = np.repeat(np.arange(40_000), sizes_), rng.integers(0, 500, sizes_.sum())
    mechanism = Auto.at_epsilon(Fraction(1), DELTA, REQUEST)
    for most, chosen in ((40_000, True), (8_000, True), (5_000, False)):
        kept = users < most
        outcome = mechanism.release(ArrayPairs(users[kept], items[kept]), bits())
        assert (outcome.chosen == "light") == chosen


FEW = {
    "one item": ([1] * 1_500, None, "light"),
    "some items": ([1, 2] * 800, None, "light"),
    "many items of some": ([1] * 1_000 + [2] * 250 + [4] * 120 + [9] * 80, None, "head"),
    "many items of some, a top k": ([1] * 1_000 + [2] * 250 + [4] * 120 + [9] * 80, 7, "head"),
    "many items of some, the first": ([1] * 1_000 + [2] * 250 + [4] * 120 + [9] * 80, 1, "unknown-gumbel"),
    "twenty items": ([20] * 1_500, None, "head"),
}
"""Numbers of items of few users, k, and what they are released by."""


def few(sizes_, seed=0):
    """Return pairs of users with *sizes_* items, of 60 of falling popularity."""
    rng = np.random.default_rng(seed)
    weights = np.arange(1, 61) ** -1.0
    baskets = [rng.choice(60, n, replace=False, p=weights / weights.sum()) for n in sizes_]
    return ArrayPairs(np.repeat(np.arange(len(sizes_)), sizes_), np.concatenate(baskets))


def coverage(mechanism, pairs, chosen, runs):
    """Return the share of counts within their intervals, of releases that are all by *chosen* and within the price."""
    covered = []
    for number in range(runs):
        outcome = mechanism.release(pairs, KeyedBits(bytes(32), number))
        assert outcome.chosen == chosen
        assert outcome.cost.within(mechanism.worst_cost())
        truth = pairs.counts[outcome.positions]
        covered.append((outcome.low <= truth) & (truth <= outcome.high))
    return np.concatenate(covered).mean()


@pytest.mark.parametrize("case", FEW)
def test_of_few_users_a_second_histogram_decides_about_one_round(case):
    """The first hides how many items they have; two rounds, which would clip by it, are not taken."""
    sizes_, k, chosen = FEW[case]
    mechanism = Auto.at_epsilon(Fraction(1), DELTA, replace(REQUEST, k=k))
    assert coverage(mechanism, few(sizes_), chosen, 20) >= 0.93


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("users", "items", "chosen"), [(3_000, 40, "head"), (3_000, 9, "two-round"), (9_000, 40, "two-round")]
)
def test_two_rounds_clip_no_users_whom_noise_hides(users, items, chosen, monkeypatch):
    """Below 300 standard errors of users the head is taken, unless the rest of the items shows that there are few."""
    rng = np.random.default_rng(5)
    weights = 1 / np.arange(1, items + 1)
    counted = np.minimum(rng.zipf(2.2, users), items)
    baskets = [rng.choice(items, n, replace=False, p=weights / weights.sum()) for n in counted]
    pairs = ArrayPairs(np.repeat(np.arange(users), counted), np.concatenate(baskets))
    mechanism = Auto.at_epsilon(Fraction(4), DELTA, REQUEST)
    drawn = []
    exact = auto.add_noise

    def recorded(values, unit, precisions, bits, label):
        drawn.append(label)
        return exact(values, unit, precisions, bits, label)

    monkeypatch.setattr(auto, "add_noise", recorded)
    assert coverage(mechanism, pairs, chosen, 8) >= 0.93
    assert set(drawn) <= {"rest of items"}
    assert len(drawn) == (8 if users == 3_000 else 0)


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("most", "heavy", "items", "chosen"),
    [(3, 60, 500, "head"), (3, 0, 500, "head"), (6, 0, 500, "two-round"), (2, 0, 12, "two-round"), (2, 0, 36, "light")],
)
def test_two_rounds_need_more_users_where_most_have_one_or_two_items(most, heavy, items, chosen):
    """Noise of 57 users may hide 60 with most of the pairs; not where many users have more, or items are very few."""
    rng = np.random.default_rng(3)
    sizes_ = rng.integers(1, most, 6_000, endpoint=True)
    sizes_[:heavy] *= 40
    weights = 1 / np.arange(1, items + 1)
    drawn = rng.choice(items, sizes_.sum(), p=weights / weights.sum())
    pairs = ArrayPairs(np.repeat(np.arange(6_000), sizes_), drawn)
    assert coverage(Auto.at_epsilon(Fraction(1), DELTA, REQUEST), pairs, chosen, 8) >= 0.92


def test_a_race_after_a_second_histogram_pays_for_it():
    """It is taken from its own least gap on, has the budget of the head there, and more noise than without one."""
    sizes_, k, chosen = FEW["many items of some, the first"]
    mechanism = Auto.at_epsilon(Fraction(1), DELTA, replace(REQUEST, k=k))
    assert mechanism.second_race == AnchoredGumbel.within_cost(mechanism.second_head.limit, replace(REQUEST, k=k))
    outcome = mechanism.release(few(sizes_), bits())
    users = mechanism.two_round.measure_sizes(few(sizes_), bits()).users
    second = second_epsilon(mechanism.light.epsilon, users)
    spent = rho_laplace(second, 1) + mechanism.second_race.worst_cost().rho + sum(cost_of_tests(mechanism))
    assert float(outcome.cost.rho) == pytest.approx(float(spent), rel=1e-12)
    assert outcome.std_errors[0] == mechanism.second_race.std_error > mechanism.race.std_error
    assert outcome.why.endswith(f"; {mechanism._needed(mechanism.second_race):,} are enough to release all 1")
    assert mechanism._needed(mechanism.second_race) > mechanism._needed(mechanism.race)
    between = mechanism._needed(mechanism.race), mechanism._needed(mechanism.second_race) - 1
    with pytest.MonkeyPatch.context() as patch:
        for gap in between:
            patch.setattr(Auto, "_gap", lambda *_, gap=gap: (gap, between[0]))
            assert mechanism.release(few(sizes_), bits()).chosen == "head"
    assert chosen == outcome.chosen


@pytest.mark.parametrize(("users", "fewer"), [(4_400, False), (4_150, True)])
def test_what_is_few_follows_from_the_noise_of_the_histogram(users, fewer):
    """75 of its standard errors, 57.2 users at epsilon 1; the noisy number of users has one bin here."""
    mechanism = Auto.at_epsilon(Fraction(1), DELTA, REQUEST)
    assert mechanism.two_round.histogram_error == pytest.approx(57.16, abs=0.01)
    assert are_few(np.array([float(users)]), mechanism.two_round.histogram_error) == fewer
    assert not are_few(np.array([1_000.0, 500.0, 1_500.0]), mechanism.two_round.histogram_error)


@pytest.mark.parametrize(("users", "epsilon"), [(4_000, 0.1414 / 4), (1_000, 0.892055 / 8), (0, 0.892055 / 8)])
def test_a_second_histogram_has_a_hundredth_of_the_users_as_noise(users, epsilon):
    """Unless that takes more than an eighth of one round's epsilon; what is left is the round's."""
    mechanism = Auto.at_epsilon(Fraction(1), DELTA, REQUEST)
    measured = replace(sizes(1.0, 1.0), by_size=np.array([float(users)]))
    _, light, spent = mechanism._measure_again(measured, few([1] * 100), bits())
    assert float(mechanism.light.epsilon - light.epsilon) == pytest.approx(epsilon, rel=1e-3)
    assert spent == Cost(rho_laplace(mechanism.light.epsilon - light.epsilon, 1))


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 9.0, 200.0])
def test_a_second_histogram_and_the_rest_of_one_round_cost_no_more_than_one_round(epsilon):
    """Also where an eighth of epsilon would cost more by itself, as noise of few users is discrete."""
    light = Light.within_cost(Cost(Fraction(epsilon), DELTA), REQUEST)
    second = most_second(light.epsilon)
    rest = replace(light, epsilon=light.epsilon - second)
    assert (rest.worst_cost() + Cost(rho_laplace(second, 1))).within(light.worst_cost())


@pytest.mark.exact
@pytest.mark.parametrize("left_out", [auto.FEW_ITEMS, auto.DENSE])
def test_a_user_moves_the_rest_of_the_items_by_the_cap_at_most(left_out):
    """All but the largest capped sums, whatever the batches."""
    rng = np.random.default_rng(1)
    moved = []

    class Divided(ArrayPairs):
        def capped_sums(self, cap):
            for sums in super().capped_sums(cap):
                yield from in_batches(sums, 7)

    def rest_of(baskets, cap):
        users = [user for user, basket in enumerate(baskets) for _ in basket]
        items = [item for basket in baskets for item in basket]
        exact = np.concatenate([np.zeros(0, np.int64), *ArrayPairs(users, items).capped_sums(cap)])
        for pairs in (ArrayPairs(users, items), Divided(users, items)):
            watched = auto._Watched(pairs, left_out)
            assert sum(map(len, watched.capped_sums(cap))) == len(exact)
            assert watched.rest == np.sort(exact)[:-left_out].sum()
        return watched.rest

    for _ in range(60):
        cap = int(rng.integers(1, 7))
        items = int(rng.choice([30, 33, 60, 200]))
        baskets = [rng.permutation(items)[: rng.integers(1, 6)].tolist() for _ in range(int(rng.integers(10, 300)))]
        user = rng.permutation(items + 50)[: rng.integers(1, 12 * cap)].tolist()
        moved.append((rest_of([*baskets, user], cap) - rest_of(baskets, cap)) / (cap * 2**20))
    assert min(moved) == 0
    assert 0.9 < max(moved) <= 1


@pytest.mark.parametrize(("items", "dense"), [(2, True), (32, True), (60, False)])
def test_one_round_is_not_taken_where_two_rounds_clip_nobody(items, dense):
    """A table of few items is left to two rounds; one of too few users is not."""
    table = [(user, (user * step) % items) for user in range(20_000) for step in (1, 7)]
    users, held = map(np.array, zip(*table, strict=True))
    mechanism = Auto.at_epsilon(Fraction(1), DELTA, REQUEST)
    for number in range(3):
        outcome = mechanism.release(ArrayPairs(users, held), KeyedBits(bytes(32), number))
        assert outcome.chosen == ("two-round" if dense else "light")
        assert outcome.cost.within(mechanism.worst_cost())
    few = users < 1000
    assert mechanism.release(ArrayPairs(users[few], held[few]), bits()).chosen == "light"


@pytest.mark.exact
@pytest.mark.parametrize("k", [1, 2, 6, 10])
def test_anchored_counts_cost_what_is_charged(k):
    """Of their covariance, for users who have any of the items; no more than counts with noise of their own."""
    race = AnchoredGumbel(k, 1000, Fraction(1, 4), DELTA)
    noise = race._noise()
    apart = float(noise.apart)
    shared = float(noise.shared)
    for m in range(1, k + 1):
        covariance = apart * np.eye(m) + shared
        shifts = [np.append(np.full(a, 2.0), np.zeros(m - a)) for a in range(m + 1)]
        largest = max(shift @ np.linalg.solve(covariance, shift) for shift in shifts) / 2
        charged = float(race._cost(m, reached=False).rho) - m * race.epsilon**2 / 8
        assert largest <= charged * (1 + 1e-12)
        assert charged == pytest.approx((m / apart + 1 / shared) / 2)
    assert largest > 0.95 * charged
    assert race.worst_cost().within(UnknownGumbel(k, 1000, Fraction(1, 4), DELTA).worst_cost())
    assert race.worst_cost().rho > 0.999 * float(2 * k * race.epsilon**2 / 8)
    assert race._cost(0, reached=True).rho == race.epsilon**2 / 8


@pytest.mark.statistical
@pytest.mark.parametrize("k", [1, 10])
def test_counts_of_a_race_have_the_stated_error(k):
    """Which is (1 + sqrt(k)) / 2 sqrt(k) of that of noise of their own; a part of it is common to all."""
    race = AnchoredGumbel(k, 20, Fraction(1, 2), DELTA)
    counts = np.arange(30, 9, -1) * 10_000
    errors = []
    covered = []
    for run in range(600):
        outcome = race.release(ExactHead(counts, 20), KeyedBits(bytes(32), run))
        truth = counts[outcome.positions]
        errors.append(outcome.counts - truth)
        covered.append((outcome.low <= truth) & (truth <= outcome.high))
        assert outcome.cost == race.worst_cost()
    stated = (1 + math.sqrt(k)) / 2 / math.sqrt(k) * 2 / 0.5
    assert outcome.std_errors[0] == pytest.approx(stated, rel=1e-3)
    assert 0.9 < np.std(errors) / stated < 1.1
    assert abs(np.mean(errors)) < 1
    assert np.mean(covered) > 0.93
    root = math.sqrt(k)
    assert np.var(np.mean(errors, axis=1)) == pytest.approx(stated**2 * (1 / k + 1 / root) / (1 + 1 / root), rel=0.25)


@pytest.mark.parametrize(
    ("items", "why"),
    [
        (1, "most users have one item: about 93% of the counts are kept with a cap there"),
        (2, "most users have up to 2 items: about 93% of the counts are kept with a cap there"),
    ],
)
def test_one_round_is_taken_where_a_cap_is_possible(items, why, monkeypatch):
    """It is asked with the histogram and the mu of two rounds, and costs the histogram beside its own."""
    asked, measured = [], replace(sizes(9.0, 9.0), by_size=np.array([6_000.0, 0.0]))
    monkeypatch.setattr(TwoRound, "measure_sizes", lambda *_: measured)
    monkeypatch.setattr(Light, "cap", lambda *args, **_: asked.append(args) or Cap(items, 0.931, 0.0, 0.0))
    mechanism = Auto.at_epsilon(Fraction(1), DELTA, REQUEST)
    pairs = ArrayPairs(np.arange(6_000), [*np.repeat([0, 1], 250), *range(2, 552)] + [*range(2, 552)] * 9)
    outcome = mechanism.release(pairs, bits())
    assert asked == [(mechanism.light, measured, float(mechanism.two_round.mu))]
    assert (outcome.chosen, outcome.why) == ("light", why)
    hidden = hidden_epsilon(mechanism.light.epsilon, 6_000) if items > 1 else 0
    light = replace(mechanism.light, epsilon=mechanism.light.epsilon - hidden)
    alone = light.release(Cap(items, 0.931, 0.0, 0.0), pairs, bits())
    assert len(outcome.positions) == 2
    assert outcome.counts.tolist() == alone.counts.tolist()
    spent = Cost(rho_laplace(hidden, 1)) if hidden else Cost()
    assert outcome.cost == light.worst_cost() + spent + Cost(sum(cost_of_tests(mechanism)))
    assert outcome.cost.within(mechanism.worst_cost())


def heavy_users(heavy):
    """Return pairs of 6,000 users with one to three items, and *heavy* with 40 times as many."""
    rng = np.random.default_rng(3)
    sizes_ = rng.integers(1, 3, 6_000, endpoint=True)
    sizes_[:heavy] *= 40
    weights = 1 / np.arange(1, 501)
    return ArrayPairs(np.repeat(np.arange(6_000), sizes_), rng.choice(500, sizes_.sum(), p=weights / weights.sum()))


@pytest.mark.parametrize(("heavy", "k", "chosen"), [(0, None, "light"), (60, None, "head"), (60, 3, "unknown-gumbel")])
def test_few_users_with_very_many_items_are_counted_before_one_round(heavy, k, chosen, monkeypatch):
    """The histogram hides them, and a cap would take most of their items; the count is paid by what follows."""
    mechanism = Auto.at_epsilon(Fraction(4), DELTA, replace(REQUEST, k=k))
    pairs = heavy_users(heavy)
    # With a k, a gap with which the race is complete but too imprecise to be taken at once.
    monkeypatch.setattr(Auto, "_is_precise", lambda *_: False)
    monkeypatch.setattr(TwoRound, "leads", lambda *_: False)
    outcomes = [mechanism.release(pairs, KeyedBits(bytes(32), number)) for number in range(10)]
    why = {"light": "most users", "head": "some users have many items", "unknown-gumbel": "count 3"}[chosen]
    paid = {"light": mechanism.light, "head": mechanism.second_head, "unknown-gumbel": mechanism.second_race}[chosen]
    covered = []
    for number, outcome in enumerate(outcomes):
        if outcome.chosen == chosen and outcome.std_errors.min() >= getattr(mechanism.second_race, "std_error", 0):
            users = mechanism.two_round.measure_sizes(pairs, KeyedBits(bytes(32), number)).users
            hidden = hidden_epsilon(mechanism.light.epsilon, users)
            assert float(hidden) == pytest.approx(400 * math.sqrt(2) / 6_000, rel=0.02)
            branch = replace(paid, epsilon=paid.epsilon - hidden) if chosen == "light" else paid
            tests = Cost(rho_laplace(hidden, 1)) + Cost(sum(cost_of_tests(mechanism)))
            assert outcome.cost.within(branch.worst_cost() + tests)
            assert outcome.why.startswith(why)
            truth = pairs.counts[outcome.positions]
            covered.append((outcome.low <= truth) & (truth <= outcome.high))
    assert len(covered) >= 7
    assert np.concatenate(covered).mean() >= 0.93


@pytest.mark.parametrize(("cap", "above"), [(2, 3 + 16 + 16), (6, 16 + 16)])
def test_a_user_moves_the_items_above_a_cap_by_no_more_than_the_noise_is_for(cap, above, monkeypatch):
    """At most 16 of each user count, whatever the user has, and the noise has 16 over epsilon as its scale.

    So do those of the users that the histogram shows, one of them with 17 to 32 items.
    """
    baskets = [1, 2, 2, 5, 30, 400]
    pairs = ArrayPairs(np.repeat(np.arange(6), baskets), np.concatenate([np.arange(n) for n in baskets]))
    assert [hidden_epsilon(Fraction(epsilon), 10) for epsilon in (8, 200)] == [Fraction(1, 4), 1]
    scales = []
    mechanism = Auto.at_epsilon(Fraction(1), DELTA, REQUEST)
    error = DiscreteLaplace(160).std
    shown = replace(sizes(9.0, 9.0), by_size=np.array([9.0, 2.0, 0.0, 0.0, 0.0, 1.0]))

    def draw(noise, *_):
        scales.append(noise.scale)
        return np.zeros(1, dtype=np.int64)

    monkeypatch.setattr(DiscreteLaplace, "draw", draw)
    for least, hides in ((above - 16 + 0.1, False), (above - 16 - 0.1, True)):
        monkeypatch.setattr(auto, "HIDDEN_EVIDENCE", least / error)
        assert mechanism._hides(Cap(cap, 1.0, 0.0, 0.0), Fraction(1, 10), shown, pairs, bits()) == hides
    assert scales == [160, 160]


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


@pytest.mark.parametrize(
    ("precise", "leads", "chosen", "queries"),
    [
        (True, True, "unknown-gumbel", []),
        (False, True, "two-round", ["users_by_size", "weighted_sums"]),
        (False, False, "unknown-gumbel", ["users_by_size", "weighted_sums"]),
    ],
)
def test_a_race_gives_way_to_two_rounds_that_are_more_precise(precise, leads, chosen, queries, monkeypatch):
    """Unless it is precise enough without a query of pairs; positions are item numbers if pairs were queried."""
    asked = []

    class Asked(ArrayPairs):
        def __getattribute__(self, name):
            if name in ("users_by_size", "weighted_sums", "capped_sums"):
                asked.append(name)
            return super().__getattribute__(name)

    sizes_ = [10, *range(9000, 8000, -100), 20]
    pairs = Asked(np.concatenate([np.arange(n) for n in sizes_]), np.repeat(np.arange(12), sizes_))
    mechanism = Auto.at_epsilon(Fraction(1), DELTA, Request(7, 40))
    monkeypatch.setattr(auto, "PRECISE_RACE", Fraction(1 if precise else 0))
    monkeypatch.setattr(TwoRound, "leads", lambda *_: leads)
    outcome = mechanism.release(pairs, bits())
    assert outcome.chosen == chosen
    assert asked[: len(queries)] == queries
    assert bool(asked) == bool(queries)
    first = 0 if precise else 1
    assert set(outcome.positions.tolist()) <= set(range(first, first + 10))
    assert outcome.cost.within(mechanism.worst_cost())
    if chosen == "unknown-gumbel":
        assert outcome.cost == mechanism.race.worst_cost() + Cost(sum(cost_of_tests(mechanism)))
        assert outcome.std_errors[0] == mechanism.race.std_error


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_gap_is_between_count_k_and_the_count_below_the_cutoff(k):
    """The least gap is a complete race's threshold, 3 / epsilon and 1.5 standard errors of the gap more."""
    mechanism = Auto.at_epsilon(Fraction(8), DELTA, Request(k, 3))
    counts = [900_000, 500_000, 300_000, 100_000]
    precision = mechanism.two_round.mu**2 / Fraction(494, 5)
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
    monkeypatch.setattr(Light, "cap", lambda *_, **__: None)
    mechanism = Auto.at_epsilon(Fraction(8), DELTA, Request(None, 2))
    outcome = mechanism.release(pairs, bits())
    alone = mechanism.head.release(ExactHead(np.array([9000, 5000, 4000]), 2), bits())
    assert outcome.positions.tolist() == [[3, 4][i] for i in alone.positions]
    assert len(outcome.positions) > 0
    assert outcome.counts.tolist() == alone.counts.tolist()
    assert outcome.cost == alone.cost + Cost(sum(cost_of_tests(mechanism)))


def test_a_race_is_named_first_where_a_typical_count_k_passes_its_threshold(monkeypatch):
    """Count k of a table whose counts are a number over the rank, 10,000 by default."""
    mechanism = Auto.at_epsilon(Fraction(1), DELTA, Request(12, 1000))
    least = math.ceil(12 * 100 * mechanism.race.std_error)  # at a relative error of a tenth
    for typical, place in ((least, 0), (least - 2, 3)):
        monkeypatch.setattr(auto, "TYPICAL_COUNTS", typical)
        assert [each.name for each in mechanism.expectation().likely].index("unknown-gumbel") == place
    mechanism = Auto.at_epsilon(Fraction(1), DELTA, Request(12, 1000, counts=False))
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
