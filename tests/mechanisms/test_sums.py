"""Sums and averages: their price, their parameters, and refused requests."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.errors import InputError, InvariantViolated, UnfitData
from discreet.head_request import SumBounds
from discreet.mechanisms import (
    CountRelease,
    KnownGumbel,
    KnownLaplace,
    Request,
    TopStable,
    UnknownGumbel,
    check_bounds,
    summing,
)
from discreet.mechanisms.base import noise_of
from discreet.mechanisms.sums import (
    KnownGumbelSums,
    KnownLaplaceSums,
    ListedSums,
    UnknownGumbelSums,
    UnknownLaplaceSums,
)
from discreet.noise import DiscreteLaplace, KeyedBits
from discreet.query.planning import choose
from discreet.testing.audit import head_of
from discreet.values import MAX_COUNT, RHO_QUANTUM, Cost, ExactHead, Sensitivity

HALF, DELTA = Fraction(1, 2), Fraction(1, 1000)
LIMIT = Cost(Fraction(84375, 10**4), Fraction(3, 10**9))
"""3,000 units of epsilon = .15."""
SUMMED = SumBounds(-7, 5)
SECRET = b"a secret for sums and averages.."


def asked(k=10, limit=100, groups=None, tau=1, summed=SUMMED, **more):
    """Return a request."""
    return Request(k, limit, Sensitivity(groups, tau), summed=summed, **more)


class CountingBits:
    """Bits that record how many words were drawn for which label."""

    def __init__(self, run=0):
        self.source, self.drawn = KeyedBits(SECRET, run), {}

    def uint64(self, label, n, start=0):
        """See `Bits.uint64`."""
        self.drawn[label] = n
        return self.source.uint64(label, n, start)


# What they cost.


@pytest.mark.parametrize("moved", [4, 2])
@pytest.mark.parametrize("counts", [None, "laplace"])
def test_a_sum_is_charged_for_each_returned_item_that_a_user_can_be_in(counts, moved):
    """One unit each, *moved* at most, after the ranking's units; no noise is drawn for items that are not returned."""
    mechanism = UnknownGumbelSums(UnknownGumbel(4, 6, HALF, DELTA, 1, counts), SUMMED, moved, "laplace")
    histogram = {"a": 25, "b": 22, "c": 20, "d": 18, "e": 17, "f": 3}
    head = head_of(histogram, 6, sums=dict.fromkeys(histogram, 50))
    lengths = set()
    for run in range(60):
        bits = CountingBits(run)
        outcome = mechanism.release(head, bits)
        r = len(outcome.positions)
        lengths.add(r)
        units = r + (r < 4) + (r if counts else 0) + min(r, moved)
        assert outcome.cost == Cost(units * Fraction(1, 32), DELTA)
        assert len(outcome.measured.values) == r == bits.drawn["sums/up"] == bits.drawn["sums/down"]
    assert len(lengths) >= 4  # answers of many lengths were looked at
    assert mechanism.worst_cost() == Cost((4 + (4 if counts else 0) + moved) * Fraction(1, 32), DELTA)


def test_other_sums_are_charged_whole():
    """Mechanisms of a whole domain or of all passing items charge as many sums as one user moves."""
    head = head_of(dict.fromkeys("abc", 40), 3, known_domain=True, sums=dict.fromkeys("abc", 7))
    for mechanism, rho in (
        (ListedSums(3, SUMMED, 2, Fraction(14)), 2 * Fraction(1, 8)),
        (KnownLaplaceSums(KnownLaplace(None, 3, 2, Fraction(2)), SUMMED, 2), 4 * Fraction(1, 8)),
        (KnownLaplaceSums(KnownLaplace(1, 3, 2, Fraction(2)), SUMMED, 1), 3 * Fraction(1, 8)),
        (KnownGumbelSums(KnownGumbel(3, 3, Fraction(1)), SUMMED, 2), 8 * Fraction(1, 8)),
    ):
        assert mechanism.release(head, KeyedBits(SECRET, 0)).cost == mechanism.worst_cost() == Cost(rho)


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_averages_of_a_domain_pay_for_their_sums_and_for_their_rows(noise):
    """Each costs as much as the other, for every average that one user moves."""
    summed = SumBounds(0, 9, rows=2)
    mechanism = ListedSums(3, summed, 2, 2 * Fraction(summed.most), noise)
    assert mechanism.sum_noise().rho(summed.most) == mechanism.row_noise().rho(summed.most_rows) == Fraction(1, 8)
    assert mechanism.worst_cost() == Cost(2 * (Fraction(1, 8) + Fraction(1, 8)))


# What they are made with.


