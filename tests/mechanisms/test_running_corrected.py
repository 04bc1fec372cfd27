"""Running counts in two levels: the exact law of two days, planted errors, what the parts cost, and the correction."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import norm

from discreet.accounting.gaussian import delta_gaussian, mu_gaussian
from discreet.mechanisms.running import CorrectedCounts, RunningCounts, pilot_places
from discreet.noise.correlated import scales, squared_sums
from discreet.values import Cost

from .test_running_exact import LATE, OTHERS, OWN, STDS, law, noisy, small

SQUARE, MASS = Fraction(mu_gaussian(4.0, 5e-9)) ** 2, Fraction(5, 10**9)
LEVELS = [
    (small(2, 0.01, 1), small(Fraction(3, 2), 0.5, 1)),
    (small(3, 0.02, 3), small(2, 0.5, 1)),
    (small(3, 0.02, 2), small(1, 0.5, 1)),
    (small(1, 0.02, 1), small(1, 0.5, 1)),
]


def answers(listing, counting, counts, error=None):
    """Return the probabilities of all answers of two days: no item; listed on day 2; listed on day 1.

    The noise of a count starts on the day of the listing; listing and counting have different noise.

    Args:
        counts: the users of the item by day 1 and by day 2; each has a place in both levels.
        error: a planted error.
    """
    listed = law(listing, counts, error if error == "threshold of one user" else None)
    on_first = listed[:-1].sum()
    on_second = listed[-1, :-1].sum()
    start, both = noisy(counting, counts, error)
    sigma = math.sqrt(counting.variance)
    ends = np.append(start, start[-1] + 1) - 0.5 - counts[1]
    new = np.diff(norm.cdf(ends / (sigma * LATE)))
    if error == "the exact count when it is listed":
        new = (start == counts[1]).astype(float)
    return np.concatenate([[listed[-1, -1]], on_second * new, on_first * both.ravel()])


def excess(listing, counting, worlds, error=None, union="both days", half=0.5):
    """Return the largest true delta above beta + curve; at most 0 if the theorem holds."""
    sigma = math.sqrt(listing.variance)
    tails = [
        norm.sf((listing.threshold(day) - listing.least - half) / (sigma * std)) for day, std in enumerate(STDS, 1)
    ]
    beta = sum(tails) if union == "both days" else max(tails)
    mu = math.sqrt(1 / listing.variance + 1 / counting.variance)
    worst = -math.inf
    for others, own in itertools.product(worlds, OWN):
        one = answers(listing, counting, others, error)
        other = answers(listing, counting, (others[0] + own[0], others[1] + own[1]), error)
        for epsilon in (0.0, 0.5, 1.0, 2.0, 4.0):
            for left, right in ((one, other), (other, one)):
                delta = np.maximum(left - math.exp(epsilon) * right, 0).sum()
                worst = max(worst, delta - beta - delta_gaussian(mu, epsilon))
    return worst


@pytest.mark.parametrize("levels", LEVELS, ids=["2, 1.5", "3, 2", "3, 1", "m=1"])
def test_two_days_of_two_levels_satisfy_the_theorem(levels):
    """I1 for streams that are corrected: every answer of two days, on every pair of neighbours."""
    assert excess(*levels, OTHERS) <= 1e-9


@pytest.mark.parametrize(
    "planted",
    [
        {"error": "fresh noise"},
        {"error": "same noise on other rows"},
        {"error": "the exact count when it is listed"},
        {"error": "threshold of one user"},
        {"union": "one day"},
        {"half": 0.0},
    ],
    ids=lambda value: next(iter(value.values())),
)
def test_planted_errors_of_two_levels_break_it(planted):
    """Counts with noise drawn anew or used again or without any, too small a threshold, and a union over one day."""
    assert max(excess(*levels, ((0, 0), (0, 1), (1, 1), (2, 2), (40, 43)), **planted) for levels in LEVELS) > 1e-4


def histogram(*users):
    """Return numbers of users by `pilot_places` from the number of users with 1, 2, ... items."""
    sizes = np.repeat(np.arange(1, len(users) + 1), users)
    return np.bincount(np.searchsorted(pilot_places(), sizes, side="right") - 1, minlength=len(pilot_places())).tolist()


@pytest.mark.parametrize("pilot", [None, [], histogram(5, 5, 60, 20, 9), histogram(*[1] * 40), histogram(*[1] * 500)])
@pytest.mark.parametrize("periods", [1, 28, 365])
def test_all_parts_together_cost_what_was_declared(periods, pilot):
    """Listing, counting, the kept share and the pilot: their squared shifts by a user add up to mu^2."""
    stream = CorrectedCounts.within(periods, SQUARE, MASS, has_pilot=pilot is not None, pilot=pilot or [])
    parts = [8 / float(stream.places_variance)]
    parts += [
        level.groups_per_user / float(level.variance)
        for level in (stream.listing, stream.counting)
        if level is not None
    ]
    parts += [] if pilot is None else [1 / float(CorrectedCounts.pilot_variance(SQUARE))]
    assert 0.99 * SQUARE < sum(parts) <= SQUARE
    assert stream.worst_cost() == Cost(SQUARE / 2, MASS)
    tests = stream.listing.groups_per_user * periods
    sigma = math.sqrt(stream.listing.variance) * scales(periods)[0]
    half = stream.listing.threshold(1) - stream.least - 0.5
    assert tests * norm.sf(half / sigma) <= MASS
    assert stream.least == math.ceil(sigma / 2)


def test_the_pilot_chooses_the_bounds():
    """Three quarters of the users decide; where nine in ten have few items, there is one level."""
    chosen = {
        name: CorrectedCounts.within(28, SQUARE, MASS, has_pilot=True, pilot=pilot)
        for name, pilot in {
            "one": histogram(100, 3),
            "few": histogram(10, 10, 30, 30, 15, 5),
            "some": histogram(*[1] * 12),
            "many": histogram(*[1] * 236),
            "none": histogram(),
            "below": [-3, 2, *[0] * (len(pilot_places()) - 2)],
        }.items()
    }
    bounds = {
        name: (stream.listing.groups_per_user, stream.counting and stream.counting.groups_per_user)
        for name, stream in chosen.items()
    }
    expected = {"one": (1, None), "few": (4, None), "some": (9, 9), "none": (10, 10), "below": (10, 10)}
    assert bounds.items() >= expected.items()
    assert bounds["many"][0] == 30
    assert 160 <= bounds["many"][1] <= 177  # places are about 10 % apart


def test_a_pilot_tells_numbers_apart_that_differ_by_a_tenth():
    """All of them up to 20, so that small bounds are exact; streams keep numbers by place, so the places stay."""
    places = pilot_places()
    assert places[:21] == (*range(1, 21), 22)
    assert all(more == max(less + 1, less * 11 // 10) for less, more in itertools.pairwise(places[:-1]))
    assert places[-2:] == (972, 1_000)
    assert len(places) == 64


@pytest.mark.parametrize("groups", [1, 4, 10])
def test_the_kept_share_follows_from_users_by_place(groups):
    """Numbers of items in geometric progression are added up exactly, and heavier tails within a fiftieth."""
    pilot = histogram(*[0] * (groups - 1), 100)
    stream = CorrectedCounts.within(28, Fraction(10**9), MASS, has_pilot=True, pilot=pilot)
    assert stream.groups_per_user == groups
    for ratio, heavy, error in ((0.8, 0.0, 1e-3), (0.9, 0.02, 0.02)):
        users = 1e7 * (ratio ** np.arange(2_000) + heavy * 0.98 ** np.arange(2_000))
        reached = np.rint(users[[place - 1 for place in stream.places]]).astype(np.int64)
        kept = users[:groups].sum()
        assert stream.share(kept, reached, None) == pytest.approx(kept / users.sum(), rel=error)
        twice = stream.share(2 * kept, 2 * reached, (kept, reached.tolist()))
        assert twice == pytest.approx(stream.share(kept, reached, None))
    assert stream.share(1e6, np.full(8, -5), None) == 1


def test_fewer_standard_errors_make_a_number_by_place_significant_in_one_level():
    """Twice the standard error is taken for 0 in two levels."""
    one = CorrectedCounts.within(28, SQUARE, MASS, has_pilot=True, pilot=histogram(9))
    two = CorrectedCounts.within(28, SQUARE, MASS, has_pilot=False)
    reached = np.zeros(8, dtype=np.int64)
    reached[0] = 2 * math.sqrt(float(one.places_variance)) * squared_sums(28)[-1]
    assert one.share(1e4, reached, None) < 1
    assert two.share(1e4, reached, None) == 1


def test_counts_grow_by_what_arrives_over_the_share_that_is_kept():
    """In two levels by day; in one level all by the share of all pairs; shares of the whole are at most 1."""
    two = CorrectedCounts.within(28, SQUARE, MASS, has_pilot=False)
    counts, whole = two.corrected(np.array([100, 60]), 0.5, np.array([[80.0, 0.0], [80.0, 0.0]]))
    assert counts.tolist() == [120, 120]
    assert whole == 160 / 240
    one = CorrectedCounts.within(28, SQUARE, MASS, has_pilot=True, pilot=histogram(9))
    counts, whole = one.corrected(np.array([100, 60]), 0.5, np.array([[80.0, 0.0], [80.0, 0.0]]))
    assert counts.tolist() == [200, 120]
    assert whole == 0.5
    errors = two.published.std_errors(28, [1, 28])
    assert two.precise(errors / 0.085 * np.array([1.01, 0.99]), errors, 0.5).tolist() == [True, False]
    assert not two.precise(errors * 1_000, errors, 0.2).any()
    assert isinstance(two.published, RunningCounts)


@pytest.mark.parametrize("share", [1.0, 0.3])
def test_the_smallest_item_is_listed_and_precise(share):
    """With fewer users one of both does not hold; where too few pairs are kept, no item is shown."""
    two = CorrectedCounts.within(28, SQUARE, MASS, has_pilot=False)
    for day in (1, 28):
        smallest = two.smallest(day, share)
        errors = two.published.std_errors(day, [day, day]) / share
        is_precise = two.precise(np.array([smallest, smallest - 1]), errors, share).tolist()
        assert is_precise in ([True, False], [True, True])
        assert smallest == two.listing.threshold(day) or is_precise == [True, False]
        assert smallest >= two.listing.threshold(day)
    assert two.smallest(1, 0.2) is None


def test_an_item_that_one_level_lists_late_has_the_noise_of_the_whole_stream():
    """Its noise started on day 1, so that more users are needed than for noise that starts when it is listed."""
    one = CorrectedCounts.within(28, SQUARE, MASS, has_pilot=True, pilot=[1_000])
    assert one.counting is None
    smallest = one.smallest(28)
    assert smallest > one.listing.threshold(28)
    errors = one.published.std_errors(28, [1, 1])
    assert one.precise(np.array([smallest, smallest - 1]), errors, 1.0).tolist() == [True, False]
