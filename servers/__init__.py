"""Real servers that engines are tested on: how to install, start, fill and stop them."""

NAMES = ("postgres", "spark", "trino", "pinot", "clickhouse")
