"""Query one table from Python: `scan` it, then call `top` or `release`."""

from __future__ import annotations

import datetime
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, Unpack, cast, get_args

from discreet.budget import Budget
from discreet.engines.base import Engine, RequestQueue, has_all_pair_queries
from discreet.engines.opening import open_engine
from discreet.errors import InputError
from discreet.head_request import (
    MAX_BINNED,
    And,
    Derived,
    HeadRequest,
    Kind,
    Period,
    Predicate,
    RunningPeriod,
    SumBounds,
    cast_option,
    naming_error,
)
from discreet.mechanisms import check_bounds
from discreet.noise import Bits, KeyedBits, SystemBits
from discreet.query.canonical import listed_values
from discreet.query.planning import Plan, bind, is_listed_by_filter, make_plan, unclipped, with_fine_times
from discreet.query.predicates import bind_where, check_untyped, find_column
from discreet.query.query import Exact, Options, Query, QueryOptions
from discreet.query.sql import condition, parse_where
from discreet.release import NoiseKey, Release, answer
from discreet.release.answer import default_delta
from discreet.release.result import check_quantile
from discreet.values import Sensitivity, check_text, exact, number

if TYPE_CHECKING:
    from discreet.release.running import RunningStream


def scan(
    source: Any,  # noqa: ANN401 - paths and frames of any library
    *,
    user: str,
    table: str | None = None,
    cast: Mapping[str, str] | None = None,
) -> Table:
    """Return a table in which every row belongs to one user.

    Args:
        source: a path or glob of Parquet or CSV files, a DuckDB file or "duckdb:///file.db?table=name"; an Arrow table,
            a pandas, Polars or Spark frame, a DuckDB relation, a reader of record batches or another object with
            `__arrow_c_stream__`, which is read once, whole, now; or the URL of an engine:
            "postgresql://reader@host/database", "spark://host:7077", "sc://host:15002",
            "trino://user@host:8080/catalog/schema", "clickhouse://user@host:8443/database", "pinot://broker:8099".
            Labels in CSV files are read as text.
        user: the column that identifies users. Rows without a user are left out.
        table: which table of a DuckDB file or an engine; may be left out if there is only one.
        cast: the types of columns of files and frames that have another one: "text", "integer", "decimal(18,2)",
            "boolean", "date" or "timestamp", by the name of the column. Every value must have an equal one of the new
            type: pandas holds whole numbers with gaps as floats, and CSV files hold text.

    The source is checked now, but the values of Parquet files that are not cast before the first query of some rows, or
    with a budget. Files that change later are refused until they are scanned again.

    Raises:
        InputError: the source cannot be read, has no such column, or holds a value that cannot be cast.
        EngineError: the engine cannot be reached.
    """
    engine = open_engine(source, table=table, cast=cast, defers_check=True)
    columns = engine.columns()
    user_column = find_column(user, columns, "user column")
    wrong = naming_error(user_column, columns[user_column], is_user=True, has_cast=True)
    if wrong is not None:
        raise InputError(wrong)
    for column, type_ in (cast or {}).items():
        if column.casefold() == user_column.casefold() and type_ not in {"integer", "text"}:
            # '1.5' and '1.50' are equal decimals, so two users could become one.
            raise InputError(f"the user column {user_column!r} can be cast to integer or text only, not {type_}")
    return Table(engine, user_column)


class RowOptions(Options, total=False):
    """The options of a query of a `Table`: those of `Options`, and what counts of each user."""

    groups_per_user: int | None
    rows_per_group: int | None
    domain: Any
    each: str | Sequence[str]
    segments: Any
    sum: str | None
    average: str | None
    bound: Bound | None


Bound: TypeAlias = Exact | tuple[Exact, Exact]
"""The upper bound of one user's sum for one item, whose lower bound is then 0, or both bounds."""


