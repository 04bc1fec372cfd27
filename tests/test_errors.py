"""The hierarchy of errors and their messages."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from discreet import errors
from discreet.errors import DiscreetError, InputError, UnknownColumn, WhereError

TREE = {
    "DiscreetError": Exception,
    "InputError": DiscreetError,
    "NotFound": InputError,
    "UnknownColumn": InputError,
    "WhereError": InputError,
    "SQLError": InputError,
    "BudgetExceeded": DiscreetError,
    "EngineError": DiscreetError,
    "EngineUnreachable": errors.EngineError,
    "EngineBusy": errors.EngineError,
    "EngineTimeout": errors.EngineError,
    "UnfitData": errors.EngineError,
    "InexactHead": errors.EngineError,
    "InvariantViolated": DiscreetError,
}

PAGE = Path(__file__).resolve().parent.parent / "docs" / "errors.md"

COLUMNS = ["user_id", "Book", "rating", "read at", "Straße"]


def defined():
    """Return the error classes of the module, by name."""
    classes = inspect.getmembers(errors, inspect.isclass)
    return {
        name: found for name, found in classes if issubclass(found, Exception) and found.__module__ == errors.__name__
    }


def test_the_errors_are_the_tree_that_is_drawn():
    """Every class is in the drawing once, under its parent, and there are no others."""
    assert defined().keys() == TREE.keys()
    for name, found in defined().items():
        assert found.__bases__[0] is TREE[name]
        assert f"─ {name} " in errors.__doc__ or f"    {name}\n" in errors.__doc__


def depth(found):
    """Return how many levels an error is below `DiscreetError`."""
    return 0 if found is DiscreetError else 1 + depth(found.__bases__[0])


def test_the_drawing_indents_every_error_under_its_parent():
    """Each level is four columns."""
    lines = {line.split("─ ")[-1].split()[0]: line for line in errors.__doc__.splitlines() if line.startswith("    ")}
    assert lines.keys() == TREE.keys()
    for name, line in lines.items():
        assert line.index(name) == 4 + 4 * depth(defined()[name])


def test_the_page_draws_the_same_tree():
    """docs/errors.md adds the error of catalogs, which only files can cause."""
    drawn = re.search(r"^```text\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)[1].splitlines()
    lines = {line.split("─ ")[-1].split()[0]: line for line in drawn}
    assert lines.keys() - {"CatalogError"} == TREE.keys()
    for name in TREE:
        assert lines[name].index(name) == 4 * depth(defined()[name])


def test_input_errors_are_value_errors_and_broken_invariants_assertion_errors():
    """Code that does not know this library handles them correctly."""
    assert issubclass(InputError, ValueError)
    assert issubclass(errors.InvariantViolated, AssertionError)
    assert not issubclass(errors.EngineError, ValueError)
    assert not issubclass(errors.BudgetExceeded, ValueError)


@pytest.mark.parametrize(
    ("asked", "nearest"),
    [
        ("user-id", "user_id"),
        ("userid", "user_id"),
        ("book", "Book"),
        ("BOKK", "Book"),
        ("Ratings", "rating"),
        ("read_at", "read at"),
        ("strasse", "Straße"),
        ("zzz", None),
        ("", None),
    ],
)
def test_an_unknown_column_names_the_nearest_one(asked, nearest):
    """In its own spelling, in any case; all columns if none is similar."""
    error = UnknownColumn(asked, COLUMNS)
    assert (error.name, error.nearest) == (asked, nearest)
    hint = (
        f"did you mean {nearest!r}?" if nearest else "the columns are 'user_id', 'Book', 'rating', 'read at', 'Straße'"
    )
    assert str(error) == f"there is no column {asked!r}; {hint}"


def test_an_unknown_column_is_refused_with_its_purpose():
    """The purpose replaces the word "column", and the columns may be an iterator, or none."""
    error = UnknownColumn("usr", iter(["id", "name"]), role="user column")
    assert str(error) == "there is no user column 'usr'; the columns are 'id', 'name'"
    assert str(UnknownColumn("x", (), "column to sum")) == "there is no column to sum 'x'; there is none"


def test_of_two_spellings_one_is_named():
    """Columns may differ in case only."""
    assert UnknownColumn("BOOK", ["book", "Book"]).nearest in ("book", "Book")


def test_a_where_error_counts_characters_from_one():
    """The attribute is an offset from 0, and the text counts from 1."""
    error = WhereError("a number is missing", 4)
    assert error.position == 4
    assert str(error) == "the filter cannot be used at character 5: a number is missing"


def test_a_where_error_without_a_position_names_none():
    """Some errors have no single position; an offset of 0 is one."""
    assert str(WhereError("it is too long")) == "the filter cannot be used: it is too long"
    assert WhereError("it is too long").position is None
    assert "at character 1:" in str(WhereError("no", 0))
