"""Consistent noise: equal queries get equal answers, and different ones never share bits."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace

import pyarrow as pa
import pytest

from discreet.errors import InputError
from discreet.head_request import (
    And,
    Arrivals,
    Comparison,
    Constant,
    Derived,
    HeadRequest,
    IsNull,
    Kind,
    Membership,
    Not,
    Or,
    SumBounds,
)
from discreet.mechanisms import Auto, Each, KnownAuto, KnownGumbel, KnownLaplace, Request, TwoRound, UnknownGumbel
from discreet.mechanisms.sums import KnownGumbelSums, KnownLaplaceSums, RankedSums
from discreet.noise import KeyedBits, encode
from discreet.query.planning import make_plan
from discreet.query.query import Query
from discreet.query.sql import parse_where
from discreet.release import NoiseKey, answer, keys
from discreet.release.keys import drawing, release_context
from discreet.values import Cost, Sensitivity
from tests.queries import changed, query_of

from .builders import TinyEngine

SECRET = bytes(range(32))
DOMAIN = pa.table({"item": [1, 2, 3, 4]})
BOUNDED = Sensitivity(2, 3)
SUMMED = SumBounds(Fraction(0), Fraction(3), column="x")
QUERY = query_of("user", ("item",), 1.0, Fraction(1, 10**8), k=3)
PLANS = {
    "unknown-gumbel": make_plan(QUERY),
    "unknown-laplace": make_plan(changed(QUERY, sensitivity=BOUNDED)),
    "known-gumbel": make_plan(changed(QUERY, domain=DOMAIN)),
    "known-laplace": make_plan(changed(QUERY, domain=DOMAIN, sensitivity=BOUNDED)),
    "top-stable": make_plan(changed(QUERY, mechanism="stable", counts=False)),
    "pcr": make_plan(changed(QUERY, k=None, mechanism="pcr")),
    "head": make_plan(changed(QUERY, k=None, mechanism="head")),
    "two-round": make_plan(changed(QUERY, k=None, mechanism="two-round")),
    "auto": make_plan(changed(QUERY, k=None)),
}


def _context(plan, table="t", version="v"):
    return encode(release_context(plan, table, version))


def _others(value):  # noqa: C901 - a case for each type
    """Return other values of the same type."""
    match value:
        case None:
            return [1, "laplace"]
        case bool():
            return [not value]
        case int():
            return [value + 1, value * 2 + 1]
        case Fraction():
            return [value * (1 + Fraction(1, 10**9)), value / 2] if value else [Fraction(1, 10**9)]
        case Cost():
            return [Cost(value.rho + Fraction(1, 10**18), value.delta), Cost(value.rho, value.delta * 2)]
        case float():
            return [value * (1 + 1e-9)]
        case _ if dataclasses.is_dataclass(value):
            names = [field.name for field in dataclasses.fields(value)]
            return [
                dataclasses.replace(value, **{name: part}) for name in names for part in _others(getattr(value, name))
            ]
        case "gaussian":
            return ["laplace", None]
        case "laplace":
            return ["gaussian", None]
        case str():
            return [value + "2"]
        case Kind():
            return [kind for kind in Kind if kind is not value]
    raise AssertionError(f"no other value for {value!r}")


@pytest.mark.parametrize("name", PLANS)
def test_every_parameter_of_every_mechanism_changes_the_context(name):
    """The same bits at two noise scales would reveal the true counts (Rogers et al. 2021, section 8.2)."""
    plan = PLANS[name]
    assert plan.mechanism.name == name
    seen = {_context(plan)}
    fields = [field for field in dataclasses.fields(plan.mechanism) if field.metadata.get("named", True)]
    for field in fields:
        for other in _others(getattr(plan.mechanism, field.name)):
            mechanism = dataclasses.replace(plan.mechanism, **{field.name: other})
            seen.add(_context(dataclasses.replace(plan, mechanism=mechanism)))
    assert len(seen) == 1 + sum(len(_others(getattr(plan.mechanism, field.name))) for field in fields)


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"k": None, "mechanism": "laplace"},
        {"k": None, "counts": False, "summed": SUMMED},
        {"counts": False, "summed": SUMMED},
    ],
)
def test_independent_noise_has_the_name_of_shared_noise_but_other_bits(parts):
    """The name is older than shared noise, and both are the same question; equal bits would reveal differences."""
    plan = make_plan(changed(QUERY, domain=DOMAIN, noise="gaussian", **parts))
    mechanism = plan.mechanism
    if isinstance(mechanism, RankedSums):
        ranking = dataclasses.replace(mechanism.ranking, independent=True)
        independent = dataclasses.replace(mechanism, ranking=ranking)
    else:
        independent = dataclasses.replace(mechanism, independent=True)
    other = dataclasses.replace(plan, mechanism=independent)
    assert _context(plan) == _context(other)
    assert drawing(mechanism) == "2, shared"
    assert drawing(independent) == "2"


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [({}, "2, differences"), ({"low": -1}, "2"), ({"private": True}, "2, scaled rows")],
    ids=["differences", "both signs", "private"],
)
def test_averages_have_other_bits_than_before_their_noise_was_another(bounds, expected):
    """Equal bits would reveal the noise that is new; averages of both signs have no noise of differences."""
    summed = dataclasses.replace(SUMMED, rows=2, **bounds)
    assert drawing(make_plan(changed(QUERY, counts=False, summed=summed)).mechanism) == expected


def test_the_kind_of_mechanism_changes_the_context():
    """Two mechanisms with equal parameters have different contexts."""
    assert len({_context(plan) for plan in PLANS.values()}) == len(PLANS)


WHERES = [
    "x = 1",
    "x = 2",
    "x = '1'",
    "x = TRUE",
    "x <> 1",
    "y = 1",
    "x IN (1)",
    "x IN (1, 1)",
    "x IS NULL",
    "NOT x IS NULL",
    "NOT NOT x = 1",
    "x = 1 AND y = 1",
    "x = 1 OR y = 1",
    "y = 1 AND x = 1",
    "(x = 1 OR y = 1) AND y = 2",
    "x = 1 AND y = 1 AND y = 2",
    "x = '2024-01-01'",
    "x = DATE '2024-01-01'",
    "x = TIMESTAMP '2024-01-01 00:00:00'",
]
_DATE = datetime.date(2024, 1, 1)
DOMAINS = [[1], [2], [1, 2], [12], ["1"], [True], [Decimal(1)], [_DATE], [datetime.datetime(2024, 1, 1)], [str(_DATE)]]
C, D = Constant(Kind.TEXT, "c"), Constant(Kind.INTEGER, "4")
FILTER = And((Or((Comparison("x", "<", D), IsNull("y"))), Not(Membership("z", (C, D))), Not(Comparison("w", "=", C))))
FULL = make_plan(
    query_of(
        "user",
        ("item", "other"),
        1.0,
        Fraction(1, 10**8),
        k=3,
        where=FILTER,
        sensitivity=BOUNDED,
        domain=pa.table({"item": [1, 1, 1, 2, 2, 2, 3, 3, 3], "other": ["a", "b", "c"] * 3}),
        each=("item",),
        segments=pa.table({"item": [1, 2, 3]}),
        summed=SumBounds(Fraction(0), Fraction(7), 1, column="x"),
        derived=(Derived("item", "n", 10), Derived("other", "at", "day")),
    )
)


def _varied(value):
    """Return values that differ from *value* in one place each, at any depth."""
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            for other in _varied(getattr(value, field.name)):
                yield dataclasses.replace(value, **{field.name: other})
        return
    if isinstance(value, tuple):
        for n, part in enumerate(value):
            yield from ((*value[:n], other, *value[n + 1 :]) for other in _varied(part))
        yield value[1:]
        yield value[::-1]
    elif isinstance(value, pa.Table):
        for n, name in enumerate(value.column_names):
            yield value.set_column(n, name, value.column(n).take(pa.array([*range(len(value) - 1), 0])))
        yield value.slice(1)
    else:
        yield from _others(value)


def _changed_fields(request):
    """Return the fields in which *request* differs from that of the full plan."""
    first = FULL.request
    fields = (field.name for field in dataclasses.fields(HeadRequest))
    return {name for name in fields if getattr(request, name) != getattr(first, name)}


def test_every_part_of_the_request_changes_the_context():
    """Every field of the request at any depth: equal noise on other counts would show their difference."""
    seen, fields_changed = {_context(FULL)}, {"limit"}  # of the mechanism: above
    for query in _varied_queries():
        plan = dataclasses.replace(FULL, query=query)
        if fields := _changed_fields(plan.request):
            fields_changed |= fields
            assert _context(plan) not in seen
            seen.add(_context(plan))
    assert fields_changed == {field.name for field in dataclasses.fields(HeadRequest)}
    assert len(seen) > 60


def _varied_queries():
    """Return the valid queries that differ from the full plan's in one place."""
    for field in dataclasses.fields(Query):
        for other in _varied(getattr(FULL.query, field.name)):
            with contextlib.suppress(InputError):
                yield dataclasses.replace(FULL.query, **{field.name: other})


