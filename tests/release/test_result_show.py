"""What a release reports besides its items."""

from __future__ import annotations

import dataclasses
import datetime
import html
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest

from discreet.head_request import Derived, SumBounds
from discreet.mechanisms import Request, TwoRound
from discreet.query.planning import Plan
from discreet.query.query import ROWS_NOTE
from discreet.release import Release
from discreet.values import Clipping, Measured, Outcome, Sensitivity
from tests.queries import changed

from .builders import GUARANTEE, release_of

CLIPPED = "intervals reach further up than down, because users with many items are clipped"
NOISY = "intervals are wide where the noise is large for so few users"


DAYS = [datetime.date(2025, 3, 10), None, datetime.date(2024, 12, 30), datetime.date(2025, 1, 6)]


@pytest.mark.parametrize(
    ("labels", "order"),
    [
        (pa.array(DAYS, pa.date32()), [2, 3, 0, 1]),
        (pa.array(DAYS, pa.date32()).cast(pa.timestamp("us")), [2, 3, 0, 1]),
        (pa.array([40, 20, -30, 100]), [2, 1, 0, 3]),
    ],
)
def test_times_and_bins_are_in_their_order_with_their_numbers(labels, order):
    """Every number stays beside its label; a missing label is the last."""
    at = pa.table({"at": labels})
    derived = (Derived("at", "x", 10),) if pa.types.is_integer(labels.type) else ()
    release = release_of(at, k=None)
    values = np.array([1.0, 2.0, 3.0, 4.0])
    measured = Measured("average", values, values + 4, values + 8, values + 12)
    release = dataclasses.replace(release, measured=measured, query=changed(release.query, derived=derived))
    after = release.in_order()
    assert after.to_arrow() == release.to_arrow().take(order)
    assert after.to_arrow() != release.to_arrow()


@pytest.mark.parametrize(
    ("labels", "k"),
    [
        ({"day": DAYS[2:] + DAYS[:1]}, 3),  # a ranking
        ({"item": ["c", "a", "b"]}, None),
        ({"number": [3, 1, 2]}, None),  # not a bin
        ({"day": DAYS[:1] + DAYS[2:], "item": ["c", "a", "b"]}, None),
    ],
)
def test_rankings_and_other_labels_keep_the_order_of_release(labels, k):
    """The largest come first."""
    release = release_of(pa.table(labels), k=k)
    assert release.in_order() is release


def test_a_release_reports_what_was_clipped():
    """Text, notebook and JSON report it; the intervals cover the noise alone."""
    release = release_of(["a"], k=1)
    assert release.clipped is None
    expected = {
        "each user's sum of minutes for an item is clipped to -0.5 to 60": {
            "summed": SumBounds(Fraction(-1, 2), Fraction(60), 1, column="minutes")
        },
        "at most 3 rows of each user and item are counted; at most 5 items of each user are counted": {
            "sensitivity": Sensitivity(5, 3)
        },
    }
    numbers = np.array([1.0])
    chosen = Measured("average", numbers, numbers, numbers, numbers, Clipping(125, 0.0312, 0.0, 0.1))
    private = {"summed": SumBounds(Fraction(0), Fraction(60), 1, private=True, column="minutes")}
    sentence = (
        "each user's sum of minutes for an item is clipped to 0 to 12.5, which was chosen privately; about 3.12 % of a "
        "user's sums are above that (0 to 10 %)"
    )
    expected_sum = "each user's sum of minutes for an item is clipped to 0 to 60"
    scaled = (
        f"{expected_sum}; and the sums of a user are scaled down if the "
        "root of the sum of their squares is above 12.5, which was chosen privately: those of about 3.12 % of the "
        "users. "
        "That keeps about 97 % of the sums, by which they were divided, and the intervals allow for that"
    )
    rows = {"summed": dataclasses.replace(private["summed"], rows=3)}
    weighed = (
        "values of minutes are clipped to 0 to 60; the rows of a user and an item have less weight if they are more "
        "than 3, or their sum is out of 0 to 60"
        + scaled.removeprefix(expected_sum)
        + "; the numbers of rows have such a bound of their own"
    )
    bounded = [(sentence, private, None), (scaled, private, 0.97), (weighed, rows, 0.97)]
    for bounds, parts, kept in [*((*each, None) for each in expected.items()), *bounded]:
        clipped = dataclasses.replace(release, query=changed(release.query, **parts))
        if parts is private or parts is rows:
            clipping = dataclasses.replace(chosen.clipping, kept=kept)
            clipped = dataclasses.replace(clipped, measured=dataclasses.replace(chosen, clipping=clipping))
            said = {"bound": "12.5", "share": 0.0312, "low": 0.0, "high": 0.1}
            assert clipped.clipping == (said if kept is None else said | {"kept": kept})
        for shown in (str(clipped), html.unescape(clipped._repr_html_()), clipped.to_json()):
            uncovered = "that leaves" if kept is None else "the other bounds leave"
            assert f"{bounds}; the intervals do not cover what {uncovered} out" in shown


