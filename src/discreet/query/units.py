"""Questions priced in LinkedIn's units (Rogers et al. 2021, Algorithm 5), instead of each by an (epsilon, delta).

A unit of information is a peel of the exponential mechanism or a noisy value, and costs epsilon_per^2 / 8 of rho; a
call over an unknown domain costs delta_per. A unit buys the same accuracy in every question, so an analyst knows what
k* units and l* calls are good for. docs/service/units.md says where this differs from the paper, and why.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from discreet.accounting.guarantee import Guarantee, guarantee_of
from discreet.accounting.units import cost_of_units, units_of_cost
from discreet.budget.model import LINKEDIN
from discreet.errors import InputError
from discreet.values import DELTA_QUANTUM, RHO_QUANTUM, exact, whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from discreet.mechanisms import Mechanism, Request
    from discreet.values import Cost

EPSILON_PER_LEAST, EPSILON_PER_MOST = Fraction(1, 10**6), Fraction(100)
DELTA_PER_LEAST = Fraction(1, 10**20)


@dataclass(frozen=True, slots=True)
class UnitCost:
    """What something costs.

    Args:
        information: peels and noisy values, rounded up.
        calls: over unknown domains.
    """

    information: int
    calls: int

    def __str__(self) -> str:
        return f"{self.information:,} of information, {self.calls:,} {'call' if self.calls == 1 else 'calls'}"


@dataclass(frozen=True, slots=True)
class PerUnit:
    """How much noise a unit of information buys, whatever is asked.

    Args:
        epsilon_per: of one unit, from 1e-6 to 100, with seven digits behind the point at most, so that units add up
            exactly; text is taken as it is written.
        delta_per: what one call over an unknown domain may lose, from 1e-20 and below 1.
        information: units that a question without LIMIT may take at most, at least 1.

    Raises:
        InputError: a value outside its range.
    """

    epsilon_per: Fraction
    delta_per: Fraction
    information: int

    def __post_init__(self) -> None:
        epsilon, delta = exact(self.epsilon_per, "epsilon per unit"), exact(self.delta_per, "delta per call")
        if not EPSILON_PER_LEAST <= epsilon <= EPSILON_PER_MOST:
            raise InputError("epsilon per unit must be from 1e-6 to 100")
        if not DELTA_PER_LEAST <= delta < 1:
            raise InputError("delta per call must be below 1 and at least 1e-20")
        if (epsilon**2 / 8 / RHO_QUANTUM).denominator > 1:
            raise InputError("epsilon per unit has seven digits behind the point at most")
        if (delta / DELTA_QUANTUM).denominator > 1:
            raise InputError("delta per call has 27 digits behind the point at most")
        object.__setattr__(self, "epsilon_per", epsilon)
        object.__setattr__(self, "delta_per", delta)
        object.__setattr__(self, "information", whole(self.information, "information"))
        if self.information < 1:
            raise InputError(f"information must be at least 1, not {self.information}")

    def cost(self, information: int, calls: int) -> Cost:
        """What units cost in zCDP; both at least 0."""
        return cost_of_units(information, calls, self.epsilon_per, self.delta_per)

    def units(self, cost: Cost) -> UnitCost:
        """The least units that cover *cost*."""
        return UnitCost(*units_of_cost(cost, self.epsilon_per, self.delta_per))

    def guarantee(self, mechanism: Mechanism) -> Guarantee:
        """What one answer of *mechanism* promises by itself, if the conversion may fail by delta_per."""
        cost = mechanism.worst_cost()
        return guarantee_of(cost, cost.delta + self.delta_per, mechanism.direct_epsilon())


PRESETS: Mapping[str, PerUnit] = {
    "linkedin": PerUnit(LINKEDIN.epsilon_per, LINKEDIN.delta_per, LINKEDIN.information // LINKEDIN.calls)
}
"""By name. LinkedIn's is for accounts with k* = 3,000 and l* = 30; a question without LIMIT takes a call's share."""


def priced(kind: type[Mechanism], request: Request, per: PerUnit) -> Mechanism:
    """The mechanism in which every step is a unit: 2 k + 1 for a top k of an unknown domain, 2 k of a known one.

    The cut-off of an unknown domain is chosen privately, as in the paper's Algorithm 4: that is the one. Where users'
    items are bounded, all counts of a known domain take Delta units, those of an unknown one a single unit. Without
    LIMIT, what would take more than `per.information` units gets more noise.

    Args:
        kind: the mechanism.
        request: what was asked.
        per: the price.

    Raises:
        InputError: the mechanism cannot do what was requested.
    """
    most = per.cost(per.information if request.k is None else request.k, 1)
    chosen = request.k is not None and request.k < request.head_limit and not request.known_domain
    made = kind.by_step(per.epsilon_per, per.delta_per, replace(request, optimise_cutoff=chosen))
    if made is None or (request.k is None and not made.worst_cost().within(most)):
        return kind.within(most, request)
    return made