class Table:
    """A table, optionally filtered. Made by `scan`.

    Args:
        where: the filter, or None for all rows.
        queue: the engine's request queue, or None for a new one.
    """

    def __init__(
        self, engine: Engine, user: str, where: Predicate | None = None, queue: RequestQueue | None = None
    ) -> None:
        self._engine = engine
        self._queue = RequestQueue() if queue is None else queue
        self._user = user
        self._where = where

    def __repr__(self) -> str:
        where = "" if self._where is None else f" where {condition(self._where)}"
        name = self._engine.name.replace("\n", ", ")  # of several files, or with columns that were cast
        return f"<Table of {name}, with users in {self._user!r}{where}>"

    def close(self) -> None:
        """Close the connections to the engine, and delete what was left there; also done when the table is garbage.

        Tables made of this one by `where` cannot be queried afterwards.
        """
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def data_version(self) -> str | None:
        """A public version of the files of the table, for `NoiseKey`: their paths, inodes, sizes and times.

        None for tables that are not files; pass `NoiseKey` a version for those.

        Raises:
            EngineUnreachable: the files have changed since the table was opened.
        """
        return self._engine.data_version()

    def where(self, text: str) -> Table:
        """Return the table restricted to the rows that match a filter.

        Args:
            text: conditions on columns with AND, OR, NOT: "country = 'IN' AND year >= 2024". The grammar is in
                `discreet.query.sql`; other SQL is refused, and the text itself never reaches an engine. current_date is
                today in UTC, as a constant from now on.

        Raises:
            WhereError: the filter is outside the grammar, or has a type error.
            UnknownColumn: the table has no such column.
        """
        columns = self._engine.columns()
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        added = bind_where(parse_where(text, today), columns)
        check_untyped(added, columns)
        where = added if self._where is None else And((self._where, added))
        return Table(self._engine, self._user, where, self._queue)

    def top(
        self,
        item: str | Sequence[str],
        k: int = 10,
        *,
        budget: Budget | None = None,
        bits: Bits | NoiseKey | None = None,
        force: bool = False,
        progress: Callable[[float], None] | None = None,
        **options: Unpack[RowOptions],
    ) -> Release:
        """Release the k items with the most users, in order, with counts; fewer if the noise hides the others.

        Args:
            item: the column that names the item, or several columns that name it together. "read_at:day" is the start
                of the hour, day, week, month, quarter or year, in UTC, of a column of dates or timestamps; "minutes:10"
                the start of the bin of that width.
            k: the largest number of items, at least 1.
            budget: the budget to charge (pay what you get); without one, the guarantee is for this query alone.
            bits: source of randomness: by default the operating system; a `KeyedBits`, or a `NoiseKey` for
                consistent noise.
            force: True to allow epsilon above 100.
            progress: called with the finished share of the counting.
            **options: epsilon, at least 1e-6 and by default 1. delta, at least 1e-20, by default 1e-8 or the query's
                share of the budget's: choose it far below one over the number of users; text such as "1e-8" is taken
                exactly.
                groups_per_user: a bound on the items of one user. It is enforced by keeping that many random items of
                each user, not trusted; it makes counts smaller and noise smaller.
                rows_per_group: 1 counts distinct users; a larger number counts rows, at most that many per user
                and item.
                domain: all possible items, listed in advance: a list of labels (tuples for several columns), an Arrow
                table, or a path of a CSV or Parquet file with the item columns. Listed items without rows have a count
                of 0.
                each: a column, or several, whose labels are segments: the k items of every segment, all together for
                the price of one. A user with rows in several segments counts in one of them, chosen at random.
                segments: all possible segments, listed in advance, in the forms of domain; needed with each.
                sum, or average: a column of whole or decimal numbers to sum, or to average over rows, for each item.
                bound: goes with them: each user's sum for an item is clipped to 0 and this number, or to a pair of
                numbers. Choose it without looking at the rows. The items are those with the most users. An average
                also needs rows_per_group: of more rows of a user and an item, or of a larger sum, all count
                with less weight (docs/mechanisms/sums.md).
                counts=False for labels only, which leaves more of epsilon for finding them. mechanism: "gumbel",
                "laplace", "head", "two-round" or "stable" (a set, without counts); "auto" or None to choose by k and
                the other arguments. noise: "gaussian" or "laplace" counts; by default the one with the smaller standard
                error. head_limit: the number of items to read from the engine, at least k; by default max(10 k, 1000).

        Raises:
            InputError: the query is not allowed; the message says what is allowed.
            BudgetExceeded: the budget cannot cover the worst case; nothing was read.
            EngineError: the engine failed; the budget is charged the worst case if data was being read.
        """
        return self._answer(self.plan(item, k, budget=budget, force=force, **options), budget, bits, progress)

    def release(
        self,
        item: str | Sequence[str] = (),
        *,
        budget: Budget | None = None,
        bits: Bits | NoiseKey | None = None,
        force: bool = False,
        progress: Callable[[float], None] | None = None,
        **options: Unpack[RowOptions],
    ) -> Release:
        """Release as many accurate counts as the guarantee allows; without *item*, one total.

        The largest come first; dates, timestamps, periods and bins are in their order.

        Args:
            item: as in `top`; left out for one number of all rows.
            **options: as in `top`, and relative_error: the relative error that most counts should stay within, above 0
                and below 1; it scales the noise. mechanism: "auto", "head", "two-round", "pcr" or "laplace"; by default
                laplace with *groups_per_user*, or a *domain* of bins or of fewer than four items, otherwise auto on
                engines that can query user-item pairs; on the others head, and laplace with a *domain*. head_limit is
                10,000 by default. Every item of *domain* is released with a count, and `Release.quantile` computes
                quantiles from bins that are listed in it, of a release by laplace.

        Other arguments, and errors, are those of `top`.
        """
        return self._answer(self.plan(item, budget=budget, force=force, **options), budget, bits, progress)

    def quantile(
        self,
        item: str,
        share: float | str | Fraction,
        *,
        per: Literal["row", "user"] = "row",
        budget: Budget | None = None,
        bits: Bits | NoiseKey | None = None,
        force: bool = False,
        **options: Unpack[RowOptions],
    ) -> tuple[Any, Any, Any]:
        """Return a quantile of a column, and the first and the last label of its 95 % interval.

        It is computed by `Release.quantile` from the counts of all bins, a single release; several quantiles of one
        release have one price.

        Args:
            item: a column of numbers or dates, usually in bins: "minutes:10".
            share: above 0 and below 1; 0.5 for the median.
            per: "row" for the quantile of rows, as in SQL, which needs rows_per_group; "user" for that of
                users, who count once in each bin in which they have a row.
            **options: as in `release`; domain, all possible labels of *item*, is needed: bins by their start.

        Other arguments, and errors, are those of `release`.
        """
        if per not in {"row", "user"}:
            raise InputError(f"a quantile is per row or per user, not per {per!r}")
        rows = options.get("rows_per_group")
        if per == "row" and rows is None:
            raise InputError(
                "a quantile of rows needs rows_per_group: the most rows of a user in a bin that count; "
                "per='user' counts users instead"
            )
        if per == "user" and rows not in (None, 1):
            raise InputError("a quantile per user counts users, not rows: leave out rows_per_group")
        if options.get("domain") is not None:
            options["mechanism"] = unclipped(options.get("mechanism"))
        plan = self.plan(item, budget=budget, force=force, **options)
        check_quantile(plan.query, plan.mechanism.name, self._engine.columns().get(item))
        return self._answer(plan, budget, bits, None).quantile(share)

    def running(
        self,
        item: str | Sequence[str],
        *,
        column: str,
        first: str | datetime.date,
        periods: int,
        secret: bytes,
        answers: str | Path,
        groups_per_user: int | None = None,
        pilot: str | datetime.date | None = None,
        each: RunningPeriod = "day",
        epsilon: float = 1.0,
        delta: Exact = "1e-8",
        clock: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
    ) -> RunningStream:
        """Return a stream of the users so far of every item, refreshed period by period (docs/running-counts.md).

        Its `begin` charges the whole price, `refresh` answers a period, and `show` returns one that was answered.

        Args:
            item: the column that names the item, or several columns that name it together.
            column: the column of dates or timestamps of the arrival of a row. Rows never get a past period, and are not
                changed after they have arrived.
            first: the start of the first period, in UTC: "2026-12-01", or "2026-12-01 05:00" for hours. Rows before it
                are not in the stream.
            periods: the number of periods, from 1 to 3,653.
            secret: 32 random bytes or more, the same for the whole stream. With it the noise can be removed.
            answers: the path of a Parquet file, the state of the stream: if it is lost, the stream has ended.
            groups_per_user: the first items of each user that count, over the whole stream; from 1 to 1,000. Counts
                are not corrected for others. None for counts that are corrected.
            pilot: the start of as many periods that end before *first*, from which the bounds of corrected counts are
                chosen; None for 10 items that are not listed and 10 that are.
            each: "hour", "day" or "week"; weeks begin on Monday.
            epsilon: of all periods together.
            delta: of all periods together.
            clock: returns the time with its zone; a period is complete an hour after its end.

        Raises:
            InputError: an argument is out of range, or does not fit the table.
        """
        from discreet.release.declaration import declare
        from discreet.release.running import RunningStream

        columns = self._engine.columns()
        options: RowOptions = {
            "epsilon": number(epsilon, "epsilon"),
            "delta": delta,
            "groups_per_user": groups_per_user,
        }
        query = table_query(self._user, item, None, self._where, "1e-8", columns, **options)
        declaration = declare(
            self._engine.name, query, columns, column=column, each=each, first=first, periods=periods, pilot=pilot
        )
        return RunningStream(declaration, self._engine, self._queue, secret, clock, Path(answers))

    def plan(
        self,
        item: str | Sequence[str] = (),
        k: int | None = None,
        *,
        budget: Budget | None = None,
        force: bool = False,
        **options: Unpack[RowOptions],
    ) -> Plan:
        """Return the plan of `top`, or without *k* of `release`: mechanism, worst cost and expected error.

        No row is read and nothing is charged. The arguments are those of the two methods.

        Raises:
            InputError: the query is not allowed; the message says what is allowed.
            EngineError: the engine failed to return its columns.
        """
        columns = self._engine.columns()
        query = table_query(self._user, item, k, self._where, default_delta(budget, options), columns, **options)
        summed = query.request.summed
        if summed is not None:
            column = find_column(summed.column, columns, "column to sum")
            option = cast_option(column, "decimal(18,2)")
            if columns[column] is Kind.UNTYPED:
                raise InputError(
                    f"column {column!r} holds text, because CSV files do; cast it to decimal(18,2) or integer: "
                    f"{option} on the command line, cast={{{column!r}: 'decimal(18,2)'}} in Python"
                )
            try:
                self._engine.check_sum(column)
            except InputError as error:
                by = f"for files and frames by cast={{{column!r}: 'decimal(18,2)'}}, or {option}"
                raise InputError(f"{error}, or {by}") from None
            summed = replace(summed, column=column, scale=self._engine.scale(column))
            check_bounds(summed)
            query = replace(query, request=replace(query.request, summed=summed))
        kinds = {**columns, **{derived.name: derived.kind for derived in query.request.derived}}
        planned = make_plan(
            _with_listed(bind(query, kinds), kinds),
            has_pairs=has_all_pair_queries(self._engine),
            shared_budget=budget is not None,
            force=force,
        )
        return with_fine_times(
            planned, {name: f"{name}:day" for name, kind in columns.items() if kind is Kind.TIMESTAMP}
        )

    def _answer(
        self,
        plan: Plan,
        budget: Budget | None,
        bits: Bits | NoiseKey | None,
        progress: Callable[[float], None] | None,
    ) -> Release:
        start = time.perf_counter()
        if budget is not None:  # a value that cannot be read must cost nothing, so that queries cannot find it for free
            getattr(self._engine, "check_values", lambda: None)()
        for note in plan.notes:
            warnings.warn(note, stacklevel=3)
        source = SystemBits() if bits is None else bits
        if isinstance(source, NoiseKey):
            source = source.bits(plan, self._engine.name)
        elif not hasattr(source, "uint64"):
            raise InputError("bits come from a NoiseKey, a KeyedBits or a SystemBits")
        keyed = isinstance(source, KeyedBits)
        release: Release = answer(
            plan, self._engine, budget, source, queue=self._queue, computational=keyed, progress=progress
        )
        return release.in_order().timed(time.perf_counter() - start)


