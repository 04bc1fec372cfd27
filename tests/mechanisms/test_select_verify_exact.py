"""Exact audit of a race of select-then-verify: anchor, noisy tail, order and counts, on all small neighbouring pairs.

A race's outcome is the noisy tail and the labels with their counts, in order, up to the step that ends it, which shows
neither whether a blank won nor whether an item failed. Its distribution is computed on the lattice of half
counts from the parameters of the real mechanism; a chi-square test ties the code that samples to it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import booleans, floats, integers, lists, tuples
from scipy import stats

from discreet.accounting.convert import delta_tight
from discreet.errors import InputError
from discreet.mechanisms import select_verify
from discreet.mechanisms.select_verify import SelectVerify
from discreet.testing.audit import head_of, sample
from discreet.values import Cost

from .neighbours import fit, named, neighbours, shapes

REACH = 11
"""Rounded noise farther out is left out; its standard deviations are below 2.2 half counts."""


@pytest.fixture
def small(monkeypatch):
    """Return constants for noise of about one count, so that whole distributions can be computed."""
    for name, value in {"ANCHOR_SHARE": 0.1, "TAIL_SHARE": 0.08, "FIRST_ERROR": 0.5, "RACES": 1}.items():
        monkeypatch.setattr(select_verify, name, Fraction(value) if "SHARE" in name else value)
    return SelectVerify(Cost(Fraction(4), Fraction(1, 25)), 2, Fraction(9, 10))


def level_of(mechanism, epsilon=Fraction(3, 5)):
    """Return the mechanism's level with this epsilon."""
    return mechanism._level(epsilon)


@cache
def pmf(reach, variance):
    """Return probabilities of rounded Gaussian noise from -reach to reach."""
    edges = (np.arange(-reach, reach + 2) - 0.5) / math.sqrt(variance)
    return np.diff(stats.norm.cdf(edges))


def outcomes(mechanism, level, histogram):
    """Return probabilities of all that a race shows, by labels in order: arrays over tail and counts, in half counts.

    What noise beyond REACH would show is missing.
    """
    head = head_of(histogram, mechanism.head_limit)
    counts = dict(zip(head.labels, head.counts.tolist(), strict=True))
    tail = head.count_at(mechanism.head_limit + 1)
    rivals = {label: n for label, n in counts.items() if n > tail}
    blanks = mechanism.head_limit - len(rivals)
    race = mechanism._race(np.array([*rivals.values()], dtype=np.int64), tail, blanks, level)
    weights = np.exp([float(race.scale * (n - tail)) for n in rivals.values()])
    threshold = (
        0.0 if race.rival is None else float(race.rival.factor) * math.exp(race.scale * (race.rival.score - tail))
    )
    size = 2 * (REACH + max([0, *rivals.values()])) + REACH
    grid = np.arange(-2 * REACH, size + 1)
    noise = np.arange(-REACH, REACH + 1)
    found = {}

    def walk(order, here, rest, anchor):
        total = sum(weights[i] for i in rest) + threshold
        stop = here * (threshold / total) if total else here
        for i in rest:
            count = list(rivals.values())[i]
            density = np.zeros(len(grid))
            density[np.searchsorted(grid, 2 * count + anchor + noise)] = pmf(REACH, float(level.variance))
            passes = grid[None, :] - grid[:, None] > 2 * mechanism.rows_per_group + level.margin
            passed = (here.reshape(len(grid), -1)[:, :, None] * (passes * density)[:, None, :]).reshape(
                (*here.shape, len(grid))
            )
            share = weights[i] / total
            failed = (~passes * density).sum(axis=1).reshape((-1, *[1] * (here.ndim - 1)))
            stop = stop + share * here * failed
            walk((*order, list(rivals)[i]), share * passed, [j for j in rest if j != i], anchor)
        found[order] = found.get(order, 0) + stop

    for anchor, probability in zip(noise.tolist(), pmf(REACH, float(mechanism._anchor())), strict=True):
        tails = np.zeros(len(grid))
        tails[np.searchsorted(grid, 2 * tail + anchor + noise)] = pmf(REACH, float(mechanism._tail()))
        walk((), probability * tails, list(range(len(rivals))), anchor)
    return found


def lost(one, other, epsilon):
    """Return the hockey-stick divergence of two sets of arrays that may end at different half counts."""
    total = 0.0
    for order, here in one.items():
        there = np.zeros_like(here)
        if order in other:
            shape = tuple(map(min, zip(here.shape, other[order].shape, strict=True)))
            inside = tuple(slice(n) for n in shape)
            there[inside] = other[order][inside]
        total += float(np.maximum(here - math.exp(epsilon) * there, 0).sum())
    return total


def worst(mechanism, level, epsilon, largest=2):
    """Return the largest divergence over all histograms of three labels and their neighbours, in both directions."""
    at = cache(lambda counts: outcomes(mechanism, level, named(counts)))
    candidates = [(c, more) for c in shapes(3, largest) for more in neighbours(c, mechanism.rows_per_group)]
    return max(max(lost(at(a), at(b), epsilon), lost(at(b), at(a), epsilon)) for a, b in candidates)


def allowed(mechanism, level, epsilon):
    """Return the mass that a bad item's passing moves, and delta of the zCDP of anchor, tail and three steps."""
    rho = mechanism._start().spent.rho + 3 * level.step.rho
    return tail_of_difference(mechanism, level), delta_tight(float(rho), epsilon)


