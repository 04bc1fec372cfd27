"""Queries of the datasets of a catalog from Python."""

from __future__ import annotations

import datetime
import re
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

import discreet
from discreet.accounting.convert import UnitCost
from discreet.budget import Budget
from discreet.catalog.loader import load_catalog
from discreet.errors import BudgetExceeded, EngineError, InputError, UnknownColumn
from discreet.query.pricing import PRESETS
from discreet.query.query import Measure, Select
from discreet.values import Cost
from discreet.warehouse import Warehouse, connect

KEY = b"k" * 32
CATALOG = """
[datasets.reads]
source = "reads.parquet"
user = "reader"
rows_per_group = 3
max_k = 50
max_head_limit = 2000
data_version = "1"
columns.article = { type = "text", group = true, filter = true }
columns.country = { type = "text", group = true, filter = true, domain = ["IN", "US", "XX"] }
columns.kind = { type = "text", group = true, domain = ["a", "b"] }
columns.age = { type = "integer", filter = true }
columns.minutes = { type = "integer", sum = { low = 0, high = 60 } }
columns.price = { type = "decimal", sum = { low = 0, high = 2.5 } }
columns.seconds = { type = "integer", sum = { low = 0, high = 10000000, private_bound = true } }

[datasets.kept]
source = "reads.parquet"
user = "reader"
missing_labels = "keep"
columns.article = { type = "text", group = true }
"""
TOP = "SELECT article, COUNT(DISTINCT reader) AS n FROM reads GROUP BY article ORDER BY n DESC LIMIT 5"

SUMS = "SELECT article, SUM(minutes) FROM reads GROUP BY article LIMIT 5"


@pytest.fixture
def folder(tmp_path):
    """Create a catalog and its table: article n has 1,000 n readers, the first a missing title."""
    rows = [(user, None if n == 0 else f"article {n}") for n in range(1, 4) for user in range(1000 * n)]
    rows += [(user, None) for user in range(4000)]
    table = pa.table(
        {
            "reader": [user for user, _ in rows],
            "article": [article for _, article in rows],
            "country": ["IN" if user % 2 else "US" for user, _ in rows],
            "kind": ["a"] * len(rows),
            "age": [user % 80 for user, _ in rows],
            "minutes": [100 if user % 2 else 20 for user, _ in rows],
            "seconds": [600 if user % 10 else 60_000 for user, _ in rows],
            "price": pa.array([Decimal("1.25")] * len(rows), pa.decimal128(9, 2)),
            "secret": ["s"] * len(rows),
        }
    )
    pyarrow.parquet.write_table(pa.concat_tables([table, table]), tmp_path / "reads.parquet")
    (tmp_path / "catalog.toml").write_text(CATALOG)
    return tmp_path


@pytest.fixture
def warehouse(folder):
    """Return a warehouse connected to the catalog."""
    with connect(folder / "catalog.toml") as made:
        yield made


def shown(release, *columns):
    """Return some columns of a release as rows."""
    table = release.to_arrow()
    return list(zip(*(table.column(name).to_pylist() for name in columns), strict=True))


def test_a_top_k_counts_users(warehouse):
    """Three articles with about 3,000, 2,000 and 1,000 readers, in order; duplicated rows do not matter."""
    release = warehouse.query(TOP, epsilon=10)
    assert [label for (label,) in shown(release, "article")] == ["article 3", "article 2", "article 1"]
    assert [round(count, -3) for count in release.counts.tolist()] == [3000, 2000, 1000]


def test_json_and_python_make_the_same_query(warehouse):
    """Three interfaces, one query, one answer for one key."""
    select = Select("reads", ("article",), Measure("users", "reader"), None, 5)
    mapping = {"dataset": "READS", "items": ["Article"], "measure": {"kind": "users", "column": "reader"}, "k": 5}
    answers = [warehouse.query(asked, key=KEY).to_arrow() for asked in (TOP, select, mapping)]
    assert answers[0] == answers[1] == answers[2]


def test_another_spelling_is_the_same_query(warehouse):
    """Order, parentheses, BETWEEN, IN and double negation do not change the noise; another constant does."""
    select = "SELECT article, COUNT(DISTINCT reader) FROM reads WHERE {} GROUP BY 1 LIMIT 5"
    same = [
        "age >= 18 AND age <= 40 AND country = 'IN'",
        "(country IN ('IN', 'IN')) AND age BETWEEN 18 AND 40",
        "NOT (NOT (40 >= age AND 17 < age) OR country <> 'IN')",
    ]
    answers = [warehouse.query(select.format(where), key=KEY).to_arrow() for where in same]
    assert answers[0] == answers[1] == answers[2]
    other = warehouse.query(select.format("age BETWEEN 18 AND 41 AND country = 'IN'"), key=KEY).to_arrow()
    assert other != answers[0]


def test_another_dataset_has_other_noise_for_the_same_rows(warehouse, folder):
    """Two dataset names of one table have different noise."""
    text = (folder / "catalog.toml").read_text()
    (folder / "two.toml").write_text(text + text.replace("datasets.reads", "datasets.twin").split("[datasets.kept]")[0])
    with connect(folder / "two.toml") as both:
        one = both.query(TOP, key=KEY)
        assert one.to_arrow() == warehouse.query(TOP, key=KEY).to_arrow()
        assert both.query(TOP.replace("reads", "twin"), key=KEY).to_arrow() != one.to_arrow()


