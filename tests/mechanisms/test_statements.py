"""What a mechanism states before a release is what the release has: errors, intervals, size, and what values cost."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from discreet.mechanisms import KnownGumbel, KnownLaplace, Request, UnknownGumbel, UnknownLaplace
from discreet.mechanisms.anchored import SharedLaplace, SharedNoise
from discreet.mechanisms.base import noise_of, shuffled
from discreet.noise import KeyedBits
from discreet.values import Cost, ExactHead, Sensitivity

LIMIT = Cost(Fraction(1, 5), Fraction(1, 10**6))
COUNTS = [9000, 8000, 7000, 6000, 5000, 4000, 30, 3]
RANKINGS = [KnownLaplace, UnknownLaplace, KnownGumbel, UnknownGumbel]
NOISES = ["gaussian", "laplace"]


def request_of(kind, noise="gaussian", **more):
    """Return a request for three items of eight, of users with two items and three rows of each at most."""
    known = kind in (KnownLaplace, KnownGumbel)
    return Request(3, len(COUNTS), Sensitivity(2, 3), noise=noise, known_domain=known, **more)


def released(mechanism, run=0):
    """Return a release of eight items."""
    head = ExactHead(np.array(COUNTS, dtype=np.int64), mechanism.head_limit)
    return mechanism.release(head, KeyedBits(bytes(32), run))


def made(kind, request):
    """Return the instances of every way to make one, the last of which has only Laplace noise."""
    found = [
        kind.within_cost(LIMIT, request),
        kind.by_step(Fraction(1, 3), LIMIT.delta, request),
        kind.at_epsilon(Fraction(1, 3), LIMIT.delta, request),
    ]
    return [mechanism for mechanism in found if mechanism is not None]


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("kind", RANKINGS)
def test_what_is_requested_is_what_is_made(kind, noise):
    """K, head limit, noise, labels only, tau and delta, in every instance; only Laplace noise has a theorem."""
    for counts in (True, False):
        mechanisms = made(kind, request_of(kind, noise, counts=counts))
        gaussian = noise == "gaussian" and (counts or kind in (KnownLaplace, UnknownLaplace))
        assert len(mechanisms) == 2 + (not gaussian)
        for mechanism in mechanisms:
            assert mechanism.head_limit == len(COUNTS)
            assert mechanism.rows_per_group == 3
            assert mechanism.worst_cost().delta == (0 if kind.lossless else LIMIT.delta)
            assert (mechanism.direct_epsilon() is None) == gaussian
            outcome = released(mechanism)
            assert len(outcome.positions) == 3
            assert outcome.complete
            assert outcome.ordered
            assert (outcome.counts is not None) == counts


@pytest.mark.parametrize("kind", RANKINGS)
def test_a_theorem_gives_exactly_the_epsilon_that_was_asked_for(kind):
    """Also another than 1, with counts and without."""
    for epsilon, counts in itertools.product((Fraction(1, 3), Fraction(7, 2)), (True, False)):
        made = kind.at_epsilon(epsilon, LIMIT.delta, request_of(kind, "laplace", counts=counts))
        assert made.direct_epsilon() == epsilon


@pytest.mark.parametrize(
    ("kind", "steps"), [(KnownLaplace, 2), (UnknownLaplace, 1), (KnownGumbel, 6), (UnknownGumbel, 6)]
)
def test_the_steps_of_by_step_cost_an_eighth_of_the_squared_epsilon(kind, steps):
    """Two counts that a user moves, the one step that LinkedIn charges UnkLap, or three peels and three counts."""
    for noise, epsilon in itertools.product(NOISES, (Fraction(1, 3), Fraction(2))):
        mechanism = kind.by_step(epsilon, LIMIT.delta, request_of(kind, noise))
        assert float(mechanism.worst_cost().rho) == pytest.approx(float(steps * epsilon**2 / 8), rel=1e-7)
        assert mechanism.worst_cost().rho <= Fraction(steps) * epsilon**2 / 8 + Fraction(1, 10**17)


@pytest.mark.parametrize("per_value", [Fraction(1), Fraction(1, 2)])
def test_the_units_of_a_request_are_its_peels_and_its_values(per_value):
    """Values count *per_value*; a choice of the cut-off is a peel."""
    for kind in (KnownLaplace, UnknownLaplace):
        assert kind.units(request_of(kind), per_value) == 2 * per_value
    for kind in (KnownGumbel, UnknownGumbel):
        assert kind.units(request_of(kind), per_value) == 3 + 3 * per_value
        assert kind.units(request_of(kind, counts=False), per_value) == 3
    assert UnknownGumbel.units(request_of(UnknownGumbel, optimise_cutoff=True), per_value) == 4 + 3 * per_value


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("kind", RANKINGS)
def test_the_expected_error_is_that_of_every_released_count(kind, noise):
    """And there is none for labels only."""
    for mechanism in made(kind, request_of(kind, noise)):
        expected = mechanism.expectation()
        assert expected.min_std_error == expected.max_std_error
        assert released(mechanism).std_errors.tolist() == [expected.min_std_error] * 3
    for mechanism in made(kind, request_of(kind, noise, counts=False)):
        assert mechanism.expectation().min_std_error is mechanism.expectation().max_std_error is None
        assert released(mechanism).std_errors is None


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("kind", RANKINGS)
def test_a_value_of_the_stated_scale_costs_as_much_as_a_count(kind, noise):
    """A sum that one user moves by 7 or 500 beside a count that one moves by tau."""
    for mechanism in made(kind, request_of(kind, noise)):
        if kind in (KnownLaplace, UnknownLaplace):
            count = noise_of(noise, mechanism.scale).rho(3)
        else:
            count = mechanism.epsilon**2 / 8
        for moved in (7, 500):
            assert noise_of(noise, mechanism.value_scale(moved)).rho(moved) == count


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("kind", RANKINGS)
def test_intervals_are_those_of_the_stated_failure_probability(kind, noise):
    """Where the noise selected the counts, r of d intervals at 5 % are plain ones at r/d of it, r at least 1."""
    for mechanism in made(kind, request_of(kind, noise)):
        outcome = released(mechanism)
        selected = kind in (KnownLaplace, UnknownLaplace)
        miss = 0.05 * 3 / mechanism.head_limit if selected else 0.05
        scale = mechanism.scale if selected else Fraction(6) / mechanism.epsilon
        independent = noise_of(noise, scale)
        # three counts of known-gumbel, that one user moves by 3
        sharing = SharedLaplace if noise == "laplace" else SharedNoise
        shared = sharing.instead(3, 3, scale**2, low=0, high=3) if kind is KnownGumbel else None
        width = (shared or independent).half_width(miss)
        assert (outcome.high - outcome.counts).tolist() == [width] * 3
        assert outcome.low.tolist() == np.maximum(outcome.counts - width, 0).tolist()


@pytest.mark.parametrize("kind", [UnknownLaplace, UnknownGumbel])
def test_the_smallest_count_grows_with_tau_and_with_the_head(kind):
    """At the threshold of an empty tail: tau and a margin above it."""
    for noise in NOISES:
        mechanism = kind.within_cost(LIMIT, request_of(kind, noise))
        found = mechanism.expectation().smallest_count
        if kind is UnknownLaplace:
            assert found == 3 + mechanism.margin()
            wider = replace(mechanism, head_limit=1)  # one item of two that a user has is exposed
            assert wider.margin() < mechanism.margin()
            assert replace(mechanism, head_limit=100).margin() == mechanism.margin()
        else:
            assert found == math.ceil(3 + 3 / mechanism.epsilon * math.log(8 / LIMIT.delta))


@pytest.mark.parametrize("mechanism", [KnownLaplace(None, 8, 1, Fraction(90)), KnownGumbel(8, 8, Fraction(1, 90))])
def test_intervals_of_counts_end_at_zero_and_not_above(mechanism):
    """Counts of items without users are often negative, and both ends of their intervals are sometimes."""
    head = ExactHead(np.zeros(8, dtype=np.int64), 8)
    found = [mechanism.release(head, KeyedBits(bytes(32), run)) for run in range(40)]
    assert min(outcome.counts.min() for outcome in found) < -200
    assert min(outcome.low.min() for outcome in found) == min(outcome.high.min() for outcome in found) == 0


@pytest.mark.parametrize(
    ("mechanism", "counts", "complete"),
    [
        (KnownLaplace(None, 2, 1, Fraction(2)), [9, 0], True),
        (KnownLaplace(2, 2, 1, Fraction(2)), [9, 0], True),
        (KnownGumbel(2, 2, Fraction(1)), [9, 0], True),
        (UnknownLaplace(None, 2, 1, Fraction(2), Fraction(1, 100)), [900, 800], False),
        (UnknownLaplace(2, 2, 1, Fraction(2), Fraction(1, 100)), [900, 800], True),
        (UnknownLaplace(2, 2, 1, Fraction(2), Fraction(1, 100)), [900], False),
        (UnknownGumbel(2, 2, Fraction(1), Fraction(1, 100)), [900, 800], True),
        (UnknownGumbel(2, 2, Fraction(1), Fraction(1, 100)), [900], False),
    ],
)
@pytest.mark.parametrize("labels_only", [False, True])
def test_an_answer_is_complete_if_all_that_was_requested_was_returned(mechanism, counts, complete, labels_only):
    """A whole domain or k items; the size of an unknown domain is not known."""
    if labels_only:
        mechanism = replace(mechanism, counts=None if isinstance(mechanism, (KnownGumbel, UnknownGumbel)) else False)
    outcome = mechanism.release(ExactHead(np.array(counts), 2), KeyedBits(bytes(32), 0))
    assert len(outcome.positions) == len(counts)
    assert outcome.complete is complete
    assert outcome.ordered is True


def test_equal_values_come_in_every_order():
    """Noise of a hundredth is 0; the order of the head, by labels, would tell what the counts were."""
    mechanism, head = KnownLaplace(None, 3, 1, Fraction(1, 100)), ExactHead(np.array([7, 7, 7]), 3)
    orders = {tuple(mechanism.release(head, KeyedBits(bytes(32), run)).positions.tolist()) for run in range(60)}
    assert len(orders) == 6


def test_equal_values_come_in_the_order_of_the_shuffle():
    """On every machine: the sort is stable, also for many items."""
    head = ExactHead(np.repeat([2, 1], 100), 200)
    found = KnownLaplace(None, 200, 1, Fraction(1, 100)).release(head, KeyedBits(bytes(32), 0)).positions.tolist()
    shuffle = shuffled(200, KeyedBits(bytes(32), 0), "ties").tolist()
    assert found == [i for i in shuffle if i < 100] + [i for i in shuffle if i >= 100]


def test_the_interval_of_a_single_count_is_that_of_one_among_all():
    """The largest of eight is the one of eight that fails."""
    mechanism = KnownLaplace(1, 8, 1, Fraction(9))
    outcome = mechanism.release(ExactHead(np.array(COUNTS), 8), KeyedBits(bytes(32), 0))
    assert (outcome.high - outcome.counts).tolist() == [noise_of("gaussian", Fraction(9)).half_width(0.05 / 8)]
