"""A privacy guarantee, in numbers and in a sentence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from discreet.accounting.convert import epsilon_tight
from discreet.errors import InvariantViolated
from discreet.values import Cost, float_above, float_below

if TYPE_CHECKING:
    from fractions import Fraction

UNIT = "user"
NEIGHBOURS = "tables that differ in all rows of one user, added or removed"


@dataclass(frozen=True, slots=True)
class Guarantee:
    """(epsilon, delta)-differential privacy, and the zCDP behind it.

    Args:
        epsilon: rounded up.
        delta: rounded up; includes the mass that mechanisms may lose.
        rho: zCDP of the worst case.
        unit: the unit of privacy.
        neighbours: between which tables it holds.
        computational: True if it rests on AES and HMAC (keyed noise), not on true randomness.
    """

    epsilon: float
    delta: float
    rho: float
    unit: str = UNIT
    neighbours: str = NEIGHBOURS
    computational: bool = False

    def __str__(self) -> str:
        kind = "computational differential privacy" if self.computational else "differential privacy"
        return (
            f"({self.epsilon:.4g}, {self.delta:.4g})-{kind} for every {self.unit} "
            f"(rho = {self.rho:.4g}; between {self.neighbours})"
        )


def guarantee_of(
    cost: Cost, delta: Fraction, direct_epsilon: Fraction | None = None, computational: bool = False
) -> Guarantee:
    """Return the guarantee of a mechanism (or a whole filter) whose worst case is *cost*.

    Args:
        cost: the worst case.
        delta: total delta of the statement; what the mechanism cannot lose pays for the conversion.
        direct_epsilon: epsilon of an (epsilon, cost.delta)-DP theorem of the mechanism's own, if it has one.
        computational: see `Guarantee`.

    Raises:
        InvariantViolated: the mechanism alone may lose *delta* or more.
    """
    conversion = delta - cost.delta
    epsilon, stated = math.inf, delta
    if conversion > 0:
        epsilon = epsilon_tight(float_above(cost.rho), float_below(conversion))
    if direct_epsilon is not None and direct_epsilon < epsilon and cost.delta <= delta:
        epsilon, stated = float_above(direct_epsilon), cost.delta
    if epsilon == math.inf:
        raise InvariantViolated("no delta is left for the conversion")
    return Guarantee(epsilon, float_above(stated), float_above(cost.rho), computational=computational)
