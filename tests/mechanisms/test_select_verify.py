"""Whole runs of the head mechanism, computed again from the draws and the steps of docs/mechanisms/select_verify.md.

Half counts are the unit of the noise, as in the code: their variances are four times those of counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy.optimize import isotonic_regression

from discreet.errors import InputError
from discreet.mechanisms import Request, SelectVerify, select_verify
from discreet.values import Cost, ExactHead, Sensitivity

from . import draws
from .draws import release

DELTA = Fraction(1, 10**6)
TENTH = Fraction(1, 10)


@dataclass
class Replay:
    """What a run released and spent, by the definition.

    Args:
        items: rows of the head, in the order in which they were found.
        first: their first counts.
        variances: variances of these counts' own noise.
        spent: rho.
        races: number of races.
    """

    items: list[int]
    first: list[float]
    variances: list[float]
    spent: Fraction
    races: int


def near(value, expected, relative=1e-9):
    """Return whether two numbers agree to a relative error."""
    return abs(float(value) - float(expected)) <= relative * abs(float(expected))


def replay(mechanism, counts, drawn, most):  # noqa: PLR0915 - the whole of a run, in order
    """Return the run up to the second counts; assert that each of at most *most* races is the one that is asked for."""
    tau, limit, kbar = mechanism.rows_per_group, mechanism.limit, mechanism.head_limit
    log, tail = math.log(1 + kbar), counts[kbar] if len(counts) > kbar else 0
    anchor, below = drawn.added["anchor"], drawn.added["tail"]
    assert near(anchor.variances[0], tau**2 / (2 * 0.03 * float(limit.rho)), 0.01)
    assert near(below.variances[0], tau**2 / (2 * 0.025 * float(limit.rho)), 0.01)
    spent = anchor.rho(tau) + below.rho(tau)
    rest = total = limit.rho - spent
    y0 = tail + (int(anchor.values[0]) + int(below.values[0])) / 2
    alive = [j for j, count in enumerate(counts[:kbar]) if count > tail]
    blanks = kbar - len(alive)
    run = Replay([], [], [], spent, 0)
    epsilon, radius = math.sqrt(8 * float(limit.rho)) / 1000, math.sqrt(2 * math.log(most / float(limit.delta)))
    while run.races < most and len(run.items) < kbar:
        raced = drawn.raced.get(f"race/{run.races}")
        exact = raced.race.scale * tau if raced else Fraction(epsilon)
        assert near(exact, epsilon, 2**-26)
        assert exact <= epsilon * (1 + 1e-12)
        epsilon = float(exact)
        sigma = 0.09 * tau * log / epsilon
        noise = drawn.added.get(f"counts/{run.races}")
        variance = Fraction(math.ceil(Fraction(2 * sigma) ** 2 * 1024), 1024)
        if noise and noise.variances:  # rounded up to a multiple of 1/1024, from another order of operations
            assert abs(noise.variances[0] - variance) <= Fraction(1, 1024) + variance / 10**12
            variance = noise.variances[0]
        q = (1 + max(y0, 0) * epsilon / tau / log) ** 2
        share = 0.0
        if mechanism.counts:
            w = max(
                0.0,
                (1.63 / float(mechanism.relative_error)) ** 2 * (1 + 1 / math.sqrt(max(len(run.items), 1)))
                - q / 0.09**2,
            )
            share = w / (q * (log**2 + 0.09**-2) + w)
        step = exact**2 / 8 + Fraction(tau**2) / (2 * variance)
        affordable = math.floor((rest - total * Fraction(share)) / step)
        if affordable <= 0:
            break
        race = raced.race
        assert race.scores.tolist() == [counts[j] for j in alive]
        assert (race.rival is None) == (blanks == 0)
        assert race.rival is None or (race.rival.score, race.rival.factor) == (tail, blanks)
        assert len(raced.order) == 256 or raced.reached or len(raced.order) == len(alive)
        order = [alive[place] for place in raced.order.tolist()]
        assert noise.variances == [variance] * len(order)
        margin = math.ceil(radius * math.sqrt(variance + below.variances[0]) * (1 + 1e-12))
        halves = [2 * counts[j] + int(anchor.values[0]) + x for j, x in zip(order, noise.values.tolist(), strict=True)]
        passed = next((i for i, y in enumerate(halves) if y - 2 * y0 <= 2 * tau + margin), len(order))
        steps = passed + (passed < len(order) or raced.reached)
        paid = min(steps, affordable)
        rest -= paid * step
        run.races += 1
        passed = min(passed, paid)
        run.items += order[:passed]
        run.first += [y / 2 for y in halves[:passed]]
        run.variances += [float(variance) / 4] * passed
        if paid < steps:
            break
        alive = [j for j in alive if j not in order[:passed]]
        if passed < 256:
            epsilon *= 1 + (min(0.15, 0.5 / math.sqrt(len(run.items))) if passed else 0.15)
    assert run.races == len(drawn.raced)
    run.spent = limit.rho - rest
    return run


def estimates(measured, variances, kbar):
    """Return counts averaged with their fit by rank, whose relative error is 1.41 / ln(1 + kbar)."""
    fit = isotonic_regression(measured, weights=[1 / v for v in variances], increasing=False).x.tolist()
    error = [(1.41 / math.log(1 + kbar) * max(f, 1)) ** 2 for f in fit]
    return [(y / v + f / e) / (1 / v + 1 / e) for y, v, f, e in zip(measured, variances, fit, error, strict=True)]


def measured_again(run, mechanism, counts, drawn):
    """Return counts, their own variances and the common one after the second counts, which fit the first ones."""
    tau, common = mechanism.rows_per_group, float(drawn.added["anchor"].variances[0]) / 4
    n, left = len(run.items), 2 * float(mechanism.limit.rho - run.spent) / tau**2  # precision of half counts
    if "second counts" not in drawn.added:
        assert not n or not mechanism.counts or left < 2**-39 * n
        return run.first, run.variances, common
    anchor, counted = drawn.added["second anchor"], drawn.added["second counts"]
    assert abs(1 / anchor.variances[0] - left / (1 + math.sqrt(n))) <= 2**-39
    sizes = [max(size, 1) for size in estimates(run.first, run.variances, mechanism.head_limit)]
    held = [1 / (4 * v) for v in run.variances]
    # The level that all reach together: those above it by their first counts get no second one.
    level, again = 0.0, list(range(n))
    while True:
        budget = left * math.sqrt(n) / (1 + math.sqrt(n)) + sum(held[i] for i in again)
        level = budget / sum(1 / sizes[i] for i in again)
        kept = [i for i in again if held[i] * sizes[i] < level]
        if kept == again:
            break
        again = kept
    assert len(counted.variances) == len(again)
    for variance, i in zip(counted.variances, again, strict=True):
        assert abs(1 / variance - (level / sizes[i] - held[i])) <= 2**-39 + 1e-9 * level / sizes[i]
    second = [
        counts[run.items[i]] + (int(anchor.values[0]) + x) / 2
        for x, i in zip(counted.values.tolist(), again, strict=True)
    ]
    own = [float(v) / 4 for v in counted.variances]
    weights = [1 / (run.variances[i] + v) for i, v in zip(again, own, strict=True)]
    difference = sum(w * (y - run.first[i]) for w, y, i in zip(weights, second, again, strict=True)) / sum(weights)
    other = float(anchor.variances[0]) / 4
    known = other + 1 / sum(weights)
    share = common / (common + known)
    values, variances = [y + share * difference for y in run.first], list(run.variances)
    for i, y, v in zip(again, second, own, strict=True):
        corrected = y - difference * other / (common + known)
        precision = 1 / variances[i] + 1 / v
        values[i], variances[i] = (values[i] / variances[i] + corrected / v) / precision, 1 / precision
    return values, variances, known * share


def assert_replayed(mechanism, counts, run, most=500):
    """Assert that a release follows from what it drew; return it with its draws."""
    head = ExactHead(np.array(counts[: mechanism.head_limit + 1], dtype=np.int64), mechanism.head_limit)
    outcome, drawn = release(mechanism, head, run)
    found = replay(mechanism, counts, drawn, most)
    tau = mechanism.rows_per_group
    values, variances, common = measured_again(found, mechanism, counts, drawn)
    again = [drawn.added[label].rho(tau) for label in ("second anchor", "second counts") if label in drawn.added]
    spent = found.spent + sum(again, Fraction(0))
    assert 0 <= outcome.cost.rho - spent < Fraction(1, 10**12)
    assert outcome.cost.rho <= mechanism.limit.rho
    assert near(outcome.cost.delta, mechanism.limit.delta * found.races / most) or not found.races
    if mechanism.counts and found.items and len(again) == 2:
        assert spent > mechanism.limit.rho * (1 - Fraction(1, 10**6))
    shown = estimates(values, variances, mechanism.head_limit) if values else []
    order = sorted(range(len(shown)), key=lambda i: -shown[i])[: mechanism.k]
    assert outcome.positions.tolist() == [found.items[i] for i in order]
    assert outcome.ordered is True
    assert outcome.complete == (len(order) == mechanism.k)
    if not mechanism.counts:
        assert outcome.counts is outcome.std_errors is outcome.low is outcome.high is None
        return outcome, drawn
    lists = outcome.positions, outcome.counts, outcome.low, outcome.high
    assert all(values.dtype == np.int64 for values in lists)
    errors, expected = [math.sqrt(variances[i] + common) for i in order], mechanism.expectation()
    assert all(expected.min_std_error <= error <= expected.max_std_error for error in errors)
    assert outcome.std_errors.tolist() == pytest.approx(errors, rel=1e-6)
    for i, error, *ends in zip(order, errors, *(values.tolist() for values in lists[1:]), strict=True):
        exact = shown[i], shown[i] - 1.96 * error, shown[i] + 1.96 * error
        assert abs(ends[0] - exact[0]) <= 0.5 + 1e-6
        assert ends[1] == max(math.floor(exact[1]), 0) or near(exact[1], round(exact[1]), 1e-6)
        assert ends[2] == max(math.ceil(exact[2]), 0) or near(exact[2], round(exact[2]), 1e-6)
    return outcome, drawn


STEEP = [50_000 // (n + 1) for n in range(60)]
CASES = {
    "steep": (SelectVerify(Cost(Fraction(1, 5), DELTA), 40, TENTH), STEEP),
    "rows": (SelectVerify(Cost(Fraction(1), DELTA), 40, Fraction(1, 4), 3), STEEP),
    "labels": (SelectVerify(Cost(Fraction(1, 5), DELTA), 40, TENTH, counts=False), STEEP),
    "top": (SelectVerify(Cost(Fraction(2), DELTA), 40, Fraction(1, 50), k=5), STEEP),
    "no blanks": (SelectVerify(Cost(Fraction(1), DELTA), 6, TENTH), [900, 850, 840, 700, 650, 640, 3]),
    "few items": (SelectVerify(Cost(Fraction(1), DELTA), 40, TENTH), [9_000, 8_000, 40]),
    "small": (SelectVerify(Cost(Fraction(1, 50), DELTA), 40, TENTH, k=3), [300, 200, 100, 5]),
    "one item": (SelectVerify(Cost(Fraction(1), DELTA), 40, TENTH), [9_000]),
    "more than the budget pays for": (
        SelectVerify(Cost(Fraction(1), DELTA), 300, Fraction(1, 1000)),
        [10**7 - i for i in range(300)],
    ),
    "nothing": (SelectVerify(Cost(Fraction(1), DELTA), 40, TENTH), []),
    "ties at the cut": (SelectVerify(Cost(Fraction(1), DELTA), 8, TENTH), [90, 80, 70, *[60] * 7]),
    "a high tail": (SelectVerify(Cost(Fraction(1), DELTA), 10, Fraction(1, 3)), [n * 900 for n in range(14, 3, -1)]),
}


@pytest.mark.parametrize(("mechanism", "counts"), CASES.values(), ids=CASES)
def test_a_run_follows_from_what_it_drew(mechanism, counts):
    """Races, payments, second counts, estimates and intervals, step by step."""
    for run in range(4):
        assert_replayed(mechanism, counts, run)


@pytest.mark.parametrize("anchors", [["anchor"], ["anchor", "second anchor"]])
@pytest.mark.parametrize("shift", [-(10**6), -2_600, 10**5])
def test_a_run_follows_from_what_it_drew_where_the_anchor_is_far_off(shift, anchors, monkeypatch):
    """First counts below 1 are taken for 1 where second counts are planned, and a tail below 0 for 0."""
    drawn = draws.rounded_gaussian

    def shifted(bits, label, numerator, precisions):
        return drawn(bits, label, numerator, precisions) + (shift if label in anchors else 0)

    monkeypatch.setattr(draws, "rounded_gaussian", shifted)
    for run in range(2):
        outcome, _ = assert_replayed(SelectVerify(Cost(Fraction(1, 5), DELTA), 40, TENTH), STEEP, run)
        assert len(outcome.positions) > 3


def test_a_race_finds_256_items_and_epsilon_stays_after_it():
    """All of 600 items pass; the third race has fewer than 256 left."""
    counts = [10**7 - i for i in range(600)]
    outcome, drawn = assert_replayed(SelectVerify(Cost(Fraction(1), DELTA), 600, TENTH, counts=False), counts, 0)
    scales = [raced.race.scale for raced in drawn.raced.values()]
    assert [len(raced.order) for raced in drawn.raced.values()] == [256, 256, 88]
    assert scales[0] == scales[1] == scales[2]
    assert len(outcome.positions) == 600


def test_each_of_the_largest_number_of_races_may_lose_its_share_of_delta(monkeypatch):
    """With room for two races, the run ends after them."""
    monkeypatch.setattr(select_verify, "RACES", 2)
    for run in range(3):
        outcome, drawn = assert_replayed(SelectVerify(Cost(Fraction(1), DELTA), 40, TENTH), STEEP, run, 2)
        assert len(drawn.raced) == 2
        assert outcome.cost.delta == DELTA


def test_a_large_budget_is_not_spent_on_less_noise_than_half_a_count():
    """Second counts and their anchor have a variance of at least 1 in half counts."""
    mechanism = SelectVerify(Cost(Fraction(10**13), DELTA), 5, TENTH)
    outcome, drawn = release(mechanism, ExactHead(np.array([900, 700, 500, 60, 20, 3]), 5))
    assert sorted(outcome.positions.tolist()) == [0, 1, 2, 3, 4]
    assert drawn.added["second anchor"].variances == [1]
    assert drawn.added["second counts"].variances == [1] * 5
    assert outcome.counts.tolist() == [900, 700, 500, 60, 20]


def test_a_budget_too_small_for_second_counts_keeps_the_first():
    """What is left is below a unit of precision, as users may have 2^30 rows of an item."""
    mechanism = SelectVerify(Cost(Fraction(1, 100), DELTA), 3, TENTH, 2**30)
    counts = [2**55, 2**54, 2**53]
    outcome, drawn = assert_replayed(mechanism, counts, 0)
    assert len(outcome.positions) > 0
    assert "second counts" not in drawn.added


def test_counts_are_limited_so_that_twice_a_count_fits():
    """Counts above 2^60 are released as 2^60, and order nothing."""
    mechanism = SelectVerify(Cost(Fraction(1), DELTA), 4, TENTH)
    for run in range(3):
        one, other = (
            release(mechanism, ExactHead(np.array(counts), 4), run)[0]
            for counts in ([2**62, 2**61 + 5, 2**60 + 1, 7, 2], [2**60, 2**60, 2**60, 7, 2])
        )
        assert one.positions.tolist() == other.positions.tolist()
        assert one.counts.tolist() == other.counts.tolist()
        assert abs(one.counts[0] - 2**60) < 2**20


@pytest.mark.parametrize("tau", [1, 3])
@pytest.mark.parametrize("rho", [Fraction(1, 50), Fraction(2)])
@pytest.mark.parametrize("error", [TENTH, Fraction(1, 3)])
def test_expected_errors_are_those_of_a_first_count_and_of_a_single_item_found_last(tau, rho, error):
    """Races that find nothing grow by 15 % while the budget lasts that second counts leave."""
    request = Request(None, 40, Sensitivity(None, tau), relative_error=error)
    mechanism, log = SelectVerify.within_cost(Cost(rho, DELTA), request), math.log(41)
    assert mechanism == SelectVerify(Cost(rho, DELTA), 40, error, tau)
    anchor, tail = (math.ceil(tau**2 / (2 * share * float(rho)) * 1024) / 1024 for share in (0.03, 0.025))
    whole = float(rho) - tau**2 / 2 / anchor - tau**2 / 2 / tail
    w = max(0.0, 2 * (1.63 / float(error)) ** 2 - 0.09**-2)
    for counts in (True, False):
        left, epsilon, levels = (
            whole * (1 - (w / (log**2 + 0.09**-2 + w) if counts else 0)),
            math.sqrt(8 * rho) / 1000,
            [],
        )
        while (left := left - epsilon**2 / 8 - epsilon**2 / (8 * (0.09 * log) ** 2)) >= 0:
            levels.append(epsilon)
            epsilon *= 1.15
        expected = replace(mechanism, counts=counts).expectation()
        smallest = tau + math.ceil(tau * log / levels[-1])  # there an item wins against all others and blanks
        assert expected.smallest_count == smallest
        (likely,) = expected.likely
        assert (likely.name, likely.smallest_count, likely.max_smallest_count) == ("head", smallest, 7 * smallest)
        errors = expected.min_std_error, expected.max_std_error, likely.min_std_error, likely.max_relative_error
        assert likely.max_std_error is None
        if not counts:
            assert errors == (None,) * 4
            continue
        second = 2 * whole / tau**2  # the precision of a count that gets all that is left; its anchor gets half
        first, last = ((0.18 * tau * log / epsilon) ** 2 for epsilon in (levels[0], levels[-1]))
        assert near(errors[0], math.sqrt(1 / (1 / last + second) + 1 / (1 / anchor + second / 2)) / 2, 1e-4)
        assert near(errors[1], math.sqrt(first + anchor) / 2, 1e-4)
        assert errors[2:] == (float(error) / 2 * smallest, float(error))


def test_noise_that_would_be_too_wide_is_refused_before_data_is_read():
    """The widest is that of first counts in the first race, of variance 2^80 at most."""
    tau = 2**30
    least = (Fraction(0.18 * math.log(2)) * tau * 1000) ** 2 / 8 / 2**80  # rho at which it has that variance
    assert SelectVerify(Cost(least * Fraction(1001, 1000), DELTA), 1, TENTH, tau)
    with pytest.raises(InputError, match="wider than"):
        SelectVerify(Cost(least * Fraction(999, 1000), DELTA), 1, TENTH, tau)


@pytest.mark.parametrize("tau", [1, 2**30])
@pytest.mark.parametrize("share", [1, 20, 300])
def test_the_margin_is_rounded_up(tau, share):
    """It is z sqrt(s^2 + s_T^2), where the square of z is 2 ln(500 / delta), at 40 digits."""
    mechanism = SelectVerify(Cost(Fraction(1), DELTA), 40, TENTH, tau)
    level = mechanism._level(mechanism._first_epsilon() * share)
    with mpmath.workdps(40):
        below = level.variance + mechanism._tail()
        exact = mpmath.sqrt(2 * mpmath.log(500 * 10**6) * below.numerator / below.denominator)
        assert exact <= level.margin <= exact * (1 + mpmath.mpf(10) ** -11) + 1


def test_nothing_is_kept_where_first_counts_are_as_precise_as_second_ones_could_be():
    """With a high count below the cut, items are found only where their noise is far below their size."""
    mechanism = SelectVerify(Cost(Fraction(1), DELTA), 40, TENTH)
    level = mechanism._level(mechanism._first_epsilon())
    assert mechanism._kept(level, 10**6, 5) == 0
    assert 0.5 < mechanism._kept(level, 0, 5) < 1
    assert mechanism._kept(level, -(10**6), 5) == mechanism._kept(level, 0, 5)
    assert replace(mechanism, counts=False)._kept(level, 0, 5) == 0


@pytest.mark.parametrize("seed", range(8))
def test_second_counts_bring_those_that_have_least_to_one_level(seed):
    """Precision times size is the same for all that get some, no smaller for the others, and all is spent."""
    rng = np.random.default_rng(seed)
    precisions, sizes = 2.0 ** rng.uniform(10, 40, 30), 2.0 ** rng.uniform(0, 20, 30)
    total = int(2.0 ** rng.uniform(20, 44))
    added = select_verify._spread(total, precisions, sizes)
    reached = (precisions + added) * sizes
    level = reached[added > 0].max()
    below = added < select_verify.PRECISION_UNIT
    assert (reached + sizes >= level)[below].all()  # rounded down to whole units
    assert added.sum() <= total
    assert added.sum() > total - 31 or not below.all()


def test_rounding_does_not_spend_more_than_is_left():
    """Floats near 2^60 are multiples of 256, so that 900 units for 1,024 items look like 1,024."""
    added = select_verify._spread(900, np.full(1024, 2.0**50), np.ones(1024))
    assert added.tolist() == [1] * 900 + [0] * 124


def test_a_fit_needs_as_many_weights_as_values():
    """Values without a weight would be lost."""
    with pytest.raises(ValueError, match="shorter"):
        select_verify.falling_pools(np.array([1.0, 2.0]), np.array([1.0]))


def test_pools_are_means_of_violators_only():
    """With total weights and sizes; equal neighbours are no violators."""
    pools = select_verify.falling_pools(np.array([3.0, 3.0, 1.0, 2.0, 0.0]), np.array([1.0, 2.0, 1.0, 3.0, 4.0]))
    assert pools == [(3.0, 1.0, 1), (3.0, 2.0, 1), (1.75, 4.0, 2), (0.0, 4.0, 1)]