def test_rows_are_counted_up_to_the_declared_bound(warehouse):
    """Every reader has two rows for each article: twice the users."""
    release = warehouse.query(TOP.replace("COUNT(DISTINCT reader)", "COUNT(*)"), epsilon=20)
    assert [round(count, -3) for count in release.counts.tolist()] == [6000, 4000, 2000]


def test_a_total_is_one_number(warehouse):
    """Without GROUP BY the result is one item, which is always released."""
    release = warehouse.query("SELECT COUNT(DISTINCT reader) FROM reads WHERE age < 40", epsilon=10)
    assert release.to_arrow().column("total").to_pylist() == ["all"]
    assert release.counts.tolist() == pytest.approx([2000], abs=20)
    empty = warehouse.query("SELECT COUNT(DISTINCT reader) FROM reads WHERE age < -5", epsilon=10)
    assert empty.counts.tolist() == pytest.approx([0], abs=10)


def test_sums_are_clipped_per_user(warehouse):
    """Half the readers have 200 minutes for an article, half 40; the bound is 60: fifty on average."""
    release = warehouse.query(SUMS, epsilon=20)
    assert release.counts is None
    assert [value for (value,) in shown(release, "sum")] == pytest.approx([150_000, 100_000, 50_000], abs=1500)


def test_sums_of_the_items_with_the_most_users_have_one_form_at_both_doors(warehouse):
    """ORDER BY COUNT(DISTINCT user) DESC LIMIT k, which alone is LIMIT k in a query; another column is refused."""
    ranked = SUMS.replace("LIMIT", "ORDER BY COUNT(DISTINCT READER) DESC LIMIT")
    key = bytes(32)
    release = warehouse.query(ranked, epsilon=20, key=key)
    assert release.to_arrow() == warehouse.query(SUMS, epsilon=20, key=key).to_arrow()
    rows = warehouse.sql(ranked, epsilon=20, key=key).table
    assert rows.column(0).to_pylist() == release.labels.column(0).to_pylist()
    assert rows.column(1).to_pylist() == [value for (value,) in shown(release, "sum")]
    for ask in (warehouse.query, warehouse.plan, warehouse.sql):
        with pytest.raises(InputError, match=r"with the most users: ORDER BY COUNT\(DISTINCT reader\) DESC LIMIT k"):
            ask(ranked.replace("READER", "article"))


def test_a_private_bound_replaces_a_generous_one(warehouse):
    """Of 10,000,000 declared, a bound near the readers' values is chosen; the release says what it clips."""
    release = warehouse.query(SUMS.replace("minutes", "seconds"), epsilon=20)
    assert 2_000 < release.clipping["bound"] < 300_000
    assert release.clipping["low"] <= release.clipping["share"] <= release.clipping["high"]
    assert 0.9 < release.clipping["kept"] <= 1
    assert f"is above {release.clipping['bound']}, which was chosen privately" in str(release)
    assert not release.query.request.keep_missing
    cells = release.answer_table()  # what scaling takes away is in one direction, and sums of cells add it up
    assert min(cells["$bias"].to_pylist()) > 0
    assert set(cells["$noise"].to_pylist()) == {0}
    total = warehouse.query("SELECT SUM(seconds) FROM reads", epsilon=20)
    assert total.clipping["bound"] < 10_000_000
    assert total.mechanism == "listed+sum"


def test_averages_are_of_rows(warehouse):
    """Rows of 20 and 100, clipped to 60; two of 60 are more than the bound for a user, and count as one row."""
    release = warehouse.query(SUMS.replace("SUM", "AVG"), epsilon=20)
    assert [value for (value,) in shown(release, "average")] == pytest.approx([100 / 3] * 3, abs=1)
    assert [round(count, -2) for count in release.counts.tolist()] == [4500, 3000, 1500]
    price = warehouse.query(SUMS.replace("SUM(minutes)", "AVG(price)"), epsilon=20)
    assert [value for (value,) in shown(price, "average")] == pytest.approx([1.25] * 3, abs=0.05)


def test_averages_by_a_private_bound_are_of_rows(warehouse):
    """A tenth of the readers have 60,000 seconds in each of two rows, the others 600."""
    release = warehouse.query(SUMS.replace("SUM(minutes)", "AVG(seconds)"), epsilon=20)
    assert [value for (value,) in shown(release, "average")] == pytest.approx([6540] * 3, rel=0.1)
    assert [round(count, -2) for count in release.counts.tolist()] == [6000, 4000, 2000]
    assert release.clipping["bound"] < 1_000_000
    assert "less weight if they are more than 3" in release.clipped
    total = warehouse.query("SELECT AVG(seconds) FROM reads", epsilon=20)
    assert total.measured.values[0] == pytest.approx(6540, rel=0.1)


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        (
            "SELECT AVG(minutes) FROM rare",
            r"declare rows_per_group, or write SUM\(minutes\) / COUNT\(DISTINCT reader\)",
        ),
        ("SELECT MEDIAN(age) FROM rare", r"declare rows_per_group, or count users by age"),
    ],
)
def test_averages_and_quantiles_of_rows_need_declared_bounds(folder, sql, message):
    """The sentence has the two forms that work."""
    (folder / "rare.toml").write_text(
        CATALOG
        + """
[datasets.rare]
source = "reads.parquet"
user = "reader"
columns.minutes = { type = "integer", sum = { low = 0, high = 60 } }
columns.age = { type = "integer", group = true, domain = [1, 2] }
"""
    )
    with connect(folder / "rare.toml") as made, pytest.raises(InputError, match=message):
        made.sql(sql)


