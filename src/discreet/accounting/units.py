"""LinkedIn's units (Rogers et al. 2021, section 6): an information budget k* and a call budget l*.

Both convert to zCDP: a unit of information is rho = epsilon_per^2 / 8 (one peel of the exponential
mechanism, or one noisy count), a call to a mechanism over an unknown domain is delta_per.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from discreet.errors import InputError
from discreet.values import DELTA_QUANTUM, RHO_QUANTUM, Cost

if TYPE_CHECKING:
    from fractions import Fraction


def cost_of_units(information: int, calls: int, epsilon_per: Fraction, delta_per: Fraction) -> Cost:
    """Return what *information* units and *calls* cost together.

    Args:
        information: k, at least 0.
        calls: l, at least 0.
        epsilon_per: privacy parameter of one unit, above 0.
        delta_per: mass lost by one call, at least 0 and below 1.

    Raises:
        InputError: a value outside its range.
    """
    if information < 0 or calls < 0:
        raise InputError("information and calls must not be negative")
    _check(epsilon_per, delta_per)
    return Cost(information * epsilon_per**2 / 8, calls * delta_per)


def units_of_cost(cost: Cost, epsilon_per: Fraction, delta_per: Fraction) -> tuple[int, int]:
    """Return the least (information, calls) that cover *cost*; ranges as in `cost_of_units`, delta_per above 0."""
    _check(epsilon_per, delta_per)
    if delta_per == 0:
        raise InputError("delta per call must be above 0")
    return _least(cost.rho, epsilon_per**2 / 8, RHO_QUANTUM), _least(cost.delta, delta_per, DELTA_QUANTUM)


def _least(spent: Fraction, unit: Fraction, quantum: Fraction) -> int:
    """Return the least number of units whose cost, rounded up to the quantum, covers what was spent."""
    return math.floor((spent - quantum) / unit) + 1 if spent else 0


def _check(epsilon_per: Fraction, delta_per: Fraction) -> None:
    if epsilon_per <= 0:
        raise InputError("epsilon per unit must be above 0")
    if not 0 <= delta_per < 1:
        raise InputError("delta per call must be at least 0 and below 1")
