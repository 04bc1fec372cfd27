"""Temporary folders for what DuckDB spills, and the removal of those that killed processes left.

A process holds a lock (flock) on each of its folders, which the operating system releases when the process ends,
however that happens. So a folder whose lock is free is stale. The id of a process could not prove that: ids are used
again, and containers that share a folder for temporary files have ids of their own. Folders of other machines, whose
locks may not be seen here, have other names and stay.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import shutil
import sys
import tempfile
import zlib
from pathlib import Path

if sys.platform != "win32":
    import fcntl

_PREFIX = f"discreet-spill-{zlib.crc32(platform.node().encode()):08x}-"


class SpillFolder:
    """A temporary folder that is locked until it is closed."""

    def __init__(self) -> None:
        parent = tempfile.gettempdir()
        _remove_stale(parent)
        while True:
            self.path = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
            self._lock = _locked(self.path, wait=True)
            if Path(self.path).exists():  # another process may have removed it before it was locked
                return
            self._unlock()

    def close(self) -> None:
        """Delete the folder with all files in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
        self._lock = None


@functools.lru_cache(maxsize=16)
def _remove_stale(parent: str) -> None:
    """Remove the folders of this user in *parent* that no process has locked; once in a process."""
    with contextlib.suppress(OSError):
        for path in Path(parent).glob(f"{_PREFIX}*"):
            lock = _locked(str(path), wait=False)
            if lock is not None:
                if os.fstat(lock).st_uid == os.geteuid():
                    shutil.rmtree(path, ignore_errors=True)
                os.close(lock)


def _locked(path: str, *, wait: bool) -> int | None:
    """Return a descriptor that holds the lock on a folder, or None if it cannot be locked.

    Args:
        wait: True to wait until no other process has the lock.
    """
    if sys.platform == "win32":  # which locks no folders
        return None
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
