"""The protocol of mechanisms: the paper's four operations (LinkedIn's Audience Engagements API, section 4).

A mechanism is a frozen value of its parameters. It states the head limit it needs and its worst cost; its outcome
states the actual cost. It gets counts and positions, never labels, so nothing can depend on a label. It draws all
randomness from *bits*, so the same head, parameters and bits give the same outcome.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from discreet.errors import InputError, InvariantViolated
from discreet.head_request import SumBounds
from discreet.mechanisms.anchored import SharedLaplace, SharedNoise
from discreet.noise import Bits, DiscreteGaussian, DiscreteLaplace, Noise, Race
from discreet.values import Cost, ExactHead, Outcome, Sensitivity
from discreet.values import NoiseName as NoiseName  # noqa: PLC0414 - mechanisms import it from here

UNNAMED = {"named": False}
"""Metadata of fields that are no part of the names of stored releases, which are older than the field."""

INTERVAL = 1.96
"""Half width of a 95 % interval of Gaussian noise, in standard deviations."""

MAX_BOUND = 2**31
"""The largest bound on a user's contribution to a sum, so that sums of two billion users fit int64."""


def check_bounds(bounds: SumBounds) -> None:
    """Raise `InputError` unless noisy sums with these *bounds* fit an int64."""
    low, high = (bound * 10**bounds.scale for bound in (bounds.low, bounds.high))
    if low != int(low) or high != int(high):
        raise InputError("the bounds of a sum must be whole numbers, in units of the column's last digit")
    if bounds.private and low != 0:
        raise InvariantViolated("a bound is chosen between 0 and the declared upper bound")
    if low > high:
        raise InputError("the lower bound of a sum must not be above its upper bound")
    if low == high == 0:
        raise InputError("the bounds of a sum must not both be 0")
    if max(-low, high) > MAX_BOUND:
        raise InputError(
            "the bounds of a sum must be from -2,147,483,648 to 2,147,483,648 in units of the column's last digit"
        )


@dataclass(frozen=True, slots=True)
class Request:
    """The request for a release, before its privacy parameters are determined. All of it is public.

    Args:
        k: number of items, or None for as many as possible.
        head_limit: dbar, the number of items that the engine returns at most (one more is read for the threshold); the
            size of a known domain.
        sensitivity: the bounds on how far one user moves the counts.
        counts: True for counts, False for labels only.
        noise: noise distribution of the counts.
        known_domain: True if the items were listed in advance.
        relative_error: target relative error of a count, above 0 and below 1.
        optimise_cutoff: True to choose the cut-off privately below the head limit (UnkGumb).
        summed: the bounds of a user's contribution to a requested sum, or None for no sums.
        independent: True for independent noise, as at a price per unit; otherwise values share noise where it is less.
    """

    k: int | None
    head_limit: int
    sensitivity: Sensitivity = Sensitivity()
    counts: bool = True
    noise: NoiseName = "gaussian"
    known_domain: bool = False
    relative_error: Fraction = Fraction(1, 10)
    optimise_cutoff: bool = False
    summed: SumBounds | None = None
    independent: bool = False

    @property
    def average(self) -> bool:
        """True for the sums divided by the numbers of rows."""
        return self.summed is not None and self.summed.rows is not None

    @property
    def count_noise(self) -> NoiseName | None:
        """The noise of released counts, or None for labels only."""
        return self.noise if self.counts else None


@dataclass(frozen=True, slots=True)
class Likely:
    """The range in which errors and the smallest count of a release probably lie, where they depend on the data.

    The ranges were checked on the tables of docs/accuracy.md (tests/mechanisms/test_prices.py).

    Args:
        name: the mechanism, or the branch of one, that the range is for.
        min_std_error: smallest standard error of a count, or None where no counts are released.
        max_std_error: largest standard error; None where no counts are released, or where it grows with the counts.
        max_relative_error: in that case, the largest standard error of a count, relative to the count; beside a largest
            standard error, that of clipping, whose square is added to that of the noise.
        smallest_count: the lower end of the range of the smallest released count.
        max_smallest_count: its upper end; larger counts are likely released, up to k of them. The count below the
            head's cut-off is added to both.
        interval: the standard errors that 95 % intervals take to each side.
    """

    name: str
    min_std_error: float | None
    max_std_error: float | None
    max_relative_error: float | None
    smallest_count: int
    max_smallest_count: int
    interval: float = INTERVAL


