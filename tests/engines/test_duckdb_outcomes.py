"""No row decides whether DuckDB answers: the fast part of the fuzz; `python -m benchmarks fuzz` is the long one."""

from __future__ import annotations

import contextlib
import random

import pytest

from benchmarks.outcomes import SOURCES
from discreet.testing.outcomes import check_outcomes


@pytest.mark.parametrize("source", SOURCES)
def test_no_row_decides_whether_there_is_an_answer(tmp_path, source):
    """Types x groups_per_user x rows_per_user_and_item x filters x sums have one outcome with any rows."""
    with contextlib.ExitStack() as stack:
        engines = [
            stack.enter_context(contextlib.closing(SOURCES[source](tmp_path, extremes))) for extremes in (True, False)
        ]
        check_outcomes(*engines, random.Random(f"{source} 1"), 30)  # noqa: S311 - of test data
