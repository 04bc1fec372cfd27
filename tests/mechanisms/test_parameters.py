"""Parameters within a limit or by a theorem, pinned to independent numbers; and refused requests."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import optimize

from discreet.errors import InputError
from discreet.mechanisms import (
    Auto,
    CountRelease,
    KnownAuto,
    KnownGumbel,
    KnownLaplace,
    Request,
    SelectVerify,
    TopStable,
    UnknownGumbel,
    UnknownLaplace,
)
from discreet.mechanisms.base import noise_of
from discreet.query.planning import choose
from discreet.testing.audit import distribution, head_of, pmf, radius, sample
from discreet.values import Cost, ExactHead, Sensitivity

DELTA = Fraction(1, 10**6)
LIMIT = Cost(Fraction(84375, 10**4), Fraction(3, 10**9))
"""LinkedIn's 3,000 units of epsilon_per = .15 and 30 calls of 1e-10."""


def request_of(k=10, limit=100, groups=None, tau=1, **more):
    """Return a request."""
    return Request(k, limit, Sensitivity(groups, tau), **more)


@pytest.mark.parametrize(
    ("mechanism", "request_", "parameter", "squared"),
    [
        (KnownLaplace, request_of(groups=5, tau=3, known_domain=True), "scale", Fraction(45, 2) / LIMIT.rho),
        (
            KnownLaplace,
            request_of(None, 100, known_domain=True, noise="laplace"),
            "scale",
            Fraction(100, 2) / LIMIT.rho,
        ),
        (KnownLaplace, request_of(groups=500, known_domain=True), "scale", Fraction(100, 2) / LIMIT.rho),
        (KnownGumbel, request_of(known_domain=True), "epsilon", 8 * LIMIT.rho / 20),
        (KnownGumbel, request_of(known_domain=True, counts=False), "epsilon", 8 * LIMIT.rho / 10),
        (UnknownLaplace, request_of(groups=5, tau=3), "scale", Fraction(45, 2) / LIMIT.rho),
        (UnknownGumbel, request_of(1500, 3000), "epsilon", Fraction(15, 100) ** 2),
        (
            UnknownGumbel,
            request_of(1499, 3000, counts=False, optimise_cutoff=True),
            "epsilon",
            Fraction(15, 100) ** 2 * 2,
        ),
        (UnknownGumbel, request_of(1499, 3000, optimise_cutoff=True), "epsilon", Fraction(15, 100) ** 2 * 3000 / 2999),
        (TopStable, request_of(counts=False), "epsilon", 2 * LIMIT.rho),
    ],
)
def test_all_of_the_limit_is_used_and_nothing_above(mechanism, request_, parameter, squared):
    """The parameter is the published function of rho, to 28 bits, rounded to the side that costs less."""
    made = mechanism.within_cost(LIMIT, request_)
    value = getattr(made, parameter)
    ratio = float(value) / math.sqrt(squared)
    assert 0 <= (ratio - 1 if parameter == "scale" else 1 - ratio) < 2**-26
    assert made.worst_cost().within(LIMIT)
    assert made.worst_cost().rho > LIMIT.rho * (1 - Fraction(1, 2**25))
    assert made.worst_cost().delta == (0 if made.lossless else LIMIT.delta)


def test_count_release_gets_the_whole_limit():
    """PCR spends the whole limit that it is given."""
    made = CountRelease.within_cost(LIMIT, request_of(None, 1000, relative_error=Fraction(1, 5), counts=False))
    assert made == CountRelease(LIMIT, 1000, Fraction(1, 5), 1, counts=False)
    assert made.worst_cost() == LIMIT


LAPLACE = {"noise": "laplace"}


@pytest.mark.parametrize(
    ("mechanism", "request_", "parameter", "value"),
    [
        (KnownLaplace, request_of(groups=5, tau=3, known_domain=True, **LAPLACE), "scale", Fraction(15)),
        (KnownGumbel, request_of(known_domain=True, counts=False), "epsilon", Fraction(1, 10)),
        (KnownGumbel, request_of(known_domain=True, **LAPLACE), "epsilon", Fraction(1, 15)),
        (UnknownLaplace, request_of(groups=5, tau=3, **LAPLACE), "scale", Fraction(15)),
        (UnknownGumbel, request_of(counts=False), "epsilon", Fraction(1, 10)),
        (UnknownGumbel, request_of(optimise_cutoff=True, **LAPLACE), "epsilon", Fraction(1, 16)),
        (TopStable, request_of(counts=False), "epsilon", Fraction(1)),
        (KnownLaplace, request_of(groups=5, known_domain=True), None, None),
        (KnownGumbel, request_of(known_domain=True), None, None),
        (UnknownLaplace, request_of(groups=5), None, None),
        (UnknownGumbel, request_of(), None, None),
        (CountRelease, request_of(None), None, None),
    ],
)
def test_a_theorem_gives_all_of_epsilon(mechanism, request_, parameter, value):
    """`at_epsilon` 1 has exactly that epsilon; Gaussian counts have no such theorem."""
    made = mechanism.at_epsilon(Fraction(1), Fraction(1, 10**6), request_)
    if parameter is None:
        assert made is None
        assert mechanism.within_cost(LIMIT, request_).direct_epsilon() is None
    else:
        assert getattr(made, parameter) == value
        assert made.direct_epsilon() == 1
        assert made.worst_cost().delta == (0 if made.lossless else Fraction(1, 10**6))


