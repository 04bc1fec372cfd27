"""The budget service over HTTP: analysts query, officers set budgets, and no account is overspent."""
