"""Canonical forms of filters: their shape, their distinctions and their limits."""

from __future__ import annotations

import datetime

import pytest

from discreet.errors import WhereError
from discreet.head_request import Kind, Membership, Not, Or
from discreet.query.canonical import NO_ROW, canonical, listed_values
from discreet.query.predicates import bind_where, parse_constant
from discreet.query.sql import parse_where
from discreet.testing.engines import truth

_KINDS = {
    **dict.fromkeys("abcde", Kind.INTEGER),
    "p": Kind.DECIMAL,
    "f": Kind.FLOAT,
    "t": Kind.TEXT,
    "o": Kind.BOOLEAN,
    "day": Kind.DATE,
    "at": Kind.TIMESTAMP,
    "r": Kind.UNTYPED,
    "z": Kind.OTHER,
}
_FORMS = """
b = 1 AND a = 2 => a = 2 AND b = 1
a = 1 AND t = 'x' AND day >= '2024-01-01' => a = 1 AND day >= DATE '2024-01-01' AND t = 'x'
a > 5 AND a < 50 => a >= 6 AND a <= 49
a > 5.5 => a >= 6
a <= -0.5 => a <= -1
a = 5.5 OR a = 7 => a = 7
a IN (3, 1, 2, 3) => a IN (1, 2, 3)
a IN (2, 1) => a IN (1, 2)
a = 9 OR a = 1 OR a IN (4, 2) => a IN (1, 2, 4, 9)
a <> 2 AND a NOT IN (1, 7) => a NOT IN (1, 2, 7)
a < 5 OR a > 5 => a <> 5
a < 5 OR a > 20 => a <= 4 OR a >= 21
a BETWEEN 1 AND 100 AND a NOT IN (5, 50) OR a = 300 => (a >= 1 AND a <= 100 OR a = 300) AND a NOT IN (5, 50)
a <= 10 OR a = 12 => a <= 12 AND a <> 11
a <= 10 OR a = 24 => a <= 10 OR a = 24
a = 7 OR a >= 20 => a >= 20 OR a = 7
a = 7 OR a >= 9 => a >= 7 AND a <> 8
a > 99999999999999999999999999999999999999 => a > 99999999999999999999999999999999999999
a <= 99999999999999999999999999999999999999 => a <= 99999999999999999999999999999999999999
a < -99999999999999999999999999999999999999 => a < -99999999999999999999999999999999999999
p > 5 AND p < 7.50 => p > 5 AND p < 7.5
p <> 5 AND p > -0.10 => p > -0.1 AND p <> 5
p = 0.00000000000000000000000000000000001 => p = 0.00000000000000000000000000000000001
f = 0.10000000000000001 OR f = -0.0000001 => f IN (-0.0000001, 0.1)
f >= 9007199254740993 => f >= 9007199254740992
f < 99999999999999999999999999999999999999 => f < 99999999999999997748809823456034029568
t LIKE 'ab%' AND t <> 'abc' => t >= 'ab' AND t < 'ac' AND t <> 'abc'
t >= 'b' AND t <= 'b' OR t = 'a' => t IN ('a', 'b')
t <= '' => t = ''
t <> '' => t > ''
t LIKE '%' => t IS NOT NULL
o <> TRUE => o = FALSE
o IN (TRUE, FALSE) => o IS NOT NULL
day > '2024-02-27' AND day < '2024-03-02' => day > DATE '2024-02-27' AND day < DATE '2024-03-02'
day = '2024-01-01' OR day = '2023-12-31' => day IN (DATE '2023-12-31', DATE '2024-01-01')
day > '9999-12-31' => day > DATE '9999-12-31'
day < '0001-01-01' => day < DATE '0001-01-01'
"at" > '2024-05-06' => "at" > TIMESTAMP '2024-05-06 00:00:00'
"at" IN (DATE '2024-05-06', TIMESTAMP '2024-05-06 00:00:00') => "at" = TIMESTAMP '2024-05-06 00:00:00'
r IN (DATE '2024-05-06',TIMESTAMP '2024-05-06 07:08:09') => r = DATE '2024-05-06' OR r = TIMESTAMP '2024-05-06 07:08:09'
"at" <= '2024-05-06 07:08:09.100000' => "at" <= TIMESTAMP '2024-05-06 07:08:09.1'
a = 1 OR a IS NULL => a = 1 OR a IS NULL
NOT (a = 1 AND b IS NULL) => a <> 1 OR b IS NOT NULL
NOT (a > 5 OR a IS NULL) => a <= 5
a = 1 OR b = 2 => a = 1 OR b = 2
a = 1 OR a <> 1 AND b = 2 => a = 1 OR a <> 1 AND b = 2
a = 1 AND b = 1 OR c = 1 AND d = 1 => a = 1 AND b = 1 OR c = 1 AND d = 1
(a = 1 OR b = 1) AND (c = 1 OR d = 1) => (a = 1 OR b = 1) AND (c = 1 OR d = 1)
(a = 1 OR c = 1) AND (b = 1 OR d = 1) => (a = 1 OR c = 1) AND (b = 1 OR d = 1)
a > 30 AND b = 1 OR a > 50 AND c = 1 => a >= 31 AND b = 1 OR a >= 51 AND c = 1
a = 1 AND b = 1 OR a = 2 AND b = 2 => a = 1 AND b = 1 OR a = 2 AND b = 2
a = 1 AND (b = 2 OR b = 1) => a = 1 AND b IN (1, 2)
a = 1 AND (a = 1 AND b = 2 OR b = 2 AND a = 1) => a = 1 AND b = 2
z IS NULL AND a IS NOT NULL => a IS NOT NULL AND z IS NULL
r = 1 OR r = '1' => r = 1 OR r = '1'
r IN (2.5, 'x', 1) => r IN (1, 2.5) OR r = 'x'
r NOT IN (1, 'x') => r <> 1 AND r <> 'x'
r > 1 OR r <= 1 => r = 0 OR r <> 0
r >= DATE '2024-01-01' OR r < DATE '2024-01-01' => r = DATE '2000-01-01' OR r <> DATE '2000-01-01'
r = TRUE OR r <> TRUE => r = FALSE OR r <> FALSE
r = TRUE OR r = DATE '2024-01-01' => r = TRUE OR r = DATE '2024-01-01'
r <> 1 OR b = 2 => b = 2 OR r <> 1
r IS NULL OR r > 5 => r > 5 OR r IS NULL
"""
_APART = """
a <> 1 | a <> 1 OR a IS NULL
NOT a = 1 | a IS NULL OR a < 1 OR a > 1
a = 1 OR a <> 1 | a = 1 OR a <> 1 OR a IS NULL
a >= 1 | a >= 0.9999999999999999999999999 AND a > 1
p > 1 | p >= 2
p > 1 | p >= 1
p > 0.1 | p > 0.10000000000000000000000000000000001
f > 0.1 | f >= 0.1
f = 0.3 | f = 0.30000000000000004
f > 0.3 | f >= 0.30000000000000004
t = 'a' | t = 'A'
t = 'a' | t = 'a '
t = 'é' | t = 'e\u0301'
t > 'a' | t >= 'b'
t < 'ﬀ' | t < '😀'
"at" > '2024-01-01' | "at" >= '2024-01-02'
"at" >= '2024-01-01' | "at" > '2023-12-31 23:59:59.999999'
r = 1 | r = '1'
r = 1 | r = '1' OR r = '1.0'
r = DATE '2024-01-01' | r = TIMESTAMP '2024-01-01 00:00:00'
r = DATE '2024-01-01' | r = '2024-01-01'
r > 1 OR r <= 1 | r IS NOT NULL
a = 1 AND b = 1 | a = 1
a = 1 | b = 1
"""