TABLE = [
    (True, 3, 10, KnownLaplace),
    (True, 3, None, KnownLaplace),
    (True, None, 10, KnownGumbel),
    (True, None, None, KnownAuto),
    (False, 3, 10, UnknownLaplace),
    (False, 3, None, UnknownLaplace),
    (False, None, 5, UnknownGumbel),
    (False, None, 6, Auto),
    (False, None, None, Auto),
]


@pytest.mark.parametrize(("known", "groups", "k", "expected"), TABLE)
def test_the_mechanism_follows_from_what_is_declared(known, groups, k, expected):
    """LinkedIn 2021, Table 1, with Auto for all counts; the chosen mechanism can be constructed."""
    request = request_of(k, 10, groups, known_domain=known)
    assert choose(request, has_pairs=True) is expected
    assert isinstance(expected.within_cost(LIMIT, request), expected)


@pytest.mark.parametrize(
    ("mechanism", "request_", "message"),
    [
        (KnownLaplace, request_of(groups=2), "needs the domain"),
        (KnownGumbel, request_of(), "needs the domain"),
        (KnownGumbel, request_of(None, known_domain=True), "how many items"),
        (UnknownLaplace, request_of(), "groups_per_user"),
        (UnknownGumbel, request_of(None), "how many items"),
        (TopStable, request_of(None, counts=False), "how many items"),
        (TopStable, request_of(), "without counts"),
        (CountRelease, request_of(), "not a top k"),
        (CountRelease, request_of(None, **LAPLACE), "^the pcr mechanism adds gaussian noise only$"),
        (SelectVerify, request_of(None, **LAPLACE), "^the head mechanism adds gaussian noise only$"),
        (CountRelease, request_of(None, relative_error=Fraction(0)), "above 0 and below 1"),
        (CountRelease, request_of(None, relative_error=Fraction(1)), "above 0 and below 1"),
    ],
)
def test_unsupported_requests_are_refused(mechanism, request_, message):
    """`within_cost` raises an InputError with the allowed values, and so does `at_epsilon` where it makes any."""
    with pytest.raises(InputError, match=message):
        mechanism.within_cost(LIMIT, request_)
    if mechanism not in (CountRelease, SelectVerify):
        with pytest.raises(InputError, match=message):
            mechanism.at_epsilon(Fraction(1), Fraction(1, 10**6), replace(request_, noise="laplace"))


STABLE = [  # n, k, epsilon, published threshold; delta = 1/n
    (107_092, 10, Fraction(4, 5), 57.5),
    (107_092, 50, Fraction(2, 5), 128.0),
    (51_406, 10, Fraction(1), 43.7),
    (2_293, 3, Fraction(1), 29.8),
    (100_000, 50, Fraction(4, 5), 63.672861),
]


def difference_tail(scale, other, least):
    """Return Pr[X - Y >= least] of discrete Laplace X and Y, by direct summation at 40 digits."""
    with mpmath.workdps(40):
        a, b = (mpmath.mpf(1) / mpmath.mpf(s.numerator) * s.denominator for s in (scale, other))
        q, total = mpmath.exp(-a), mpmath.mpf(0)
        for y in range(-int(45 * float(other)) - 5, int(45 * float(other)) + 6):
            n = least + y
            above = q**n / (1 + q) if n > 0 else 1 - q ** (1 - n) / (1 + q)
            total += mpmath.tanh(b / 2) * mpmath.exp(-b * abs(y)) * above
        return total


@pytest.mark.parametrize(("n", "k", "epsilon", "published"), STABLE)
def test_top_stable_thresholds_are_the_least_and_below_the_published(n, k, epsilon, published):
    """T is the least integer with Pr[Lap - Lap > T] <= delta / k; the paper's Lemma 3.1 needs more."""
    mechanism = TopStable(k, epsilon, Fraction(1, n))
    gap, bar = Fraction(200, 63) / epsilon, Fraction(100, 37) / epsilon
    assert (mechanism.gap_noise().scale, mechanism.threshold_noise().scale) == (gap, bar)
    assert published - 1.5 < mechanism.threshold() <= published
    allowed = mpmath.mpf(1) / n / k
    assert difference_tail(gap, bar, mechanism.threshold() + 1) <= allowed
    assert difference_tail(gap, bar, mechanism.threshold()) > allowed


