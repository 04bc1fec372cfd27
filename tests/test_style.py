"""Habits of the code that no linter checks."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src" / "discreet"

ALLOWED = 12
"""Parallel assignments that swap values, or unpack two at once; their number may only fall."""


def test_an_assignment_has_one_line():
    """`a, b = x, y` hides which value is whose: each has its own line."""
    places = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple)
    ]
    assert len(places) <= ALLOWED, "\n".join(places)


def test_a_class_name_belongs_to_one_class():
    """A reader who meets a name knows which class is meant, without its module."""
    owners = Counter(
        node.name
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in owners.items() if count > 1] == []
