"""Telling chance from error."""

from __future__ import annotations

import math

FAR = 5  # standard errors


def far_from(frequencies, probabilities, trials):
    """True if some frequency is farther from its probability than chance would have it."""
    keys = frequencies.keys() | probabilities.keys()
    gaps = {key: abs(frequencies.get(key, 0) / trials - probabilities.get(key, 0)) for key in keys}
    return any(gap > FAR * math.sqrt((probabilities.get(key, 0) + 1 / trials) / trials) for key, gap in gaps.items())
