"""Environments of the tools, and how a script runs in them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def python_of(name: str) -> Path:
    """Return the interpreter of an environment: "notebook" or "superset"."""
    folder = Path(os.environ.get("DISCREET_CLIENTS", ROOT / ".venv-clients"))
    return folder / name / "bin/python"


def run(name: str, *arguments: str | Path, **variables: str) -> str:
    """Run Python in an environment and return what it printed.

    Raises:
        RuntimeError: it failed; the message holds its output.
    """
    command = [str(part) for part in (python_of(name), *arguments)]
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **variables}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    if ended.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{ended.stdout[-3000:]}\n{ended.stderr[-3000:]}")
    return ended.stdout
