"""Charts of answers: bars with intervals, and lines of days."""

from __future__ import annotations

import itertools
import re

from discreet.service.doors.pages import charts


def test_the_only_noisy_number_of_a_statement_has_bars(ann):
    """Several are a table of numbers with their intervals, which need not be selected."""
    count = "COUNT(DISTINCT reader)"
    ends = f"LOW({count}), HIGH({count})"
    for columns, bars, intervals in (
        (count, 3, 0),
        (f"{count}, {ends}", 3, 0),
        (f"{count}, {count} / 2 AS half", 0, 6),
    ):
        ann.get("/ask")
        sql = f"SELECT country, {columns} FROM reads GROUP BY country ORDER BY country"
        shown = ann.get(ann.post("/ask", sql=sql, epsilon="0.5").headers["location"]).text
        assert (shown.count('<rect class="bar"'), shown.count('<small class="ends">')) == (bars, intervals)


def test_days_are_a_line_with_points_at_their_time(ann):
    """A day that was not released is a gap, so that the line has no false slope."""
    days = [("2025-12-31", 10), ("2026-01-01", 20), ("2026-01-10", 30)]
    line = charts.line_chart([charts.Item(day, n, n - 5, n + 5, labels=(day,)) for day, n in days])
    assert [series.points for series in line.series] == [[(0, 75), (10, 50), (100, 25)]]
    assert line.across == [(0, "31 Dec", "2025"), (100, "10 Jan", "2026")]
    count = "COUNT(DISTINCT reader)"
    sql = f"SELECT day, {count}, LOW({count}), HIGH({count}) FROM reads GROUP BY day ORDER BY day"
    ann.get("/ask")
    shown = ann.get(ann.post("/ask", sql=sql, epsilon="4").headers["location"]).text
    assert shown.count("<polyline") == 1
    assert shown.count("<circle") == 3


def test_the_last_time_has_a_tick_and_none_is_beside_it():
    """Months are named by the month; other ticks keep their distance."""
    days = [charts.Item(day, 1, 0, 2, labels=(day,)) for day in [f"2026-01-{n:02}" for n in range(1, 31)]]
    ticks = charts.line_chart(days).across
    assert [tick[1] for tick in ticks] == ["1 Jan", "7 Jan", "13 Jan", "19 Jan", "25 Jan", "30 Jan"]
    assert min(after[0] - before[0] for before, after in itertools.pairwise(ticks)) >= 15
    assert [tick[1] for tick in charts.line_chart(days).across_narrow] == ["1 Jan", "15 Jan", "30 Jan"]
    months = [charts.Item(day, 1, 0, 2, labels=(day,)) for day in ("2025-12-01", "2026-01-01", "2026-02-01")]
    assert [tick[1:] for tick in charts.line_chart(months).across] == [("Dec", "2025"), ("Jan", "2026"), ("Feb", "")]


def crossed(*cells):
    """Return items with two labels, from tuples of both and a value."""
    return [charts.Item("", n, n - 1, n + 1, (0, 1, 0, 1), (one, other)) for one, other, n in cells]


def test_dates_and_labels_are_a_line_for_each_label():
    """The largest ones; each has its own points, and a missing date is on no line."""
    days = ("2026-01-01", "2026-01-02", "2026-01-03")
    items = crossed(
        *((name, day, 10 * n) for n, name in enumerate("abcdefgh", 1) for day in days), ("a", "(missing)", 9)
    )
    assert charts.time_of(items, ["text", "date"]) == 1
    chart = charts.line_chart(items, 1)
    assert ([series.name for series in chart.series], chart.left_out) == (list("hgfedc"), 2)
    assert [len(series.points) for series in chart.series] == [3] * 6
    assert charts.time_of(items, ["text", "text"]) is None
    assert charts.time_of(items, ["date", "timestamp[us]"]) is None
    assert charts.time_of([*items, items[0]], ["text", "date"]) is None


def test_two_columns_are_a_table_of_one_by_the_other():
    """Dates and numbers go down, else the column with more labels; those of others are ordered by their sums."""
    items = crossed(("x", "2", 5), ("x", "10", 7), ("y", "2", 30), ("z", "9", 2), ("w", "9", 1))
    table = charts.pivot(items, ["word", "size"], [False, True])
    assert (table.down, table.across, table.columns) == ("size", "word", ["y", "x", "z", "w"])
    cells = {name: [cell and (cell[0].value, cell[1]) for cell in row] for name, row in table.rows}
    assert list(cells) == ["2", "9", "10"]
    assert cells == {
        "2": [(30, 4), (5, 1), None, None],
        "9": [None, None, (2, 0), (1, 0)],
        "10": [None, (7, 1), None, None],
    }
    assert charts.pivot(items, ["one", "other"], [False, False]).down == "one"
    many = crossed(*((f"word {a}", str(b), 1) for a in range(13) for b in range(2)))
    assert charts.pivot(many, ["word", "size"], [False, True]).down == "word"
    square = crossed(*((str(a), str(b), 1) for a in range(13) for b in range(13)))
    assert charts.pivot(square, ["a", "b"], [True, True]) is None


def test_an_answer_is_drawn_by_its_columns(ann):
    """A total is a number; two columns are a table, with lines if one is a date; each keeps its interval."""

    def shown(items):
        ann.get("/ask")
        columns = ", ".join([*items, "COUNT(DISTINCT reader)"])
        group = f" GROUP BY {', '.join(items)}" if items else ""
        return ann.get(
            ann.post("/ask", sql=f"SELECT {columns} FROM reads{group}", epsilon="4").headers["location"]
        ).text

    total = shown([])
    assert re.search(r'<p class="big total">[\d,]+ <span>users; the 95 % interval is [\d,]+ to [\d,]+</span>', total)
    assert "<svg" not in total
    lines = shown(["country", "day"])
    assert lines.count('<polyline class="line series-') > 1
    assert "day / country" in lines
    assert '<rect class="bar"' not in lines
    table = shown(["article", "country"])
    assert 'class="pivot stack"' in table
    assert "<polyline" not in table
    assert re.search(r'data-value="\d+">[\d,]+<small>[\d,-]+ to [\d,]+</small>', table)
