"""Habits of the code that no linter checks."""

from __future__ import annotations

import ast
import functools
import graphlib
import re
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "discreet"

ALLOWED = 12
"""Parallel assignments that swap values, or unpack two at once; their number may only fall."""

USED_ONCE = 39
"""Private functions of at most eight lines with one caller; their number may only fall."""

LOOKED_UP = 9
"""Places where the name of a dataset is looked up in a catalog; their number may only fall."""

PROSE = {"about", "asked", "found", "given", "here", "known", "made", "taken", "there", "wanted"}
"""Words that say nothing of what a variable holds."""


@functools.cache
def nodes():
    """Return all nodes of all files, each with its path."""
    return [(path, node) for path in SOURCE.rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))]


def test_an_assignment_has_one_line():
    """`a, b = x, y` hides which value is whose: each has its own line."""
    places = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path, node in nodes()
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple)
    ]
    assert len(places) <= ALLOWED, "\n".join(places)


def test_a_class_name_belongs_to_one_class():
    """A reader who meets a name knows which class is meant, without its module."""
    owners = Counter(node.name for _, node in nodes() if isinstance(node, ast.ClassDef))
    assert [name for name, count in owners.items() if count > 1] == []


def test_no_import_leads_back():
    """No module imports what imports it, not even for types or within a function: it can be read without the latter."""
    modules = {
        ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__"): path
        for path in SOURCE.rglob("*.py")
    }
    names = {path: module for module, path in modules.items()}
    graph = {module: set() for module in modules}
    for path, node in nodes():
        if isinstance(node, ast.ImportFrom):
            imported = {f"{node.module}.{alias.name}" for alias in node.names}
            graph[names[path]] |= {name if name in modules else node.module for name in imported} & modules.keys()
    graphlib.TopologicalSorter(graph).prepare()


def test_few_short_functions_have_one_caller():
    """A few lines stand where they are used, with the reason beside them; a loop or a comprehension may need a name."""
    definitions = Counter(node.name for _, node in nodes() if isinstance(node, ast.FunctionDef))
    uses = Counter(getattr(node, "id", getattr(node, "attr", None)) for _, node in nodes())
    loops = ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
    inner = {
        id(part.func)
        for _, node in nodes()
        if isinstance(node, loops)
        for part in ast.walk(node)
        if isinstance(part, ast.Call)
    }
    callers = {
        getattr(node.func, "id", getattr(node.func, "attr", None))
        for _, node in nodes()
        if isinstance(node, ast.Call) and id(node.func) not in inner
    }
    places = [
        f"{path.relative_to(SOURCE)}:{node.lineno} {node.name}"
        for path, node in nodes()
        if isinstance(node, ast.FunctionDef)
        and re.match("_[^_]", node.name)
        and not node.decorator_list
        and node.end_lineno - node.lineno < 8
        and definitions[node.name] == uses[node.name] == 1
        and node.name in callers
    ]
    assert len(places) <= USED_ONCE, "\n".join(places)


def test_the_name_of_a_dataset_is_looked_up_where_it_enters():
    """Further on, a question holds its dataset."""
    places = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path, node in nodes()
        if isinstance(node, ast.Attribute)
        and node.attr == "find"
        and re.fullmatch(r"(self\._?)?(_?catalog|.*\.current)", ast.unparse(node.value))
    ]
    assert len(places) <= LOOKED_UP, "\n".join(places)


def test_variables_have_the_noun_of_what_they_hold():
    """`account` and `releases` say what `found` and `known` hide; the fields of a class may have such words."""
    fields = {
        id(part.target)
        for _, node in nodes()
        if isinstance(node, ast.ClassDef)
        for part in node.body
        if isinstance(part, ast.AnnAssign)
    }
    places = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path, node in nodes()
        if (isinstance(node, ast.arg) and node.arg in PROSE)
        or (
            isinstance(node, ast.Name)
            and isinstance(node.ctx, ast.Store)
            and node.id in PROSE
            and id(node) not in fields
        )
    ]
    assert places == []


def test_mutants_that_need_no_test_are_changes_of_the_present_code():
    """A reason for code that was rewritten says nothing about what stands there now."""
    listed = tomllib.loads((ROOT / "benchmarks" / "equivalent_mutants.toml").read_text())
    stale = []
    for module, mutants in listed.items():
        code = "".join((SOURCE / f"{module}.py").read_text().split())
        stale += [(module, mutant["removed"]) for mutant in mutants if "".join(mutant["removed"].split()) not in code]
    assert stale == []
