"""Where budgets are kept: a file (`sqlite`) or a server (`postgres`), with one text of SQL and one set of rules."""
