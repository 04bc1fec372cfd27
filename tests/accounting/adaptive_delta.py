"""Delta of k adaptive steps on the grid of `adaptive_epsilon`, for tests that know delta in closed form."""

from __future__ import annotations

import math

from discreet.accounting.adaptive import _Grid, _resolution
from discreet.accounting.bounds import nonadaptive_br_delta
from discreet.accounting.convert import delta_tight


def adaptive_delta(k, epsilon, total, resolution=None):
    """Return the smallest delta, rounded up, for which k adaptive epsilon-BR steps are always (*total*, delta)-DP."""
    if total >= k * epsilon * (1 + 1e-15):
        return 0.0
    floor = max(nonadaptive_br_delta(k, epsilon, total) * 1e-6, 1e-280)
    grid = _Grid(epsilon, resolution or _resolution(k, epsilon, floor))
    delta = chord(grid, grid.values(k, floor), total) * (1 + grid.error(k))
    return min(delta_tight(k * epsilon**2 / 8, total), delta)


def chord(grid, values, a):
    """Interpolate *values* at *a* >= 0 by chords; beyond them is the last one."""
    i = min(math.floor(a / grid.h), len(values) - 2)
    share = math.expm1(min(max(a - i * grid.h, 0.0), grid.h)) / grid.growth
    return float(values[i] + share * (values[i + 1] - values[i])) * (1 + 1e-12)
