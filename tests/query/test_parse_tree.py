"""The allow-list of DuckDB's parse tree: other nodes are refused, and hostile text does not reach the parser."""

from __future__ import annotations

import contextlib
import copy
import os
import subprocess
import sys
import threading

import duckdb
import pytest

from discreet.errors import SQLError, WhereError
from discreet.query.parse_tree import MAX_DEPTH, MAX_LENGTH, parse_statement
from discreet.query.query import Measure, Select
from discreet.query.sql import SelectReader, parse_select, parse_where

_STATEMENT = (
    "SELECT e.a, COUNT(DISTINCT u) AS n FROM s.t AS e WHERE (x = -1.50 OR NOT y IN ('b', TRUE)) AND z BETWEEN 1 AND 2 "
    "AND d >= DATE '2024-01-01' AND q LIKE 'a%' AND w IS NOT NULL AND v IS NULL AND 1 < k AND 2 <> k AND k <= 3 "
    "AND k > 4 GROUP BY 1 ORDER BY n DESC LIMIT 10"
)
_LOCATIONS = {"query_location", "query_location_length"}


def _parts(tree):
    """Return all objects of a tree, each with its path from the root."""
    pending = [((), tree)]
    while pending:
        path, part = pending.pop()
        if isinstance(part, dict):
            yield path
        if isinstance(part, dict | list):
            pending += [((*path, key), part[key]) for key in (part if isinstance(part, dict) else range(len(part)))]


def _changed(path, change):
    """Return the statement's tree with the object at *path* changed."""
    tree = copy.deepcopy(_TREE)
    part = tree
    for key in path:
        part = part[key]
    change(part)
    return tree


def _refused(tree):
    try:
        SelectReader(_STATEMENT).read(tree)
    except (SQLError, WhereError):
        return True
    return False


_TREE = parse_statement(_STATEMENT)
_PATHS = list(_parts(_TREE))


def test_the_statement_that_these_tests_change_is_allowed():
    """The tests below depend on it."""
    assert not _refused(_TREE)
    assert len(_PATHS) > 50


@pytest.mark.parametrize("path", _PATHS, ids=str)
def test_a_key_that_is_not_listed_is_refused(path):
    """A new DuckDB version with another key in a node is refused, so that nothing is ignored."""
    assert _refused(_changed(path, lambda part: part.update(new_key=None)))


@pytest.mark.parametrize("path", _PATHS, ids=str)
def test_a_key_that_is_missing_is_refused(path):
    """Every key of every object is required, except for locations."""
    part = _TREE
    for key in path:
        part = part[key]
    for missing in part.keys() - _LOCATIONS:
        assert _refused(_changed(path, lambda part, missing=missing: part.pop(missing))), missing


@pytest.mark.parametrize("path", _PATHS, ids=str)
def test_another_value_is_refused_or_read_as_another_query(path):
    """No value is ignored, except for locations."""
    part = _TREE
    for key in path:
        part = part[key]
    for key, value in part.items():
        if key in _LOCATIONS or (isinstance(value, dict | list) and value):
            continue
        for other in ("UNKNOWN", True, [{"type": "UNKNOWN"}], {"type": "UNKNOWN"}):
            if other == value:
                continue
            tree = _changed(path, lambda part, key=key, other=other: part.update({key: other}))
            try:
                same = SelectReader(_STATEMENT).read(tree) == parse_select(_STATEMENT)
            except (SQLError, WhereError, TypeError, ValueError, AttributeError):
                same = False
            assert not same, (key, other)


@pytest.mark.parametrize(
    "text",
    [
        "DROP TABLE t",
        "COPY t TO 'x'",
        "ATTACH 'x'",
        "INSTALL httpfs",
        "SET threads = 1",
        "PRAGMA version",
        "EXPLAIN SELECT 1",
        "SELECT COUNT(*) FROM t; DROP TABLE t",
        "SELECT COUNT(*) FROM t; SELECT COUNT(*) FROM t",
        ";",
    ],
)
def test_only_a_single_select_is_parsed(text):
    """Other statements have no tree, and none is executed."""
    with pytest.raises(SQLError, match="exactly one SELECT is allowed"):
        parse_statement(text)


