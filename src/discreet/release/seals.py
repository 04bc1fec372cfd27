"""Keys for the purposes of a service, derived from the one secret that it is given, so that none tells of another."""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING

from discreet.errors import InputError
from discreet.noise.bits import SECRET_BYTES_LEAST, encode
from discreet.release.key import NoiseKey, release_context

if TYPE_CHECKING:
    from discreet.noise import Encodable, KeyedBits
    from discreet.query.plan import Plan


class Seals:
    """What is named, drawn and recognised with keys of the service's own.

    Args:
        secret: at least 32 random bytes. Whoever holds it can remove the noise of all answers.
    """

    def __init__(self, secret: bytes) -> None:
        if len(secret) < SECRET_BYTES_LEAST:
            raise InputError(f"the secret of a service has at least {SECRET_BYTES_LEAST} bytes")
        self._names, self._noise, self._prints = (
            _sealed(secret, ("discreet-key-1", purpose)) for purpose in ("release key", "noise", "fingerprint")
        )

    def __repr__(self) -> str:
        return "Seals(...)"

    def release_key(self, plan: Plan, table: str, data_version: str) -> bytes:
        """The name of the answer to *plan*: 32 bytes that only equal questions about equal data share.

        Args:
            plan: how it is answered.
            table: a name of the table, see `Warehouse.context`.
            data_version: of its data, likewise.
        """
        return _sealed(self._names, ("version", release_context(plan, table, data_version)))

    def release_key_once(self, account: str, key: str, digest: bytes) -> bytes:
        """The name of an answer about data without a version: nobody gets it twice but by the same request.

        Args:
            account: who asks.
            key: her idempotency key, or text that nobody else has.
            digest: of her request.
        """
        return _sealed(self._names, ("once", account, key, digest))

    def bits(self, plan: Plan, table: str, data_version: str) -> KeyedBits:
        """The randomness of the answer to *plan*; arguments as in `release_key`."""
        return NoiseKey(self._noise, data_version).bits(plan, table)

    def fingerprint_key(self, table: str, data_version: str) -> bytes:
        """The key under which `discreet.release.stored` recognises what an engine returned in a version of the data."""
        return _sealed(self._prints, (table, data_version))


def _sealed(key: bytes, value: Encodable) -> bytes:
    return hmac.digest(key, encode(value), hashlib.sha256)
