"""SQL statements: accepted ones, and refused ones with their position."""

from __future__ import annotations

import inspect
import json
import logging
import re
import sys
from pathlib import Path

import pytest

from discreet.errors import SQLError, WhereError
from discreet.head_request import Constant, Kind, Membership
from discreet.query.json import from_dict
from discreet.query.parse_tree import MAX_DEPTH, MAX_TREE_DEPTH
from discreet.query.query import Measure, Select
from discreet.query.saved import SavedPart, SavedTable
from discreet.query.sql import parse_select
from discreet.query.statement import split_statement
from tests.query.filters import shown

_LINES = Path(__file__).with_name("statements.txt").read_text("utf-8").splitlines()
CASES = [line for line in _LINES if line and line[0] != "#"]
READ = [tuple(line.split(" => ")) for line in CASES if " => " in line]
REFUSED = [
    (*line.split(f" {sign} "), error)
    for sign, error in (("!!", SQLError), ("??", WhereError))
    for line in CASES
    if f" {sign} " in line
]


def characters(text):
    """Return a line with its escapes replaced by characters."""
    codes = re.compile(r"\\(n|t|\\|u[0-9a-f]{4}|U[0-9a-f]{8})")
    return codes.sub(lambda m: {"n": "\n", "t": "\t", "\\": "\\"}.get(m[1]) or chr(int(m[1][1:], 16)), text)


def _shown(select):
    where = "-" if select.where is None else shown(select.where)
    measure = f"{select.measure.kind} {select.measure.column or '-'}"
    return "; ".join([select.dataset, ", ".join(select.items) or "-", measure, where, str(select.k or "-")])


@pytest.mark.parametrize(("text", "read"), READ)
def test_the_documented_language_is_read(text, read):
    """Each line of statements.txt with an arrow: every clause in every spelling."""
    assert _shown(parse_select(characters(text))) == characters(read)


@pytest.mark.parametrize(("text", "words", "error"), REFUSED)
def test_everything_else_is_refused_with_its_position(text, words, error, caplog):
    """Each line with two marks: the kind of error and its position; nothing is logged."""
    before, mark, behind = characters(text).partition("¦")
    with caplog.at_level(logging.DEBUG), pytest.raises(error) as refusal:
        parse_select(before + behind)
    assert words in str(refusal.value)
    assert refusal.value.position == (len(before) if mark else None)
    assert (f" at character {len(before) + 1}:" in str(refusal.value)) == bool(mark)
    assert not caplog.records


def test_the_table_of_cases_is_complete():
    """No line of statements.txt is ignored because of a typing error."""
    assert len(READ) + len(REFUSED) == len(CASES)
    assert len(READ) > 60
    assert len(REFUSED) > 200
    assert len(set(CASES)) == len(CASES)


def test_a_statement_becomes_a_query_value():
    """The complete example of the documentation."""
    text = """
        SELECT article, COUNT(DISTINCT member_id) AS readers
        FROM public.engagements WHERE country IN ('IN', 'LK')
        GROUP BY article ORDER BY readers DESC LIMIT 10
    """
    countries = Membership("country", (Constant(Kind.TEXT, "IN"), Constant(Kind.TEXT, "LK")))
    assert parse_select(text) == Select(
        "public.engagements", ("article",), Measure("users", "member_id"), countries, 10
    )


@pytest.mark.parametrize(
    ("opening", "times"), [("(", MAX_DEPTH), ("NOT ", MAX_TREE_DEPTH), ("NOT (", MAX_DEPTH), ("NOT NOT (", MAX_DEPTH)]
)
def test_nesting_is_limited(opening, times):
    """The limit is that of the message, and one level more is refused."""
    closing = ")" if "(" in opening else ""
    deepest, deeper = (f"SELECT COUNT(*) FROM t WHERE {opening * n}x = 1{closing * n}" for n in (times, times + 1))
    parse_select(deepest)
    with pytest.raises((SQLError, WhereError), match=f"nested {times} deep at most"):
        parse_select(deeper)


def test_the_deepest_statement_fits_on_the_stack_of_a_server():
    """A caller may have used half of the stack already."""
    statement = "SELECT COUNT(*) FROM t WHERE " + "NOT (" * MAX_DEPTH + "x BETWEEN -1 AND -2" + ")" * MAX_DEPTH
    free = sys.getrecursionlimit() - len(inspect.stack(0))

    def call(frames):
        return parse_select(statement) if frames == 0 else call(frames - 1)

    assert call(free // 2).dataset == "t"


def test_a_lone_surrogate_is_refused():
    """A lone surrogate is no text: no engine could receive it, and no key be derived from it."""
    for text in ('SELECT COUNT(*) FROM "\ud800"', "SELECT COUNT(*) FROM t WHERE x = '\udcff'"):
        with pytest.raises(SQLError, match="half a character"):
            parse_select(text)


_PAGE = (Path(__file__).parents[2] / "docs" / "sql.md").read_text("utf-8")


def _blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", _PAGE, re.MULTILINE | re.DOTALL)


def test_the_statements_of_the_page_are_read():
    """The first query is in JSON too; the statement of quantiles needs the bins of a catalog."""
    *queries, percent, sets, coverage, quantiles, intervals, everything_else, negated = _blocks("sql")
    questions = [parse_select(text) for text in (*queries, negated)]
    assert len(questions) == 6
    assert [len(split_statement(statement).leaves) for statement in (percent, intervals, everything_else)] == [1, 2, 2]
    assert [len(leaf.items) for leaf in split_statement(sets).leaves] == [0, 1, 2]
    levels = {"levels": SavedTable((SavedPart(sets, "2026-11-24"),), view=True)}
    assert len(split_statement(coverage, saved=levels).leaves) == 3
    with pytest.raises(SQLError, match="quantiles need a catalog"):
        split_statement(quantiles)
    assert from_dict(json.loads(_blocks("json")[0])) == questions[0]


def test_the_nested_filters_of_the_page_are_read():
    """Every shape that the page lists."""
    shapes = re.findall(r"^{.*?}(?=  |$)", _blocks("text")[1], re.MULTILINE)
    filters = [json.loads(shape.replace("{...}", '{"column": "x", "missing": true}')) for shape in shapes]
    question = {"dataset": "t", "items": [], "measure": {"kind": "rows"}}
    assert len({type(from_dict(question | {"where": where}).where) for where in filters}) == 6


@pytest.mark.parametrize("text", _blocks("text")[2].splitlines())
def test_the_refused_statements_of_the_page_are_refused(text):
    """None of them is read."""
    with pytest.raises((SQLError, WhereError)) as error:
        parse_select(text)
    assert error.value.position is None or error.value.position >= 0


def test_the_example_in_python_runs():
    """The example of the page runs unchanged."""
    exec(compile(_blocks("python")[0], "sql.md", "exec"), {})  # noqa: S102 - the page's own words