def test_decimal_sums_keep_their_digits(warehouse):
    """Two rows of 1.25 for each of 3,000 readers, in exact decimals."""
    release = warehouse.query(SUMS.replace("minutes", "price"), epsilon=20)
    first = shown(release, "sum")[0][0]
    assert isinstance(first, Decimal)
    assert float(first) == pytest.approx(7500, abs=100)
    assert "7," in str(release)


def test_listed_items_are_all_returned(warehouse):
    """A known domain, also as the product of two columns, with items without users."""
    one = warehouse.query("SELECT country, COUNT(DISTINCT reader) FROM reads GROUP BY country", epsilon=10)
    assert sorted(label for (label,) in shown(one, "country")) == ["IN", "US", "XX"]
    assert one.complete
    two = warehouse.query("SELECT country, kind, COUNT(DISTINCT reader) FROM reads GROUP BY 1, 2", epsilon=10)
    assert sorted(shown(two, "country", "kind")) == [(c, k) for c in ("IN", "US", "XX") for k in ("a", "b")]


def test_listed_items_that_the_filter_excludes_are_left_out(warehouse):
    """Their counts are 0 for any data, and noise in their place would look like data."""
    statement = "SELECT country, kind, COUNT(DISTINCT reader) FROM reads WHERE {} GROUP BY 1, 2"
    release = warehouse.query(statement.format("country <> 'IN' AND NOT country = 'XX' AND age > 5"), epsilon=10)
    assert sorted(shown(release, "country", "kind")) == [("US", "a"), ("US", "b")]
    assert len(warehouse.plan(statement.format("country = 'IN' OR age > 5")).query.request.domain) == 6
    with pytest.raises(InputError, match="the filter excludes all items that are listed"):
        warehouse.plan(statement.format("country = 'FR'"))
    table = discreet.scan(pa.table({"u": range(9), "x": [1, 2, 3] * 3}), user="u").where("x >= 2")
    assert table.top("x", 3, domain=[1, 2, 3], epsilon=50).labels["x"].to_pylist() in ([2, 3], [3, 2])
    with pytest.raises(InputError, match="size of the domain, 3, not 4"):
        table.top("x", 4, domain=[1, 2, 3])


@pytest.mark.parametrize(
    ("statement", "listed"),
    [
        ("SELECT article, COUNT(DISTINCT reader) FROM reads WHERE article IN ('article 1', 'new') GROUP BY article", 2),
        ("SELECT article, SUM(minutes) FROM reads WHERE article = 'new' AND age > 5 GROUP BY article", 1),
        ("SELECT country, article, COUNT(*) FROM reads WHERE article IN ('new', 'a') GROUP BY 1, 2", 6),
        (
            "SELECT country, article, COUNT(*) FROM reads WHERE article IN ('b', 'a') AND country = 'US' GROUP BY 1, 2",
            2,
        ),
        ("SELECT article, COUNT(*) FROM reads WHERE article IN ('b', 'a') GROUP BY 1 LIMIT 5", 2),
        ("SELECT article, kind, COUNT(*) FROM reads WHERE country = 'IN' GROUP BY 1, 2", None),
        ("SELECT article, COUNT(*) FROM reads WHERE article = 'a' OR age = 5 GROUP BY 1", None),
        ("SELECT article, COUNT(*) FROM reads WHERE article IS NULL OR article = 'a' GROUP BY 1", None),
    ],
)
def test_a_filter_on_all_grouped_columns_lists_the_items(warehouse, monkeypatch, statement, listed):
    """Decided by the query alone: items that no row has are released too, as those that the catalog lists."""
    monkeypatch.setattr(warehouse.engine("reads"), "head", None)
    plan = warehouse.plan(statement, epsilon=20)
    domain = plan.query.request.domain
    assert (None if domain is None else len(domain)) == listed
    assert plan == warehouse.plan(warehouse.question(statement).select.to_dict(), epsilon=20)
    assert plan.error_basis == (None if listed is None else f"{listed} listed label{'s' * (listed > 1)}")
    monkeypatch.undo()
    if listed is not None:
        assert len(warehouse.query(statement, epsilon=20)) == listed


def test_a_statement_has_its_intervals_without_low_and_high(warehouse):
    """They are those of the query that it is computed from."""
    sql = (
        "SELECT article, 2 * n AS twice FROM (SELECT article, COUNT(DISTINCT reader) AS n FROM reads GROUP BY article)"
    )
    answers = warehouse.sql(sql, epsilon=20, intervals=True)
    ((_, release),) = answers.releases.items()
    rows = zip(release.low.tolist(), release.high.tolist(), strict=True)
    ends = answers.table.select(["twice_low", "twice_high"]).to_pylist()
    assert sorted((row["twice_low"], row["twice_high"]) for row in ends) == sorted((2 * a, 2 * b) for a, b in rows)


