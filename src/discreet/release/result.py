"""The result of a query: items, counts, error bars and cost; conversions to tables, files and plots."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import io
import itertools
import json
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from discreet.accounting.convert import Guarantee, epsilon_tight
from discreet.engines.base import arrow_array
from discreet.engines.sql import quoted
from discreet.errors import InputError
from discreet.head_request import Kind
from discreet.release.files import require, write_atomically, write_text
from discreet.release.periods import covered
from discreet.release.tables import guarded, html_table, text_table
from discreet.values import Cost, Measured, Outcome, exact, float_above, float_below

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

    from discreet.catalog.model import Dataset
    from discreet.query.planning import Plan
    from discreet.query.query import Query


def python_values(column: pa.ChunkedArray) -> list[Any]:
    """Convert a column to Python values, or to text if Python cannot represent them (days before the year 1)."""
    try:
        return list(column.to_pylist())
    except (OverflowError, ValueError, ImportError):
        return list(column.cast(pa.string()).to_pylist())


def plain_value(value: Any) -> Any:  # noqa: ANN401 - a label of any type
    """Convert a label to a JSON value: dates and times in ISO 8601, decimals as exact text."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case datetime.date() | datetime.datetime() | datetime.time():
            return value.isoformat()
    return str(value)


def privacy_to_dict(guarantee: Guarantee) -> dict[str, Any]:
    """Convert a guarantee to JSON values."""
    return {
        "unit": guarantee.unit,
        "neighbours": guarantee.neighbours,
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "rho": guarantee.rho,
        "computational": guarantee.computational,
    }


def query_to_dict(query: Query) -> dict[str, Any]:
    """Convert a query to JSON values."""
    segments = query.request.each
    return {
        "user": query.request.user,
        "items": list(query.request.items[len(segments) :]),
        **({"each": list(segments)} if segments else {}),
        "k": query.k,
        "epsilon": query.options.epsilon,
        "delta": float(query.options.delta),
        "filtered": query.request.where is not None,
        "known_domain": query.known_domain,
        "groups_per_user": query.request.groups_per_user,
        "rows_per_user_and_item": query.request.rows_per_group,
        "relative_error": float(query.options.relative_error) if query.k is None else None,
        "counts": query.options.counts,
        "summed": None if query.request.summed is None else query.request.summed.column,
        "average": query.average,
    }


_OURS = ("rank", "count", "sum", "average", "std_error", "low", "high")
"""Names of the columns of `Release.to_arrow` other than the item columns."""