@pytest.mark.parametrize(
    ("n", "k", "epsilon", "published"),
    [(107_092, 10, ".0917", 152.4), (51_406, 10, ".1161", 114.3), (2_293, 3, ".25", 36.3)],
)
def test_unknown_gumbel_thresholds_are_the_published_ones(n, k, epsilon, published):
    """1 + ln(k/delta)/epsilon, delta = 1/n, rounded up to a whole count."""
    mechanism = UnknownGumbel(k, k, Fraction(epsilon), Fraction(1, n), counts=None)
    assert mechanism.expectation().smallest_count == math.ceil(published)


@pytest.mark.parametrize("epsilon", [0.15, 0.5, 2.0])
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("delta", [Fraction(1, 10**10), Fraction(1, 10**6)])
def test_the_unknown_laplace_margin_is_below_the_published(epsilon, groups, delta):
    """At the paper's scale 2 Delta / epsilon ours is smaller, the least its tail allows, and the same theorem holds."""
    scale = 2 * groups / Fraction(epsilon)
    mechanism = UnknownLaplace(None, 100, groups, scale, delta, noise="laplace")
    assert mechanism.direct_epsilon() == Fraction(epsilon) / 2
    hat = optimize.brentq(
        lambda x: x / 4 * (math.exp(epsilon / 2) + 1) * (3 + math.log(groups / x)) / float(delta) - 1, 1e-30, 1e-3
    )
    assert 0.9 < (mechanism.margin()) / (scale * math.log(groups / hat)) < 1
    allowed = mpmath.mpf(delta.numerator) / delta.denominator / 2 / groups
    assert (
        difference_tail(scale, scale, mechanism.margin() + 1)
        <= allowed
        < difference_tail(scale, scale, mechanism.margin())
    )


def test_the_unknown_laplace_margin_at_the_papers_parameters():
    """At epsilon .15, Delta 1, delta 1e-10: 344.05 above the cut is published, 343 is ours."""
    mechanism = UnknownLaplace(None, 1000, 1, Fraction(40, 3), Fraction(1, 10**10), noise="laplace")
    assert mechanism.margin() + mechanism.rows_per_group == 343


@pytest.mark.parametrize("scale", [Fraction(1, 2), Fraction(3), Fraction(40, 3)])
@pytest.mark.parametrize("groups", [1, 30])
def test_the_gaussian_margin_is_enough_and_not_much_more(scale, groups):
    """2 min(Delta, dbar) Pr[X - Y > m] <= delta by convolution; m is within a sixth of the least."""
    mechanism = UnknownLaplace(None, 10, groups, scale, Fraction(1, 10**6))
    noise = noise_of("gaussian", scale)
    law = pmf(noise, np.arange(-radius(noise), radius(noise) + 1))
    tail = np.cumsum(np.convolve(law, law))[: 2 * radius(noise) + 1][::-1]  # Pr[X - Y >= m] from below, by symmetry
    allowed = 1e-6 / 2 / min(groups, 10)
    least = next(m for m in range(len(tail)) if tail[m + 1] <= allowed)
    assert least <= mechanism.margin() <= least * 7 / 6 + 1


@pytest.mark.parametrize("tau", [1, 2, 5])
@pytest.mark.parametrize("epsilon", [Fraction(1, 10), Fraction(1), Fraction(4)])
def test_unknown_gumbel_caps_the_mass_it_uses(epsilon, tau):
    """The threshold's weight is cutoff / min(delta, e^epsilon (1 - e^(-epsilon/tau))); delta is charged as it was."""
    for delta in (Fraction(1, 10**6), Fraction(9, 10)):
        mechanism = UnknownGumbel(2, 7, epsilon, delta, tau, None)
        race = mechanism.race(head_of({"a": 3}, 7), 7)
        cap = mpmath.exp(float(epsilon)) * -mpmath.expm1(-float(epsilon) / tau)
        used = 7 / race.rival.factor
        assert 0 <= 1 - float(used) / min(float(delta), float(cap)) < 2e-9
        assert mechanism.worst_cost().delta == delta
        assert race.rival.score == tau
        assert race.scale == epsilon / tau


def chance(mechanism, count):
    """Return the chance that a single item with *count* is returned."""
    head = head_of({"a": count}, mechanism.head_limit)
    if isinstance(mechanism, (UnknownGumbel, TopStable)):
        return sum(p for seen, p in distribution(mechanism, head).items() if "a" in str(seen))
    outcomes = sample(mechanism, head, 300, bytes(32))
    return sum(len(outcome) > 0 for outcome in outcomes) / 300 + 0.09  # three standard errors


