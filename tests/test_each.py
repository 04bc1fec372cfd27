"""Queries with `each`: the items of every label of a column, for the price of one; from Python, SQL and JSON."""

from __future__ import annotations

import dataclasses
import itertools
import random
from fractions import Fraction

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

import discreet
from discreet.accounting.convert import UnitCost
from discreet.budget import Budget
from discreet.engines.duckdb import DuckDBEngine
from discreet.errors import InputError, SQLError, UnknownColumn, WhereError
from discreet.mechanisms import Each, EachAuto, KnownGumbel, KnownLaplace, SelectVerify, UnknownGumbel
from discreet.mechanisms.sums import UnknownGumbelSums
from discreet.query.json import from_dict
from discreet.query.planning import make_plan
from discreet.query.pricing import PRESETS
from discreet.query.query import Measure, Select
from discreet.query.sql import parse_select, parse_where, to_sql
from discreet.query.statement import split_statement
from discreet.release.keys import DerivedKeys, NoiseKey, fingerprint
from discreet.warehouse import connect
from discreet.wire.document import decode, encode, question_of
from tests.queries import query_of

SECRET = bytes(range(32))
WINDOW = "QUALIFY row_number() OVER (PARTITION BY country ORDER BY COUNT(DISTINCT reader) DESC)"
TOP = f"SELECT country, article, COUNT(DISTINCT reader) FROM reads GROUP BY country, article {WINDOW} <= 2"
SUMS = (
    "SELECT country, article, SUM(minutes) FROM reads GROUP BY country, article "
    "QUALIFY row_number() OVER (PARTITION BY country)"
)
COUNTRIES = ["US", "XX", "IN"]
CATALOG = """
[datasets.reads]
source = "reads.parquet"
user = "reader"
rows_per_group = 3
data_version = "1"
columns.article = { type = "text", group = true, filter = true }
columns.kind = { type = "text", group = true, domain = ["a", "b", "c"] }
columns.country = { type = "text", group = true, filter = true, domain = ["US", "XX", "IN"], groups_per_user = 1 }
columns.os = { type = "text", group = true, domain = ["x", "y"], groups_per_user = 1 }
columns.often = { type = "text", group = true, domain = ["x", "y"] }
columns.free = { type = "text", group = true, groups_per_user = 1 }
columns.read = { type = "text", group = true, groups_per_user = 1, domain = { query = "SELECT 'x'" } }
columns.minutes = { type = "integer", sum = { low = 0, high = 60 } }
columns.seconds = { type = "integer", sum = { low = 0, high = 10000000, private_bound = true } }
"""


def _rows():
    """Return 6,000 readers: the odd ones of IN, the others of US, and every 100th has rows of both."""
    rows = []
    for reader in range(6_000):
        country = ["US", "IN"][reader % 2]
        articles = [f"{country} {n}" for n in range(4) if reader % (n + 2) == 0] + [f"own {reader}"]
        rows += [(reader, country, article) for article in articles]
        if reader % 100 == 0:
            rows.append((reader, "IN", "both"))
    return pa.table(
        {
            "reader": [reader for reader, _, _ in rows],
            "country": [country for _, country, _ in rows],
            "article": [article for _, _, article in rows],
            "kind": ["a" if reader % 3 else "b" for reader, _, _ in rows],
            "os": ["x" if reader % 5 else "y" for reader, _, _ in rows],
            "often": ["x"] * len(rows),
            "free": ["f"] * len(rows),
            "read": ["x"] * len(rows),
            "minutes": [20] * len(rows),
            "seconds": [600] * len(rows),
        }
    )


ROWS = _rows()


@pytest.fixture
def table():
    """Return the rows as a table."""
    return discreet.scan(ROWS, user="reader")


@pytest.fixture
def warehouse(tmp_path):
    """Return a warehouse of the rows."""
    pyarrow.parquet.write_table(ROWS, tmp_path / "reads.parquet")
    (tmp_path / "catalog.toml").write_text(CATALOG)
    with connect(tmp_path / "catalog.toml") as made:
        yield made


# ------------------------------------------------------------------------------------------------ SQL and JSON


