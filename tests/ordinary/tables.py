"""Ordinary tables, made by a script: what a stranger's first table looks like, and the catalog that its owner writes.

All have the same columns: person, item, state (one of each person), amount, price, reading and seen. What differs is
how many people and items there are, of which types, how many items a person has, and what is missing.
"""

from __future__ import annotations

import datetime
import uuid
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet

import discreet

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

START = datetime.date(2026, 1, 5)
"""A Monday."""

STATES = ("north", "east", "south", "west", "centre")


@dataclass(frozen=True)
class Shape:
    """What a table looks like.

    Args:
        people: number of people.
        items: number of items.
        each: the smallest and the largest number of items that a person draws.
        skew: items have weights rank^-skew.
        label: the label of item number n.
        heavy: the share of people who draw 40 times as many items.
        tail: people draw as many items as a Zipf variable of this exponent says, at most as many as there are, in place
            of *each*; 0 for none.
        amounts: the largest amount; they are skewed if it is above 100.
        missing: the share of missing people, items, states, amounts, readings and times.
        name: the name of a person, by number.
    """

    people: int = 6_000
    items: int = 500
    each: tuple[int, int] = (1, 1)
    skew: float = 1.0
    label: Callable[[int], Any] = "item {}".format
    heavy: float = 0.0
    tail: float = 0.0
    amounts: int = 100
    missing: float = 0.0
    nan: float = 0.0
    name: Callable[[int], Any] = int


def _day(n: int) -> datetime.date:
    return START + datetime.timedelta(n)


SHAPES = {
    "categories": Shape(items=5, each=(4, 12), skew=0.3),
    "weekdays": Shape(
        items=7, each=(2, 12), skew=0, label=["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"].__getitem__
    ),
    "months": Shape(items=12, each=(3, 20), skew=0, label=lambda n: f"2026-{n + 1:02}"),
    "weeks": Shape(items=27, each=(3, 20), skew=0.2, label=lambda n: _day(7 * n)),
    "hours": Shape(items=24, each=(2, 10), skew=0.5, label=int),
    "states": Shape(items=50, skew=0.8, label=lambda n: f"S{n:02}"),
    "small integers": Shape(items=20, each=(1, 15), skew=0.5, label=int),
    "booleans": Shape(items=2, each=(1, 3), label=bool),
    "prices": Shape(items=300, each=(1, 6), label=lambda n: Decimal(199 + 50 * n) / 100),
    "dates": Shape(people=3_000, items=180, each=(10, 30), skew=0, label=_day),
    "text dates": Shape(items=90, each=(1, 10), skew=0, label=lambda n: f"{_day(n)}"),
    "uuid users": Shape(each=(1, 10), name=lambda n: str(uuid.UUID(int=n * 2**90 + 7))),
    "one item": Shape(),
    "two to six": Shape(each=(2, 6)),
    "many items": Shape(people=3_000, items=1_000, each=(20, 40), skew=0.8),
    "heavy users": Shape(each=(1, 3), heavy=0.01),
    "500 users": Shape(people=500, items=100, each=(1, 5)),
    "small shop": Shape(people=1_300, items=9, tail=2.0),
    "small library": Shape(people=3_000, items=40, tail=2.4),
    "small town": Shape(people=1_200, items=20),
    "nulls": Shape(items=60, each=(1, 6), missing=0.2),
    "nan": Shape(items=60, each=(1, 6), nan=0.3),
    "skewed sums": Shape(items=100, each=(1, 4), amounts=5_000),
}


