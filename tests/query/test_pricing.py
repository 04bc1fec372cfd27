"""Algorithm 5 of Rogers et al. 2021: the exact price of queries in units, and the guarantee of an account."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.accounting.bounds import linkedin_system
from discreet.accounting.convert import UnitCost, delta_tight, epsilon_simple, guarantee_of
from discreet.accounting.privacy_filter import PrivacyFilter
from discreet.budget.manager import guarantee, published
from discreet.budget.model import LINKEDIN, LINKEDIN_CONVERSION, Account, Sliding
from discreet.errors import InputError
from discreet.head_request import SumBounds
from discreet.mechanisms import UnknownGumbel
from discreet.mechanisms.base import noise_of
from discreet.noise import KeyedBits
from discreet.query.planning import make_plan
from discreet.query.pricing import PRESETS, PerUnit
from discreet.testing.audit import head_of, moved_noise, renyi
from discreet.values import Sensitivity
from tests.mechanisms.neighbours import (
    LEEWAY,
    delta_of,
    distributions,
    pairs,
    shapes,
    sums_delta_of,
    values_delta_of,
)
from tests.queries import changed, query_of

PER = PRESETS["linkedin"]
UNIT = Fraction(15, 100) ** 2 / 8
BOUNDED = Sensitivity(groups_per_user=4)
SUMMED = SumBounds(Fraction(-1), Fraction(3), column="x")


def listed(size):
    """Return a domain of so many items."""
    return pa.table({"item": range(size)})


def planned(per=PER, **parts):
    """Return the plan of a query with such parts."""
    return make_plan(query_of(delta=Fraction(1, 2), per=per, **parts))


AVERAGE = {"average": True, "summed": replace(SUMMED, rows=3)}


def rows(**parts):
    """Return a query for the sum of all rows of each item."""
    return {"summed": SUMMED, "counts": False, **parts}


@pytest.mark.parametrize(
    ("parts", "mechanism", "information", "calls"),
    [
        # Algorithm 5, cell by cell.
        ({"domain": listed(40), "sensitivity": BOUNDED}, "known-laplace", 4, 0),
        ({"domain": listed(40), "sensitivity": BOUNDED, "k": 9}, "known-laplace", 4, 0),
        ({"domain": listed(3), "sensitivity": BOUNDED}, "known-laplace", 3, 0),
        ({"sensitivity": BOUNDED}, "unknown-laplace", 1, 1),
        ({"sensitivity": BOUNDED, "k": 9}, "unknown-laplace", 1, 1),
        ({"domain": listed(40), "k": 9}, "known-gumbel", 18, 0),
        ({"k": 9}, "unknown-gumbel", 19, 1),
        # Labels alone have no counts to pay for, and a cut-off that cannot be chosen costs nothing.
        ({"domain": listed(40), "k": 9, "counts": False}, "known-gumbel", 9, 0),
        ({"k": 9, "counts": False}, "unknown-gumbel", 10, 1),
        ({"k": 9, "head_limit": 9}, "unknown-gumbel", 18, 1),
        ({"k": 9, "counts": False, "mechanism": "stable"}, "top-stable", 9, 1),
        # Without LIMIT: all of the domain, or as many as 100 units find.
        ({"domain": listed(40)}, "known-laplace", 40, 0),
        ({"domain": listed(100)}, "known-laplace", 100, 0),
        ({"domain": listed(101)}, "known-laplace", 100, 0),
        ({"domain": listed(400), "sensitivity": Sensitivity(150)}, "known-laplace", 100, 0),
        ({}, "head", 100, 1),
        # A sum costs what a count costs, where a user moves it.
        (rows(domain=listed(40), k=9), "known-gumbel+sum", 18, 0),
        (rows(domain=listed(40), k=9, counts=True, **AVERAGE), "known-gumbel+sum", 27, 0),
        (rows(k=9), "unknown-gumbel+sum", 19, 1),
        (rows(k=9, counts=True, **AVERAGE), "unknown-gumbel+sum", 28, 1),
        (rows(sensitivity=BOUNDED, k=9), "unknown-laplace+sum", 2, 1),
        (rows(domain=listed(40)), "listed+sum", 40, 0),
        (rows(domain=listed(400)), "listed+sum", 100, 0),
        (rows(domain=listed(40), sensitivity=BOUNDED), "listed+sum", 4, 0),
    ],
)
def test_a_query_reserves_its_units(parts, mechanism, information, calls):
    """Algorithm 5 with a correct admission: Delta, 1, 2 k and 2 k + 1 units; a call for an unknown domain only."""
    plan = planned(**parts)
    assert plan.mechanism.name == mechanism
    assert plan.worst_units == UnitCost(information, calls)
    assert plan.worst_cost.within(PER.cost(information, calls))
    assert not plan.worst_cost.within(PER.cost(information - 1, calls))
    assert plan.worst_cost.delta == calls * PER.delta_per


@given(
    k=st.none() | st.integers(1, 60),
    size=st.none() | st.integers(60, 300),
    groups=st.none() | st.integers(1, 80),
    tau=st.integers(1, 5),
    counts=st.booleans(),
    noise=st.sampled_from([None, "laplace", "gaussian"]),
    digits=st.integers(10, 10**8),
    information=st.integers(1, 500),
)
def test_a_unit_costs_the_same_in_every_query(k, size, groups, tau, counts, noise, digits, information):
    """Reported units cover what is reserved and charged, at any price of a unit, and no more."""
    if k is None and size is None and groups is None and noise == "laplace":
        noise = None  # PCR has gaussian counts only
    per = PerUnit(Fraction(digits, 10**7), Fraction(1, 10**9), information)
    parts = {"domain": None if size is None else listed(size), "sensitivity": Sensitivity(groups, tau)}
    query = query_of("user", ("item",), 1.0, Fraction(1, 2), k=k, counts=counts, noise=noise, **parts)
    plan = make_plan(changed(query, per=per), force=True)
    units = plan.worst_units
    assert plan.worst_cost.within(per.cost(units.information, units.calls))
    assert not plan.worst_cost.within(per.cost(units.information - 1, units.calls))
    assert k is not None or units.information <= information
    assert units.calls == (size is None)


@pytest.mark.parametrize(
    ("parts", "times"),
    [
        ({"domain": listed(40)}, 1),
        ({"domain": listed(40), "sensitivity": Sensitivity(4, 3)}, 1),
        ({"domain": listed(40), "k": 9}, 1),
        ({"k": 9}, 1),
        ({"k": 9, "sensitivity": Sensitivity(4, 3)}, 2),  # one unit for what four would take
        ({"domain": listed(400)}, 2),  # 100 units for what 400 would take
    ],
)
@pytest.mark.parametrize(("noise", "spread"), [("gaussian", 1.0), ("laplace", math.sqrt(2))])
def test_a_count_has_the_noise_of_the_paper(noise, spread, parts, times):
    """Laplace noise of scale 2 tau / epsilon_per, or Gaussian noise of that sigma, which costs the same."""
    parts = {"sensitivity": Sensitivity(None, 3), **parts}
    std = planned(noise=noise, **parts).expectation.max_std_error
    assert std == pytest.approx(times * spread * 2 * 3 / 0.15, rel=1e-3)


def test_peels_have_the_papers_epsilon_exactly():
    """0.15 is 3/20, not the float beside it, so that 3,000 units are 8.4375 to the last digit."""
    mechanism = planned(k=9).mechanism
    assert isinstance(mechanism, UnknownGumbel)
    assert (mechanism.epsilon, mechanism.delta, mechanism.optimise_cutoff) == (
        Fraction(3, 20),
        Fraction(1, 10**10),
        True,
    )
    assert PER.cost(3000, 30) == LINKEDIN.limit
    assert PER.cost(3000, 30).rho == Fraction("8.4375")


@pytest.mark.parametrize(
    ("counts", "information"),
    [
        ([90_000 - 10_000 * n for n in range(9)], 2 * 4 + 1),  # all four
        ([90_000, 80_000, 1, 1, 1, 1], 2 * (2 + 1) + 1 - 1),  # two and bot
        ([1, 1, 1, 1, 1, 1, 1], 2 * (0 + 1) + 1 - 1),  # bot alone
    ],
)
def test_a_query_is_charged_for_what_it_returns(counts, information):
    """Algorithm 5's update, k* - (2 |o| + 1 - [the last is bot]), where |o| counts bot."""
    plan = planned(k=4, head_limit=6)
    head = head_of({f"{n:03}": count for n, count in enumerate(counts)}, 6)
    outcome = plan.mechanism.release(head, KeyedBits(bytes(32), information))
    assert PER.units(outcome.cost) == UnitCost(information, 1)
    assert outcome.cost.rho == information * UNIT


