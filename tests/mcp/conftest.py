"""Fixtures: a service for each test."""

from __future__ import annotations

from tests.service.conftest import deployment, service, template

__all__ = ["deployment", "service", "template"]