def _lines(text):
    return [line for line in text.split("\n") if line]


def _bound(text):
    return bind_where(parse_where(text), _KINDS)


def _form(text):
    return canonical(_bound(text), _KINDS)


@pytest.mark.parametrize("case", _lines(_FORMS))
def test_filters_have_the_form_that_engines_run_well(case):
    """Conditions joined by AND stay as they are, lists and ranges replace ORs, and nothing is repeated."""
    asked, form = case.split(" => ")
    assert _form(asked) == _bound(form)
    assert canonical(_bound(form), _KINDS) == _bound(form)


@pytest.mark.parametrize("case", _lines(_APART))
def test_filters_that_differ_on_some_row_have_two_forms(case):
    """Missing values, open ends, digits, case, spaces, accents, midnight, and text that is read as another type."""
    one, other = case.split(" | ")
    assert _form(one) != _form(other)


@pytest.mark.parametrize(
    "text",
    ["a IS NULL OR a IS NOT NULL", "a > 1 OR a <= 1 OR a IS NULL", "NOT (a IS NULL AND NOT a IS NULL)"],
)
def test_a_filter_that_every_row_passes_is_none(text):
    """Such a filter is the same as no filter."""
    assert _form(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "a > 5 AND a < 6",
        "a = 1 AND a = 2",
        "a = 5.5",
        "t < ''",
        "a IS NULL AND NOT a = 1",
        "NOT (o = TRUE OR o <> TRUE)",
    ],
)
def test_a_filter_that_no_row_passes_has_a_form(text):
    """It is a filter like others, and its own canonical form."""
    assert _form(text) == NO_ROW
    assert canonical(NO_ROW, _KINDS) == NO_ROW
    assert bind_where(NO_ROW, _KINDS) == NO_ROW
    assert truth(NO_ROW, {}) is False