def test_a_known_domain_has_one_price():
    """A top k costs 2 k units for any result, and no call."""
    plan = planned(k=4, domain=listed(9))
    outcome = plan.mechanism.release(
        head_of(dict.fromkeys("abcdefghi", 5), 9, known_domain=True), KeyedBits(bytes(32), 0)
    )
    assert PER.units(outcome.cost) == plan.worst_units == UnitCost(8, 0)


# What the units say, against the probabilities of all outcomes on small neighbouring histograms.

SMALL = PerUnit(Fraction(1, 2), Fraction(1, 20), 3)
STEP = Fraction(1, 2) ** 2 / 8


@pytest.mark.exact
@pytest.mark.parametrize("tau", [1, 2])
@pytest.mark.parametrize(("k", "limit"), [(1, 3), (2, 3), (2, 4), (3, 3)])
def test_labels_of_an_unknown_domain_cost_their_units(k, limit, tau):
    """K or k + 1 peels, each epsilon_per-DP, lose delta_per at most over all histograms of five labels."""
    plan = planned(SMALL, k=k, head_limit=limit, counts=False, sensitivity=Sensitivity(None, tau))
    steps = plan.worst_units.information
    assert steps == k + (k < limit)
    found, where = delta_of(plan.mechanism, steps / 2, pairs(shapes(5 if tau == 1 else 4, 3), tau))
    assert found <= plan.worst_units.calls * SMALL.delta_per + LEEWAY, where


