"""Fixtures that start a server when a test first needs it, and stop it when the session ends."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """Return a function that starts a server by name and returns its URLs; DISCREET_NAME_URL names a running one."""
    started = {}

    def start(name):
        if name not in started:
            running = os.environ.get(f"DISCREET_{name.upper()}_URL")
            module = importlib.import_module(f"servers.{name}")
            folder = tmp_path_factory.mktemp(name)
            started[name] = (running or module.start(folder), None if running else (module, folder))
        return started[name][0]

    yield start
    for _, stop in started.values():
        if stop is not None:
            stop[0].stop(stop[1])