SMALL = Cost(Fraction(1, 2), Fraction(1, 10**6))


@pytest.mark.parametrize(
    ("mechanism", "request_", "tau"),
    [
        *(
            (mechanism, request_, tau)
            for mechanism, request_ in [
                (UnknownGumbel, request_of()),
                (UnknownGumbel, request_of(optimise_cutoff=True, counts=False)),
                (UnknownLaplace, request_of(groups=2)),
                (UnknownLaplace, request_of(groups=2, **LAPLACE)),
                (TopStable, request_of(counts=False)),
            ]
            for tau in (1, 3)
        ),
        (CountRelease, request_of(None, 1000), 3),  # sampled: a second for each
        (CountRelease, request_of(None, 1000, relative_error=Fraction(1, 50)), 1),
        (CountRelease, request_of(None, 1000, counts=False), 3),
    ],
)
def test_an_item_above_the_smallest_count_is_returned_more_often_than_not(mechanism, request_, tau):
    """An item above the smallest count, which is predicted without data, is likely returned; one far below is not."""
    made = mechanism.within_cost(
        SMALL, replace(request_, sensitivity=replace(request_.sensitivity, rows_per_group=tau))
    )
    smallest = made.expectation().smallest_count
    assert chance(made, smallest + 1) >= 0.5
    assert chance(made, smallest // 4) <= 0.1


def test_the_smallest_count_is_no_overstatement():
    """An item halfway below the smallest count is returned less often than not."""
    for mechanism, request_ in (
        (UnknownGumbel, request_of()),
        (TopStable, request_of(counts=False)),
        (UnknownLaplace, request_of(groups=2)),
    ):
        made = mechanism.within_cost(SMALL, request_)
        assert chance(made, made.expectation().smallest_count * 3 // 4) < 0.5


@pytest.mark.parametrize("mechanism", [KnownLaplace, KnownGumbel])
def test_in_a_known_domain_every_item_can_appear(mechanism):
    """There is no smallest count, and items without users are returned occasionally."""
    made = mechanism.within_cost(SMALL, request_of(2, 5, 5, known_domain=True))
    assert made.expectation().smallest_count is None
    head = head_of({"a": 2, "b": 1, "c": 0, "d": 0, "e": 0}, 5, known_domain=True)
    shown = {label for outcome in sample(made, head, 100, bytes(32)) for label, _ in outcome}
    assert shown == set("abcde")


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("at_cost", [Fraction(1, 2), Fraction(15, 100)])
def test_a_count_costs_as_much_as_a_label(noise, at_cost):
    """Scale 2 tau / epsilon: the standard error of a Gaussian count, or nearly sqrt 2 of it for Laplace noise."""
    expected = UnknownGumbel(3, 9, at_cost, Fraction(1, 10**6), 2, noise).expectation()
    factor = 1 if noise == "gaussian" else math.sqrt(2)
    assert expected.min_std_error == expected.max_std_error == pytest.approx(4 / at_cost * factor, rel=0.01)


@pytest.mark.parametrize("mechanism", [KnownGumbel, UnknownGumbel, TopStable])
def test_a_request_without_a_k_is_refused_by_the_name_of_the_mechanism(mechanism):
    """The same sentence from every way to construct it."""
    request = Request(None, 9, counts=False, known_domain=mechanism is KnownGumbel)
    for make in (
        lambda: mechanism.within_cost(Cost(Fraction(1), Fraction(1, 10**6)), request),
        lambda: (mechanism.at_epsilon if mechanism is TopStable else mechanism.by_step)(Fraction(1), DELTA, request),
    ):
        with pytest.raises(InputError, match=f"the {mechanism.name} mechanism answers top-k queries only"):
            make()


def test_the_cutoff_race_compares_counts_that_floats_cannot_tell_apart():
    """Scores are the counts below each cut-off, as integers."""
    counts = np.array([2**61 + 3, 2**61 + 2, 2**61 + 1, 2**61], dtype=np.int64)
    race = UnknownGumbel(1, 4, Fraction(1), Fraction(1, 10**6), optimise_cutoff=True).cutoff_race(ExactHead(counts, 4))
    assert race.scores.tolist() == [-(2**61) - 2, -(2**61) - 1, -(2**61), 0]
    assert race.divisors.tolist() == [1, 2, 3, 4]


def test_unknown_gumbel_needs_a_k_within_the_head():
    """The message names both numbers."""
    with pytest.raises(InputError, match="k must be from 1 to the head limit, 1,000, not 1,001"):
        UnknownGumbel(1001, 1000, Fraction(1), Fraction(1, 10**6))