@pytest.mark.exact
@pytest.mark.parametrize("k", [1, 2, 3])
def test_labels_of_a_known_domain_cost_their_units(k):
    """With k peels, no Renyi divergence is above alpha times k epsilon_per^2 / 8."""
    plan = planned(SMALL, k=k, domain=listed(4), counts=False)
    of = distributions(plan.mechanism, known_domain=True)
    rho = float(plan.worst_units.information * STEP)
    for one, other in pairs(shapes(4, 2)):
        for p, q in ((of(one), of(other)), (of(other), of(one))):
            for alpha in (1.01, 2, 10, 200):
                assert renyi(p, q, alpha) <= alpha * rho * (1 + 1e-9)


@pytest.mark.exact
@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("tau", [1, 3])
@pytest.mark.parametrize("parts", [{"k": 2}, {"k": 2, "domain": listed(4)}, {"domain": listed(4)}])
def test_a_noisy_count_costs_a_unit(noise, tau, parts):
    """The count of one item, moved by all that a user may add: alpha epsilon_per^2 / 8 at most."""
    per = replace(SMALL, information=4)
    plan = planned(per, noise=noise, sensitivity=Sensitivity(None, tau), **parts)
    scale = getattr(plan.mechanism, "scale", 2 * tau / plan.mechanism.epsilon if "k" in parts else None)
    one, other = moved_noise(noise_of(noise, scale), tau)
    for p, q in ((one, other), (other, one)):
        for alpha in (1.01, 2, 10):
            assert renyi(dict(enumerate(p)), dict(enumerate(q)), alpha) <= alpha * float(STEP) * (1 + 1e-6)


@pytest.mark.exact
@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize(
    ("parts", "groups"),
    [
        ({"domain": listed(3), "sensitivity": Sensitivity(2)}, 2),
        ({"domain": listed(3)}, None),
        ({"domain": listed(3), "k": 2, "sensitivity": Sensitivity(1)}, 1),
        ({"sensitivity": Sensitivity(1), "head_limit": 2}, 1),
        ({"sensitivity": Sensitivity(2), "head_limit": 2, "k": 2}, 2),
    ],
)
@pytest.mark.parametrize("epsilon", [0.25, 1.0])
def test_noisy_values_cost_their_units(noise, parts, groups, epsilon):
    """Labels, values and threshold together: delta is what the rho of the units allows, and the calls lose."""
    plan = planned(SMALL, noise=noise, **parts)
    units = plan.worst_units
    allowed = delta_tight(float(units.information * STEP), epsilon) + float(units.calls * SMALL.delta_per)
    found, where = values_delta_of(plan.mechanism, epsilon, pairs(shapes(3, 2), groups=groups))
    assert found <= allowed + LEEWAY, where


