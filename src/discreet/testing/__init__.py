"""Suites and audits for third-party mechanisms and engines, and for ours."""
