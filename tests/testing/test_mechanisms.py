"""The public suite detects defects: mechanisms with one defect each fail the test that guards against it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from discreet.head_request import SumBounds
from discreet.mechanisms import Request, UnknownGumbel
from discreet.mechanisms.sums import UnknownGumbelSums
from discreet.noise import KeyedBits, SystemBits
from discreet.testing.mechanisms import MechanismSuite
from discreet.values import Cost


class Sound(UnknownGumbel):
    """UnkGumb without a defect."""


def with_method(name, function):
    """Return UnkGumb with one other method; *function* gets the sound result, the mechanism and the arguments."""

    def method(self, *arguments):
        return function(getattr(UnknownGumbel, name)(self, *arguments), self, *arguments)

    return type("Defect", (UnknownGumbel,), {name: method})


def with_outcome(**changes):
    """Return UnkGumb whose outcome has other values: functions of the sound outcome, the mechanism and the head."""

    def tamper(outcome, mechanism, head, _):
        return replace(outcome, **{name: change(outcome, mechanism, head) for name, change in changes.items()})

    return with_method("release", tamper)


def with_bits(source):
    """Return UnkGumb that draws from another *source*."""
    return type("Defect", (UnknownGumbel,), {"release": lambda self, head, _: Sound.release(self, head, source())})


@dataclass
class Mutable:
    """Parameters that can be changed."""

    head_limit: int

    @classmethod
    def within_cost(cls, limit, request):  # noqa: ARG003
        """See `Mechanism.within`."""
        return cls(request.head_limit)

    def __hash__(self):
        return 0


class Overreaches(UnknownGumbel):
    """Its own theorem claims more epsilon than was requested."""

    @classmethod
    def at_epsilon(cls, epsilon, delta, request):
        """See `Mechanism.at`."""
        return super().at_epsilon(2 * epsilon, delta, replace(request, counts=False))


def with_measured(**changes):
    """Return UnkGumb with sums that have other values: functions of what was measured."""

    def release(self, head, bits):
        outcome = UnknownGumbelSums.release(self, head, bits)
        measured = replace(outcome.measured, **{name: change(outcome.measured) for name, change in changes.items()})
        return replace(outcome, measured=measured)

    return type("Defect", (UnknownGumbelSums,), {"release": release})


class DropsNegativeSums(UnknownGumbelSums):
    """Does not release the items whose sums are below 0."""

    def release(self, head, bits):
        """See `Mechanism.release`."""
        outcome = super().release(head, bits)
        return replace(outcome, positions=outcome.positions[head.sums[outcome.positions] >= 0])


OWN_BITS = with_bits(SystemBits)
DEFECTS = {
    "it_has_a_name": type("Defect", (UnknownGumbel,), {"name": ""}),
    "the_worst_cost_is_within_the_limit": with_method("worst_cost", lambda cost, _: 2 * cost),
    "only_a_lossless_mechanism_costs_no_delta": type("Defect", (UnknownGumbel,), {"lossless": True}),
    "its_parameters_are_a_frozen_value": Mutable,
    # as a budget that reserves 2k for what may cost 2k + 1
    "the_charge_is_within_the_worst_cost": with_outcome(
        cost=lambda _, self, __: self.worst_cost() + Cost(self.epsilon**2 / 8)
    ),
    "equal_bits_give_equal_outcomes": OWN_BITS,
    "other_bits_give_other_outcomes": with_bits(lambda: KeyedBits(b"bits that are always the same...", None)),
    "labels_are_never_looked_at": with_outcome(
        complete=lambda outcome, _, head: outcome.complete and (head.labels is None or len(head.labels) > 0)
    ),
    "no_bits_are_drawn_twice": OWN_BITS,
    "positions_are_different_rows_above_the_cut": with_outcome(
        positions=lambda outcome, _, head: np.arange(len(outcome.positions)) + max(len(head.counts) - 3, 0)
    ),
    "an_item_without_users_appears_only_in_a_known_domain": with_outcome(
        positions=lambda _, self, head: np.arange(min(self.k, len(head.counts)))
    ),
    "complete_means_that_all_was_returned": with_outcome(complete=lambda *_: True),
    "counts_come_if_and_only_if_they_were_requested": with_outcome(counts=lambda *_: None),
    "intervals_are_sane": with_outcome(low=lambda outcome, *_: outcome.high + 1),
    "standard_errors_are_as_expected": with_outcome(std_errors=lambda outcome, *_: outcome.std_errors / 2),
    "ties_follow_no_order": with_outcome(positions=lambda outcome, *_: np.sort(outcome.positions)),
    "sums_come_if_and_only_if_they_were_requested": with_measured(values=lambda m: np.append(m.values, 0)),
    "intervals_of_sums_are_sane": with_measured(low=lambda m: m.low - 2**62),
    "standard_errors_of_sums_are_as_expected": with_measured(std_errors=lambda m: m.std_errors / 2),
    "sums_find_nothing": DropsNegativeSums,
    "its_own_theorem_stays_within_what_was_requested": Overreaches,
}


def fails(mechanism, name) -> bool:
    """Return True if *mechanism* fails a test of the suite for any of the test's parameters."""
    summed = SumBounds(0, 9) if issubclass(mechanism, UnknownGumbelSums) else None
    suite = type("Suite", (MechanismSuite,), {"mechanism": mechanism, "request": Request(3, 6, summed=summed)})()
    test = getattr(suite, f"test_{name}")
    marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
    for values in [(value,) for mark in marks for value in mark.args[1]] or [()]:
        try:
            test(*values)
        except (AssertionError, pytest.fail.Exception):
            return True
    return False


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_fails_the_test_that_guards_against_it(name):
    """Each test of the suite rejects a mechanism with its defect, and accepts one without."""
    assert fails(DEFECTS[name], name)
    assert not fails(Sound, name)
    assert not fails(UnknownGumbelSums, name)


def test_every_test_of_the_suite_has_a_defect_that_fails_it():
    """No test of the suite is without a planted defect."""
    assert {name.removeprefix("test_") for name in vars(MechanismSuite) if name.startswith("test_")} == {*DEFECTS}
