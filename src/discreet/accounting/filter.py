"""The privacy filter: adaptively chosen costs may be added up as long as a limit fixed in advance is never passed.

Whitehouse, Ramdas, Rogers & Wu 2023 (Theorem 1 and its extension to approximate zCDP): each step's cost may depend on
all earlier outputs; refusing the first step that would exceed (rho, delta) keeps the whole sequence delta-approximate
rho-zCDP.
"""

from __future__ import annotations

from discreet.errors import BudgetExceeded
from discreet.values import Cost


class PrivacyFilter:
    """Adds up costs and refuses what would exceed the limit.

    Args:
        limit: fixed in advance.
    """

    def __init__(self, limit: Cost) -> None:
        self.limit = limit
        self.spent = Cost()

    @property
    def remaining(self) -> Cost:
        """The limit less what was spent."""
        return self.limit - self.spent

    def admits(self, cost: Cost) -> bool:
        """Return whether *cost* can still be spent."""
        return (self.spent + cost).within(self.limit)

    def spend(self, cost: Cost) -> None:
        """Spend *cost*, before the step that costs it is run.

        Raises:
            BudgetExceeded: it does not fit; nothing was spent.
        """
        if not self.admits(cost):
            raise BudgetExceeded("the step would cost more than is left")
        self.spent += cost
