"""Queries: the frozen `Query`, the SQL and filter parsers, planning and pricing. Reads no data."""
