"""Geometry of the charts: bars with intervals, and lines with bands, in percent of their area.

Charts are SVG rendered by the server, without scripts, exceptions in the content security policy or external files.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import Any

from discreet.service.doors.pages.text import label, number
from discreet.wire.queries import StatementColumn

MAX_SERIES = 6
"""The most lines in a chart; the largest are shown."""

MAX_PIVOTED = 12
"""The most labels beside each other in a table of two label columns."""

_SHADES = 5
_TIMES = ("date", "timestamp")
_MAX_POINTS = 62
_NUMBERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "FLOAT", "DOUBLE", "DECIMAL")


@dataclass(frozen=True, slots=True)
class Item:
    """A released item.

    Args:
        label: the label of the item.
        value: the noisy value, or None in a release of labels only.
        low: the lower end of the 95 % interval, or None.
        high: the upper end of the 95 % interval, or None.
        bar: the start and width of the bar, then the start and end of the interval, in percent.
        labels: the labels of each column.
    """

    label: str
    value: float | str | None = None
    low: float | str | None = None
    high: float | str | None = None
    bar: tuple[float, float, float, float] | None = None
    labels: tuple[str, ...] = ()

    @property
    def interval(self) -> str:
        """Return the interval as text."""
        return f"{number(self.low)} to {number(self.high)}"


@dataclass(frozen=True, slots=True)
class Series:
    """One line with its band, in the area of a `LineChart`.

    Args:
        name: the label that its items share; empty for the only line.
        line: the points of the line, as an SVG `points` attribute.
        band: the polygon of the intervals, as an SVG `points` attribute.
        points: the coordinates of the points; empty if they are too many for markers.
    """

    name: str
    line: str
    band: str
    points: list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class LineChart:
    """Lines over time, in an area of 100 by 100 that begins at the top left.

    Args:
        across: ticks of the horizontal axis: position and two lines of text. The last is the last time.
        across_narrow: those of a narrow screen.
        up: ticks of the vertical axis: position and text.
        left_out: the number of lines that are not shown.
        hatched: beginnings and widths of first and last periods that are incomplete.
    """

    series: list[Series]
    across: list[tuple[float, str, str]]
    across_narrow: list[tuple[float, str, str]]
    up: list[tuple[float, str]]
    left_out: int = 0
    hatched: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True, slots=True)
class Pivot:
    """A table with the labels of one column down and of another across.

    Args:
        rows: a label and a cell for each of *columns*: the item and its shade from 0 to 4; None without an item.
    """

    down: str
    across: str
    columns: list[str]
    rows: list[tuple[str, list[tuple[Item, int] | None]]]


def items_of(release: Mapping[str, Any]) -> list[Item]:
    """Return the items of a release with their bars, from its stored document."""
    names = [column["name"] for column in release["columns"]]
    begin = 1 if release["query"]["k"] is not None else 0
    question = release["question"]
    labels = names[begin : begin + len(question.get("each", ())) + max(len(question["items"]), 1)]
    values = names[begin + len(labels) :]
    named = [[label([item[name]]) for name in labels] for item in release["items"]]
    if not values:
        return [Item(label(row), labels=tuple(row)) for row in named]
    value = next(name for name in ("sum", "average", "count") if name in values)  # averages have counts, too
    drawn = bars(
        (label(row), item[value], item["low"], item["high"]) for row, item in zip(named, release["items"], strict=True)
    )
    return [replace(item, labels=tuple(row)) for item, row in zip(drawn, named, strict=True)]


def multiples(items: Sequence[Item], segmented: int) -> list[tuple[str, list[Item]]]:
    """Return the items of each segment, in order, with its name; their bars keep the axis that all segments share.

    Args:
        segmented: how many labels of an item, from the first, name its segment.
    """
    parts: dict[str, list[Item]] = {}
    for item in items:
        parts.setdefault(label(item.labels[:segmented]), []).append(replace(item, label=label(item.labels[segmented:])))
    return list(parts.items())


def interval_columns(columns: Sequence[StatementColumn]) -> dict[int, tuple[int, int]]:
    """Return the positions of the columns that hold the ends of the intervals of columns, by their positions."""
    names = [column.name for column in columns]
    return {
        place: (names.index(column.interval[0]), names.index(column.interval[1]))
        for place, column in enumerate(columns)
        if column.interval is not None and column.interval != "none"
    }


def time_of(items: Sequence[Item], types: Sequence[str]) -> int | None:
    """Return which of one or two label columns is the only date or time, or None if there is no line to draw.

    Args:
        types: the types of the label columns, as releases or SQL name them.
    """
    dated = [place for place, type_ in enumerate(types) if type_.lower().startswith(_TIMES)]
    if len(dated) != 1 or not 1 <= len(types) <= 2 or not items or items[0].bar is None:
        return None
    times = {item.labels[dated[0]] for item in items} - {"(missing)"}
    distinct = len({item.labels for item in items}) == len(items)
    return dated[0] if len(times) > 2 and distinct else None


def statement_items(rows: Sequence[Sequence[Any]], places: tuple[int, int, int]) -> list[Item]:
    """Return the rows of a statement with their bars; none if a value is missing or outside of its interval.

    Args:
        places: positions of the value and its interval, from `interval_columns`; all other columns are labels.
    """
    values = []
    labels = []
    for row in rows:
        value, low, high = (row[place] for place in places)
        if value is None or low is None or high is None:
            return []
        # Intervals of counts are cut at 0, which noisy counts may be below.
        if not (float(low) <= float(value) <= float(high) or float(value) < float(low) == 0):
            return []
        labels.append(tuple(label([cell]) for place, cell in enumerate(row) if place not in places))
        values.append((label(labels[-1]) or "total", value, low, high))
    return [replace(item, labels=row_labels) for item, row_labels in zip(bars(values), labels, strict=True)]


def is_number(column: StatementColumn) -> bool:
    """Return True if a column of a statement's answer is numeric."""
    return column.type.startswith(_NUMBERS)