@pytest.mark.parametrize(
    ("mechanism", "request_", "units", "sums"),
    [
        (UnknownGumbelSums, asked(1000, 3000), 3000, 1000),
        (UnknownGumbelSums, asked(1500, 3000, counts=False), 3000, 1500),
        (UnknownGumbelSums, asked(1000, 3000, counts=False, summed=SumBounds(1, 9, rows=4)), 3000, 1000),
        (UnknownGumbelSums, asked(1000, 3000, groups=7, tau=3, optimise_cutoff=True), 2008, 7),
        (KnownGumbelSums, asked(100, 40, known_domain=True), 240, 40),
        (KnownGumbelSums, asked(30, 40, counts=False, known_domain=True), 60, 30),
    ],
)
def test_peels_counts_and_sums_have_one_price(mechanism, request_, units, sums):
    """The whole limit is used: units epsilon^2/8, with sigma = 2 C / epsilon for sums."""
    made = mechanism.within_cost(LIMIT, request_)
    assert made.moved == sums
    assert 0 <= 1 - float(made.ranking.epsilon) / math.sqrt(8 * LIMIT.rho / units) < 2**-26
    assert made.sum_noise().variance == (2 * made.summed.most / made.ranking.epsilon) ** 2
    assert made.worst_cost().within(LIMIT)
    assert made.worst_cost().rho > LIMIT.rho * (1 - Fraction(1, 2**25))
    assert made.worst_cost().delta == (0 if made.lossless else LIMIT.delta)


@pytest.mark.parametrize(
    ("mechanism", "request_", "items", "sums"),
    [
        (KnownLaplaceSums, asked(groups=5, tau=3, known_domain=True), 5, 5),
        (KnownLaplaceSums, asked(3, groups=5, known_domain=True, noise="laplace"), 5, 3),
        (KnownLaplaceSums, asked(None, 100, known_domain=True), 100, 100),
        (UnknownLaplaceSums, asked(None, 30, groups=50, tau=2), 50, 30),
        (UnknownLaplaceSums, asked(10, 30, groups=50, noise="laplace", counts=False), 50, 10),
    ],
)
def test_noisy_counts_and_sums_have_one_price(mechanism, request_, items, sums):
    """Scale s for counts and s C / tau for sums; what one user moves of both costs the whole limit."""
    made = mechanism.within_cost(LIMIT, request_)
    tau = request_.sensitivity.rows_per_group
    assert (made.ranking.groups_per_user, made.moved) == (items, sums)
    scale = made.ranking.scale
    assert 0 <= float(scale) / math.sqrt((items + sums) * tau**2 / (2 * LIMIT.rho)) - 1 < 2**-26
    wide = scale * made.summed.most / tau
    assert made.sum_noise() == noise_of(request_.noise, wide)
    assert made.worst_cost().within(LIMIT)
    assert made.worst_cost().rho > LIMIT.rho * (1 - Fraction(1, 2**25))


@pytest.mark.parametrize(("groups", "moved"), [(None, 12), (5, 5), (50, 12)])
def test_sums_of_a_listed_domain_get_all_of_the_limit(groups, moved):
    """No items are selected: Delta C^2 / 2 s^2 is the limit's rho; for one total that is C / sqrt(2 rho)."""
    made = ListedSums.within_cost(LIMIT, asked(None, 12, groups, counts=False, known_domain=True))
    assert (made.domain_size, made.head_limit, made.moved) == (12, 12, moved)
    assert 0 <= float(made.scale) / math.sqrt(moved * 49 / (2 * LIMIT.rho)) - 1 < 2**-26
    assert made.worst_cost().within(LIMIT)
    total = ListedSums.within_cost(Cost(HALF), asked(None, 1, groups, counts=False, known_domain=True))
    assert float(total.scale) == pytest.approx(7)


@pytest.mark.parametrize(
    ("mechanism", "request_", "parameter", "value"),
    [
        (UnknownGumbelSums, asked(), "epsilon", Fraction(1, 20)),
        (UnknownGumbelSums, asked(counts=False), "epsilon", Fraction(1, 15)),
        (UnknownGumbelSums, asked(counts=False, groups=2), "epsilon", Fraction(1, 11)),
        (KnownGumbelSums, asked(known_domain=True), "epsilon", Fraction(1, 20)),
        (KnownLaplaceSums, asked(groups=5, tau=3, known_domain=True), "scale", Fraction(30)),
        (UnknownLaplaceSums, asked(3, groups=5), "scale", Fraction(8)),
        (ListedSums, asked(None, groups=5, counts=False, known_domain=True), "scale", Fraction(35)),
    ],
)
def test_a_theorem_gives_all_of_epsilon(mechanism, request_, parameter, value):
    """`at_epsilon` 1 with Laplace noise; Gaussian sums have no such theorem, with or without counts."""
    made = mechanism.at_epsilon(Fraction(1), DELTA, replace(request_, noise="laplace"))
    assert getattr(getattr(made, "ranking", made), parameter) == value
    assert made.direct_epsilon() == 1
    assert mechanism.at_epsilon(Fraction(1), DELTA, request_) is None
    assert mechanism.within_cost(LIMIT, request_).direct_epsilon() is None


