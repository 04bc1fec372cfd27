"""Charts of answers: bars with intervals, and lines of days."""

from __future__ import annotations

from discreet.service.pages import charts


def test_the_only_count_of_a_statement_has_bars_if_its_interval_is_selected(ann):
    """Numbers without an interval are a table, because a bar without its error would be misleading."""
    count = "COUNT(DISTINCT reader)"
    ends = f"LOW({count}), HIGH({count})"
    for columns, bars in ((count, 0), (f"{count}, {ends}", 3), (f"{count}, {count} / 2 AS half, {ends}", 0)):
        ann.get("/ask")
        sql = f"SELECT country, {columns} FROM reads GROUP BY country ORDER BY country"
        link = ann.post("/ask", sql=sql, epsilon="0.5").headers["location"]
        assert ann.get(link).text.count('<rect class="bar"') == bars


def test_days_are_a_line_with_points_at_their_time(ann):
    """A day that was not released is a gap, so that the line has no false slope."""
    days = [("2025-12-31", 10), ("2026-01-01", 20), ("2026-01-10", 30)]
    line = charts.line_of([charts.Item(day, n, n - 5, n + 5) for day, n in days])
    assert line.points == [(0, 75), (10, 50), (100, 25)]
    assert line.across == [(0, "31 Dec", "2025"), (100, "10 Jan", "2026")]
    count = "COUNT(DISTINCT reader)"
    sql = f"SELECT day, {count}, LOW({count}), HIGH({count}) FROM reads GROUP BY day ORDER BY day"
    ann.get("/ask")
    shown = ann.get(ann.post("/ask", sql=sql, epsilon="4").headers["location"]).text
    assert shown.count("<polyline") == 1
    assert shown.count("<circle") == 3