def bars(items: Iterable[tuple[str, float | str, float | str, float | str]]) -> list[Item]:
    """Return items with bars scaled to a common axis, from tuples of label, value, low and high."""
    items = list(items)
    least = min([0.0, *(float(low) for _, _, low, _ in items)])
    most = max([least + 1e-9, *(float(high) for _, _, _, high in items)])

    def place(x: float | str) -> float:
        return round(100 * (min(max(float(x), least), most) - least) / (most - least), 2)

    drawn = []
    for name, value, low, high in items:
        begin, end = sorted((place(0), place(value)))
        drawn.append(Item(name, value, low, high, (begin, round(end - begin, 2), place(low), place(high))))
    return drawn


def line_chart(
    items: Sequence[Item], time: int = 0, table: Pivot | None = None, incomplete: tuple[int, int] = (0, 0)
) -> LineChart:
    """Return the line of items with values over their only label, or a line for each label of the other column.

    Args:
        time: which of the labels is a date or time.
        table: has the lines in the order that their legend gets, too.
        incomplete: the numbers of first and of last periods that are incomplete.
    """
    by_name: dict[str, list[Item]] = {}
    for item in items:
        if item.labels[time] != "(missing)":
            by_name.setdefault(label([text for n, text in enumerate(item.labels) if n != time]), []).append(item)
    largest = sorted(by_name, key=lambda name: -sum(float(item.value or 0) for item in by_name[name]))
    names = largest[:MAX_SERIES]
    if table is not None:
        order = [*table.columns, *(name for name, _ in table.rows)]
        names.sort(key=order.index)
    shown = [sorted(by_name[name], key=lambda item: item.labels[time]) for name in names]
    every = [item for group in shown for item in group]
    moments = {item.labels[time]: datetime.fromisoformat(item.labels[time]).replace(tzinfo=None) for item in every}
    times = sorted(set(moments.values()))
    seconds = (times[-1] - times[0]).total_seconds() or 1
    xs = {text: round(100 * (moment - times[0]).total_seconds() / seconds, 2) for text, moment in moments.items()}
    ticks = _nice_ticks(min(0.0, *(float(i.low or 0) for i in every)), max(1.0, *(float(i.high or 0) for i in every)))
    least = ticks[0]
    most = ticks[-1]

    def y(value: float | str | None) -> float:
        return round(100 - 100 * (float(value or 0) - least) / (most - least), 2)

    series = []
    for name, group in zip(names, shown, strict=True):
        points = [(xs[item.labels[time]], y(item.value)) for item in group]
        above = [f"{x},{y(item.high)}" for (x, _), item in zip(points, group, strict=True)]
        below = [f"{x},{y(item.low)}" for (x, _), item in zip(points, group, strict=True)]
        line = " ".join(f"{x},{height}" for x, height in points)
        band = " ".join([*above, *reversed(below)])
        series.append(Series(name, line, band, points if len(points) <= _MAX_POINTS else []))
    places = sorted(set(xs.values()))
    borders = [0.0, *((before + after) / 2 for before, after in pairwise(places)), 100.0]
    first, last = incomplete
    hatched = [(0.0, borders[first])] if first else []
    if last:
        hatched.append((borders[-1 - last], 100 - borders[-1 - last]))
    positions = [round(100 * (moment - times[0]).total_seconds() / seconds, 2) for moment in times]
    return LineChart(
        series,
        _time_ticks(times, positions, 20),
        _time_ticks(times, positions, 45),
        [(y(tick), _short(tick, most)) for tick in ticks],
        len(largest) - len(names),
        hatched,
    )