@pytest.mark.parametrize(
    ("text", "k", "each", "items"),
    [
        (TOP, 2, ("country",), ("article",)),
        (TOP.replace("<= 2", "= 1"), 1, ("country",), ("article",)),
        (TOP.replace("<= 2", ">= 1"), None, ("country",), ("article",)),
        (TOP.replace("SELECT country, article", "SELECT article, country"), 2, ("country",), ("article",)),
        (TOP.replace("PARTITION BY country", "PARTITION BY COUNTRY"), 2, ("country",), ("article",)),
        (TOP.replace("country, article", "country, os, article"), 2, ("country",), ("os", "article")),
        (
            TOP.replace("article", "os, article").replace("PARTITION BY country", "PARTITION BY country, os"),
            2,
            ("country", "os"),
            ("article",),
        ),
        (
            f"{SUMS} <= 3",
            3,
            ("country",),
            ("article",),
        ),
    ],
)
def test_qualify_asks_for_the_largest_of_each_label(text, k, each, items):
    """One form of QUALIFY is read, and written again it is the same query."""
    select = parse_select(text)
    assert (select.k, select.each, select.items) == (k, each, items)
    assert parse_select(to_sql(select)) == select
    assert from_dict(select.to_dict()) == select


def _windowed(window):
    return TOP.replace(WINDOW.removeprefix("QUALIFY "), window)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (TOP.replace("<= 2", "< 2"), "QUALIFY takes row_number"),
        (TOP.replace("<= 2", "<= 0"), "QUALIFY takes row_number"),
        (TOP.replace("<= 2", "= 2"), "QUALIFY takes row_number"),
        (TOP.replace("<= 2", ">= 2"), "QUALIFY takes row_number"),
        (TOP.replace("<= 2", "<= 2.5"), "QUALIFY takes row_number"),
        (TOP.replace("row_number", "rank"), "QUALIFY takes row_number"),
        (TOP.replace("<= 2", "<= 2 + 1"), "not allowed"),
        (TOP + " AND country = 'IN'", "QUALIFY takes row_number"),
        (TOP.replace("PARTITION BY country ", ""), "PARTITION BY takes some"),
        (TOP.replace("PARTITION BY country", "PARTITION BY country, article"), "PARTITION BY takes some"),
        (TOP.replace("PARTITION BY country", "PARTITION BY country, country"), "each once"),
        (TOP.replace("PARTITION BY country", "PARTITION BY os"), "columns of the select list"),
        (TOP.replace("PARTITION BY country", "PARTITION BY upper(country)"), "functions are not allowed"),
        (TOP.replace(" DESC)", ")"), "expected ORDER BY"),
        (TOP.replace("ORDER BY COUNT(DISTINCT reader) DESC", "ORDER BY 3 DESC"), "only the aggregate"),
        (TOP.replace("ORDER BY COUNT(DISTINCT reader) DESC", "ORDER BY article DESC"), "only the aggregate"),
        (TOP.replace(" ORDER BY COUNT(DISTINCT reader) DESC", ""), "only the aggregate"),
        (TOP.replace(" DESC)", " DESC ROWS 3 PRECEDING)"), "allowed"),
        (TOP + " LIMIT 3", "beside QUALIFY"),
        (TOP + " ORDER BY 3 DESC", "beside QUALIFY"),
    ],
)
def test_any_other_qualify_is_refused(text, words):
    """Nothing of a statement is ignored: not a frame, an order, a second condition or another comparison."""
    with pytest.raises(SQLError, match=words):
        parse_select(text)


def test_a_filter_has_no_qualify():
    """The text of a filter ends before any other clause."""
    with pytest.raises(WhereError):
        parse_where("country = 'IN' QUALIFY row_number() OVER (PARTITION BY a) <= 2")


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"each": ("article",)}, "in 'items' and in 'each'"),
        ({"each": ("country", "country")}, "'each' names a column twice"),
        ({"each": ["country"]}, "'each' must be a tuple"),
        ({"each": (7,)}, r"'each\[0\]' must be a name"),
        ({"each": ("country",), "items": (), "k": None}, "'each' needs items"),
    ],
)
def test_a_select_with_wrong_segments_is_refused(parts, words):
    """A column is either an item or a segment, and there is an item."""
    given = {"dataset": "reads", "items": ("article",), "measure": Measure("users", "reader"), "k": 3}
    with pytest.raises(InputError, match=words):
        Select(**given | parts)