@pytest.mark.exact
@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_sums_cost_their_units(noise):
    """All sums of a listed domain with users of one or two items, low -1, high 3."""
    plan = planned(SMALL, **rows(domain=listed(3), noise=noise, sensitivity=Sensitivity(2)))
    units = plan.worst_units
    assert units == UnitCost(2, 0)
    mechanism = plan.mechanism
    for epsilon in (0.25, 1.0):
        found, where = sums_delta_of(mechanism, epsilon, shapes(3, 1), mechanism.summed, 2, known_domain=True)
        assert found <= delta_tight(float(units.information * STEP), epsilon) + LEEWAY, where


# The promise of a question, and of an account.


def test_the_guarantee_of_a_query_follows_from_its_units():
    """The conversion may fail by delta_per; labels alone have the sum of their epsilons where that is less."""
    plan = planned(k=9)
    expected = guarantee_of(PER.cost(19, 1), 2 * PER.delta_per)
    assert plan.guarantee == expected
    assert (plan.query.options.epsilon, float(plan.query.options.delta)) == (expected.epsilon, expected.delta)
    few = planned(k=2, head_limit=2, counts=False)
    assert few.guarantee.epsilon == pytest.approx(0.3)
    assert few.guarantee.delta == pytest.approx(1e-10)


@pytest.mark.parametrize(
    ("times", "published", "tight"),
    [(1, (34.8839, 7e-9), (33.7818, 4e-9)), (2, (54.2758, 13e-9), (52.9536, 7e-9))],
)
def test_an_account_has_the_guarantee_of_the_paper_and_a_tighter_one(times, published, tight):
    """Theorem 2 as published, (34.9, 7e-9), or 54.3 where two months touch; and the guarantee by zCDP beside it."""
    information, calls = times * LINKEDIN.information, times * LINKEDIN.calls
    theorem = linkedin_system(information, calls, 0.15, PER.delta_per, LINKEDIN_CONVERSION)
    cost = PER.cost(information, calls)
    zcdp = guarantee_of(cost, cost.delta + LINKEDIN_CONVERSION)
    assert (theorem.epsilon, theorem.delta_published) == pytest.approx(published, rel=1e-5)
    assert (zcdp.epsilon, zcdp.delta) == pytest.approx(tight, rel=1e-5)
    assert theorem.delta == pytest.approx(zcdp.delta)
    assert theorem.epsilon == pytest.approx(epsilon_simple(float(cost.rho), float(LINKEDIN_CONVERSION)))


@pytest.mark.parametrize("information", [1, 4, 10, 11])
def test_a_small_account_is_not_priced_by_the_sum_of_epsilons(information):
    """Gaussian counts have a rho and no epsilon, so Lemma 2.1's shortcut k epsilon_per is not true of them."""
    units = replace(LINKEDIN, information=information, calls=0)
    account = Account.of_units("ann", units, period=Sliding(30))
    claimed, zcdp = published(account, units.limit), guarantee(account, units.limit)
    assert claimed.epsilon >= zcdp.epsilon
    assert claimed.epsilon == pytest.approx(epsilon_simple(float(units.limit.rho), 1e-9))
    assert (claimed.epsilon > information * 0.15) == (information <= 10)


def test_the_papers_admission_overspends_by_one_and_ours_does_not():
    """With 2 k units left, Algorithm 5 admits a top k whose full answer costs 2 k + 1; here it does not fit."""
    plan = planned(k=10)
    left = PrivacyFilter(PER.cost(20, 1))
    assert 2 * plan.query.k <= 20 < plan.worst_units.information
    assert not left.admits(plan.worst_cost)
    assert PrivacyFilter(PER.cost(21, 1)).admits(plan.worst_cost)
    assert not PrivacyFilter(PER.cost(3000, 0)).admits(plan.worst_cost)
    assert PrivacyFilter(PER.cost(20, 0)).admits(planned(k=10, domain=listed(40)).worst_cost)  # needs no call


