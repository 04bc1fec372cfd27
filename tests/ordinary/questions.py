"""Ordinary questions in SQL and Python, each beside the SQL that says what its answer means."""

from __future__ import annotations

import datetime
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from discreet.noise import KeyedBits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.ordinary.tables import Ordinary

USERS = "COUNT(DISTINCT person)"


@dataclass(frozen=True)
class Value:
    """A number of an answer with the ends of its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Question:
    """SELECT labels, measure FROM t WHERE where GROUP BY labels: as SQL of a warehouse, or by *ask* of a table.

    Args:
        tail: the end of the statement, such as LIMIT.
        true_where: the filter in DuckDB's SQL, if it has another meaning there.
        true_measure: the measure in DuckDB's SQL, if it has another name there.
        ask: answers it by the methods of `Table`, as a release and the column of its values; None for SQL.
    """

    labels: str = ""
    measure: str = USERS
    where: str = ""
    tail: str = ""
    true_where: str = ""
    true_measure: str = ""
    ask: Callable[..., Any] | None = None

    def truth(self, made: Ordinary) -> dict[Any, Any]:
        """Return the value of every label by plain DuckDB; labels that are missing are left out."""
        where = self.true_where or self.where
        by = f" GROUP BY {self.labels}" if self.labels else ""
        selected = f"{self.labels}, " if self.labels else ""
        measure = self.true_measure or self.measure
        rows = made.truth(f"SELECT {selected}{measure} FROM t{f' WHERE {where}' if where else ''}{by}")
        return {_label(row[:-1]): row[-1] for row in rows if None not in row[:-1]}

    def answer(self, made: Ordinary, epsilon: float = 1.0, run: int = 0, **options: Any) -> dict[Any, Value]:
        """Return the value of every released label.

        Raises:
            DiscreetError: it is refused.
        """
        if self.ask is not None:
            table = made.table if not self.where else made.table.where(self.where)
            bits = KeyedBits(bytes(32), (made.name, self.labels, self.measure, self.where, run, epsilon.hex()))
            return dict(self.ask(table, made, epsilon=epsilon, bits=bits, **options))
        selected = f"{self.labels}, " if self.labels else ""
        by = f"GROUP BY {self.labels}" if self.labels else ""
        where = f"WHERE {self.where}" if self.where else ""
        text = f"SELECT {selected}{self.measure} AS n, LOW({self.measure}), HIGH({self.measure}) FROM t {where} {by}"
        key = hashlib.sha256(f"{made.name} {text} {run}".encode()).digest()
        rows = made.warehouse.sql(f"{text} {self.tail}", epsilon=epsilon, key=key, **options)
        columns = (column.to_pylist() for column in rows.table.columns)
        return {_label(row[:-3]): Value(*row[-3:]) for row in zip(*columns, strict=True)}


def _label(labels: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return labels with the start of a day as a date, which engines and DuckDB return in different types."""
    return tuple(label.date() if isinstance(label, datetime.datetime) else label for label in labels)


def _values(release: Any, column: str = "count") -> dict[Any, Value]:
    names = release.labels.column_names
    rows = zip(*(release.to_arrow()[name].to_pylist() for name in (*names, column, "low", "high")), strict=True)
    return {() if names == ["total"] else _label(row[:-3]): Value(*row[-3:]) for row in rows}


def _release(column: str, *items: str, sums: str = "", **fixed: Any) -> Callable[..., Any]:
    def ask(table: Any, made: Ordinary, **options: Any) -> dict[Any, Value]:
        if sums:
            options |= {column: sums, "bound": made.most_sum}
        if "rows" in fixed or column == "average":
            options |= {"rows_per_group": made.most_rows}
        if "bins" in fixed:
            options |= {"domain": range(0, 10 * made.width, made.width)}
        if "k" in fixed:
            return _values(table.top(list(items), fixed["k"], **options), column)
        return _values(table.release([item.format(made.width) for item in items], **options), column)

    return ask


def _median(table: Any, made: Ordinary, **options: Any) -> dict[Any, Value]:
    options |= {"domain": range(0, 10 * made.width + 1, made.width), "rows_per_group": made.most_rows}
    return {(): Value(*table.quantile(f"amount:{made.width}", 0.5, **options))}


QUESTIONS: Mapping[str, Question] = {
    "users": Question(),
    "users by item": Question("item"),
    "users of the top 5": Question("item", tail="ORDER BY n DESC LIMIT 5"),
    "users of the top 20": Question("item", tail="ORDER BY n DESC LIMIT 20"),
    "users by state": Question("state"),
    "users by month": Question("date_trunc('month', seen)"),
    "users by week": Question("date_trunc('week', seen)"),
    "users by state and month": Question("state, month", true_measure=USERS),
    "users of two states and some amounts": Question(where="state IN ('north', 'east') AND amount BETWEEN 10 AND 50"),
    "users of states like": Question(where="state LIKE 'n%' OR state NOT IN ('south', 'west')"),
    "users with a reading": Question(where="reading > 0.5", true_where="nullif(reading, 'NaN') > 0.5"),
    "users since a day": Question("state", where="seen >= TIMESTAMP '2026-06-01 00:00:00'"),
    "users without an amount": Question(where="amount IS NULL"),
    "rows": Question(measure="COUNT(*)"),
    "rows by state": Question("state", "COUNT(*)"),
    "rows of the top 5": Question("item", "COUNT(*)", tail="LIMIT 5"),
    "sum": Question(measure="SUM(amount)"),
    "sum by state": Question("state", "SUM(amount)"),
    "sum of decimals": Question(measure="SUM(price)"),
    "average": Question(measure="AVG(amount)"),
    "average by state": Question("state", "AVG(amount)"),
    "average per user": Question(measure=f"SUM(amount) / {USERS}"),
    "median": Question(measure="MEDIAN(bin)", true_measure="quantile_disc(bin, 0.5)"),
    "quantile by state": Question("state", "QUANTILE(bin, 0.9)", true_measure="quantile_disc(bin, 0.9)"),
    "everything": Question("item, state"),
    "table: users": Question(ask=_release("count")),
    "table: users by item": Question("item", ask=_release("count", "item")),
    "table: users of the top 10": Question("item", ask=_release("count", "item", k=10)),
    "table: filtered": Question("item", where="amount > 20", ask=_release("count", "item", k=5)),
    "table: by month": Question("date_trunc('month', seen)", ask=_release("count", "seen:month")),
    "table: by bin": Question("bin", ask=_release("count", "amount:{}", bins=True)),
    "table: rows": Question(measure="COUNT(*)", ask=_release("count", rows=True)),
    "table: sum": Question(measure="SUM(amount)", ask=_release("sum", sums="amount")),
    "table: sum of the top 5": Question("item", "SUM(amount)", ask=_release("sum", "item", sums="amount", k=5)),
    "table: average": Question(measure="AVG(amount)", ask=_release("average", sums="amount")),
    "table: median": Question(measure="quantile_disc(bin, 0.5)", ask=_median),
}

REFUSED = (
    "SELECT * FROM t",
    "SELECT MIN(amount) FROM t",
    "SELECT item, MAX(amount) FROM t GROUP BY item",
    "SELECT COUNT(DISTINCT item) FROM t",
    "SELECT person, COUNT(*) FROM t GROUP BY person",
    "SELECT AVG(reading) FROM t",
    "SELECT STDDEV(amount) FROM t",
    "SELECT COUNT(*) FROM t WHERE amount > price",
)
"""Statements that are refused, in one sentence."""
