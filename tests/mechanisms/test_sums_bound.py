"""Sums with a privately chosen bound: a replay of every noisy value without one user, and what is released."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction
from functools import partial

import numpy as np
import pytest

from discreet.accounting.convert import limit_for
from discreet.errors import InvariantViolated
from discreet.head_request import ROW_UNIT, SumBounds
from discreet.mechanisms import KnownGumbel, Request, UnknownGumbel, check_bounds, sums
from discreet.mechanisms.sums import KnownGumbelSums, ListedSums, RankedSums, ScaledSums, UnknownGumbelSums
from discreet.noise import DiscreteGaussian, KeyedBits
from discreet.testing.audit import statistical_audit
from discreet.values import Cost, ExactHead, Outcome, Sensitivity

SUMMED = SumBounds(0, 7, private=True)
ITEMS = 3
VALUES = [None, 0, 3, 7, 9]
"""What a user may have of an item: nothing, or a sum; 9 is above the declared bound."""

AVERAGED = SumBounds(0, 7, private=True, rows=2)
AVERAGED_VALUES = [None, (0, 1), (3, 1), (7, 2), (9, 5)]
"""What a user may have of an item of an average: nothing, or a sum and its number of rows."""

OTHERS = [(1, None, 3), (9, 9, 9), (None, None, 2), (0, 1, None), (5, None, None)]


def full_weight(square, length):
    """Return the weight that an engine gives to a user whose sums have a squared *length*."""
    return ROW_UNIT if length <= square else math.floor(ROW_UNIT * math.sqrt(square / length)) - 1


class Users:
    """A `HeadAndSums` of users, each a sum or None for every item; a planted defect may weigh or measure otherwise."""

    def __init__(self, users, weigh=full_weight, measure=lambda sums: sum(value**2 for value in sums), listed=1):
        self.users, self.weigh, self.measure, self.listed = users, weigh, measure, listed
        self.items = len(users[0])

    def head(self, limit):
        """Return a head that no ranking here looks at."""
        return ExactHead(np.zeros(self.items, dtype=np.int64), max(limit, self.items), np.arange(self.items))

    def sums_of(self, positions):
        """Return what an engine does for the items at *positions* as a listed domain."""
        squares = SUMMED.squared_lengths(len(positions))
        scaled = np.zeros((len(positions), len(squares)), dtype=np.int64)
        users = np.zeros(len(squares), dtype=np.int64)
        for user in self.users:
            clipped = [min(user[item] or 0, 7) for item in positions]
            length = self.measure(clipped)
            if length:
                users[sum(length > square for square in squares)] += self.listed
            weights = [self.weigh(square, length) for square in squares]
            scaled += np.outer(clipped, weights)
        return ExactHead(np.zeros(len(positions), dtype=np.int64), len(positions), scaled=scaled, users=users)


class Replay:
    """Records the noisy values of a release, and replays them on another table: what moved, and how far.

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

    def __init__(self, *labels, scale=3):
        self.labels = labels
        self.scale = scale
        self.k = self.head_limit = len(labels)

    def release(self, head, _):
        """Return the positions of the labels."""
        positions = np.array([head.labels.tolist().index(label) for label in self.labels])
        return Outcome(positions, ordered=True, complete=True, cost=Cost())

    def value_scale(self, moved):
        """Return a sigma of 3, or *scale*."""
        return Fraction(self.scale * moved)

    def worst_cost(self):
        """Return no cost."""
        return Cost()


