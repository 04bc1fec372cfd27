"""Counts by OpenDP with Gaussian noise: rows.parquet BOUND DELTA counts.parquet, run in OpenDP's own environment."""

import sys

import opendp.prelude as dp
import polars as pl

rows, bound, delta, counts = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
dp.enable_features("contrib")


def epsilon_of(rho: float) -> float:
    """Return epsilon of rho-zCDP at half of delta, by OpenDP's conversion; the threshold spends the other half."""
    space = dp.atom_domain(T=float, nan=False), dp.absolute_distance(T=float)
    gaussian = dp.m.make_gaussian(*space, scale=(1 / (2 * rho)) ** 0.5)
    return dp.c.make_fix_delta(dp.c.make_zCDP_to_approxDP(gaussian), delta / 2).map(1.0)[0]


low, high = 1e-5, 1.0
for _ in range(60):
    middle = (low * high) ** 0.5
    low, high = (middle, high) if epsilon_of(middle) <= 1 else (low, middle)

context = dp.Context.compositor(
    data=pl.scan_parquet(rows),
    privacy_unit=dp.unit_of(contributions=1, identifier="user_id"),
    privacy_loss=dp.loss_of(rho=low, delta=delta / 2),
    split_evenly_over=1,
)
query = (
    context.query()
    .truncate_per_group(1, by=["item"])
    .truncate_num_groups(bound, by=["item"], keep="first")  # "sample" raises DuplicateError in 0.16.0
    .group_by("item")
    .agg(dp.len())
)
query.release().collect().select("item", pl.col("len").alias("count")).write_parquet(counts)