@dataclass(frozen=True)
class Ordinary:
    """A table in a file, with what its owner declares.

    Args:
        rows: the rows, as written to the file.
        path: the Parquet file.
        width: the width of the bins of amounts.
        most_rows: the most rows of a person, and so of a person and an item.
        most_sum: the largest sum of the amounts of a person, and of the prices.
    """

    name: str
    rows: pa.Table
    path: Path
    width: int
    most_rows: int
    most_sum: int

    @cached_property
    def table(self) -> discreet.table.Table:
        """Return the table, scanned."""
        return discreet.scan(self.path, user="person")

    @cached_property
    def warehouse(self) -> discreet.warehouse.Warehouse:
        """Return the table as a dataset called t, as its owner declares it."""
        type_ = {"string": "text", "int64": "integer", "bool": "boolean", "date32[day]": "date"}
        held = str(self.rows.schema.field("item").type)
        catalog = self.path.with_suffix(".toml")
        catalog.write_text(
            f"""[datasets.t]
source = "{self.path.name}"
user = "person"
rows_per_group = {self.most_rows}
data_version = "1"
columns.item = {{ type = "{type_.get(held, "decimal")}", group = true, filter = true }}
columns.state = {{ type = "text", group = true, filter = true, groups_per_user = 1, domain = {list(STATES)} }}
columns.amount = {{ type = "integer", filter = true, sum = {{ low = 0, high = {self.most_sum} }} }}
columns.price = {{ type = "decimal", filter = true, sum = {{ low = 0, high = {self.most_sum} }} }}
columns.reading = {{ type = "float", filter = true }}
columns.seen = {{ type = "timestamp", filter = true }}
columns.month = {{ type = "date", of = "seen", each = "month", group = true, filter = true,
  domain = {{ first = {START}, last = {_day(364)} }} }}
columns.week = {{ type = "date", of = "seen", each = "week", group = true }}
columns.bin = {{ type = "integer", of = "amount", each = {self.width}, group = true,
  domain = {{ first = 0, last = {10 * self.width} }} }}
""".replace(",\n ", ",")
        )
        return discreet.connect(catalog)

    def truth(self, sql: str) -> list[tuple[Any, ...]]:
        """Return the rows of plain DuckDB over the rows that have a person; bin is the start of the bin of amount.

        They are read from memory: from the file, DuckDB would trust statistics that leave NaN out.
        """
        with duckdb.connect() as connection:
            connection.register("rows", self.rows)
            connection.execute("SET TimeZone = 'UTC'")
            connection.execute(
                f"CREATE VIEW t AS SELECT *, amount // {self.width} * {self.width} AS bin, "
                f"date_trunc('month', seen) AS month "
                f"FROM rows WHERE person IS NOT NULL"
            )
            return connection.execute(sql).fetchall()

    def without(self, person: Any) -> discreet.table.Table:
        """Return the table without the rows of one person."""
        path = self.path.with_suffix(".without.parquet")
        with duckdb.connect() as connection:
            connection.execute(
                f"COPY (SELECT * FROM '{self.path}' WHERE person IS DISTINCT FROM ?) TO '{path}'",
                [person],
            )
        return discreet.scan(path, user="person")


def ordinary(name: str, folder: Path) -> Ordinary:
    """Make one of `SHAPES` in *folder*."""
    shape = SHAPES[name]
    random = np.random.default_rng(list(name.encode()))
    sizes = random.integers(shape.each[0], shape.each[1], shape.people, endpoint=True)
    sizes = np.where(random.random(shape.people) < shape.heavy, 40 * sizes, sizes)
    if shape.tail:
        sizes = np.minimum(random.zipf(shape.tail, shape.people), shape.items)
    people = np.repeat(np.arange(shape.people), sizes)
    weights = np.arange(1, shape.items + 1) ** -shape.skew
    items = random.choice(shape.items, len(people), p=weights / weights.sum())
    again = random.random(len(people)) < 0.3  # rows of a pair beyond the first
    people, items = (np.concatenate([column, column[again]]) for column in (people, items))
    rows = len(people)
    people_states = random.choice(len(STATES), shape.people, p=[0.4, 0.3, 0.15, 0.1, 0.05])
    amounts = np.minimum(random.gamma(2, 20, rows), 100)
    if shape.amounts > 100:
        amounts = np.minimum(20 / random.random(rows) ** 0.8, shape.amounts)
    readings = np.where(random.random(rows) < shape.nan, np.nan, random.random(rows))
    moments = np.datetime64(START, "us") + random.integers(0, 364 * 86_400, rows) * np.timedelta64(10**6, "us")

    def column(values: Any, type_: Any = None) -> pa.Array:
        return pa.array(values, type_, mask=random.random(rows) < shape.missing)

    labels, names = [shape.label(n) for n in range(shape.items)], [shape.name(n) for n in range(shape.people)]
    table = pa.table(
        {
            "person": column([names[n] for n in people]),
            "item": column([labels[n] for n in items]),
            "state": column([STATES[n] for n in people_states[people]]),
            "amount": column(amounts.astype(np.int64)),
            "price": column([Decimal(int(n)) / 100 for n in amounts * 37], pa.decimal128(9, 2)),
            "reading": column(readings),
            "seen": column(moments),
        }
    )
    path = folder / f"{name.replace(' ', '_')}.parquet"
    pyarrow.parquet.write_table(table, path)
    with duckdb.connect() as connection:
        most = connection.execute(
            f"SELECT max(n), max(a) FROM (SELECT count(*) AS n, sum(amount) AS a FROM '{path}' "
            "WHERE person IS NOT NULL GROUP BY person)"
        ).fetchone()
    return Ordinary(name, table, path, shape.amounts // 10, int(most[0]), int(most[1]))
