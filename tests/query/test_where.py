"""The filter language: what is read, what is refused and where, and that nothing else can happen."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from discreet.errors import WhereError
from discreet.query.where import DEEPEST, LONGEST, parse_where
from discreet.question import Comparison, Constant, Every, Kind, Membership, Missing, Not, Some

_CASES = [line for line in Path(__file__).with_name("filters.txt").read_text("utf-8").splitlines() if line]
_READ = [tuple(line.split(" => ")) for line in _CASES if " => " in line and line[0] != "#"]
_REFUSED = [tuple(line.split(" !! ")) for line in _CASES if " !! " in line and line[0] != "#"]
_BARE = {"x", "größe", "_a1", "date", "timestamp", "order"}
_NAMES = st.sampled_from([*_BARE, "select", "TRUE", "a b", 'a"b', "'", "1", "--"]) | st.text(min_size=1, max_size=5)
_DATES = ["0001-01-01", "1969-12-31", "2024-02-29", "9999-12-31"]


def _characters(text):
    return re.sub(r"\\(n|t|u[0-9a-f]{4})", lambda m: {"n": "\n", "t": "\t"}.get(m[1]) or chr(int(m[1][1:], 16)), text)


def _shown(predicate):
    match predicate:
        case Comparison(column, sign, constant):
            return f"[{column} {sign} {constant.kind.name} {constant.text}]"
        case Membership(column, constants):
            return f"[{column} IN {', '.join(f'{c.kind.name} {c.text}' for c in constants)}]"
        case Missing(column):
            return f"[{column} IS NULL]"
        case Not(inner):
            return f"[NOT {_shown(inner)}]"
        case Every(parts) | Some(parts):
            return "[" + f" {'AND' if isinstance(predicate, Every) else 'OR'} ".join(map(_shown, parts)) + "]"


def _written(predicate):
    """*predicate* as a filter, with all the parentheses it could have."""
    match predicate:
        case Comparison(column, sign, constant):
            return f"{_named(column)} {sign} {_literal(constant)}"
        case Membership(column, constants):
            return f"{_named(column)} IN ({', '.join(map(_literal, constants))})"
        case Missing(column):
            return f"{_named(column)} IS NULL"
        case Not(inner):
            return f"NOT ({_written(inner)})"
        case Every(parts) | Some(parts):
            return (" AND " if isinstance(predicate, Every) else " OR ").join(f"({_written(part)})" for part in parts)


def _named(column):
    return column if column in _BARE else '"' + column.replace('"', '""') + '"'


def _literal(constant):
    if constant.kind in {Kind.DATE, Kind.TIMESTAMP}:
        return f"{constant.kind.name} '{constant.text}'"
    return "'" + constant.text.replace("'", "''") + "'" if constant.kind is Kind.TEXT else constant.text


def _constants():
    whole = st.integers(-(10**37) + 1, 10**37 - 1)
    parts = st.tuples(st.sampled_from(["", "-"]), st.integers(0, 10**20), st.integers(1, 9), st.integers(0, 10**14))
    return (
        st.builds(Constant, st.just(Kind.TEXT), st.text(max_size=8))
        | st.builds(Constant, st.just(Kind.INTEGER), whole.map(str))
        | st.builds(
            Constant, st.just(Kind.DECIMAL), parts.map(lambda p: f"{p[0]}{p[1]}.{p[3]:015d}".rstrip("0") + str(p[2]))
        )
        | st.builds(Constant, st.just(Kind.BOOLEAN), st.sampled_from(["true", "false"]))
        | st.builds(Constant, st.just(Kind.DATE), st.sampled_from(_DATES))
        | st.builds(
            Constant,
            st.just(Kind.TIMESTAMP),
            st.tuples(st.sampled_from(_DATES), st.sampled_from(["00:00:00", "23:59:59.999999"])).map(" ".join),
        )
    )


def _predicates():
    signs = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])
    leaf = (
        st.builds(Comparison, _NAMES, signs, _constants())
        | st.builds(Membership, _NAMES, st.lists(_constants(), min_size=1, max_size=3).map(tuple))
        | st.builds(Missing, _NAMES)
    )

    def compound(inner):
        several = st.lists(inner, min_size=2, max_size=3).map(tuple)
        return st.builds(Not, inner) | st.builds(Every, several) | st.builds(Some, several)

    return st.recursive(leaf, compound, max_leaves=10)


@pytest.mark.parametrize(("text", "shown"), _READ)
def test_the_grammar_is_read_as_it_says(text, shown):
    """Each line of filters.txt with an arrow: operators, canonical constants, lists, ranges, precedence, names."""
    assert _shown(parse_where(_characters(text))) == shown


@pytest.mark.parametrize(("text", "fault"), _REFUSED)
def test_whatever_else_is_refused_where_it_stands(text, fault):
    """Each line of filters.txt with two marks: the position counts from 1 in the message, from 0 in the attribute."""
    position, _, words = fault.partition(" ")
    with pytest.raises(WhereError) as error:
        parse_where(_characters(text))
    assert words in str(error.value)
    assert error.value.position == (None if position == "-" else int(position) - 1)
    assert (f"at character {position}:" in str(error.value)) == (position != "-")


def test_the_table_of_cases_is_whole():
    """No line of filters.txt is lost to a typing error."""
    assert len(_READ) + len(_REFUSED) == len([line for line in _CASES if line[0] != "#"])
    assert len(_READ) > 50
    assert len(_REFUSED) > 100


@settings(max_examples=300)
@given(_predicates())
@example(Comparison("x", "=", Constant(Kind.DECIMAL, "-0.5")))
def test_what_is_written_is_read_back(predicate):
    """Random predicates, written out, are read as the same values: nothing is merged, reordered or changed."""
    assert parse_where(_written(predicate)) == predicate


@settings(max_examples=300)
@given(st.text(max_size=60))
def test_random_text_is_read_or_refused(text):
    """No other error than WhereError; what is accepted means the same when it is written out."""
    _read_or_refused(text)


_WORDS = "x y AND OR NOT IN BETWEEN IS NULL TRUE false DATE TIMESTAMP LIKE SELECT CASE ² ٣ ı ſ 1 0.5 007 1.0"
_MARKS = "( ) , = <> < <= > >= != - ; -- /* * + ' \" 'a' '' 'it''s' '2024-01-01' \"a\" \0 \n"
_SOUP = st.sampled_from([*_WORDS.split(), *_MARKS.split(" "), "'2024-01-01 00:00:00'"])


@settings(max_examples=600)
@given(st.lists(_SOUP, max_size=14), st.sampled_from([" ", "", "\n"]))
def test_random_tokens_are_read_or_refused(tokens, between):
    """Soup of the grammar's own words."""
    _read_or_refused(between.join(tokens))


