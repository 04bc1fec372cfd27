"""The largest parameters of LinkedIn's units that keep a guarantee (Rogers et al. 2021, section 6 and Theorem 2).

`settings_for` and `information_for` solve for (epsilon_per, delta) from (epsilon*, delta*, k*, l*), and for k*
from the rest. They round down, to 28 bits. Two rules:

- "published": delta = delta* / (6 l*), delta' = delta* / 2, the simple conversion. It leaves a sixth of delta* unused,
  since Theorem 2 requires 2 l* delta + delta' only.
- "tight": lost masses add without a factor (`bounds.linkedin_system`), so delta = delta* / (2 l*), delta' = delta* / 2,
  and the tight conversion. Its epsilon_per is 10 to 20 % larger for the same guarantee.

All functions raise `InputError`, with the name of the argument, for a value outside the documented range.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal, TypeAlias

from discreet.accounting.bounds import demand
from discreet.accounting.convert import cost_of_units, epsilon_per_unit, floor_bits, rho_simple, rho_tight
from discreet.values import DELTA_QUANTUM, float_below

if TYPE_CHECKING:
    from discreet.values import Cost

Rule: TypeAlias = Literal["published", "tight"]


@dataclass(frozen=True, slots=True)
class UnitSettings:
    """The parameters of a budget service.

    Args:
        information: k*, in bounded-range steps.
        calls: l*, over unknown domains.
        epsilon_per: epsilon of each step.
        delta_per: mass that each call may lose; 0 without calls.
        delta: delta', the failure probability of the conversion.
    """

    information: int
    calls: int
    epsilon_per: Fraction
    delta_per: Fraction
    delta: Fraction

    def cost(self) -> Cost:
        """Return the zCDP cost of the whole budget."""
        return cost_of_units(self.information, self.calls, self.epsilon_per, self.delta_per)


def settings_for(epsilon: float, delta: Fraction, information: int, calls: int, rule: Rule = "tight") -> UnitSettings:
    """Return the largest epsilon_per and delta_per that keep a budget's guarantee.

    For few steps (up to about eight, at usual deltas) the sum of their epsilons is the better bound; epsilon_per is
    then epsilon / k*, and the cost in zCDP exceeds the rho that the guarantee converts to.

    Args:
        epsilon: epsilon*, the guarantee of the whole budget, above 0 and finite.
        delta: delta*, above 0, below 1.
        information: k*, at least 1.
        calls: l*, at least 0. Without calls nothing is lost, and the tight rule gives all of delta to the conversion.

    Raises:
        InputError: a value outside its range, or so many calls that delta_per would be below 1e-27.
    """
    demand(information >= 1, "information", "at least 1", information)
    rho, delta_per, conversion = _split(epsilon, delta, calls, rule)
    summed = floor_bits(Fraction(epsilon) / information)
    return UnitSettings(information, calls, max(epsilon_per_unit(rho, information), summed), delta_per, conversion)


def information_for(epsilon: float, delta: Fraction, epsilon_per: Fraction, calls: int, rule: Rule = "tight") -> int:
    """Return the largest information budget k*, possibly 0, that keeps a guarantee at *epsilon_per*.

    Args:
        epsilon_per: epsilon of each step, above 0.
    """
    demand(epsilon_per > 0, "epsilon_per", "above 0", epsilon_per)
    rho, _, _ = _split(epsilon, delta, calls, rule)
    return max(math.floor(8 * rho / epsilon_per**2), math.floor(Fraction(epsilon) / epsilon_per))


def _split(epsilon: float, delta: Fraction, calls: int, rule: Rule) -> tuple[Fraction, Fraction, Fraction]:
    """Return (rho, delta_per, delta')."""
    demand(0 < delta < 1, "delta", "above 0 and below 1", delta)
    demand(calls >= 0, "calls", "at least 0", calls)
    demand(rule in ("published", "tight"), "rule", '"published" or "tight"', rule)
    conversion = delta if calls == 0 and rule == "tight" else delta / 2
    share = delta / (max(calls, 1) * (6 if rule == "published" else 2))
    delta_per = math.floor(share / DELTA_QUANTUM) * DELTA_QUANTUM if calls else Fraction(0)
    demand(calls == 0 or delta_per > 0, "delta", f"at least {float(delta / share * DELTA_QUANTUM):.2g}", delta)
    largest_rho = rho_simple if rule == "published" else rho_tight
    return floor_bits(Fraction(largest_rho(epsilon, float_below(conversion)))), delta_per, conversion