@pytest.mark.parametrize(
    "parts",
    [
        [{"where": parse_where(text)} for text in WHERES],
        [{"domain": pa.table({"item": labels})} for labels in DOMAINS],
    ],
    ids=["filters", "domains"],
)
def test_filters_and_domains_that_look_alike_differ(parts):
    """Similar texts, types and structures have different contexts."""
    assert len({_context(_asked(**part)) for part in parts}) == len(parts)


def _asked(**parts):
    return make_plan(changed(QUERY, k=1, **parts))


def test_table_version_and_edition_change_the_context():
    """Table, version and the order of drawing change the context, and adjacent texts cannot be confused."""
    plan = PLANS["pcr"]
    seen = [
        _context(plan, *names) for names in (("t", "v"), ("t", "w"), ("s", "v"), ("tv", ""), ("", "tv"), ("v", "t"))
    ]
    drawn_otherwise = encode(release_context(plan, "t", "v", f"{keys.DRAWING}+another"))
    assert len({*seen, drawn_otherwise}) == len(seen) + 1


def test_bits_of_noise_that_values_share_are_others_and_the_name_is_the_same():
    """Two rounds, and what drew independent noise before, have another order of drawing; also of segments and sums."""
    independent = KnownLaplace(None, 9, 2, Fraction(3))
    auto = Auto.at_epsilon(Fraction(1), Fraction(1, 10**8), Request(3, 9))
    shared = KnownLaplace(None, 9, 9, Fraction(3))
    summed = SumBounds(0, 5)
    orders = {
        f"{keys.DRAWING}, shared": [
            shared,
            KnownGumbel(3, 9, Fraction(1)),
            dataclasses.replace(shared, noise="laplace"),
            KnownGumbel(3, 9, Fraction(1), 1, "laplace"),
            Each(shared, 2),
            KnownLaplaceSums(shared, summed, 9),
            KnownGumbelSums(KnownGumbel(3, 9, Fraction(1)), SumBounds(-5, 5), 9),  # counts share noise, sums do not
        ],
        keys.DRAWING: [
            independent,
            dataclasses.replace(independent, noise="laplace"),
            KnownGumbel(2, 9, Fraction(1), 1, "laplace"),
            KnownGumbel(3, 9, Fraction(1), 1, None),
            UnknownGumbel(3, 9, Fraction(1), Fraction(1, 10)),
            Each(independent, 2),
        ],
        f"{keys.DRAWING}, few users": [
            KnownAuto.at_epsilon(Fraction(1), Fraction(1, 10**8), Request(None, n, known_domain=True)) for n in (9, 40)
        ],
        f"{keys.DRAWING}, graded": [
            TwoRound.at_epsilon(Fraction(1), Fraction(1, 10**8), Request(None, 9)),
        ],
        f"{keys.DRAWING}, hidden, {auto.second_head.limit.rho}": [auto],
    }
    for order, mechanisms in orders.items():
        assert [keys.drawing(mechanism) for mechanism in mechanisms] == [order] * len(mechanisms)
    plan = dataclasses.replace(PLANS["known-laplace"], mechanism=shared)
    bits = keys.NoiseKey(bytes(32), "v").bits(plan, "t")
    assert bits.uint64("x", 1) == KeyedBits(
        bytes(32), release_context(plan, "t", "v", f"{keys.DRAWING}, shared")
    ).uint64("x", 1)


