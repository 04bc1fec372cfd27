"""Install, start, load and stop the real servers that engines are tested on."""

NAMES = ("postgres", "spark", "trino", "pinot", "clickhouse")