@pytest.mark.parametrize("measure", ["DISTINCT reader", "*"])
def test_the_largest_items_without_their_counts_are_labels_only(warehouse, measure):
    """The race keeps all of epsilon; rows are in the order of the ranks, and the release has no counts."""
    top = f"SELECT {{}} FROM reads GROUP BY article ORDER BY COUNT({measure}) DESC LIMIT 2"
    budget = Budget(50.0, 1e-4)
    answers = warehouse.sql(top.format("upper(article) AS a"), epsilon=5, budget=budget)
    assert answers.table.to_pylist() == [{"a": "ARTICLE 3"}, {"a": "ARTICLE 2"}]
    ((sql, release),) = answers.releases.items()
    assert sql.startswith("SELECT article FROM reads")
    assert release.counts is release.std_errors is None
    assert release.charged == budget.spent
    labels, counts = (
        warehouse.plan(top.format(f"article, COUNT({measure})"), epsilon=5, counts=counts, mechanism="gumbel")
        for counts in (False, True)
    )
    assert release.query.request == labels.query.request
    assert labels.expectation.smallest_count < counts.expectation.smallest_count
    priced = [
        warehouse.plan(top.format(f"article, COUNT({measure})"), epsilon_per="0.1", counts=c) for c in (False, True)
    ]
    assert priced[0].worst_units.information < priced[1].worst_units.information


def test_labels_are_counted_where_a_mechanism_or_the_catalog_needs_it(warehouse, folder):
    """A LIMIT that covers the listed items, HAVING, and `min_users`, which counts decide; the rows are as in SQL."""
    every = "SELECT country FROM reads GROUP BY country ORDER BY COUNT(DISTINCT reader) DESC LIMIT 7"
    having = (
        "SELECT article FROM reads GROUP BY article HAVING COUNT(DISTINCT reader) > 1500 "
        "ORDER BY COUNT(DISTINCT reader) DESC LIMIT 2"
    )
    catalog = (folder / "catalog.toml").read_text().replace('user = "reader"', 'user = "reader"\nmin_users = 1500')
    (folder / "catalog.toml").write_text(catalog)
    first = "SELECT article FROM reads GROUP BY article ORDER BY COUNT(DISTINCT reader) DESC LIMIT 3"
    with connect(folder / "catalog.toml") as shown:
        for made, sql, rows in (
            (warehouse, every, 3),
            (warehouse, having, 2),
            (shown, first, 2),
        ):
            answers = made.sql(sql, epsilon=20)
            (release,) = answers.releases.values()
            assert release.counts is not None
            assert answers.table.num_rows == rows
            names = answers.table.column(0).to_pylist()
            if sql is first:
                assert names == ["article 3", "article 2"]
            assert set(made.sql(f"EXPLAIN {sql}", epsilon=20).table["query"].to_pylist()) == set(answers.releases)


def test_a_domain_that_a_filter_lists_is_the_one_of_the_argument():
    """The same plan as with `domain`; a mechanism that finds the items itself has no listed ones."""
    rows = pa.table({"u": range(900), "x": ["a", "b", "c"] * 300, "of": ["p", "q"] * 450})
    table = discreet.scan(rows, user="u").where("x IN ('a', 'd')")
    assert table.plan("x") == table.plan("x", domain=["a", "d"])
    assert table.plan("x", 2) == table.plan("x", 5)
    assert table.plan("x", mechanism="two-round").query.request.domain is None
    found = table.release("x", epsilon=20)
    assert {label for (label,) in shown(found, "x")} == {"a", "d"}
    assert len(table.plan("x", 1, each="of", segments=["p", "q", "r"]).query.request.domain) == 6
    many = discreet.scan(rows, user="u").where(f"x IN ({', '.join(repr(str(n)) for n in range(1001))})")
    assert many.plan("x").query.request.domain is None


def test_a_limit_above_the_number_of_listed_items_is_that_number(warehouse):
    """LIMIT 10 of three items is 3, and the same query."""
    statement = "SELECT country, COUNT(DISTINCT reader) FROM reads GROUP BY country LIMIT {}"
    assert warehouse.plan(statement.format(10)) == warehouse.plan(statement.format(3))
    assert warehouse.plan(statement.format(2)).query.k == 2
    with pytest.raises(InputError, match="at most 50 items, not 51"):
        warehouse.plan(statement.format(51))


