"""Sources of randomness: the operating system, or a secret key.

Both sources have one method, `uint64(label, n, start)`. Bits are drawn by label, so that adding or reordering one draw
changes no other draw, and a word drawn twice raises, so that no bit ever protects two things. Long draws are made in
blocks, one after another, so that they need no memory.

`KeyedBits` gives equal bits for equal secret, context and label, on every machine: consistent noise (LinkedIn's
Audience Engagements API, section 8.2). A guarantee that rests on it is computational: it holds against
adversaries that cannot distinguish AES-256 and HMAC-SHA256 from random functions. Its context must contain everything
that the answer depends on except the data: the query, the mechanism with every parameter, and a *public* version of the
data.
Equal bits with two noise scales reveal the counts; equal bits with changed data reveal the change (docs/noise.md).
"""

from __future__ import annotations

import hashlib
import hmac
import os
from fractions import Fraction
from typing import Protocol, TypeAlias

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from discreet.errors import InputError, InvariantViolated

Encodable: TypeAlias = "str | bytes | int | bool | Fraction | tuple[Encodable, ...] | None"

MIN_SECRET_BYTES = 32


class Bits(Protocol):
    """A source of uniform 64-bit words."""

    def uint64(self, label: str, n: int, start: int = 0) -> NDArray[np.uint64]:
        """Draw the words of *label* from number *start* on, *n* of them.

        Raises:
            InvariantViolated: *start* is not the number of words of *label* that were drawn before; or it is 0, and
                *label* was drawn before.
        """
        ...


def encode(value: Encodable) -> bytes:
    """Encode *value* injectively: different values have different encodings.

    One tag byte (n None, b bool, i int, q fraction, s text, y bytes, t tuple), the payload's length as 8 bytes
    big-endian, then the payload: decimal digits for numbers ("numerator/denominator" for fractions), UTF-8 for text,
    the concatenated encodings of the parts for a tuple.

    Raises:
        TypeError: a value of another type; floats are refused because equal numbers may print differently.
    """
    match value:
        case None:
            tag = b"n"
            payload = b""
        case bool():
            tag = b"b"
            payload = b"1" if value else b"0"
        case int():
            tag = b"i"
            payload = str(value).encode()
        case str():
            tag = b"s"
            payload = value.encode(errors="surrogatepass")
        case bytes():
            tag = b"y"
            payload = value
        case tuple():
            tag = b"t"
            payload = b"".join(encode(part) for part in value)
        case Fraction():  # last, because its check is the slowest
            tag = b"q"
            payload = f"{value.numerator}/{value.denominator}".encode()
        case _:
            raise TypeError(f"a context holds text, bytes, whole numbers, fractions, not {type(value).__name__}")
    return tag + len(payload).to_bytes(8, "big") + payload


class _LabelledBits:
    """A base class that refuses to draw a word twice."""

    def __init__(self) -> None:
        self._drawn: dict[str, int] = {}

    def _claim(self, label: str, n: int, start: int) -> None:
        if start != self._drawn.get(label, 0) or (start == 0 and label in self._drawn):
            raise InvariantViolated(f"the bits labelled {label!r} were drawn before, or some before them were not")
        self._drawn[label] = start + n


class PrefixedBits:
    """The bits of one of several draws that use the same labels: its number stands before each label.

    Args:
        bits: the source that all of them share, which refuses a label twice.
        number: a whole number; the digits end at the colon, so no two pairs of a number and a label are alike.
    """

    def __init__(self, bits: Bits, number: int) -> None:
        self._bits = bits
        self._number = number

    def uint64(self, label: str, n: int, start: int = 0) -> NDArray[np.uint64]:
        return self._bits.uint64(f"{self._number}: {label}", n, start)


class SystemBits(_LabelledBits):
    """Bits from the operating system's generator, different at every draw."""

    def uint64(self, label: str, n: int, start: int = 0) -> NDArray[np.uint64]:
        self._claim(label, n, start)
        return np.frombuffer(os.urandom(8 * n), dtype="<u8")

    def __repr__(self) -> str:
        return "SystemBits()"


class KeyedBits(_LabelledBits):
    """Bits derived from a secret and a context.

    The words of a label are the AES-256-CTR key stream (counter from 0) under the key
    HMAC-SHA256(secret, encode(("discreet-bits-1", encode(context), label))), read as little-endian integers.

    Args:
        secret: at least 32 random bytes; with it the noise can be removed.
        context: everything the answer depends on except the data, and a public version of the data.
    """

    def __init__(self, secret: bytes, context: Encodable) -> None:
        super().__init__()
        if len(secret) < MIN_SECRET_BYTES:
            raise InputError(f"a noise secret has at least {MIN_SECRET_BYTES} bytes")
        self._secret = bytes(secret)
        self._context = encode(context)

    def uint64(self, label: str, n: int, start: int = 0) -> NDArray[np.uint64]:
        self._claim(label, n, start)
        key = hmac.digest(self._secret, encode(("discreet-bits-1", self._context, label)), hashlib.sha256)
        block, odd = divmod(start, 2)  # a block of the cipher is two words
        stream = Cipher(algorithms.AES(key), modes.CTR(block.to_bytes(16, "big"))).encryptor()
        return np.frombuffer(stream.update(bytes(8 * (n + odd))), dtype="<u8")[odd:]

    def __repr__(self) -> str:
        return "KeyedBits(...)"