@given(
    st.integers(10**4, 10**6).map(lambda quanta: quanta * RHO_QUANTUM) | st.fractions(Fraction(1, 10**6), 100),
    st.integers(1, 40),
    st.sampled_from([None, 1, 3]),
    st.booleans(),
    st.sampled_from(["gaussian", "laplace"]),
)
def test_no_limit_is_exceeded(rho, k, groups, counts, noise):
    """Ranking and sums are rounded separately, and together stay within any limit."""
    limit = Cost.at_most(rho, Fraction(1, 10**9))
    request = asked(k, 40, groups, counts=counts, noise=noise)
    listed = replace(request, known_domain=True)
    made = [UnknownGumbelSums.within_cost(limit, request), KnownGumbelSums.within_cost(limit, listed)]
    made += [KnownLaplaceSums.within_cost(limit, listed)]
    made += [ListedSums.within_cost(limit, replace(listed, k=None, counts=False))]
    made += [UnknownLaplaceSums.within_cost(limit, request)] if groups else []
    for mechanism in made:
        assert mechanism.worst_cost().within(limit)
        assert mechanism.worst_cost().rho > limit.rho * (1 - Fraction(1, 2**24)) - 3 * RHO_QUANTUM


# What is refused.


@pytest.mark.parametrize("summed", [SumBounds(0, 2**31), SumBounds(-(2**31), 0), SumBounds(-(2**31), 2**31)])
def test_the_widest_noise_beside_the_largest_sums_stays_in_range(summed):
    """Sums of 2^62 with the widest noise do not overflow, nor do their intervals."""
    epsilon = Fraction(1, 2**8)
    mechanism = UnknownGumbelSums(UnknownGumbel(3, 3, epsilon, DELTA, 1, None), summed, 3, "laplace")
    assert mechanism.sum_noise() == DiscreteLaplace(Fraction(2**40))
    for sign in (1, -1):
        sums = np.full(3, sign * MAX_COUNT)
        found = mechanism.release(ExactHead(np.full(3, MAX_COUNT), 3, None, sums), KeyedBits(SECRET, 0)).measured
        assert (np.abs(found.values - sums) < 2**46).all()
        assert (found.low <= found.high).all()
    narrower = UnknownGumbelSums(UnknownGumbel(3, 3, epsilon / 2, DELTA, 1, None), summed, 3, "laplace")
    with pytest.raises(InputError, match=r"wider than 2\^40"):
        narrower.expectation()


@pytest.mark.parametrize(
    ("low", "high", "message"),
    [
        (2, 1, "above its upper bound"),
        (0, 0, "not both be 0"),
        (0, 2**31 + 1, "2,147,483,648"),
        (-(2**31) - 1, 0, "2,147,483,648"),
        (0.5, 1, "whole number"),
        (0, 1.5, "whole number"),
    ],
)
def test_bounds_outside_their_range_are_refused(low, high, message):
    """Bounds are in units of the last digit, so that two billion users fit into 64 bits."""
    with pytest.raises(InputError, match=message):
        check_bounds(SumBounds(low, high))


@pytest.mark.parametrize(
    "bounds",
    [
        SumBounds(7, 7),
        SumBounds(-7, -7),
        SumBounds(0, 1),
        SumBounds(-(2**31), 2**31),
        SumBounds(Fraction(-1, 10), Fraction(13, 10), scale=1),
        SumBounds(0, Fraction(2**31, 100), scale=2),
        SumBounds(0, 1, private=True),
    ],
)
def test_bounds_at_the_ends_of_their_range_are_accepted(bounds):
    """Equal ones, the largest, and those of columns with digits after the point."""
    check_bounds(bounds)


@pytest.mark.parametrize(
    "bounds", [SumBounds(0, Fraction(1, 100), scale=1), SumBounds(0, Fraction(2**31 + 1, 100), scale=2)]
)
def test_bounds_are_checked_in_units_of_the_last_digit(bounds):
    """They are whole numbers of it, and the largest of it are counted, too."""
    with pytest.raises(InputError):
        check_bounds(bounds)


@pytest.mark.parametrize(
    ("low", "high", "most"), [(-3, 2, 3), (-2, 3, 3), (2, 5, 5), (-5, -2, 5), (0, 1, 1), (7, 7, 7)]
)
def test_a_user_moves_a_sum_by_the_larger_bound(low, high, most):
    """A user who has the item adds an amount within the bounds, and any other user adds nothing."""
    assert SumBounds(low, high).most == most == max(abs(x) for x in (0, low, high))


