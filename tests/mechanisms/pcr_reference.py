"""PCR written down naively: one UnkGumb with k = 1 after the other, each with fresh noise, and all their outcomes.

Independent of the library: no race, no filter, no levels; only the rule of Rogers 2024, Algorithm 2, with the numbers
that the mechanism's docstrings fix (2,000 calls, a ladder of 4,096, a confidence of 1.645, sigma to 1/1024).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Pcr:
    """The parameters of a run; *root* is the square root of 8 rho, what the whole budget buys for one peel."""

    root: Fraction
    delta: Fraction
    cutoff: int
    relative_error: Fraction
    tau: int = 1
    counts: bool = True

    @property
    def rho(self) -> Fraction:
        """Return the limit."""
        return self.root**2 / 8

    @property
    def mass(self) -> Fraction:
        """Return the mass that a try may lose."""
        return self.delta / 2000

    def sigma(self, epsilon: Fraction) -> Fraction:
        """Return sigma of the count of an item that was found at *epsilon*."""
        threshold = self.tau * (1 + math.log(self.cutoff / self.mass) / epsilon)
        return Fraction(math.ceil(self.relative_error * threshold / 1.645 * 1024), 1024)

    def count_cost(self, epsilon: Fraction) -> Fraction:
        """Return the cost of that count."""
        return self.tau**2 / (2 * self.sigma(epsilon) ** 2) if self.counts else Fraction(0)


Transcript = tuple[tuple[Fraction, str | None], ...]
"""Every try: its epsilon and what it found (None: the threshold)."""


def transcripts(pcr: Pcr, histogram: dict[str, int], rare: float) -> dict[tuple[Transcript, Fraction], float]:
    """Return the probability of every run, by its tries and its cost.

    A last item that was found but could not be paid a count is not in the outcome, but is paid for. Runs less likely
    than *rare* are not followed; their mass is missing from the result.
    """
    ranked = sorted(((count, label) for label, count in histogram.items() if count > 0), key=lambda x: (-x[0], x[1]))
    below = ranked[pcr.cutoff][0] if len(ranked) > pcr.cutoff else 0
    found: dict[tuple[Transcript, Fraction], float] = {}

    def end(tries: Transcript, spent: Fraction, p: float) -> None:
        found[tries, spent] = found.get((tries, spent), 0) + p

    def go(tries: Transcript, spent: Fraction, epsilon: Fraction, places: int, released: frozenset, p: float) -> None:
        spent_then = spent + epsilon**2 / 8
        if p < rare:
            return
        if spent_then > pcr.rho or len(released) == pcr.cutoff:
            end(tries, spent, p)
            return
        weights = {
            label: math.exp(epsilon * (count - below) / pcr.tau)
            for count, label in ranked[: pcr.cutoff]
            if count > below and label not in released
        }
        weights[None] = math.exp(epsilon) * places / float(pcr.mass)
        total = math.fsum(weights.values())
        for label, weight in weights.items():
            here = p * weight / total
            if label is None:  # the places of the threshold's weight follow what was released at lower levels
                go((*tries, (epsilon, None)), spent_then, 2 * epsilon, pcr.cutoff - len(released), released, here)
            elif spent_then + pcr.count_cost(epsilon) > pcr.rho:
                end(tries, spent_then, here)
            else:
                after = spent_then + pcr.count_cost(epsilon)
                go((*tries, (epsilon, label)), after, epsilon, places, released | {label}, here)

    go((), Fraction(0), pcr.root / 4096, pcr.cutoff, frozenset(), 1.0)
    return found


def found_by(tries: Transcript) -> tuple[str, ...]:
    """Return the labels that a run released, in order."""
    return tuple(label for _, label in tries if label is not None)
