"""The filter of a query as fields of the form: labels to pick, ranges of dates and numbers, and the rest as SQL."""

from __future__ import annotations

import datetime
import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from discreet.errors import InputError
from discreet.head_request import And, Comparison, Constant, IsNull, Kind, Membership, Not, Or, Predicate
from discreet.query.predicates import read_number, read_text, read_timestamp
from discreet.query.query import Select
from discreet.query.sql import condition
from discreet.release.periods import conjuncts
from discreet.wire.queries import ColumnDetail, DatasetDetail

MAX_CHOICES = 100
"""The most labels of a column that are shown as choices; more are suggestions for a text."""

MAX_HINTS = 3
"""The most hints that are shown at once."""

_DAY = datetime.timedelta(days=1)
_NUMBERS = {"integer", "decimal", "float"}


@dataclass(frozen=True, slots=True)
class Filter:
    """The fields for one column, and their values.

    Args:
        kind: "choice" has *picked* labels, "date", "time" and "number" a range from *low* to *high*, both included,
            and "text" one value: *low*. The range of "time" is of days.
        labels: the listed labels, as text; empty if the catalog lists none.
        presets: name, first and last day of ranges to choose from.
    """

    column: str
    kind: Literal["choice", "date", "time", "number", "text"]
    numbers: bool = False
    labels: tuple[str, ...] = ()
    picked: tuple[str, ...] = ()
    low: str = ""
    high: str = ""
    presets: tuple[tuple[str, str, str], ...] = ()

    @property
    def shown(self) -> str:
        """The values in a few words, or "any"."""
        if self.kind == "choice":
            few = ", ".join(self.picked[:3])
            return f"{few} + {len(self.picked) - 3}" if len(self.picked) > 3 else few or "any"
        if self.low and self.high:
            return self.low if self.low == self.high else f"{self.low} to {self.high}"
        if self.kind == "text":
            return self.low or "any"
        return f"from {self.low}" if self.low else f"up to {self.high}" if self.high else "any"

    def predicates(self) -> Iterator[Predicate]:
        """Yield the conditions on the column.

        Raises:
            InputError: a value is no number or date.
        """
        if self.kind == "choice" and self.picked:
            constants = tuple(map(self._constant, self.picked))
            one = len(constants) == 1
            yield Comparison(self.column, "=", constants[0]) if one else Membership(self.column, constants)
        elif self.low and (self.kind == "text" or (self.low == self.high and self.kind != "time")):
            yield Comparison(self.column, "=", self._constant(self.low))
        else:
            if self.low:
                yield Comparison(self.column, ">=", self._constant(self.low))
            if self.high and self.kind == "time":  # the whole last day
                last = datetime.date.fromisoformat(self._constant(self.high).text)
                if last == datetime.date.max:
                    return
                yield Comparison(self.column, "<", Constant(Kind.TEXT, (last + _DAY).isoformat()))
            elif self.high:
                yield Comparison(self.column, "<=", self._constant(self.high))

    def _constant(self, text: str) -> Constant:
        if self.numbers:
            constant = read_number(text)
            if constant is None:
                raise InputError(f"{self.column} is compared with numbers, such as 5 or 2.5")
            return constant
        if self.kind in {"date", "time"}:
            constant = read_timestamp(text)
            if constant is None or constant.kind is not Kind.DATE:
                raise InputError(f"{self.column} is compared with dates, such as 2026-01-31")
            return Constant(Kind.TEXT, text)
        if self.kind == "choice" and self.labels == ("true", "false"):
            return Constant(Kind.BOOLEAN, text)
        return read_text(text)

    def with_part(self, part: Predicate) -> Filter | None:
        """Return the fields with one more condition, or None if they cannot show it."""
        match part:
            case Membership(_, constants) if self.kind == "choice":
                values = [constant.text for constant in constants]
                operator = "="
            case Comparison(_, operator, constant) if self.kind == "choice" or self._fits(constant):
                values = [constant.text]
            case _:
                return None
        value = values[0] if values else ""
        fuller = None
        match self.kind, operator:
            case "choice", "=" if not self.picked and {*values} <= {*self.labels}:
                fuller = replace(self, picked=tuple(values))
            case (("date" | "number" | "text"), "=") if not self.low and not self.high:
                fuller = replace(self, low=value, high="" if self.kind == "text" else value)
            case (("date" | "time" | "number"), ">=") if not self.low:
                fuller = replace(self, low=value)
            case (("date" | "number"), "<=") if not self.high:
                fuller = replace(self, high=value)
            case "time", "<" if not self.high and value > "0001-01-01":
                fuller = replace(self, high=(datetime.date.fromisoformat(value) - _DAY).isoformat())
        return fuller

    def _fits(self, constant: Constant) -> bool:
        if self.kind in {"date", "time"}:
            timestamp = read_timestamp(constant.text)
            return timestamp is not None and timestamp.kind is Kind.DATE
        return (constant.kind in {Kind.INTEGER, Kind.DECIMAL}) is self.numbers


