"""A budget manager on a store in memory, with a clock that stands still until it is set."""

from __future__ import annotations

import itertools

from discreet.budget.manager import BudgetManager
from discreet.budget.model import AdminAction
from discreet.budget.rules import microseconds
from discreet.budget.stores.sqlite import SQLiteStore
from discreet.catalog.model import Catalog

LAUNCH = AdminAction("officer", "launch")

CATALOG = Catalog.model_validate(
    {
        "datasets": {
            "reads": {
                "source": "reads.parquet",
                "user": "reader",
                "columns": {
                    "article": {"type": "text", "group": True},
                    "country": {"type": "text", "group": True, "filter": True},
                },
            },
            "visits": {
                "source": "visits.parquet",
                "user": "guest",
                "columns": {"place": {"type": "text", "group": True}},
            },
        }
    }
)


def open_manager(clock, **settings) -> BudgetManager:
    """Return a manager of an empty store; its close is the store's."""
    store = SQLiteStore(None, lambda: microseconds(clock()))
    numbers = itertools.count(1)
    manager = BudgetManager(store, lambda: f"reservation-{next(numbers)}", **settings)
    manager.close = store.close
    return manager
