"""Paired timing: the compared calls alternate, so that noise of the machine affects them alike."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_LAUNCHER = """
import os, sys
child = os.fork()
if not child:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.execvp(sys.argv[1], sys.argv[1:])
_, status, usage = os.wait4(child, 0)
print(usage.ru_maxrss, usage.ru_utime + usage.ru_stime)
sys.exit(os.waitstatus_to_exitcode(status) != 0)
"""
"""Runs a command from a small process: what a child has at most includes what its parent had when it began."""


def in_turns(runs: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """Return the median seconds of each call; they alternate, after one warm-up round."""
    taken: list[list[float]] = [[] for _ in runs]
    for counted in range(rounds + 1):
        for run, times in zip(runs, taken, strict=True):
            start = time.perf_counter()
            run()
            if counted:
                times.append(time.perf_counter() - start)
    return [statistics.median(times) for times in taken]


@dataclass(frozen=True)
class Process:
    """Measurements of a process: wall-clock seconds, peak resident MiB, and CPU seconds of all its threads."""

    seconds: float
    mib: float
    cpu: float


def process_runs(commands: Sequence[list[str]], rounds: int) -> list[list[Process]]:
    """Return the runs of whole processes, by command; they alternate, after one warm-up round."""
    # An installed package has its bytecode; without it, each process would compile our sources.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    taken: list[list[Process]] = [[] for _ in commands]
    for counted in range(rounds + 1):
        for command, runs in zip(commands, taken, strict=True):
            start = time.perf_counter()
            launcher = [sys.executable, "-S", "-c", _LAUNCHER, *command]
            launched = subprocess.run(
                launcher, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False
            )
            if launched.returncode:
                raise RuntimeError(f"{command} failed with {launched.returncode}")
            if counted:
                kib, cpu = map(float, launched.stdout.split())
                runs.append(Process(time.perf_counter() - start, kib / 1024, cpu))
    return taken


def processes_in_turns(commands: Sequence[list[str]], rounds: int) -> list[Process]:
    """Return the medians over whole processes, which alternate, after one warm-up round."""
    return [
        Process(*(statistics.median(getattr(run, name) for run in runs) for name in ("seconds", "mib", "cpu")))
        for runs in process_runs(commands, rounds)
    ]


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return an aligned Markdown table."""
    cells = [list(headings), *map(list, rows)]
    widths = [max(len(row[n]) for row in cells) for n in range(len(headings))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in cells
    ]
    rule = "| " + " | ".join("-" * width for width in widths) + " |"
    return [lines[0], rule, *lines[1:]]