def table_query(
    user: str,
    item: str | Sequence[str],
    k: int | None,
    where: Predicate | None = None,
    default_delta: Exact = "1e-8",
    columns: Mapping[str, Kind] | None = None,
    /,
    **row_options: Unpack[RowOptions],
) -> Query:
    """Return the `Query` of a table, not yet bound to its columns; parameters as in `Table.top` and `Table.release`.

    Args:
        columns: the table's columns, or None if they are not known: then all that is named like a period is one, and
            the column to sum is taken to hold whole numbers.

    Raises:
        InputError: an argument is malformed.
        UnknownColumn: there is no column that a period or bin is computed from.
    """
    unknown = sorted(row_options.keys() - RowOptions.__annotations__)
    if unknown:
        choices = f"choose from {', '.join(RowOptions.__annotations__)}"
        instead = "filter the table: table.where(\"day >= '2026-01-01'\")" if unknown[0] == "where" else choices
        raise InputError(f"there is no option {unknown[0]!r}; {instead}")
    options: dict[str, Any] = dict(row_options)
    rows = options.pop("rows_per_group", None)
    bounds = Sensitivity(options.pop("groups_per_user", None), 1 if rows is None else rows)
    domain = options.pop("domain", None)
    average = options.get("average") is not None
    named: list[tuple[str, ...]] = []
    for names, what in ((item, "an item column"), (options.pop("each", ()), "a column of 'each'")):
        if not isinstance(names, str | Iterable):
            raise InputError(f"{what} is named by text, or several by a list")
        named.append((names,) if isinstance(names, str) else tuple(names))
    (items, segment_columns), segments = named, options.pop("segments", None)
    if bool(segment_columns) != (segments is not None):
        raise InputError("'each' and 'segments' go together: columns, and all labels they can have (a list or file)")
    if segment_columns and not items:
        raise InputError("'each' needs items; for a total of each label, name the column as the item instead")
    if not items and k is not None:
        raise InputError("at least one item column is needed")
    if not items and domain is not None:
        raise InputError("a domain lists items, and a total has none")
    derived = tuple(filter(None, (_derived(named, user, columns) for named in (*segment_columns, *items))))
    listed = None
    if domain is not None or segments is not None:
        from discreet.catalog.domains import combined, listed_items  # only here, because it imports pydantic

        listed = None if domain is None else listed_items(domain, items)
        segments = None if segments is None else listed_items(segments, segment_columns)
        listed = listed if listed is None or segments is None else combined(segments, listed)
    summed = _summed(options, rows)
    if summed is not None:
        options["counts"] = average
        bounds = replace(bounds, rows_per_group=1)
    request = HeadRequest(
        user,
        (*segment_columns, *items),
        0,
        where,
        bounds.rows_per_group,
        bounds.groups_per_user,
        listed,
        summed=summed,
        derived=derived,
        each=segment_columns,
        segments=segments,
    )
    return Query(request, QueryOptions.of(cast("Options", options), delta=default_delta), k, average)


