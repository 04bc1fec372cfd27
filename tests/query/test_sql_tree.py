"""The second reading of statements: every node and argument must be known, and it agrees with the first."""

from __future__ import annotations

import inspect

import pytest
from sqlglot import exp, parse_one

from discreet.errors import SQLError
from discreet.query import tree
from discreet.query.sql import parse_select
from discreet.query.tree import TREE, check_nodes, check_tree
from tests.query.sqlglot_reading import read_with_sqlglot
from tests.query.test_sql import READ, REFUSED, characters

_STATEMENT = (
    "SELECT a, COUNT(DISTINCT u) AS n FROM s.t AS e WHERE x = -1 AND NOT (y IN ('b')) GROUP BY a ORDER BY n DESC"
)
_NODES = list(parse_one(_STATEMENT).walk())
_PLACES = {(type(node.parent), node.arg_key): place for place, node in enumerate(_NODES)}.values()  # of each kind one
_CLASSES = {found for _, found in inspect.getmembers(exp, inspect.isclass) if issubclass(found, exp.Expression)}
_READ = [characters(text) for text, _ in READ]


def _refused(statement):
    try:
        check_nodes(statement)
    except SQLError:
        return True
    return False


def test_these_tests_run_over_something():
    """The statement they spoil is allowed as it stands, and SQLGlot has hundreds of kinds of nodes to spoil it with."""
    assert not _refused(parse_one(_STATEMENT))
    assert len(_PLACES) > 20
    assert len(_CLASSES) > 1000
    assert TREE.keys() < {found.__name__ for found in _CLASSES}


def _allowed(statement, node, kinds):
    """The kinds of nodes that may stand where *node* stands."""
    found = set()
    for kind in kinds:
        other = node.replace(kind())
        if not _refused(statement):
            found.add(kind.__name__)
        other.replace(node)
    return found


@pytest.mark.parametrize("place", [place for place in _PLACES if place > 0])
def test_every_place_allows_the_kinds_that_the_table_names_for_it(place):
    """Of all that are allowed somewhere."""
    statement = parse_one(_STATEMENT)
    node = list(statement.walk())[place]
    kinds = [kind for kind in _CLASSES if kind.__name__ in TREE]
    assert _allowed(statement, node, kinds) == set(TREE[type(node.parent).__name__][node.arg_key].split())


@pytest.mark.parametrize("kind", [exp.Count, exp.EQ, exp.Table, exp.Literal])
def test_no_kind_of_node_is_allowed_unless_the_table_names_it(kind):
    """Every class of SQLGlot as what is selected, as a condition, as a table and as a constant."""
    statement = parse_one(_STATEMENT)
    assert _allowed(statement, statement.find(kind), _CLASSES) <= TREE.keys()


def test_nothing_but_a_select_is_a_statement():
    """No other class of SQLGlot, no tree at all, and no class that only has an allowed name."""
    assert [kind.__name__ for kind in _CLASSES if not _refused(kind())] == ["Select"]
    assert _refused(None)
    assert _refused(type("Select", (exp.Select,), {})())


@pytest.mark.parametrize("place", range(len(_NODES)))
def test_no_argument_is_allowed_unless_the_table_names_it(place):
    """Every argument that SQLGlot knows for a node, and one that it does not: true, a word, a node, a list of them."""
    statement = parse_one(_STATEMENT)
    node = list(statement.walk())[place]
    unknown = [*(node.arg_types.keys() - TREE[type(node).__name__].keys()), "anything"]
    for argument in unknown:
        for value in (True, "word", 0, exp.Var(this="word"), [exp.Var(this="word")]):
            node.set(argument, value)
            assert _refused(statement), (type(node), argument)
        for value in (None, False, []):
            node.set(argument, value)
            assert not _refused(statement)


@pytest.mark.parametrize("place", range(len(_NODES)))
def test_no_comment_is_allowed(place):
    """Wherever SQLGlot may have kept it."""
    statement = parse_one(_STATEMENT)
    list(statement.walk())[place].add_comments(["x"])
    assert _refused(statement)


def test_dates_and_timestamps_are_the_only_types():
    """DATE '2025-01-31' is a cast in the tree; no other cast is allowed."""
    for kind in exp.DType:
        statement = parse_one("SELECT COUNT(*) FROM t WHERE x = DATE '2025-01-31'")
        statement.find(exp.DataType).set("this", kind)
        assert _refused(statement) == (kind.name not in {"DATE", "TIMESTAMP"})


@pytest.mark.parametrize("name", sorted(TREE))
def test_nothing_in_the_table_is_superfluous(name, monkeypatch):
    """Without a node, or an argument of it, some statement that is allowed would be refused."""
    statements = [parse_one(text) for text in _READ]
    assert not any(map(_refused, statements))
    poorer = [{key: value for key, value in TREE.items() if key != name}]
    poorer += [
        TREE | {name: {key: TREE[name][key] for key in TREE[name] if key != argument}} for argument in TREE[name]
    ]
    for table in poorer:
        monkeypatch.setattr(tree, "TREE", table)
        assert any(map(_refused, statements))


@pytest.mark.parametrize("text", _READ)
def test_both_readings_ask_the_same(text):
    """SQLGlot's tree, read on its own, is the question that was read from the text."""
    assert read_with_sqlglot(text) == parse_select(text)


@pytest.mark.parametrize(
    "text", ["", ";", "'", "SELECT COUNT(*) FROM t; SELECT COUNT(*) FROM t", "SELECT (", "DROP TABLE t"]
)
def test_what_is_no_statement_at_all_is_refused_by_the_second_reading_alone(text):
    """Nothing, text that does not end, two statements, half a statement, another statement."""
    with pytest.raises(SQLError, match="double quotes"):
        check_tree(text)


def test_the_second_reading_alone_refuses_most_of_what_is_refused():
    """And raises nothing else for the rest, which is spelling, or whether the parts fit each other."""
    texts = [characters(case[0]).replace("¦", "") for case in REFUSED]
    assert sum(map(_refused_as_text, texts)) > len(texts) * 0.6
    assert not any(map(_refused_as_text, _READ))


def _refused_as_text(text):
    try:
        check_tree(text)
    except SQLError:
        return True
    return False