def order_of(items: Sequence[Item], label: str, measured: str, *, ranked: bool = False) -> str | None:
    """Return the order of items in a sentence, or None if they have none.

    Args:
        ranked: True if a mechanism ranked them.
    """
    if len(items) < 2:
        return None
    if ranked:
        return f"Ranked by {measured}, largest first; the order has noise, as the counts have."
    values = [float(item.value) for item in items if item.value is not None]
    if values and values == sorted(values, reverse=True):
        return f"Sorted by {measured}, largest first."
    labels = [tuple((_number_in(text), text) for text in item.labels) for item in items]
    return f"Sorted by {label}." if labels == sorted(labels) else None


def _short(value: float, most: float) -> str:
    """Return a number of an axis up to *most*, in millions or billions where those are shorter."""
    for unit, name in ((1e9, "bn"), (1e6, "M")):
        if most >= unit:
            return f"{value / unit:g} {name}" if value else "0"
    return number(value)


def _time_ticks(times: Sequence[datetime], xs: Sequence[float], apart: float) -> list[tuple[float, str, str]]:
    """Return ticks with the last time: position, day or time, and the year or day where it changes.

    Args:
        apart: the distance of two ticks; three fourths of it before the last.
    """
    fine, coarse = ("%H:%M", "%-d %b") if any(time.hour or time.minute for time in times) else ("%-d %b", "%Y")
    if coarse == "%Y" and all(time.day == 1 for time in times):
        fine = "%b"  # months
    ticks = []
    before = ""
    room = 0.0
    for time, x in zip(times, xs, strict=True):
        if x == xs[-1] or (x >= room and x <= xs[-1] - 0.75 * apart):
            above = f"{time:{coarse}}"
            ticks.append((x, f"{time:{fine}}", above if above != before else ""))
            before = above
            room = x + apart
    return ticks


def pivot(items: Sequence[Item], names: Sequence[str], ordered: Sequence[bool]) -> Pivot | None:
    """Return the items of two label columns as a table, or None if both columns have too many labels.

    Args:
        names: the names of the two columns.
        ordered: True for each column whose labels have an order of their own, as dates and numbers; the labels of
            others are ordered by their sums.
    """
    labels: list[list[str]] = []
    for place in (0, 1):
        sums: dict[str, float] = {}
        for item in items:
            sums[item.labels[place]] = sums.get(item.labels[place], 0) + float(item.value or 0)
        labels.append(list(sums) if ordered[place] else sorted(sums, key=lambda text: -sums[text]))
        if ordered[place]:
            labels[-1].sort(key=lambda text: (_number_in(text), text))
    down = 0 if len(labels[1]) <= len(labels[0]) else 1
    if ordered[0] != ordered[1] and len(labels[0 if ordered[1] else 1]) <= MAX_PIVOTED:
        down = 1 if ordered[1] else 0  # dates go down if the others fit across
    if len(labels[1 - down]) > MAX_PIVOTED:
        return None
    cells = {(item.labels[down], item.labels[1 - down]): item for item in items}
    most = max([1e-9, *(float(item.value or 0) for item in items)])

    def cell(place: tuple[str, str]) -> tuple[Item, int] | None:
        item = cells.get(place)
        share = 0.0 if item is None else min(max(float(item.value or 0) / most, 0.0), 1.0)
        return None if item is None else (item, round(share * (_SHADES - 1)))

    across = labels[1 - down]
    rows = [(text, [cell((text, other)) for other in across]) for text in labels[down]]
    return Pivot(names[down], names[1 - down], across, rows)


def _number_in(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.inf


def columns(values: Sequence[float]) -> list[tuple[float, float]]:
    """Return the position and height of the columns of a small chart, in percent, without empty columns."""
    most = max([0.0, *values])
    return [(round(100 * n / len(values), 2), round(100 * x / most, 1)) for n, x in enumerate(values) if x > 0]


def steps(shares: Sequence[float], days: int) -> str:
    """Return a step line of the first daily shares of *days* as an SVG `points` attribute, in an area of 100 by 100."""
    ends = [(100 * end / days, share) for day, share in enumerate(shares) for end in (day, day + 1)]
    return " ".join(f"{x:.2f},{100 - 100 * share:.2f}" for x, share in ends)


def _nice_ticks(least: float, most: float) -> list[float]:
    """Return about four round, evenly spaced numbers that cover the range from *least* to *most*."""
    raw = max(most - least, 1e-9) / 4
    power = 10 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * (1 - 1e-9))
    first = math.floor(least / step)
    last = math.ceil(most / step)
    return [n * step for n in range(first, last + 1)]