def test_missing_labels_are_an_item_where_the_catalog_keeps_them(warehouse):
    """4,000 readers of articles without a title are one item."""
    release = warehouse.query(
        "SELECT article, COUNT(DISTINCT reader) FROM kept GROUP BY article LIMIT 1", epsilon=10, delta="1e-6"
    )
    assert shown(release, "article") == [(None,)]


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        (TOP.replace("reads", "nothing"), "there is no dataset 'nothing'"),
        (TOP.replace("article", "secret"), "there is no column to group by 'secret'"),
        (TOP.replace("article", "reader", 1).replace("BY article", "BY reader"), "there is no column to group by"),
        (TOP.replace("GROUP", "WHERE secret = 's' GROUP"), "there is no column 'secret'"),
        (TOP.replace("GROUP", "WHERE kind = 'a' GROUP"), "there is no column 'kind'"),
        (TOP.replace("GROUP", "WHERE reader = 1 GROUP"), "there is no column 'reader'"),
        (SUMS.replace("minutes", "age"), "there is no column to sum 'age'"),
        (TOP.replace("DISTINCT reader", "DISTINCT age"), "users are counted, as COUNT"),
        (TOP.replace("LIMIT 5", "LIMIT 51"), "at most 50 items, not 51"),
        (TOP.replace("reads", "kept").replace("COUNT(DISTINCT reader)", "COUNT(*)"), "rows of this dataset are not"),
        (TOP.replace("GROUP", "WHERE age = 'x' GROUP"), "holds whole numbers and cannot be compared with text"),
        (SUMS.replace(" LIMIT 5", ""), "sums need the k items with the most users"),
    ],
)
def test_queries_that_the_catalog_does_not_allow_are_refused(warehouse, statement, message):
    """One sentence each; a forbidden column looks like a missing one."""
    budget = Budget(1.0, 1e-6)
    with pytest.raises(InputError, match=message):
        warehouse.query(statement, budget=budget)
    assert budget.spent.rho == budget.held.rho == 0


def test_a_forbidden_column_looks_like_a_missing_one(warehouse):
    """The messages are equal except for the name."""
    words = []
    for name in ("secret", "nosuch"):
        with pytest.raises(UnknownColumn) as refused:
            warehouse.query(TOP.replace("article", name))
        words.append(str(refused.value).replace(name, "..."))
    assert words[0] == words[1]


def test_a_budget_is_charged_for_what_was_returned(warehouse):
    """Three of five items are charged, and a question that does not fit is refused."""
    budget = Budget(1.0, 1e-6)
    release = warehouse.query(TOP, epsilon=0.5, budget=budget)
    assert release.charged == budget.spent
    with pytest.raises(BudgetExceeded):
        warehouse.query(TOP, epsilon=2.0, budget=budget)


def test_a_plan_reads_no_rows(warehouse, monkeypatch):
    """A plan reads columns only."""
    engine = warehouse.engine("reads")
    monkeypatch.setattr(engine, "head", None)
    plan = warehouse.plan(TOP)
    assert plan.request.limit == 1000
    assert plan.query.request.items == ("article",)


def test_the_head_limit_is_lowered_to_what_the_catalog_allows(warehouse):
    """The default head of 10,000 items becomes 2,000 here, and an explicit larger one is refused."""
    assert warehouse.plan(TOP.replace(" LIMIT 5", "")).request.limit == 2000
    with pytest.raises(InputError, match="at most 2,000"):
        warehouse.plan(TOP, head_limit=2001)


def test_a_key_needs_a_version(folder):
    """A noise key needs a data version, which a view without a declared one lacks."""
    import duckdb

    with duckdb.connect(str(folder / "reads.db")) as connection:
        connection.execute(f"CREATE TABLE r AS FROM '{folder / 'reads.parquet'}'; CREATE VIEW v AS FROM r")
    (folder / "view.toml").write_text(
        '[datasets.v]\nsource = "reads.db"\ntable = "v"\nuser = "reader"\n'
        'columns.article = { type = "text", group = true }'
    )
    with connect(folder / "view.toml") as viewed, pytest.raises(InputError, match="a key needs a data version"):
        viewed.query(TOP.replace("reads", "v"), key=KEY)


def test_data_that_changes_during_a_query_is_not_released(folder):
    """The version after the head must be the one before it; the data was read, so the query is charged."""
    text = CATALOG.replace('data_version = "1"', 'data_version = { schedule = "daily", at = "04:00", zone = "UTC" }')
    (folder / "daily.toml").write_text(text)
    times = iter(
        [datetime.datetime(2026, 11, 21, 3, 59, tzinfo=datetime.UTC)] * 3  # current_date and opening take the first two
        + [datetime.datetime(2026, 11, 21, 4, 1, tzinfo=datetime.UTC)] * 9
    )
    budget = Budget(1.0, 1e-6)
    with Warehouse(load_catalog(folder / "daily.toml"), clock=lambda: next(times)) as changing:
        with pytest.raises(EngineError, match="changed its version while the query ran"):
            changing.query(TOP, epsilon=0.1, budget=budget, key=KEY)
        assert budget.spent == changing.plan(TOP, epsilon=0.1, budget=budget).worst_cost
        assert len(changing.query(TOP, key=KEY)) == 3


def test_a_catalog_that_does_not_fit_its_table_is_not_queried(folder):
    """A column declared as integer is text: refused before data is read."""
    (folder / "wrong.toml").write_text(
        CATALOG.replace('"text", group = true, filter = true }', '"integer", group = true }', 1)
    )
    with (
        connect(folder / "wrong.toml") as wrong,
        pytest.raises(EngineError, match="its owner should run discreet catalog check"),
    ):
        wrong.query(TOP)


@pytest.mark.parametrize("question", [None, 7, [TOP], b"SELECT"])
def test_a_query_is_text_json_or_a_select(warehouse, question):
    """Any other type is refused in one sentence."""
    with pytest.raises(InputError, match="a query is a SELECT"):
        warehouse.query(question)