def _read_or_refused(text):
    try:
        predicate = parse_where(text)
    except WhereError as error:
        assert error.position is None or 0 <= error.position <= len(text)  # noqa: PT017 - either outcome is fine
    else:
        assert parse_where(_written(predicate)) == predicate


@pytest.mark.parametrize("opening", ["(", "NOT ", "NOT ("])
def test_nesting_is_limited(opening):
    """As deep as the message says, and not one deeper; NOT ( is two."""
    times = DEEPEST // len(opening.split())
    closing = ")" if "(" in opening else ""
    parse_where(opening * times + "x = 1" + closing * times)
    with pytest.raises(WhereError, match="nested 50 deep at most") as error:
        parse_where(opening * (times + 1) + "x = 1" + closing * (times + 1))
    assert error.value.position >= times * len(opening)


def test_neighbours_do_not_count_as_nesting():
    """A thousand parentheses side by side are not deep."""
    predicate = parse_where(" OR ".join(["(x = 1)"] * 900))
    assert isinstance(predicate, Some)
    assert len(predicate.predicates) == 900


def test_length_is_limited():
    """10,000 characters, not one more."""
    text = f"x = '{'a' * (LONGEST - 6)}'"
    assert parse_where(text) == Comparison("x", "=", Constant(Kind.TEXT, "a" * (LONGEST - 6)))
    with pytest.raises(WhereError, match="10,000 characters at most"):
        parse_where(f"{text} ")


@pytest.mark.parametrize("part", ["(", "NOT ", "- ", "''", '"', "x=1 AND ", "x IN (", "DATE ", "=", "\\", "\0"])
def test_long_nonsense_is_refused(part):
    """As much of one thing as may be sent at all: refused, without running out of stack."""
    with pytest.raises(WhereError):
        parse_where(("x = " if part == "- " else "") + part * (9_990 // len(part)))


def test_half_a_character_is_refused():
    """A lone surrogate is no text: no engine could be sent it, and no key derived from it."""
    for text in ("x = '\ud800'", '"\udcff" = 1'):
        with pytest.raises(WhereError):
            parse_where(text)