def check_quantile(query: Query, mechanism: str, kind: Kind | None = None) -> None:
    """Raise `InputError` unless quantiles can be computed from the answer to *query* by *mechanism*.

    Args:
        kind: the kind of the item column, or None if it is that of its labels.
    """
    if query.min_users is not None or query.patterns:
        raise InputError("quantiles need the counts of all labels, and the catalog does not let all of them be shown")
    domain = query.request.domain
    ordered = len(query.request.items) == 1 and kind not in {Kind.TEXT, Kind.UNTYPED, Kind.BOOLEAN}
    ordered = ordered and domain is not None and str(domain.schema.types[0]) not in {"string", "large_string", "bool"}
    if (
        not ordered
        or query.k is not None
        or mechanism not in {"known-laplace", "known-auto"}
        or query.request.summed is not None
    ):
        raise InputError(
            "quantiles are of releases of one column of bins, numbers or dates, all listed as the domain, "
            "such as domain=range(0, 100, 10) of 'minutes:10'"
        )


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Release:
    """Private counts. All attributes are safe to publish except the duration, which depends on the data.

    Attributes:
        labels: Arrow table of the items, a column for each item column, shape (m,), in order of release: one segment
            after the other, if there are any, whose columns are the first.
        counts: int64 noisy counts, shape (m,), or None for labels only. Unbiased: small counts may be negative.
        std_errors: standard deviation of the noise in each count, shape (m,), or None.
        low: lower ends of 95 % intervals, shape (m,), or None. At least 95 % of the released true counts lie within
            their interval, on average.
        ordered: True if the order is a ranking; False for a set.
        complete: True if the release, or each of its segments, has k items, or the whole domain. Always False without k
            over an unknown domain, where it cannot be known.
        charged: the actual cost, below the guarantee's if fewer items were released (pay what you get).
        seconds: the duration, or 0 if it was not measured.
        measured: sums or averages in units of the column's last digit, or None for counts only.
        chosen: name of the mechanism that auto chose, or None.
        why: the reason for this choice as a sentence, from noisy numbers only, with the notes below it;
            without a choice, a sentence about a better mechanism that the engine lacks the queries for, or None.
        shared_error: standard deviation of the part of the noise that all counts or sums, of a segment if there are
            segments, share; None if they share none, or how much is not known. The covariance of two counts is its
            square: the error of a difference of two is less than that of independent counts, and that of a sum of many
            is more.
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
    shared_error: float | None = None

    @classmethod
    def of(cls, plan: Plan, labels: pa.Table, outcome: Outcome, *, computational: bool) -> Release:
        """Return the release of *outcome*; *labels* are its items, in the same order."""
        summed = plan.query.request.summed
        shared = outcome.shared_error
        if shared is not None and summed is not None:
            shared = shared / 10**summed.scale
        release = cls(
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
            why=plan.missed if outcome.why is None else outcome.why,
            shared_error=shared,
        )
        if outcome.why is None:
            return release
        reasons = [note for note in (outcome.why, plan.query.rows_note, release.interval_note) if note is not None]
        return dataclasses.replace(release, why="; ".join(reasons))

    def __len__(self) -> int:
        return int(self.labels.num_rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the items in order of release, each as a dictionary of the columns of `to_arrow`."""
        return iter(self._rows())

    @property
    def spent_epsilon(self) -> float:
        """Epsilon of the charged amount alone, at most that of the guarantee: what it uses up of a shared budget."""
        left = self.query.options.delta - self.charged.delta
        if left <= 0:  # the whole of delta was lost, so that none is left for a conversion
            return self.guarantee.epsilon
        return min(epsilon_tight(float_above(self.charged.rho), float_below(left)), self.guarantee.epsilon)

    @property
    def _notes(self) -> list[str]:
        notes = (self.query.rows_note, self.clipped, self.interval_note)
        return [note for note in notes if note is not None]

    @property
    def clipped(self) -> str | None:
        """A sentence about the bounds on each user's contribution, or None if there are none."""
        request = self.query.request
        summed = self.query.request.summed
        bounds = []
        uncovered = "that leaves"
        if summed is not None:
            low, high = (f"{decimal.Decimal(x.numerator) / x.denominator:f}" for x in (summed.low, summed.high))
            clipping = self.clipping
            if summed.rows is not None:
                bounds.append(
                    f"values of {summed.column} are clipped to {low} to {high}; the rows of a user and an item have "
                    f"less weight if they are more than {summed.rows:,}, or their sum is out of {low} to {high}"
                )
            elif clipping is None or "kept" in clipping:
                bounds.append(f"each user's sum of {summed.column} for an item is clipped to {low} to {high}")
            if clipping is not None and "kept" in clipping:
                share, portion = (f"{100 * clipping[name]:.3g}" for name in ("share", "kept"))
                bounds[-1] += (
                    "; and the sums of a user are scaled down if the root of the sum of their squares is above "
                    f"{clipping['bound']}, which was chosen privately: those of about {share} % of the users. That "
                    f"keeps about {portion} % of the sums, by which they were divided, and the intervals allow for that"
                )
                bounds[-1] += "; the numbers of rows have such a bound of their own" if summed.rows is not None else ""
                uncovered = "the other bounds leave"
            elif clipping is not None:
                share, least, most = (f"{100 * clipping[name]:.3g}" for name in ("share", "low", "high"))
                bounds.append(
                    f"each user's sum of {summed.column} for an item is clipped to {low} to {clipping['bound']}, which "
                    f"was chosen privately; about {share} % of a user's sums are above that ({least} to {most} %)"
                )
        elif request.rows_per_group > 1:
            bounds.append(f"at most {request.rows_per_group:,} rows of each user and item are counted")
        if request.groups_per_user is not None and request.items:
            bounds.append(f"at most {request.groups_per_user:,} items of each user are counted")
        if request.each and self.chosen != "light":
            names = " and ".join(request.each)
            bounds.append(f"a user with rows of several labels of {names} counts in one of them, chosen at random")
        return f"{'; '.join(bounds)}; the intervals do not cover what {uncovered} out" if bounds else None

    @property
    def interval_note(self) -> str | None:
        """The reason why some intervals are wide or reach further up than down, as a phrase; None if none do."""
        shown = self._plotted
        if shown is None:
            return None
        return interval_note(self._bars(shown), float(self.query.options.relative_error), counts=shown == "count")

    @property
    def clipping(self) -> dict[str, Any] | None:
        """The privately chosen bound of sums, in units of the column, and noisy estimates of what it takes away.

        Returns:
            bound, on the root of the sum of the squares of a user's sums of the returned items; share: the share of
            users above it, from 0 to 1; low and high: a 95 % interval for the share; kept: the share of the sums that
            is left, by which they were divided. Without kept, in releases stored before it was there, the bound is one
            of each sum, and the share is that of a user's sums above it. None if no bound was chosen privately.
        """
        noisy = None if self.measured is None else self.measured.clipping
        summed = self.query.request.summed
        if noisy is None or summed is None:
            return None
        bound = decimal.Decimal(noisy.bound).scaleb(-summed.scale) if summed.scale else noisy.bound
        kept_share = {} if noisy.kept is None else {"kept": noisy.kept}
        return {"bound": plain_value(bound), "share": noisy.share, "low": noisy.low, "high": noisy.high, **kept_share}

    def quantile(self, share: float | str | Fraction) -> tuple[Any, Any, Any]:
        """Return a quantile of a histogram, and the first and last label of its 95 % interval. Costs nothing more.

        The result is a label, for bins their start: that share of what is counted is in the bins up to it. It is the
        quantile of rows if rows were counted (rows_per_group), otherwise that of users, who count once in each
        bin in which they have a row. All three are None if the noisy total is not above 0. Where known-auto clipped
        users, these have less weight, and the interval is wide: mechanism="laplace" counts for quantiles.

        Args:
            share: above 0 and below 1; 0.5 for the median.

        Raises:
            InputError: this is not a release with the counts of all listed labels of one column that has an order.
        """
        from discreet.query.answers import HIGH, LOW, SHARED, VALUE
        from discreet.query.quantiles import quantile_sql
        from discreet.release.postprocess import compute_outer

        part = exact(share, "the share of a quantile")
        items = self.query.request.items
        if not 0 < part < 1 or part.denominator > 10**9:
            raise InputError("the share of a quantile is above 0 and below 1, with at most 9 digits")
        check_quantile(self.query, self.mechanism)
        columns = [quoted(column) for column in (VALUE, LOW, HIGH, SHARED)]
        apart = self.mechanism != "known-auto" or self.shared_error is not None
        sql = quantile_sql("answers.q1", [], quoted(items[0]), part, columns, apart=apart)
        (row,) = compute_outer(sql, {"q1": self.answer_table()}).table.to_pylist()
        value, low, high = row.values()
        return value, low, high

    def timed(self, seconds: float) -> Release:
        """Return the release with *seconds* as its duration."""
        return dataclasses.replace(self, seconds=seconds)

    def in_order(self) -> Release:
        """Return a release of one column of dates, timestamps, periods or bins in their order; any other as it is.

        A top k keeps its order, which is a ranking. A missing label is the last.
        """
        request = self.query.request
        type_ = self.labels.schema.types[0] if len(request.items) == 1 else pa.null()
        if self.query.k is not None or not (request.derived or pa.types.is_date(type_) or pa.types.is_timestamp(type_)):
            return self
        import pyarrow.compute as pc

        order = pc.array_sort_indices(self.labels.column(0)).to_numpy()

        def ordered(parts: Release | Measured) -> dict[str, Any]:
            names = ("counts", "values", "std_errors", "low", "high")
            columns = {name: getattr(parts, name, None) for name in names}
            return {name: values[order] for name, values in columns.items() if values is not None}

        measured = self.measured
        measured = None if measured is None else dataclasses.replace(measured, **ordered(measured))
        return dataclasses.replace(self, labels=self.labels.take(order), measured=measured, **ordered(self))

    def to_arrow(self) -> pa.Table:
        """Return an Arrow table: rank (for a top k, within its segment), the item columns, count, std_error, low, high.

        With sums or averages there is a column sum or average, and std_error, low and high refer to it; with averages
        there is also the column count. An underscore is appended to an item column with one of those names.
        """
        columns: dict[str, Any] = {}
        if self.query.k is not None:
            ranks = np.arange(1, len(self) + 1)
            if self.query.request.each:  # the items of a segment follow each other
                segments = zip(*(self.labels.column(name).to_pylist() for name in self.query.request.each), strict=True)
                within = (enumerate(items, 1) for _, items in itertools.groupby(segments))
                ranks = np.array([rank for items in within for rank, _ in items], dtype=np.int64)
            columns["rank"] = arrow_array(ranks) if self.ordered else pa.nulls(len(self), pa.int64())
        for name in self.labels.column_names:
            columns[_free_name(name, self.labels.column_names)] = self.labels.column(name)
        return pa.table(columns | self._numbers())

    def answer_table(self, *, ranks: bool = False) -> pa.Table:
        """Return the release as a table of an outer statement: its labels, and the numbers of `query.statement.VALUE`.

        Args:
            ranks: True if the statement only orders by `VALUE`: that of labels without counts falls with their rank.

        Raises:
            InputError: the release has labels only.
        """
        import pyarrow.compute as pc

        from discreet.query.answers import BIAS, HIGH, LOW, NOISE, SHARED, VALUE

        numbers = self._numbers()
        measure = "average" if self.query.average else "count" if self.query.request.summed is None else "sum"
        columns = {item: self.labels.column(item) for item in self.query.request.items}
        if measure not in numbers:
            if not ranks:
                raise InputError("labels without counts have no value; request counts")
            falling = arrow_array(np.arange(len(self), 0, -1))
            nothing = pa.nulls(len(self), pa.int64())
            parts = dict.fromkeys((BIAS, NOISE, SHARED), nothing.cast(pa.float64()))
            return pa.table(columns | {VALUE: falling, LOW: nothing, HIGH: nothing} | parts)
        shared = np.zeros(len(self))
        if self.shared_error is not None and self.std_errors is not None:
            shared = (self.shared_error / self.std_errors) ** 2
        value, low, high = (pc.cast(numbers[name], pa.float64(), safe=False) for name in (measure, "low", "high"))
        half = pc.max_element_wise(pc.subtract(high, value), pc.subtract(value, low))
        nothing = arrow_array(np.zeros(len(self)))
        parts = {BIAS: nothing, NOISE: half} if self._has_independent_noise else {BIAS: half, NOISE: nothing}
        ends = {LOW: numbers["low"], HIGH: numbers["high"], **parts, SHARED: arrow_array(shared)}
        return pa.table(columns | {VALUE: numbers[measure]} | ends)

    @property
    def _has_independent_noise(self) -> bool:
        """True if nothing but noise is in the intervals, independent but for `shared_error`, which selected no item."""
        if self.query.request.each:
            return False
        if self.measured is not None:  # for items that others numbers selected, if any did
            clipping = self.measured.clipping
            return self.measured.name == "sum" and (clipping is None or clipping.kept is None)
        match self.chosen or self.mechanism:
            case _ if not self.complete:  # items may have been left out by their counts
                return False
            case "known-laplace":
                return self.query.k is None
            case "known-gumbel" | "unknown-gumbel" | "shared":
                return self.chosen is None or self.shared_error is not None
        return False

    def to_pandas(self) -> pd.DataFrame:
        """Return a pandas frame; columns as in `to_arrow`. Needs pandas."""
        require("pandas", "to_pandas()")
        return self.to_arrow().to_pandas()

    def to_polars(self) -> pl.DataFrame:
        """Return a Polars frame; columns as in `to_arrow`. Needs Polars."""
        frame: pl.DataFrame = require("polars", "to_polars()").from_arrow(self.to_arrow())
        return frame

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values: items, mechanism, clipping, privacy, charged and more (docs/formats.md)."""
        return {
            "items": [{name: plain_value(value) for name, value in row.items()} for row in self._rows()],
            "mechanism": self.mechanism,
            "chosen": self.chosen,
            "why": self.why,
            **({} if self.shared_error is None else {"shared_error": self.shared_error}),
            "complete": self.complete,
            "clipped": self.clipped,
            "clipping": self.clipping,
            "privacy": privacy_to_dict(self.guarantee),
            "charged": {"rho": float_above(self.charged.rho), "delta": float_above(self.charged.delta)},
            "query": query_to_dict(self.query),
            "seconds": round(self.seconds, 3),
        }

    def to_json(self, path: str | Path | None = None) -> str:
        """Return `to_dict` as JSON text; with *path*, also write it."""
        return _written(json.dumps(self.to_dict(), ensure_ascii=False, indent=2, allow_nan=False) + "\n", path)

    def to_csv(self, path: str | Path | None = None) -> str:
        """Return CSV text with a header; columns as in `to_arrow`; with *path*, also write it.

        Labels that a spreadsheet would compute, because they begin like a formula, begin with an apostrophe.
        """
        import pyarrow.csv

        buffer = io.BytesIO()
        pyarrow.csv.write_csv(guarded(self.to_arrow()), buffer)
        return _written(buffer.getvalue().decode(), path)

    def to_parquet(self, path: str | Path) -> None:
        """Write a Parquet file; columns as in `to_arrow`; everything else in `to_dict` is in the file's metadata."""
        import pyarrow.parquet

        metadata = {key: value for key, value in self.to_dict().items() if key != "items"}
        table = self.to_arrow()
        table = table.replace_schema_metadata({**(table.schema.metadata or {}), "discreet": json.dumps(metadata)})
        write_atomically(path, lambda part: pyarrow.parquet.write_table(table, part))

    def plot(self, path: str | Path | None = None, *, most: int | None = None) -> Any:  # noqa: ANN401 - a matplotlib figure
        """Plot the first *most* items as bars with 95 % intervals; with *path*, also write the plot. Needs matplotlib.

        Dates, timestamps and their periods are a line in the order of time, with the intervals as a band. First and
        last periods that the filter or the present cuts are hatched.

        Args:
            path: the file to write; its ending chooses the format: png, svg or pdf.
            most: the largest number of items, at most 1,000; by default 40 bars, or 1,000 points of a line.

        Raises:
            InputError: there are no counts, matplotlib is missing, or *path* cannot be written.
        """
        from discreet.release.plot import MAX_BARS, plot_bars, plot_line

        shown = self._plotted
        if shown is None:
            raise InputError("labels without counts cannot be plotted")
        times = self._times if len(self) else None
        most = most or (40 if times is None else MAX_BARS)
        if most > MAX_BARS:
            raise InputError(f"a plot has at most {MAX_BARS:,} bars, not {most:,}")
        n = min(len(self), most)
        values, low, high = (np.array(ends[:n]) for ends in self._bars(shown))
        labels = zip(*map(python_values, self.labels.slice(0, n).columns), strict=True)
        items = f"{n:,} of {len(self):,} items" if n < len(self) else f"{n} {'item' if n == 1 else 'items'}"
        privacy = f"ε = {self.guarantee.epsilon:.3g}, δ = {self.guarantee.delta:.2g}"
        legend = "dark lines: 95 % intervals" if len(self) else textwrap.fill(str(self).strip(), 110)
        title = f"{items} by {self.chosen or self.mechanism}, {privacy}\n{legend}"
        texts = [" · ".join(map(str, label)) for label in labels]
        request = self.query.request
        axis = "users" if request.rows_per_group == 1 else "rows (clipped per user)"
        if request.summed is not None:
            axis = f"{shown} of {request.summed.column} (clipped per user)"
        if times is not None:
            unit, months = times
            places = self.labels.column(0).slice(0, n).to_numpy().astype(f"M8[{unit}]")
            incomplete = (0, 0)
            for column in request.derived:
                if column.name == request.items[0] and not isinstance(column.each, int):
                    now = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
                    incomplete = covered(column.column, column.each, request.where, ends=[now]).cuts(texts)
            return plot_line(
                places, values, low, high, path, title=title, axis_label=axis, apart=months, incomplete=incomplete
            )
        return plot_bars(texts, values, low, high, path, title=title, axis_label=axis)

    def __str__(self) -> str:
        if not len(self):
            return f"nothing stands out enough to be released{self._needed}\n"
        table = text_table(self._headings(), self._cells())
        return table + "".join(f"({note})\n" for note in self._notes)

    def __repr__(self) -> str:
        return f"<Release of {len(self)} items by {self.mechanism}, {self.guarantee}>"

    @property
    def _needed(self) -> str:
        """How many users an item needs, which the query says without any data; empty if that is not known."""
        import pyarrow as pa

        from discreet.query.planning import make_plan, too_fine

        try:
            planned = make_plan(self.query, has_pairs=self.mechanism == "auto", shared_budget=True, force=True)
        except InputError:
            return ""
        likely = {branch.name: branch.smallest_count for branch in planned.expectation.likely}
        least = likely.get(self.chosen or "", planned.expectation.smallest_count)
        what = "users" if self.query.request.rows_per_group == 1 else "rows"
        help_ = "a larger epsilon, items that are less fine, or more data help"
        periods = {derived.name for derived in self.query.request.derived}
        for column in self.labels.schema:
            if pa.types.is_timestamp(column.type) and column.name not in periods:
                help_ += f"; {too_fine(column.name, 'its days')}"
        price = f"epsilon = {self.guarantee.epsilon:.3g}, delta = {float(self.guarantee.delta):.2g}"
        return "" if least is None else f": an item needs about {least:,} {what} or more at {price}; {help_}"

    def _repr_html_(self) -> str:
        if not len(self):
            return f"<p>{str(self).strip()}</p>"
        chosen = "" if self.chosen is None else f", which chose {self.chosen}"
        note = f"{len(self)} items by {self.mechanism}{chosen}; {self.guarantee}"
        note += "".join(f"; {reason}" for reason in self._notes)
        from discreet.release.plot import svg_bars

        images = [] if self._plotted is None else svg_bars(*self._bars(self._plotted))
        return html_table(self._headings(), self._cells(), note, images)

    @property
    def _plotted(self) -> str | None:
        """The name of the column to plot, or None if there are only labels."""
        numbers = self._numbers()
        return next((name for name in ("sum", "average", "count") if name in numbers), None)

    @property
    def _times(self) -> tuple[str, int | None] | None:
        """The unit of numpy of the one item column if it holds times, and how many of them apart two neighbours are.

        None for other columns, and as the distance of times without a period; also None if a time is missing.
        """
        (type_, *others), request = self.labels.schema.types, self.query.request
        if others or not (pa.types.is_date(type_) or pa.types.is_timestamp(type_)) or self.labels.column(0).null_count:
            return None
        period = next((column.each for column in request.derived if column.name == request.items[0]), None)
        usual: tuple[str, int | None] = ("D", 1) if pa.types.is_date(type_) else ("us", None)
        units = {"hour": ("h", 1), "week": ("D", 7), "month": ("M", 1), "quarter": ("M", 3), "year": ("M", 12)}
        return units.get(str(period), usual)

    def _bars(self, shown: str) -> list[list[float]]:
        """Return the values of column *shown*, and the lower and upper ends of their intervals."""
        numbers = self._numbers()
        return [[float(value) for value in numbers[name].to_pylist()] for name in (shown, "low", "high")]

    def _numbers(self) -> dict[str, pa.Array]:
        """Return the numeric columns; with sums or averages, std_error, low and high refer to these."""
        numbers = {"count": self.counts, "std_error": self.std_errors, "low": self.low, "high": self.high}
        columns = {name: arrow_array(values) for name, values in numbers.items() if values is not None}
        measured = self.measured
        if measured is None:
            return columns
        scale = 0 if self.query.request.summed is None else self.query.request.summed.scale
        columns = {name: values for name, values in columns.items() if name == "count"}
        columns[measured.name] = _in_units(measured.values, scale)
        columns["std_error"] = _in_units(measured.std_errors, scale)
        columns["low"], columns["high"] = _in_units(measured.low, scale), _in_units(measured.high, scale)
        return columns

    def _rows(self) -> list[dict[str, Any]]:
        table = self.to_arrow()
        columns = [python_values(column) for column in table.columns]
        return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]

    def _headings(self) -> list[str]:
        names = self.to_arrow().column_names
        interval = ["95 % interval"] if "low" in names else []
        return [*(name for name in names if name not in {"low", "high"}), *interval]

    def _cells(self) -> list[tuple[str, ...]]:
        """Return the rows as text, with the columns of `_headings`."""
        numbers = self._numbers()
        table = self.to_arrow()
        columns = {name: python_values(table.column(name)) for name in table.column_names}
        shown = []
        for name, values in columns.items():
            if name == "std_error":
                shown.append([f"{value:.3g}" for value in values])
            elif name not in numbers:
                shown.append(["" if value is None else str(plain_value(value)) for value in values])
            elif name not in {"low", "high"}:
                shown.append([_number(value) for value in values])
        if "low" in columns:
            ends = zip(columns["low"], columns["high"], strict=True)
            shown.append([f"{_number(low)} to {_number(high)}" for low, high in ends])
        return list(zip(*shown, strict=True))