@dataclass(frozen=True, slots=True)
class Expectation:
    """The expected error and size of a release, before any data is read.

    Args:
        min_std_error: smallest standard error of a count, or None where no counts are released.
        max_std_error: largest standard error; equal to the smallest where it does not depend on the data; None where
            only the data bound it.
        smallest_count: the count above which an item is more likely returned than not if the tail of the head is empty
            (a tail raises it); None where an item with any count can be returned.
        sum_std_error: standard error of a sum, in units of the column's last digit, or None where no sums are released.
        likely: where the values above are only bounds, the probable ranges of the branches, the likeliest first.
        min_half_width: half width of the 95 % interval of a count if as many as possible are released; None where it
            is 1.96 standard errors. It is larger where noisy counts select the items (`selected_half_width`).
        max_half_width: the same if as few as possible are released.
    """

    min_std_error: float | None = None
    max_std_error: float | None = None
    smallest_count: int | None = None
    sum_std_error: float | None = None
    likely: tuple[Likely, ...] = ()
    min_half_width: int | None = None
    max_half_width: int | None = None


class Mechanism(Protocol):
    """A mechanism with all its parameters."""

    name: ClassVar[str]
    """The mechanism's name in options, records and documentation."""

    lossless: ClassVar[bool]
    """True if no probability mass is lost (Cost.delta is 0)."""

    @classmethod
    def within_cost(cls, limit: Cost, request: Request) -> Self:
        """Return the most accurate instance whose worst cost stays within *limit*.

        Raises:
            InputError: the mechanism does not support the request.
        """
        ...

    @classmethod
    def at_epsilon(cls, epsilon: Fraction, delta: Fraction, request: Request) -> Self | None:
        """Return the most accurate instance that is (epsilon, delta)-DP by the mechanism's own theorem, or None."""
        ...

    @classmethod
    def by_step(cls, epsilon: Fraction, delta: Fraction, request: Request) -> Self | None:
        """Return the instance whose steps cost epsilon^2 / 8 each; None if its steps have other costs.

        A step is a peel, or one of the noisy values that a single user can move.

        Args:
            epsilon: epsilon of a step, above 0.
            delta: largest probability mass that the whole release may lose.

        Raises:
            InputError: the mechanism does not support the request.
        """
        ...

    @property
    def head_limit(self) -> int:
        """The number of items that the mechanism needs from the head, without the one below the cut."""
        ...

    def worst_cost(self) -> Cost:
        """Return the largest cost of a release."""
        ...

    def direct_epsilon(self) -> Fraction | None:
        """Return epsilon of the mechanism's own (epsilon, worst_cost().delta)-DP theorem, or None."""
        ...

    def expectation(self) -> Expectation:
        """Return the expected error and size of a release, before any data is read."""
        ...

    def release(self, source: Any, bits: Bits, /) -> Outcome:  # noqa: ANN401 - each mechanism takes one of two types
        """Release, and return the outcome, which states the cost to charge.

        Args:
            source: an `ExactHead`; `HeadAndPairs` for the mechanisms of `PAIR_MECHANISMS`.
            bits: source of randomness.
        """
        ...


class WithoutSteps:
    """What mechanisms share whose price does not derive from one epsilon for each step."""

    __slots__ = ()

    @classmethod
    def by_step(cls, epsilon: Fraction, delta: Fraction, request: Request) -> Self | None:  # noqa: ARG003 - always None
        """Return None: its steps have costs of their own, or their number does not matter."""
        return None


class ZCDPOnly(WithoutSteps):
    """What mechanisms share whose steps add up only in zCDP."""

    __slots__ = ()

    @classmethod
    def at_epsilon(cls, epsilon: Fraction, delta: Fraction, request: Request) -> Self | None:  # noqa: ARG003 - always None
        """Return None: it has no (epsilon, delta) theorem of its own."""
        return None


class Ranking(Mechanism, Protocol):
    """A mechanism that returns items, each of which can get a noisy sum as well (`discreet.mechanisms.sums`)."""

    @property
    def k(self) -> int | None:
        """The largest number of items, or None for all."""
        ...

    @classmethod
    def units(cls, request: Request, per_value: Fraction) -> Fraction:
        """Return the worst cost in units: a peel costs 1 and a noisy value *per_value* (1 in zCDP, 1/2 in epsilon).

        Raises:
            InputError: the mechanism does not support the request.
        """
        ...

    def value_scale(self, moved: int) -> Fraction:
        """Return the noise scale at which a value that one user moves by *moved* costs as much as a count."""
        ...


def noise_of(name: NoiseName, scale: Fraction) -> Noise:
    """Return noise of *scale*: Laplace's b or Gaussian sigma. On one count both cost tau^2 / 2 scale^2."""
    return DiscreteLaplace(scale) if name == "laplace" else DiscreteGaussian(scale**2)


def count_noise(name: NoiseName, epsilon: Fraction, rows_per_group: int) -> Noise:
    """Return noise that costs as much on a count as one peel, epsilon^2 / 8: scale or sigma = 2 tau / epsilon."""
    return noise_of(name, 2 * rows_per_group / epsilon)


def shared_where_smaller(alone: Noise, n: int, moved: int, low: int, high: int) -> Noise | SharedNoise:
    """Return the independent noise *alone* for *n* values, or shared noise of at most its cost where that is smaller.

    Args:
        moved: the number of values that one user moves, for the price of independent noise.
        low: the least by which one user moves a value, at most 0.
        high: the most, at least 0.
    """
    if low + high == 0:
        return alone
    kind = SharedLaplace if isinstance(alone, DiscreteLaplace) else SharedNoise
    return kind.instead(n, moved, 1 / (2 * alone.rho()), low, high) or alone


