"""Release the largest noisy counts, with intervals corrected for the selection.

Counts that are released because their noisy value is large lean upwards (the winner's curse): plain intervals for the
few largest of many do not cover. With S of m values selected by a threshold or a rank, intervals at level 1 - .05 S/m
cover at least 95 % of the selected on average (Benjamini & Yekutieli 2005, Theorem 1: the noise is independent, and
whether one value is selected does not change how many others are).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from discreet.mechanisms.base import shuffled
from discreet.values import Outcome

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.noise import Bits, Noise
    from discreet.values import Cost


def largest(
    values: NDArray[np.int64],
    k: int | None,
    bottom: int | None,
    considered: int,
    noise: Noise,
    bits: Bits,
    *,
    counts: bool,
    cost: Cost,
) -> Outcome:
    """Return the outcome with the *k* largest noisy *values* (None: all) among those above *bottom* (None: any).

    Args:
        values: noisy counts of the head's first items, shape (m,).
        k: how many at most.
        bottom: the noisy threshold.
        considered: how many values there may be, a public number of at least m.
        bits: for the order among equal values, which must not follow the head's.
        counts: False to return labels only.
    """
    order = shuffled(len(values), bits, "ties")
    order = order[np.argsort(-values[order], kind="stable")]
    if bottom is not None:
        order = order[values[order] > bottom]
    order = order[:k]
    complete = bottom is None if k is None else len(order) == k
    if not counts:
        return Outcome(order, None, None, None, None, ordered=True, complete=complete, cost=cost)
    released = values[order]
    width = noise.half_width(0.05 * max(len(order), 1) / considered)
    errors = np.full(len(order), noise.std)
    low, high = np.maximum(released - width, 0), np.maximum(released + width, 0)
    return Outcome(order, released, errors, low, high, ordered=True, complete=complete, cost=cost)
