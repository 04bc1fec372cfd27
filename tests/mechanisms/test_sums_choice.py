"""The choice of a bound, computed again from the noisy histogram of users, and what is said of the clipping."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest

from discreet.head_request import ROW_UNIT, SumBounds
from discreet.mechanisms import KnownGumbel, KnownLaplace, Request, UnknownGumbel, UnknownLaplace, sums
from discreet.mechanisms.base import noise_of, shuffled
from discreet.mechanisms.sums import (
    KnownGumbelSums,
    KnownLaplaceSums,
    ListedSums,
    ScaledSums,
    UnknownGumbelSums,
    UnknownLaplaceSums,
)
from discreet.mechanisms.two_round import believable, continued
from discreet.noise import KeyedBits
from discreet.values import Cost, ExactHead, Sensitivity

from .draws import release

SUMMED = SumBounds(0, 25, private=True)
DELTA = Fraction(1, 10**6)


class Lengths(NamedTuple):
    """A `HeadAndSums` of items with counts 400, 300, ..., and users by the bound that their length reaches."""

    users: tuple[int, ...]
    items: int = 4

    def head(self, limit):
        """Return the counts."""
        return ExactHead(np.arange(self.items, 0, -1) * 100, limit)

    def sums_of(self, positions):
        """Return sums that keep more at each bound."""
        squares = np.sqrt(SUMMED.squared_lengths(len(positions)))
        users = np.resize(self.users, len(squares))
        kept = np.minimum(0.8 * squares, squares[:, None]) @ users
        scaled = np.outer(np.arange(self.items, 0, -1)[positions], ROW_UNIT * kept).astype(np.int64)
        return ExactHead(np.zeros(len(scaled), dtype=np.int64), len(scaled), scaled=scaled, users=users)


def chosen_bound(source, drawn, moved, scale, noise):
    """Return the number of the bound of docs/mechanisms/sums.md and what it keeps; *scale*: a count's."""
    std = noise_of(noise, Fraction(math.sqrt(scale**2 / min(Fraction(moved, 4), 1)))).std
    noisy = (source.users + drawn.added["users"].values).astype(float)
    users = believable(noisy, std, 4.0)
    if not users.any():
        users = [float(n == max(noisy)) for n in noisy]
    bounds = [math.sqrt(square) for square in SUMMED.squared_lengths(moved)]
    mass = sum(0.72 * bound * n for bound, n in zip(bounds, users, strict=True))
    losses, kept = [], []
    for bound in bounds:
        left = sum(min(0.72 * other, bound) * n for other, n in zip(bounds, users, strict=True)) / mass
        error = float(scale) * bound / math.sqrt(moved) / left / (mass / len(source.scaled))
        losses.append(error**2 + (2 * (1 - left)) ** 2)
        kept.append(left)
    return losses.index(min(losses)), kept[losses.index(min(losses))]


LENGTHS = [(400, 300, 200, 60, 10, 1), (20, 10, 30, 50, 400, 600), (900, 0, 0, 0, 0, 0), (5, 5, 5, 5, 5, 900)]
LENGTHS += [(300,) * 6, (200, 0, 0, 300, 0, 0), (4000, 3000, 2000, 600, 100, 10), (200, 100, 300, 500, 4000, 6000)]


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("epsilon", [Fraction(1), Fraction(1, 5), Fraction(1, 60)])
def test_the_bound_has_the_least_noise_and_loss(noise, lengths, epsilon):
    """By the noisy users alone; sums are divided by what it keeps, and their noise is that of its price."""
    for run in range(3):
        source = Lengths(lengths)
        outcome, drawn = release(KnownGumbelSums(KnownGumbel(3, 4, epsilon), SUMMED, 3, noise), source, run)
        head = source.sums_of(outcome.positions)
        chosen, kept = chosen_bound(head, drawn, 3, 2 / epsilon, noise)
        measured = outcome.measured
        square = SUMMED.squared_lengths(3)[chosen]
        assert measured.clipping.bound == math.ceil(math.sqrt(square))
        assert measured.clipping.kept == pytest.approx(kept)
        width = noise_of(noise, Fraction(2 / epsilon * Fraction(math.sqrt(square / 3)) * ROW_UNIT))
        assert measured.std_errors == pytest.approx(width.std / ROW_UNIT / kept)
        parts = (head.scaled[:, chosen] + drawn.added["sums"].values) / ROW_UNIT
        assert measured.values.tolist() == np.rint(parts / measured.clipping.kept).astype(int).tolist()
        assert (measured.low <= np.maximum(np.ceil(parts), 0)).all()
        assert (measured.high >= np.maximum(parts + width.half_width(0.05) / ROW_UNIT - 1, 0)).all()


