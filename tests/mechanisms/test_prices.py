"""Ranges of errors and smallest counts before any data is read: they hold on real tables and made-up ones."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from itertools import product

import numpy as np
import pytest

from discreet.accounting.convert import limit_for
from discreet.mechanisms import Auto, KnownGumbel, KnownLaplace, Likely, Request, UnknownGumbel, UnknownLaplace
from discreet.mechanisms.sums import (
    KnownGumbelSums,
    KnownLaplaceSums,
    ListedSums,
    UnknownGumbelSums,
    UnknownLaplaceSums,
)
from discreet.noise import KeyedBits
from discreet.query.planning import AUTO_FROM_K
from discreet.testing.pairs import ArrayPairs
from discreet.values import ExactHead, Sensitivity
from papers.tables import Tables

from .test_sums_bound import AVERAGED, ITEMS, ManyUsers

DELTA = Fraction(1, 10**8)
REAL = ("amazon-sports", "citeulike", "foursquare", "lastfm-plays", "online-retail", "shakespeare")
MADE_UP = ("linkedin-titles/20", "linkedin-articles/20", "one-item", "steep", "pareto")
QUERIES = tuple(product((None, 6, 30, 100), (0.5, 1, 2, 4, 8)))


@dataclass(frozen=True)
class Delivered:
    """A release beside its price and the truth.

    Args:
        likely: the priced ranges, the likeliest first.
        taken: the range of the branch that was taken.
        errors: standard errors of the released counts, shape (n,).
        off: how far the counts are from the truth, shape (n,).
        counts: the released counts, shape (n,).
        missing: the largest true counts that a release of this k could have had and has not, ascending.
        tail: the count below the head's cut-off.
    """

    likely: tuple[Likely, ...]
    taken: Likely
    errors: np.ndarray
    off: np.ndarray
    counts: np.ndarray
    missing: np.ndarray
    tail: int


class Drawn(KeyedBits):
    """Bits that record whether sizes were measured: otherwise, positions are rows of the head."""

    sizes = False

    def uint64(self, label, n, start=0):
        """See `KeyedBits`."""
        self.sizes |= label.startswith("sizes")
        return super().uint64(label, n, start)


def release(pairs, k, epsilon, name):
    """Return what is delivered for one query of a table."""
    auto = Auto.at_epsilon(Fraction(epsilon), DELTA, Request(k, 10_000 if k is None else max(10 * k, 1_000)))
    bits = Drawn(bytes(32), f"{name}/{k}/{epsilon}")
    outcome = auto.release(pairs, bits)
    order = np.argsort(-pairs.counts, kind="stable")
    items = outcome.positions if bits.sizes else order[outcome.positions]
    truth, exact = pairs.counts[items], pairs.counts[order]
    missing = [] if len(items) == k else np.sort(pairs.counts[np.setdiff1d(order[: auto.head_limit], items)])
    likely = auto.expectation().likely
    taken = next(each for each in likely if each.name == outcome.chosen)
    tail = int(exact[auto.head_limit]) if len(exact) > auto.head_limit else 0
    off = np.abs(outcome.counts - truth)
    return Delivered(likely, taken, outcome.std_errors, off, outcome.counts, np.asarray(missing), tail)


@cache
def delivered():
    """Return a release of every query over every available table, by k."""
    tables, found = Tables(), []
    named = [(name, tables.made_up) for name in MADE_UP]
    named += [(name, tables.real) for name in REAL if tables.has(name)]
    for name, load in named:
        table = load(name)
        pairs = ArrayPairs(table.users, table.items)
        found += [(k, release(pairs, k, epsilon, name)) for k, epsilon in QUERIES]
    return found


def upper(taken, counts):
    """Return the upper end of the priced range of standard errors, for released *counts*, shape (n,)."""
    if taken.max_std_error is not None:
        return np.full(len(counts), taken.max_std_error)
    return taken.max_relative_error * (counts + 0.5)  # counts are rounded to whole numbers


def share_within(releases, factor=1.0):
    """Return the share of releases of which all standard errors are within the range of the branch that was taken.

    Args:
        factor: multiplies the delivered errors.
    """
    held = [
        (factor * each.errors >= each.taken.min_std_error * 0.999).all()
        and (factor * each.errors <= upper(each.taken, each.counts) * 1.001).all()
        for each in releases
    ]
    return np.mean(held)


def test_delivered_errors_are_within_the_priced_range():
    """In 95 % of the releases all standard errors are, and 95 % of the counts are within 1.96 times its upper end."""
    releases = [each for _, each in delivered()]
    assert share_within(releases) >= 0.95
    off = np.concatenate([each.off for each in releases])
    ends = np.concatenate([upper(each.taken, each.counts) for each in releases])
    assert (off <= 1.96 * ends + 0.5).mean() >= 0.95
    # The ranges are no wider than needed: other errors are found to be outside.
    assert share_within(releases, 1.5) < 0.75
    assert share_within(releases, 0.4) < 0.75


def test_smallest_counts_are_within_the_priced_range():
    """In 95 % of the releases no count is below it, and 95 % of the items above it are released, up to k of them."""
    low, high = [], []
    for _, each in delivered():
        low.append((each.counts >= 0.9 * each.taken.smallest_count).all())
        above = int((each.missing > each.taken.max_smallest_count + each.tail).sum())
        released = int((each.counts > each.taken.max_smallest_count + each.tail).sum())
        high.append(above <= 0.05 * (above + released))
    assert np.mean(low) >= 0.95
    assert np.mean(high) >= 0.95


@pytest.mark.parametrize("k", [None, 6, 30, 100])
def test_the_first_range_is_that_of_the_branch_taken_most_often(k):
    """No other branch is taken more often, over all tables and epsilons, than the one that a price names first."""
    if k is None and not all(map(Tables().has, REAL)):
        pytest.skip(
            "the real tables are not there, and users of most made-up ones have few items, which one round counts"
        )
    places = Counter(each.likely.index(each.taken) for of, each in delivered() if of == k)
    assert places[0] == max(places.values())


def test_a_top_k_by_auto_is_priced_as_the_race_of_one_item_less_but_for_its_common_noise():
    """Its race for k = 6 promises no smaller threshold than that for k = 5, and no less error but for that factor."""
    common = (1 + AUTO_FROM_K**0.5) / (2 * AUTO_FROM_K**0.5)
    for epsilon in (Fraction(1, 2), Fraction(1), Fraction(4)):
        request = Request(AUTO_FROM_K, 1_000)
        limit = limit_for(float(epsilon), DELTA)
        below = UnknownGumbel.within_cost(limit, replace(request, k=AUTO_FROM_K - 1)).expectation()
        likely = Auto.at_epsilon(epsilon, DELTA, request).expectation().likely
        race = next(each for each in likely if each.name == UnknownGumbel.name)
        assert race.min_std_error >= common * below.max_std_error
        assert race.smallest_count >= below.smallest_count


def test_ranges_name_only_branches_that_can_be_taken():
    """One round is left out where a shared budget is too small for it, and the race without a k."""
    request = Request(None, 10_000)
    assert [each.name for each in Auto.at_epsilon(Fraction(1), DELTA, request).expectation().likely] == [
        "two-round",
        "head",
        "light",
    ]
    shared = Auto.within_cost(limit_for(1.0, DELTA), replace(request, k=10)).expectation()
    assert [each.name for each in shared.likely] == ["two-round", "head", "unknown-gumbel"]


def test_labels_have_smallest_counts_but_no_errors():
    """Without counts there is no error to state."""
    likely = Auto.at_epsilon(Fraction(1), DELTA, Request(None, 10_000, counts=False)).expectation().likely
    assert {(each.min_std_error, each.max_std_error, each.max_relative_error) for each in likely} == {(None,) * 3}
    assert all(0 < each.smallest_count < each.max_smallest_count for each in likely)


def test_intervals_of_counts_that_select_the_items_are_within_the_priced_range():
    """By unknown-laplace, in 95 % of the releases, and so are 95 % of the errors; it is wider than 1.96 would be."""
    held = []
    covered = []
    wider = []
    shares = (0.0, 0.3, 1.0, 3.0)
    for (k, epsilon), noise, groups, share in product(QUERIES, ("gaussian", "laplace"), (1, 20), shares):
        request = Request(k, 1_000, Sensitivity(groups), noise=noise)
        mechanism = UnknownLaplace.within_cost(limit_for(epsilon, DELTA), request)
        expected = mechanism.expectation()
        # With the share 0 a single item is above the threshold, with 3 nearly all are.
        sizes = np.arange(1_000, 0, -1) * share * expected.smallest_count / 250
        truth = np.maximum(sizes.astype(np.int64), 1)
        truth[0] = 20 * expected.smallest_count
        outcome = mechanism.release(ExactHead(truth, 1_000), KeyedBits(bytes(32), f"{k}/{epsilon}/{noise}/{groups}"))
        widths = outcome.high - outcome.counts  # the lower end may be cut off at 0
        held.append(((expected.min_half_width <= widths) & (widths <= expected.max_half_width)).all())
        covered.append((np.abs(outcome.counts - truth[outcome.positions]) <= widths).mean())
        wider.append((widths > 1.1 * 1.96 * expected.max_std_error).all())
    assert np.mean(held) >= 0.95
    assert np.mean(covered) >= 0.95
    assert np.mean(wider) >= 0.75


FIVE = [(1, None, 3), ((3, 2), (4, 2), 2), (None, 2, 2), ((1, 2), 1, None), (5, None, None)]


def release_averages(kind, low, private, noise, epsilon):
    """Return the priced error of a sum, an outcome with averages, and the true ones."""
    summed = replace(AVERAGED, low=low, private=private)
    users = ManyUsers(FIVE, 1000)
    every = users.sums_of(range(ITEMS))
    rows = every.scaled_rows[:, -1]
    source = ExactHead(np.array([9_000, 6_000, 3_000]), ITEMS, None, every.scaled[:, -1], rows=rows)
    if private:
        source = every if kind is ListedSums else users
    known = kind not in (UnknownGumbelSums, UnknownLaplaceSums)
    k = ITEMS if kind in (KnownGumbelSums, UnknownGumbelSums) else None
    bound = Sensitivity(None if k else ITEMS)
    request = Request(k, ITEMS, bound, counts=False, noise=noise, known_domain=known, summed=summed)
    mechanism = kind.within_cost(limit_for(epsilon, DELTA), request)
    outcome = mechanism.release(source, KeyedBits(bytes(32), f"{kind.name}/{low}/{private}/{noise}/{epsilon}"))
    return mechanism.expectation().sum_std_error, outcome, (every.scaled[:, -1] / rows)[outcome.positions]


def test_errors_of_averages_are_within_the_priced_range():
    """That of a sum divided by the released rows: 0.86 to 1 times that, 1 to 1.42 without a difference, or less."""
    held = []
    loud = []
    quiet = []
    covered = []
    known = (KnownGumbelSums, KnownLaplaceSums, ListedSums)
    kinds = [(kind, low, False) for kind in (*known, UnknownGumbelSums, UnknownLaplaceSums) for low in (0, -7)]
    kinds += [(kind, 0, True) for kind in known]
    for (kind, low, private), noise, epsilon in product(kinds, ("gaussian", "laplace"), (1, 2, 4, 8)):
        price, outcome, truth = release_averages(kind, low, private, noise, epsilon)
        rows = np.maximum(outcome.counts, 1)
        averages = outcome.measured.values
        assert (truth <= AVERAGED.high / AVERAGED.rows).all()
        least = (0 if private else 1 if low else 0.86) * price / rows
        most = (1.42 if private or low else 1) * price / rows

        def within(errors, least=least, most=most):
            return ((0.98 * least <= errors) & (errors <= 1.02 * most)).all()

        held.append(within(outcome.measured.std_errors))
        loud.append(within(1.5 * outcome.measured.std_errors))
        quiet.append(private or within(0.6 * outcome.measured.std_errors))
        covered += (np.abs(averages - truth) <= 1.96 * most).tolist()
    assert np.mean(held) >= 0.95
    assert np.mean(covered) >= 0.95
    # The ranges are no wider than needed: other errors are found to be outside.
    assert np.mean(loud) < 0.75
    assert np.mean(quiet) < 0.75


@pytest.mark.parametrize("k", [None, 6])
def test_both_ends_of_the_range_of_such_intervals_are_reached(k):
    """By one item, and by as many as can be released: the range is no wider than needed."""
    mechanism = UnknownLaplace.within_cost(limit_for(1.0, DELTA), Request(k, 1_000, Sensitivity(5)))
    expected = mechanism.expectation()
    for number, width in ((1, expected.max_half_width), (1_000, expected.min_half_width)):
        head = ExactHead(np.full(number, 9 * expected.smallest_count), 1_000)
        outcome = mechanism.release(head, KeyedBits(bytes(32), "ends"))
        assert set((outcome.high - outcome.counts).tolist()) == {width}
    assert expected.max_half_width > 1.1 * expected.min_half_width


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("k", [None, 1, 20])
def test_the_interval_of_listed_items_is_the_priced_one(k, noise):
    """How many counts are released is public, so the range has one value."""
    request = Request(k, 100, Sensitivity(2), noise=noise, known_domain=True)
    mechanism = KnownLaplace.within_cost(limit_for(1.0, DELTA), request)
    expected = mechanism.expectation()
    outcome = mechanism.release(ExactHead(np.full(100, 10_000), 100), KeyedBits(bytes(32), "listed"))
    assert expected.min_half_width == expected.max_half_width
    assert set((outcome.high - outcome.counts).tolist()) == {expected.max_half_width}


@pytest.mark.parametrize(("noise", "is_stated"), [("laplace", True), ("gaussian", False)])
def test_a_race_states_the_half_widths_of_laplace_noise_alone(noise, is_stated):
    """Those of Gaussian noise follow from the standard error."""
    mechanism = KnownGumbel.within_cost(limit_for(1.0, DELTA), Request(10, 100, noise=noise, known_domain=True))
    expected = mechanism.expectation()
    width = mechanism.count_noise().half_width() if is_stated else None
    assert (expected.min_half_width, expected.max_half_width) == (width, width)
    assert expected.min_std_error == mechanism.count_noise().std
