"""A privacy filter: a sum of adaptively chosen costs that stays within a limit fixed in advance."""

from __future__ import annotations

from discreet.errors import BudgetExceeded
from discreet.values import Cost


class PrivacyFilter:
    """A sum of adaptively chosen costs that refuses a cost that would exceed a limit fixed in advance.

    Whitehouse, Ramdas, Rogers & Wu 2023 (Theorem 1 and its extension to approximate zCDP): each step's cost may depend
    on all earlier outputs; refusing the first step that would exceed (rho, delta) keeps the whole sequence
    delta-approximate rho-zCDP.
    """

    def __init__(self, limit: Cost) -> None:
        self.limit = limit
        self.spent = Cost()

    @property
    def remaining(self) -> Cost:
        """The limit minus the cost spent."""
        return self.limit - self.spent

    def admits(self, cost: Cost) -> bool:
        """Return whether *cost* can still be spent."""
        return (self.spent + cost).within(self.limit)

    def spend(self, cost: Cost) -> None:
        """Spend *cost*; call it before the step that costs it runs.

        Raises:
            BudgetExceeded: *cost* exceeds the remaining limit; nothing was spent.
        """
        if not self.admits(cost):
            raise BudgetExceeded("the step would cost more than is left")
        self.spent += cost
