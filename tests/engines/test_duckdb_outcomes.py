"""Answers with and without a user are neighbours: a short run of `python -m benchmarks fuzz`."""

from __future__ import annotations

import random

import pytest

from benchmarks.outcomes import SOURCES, check_source


@pytest.mark.parametrize("source", SOURCES)
def test_one_user_decides_no_outcome_and_moves_each_count_by_one_at_most(source):
    """Types x writers x groups_per_user x rows_per_group x filters x sums x segments x listed items."""
    for seed in range(3):
        check_source(source, random.Random(f"{source} {seed}"), 10)  # noqa: S311 - of test data
