"""Exact audit of a level of select-then-verify: anchor, noisy tail, race and counts, on all small neighbouring pairs.

A level's outcome is the noisy tail and the labels with their counts, in order, up to the step that ends it, which shows
neither whether the threshold came next nor whether an item failed. Its distribution is computed on the lattice of half
counts from the parameters of the real mechanism; a chi-square test ties the code that samples to it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from scipy import stats

from discreet.accounting.convert import delta_tight
from discreet.mechanisms import select_verify
from discreet.mechanisms.select_verify import SelectVerify
from discreet.testing.audit import head_of, sample
from discreet.values import Cost

from .neighbours import fit, named, neighbours, shapes

REACH = 11
"""Rounded noise farther out is left out; its standard deviations are below 2.2 half counts."""


@pytest.fixture
def small(monkeypatch):
    """Constants for noise of about one count, so that whole distributions can be computed."""
    for name, value in {"ANCHOR_SHARE": 0.1, "TAIL_SHARE": 0.08, "PASSES": -0.5, "LEVELS": 1}.items():
        monkeypatch.setattr(select_verify, name, Fraction(value) if "SHARE" in name else value)
    return SelectVerify(Cost(Fraction(4), Fraction(1, 25)), 2, Fraction(1, 5))


def level_of(mechanism, epsilon=Fraction(3, 5)):
    """The mechanism's level with this epsilon."""
    return mechanism._level(epsilon)


@cache
def pmf(reach, variance):
    """Probabilities of rounded Gaussian noise from -reach to reach."""
    edges = (np.arange(-reach, reach + 2) - 0.5) / math.sqrt(variance)
    return np.diff(stats.norm.cdf(edges))


def outcomes(mechanism, level, histogram):
    """Probabilities of everything a level shows, by the labels in order: arrays over tail and counts, in half counts.

    What noise beyond REACH would show is missing.
    """
    head = head_of(histogram, mechanism.head_limit)
    counts = dict(zip(head.labels, head.counts.tolist(), strict=True))
    tail = head.count_at(mechanism.head_limit + 1)
    rivals = {label: n for label, n in counts.items() if n > tail}
    race = mechanism._race(np.array([tail, *rivals.values()]), tail, level)
    weights = np.exp([float(race.scale * (n - tail)) for n in rivals.values()])
    threshold = math.exp(race.scale * (race.rival.score - tail)) * float(race.rival.factor)
    size = 2 * (REACH + max([0, *rivals.values()])) + REACH
    grid = np.arange(-2 * REACH, size + 1)
    noise = np.arange(-REACH, REACH + 1)
    found = {}

    def walk(order, here, rest, anchor):
        total = sum(weights[i] for i in rest) + threshold
        stop = here * (threshold / total)
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
    """The hockey-stick divergence of two sets of arrays that may end at different half counts."""
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
    """The largest divergence over all histograms of three labels and all their neighbours, both directions."""
    at = cache(lambda counts: outcomes(mechanism, level, named(counts)))
    candidates = [(c, more) for c in shapes(3, largest) for more in neighbours(c, mechanism.rows_per_group)]
    return max(max(lost(at(a), at(b), epsilon), lost(at(b), at(a), epsilon)) for a, b in candidates)


def allowed(mechanism, level, epsilon):
    """Theorem C: the mass that a bad item's passing moves, and delta of the zCDP of anchor, tail and three steps."""
    rho = mechanism._start().budget.spent.rho + 3 * level.step.rho
    mass = float(level.mass / (1 + level.mass))
    return mass * tail_of_difference(mechanism, level), delta_tight(float(rho), epsilon)


def tail_of_difference(mechanism, level):
    """Pr[X - Y > margin] of a count's own noise and the tail's."""
    difference = np.convolve(pmf(40, float(level.variance)), pmf(40, float(mechanism._tail())))
    return float(difference[np.arange(-80, 81) > level.margin].sum())


@pytest.mark.exact
def test_a_level_is_private(small):
    """Theorem C on every pair: the mass moved plus delta of the zCDP; nearly all of that mass is moved somewhere."""
    level = level_of(small)
    moved, delta = allowed(small, level, 6)
    assert moved <= small.limit.delta
    assert 0.7 * moved < worst(small, level, 6) <= moved + delta
    for epsilon in (1, 2, 4):
        moved, delta = allowed(small, level, epsilon)
        assert worst(small, level, epsilon, 1) <= moved + delta


@pytest.mark.exact
def test_a_level_of_rows_is_private(small):
    """Two rows per user and item: leaving and entering items meet, and the mass is still not doubled."""
    rows = replace(small, rows_per_group=2)
    level = level_of(rows)
    moved, delta = allowed(rows, level, 6)
    assert worst(rows, level, 6) <= moved + delta


@pytest.mark.exact
@pytest.mark.parametrize("fault", ["no margin", "too much mass", "no tau in the threshold"])
def test_a_level_with_a_planted_error_is_not(small, fault, monkeypatch):
    """The audit has an edge."""
    level = level_of(small)
    moved, delta = allowed(small, level, 6)
    if fault == "no margin":
        level = replace(level, margin=-2)
    elif fault == "too much mass":
        level = replace(level, mass=8 * level.mass)
    else:
        race = SelectVerify._race
        monkeypatch.setattr(SelectVerify, "_race", lambda self, counts, tail, at: race(self, counts, tail - 3, at))
    assert worst(small, level, 6) > moved + delta


@pytest.mark.statistical
@pytest.mark.parametrize("histogram", [{"a": 9, "b": 7}, {"a": 6, "b": 5, "c": 2, "d": 1}])
def test_releases_follow_the_exact_distribution(small, monkeypatch, histogram):
    """Which labels a level releases, in order, and the first one's count."""
    level = level_of(small)
    monkeypatch.setattr(SelectVerify, "_levels", lambda _: [level])
    exact = outcomes(small, level, histogram)
    labels = {order: float(np.sum(p)) for order, p in exact.items()}
    released = sample(small, head_of(histogram, 2), 1500, b"one level of select then verify.", labels_of)
    assert fit(released, labels) > 1e-3


def labels_of(labels, outcome):
    """The labels in order."""
    return tuple(labels[i] for i in outcome.positions)
