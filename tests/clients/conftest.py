"""One service for each test file, so that a query paid for in one test is not free in another file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """Run a service that records its requests."""
    from tests.clients.service import running

    with running(tmp_path_factory.mktemp("service")) as recorded:
        yield recorded
