"""Where the key comes from, and where it may go."""

from __future__ import annotations

import ipaddress
import stat
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from discreet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE = "DISCREET_KEY"
"""The environment variable in which a key may be."""

KEY_LONGEST = 16_384
"""Characters of a key; tokens of identity providers are the long ones."""


def find_key(key: str | None, key_file: str | Path | None, environment: Mapping[str, str]) -> str:
    """The key that was given, or the one in a file, or the one in the environment.

    Raises:
        InputError: there is none, or two, or the file cannot be read, or what is there is no key. The message does not
            show it.
    """
    if key is not None and key_file is not None:
        raise InputError("give the key or the file that holds it, not both")
    if key is not None:
        return _checked(key, "the key")
    if key_file is not None:
        return _checked(_read(Path(key_file)), f"what is in {str(key_file)!r}")
    if VARIABLE in environment:
        return _checked(environment[VARIABLE], f"what is in {VARIABLE}")
    raise InputError(f"a service is asked with a key: give one, name a file that holds it, or set {VARIABLE}")


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(KEY_LONGEST + 2)
            readable = stat.S_IMODE(path.stat().st_mode) & (stat.S_IRGRP | stat.S_IROTH)
    except OSError as error:
        reason = (error.strerror or "no access").lower()
        raise InputError(f"the key {str(path)!r} cannot be read: {reason}") from None
    if readable:
        warnings.warn(f"others can read the key; chmod 600 {path}", stacklevel=4)
    return content.decode("latin-1")


def _checked(key: str, what: str) -> str:
    key = key.strip()
    if not 0 < len(key) <= KEY_LONGEST or not key.isascii() or not key.isprintable() or " " in key:
        raise InputError(f"{what} is no key: a key is one word of letters, digits and signs")
    return key


def is_local(host: str) -> bool:
    """True if what is sent to *host* does not leave this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
