"""A disk for SQLite files whose operations fail as a test decides."""

from __future__ import annotations

import functools
import sys

import apsw

NAME = "bad disk"


class BadDisk(apsw.VFS):
    """A disk whose every operation calls *before* with the name of SQLite's method, to raise the error of the disk.

    Attributes:
        before: the function; by default all is well.
    """

    def __init__(self):
        self.before = lambda _: None
        super().__init__(NAME, "")

    def install(self, monkeypatch):
        """Make stores that are opened from now on use this disk."""
        connection = functools.partial(apsw.Connection, vfs=NAME)
        monkeypatch.setattr("discreet.budget.stores.sqlite.apsw.Connection", connection)
        monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # where apsw repeats the error of SQLite

    def xOpen(self, name, flags):  # noqa: N802 - SQLite's name, as are those below
        """Open a file on it."""
        self.before("xOpen")
        return _File(self, name, flags)

    def xDelete(self, name, syncdir):  # noqa: N802
        """Delete a file."""
        self.before("xDelete")
        super().xDelete(name, syncdir)


class _File(apsw.VFSFile):
    def __init__(self, disk, name, flags):
        self._disk = disk
        super().__init__("", name, flags)

    def xRead(self, amount, offset):  # noqa: N802
        self._disk.before("xRead")
        return super().xRead(amount, offset)

    def xWrite(self, data, offset):  # noqa: N802
        self._disk.before("xWrite")
        super().xWrite(data, offset)

    def xSync(self, flags):  # noqa: N802
        self._disk.before("xSync")
        super().xSync(flags)

    def xTruncate(self, size):  # noqa: N802
        self._disk.before("xTruncate")
        super().xTruncate(size)

    def xFileSize(self):  # noqa: N802
        self._disk.before("xFileSize")
        return super().xFileSize()

    def xLock(self, level):  # noqa: N802
        self._disk.before("xLock")
        super().xLock(level)


def failing(error, *operations):
    """Return a function that raises *error* before the operations, or before all of them."""

    def before(operation):
        if not operations or operation in operations:
            raise error

    return before
