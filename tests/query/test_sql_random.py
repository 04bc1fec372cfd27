"""Random statements: written queries are read back, and any text is read or refused."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from discreet.errors import SQLError, WhereError
from discreet.head_request import And, Not, Or
from discreet.query.parse_tree import MAX_DEPTH
from discreet.query.query import Measure, Select
from discreet.query.sql import parse_select
from tests.query.filters import NAMES, flattened, predicates, quoted, written
from tests.query.test_sql import READ, REFUSED, characters

_BARE = {"x", "y", "größe", "_a1", "date", "timestamp", "Country", "count", "sum"}
_COLUMNS = st.sampled_from(sorted(_BARE)) | NAMES
_SPACES = st.sampled_from([" ", "  ", "\n", "\t", "\r\n", " \n\t"])
_CASES = st.sampled_from([str.upper, str.lower, str.title, str.swapcase])


def _selects():
    measures = st.builds(Measure, st.just("rows")) | st.builds(
        Measure, st.sampled_from(["users", "sum", "average"]), _COLUMNS
    )
    return st.builds(
        lambda schema, table, items, measure, where, k: Select(
            schema + table, tuple(items), measure, where, k if items else None
        ),
        st.sampled_from(["", "shop.", "my shop."]),
        st.sampled_from(["t", "Engagements", "my table", 'a"b']),
        st.lists(_COLUMNS, max_size=3, unique=True),
        measures,
        st.none() | predicates(_COLUMNS),
        st.none() | st.integers(1, 10**6),
    )


def _depth(predicate):
    match predicate:
        case Not(inner):
            return 2 + _depth(inner)
        case And(parts) | Or(parts):
            return 1 + max(map(_depth, parts))
    return 0


class _Writer:
    """Writes a query in a random spelling."""

    def __init__(self, draw, select):
        self.draw = draw
        self.select = select
        self.alias = draw(st.none() | st.sampled_from(["n", "N 1", "how many", "größer"]))
        self.table_alias = draw(st.sampled_from([None, "e", "the table"]))

    def statement(self):
        select = self.select
        aggregate = self.draw(st.integers(0, len(select.items)))
        listed = [self.column(item) for item in select.items]
        listed.insert(aggregate, self.measure() + self.named(self.alias))
        parts = [self.word("SELECT"), ", ".join(listed), self.word("FROM"), self.table()]
        if select.where is not None:
            where = written(select.where, self.column)
            parts += [self.word("WHERE"), f"({where})" if self.draw(st.booleans()) else where]
        if select.items:
            parts += [self.word("GROUP"), self.word("BY"), ", ".join(self.groups(aggregate))]
            if select.measure.kind in {"users", "rows"} and self.draw(st.booleans()):
                parts += [self.word("ORDER"), self.word("BY"), self.largest(aggregate), self.word("DESC")]
        if select.k is not None:
            parts += [self.word("LIMIT"), str(select.k)]
        parts.append(self.draw(st.sampled_from(["", ";", " ; "])))
        return "".join(part + self.draw(_SPACES) for part in parts)

    def word(self, word):
        return self.draw(_CASES)(word)

    def name(self, name):
        return name if name in _BARE and self.draw(st.booleans()) else quoted(name)

    def column(self, name):
        table = self.select.dataset.rpartition(".")[2]
        tables = [table] if self.table_alias is None else [table, self.table_alias, self.table_alias.upper()]
        qualifier = self.draw(st.sampled_from([None, *tables]))
        return self.name(name) if qualifier is None else f"{quoted(qualifier)}.{self.name(name)}"

    def named(self, alias):
        if alias is None:
            return ""
        word = self.word("AS") + " " if self.draw(st.booleans()) else ""
        return f" {word}{quoted(alias)}"

    def table(self):
        return ".".join(map(quoted, self.select.dataset.split("."))) + self.named(self.table_alias)

    def measure(self):
        match self.select.measure:
            case Measure("rows"):
                return f"{self.word('COUNT')}{self.draw(st.sampled_from(['(*)', ' ( * )']))}"
            case Measure("users", column):
                return f"{self.word('COUNT')}({self.word('DISTINCT')} {self.column(column)})"
            case Measure(kind, column):
                return f"{self.word({'sum': 'SUM', 'average': 'AVG'}[kind])}( {self.column(column)})"

    def groups(self, aggregate):
        places = [place if place < aggregate else place + 1 for place in range(len(self.select.items))]
        names = self.draw(st.permutations(list(zip(self.select.items, places, strict=True))))
        return [str(place + 1) if self.draw(st.booleans()) else self.column(name) for name, place in names]

    def largest(self, aggregate):
        ways = [str(aggregate + 1), self.measure()]
        if self.alias is not None:
            ways += [quoted(self.alias), quoted(self.alias.upper())]
        return self.draw(st.sampled_from(ways))


@settings(max_examples=150)
@given(st.data(), _selects())
def test_a_written_query_is_read_back(data, select):
    """A random query in a random spelling: case, quotes, spaces, qualified names, numbers, names, parentheses."""
    assume(select.where is None or _depth(select.where) < MAX_DEPTH)
    text = _Writer(data.draw, select).statement()
    read = parse_select(text)
    where = None if select.where is None else flattened(select.where)
    assert replace(read, where=None if read.where is None else flattened(read.where)) == replace(select, where=where)


_WORDS = """SELECT FROM WHERE GROUP BY ORDER LIMIT DESC ASC AS AND OR NOT IN IS NULL LIKE BETWEEN COUNT SUM AVG DISTINCT
    DATE TIMESTAMP TRUE JOIN ON UNION ALL HAVING WITH OVER CASE WHEN END CAST INTERVAL OFFSET FETCH TOP VALUES EXISTS
    STRUCT ARRAY MAP FILTER PIVOT LATERAL UNNEST WINDOW ROWS TABLE USING SET INTO FOR IF ANY a b t x n e ı ſ"""
_MARKS = (
    "( ) ( ) , , . ; * = <> < <= > >= != - + / % ? : @ $1 [ ] { } 'a' '' 'it''s' 'a%' \" \"a\" ` ' -- /* */ 1 2 0.5 1e5"
)
_TOKENS = st.sampled_from([*_WORDS.split(), *_MARKS.split(), "COUNT(*)", "GROUP BY", "'2024-01-01'", "\n", "\0", "🙂"])
_STATEMENTS = [characters(text) for text, _ in READ]
_ALL = _STATEMENTS + [characters(case[0]).replace("¦", "") for case in REFUSED]


def _read_or_refused(text):
    """Check that text is refused with a position, or read and read again from its simplest spelling."""
    try:
        select = parse_select(text)
    except (SQLError, WhereError) as error:
        assert error.position is None or 0 <= error.position <= len(text)  # noqa: PT017 - either outcome is fine
        return False
    again = parse_select(_plain(select))
    assert replace(again, dataset=select.dataset, where=None) == replace(select, where=None)
    assert (select.where is None) == (again.where is None)
    assert select.where is None or flattened(again.where) == flattened(select.where)
    return True


def _plain(select):
    """Return a statement of *select* with everything quoted."""
    named = {"users": "COUNT(DISTINCT {})", "rows": "COUNT(*)", "sum": "SUM({})", "average": "AVG({})"}
    measure = named[select.measure.kind].format(quoted(select.measure.column or ""))
    where = "" if select.where is None else f" WHERE {written(select.where, quoted)}"
    places = ", ".join(str(place) for place in range(1, len(select.items) + 1))
    groups = f" GROUP BY {places}" if places else ""
    limit = "" if select.k is None else f" LIMIT {select.k}"
    return f"SELECT {', '.join([*map(quoted, select.items), measure])} FROM t{where}{groups}{limit}"


@settings(max_examples=250)
@given(
    st.sampled_from(["", "SELECT ", "SELECT COUNT(*) FROM t ", "SELECT COUNT(*) FROM t WHERE "]),
    st.lists(_TOKENS, max_size=12),
    st.sampled_from([" ", ""]),
)
def test_random_tokens_are_read_or_refused(opening, tokens, between):
    """Random tokens of SQL raise no other error."""
    _read_or_refused(opening + between.join(tokens))


def _parts(text):
    return re.findall(r"\w+|'[^']*'|\"[^\"]*\"|\s+|.", text, re.DOTALL)


@st.composite
def _spoiled(draw):
    """Return a statement with a few parts dropped, doubled, replaced, swapped, or taken from another."""
    parts = _parts(draw(st.sampled_from(_ALL)))
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, max(len(parts) - 1, 0)))
        change = draw(st.sampled_from(["drop", "double", "replace", "insert", "swap", "graft"]))
        if change == "drop":
            del parts[place : place + 1]
        elif change == "double":
            parts[place:place] = parts[place : place + 2]
        elif change == "swap":
            parts[place : place + 3] = parts[place : place + 3][::-1]
        elif change == "graft":
            parts[place:] = _parts(draw(st.sampled_from(_ALL)))[place:]
        else:
            parts[place : place + (change == "replace")] = [" ", draw(_TOKENS), " "]
    return "".join(parts)


@settings(max_examples=250)
@given(_spoiled())
def test_changed_statements_are_read_or_refused(text):
    """Statements of the table with one to three random changes."""
    _read_or_refused(text)


@settings(max_examples=150)
@given(st.sampled_from(_STATEMENTS), st.integers(0, 200), st.characters() | st.none())
def test_statements_with_another_character_are_read_or_refused(text, place, character):
    """One character is replaced by any other, or removed."""
    _read_or_refused(text[:place] + (character or "") + text[place + 1 :])


def test_some_changed_statements_are_read():
    """Otherwise the tests above would test refusals only."""
    read = [
        _read_or_refused(text[:place] + text[place + 1 :]) for text in _STATEMENTS[::7] for place in range(len(text))
    ]
    assert sum(read) > len(read) // 10


@pytest.mark.parametrize("place", range(len(_STATEMENTS)))
def test_a_truncated_statement_is_read_or_refused(place):
    """The statement is truncated after each of its parts."""
    parts = _parts(_STATEMENTS[place])
    for length in range(len(parts)):
        _read_or_refused("".join(parts[:length]))
