"""Prices in LinkedIn's units (Rogers et al. 2021, Algorithm 5) instead of an (epsilon, delta) for each query.

A unit of information is one peel of the exponential mechanism or one noisy value and costs epsilon_per^2 / 8 of rho; a
call over an unknown domain costs delta_per. A unit buys the same accuracy in every query. docs/service/units.md says
where this differs from the paper, and why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from discreet.accounting.convert import Guarantee, UnitCost, cost_of_units, guarantee_of, units_of_cost
from discreet.budget.model import LINKEDIN
from discreet.errors import InputError
from discreet.values import DELTA_QUANTUM, MAX_COUNT, RHO_QUANTUM, Cost, exact, whole

if TYPE_CHECKING:
    from discreet.mechanisms import Each, Mechanism, Request

MIN_EPSILON_PER = Fraction(1, 10**6)
MAX_EPSILON_PER = Fraction(100)
MIN_DELTA_PER = Fraction(1, 10**20)


@dataclass(frozen=True, slots=True)
class PerUnit:
    """The price of a unit, which is the same for every query.

    Args:
        epsilon_per: epsilon of one unit of information, from 1e-6 to 100, with at most seven digits after the decimal
            point so that units add up exactly; text is read exactly.
        delta_per: delta of one call over an unknown domain, at least 1e-20 and below 1.
        information: the most units that a query without LIMIT may cost, from 1 to 2**62.

    Raises:
        InputError: a value is outside its range.
    """

    epsilon_per: Fraction
    delta_per: Fraction
    information: int

    def __post_init__(self) -> None:
        epsilon = exact(self.epsilon_per, "epsilon per unit")
        delta = exact(self.delta_per, "delta per call")
        if not MIN_EPSILON_PER <= epsilon <= MAX_EPSILON_PER:
            raise InputError("epsilon per unit must be from 1e-6 to 100")
        if not MIN_DELTA_PER <= delta < 1:
            raise InputError("delta per call must be below 1 and at least 1e-20")
        if (epsilon**2 / 8 / RHO_QUANTUM).denominator > 1:
            raise InputError("epsilon per unit has at most seven digits after the decimal point")
        if (delta / DELTA_QUANTUM).denominator > 1:
            raise InputError("delta per call has at most 27 digits after the decimal point")
        object.__setattr__(self, "epsilon_per", epsilon)
        object.__setattr__(self, "delta_per", delta)
        object.__setattr__(self, "information", whole(self.information, "information"))
        if self.information > MAX_COUNT:  # which may have more digits than Python writes
            raise InputError(f"information must be at most {MAX_COUNT:,}")
        if self.information < 1:
            raise InputError(f"information must be at least 1, not {self.information}")

    def cost(self, information: int, calls: int) -> Cost:
        """Return the zCDP cost of units; both are at least 0."""
        return cost_of_units(information, calls, self.epsilon_per, self.delta_per)

    def units(self, cost: Cost) -> UnitCost:
        """Return the smallest number of units that cover *cost*."""
        return units_of_cost(cost, self.epsilon_per, self.delta_per)

    def guarantee(self, mechanism: Mechanism | Each) -> Guarantee:
        """Return the guarantee of one answer of *mechanism*, with delta_per for the conversion."""
        cost = mechanism.worst_cost()
        return guarantee_of(cost, cost.delta + self.delta_per, mechanism.direct_epsilon())


PRESETS: Mapping[str, PerUnit] = {
    "linkedin": PerUnit(LINKEDIN.epsilon_per, LINKEDIN.delta_per, LINKEDIN.information // LINKEDIN.calls)
}
"""Prices by name. LinkedIn's is for accounts with k* = 3,000 and l* = 30; queries without LIMIT cost up to k* / l*."""


def unit_price(
    epsilon_per: float | str | Fraction | None, information: int | None, usual: PerUnit = PRESETS["linkedin"]
) -> PerUnit:
    """Return the price of a unit with these parts, and those of *usual* in place of None."""
    return PerUnit(
        usual.epsilon_per if epsilon_per is None else exact(epsilon_per, "epsilon per unit"),
        usual.delta_per,
        usual.information if information is None else information,
    )


def priced(kind: type[Mechanism], request: Request, per: PerUnit) -> Mechanism:
    """Return the mechanism that charges a unit per step: 2 k + 1 for a top k of an unknown domain, 2 k for a known one.

    The extra unit chooses the cutoff of an unknown domain privately, as in the paper's Algorithm 4. Where users' items
    are bounded, all counts of a known domain cost Delta units and those of an unknown one a single unit. Without LIMIT,
    noise is added until the release costs at most `per.information` units. Noise is independent, as in the paper.

    Raises:
        InputError: the mechanism cannot answer the request.
    """
    most = per.cost(per.information if request.k is None else request.k, 1)
    chosen = request.k is not None and request.k < request.head_limit and not request.known_domain
    request = replace(request, independent=True)
    mechanism = kind.by_step(per.epsilon_per, per.delta_per, replace(request, optimise_cutoff=chosen))
    if mechanism is None or (request.k is None and not mechanism.worst_cost().within(most)):
        return kind.within_cost(most, request)
    return mechanism
