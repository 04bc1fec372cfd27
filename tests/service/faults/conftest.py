"""A house for each test: a copy of one that was founded once."""

from __future__ import annotations

import pytest

from .house import House


@pytest.fixture(scope="session")
def founded(tmp_path_factory):
    """A house that nobody lives in."""
    return House(tmp_path_factory.mktemp("founded") / "house")


@pytest.fixture
def house(founded, tmp_path):
    """A house with ann and bob of sales, with usual settings."""
    return founded.copied(tmp_path / "house")
