"""The check of outcomes passes for neighbours, and notices more than one user in every kind of answer."""

from __future__ import annotations

import contextlib
import datetime
import random
from dataclasses import replace

import pyarrow as pa
import pytest

from discreet.engines.duckdb import DuckDBEngine
from discreet.errors import EngineError
from discreet.testing.outcomes import check_outcomes, random_request


class OnlyHeads(DuckDBEngine):
    """Has no pair queries."""

    has_pairs = False


class SameHeads(DuckDBEngine):
    """Answers every head for the table without the last two users."""

    def head(self, request, **parts):
        """See `Engine.head`."""
        with contextlib.closing(DuckDBEngine(table_of(0))) as engine:
            return engine.head(request, **parts)


class Moves(OnlyHeads):
    """Adds 2^62 to one kind of numbers of each head that has them: many more than one user does."""

    moved = "counts"

    def head(self, request, **parts):
        """See `Engine.head`."""
        head = super().head(request, **parts)
        numbers = getattr(head, self.moved)
        return head if numbers is None else replace(head, **{self.moved: numbers + 2**62})


class Fails(DuckDBEngine):
    """Fails."""

    def head(self, request, **parts):
        """See `Engine.head`."""
        del request, parts
        raise EngineError


class UnweightedRows(DuckDBEngine):
    """Has no pair queries, and counts more rows of averages than one user may have."""

    has_pairs = False

    def head(self, request, **parts):
        """See `Engine.head`."""
        head = super().head(request, **parts)
        return head if head.rows is None else replace(head, rows=head.rows + request.summed.most_rows)


def table_of(more):
    """Make a table of users with an item, and of so many more with three items each."""
    pairs = [(f"u{n}", f"i{n % 4}") for n in range(20)] + [(f"z{n}", item) for n in range(more) for item in "abc"]
    day = datetime.date(2024, 2, 29)
    users, items = zip(*pairs, strict=True)
    return pa.table({"who": users, "item": items, "n": [7] * len(pairs), "day": [day] * len(pairs)})


def compare(kind, more):
    """Compare an engine on a table of more users with one on the table without them."""
    with contextlib.closing(kind(table_of(more))) as one, contextlib.closing(OnlyHeads(table_of(0))) as other:
        if kind is SameHeads:
            other.has_pairs = True
        check_outcomes(one, other, random.Random(1), 60)  # noqa: S311 - of test data


def test_one_user_more_is_accepted():
    """Counts and sums of neighbours differ by what one user may change."""
    compare(OnlyHeads, 1)
    compare(SameHeads, 1)


@pytest.mark.parametrize(("kind", "more"), [(OnlyHeads, 2), (SameHeads, 2), (Fails, 1), (UnweightedRows, 1)])
def test_what_one_user_cannot_change_is_noticed(kind, more):
    """Counts of two more users, sums of pairs of two more though heads are equal, an error, and an average's rows."""
    with pytest.raises(AssertionError):
        compare(kind, more)


@pytest.mark.parametrize("moved", ["rows", "before", "reached", "scaled", "users", "scaled_rows", "row_users"])
def test_every_kind_of_number_of_a_head_is_compared(moved):
    """Those beside counts and sums: of averages, of private bounds, and of running counts."""
    with contextlib.closing(Moves(table_of(0))) as one, contextlib.closing(OnlyHeads(table_of(0))) as other:
        one.moved = moved
        with pytest.raises(AssertionError):
            check_outcomes(one, other, random.Random(1), 2000)  # noqa: S311 - of test data


def test_random_requests_have_no_private_bound_of_zero():
    """A catalog declares a high bound above the low one, so a request without is an error of the fuzzer."""
    with contextlib.closing(OnlyHeads(table_of(0))) as engine:
        rng = random.Random(1)  # noqa: S311 - of test data
        bounds = [random_request(rng, engine).summed for _ in range(2000)]
    private = [summed for summed in bounds if summed is not None and summed.private]
    assert private
    assert all(summed.units[1] > 0 for summed in private)
