"""The table that all engines are tested on: two million rows with values that engines often handle wrongly."""

from __future__ import annotations

import contextlib
import datetime
import uuid
from collections.abc import Iterator
from decimal import Decimal
from types import ModuleType

import numpy as np
import pyarrow as pa

ROWS = 2_000_000
SEED = 20_261_121

TRAPS = (
    "",
    " ",
    "a",
    "A",
    "a ",
    "ä",
    "a\u0308",
    "é",
    "e\u0301",
    "ß",
    "ss",
    "ﬀ",
    "😀",
    "😁",
    "\ue000",
    "\uffff",
    "null",
    "NULL",
    "O'Neil",
    '"quoted"',
    "back\\slash",
    "tab\there",
    "new\nline",
    "100%",
    "under_score",
    "$1",
    "?",
    "{}",
    "İ",
    "i",
    "ı",
    "中文",
    "العربية",
)
"""Labels that some collations, encodings or quoting rules merge or alter."""

COUNTRIES = ("IN", "US", "DE", "BR", "in", "us", "Ö", "null")
TITLES = ("CEO", "CTO", "engineer", "nurse", "O'Neil", "ceo")


def engagements(rows: int = ROWS, *, dates: bool = True) -> pa.Table:
    """Return rows of member_id, article, country, title and seniority, with missing values, duplicates and ties.

    Args:
        rows: the number of rows.
        dates: True to add the columns day, at, paid and price, which not every engine supports.
    """
    draw = np.random.default_rng(SEED)
    # The order of counts differs from that of labels; traps have large counts, and many small counts are tied.
    articles = [f"article {n}" for n in draw.permutation(20_000)]
    for place, trap in enumerate(TRAPS):
        articles.insert(7 * place, trap)
    ranks = np.minimum(draw.zipf(1.3, rows) - 1, len(articles) - 1)
    columns = {
        "member_id": _some(draw, pa.array(draw.integers(0, rows // 10, rows)), 0.001),
        "article": _some(draw, pa.array(articles).take(pa.array(ranks)), 0.01),
        "country": _some(draw, pa.array(COUNTRIES).take(pa.array(draw.integers(0, len(COUNTRIES), rows))), 0.05),
        "title": _some(draw, pa.array(TITLES).take(pa.array(draw.integers(0, len(TITLES), rows))), 0.05),
        "seniority": _some(draw, pa.array(draw.integers(-3, 11, rows)), 0.05),
    }
    if dates:
        start = datetime.date(2026, 1, 1)
        days = pa.array([start + datetime.timedelta(days=n) for n in range(90)])
        moments = pa.array(
            [datetime.datetime(2026, 1, 1) + datetime.timedelta(seconds=n * 7919, microseconds=n) for n in range(500)],
            pa.timestamp("us"),
        )
        prices = pa.array([Decimal(n) / 100 for n in range(-5, 300)], pa.decimal128(9, 2))
        columns |= {
            "day": _some(draw, days.take(pa.array(draw.integers(0, 90, rows))), 0.05),
            "at": _some(draw, moments.take(pa.array(draw.integers(0, 500, rows))), 0.05),
            "paid": _some(draw, pa.array(draw.integers(0, 2, rows) == 1), 0.05),
            "price": _some(draw, prices.take(pa.array(draw.integers(0, len(prices), rows))), 0.05),
        }
    table = pa.table(columns)
    # Every twentieth row is a duplicate.
    return pa.concat_tables([table.slice(0, rows - rows // 20), table.slice(0, rows // 20)])


@contextlib.contextmanager
def loaded(server: ModuleType, url: str, table: pa.Table) -> Iterator[str]:
    """Load *table* as a new one of a running server, and drop it in the end.

    Args:
        server: the module of the server, with `load` and `execute`.
    """
    name = f"loaded_{uuid.uuid4().hex}"
    server.load(url, table, name)
    try:
        yield name
    finally:
        server.execute(url, f"DROP TABLE {name}")


def _some(draw: np.random.Generator, values: pa.Array, missing: float) -> pa.Array:
    """Return *values* with a share *missing* replaced by nulls."""
    import pyarrow.compute as pc

    return pc.if_else(pa.array(draw.random(len(values)) >= missing), values, pa.nulls(len(values), values.type))