def test_connect_is_public():
    """`discreet.connect` and `discreet.Select`."""
    assert discreet.connect is connect
    assert discreet.Select is Select


def without(catalog, dataset, *columns):
    """Return *catalog* with one dataset and without some of its columns."""
    kept = {name: column for name, column in catalog.datasets[dataset].columns.items() if name not in columns}
    shown = catalog.datasets[dataset].model_copy(update={"columns": kept})
    return catalog.model_copy(update={"datasets": {dataset: shown}})


def test_a_view_shares_the_engines_and_answers_of_its_warehouse(warehouse):
    """One engine for all analysts, and one answer to a query; closing a view closes nothing."""
    with warehouse.restricted_to(without(warehouse.catalog, "reads", "age")) as view:
        assert view.engine("reads") is warehouse.engine("reads")
        asked = "SELECT country, COUNT(DISTINCT reader) FROM reads GROUP BY country"
        assert view.query(asked, key=KEY).to_arrow() == warehouse.query(asked, key=KEY).to_arrow()
        assert view.plan(asked).query.request.domain is warehouse.plan(asked).query.request.domain
    assert len(warehouse.query(TOP)) == 3


@pytest.mark.parametrize(
    ("statement", "hidden"),
    [
        (TOP.replace("article", "NAME").replace("LIMIT 5", "LIMIT 3"), "country"),
        (TOP.replace("GROUP", "WHERE NAME = 'IN' GROUP"), "country"),
        (TOP.replace("reads", "NAME"), "kept"),
    ],
)
def test_datasets_outside_a_view_look_like_missing_ones(warehouse, statement, hidden):
    """The messages are equal except for the name."""
    view = warehouse.restricted_to(without(warehouse.catalog, "reads", "country"))
    words = []
    for name in (hidden, "xyzzy"):
        with pytest.raises(InputError) as refused:
            view.plan(statement.replace("NAME", name))
        words.append(str(refused.value).replace(name, "..."))
    assert words[0] == words[1]
    warehouse.plan(statement.replace("NAME", hidden))


def test_a_view_has_no_dataset_that_its_warehouse_lacks(warehouse):
    """The catalog of another owner is refused."""
    other = without(warehouse.catalog, "reads")
    other = other.model_copy(update={"datasets": {"other": other.datasets["reads"]}})
    with pytest.raises(InputError, match="there is no dataset 'other'"):
        warehouse.restricted_to(other)
    with pytest.raises(InputError, match="there is no dataset 'reads'"):
        warehouse.restricted_to(without(warehouse.catalog, "kept")).restricted_to(without(warehouse.catalog, "reads"))


def test_the_context_of_a_dataset_is_its_version_and_the_name_of_its_table(folder):
    """An edited view is another table; the version of files is a digest without paths."""
    shown = '\n[datasets.shown]\nsource = "reads.parquet"\nview = "SELECT * FROM source"\nuser = "reader"\n'
    (folder / "views.toml").write_text(CATALOG + shown + 'columns.article = { type = "text", group = true }\n')
    with connect(folder / "views.toml") as views:
        assert views.key_context("READS") == ("1", "reads")
        assert views.key_context("shown") == (None, "shown\nSELECT * FROM source")
        version, table = views.key_context("kept")
        assert (len(version), table) == (32, "kept")
        assert version == views.key_context("kept")[0] != views.engine("kept").data_version()


@pytest.mark.parametrize("gone", ["reads.parquet", "catalog.toml"])
def test_no_error_names_a_file_of_the_server(folder, gone):
    """Files that vanish before or after they were opened are not named."""
    with connect(folder / "catalog.toml") as late, connect(folder / "catalog.toml") as early:
        assert len(early.query(TOP)) == 3
        (folder / gone).unlink()
        if gone == "catalog.toml":
            assert len(late.query(TOP)) == 3
            return
        for asked, sentence in (
            (late, "its owner should run"),
            (early, "the data of 'reads' has changed, and was not opened again yet"),
        ):
            with pytest.raises(EngineError, match=sentence) as caught:
                asked.query(TOP)
            assert str(folder) not in str(caught.value)
            assert "parquet" not in str(caught.value)


def test_a_query_may_have_a_price_per_unit(warehouse):
    """Five articles and their counts are 11 units and a call; three and the threshold are charged 8."""
    per = PRESETS["linkedin"]
    plan = warehouse.plan(TOP, per=per)
    assert plan.worst_units == UnitCost(11, 1)
    budget = Budget(2.0, 1e-6)
    release = warehouse.query(TOP, per=per, budget=budget)
    assert [label for (label,) in shown(release, "article")] == ["article 3", "article 2", "article 1"]
    assert per.units(release.charged) == per.units(budget.spent) == UnitCost(8, 1)
    assert release.guarantee == plan.guarantee
    assert warehouse.plan(SUMS.replace("SUM", "AVG"), per=per).worst_units == UnitCost(16, 1)
    assert warehouse.plan(TOP.replace(" LIMIT 5", ""), per=per).worst_units == UnitCost(100, 1)


