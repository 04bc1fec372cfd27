"""Sums with a privately chosen bound: a replay of every noisy value without one user, and what is released."""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from discreet.errors import InvariantViolated
from discreet.head_request import SumBounds
from discreet.mechanisms import Request, UnknownGumbel, check_bounds, sums
from discreet.mechanisms.sums import CHOICE_PRICE, BoundChoice, KnownGumbelSums, ListedSums, UnknownGumbelSums
from discreet.noise import KeyedBits
from discreet.values import SHARE_UNIT, Cost, ExactHead, Outcome, Sensitivity

CHOICES = (1, 2, 4, 7)
SUMMED = SumBounds(0, 7, private=True)
ITEMS = 3
VALUES = [None, 0, 3, 7, 9]
"""What a user may have of an item: nothing, or a sum; 9 is above the declared bound."""

OTHERS = [(1, None, 3), (9, 9, 9), (None, None, 2), (0, 1, None), (5, None, None)]


def head_of(users, *, weigh=lambda owned: SHARE_UNIT // owned, clip=min):
    """Return the head of a listed domain, as an engine returns it; a planted defect may weigh or clip differently."""
    bounded = np.zeros((ITEMS, len(CHOICES)), dtype=np.int64)
    shares = np.zeros(len(CHOICES) + 1, dtype=np.int64)
    for user in users:
        owned = [(item, value) for item, value in enumerate(user) if value is not None]
        for item, value in owned:
            bounded[item] += [clip(value, bound) for bound in CHOICES]
            shares[int(np.searchsorted(CHOICES, value))] += weigh(len(owned))
    counts = np.zeros(ITEMS, dtype=np.int64)  # nothing here looks at them, and the items keep their order
    return ExactHead(counts, ITEMS, np.arange(ITEMS), bounded[:, -1], bounded, shares)


class Replay:
    """Records the noisy values of a release, and replays them on another head: what moved, and how far.

    Attributes:
        rho: what it cost that the values moved: half their squared moves by the variance of their noise.
    """

    def __init__(self):
        self.seen, self.rho, self.replaying = [], 0.0, False

    def __call__(self, exact, noise, bits, label):
        """As `with_noise`."""
        if not self.replaying:
            self.seen.append((label, exact, exact + noise.draw(bits, label, len(exact))))
            return self.seen[-1][2]
        recorded, before, noisy = self.seen.pop(0)
        assert (recorded, len(before)) == (label, len(exact))
        self.rho += float(sum(noise.rho(int(moved)) for moved in exact - before))
        return noisy


class FixedRanking:
    """A ranking at no cost that returns the items of *labels* for any data."""

    def __init__(self, *labels):
        self.labels = labels
        self.k = self.head_limit = len(labels)

    def release(self, head, _):
        """Return the positions of the labels."""
        positions = np.array([head.labels.tolist().index(label) for label in self.labels])
        return Outcome(positions, ordered=True, complete=True, cost=Cost())

    def value_scale(self, moved):
        """Return a sigma of 3."""
        return Fraction(3 * moved)

    def worst_cost(self):
        """Return no cost."""
        return Cost()


MECHANISMS = [
    ListedSums(ITEMS, SUMMED, ITEMS, Fraction(21)),
    KnownGumbelSums(FixedRanking(0, 1, 2), SUMMED, 3),
    UnknownGumbelSums(FixedRanking(2, 0), SUMMED, 2),
    UnknownGumbelSums(FixedRanking(1), SUMMED, 1, "laplace"),
]


def largest_cost(monkeypatch, mechanism, heads=head_of, runs=1, make=Replay):
    """Return what noisy values cost at most if one user is added, in multiples of their charge."""
    worst = 0.0
    for user in itertools.product(VALUES, repeat=ITEMS):
        for run in range(runs):
            replay = make()
            monkeypatch.setattr(sums, "with_noise", replay)
            secret, context = b"a secret of thirty-two bytes....", (run, repr(user))
            outcome = mechanism.release(heads(OTHERS), KeyedBits(secret, context))
            replay.replaying = True
            again = mechanism.release(heads([*OTHERS, user]), KeyedBits(secret, context))
            assert outcome.measured.values.tolist() == again.measured.values.tolist()
            assert outcome.measured.clipping == again.measured.clipping
            worst = max(worst, replay.rho / float(outcome.cost.rho))
    return worst


@pytest.mark.exact
@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda mechanism: mechanism.name)
def test_no_user_moves_the_noisy_values_further_than_is_charged(monkeypatch, mechanism):
    """All users of three items: the squared moves of shares, size and sums are within the charge, and attain it."""
    assert 0.8 < largest_cost(monkeypatch, mechanism) <= 1


def _unweighted(users):
    return head_of(users, weigh=lambda _: SHARE_UNIT)


def _unclipped(users):
    return head_of(users, clip=lambda value, _: value)


def _next_bound(users):
    head = head_of(users)
    return replace(head, bounded=np.roll(head.bounded, -1, axis=1))


@pytest.mark.exact
@pytest.mark.parametrize(
    ("mechanism", "heads"),
    [
        (MECHANISMS[0], _unweighted),
        (MECHANISMS[0], _unclipped),
        (MECHANISMS[0], _next_bound),
        (replace(MECHANISMS[0], moved=1), head_of),
        (replace(MECHANISMS[2], moved=1), head_of),
    ],
    ids=["every item of a user weighs 1", "clipped to nothing", "one bound further", "moved 1", "ranking moved 1"],
)
def test_sums_that_move_further_than_is_charged_are_rejected(monkeypatch, mechanism, heads):
    """The replay can fail: it detects planted defects of weights, clipping and price."""
    assert largest_cost(monkeypatch, mechanism, heads, runs=2) > 1.05