def test_a_count_of_rows_says_first_that_it_is_not_that_of_all_rows():
    """Text and notebook say how all are counted, before the bound; counts of users and sums do not."""
    release = release_of(["a"], k=1)
    of_rows = dataclasses.replace(release, query=changed(release.query, sensitivity=Sensitivity(None, 3)))
    text = str(of_rows)
    assert 0 < text.index(ROWS_NOTE) < text.index("at most 3 rows")
    assert ROWS_NOTE in of_rows._repr_html_()
    assert ROWS_NOTE not in str(release)
    summed = SumBounds(Fraction(0), Fraction(60), 1, column="minutes")
    assert changed(of_rows.query, summed=summed).rows_note is None


def test_wide_and_lopsided_intervals_have_a_reason():
    """Text and notebook say it, and so does the reason for a choice. An end at 0 does not make an interval lopsided."""
    counts = np.array([1000, 999])
    for low, high, reason in (
        (counts - 30, counts + 45, None),
        (counts - 30, counts + 47, CLIPPED),
        (counts - 201, counts + 201, NOISY),
        (counts - np.array([30, 201]), counts + np.array([60, 201]), f"{CLIPPED}; {NOISY}"),
        (counts * 0, counts + 900, NOISY),
        (counts - np.array([30, 999]), counts + np.array([30, 999]), None),
    ):
        release = release_of(["a", "b"], k=2, low=low, high=high)
        assert release.interval_note == reason
        for shown in (str(release), html.unescape(release._repr_html_())):
            assert (CLIPPED in shown, NOISY in shown) == (CLIPPED in (reason or ""), NOISY in (reason or ""))
        outcome = Outcome(
            np.arange(2), counts, np.full(2, 9.0), low, high, ordered=True, complete=True, cost=release.charged
        )
        plan = Plan(release.query, TwoRound.within_cost(release.charged, Request(2, 0)), GUARANTEE, ())
        for why in ("many users", None):
            made = Release.of(plan, release.labels, dataclasses.replace(outcome, why=why), computational=False)
            assert made.why == (f"{why}; {reason}" if why and reason else why)


def test_labels_and_averages_are_not_called_clipped():
    """Labels have no intervals, and those of averages are lopsided for another reason."""
    assert release_of(["a"], counts=False).interval_note is None
    assert release_of([]).interval_note is None
    query = changed(release_of(["a"]).query, summed=SumBounds(Fraction(0), Fraction(60), 0, column="minutes"))
    numbers = np.array([100.0])
    averages = Measured("average", numbers, numbers / 50, numbers - 3, numbers + 9, None)
    assert release_of(["a"], query=query, measured=averages).interval_note is None
    noisy = dataclasses.replace(averages, high=numbers + 90)
    assert release_of(["a"], query=query, measured=noisy).interval_note == NOISY