def filters_of(
    dataset: DatasetDetail, where: Predicate | None, today: datetime.date
) -> tuple[list[Filter], Predicate | None]:
    """Return the fields for the columns of a dataset that show *where*, and the part of it that they cannot show."""
    filters = {
        column.name.casefold(): _empty(column, today)
        for column in dataset.columns
        if column.filter and column.period_of is None
    }
    rest: list[Predicate] = []
    for part in conjuncts(where):
        name = part.column.casefold() if isinstance(part, Comparison | Membership) else ""
        fuller = filters[name].with_part(part) if name in filters else None
        if fuller is None:
            rest.append(part)
        else:
            filters[name] = fuller
    return list(filters.values()), None if not rest else rest[0] if len(rest) == 1 else And(tuple(rest))


def typed_filters(
    filters: Iterable[Filter], picked: Sequence[str], ranges: Iterable[tuple[str, str, str]], presets: Sequence[str]
) -> list[Filter]:
    """Return empty fields with the values of a form.

    Args:
        picked: a column, = and a label each.
        ranges: a column, and the ends of its range.
        presets: a column, =, and the first and last day of its range with a slash between them; each replaces a range.
    """
    ends = {column: (low, high) for column, low, high in ranges}
    filled = []
    for field_ in filters:
        begin = f"{field_.column}="
        labels = tuple(text.removeprefix(begin) for text in picked if text.startswith(begin))
        low, high = ends.get(field_.column, ("", ""))
        for preset in presets:
            if preset.startswith(begin):
                low, _, high = preset.removeprefix(begin).partition("/")
        filled.append(replace(field_, picked=labels, low=low, high=high))
    return filled


def written(filters: Iterable[Filter], rest: str) -> str:
    """Return the condition of a WHERE clause: that of the fields, and *rest* as SQL, which is not checked.

    Raises:
        InputError: a value of a field is no number or date.
    """
    parts = [condition(part) for field_ in filters for part in field_.predicates()]
    if rest:
        parts.append(f"({rest})" if parts and re.search(r"\bor\b", rest, re.IGNORECASE) else rest)
    return " AND ".join(parts)


def is_fine(column: ColumnDetail) -> bool:
    """Return True for times and decimals as such: few of them have enough users to be shown."""
    return column.type in {"timestamp", "decimal"} and column.each is None and not column.known_domain


def hints(query: Select, dataset: DatasetDetail) -> list[str]:
    """Return what is allowed and probably not meant, from the catalog alone: decimals as items, unlisted labels."""
    columns = {column.name.casefold(): column for column in dataset.columns}
    sentences = []
    for item in query.items:
        column = columns.get(item.casefold())
        if column is not None and column.type == "decimal" and is_fine(column):
            sentences.append(f"{column.name} holds decimals, so few of them have enough users to be shown.")
    for name, text in _compared(query.where):
        column = columns.get(name.casefold())
        labels = () if column is None or column.type in {"date", "timestamp"} else _labels(column)
        if column is not None and labels and text not in labels and len(sentences) < MAX_HINTS:
            near = difflib.get_close_matches(text, labels, n=1, cutoff=0.5)
            near = near or [label for label in labels if label.casefold() == text.casefold()]
            hint = f": did you mean {near[0]!r}?" if near else f", which are {', '.join(labels[:6])}"
            more = " …" if not near and len(labels) > 6 else "" if near else "."
            sentences.append(f"{text!r} is none of the labels of {column.name} in the catalog{hint}{more}")
    return sentences


def _empty(column: ColumnDetail, today: datetime.date) -> Filter:
    """Return the filter of a column without a value, of the kind that suits its type and listed labels."""
    labels = _labels(column)
    if column.type == "boolean":
        return Filter(column.name, "choice", labels=("true", "false"))
    if column.type in {"date", "timestamp"}:
        days = [label[:10] for label in labels]
        last = min(today, datetime.date.fromisoformat(max(days))) if days else today  # the last day that can have data
        month = last.replace(day=1)
        before = month - _DAY if month > datetime.date.min else month
        ranges = [(f"last {n} days", last - (n - 1) * _DAY, last) for n in (7, 28, 90) if last.year > 1]
        ranges += [
            ("this month", month, last),
            ("last month", before.replace(day=1), before),
            ("this year", last.replace(month=1, day=1), last),
        ]
        texts = ((name, first.isoformat(), end.isoformat()) for name, first, end in ranges)
        presets = tuple(preset for preset in texts if not days or preset[2] >= min(days))
        return Filter(column.name, "date" if column.type == "date" else "time", presets=presets)
    numbers = column.type in _NUMBERS
    if labels and len(labels) <= MAX_CHOICES:
        return Filter(column.name, "choice", numbers, labels)
    return Filter(column.name, "number" if numbers else "text", numbers, labels)


def _labels(column: ColumnDetail) -> tuple[str, ...]:
    """Return the listed labels of a column as the texts of constants."""
    texts = [str(label).lower() if isinstance(label, bool) else str(label) for label in column.labels or ()]
    if column.type == "decimal":
        texts = [constant.text for text in texts if (constant := read_number(text)) is not None]
    return tuple(texts)


def _compared(where: Predicate | None) -> Iterator[tuple[str, str]]:
    """Yield the columns and constants of all equalities in a filter."""
    match where:
        case And(parts) | Or(parts):
            for part in parts:
                yield from _compared(part)
        case Not(inner):
            yield from _compared(inner)
        case Comparison(column, "=" | "<>", constant):
            yield column, constant.text
        case Membership(column, constants):
            for constant in constants:
                yield column, constant.text
        case IsNull() | None:
            return
