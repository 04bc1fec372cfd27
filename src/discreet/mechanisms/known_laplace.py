"""KnownLap: a noisy count for every item of a known domain (docs/mechanisms/known_laplace.md)."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import ClassVar, Self

from discreet.accounting.convert import ceil_sqrt
from discreet.errors import InputError
from discreet.mechanisms.anchored import SharedNoise
from discreet.mechanisms.base import (
    UNNAMED,
    Expectation,
    NoiseName,
    Request,
    largest,
    noise_of,
    selected_half_width,
    shared_where_smaller,
)
from discreet.noise import Bits, Noise
from discreet.values import Cost, ExactHead, Outcome


@dataclass(frozen=True, slots=True)
class KnownLaplace:
    """Noise on every count of a domain listed in advance; returns all of them, or the k largest.

    One user moves at most Delta counts by at most tau, so independent noise of scale s (Laplace b, or Gaussian sigma)
    costs Delta tau^2 / 2 s^2 (LinkedIn 2021, Algorithm 1, whose epsilon is 2 tau / s; the Gaussian has a 29 % smaller
    standard error at the same cost). Where `SharedNoise` is smaller at that cost, which is where Delta is above about a
    quarter of the domain, or with Laplace noise above about half of it, counts have it. Which items are returned costs
    nothing more.

    Args:
        k: number of the largest noisy counts to return, or None for all.
        groups_per_user: Delta, at most domain_size; enforced by the engine that reads the head.
        scale: scale of independent noise, in counts.
        rows_per_group: tau.
        noise: "gaussian" or "laplace".
        counts: False to return labels only.
        independent: True for independent noise, as at a price per unit.
    """

    k: int | None
    domain_size: int
    groups_per_user: int
    scale: Fraction
    rows_per_group: int = 1
    noise: NoiseName = "gaussian"
    counts: bool = True
    independent: bool = field(default=False, metadata=UNNAMED)

    name: ClassVar[str] = "known-laplace"
    lossless: ClassVar[bool] = True

    @classmethod
    def within_cost(cls, limit: Cost, request: Request) -> Self:
        moved = _groups(request) * request.sensitivity.rows_per_group**2
        return cls._make(request, ceil_sqrt(moved / (2 * limit.rho)))

    @classmethod
    def at_epsilon(cls, epsilon: Fraction, delta: Fraction, request: Request) -> Self | None:  # noqa: ARG003 - delta is 0
        """Return the instance with Laplace noise of scale Delta tau / epsilon, or what is shared: epsilon-DP."""
        if request.noise == "gaussian":
            return None
        return cls._make(request, _groups(request) * request.sensitivity.rows_per_group / epsilon)

    @classmethod
    def by_step(cls, epsilon: Fraction, delta: Fraction, request: Request) -> Self | None:  # noqa: ARG003 - delta is 0
        """Return the instance with noise of scale 2 tau / epsilon on Delta counts."""
        return cls._make(request, 2 * request.sensitivity.rows_per_group / epsilon)

    @classmethod
    def units(cls, request: Request, per_value: Fraction) -> Fraction:
        """Return one unit per item that a user may have."""
        return _groups(request) * per_value

    @classmethod
    def _make(cls, request: Request, scale: Fraction) -> Self:
        if not request.known_domain:
            raise InputError(f"the {cls.name} mechanism needs the domain; list it, or use an unknown-domain mechanism")
        return cls(
            request.k,
            request.head_limit,
            _groups(request),
            scale,
            request.sensitivity.rows_per_group,
            request.noise,
            request.counts,
            request.independent,
        )

    @property
    def head_limit(self) -> int:
        return self.domain_size

    def worst_cost(self) -> Cost:
        return Cost(self.groups_per_user * noise_of(self.noise, self.scale).rho(self.rows_per_group))

    def direct_epsilon(self) -> Fraction | None:
        return None if self.noise == "gaussian" else self.groups_per_user * self.rows_per_group / self.scale

    def expectation(self) -> Expectation:
        if not self.counts:
            return Expectation()
        noise = self.count_noise()
        released = self.domain_size if self.k is None else min(self.k, self.domain_size)
        width = selected_half_width(noise, released, self.domain_size)
        return Expectation(noise.std, noise.std, min_half_width=width, max_half_width=width)

    def release(self, head: ExactHead, bits: Bits) -> Outcome:
        noise = self.count_noise()
        values = head.counts + noise.draw(bits, "counts", len(head.counts))
        cost = self.worst_cost()
        return largest(values, self.k, None, self.domain_size, noise, bits, counts=self.counts, cost=cost)

    def count_noise(self) -> Noise | SharedNoise:
        """Return the noise of all counts."""
        alone = noise_of(self.noise, self.scale)
        if self.independent:
            return alone
        return shared_where_smaller(alone, self.domain_size, self.groups_per_user, 0, self.rows_per_group)

    def value_scale(self, moved: int) -> Fraction:
        return self.scale * moved / self.rows_per_group


def _groups(request: Request) -> int:
    """Return Delta: the declared bound, or the size of the domain, which no user can exceed."""
    declared = request.sensitivity.groups_per_user
    return request.head_limit if declared is None else min(declared, request.head_limit)
