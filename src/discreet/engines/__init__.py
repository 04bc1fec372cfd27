"""Where exact heads come from. An engine counts; it never sees noise, budgets or mechanisms."""
