"""Queries as values and in JSON: allowed and refused forms, and lossless serialization."""

from __future__ import annotations

import copy
import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet.errors import InputError, WhereError
from discreet.head_request import And, Comparison, Constant, IsNull, Kind, Membership, Not, Or
from discreet.query.json import MAX_DEPTH, MAX_NUMBER, from_dict
from discreet.query.parse_tree import MAX_DEPTH as MAX_TEXT_DEPTH
from discreet.query.parse_tree import MAX_WHERE_LENGTH as MAX_LENGTH
from discreet.query.predicates import bind_where
from discreet.query.query import Measure, Select
from discreet.query.sql import parse_select, parse_where
from tests.query.filters import NAMES, predicates

_USERS = Measure("users", "member_id")
_PLAIN = {"dataset": "t", "items": ["a"], "measure": {"kind": "users", "column": "u"}, "where": None, "k": 3}
_X = {"column": "x", "operator": "=", "constant": {"integer": "1"}}


def _selects():
    kinds = st.sampled_from(["users", "sum", "average"])
    return st.builds(
        lambda dataset, items, measure, where, k: Select(dataset, tuple(items), measure, where, k if items else None),
        NAMES,
        st.lists(NAMES, max_size=3, unique=True),
        st.builds(Measure, st.just("rows")) | st.builds(Measure, kinds, NAMES),
        st.none() | predicates(),
        st.none() | st.integers(1, 10**18),
    )


@settings(max_examples=150)
@given(_selects())
def test_a_query_is_read_back_from_json_unchanged(select):
    """Every query is read back from its JSON as the same value, to the character."""
    assert from_dict(json.loads(json.dumps(select.to_dict()))) == select


@settings(max_examples=200)
@given(_selects(), _selects())
def test_different_queries_have_different_json(one, other):
    """Equal queries have equal JSON, in any order of keys."""
    assert (one == other) == (json.dumps(one.to_dict()) == json.dumps(other.to_dict()))
    assert from_dict(dict(reversed(one.to_dict().items()))) == one


def test_the_documented_query_is_read():
    """The example of the documentation: the filter as text, or nested."""
    asked = {
        "dataset": "engagements",
        "items": ["article"],
        "measure": {"kind": "users", "column": "member_id"},
        "where": "country = 'IN' AND year >= 2024",
        "k": 10,
    }
    nested = {
        "and": [
            {"column": "country", "operator": "=", "constant": {"text": "IN"}},
            {"column": "year", "operator": ">=", "constant": {"integer": "2024"}},
        ]
    }
    select = from_dict(asked)
    assert select == Select("engagements", ("article",), _USERS, parse_where(asked["where"]), 10)
    assert select.to_dict() == asked | {"where": nested}
    assert from_dict(asked | {"where": nested}) == select


def test_each_part_of_a_filter_has_its_documented_shape():
    """Stored queries stay valid only if this shape does not change."""
    constants = {
        "text": "it's",
        "integer": "-7",
        "decimal": "0.5",
        "boolean": "true",
        "date": "2025-01-31",
        "timestamp": "2025-01-31 12:00:00",
    }
    members = tuple(Constant(Kind[kind.upper()], text) for kind, text in constants.items())
    where = Or((Not(IsNull("x")), And((Membership("y", members), Comparison("z", "<>", members[1])))))
    assert Select("t", (), Measure("rows"), where).to_dict() == {
        "dataset": "t",
        "items": [],
        "measure": {"kind": "rows"},
        "where": {
            "or": [
                {"not": {"column": "x", "missing": True}},
                {
                    "and": [
                        {"column": "y", "in": [{kind: text} for kind, text in constants.items()]},
                        {"column": "z", "operator": "<>", "constant": {"integer": "-7"}},
                    ]
                },
            ]
        },
        "k": None,
    }


def test_the_form_of_filters_that_no_row_passes_can_be_read_back():
    """The service returns this form in its answers."""
    asked = {"dataset": "t", "items": ["a"], "measure": {"kind": "rows"}, "where": {"or": []}}
    assert from_dict(asked).where == Or(())
    assert from_dict(asked).to_dict() == asked | {"k": None}


