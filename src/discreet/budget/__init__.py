"""Privacy budgets.

`memory` has the budget of one process. A service keeps accounts in a store: read `manager` first, then `rules` and
`periods` (pure), `ledger` and `checkpoints`, and `stores.store` for what a store does.
"""

from discreet.budget.memory import Budget, Hold

__all__ = ["Budget", "Hold"]