def tail_of_difference(mechanism, level):
    """Return Pr[X - Y > margin] of a count's own noise and the tail's."""
    difference = np.convolve(pmf(40, float(level.variance)), pmf(40, float(mechanism._tail())))
    return float(difference[np.arange(-80, 81) > level.margin].sum())


@pytest.mark.exact
def test_a_race_is_private(small):
    """The theorem on every pair: the mass moved plus delta of the zCDP; nearly all of that mass is moved somewhere."""
    level = level_of(small)
    moved, delta = allowed(small, level, 6)
    assert moved <= small.limit.delta
    assert 0.7 * moved < worst(small, level, 6) <= moved + delta
    for epsilon in (1, 2, 4):
        moved, delta = allowed(small, level, epsilon)
        assert worst(small, level, epsilon, 1) <= moved + delta


@pytest.mark.exact
def test_a_race_of_rows_is_private(small):
    """With two rows per user and item an item may leave while another enters, and the mass is still not doubled."""
    rows = replace(small, rows_per_group=2)
    level = level_of(rows)
    moved, delta = allowed(rows, level, 6)
    assert worst(rows, level, 6) <= moved + delta


@pytest.mark.exact
@pytest.mark.parametrize("missing", ["the margin", "tau"])
def test_a_race_with_too_small_a_margin_is_not_private(small, missing):
    """The audit can fail: it rejects a smaller margin."""
    level = level_of(small)
    moved, delta = allowed(small, level, 6)
    level = replace(level, margin=-2 if missing == "the margin" else level.margin - 2 * small.rows_per_group)
    assert worst(small, level, 6) > moved + delta


@pytest.mark.exact
def test_a_race_without_blanks_is_not_private(small, monkeypatch):
    """An item that enters the head replaces a blank; without blanks the other items would win less often."""
    level = replace(level_of(small), epsilon=Fraction(1, 10))
    moved, delta = allowed(small, level, 6)
    tables = [named((9, 0, 0)), named((9, 1, 0))]
    assert lost(*(outcomes(small, level, table) for table in tables), 6) <= moved + delta
    assert lost(*(outcomes(small, level, table) for table in reversed(tables)), 6) <= moved + delta
    race = SelectVerify._race
    monkeypatch.setattr(SelectVerify, "_race", lambda self, counts, tail, _, at: race(self, counts, tail, 0, at))
    assert lost(*(outcomes(small, level, table) for table in reversed(tables)), 6) > 4 * (moved + delta)


@pytest.mark.statistical
@pytest.mark.parametrize("histogram", [{"a": 9, "b": 7}, {"a": 6, "b": 5, "c": 2, "d": 1}])
def test_releases_follow_the_exact_distribution(small, monkeypatch, histogram):
    """A chi-square test of the released labels, in order."""
    level = level_of(small)
    monkeypatch.setattr(select_verify._Found, "estimates", lambda found, _: -np.arange(len(found.positions)))
    monkeypatch.setattr(SelectVerify, "_first_epsilon", lambda _: level.epsilon)
    exact = outcomes(small, level, histogram)
    labels = {order: float(np.sum(p)) for order, p in exact.items()}
    released = sample(small, head_of(histogram, 2), 1500, b"one race of select, then verify..", labels_of)
    assert fit(released, labels) > 1e-3


def labels_of(labels, outcome):
    """Return the labels in order."""
    return tuple(labels[i] for i in outcome.positions)


def test_items_are_listed_by_their_released_counts():
    """Races find similar counts in any order."""
    mechanism = SelectVerify(Cost(Fraction(1, 100), Fraction(1, 10**8)), 30, Fraction(1, 2))
    head = head_of({str(n): 2000 - n for n in range(30)}, 30)
    for counts in sample(mechanism, head, 5, b"items by their released counts..", lambda _, outcome: outcome.counts):
        assert len(counts) > 5
        assert (np.diff(counts) <= 0).all()


@given(
    total=integers(1, 2**60),
    items=lists(tuples(floats(1, 2**50), floats(1, 2**60)), min_size=1, max_size=30),
    same=booleans(),
)
def test_second_counts_never_cost_more_than_is_left(total, items, same):
    """For any rounding of sums: a refusal by the filter would come after data was read."""
    precisions, sizes = np.array([items[0]] * len(items) if same else items).T
    added = select_verify._spread(total, precisions, sizes)
    assert added.min() >= 0
    assert sum(added.tolist()) <= total


@pytest.mark.parametrize("rho", [Fraction(1, 10**15), Fraction(1, 10**4), Fraction(10**12)])
@pytest.mark.parametrize("tau", [1, 10**6, 2**40])
@pytest.mark.parametrize("head_limit", [1, 30])
def test_no_table_decides_whether_there_is_an_answer(rho, tau, head_limit):
    """Too wide noise is refused before data is read, or never needed."""
    try:
        mechanism = SelectVerify(Cost(rho, Fraction(1, 10**8)), head_limit, Fraction(1, 10), tau)
    except InputError:
        return
    for histogram in ({}, {"a": 1}, {str(i): 2**59 // (i + 1) for i in range(40)}, {str(i): 3 + i for i in range(60)}):
        sample(mechanism, head_of(histogram, head_limit), 1, b"no table decides if it is answered", labels_of)
