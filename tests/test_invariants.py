"""The numbers that docstrings of tests cite are those that tests/invariants.md defines."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NUMBER = re.compile(r"\b([IFT])([1-9]\d?)(?:-\1([1-9]\d?))?\b")


def numbers(text: str) -> set[str]:
    """Return the numbers in a text; I1-I3 stands for three."""
    found = set()
    for kind, first, last in NUMBER.findall(text):
        found |= {f"{kind}{n}" for n in range(int(first), int(last or first) + 1)}
    return found


def cited() -> set[str]:
    """Return the numbers in the docstrings of all tests and their helpers."""
    found = set()
    for folder in ("tests", "tests/servers", "tests/page", "tests/clients"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and path != Path(__file__):
                    found |= numbers(ast.get_docstring(node) or "")
    return found


def test_every_number_that_is_cited_is_defined_and_the_other_way_round():
    """A number without a definition says nothing, and a definition without a test is a claim."""
    defined = re.findall(r"^\| ([IFT]\d+) \|", (ROOT / "tests" / "invariants.md").read_text(), flags=re.MULTILINE)
    assert len(defined) == len(set(defined))
    assert cited() == set(defined)
