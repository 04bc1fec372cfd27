"""The engine suite accepts a correct engine and rejects every planted defect."""

from __future__ import annotations

import contextlib
import threading

import duckdb
import pyarrow as pa
import pytest

from discreet.engines.duckdb import DuckDBEngine, DuckDBStatement
from discreet.errors import DiscreetError
from discreet.testing.engines import EngineSuite
from tests.engines import reference_engine, test_duckdb


class TestPlainEngine(EngineSuite):
    """A short engine in Python passes, so that nothing in the suite is peculiar to DuckDB."""

    @contextlib.contextmanager
    def opened(self, table):
        """See `EngineSuite.opened`."""
        yield reference_engine.PlainEngine(table)

    # These would hold plain counting against itself.
    test_random_requests_of_segments_get_the_head_of_each = None
    test_random_requests_get_the_head_that_plain_counting_gives = None
    test_a_listed_domain_gets_all_its_counts_and_no_others = None
    test_periods_and_bins_that_are_listed_get_all_their_counts = None
    test_times_beside_the_edges_of_periods_are_in_their_periods = None
    test_private_bounds_are_chosen_from_exact_sums_and_users = None
    test_pair_queries_return_the_integers_that_numpy_gives = None
    test_one_user_moves_each_count_by_no_more_than_the_bounds = None
    # It counts at once, in this process.
    test_a_count_ends_when_its_progress_raises = None
    test_a_count_ends_at_its_time_limit = None
    test_a_count_does_not_wait_for_another = None
    test_an_engine_that_is_gone_is_unreachable_before_a_query = None


DEFECTS = [
    (reference_engine.RowsAsUsers, "test_duplicated_rows_count_once", ()),
    (reference_engine.UnclippedAtTwo, "test_duplicated_rows_count_once", ()),
    (reference_engine.TiesByAppearance, "test_the_item_below_the_cut_is_returned_too", ()),
    (reference_engine.Utf16Ties, "test_the_item_below_the_cut_is_returned_too", ()),
    (reference_engine.NothingBelowTheCut, "test_the_item_below_the_cut_is_returned_too", ()),
    (reference_engine.UnknownUsers, "test_rows_without_a_user_or_a_label_are_left_out", ()),
    (reference_engine.TwoValuedNot, "test_every_operator_compares_every_kind", ("=",)),
    (reference_engine.OneTooMany, "test_each_user_keeps_as_many_items_as_the_bound_or_all", ()),
    (reference_engine.FirstItems, "test_what_users_keep_is_uniform", (1,)),
    (reference_engine.CommonOrder, "test_what_users_keep_is_uniform", (3,)),
    (reference_engine.FirstItems, "test_what_a_user_keeps_depends_on_the_seed_and_that_user_alone", ()),
    (reference_engine.IgnoresTheSeed, "test_what_a_user_keeps_depends_on_the_seed_and_that_user_alone", ()),
    (reference_engine.DependsOnUserCount, "test_what_a_user_keeps_depends_on_the_seed_and_that_user_alone", ()),
    (reference_engine.EverySegment, "test_removing_a_user_changes_the_head_of_one_segment_at_most", ()),
    (reference_engine.EverySegment, "test_the_segment_of_a_user_is_uniform", ()),
    (reference_engine.CommonSegment, "test_the_segment_of_a_user_is_uniform", ()),
    (reference_engine.OnlyStored, "test_an_empty_table_has_an_empty_head", ()),
    *(
        (engine, "test_pair_queries_return_the_integers_that_numpy_gives", (("word",), {}))
        for engine in (reference_engine.WeightsRoundedToNearest, reference_engine.PairsByAppearance)
    ),
    (reference_engine.UsersByCase, "test_users_and_items_that_are_alike_stay_apart", ()),
    (reference_engine.CutLabels, "test_very_long_labels_stay_apart", ()),
]


@pytest.mark.parametrize(("engine", "test", "arguments"), DEFECTS, ids=lambda part: getattr(part, "__name__", None))
def test_the_suite_rejects_a_planted_defect(engine, test, arguments):
    """Each defect fails the test that guards against it."""

    class Suite(EngineSuite):
        @contextlib.contextmanager
        def opened(self, table):
            yield engine(table)

    with pytest.raises(AssertionError):
        getattr(Suite(), test)(*arguments)


def test_the_suite_rejects_listed_labels_that_are_changed():
    """A listed 1.5 in an integer column must be refused, not rounded."""

    class Suite(EngineSuite):
        @contextlib.contextmanager
        def opened(self, table):
            yield reference_engine.LossyDomain(table)

    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        Suite().test_a_domain_with_labels_that_cannot_be_meant_is_refused(pa.int64(), [1.5])


class Stoppable(DuckDBEngine):
    """DuckDB, whose counts end when it is closed."""

    def __init__(self, *arguments, **options):
        self._made = []
        super().__init__(*arguments, **options)

    def _connect(self):
        self._made.append(super()._connect())
        return self._made[-1]

    def close(self):
        for connection in self._made:
            connection.interrupt()
        super().close()


