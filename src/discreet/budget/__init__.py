"""Privacy budgets.

`memory` has the budget of one process. A service keeps accounts in a store: read `manager` first, then `rules`
(pure), `ledger` and `checkpoints`, and `stores.store` for the interface of a store.
"""

from discreet.budget.memory import Budget, Hold

__all__ = ["Budget", "Hold"]
