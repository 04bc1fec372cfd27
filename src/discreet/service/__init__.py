"""The budget service over HTTP: analysts ask, officers set budgets, nobody overspends."""
