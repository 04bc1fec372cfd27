"""A budget that many questions draw from, in memory: reserve the worst case, then pay for what was returned."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from discreet.accounting.calibrate import limit_for
from discreet.accounting.convert import epsilon_tight
from discreet.accounting.guarantee import guarantee_of
from discreet.errors import BudgetExceeded, InputError, InvariantViolated
from discreet.values import Cost, exact, float_above, float_below, number

if TYPE_CHECKING:
    from discreet.accounting.guarantee import Guarantee


@dataclass(frozen=True, eq=False)
class Hold:
    """A reserved cost. It is settled, voided or forfeited, once, by the budget that it was reserved in."""

    cost: Cost


class Budget:
    """(epsilon, delta) that many questions share: pay what you get (Durfee & Rogers 2019, section 5).

    A question's worst case is reserved before its data is read, so that nothing overspends whoever asks at the same
    time; when it is answered it pays for what was returned and the rest is free again. Whatever is asked, and however
    later questions depend on earlier answers, all answers together are (epsilon, delta)-DP (the filter of Whitehouse
    et al. 2023).

    Args:
        epsilon: above 0, finite.
        delta: above 0, below 1. Half of it pays for the conversion, half may be lost by mechanisms.

    Attributes:
        limit: the (rho, delta) that may be spent.

    Raises:
        InputError: a value outside its range.
    """

    def __init__(self, epsilon: float, delta: float | str | Fraction) -> None:
        self.delta = exact(delta, "delta")
        if not 0 < self.delta < 1:
            raise InputError(f"delta must be above 0 and below 1, not {delta}")
        self.limit = limit_for(number(epsilon, "epsilon"), self.delta)
        self._settled = Cost()
        self._held = Cost()
        self._open: set[Hold] = set()
        self._lock = threading.Lock()

    @property
    def spent(self) -> Cost:
        """What was charged so far."""
        return self._settled

    @property
    def held(self) -> Cost:
        """What questions under way have reserved."""
        return self._held

    @property
    def remaining(self) -> Cost:
        """What a new question may still reserve."""
        with self._lock:
            return self.limit - self._settled - self._held

    def guarantee(self) -> Guarantee:
        """What holds for all answers together, now and when all is spent."""
        return guarantee_of(self.limit, self.delta)

    def reserve(self, cost: Cost) -> Hold:
        """Set *cost* aside.

        Raises:
            BudgetExceeded: it does not fit; nothing changed.
        """
        with self._lock:
            if not (self._settled + self._held + cost).within(self.limit):
                raise BudgetExceeded(self._refusal(cost))
            self._held += cost
            hold = Hold(cost)
            self._open.add(hold)
        return hold

    def settle(self, hold: Hold, cost: Cost) -> None:
        """Charge *cost*, at most what was held, and free the rest.

        Raises:
            InvariantViolated: more than was held, or the hold was closed before, or is another budget's.
        """
        if not cost.within(hold.cost):
            raise InvariantViolated("an answer cost more than its worst case")
        with self._lock:
            if hold not in self._open:
                raise InvariantViolated("a hold is closed once, by the budget that it was reserved in")
            self._open.remove(hold)
            self._held -= hold.cost
            self._settled += cost

    def void(self, hold: Hold) -> None:
        """Free all that was held: no data was seen."""
        self.settle(hold, Cost())

    def forfeit(self, hold: Hold) -> None:
        """Charge all that was held: data was seen, and nobody knows what became of it."""
        self.settle(hold, hold.cost)

    def _refusal(self, cost: Cost) -> str:
        left = self.limit - self._settled - self._held
        if cost.delta > left.delta:
            needed = f"the answer could lose delta = {float_above(cost.delta):.3g}"
            fits = _rounded_down(2 * left.delta)
            advice = (
                f"{float_below(left.delta):.3g} is left; ask with delta = {fits} or less, half of which may be lost"
            )
        else:
            needed = f"the answer could cost rho = {float_above(cost.rho):.3g}"
            fits = _rounded_down(Fraction(epsilon_tight(float_below(left.rho), float_below(self.delta / 2))))
            advice = f"{float_below(left.rho):.3g} is left; ask with epsilon = {fits} or less"
        return f"{needed}, but only {advice}" if fits != "0" else f"{needed}, but nothing is left"

    def __repr__(self) -> str:
        share = float(self._settled.rho / self.limit.rho) if self.limit.rho else 1.0
        return f"Budget({self.guarantee()}, {share:.0%} spent)"


def _rounded_down(value: Fraction) -> str:
    """*value* with two significant digits, never more than it is."""
    if value <= 0:
        return "0"
    digits = Fraction(10) ** (1 - math.floor(math.log10(value)))
    return f"{float(math.floor(value * digits) / digits):.2g}"
