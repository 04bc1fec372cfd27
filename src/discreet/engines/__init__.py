"""Engines: they read exact heads and pairs from tables, and know nothing of noise, budgets or mechanisms."""