@pytest.mark.parametrize(
    ("shares", "chosen", "expected"),
    [
        ([60.0, 30.0, 10.0], 0, (0.4, 0.3, 0.52)),
        ([60.0, 30.0, 10.0], 1, (0.1, 0.05, 0.16)),
        ([60.0, 30.0, 10.0], 2, (0.0, 0.0, 0.0)),
        ([60.0, 30.0, -40.0], 1, (0.0, 0.0, 0.0)),
        ([-4.0, 3.0, 2.0], 0, (1.0, 0.0, 1.0)),
        ([-40.0, 3.0, 2.0], 0, (0.0, 0.0, 1.0)),
        ([-60.0, 3.0, 90.0], 1, (1.0, 1.0, 1.0)),
        ([-200.0, 3.0, 90.0], 1, (0.0, 0.0, 1.0)),
        ([-30.8, 3.0, 20.0], 1, (1.0, 1.0, 1.0)),
        ([-3.0, 3.0, 0.0], 0, (0.0, 0.0, 1.0)),
        ([-10.0, -20.0, -10.0], 0, (0.0, 0.0, 1.0)),
        ([25.5, -3.3, -3.4], 0, (0.0, 0.0, 0.04)),
        ([9.0, 0.0, 0.0], 2, (0.0, 0.0, 0.0)),
    ],
)
def test_the_clipped_share_is_within_its_interval_and_the_interval_within_0_and_1(shares, chosen, expected):
    """Also where noise makes a share, or all of them together, negative."""
    found = sums._clipping(7, np.array(shares), chosen, noise_of("gaussian", Fraction(2)), 0.9)
    assert found.bound == 7
    assert [round(value, 2) for value in (found.share, found.low, found.high)] == list(expected)


def test_upper_ends_allow_for_the_tail_that_is_likely(monkeypatch):
    """Where it takes more than two thirds: noise of standard error 20 hides the users at the larger bounds."""
    monkeypatch.setattr(sums, "with_noise", lambda exact, *_: exact)
    summed = SumBounds(0, 100, private=True)
    bounds = np.sqrt(summed.squared_lengths(1))
    users = np.array([100, 0, 50, 0, 0, 0, 0, 30])
    scaled = ScaledSums(summed, 1, Fraction(10), "gaussian")
    released = scaled.release(np.full((1, 8), 1000), users, 1, KeyedBits(bytes(32), 0))
    likely = continued(users.astype(float), 20.0, 4.0, 0.0)
    assert released.clipping.bound == 1
    assert released.least == pytest.approx(np.minimum(0.72 * bounds, 1) @ likely / (0.72 * bounds @ likely))
    assert released.least < released.share / 3


def test_users_that_may_be_hidden_where_none_show_are_the_noisy_ones_and_the_errors():
    """At least one of them."""
    assert sums._with_hidden(np.array([3.0, -50.0, 10.0]), 5.0, 2.0).tolist() == [13, 1, 20]


RANKINGS = {
    KnownLaplaceSums: (KnownLaplace, Request(3, 8, Sensitivity(2), known_domain=True)),
    KnownGumbelSums: (KnownGumbel, Request(3, 8, Sensitivity(2), known_domain=True)),
    UnknownLaplaceSums: (UnknownLaplace, Request(3, 8, Sensitivity(2))),
    UnknownGumbelSums: (UnknownGumbel, Request(3, 8, Sensitivity(2))),
}


@pytest.mark.parametrize("kind", RANKINGS)
@pytest.mark.parametrize("average", [False, True])
def test_by_step_sums_cost_as_much_as_the_counts_of_the_ranking(kind, average):
    """The ranking is that of the same step, and so are the sums of what one user moves."""
    ranking, request = RANKINGS[kind]
    summed = SumBounds(-3, 8, rows=5 if average else None)
    request = replace(request, summed=summed, noise="laplace")
    made = kind.by_step(Fraction(1, 3), DELTA, request)
    assert made == kind(ranking.by_step(Fraction(1, 3), DELTA, request), summed, 2, "laplace")
    whole = made.ranking.worst_cost() + Cost((4 if average else 2) * Fraction(1, 9) / 8)
    assert abs(made.worst_cost().rho - whole.rho) < Fraction(1, 10**12) or kind is UnknownLaplaceSums


