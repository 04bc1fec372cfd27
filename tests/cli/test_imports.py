"""The command line starts quickly: a query of a file imports nothing that only other sources and services need."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.csv import write_csv

NEEDLESS = (
    "discreet.catalog",
    "discreet.client",
    "discreet.service",
    "discreet.warehouse",
    "discreet.wire",
    "matplotlib",
    "numpy.ma",
    "pandas",
    "polars",
    "pyarrow.acero",
    "pyarrow.dataset",
    "pydantic",
    "starlette",
)
"""Packages that `discreet top` on a Parquet or CSV file must not import; the slowest take a third of a second."""


def _imported(*arguments):
    """Return the modules that a Python process imports, and its exit code."""
    command = [sys.executable, "-X", "importtime", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines}, done.returncode


def _needless(modules):
    return sorted(name for name in modules if any(name == each or name.startswith(f"{each}.") for each in NEEDLESS))


@pytest.mark.parametrize(
    ("method", "name", "write"),
    [("top", "t.parquet", pq.write_table), ("release", "t.parquet", pq.write_table), ("top", "t.csv", write_csv)],
)
def test_a_query_of_a_file_imports_what_it_needs(tmp_path, method, name, write):
    """The query is answered, with none of the modules of `NEEDLESS`."""
    rows = {"user": [str(n) for n in range(3000)], "item": ["a", "b", "c"] * 1000}
    write(pa.table(rows), tmp_path / name)
    source = (str(tmp_path / name), "--user", "user", "--item", "item")
    modules, code = _imported("-m", "discreet", method, *source, "--where", "item <> 'd'")
    assert code == 0
    assert {"discreet.table", "duckdb"} <= modules
    assert method == "top" or "pyarrow.compute" not in modules  # it takes a tenth of a small release
    assert _needless(modules) == []


def test_scanning_needs_no_compute_functions(tmp_path):
    """`scan` of a file opens and checks it without the documentation of all of Arrow's functions."""
    pq.write_table(pa.table({"user": ["a"], "item": ["b"]}), tmp_path / "t.parquet")
    modules, code = _imported("-c", f"import discreet; discreet.scan({str(tmp_path / 't.parquet')!r}, user='user')")
    assert code == 0
    assert "pyarrow.compute" not in modules
    assert _needless(modules) == []


def test_help_needs_no_engine():
    """Nothing that reads data is imported for a text."""
    modules, code = _imported("-m", "discreet", "top", "--help")
    assert code == 0
    assert not modules & {"duckdb", "numpy", "pyarrow"}
    assert _needless(modules) == []