class UsersOfAverages(Users):
    """`Users` with a sum and a number of rows, or None, for every item of *AVERAGED*.

    A defect may leave out the weights for too many rows, or of the lengths of rows, or count users for each item.
    """

    def __init__(self, users, row_weights=(True, True), weigh_rows=full_weight, listed=1):
        super().__init__([[(value, 1) if isinstance(value, int) else value for value in user] for user in users])
        self.weighed, self.listed = row_weights, listed
        self.by = (self.weigh, weigh_rows)

    def sums_of(self, positions):
        """Return what an engine does."""
        of = [summed.squared_lengths(len(positions)) for summed in (AVERAGED, AVERAGED.of_rows)]
        scaled = [np.zeros((len(positions), len(squares)), dtype=np.int64) for squares in of]
        users = [np.zeros(len(squares), dtype=np.int64) for squares in of]
        for user in self.users:
            own = [user[item] or (0, 0) for item in positions]
            weights = [min(ROW_UNIT, ROW_UNIT * 2 // max(m, 1), ROW_UNIT * 7 // max(s, 7)) for s, m in own]
            for part, squares in enumerate(of):
                values = [pair[part] for pair in own]
                length = sum(math.ceil(w * x / ROW_UNIT) ** 2 for w, x in zip(weights, values, strict=True))
                if length:
                    users[part][sum(length > square for square in squares)] += self.listed if part else 1
                for n, (w, x) in enumerate(zip(weights, values, strict=True)):
                    w = w if self.weighed[part] else ROW_UNIT  # noqa: PLW2901
                    scaled[part][n] += [w * self.by[part](square, length) // ROW_UNIT * x for square in squares]
        nothing = np.zeros(len(positions), dtype=np.int64)
        sums_and_rows = {"scaled": scaled[0], "users": users[0], "scaled_rows": scaled[1], "row_users": users[1]}
        return ExactHead(nothing, len(positions), **sums_and_rows)


AVERAGES = [
    ListedSums(ITEMS, AVERAGED, ITEMS, Fraction(21 * ROW_UNIT)),
    UnknownGumbelSums(FixedRanking(2, 0), AVERAGED, 2),
    UnknownGumbelSums(FixedRanking(1), AVERAGED, 1, "laplace"),
]

MECHANISMS = [
    ListedSums(ITEMS, SUMMED, ITEMS, Fraction(21)),
    KnownGumbelSums(FixedRanking(0, 1, 2), SUMMED, 3),
    UnknownGumbelSums(FixedRanking(2, 0), SUMMED, 2),
    UnknownGumbelSums(FixedRanking(1), SUMMED, 1, "laplace"),
]


def released(mechanism, users, bits):
    """Return the outcome for a table of users."""
    return mechanism.release(users.sums_of(range(users.items)) if isinstance(mechanism, ListedSums) else users, bits)


def largest_cost(monkeypatch, mechanism, table=Users, runs=1, make=Replay, values=VALUES):
    """Return what noisy values cost at most if one user is added, in multiples of their charge."""
    worst = 0.0
    for user in itertools.product(values, repeat=ITEMS):
        for run in range(runs):
            replay = make()
            monkeypatch.setattr(sums, "with_noise", replay)
            secret, context = b"a secret of thirty-two bytes....", (run, repr(user))
            outcome = released(mechanism, table(OTHERS), KeyedBits(secret, context))
            replay.replaying = True
            again = released(mechanism, table([*OTHERS, user]), KeyedBits(secret, context))
            assert outcome.measured.values.tolist() == again.measured.values.tolist()
            assert outcome.measured.clipping == again.measured.clipping
            worst = max(worst, replay.rho / float(outcome.cost.rho))
    return worst


@pytest.mark.exact
@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda mechanism: mechanism.name)
def test_no_user_moves_the_noisy_values_further_than_is_charged(monkeypatch, mechanism):
    """All users of three items: squared moves of the histogram and the sums are within the charge, and attain it."""
    assert 0.8 < largest_cost(monkeypatch, mechanism, runs=2) <= 1


@pytest.mark.exact
@pytest.mark.parametrize("mechanism", AVERAGES, ids=lambda mechanism: mechanism.name)
def test_no_user_moves_sums_and_rows_of_averages_further_than_is_charged(monkeypatch, mechanism):
    """All users of three items, with more rows than count and sums above the declared bound, too."""
    worst = largest_cost(monkeypatch, mechanism, UsersOfAverages, values=AVERAGED_VALUES)
    assert 0.8 < worst <= 1


@pytest.mark.exact
@pytest.mark.parametrize(
    "defect",
    [
        {"row_weights": (False, True)},
        {"row_weights": (True, False)},
        {"weigh_rows": lambda *_: ROW_UNIT},
        {"weigh_rows": lambda square, length: full_weight(4 * square, length)},
        {"listed": ITEMS},
    ],
    ids=["sums of too many rows", "too many rows", "long rows", "rows by the next bound", "users for each item"],
)
def test_averages_whose_rows_move_further_than_is_charged_are_rejected(monkeypatch, defect):
    """The replay detects sums and numbers of rows without their weights, and users who are counted several times."""
    table = partial(UsersOfAverages, **defect)
    assert largest_cost(monkeypatch, AVERAGES[0], table, values=AVERAGED_VALUES) > 1.02


@pytest.mark.exact
def test_averages_without_a_price_of_rows_are_rejected(monkeypatch):
    """Half of the price is that of the rows."""
    mechanism = AVERAGES[1]
    monkeypatch.setattr(RankedSums, "_price", lambda self, n: Cost(n * self.sum_noise().rho(self.summed.most)))
    assert largest_cost(monkeypatch, mechanism, UsersOfAverages, values=AVERAGED_VALUES) > 1.05


DEFECTS = {
    "no weights": lambda users: Users(users, weigh=lambda *_: ROW_UNIT),
    "weights of the next bound": lambda users: Users(users, weigh=lambda square, n: full_weight(4 * square, n)),
    "the largest sum for the length": lambda users: Users(users, measure=lambda sums: max(sums) ** 2),
    "users counted for each item": lambda users: Users(users, listed=ITEMS),
}


@pytest.mark.exact
@pytest.mark.parametrize("defect", DEFECTS)
def test_sums_that_move_further_than_is_charged_are_rejected(monkeypatch, defect):
    """The replay can fail: it detects planted defects of weights, lengths and counts."""
    assert largest_cost(monkeypatch, MECHANISMS[0], DEFECTS[defect], runs=2) > 1.02


@pytest.mark.exact
@pytest.mark.parametrize("mechanism", [MECHANISMS[0], MECHANISMS[2]])
def test_noise_of_the_bound_below_is_rejected(monkeypatch, mechanism):
    """And so is a price that forgets a step."""
    plain = ScaledSums._noise
    monkeypatch.setattr(ScaledSums, "_noise", lambda self, square, moved: plain(self, max(square // 4, 1), moved))
    assert largest_cost(monkeypatch, mechanism, runs=2) > 1.05
    monkeypatch.undo()
    monkeypatch.setattr(ScaledSums, "cost", lambda _: Cost())
    assert largest_cost(monkeypatch, mechanism, runs=2) > 1.05


class ExactUsers(Replay):
    """A planted defect: chooses from the users without noise."""

    def __call__(self, exact, noise, bits, label):
        return exact if label == "users" else super().__call__(exact, noise, bits, label)


@pytest.mark.exact
def test_a_choice_from_exact_users_is_rejected(monkeypatch):
    """The choice, or what is reported about it, differs on the other table."""
    with pytest.raises(AssertionError):
        largest_cost(monkeypatch, MECHANISMS[0], make=ExactUsers)


@pytest.mark.statistical
@pytest.mark.parametrize(("loud", "detected"), [(1, False), (8, True)])
def test_released_sums_reveal_no_more_than_stated(loud, detected):
    """A sampled audit of what is released between two neighbours; noise of an eighth is seen."""
    request = Request(None, ITEMS, counts=False, known_domain=True, summed=SUMMED)
    mechanism = ListedSums.within_cost(limit_for(2.0, Fraction(1, 1000)), request)
    mechanism = replace(mechanism, scale=mechanism.scale / loud)

    def views(users, secret):
        source = Users(users).sums_of(range(ITEMS))
        for run in range(3_000):
            measured = mechanism.release(source, KeyedBits(secret, run)).measured
            yield int(measured.values.sum()) // 16, measured.clipping.bound

    table = OTHERS * 5
    sides = (views(table, bytes(32)), views([*table, (9, 9, 9)], bytes([1]) * 32))
    assert (statistical_audit(*sides, 2.0) > 0.001) == detected


@pytest.mark.statistical
@pytest.mark.parametrize("planted", ["nothing", "sums", "rows"])
def test_released_averages_reveal_no_more_than_stated(planted, monkeypatch):
    """A sampled audit of averages and their numbers of rows; an eighth of the noise of either is seen."""
    request = Request(None, ITEMS, counts=False, known_domain=True, summed=AVERAGED)
    mechanism = ListedSums.within_cost(limit_for(2.0, Fraction(1, 1000)), request)
    plain = ScaledSums._noise

    def noise(self, square, moved):
        loud = 64 if planted == ("rows" if self.of_rows else "sums") else 1
        return DiscreteGaussian(plain(self, square, moved).variance / loud)

    monkeypatch.setattr(ScaledSums, "_noise", noise)

    def views(users, secret):
        source = UsersOfAverages(users).sums_of(range(ITEMS))
        for run in range(1_500):
            outcome = mechanism.release(source, KeyedBits(secret, run))
            rows = outcome.counts
            yield int(rows.sum()) // 4, int(outcome.measured.values @ np.maximum(rows, 1)) // 8

    table = OTHERS * 20
    sides = (views(table, bytes(32)), views([*table, ((7, 2),) * ITEMS], bytes([1]) * 32))
    seen = [
        statistical_audit(*of_both, 2.0) for of_both in zip(*(zip(*side, strict=True) for side in sides), strict=True)
    ]
    assert [lost > 0.001 for lost in seen] == [planted == "rows", planted == "sums"]


def test_a_choice_costs_a_quarter_of_the_sums_and_a_count_at_most():
    """In zCDP, in any units of the ranking; nothing is charged, or read, if nothing is returned."""
    for noise in ("gaussian", "laplace"):
        for k, price in ((1, Fraction(1, 4)), (3, Fraction(3, 4)), (8, Fraction(1))):
            ranking = UnknownGumbel(k, 10, Fraction(1, 4), Fraction(1, 10**9), 1, None)
            mechanism = UnknownGumbelSums(ranking, SUMMED, k, noise)
            excess = mechanism.worst_cost().rho - ranking.worst_cost().rho - Fraction(1, 16) / 8 * (k + price)
            assert -Fraction(1, 10**9) < excess <= 0
            assert mechanism.direct_epsilon() is None

        class Empty:
            def head(self, limit):
                return ExactHead(np.zeros(0, dtype=np.int64), limit)

        outcome = mechanism.release(Empty(), KeyedBits(b"k" * 32, "test"))
        assert outcome.cost == ranking.release(Empty().head(10), KeyedBits(b"k" * 32, "test")).cost
        assert outcome.measured.clipping is None
        assert outcome.measured.values.dtype == np.int64


@pytest.mark.parametrize("kind", [KnownGumbelSums, ListedSums])
@pytest.mark.parametrize("rows", [None, 5])
def test_the_plan_spends_the_limit(kind, rows):
    """`within_cost` leaves room for the choice of each bound, and little more."""
    ranked = kind is KnownGumbelSums
    summed = replace(SUMMED, rows=rows)
    request = Request(3 if ranked else None, 3, Sensitivity(2), counts=ranked, known_domain=True, summed=summed)
    limit = Cost(Fraction(1, 10))
    made = kind.within_cost(limit, request)
    assert made.worst_cost().within(limit)
    assert made.worst_cost().rho > limit.rho * Fraction(999, 1000)


def head_of(values, summed):
    """Return what an engine reads of users with *values* for each of listed items."""
    squares = np.array(summed.squared_lengths(values.shape[1]))
    lengths = (values**2).sum(axis=1)
    weights = np.where(
        lengths[:, None] <= squares, ROW_UNIT, ROW_UNIT * np.sqrt(squares / np.maximum(lengths, 1)[:, None]) - 1
    )
    users = np.bincount(np.searchsorted(squares, lengths[lengths > 0]), minlength=len(squares))
    nothing = np.zeros(values.shape[1], dtype=np.int64)
    return ExactHead(nothing, len(nothing), scaled=values.T @ weights.astype(np.int64), users=users)


@pytest.mark.statistical
def test_a_generous_bound_is_made_tight_and_intervals_hold():
    """Of a declared bound 5,000 times too wide the chosen one keeps most of the sums, and errors are as priced."""
    rng = np.random.default_rng(3)
    summed = SumBounds(0, 2**17, private=True)
    values = np.minimum(rng.lognormal(3, 1, (3000, 5)) * (rng.random((3000, 5)) < 0.4), 2**17).astype(np.int64)
    lengths = (values**2).sum(axis=1)
    head = head_of(values, summed)
    mechanism = ListedSums(5, summed, 5, Fraction(2**17 * 20))
    true, covered, shares = values.sum(axis=0), [], 0
    for run in range(200):
        outcome = mechanism.release(head, KeyedBits(b"a secret of thirty-two bytes....", run))
        measured = outcome.measured
        clipping = measured.clipping
        assert 32 <= clipping.bound <= 512
        assert 0 <= clipping.low <= clipping.share <= clipping.high <= 1
        above = (np.sqrt(lengths) > clipping.bound).sum() / (lengths > 0).sum()
        shares += clipping.low <= above <= clipping.high
        exact = true[outcome.positions]
        covered.append(((measured.low <= exact) & (exact <= measured.high)).mean())
        assert 0 < measured.std_errors[0] <= mechanism.expectation().sum_std_error
    assert shares >= 190
    assert np.mean(covered) >= 0.95


@pytest.mark.statistical
@pytest.mark.parametrize(("users", "scale"), [(2_000, 25), (2_000, 250), (60, 25)])
def test_intervals_allow_for_long_users_that_the_noise_hides(users, scale):
    """Where few users have most of the sums, and are below the noise of the histogram, or all users are."""
    rng = np.random.default_rng(5)
    summed = SumBounds(0, 10**6, private=True)
    values = np.minimum(rng.lognormal(5, 2, (users, 4)) * (rng.random((users, 4)) < 0.4), 10**6).astype(np.int64)
    head = head_of(values, summed)
    true, covered = values.sum(axis=0), []
    for run in range(100):
        outcome = ListedSums(4, summed, 4, Fraction(10**6 * scale)).release(head, KeyedBits(bytes(32), run))
        exact = true[outcome.positions]
        covered.append(((outcome.measured.low <= exact) & (exact <= outcome.measured.high)).mean())
    assert np.mean(covered) >= 0.95


@pytest.mark.statistical
def test_averages_by_a_private_bound_are_in_their_intervals():
    """Of the average of all rows, in order of rows; where nothing is returned, nothing is divided."""
    rng = np.random.default_rng(3)
    values = np.minimum(rng.lognormal(3, 1, (3000, 3)) * (rng.random((3000, 3)) < [0.2, 0.6, 0.4]), 2**17)
    values = values.astype(np.int64)
    summed = SumBounds(0, 2**17, private=True, rows=1)
    rows = head_of((values > 0).astype(np.int64), summed.of_rows)
    head = replace(head_of(values, summed), scaled_rows=rows.scaled, row_users=rows.users)
    mechanism = ListedSums(3, summed, 3, Fraction(ROW_UNIT * 2**17 * 20))
    true, covered = values.sum(axis=0) / (values > 0).sum(axis=0), []
    for run in range(100):
        outcome = mechanism.release(head, KeyedBits(bytes(32), run))
        assert outcome.positions.tolist() == [1, 2, 0]
        measured, exact = outcome.measured, true[outcome.positions]
        covered.append(((measured.low <= exact) & (exact <= measured.high)).mean())
        assert np.all(np.abs(measured.values / exact - 1) < 0.5)
        assert measured.clipping.bound <= 512
        assert outcome.cost == mechanism.worst_cost()
    assert np.mean(covered) >= 0.95
    nothing = UnknownGumbelSums(FixedRanking(), AVERAGED, 1).release(Users([()]), KeyedBits(bytes(32), 0))
    assert nothing.measured.name == "average"
    assert len(nothing.counts) == 0


@pytest.mark.statistical
def test_numbers_of_few_rows_are_not_taken_for_fewer():
    """A user of one row of each of two items is as long as the bound of two squared rows, not shorter."""
    has_row = np.array([[1, 1, 0], [0, 1, 1], [1, 0, 1]] * 1_000)
    summed = SumBounds(0, 100, private=True, rows=20)
    rows = head_of(has_row, summed.of_rows)
    head = replace(head_of(10 * has_row, summed), scaled_rows=rows.scaled, row_users=rows.users)
    mechanism = ListedSums(3, summed, 3, Fraction(ROW_UNIT * 100 * 150))
    counts = [mechanism.release(head, KeyedBits(bytes(32), run)).counts for run in range(30)]
    assert np.mean(counts) == pytest.approx(2_000, rel=0.02)


class ManyUsers(UsersOfAverages):
    """So many users like each of *users*."""

    def __init__(self, users, times=40):
        super().__init__(users)
        self.times = times

    def sums_of(self, positions):
        """Return what an engine does."""
        head = super().sums_of(positions)
        of = {name: self.times * getattr(head, name) for name in ("scaled", "users", "scaled_rows", "row_users")}
        return replace(head, **of)


MANY = ManyUsers([(1, None, 1)] * 12 + [((3, 2), (4, 2), 2), (None, 2, 2), ((1, 2), 1, None), ((7, 2), 7, 7)])


def shown(mechanism):
    """Return what is released of *MANY*, with six significant digits."""
    source = MANY.sums_of(range(ITEMS))
    if not mechanism.summed.private:
        rows = source.scaled_rows[:, -1]
        source = ExactHead(np.array([160, 150, 140]), ITEMS, None, source.scaled[:, -1], rows=rows)
    elif not isinstance(mechanism, ListedSums):
        source = MANY
    outcome = mechanism.release(source, KeyedBits(bytes(range(32)), "kept"))
    measured = outcome.measured
    columns = (measured.values, measured.std_errors, measured.low, measured.high)
    numbers = [[float(f"{v:.6g}") for v in values] for values in columns]
    whole = [None if values is None else values.tolist() for values in (outcome.positions, outcome.counts)]
    kept = measured.clipping and (measured.clipping.bound, round(measured.clipping.kept, 6))
    shared = outcome.shared_error and round(outcome.shared_error, 6)
    return [*whole, *numbers, kept, shared, outcome.ordered, outcome.complete]


DECLARED = replace(AVERAGED, private=False)
KEPT = {
    "listed averages, private": (
        ListedSums(ITEMS, AVERAGED, ITEMS, Fraction(420 * ROW_UNIT)),
        [
            [0, 2, 1],
            [597, 565, 185],
            [1.16601, 0.757728, 0.824386],
            [0.15444, 0.133265, 0.420226],
            [0.646538, 0.375243, 0.128315],
            [2.18594, 1.52083, 3.70738],
            (2, 1.0),
            None,
            True,
            True,
        ],
    ),
    "laplace": (
        ListedSums(ITEMS, AVERAGED, ITEMS, Fraction(210 * ROW_UNIT), "laplace"),
        [
            [0, 2, 1],
            [584, 498, 98],
            [1.02968, 1.11532, 1.80534],
            [0.104297, 0.127636, 0.892858],
            [0.60536, 0.638744, 0.504364],
            [3.83897, 4.29095, 7.0],
            (2, 1.0),
            None,
            True,
            True,
        ],
    ),
    "averages of a race, private": (
        UnknownGumbelSums(FixedRanking(2, 0, scale=50), AVERAGED, 2, "laplace"),
        [
            [2, 0],
            [471, 559],
            [0.929858, 0.792477],
            [0.176455, 0.135304],
            [0.411347, 0.361072],
            [4.32767, 3.47274],
            (1, 0.985024),
            None,
            True,
            True,
        ],
    ),
    "listed averages": (
        ListedSums(ITEMS, DECLARED, ITEMS, Fraction(21 * ROW_UNIT)),
        [
            [0, 2, 1],
            [722, 594, 202],
            [1.28938, 1.48409, 2.77385],
            [0.0207994, 0.0250954, 0.0777023],
            [1.24853, 1.43483, 2.62369],
            [1.33007, 1.53321, 2.92867],
            None,
            None,
            True,
            True,
        ],
    ),
    "listed sums": (
        ListedSums(ITEMS, replace(DECLARED, rows=None), ITEMS, Fraction(2100)),
        [
            [2, 0, 1],
            None,
            [235964.0, 235342.0, 144589.0],
            [1656.22, 1656.22, 1656.22],
            [232717.0, 232095.0, 141342.0],
            [239211.0, 238589.0, 147836.0],
            None,
            1002.012322,
            True,
            True,
        ],
    ),
    "sums of a top k": (
        KnownGumbelSums(KnownGumbel(3, 3, Fraction(1, 8), counts=False), replace(DECLARED, rows=None), 3),
        [
            [0, 2, 1],
            [153, 111, 140],
            [235511.0, 235586.0, 143384.0],
            [88.3326, 88.3326, 88.3326],
            [235337.0, 235412.0, 143210.0],
            [235685.0, 235760.0, 143558.0],
            None,
            53.440852,
            True,
            True,
        ],
    ),
}


@pytest.mark.parametrize("case", KEPT)
def test_what_a_key_releases_of_sums_and_averages_is_kept(case):
    """The order, numbers and intervals of a stored release agree with its replay for years; sums share a part."""
    mechanism, expected = KEPT[case]
    assert shown(mechanism) == expected
    if not mechanism.summed.private and not mechanism.average:
        assert expected[-3] == pytest.approx(mechanism.released_noise().shared_std)


def test_a_head_without_scaled_sums_is_refused():
    """The declared bound does not replace a private one that an engine cannot read."""
    head = ExactHead(np.array([1]), 1, None, np.array([1]))
    with pytest.raises(InvariantViolated, match="scaled sums"):
        ListedSums(1, SUMMED, 1, Fraction(7)).release(head, KeyedBits(b"k" * 32, "test"))
    with pytest.raises(InvariantViolated, match="between 0 and"):
        check_bounds(SumBounds(-1, 7, private=True))
    assert SumBounds(0, 7) != SUMMED


@pytest.mark.parametrize("high", [1, 2, 7, 1000, 2**20, 2**20 + 1, 2**31])
def test_bounds_reach_from_the_length_that_no_user_exceeds_down_by_halves(high):
    """Squares are quarters of each other, rounded up, and fit an int64."""
    for items in (1, 2, 10, 10**6):
        summed = SumBounds(0, high, private=True)
        squares = summed.squared_lengths(items)
        assert items * (-(-high // summed.step)) ** 2 == squares[-1] < 2**62
        assert list(squares[:-1]) == [-(-square // 4) for square in squares[1:]]
        assert len(squares) == 20 or squares[0] == 1
        assert SumBounds(0, high).squared_lengths(items) == ()
