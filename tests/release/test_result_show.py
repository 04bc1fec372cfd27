"""What a release reports besides its items."""

from __future__ import annotations

import dataclasses
import html
from fractions import Fraction

import numpy as np

from discreet.head_request import SumBounds
from discreet.values import Clipping, Measured, Sensitivity
from tests.queries import changed

from .builders import release_of


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
    for bounds, parts in [*expected.items(), (sentence, private)]:
        clipped = dataclasses.replace(release, query=changed(release.query, **parts))
        if parts is private:
            clipped = dataclasses.replace(clipped, measured=chosen)
            assert clipped.clipping == {"bound": "12.5", "share": 0.0312, "low": 0.0, "high": 0.1}
        for shown in (str(clipped), html.unescape(clipped._repr_html_()), clipped.to_json()):
            assert f"{bounds}; the intervals do not cover what that leaves out" in shown
