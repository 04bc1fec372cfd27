"""The filter language: accepted filters, and refused ones with their position."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from discreet.errors import WhereError
from discreet.head_request import And, Comparison, Constant, Kind, Not, Or
from discreet.query.parse_tree import MAX_WHERE_LENGTH
from discreet.query.predicates import MAX_TEXT_LENGTH, bind_where, parse_constant, read_pattern
from discreet.query.sql import parse_where
from tests.query.filters import constants, flattened, predicates, shown, written

_CASES = [line for line in Path(__file__).with_name("filters.txt").read_text("utf-8").splitlines() if line]
_READ = [tuple(line.split(" => ")) for line in _CASES if " => " in line and line[0] != "#"]
_REFUSED = [tuple(line.split(" !! ")) for line in _CASES if " !! " in line and line[0] != "#"]


def _characters(text):
    codes = re.compile(r"\\(n|t|\\|u[0-9a-f]{4}|U[0-9a-f]{8})")
    return codes.sub(lambda m: {"n": "\n", "t": "\t", "\\": "\\"}.get(m[1]) or chr(int(m[1][1:], 16)), text)


@pytest.mark.parametrize(("text", "read"), _READ)
def test_the_documented_grammar_is_read(text, read):
    """Each line of filters.txt with an arrow: operators, canonical constants, lists, ranges, precedence, names."""
    assert shown(parse_where(_characters(text))) == _characters(read)


@pytest.mark.parametrize(("text", "fault"), _REFUSED)
def test_everything_else_is_refused_with_its_position(text, fault):
    """Each line of filters.txt with two marks; positions count from 1 in the message and from 0 in the attribute."""
    position, _, words = fault.partition(" ")
    with pytest.raises(WhereError) as error:
        parse_where(_characters(text))
    assert words in str(error.value)
    assert error.value.position == (None if position == "-" else int(position) - 1)
    assert (f"at character {position}:" in str(error.value)) == (position != "-")


def test_the_table_of_cases_is_complete():
    """No line of filters.txt is ignored because of a typing error."""
    assert len(_READ) + len(_REFUSED) == len([line for line in _CASES if line[0] != "#"])
    assert len(_READ) > 50
    assert len(_REFUSED) > 90


@settings(max_examples=150)
@given(predicates())
@example(Comparison("x", "=", Constant(Kind.DECIMAL, "-0.5")))
def test_a_written_filter_is_read_back(predicate):
    """Random predicates are read back with nested ANDs and ORs flattened."""
    assert flattened(parse_where(written(predicate))) == flattened(predicate)


@settings(max_examples=150)
@given(st.text(max_size=60))
def test_random_text_is_read_or_refused(text):
    """No other error than WhereError is raised, and accepted text means the same when it is written again."""
    _read_or_refused(text)


_WORDS = "x y AND OR NOT IN BETWEEN IS NULL TRUE false DATE TIMESTAMP LIKE SELECT CASE ² ٣ ı ſ 1 0.5 007 1.0"
_MARKS = "( ) , = <> < <= > >= != - ; -- /* * + ' \" 'a' '' 'it''s' '2024-01-01' \"a\" \0 \n"
_SOUP = st.sampled_from([*_WORDS.split(), *_MARKS.split(" "), "'2024-01-01 00:00:00'"])


@settings(max_examples=300)
@given(st.lists(_SOUP, max_size=14), st.sampled_from([" ", "", "\n"]))
def test_random_tokens_are_read_or_refused(tokens, between):
    """Random tokens of the grammar."""
    _read_or_refused(between.join(tokens))


def _read_or_refused(text):
    try:
        predicate = parse_where(text)
    except WhereError as error:
        assert error.position is None or 0 <= error.position <= len(text)  # noqa: PT017 - either outcome is fine
    else:
        assert flattened(parse_where(written(predicate))) == flattened(predicate)


def test_adjacent_parentheses_do_not_count_as_nesting():
    """A thousand parentheses side by side are accepted."""
    predicate = parse_where(" OR ".join(["(x = 1)"] * 900))
    assert isinstance(predicate, Or)
    assert len(predicate.predicates) == 900


def test_length_is_limited():
    """10,000 characters are accepted, and one more is refused."""
    text = f"x = '{'a' * (MAX_WHERE_LENGTH - 6)}'"
    assert parse_where(text) == Comparison("x", "=", Constant(Kind.TEXT, "a" * (MAX_WHERE_LENGTH - 6)))
    with pytest.raises(WhereError, match="10,000 characters at most"):
        parse_where(f"{text} ")


def test_a_lone_surrogate_is_refused():
    """A lone surrogate is no text: no engine could receive it, and no key be derived from it."""
    for text in ("x = '\ud800'", '"\udcff" = 1'):
        with pytest.raises(WhereError):
            parse_where(text)


_EDGES = ["a", "b", "é", "\x01", "\x7f", "\x80", "\ud7ff", "\ue000", "\uffff", "\U00010000", "\U0010fffe", "\U0010ffff"]
_TEXTS = st.lists(st.sampled_from(_EDGES), max_size=4).map("".join)


def _holds(predicate, text):
    """Return whether text satisfies a predicate if text is compared by its bytes in UTF-8."""
    match predicate:
        case And(parts):
            return all(_holds(part, text) for part in parts)
        case Not(inner):
            return not _holds(inner, text)
        case Comparison(_, sign, constant):
            left, right = text.encode(), constant.text.encode()
            return {"=": left == right, ">=": left >= right, "<": left < right}[sign]


def _like(prefix):
    return read_pattern("x", f"{prefix}%")


@settings(max_examples=250)
@given(_TEXTS, _TEXTS)
def test_a_prefix_is_exactly_a_range_of_bytes(prefix, text):
    """Tested on characters where ranges end: ASCII, around the surrogates, the last code point."""
    for found in (text, prefix + text):
        assert _holds(_like(prefix), found) == found.startswith(prefix)
        assert _holds(read_pattern("x", prefix), found) == (found == prefix)


@pytest.mark.parametrize(
    "end",
    [
        lambda prefix: prefix + "\U0010ffff",
        lambda prefix: prefix + "\uffff",
        lambda prefix: prefix[:-1] + chr(min(ord(prefix[-1]) + 2, 0x10FFFF)),
        lambda prefix: prefix.upper() + "~",
        lambda prefix: "\U0010ffff" * (3 + len(prefix)),
    ],
)
def test_ranges_that_end_elsewhere_are_distinguished_by_these_characters(end):
    """Each wrong end of a range is detected by a text of at most three of these characters."""
    texts = ["".join(text) for length in (1, 2, 3) for text in itertools.product(_EDGES, repeat=length)]
    assert any((prefix <= text < end(prefix)) != text.startswith(prefix) for prefix in _EDGES for text in texts)


def test_patterns_are_for_columns_of_text():
    """A date is compared with text that can be read as one, but has no LIKE."""
    for pattern in ("a%", "2024-01-01", "2024-01-01%", "%", ""):
        asked = parse_where(f"x LIKE '{pattern}'")
        for kind in (Kind.TEXT, Kind.UNTYPED):
            assert bind_where(asked, {"x": kind}) == asked
        for kind in set(Kind) - {Kind.TEXT, Kind.UNTYPED}:
            for predicate in (asked, Not(asked)):
                with pytest.raises(WhereError, match=r"column 'x' holds"):
                    bind_where(predicate, {"x": kind})


@pytest.mark.parametrize("kind", [Kind.TEXT, Kind.INTEGER, Kind.DECIMAL, Kind.BOOLEAN, Kind.DATE, Kind.TIMESTAMP])
@settings(max_examples=100)
@given(constants())
def test_constants_are_read_back_from_their_text(kind, constant):
    """Every constant is read from its own text, and as no other kind but text."""
    if kind is constant.kind or kind is Kind.TEXT:
        assert parse_constant(kind, constant.text) == Constant(kind, constant.text)
    elif constant.kind is not Kind.TEXT:
        with pytest.raises(WhereError):
            parse_constant(kind, constant.text)


@pytest.mark.parametrize(
    ("kind", "text", "read"),
    [
        (Kind.INTEGER, "007", "7"),
        (Kind.INTEGER, "2.0", "2"),
        (Kind.DECIMAL, ".50", "0.5"),
        (Kind.BOOLEAN, "TRUE", "true"),
        (Kind.TIMESTAMP, "2025-01-31T12:00:00", "2025-01-31 12:00:00"),
        (Kind.TEXT, "' OR 1 = 1 --", "' OR 1 = 1 --"),
    ],
)
def test_constants_are_parsed_to_their_canonical_form(kind, text, read):
    """The same value in another spelling is the same constant."""
    assert parse_constant(kind, text) == Constant(kind, read)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Kind.INTEGER, ""),
        (Kind.INTEGER, "1 OR 1 = 1"),
        (Kind.INTEGER, "1.5"),
        (Kind.DECIMAL, "1"),
        (Kind.BOOLEAN, "null"),
        (Kind.DATE, "2025-01-31' OR x = '1"),
        (Kind.DATE, "2025-02-30"),
        (Kind.TIMESTAMP, "2025-01-31"),
        (Kind.TEXT, "\0"),
        (Kind.TEXT, "\ud800"),
        (Kind.TEXT, "a" * (MAX_TEXT_LENGTH + 1)),
    ],
)
def test_invalid_constants_are_refused(kind, text):
    """Other kinds, several constants, and text that no engine could receive."""
    with pytest.raises(WhereError):
        parse_constant(kind, text)