@pytest.mark.parametrize("price", [{"epsilon": 1.0}, {"delta": "1e-9"}])
def test_a_query_has_one_price(warehouse, price):
    """A price is per unit, or an epsilon and a delta."""
    with pytest.raises(InputError, match="not both"):
        warehouse.plan(TOP, per=PRESETS["linkedin"], **price)


@pytest.fixture
def visits(tmp_path):
    """Create visits of 3,000 users at noon of two Mondays; the catalog lists the days of a week and bins of ages."""
    days = [datetime.datetime(2026, 3, 2 + 7 * (user % 3 == 0), 12) for user in range(3000)]
    rows = [(user, day, user % 30, f"city {(user % 400) ** 0.5:.0f}") for user, day in enumerate(days)]
    table = pa.table({name: [row[n] for row in rows] for n, name in enumerate(("reader", "at", "years", "city"))})
    pyarrow.parquet.write_table(table, tmp_path / "visits.parquet")
    (tmp_path / "catalog.toml").write_text(
        """
[datasets.visits]
source = "visits.parquet"
user = "reader"
data_version = "1"
rows_per_group = 3

[datasets.visits.columns]
day = { type = "date", of = "at", each = "day", group = true, filter = true, \
        domain = { first = 2026-03-01, last = 2026-03-07 } }
hour = { type = "timestamp", of = "at", each = "hour", group = true }
age = { type = "integer", of = "years", each = 20, group = true, domain = { first = 0, last = 59 } }
city = { type = "text", group = true, groups_per_user = 1 }
""".replace("\\\n", "")
    )
    with connect(tmp_path / "catalog.toml") as made:
        yield made


def test_a_plan_over_times_to_the_second_names_the_column_of_their_days(tmp_path):
    """By the name that the catalog has for it; hours and listed items have no note."""
    times = pa.array(range(50), pa.timestamp("s"))
    pyarrow.parquet.write_table(pa.table({"u": range(50), "at": times, "seen": times}), tmp_path / "visits.parquet")
    (tmp_path / "catalog.toml").write_text(
        """
[datasets.visits]
source = "visits.parquet"
user = "u"
columns.at = { type = "timestamp", group = true }
columns.seen = { type = "timestamp", group = true, domain = [1970-01-01T00:00:00] }
columns.day = { type = "date", of = "at", each = "day", group = true }
columns.seen_hour = { type = "timestamp", of = "seen", each = "hour", group = true }
"""
    )
    with connect(tmp_path / "catalog.toml") as made:
        for item, days in (("at", "day"), ("day", None), ("at_hour", None), ("seen", None), ("seen_hour", None)):
            notes = made.plan(f'SELECT "{item}", COUNT(DISTINCT u) FROM visits GROUP BY "{item}"').notes
            assert [note.partition("; ")[2] for note in notes] == ([f"count {days}, for example"] if days else [])


def test_a_time_series_over_a_known_domain_has_every_day(visits):
    """Days without rows have noise around 0, and a filter on the computed column is applied."""
    release = visits.query("SELECT day, COUNT(DISTINCT reader) AS n FROM visits GROUP BY day", epsilon=5)
    counts = dict(shown(release, "day", "count"))
    assert set(counts) == {datetime.date(2026, 3, day) for day in range(1, 8)}
    assert counts[datetime.date(2026, 3, 2)] == pytest.approx(2000, abs=100)
    assert counts[datetime.date(2026, 3, 3)] == pytest.approx(0, abs=100)
    total = visits.query("SELECT COUNT(DISTINCT reader) FROM visits WHERE day >= '2026-03-03'", epsilon=5)
    assert total.to_arrow().column("count").to_pylist() == [pytest.approx(1000, abs=100)]


def test_bins_and_hours_are_labels_like_others(visits):
    """Bins come from a range of numbers, and hours are found like any items."""
    release = visits.query("SELECT age, COUNT(DISTINCT reader) AS n FROM visits GROUP BY age", epsilon=5)
    counts = dict(shown(release, "age", "count"))
    assert {age: round(count, -3) for age, count in counts.items()} == {0: 2000, 20: 1000, 40: 0}
    hours = visits.query("SELECT hour, COUNT(DISTINCT reader) AS n FROM visits GROUP BY hour", epsilon=5)
    assert sorted(label for (label,) in shown(hours, "hour")) == [datetime.datetime(2026, 3, day, 12) for day in (2, 9)]


def test_the_column_of_a_period_is_found_by_either_column(visits):
    """For date_trunc: by the column of the table, or by one that is computed from it; a date is its own day."""
    dataset = visits.catalog.datasets["visits"]
    assert [dataset.period("AT", each) for each in ("hour", "day", "week")] == ["hour", "day", "day_week"]
    assert [dataset.period("Day", each) for each in ("day", "hour")] == ["day", "hour"]
    assert dataset.period("age", "day") is None


