"""Choose privately what a user's sums are clipped to, from noisy shares of users (docs/mechanisms/sums.md)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from discreet.errors import InvariantViolated
from discreet.mechanisms.base import NoiseName, PrivateMagnitude, noise_of
from discreet.mechanisms.measured import MISS
from discreet.values import LARGEST_COUNT, SHARE_UNIT, Clipping, Cost

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.noise import Bits, Noise
    from discreet.values import ExactHead

CHOICE_PRICE = Fraction(1, 2)
"""The price of a choice, in noisy counts that one user moves by 1."""

_WIDER = 2
"""The noise of the shares and of the size of a sum, in that of a count: each of the two costs a quarter of a count."""

_CERTAIN = 4.5
"""A share this many standard errors above 0 is hardly noise; all above the last such share is taken for 0."""

_BIAS = 2.0
"""How much worse a clipped part of a sum is than noise of that size, which the intervals cover."""

_MIDDLE = 0.72
"""What users add on average between half a bound and the bound, in bounds: between even and falling density."""

_MOST_BELOW = 0.75
"""The size of a sum is measured with a bound that most users are below."""


@dataclass(frozen=True, slots=True)
class BoundChoice:
    """The choice of a bound for sums of released items.

    Args:
        summed: the bounds to choose from.
        moved: how many of the released sums one user moves at most.
        scale: of noise that costs as much as a count does, for a value that one user moves by 1.
    """

    summed: PrivateMagnitude
    moved: int
    scale: Fraction
    noise: NoiseName

    def cost(self) -> Cost:
        """Return the cost of a choice, `CHOICE_PRICE` counts."""
        return Cost(self._noise(SHARE_UNIT).rho(SHARE_UNIT) + self._noise(self.summed.high).rho(self.summed.high))

    def make(self, head: ExactHead, positions: NDArray[np.int64], bits: Bits) -> tuple[NDArray[np.int64], Clipping]:
        """Return the exact sums of released items with the chosen bound, and what it clips.

        Args:
            positions: of the released items in the head; at least one.
        """
        if head.bounded is None or head.shares is None:
            raise InvariantViolated("the engine returned no sums with lower bounds")
        noise = self._noise(SHARE_UNIT)
        noisy = with_noise(head.shares, noise, bits, "shares") / SHARE_UNIT
        shares = _without_noise(noisy, noise.std / SHARE_UNIT)
        bounds = np.array(self.summed.choices, dtype=np.float64)
        added = np.concatenate([bounds[:1], _MIDDLE * bounds[1:], bounds[-1:]])  # by users of each share
        kept = (np.minimum(added, bounds[:, None]) * shares).sum(axis=1)  # with each bound
        first = int(np.searchsorted(np.cumsum(shares), _MOST_BELOW * shares.sum()))
        first = min(first, len(bounds) - 1)
        size = self._size(head.bounded[positions, first], first, bits) * float(kept[-1] / kept[first])
        errors = noise.std / (_WIDER * SHARE_UNIT) * bounds / size
        chosen = int(np.argmin(errors**2 + (_BIAS * (1 - kept / kept[-1])) ** 2))
        return head.bounded[positions, chosen], _clipping(self.summed.choices[chosen], noisy, chosen, noise)

    def _size(self, sums: NDArray[np.int64], first: int, bits: Bits) -> float:
        """Return about how large one of *sums* is, which are clipped to bound number *first*.

        Their sum divided by *moved* moves by the bound at most.
        """
        bound = self.summed.choices[first]
        total = np.array([min(sum(sums.tolist()) // self.moved, LARGEST_COUNT)])
        noisy = int(with_noise(total, self._noise(bound), bits, "size")[0])
        return max(noisy * self.moved / len(sums), float(bound))

    def _noise(self, moved: int) -> Noise:
        return noise_of(self.noise, self.scale * moved * _WIDER)


def with_noise(exact: NDArray[np.int64], noise: Noise, bits: Bits, label: str) -> NDArray[np.int64]:
    """Return noisy values: of the sums and of the choice of their bound, all that is released of the data."""
    return exact + noise.draw(bits, label, len(exact))


def _without_noise(shares: NDArray[np.float64], std: float) -> NDArray[np.float64]:
    """Return noisy shares that are none below 0, up to the last that is not mere noise; the largest if all may be."""
    certain = np.flatnonzero(shares > _CERTAIN * std)
    if not len(certain):
        return np.where(shares == shares.max(), 1.0, 0.0)
    return np.where(np.arange(len(shares)) <= certain[-1], np.maximum(shares, 0), 0)


def _clipping(bound: int, shares: NDArray[np.float64], chosen: int, noise: Noise) -> Clipping:
    """Return an estimate whose interval holds for all bounds at once, since the noise chose one of them."""
    width = noise.half_width(MISS / len(shares)) / SHARE_UNIT
    above, all_ = float(shares[chosen + 1 :].sum()), float(shares.sum())
    above_width, all_width = (width * math.sqrt(n) for n in (len(shares) - chosen - 1, len(shares)))
    most, least = all_ + all_width, all_ - all_width
    low = max(above - above_width, 0) / most if most > 0 else 0.0
    high = (above + above_width) / least if least > 0 else 1.0
    share = above / all_ if all_ > 0 else 0.0
    return Clipping(bound, min(max(share, low), high, 1.0), min(low, 1.0), max(min(high, 1.0), 0.0))
