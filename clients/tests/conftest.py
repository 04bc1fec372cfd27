"""One service for each file of tests, so that what a test pays for is not free in another file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """A running service that records what it is sent."""
    from clients.service import running

    with running(tmp_path_factory.mktemp("service")) as recorded:
        yield recorded