def changed(**parts):
    """Return a DuckDB engine whose statements have other parts."""
    other = type("Other", (DuckDBStatement,), parts)

    class Changed(DuckDBEngine):
        def _statement(self, connection, request, columns, seed):
            made = super()._statement(connection, request, columns, seed)
            made.__class__ = other
            return made

    return Changed


def floats_as(sql):
    """Return a DuckDB engine that compares floating-point columns as *sql* of the column."""

    def compared(statement, column, kind):
        right = DuckDBStatement.compared(statement, column, kind)
        return sql.format(statement.quoted(column)) if column == "share" else right

    return changed(compared=compared)


NaNIsLarge = floats_as("{0}")
TwoZeros = floats_as("CASE WHEN CAST({0} AS VARCHAR) = '-0.0' THEN -1e-300 ELSE nullif({0}, 'NaN') END")
InfinityIsMissing = floats_as("CASE WHEN isfinite({0}) THEN {0} END")
YearsOfNanoseconds = changed(
    moment=lambda _, column: f"CASE WHEN \"{column}\" BETWEEN '1678-01-01' AND '2262-01-01' THEN \"{column}\" END"
)


RoundsTimes = changed(
    start_of=lambda _, moment, each: f"date_trunc('{each}', {moment} + INTERVAL 1 MICROSECOND)",
)


class NamesAnything(DuckDBEngine):
    """Accepts users and items of any type."""

    def _prepared(self, connection, request, seed):
        return self._statement(connection, request, self._described(connection), seed)


class IgnoresProgress(Stoppable):
    """Cannot be cancelled."""

    def head(self, request, *, seed=b"", progress=None):  # noqa: ARG002
        return super().head(request, seed=seed)


class WithoutTimeLimit(Stoppable):
    """Ignores its timeout."""

    def __init__(self, source, *, view=None, timeout_seconds=None):  # noqa: ARG002
        super().__init__(source, view=view)


class OneAtATime(DuckDBEngine):
    """Holds a lock while it counts, so that queries wait for each other."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self._one = threading.Lock()

    def head(self, request, *, seed=b"", progress=None):
        with self._one:
            return super().head(request, seed=seed, progress=progress)


class SharedStatement(DuckDBEngine):
    """Keeps the statement of a request in an attribute that all threads share."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self._last, self._pair = None, threading.Barrier(2)

    def _statement(self, *arguments):
        self._last = super()._statement(*arguments)
        return self._last

    def _run(self, connection, statement, progress):  # noqa: ARG002 - the defect
        with contextlib.suppress(threading.BrokenBarrierError):
            self._pair.wait(30)
        return super()._run(connection, self._last, progress)


class RaisesLibraryErrors(DuckDBEngine):
    """Raises the errors of its library."""

    def _ping(self, connection):
        connection.execute(f"DESCRIBE SELECT * FROM {self._source.relation}")

    def has_changed(self):
        return False

    def _guarded(self, _connection, work, _progress):
        return work()


class ChecksNothing(DuckDBEngine):
    """Does not check whether the table is available before a query."""

    def check(self, request):
        pass


OPERATORS, UNNAMED, GONE = (
    "test_every_operator_compares_every_kind",
    "test_columns_that_cannot_tell_users_or_items_apart_are_refused_by_their_type",
    "test_an_engine_that_is_gone_is_unreachable_before_a_query",
)
BROKEN = [
    ("NaNIsLarge", AssertionError, OPERATORS, (">",)),
    ("TwoZeros", AssertionError, OPERATORS, ("=",)),
    ("InfinityIsMissing", AssertionError, OPERATORS, (">",)),
    ("YearsOfNanoseconds", AssertionError, "test_labels_of_every_kind_come_back_in_ascending_order", ("at",)),
    ("RoundsTimes", AssertionError, "test_times_beside_the_edges_of_periods_are_in_their_periods", ()),
    ("NamesAnything", pytest.fail.Exception, UNNAMED, ()),
    ("IgnoresProgress", AssertionError, "test_a_count_ends_when_its_progress_raises", ()),
    ("WithoutTimeLimit", AssertionError, "test_a_count_ends_at_its_time_limit", ()),
    ("OneAtATime", AssertionError, "test_a_count_does_not_wait_for_another", ()),
    ("SharedStatement", (AssertionError, DiscreetError), "test_counts_at_once_get_each_their_own_head", ()),
    ("RaisesLibraryErrors", duckdb.Error, GONE, ()),
    ("ChecksNothing", pytest.fail.Exception, GONE, ()),
]


@pytest.mark.parametrize(("name", "error", "test", "arguments"), BROKEN, ids=[name for name, *_ in BROKEN])
def test_the_suite_rejects_a_broken_duckdb(name, error, test, arguments, monkeypatch):
    """Each defect of DuckDB fails a test that DuckDB itself passes."""
    monkeypatch.setattr(test_duckdb, "DuckDBEngine", globals()[name])
    suite = test_duckdb.TestDuckDB()
    suite.patience_seconds = 1
    with pytest.raises(error):
        getattr(suite, test)(*arguments)
