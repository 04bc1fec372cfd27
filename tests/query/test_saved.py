"""Saved tables in statements: each is its text, answered by the releases that it names."""

from __future__ import annotations

import contextlib
import random

import duckdb
import pyarrow as pa
import pytest

from discreet.errors import InputError, SQLError
from discreet.query.answers import HIGH, LOW, NUMBERS, VALUE
from discreet.query.saved import MAX_NESTED, SavedPart, SavedTable, TableChange, changed, read_change, tables_in
from discreet.query.statement import Statement, split_statement

TEXT = "SELECT country, day, COUNT(DISTINCT reader) AS n, SUM(minutes) AS m FROM reads GROUP BY country, day"
MORE = (
    "SELECT country, day, COUNT(DISTINCT reader) AS n, SUM(minutes) AS m FROM reads WHERE day = 3 GROUP BY country, day"
)


def saved(*texts: str, uses: dict[str, SavedTable] | None = None, name: str = "r", view: bool = False) -> SavedTable:
    """Return a saved table of these statements, whose releases are called r0, r1, ..."""
    parts = []
    for number, text in enumerate(texts):
        asked = [leaf for leaf in split_statement(text, saved=uses).leaves if leaf.release is None]
        ids = {} if view else {leaf.sql: f"{name}{number}{at}" for at, leaf in enumerate(asked)}
        parts.append(SavedPart(text, "2026-11-24", ids, uses or {}))
    return SavedTable(tuple(parts), view=view)


def answer(number: int) -> pa.Table:
    """Return the answer to a query: its rows depend on *number*."""
    random_ = random.Random(number)  # noqa: S311
    rows = [(c, d, random_.randint(0, 90)) for c in ("a", "b", None) for d in (1, 2, 3) if random_.random() < 0.8]
    columns = {"country": [c for c, _, _ in rows], "day": [d for _, d, _ in rows], VALUE: [n for *_, n in rows]}
    half = random_.randint(1, 9)
    parts = dict.fromkeys(NUMBERS[3:], [float(half)] * len(rows))
    return pa.table(columns | {LOW: [n - half for *_, n in rows], HIGH: [n + half for *_, n in rows]} | parts)


def rows_of(database: duckdb.DuckDBPyConnection, statement: Statement, answers: dict[str, pa.Table]) -> list[tuple]:
    """Return the rows of a statement with these answers, by the SQL of their query."""
    for leaf in statement.leaves:
        answered = answers[leaf.sql]  # noqa: F841 - DuckDB reads it
        database.execute(f"CREATE OR REPLACE TABLE answers.{leaf.name} AS FROM answered")
    return database.execute(statement.outer).fetchall()