@pytest.mark.parametrize("text", ["x = '\u00a0\u200b'", "x = ' '", "\"größe\" = '😀'"])
def test_text_and_names_are_kept_to_the_character(text):
    """DuckDB replaces some Unicode spaces outside of quotes; text in quotes is unchanged."""
    written = parse_where(text)
    assert (written.column, written.constant.text) == (text.split(" = ")[0].strip('"'), text.split(" = ")[1].strip("'"))


_WORDS = """( f( STRUCT( COUNT( NOT_ -_ CASE_ CASE_WHEN_( x, x. SELECT_ (SELECT_ '' " [ a_ x_=_1_AND_ x_IN_( 1,
GROUP_BY_ LIMIT_ ; IF( INTERVAL_ CAST( \\ @ +_ x_<_ x_-_ NOT_x_=_1_AND_( x_BETWEEN_ EXISTS_(SELECT_ UNION_SELECT_
WITH_x_AS_( =* -( ! x_=_-( CASE_WHEN_x_THEN_ DISTINCT_ x_JOIN_ FROM_t_ x_LIKE_ x_IS_NULL_"""
_UNITS = [unit.replace("_", " ") for unit in _WORDS.split()]
_LONG = """
import pathlib, re, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))  # a failure here must not take the machine with it
from discreet.errors import InputError
from discreet.query.parse_tree import MAX_LENGTH
from discreet.query.sql import parse_select
for opening in ("", "SELECT ", "SELECT a, COUNT(*) FROM ", "SELECT COUNT(*) FROM t WHERE "):
    for unit in {units!r}:
        try:
            parse_select(opening + unit * ((MAX_LENGTH - len(opening)) // len(unit)))
        except InputError:
            continue
        sys.exit(f"{{opening!r}} {{unit!r}} was read")
print(int(re.search(r"VmHWM:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1]) // 1024)
"""


def test_long_invalid_text_is_refused_within_bounded_memory():
    """DuckDB's parser alone would need gigabytes for 20,000 parentheses."""
    script = _LONG.format(units=_UNITS)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120, env=os.environ
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 300


@pytest.mark.parametrize("closing", [")", ""])
@pytest.mark.parametrize("opening", ["(", "NOT (", "-(", "f(", "(x, (", "CASE WHEN (", "(SELECT ", "x IN ("])
def test_the_deepest_text_is_parsed_or_refused(opening, closing):
    """The most parentheses that reach the parser, closed or not; one more is refused."""
    times = MAX_DEPTH // opening.count("(")
    deepest, deeper = (opening * n + "x = 1" + closing * n * opening.count("(") for n in (times, times + 1))
    with contextlib.suppress(WhereError):
        parse_where(deepest)
    with pytest.raises(WhereError, match="parentheses may be nested 50 deep at most"):
        parse_where(deeper)


def test_concurrent_threads_parse_independently():
    """Threads share one connection, and each gets its own tree."""
    wrong = []

    def run(number):
        for k in range(1, 40):
            text = f"SELECT a{number}, COUNT(*) FROM t WHERE x = {k} GROUP BY 1 LIMIT {k}"
            if parse_select(text) != Select("t", (f"a{number}",), Measure("rows"), parse_where(f"x = {k}"), k):
                wrong.append(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_parser_cannot_reach_files():
    """The parser's configuration is locked, without access to files or extensions."""
    from discreet.query.parse_tree import _connection

    for statement in ("SELECT * FROM 'x.csv'", "SET enable_external_access = true", "INSTALL httpfs", "ATTACH 'x.db'"):
        with pytest.raises(duckdb.Error, match="configuration"):
            _connection().cursor().execute(statement)


def test_the_library_is_imported_without_duckdb():
    """DuckDB is loaded when the first statement is parsed."""
    program = (
        "import sys, discreet, discreet.query.sql\n"
        "assert 'duckdb' not in sys.modules\n"
        "discreet.query.sql.parse_select('SELECT COUNT(*) FROM t')\n"
        "assert 'duckdb' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)


def test_length_is_limited_before_parsing():
    """20,000 characters are parsed, and one more is refused."""
    name = "a" * (MAX_LENGTH - len("SELECT COUNT(*) FROM "))
    assert parse_select(f"SELECT COUNT(*) FROM {name}").dataset == name
    with pytest.raises(SQLError, match=r"it may have 20,000 characters at most"):
        parse_select(f"SELECT COUNT(*) FROM {name}a")