# ------------------------------------------------------------------------------------------------ plans


def test_all_segments_cost_what_one_costs(warehouse):
    """50 countries, top 10, in LinkedIn's units: 21 of information and one call, instead of 1,050 and 50."""
    segments = pa.table({"country": [f"C{n:02d}" for n in range(50)]})
    query = query_of("reader", ("country", "article"), k=10, each=("country",), segments=segments)
    priced = dataclasses.replace(query, options=dataclasses.replace(query.options, per=PRESETS["linkedin"]))
    assert make_plan(priced).worst_units == UnitCost(21, 1)
    alone = "SELECT article, COUNT(DISTINCT reader) AS n FROM reads GROUP BY article ORDER BY n DESC LIMIT 2"
    costs = [warehouse.plan(text, mechanism="gumbel").worst_cost for text in (TOP, alone)]
    assert costs[0] == costs[1]


@pytest.mark.parametrize(
    ("query", "mechanism", "listed"),
    [
        ({"items": ["article"], "k": 10}, EachAuto, None),
        ({"items": ["article"], "k": 1}, EachAuto, None),
        ({"items": ["article"]}, EachAuto, None),
        ({"items": ["article"], "k": 10, "measure": {"kind": "rows"}}, SelectVerify, None),
        ({"items": ["article"], "k": 2, "measure": {"kind": "rows"}}, UnknownGumbel, None),
        ({"items": ["article"], "k": 10, "measure": {"kind": "sum", "column": "minutes"}}, UnknownGumbelSums, None),
        ({"items": ["kind"]}, KnownLaplace, 3),
        ({"items": ["kind"], "k": 2}, KnownGumbel, 3),
    ],
)
def test_the_mechanism_of_segments_is_chosen_by_what_is_counted(warehouse, query, mechanism, listed):
    """Users by pairs or heads, rows by heads, sums by a race, and listed items, whose number is that of one segment."""
    whole = {"dataset": "reads", "each": ["country"], "measure": {"kind": "users", "column": "reader"}} | query
    plan = warehouse.plan(whole)
    chosen = plan.mechanism.inner if isinstance(plan.mechanism, Each) else plan.mechanism
    assert type(chosen) is mechanism
    assert plan.mechanism.segments == 3
    assert plan.reads_pairs == (mechanism is EachAuto)
    if listed is not None:
        assert plan.mechanism.head_limit == listed
        assert len(plan.request.domain) == 3 * listed


@pytest.mark.parametrize(
    ("each", "words"),
    [
        ("often", "does not declare groups_per_user = 1"),
        ("free", "does not list its labels"),
        ("read", "read by a query"),
    ],
)
def test_a_column_that_cannot_be_in_each_is_refused_with_the_reason(warehouse, each, words):
    """Labels that are listed in the catalog itself, one for each user."""
    with pytest.raises(InputError, match=words):
        warehouse.plan(TOP.replace("country", each))


def test_a_column_that_may_not_be_grouped_by_does_not_exist(warehouse):
    """Like any other column that analysts may not use."""
    with pytest.raises(UnknownColumn):
        warehouse.plan(TOP.replace("country", "minutes"))


def test_two_rounds_are_refused(warehouse):
    """They count the items of all segments as one release."""
    with pytest.raises(InputError, match="items of all segments as one release; choose auto or head"):
        warehouse.plan(TOP.replace("<= 2", ">= 1"), mechanism="two-round")


def test_without_pairs_the_head_is_used_and_what_is_missed_is_said():
    """From three items on; a race finds one or two as well."""
    segments = pa.table({"country": COUNTRIES})
    for k, mechanism in ((None, SelectVerify), (3, SelectVerify), (2, UnknownGumbel)):
        query = query_of("reader", ("country", "article"), k=k, each=("country",), segments=segments)
        plan = make_plan(query, has_pairs=False)
        assert type(plan.mechanism.inner) is mechanism
        assert "no pair queries" in plan.missed
        assert make_plan(query).missed is None