def test_a_query_that_is_only_written_differently_keeps_its_answer():
    """Spaces, case of keywords and leading zeros are not in the context."""
    plans = [
        _asked(where=parse_where(text))
        for text in ("x = 7 AND y IN ('a')", "x=007 and y in('a')", "7.0 = x AND y IN ('a')")
    ]
    assert len({_context(plan) for plan in plans}) == 1


def _answer(plan, noise, table="t", counts=(1000, 900, 800, 1)):
    return answer(plan, TinyEngine(counts), None, noise.bits(plan, table), computational=True)


def test_equal_queries_about_a_version_get_equal_bytes():
    """Another key object of the same secret gives equal bytes; another version, table or secret gives others."""
    plan = PLANS["unknown-gumbel"]
    one = _answer(plan, NoiseKey(SECRET, "2024-01")).to_json()
    assert _answer(make_plan(QUERY), NoiseKey(bytes(range(32)), "2024-01")).to_json() == one
    others = [
        _answer(plan, NoiseKey(SECRET, "2024-02")),
        _answer(plan, NoiseKey(SECRET[::-1], "2024-01")),
        _answer(plan, NoiseKey(SECRET, "2024-01"), table="s"),
    ]
    assert len({one, *(other.to_json() for other in others)}) == 4


def test_the_secret_is_shown_nowhere():
    """Neither the key nor its parts show the secret."""
    noise = NoiseKey(b"\xabhidden secret of 32 bytes or more", "2024-01")
    for shown in (repr(noise), str(noise), repr(noise.bits(PLANS["pcr"], "t"))):
        assert "hidden" not in shown
        assert "abhidden" not in shown
    assert repr(noise) == "NoiseKey(..., data_version='2024-01')"