def test_a_quantile_is_computed_from_the_histogram_of_its_column(visits):
    """Its price is the histogram's, whatever else is computed from it; two of one column are one query."""
    key, histogram = b"k" * 32, "SELECT age, COUNT(*) AS n FROM visits GROUP BY age"
    both = "SELECT MEDIAN(age) AS median, LOW(MEDIAN(age)) AS low, QUANTILE(age, 0.9) AS p90 FROM visits"
    found = visits.sql(both, epsilon=5, key=key)
    assert found.table.to_pylist() == [{"median": 0, "low": 0, "p90": 20}]
    assert found.no_interval == ("median", "p90")
    (release,) = found.releases.values()
    assert list(shown(release, "age", "count")) == list(
        shown(visits.query(histogram, epsilon=5, key=key), "age", "count")
    )
    p80 = "PERCENTILE_CONT(0.8) WITHIN GROUP (ORDER BY age) AS p"
    days = f"SELECT day, {p80} FROM visits GROUP BY day HAVING MEDIAN(age) < 9 ORDER BY day"
    rows = visits.sql(days, epsilon=50, key=key).table.to_pylist()
    assert {"day": datetime.date(2026, 3, 2), "p": 20} in rows


@pytest.mark.parametrize(
    ("selected", "message"),
    [
        ("QUANTILE(age, 1.5)", "above 0 and below 1"),
        ("QUANTILE(age + 1, 0.5)", "a quantile takes a column"),
        ("MEDIAN(DISTINCT age)", "a quantile takes a column"),
        ("MEDIAN(hour)", "the labels of column 'hour' are not listed"),
        ("MEDIAN(reader)", "reader"),
        ("MEDIAN(years)", "years"),
    ],
)
def test_a_quantile_needs_a_column_with_listed_labels(visits, selected, message):
    """Of unknown labels, those with small counts would be missing on one side or the other."""
    with pytest.raises(InputError, match=message):
        visits.sql(f"SELECT {selected} FROM visits", epsilon=5)


@pytest.mark.parametrize("mechanism", ["head", "pcr"])
def test_a_quantile_needs_a_mechanism_that_answers_with_all_labels(visits, mechanism):
    """Bins with small counts would be missing; nothing is charged."""
    budget = Budget(5, "1e-6")
    with pytest.raises(InputError, match="the counts of all labels"):
        visits.sql("SELECT MEDIAN(age) FROM visits", mechanism=mechanism, budget=budget)
    assert budget.spent == Cost()


def test_a_user_with_few_labels_of_a_column_needs_less_noise(visits):
    """One age of each user: the noise of one count, where three bins need (1 + sqrt(3)) / 2 times as much."""
    catalog = visits.catalog
    column = catalog.datasets["visits"].columns["age"].model_copy(update={"groups_per_user": 1})
    columns = {**catalog.datasets["visits"].columns, "age": column}
    dataset = catalog.datasets["visits"].model_copy(update={"columns": columns})
    bounded = connect(catalog.model_copy(update={"datasets": {"visits": dataset}}))
    histogram = "SELECT age, COUNT(DISTINCT reader) AS n FROM visits GROUP BY age"
    errors = [each.plan(histogram, epsilon=1, shared=True).expectation.max_std_error for each in (bounded, visits)]
    assert errors[1] / errors[0] == pytest.approx((1 + 3**0.5) / 2, rel=0.05)
    total = "SELECT COUNT(DISTINCT reader) FROM visits"
    assert bounded.plan(total).worst_cost == visits.plan(total).worst_cost


def test_everything_else_is_the_total_minus_what_is_shown(visits):
    """As docs/sql.md writes it, where each user has one label: the rows add up, and the last has the noise of all."""
    page = (Path(__file__).parents[1] / "docs/sql.md").read_text()
    (sql,) = re.findall(r"```sql\n(WITH top.*?)```", page, re.DOTALL)
    found = visits.sql(sql.replace("visitor", "reader"), epsilon=2)
    rows = found.table.to_pylist()
    assert [len(rows), rows[-1]["city"], len(found.releases)] == [11, "everything else", 2]
    (released,) = (each.counts[0] for each in found.releases.values() if not each.query.request.items)
    assert sum(row["n"] for row in rows) == released
    assert rows[-1]["error"] ** 2 > 10 * rows[0]["error"] ** 2


def test_made_up_rows_fit_their_catalog(visits):
    """Computed columns agree with the column that they come from, and so do periods in a rehearsed statement."""
    coarse = ("week", "month", "quarter", "year")
    made, periods = visits.sample("visits", 1000), [f"{name}_{each}" for name in ("day", "hour") for each in coarse]
    assert made.column_names == ["reader", "day", "hour", "age", "city", *periods]
    types = ["string", "date32[day]", "timestamp[us]", "int64", "string"]
    assert [str(field.type) for field in made.schema] == [*types, *["date32[day]"] * 8]
    rows = made.to_pylist()
    assert {row["age"] for row in rows} == {0, 20, 40}
    assert {row["day"] for row in rows} == {datetime.date(2026, 3, day) for day in range(1, 8)}
    assert all(row["hour"].date() == row["day"] for row in rows)
    sql = "SELECT date_trunc('day', \"at\") AS d, MEDIAN(age) AS m FROM visits GROUP BY d ORDER BY d"
    with visits.rehearsal() as rehearsed:
        assert len(rehearsed.sql(sql, epsilon=9).table) == 7


@pytest.mark.parametrize("sql", ["CREATE TABLE saved.x AS SELECT 1", "/**/ drop table saved.x"])
def test_a_warehouse_saves_no_tables(warehouse, sql):
    """One sentence says where tables are saved."""
    with pytest.raises(InputError, match="saved by a service"):
        warehouse.sql(sql)
