"""Budgets: who may still ask what.

`memory` is the library's own, for one process and one guarantee. A service keeps accounts in a store: read `manager`
first, then `states`, `rules` and `periods` (pure), `ledger` and `witness`, and `store` for what a store has to do.
"""

from discreet.budget.memory import Budget, Hold

__all__ = ["Budget", "Hold"]