@pytest.mark.parametrize("secret", [b"", bytes(31), "thirty-two characters, not bytes", None])
def test_a_short_secret_is_refused(secret):
    """With fewer than 256 bits the noise could be guessed."""
    with pytest.raises(InputError, match="32 bytes"):
        NoiseKey(secret, "v")


@pytest.mark.parametrize("version", ["", None, 7, b"v"])
def test_a_key_needs_a_data_version(version):
    """Equal noise on other data would show their difference."""
    with pytest.raises(InputError, match="data version"):
        NoiseKey(SECRET, version)


def test_a_secret_has_the_keys_that_it_always_had():
    """Stored releases, sessions, addresses of pages and fingerprints are found with the same secret in any version."""
    derived = keys.DerivedKeys(SECRET)
    plan = PLANS["unknown-laplace"]
    found = {
        "sessions": derived.sessions,
        "pages": derived.pages,
        "agents": derived.agents,
        "running": derived.running,
        "identity": derived.identity,
        "release": derived.release_key(plan, "t", "v"),
        "once": derived.release_key_once("ann", "key", b"digest"),
        "noise": derived.bits(plan, "t", "v").uint64("x", 4).tobytes(),
        "shown": bytes.fromhex(derived.shown_version("v")),
        "fingerprints": derived.fingerprint_key("t", "v"),
    }
    assert {name: key.hex()[:16] for name, key in found.items()} == DERIVED
    assert {len(key) for name, key in found.items() if name != "shown"} == {32}


DERIVED = {
    "sessions": "4153166ebf437e55",
    "pages": "e4eb28a6400546ed",
    "agents": "c236e55fcf2ccce8",
    "running": "525ad532a75047c4",
    "identity": "dc0e9a2d5c10b085",
    "release": "5c78e502522025ab",
    "once": "cb9620163d2ba6db",
    "noise": "0854e61ba934f61c",
    "shown": "86e4031e0245d43f",
    "fingerprints": "39b7c4e86323fd52",
}


def test_requests_have_the_contexts_and_forms_that_they_always_had():
    """Segments, sums of each kind, derived columns and arrivals: their names are part of stored ones."""
    arrivals = dataclasses.replace(FULL.request, arrivals=Arrivals("at", 3, "2024-01-01"), each=(), segments=None)
    private = SumBounds(Fraction(0), Fraction(3), column="x", private=True)
    values = {
        "full": release_context(FULL, "t", "v"),
        "segments": keys.encodable(FULL.request),
        "arrivals": keys.encodable(arrivals),
        "arrivals of a plan": release_context(
            dataclasses.replace(FULL, query=SimpleNamespace(request=arrivals, k=3, sensitivity=BOUNDED)), "t", "v"
        ),
        "bounds": keys.encodable((SUMMED, private, dataclasses.replace(SUMMED, rows=4))),
        "mapping": keys.encodable({"b": [1, None], "a": Decimal("1.50")}),
        "sums": keys.encodable(
            [make_plan(changed(QUERY, k=None, domain=DOMAIN, counts=False, summed=SUMMED)).mechanism, FULL.mechanism]
        ),
        "private sums": keys.encodable(
            make_plan(changed(QUERY, k=None, domain=DOMAIN, counts=False, summed=private)).mechanism
        ),
    }
    digests = {name: hashlib.sha256(encode(value)).hexdigest()[:16] for name, value in values.items()}
    assert digests == CONTEXTS
    assert values["arrivals"][-1] == ("arrivals", keys.encodable(arrivals.arrivals))
    assert "each" not in dict(values["arrivals"][1:])
    assert values["mapping"] == (("b", (1, None)), ("a", ("Decimal", "1.50")))


CONTEXTS = {
    "full": "74506441f8d81989",
    "segments": "840db2520573daa0",
    "arrivals": "6b1b168736e9a37f",
    "arrivals of a plan": "9cb266d8e415275a",
    "bounds": "51a9eb81cf71a6ca",
    "mapping": "ddb9dc1a100b93b6",
    "sums": "8066bff610965bff",
    "private sums": "db98fc0a95a51558",
}
