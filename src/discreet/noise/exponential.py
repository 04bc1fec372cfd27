"""Standard exponential variates of which 64 bits are known, and more when a decision needs them.

A variate is E = -ln W with W a uniform real in (0, 1), of which the first bits are drawn at once and the others never,
unless they matter. Every further word of variate i has its own label, so that what one machine's floating point leaves
undecided and another's does not changes no other draw: the decisions, being exact, are the same everywhere.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from discreet.noise.intervals import log_bounds

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.noise.bits import Bits

# numpy promises its logarithms to 4 units in the last place, 2^-50 relative. All bounds here allow twice that and more.
_ULPS = 2.0**-49


class Exponentials:
    """A vector of n independent standard exponential variates.

    Args:
        bits: where the words come from.
        label: their label; further words are labelled "label/index/depth".
        n: how many variates.
        known_bits: how many bits are known at first; fewer than 64 only to force refinements in tests.
    """

    def __init__(self, bits: Bits, label: str, n: int, known_bits: int = 64) -> None:
        self._bits = bits
        self._label = label
        self._known = known_bits
        self._words = bits.uint64(label, n)
        if known_bits < 64:
            self._words = self._words >> np.uint64(64 - known_bits) << np.uint64(64 - known_bits)
        self._step = 2.0 ** (64 - known_bits)
        self._more: dict[int, list[int]] = {}

    def __len__(self) -> int:
        return len(self._words)

    def values(self) -> NDArray[np.float64]:
        """Return approximate values, shape (n,)."""
        # In place, and by way of int64 (numpy converts uint64 ten times slower): being exact must not cost time.
        uniform = (self._words >> np.uint64(1)).view(np.int64).astype(np.float64)
        uniform += max(self._step / 4, 0.5)
        uniform *= 2.0**-63
        np.log(uniform, out=uniform)
        np.negative(uniform, out=uniform)
        return uniform

    def radius(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return absolute error bounds for what `values` returned; infinite where next to nothing is known.

        W lies in [r, r + step] / 2^64; what was taken for it is nearer than step to both ends: off by step / r + 2^-52
        at most, relative to W.
        """
        words = self._words.astype(np.float64)
        with np.errstate(divide="ignore"):
            spread = 2 * self._step / words
        spread[words < 16 * self._step] = np.inf
        return spread + _ULPS * (1 + values)

    def irregular(self, values: NDArray[np.float64]) -> NDArray[np.intp]:
        """Return where `values` may be off by more than 2^-19 of itself (one in a billion)."""
        return np.flatnonzero(
            (values < max(2.0**-30, 2.0 ** (21 - self._known)))
            | (self._words < np.uint64(min(2**30 << (64 - self._known), 2**64 - 1)))
        )

    def gumbel_bounds(self, index: NDArray[np.intp]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Enclose the standard Gumbel variates -ln E of the variates *index*, at full relative precision.

        Large Gumbel variates come from W next to 1, where 1 - W is what is known well.
        """
        words = self._words[index]
        step = np.uint64(1 << (64 - self._known))
        complement = ~words + np.uint64(1)  # 2^64 - r; 0 stands for 2^64, where r is 0
        near_one = words >= np.uint64(2**63)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            most = np.where(
                near_one,
                -np.log1p(-(complement.astype(np.float64) * 2.0**-64)),
                -np.log(words.astype(np.float64) * 2.0**-64),
            )
            least = np.where(
                near_one,
                -np.log1p(-((complement - step).astype(np.float64) * 2.0**-64)),
                -np.log((words.astype(np.float64) + self._step) * 2.0**-64),
            )
            low, high = -np.log(most), -np.log(np.maximum(least, 0.0))
            margin = 4 * _ULPS
            low -= margin * (1 + np.abs(low))
            high += margin * (1 + np.abs(high))
        return low, high

    def bounds(self, i: int, depth: int) -> tuple[Fraction, Fraction | None]:
        """Enclose variate *i* with *depth* further words; the upper end is None while W may be 0."""
        words = self._more.setdefault(i, [])
        while len(words) < depth:
            words.append(int(self._bits.uint64(f"{self._label}/{i}/{len(words) + 1}", 1)[0]))
        known = self._known + 64 * depth
        value = int(self._words[i]) >> (64 - self._known)
        for word in words[:depth]:
            value = value << 64 | word
        digits = known // 3 + 20
        least = -log_bounds(Fraction(value + 1, 1 << known), digits)[1]
        most = -log_bounds(Fraction(value, 1 << known), digits)[0] if value else None
        return max(least, Fraction(0)), most