class Statements:
    """Generates statements over a table `t` with columns country, day, n and m."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311

    def __call__(self) -> str:
        choose = self._random.choice
        source = choose(["{t} AS t", "{t} AS t", "(SELECT country, day, n, m FROM {t} AS i WHERE n > 5) AS t"])
        where = choose(
            ["", " WHERE t.n > 20", " WHERE t.country IN ('a', 'b') AND t.day <= 2", " WHERE t.country IS NULL"]
        )
        number = choose(["t.n", "t.n - t.m", "t.m / t.n", "ROUND(2 * t.n + 1)", "100.0 * t.n / NULLIF(t.m, 0)"])
        if self._random.random() < 0.3:
            measure = choose(["SUM(t.n)", "MAX(t.m) - MIN(t.n)", "COUNT(*)", "AVG(t.n)"])
            key = choose(["t.country", "t.day"])
            if measure == "SUM(t.n)" and ">" not in source + where:
                measure += f" AS s, {choose(['LOW', 'HIGH'])}(SUM(t.n))"
            having = choose(["", " HAVING COUNT(*) > 1"])
            return f"SELECT {key} AS k, {measure} AS x FROM {source}{where} GROUP BY {key}{having} ORDER BY 1, 2"
        columns = choose(["", ", RANK() OVER (PARTITION BY t.country ORDER BY t.n) AS r", ", upper(t.country) AS u"])
        if self._random.random() < 0.5:
            columns += f", LOW({number}) AS l, HIGH({number}) AS h"
        if self._random.random() < 0.25:
            source += " JOIN {t} AS o ON t.day = o.day"
            columns += ", o.n AS other"
        end = choose(["", " LIMIT 3", " LIMIT 5 OFFSET 1"])
        statement = f"SELECT t.country, t.day, {number} AS x{columns} FROM {source}{where}"
        order = ", ".join(
            map(str, range(1, statement.count(" AS ") + 3 - statement.partition(" FROM ")[2].count(" AS ")))
        )
        if self._random.random() < 0.2:
            return f"SELECT day, x FROM ({statement}) AS s UNION ALL SELECT day, n FROM {{t}} AS u ORDER BY 1, 2{end}"
        return f"{statement} ORDER BY {order}{end}"


@pytest.mark.parametrize("seed", range(10))
def test_a_statement_over_a_saved_table_is_the_one_over_the_with_of_its_text(seed):
    """500 statements in all: the same rows and marks, and nothing that has to be asked or charged."""
    generate = Statements(seed)
    database = duckdb.connect()  # one for all, because `compute_outer` opens one for each
    database.execute("CREATE SCHEMA answers")
    tables = [(saved(TEXT), TEXT), (saved(TEXT, MORE), f"{TEXT} UNION ALL {MORE}")]
    intervals = 0
    for number in range(50):
        table, text = tables[number % 2]
        shape = generate()
        over = split_statement(shape.replace("{t}", "saved.top"), saved={"top": table})
        written = split_statement(f"WITH w AS ({text}) " + shape.replace("{t}", "w"))
        assert all(leaf.release is not None for leaf in over.leaves)
        assert {leaf.sql for leaf in over.leaves} == {leaf.sql for leaf in written.leaves}
        assert over.marks == written.marks
        answers = {leaf.sql: answer(place) for place, leaf in enumerate(written.leaves)}
        found, expected = (rows_of(database, of, answers) for of in (over, written))
        assert found == expected, shape
        intervals += "LOW" in shape
    assert intervals > 5


def test_what_a_table_is_made_of_stays_and_what_a_view_reads_is_asked():
    """A table in a view, and a view in a table; a release that is read twice is one answer."""
    top = saved(TEXT)
    view = saved(
        "SELECT country, n FROM saved.top UNION ALL SELECT country, COUNT(*) FROM reads GROUP BY country",
        uses={"top": top},
        view=True,
    )
    leaves = split_statement(
        "SELECT * FROM saved.v JOIN saved.top USING (country)", saved={"v": view, "top": top}
    ).leaves
    assert [leaf.release for leaf in leaves] == ["r00", "r01", None]
    made = saved("SELECT * FROM saved.v", uses={"v": view}, name="s")
    assert made.releases == {"r00", "r01", "s00"}
    assert [leaf.release for leaf in split_statement("SELECT * FROM saved.w", saved={"w": made}).leaves] == [
        "r00",
        "r01",
        "s00",
    ]


def test_answers_that_may_be_one_release_have_no_common_interval():
    """A query of today may be replayed from the release that a saved table names; one of another filter may not."""
    counts = "SELECT country, COUNT(DISTINCT reader) AS n FROM reads {}GROUP BY country"
    tables = {"top": saved(counts.format(""))}
    shape = "SELECT LOW(a.n - b.n) FROM saved.top AS a JOIN ({}) AS b USING (country)"
    assert split_statement(shape.format(counts.format("WHERE day = 1 ")), saved=tables).leaves
    with pytest.raises(SQLError, match="LOW takes"):
        split_statement(shape.format(counts.format("")), saved=tables)


def test_limits_are_refused_in_one_sentence():
    """Nested deeper than `MAX_NESTED`, doubled, missing, or of a catalog that reads the text in another way."""
    table = saved(TEXT)
    for _ in range(MAX_NESTED + 1):
        table = SavedTable((SavedPart("SELECT * FROM saved.t", "2026-11-24", uses={"t": table}),), view=True)
    with pytest.raises(SQLError, match="deep"):
        split_statement("SELECT * FROM saved.t", saved={"t": table})
    doubled = saved(TEXT)
    for _ in range(4):
        text = "SELECT * FROM " + " NATURAL JOIN ".join(["saved.t"] * 8)
        doubled = SavedTable((SavedPart(text, "2026-11-24", uses={"t": doubled}),), view=True)
    with pytest.raises(SQLError, match="at most"):
        split_statement("SELECT * FROM saved.t", saved={"t": doubled})
    with pytest.raises(SQLError, match="no saved table 'x'"):
        split_statement("SELECT * FROM saved.x", saved={"t": saved(TEXT)})
    with pytest.raises(SQLError, match="cannot be read"):
        split_statement("SELECT * FROM saved.t", saved={"t": SavedTable((SavedPart(TEXT, "2026-11-24"),))})
    view = SavedTable((SavedPart("SELECT * FROM saved.t", "2026-11-24"),), view=True)
    with pytest.raises(InputError, match="at most 200"):
        tables_in("SELECT * FROM saved.t", lambda _: view)


def test_a_changed_table_keeps_its_parts():
    """The answers of an earlier part stay those of its data; a repeated request adds nothing."""
    part = SavedPart(TEXT, "2026-11-24", {"q": "r"}, key="k")
    new = SavedTable((part,), (("n", "BIGINT"),))
    create, insert = (TableChange(action, ("saved",), "x") for action in ("create table", "insert"))
    made = changed(None, create, new)
    assert changed(made, insert, new) is made
    other = SavedTable((SavedPart(TEXT, "2026-11-25"),), (("m", "BIGINT"),))
    assert changed(made, insert, other).parts == (part, *other.parts)


@pytest.mark.parametrize(
    "text",
    [
        "CREATE TABLE saved.x" + " " * 19_000,
        "CREATE TABLE " + "a." * 9_000,
        "INSERT INTO saved.x (" + "a," * 9_000,
        "INSERT INTO saved.x " + "(" * 19_000,
        'DROP TABLE "' + '""' * 9_000,
        "COMMENT ON TABLE x IS '" + "''" * 9_000,
    ],
)
def test_long_texts_are_read_in_linear_time(text):
    """A regular expression that backtracks would take minutes."""
    with contextlib.suppress(SQLError):
        assert read_change(text) is not None
