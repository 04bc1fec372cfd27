"""Counts by PyDP's partition selection: rows.parquet BOUND DELTA counts.parquet, run in PyDP's own environment."""

import sys

import polars as pl
from pydp.algorithms.partition_selection import create_partition_strategy

rows, bound, delta, counts = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]

# PyDP has no engine: distinct rows, contribution bounds and groups are the caller's own code.
bounded = (
    pl.scan_parquet(rows)
    .unique()
    .filter(pl.int_range(pl.len()).shuffle().over("user_id") < bound)
    .group_by("item")
    .len()
    .collect()
)
strategy = create_partition_strategy("gaussian", 1.0, delta, bound)
noisy = [strategy.noised_value_if_should_keep(count) for count in bounded["len"].to_list()]
bounded.with_columns(count=pl.Series(noisy, dtype=pl.Float64)).drop_nulls("count").select(
    "item", "count"
).write_parquet(counts)
