"""Quantiles computed from noisy histograms."""

from __future__ import annotations

import random
from fractions import Fraction

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from discreet.query.quantiles import quantile_sql
from discreet.release.postprocess import compute_outer


def quantiles(histograms, share, miss=0, shared=0.0):
    """Return the quantile of each histogram and its interval, if 95 % of the noise is within *miss*.

    Args:
        miss: a number; or, for counts with errors that may depend on each other, one for each bin of each histogram.
        shared: the share of the variance that is of noise that all counts share.
    """
    apart = np.ndim(miss) == 0
    widths = np.broadcast_to(miss, np.shape(histograms)).tolist()
    rows = [
        {"grp": place, "bin": bin_, "n": n, "low": max(n - width, 0), "high": max(n + width, 0), "shared": shared}
        for place, histogram in enumerate(histograms)
        for bin_, (n, width) in enumerate(zip(histogram, widths[place], strict=True))
    ]
    columns = ['"n"', '"low"', '"high"', '"shared"']
    sql = quantile_sql("answers.q1", ['"grp"'], '"bin"', Fraction(share), columns, apart=apart)
    found = compute_outer(f"{sql} ORDER BY grp", {"q1": pa.Table.from_pylist(rows)}).table
    return [tuple(row.values())[1:] for row in found.to_pylist()]


@pytest.mark.parametrize("share", ["0.01", "0.25", "0.5", "0.9"])
def test_without_noise_a_quantile_is_that_of_duckdb(share):
    """The first bin with that share at or below it; empty bins are allowed; NULL without rows."""
    chosen = random.Random(2)  # noqa: S311 - a test
    histograms = [[chosen.choice([0, 0, 1, 7, 40]) for _ in range(9)] for _ in range(200)] + [[0] * 9]
    with duckdb.connect() as connection:
        for histogram, found in zip(histograms, quantiles(histograms, share), strict=True):
            values = [bin_ for bin_, n in enumerate(histogram) for _ in range(n)]
            wanted = connection.execute(f"SELECT quantile_disc(x, {share}) FROM (SELECT unnest($1) x)", [values])
            assert found == (wanted.fetchone()[0],) * 3


@pytest.mark.parametrize("share", ["0.9", "0.97"])
def test_the_interval_of_a_quantile_covers_noise_that_counts_share(share):
    """Of bins in falling order, where the shared part counts most; taken for independent noise, it would not cover."""
    random_ = np.random.default_rng(6)
    true = (3000 * np.exp(-np.arange(40) / 5)).astype(int)
    within = np.searchsorted(np.cumsum(true), float(share) * true.sum())
    noise = random_.normal(0, 20, (1500, 40)) * 0.7**0.5 + random_.normal(0, 20, (1500, 1)) * 0.3**0.5
    noisy = np.rint(true + noise).astype(int).tolist()
    covered = [
        np.mean([low <= within <= high for _, low, high in quantiles(noisy, share, round(1.96 * 20), shared)])
        for shared in (0.3, 0.0)
    ]
    assert covered[0] >= 0.95 - 3 * (0.05 * 0.95 / 1500) ** 0.5
    assert covered[1] < 0.9


@pytest.mark.parametrize(("share", "noise"), [("0.5", 3.0), ("0.1", 12.0), ("0.95", 40.0)])
def test_the_interval_of_a_quantile_covers_it(share, noise):
    """Covers 95 % of 1,500 noisy histograms, less three standard errors, and is not all bins if noise is small."""
    random_ = np.random.default_rng(5)
    true = (1000 * np.exp(-(((np.arange(40) - 15) / 6) ** 2))).astype(int)
    within = np.searchsorted(np.cumsum(true), float(share) * true.sum())
    noisy = np.rint(true + random_.normal(0, noise, (1500, 40))).astype(int).tolist()
    found = quantiles(noisy, share, round(1.96 * noise))
    covered = np.mean([low <= within <= high for _, low, high in found])
    assert covered >= 0.95 - 3 * (0.05 * 0.95 / 1500) ** 0.5
    assert np.mean([high - low for _, low, high in found]) < 12
    assert all(low <= value <= high for value, low, high in found)


@pytest.mark.parametrize("share", ["0.2", "0.5", "0.8"])
def test_the_interval_of_a_quantile_covers_errors_that_depend_on_each_other(share):
    """Errors that all point in the same direction, as those of clipped users do; taken as independent, it would not."""
    random_ = np.random.default_rng(7)
    true = np.full(40, 300)
    within = np.searchsorted(np.cumsum(true), float(share) * true.sum())
    spread = 3 + 0.05 * true
    sign = np.where(np.arange(40) <= within, -1, 1)
    noisy = np.rint(true + random_.normal(0, 1, (1500, 1)) * sign * spread).astype(int).tolist()
    widths = np.broadcast_to(np.ceil(1.96 * spread).astype(int), (1500, 40))
    covered, independent = (
        np.mean([low <= within <= high for _, low, high in quantiles(noisy, share, miss)])
        for miss in (widths, int(widths.mean()))
    )
    assert covered >= 0.95 - 3 * (0.05 * 0.95 / 1500) ** 0.5
    assert independent < 0.9
