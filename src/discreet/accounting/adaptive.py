"""The exact optimum for k equal bounded-range steps chosen adaptively: the smallest epsilon that holds for all of them.

THEOREM. Let at most k steps be run one after the other, each, given all earlier answers, epsilon-bounded-range (BR) for
the neighbouring tables at hand; which step comes next may depend on all earlier answers. Together they are
(total, V_k(total))-DP, where

    V_0(a) = max(1 - e^a, 0),
    V_j(a) = sup over 0 <= t <= epsilon of  p_t V_{j-1}(a - t) + (1 - p_t) V_{j-1}(a - t + epsilon),
    p_t = (1 - e^(t - epsilon)) / (1 - e^-epsilon),

and some adaptive sequence attains it (Dong, Durfee & Rogers 2020, section 6, give the recursion).

The proof is in docs/accounting.md ("What other theorems say").

What it covers: exponential mechanisms and their peels (so the Gumbel mechanisms, whose lost mass comes on top of
delta), Laplace noise of scale 2 tau / epsilon per count, any epsilon/2-DP step; *fewer* than k steps and stopping at
any time (t = 0 is the step that does nothing), hence pay-what-you-get; steps of a smaller epsilon.

What it does not cover: Gaussian counts (they are not bounded-range); a budget spent in unequal steps and accounted in
rho (two steps of epsilon/2 cost less rho than one of epsilon, but are two steps here); a k that grows afterwards. Use
zCDP for these (`privacy_filter`, `convert`). There is deliberately no accountant here that convolves privacy loss
distributions of mixed Laplace, Gumbel and Gaussian steps: such a convolution is right for steps fixed in advance, but
no theorem makes it right where an analyst chooses the next kind of step after seeing the last answer.

HOW IT IS ROUNDED. V is kept on the grid a = 0, h, 2h, ... with h = epsilon / resolution, and between grid points by the
chord in x = e^a, which is above V because V is convex in x; below a = 0 by V(a) = 1 - e^a + e^a V(-a), which holds
because the roles of the tables can be swapped. The supremum over *all* t, also off the grid, of this upper function is
then computed in closed form (`_Grid.step`). So every value is an upper bound whatever the resolution; halving h
quarters the distance to the truth, and finer results are never above coarser ones. Values below a floor of 1e-6 of the
answer are raised to it. Rounding errors of k steps, k * resolution * 2^-48 / (1 - e^-epsilon) relative to delta at the
very most, are added at the end.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
from numpy.typing import NDArray

from discreet.accounting.bounds import MAX_EPSILON, MAX_STEPS, demand
from discreet.accounting.convert import epsilon_tight

MAX_SUM = 10_000.0
"""Largest k * epsilon: with larger ones the grid would have too many points."""

_Array = NDArray[np.float64]

_FLOOR = 1e-6
_RISE = 1e-9  # relative, per step: raises the floor by more than the rounding errors of a step
_LEAST_DELTA = 1e-280
_WORK = 6.8e7  # grid points times steps, by default: a few seconds


def adaptive_epsilon(k: int, epsilon: float, delta: float, resolution: int | None = None) -> float:
    """Return the smallest total, rounded up, for which k adaptive epsilon-BR steps are always (total, *delta*)-DP.

    With the default resolution 3,000 steps take a few seconds.

    Args:
        k: the most steps, from 1 to `MAX_STEPS`.
        epsilon: epsilon of each step, above 0, at most `MAX_EPSILON`; k * epsilon at most `MAX_SUM`.
        delta: delta of the composition alone (mass that mechanisms lose comes on top); at least 0, below 1; taken as 0
            if below 1e-280.
        resolution: grid points per epsilon, from 4 to 4096; None for as many as a few seconds allow.

    Raises:
        InputError: a value outside its range.
    """
    demand(0 <= delta < 1, "delta", "at least 0 and below 1", delta)
    demand(1 <= k <= MAX_STEPS, "k", f"from 1 to {MAX_STEPS:,}", k)
    demand(0 < epsilon <= MAX_EPSILON, "epsilon", f"above 0 and at most {MAX_EPSILON:g}", epsilon)
    demand(k * epsilon <= MAX_SUM, "k * epsilon", f"at most {MAX_SUM:,.0f}", k * epsilon)
    demand(resolution is None or 4 <= resolution <= 4096, "resolution", "from 4 to 4,096", resolution)
    most = k * epsilon * (1 + 1e-15)
    if delta < _LEAST_DELTA:
        return most
    most = min(most, epsilon_tight(k * epsilon**2 / 8, delta))
    grid = _Grid(epsilon, resolution or _resolution(k, epsilon, delta * _FLOOR))
    return min(most, grid.crossing(grid.values(k, delta * _FLOOR), delta / (1 + grid.error(k))))


class _Grid:
    """The grid in a, its constants, and one step of the recursion.

    Arrays of values begin at a = -epsilon, have a = 0 at index `resolution`, and end with points at the floor.
    """

    def __init__(self, epsilon: float, resolution: int) -> None:
        self.resolution = resolution
        self.h = epsilon / resolution
        self.growth = math.expm1(self.h)  # (x' - x) / x of neighbouring grid points x = e^a and x'
        self.shrink = math.exp(-epsilon)  # e^(a - epsilon) / e^a
        self.spread = -math.expm1(-epsilon)  # the denominator of p_t
        # V(-a) = 1 - e^-a + e^-a V(a) below a = 0
        mirrored = np.arange(resolution, 0, -1) * self.h
        self.mirror_factor = np.exp(-mirrored)
        self.mirror_offset = -np.expm1(-mirrored)

    def error(self, k: int) -> float:
        """Return the largest relative rounding error of delta after k steps."""
        return k * self.resolution * 2.0**-48 / self.spread

    def values(self, k: int, floor: float) -> _Array:
        """Return V_k, at least *floor* > 0, at a = 0, h, 2h, ...; all further points have the value *floor*."""
        values = np.full(2 * self.resolution + 1, floor)
        front = 0
        for j in range(1, k + 1):
            values, front = self.step(values, front, floor * (1 + j * _RISE))
        return values[self.resolution :]

    def step(self, values: _Array, front: int, floor: float) -> tuple[_Array, int]:
        """Compute V_j from V_{j-1}.

        In x = e^a the supremum over t is the highest, at x, of all chords of W = V_{j-1} from u to u e^epsilon, u any
        point of [x e^-epsilon, x]. W is linear between grid points, so for u in cell i (right of grid point u_i) and x
        at the grid point d places right of u_i, with s^2 = e^(dh), the chord is a - b s^2 - (P v + Q s^2 / v) + P +
        Q s^2 where v = u / u_i: highest at v = s sqrt(Q / P), where it is (s sqrt(Q) - sqrt(P))^2 above its height
        a - b s^2 at v = 1. Outside the cell the formula continues the lines of both ends, which W is above; and u stays
        in [x e^-epsilon, x], as t = (d h + ln r) / 2 with r = P / Q, which convexity keeps in [1, e^epsilon]. So it is
        never above the supremum. That v is inside the cell only for d h in [ln r, ln r + 2h]; where no cell has its
        maximum inside, moving u towards cells that do makes chords higher. So for a band of x it is enough to try the
        values of d that occur in it, and one more on the right.

        Args:
            values: V_{j-1}; shape (front + 2 resolution + 1,) or longer.
            front: the number of points, from a = 0 on, above the floor.
            floor: the least value of V_j; smaller ones are raised to it.

        Returns:
            V_j and its front.
        """
        m = self.resolution
        values[:m] = self.mirror_offset + self.mirror_factor * values[2 * m : m : -1]
        cells = front + m  # further cells are flat
        rises = np.diff(values[: cells + m + 1])
        left = values[:cells]
        gap = values[:cells] - values[m : m + cells]
        bend = rises[m:] - rises[:cells]
        # P >= 0 and Q >= 0 by convexity, up to rounding
        scale = 1 / (self.growth * self.spread)
        p = np.maximum(bend - self.spread * rises[m:], 0.0) * scale
        q = np.maximum(bend + self.growth * gap, 0.0) * (self.shrink * scale)
        b = gap * (self.shrink / self.spread)
        a = left + b
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = p / q  # NaN where all chords of a cell coincide
        root_p = np.sqrt(p)
        root_q = np.sqrt(q)
        end = front + m
        higher = np.full(end + 2 * m + 1, floor)
        np.maximum(values[: end + m], floor, out=higher[: end + m])  # t = 0
        for start, stop in _bands(end, m):
            for d in self._offsets(ratio[start : stop + m]):
                first = start - d + m
                last = min(stop - d + m, cells)
                s = math.exp(d * self.h / 2)
                gain = s * root_q[first:last]
                gain -= root_p[first:last]
                gain *= gain
                gain -= (s * s) * b[first:last]
                gain += a[first:last]
                target = higher[first + d : last + d]
                np.maximum(target, gain, out=target)
        return higher, int(np.count_nonzero(higher[m : m + end] > floor))

    def _offsets(self, ratio: _Array) -> range:
        """Return the values of d that can be optimal for cells with these P / Q."""
        low = float(np.fmin.reduce(ratio))
        high = float(np.fmax.reduce(ratio))
        if math.isnan(low):
            return range(0)
        low, high = (min(max(r, 1.0), 1 / self.shrink) for r in (low, high))
        first = math.ceil(math.log(low) / self.h - 1e-6) - 1
        last = math.floor(math.log(high) / self.h + 2 + 1e-6)
        return range(max(first, 1), min(last, self.resolution) + 1)

    def crossing(self, values: _Array, delta: float) -> float:
        """Return the least a >= 0, rounded up, at which the chords through *values* are at most *delta*."""
        i = int(np.argmax(values <= delta))
        if i == 0:
            return 0.0
        share = float((values[i - 1] - delta) / (values[i - 1] - values[i]))
        # In x = e^a the chord is straight, so x is 1 + share * growth times the left grid point. The factor rounds up.
        return ((i - 1) * self.h + math.log1p(share * self.growth)) * (1 + 1e-12)


def _bands(end: int, resolution: int) -> list[tuple[int, int]]:
    """Split 0..end into bands, narrowest near the end, where the best t changes fastest."""
    cuts = [end]
    distance = 2 * resolution
    while end - distance > resolution:
        cuts.append(end - distance)
        distance *= 3
    cuts = [0, *reversed(cuts)]
    return list(itertools.pairwise(cuts))


def _resolution(k: int, epsilon: float, floor: float) -> int:
    """Return the number of grid points per epsilon that takes a few seconds to compute."""
    reach = min(k * epsilon, epsilon_tight(k * epsilon**2 / 8, floor))
    return max(16, min(256, int(_WORK * epsilon / (k * reach))))
