"""The choice of a bound, computed again from the noisy shares and the noisy size, and what is said of the clipping."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from discreet.head_request import SumBounds
from discreet.mechanisms import KnownGumbel, KnownLaplace, Request, UnknownGumbel, UnknownLaplace, sums
from discreet.mechanisms.base import noise_of, shuffled
from discreet.mechanisms.sums import (
    KnownGumbelSums,
    KnownLaplaceSums,
    ListedSums,
    UnknownGumbelSums,
    UnknownLaplaceSums,
)
from discreet.noise import KeyedBits
from discreet.values import MAX_COUNT, SHARE_UNIT, Cost, ExactHead, Sensitivity

from .draws import release

CHOICES = (1, 2, 4, 7, 13, 25)
SUMMED = SumBounds(0, 25, private=True)
DELTA = Fraction(1, 10**6)


def head(votes, items=4):
    """Return a head whose items share the users of *votes*, by the interval of their sums: (0, 1], ..., above 25."""
    counts = np.arange(items, 0, -1) * 100
    middles = np.append([1], np.append(0.8 * np.array(CHOICES[1:]), 40))
    mean = [float(np.minimum(middles, bound) @ votes) / sum(votes) for bound in CHOICES]
    bounded = np.rint(np.outer(counts, mean)).astype(np.int64)
    shares = np.array(votes, dtype=np.int64) * SHARE_UNIT
    return ExactHead(counts, items, None, bounded[:, -1], bounded, shares)


def chosen_bound(source, positions, drawn, moved, scale, noise):
    """Return the number of the bound of docs/mechanisms/sums.md, and the shares it follows from; *scale*: a count's."""
    std = noise_of(noise, 2 * SHARE_UNIT * scale).std / SHARE_UNIT
    noisy = (source.shares + drawn.added["shares"].values) / SHARE_UNIT
    significant = [i for i, share in enumerate(noisy) if share > 4.5 * std]
    kept = [max(share, 0) if i <= max(significant, default=-1) else 0 for i, share in enumerate(noisy)]
    if not significant:
        kept = [float(share == max(noisy)) for share in noisy]
    middles = [1, *(0.72 * bound for bound in CHOICES[1:]), CHOICES[-1]]
    mass = [sum(min(middle, bound) * share for middle, share in zip(middles, kept, strict=True)) for bound in CHOICES]
    first = next((i for i in range(6) if sum(kept[: i + 1]) >= 0.75 * sum(kept)), 5)
    total = source.bounded[positions, first].sum() // moved + drawn.added["size"].values[0]
    size = max(total * moved / len(positions), CHOICES[first]) * mass[-1] / mass[first]
    unit = noise_of(noise, scale * SHARE_UNIT).std / SHARE_UNIT
    losses = [(unit * c / size) ** 2 + (2 * (1 - m / mass[-1])) ** 2 for c, m in zip(CHOICES, mass, strict=True)]
    return first, losses.index(min(losses)), noisy, std


VOTES = [
    (400, 300, 200, 60, 10, 1, 0),
    (20, 10, 30, 50, 400, 600, 90),
    (900, 0, 0, 0, 0, 0, 0),
    (5, 5, 5, 5, 5, 5, 900),
    (300, 300, 300, 300, 300, 300, 300),
    (200, 0, 0, 300, 0, 0, 0),
    (4000, 3000, 2000, 600, 100, 10, 0),
    (9000, 3000, 1500, 800, 400, 200, 100),
    (200, 100, 300, 500, 4000, 6000, 900),
]


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("votes", VOTES)
@pytest.mark.parametrize("epsilon", [Fraction(1), Fraction(1, 5), Fraction(1, 15), Fraction(1, 60)])
def test_the_bound_has_the_least_noise_and_clipped_part(noise, votes, epsilon):
    """By the noisy shares and size alone; the interval of the clipped share holds for all bounds at once."""
    for moved in (1, 3):
        mechanism = KnownGumbelSums(KnownGumbel(3, 4, epsilon), SUMMED, moved, noise)
        for run in range(3):
            source = head(votes)
            outcome, drawn = release(mechanism, source, run)
            scale = 2 / epsilon
            first, chosen, noisy, std = chosen_bound(source, outcome.positions, drawn, moved, scale, noise)
            clipping = outcome.measured.clipping
            assert clipping.bound == CHOICES[chosen]
            doubled = noise_of(noise, 2 * scale * CHOICES[first])
            assert drawn.added["size"].variances == [doubled.variance if noise == "gaussian" else 2 * doubled.scale**2]
            exact = source.bounded[outcome.positions, chosen] + drawn.added["sums"].values
            assert outcome.measured.values.tolist() == exact.tolist()
            assert outcome.measured.std_errors == pytest.approx(noise_of(noise, scale * CHOICES[chosen]).std)
            above, everything = sum(noisy[chosen + 1 :]), sum(noisy)
            width = noise_of(noise, 2 * scale * SHARE_UNIT).half_width(0.05 / 7) / SHARE_UNIT
            wide_above, wide_all = width * math.sqrt(6 - chosen), width * math.sqrt(7)
            low = max(above - wide_above, 0) / (everything + wide_all)
            high = (above + wide_above) / (everything - wide_all) if everything > wide_all else 1
            assert clipping.low == pytest.approx(min(low, 1))
            assert clipping.high == pytest.approx(max(min(high, 1), 0))
            share = above / everything if everything > 0 else 0
            assert clipping.share == pytest.approx(min(max(share, clipping.low), clipping.high))
            assert std > 0


