"""Geometry of the charts: bars with intervals, and lines with bands, in percent of their area.

Charts are SVG rendered by the server, without scripts, exceptions in the content security policy or external files.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from discreet.service.pages.text import label, number

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from discreet.wire.queries import StatementColumn

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
    """

    label: str
    value: float | str | None = None
    low: float | str | None = None
    high: float | str | None = None
    bar: tuple[float, float, float, float] | None = None

    @property
    def interval(self) -> str:
        """Return the interval as text."""
        return f"{number(self.low)} to {number(self.high)}"


@dataclass(frozen=True, slots=True)
class Line:
    """A line with a band, in an area of 100 by 100 that begins at the top left.

    Args:
        line: the points of the line, as an SVG `points` attribute.
        band: the polygon of the intervals, as an SVG `points` attribute.
        points: the coordinates of the points; empty if they are too many for markers.
        across: ticks of the horizontal axis: position and two lines of text.
        up: ticks of the vertical axis: position and text.
    """

    line: str
    band: str
    points: list[tuple[float, float]]
    across: list[tuple[float, str, str]]
    up: list[tuple[float, str]]


def items_of(release: Mapping[str, Any]) -> list[Item]:
    """Return the items of a release with their bars, from its stored document."""
    names = [column["name"] for column in release["columns"]]
    begin = 1 if release["query"]["k"] is not None else 0
    labels = names[begin : begin + max(len(release["question"]["items"]), 1)]
    values = names[begin + len(labels) :]
    if not values:
        return [Item(label([item[name] for name in labels])) for item in release["items"]]
    value, _, low, high = values[:4]
    return bars(
        (label([item[name] for name in labels]), item[value], item[low], item[high]) for item in release["items"]
    )


def interval_columns(columns: Sequence[StatementColumn]) -> tuple[int, int, int] | None:
    """Return the positions of the only value column and of the columns low and high, or None without such columns."""
    names = [column.name.casefold() for column in columns]
    numbers = [place for place, column in enumerate(columns) if is_number(column)]
    ends = [place for place in numbers if names[place] in {"low", "high"}]
    if len(numbers) != 3 or len(ends) != 2 or names[ends[0]] == names[ends[1]]:
        return None
    (value,) = set(numbers) - set(ends)
    return value, names.index("low"), names.index("high")


def is_time_line(items: Sequence[Item], labels: Sequence[StatementColumn]) -> bool:
    """Return True if the items of a statement have a single label column of distinct dates or times."""
    dated = [column.type.lower().startswith(_TIMES) for column in labels] == [True]
    return dated and 2 < len(items) == len({item.label for item in items})


def statement_items(rows: Sequence[Sequence[Any]], places: tuple[int, int, int]) -> list[Item]:
    """Return the rows of a statement with their bars; none if a value is missing or outside of its interval.

    Args:
        places: positions of the value and its interval, from `interval_columns`; all other columns are labels.
    """
    found = []
    for row in rows:
        value, low, high = (row[place] for place in places)
        if value is None or low is None or high is None or not float(low) <= float(value) <= float(high):
            return []
        name = label([each for place, each in enumerate(row) if place not in places])
        found.append((name or "total", value, low, high))
    return bars(found)


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

    found = []
    for name, value, low, high in items:
        begin, end = sorted((place(0), place(value)))
        found.append(Item(name, value, low, high, (begin, round(end - begin, 2), place(low), place(high))))
    return found


def is_time_series(release: Mapping[str, Any]) -> bool:
    """Return True if the only item column of a release is a date or a time, and more than two items have values."""
    begin = 1 if release["query"]["k"] is not None else 0
    single = len(release["question"]["items"]) == 1 and len(release["columns"]) > begin + 1
    return single and len(release["items"]) > 2 and release["columns"][begin]["type"].startswith(_TIMES)


def line_of(items: Sequence[Item]) -> Line:
    """Return the line chart of items with values, whose labels are dates or times."""
    shown = sorted((item for item in items if item.label != "(missing)"), key=lambda item: item.label)
    times = [datetime.fromisoformat(item.label).replace(tzinfo=None) for item in shown]
    highs, lows = [float(item.high or 0) for item in shown], [float(item.low or 0) for item in shown]
    ticks = nice_ticks(min(0.0, *lows), max(1.0, *highs))
    least, most = ticks[0], ticks[-1]
    seconds = [(time - times[0]).total_seconds() for time in times]
    xs = [round(100 * second / (seconds[-1] or 1), 2) for second in seconds]

    def y(value: float | str | None) -> float:
        return round(100 - 100 * (float(value or 0) - least) / (most - least), 2)

    points = [(x, y(item.value)) for x, item in zip(xs, shown, strict=True)]
    above = [f"{x},{y(item.high)}" for x, item in zip(xs, shown, strict=True)]
    below = [f"{x},{y(item.low)}" for x, item in zip(xs, shown, strict=True)]
    return Line(
        " ".join(f"{x},{height}" for x, height in points),
        " ".join([*above, *reversed(below)]),
        points if len(points) <= _MAX_POINTS else [],
        _time_ticks(times, xs),
        [(y(tick), number(tick)) for tick in ticks],
    )


def _time_ticks(times: Sequence[datetime], xs: Sequence[float]) -> list[tuple[float, str, str]]:
    """Return about five ticks: position, day or time, and the year or day if it differs from the previous tick's."""
    fine, coarse = ("%H:%M", "%-d %b") if any(time.hour or time.minute for time in times) else ("%-d %b", "%Y")
    found, before, room = [], "", 0.0
    for time, x in zip(times, xs, strict=True):
        if x >= room:
            above = f"{time:{coarse}}"
            found.append((x, f"{time:{fine}}", above if above != before else ""))
            before, room = above, x + 20
    return found


def columns(values: Sequence[float]) -> list[tuple[float, float]]:
    """Return the position and height of the columns of a small chart, in percent, without empty columns."""
    most = max([0.0, *values])
    return [(round(100 * n / len(values), 2), round(100 * x / most, 1)) for n, x in enumerate(values) if x > 0]


def steps(shares: Sequence[float]) -> str:
    """Return a step line of daily shares as an SVG `points` attribute, in an area of 100 by 100."""
    ends = [(100 * end / len(shares), share) for day, share in enumerate(shares) for end in (day, day + 1)]
    return " ".join(f"{x:.2f},{100 - 100 * share:.2f}" for x, share in ends)


def nice_ticks(least: float, most: float, wanted: int = 4) -> list[float]:
    """Return about *wanted* round, evenly spaced numbers that cover the range from *least* to *most*."""
    raw = max(most - least, 1e-9) / wanted
    power = 10 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * (1 - 1e-9))
    first, last = math.floor(least / step), math.ceil(most / step)
    return [n * step for n in range(first, last + 1)]
