"""Stores of budgets: an SQLite file (`sqlite`) or a server (`postgres`), with the same SQL statements and rules."""
