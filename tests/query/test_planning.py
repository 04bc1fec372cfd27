"""Plans: mechanism and price; a query that cannot be answered has no plan."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from discreet.accounting import convert
from discreet.accounting.convert import limit_for
from discreet.errors import InputError
from discreet.mechanisms import (
    Auto,
    CountRelease,
    KnownAuto,
    KnownGumbel,
    KnownLaplace,
    SelectVerify,
    TopStable,
    TwoRound,
    UnknownGumbel,
    UnknownLaplace,
)
from discreet.query.planning import make_plan
from discreet.query.pricing import PRESETS
from discreet.query.sql import parse_where
from discreet.values import Cost, Sensitivity
from tests.queries import changed, query_of

DELTA = Fraction(1, 10**8)
DOMAIN = pa.table({"item": range(40)})
BOUNDED = Sensitivity(groups_per_user=4)


def _query(epsilon=1.0, delta=DELTA, **parts):
    return query_of("user", ("item",), epsilon, delta, **parts)


def _epsilon(rho, delta):
    """Return epsilon of rho-zCDP at delta (Canonne, Kamath & Steinke 2020, Proposition 12), by ever finer grids."""
    rho, log = float(rho), math.log(delta.numerator) - math.log(delta.denominator)
    if rho == 0:
        return 0.0

    def at(place):
        above = math.exp(place)
        return (1 + above) * rho + (-log - math.log1p(above)) / above - math.log1p(1 / above)

    best = min(range(-300, 1200), key=lambda step: at(step / 20)) / 20
    for width in (1 / 20, 1 / 1000, 1 / 50_000):
        best = min((best + step * width / 50 for step in range(-50, 51)), key=at)
    return max(0.0, at(best))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    ("mechanism", "parts"),
    [
        (UnknownGumbel, {"k": 3}),
        (UnknownLaplace, {"k": 3, "sensitivity": BOUNDED}),
        (UnknownLaplace, {"sensitivity": BOUNDED}),
        (Auto, {}),
        (Auto, {"mechanism": "auto"}),
        (Auto, {"k": 6}),
        (UnknownGumbel, {"k": 5}),
        (UnknownGumbel, {"k": 6, "counts": False}),
        (UnknownGumbel, {"k": 6, "noise": "laplace"}),
        (UnknownGumbel, {"k": 6, "sensitivity": Sensitivity(None, 2)}),
        (SelectVerify, {"k": 9, "mechanism": "head"}),
        (SelectVerify, {"sensitivity": Sensitivity(None, 2)}),
        (SelectVerify, {"mechanism": "head", "sensitivity": BOUNDED}),
        (TwoRound, {"mechanism": "two-round"}),
        (KnownGumbel, {"k": 3, "domain": DOMAIN}),
        (KnownLaplace, {"k": 3, "domain": DOMAIN, "sensitivity": BOUNDED}),
        (KnownLaplace, {"domain": DOMAIN, "sensitivity": BOUNDED}),
        (KnownAuto, {"domain": DOMAIN}),
        (KnownLaplace, {"mechanism": "laplace", "domain": DOMAIN}),
        (UnknownGumbel, {"k": 3, "mechanism": "auto"}),
        (UnknownGumbel, {"k": 3, "mechanism": "gumbel", "sensitivity": BOUNDED}),
        (KnownGumbel, {"k": 3, "mechanism": "gumbel", "sensitivity": BOUNDED, "domain": DOMAIN}),
        (KnownLaplace, {"k": 3, "mechanism": "laplace", "domain": DOMAIN}),
        (UnknownLaplace, {"k": 3, "mechanism": "laplace", "sensitivity": BOUNDED}),
        (TopStable, {"k": 3, "mechanism": "stable", "counts": False}),
        (TopStable, {"k": 3, "mechanism": "stable", "counts": False, "domain": DOMAIN}),
        (CountRelease, {"mechanism": "pcr", "sensitivity": BOUNDED}),
    ],
)
def test_the_mechanism_follows_from_the_published_table(mechanism, parts, shared):
    """LinkedIn 2021, Table 1, cell by cell; a mechanism that is named is used."""
    plan = make_plan(_query(**parts), shared_budget=shared)
    assert type(plan.mechanism) is mechanism
    assert plan.notes == ()
    assert plan.reads_pairs == (mechanism in (Auto, KnownAuto, TwoRound))
    assert plan.request.limit == (3 if mechanism is TopStable else 40 if "domain" in parts else plan.request.limit)


@pytest.mark.parametrize(
    ("epsilon", "rho"), [(0.5, 0.0043708), (1, 0.0164684), (2, 0.0613760), (4, 0.2240203), (8, 0.7888512)]
)
def test_the_rho_of_a_guarantee_has_its_reference_values(epsilon, rho):
    """Half of delta = 1e-8 is converted tightly: reference values of five epsilons, split among peels and counts."""
    release = make_plan(_query(float(epsilon), mechanism="head"))
    top = make_plan(_query(float(epsilon), k=10, noise="gaussian", mechanism="gumbel"))
    assert release.worst_cost.rho == pytest.approx(rho, abs=6e-8)
    assert float(top.mechanism.epsilon) == pytest.approx(math.sqrt(8 * rho / 20), rel=1e-5)
    assert release.worst_cost.delta == top.worst_cost.delta == DELTA / 2
    assert top.guarantee.epsilon == pytest.approx(epsilon, rel=1e-6)
    assert top.guarantee.delta == 1e-8


def test_a_mechanism_that_loses_nothing_converts_all_of_delta():
    """A rho of 0.01 at delta = 1e-8 is epsilon = 0.752326."""
    plan = make_plan(_query(0.752326, k=3, domain=DOMAIN, noise="gaussian"))
    assert plan.worst_cost.rho == pytest.approx(0.01, rel=1e-5)
    assert plan.worst_cost.delta == 0
    shared = make_plan(_query(0.752326, k=3, domain=DOMAIN, noise="gaussian"), shared_budget=True)
    assert _epsilon(shared.worst_cost.rho, DELTA / 2) == pytest.approx(0.752326, rel=1e-4)


@pytest.mark.parametrize("groups", [1, 20, 1000])
@pytest.mark.parametrize("parts", [{"k": 3}, {}, {"domain": DOMAIN}])
def test_the_noise_with_the_smaller_error_is_taken_unless_one_is_named(groups, parts):
    """Laplace noise by its own theorem for few groups, Gaussian noise for many."""
    parts = {**parts, "sensitivity": Sensitivity(groups)}
    errors = {
        noise: make_plan(_query(noise=noise, **parts)).expectation.max_std_error
        for noise in (None, "gaussian", "laplace")
    }
    assert errors[None] == min(errors.values())
    assert (errors["laplace"] < errors["gaussian"]) == (groups == 1)
    chosen = make_plan(_query(**parts))
    assert chosen.mechanism.noise == min(("gaussian", "laplace"), key=errors.__getitem__)


def test_a_mechanisms_own_theorem_is_used_only_without_a_shared_budget():
    """A shared budget adds up zCDP, where (1, 1e-8)-DP alone is no price."""
    alone, shared = (make_plan(_query(k=3, mechanism="stable", counts=False), shared_budget=s) for s in (False, True))
    assert (alone.guarantee.epsilon, alone.guarantee.delta) == (1.0, 1e-8)
    assert shared.worst_cost.rho <= Fraction("0.0164684")
    assert float(shared.mechanism.epsilon) == pytest.approx(math.sqrt(2 * 0.0164684), rel=1e-5)


def test_the_request_to_the_engine_follows_the_query():
    """User, items, filter, clipping, bound, domain; the default head limit is max(10 k, 1000), or 10,000."""
    where = parse_where("x = 1")
    plan = make_plan(_query(k=3, where=where, sensitivity=Sensitivity(5, 7)))
    request = plan.request
    assert (request.user, request.items, request.where, request.domain) == ("user", ("item",), where, None)
    assert (request.limit, request.rows_per_group, request.groups_per_user) == (1000, 7, 5)
    limits = [{"k": 100}, {"k": 101}, {}, {"k": 3, "head_limit": 3}, {"head_limit": 77}, {"domain": DOMAIN}]
    assert [make_plan(_query(**parts)).request.limit for parts in limits] == [1000, 1010, 10_000, 3, 77, 40]
    assert make_plan(_query(domain=DOMAIN)).request.domain is DOMAIN


@pytest.mark.parametrize(("delta", "noted"), [("1e-4", False), ("0.00010001", True), ("0.3", True)])
def test_a_large_delta_is_noted(delta, noted):
    """From one over the number of users on, a delta does not protect single users: it is allowed with a note."""
    notes = make_plan(_query(delta=Fraction(delta), k=3)).notes
    assert [("delta" in note, f"{float(Fraction(delta)):g}" in note) for note in notes] == [(True, True)] * noted


def test_an_epsilon_above_100_must_be_forced():
    """Above 100 an epsilon protects nothing."""
    with pytest.raises(InputError, match="at most 100"):
        make_plan(_query(100.5, k=3))
    assert make_plan(_query(100.5, k=3), force=True).guarantee.epsilon <= 100.5 * (1 + 1e-9)
    for k in (3, None):
        assert make_plan(_query(500, k=k), force=True).guarantee.epsilon <= 500 * (1 + 1e-9)
        with pytest.raises(InputError, match="at most 500, even with force"):
            make_plan(_query(501, k=k), force=True)
    assert make_plan(_query(100.0, k=3)).guarantee.epsilon <= 100 * (1 + 1e-9)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"epsilon": 0.0}, "epsilon must be"),
        ({"epsilon": -1.0}, "epsilon must be"),
        ({"epsilon": math.nan}, "epsilon must be"),
        ({"epsilon": math.inf}, "epsilon must be"),
        ({"epsilon": 1e-9}, "epsilon must be"),
        ({"epsilon": 1e-300}, "epsilon must be"),
        ({"delta": Fraction(0)}, "delta must be"),
        ({"delta": Fraction(1)}, "delta must be"),
        ({"delta": Fraction(-1, 2)}, "delta must be"),
        ({"delta": Fraction(10**400)}, "delta must be"),
        ({"delta": Fraction(1, 10**30)}, "delta must be"),
        ({"delta": Fraction(1, 10**400)}, "delta must be"),
        ({"k": 0}, "k must be at least 1"),
        ({"k": -5}, "k must be at least 1"),
        ({"k": 11, "head_limit": 10}, "the head limit, 10, not 11"),
        ({"k": 41, "domain": DOMAIN}, "the size of the domain, 40, not 41"),
        ({"k": 20_000_000}, "the head limit"),
        ({"head_limit": 0}, "head limit must be from 1"),
        ({"head_limit": -1}, "head limit must be from 1"),
        ({"head_limit": 10_000_001}, "to 10,000,000"),
        ({"relative_error": Fraction(0)}, "relative error must be"),
        ({"relative_error": Fraction(1)}, "relative error must be"),
        ({"relative_error": Fraction(-1, 10)}, "relative error must be"),
        ({"relative_error": Fraction(10**400)}, "relative error must be"),
        ({"relative_error": Fraction(1, 10**320)}, "relative error must be at least 1e-12"),
        ({"items": ("user",)}, "both the user and an item"),
        ({"items": ("item", "item")}, "twice"),
        (
            {"mechanism": "magic", "k": 3},
            "no mechanism 'magic'; choose from auto, gumbel, laplace, stable, head, two-round, pcr",
        ),
        ({"mechanism": "unknown-gumbel", "k": 3}, "choose from"),
        ({"mechanism": "", "k": 3}, "choose from"),
        ({"mechanism": "two-round", "sensitivity": BOUNDED}, "needs no bound"),
        ({"mechanism": "laplace", "k": 3}, "groups_per_user"),
        ({"mechanism": "stable", "k": 3}, "labels only"),
        ({"mechanism": "stable", "counts": False}, "how many items"),
        ({"mechanism": "gumbel"}, "how many items"),
        ({"mechanism": "pcr", "k": 3}, "not a top k"),
        ({"mechanism": "pcr", "noise": "laplace"}, "gaussian noise only"),
        ({"noise": "uniform", "k": 3}, "noise"),
        ({"noise": "uniform"}, "noise"),
        ({"k": 2.5}, "k must be"),
        ({"head_limit": 10.5}, "head limit"),
    ],
)
def test_an_impossible_query_is_refused(parts, words):
    """The message is one sentence with the allowed values."""
    with pytest.raises(InputError, match=words) as error:
        make_plan(changed(_query(), **parts))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "declared", [(0, 1), (-1, 1), (None, 0), (None, 2**31 + 1), (2.5, 1), (None, 1.5), (1, math.nan)]
)
def test_invalid_bounds_are_refused(declared):
    """Bounds are integers of at least 1: by a fraction of a row, one user could move counts further than declared."""
    with pytest.raises(InputError, match="must be"):
        make_plan(_query(k=3, sensitivity=Sensitivity(*declared)))


def test_numpy_numbers_are_accepted():
    """A computed k or epsilon makes the same plan as a literal one."""
    computed = _query(np.float64(1), k=np.int64(3), head_limit=np.int64(50), sensitivity=Sensitivity(np.int64(2)))
    typed = _query(1.0, k=3, head_limit=50, sensitivity=Sensitivity(2))
    assert make_plan(computed).mechanism == make_plan(typed).mechanism


@pytest.mark.parametrize("parts", [{"k": 1, "counts": False}, {"k": 1, "mechanism": "stable", "counts": False}])
@pytest.mark.parametrize(
    "delta", [Fraction(str(1 / (7 * 10**11))), Fraction(1e-8), Fraction(1, 3), Fraction("0.1") ** 19]
)
def test_any_delta_is_accepted(parts, delta):
    """A delta need not be a multiple of 1e-27, the quantum of costs, as 1 / n^2 seldom is."""
    plan = make_plan(_query(delta=delta, **parts))
    assert plan.worst_cost.delta <= delta
    assert plan.guarantee.delta <= math.nextafter(float(delta), 1)


_EPSILONS = st.sampled_from([1e-300, 1e-9, 1e-6, 1e-5, 0.01, 1.0, 10.0, 99.9, 100.0]) | st.floats(1e-6, 100)
_DELTAS = st.sampled_from(
    [Fraction(t) for t in ("1e-400", "1e-30", "1e-20", "1e-18", "1.5e-19", "1e-8", "0.5", "0.999", "1/3", "1e-12")]
    + [1 - Fraction(1, 10**30)]
) | st.floats(1e-20, 0.999).map(Fraction)


@settings(max_examples=500)
@given(
    query=st.builds(
        _query,
        _EPSILONS,
        _DELTAS,
        k=st.sampled_from([None, 1, 10, 10**4, 10**6]),
        sensitivity=st.builds(Sensitivity, st.sampled_from([None, 1, 5, 10**9]), st.sampled_from([1, 3, 2**31])),
        head_limit=st.sampled_from([None, 1, 50, 10**7]),
        counts=st.booleans(),
        noise=st.sampled_from([None, "gaussian", "laplace"]),
        mechanism=st.sampled_from([None, "gumbel", "laplace", "stable", "pcr"]),
        relative_error=st.sampled_from([Fraction(1, 10), Fraction(1, 10**12), Fraction(999, 1000)]),
        domain=st.sampled_from([None, DOMAIN]),
    ),
    shared=st.booleans(),
)
@example(query=_query(1e-6, Fraction(1, 10**20), k=10**6, sensitivity=Sensitivity(None, 2**31)), shared=False)
def test_a_plan_is_within_the_requested_guarantee_or_refused(query, shared):
    """For any parameters: InputError, or a guarantee within (epsilon, delta), by an independent conversion too."""
    try:
        plan = make_plan(query, shared_budget=shared)
    except InputError:
        return
    slack = 1 + Fraction(1, 10**6)
    cost, direct = plan.worst_cost, plan.mechanism.direct_epsilon()
    assert plan.guarantee.epsilon <= query.options.epsilon * (1 + 1e-9)
    assert Fraction(plan.guarantee.delta) <= query.options.delta * slack
    if shared:
        assert cost.delta <= query.options.delta / 2
        assert _epsilon(cost.rho, query.options.delta / 2) <= query.options.epsilon * slack
    elif direct is None or direct > Fraction(query.options.epsilon):
        assert _epsilon(cost.rho, query.options.delta - cost.delta) <= query.options.epsilon * slack
    else:
        assert cost.delta <= query.options.delta
    errors_expected = plan.expectation
    errors = [error for error in (errors_expected.min_std_error, errors_expected.max_std_error) if error is not None]
    assert all(0 < error < math.inf for error in errors)
    assert query.k is None or plan.request.limit >= query.k


def test_planning_repeats_no_work(monkeypatch):
    """A mechanism without alternatives is not compared, and the conversion of a known price is cached."""
    query = _query(1.2345678, mechanism="pcr")
    asked = []
    expectation = CountRelease.expectation
    monkeypatch.setattr(CountRelease, "expectation", lambda self: asked.append(self) or expectation(self))
    sought = []
    minimise = convert._minimise
    monkeypatch.setattr(convert, "_minimise", lambda function: sought.append(function) or minimise(function))
    first = make_plan(query)
    assert (len(asked), len(sought)) == (1, 2)
    assert make_plan(query) == first
    assert (len(asked), len(sought)) == (2, 2)


def test_an_engine_without_pairs_releases_from_the_head():
    """By default; a mechanism that needs pairs is refused by name before anything is read."""
    assert isinstance(make_plan(_query(), has_pairs=False).mechanism, SelectVerify)
    assert isinstance(make_plan(_query(mechanism="auto"), has_pairs=False).mechanism, SelectVerify)
    with pytest.raises(InputError, match="choose head"):
        make_plan(_query(mechanism="two-round"), has_pairs=False)


def test_releases_of_a_part_of_the_budget_cost_no_more_than_the_whole():
    """28 of them fit the budget of one, nearly all of which they use; their smallest counts are larger."""
    whole = make_plan(_query(4.0))
    each, limit = whole.one_of(28), limit_for(4.0, whole.query.options.delta)
    cost = sum((each.worst_cost for _ in range(28)), Cost())
    assert cost.within(limit)
    assert cost.rho > limit.rho * Fraction(99, 100)
    least, most = (plan.expectation.likely[0].smallest_count for plan in (whole, each))
    assert most > 4 * least
    head = make_plan(_query(4.0), has_pairs=False).one_of(28)
    assert isinstance(head.mechanism, SelectVerify)
    with pytest.raises(InputError, match="at least 1, not 0"):
        whole.one_of(0)
    with pytest.raises(InputError, match="price per unit"):
        make_plan(_query(per=PRESETS["linkedin"], k=5)).one_of(2)


def test_a_plan_is_five_lines_in_a_notebook():
    """What is asked, the guarantee, the worst cost, the error and the smallest count; no other part of the plan."""
    lines = repr(make_plan(query_of("user", ("item",), 1.0, Fraction(1, 10**8), k=3))).splitlines()
    assert [line.split("  ")[0].strip() or line.split("  ")[1] for line in lines] == [
        "<Plan of a top 3 by unknown-gumbel",
        "guarantee",
        "worst cost",
        "standard error",
        "smallest count",
    ]
    assert "epsilon = 1, delta = 1e-08" in lines[1]
