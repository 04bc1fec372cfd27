"""Upper ends of sums by a private bound: exact coverage on small tables, for every outcome of the histogram."""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from discreet.head_request import ROW_UNIT, SumBounds
from discreet.mechanisms import sums
from discreet.mechanisms.sums import ListedSums
from discreet.noise import KeyedBits

from .test_sums_bound import head_of

pytestmark = pytest.mark.exact

SUMMED = SumBounds(0, 7, private=True)
"""Bounds of 1, 2, the root of 13, and 7."""

TOTAL = ListedSums(1, SUMMED, 1, Fraction(7, 2))
"""The numbers of users in bins have noise of standard deviation 1; the sum, of half the bound."""


def gaussian(variance, errors):
    """Return the values of a discrete Gaussian up to *errors* standard deviations, and their probabilities."""
    most = round(errors * float(variance) ** 0.5)
    z = np.arange(-most, most + 1)
    mass = np.exp(-(z**2) / (2 * float(variance)))
    return z, mass / mass.sum()


def misses(monkeypatch, table, allowed=lambda released: released.least):
    """Return an array with a row for every outcome of the histogram of *table*, numbers of users by their sum.

    Args:
        allowed: the share that upper ends are divided by; a planted defect takes another one.

    Returns:
        the probability; the share of the sum that weights keep, and the share that the upper end allows for; and the
        probabilities that the sum is below its interval, and above.
    """
    values = np.repeat(list(table), list(table.values()))
    head = head_of(values[:, None], SUMMED)
    (scaled,) = TOTAL._scaled()
    z, mass = gaussian(scaled._users_noise().variance, 3)
    outcomes = {}
    for drawn in itertools.product(range(len(z)), repeat=len(head.users)):
        noise = {"users": z[list(drawn)], "sums": 0}
        monkeypatch.setattr(sums, "with_noise", lambda exact, _noise, _bits, label, noise=noise: exact + noise[label])
        released = scaled.release(head.scaled, head.users, 1, KeyedBits(bytes(32), 0))
        outcome = (int(released.parts[0]), released.noise, released.share, released.least)
        _, before = outcomes.get(outcome, (released, 0))
        outcomes[outcome] = (released, before + mass[list(drawn)].prod())
    rows = []
    for (parts, noise, _, least), (released, probability) in outcomes.items():
        errors, likely = gaussian(noise.variance, 6)
        measured = replace(released, parts=parts + errors, least=allowed(released)).measured()
        below, above = likely[measured.low > values.sum()], likely[measured.high < values.sum()]
        rows.append((probability, parts / ROW_UNIT / values.sum(), least, below.sum(), above.sum()))
    return np.array(rows)


MIXED = {1: 30, 2: 12, 3: 6, 7: 2}


@pytest.mark.parametrize(
    ("table", "too_low"),
    [
        ({1: 40}, (0, 0.001)),
        ({2: 25, 3: 25}, (0, 0.001)),
        ({3: 30, 7: 6}, (0.01, 0.02)),
        (MIXED, (0.03, 0.06)),
        ({1: 40, 7: 8}, (0.01, 0.02)),
        ({1: 40, 7: 3}, (0.9, 0.97)),
    ],
)
def test_upper_ends_hold_where_the_item_keeps_the_share_that_they_allow_for(monkeypatch, table, too_low):
    """Each end fails in 2.5 % of the cases at most; without the hypothesis, as of three users that noise hides, not."""
    probability, kept, least, below, above = misses(monkeypatch, table).T
    holds = kept >= least
    assert below.max() <= 0.025
    assert above[holds].max() <= 0.025
    assert too_low[0] <= probability @ above <= too_low[1]
    assert probability @ above <= 0.025 + probability[~holds].sum()


@pytest.mark.parametrize("planted", ["the mean share", "half widths of 80 %"])
def test_upper_ends_that_allow_for_too_little_are_detected(monkeypatch, planted):
    """Such as for the share that all items keep on average."""
    if planted == "the mean share":
        rows = misses(monkeypatch, MIXED, allowed=lambda released: released.share)
    else:
        monkeypatch.setattr(sums, "MISS", 0.2)
        rows = misses(monkeypatch, MIXED)
    _, kept, least, _, above = rows.T
    assert above[kept >= least].max() > 0.025
