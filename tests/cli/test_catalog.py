"""`discreet catalog`."""

from __future__ import annotations

import json
import warnings

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from discreet.catalog.loader import schema_of
from discreet.catalog.model import Catalog
from discreet.cli import main
from discreet.cli.catalog import catalog
from discreet.errors import InputError

GOOD = '[datasets.reads]\nsource = "reads.parquet"\nuser = "u"\ncolumns.a = { type = "text", group = true }\n'
WRONG = GOOD + 'columns.b = { type = "text", group = true }\n'
BROKEN = GOOD + "max_k = 0\n"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a function that runs the command in a folder with a table and a catalog."""
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table({"u": ["secret"], "a": ["secret"]}), tmp_path / "reads.parquet")

    def run(text, *arguments):
        (tmp_path / "catalog.toml").write_text(text)
        return CliRunner().invoke(catalog, arguments)

    return run


def test_check_prints_a_line_for_everything(run):
    """A valid catalog gives exit code 0."""
    ran = run(GOOD, "check", "catalog.toml")
    assert ran.output.splitlines() == [
        "ok       datasets.reads",
        "note     datasets.reads: these will be refused: COUNT(*), AVG and quantiles: declare rows_per_group",
        "ok       datasets.reads.user",
        "ok       datasets.reads.columns.a",
    ]
    assert ran.exit_code == 0


def test_check_reports_mismatches(run):
    """A mismatch gives exit code 2, and valid datasets are reported too."""
    ran = run(WRONG, "check", "catalog.toml", "reads")
    assert ran.output.splitlines()[-1] == (
        "mistake  datasets.reads.columns.b: there is no column 'b'; the columns are 'u', 'a'"
    )
    assert len(ran.output.splitlines()) == 5
    assert ran.exit_code == 2
    assert "secret" not in ran.output


def test_check_reports_errors_of_the_file(run):
    """Errors of the file are reported in the same form, and no table is opened."""
    ran = run(BROKEN, "check", "catalog.toml")
    assert ran.output == "mistake  datasets.reads.max_k: must be at least 1\n"
    assert ran.exit_code == 2


@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("none.toml", "mistake  none.toml: there is no such file\n"),
        ("reads.parquet", "mistake  reads.parquet: it is not UTF-8 text\n"),
    ],
)
def test_check_names_a_file_that_cannot_be_read(run, name, output):
    """The message names the file, because there is no place in it to name."""
    ran = run(GOOD, "check", name)
    assert (ran.output, ran.exit_code) == (output, 2)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (GOOD, [("", None), (".user", None), (".columns.a", None)]),
        (BROKEN, [(".max_k", "must be at least 1")]),
    ],
    ids=["good", "broken"],
)
def test_check_prints_json(run, text, found):
    """The JSON has the same findings as the text, and the same exit code."""
    ran = run(text, "check", "catalog.toml", "--format", "json")
    assert json.loads(ran.output) == [
        {
            "place": f"datasets.reads{place}",
            "ok": mistake is None,
            "mistake": mistake,
            "note": None
            if place or mistake
            else "these will be refused: COUNT(*), AVG and quantiles: declare rows_per_group",
        }
        for place, mistake in found
    ]
    assert ran.exit_code == (2 if text is BROKEN else 0)


@pytest.mark.parametrize(("text", "code"), [(GOOD, 0), (BROKEN, 2)], ids=["good", "broken"])
def test_the_exit_code_is_that_of_the_process(run, monkeypatch, text, code):
    """The command has the same exit code within the whole command line."""
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # main() replaces it
    assert run(text, "schema").exit_code == 0
    with pytest.raises(SystemExit) as caught:
        main(["catalog", "check", "catalog.toml"])
    assert caught.value.code == code


def test_an_unknown_dataset_is_an_input_error(run):
    """The command line reports an unknown dataset in one line."""
    assert isinstance(run(GOOD, "check", "catalog.toml", "writes").exception, InputError)


def test_schema_prints_the_schema(run):
    """`catalog schema` prints the JSON Schema."""
    assert json.loads(run(GOOD, "schema").output) == schema_of(Catalog)


def test_init_prints_a_draft(run):
    """The draft is a valid catalog once it allows something."""
    text = run(GOOD, "init", "reads.parquet", "--user", "u").output
    assert text.startswith("# What analysts may query.")
    ran = run(
        text.replace("#[datasets.reads.columns.a]\n#type", "[datasets.reads.columns.a]\ntype").replace(
            "#group =", "group ="
        ),
        "check",
        "catalog.toml",
    )
    assert (ran.exit_code, len(ran.output.splitlines())) == (0, 4)


def test_init_takes_the_password_from_the_environment(run, monkeypatch):
    """The option names an environment variable, which must be set."""
    monkeypatch.delenv("SECRET", raising=False)
    ran = run(GOOD, "init", "postgresql://r@db/w", "--user", "u", "--table", "t", "--password-env", "SECRET")
    assert "the environment variable 'SECRET'" in str(ran.exception)