@pytest.mark.parametrize("kind", [Kind.TEXT, Kind.INTEGER, Kind.DECIMAL, Kind.FLOAT, Kind.DATE, Kind.TIMESTAMP])
def test_a_thousand_constants_are_one_list(kind):
    """Constants are listed in ascending order and once each, also where short runs of numbers and days occur."""
    texts = {
        Kind.DATE: [str(datetime.date(2000, 1, 1) + datetime.timedelta(n * n)) for n in range(700)],
        Kind.TIMESTAMP: [f"2024-01-{1 + n % 28:02d} 00:{n % 60:02d}:{n % 59:02d}" for n in range(300)],
        Kind.INTEGER: [str(3 * n // 2) for n in range(1000)],
    }.get(kind, [f"{n * 7 % 1000}.5" for n in range(1000)])
    made = kind if kind in {Kind.TEXT, Kind.DATE, Kind.TIMESTAMP, Kind.INTEGER} else Kind.DECIMAL
    constants = tuple(parse_constant(made, text) for text in texts)
    form = canonical(Membership("x", (*constants[::-1], *constants)), {"x": kind})
    assert isinstance(form, Membership)
    assert set(form.constants) == set(constants)
    assert len(form.constants) == len(constants)
    assert canonical(Not(Membership("x", constants)), {"x": kind}) == Not(form)


def test_nine_consecutive_numbers_are_a_range_within_a_list():
    """Nine consecutive integers are two comparisons, and eight are listed."""
    assert _form("a IN (1,2,3,4,5,6,7,8,9, 50)") == _bound("a >= 1 AND a <= 9 OR a = 50")
    assert _form("a IN (1,2,3,4,5,6,7,8, 50)") == _bound("a IN (1,2,3,4,5,6,7,8,50)")


def test_a_form_may_have_a_thousand_conditions():
    """Each range of decimals has two conditions: five hundred ranges are accepted, and one more is refused."""
    texts = [" OR ".join(f"p > {n} AND p < {n}.5" for n in range(start, start + 167)) for start in (0, 167, 334)]
    ranges = [part for text in texts for part in parse_where(text).predicates]
    assert len(ranges) == 501
    assert len(canonical(Or(tuple(ranges[:500])), _KINDS).predicates) == 500
    with pytest.raises(WhereError, match="1,000 conditions at most; use IN"):
        canonical(Or(tuple(ranges)), _KINDS)


def test_forms_are_no_larger_than_filters():
    """Nothing is distributed: fifty columns in pairs, joined by AND, would have 2^25 parts."""
    text = " AND ".join(f"(c{n:02}=1 OR d{n:02}=1)" for n in range(25))
    columns = {f"{letter}{n:02}": Kind.INTEGER for letter in "cd" for n in range(25)}
    assert canonical(parse_where(text), columns) == parse_where(text)


@pytest.mark.parametrize(
    ("text", "listed"),
    [
        ("a = 1", {"a": [1]}),
        ("a IN (3, 1) AND b > 5", {"a": [1, 3]}),
        ("a BETWEEN 2 AND 12 AND a <> 3", {"a": [2, *range(4, 13)]}),
        ("a IN (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)", {"a": list(range(1, 11))}),
        ("(t = 'x' OR t = 'a') AND o = FALSE", {"t": ["a", "x"], "o": [False]}),
        ("t IN ('a', 'b') AND t <> 'b'", {"t": ["a"]}),
        ("t = '' AND day = '2024-01-31'", {"t": [""], "day": ["2024-01-31"]}),
        ("\"at\" = '2024-01-31'", {"at": ["2024-01-31 00:00:00"]}),
        ("day >= '2024-01-01' AND day <= '2024-01-02'", {}),
        ("a = 1 OR a IS NULL", {}),
        ("a IS NULL", {}),
        ("a = 1 OR b = 1", {}),
        ("a <> 1", {}),
        ("t LIKE 'a%'", {}),
        ("p = 1.5 AND f = 1 AND r = 1", {}),
        ("r = 'a'", {"r": ["a"]}),
        ("a BETWEEN 1 AND 1000", {"a": list(range(1, 1001))}),
        ("a BETWEEN 1 AND 1001", {}),
        ("a BETWEEN 1 AND 99999999999999999999999", {}),
        ("a = 9223372036854775808", {}),
    ],
)
def test_a_filter_lists_the_values_that_it_leaves(text, listed):
    """By its canonical form: the values of a column that is equal to constants, under AND."""
    where = canonical(_bound(text), _KINDS)
    assert listed_values(where, _KINDS) == listed
