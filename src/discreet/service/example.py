"""A little reading log, made up, with a catalog of it: for trying the service out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

QUESTION = (
    "SELECT article, COUNT(DISTINCT reader) AS readers FROM reads GROUP BY article ORDER BY readers DESC LIMIT 10"
)
"""What an analyst may ask about it."""

CATALOG = """\
# What analysts may ask about a reading log that is made up. To serve data of your own, start another catalog with
# discreet catalog init, check it with discreet catalog check, and name it in discreet.toml.

[datasets.reads]
description = "Which reader read which article; made up."
source = "reads.parquet"
user = "reader"
data_version = "1"  # change it whenever the data changes
retention_days = 30
k_most = 100

[datasets.reads.columns]
article = { type = "text", group = true, filter = true }
country = { type = "text", group = true, filter = true, domain = ["BR", "DE", "IN", "KE", "US"] }
day = { type = "date", filter = true }
minutes = { type = "integer", sum = { low = 0, high = 60 } }
"""

_READERS, _ROWS = 6_000, 60_000
_COUNTRIES = ("BR", "DE", "IN", "KE", "US")


def write_reads(path: Path) -> None:
    """Write the log: 60,000 rows of 6,000 readers; a few of the 200 articles are read by many."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    random = np.random.default_rng(2021)
    popularity = 1.0 / (np.arange(200) + 3.0)
    readers = random.integers(0, _READERS, _ROWS)
    articles = random.choice(200, size=_ROWS, p=popularity / popularity.sum())
    table = {
        "reader": readers,
        "article": np.array([f"article-{n:03}" for n in range(1, 201)])[articles],
        "country": np.array(_COUNTRIES)[readers % len(_COUNTRIES)],
        "day": np.datetime64("2026-01-01") + random.integers(0, 30, _ROWS),
        "minutes": random.integers(1, 45, _ROWS),
    }
    pq.write_table(pa.table(table), path)