def test_a_price_names_both_ways():
    """One round where users have few items, and the heads otherwise."""
    segments = pa.table({"country": COUNTRIES})
    plan = make_plan(query_of("reader", ("country", "article"), k=3, each=("country",), segments=segments))
    assert [branch.name for branch in plan.expectation.likely] == ["head", "light"]
    assert plan.worst_cost == plan.mechanism.worst_cost()


def test_a_private_bound_of_sums_is_refused(warehouse):
    """It is chosen from the rows of all segments."""
    with pytest.raises(InputError, match="bound of sums is chosen"):
        warehouse.plan(f"{SUMS} <= 3".replace("minutes", "seconds"))


def test_the_items_of_all_segments_are_limited():
    """Segments times (head limit + 1) are a million at most; the default head limit is lowered to that."""
    segments = pa.table({"country": range(2_000)})
    parts = {"k": 10, "each": ("country",), "segments": segments}
    assert make_plan(query_of("reader", ("country", "article"), **parts)).request.limit == 499
    with pytest.raises(InputError, match=r"2,002,000 items together, and .* at most 1,000,000 .*smaller head limit"):
        make_plan(query_of("reader", ("country", "article"), head_limit=1_000, **parts))
    with pytest.raises(InputError, match="at most 1,000,000"):
        make_plan(query_of("reader", ("country", "article"), **parts | {"k": 600}))


def test_a_filter_on_the_column_leaves_segments_out(warehouse):
    """A label that no row of the filter can have is not asked."""
    filtered = TOP.replace("GROUP BY", "WHERE country <> 'US' GROUP BY")
    assert warehouse.plan(filtered).request.segments.to_pydict() == {"country": ["XX", "IN"]}
    listed = filtered.replace("article", "kind")
    assert len(warehouse.plan(listed).request.domain) == 6


# ------------------------------------------------------------------------------------------------ answers


def test_a_top_of_each_is_released_with_ranks_within_the_label(warehouse):
    """In the order in which the catalog lists the labels; every listed label is asked, also one without rows."""
    release = warehouse.query(TOP, epsilon=5)
    rows = release.to_arrow().to_pylist()
    assert [(row["rank"], row["country"], row["article"]) for row in rows] == [
        (1, "US", "US 0"),
        (2, "US", "US 2"),
        (1, "IN", "IN 1"),
        (2, "IN", "IN 3"),
    ]
    assert (release.mechanism, release.chosen, release.clipped) == ("auto", "light", None)
    assert not release.complete
    raced = warehouse.query(TOP, epsilon=5, mechanism="gumbel")
    assert raced.mechanism == "unknown-gumbel"
    assert "counts in one of them, chosen at random" in raced.clipped
    one = warehouse.query(TOP.replace("GROUP", "WHERE country = 'IN' GROUP"), epsilon=5)
    assert [row["rank"] for row in one.to_arrow().to_pylist()] == [1, 2]


def test_a_budget_is_charged_the_most_that_a_label_cost(warehouse):
    """Pay what you get: the cost of two items and counts, not of four."""
    budget = Budget(5.0, "1e-8")
    release = warehouse.query(TOP, budget=budget, epsilon=1, mechanism="gumbel")
    assert len(release) == 4
    plan = warehouse.plan(TOP, budget=Budget(5.0, "1e-8"), epsilon=1, mechanism="gumbel")
    assert release.charged.within(plan.worst_cost)
    assert release.charged.rho > plan.worst_cost.rho * Fraction(1, 2)
    assert budget.spent == release.charged


def test_users_of_several_labels_count_in_one(table):
    """Every 100th reader has rows in both countries; with one segment alone, all of its readers count."""
    release = table.release("kind", each="country", segments=COUNTRIES, domain=["a", "b"], epsilon=20)
    counted = sum(release.counts.tolist())
    assert abs(counted - 6_000) < 30
    alone = table.where("country = 'IN'").release("kind", domain=["a", "b"], epsilon=20)
    assert abs(sum(alone.counts.tolist()) - 3_060) < 30


