"""UnkLap: noisy counts above a noisy threshold, for users who touch few items (docs/mechanisms/unknown_laplace.md)."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Self

import numpy as np

from discreet.accounting.convert import ceil_sqrt
from discreet.errors import InputError
from discreet.mechanisms.base import Expectation, NoiseName, Request, largest, noise_of, selected_half_width
from discreet.noise import Bits
from discreet.values import Cost, ExactHead, Outcome


@dataclass(frozen=True, slots=True)
class UnknownLaplace:
    """Noise on every count of the head and on a threshold; items above the threshold are returned with their values.

    v_bot = h_(dbar+1) + tau + margin + noise, v_i = h_(i) + noise for the stored items i <= dbar; the items with
    v_i > v_bot, sorted by value, the k largest if k is given (LinkedIn 2021, Algorithm 3). The margin is the least
    integer with 2 min(Delta, dbar) Pr[X - Y > margin] <= delta, smaller than the published one; noise of scale s costs
    Delta tau^2 / 2 s^2, where the paper's scale grows with Delta instead of its root.

    Args:
        k: largest number of items to return, or None for all above the threshold.
        head_limit: dbar.
        groups_per_user: Delta; enforced by the engine that reads the head.
        scale: noise scale, in counts.
        delta: probability mass that one release may lose, above 0 and below 1.
        rows_per_group: tau.
        noise: "gaussian" or "laplace".
        counts: False to return labels only.
    """

    k: int | None
    head_limit: int
    groups_per_user: int
    scale: Fraction
    delta: Fraction
    rows_per_group: int = 1
    noise: NoiseName = "gaussian"
    counts: bool = True

    name: ClassVar[str] = "unknown-laplace"
    lossless: ClassVar[bool] = False

    @classmethod
    def within_cost(cls, limit: Cost, request: Request) -> Self:
        moved = _groups(request) * request.sensitivity.rows_per_group**2
        return cls._make(request, ceil_sqrt(moved / (2 * limit.rho)), limit.delta)

    @classmethod
    def at_epsilon(cls, epsilon: Fraction, delta: Fraction, request: Request) -> Self | None:
        """Return the instance with Laplace noise of scale Delta tau / epsilon, which is (epsilon, delta)-DP."""
        if request.noise == "gaussian":
            return None
        return cls._make(request, _groups(request) * request.sensitivity.rows_per_group / epsilon, delta)

    @classmethod
    def by_step(cls, epsilon: Fraction, delta: Fraction, request: Request) -> Self | None:
        """Return the instance that LinkedIn charges one step: noise of scale 2 tau sqrt(Delta) / epsilon."""
        spread = ceil_sqrt(Fraction(_groups(request)))
        return cls._make(request, 2 * request.sensitivity.rows_per_group * spread / epsilon, delta)

    @classmethod
    def units(cls, request: Request, per_value: Fraction) -> Fraction:
        """Return one unit per item that a user may have."""
        return _groups(request) * per_value

    @classmethod
    def _make(cls, request: Request, scale: Fraction, delta: Fraction) -> Self:
        return cls(
            request.k,
            request.head_limit,
            _groups(request),
            scale,
            delta,
            request.sensitivity.rows_per_group,
            request.noise,
            request.counts,
        )

    def worst_cost(self) -> Cost:
        return Cost(self.groups_per_user * noise_of(self.noise, self.scale).rho(self.rows_per_group), self.delta)

    def direct_epsilon(self) -> Fraction | None:
        return None if self.noise == "gaussian" else self.groups_per_user * self.rows_per_group / self.scale

    def margin(self) -> int:
        """Return how far the threshold is above the largest count of an item that only one user has."""
        exposed = 2 * min(self.groups_per_user, self.head_limit)
        return noise_of(self.noise, self.scale).difference_margin(self.delta / exposed)

    def expectation(self) -> Expectation:
        """Return the threshold for an empty tail of the head, and half widths for the most and the fewest items."""
        smallest = self.rows_per_group + self.margin()
        if not self.counts:
            return Expectation(smallest_count=smallest)
        noise = noise_of(self.noise, self.scale)
        most = self.head_limit if self.k is None else min(self.k, self.head_limit)
        widths = [selected_half_width(noise, released, self.head_limit) for released in (most, 1)]
        return Expectation(noise.std, noise.std, smallest, min_half_width=widths[0], max_half_width=widths[1])

    def release(self, head: ExactHead, bits: Bits) -> Outcome:
        noise = noise_of(self.noise, self.scale)
        stored = head.counts[: self.head_limit]
        stored = stored[: np.searchsorted(-stored, 0, side="left")]
        below = head.count_at(self.head_limit + 1)
        bottom = below + self.rows_per_group + self.margin() + int(noise.draw(bits, "threshold", 1)[0])
        values = stored + noise.draw(bits, "counts", len(stored))
        return largest(values, self.k, bottom, self.head_limit, noise, bits, counts=self.counts, cost=self.worst_cost())

    def value_scale(self, moved: int) -> Fraction:
        return self.scale * moved / self.rows_per_group


def _groups(request: Request) -> int:
    groups = request.sensitivity.groups_per_user
    if groups is None:
        raise InputError(
            "the laplace mechanism over an unknown domain needs a bound on the items of one user (groups_per_user)"
        )
    return groups
