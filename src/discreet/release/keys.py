"""Keys: of consistent noise, of stored releases and of fingerprints of the data.

Keyed noise depends on the query, the mechanism with every parameter, and a public version of the data.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from discreet._version import __version__
from discreet.errors import InputError
from discreet.noise import Encodable, KeyedBits
from discreet.noise.bits import SECRET_BYTES_LEAST, encode

if TYPE_CHECKING:
    from discreet.query.planning import Plan


@dataclass(frozen=True, slots=True, repr=False)
class NoiseKey:
    """Consistent noise: the same question about the same version of the data gets the same answer.

    Args:
        secret: at least 32 random bytes. Whoever holds it can remove the noise.
        data_version: a public name of the data and its state that does not depend on its rows, such as the name of a
            table with the number or the time of its ingest. Data that changes must get a new version, and two tables
            two: equal noise on different data shows the difference.
    """

    secret: bytes
    data_version: str

    def __post_init__(self) -> None:
        given: tuple[object, object] = (self.secret, self.data_version)
        if not isinstance(given[0], bytes) or len(given[0]) < SECRET_BYTES_LEAST:
            raise InputError(f"a noise secret has at least {SECRET_BYTES_LEAST} bytes")
        if not isinstance(given[1], str) or not given[1]:
            raise InputError("a noise key needs a data version: text that names the data and its state")

    def bits(self, plan: Plan, table: str) -> KeyedBits:
        """Return the bits for *plan* on the table of that name."""
        return KeyedBits(self.secret, release_context(plan, table, self.data_version))

    def __repr__(self) -> str:
        return f"NoiseKey(..., data_version={self.data_version!r})"


def release_context(plan: Plan, table: str, data_version: str) -> Encodable:
    """Return everything an answer depends on except the data, for `KeyedBits`.

    The version of the software is part of it, because a release of ours may draw its bits in another order.
    """
    query = plan.query
    return (
        "discreet-release-1",
        __version__,
        table,
        data_version,
        query.user,
        query.items,
        query.k,
        encodable(query.where),
        encodable(query.sensitivity),
        query.keep_missing,
        encodable(query.summed),
        None if query.domain is None else encodable(query.domain.to_pylist()),
        plan.mechanism.name,
        encodable(plan.mechanism),
    )


def encodable(value: Any) -> Encodable:  # noqa: ANN401 - any frozen value of ours
    """Return a frozen value as nested tuples with the names of its types and fields; other labels by type and text."""
    match value:
        case None | bool() | int() | str() | bytes() | Fraction():
            return value
        case tuple() | list():
            return tuple(map(encodable, value))
        case dict():
            return tuple((str(key), encodable(part)) for key, part in value.items())
        case _ if dataclasses.is_dataclass(value):
            fields = dataclasses.fields(value)
            return (type(value).__name__, *((field.name, encodable(getattr(value, field.name))) for field in fields))
        case _:
            return (type(value).__name__, str(value))


class DerivedKeys:
    """Keys for separate purposes, derived from one secret of a service so that none reveals another.

    Args:
        secret: at least 32 random bytes. Whoever has it can remove the noise of all answers.
    """

    def __init__(self, secret: bytes) -> None:
        if len(secret) < SECRET_BYTES_LEAST:
            raise InputError(f"the secret of a service has at least {SECRET_BYTES_LEAST} bytes")
        self._names, self._noise, self._fingerprints = (
            _derived(secret, ("discreet-key-1", purpose)) for purpose in ("release key", "noise", "fingerprint")
        )

    def __repr__(self) -> str:
        return "DerivedKeys(...)"

    def release_key(self, plan: Plan, table: str, data_version: str) -> bytes:
        """Return the name of the answer to *plan*: 32 bytes that only equal queries about equal data share.

        Args:
            plan: how it is answered.
            table: a name of the table, see `Warehouse.context`.
            data_version: of its data, likewise.
        """
        return _derived(self._names, ("version", release_context(plan, table, data_version)))

    def release_key_once(self, account: str, key: str, digest: bytes) -> bytes:
        """Return the name of an answer about data without a version, which only the same request gets again.

        Args:
            account: that is charged.
            key: its idempotency key, or random text.
            digest: of the request.
        """
        return _derived(self._names, ("once", account, key, digest))

    def bits(self, plan: Plan, table: str, data_version: str) -> KeyedBits:
        """Return the randomness of the answer to *plan*; arguments as in `release_key`."""
        return NoiseKey(self._noise, data_version).bits(plan, table)

    def fingerprint_key(self, table: str, data_version: str) -> bytes:
        """Return the key of `discreet.release.fingerprint` for one version of a table's data."""
        return _derived(self._fingerprints, (table, data_version))


def _derived(key: bytes, value: Encodable) -> bytes:
    return hmac.digest(key, encode(value), hashlib.sha256)
