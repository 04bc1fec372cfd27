"""The suite for engines accepts an engine that is right and rejects every planted defect."""

from __future__ import annotations

import contextlib

import pyarrow as pa
import pytest

from discreet.testing.engines import EngineSuite

from . import plain


class TestPlainEngine(EngineSuite):
    """An engine of a few lines passes: nothing in the suite is peculiar to DuckDB."""

    @contextlib.contextmanager
    def opened(self, table):
        """See `EngineSuite.opened`."""
        yield plain.PlainEngine(table)

    # These would hold plain counting against itself.
    test_random_questions_get_the_head_that_plain_counting_gives = None
    test_a_listed_domain_gets_all_its_counts_and_no_others = None
    test_periods_and_bins_that_are_listed_get_all_their_counts = None
    test_pair_queries_return_the_integers_that_numpy_gives = None


DEFECTS = [
    (plain.RowsAsUsers, "test_duplicated_rows_count_once", ()),
    (plain.UnclippedAtTwo, "test_duplicated_rows_count_once", ()),
    (plain.TiesByAppearance, "test_the_item_below_the_cut_is_returned_too", ()),
    (plain.Utf16Ties, "test_the_item_below_the_cut_is_returned_too", ()),
    (plain.NothingBelowTheCut, "test_the_item_below_the_cut_is_returned_too", ()),
    (plain.UnknownUsers, "test_rows_without_a_user_or_a_label_are_left_out", ()),
    (plain.TwoValuedNot, "test_every_operator_compares_every_kind", ("=",)),
    (plain.OneTooMany, "test_each_user_keeps_exactly_the_bound_or_all_she_has", ()),
    (plain.FirstItems, "test_what_users_keep_is_uniform", (1,)),
    (plain.CommonOrder, "test_what_users_keep_is_uniform", (3,)),
    (plain.FirstItems, "test_what_a_user_keeps_depends_on_the_seed_and_herself_alone", ()),
    (plain.DeafToTheSeed, "test_what_a_user_keeps_depends_on_the_seed_and_herself_alone", ()),
    (plain.CrowdDependent, "test_what_a_user_keeps_depends_on_the_seed_and_herself_alone", ()),
    (plain.OnlyStored, "test_an_empty_table_has_an_empty_head", ()),
    *(
        (engine, "test_pair_queries_return_the_integers_that_numpy_gives", (("word",), {}))
        for engine in (plain.WeightsRoundedToNearest, plain.PairsByAppearance)
    ),
    (plain.CutLabels, "test_very_long_labels_stay_apart", ()),
]


@pytest.mark.parametrize(("engine", "test", "arguments"), DEFECTS, ids=lambda part: getattr(part, "__name__", None))
def test_the_suite_rejects_a_planted_defect(engine, test, arguments):
    """Each defect fails the test that is there for it."""

    class Suite(EngineSuite):
        @contextlib.contextmanager
        def opened(self, table):
            yield engine(table)

    with pytest.raises(AssertionError):
        getattr(Suite(), test)(*arguments)


def test_the_suite_rejects_listed_labels_that_are_changed():
    """1.5 in a column of whole numbers must be refused, not read as 1 or 2."""

    class Suite(EngineSuite):
        @contextlib.contextmanager
        def opened(self, table):
            yield plain.LossyDomain(table)

    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        Suite().test_a_domain_with_labels_that_cannot_be_meant_is_refused(pa.int64(), [1.5])