def test_sums_and_averages_of_each(warehouse):
    """Declared bounds; the items are those with the most users."""
    for function, name, expected in (("SUM", "sum", 20 * 3_000), ("AVG", "average", 20)):
        release = warehouse.query(f"{SUMS} <= 1".replace("SUM", function), epsilon=5)
        rows = release.to_arrow().to_pylist()
        assert [row["country"] for row in rows] == ["US", "IN"]
        assert rows[0][name] == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("each", ["country", ["country"], ("country", "os")])
def test_a_table_takes_each_with_listed_segments(table, each):
    """The columns of the segments, and all labels that they can have."""
    segments = COUNTRIES if each != ("country", "os") else [("IN", "x"), ("US", "y")]
    release = table.top("article", 1, each=each, segments=segments, epsilon=5)
    assert release.labels.column("country").to_pylist() == (["US", "IN"] if len(segments) == 3 else ["IN", "US"])


def test_segments_may_be_in_a_file(table, tmp_path):
    """As a domain may be."""
    pyarrow.csv.write_csv(pa.table({"country": COUNTRIES}), tmp_path / "countries.csv")
    release = table.top("article", 1, each="country", segments=str(tmp_path / "countries.csv"), epsilon=5)
    assert release.labels.column("country").to_pylist() == ["US", "IN"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"each": "country"}, "go together"),
        ({"segments": ["IN"]}, "go together"),
        ({"each": "article", "segments": ["IN"]}, "named twice"),
        ({"each": "reader", "segments": [7]}, "both the user and an item"),
        ({"each": "nothing", "segments": ["IN"]}, "nothing"),
        ({"each": "country", "segments": []}, "empty"),
        ({"each": "country", "segments": ["IN", "IN"]}, "twice"),
        ({"each": 7, "segments": ["IN"]}, "named by text"),
        ({"each": "country", "segments": range(2_000), "domain": range(2_000)}, "combinations"),
    ],
)
def test_wrong_segments_of_a_table_are_refused(table, arguments, words):
    """With one sentence, before anything is charged."""
    with pytest.raises(InputError, match=words):
        table.top("article", 1, **arguments)


def test_one_segment_costs_and_finds_what_a_query_of_its_rows_does(table):
    """A single label is today's query with a filter on it."""
    one = table.top("article", 2, each="country", segments=["IN"], epsilon=5, mechanism="gumbel")
    same = table.where("country = 'IN'").top("article", 2, epsilon=5, mechanism="gumbel")
    assert one.labels.column("article").to_pylist() == same.labels.column("article").to_pylist()
    assert one.charged == same.charged


# ------------------------------------------------------------------------------------------------ keys and documents


def test_keyed_answers_repeat_and_depend_on_the_listed_segments(table):
    """The order of the segments is the order of their noise, so it is part of the key."""
    key = NoiseKey(SECRET, "v1")

    def asked(segments):
        return table.top("article", 1, each="country", segments=segments, bits=key, epsilon=5).to_arrow().to_pylist()

    assert asked(COUNTRIES) == asked(COUNTRIES)
    assert sorted(map(str, asked(COUNTRIES))) != sorted(map(str, asked(COUNTRIES[::-1])))


def test_the_key_of_a_release_holds_the_segments(warehouse):
    """Queries with other segments, or with the same columns as items, have other keys."""
    keys = DerivedKeys(SECRET)
    filtered = TOP.replace("GROUP BY", "WHERE country <> 'ZZ' GROUP BY")
    both = "SELECT country, article, COUNT(DISTINCT reader) AS n FROM reads GROUP BY 1, 2 ORDER BY n DESC LIMIT 2"
    texts = [TOP, filtered, filtered.replace("'ZZ'", "'XX'"), both, TOP.replace("<= 2", "<= 3")]
    found = {keys.release_key(warehouse.plan(text), "reads", "1") for text in texts}
    assert len(found) == len(texts)


def test_a_change_in_one_segment_changes_the_fingerprint():
    """So that another answer to the same question of the same version is refused."""
    segments = pa.table({"country": COUNTRIES})
    plan = make_plan(query_of("reader", ("country", "article"), k=2, each=("country",), segments=segments))
    seen = []
    for rows in (ROWS, ROWS.slice(20), ROWS):
        head = DuckDBEngine(rows).head(plan.request, seed=SECRET)
        seen.append(fingerprint(head, plan.request, SECRET, SECRET))
    assert seen[0] == seen[2] != seen[1]
    other = dataclasses.replace(plan.request, segments=segments.slice(1))
    assert fingerprint(head, other, SECRET, SECRET).head_key != seen[0].head_key


