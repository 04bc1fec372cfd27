"""Budgets: who may still ask what. An in-memory budget for the library; the service's comes later."""

from discreet.budget.memory import Budget, Hold

__all__ = ["Budget", "Hold"]
