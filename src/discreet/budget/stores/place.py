"""Whether a file may hold budgets: on a disk of this machine, opened by this process alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import apsw

from discreet.budget.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterable

SQLITE_LEAST = (3, 51, 3)
"""Earlier releases of SQLite can lose what was committed when a write-ahead log begins anew."""

_NETWORK = (
    "nfs", "cifs", "smb", "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone", "fuse.glusterfs", "ceph",
    "glusterfs", "lustre", "afs", "beegfs", "gpfs", "ncpfs", "davfs", "fuse.davfs",
)  # fmt: skip

_MOUNTS = Path("/proc/self/mounts")  # where it is missing, nothing can be told


def check_library(version: str) -> None:
    """Raise unless SQLite is new enough.

    Raises:
        StoreUnavailable: it is not.
    """
    if tuple(map(int, version.split(".")))[:3] < SQLITE_LEAST:
        raise StoreUnavailable(f"budgets need SQLite {'.'.join(map(str, SQLITE_LEAST))} or newer, not {version}")


def check_disk(path: Path, mounts: Iterable[str] | None = None) -> None:
    """Raise if *path* is on a network file system, whose locks and flushes cannot be relied on.

    Args:
        path: of the database.
        mounts: lines of /proc/self/mounts.

    Raises:
        StoreUnavailable: it is.
    """
    if mounts is None:
        mounts = _MOUNTS.read_text().splitlines() if _MOUNTS.exists() else []
    folder = path.resolve().parent
    kinds = {}
    for line in mounts:
        _, point, kind, *_ = line.split(" ")
        kinds[point.encode().decode("unicode_escape")] = kind
    nearest = max((point for point in kinds if folder.is_relative_to(point)), key=len, default=None)
    if nearest is not None and kinds[nearest].startswith(_NETWORK):
        raise StoreUnavailable("budgets cannot be kept on a network file system; use a disk of this machine")


def lock(path: Path) -> apsw.Connection:
    """Take *path* for this process until the connection that is returned is closed, or the process ends.

    Raises:
        StoreUnavailable: another process has it, or the folder cannot be written.
    """
    try:
        holder = apsw.Connection(str(path) + ".lock")
        holder.execute("PRAGMA journal_mode = MEMORY")  # no second file; it holds nothing
        holder.execute("BEGIN EXCLUSIVE")
    except apsw.BusyError:
        raise StoreUnavailable("another process has this budget store open; one process at a time") from None
    except apsw.Error as error:
        raise StoreUnavailable("the folder of the budget store cannot be written") from error
    return holder