@pytest.mark.parametrize("sums", [[MAX_COUNT + 1], [-MAX_COUNT - 1], [-(2**63)], [2**63 - 1]])
def test_a_head_with_sums_beyond_the_range_is_refused(sums):
    """The range is symmetric, 2^62 is allowed, and the message holds no sum."""
    with pytest.raises(UnfitData, match=r"beyond 2\^62") as raised:
        ExactHead(np.array([3]), 1, None, np.array(sums))
    assert str(sums[0]) not in str(raised.value)
    assert ExactHead(np.array([3, 3]), 1, None, np.array([MAX_COUNT, -MAX_COUNT])).limit == 1


@pytest.mark.parametrize(
    ("mechanism", "request_", "message"),
    [
        (UnknownGumbelSums, asked(summed=None), "bounds for what one user adds"),
        (ListedSums, asked(None, counts=False, known_domain=True, summed=None), "bounds for what one user adds"),
        (UnknownGumbelSums, asked(None), "how many items"),
        (UnknownLaplaceSums, asked(), "groups_per_user"),
        (KnownGumbelSums, asked(), "needs the domain"),
        (ListedSums, asked(None, counts=False), "whole listed domain"),
        (ListedSums, asked(None, known_domain=True), "whole listed domain"),
        (ListedSums, asked(3, counts=False, known_domain=True), "whole listed domain"),
    ],
)
def test_unsupported_sums_are_refused(mechanism, request_, message):
    """By `within_cost`, and by `at_epsilon`, which supports Laplace noise only."""
    with pytest.raises(InputError, match=message):
        mechanism.within_cost(LIMIT, request_)
    with pytest.raises(InputError, match=message):
        mechanism.at_epsilon(Fraction(1), DELTA, replace(request_, noise="laplace"))


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (asked(), UnknownGumbelSums),
        (asked(groups=3), UnknownLaplaceSums),
        (asked(None, groups=3), UnknownLaplaceSums),
        (asked(known_domain=True), KnownGumbelSums),
        (asked(groups=3, known_domain=True), KnownLaplaceSums),
        (asked(None, known_domain=True), KnownLaplaceSums),
        (asked(3, groups=3, counts=False, known_domain=True), KnownLaplaceSums),
        (asked(None, counts=False, known_domain=True), ListedSums),
        (asked(None, 1, counts=False, known_domain=True), ListedSums),
    ],
)
def test_sums_are_added_to_the_mechanism_that_counts_would_have(request_, expected):
    """A listed domain without counts has no mechanism beside its sums."""
    kind = choose(request_, has_pairs=True)
    assert summing(kind, request_) is expected
    assert summing(kind, replace(request_, summed=None)) is kind
    assert isinstance(expected.within_cost(LIMIT, request_), expected)
    assert expected is ListedSums or expected.name == f"{kind.name}+sum"
    assert expected.lossless == kind.lossless


@pytest.mark.parametrize("kind", [TopStable, CountRelease])
def test_mechanisms_without_a_ranking_at_a_fixed_price_have_no_sums(kind):
    """A set has no ranking, and PCR no fixed price."""
    with pytest.raises(InputError, match=r"sums need the k items with the most users .*, listed items"):
        summing(kind, asked(None))
    assert summing(kind, asked(None, summed=None)) is kind


def test_sums_that_the_engine_did_not_return_are_a_bug():
    """An average without numbers of rows is a bug too; no noise is drawn before it is detected."""
    ranking, bits, averaged = UnknownGumbel(2, 3, HALF, DELTA, counts=None), CountingBits(), SumBounds(0, 9, rows=2)
    for summed, head, message in (
        (SUMMED, ExactHead(np.array([2, 1]), 3), "no sums"),
        (averaged, ExactHead(np.array([2, 1]), 3, None, np.array([2, 1])), "no numbers of rows"),
    ):
        for mechanism in (UnknownGumbelSums(ranking, summed, 2), ListedSums(3, summed, 1, HALF)):
            with pytest.raises(InvariantViolated, match=message):
                mechanism.release(head, bits)
    assert bits.drawn == {}


def test_released_averages_draw_noise_for_their_rows_and_are_charged_whole():
    """The quotient is of two noisy numbers; with exact rows the sums would not be private."""
    same = dict.fromkeys("abc", 10**6)
    head = replace(head_of(same, 3, known_domain=True, sums=same), rows=np.full(3, 10**5))
    summed = SumBounds(0, 9, rows=2)
    for mechanism in (
        ListedSums(3, summed, 2, 2 * Fraction(summed.most)),
        KnownGumbelSums(KnownGumbel(3, 3, Fraction(1)), summed, 2),
    ):
        bits = CountingBits()
        outcome = mechanism.release(head, bits)
        assert {label.partition("/")[0] for label in bits.drawn} >= {"sums", "rows"}
        assert outcome.cost == mechanism.worst_cost()
