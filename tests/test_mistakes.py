"""Common mistakes are answered with what was wrong and what is allowed, and never taken for something else."""

from __future__ import annotations

import datetime
import subprocess
import sys

import pyarrow as pa
import pytest
from click.testing import CliRunner

import discreet
from discreet.catalog.checks import check
from discreet.catalog.loader import load_catalog
from discreet.cli.admin import admin
from discreet.errors import InputError, SQLError, WhereError
from discreet.query.sql import parse_select

TABLE = pa.table(
    {
        "reader": ["1", "2"],
        "article": ["a", "b"],
        "country": ["IN", "DE"],
        "price": [1.5, 2.0],
        "day": [datetime.date(2025, 1, 1)] * 2,
    }
)


@pytest.fixture(scope="module")
def table():
    """Return a small table with a column of each type that is mistaken for another."""
    return discreet.scan(TABLE, user="reader")


@pytest.mark.parametrize(
    ("item", "options", "parts"),
    [
        ("article", {"domain": {"a": 1}}, ["list of labels", "keys or values of the dict"]),
        ("article", {"domain": "DE"}, ["no domain file 'DE'", "in Python a list of labels"]),
        ("article", {"each": "country", "segments": {"IN": 1}}, ["list of labels", "keys or values of the dict"]),
        ("article", {"groups_per_user": True}, ["groups per user must be a whole number, not True"]),
        ("article", {"k": True}, ["k must be a whole number, not True"]),
        ("article", {"sum": "price", "bound": 3}, ["'price' cannot be summed", "--cast 'price=decimal(18,2)'"]),
        ("price", {}, ["--cast price=integer or --cast 'price=decimal(18,2)'"]),
        ("country:day", {}, ["column 'country', which holds text; cast it to dates or timestamps"]),
        ("day:trimester", {}, ["'trimester'", "hour, day, week, month, quarter, year"]),
        ("article", {"mean": "price"}, ["no option 'mean'", "average"]),
        ("article", {"where": "price > 1"}, ["no option 'where'", "table.where("]),
        ("article", {"columns": ["price"]}, ["no option 'columns'", "epsilon"]),
        ("article", {"mean": "price", "bound": 3}, ["no option 'mean'", "average"]),
        ("article", {"epsilon": "0,5"}, ["decimal point, such as 0.5, not '0,5'"]),
        ("article", {"epsilon": "50%"}, ["without a sign for percent", "'50%'"]),
        ("article", {"delta": "1e-8%"}, ["without a sign for percent"]),
        ("article", {"epsilon": True}, ["epsilon must be a number, not True"]),
        ("article", {"epsilon": 5000}, ["epsilon must be at most 100, not 5000"]),
    ],
)
def test_a_mistaken_argument_is_named_with_what_is_allowed(table, item, options, parts):
    """No argument is silently read as another value, and the sentence says how it is written."""
    with pytest.raises(InputError) as error:
        table.plan(item, **options)
    for part in parts:
        assert part in str(error.value)


@pytest.mark.parametrize(
    "text", ["day >= '2025-13-01'", "day = '2025-02-30'", "day IN ('soon')", "DATE '2025-13-01' < day"]
)
def test_a_date_that_does_not_exist_is_said_to_be_none(table, text):
    """The column is one of dates, and the constant was meant to be one."""
    with pytest.raises(WhereError) as error:
        table.where(text)
    assert "compared with text" not in str(error.value)
    assert "holds dates, and is compared with a text that is not one" in str(error.value) or "DATE" in text
    assert any(part in str(error.value) for part in ("with months 01 to 12", "with a month and a day that exist"))


def test_a_misspelled_first_word_is_not_taken_for_a_name():
    """The sentence says how a statement begins."""
    with pytest.raises(SQLError, match=r"at character 1: a statement begins with SELECT, or WITH \.\.\. SELECT$"):
        parse_select("SELEC article FROM reads")
    with pytest.raises(SQLError, match=r'syntax error at or near "\."$'):  # dots are no word of SQL
        parse_select("SELECT ...")


@pytest.mark.parametrize(
    ("first", "second", "part"),
    [
        ("reader,article", "reader,artikel,day", r"it lacks 'article' and has also 'artikel', 'day'$"),
        ("reader,article,day", "reader,article", r"it lacks 'day'$"),
        ("reader,article", "article,reader", r"has the same columns in another order than the first file$"),
        ("reader,article", "reader;article", r"has ';' and not ',' as in the first file$"),
    ],
)
def test_csv_headers_that_differ_are_compared(tmp_path, first, second, part):
    """The sentence names the columns, which are no data."""
    (tmp_path / "1.csv").write_text(f"{first}\n")
    (tmp_path / "2.csv").write_text(f"{second}\n")
    with pytest.raises(InputError, match=part):
        discreet.scan(str(tmp_path / "*.csv"), user="reader")


def test_catalogs_are_told_to_cast_in_a_view(tmp_path):
    """Catalogs have views, and no argument cast=."""
    import pyarrow.parquet as pq

    pq.write_table(TABLE.drop(["reader"]).append_column("reader", pa.array([1.0, 2.0])), tmp_path / "reads.parquet")
    (tmp_path / "catalog.toml").write_text(
        '[datasets.reads]\nsource = "reads.parquet"\nuser = "reader"\n'
        '[datasets.reads.columns.article]\ntype = "text"\ngroup = true\n'
    )
    catalog = load_catalog(tmp_path / "catalog.toml")
    mistakes = [finding.mistake for finding in check(catalog, environment={}) if finding.mistake]
    assert len(mistakes) == 1
    assert "in a view" in mistakes[0]
    assert "cast=" not in mistakes[0]


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--epsilon", "0,5"], "epsilon must be a number with a decimal point, such as 0.5"),
        (["--epsilon", "50%"], "epsilon must be a number without a sign for percent"),
        (["--cast", "day=int"], "to text, integer, decimal(18,2)"),
    ],
)
def test_the_command_line_says_the_same(tmp_path, options, part):
    """One sentence and exit code 2, without a traceback."""
    (tmp_path / "t.csv").write_text("reader,article,day\n1,a,1\n")
    command = ["-m", "discreet", "top", str(tmp_path / "t.csv"), "--user", "reader", "--item", "article", *options]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert part in done.stderr
    assert len(done.stderr.splitlines()) == 1
    if options[0] == "--epsilon":
        limit = ["a", "--delta", "1e-8", "--reason", "r", "--url", "http://127.0.0.1:1", *options]
        for change in ("open", "limit"):
            assert part in str(CliRunner().invoke(admin, [change, *limit]).exception)
