"""Queries of a dataset of a catalog, on the command line."""

from __future__ import annotations

import json

import pytest

TOP = "SELECT article, COUNT(DISTINCT reader) FROM reads WHERE year >= 2021 GROUP BY article LIMIT 3"


@pytest.fixture
def catalog(tmp_path, reads):
    """Return a catalog that declares `reads`."""
    path = tmp_path / "catalog.toml"
    path.write_text(
        f'[datasets.reads]\nsource = "{reads}"\nuser = "reader"\n'
        'columns.article = { type = "text", group = true }\ncolumns.year = { type = "integer", filter = true }\n'
    )
    return path


@pytest.fixture
def key(tmp_path):
    """Return a secret that only its owner can read."""
    path = tmp_path / "key"
    path.write_bytes(b"k" * 32)
    path.chmod(0o600)
    return path


def test_a_statement_and_options_make_the_same_query(run, catalog, key):
    """Both interfaces have equal answers for one key."""
    shared = ["reads", "--catalog", catalog, "--key", key, "--format", "csv", "-q"]
    stated = run("top", *shared, "--sql", TOP)
    asked = run("top", *shared, "--item", "article", "--where", "year > 2020", "-k", "3")
    assert stated.code == asked.code == 0
    assert stated.out == asked.out
    assert stated.out.startswith('"rank","article","count"')


def test_a_statement_without_limit_is_for_release(run, catalog):
    """A statement without LIMIT releases as many counts as possible."""
    ran = run("release", "reads", "--catalog", catalog, "--sql", TOP.replace(" LIMIT 3", ""), "--format", "json")
    assert ran.code == 0
    assert json.loads(ran.out)["query"]["k"] is None


def test_a_total_needs_no_limit(run, catalog):
    """One number, from `top` and from `release`."""
    for command in ("top", "release"):
        ran = run(command, "reads", "--catalog", catalog, "--sql", "SELECT COUNT(DISTINCT reader) FROM reads")
        assert ran.code == 0
        assert "all" in ran.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sql", TOP, "--item", "article"], "the statement decides --item"),
        (["--sql", TOP, "--where", "year = 1"], "the statement decides --where"),
        (["--sql", TOP, "-k", "3"], "the statement decides -k"),
        (["--sql", TOP.replace("reads", "books")], "queries 'books', not 'reads'"),
        (["--sql", TOP.replace(" LIMIT 3", "")], "discreet release"),
        (["--sql", TOP.replace("LIMIT 3", "LIMIT 3 OFFSET 1")], "at character"),
        (["--sql", "DROP TABLE reads"], "character"),
        (["--item", "year"], "there is no column to group by 'year'"),
        ([], "give --item COL, or a statement with --sql"),
        (["--item", "article", "--user", "reader"], "the catalog decides --user"),
        (["--item", "article", "--groups-per-user", "3"], "the catalog decides --groups-per-user"),
        (["--item", "article", "--domain", "x.csv"], "the catalog decides --domain"),
        (["--item", "article", "--rows-per-group", "3"], "count rows with --sql and COUNT(*)"),
    ],
)
def test_unsupported_options_are_refused(run, catalog, arguments, message):
    """One sentence, exit code 2, nothing on standard output."""
    ran = run("top", "reads", "--catalog", catalog, *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert ran.err.count("\n") == 1


def test_a_statement_needs_a_catalog(run, reads):
    """The catalog declares what may be queried."""
    ran = run("top", reads, "--sql", TOP)
    assert (ran.code, ran.out) == (2, "")
    assert "a statement needs a catalog" in ran.err


@pytest.mark.parametrize(("option", "what"), [("user", "identifies the user"), ("item", "names the item")])
def test_a_source_needs_its_columns_named(run, reads, option, what):
    """Without a catalog, --user is required, and --item for a top k; a release without items is a total."""
    given = {"user": "reader", "item": "article"}
    del given[option]
    for command in ("top", "release", "plan") if option == "user" else ("top",):
        ran = run(command, reads, *(part for name, column in given.items() for part in (f"--{name}", column)))
        assert (ran.code, ran.out) == (2, "")
        assert f"--{option} COL is missing" in ran.err
        assert what in ran.err


def planned(run, catalog, *arguments):
    """Return a plan as JSON."""
    ran = run("plan", "reads", "--catalog", catalog, *arguments, "--format", "json")
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def test_a_dataset_can_be_planned_without_its_table(run, catalog):
    """The file does not exist; a statement and options have the same plan, with LIMIT and without."""
    catalog.write_text(catalog.read_text().replace("reads.parquet", "gone.parquet"))
    stated = planned(run, catalog, "--sql", TOP)
    assert stated == planned(run, catalog, "--item", "article", "--where", "year > 2020", "-k", "3")
    assert (stated["mechanism"], stated["query"]["k"], stated["reads"]) == ("unknown-gumbel", 3, 1001)
    everything = planned(run, catalog, "--sql", TOP.replace(" LIMIT 3", ""))
    assert everything == planned(run, catalog, "--item", "article", "--where", "year > 2020")
    assert everything["mechanism"] == "auto"
    assert planned(run, catalog, "--sql", TOP, "--epsilon-per", "0.15")["units"] == {"information": 7, "calls": 1}


def test_a_plan_of_sums_shows_their_error_in_their_own_unit(run, catalog):
    """The column has two decimal places and a bound of a hundred."""
    catalog.write_text(
        catalog.read_text() + 'columns.score = { type = "decimal", sum = { low = 0, high = 100 } }\n'
        'view = "SELECT reader, article, year, CAST(score AS DECIMAL(9, 2)) AS score FROM source"\n'
    )
    sums = ["--sql", "SELECT article, SUM(score) FROM reads GROUP BY article LIMIT 3", "--epsilon-per", "0.15"]
    plan = planned(run, catalog, *sums)
    assert plan["sum_std_error"] == pytest.approx(2 * 100 / 0.15, rel=1e-6)
    assert plan["std_error"] == {"least": None, "most": None}
    assert "error of a sum  1.33e+03" in run("plan", "reads", "--catalog", catalog, *sums).out
    assert planned(run, catalog, "--sql", TOP)["sum_std_error"] is None


def test_a_plan_refuses_invalid_datasets_and_columns(run, catalog):
    """Another dataset, a column that may not be grouped."""
    for statement, message in (
        (TOP.replace("reads", "books"), "queries 'books', not 'reads'"),
        (TOP.replace("article", "year"), "there is no column to group by 'year'"),
    ):
        ran = run("plan", "reads", "--catalog", catalog, "--sql", statement)
        assert (ran.code, ran.out) == (2, "")
        assert message in ran.err
