"""Query one table from Python: `scan` it, then call `top` or `release`."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Unpack

from discreet.catalog.domains import listed_items
from discreet.engines.base import RequestQueue, has_all_pair_queries
from discreet.engines.opening import open_engine
from discreet.errors import InputError
from discreet.head_request import And, HeadRequest
from discreet.noise import Bits, KeyedBits, SystemBits
from discreet.query.planning import bind, make_plan
from discreet.query.predicates import bind_where, find_column
from discreet.query.query import Query, QueryOptions
from discreet.query.sql import parse_where
from discreet.release import NoiseKey, Release, answer
from discreet.release.answer import default_delta
from discreet.values import Sensitivity

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from discreet.budget import Budget
    from discreet.engines.base import Engine
    from discreet.head_request import Predicate
    from discreet.query.planning import Plan
    from discreet.query.query import Exact, Options


def scan(source: Any, *, user: str, table: str | None = None) -> Table:  # noqa: ANN401 - paths and frames of four libraries
    """Return a table in which every row belongs to one user.

    Args:
        source: a path or glob of Parquet or CSV files, a DuckDB file or "duckdb:///file.db?table=name", an Arrow table,
            a pandas or Polars frame; or the URL of an engine: "postgresql://reader@host/database", "spark://host:7077",
            "sc://host:15002", "trino://user@host:8080/catalog/schema", "clickhouse://user@host:8443/database",
            "pinot://broker:8099". Labels in CSV files are read as text.
        user: the column that identifies users. Rows without a user are left out.
        table: which table of a DuckDB file or an engine; may be left out if there is only one.

    The source is checked now. Files that change later are refused until they are scanned again.

    Raises:
        InputError: the source cannot be read, or has no such column.
        EngineError: the engine cannot be reached.
    """
    engine = open_engine(source, table=table)
    return Table(engine, find_column(user, engine.columns(), "user column"))


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
                `discreet.query.sql`; other SQL is refused, and the text itself never reaches an engine.

        Raises:
            WhereError: the filter is outside the grammar, or has a type error.
            UnknownColumn: the table has no such column.
        """
        added = bind_where(parse_where(text), self._engine.columns())
        where = added if self._where is None else And((self._where, added))
        return Table(self._engine, self._user, where, self._queue)

    def top(
        self,
        item: str | Sequence[str],
        k: int = 10,
        *,
        groups_per_user: int | None = None,
        rows_per_user_and_item: int = 1,
        domain: Any = None,  # noqa: ANN401 - a list, or an Arrow table
        budget: Budget | None = None,
        bits: Bits | NoiseKey | None = None,
        force: bool = False,
        progress: Callable[[float], None] | None = None,
        **options: Unpack[Options],
    ) -> Release:
        """Release the k items with the most users, in order, with counts; fewer if the noise hides the others.

        Args:
            item: the column that names the item, or several columns that name it together.
            k: the largest number of items, at least 1.
            groups_per_user: a bound on the items of one user. It is enforced by keeping that many random items of each
                user, not trusted; it makes counts smaller and noise smaller.
            rows_per_user_and_item: 1 counts distinct users; a larger number counts rows, at most that many per user
                and item.
            domain: all possible items, listed in advance: a list of labels (tuples for several columns), an Arrow
                table, or a path of a CSV or Parquet file with the item columns. Listed items without rows have a count
                of 0.
            budget: the budget to charge (pay what you get); without one, the guarantee is for this query alone.
            bits: source of randomness: by default the operating system; a `KeyedBits`, or a `NoiseKey` for
                consistent noise.
            force: True to allow epsilon above 100.
            progress: called with the finished share of the counting.
            **options: epsilon, at least 1e-6 and by default 1. delta, at least 1e-20, by default 1e-8 or the query's
                share of the budget's: choose it far below one over the number of users; text such as "1e-8" is taken
                exactly. counts=False for labels only, which leaves more of epsilon for finding them. mechanism:
                "gumbel", "laplace", "head", "two-round" or "stable" (a set, without counts); "auto" or None to choose
                by k and the other arguments. noise: "gaussian" or "laplace" counts; by default the one with the smaller
                standard error. head_limit: the number of items to read from the engine, at least k; by default max(10
                k, 1000).

        Raises:
            InputError: the query is not allowed; the message says what is allowed.
            BudgetExceeded: the budget cannot cover the worst case; nothing was read.
            EngineError: the engine failed; the budget is charged the worst case if data was being read.
        """
        bounds = Sensitivity(groups_per_user, rows_per_user_and_item)
        query = table_query(self._user, item, k, bounds, domain, self._where, default_delta(budget, options), **options)
        return self._answer(query, budget, bits, force, progress)

    def release(
        self,
        item: str | Sequence[str],
        *,
        groups_per_user: int | None = None,
        rows_per_user_and_item: int = 1,
        domain: Any = None,  # noqa: ANN401 - a list, or an Arrow table
        budget: Budget | None = None,
        bits: Bits | NoiseKey | None = None,
        force: bool = False,
        progress: Callable[[float], None] | None = None,
        **options: Unpack[Options],
    ) -> Release:
        """Release as many accurate counts as the guarantee allows, the largest first.

        Args:
            domain: as in `top`; every listed item is released with a count.
            **options: as in `top`, and relative_error: the relative error that most counts should stay within, above 0
                and below 1; it scales the noise. mechanism: "auto", "head", "two-round", "pcr" or "laplace"; by default
                laplace with *groups_per_user* or *domain*, otherwise auto on engines that can query user-item pairs,
                and head on the others. head_limit is 10,000 by default.

        Other arguments, and errors, are those of `top`.
        """
        bounds = Sensitivity(groups_per_user, rows_per_user_and_item)
        query = table_query(
            self._user, item, None, bounds, domain, self._where, default_delta(budget, options), **options
        )
        return self._answer(query, budget, bits, force, progress)

    def _answer(
        self,
        query: Query,
        budget: Budget | None,
        bits: Bits | NoiseKey | None,
        force: bool,
        progress: Callable[[float], None] | None,
    ) -> Release:
        start = time.perf_counter()
        bound = bind(query, self._engine.columns())
        plan = make_plan(
            bound, has_pairs=has_all_pair_queries(self._engine), shared_budget=budget is not None, force=force
        )
        for note in plan.notes:
            warnings.warn(note, stacklevel=3)
        source = self._source_of_bits(bits, plan)
        keyed = isinstance(source, KeyedBits)
        release: Release = answer(
            plan, self._engine, budget, source, queue=self._queue, computational=keyed, progress=progress
        )
        return release.timed(time.perf_counter() - start)

    def _source_of_bits(self, bits: Bits | NoiseKey | None, plan: Plan) -> Bits:
        if bits is None:
            return SystemBits()
        if isinstance(bits, NoiseKey):
            return bits.bits(plan, self._engine.name)
        if not hasattr(bits, "uint64"):
            raise InputError("bits come from a NoiseKey, a KeyedBits or a SystemBits")
        return bits


def table_query(
    user: str,
    item: str | Sequence[str],
    k: int | None,
    bounds: Sensitivity = Sensitivity(),
    domain: Any = None,  # noqa: ANN401 - as in `Table.top`
    where: Predicate | None = None,
    default_delta: Exact = "1e-8",
    **options: Unpack[Options],
) -> Query:
    """Return the `Query` of a table, not yet bound to its columns; parameters as in `Table.top` and `Table.release`.

    Raises:
        InputError: an argument is malformed.
    """
    given: object = item
    if not isinstance(given, str | Iterable):
        raise InputError("an item column is named by text, or several by a list")
    items = (item,) if isinstance(item, str) else tuple(item)
    if not items:
        raise InputError("at least one item column is needed")
    listed = None if domain is None else listed_items(domain, items)
    request = HeadRequest(user, items, 0, where, bounds.rows_per_group, bounds.groups_per_user, listed)
    return Query(request, QueryOptions.of(options, delta=default_delta), k)