@given(
    st.lists(
        st.tuples(st.sampled_from([None, 1, 3, 8]), st.booleans(), st.sampled_from([None, 2]), st.integers(0, 9)),
        max_size=40,
    )
)
def test_no_sequence_of_queries_spends_more_than_the_account_has(questions):
    """Worst cases that fit, charged for what came back: k* and l* in units never fall below 0, and sum up exactly."""
    per = PerUnit("0.15", "1e-10", 10)
    account = PrivacyFilter(per.cost(60, 5))
    information = Fraction(0)
    for number, (k, known, groups, items) in enumerate(questions):
        domain = listed(20) if known else None
        plan = planned(per, k=k, domain=domain, sensitivity=Sensitivity(groups), head_limit=20)
        if not account.admits(plan.worst_cost):
            continue
        counts = {f"{n:02}": 1000 * (items - n) for n in range(items)}
        head = head_of({f"{n:02}": counts.get(f"{n:02}", 0) for n in range(20)}, 20, known_domain=known)
        charged = plan.mechanism.release(head, KeyedBits(bytes(32), number)).cost
        assert charged.within(plan.worst_cost)
        account.spend(charged)
        information += charged.rho / UNIT
    spent = per.units(account.spent)
    assert spent.information == math.ceil(information) <= 60
    assert spent.calls <= 5


# What may be asked for.


@pytest.mark.parametrize(
    ("epsilon", "delta", "information", "message"),
    [
        (0, "1e-10", 1, "epsilon per unit must be from 1e-6 to 100"),
        ("100.1", "1e-10", 1, "epsilon per unit must be from 1e-6 to 100"),
        ("nan", "1e-10", 1, "epsilon per unit must be a finite number"),
        (None, "1e-10", 1, "epsilon per unit must be a finite number"),
        ("0.15000001", "1e-10", 1, "seven digits"),
        (Fraction(1, 3), "1e-10", 1, "seven digits"),
        ("0.15", 0, 1, "delta per call must be below 1"),
        ("0.15", 1, 1, "delta per call must be below 1"),
        ("0.15", "1e-21", 1, "at least 1e-20"),
        ("0.15", Fraction(1, 3), 1, "27 digits"),
        ("0.15", "1e-10", 0, "information must be at least 1, not 0"),
        ("0.15", "1e-10", 1.5, "information must be a whole number"),
        ("0.15", "1e-10", 2**62 + 1, "information must be at most 4,611,686,018,427,387,904"),
    ],
)
def test_a_price_outside_its_range_is_refused(epsilon, delta, information, message):
    """Prices that do not add up exactly are refused too, in one sentence."""
    with pytest.raises(InputError, match=message):
        PerUnit(epsilon, delta, information)


def test_a_price_is_exact():
    """Text, floats and fractions with the same digits are the same price."""
    assert PerUnit("0.15", "1e-10", 100) == PerUnit(0.15, 1e-10, np.int64(100)) == PER


def test_too_many_units_are_refused_unless_forced():
    """4,001 units of 0.5 come to an epsilon above 100."""
    query = query_of("user", ("item",), 1.0, Fraction(1, 2), k=2000)
    with pytest.raises(InputError, match="4,001 units come to an epsilon above 100, where nothing is protected"):
        make_plan(changed(query, per=SMALL))
    assert make_plan(changed(query, per=SMALL), force=True).worst_units == UnitCost(4001, 1)


def test_a_large_delta_is_noted():
    """A price in units has the same note as any other."""
    assert "is large" in planned(SMALL, k=1).notes[0]
    assert planned(k=1).notes == ()


def test_a_query_with_an_epsilon_and_a_delta_has_no_units():
    """A price of an epsilon and a delta is not in units."""
    plan = make_plan(query_of("user", ("item",), 1.0, Fraction(1, 10**8), k=3))
    assert plan.query.options.per is plan.worst_units is None
