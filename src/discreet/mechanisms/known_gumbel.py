"""KnownGumb: the top k of a known domain, in order (docs/mechanisms/known_gumbel.md)."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import ClassVar, Self

from discreet.accounting.convert import epsilon_per_unit
from discreet.errors import InputError
from discreet.mechanisms.anchored import SharedNoise
from discreet.mechanisms.base import (
    UNNAMED,
    Expectation,
    NoiseName,
    Request,
    count_noise,
    noisy_outcome,
    priced_counts,
    require_k,
    shared_where_smaller,
)
from discreet.noise import Bits, Noise, Race
from discreet.values import Cost, ExactHead, Outcome


@dataclass(frozen=True, slots=True)
class KnownGumbel:
    """The first k items of a Gumbel race over a domain listed in advance; items without users compete too.

    k peels of the exponential mechanism, each epsilon-bounded range: k epsilon^2 / 8, and as much again for the counts
    (LinkedIn 2021, Algorithm 2; Durfee & Rogers 2019, section 4), with `SharedNoise` where that is smaller. The cost
    does not depend on the outcome.

    Args:
        k: number of items, at most the domain's size.
        epsilon: epsilon of a peel and of a count.
        rows_per_group: tau.
        counts: noise of the counts, or None for labels only.
        independent: True for independent noise, as at a price per unit.
    """

    k: int
    domain_size: int
    epsilon: Fraction
    rows_per_group: int = 1
    counts: NoiseName | None = "gaussian"
    independent: bool = field(default=False, metadata=UNNAMED)

    name: ClassVar[str] = "known-gumbel"
    lossless: ClassVar[bool] = True

    @classmethod
    def within_cost(cls, limit: Cost, request: Request) -> Self:
        return cls._make(request, epsilon_per_unit(limit.rho, cls.units(request, Fraction(1))))

    @classmethod
    def at_epsilon(cls, epsilon: Fraction, delta: Fraction, request: Request) -> Self | None:  # noqa: ARG003 - delta is 0
        """Return the pure DP instance, with Laplace counts at half a peel's epsilon; None for Gaussian counts."""
        if request.count_noise == "gaussian":
            return None
        return cls._make(request, epsilon / cls.units(request, Fraction(1, 2)))

    @classmethod
    def by_step(cls, epsilon: Fraction, delta: Fraction, request: Request) -> Self | None:  # noqa: ARG003 - delta is 0
        return cls._make(request, epsilon)

    @classmethod
    def units(cls, request: Request, per_value: Fraction) -> Fraction:
        k = require_k(request, cls.name)
        return Fraction(k) + (k * per_value if request.counts else 0)

    @classmethod
    def _make(cls, request: Request, epsilon: Fraction) -> Self:
        if not request.known_domain:
            raise InputError(f"the {cls.name} mechanism needs the domain; list it, or use an unknown-domain mechanism")
        k = require_k(request, cls.name)
        tau = request.sensitivity.rows_per_group
        return cls(k, request.head_limit, epsilon, tau, request.count_noise, request.independent)

    @property
    def head_limit(self) -> int:
        return self.domain_size

    def worst_cost(self) -> Cost:
        """Return the cost of k peels, and of k counts if they are released."""
        return Cost((self.k if self.counts is None else 2 * self.k) * self.epsilon**2 / 8)

    def direct_epsilon(self) -> Fraction | None:
        if self.counts == "gaussian":
            return None
        return self.epsilon * (self.k if self.counts is None else Fraction(3 * self.k, 2))

    def expectation(self) -> Expectation:
        return priced_counts(self.count_noise())

    def release(self, head: ExactHead, bits: Bits) -> Outcome:
        positions, _ = self.race(head).run(bits, "race", self.k)
        noise = self.count_noise()
        return noisy_outcome(head, positions, noise, bits, len(positions) == self.k, self.worst_cost())

    def count_noise(self) -> Noise | SharedNoise | None:
        """Return the noise of the counts, or None for labels only."""
        if self.counts is None:
            return None
        alone = count_noise(self.counts, self.epsilon, self.rows_per_group)
        return alone if self.independent else shared_where_smaller(alone, self.k, self.k, 0, self.rows_per_group)

    def value_scale(self, moved: int) -> Fraction:
        return 2 * moved / self.epsilon

    def race(self, head: ExactHead) -> Race:
        """Return the race that `release` runs; audits compute its exact distribution."""
        return Race(head.counts, self.epsilon / self.rows_per_group)
