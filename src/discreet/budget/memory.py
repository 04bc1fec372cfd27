"""A budget in memory that many queries share: reserve the worst case, then charge the actual cost."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

from discreet.accounting.convert import Guarantee, epsilon_tight, guarantee_of, limit_for
from discreet.errors import BudgetExceeded, InputError, InvariantViolated
from discreet.values import Cost, exact, float_above, float_below, number

Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class Hold:
    """A reserved cost. The budget that reserved it settles, voids or forfeits it once.

    Args:
        id: the id of the reservation in a store; "" in memory.
    """

    cost: Cost
    id: str = ""


class Budget:
    """(epsilon, delta) that many queries share: pay what you get (Durfee & Rogers 2019, section 5).

    The worst case of a query is reserved before data is read, so that concurrent queries cannot overspend; then the
    actual cost is charged and the rest is free again. However later queries depend on earlier releases, all releases
    together are (epsilon, delta)-DP (the filter of Whitehouse et al. 2023).

    Args:
        epsilon: above 0, finite.
        delta: above 0, below 1. Half of it pays for the conversion, half may be lost by mechanisms.

    Attributes:
        limit: the most (rho, delta) that may be spent.

    Raises:
        InputError: a value outside its range.
    """

    def __init__(self, epsilon: float, delta: float | str | Fraction) -> None:
        self.delta = exact(delta, "delta")
        if not 0 < self.delta < 1:
            raise InputError(f"delta must be above 0 and below 1, not {delta}")
        self.limit = limit_for(number(epsilon, "epsilon"), self.delta)
        self._clear()

    @classmethod
    def of_cost(cls, limit: Cost) -> Budget:
        """Return a budget for one query whose worst case is *limit*."""
        budget = cls.__new__(cls)
        budget.delta = limit.delta
        budget.limit = limit
        budget._clear()
        return budget

    def _clear(self) -> None:
        self._settled = Cost()
        self._held = Cost()
        self._open: set[Hold] = set()
        self._lock = threading.Lock()

    @property
    def spent(self) -> Cost:
        """The cost charged so far."""
        return self._settled

    @property
    def held(self) -> Cost:
        """The cost reserved by queries in progress."""
        return self._held

    @property
    def remaining(self) -> Cost:
        """The cost that a new query can reserve."""
        with self._lock:
            return self.limit - self._settled - self._held

    def guarantee(self) -> Guarantee:
        """Return the guarantee of all releases together, which covers the whole limit."""
        return guarantee_of(self.limit, self.delta)

    def reserve(self, cost: Cost) -> Hold:
        """Reserve *cost*.

        Raises:
            BudgetExceeded: *cost* exceeds the remaining budget; nothing changed.
        """
        with self._lock:
            if not (self._settled + self._held + cost).within(self.limit):
                raise BudgetExceeded(self._refusal(cost))
            self._held += cost
            hold = Hold(cost)
            self._open.add(hold)
        return hold

    def start(self, hold: Hold) -> None:
        """Check that *hold* is open; a budget in memory has no record to write before data is read.

        Raises:
            InvariantViolated: the hold was closed before, or belongs to another budget.
        """
        with self._lock:
            self._check_open(hold)

    def settle(self, hold: Hold, cost: Cost, result: Result, fingerprint: object = None) -> Result:  # noqa: ARG002
        """Charge *cost*, at most the held cost, free the rest, and return *result*, which is not stored.

        Raises:
            InvariantViolated: *cost* exceeds the held cost, or the hold was closed before or belongs to another budget.
        """
        if not cost.within(hold.cost):
            raise InvariantViolated("an answer cost more than its worst case")
        with self._lock:
            self._check_open(hold)
            self._open.remove(hold)
            self._held -= hold.cost
            self._settled += cost
        return result

    def void(self, hold: Hold) -> None:
        """Free the held cost: no data was read."""
        self.settle(hold, Cost(), None)

    def forfeit(self, hold: Hold) -> None:
        """Charge the whole held cost: data was read, but nothing was released."""
        self.settle(hold, hold.cost, None)

    def _check_open(self, hold: Hold) -> None:
        if hold not in self._open:
            raise InvariantViolated("a hold is closed once, by the budget that it was reserved in")

    def _refusal(self, cost: Cost) -> str:
        left = self.limit - self._settled - self._held
        if cost.delta > left.delta:
            needed = f"the answer could lose delta = {float_above(cost.delta):.3g}"
            fits = _rounded_down(2 * left.delta)
            advice = f"{float_below(left.delta):.3g} is left; use delta = {fits} or less, half of which may be lost"
        else:
            needed = f"the answer could cost rho = {float_above(cost.rho):.3g}"
            fits = _rounded_down(Fraction(epsilon_tight(float_below(left.rho), float_below(self.delta / 2))))
            advice = f"{float_below(left.rho):.3g} is left; use epsilon = {fits} or less"
        return f"{needed}, but only {advice}" if fits != "0" else f"{needed}, but nothing is left"

    def __repr__(self) -> str:
        share = float(self._settled.rho / self.limit.rho) if self.limit.rho else 1.0
        return f"Budget({self.guarantee()}, {share:.0%} spent)"


def _rounded_down(value: Fraction) -> str:
    """Return *value* rounded down to two significant digits."""
    if value <= 0:
        return "0"
    digits = Fraction(10) ** (1 - math.floor(math.log10(value)))
    return f"{float(math.floor(value * digits) / digits):.2g}"
