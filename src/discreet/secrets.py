"""Secrets in files and environment variables: one reader, with one rule of permissions, for keys of all kinds.

A file with a secret may be read and written by its owner and its group, and by no one else.
"""

from __future__ import annotations

import ipaddress
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from discreet.errors import InputError, file_error

_MAX_BYTES = 1_000_000


def read_secret(path: Path, what: str) -> bytes:
    """Return the bytes of a file that only its owner and its group may read, up to a million.

    Args:
        what: a noun for the secret, for messages.

    Raises:
        InputError: the file cannot be read, or other users can read or write it.
    """
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            secret = file.read(_MAX_BYTES)
    except OSError as error:
        raise InputError(
            f"the {what} {path.name or str(path)!r} cannot be read: {(error.strerror or 'no access').lower()}"
        ) from None
    if mode & stat.S_IRWXO:
        raise InputError(
            f"others can read or write the {what} {path.name!r}; run chmod 600, and replace it if they could read it"
        )
    return secret


def write_secret(path: Path, secret: bytes) -> None:
    """Create a file that only its owner can read; raise `InputError` if it exists or cannot be written."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise file_error(path, "written", error) from None
    with os.fdopen(file, "wb") as stream:
        stream.write(secret)
        stream.flush()
        os.fsync(stream.fileno())


def read_variable(variable: str | None, environment: Mapping[str, str], what: str = "password") -> str | None:
    """Return the value of an environment variable that holds a secret; None if *variable* is None.

    Raises:
        InputError: the variable is not set, or empty.
    """
    if variable is None:
        return None
    if not environment.get(variable):
        raise InputError(f"the environment variable {variable!r}, which should hold the {what}, is not set")
    return environment[variable]


def is_local(host: str | None) -> bool:
    """Return True if *host* is this machine, localhost or a loopback address: a secret sent there stays on it."""
    name = (host or "").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False
