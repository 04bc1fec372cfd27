"""Write files that are complete or absent, and import libraries that are optional."""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from discreet.errors import InputError, file_error, how_to_install


def require(library: str, purpose: str) -> ModuleType:
    """Import and return an optional *library*.

    Raises:
        InputError: the library is not installed.
    """
    try:
        return importlib.import_module(library)
    except ImportError:
        extra = "plots" if library == "matplotlib" else library
        raise InputError(f"{purpose} needs {library}; {how_to_install(extra)}") from None


def write_atomically(path: str | Path, write: Callable[[Path], object]) -> None:
    """Write a temporary file next to *path*, then move it there, so that an incomplete file is never visible.

    Raises:
        InputError: *path* cannot be written.
    """
    target = Path(path)
    try:
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=".", suffix=target.suffix)
    except OSError as error:
        raise file_error(target, "written", error) from None
    os.close(descriptor)
    try:
        write(Path(name))
        umask = os.umask(0)
        os.umask(umask)
        Path(name).chmod(0o666 & ~umask)
        Path(name).replace(target)
    except OSError as error:
        raise file_error(target, "written", error) from None
    finally:
        Path(name).unlink(missing_ok=True)


def write_durably(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file atomically, and flush it and its folder to disk.

    Raises:
        InputError: *path* cannot be written.
    """

    def flushed(temporary: Path) -> None:
        write(temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())

    write_atomically(path, flushed)
    # The content is on disk; the name is only after this.
    folder = os.open(path.resolve().parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_text(text: str, path: str | Path) -> None:
    """Write *text* as UTF-8, atomically."""

    def write(part: Path) -> None:
        part.write_bytes(text.encode())

    write_atomically(path, write)