class ExactShares(Replay):
    """A planted defect: chooses from the shares without noise."""

    def __call__(self, exact, noise, bits, label):
        return exact if label == "shares" else super().__call__(exact, noise, bits, label)


@pytest.mark.exact
def test_a_choice_from_exact_shares_is_rejected(monkeypatch):
    """The choice, or what is reported about it, differs on the other table."""
    with pytest.raises(AssertionError):
        largest_cost(monkeypatch, MECHANISMS[0], make=ExactShares)


def test_a_choice_costs_half_a_count():
    """In zCDP, in any units of the ranking; nothing is charged if nothing is returned."""
    for noise in ("gaussian", "laplace"):
        ranking = UnknownGumbel(3, 10, Fraction(1, 4), Fraction(1, 10**9), 1, None)
        mechanism = UnknownGumbelSums(ranking, SUMMED, 3, noise)
        assert mechanism.worst_cost().rho == ranking.worst_cost().rho + Fraction(1, 16) / 8 * (3 + CHOICE_PRICE)
        assert mechanism.direct_epsilon() is None
        empty = np.zeros(0, dtype=np.int64)
        nothing = ExactHead(empty, 10, None, empty, np.zeros((0, 4), dtype=np.int64), np.zeros(5, dtype=np.int64))
        outcome = mechanism.release(nothing, KeyedBits(b"k" * 32, "test"))
        assert outcome.cost == ranking.release(nothing, KeyedBits(b"k" * 32, "test")).cost
        assert outcome.measured.clipping is None


@pytest.mark.parametrize("kind", [KnownGumbelSums, ListedSums])
def test_the_plan_spends_the_limit(kind):
    """`within_cost` leaves room for the choice, and little more."""
    request = Request(
        3 if kind is KnownGumbelSums else None,
        3,
        Sensitivity(2),
        counts=kind is KnownGumbelSums,
        known_domain=True,
        summed=SUMMED,
    )
    limit = Cost(Fraction(1, 10))
    made = kind.within_cost(limit, request)
    assert made.worst_cost().within(limit)
    assert made.worst_cost().rho > limit.rho * Fraction(999, 1000)


def _population(rng, users=3000, items=5):
    """Return users of one to three items, with sums of lognormal size."""
    return [
        [(int(item), float(rng.lognormal(3, 1))) for item in rng.choice(items, size=rng.integers(1, 4), replace=False)]
        for _ in range(users)
    ]


def _head(users, choices, items=5):
    counts = np.zeros(items, dtype=np.int64)
    bounded = np.zeros((items, len(choices)), dtype=np.int64)
    shares = np.zeros(len(choices) + 1, dtype=np.int64)
    for owned in users:
        for item, value in owned:
            counts[item] += 1
            bounded[item] += [min(int(value), bound) for bound in choices]
            shares[int(np.searchsorted(choices, int(value)))] += SHARE_UNIT // len(owned)
    order = np.argsort(-counts, kind="stable")
    return ExactHead(counts[order], items, None, bounded[order, -1], bounded[order], shares)


@pytest.mark.statistical
def test_a_generous_bound_is_made_tight_and_the_share_above_it_is_reported():
    """Of a declared bound 5,000 times too wide the chosen one keeps most of the sums; the interval holds its share."""
    choices = tuple(2**n for n in range(18))
    head = _head(_population(np.random.default_rng(3)), choices)
    mechanism = ListedSums(5, SumBounds(0, 2**17, private=True), 3, Fraction(2**17 * 20))
    above = head.shares[::-1].cumsum()[::-1] / head.shares.sum()
    within = 0
    for run in range(300):
        measured = mechanism.release(head, KeyedBits(b"a secret of thirty-two bytes....", run)).measured
        clipping = measured.clipping
        assert 32 <= clipping.bound <= 512
        assert measured.std_errors[0] == pytest.approx(20 * clipping.bound)
        within += clipping.low <= above[choices.index(clipping.bound) + 1] <= clipping.high
        assert 0 <= clipping.low <= clipping.share <= clipping.high <= 1
    assert within >= 285


def test_averages_have_declared_bounds_only():
    """Planning refuses the others, which no mechanism takes."""
    with pytest.raises(InvariantViolated, match="for sums only"):
        KnownGumbelSums.within_cost(
            Cost(Fraction(1)), Request(3, 5, known_domain=True, summed=SumBounds(0, 9, private=True, rows=2))
        )


def test_a_head_without_sums_at_several_bounds_is_refused():
    """The declared bound does not replace a private one that an engine cannot read."""
    head = ExactHead(np.array([1]), 1, None, np.array([1]))
    with pytest.raises(InvariantViolated, match="lower bounds"):
        ListedSums(1, SUMMED, 1, Fraction(7)).release(head, KeyedBits(b"k" * 32, "test"))
    with pytest.raises(InvariantViolated, match="between 0 and"):
        check_bounds(SumBounds(-1, 7, private=True))
    assert SumBounds(0, 7) != SUMMED
    assert BoundChoice(SUMMED, 1, Fraction(2), "gaussian").cost().rho == Fraction(1, 8) * CHOICE_PRICE
