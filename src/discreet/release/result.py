"""What people get: items, counts, error bars, and what they cost."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from discreet.release import export

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import pandas as pd
    import polars as pl
    import pyarrow as pa
    from numpy.typing import NDArray

    from discreet.accounting.guarantee import Guarantee
    from discreet.query.planning import Plan
    from discreet.query.query import Query
    from discreet.values import Cost, Measured, Outcome


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Release:
    """Private counts, safe to publish with everything in here but how long they took, which depends on the data.

    Attributes:
        labels: Arrow table of the items, a column for each item column, shape (m,), in order of release.
        counts: int64 noisy counts, shape (m,), or None if only labels were asked for. Unbiased: small ones may be
            negative.
        std_errors: standard deviation of the noise in each count, shape (m,), or None.
        low: lower ends of 95 % intervals, shape (m,), or None. At least 95 % of the released true counts lie within
            their interval, on average.
        high: upper ends, likewise.
        ordered: True if the order is a ranking; False for a set.
        complete: True if all that was asked for was returned: k items, or the whole domain. Always False for as many
            counts as can be had over an unknown domain, where nobody may know.
        mechanism: what answered, by name.
        guarantee: what is promised, whatever was returned.
        charged: what it cost: less than the guarantee allows where less was returned (pay what you get).
        query: what was asked.
        seconds: how long it took, set by whoever timed it.
        measured: sums or averages in units of the column's last digit, or None if only counts were asked for.
        chosen: the mechanism that auto took, by name, or None.
        why: a sentence that says why, from noisy numbers only, or None.
    """

    labels: pa.Table
    counts: NDArray[np.int64] | None
    std_errors: NDArray[np.float64] | None
    low: NDArray[np.int64] | None
    high: NDArray[np.int64] | None
    ordered: bool
    complete: bool
    mechanism: str
    guarantee: Guarantee
    charged: Cost
    query: Query
    seconds: float = 0.0
    measured: Measured | None = None
    chosen: str | None = None
    why: str | None = None

    @classmethod
    def of(cls, plan: Plan, labels: pa.Table, outcome: Outcome, *, computational: bool) -> Release:
        """Return the release of *outcome*, whose items are *labels*, in its order."""
        return cls(
            labels,
            outcome.counts,
            outcome.std_errors,
            outcome.low,
            outcome.high,
            outcome.ordered,
            outcome.complete,
            plan.mechanism.name,
            dataclasses.replace(plan.guarantee, computational=computational),
            outcome.cost,
            plan.query,
            measured=outcome.measured,
            chosen=outcome.chosen,
            why=outcome.why,
        )

    def __len__(self) -> int:
        return int(self.labels.num_rows)

    def timed(self, seconds: float) -> Release:
        """The same release with the time it took."""
        return dataclasses.replace(self, seconds=seconds)

    def to_arrow(self) -> pa.Table:
        """An Arrow table: rank (for a top k), the item columns, count, std_error, low, high.

        With sums or averages: a column sum or average, whose std_error, low and high these are then; averages have
        their count, too.

        An item column that has one of those names gets an underscore behind it.
        """
        return export.to_arrow(self)

    def to_pandas(self) -> pd.DataFrame:
        """A pandas frame; columns as in `to_arrow`. Needs pandas."""
        export.require("pandas", "to_pandas()")
        return self.to_arrow().to_pandas()

    def to_polars(self) -> pl.DataFrame:
        """A Polars frame; columns as in `to_arrow`. Needs Polars."""
        frame: pl.DataFrame = export.require("polars", "to_polars()").from_arrow(self.to_arrow())
        return frame

    def to_dict(self) -> dict[str, Any]:
        """Plain values: items, mechanism, chosen, why, complete, privacy, charged, query, seconds."""
        return export.to_dict(self)

    def to_json(self, path: str | Path | None = None) -> str:
        """`to_dict` as JSON text, written to *path* too if one is given."""
        return export.to_json(self, path)

    def to_csv(self, path: str | Path | None = None) -> str:
        """CSV text with a header; columns as in `to_arrow`; written to *path* too if one is given."""
        return export.to_csv(self, path)

    def to_parquet(self, path: str | Path) -> None:
        """Write a Parquet file; columns as in `to_arrow`; the privacy guarantee is in the file's metadata."""
        export.to_parquet(self, path)

    def plot(self, path: str | Path | None = None, *, most: int = 40) -> Any:  # noqa: ANN401 - a matplotlib figure
        """Bars with error bars, the first *most* items; written to *path* too if one is given. Needs matplotlib."""
        from discreet.release.plot import plot

        return plot(self, path, most=most)

    def __str__(self) -> str:
        return export.to_text(self)

    def __repr__(self) -> str:
        return f"<Release of {len(self)} items by {self.mechanism}, {self.guarantee}>"

    def _repr_html_(self) -> str:
        return export.to_html(self)
