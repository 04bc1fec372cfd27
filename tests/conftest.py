"""Every run of the suite draws the same examples, and keeps its files in memory where there is room."""

from __future__ import annotations

import gc
import os
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from discreet.cli import main

settings.register_profile(
    "fixed", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("fixed")
settings.register_profile(  # an example that fails is enough: see `make mutants`
    "mutants", settings.get_profile("fixed"), phases=[Phase.explicit, Phase.generate]
)

TESTS = Path(__file__).resolve().parent
MEMORY = Path("/dev/shm")  # noqa: S108 - pytest makes folders of its own there
if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 4 * 2**30:
    # Stores wait for the disk at every commit, and no test cuts the power.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Exclude what is imported and collected from garbage collection, which would scan it again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path, config):
    """Leave out the suites that need servers, clients, a browser or an index, unless the command line names them."""
    if collection_path.parent == TESTS and collection_path.name in {"servers", "clients", "page", "install"}:
        named = [Path(argument.partition("::")[0]).resolve() for argument in config.args]
        if not any(path.is_relative_to(collection_path) for path in named):
            return True
    return None


def pytest_sessionfinish():
    """Collect it at exit, which extension modules check."""
    gc.unfreeze()


@dataclass(frozen=True)
class Ran:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str


@pytest.fixture
def run(capsys, monkeypatch):
    """Return a function that runs `discreet` with arguments in this process."""
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # main() replaces it

    def run(*arguments: object) -> Ran:
        with pytest.raises(SystemExit) as caught:
            main([str(argument) for argument in arguments])
        shown = capsys.readouterr()
        return Ran(int(caught.value.code or 0), shown.out, shown.err)

    return run