def test_where_and_k_may_be_left_out():
    """Then all rows count, and as many items are released as possible."""
    asked = {key: value for key, value in _PLAIN.items() if key not in {"where", "k"}}
    assert from_dict(asked) == Select("t", ("a",), Measure("users", "u"))


def test_constants_may_be_spelled_as_in_filters():
    """Constants become canonical, as in filters."""
    where = {"column": "x", "in": [{"integer": "007"}, {"decimal": "1.50"}, {"timestamp": "2025-01-31T12:00:00"}]}
    read = parse_where("x IN (007, 1.50, TIMESTAMP '2025-01-31T12:00:00')")
    assert from_dict(_PLAIN | {"where": where}).where == read


def test_the_deepest_and_the_largest_filter_in_text_can_be_written_nested():
    """Every filter that is read from SQL or text can be stored as JSON and read again."""
    deep = "NOT " * MAX_TEXT_DEPTH + "x LIKE 'a%'"
    wide = "(x = 1 OR y = 1 AND " * (MAX_TEXT_DEPTH - 1) + "(x = 1 OR x LIKE 'a%')" + ")" * (MAX_TEXT_DEPTH - 1)
    large = "x IN (" + ",".join("1" * ((MAX_LENGTH - 7) // 2)) + ")"
    many = "OR ".join(["x LIKE'a'"] * (MAX_LENGTH // 12))
    for text in (deep, wide, large, many):
        select = Select("t", ("a",), Measure("rows"), parse_where(text))
        assert from_dict(select.to_dict()) == select


_MISTAKES = [
    ({"colour": 1}, "the query has no key 'colour'; the keys are dataset, each, items, k, measure, where"),
    ({"dataset": ...}, "the query needs the key 'dataset'"),
    ({"items": ...}, "the query needs the key 'items'"),
    ({"measure": ...}, "the query needs the key 'measure'"),
    ({"dataset": 1}, "'dataset' must be a name"),
    ({"dataset": ""}, "'dataset' must be a name"),
    ({"dataset": None}, "'dataset' must be a name"),
    ({"dataset": "\0"}, "'dataset' must be a name"),
    ({"items": "a"}, "'items' must be a list"),
    ({"items": None}, "'items' must be a list"),
    ({"items": {"a": 1}}, "'items' must be a list"),
    ({"items": ["a", 1]}, "'items[1]' must be a name"),
    ({"items": ["a", ["b"]]}, "'items[1]' must be a name"),
    ({"items": ["\ud800"]}, "'items[0]' must be a name"),
    ({"items": [""]}, "'items[0]' must be a name"),
    ({"items": ["a", "a"]}, "'items' names a column twice"),
    ({"measure": "users"}, "'measure' must be an object"),
    ({"measure": {}}, "'measure' needs the key 'kind'"),
    ({"measure": {"kind": "rows", "of": "x"}}, "'measure' has no key 'of'; the keys are column, kind"),
    ({"measure": {"kind": "max", "column": "x"}}, "'measure.kind' must be users, rows, sum or average"),
    ({"measure": {"kind": ["rows"]}}, "'measure.kind' must be"),
    ({"measure": {"kind": "users"}}, "'measure.column' must be a name"),
    ({"measure": {"kind": "sum", "column": None}}, "'measure.column' must be a name"),
    ({"measure": {"kind": "rows", "column": "x"}}, "'measure.column' must be left out"),
    ({"k": 0}, "'k' must be a whole number of at least 1"),
    ({"k": -5}, "'k' must be a whole number of at least 1"),
    ({"k": True}, "'k' must be a whole number of at least 1"),
    ({"k": "10"}, "'k' must be a whole number"),
    ({"k": 1.0}, "'k' must be a whole number"),
    ({"k": []}, "'k' must be a whole number"),
    ({"items": [], "k": 1}, "'k' needs items"),
    ({"where": 1}, "'where' must be an object"),
    ({"where": []}, "'where' must be an object"),
    ({"where": True}, "'where' must be an object"),
    ({"where": {}}, "'where' must have the keys of one of these: column and constant and operator, column and in, "),
    ({"where": {"column": "x"}}, "'where' must have the keys"),
    ({"where": {"column": "x", "operator": "="}}, "'where' must have the keys"),
    ({"where": _X | {"in": []}}, "'where' must have the keys"),
    ({"where": _X | {"and": []}}, "'where' must have the keys"),
    ({"where": {"and": [_X, _X], "or": [_X, _X]}}, "'where' must have the keys"),
    (
        {"where": _X | {"value": 1}},
        "'where' must have the keys of one of these: column and constant and operator, ",
    ),
    ({"where": {"not": "x = 1"}}, "'where.not' must be an object"),
    ({"where": {"not": None}}, "'where.not' must be an object"),
    ({"where": {"and": _X}}, "'where.and' must be a list"),
    ({"where": {"and": []}}, "'where.and' must be a list of at least 2"),
    ({"where": {"or": [_X]}}, "'where.or' must be a list of at least 2"),
    ({"where": {"or": [_X, 1]}}, "'where.or[1]' must be an object"),
    (
        {"where": {"or": [_X, {"not": {"and": [_X, {"column": 1, "missing": True}]}}]}},
        "'where.or[1].not.and[1].column' m",
    ),
    ({"where": {"column": "", "missing": True}}, "'where.column' must be a name"),
    ({"where": {"column": "x", "missing": False}}, "'where.missing' must be true"),
    ({"where": {"column": "x", "missing": 1}}, "'where.missing' must be true"),
    ({"where": _X | {"operator": "!="}}, "'where.operator' must be =, <>, <, <=, > or >="),
    ({"where": _X | {"operator": ["="]}}, "'where.operator' must be =, "),
    ({"where": _X | {"constant": 1}}, "'where.constant' must be an object"),
    ({"where": _X | {"constant": "a"}}, "'where.constant' must be an object"),
    ({"where": _X | {"constant": None}}, "'where.constant' must be an object"),
    (
        {"where": _X | {"constant": {}}},
        "'where.constant' must have one key: text, integer, decimal, boolean, date, time",
    ),
    ({"where": _X | {"constant": {"text": "a", "date": "b"}}}, "'where.constant' must have one key"),
    ({"where": _X | {"constant": {"float": "1"}}}, "'where.constant' must have one key: text, integer, "),
    ({"where": _X | {"constant": {"untyped": "1"}}}, "'where.constant' must have one key: text, integer, "),
    ({"where": _X | {"constant": {"integer": 1}}}, "'where.constant.integer' must be text"),
    ({"where": _X | {"constant": {"boolean": True}}}, "'where.constant.boolean' must be text"),
    ({"where": _X | {"constant": {"integer": "1.5"}}}, "'where.constant.integer' must hold whole numbers"),
    ({"where": _X | {"constant": {"integer": "1 OR 1 = 1"}}}, "'where.constant.integer' must hold whole numbers"),
    ({"where": _X | {"constant": {"decimal": "1e5"}}}, "'where.constant.decimal' must hold decimal numbers"),
    ({"where": _X | {"constant": {"decimal": "NaN"}}}, "'where.constant.decimal' must hold decimal numbers"),
    ({"where": _X | {"constant": {"boolean": "yes"}}}, "'where.constant.boolean' must hold true or false"),
    ({"where": _X | {"constant": {"date": "2025-02-30"}}}, "'where.constant.date' must hold dates"),
    ({"where": _X | {"constant": {"date": "2025-01-01' OR x = '"}}}, "'where.constant.date' must hold dates"),
    ({"where": _X | {"constant": {"timestamp": "2025-01-01"}}}, "'where.constant.timestamp' must hold timestamps"),
    ({"where": _X | {"constant": {"text": "\0"}}}, "'where.constant.text' must hold text"),
    ({"where": _X | {"constant": {"text": "\ud800"}}}, "'where.constant.text' must hold text"),
    ({"where": {"column": "x", "in": []}}, "'where.in' must be a list of at least 1"),
    ({"where": {"column": "x", "in": {"text": "a"}}}, "'where.in' must be a list"),
    ({"where": {"column": "x", "in": [{"text": "a"}, {"text": 1}]}}, "'where.in[1].text' must be text"),
]


@pytest.mark.parametrize(("change", "words"), _MISTAKES)
def test_mistakes_in_json_are_refused_by_their_key(change, words):
    """Unknown and missing keys, wrong types, invalid values; ... stands for a missing key."""
    asked = {key: value for key, value in (_PLAIN | change).items() if value is not ...}
    before = copy.deepcopy(asked)
    with pytest.raises(InputError) as error:
        from_dict(asked)
    assert words in str(error.value)
    assert asked == before


@pytest.mark.parametrize("asked", [None, [], "SELECT COUNT(*) FROM t", 1])
def test_only_a_json_object_is_a_query(asked):
    """All other JSON types are refused."""
    with pytest.raises(InputError, match="the query must be an object"):
        from_dict(asked)


def test_an_invalid_filter_text_is_refused_with_its_position():
    """The position is that in the text of the filter."""
    with pytest.raises(WhereError, match="at character 5") as error:
        from_dict(_PLAIN | {"where": "x = y"})
    assert error.value.position == 4


def test_nested_filters_are_limited():
    """The message has the limits of depth and number, and one more is refused."""
    deep = _X
    for _ in range(MAX_DEPTH - 1):
        deep = {"not": deep}
    assert from_dict(_PLAIN | {"where": deep}).where is not None
    with pytest.raises(InputError, match=r"^'where' is nested too deep: 120 filters within each other are allowed$"):
        from_dict(_PLAIN | {"where": {"not": deep}})  # the sentence does not repeat the path
    large = {"column": "x", "in": [{"integer": "1"}] * (MAX_NUMBER - 1)}
    assert len(from_dict(_PLAIN | {"where": large}).where.constants) == MAX_NUMBER - 1
    for more in ({"not": large}, {"column": "x", "in": [*large["in"], {"integer": "1"}]}):
        with pytest.raises(InputError, match=r"^'where' is too large: 10,000 filters and constants"):
            from_dict(_PLAIN | {"where": more})


def test_adjacent_filters_do_not_count_as_nesting():
    """More filters may stand beside each other than within each other."""
    where = {"or": [{"not": _X}] * (2 * MAX_DEPTH)}
    assert len(from_dict(_PLAIN | {"where": where}).where.predicates) == 2 * MAX_DEPTH


def test_a_pattern_in_json_is_for_columns_of_text_only():
    """The meaning of LIKE is kept, which does not apply to dates."""
    select = parse_select("SELECT COUNT(*) FROM t WHERE day LIKE '2024-01-01%'")
    again = from_dict(select.to_dict())
    with pytest.raises(WhereError, match="column 'day' holds dates and cannot be compared with text"):
        bind_where(again.where, {"day": Kind.DATE})


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"items": ["a"]}, "'items' must be a tuple"),
        ({"items": "a"}, "'items' must be a tuple"),
        ({"items": ("a", "")}, r"'items\[1\]' must be a name"),
        ({"items": ("a", "b", "a")}, "twice"),
        ({"items": (), "k": 1}, "'k' needs items"),
        ({"measure": "rows"}, "'measure' must be a Measure"),
        ({"dataset": ""}, "'dataset' must be a name"),
        ({"k": 0}, "'k' must be a whole number of at least 1"),
        ({"k": 2.5}, "'k' must be a whole number"),
        ({"k": True}, "'k' must be a whole number"),
    ],
)
def test_the_python_form_has_the_same_rules(parts, words):
    """The dataclass itself validates its fields."""
    with pytest.raises(InputError, match=words):
        Select(**({"dataset": "t", "items": ("a",), "measure": _USERS} | parts))


def test_queries_are_values():
    """Frozen, hashable and equal by content; numbers of other libraries become Python's."""
    select = Select("t", ("a",), _USERS, parse_where("x = 1"), np.int64(3))
    assert type(select.k) is int
    assert {select: 1}[Select("t", ("a",), Measure("users", "member_id"), parse_where("x = 1"), 3)] == 1
    assert select != Select("t", ("a",), Measure("sum", "member_id"), parse_where("x = 1"), 3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        select.k = 4