def test_a_release_of_each_is_stored_and_read_again(warehouse):
    """Its document has the columns of the segments; ranks, labels, query and files are the same."""
    release = warehouse.query(TOP, epsilon=5)
    question = question_of(release.query, "reads")
    assert from_dict(question) == parse_select(TOP)
    document = encode(release, id="0" * 64, dataset="reads", question=question, data_version="1")
    again = decode(document)
    assert again.to_arrow().equals(release.to_arrow())
    assert again.query.request.each == ("country",)
    assert again.clipped == release.clipped
    assert again.to_csv() == release.to_csv()
    assert release.to_dict()["query"]["each"] == ["country"]
    assert release.to_dict()["query"]["items"] == ["article"]


def test_documents_without_each_are_as_before(warehouse):
    """No key is added to what is stored already."""
    release = warehouse.query("SELECT kind, COUNT(DISTINCT reader) FROM reads GROUP BY kind")
    assert "each" not in release.to_dict()["query"]
    assert "each" not in question_of(release.query, "reads")


# ------------------------------------------------------------------------------------------------ whole statements


def test_a_statement_asks_for_each_where_the_catalog_allows_it(warehouse):
    """The QUALIFY of a whole statement is part of its query, and what stands around it is computed from the answer."""
    text = f"SELECT upper(country) AS c, article, COUNT(DISTINCT reader) AS n FROM reads GROUP BY 1, 2 {WINDOW} <= 1"
    text = text.replace("GROUP BY 1, 2", "GROUP BY country, article") + " ORDER BY c"
    (leaf,) = split_statement(text, warehouse.catalog).leaves
    assert leaf.select.each == ("country",)
    assert leaf.select.k == 1
    answers = warehouse.sql(text, epsilon=5)
    assert answers.table.to_pydict()["c"] == ["IN", "US"]
    assert len(answers.releases) == 1


@pytest.mark.parametrize(
    "text",
    [
        TOP.replace("country", "often"),
        TOP.replace("country", "free"),
        TOP.replace("<= 2", "= 2"),
        TOP.replace("QUALIFY", "HAVING COUNT(DISTINCT reader) < 100 QUALIFY"),
        TOP.replace("row_number", "rank"),
        TOP.replace("COUNT(DISTINCT reader) DESC", "article"),
    ],
)
def test_any_other_qualify_of_a_statement_filters_the_answer(warehouse, text):
    """As it did before: it is computed from the answer to a query for all items."""
    (leaf,) = split_statement(text, warehouse.catalog).leaves
    assert leaf.select.each == ()
    assert "QUALIFY" in split_statement(text, warehouse.catalog).outer


# ------------------------------------------------------------------------------------------------ neighbours


def test_removing_any_user_changes_the_head_of_one_segment_at_most():
    """Theorem 1 of each.md needs this of the engine: users of several labels, none listed, missing labels."""
    rng = random.Random(7)  # noqa: S311 - a table
    labels = ["a", "b", "c", "elsewhere", None]
    rows = [(rng.randrange(40), rng.choice(labels), f"item {rng.randrange(6)}") for _ in range(400)]
    table = pa.table(dict(zip(("who", "segment", "item"), map(list, zip(*rows, strict=True)), strict=True)))
    segments = pa.table({"segment": ["c", "a", "b"]})
    request = query_of("who", ("segment", "item"), each=("segment",), segments=segments, head_limit=3).request

    def heads(rows):
        head = DuckDBEngine(rows).head(request, seed=SECRET)
        ends, found = (0, *head.ends), list(zip(head.labels.to_pylist(), head.counts.tolist(), strict=True))
        return [found[start:end] for start, end in itertools.pairwise(ends)]

    whole, changed = heads(table), set()
    for who in range(40):
        kept = table.filter(pa.array([other != who for other in table["who"].to_pylist()]))
        changed.add(sum(one != two for one, two in zip(whole, heads(kept), strict=True)))
    assert changed <= {0, 1}
    assert 1 in changed
