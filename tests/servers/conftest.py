"""Fixtures that start a server when a test first needs it, and stop it when the session ends."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.servers import process

# Servers live for minutes and answer small queries: the optimizing compiler takes more CPU time than it saves.
# Servers of benchmarks start without this.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


class ByServer(LoadScopeScheduling):
    """Give tests that start the same servers to one worker: Spark's; PostgreSQL's, file by file; all others."""

    def _split_scope(self, nodeid):
        file = nodeid.partition("::")[0]
        if "test_spark" in file:
            return "spark"
        return file if any(part in file for part in ("budget", "service", "postgres", "data_centres", "nginx")) else ""


def pytest_xdist_make_scheduler(config, log):
    """Schedule by server, whatever the command line says: marks of groups have no effect with pytest 9.2."""
    return ByServer(config, log)


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """Return a function that starts a server by name and returns its URLs; DISCREET_NAME_URL names a running one."""
    urls, folders = {}, []
    with contextlib.ExitStack() as stack:

        def start(name):
            if name not in urls:
                urls[name] = os.environ.get(f"DISCREET_{name.upper()}_URL")
            if urls[name] is None:
                module = importlib.import_module(f"tests.servers.{name}")
                folder = tmp_path_factory.mktemp(name)
                urls[name] = module.start(folder)
                stack.callback(module.stop, folder)
                folders.append(folder)
            return urls[name]

        yield start
        for folder in folders:
            process.check(folder)
