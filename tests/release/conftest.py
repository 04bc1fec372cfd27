"""Ids of streams that are the same in every run."""

import hashlib
import itertools

import pytest


@pytest.fixture
def fixed_ids(monkeypatch):
    """Give each stream of a test its own id, the same in every run, so that its noise is."""
    numbers = itertools.count()
    monkeypatch.setattr("os.urandom", lambda size: hashlib.shake_256(bytes([next(numbers)])).digest(size))
