"""The Trino client protocol: an address at which tools that know Trino send their statements."""
