"""Where budgets are kept: `sqlite` on one machine, or in memory (`SQLiteStore.in_memory`) for tests."""
