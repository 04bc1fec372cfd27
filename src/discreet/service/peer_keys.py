"""The key that data centres know each other by: a secret of all of them, which opens two routes and nothing else."""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING

from discreet.errors import InputError
from discreet.service.identity import Unauthorized
from discreet.service.secret import read_secret

if TYPE_CHECKING:
    from collections.abc import Mapping

    from discreet.service.settings import DataCentre

KEY_LEAST = 32
"""Characters of a key."""


class PeerKeys:
    """The keys of all data centres: the first is said, all are believed, so that they can be changed one by one.

    Args:
        keys: at least one, of 32 or more printable characters without white space.

    Raises:
        InputError: there is none, or one is too short.
    """

    def __init__(self, keys: list[str]) -> None:
        if not keys or any(len(key) < KEY_LEAST or not key.isascii() or not key.isprintable() for key in keys):
            raise InputError(
                f"the key of the data centres needs {KEY_LEAST} or more printable characters, such as openssl rand "
                "-hex 32 prints; an older key may follow in a second line"
            )
        self._said = keys[0]
        self._digests = [_digest(key) for key in keys]

    def __repr__(self) -> str:
        return "PeerKeys(...)"

    @property
    def header(self) -> str:
        """What is said."""
        return f"Bearer {self._said}"

    def check(self, header: str | None) -> None:
        """Raise unless *header* says one of the keys.

        Raises:
            Unauthorized: it does not.
        """
        kind, _, key = (header or "").partition(" ")
        digest = _digest(key.strip())
        known = [hmac.compare_digest(digest, each) for each in self._digests]
        if kind.lower() != "bearer" or not any(known):
            raise Unauthorized("unknown")


def peer_keys(centre: DataCentre, environment: Mapping[str, str]) -> PeerKeys:
    """The keys that the settings name.

    Raises:
        InputError: they are not there, too short, or others can read the file.
    """
    if centre.key_file is not None:
        text = read_secret(centre.key_file, "key of the data centres").decode("utf-8", "replace")
    else:
        text = environment.get(centre.key_env or "", "")
    return PeerKeys(text.split())


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
