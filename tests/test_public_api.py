"""The public names, and the cost of importing them."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import discreet

SOURCE = Path(discreet.__file__).parent
ROOT = Path(__file__).resolve().parent.parent
NAMES = [
    "Budget",
    "BudgetExceeded",
    "CatalogError",
    "Client",
    "Cost",
    "DiscreetError",
    "EngineBusy",
    "EngineError",
    "EngineTimeout",
    "EngineUnreachable",
    "InexactHead",
    "InputError",
    "InvariantViolated",
    "KeyedBits",
    "Measure",
    "NoiseKey",
    "Release",
    "SQLError",
    "Select",
    "SystemBits",
    "Table",
    "UnfitData",
    "UnknownColumn",
    "Warehouse",
    "WhereError",
    "__version__",
    "connect",
    "scan",
]


def test_the_public_names_are_these():
    """Adding or removing a name is a decision; `dir` and a star import have these."""
    assert discreet.__all__ == NAMES == sorted(NAMES)
    assert dir(discreet) == NAMES
    everything: dict[str, object] = {}
    exec("from discreet import *", everything)  # noqa: S102 - the only place where a star may stand
    assert set(NAMES) == set(everything) - {"__builtins__"}


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_exists_and_is_documented(name):
    """It is the object of that name from this package, with a docstring."""
    found = getattr(discreet, name)
    if name == "__version__":
        assert found == importlib.metadata.version("discreet")
        return
    assert found.__name__ == name
    assert found.__module__.startswith("discreet.")
    assert found.__doc__
    assert found.__doc__.strip().endswith((".", "later.")) or "\n" in found.__doc__


def test_every_error_is_a_discreet_error():
    """One except clause catches them all, and impossible queries are ValueErrors too."""
    errors = [getattr(discreet, name) for name in NAMES if isinstance(getattr(discreet, name), type)]
    errors = [error for error in errors if issubclass(error, Exception)]
    assert len(errors) == 14
    assert all(issubclass(error, discreet.DiscreetError) for error in errors)
    assert {error.__name__ for error in errors if issubclass(error, ValueError)} == {
        "CatalogError",
        "InputError",
        "SQLError",
        "UnknownColumn",
        "WhereError",
    }


def test_unknown_names_raise_an_attribute_error():
    """The error is Python's own."""
    with pytest.raises(AttributeError, match="module 'discreet' has no attribute 'sacn'"):
        discreet.sacn  # noqa: B018 - reading it is the test


HEAVY = {
    "numpy",
    "duckdb",
    "pyarrow",
    "pandas",
    "polars",
    "matplotlib",
    "cryptography",
    "click",
    "pytest",
    "hypothesis",
}


def _imported_by(statement):
    script = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in json.loads(done.stdout)}


def test_importing_the_package_imports_nothing_heavy():
    """This includes its errors and its version."""
    imported = _imported_by("import discreet; discreet.InputError, discreet.__version__, dir(discreet)")
    assert "discreet" in imported
    assert imported & HEAVY == set()


def test_a_release_imports_no_optional_library():
    """A query is answered and exported without pandas, Polars, matplotlib, pytest or the command line."""
    script = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"pandas", "polars", "matplotlib", "click", "pytest", "hypothesis"}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
import discreet, pyarrow
table = discreet.scan(pyarrow.table({"user": range(900), "item": ["a"] * 900}), user="user")
release = table.where("item = 'a'").top("item", k=1, epsilon=5)
assert len(release) == 1
str(release), release.to_json(), release.to_csv(), release._repr_html_()
"""
    assert "pyarrow" in _imported_by(script)


def _undocumented(tree, where, elsewhere=frozenset()):
    """Return public modules, classes, functions and methods without a docstring; nested functions are private.

    A method may do without if a class documents it *elsewhere*: the protocol that it implements.
    """
    if not ast.get_docstring(tree):
        yield where
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            if isinstance(node, ast.ClassDef):
                yield from _undocumented(node, f"{where}.{node.name}", elsewhere)
            elif not ast.get_docstring(node) and not (isinstance(tree, ast.ClassDef) and node.name in elsewhere):
                yield f"{where}.{node.name}"


@functools.cache
def _documented_methods():
    """Return names of the methods that some class of the source documents."""
    classes = (
        node
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ClassDef)
    )
    methods = (part for found in classes for part in found.body if isinstance(part, ast.FunctionDef))
    return frozenset(method.name for method in methods if ast.get_docstring(method))


@pytest.mark.parametrize(
    "path", [pytest.param(p, id=p.relative_to(SOURCE).as_posix()) for p in sorted(SOURCE.rglob("*.py"))]
)
def test_everything_public_is_documented(path):
    """Every public module, class, function and method of the source has a docstring."""
    tree = ast.parse(path.read_text("utf-8"))
    assert list(_undocumented(tree, path.stem, _documented_methods())) == []


def test_missing_docstrings_are_found():
    """The test above can fail for a module, a class, a method and a function."""
    tree = ast.parse(
        "class A:\n  def f(self): 1\n  def _g(self): 1\nclass _B: 1\ndef h():\n  'x'\n  def i(): 1\ndef j(): 1"
    )
    assert list(_undocumented(tree, "m")) == ["m", "m.A", "m.A.f", "m.j"]
    assert list(_undocumented(tree, "m", {"f", "j"})) == ["m", "m.A", "m.j"]


def test_the_package_is_typed():
    """Type checkers read our annotations only if this file is there."""
    assert (SOURCE / "py.typed").exists()


def test_all_extras_are_in_the_extra_all():
    """The extra `all` installs every extra."""
    extras = _pyproject()["project"]["optional-dependencies"]
    (everything,) = extras.pop("all")
    assert everything == f"discreet[{','.join(extras)}]"


def test_the_metadata_has_the_supported_systems_and_versions():
    """POSIX only: Windows cannot tell whether others can read a key file."""
    classifiers = _pyproject()["project"]["classifiers"]
    assert "Operating System :: POSIX" in classifiers
    assert {f"Programming Language :: Python :: 3.{n}" for n in (11, 12, 13)} <= set(classifiers)


def test_the_readme_on_a_package_index_has_no_link_into_the_checkout():
    """Links to files beside it become plain text in the metadata."""
    text = (ROOT / "README.md").read_text()
    assert "](docs/" in text
    for each in _pyproject()["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(each["pattern"], each["replacement"], text)
    assert all(target.startswith(("http://", "https://", "#")) for target in re.findall(r"\]\(([^)]+)\)", text))


def _pyproject():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())