def shared_error(noise: Noise | SharedNoise) -> float | None:
    """Return the standard deviation of the part of *noise* that all values share, or None if it is independent."""
    return noise.shared_std if isinstance(noise, SharedNoise) else None


def noisy_outcome(
    head: ExactHead,
    positions: NDArray[np.int64],
    noise: Noise | SharedNoise | None,
    bits: Bits,
    complete: bool,
    cost: Cost,
) -> Outcome:
    """Return the outcome of an ordered selection, with fresh noise on the selected counts if *noise* is not None.

    The noise is independent of the selection, so plain intervals are valid.
    """
    if noise is None:
        return Outcome(positions, ordered=True, complete=complete, cost=cost)
    counts = head.counts[positions] + noise.draw(bits, "counts", len(positions))
    outcome = counted_outcome(positions, counts, noise.std, noise.half_width(), complete=complete, cost=cost)
    return replace(outcome, shared_error=shared_error(noise))


def counted_outcome(
    positions: NDArray[np.int64],
    counts: NDArray[np.int64],
    std_error: float,
    half_width: int,
    *,
    complete: bool,
    cost: Cost,
) -> Outcome:
    """Return the outcome of an ordered selection with noisy *counts*, all of one standard error and interval."""
    return Outcome(
        positions,
        counts,
        std_errors=np.full(len(positions), std_error),
        low=np.maximum(counts - half_width, 0),
        high=np.maximum(counts + half_width, 0),
        ordered=True,
        complete=complete,
        cost=cost,
    )


def priced_counts(noise: Noise | SharedNoise | None, smallest_count: int | None = None) -> Expectation:
    """Return the expected error of counts with *noise*, and their intervals where they are not those of a Gaussian."""
    if noise is None:
        return Expectation(smallest_count=smallest_count)
    width = noise.half_width() if isinstance(noise, DiscreteLaplace | SharedLaplace) else None
    return Expectation(noise.std, noise.std, smallest_count, min_half_width=width, max_half_width=width)


def shuffled(n: int, bits: Bits, label: str) -> NDArray[np.int64]:
    """Return an exactly uniform random permutation of 0..n-1, for ties and sets, which must hide the head's order."""
    return Race(np.zeros(n, dtype=np.int64), Fraction(1)).run(bits, label, n)[0]


def descending(values: NDArray[np.int64] | NDArray[np.float64], bits: Bits) -> NDArray[np.int64]:
    """Return the positions of noisy *values*, the largest first, equal ones in random order."""
    order = shuffled(len(values), bits, "ties")
    return order[np.argsort(-values[order], kind="stable")]


def require_gaussian(request: Request, name: str) -> None:
    """Raise `InputError` unless counts get Gaussian noise, for a relative error above 0 and below 1."""
    if request.counts and request.noise != "gaussian":
        raise InputError(f"{name} adds gaussian noise only")
    if not 0 < request.relative_error < 1:
        raise InputError("the relative error must be above 0 and below 1")


def require_k(request: Request, name: str) -> int:
    """Return the k of a request to a mechanism that needs one."""
    if request.k is None:
        raise InputError(f"the {name} mechanism answers top-k queries only; say how many items (k)")
    return request.k


def selected_half_width(noise: Noise | SharedNoise, released: int, considered: int) -> int:
    """Return the half width of the 95 % intervals of *released* of *considered* values, selected by their noise."""
    return noise.half_width(0.05 * max(released, 1) / considered)


def largest(
    values: NDArray[np.int64],
    k: int | None,
    bottom: int | None,
    considered: int,
    noise: Noise | SharedNoise,
    bits: Bits,
    *,
    counts: bool,
    cost: Cost,
) -> Outcome:
    """Return the outcome with the *k* largest noisy *values* (None: all) among those above *bottom* (None: any).

    Args:
        values: noisy counts of the head's first items, shape (m,).
        k: largest number of items, or None.
        bottom: the noisy threshold.
        considered: public upper bound of m.
        bits: source of the random order of equal values, which must not follow the head's.
        counts: False to return labels only.
    """
    order = descending(values, bits)
    if bottom is not None:
        order = order[values[order] > bottom]
    order = order[:k]
    complete = bottom is None if k is None else len(order) == k
    if not counts:
        return Outcome(order, ordered=True, complete=complete, cost=cost)
    released = values[order]
    width = selected_half_width(noise, len(order), considered)
    errors = np.full(len(order), noise.std)
    low = np.maximum(released - width, 0)
    high = np.maximum(released + width, 0)
    shared = shared_error(noise)
    return Outcome(order, released, errors, low, high, ordered=True, complete=complete, cost=cost, shared_error=shared)
