"""Start a server as a separate process, wait until it is ready, and stop it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

_POLL_SECONDS = 0.2
_LOG_TAIL_BYTES = 3000


def free_port() -> int:
    """Return a free TCP port of the loopback address."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def start(
    folder: Path,
    name: str,
    command: Sequence[str | Path],
    ready: Callable[[], bool],
    *,
    env: Mapping[str, str] | None = None,
    seconds: float = 180,
) -> None:
    """Start *command* and wait until *ready* returns True; the process outlives this one.

    Args:
        folder: the working directory, where name.log and name.pid are written.
        name: the name of the process.
        command: the program and its arguments; it must stay in the foreground.
        ready: polled every fifth of a second; an OSError means not yet ready.
        env: variables added to those of this process.
        seconds: the time limit.

    Raises:
        RuntimeError: the process ended or was not ready in time; the message includes the end of its log.
    """
    log = folder / f"{name}.log"
    with log.open("ab") as output:
        started = subprocess.Popen(
            [str(part) for part in command],
            cwd=folder,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C must reach the tests only
        )
    _pid_file(folder, name).write_text(str(started.pid))
    try:
        _await(started, name, ready, seconds, log)
    except BaseException:
        stop(folder, name)
        raise
    finally:
        started.returncode = 0  # prevents a ResourceWarning when this object is deleted


def check(folder: Path) -> None:
    """Check that the processes that were started in *folder*, and not stopped, still run.

    Raises:
        RuntimeError: a process has ended by itself; the message includes the end of its log.
    """
    for file in folder.glob("*.pid"):
        if _ended(int(file.read_text()), 0.1):
            raise RuntimeError(f"{file.stem} has ended by itself:\n{_log_tail(file.with_suffix('.log'))}")


def stop(folder: Path, name: str, *, seconds: float = 30) -> None:
    """Stop a process and its children with SIGTERM, and after *seconds* with SIGKILL. Do nothing if it is gone."""
    file = _pid_file(folder, name)
    if not file.exists():
        return
    group = int(file.read_text())
    for sign, patience in ((signal.SIGTERM, seconds), (signal.SIGKILL, 10)):
        if _signalled(group, sign) and _ended(group, patience):
            break
    file.unlink()


def _pid_file(folder: Path, name: str) -> Path:
    return folder / f"{name}.pid"


def _await(started: subprocess.Popen[bytes], name: str, ready: Callable[[], bool], seconds: float, log: Path) -> None:
    end = time.monotonic() + seconds
    while not _is_ready(ready):
        if started.poll() is not None:
            raise RuntimeError(f"{name} ended before it was ready:\n{_log_tail(log)}")
        if time.monotonic() > end:
            raise RuntimeError(f"{name} was not ready within {seconds:g} seconds:\n{_log_tail(log)}")
        time.sleep(_POLL_SECONDS)


def _is_ready(ready: Callable[[], bool]) -> bool:
    try:
        return ready()
    except OSError:
        return False


def _signalled(group: int, sign: int) -> bool:
    """Return False if the process group no longer exists."""
    try:
        os.killpg(group, sign)
    except ProcessLookupError:
        return False
    return True


def _ended(group: int, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(ChildProcessError):  # not a child of this process
            os.waitpid(group, os.WNOHANG)  # an ended child stays a zombie until it is reaped
        if not _signalled(group, 0):
            return True
        time.sleep(_POLL_SECONDS)
    return False


def _log_tail(log: Path) -> str:
    return log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