def _with_listed(query: Query, kinds: Mapping[str, Kind]) -> Query:
    """Return a query with the domain that its filter lists, if it lists one and none is given."""
    request = query.request
    values = listed_values(request.where, kinds)
    items = request.items[len(request.each) :]
    if request.domain is not None or not items or not values.keys() >= set(items):
        return query
    from discreet.catalog.domains import combined, filtered_domain  # only here, because it imports pydantic

    domain = filtered_domain(items, values, kinds, {}) if is_listed_by_filter(query.options) else None
    if domain is None:
        return query
    k = None if query.k is None else min(query.k, len(domain))
    domain = domain if request.segments is None else combined(request.segments, domain)
    return replace(query, request=replace(request, domain=domain), k=k)


def _summed(options: dict[str, Any], rows: int | None) -> SumBounds | None:
    """Remove sum, average and bound from *options*; return the column to sum with its bounds, or None.

    Raises:
        InputError: they do not go together.
    """
    bound = options.pop("bound", None)
    measures = {name: options.pop(name, None) for name in ("sum", "average")}
    columns = [column for column in measures.values() if column is not None]
    if not columns:
        if bound is not None:
            raise InputError("a bound goes with a sum or an average")
        return None
    average = measures["average"] is not None
    if len(columns) > 1 or (rows not in (None, 1) and not average):
        raise InputError("a query has a sum, an average or a count of rows, not several of them")
    if average and rows is None:
        raise InputError(
            f"an average of rows needs rows_per_group: the most rows of a user and an item that count; for the "
            f"average per user, divide sum={columns[0]!r} by the counts of users"
        )
    if bound is None:
        raise InputError(
            f"a sum needs a bound, such as bound=100: each user's sum of {columns[0]!r} for an item is clipped to it"
        )
    ends = bound if isinstance(bound, tuple) else (0, bound)
    if len(ends) != 2:
        raise InputError("the bound of a sum is a number, or a pair of a lower and an upper bound")
    if average and options.get("counts") is False:
        raise InputError("an average has no labels without numbers: leave out counts=False")
    low, high = (exact(end, "the bound of a sum") for end in ends)
    column = check_text(columns[0], "the name of a column to sum")
    return SumBounds(low, high, column=column, rows=rows if average else None)