@pytest.mark.parametrize(
    ("shares", "kept"),
    [
        ([9, 9.1, -3, 20, 5, -1], [9, 9.1, 0, 20, 0, 0]),
        ([9.0, 9.0], [1, 1]),
        ([9.01, 9.0], [9.01, 0]),
        ([-3, 4, -5], [0, 1, 0]),
    ],
)
def test_shares_after_the_last_significant_one_are_dropped(shares, kept):
    """4.5 standard errors, here of 2; without such a share the largest is all there is."""
    assert sums._denoised(np.array(shares, dtype=np.float64), 2.0).tolist() == kept


@pytest.mark.parametrize(
    ("shares", "chosen", "expected"),
    [
        ([60.0, 30.0, 10.0], 0, (0.4, 0.31, 0.51)),
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
        ([15.5, -3.3, -3.4], 0, (0.0, 0.0, 0.14)),
    ],
)
def test_the_clipped_share_is_within_its_interval_and_the_interval_within_0_and_1(shares, chosen, expected):
    """Also where noise makes a share, or all of them together, negative."""
    found = sums._clipping(7, np.array(shares), chosen, noise_of("gaussian", Fraction(2 * SHARE_UNIT)))
    assert found.bound == 7
    assert [round(value, 2) for value in (found.share, found.low, found.high)] == list(expected)


def test_the_total_of_a_size_is_limited_to_what_its_noise_can_be_added_to():
    """The sums of four items at the end of the range are 2^64 together."""
    bounded = np.full((4, 6), MAX_COUNT)
    shares = np.array([0, 0, 0, 900, 0, 0, 0]) * SHARE_UNIT
    source = ExactHead(np.array([9, 8, 7, 6]), 4, None, bounded[:, -1], bounded, shares)
    outcome, _ = release(ListedSums(4, SUMMED, 1, Fraction(50)), source)
    assert outcome.measured.clipping.bound == 7


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
def test_a_listed_domain_chooses_by_the_same_rule(noise):
    """With the scale of a count that costs as much as a sum; all items are returned, in order."""
    mechanism = ListedSums(4, SUMMED, 2, Fraction(50), noise)
    for run in range(3):
        source = head(VOTES[0])
        outcome, drawn = release(mechanism, source, run)
        _, chosen, _, _ = chosen_bound(source, range(4), drawn, 2, Fraction(2), noise)
        assert outcome.measured.clipping.bound == CHOICES[chosen]
        assert {drawn.added[label].kind for label in ("shares", "size", "sums")} == {noise}
        assert (outcome.ordered, outcome.complete) == (True, True)
        assert sorted(outcome.positions.tolist()) == [0, 1, 2, 3]
        assert (np.diff(outcome.measured.values) <= 0).all()


def test_bounds_are_in_units_of_the_last_digit():
    """A column of tenths up to 2.5 has the sums of one of whole numbers up to 25."""
    one, other = (
        release(KnownGumbelSums(KnownGumbel(3, 4, Fraction(1)), summed, 3), head(VOTES[0]))[0]
        for summed in (SUMMED, SumBounds(0, Fraction(5, 2), scale=1, private=True))
    )
    for name in ("values", "std_errors", "low", "high"):
        assert getattr(one.measured, name).tolist() == getattr(other.measured, name).tolist()
    assert one.measured.clipping == other.measured.clipping
    assert one.cost == other.cost
