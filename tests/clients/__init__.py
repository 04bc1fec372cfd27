"""Analysts' tools, each in its own environment, against a service that records their requests."""