def _derived(item: object, user: str, columns: Mapping[str, Kind] | None) -> Derived | None:
    """Return the period or bin that *item* names, as in "read_at:day" and "minutes:10", or None for a column.

    Raises:
        InputError: it cannot be computed from the column.
        UnknownColumn: there is no such column.
    """
    if not isinstance(item, str) or (columns is not None and item in columns):
        return None
    column, _, period = item.rpartition(":")
    if not column or (period not in get_args(Period) and not (period.isdecimal() and period.isascii())):
        if columns is not None and any(name.casefold() == column.casefold() for name in columns):
            raise InputError(
                f"{period!r} in {item!r} is no period: it is {', '.join(get_args(Period))}, or the width of bins of "
                "numbers, such as 10"
            )
        return None
    if period.isdecimal() and not 1 <= int(period[:20]) <= MAX_BINNED:
        raise InputError(f"the width of bins is a whole number from 1 to {MAX_BINNED:,}")
    column = column if columns is None else find_column(column, columns, "item column")
    if column == user:
        raise InputError(f"column {user!r} cannot be both the user and an item")
    derived = Derived(item, column, int(period) if period.isdecimal() else cast("Period", period))
    wrong = None if columns is None else derived.type_error(columns[column])
    if wrong is not None:
        raise InputError(wrong)
    return derived