def answer_types(query: Query, dataset: Dataset) -> dict[str, str]:
    """Return the SQL types, by column, of the table that `Release.answer_table` will return for *query*."""
    from discreet.query.answers import BIAS, HIGH, LOW, NOISE, SHARED, SQL_TYPES, VALUE

    number = "DOUBLE" if query.average else "BIGINT"
    summed = query.request.summed
    if summed is not None and summed.scale and not query.average:
        number = f"DECIMAL(38,{summed.scale})"
    labels = {item: SQL_TYPES[dataset.columns[item].kind] for item in query.request.items}
    return labels | dict.fromkeys((VALUE, LOW, HIGH), number) | dict.fromkeys((BIAS, NOISE, SHARED), "DOUBLE")


def interval_note(columns: Sequence[Sequence[float]], relative_error: float, *, counts: bool) -> str | None:
    """Return the reason why some 95 % intervals are wide or lopsided, as a phrase; None if none are.

    Only clipping makes the interval of a count lopsided. Wide means twice the relative error on either side: what
    clipping adds to a standard error is less. Values that may be 0 are left out if others may not: of a listed label
    without rows, every interval is wide beside its count.

    Args:
        columns: released values, and the lower and the upper ends of their intervals, shape (3, n).
        relative_error: the target relative error of a count.
        counts: True for counts; intervals of averages are lopsided for another reason.
    """
    ends = list(zip(*columns, strict=True))
    ends = [end for end in ends if end[1] > 0 or end[2] < 0] or ends
    reasons = []
    if counts and any(0 < bottom <= value and top - value > 1.5 * (value - bottom) + 1 for value, bottom, top in ends):
        reasons.append("intervals reach further up than down, because users with many items are clipped")
    if any((top - bottom) / 2 > 2 * relative_error * abs(value) for value, bottom, top in ends):
        reasons.append("intervals are wide where the noise is large for so few users")
    return "; ".join(reasons) or None


def _number(value: int | float | decimal.Decimal) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}"


def _in_units(values: NDArray[Any], scale: int) -> pa.Array:
    """Convert numbers from units of a column's last digit to the column's own units; sums stay exact."""
    if not scale:
        return arrow_array(values)
    if values.dtype.kind == "f":
        return arrow_array(values / 10**scale)
    exact = [decimal.Decimal(value).scaleb(-scale) for value in values.tolist()]
    return pa.array(exact, pa.decimal128(38, scale))


def _free_name(name: str, items: list[str]) -> str:
    """Return *name*, with underscores appended if it is one of `_OURS`."""
    while name in _OURS:
        name += "_"
        while name in items:
            name += "_"
    return name


def _written(text: str, path: str | Path | None) -> str:
    if path is not None:
        write_text(text, path)
    return text