def test_by_step_listed_sums_have_twice_the_bound_over_epsilon():
    """Each sum costs epsilon squared over 8."""
    request = Request(None, 8, Sensitivity(2), counts=False, known_domain=True, summed=SumBounds(-3, 8))
    made = ListedSums.by_step(Fraction(1, 3), DELTA, request)
    assert made == ListedSums(8, SumBounds(-3, 8), 2, Fraction(48))
    assert made.worst_cost() == Cost(2 * Fraction(1, 9) / 8)


@pytest.mark.parametrize("epsilon", [Fraction(1, 3), Fraction(7, 2)])
def test_a_theorem_gives_exactly_the_epsilon_that_was_asked_for(epsilon):
    """Of every ranking with its sums, and of sums alone."""
    kinds = {kind: replace(request, noise="laplace") for kind, (_, request) in RANKINGS.items()}
    kinds[ListedSums] = Request(None, 8, Sensitivity(2), counts=False, noise="laplace", known_domain=True)
    for kind, request in kinds.items():
        for rows in (None, 3):
            made = kind.at_epsilon(epsilon, DELTA, replace(request, summed=SumBounds(-3, 8, rows=rows)))
            assert made.direct_epsilon() == epsilon
            assert made.noise == "laplace"


def test_equal_sums_come_in_the_order_of_the_shuffle():
    """On every machine; the order of the head would tell what the counts were."""
    values = np.repeat([2, 1], 100)
    source = ExactHead(np.arange(200, 0, -1), 200, None, values)
    mechanism, drawn = ListedSums(200, SumBounds(0, 9), 2, Fraction(1, 100)), KeyedBits(bytes(32), 0)
    found = mechanism.release(source, drawn).positions.tolist()
    shuffle = shuffled(200, KeyedBits(bytes(32), 0), "ties").tolist()
    assert found == [i for i in shuffle if i < 100] + [i for i in shuffle if i >= 100]


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize(("lengths", "scale"), [(LENGTHS[0], Fraction(2)), ((0,), Fraction(1, 2))])
def test_a_listed_domain_chooses_by_the_same_rule(noise, lengths, scale):
    """With the scale of a count that costs as much as a sum; all items are returned, in order."""
    mechanism = ListedSums(4, SUMMED, 4, 25 * scale, noise)
    for run in range(3):
        source = Lengths(lengths).sums_of(np.arange(4))
        outcome, drawn = release(mechanism, source, run)
        chosen, kept = chosen_bound(source, drawn, 4, scale, noise)
        assert outcome.measured.clipping.bound == math.ceil(math.sqrt(SUMMED.squared_lengths(4)[chosen]))
        assert outcome.measured.clipping.kept == pytest.approx(kept)
        assert {drawn.added[label].kind for label in ("users", "sums")} == {noise}
        assert (outcome.ordered, outcome.complete) == (True, True)
        assert sorted(outcome.positions.tolist()) == [0, 1, 2, 3]
        assert (np.diff(outcome.measured.values) <= 0).all()


def test_bounds_are_in_units_of_the_last_digit():
    """A column of tenths up to 2.5 has the sums of one of whole numbers up to 25."""
    one, other = (
        release(KnownGumbelSums(KnownGumbel(3, 4, Fraction(1)), summed, 3), Lengths(LENGTHS[0]))[0]
        for summed in (SUMMED, SumBounds(0, Fraction(5, 2), scale=1, private=True))
    )
    for name in ("values", "std_errors", "low", "high"):
        assert getattr(one.measured, name).tolist() == getattr(other.measured, name).tolist()
    assert one.measured.clipping == other.measured.clipping
    assert one.cost == other.cost


def released_at(bound, scale):
    """Return sums of users who are all at one of the bounds of a column up to 2^31, in steps of 2,048 units."""
    summed = SumBounds(0, 2**31, private=True)
    users = np.zeros(len(summed.squared_lengths(1)), dtype=np.int64)
    users[bound] = 10**9
    scaled = np.full((1, len(users)), 10**15)
    return ScaledSums(summed, 1, Fraction(scale), "gaussian").release(scaled, users, 1, KeyedBits(bytes(32), 0))


@pytest.mark.parametrize(("bound", "scale", "chosen"), [(5, 1, 5), (19, 10_000, 5), (19, 2**17, 2), (19, 700_000, 0)])
def test_bounds_of_large_columns_are_in_steps(bound, scale, chosen):
    """Of 2,048 units; noise of the larger ones cannot be sampled, at a scale of more than 2^39 with 256 parts a unit.

    The least can, at twice its square.
    """
    assert released_at(bound, scale).clipping.bound == 2**12 * 2**chosen
