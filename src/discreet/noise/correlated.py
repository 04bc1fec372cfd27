"""Correlated Gaussian noise for running counts, rounded to integers: exact, by item and day, without state.

A count that changes every day is the sum of its changes so far. That sum is a matrix A of ones on and below its
diagonal, and A = R R with R[t, s] = f(t - s), f(k) = binom(2k, k) / 4^k (Fichtenberger, Henzinger & Upadhyay 2023).
What a change on day k moves of R (changes) has the squares' sum gamma_{T-k+1}. So it is divided by d(k), whose square
is at least that: A = L R D^-1, with L = A D R^-1 (Henzinger, Kalinin & Upadhyay 2025), and no change moves more than
another. The noise of day t is a rounding of sigma (L g)_t, with independent standard Gaussians g: what the square root
adds on day k, d(k) times. Values with it follow from R D^-1 (changes) + sigma g by post-processing
(docs/running-counts.md).

g(s) of an item is a function of a key, the item, s and a digest of what was read on day s. So every day and every
replica computes the same ones, whatever items are drawn together, and no noise is stored; but on other rows, which the
same noise would reveal, day s has noise of its own. Acceptance and rounding are decided as in `discreet.noise.rounded`.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import operator
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from discreet.errors import InputError, InvariantViolated
from discreet.noise.bits import MIN_SECRET_BYTES, Encodable, encode
from discreet.noise.distributions import MAX_SCALE, Exponentials, check_scale
from discreet.noise.rounded import accepted_proposals, rounded_root

Floats = NDArray[np.float64]

_BLOCK = 2**16
"""Items whose noise is drawn at once."""

_SCALE_UNITS = 2**20

_FORMAT = "discreet-running-2"
"""Part of every key. Other noise for the same key, item and day needs another text here."""


def factors(n: int) -> Floats:
    """Return f(0), ..., f(n - 1), each with a relative error below n 2^-51."""
    weights = np.ones(n)
    steps = np.arange(1, n, dtype=np.float64)
    weights[1:] = np.cumprod((2 * steps - 1) / (2 * steps))
    return weights


def squared_sums(n: int) -> Floats:
    """Return upper bounds of gamma_1, ..., gamma_n: gamma_t is the sum of f(k)^2 over k < t; relative error 1e-9."""
    return np.cumsum(factors(n) ** 2) * (1 + 1e-9)


def scales(n: int) -> Floats:
    """Return d(1), ..., d(n), multiples of 2^-20 that never grow: d(k)^2 is at least gamma_{n-k+1}."""
    rounded: Floats = np.ceil(np.sqrt(squared_sums(n)[::-1]) * _SCALE_UNITS) / _SCALE_UNITS
    return rounded


def _drops(n: int, day: int) -> Floats:
    """Return d(k) - d(k + 1) for k < *day*, and d(day), of *n* days: exact, and not negative.

    The noise of the day is the sum of them times (R g)_k.
    """
    until = scales(n)[:day]
    drops: Floats = until - np.append(until[1:], 0.0)
    return drops


def weights(n: int, day: int) -> Floats:
    """Return L[day, 1], ..., L[day, day] of *n* days, each with a relative error below (3 day + 1) 2^-52."""
    backwards: Floats = np.convolve(_drops(n, day)[::-1], factors(day))[:day]
    return backwards[::-1]


def noise_variances(n: int, day: int) -> Floats:
    """Return upper bounds of the variance on *day* of noise that starts on day 1, ..., *day*, in units of sigma^2.

    They have a relative error of 1e-9.
    """
    return np.cumsum(weights(n, day)[::-1] ** 2)[::-1] * (1 + 1e-9)


class CorrelatedGaussians:
    """Noise of running counts: on day t, round(sigma sum of L[t, s] g(s) over s from the item's first day to t).

    g(s) = ±Y with Y an accepted exponential variate. Its words are AES-256 of the item under a key for their use, where
    the item is the first 16 bytes of its HMAC-SHA256: a permutation of distinct items. With n items, two have the same
    noise with probability n^2 / 2^129.

    Args:
        secret: at least 32 random bytes; with it the noise can be removed.
        context: everything that fixes a stream of counts, except the day and the data.
        variance: sigma^2, at most 2^80.
        periods: T, the number of days.
        digests: of what was read on each day, from day 1 on; empty if nothing is ever read again.
        known_bits: the number of bits known at first; fewer than 64 only to force refinements in tests.

    Raises:
        InputError: the secret is short, or the variance is above 2^80.

    Attributes:
        variance: sigma^2.
        periods: T.
    """

    def __init__(
        self,
        secret: bytes,
        context: Encodable,
        variance: Fraction,
        periods: int,
        digests: Sequence[str] = (),
        known_bits: int = 64,
    ) -> None:
        if len(secret) < MIN_SECRET_BYTES:
            raise InputError(f"a noise secret has at least {MIN_SECRET_BYTES} bytes")
        check_scale(variance, MAX_SCALE**2)
        self._key = hmac.digest(secret, encode((_FORMAT, context)), hashlib.sha256)
        self.variance = variance
        self.periods = periods
        self._digests = digests
        self._known = known_bits

    def draw(self, items: Sequence[bytes], day: int, first: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Return the noise of *items* on *day*, shape (n,).

        Args:
            items: injective encodings of their labels.
            day: its number t in the stream, from 1 to T.
            first: the day on which the noise of each item starts; None for day 1.
        """
        firsts = np.ones(len(items), dtype=np.int64) if first is None else first
        if firsts.min(initial=1) < 1 or firsts.max(initial=1) > day or day > self.periods:
            raise InvariantViolated("noise starts on day 1 or later, and before it is drawn, on the last day at most")
        key = hmac.digest(self._key, b"items", hashlib.sha256)
        order = np.argsort(firsts)
        drawn = np.zeros(len(items), dtype=np.int64)
        for start in range(0, len(items), _BLOCK):
            block = order[start : start + _BLOCK]
            names = b"".join(hmac.digest(key, items[i], hashlib.sha256)[:16] for i in block.tolist())
            drawn[block] = self._rounded(_ItemWords(self._key, names), day, firsts[block])
        return drawn

    def _rounded(self, items: _ItemWords, day: int, firsts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return round(sigma sum of L[day, s] g(s)): by floats, and exactly where those cannot decide.

        Args:
            firsts: the day on which the noise of each item starts, in ascending order.
        """
        total = np.zeros(len(items))
        magnitude = np.zeros(len(items))
        error = np.zeros(len(items))
        terms = weights(self.periods, day)
        for s in range(int(firsts.min()), day + 1):
            started = slice(int(np.searchsorted(firsts, s, side="right")))
            those = items.of(started)
            values = np.zeros(len(those))
            radius = np.zeros(len(those))
            for sizes, accepted, which in self._proposals(those, s):
                values[which] = accepted
                radius[which] = sizes.radius(accepted)
            weight = terms[s - 1]
            values *= weight
            total[started] += np.where(those.signs(self._name(s)), values, -values)
            magnitude[started] += values
            error[started] += weight * radius
        sigma = math.sqrt(self.variance)
        error = sigma * (error + magnitude * (2 * day + 8) * 2.0**-51) * (1 + 2.0**-48)  # weights, their sum, and sigma
        least = np.floor(sigma * total + 0.5 - error)
        unsure = np.flatnonzero(~(least == np.floor(sigma * total + 0.5 + error)))
        least[unsure] = 0
        rounded = least.astype(np.int64)
        for i in unsure.tolist():
            rounded[i] = self._exactly_rounded(items.of(np.array([i])), day, int(firsts[i]))
        return rounded

    def _name(self, s: int) -> str:
        """Return what g(s) depends on beside the key and the item."""
        return f"{s} {self._digests[s - 1]}" if self._digests else f"{s}"

    def _proposals(self, items: _ItemWords, s: int) -> Iterator[tuple[Exponentials, Floats, NDArray[np.intp]]]:
        """Yield rounds of proposals for g(s), approximate values of the accepted ones, and for which items they are."""
        name = self._name(s)
        left = np.arange(len(items))
        number = 0
        while len(left):
            sizes, tests = (_ItemExponentials(items, f"{name}/{number}/{use}", self._known) for use in ("size", "test"))
            values, accepted = accepted_proposals(sizes, tests)
            yield sizes, values[accepted], left[accepted]
            left = left[~accepted]
            items = items.of(~accepted)
            number += 1

    def _exactly_rounded(self, item: _ItemWords, day: int, first: int) -> int:
        """Return the noise of one item, from bounds of each term that are narrowed until both ends round alike."""
        terms = []
        factors_ = [math.comb(2 * k, k) * 4 ** (day - k) for k in range(day)]  # f(0), ..., times 4^day
        drops = [round(drop * _SCALE_UNITS) for drop in _drops(self.periods, day).tolist()]
        for s in range(first, day + 1):
            *_, (sizes, _, _) = self._proposals(item, s)
            weight = Fraction(sum(map(operator.mul, drops[s - 1 :], factors_)), _SCALE_UNITS * 4**day)
            terms.append((weight if item.signs(self._name(s))[0] else -weight, sizes))
        depth = 1
        while True:
            low = Fraction(0)
            high: Fraction | None = Fraction(0)
            for weight, sizes in terms:
                least, most = sizes.bounds(0, depth)
                if most is None or high is None:
                    high = None
                    break
                low += weight * (least if weight > 0 else most)
                high += weight * (most if weight > 0 else least)
            if high is not None and (rounded := self._scaled(low)) == self._scaled(high):
                return rounded
            depth += 1

    def _scaled(self, value: Fraction) -> int:
        """Return *value* times sigma, rounded to the nearest whole number."""
        root = rounded_root(value**2 * self.variance)
        return root if value > 0 else -root


class _ItemWords:
    """A 64-bit word of each of several items for every label: a source of `Exponentials` that is drawn by item."""

    def __init__(self, key: bytes, names: bytes) -> None:
        self._key = key
        self._names = names

    def __len__(self) -> int:
        return len(self._names) // 16

    def of(self, which: NDArray[Any] | slice) -> _ItemWords:
        """Return the words of some items."""
        return _ItemWords(self._key, np.frombuffer(self._names, dtype="V16")[which].tobytes())

    def uint64(self, label: str, n: int, start: int = 0) -> NDArray[np.uint64]:
        """Return the word of each item; *n* is their number, and *start* is 0."""
        if n != len(self) or start:
            raise InvariantViolated("each item has one word of a label")
        key = hmac.digest(self._key, encode(("words", label)), hashlib.sha256)
        encrypted = Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(self._names)  # noqa: S305 - one block each
        words: NDArray[np.uint64] = np.frombuffer(encrypted, dtype="<u8")[::2]
        return words

    def signs(self, name: str) -> NDArray[np.bool_]:
        """Return True for each item whose g(s) of this name is positive."""
        positive: NDArray[np.bool_] = self.uint64(f"{name}/sign", len(self)) >= np.uint64(2**63)
        return positive


class _ItemExponentials(Exponentials):
    """A standard exponential variate of each item, whose further words are those of the item as well."""

    def __init__(self, items: _ItemWords, label: str, known_bits: int) -> None:
        super().__init__(items, label, len(items), known_bits)
        self._items = items

    def _further(self, i: int, number: int) -> int:
        return int(self._items.of(np.array([i])).uint64(f"{self._label}/{number}", 1)[0])
