"""Sums and averages of a clipped column over items that were found by their counts (docs/mechanisms/sums.md).

Another mechanism finds the items; then the sum of each returned item gets noise that is independent of the selection.
Rogers 2024, section 5, suggests this as the next step: discover items by distinct users, then clip and add up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from discreet.accounting.convert import ceil_sqrt
from discreet.errors import InputError, InvariantViolated
from discreet.head_request import ROW_UNIT, SumBounds
from discreet.mechanisms.anchored import SharedNoise
from discreet.mechanisms.base import (
    UNNAMED,
    Expectation,
    Mechanism,
    NoiseName,
    Ranking,
    Request,
    descending,
    noise_of,
    shared_error,
    shared_where_smaller,
)
from discreet.mechanisms.known_gumbel import KnownGumbel
from discreet.mechanisms.known_laplace import KnownLaplace
from discreet.mechanisms.two_round import believable, continued
from discreet.mechanisms.unknown_gumbel import UnknownGumbel
from discreet.mechanisms.unknown_laplace import UnknownLaplace
from discreet.noise import Bits, Noise
from discreet.noise.distributions import MAX_SCALE
from discreet.values import Clipping, Cost, ExactHead, HeadAndSums, Measured, Outcome

MISS = 0.05
"""The failure probability of a 95 % interval."""

_LEAST_SQUARES = 2 / 3
"""The variance of a sum, and of a number of rows, by least squares with their difference, relative to that without."""

_CORRELATION = 0.5
"""The correlation of the noise of a sum and of its number of rows by these least squares."""

CHOICE_SHARE = Fraction(1, 4)
"""The cost of choosing a bound, relative to the sums; a count that one user moves by 1 at most."""

_CERTAIN = 4.0
"""Standard errors above 0 that a bin of the histogram must be to be used."""

_BIAS = 2.0
"""Weight of the part of the sums that a bound takes away, relative to noise of the same size."""

_UNEVEN = 3.0
"""The part that a bound takes away from a single sum, relative to all of them, that the intervals allow for."""

_HIDDEN = 2.0
"""Standard errors of users beyond the last visible bin that the intervals allow for."""

_MIDDLE = 0.72
"""Assumed mean length of the sums of a user between half a bound and the bound, relative to the bound."""


class _Sums:
    """What sums of ranked items and of a listed domain have in common: their noise, and what it costs."""

    __slots__ = ()

    summed: SumBounds
    moved: int
    noise: NoiseName

    @property
    def unit_scale(self) -> Fraction:
        """The noise scale at which a value that one user moves by 1 costs as much as a sum."""
        raise NotImplementedError

    @property
    def average(self) -> bool:
        """True if the sums are divided by the numbers of their rows."""
        return self.summed.rows is not None

    def value_noise(self, moved: int) -> Noise:
        """Return the noise with which a value that one user moves by *moved* costs as much as a sum."""
        return noise_of(self.noise, self.unit_scale * moved)

    def sum_noise(self) -> Noise:
        """Return the noise of each sum that a user moves by at most the declared bound."""
        return self.value_noise(self.summed.most)

    def row_noise(self) -> Noise:
        """Return the noise of the number of rows of an average, which costs as much as that of the sum."""
        return self.value_noise(self.summed.most_rows)

    def _price(self, released: int) -> Cost:
        """Return the cost of the sums of *released* items, of their numbers of rows, and of the choices of bounds."""
        rho = self.sum_noise().rho(self.summed.most)
        rho += self.row_noise().rho(self.summed.most_rows) if self.average else 0
        price = Cost(min(released, self.moved) * rho)
        for scaled in self._scaled():
            price += scaled.cost()
        return price

    def _epsilon(self) -> Fraction | None:
        """Return epsilon of the sums and numbers of rows with Laplace noise; None for Gaussian and private bounds."""
        if self.noise == "gaussian" or self.summed.private:
            return None
        return (2 if self.average else 1) * self.moved / self.unit_scale

    def _scaled(self) -> tuple[ScaledSums, ...]:
        """Return the privately bounded sums, and numbers of rows of averages; nothing if no bound is private."""
        if not self.summed.private:
            return ()
        sums = ScaledSums(self.summed, self.moved, self.unit_scale, self.noise)
        if not self.average:
            return (sums,)
        return sums, ScaledSums(self.summed.of_rows, self.moved, self.unit_scale, self.noise, of_rows=True)

    def _release_bounded(self, head: ExactHead, moved: int, bits: Bits) -> tuple[ReleasedScaledSums, ...]:
        """Return privately bounded sums of *head*, and numbers of rows of averages; a user moves *moved* of each."""
        sources = ((head.scaled, head.users), (head.scaled_rows, head.row_users))
        return tuple(sums.release(*source, moved, bits) for sums, source in zip(self._scaled(), sources, strict=False))


@dataclass(frozen=True, slots=True)
class RankedSums(_Sums):
    """The items that *ranking* returns, each with the noisy sum of a column; a sum costs as much as a noisy count.

    Noise of scale s on a sum that one user moves by C at most costs C^2 / 2 s^2; no user moves more than *moved* of the
    returned sums. s is chosen so that one sum costs as much as one count of *ranking*.

    PAY WHAT YOU GET: the cost of the ranking's outcome, and of a sum for each item returned, of *moved* sums at most.

    An average is the noisy sum divided by the noisy number of the same rows. Each of the two costs as much as a count.

    Args:
        ranking: the mechanism that finds the items.
        summed: the bounds of a user's contribution to a sum.
        moved: largest number of returned sums that one user moves: that of returned items, or Delta if less.
    """

    ranking: Ranking
    summed: SumBounds
    moved: int
    noise: NoiseName = "gaussian"

    kind: ClassVar[type[Ranking]]
    name: ClassVar[str]
    lossless: ClassVar[bool]

    @classmethod
    def within_cost(cls, limit: Cost, request: Request) -> Self:
        share = cls._share(request, Fraction(1))
        return cls._make(cls.kind.within_cost(Cost.at_most(limit.rho * share, limit.delta), request), request)

    @classmethod
    def at_epsilon(cls, epsilon: Fraction, delta: Fraction, request: Request) -> Self | None:
        """Return the instance of the ranking's theorem plus C/s for each Laplace sum.

        None for Gaussian sums and private bounds, which have no such theorem.
        """
        if request.noise == "gaussian" or _bounds(request).private:
            return None
        ranking = cls.kind.at_epsilon(epsilon * cls._share(request, Fraction(1, 2)), delta, request)
        return None if ranking is None else cls._make(ranking, request)

    @classmethod
    def by_step(cls, epsilon: Fraction, delta: Fraction, request: Request) -> Self | None:
        """Return the instance whose sums cost as much as the counts of the ranking."""
        ranking = cls.kind.by_step(epsilon, delta, request)
        return None if ranking is None else cls._make(ranking, request)

    @classmethod
    def _share(cls, request: Request, per_value: Fraction) -> Fraction:
        """Return the ranking's share of the cost."""
        ranking = cls.kind.units(request, per_value)
        return ranking / (ranking + _moved_values(request) * per_value)

    @classmethod
    def _make(cls, ranking: Ranking, request: Request) -> Self:
        return cls(ranking, _bounds(request), _moved_sums(request), request.noise)

    @property
    def head_limit(self) -> int:
        return self.ranking.head_limit

    def worst_cost(self) -> Cost:
        """Return the cost of the ranking, of all the sums that one user can move, and of the choice of a bound."""
        return self.ranking.worst_cost() + self._price(self.moved)

    def direct_epsilon(self) -> Fraction | None:
        ranking = self.ranking.direct_epsilon()
        sums = self._epsilon()
        return None if ranking is None or sums is None else ranking + sums

    def expectation(self) -> Expectation:
        """Return the expectation of the ranking, with the standard error of a sum."""
        return replace(self.ranking.expectation(), sum_std_error=_sum_std(self))

    @property
    def unit_scale(self) -> Fraction:
        return self.ranking.value_scale(1)

    def release(self, source: ExactHead | HeadAndSums, bits: Bits) -> Outcome:
        """Release; *source* is a `HeadAndSums` if a bound is chosen privately, and an `ExactHead` otherwise."""
        if not isinstance(source, ExactHead):
            return self._release_scaled(source, bits)
        exact = _sums_of(source)  # fails before any noise is drawn
        exact_rows = _rows_of(source) if self.average else None
        ranked = self.ranking.release(source, bits)
        cost = ranked.cost + self._price(len(ranked.positions))
        if exact_rows is not None:
            sums = exact[ranked.positions]
            rows = exact_rows[ranked.positions]
            averaged = noisy_sums_and_rows(self, sums, rows, bits)
            return replace(averages(averaged, ranked, self.summed), cost=cost)
        noise = self.released_noise()
        noisy = with_noise(exact[ranked.positions], noise, bits, "sums")
        measured = measured_sums(noisy, noise, self.summed)
        return replace(ranked, cost=cost, measured=measured, shared_error=shared_error(noise))

    def _release_scaled(self, source: HeadAndSums, bits: Bits) -> Outcome:
        ranked = self.ranking.release(source.head(self.head_limit), bits)
        n = len(ranked.positions)
        if not n:
            nothing = np.zeros(0, dtype=np.int64)
            if self.average:
                averaged = SumsAndRows.independent(nothing, self.sum_noise(), nothing, self.row_noise())
                return averages(averaged, ranked, self.summed)
            return replace(ranked, measured=measured_sums(nothing, self.sum_noise(), self.summed))
        released = self._release_bounded(source.sums_of(ranked.positions), min(n, self.moved), bits)
        return _measured_by_bound(released, replace(ranked, cost=ranked.cost + self._price(n)), self.summed)

    def released_noise(self) -> Noise | SharedNoise:
        """Return the noise of the sums: `sum_noise`, or noise that they share where it is smaller at the same cost.

        It is shared where the number of returned items, and so the cost, does not depend on the data.
        """
        if not isinstance(self.ranking, KnownLaplace | KnownGumbel) or self.ranking.independent:
            return self.sum_noise()
        limit = self.ranking.head_limit
        returned = limit if self.ranking.k is None else min(self.ranking.k, limit)
        return _shared(self, returned)


class KnownLaplaceSums(RankedSums):
    """KnownLap, then sums: the items of a listed domain with counts, or its k largest."""

    __slots__ = ()
    kind = KnownLaplace
    name = "known-laplace+sum"
    lossless = True


class KnownGumbelSums(RankedSums):
    """KnownGumb, then sums: the top k of a listed domain."""

    __slots__ = ()
    kind = KnownGumbel
    name = "known-gumbel+sum"
    lossless = True


class UnknownLaplaceSums(RankedSums):
    """UnkLap, then sums: the items above the threshold, where a user's items are bounded."""

    __slots__ = ()
    kind = UnknownLaplace
    name = "unknown-laplace+sum"
    lossless = False


class UnknownGumbelSums(RankedSums):
    """UnkGumb, then sums: the top k of an unknown domain."""

    __slots__ = ()
    kind = UnknownGumbel
    name = "unknown-gumbel+sum"
    lossless = False


@dataclass(frozen=True, slots=True)
class ListedSums(_Sums):
    """The noisy sums, or averages, of all items of a listed domain; a total is a domain of one item.

    The items are known and all are returned, so none have to be found and the whole budget is spent on sums, and on the
    numbers of rows of averages. The largest sums come first; of averages, those of the most rows.

    Args:
        summed: the bounds of a user's contribution to a sum.
        moved: Delta, or *domain_size* if that is less.
        scale: noise scale in units of the column's last digit.
        noise: "gaussian" or "laplace".
        independent: True for independent noise, as at a price per unit.
    """

    domain_size: int
    summed: SumBounds
    moved: int
    scale: Fraction
    noise: NoiseName = "gaussian"
    independent: bool = field(default=False, metadata=UNNAMED)

    name: ClassVar[str] = "listed+sum"
    lossless: ClassVar[bool] = True

    @classmethod
    def within_cost(cls, limit: Cost, request: Request) -> Self:
        return cls._make(ceil_sqrt(_moved_values(request) * _bounds(request).most ** 2 / (2 * limit.rho)), request)

    @classmethod
    def at_epsilon(cls, epsilon: Fraction, delta: Fraction, request: Request) -> Self | None:  # noqa: ARG003 - delta is 0
        """Return the instance with Laplace noise of scale Delta C / epsilon: epsilon-DP (Dwork et al. 2006)."""
        if request.noise == "gaussian" or _bounds(request).private:
            return None
        return cls._make(_moved_values(request) * _bounds(request).most / epsilon, request)

    @classmethod
    def by_step(cls, epsilon: Fraction, delta: Fraction, request: Request) -> Self | None:  # noqa: ARG003 - delta is 0
        """Return the instance that costs one step for each sum that one user can move."""
        return cls._make(2 * _bounds(request).most / epsilon, request)

    @classmethod
    def _make(cls, scale: Fraction, request: Request) -> Self:
        if not request.known_domain or request.k is not None or request.counts:
            raise InputError(f"the {cls.name} mechanism releases the sums of a whole listed domain, without counts")
        moved = _moved_sums(request)
        return cls(request.head_limit, _bounds(request), moved, scale, request.noise, request.independent)

    @property
    def head_limit(self) -> int:
        return self.domain_size

    def worst_cost(self) -> Cost:
        return self._price(self.moved)

    def direct_epsilon(self) -> Fraction | None:
        return self._epsilon()

    def expectation(self) -> Expectation:
        return Expectation(sum_std_error=_sum_std(self))

    @property
    def unit_scale(self) -> Fraction:
        return self.scale / self.summed.most

    def release(self, head: ExactHead, bits: Bits) -> Outcome:
        if self.summed.private:
            return self._release_scaled(head, bits)
        exact = _sums_of(head)
        exact_rows = _rows_of(head) if self.average else None
        if exact_rows is not None:
            averaged = noisy_sums_and_rows(self, exact, exact_rows, bits)
            order = descending(averaged.rows, bits)
            outcome = Outcome(order, ordered=True, complete=True, cost=self.worst_cost())
            return averages(averaged.at(order), outcome, self.summed)
        noise = self.released_noise()
        noisy = with_noise(exact, noise, bits, "sums")
        order = descending(noisy, bits)
        measured = measured_sums(noisy[order], noise, self.summed)
        shared = shared_error(noise)
        return Outcome(
            order, ordered=True, complete=True, cost=self.worst_cost(), measured=measured, shared_error=shared
        )

    def _release_scaled(self, head: ExactHead, bits: Bits) -> Outcome:
        released = self._release_bounded(head, self.moved, bits)
        order = descending(released[-1].measured().values, bits)
        released = tuple(replace(scaled, parts=scaled.parts[order]) for scaled in released)
        outcome = Outcome(order, ordered=True, complete=True, cost=self.worst_cost())
        return _measured_by_bound(released, outcome, self.summed)

    def released_noise(self) -> Noise | SharedNoise:
        """Return the noise of the sums: `sum_noise`, or noise that they share where it is smaller at the same cost."""
        if self.independent:
            return self.sum_noise()
        return _shared(self, self.domain_size)


def summing(kind: type[Mechanism], request: Request) -> type[Mechanism]:
    """Return the mechanism that also releases sums of the items *kind* finds; *kind* itself if *request* wants no sums.

    Raises:
        InputError: *kind* does not support sums.
    """
    if request.summed is None:
        return kind
    if kind is KnownLaplace and request.k is None and not request.counts:
        return ListedSums
    for sums in (KnownLaplaceSums, KnownGumbelSums, UnknownLaplaceSums, UnknownGumbelSums):
        if sums.kind is kind:
            return sums
    raise InputError(
        "sums need the k items with the most users (in SQL, ORDER BY COUNT(DISTINCT ...) DESC LIMIT k), listed items, "
        f"or a bound on the items of one user (groups_per_user); {kind.name} releases none over all items"
    )


def _shared(mechanism: _Sums, n: int) -> Noise | SharedNoise:
    """Return the noise of *n* sums at the price of independent noise; they share a part where that is smaller."""
    summed = mechanism.summed
    alone = mechanism.sum_noise()
    if summed.private or mechanism.average:
        return alone
    low, high = summed.units
    return shared_where_smaller(alone, n, mechanism.moved, min(low, 0), max(high, 0))


def _sums_of(head: ExactHead) -> NDArray[np.int64]:
    if head.sums is None:
        raise InvariantViolated("the engine returned no sums")
    return head.sums


def _rows_of(head: ExactHead) -> NDArray[np.int64]:
    if head.rows is None:
        raise InvariantViolated("the engine returned no numbers of rows")
    return head.rows


def _moved_values(request: Request) -> Fraction:
    """Return the largest number of noisy values that one user moves: sums, their rows, the choice of their bound."""
    moved = _moved_sums(request)
    values = Fraction(moved * (2 if request.average else 1))
    choices = (2 if request.average else 1) * _choice_price(moved)
    return values + choices if _bounds(request).private else values


def _choice_price(moved: int) -> Fraction:
    """Return the cost of choosing a bound for *moved* sums, in counts that one user moves by 1."""
    return min(CHOICE_SHARE * moved, Fraction(1))


def _bounds(request: Request) -> SumBounds:
    summed = request.summed
    if summed is None:
        raise InputError("a sum needs a column with bounds for what one user adds")
    return summed


def _moved_sums(request: Request) -> int:
    """Return the largest number of returned sums that one user can move."""
    returned = request.head_limit if request.k is None else min(request.k, request.head_limit)
    declared = request.sensitivity.groups_per_user
    return returned if declared is None else min(declared, returned)


def measured_sums(noisy: NDArray[np.int64], noise: Noise | SharedNoise, summed: SumBounds) -> Measured:
    """Return the sums with plain intervals, which are valid because no item was selected by this noise.

    Intervals end at 0 if all contributions of users have the same sign; the sums themselves stay unbiased.

    Args:
        noisy: the sums with their noise, shape (m,).
        summed: the bounds of each user's sum.
    """
    width = noise.half_width(MISS)
    low = noisy - width
    high = noisy + width
    if summed.low >= 0:
        low = np.maximum(low, 0)
        high = np.maximum(high, 0)
    elif summed.high <= 0:
        low = np.minimum(low, 0)
        high = np.minimum(high, 0)
    return Measured("sum", noisy, np.full(len(noisy), noise.std), low, high)


@dataclass(frozen=True, slots=True)
class SumsAndRows:
    """Noisy sums, and noisy numbers of the same rows, in parts of the last digit and of a row.

    Args:
        sums: shape (m,).
        rows: shape (m,).
        sum_std: standard error of a sum.
        row_std: standard error of a number of rows.
        sum_width: half width of the 95 % interval of a sum.
        row_width: half width of the 95 % interval of a number of rows.
        correlation: that of the noise of a sum and the noise of its number of rows.
        share: what a private bound leaves of the sums.
        row_share: what one leaves of the rows.
        least: the least that it leaves of a single sum.
        least_rows: the least that it leaves of the rows of an item.
    """

    sums: NDArray[np.float64]
    rows: NDArray[np.float64]
    sum_std: float
    row_std: float
    sum_width: float
    row_width: float
    correlation: float = 0.0
    share: float = 1.0
    row_share: float = 1.0
    least: float = 1.0
    least_rows: float = 1.0

    @classmethod
    def independent(
        cls, sums: NDArray[np.int64], sum_noise: Noise, rows: NDArray[np.int64], row_noise: Noise
    ) -> SumsAndRows:
        """Return noisy values whose noise is independent."""
        return cls(
            sums.astype(np.float64),
            rows.astype(np.float64),
            sum_noise.std,
            row_noise.std,
            sum_noise.half_width(MISS),
            row_noise.half_width(MISS),
        )

    def at(self, positions: NDArray[np.int64]) -> SumsAndRows:
        """Return those of the items at *positions*."""
        return replace(self, sums=self.sums[positions], rows=self.rows[positions])


def noisy_sums_and_rows(mechanism: _Sums, sums: NDArray[np.int64], rows: NDArray[np.int64], bits: Bits) -> SumsAndRows:
    """Add noise to sums with declared bounds and to their numbers of rows, at the price of both.

    Their differences get noise as well, if `difference_noise` has it. The estimates are then the least squares of the
    three noisy values.
    """
    sum_noise = mechanism.sum_noise()
    row_noise = mechanism.row_noise()
    noisy_sums = with_noise(sums, sum_noise, bits, "sums")
    noisy_rows = with_noise(rows, row_noise, bits, "rows")
    noise = difference_noise(mechanism)
    if noise is None:
        return SumsAndRows.independent(noisy_sums, sum_noise, noisy_rows, row_noise)
    sum_factor, row_factor = _difference_factors(mechanism.summed)
    # Python's integers, because the products may exceed 64 bits.
    exact = sums.astype(object) * sum_factor - rows.astype(object) * row_factor
    difference = with_noise(exact, noise, bits, "differences")
    # What the noisy sum and number say of the difference beyond its own noisy value: noise alone, and so small.
    excess = noisy_sums.astype(object) * sum_factor - noisy_rows.astype(object) * row_factor - difference
    correction = excess.astype(np.float64) / noise.std / 3
    width = noise.half_width(MISS) / noise.std  # that of estimates is less: sums of Laplace noise have lighter tails
    sum_std = sum_noise.std * math.sqrt(_LEAST_SQUARES)
    row_std = row_noise.std * math.sqrt(_LEAST_SQUARES)
    return SumsAndRows(
        noisy_sums - sum_noise.std * correction,
        noisy_rows + row_noise.std * correction,
        sum_std,
        row_std,
        width * sum_std,
        width * row_std,
        correlation=_CORRELATION,
    )


def difference_noise(mechanism: _Sums) -> Noise | None:
    """Return the noise of the differences of sums and rows of averages, or None where they are not measured.

    In a difference, sum and rows are multiplied by `_difference_factors`. It costs nothing beside the two: a user who
    moves both by the most does not move it. A user whose sum is below 0 would move it by twice as much.
    """
    summed = mechanism.summed
    if not mechanism.average or summed.private or summed.low < 0:
        return None
    factor, _ = _difference_factors(summed)
    if mechanism.sum_noise().std * factor > MAX_SCALE / 2:  # it cannot be sampled
        return None
    return mechanism.value_noise(factor * summed.most)


def average_factors(mechanism: RankedSums | ListedSums) -> tuple[float, float]:
    """Return the least and the largest error of averages up to C / tau, relative to that of the sum over the rows.

    They are those of sqrt(1 - 2 c x + x^2) for x from 0 to 1 and the correlation c, rounded outwards to 1 / 100.
    """
    correlation = 0.0 if difference_noise(mechanism) is None else _CORRELATION
    least = math.sqrt(1 - correlation**2)
    most = max(1.0, math.sqrt(2 - 2 * correlation))
    return math.floor(100 * least) / 100, math.ceil(100 * most) / 100


def _difference_factors(summed: SumBounds) -> tuple[int, int]:
    """Return the least whole factors of a sum and a number of rows with which one user moves both as far at most."""
    common = math.gcd(summed.most, summed.most_rows)
    return summed.most_rows // common, summed.most // common


def _sum_std(mechanism: RankedSums | ListedSums) -> float:
    """Return the standard error of a released sum, in units of the last digit.

    Raises:
        InputError: not even the noise of the least private bound can be sampled.
    """
    for sums in mechanism._scaled():
        sums.check()
    share = 1.0 if difference_noise(mechanism) is None else _LEAST_SQUARES
    return mechanism.released_noise().std * math.sqrt(share) / mechanism.summed.parts


def _measured_by_bound(released: tuple[ReleasedScaledSums, ...], outcome: Outcome, summed: SumBounds) -> Outcome:
    """Return *outcome* with privately bounded sums, or with their averages if numbers of rows were released as well."""
    if len(released) == 1:
        return replace(outcome, measured=released[0].measured())
    sums, rows = released
    measured = replace(
        SumsAndRows.independent(sums.parts, sums.noise, rows.parts, rows.noise),
        share=sums.share,
        row_share=rows.share,
        least=sums.least,
        least_rows=rows.least,
    )
    return averages(measured, outcome, summed, sums.clipping)


def averages(measured: SumsAndRows, outcome: Outcome, summed: SumBounds, clipping: Clipping | None = None) -> Outcome:
    """Return *outcome* with noisy sums divided by noisy numbers of rows, and with these numbers as its counts.

    The interval is Fieller's (1954): all r with |sum - r rows| at most the half width of that difference, whose square
    is sum_width^2 - 2 r correlation sum_width row_width + r^2 row_width^2. Where rows are not above their own half
    width, it is [low, high], which contains the average of values that are clipped to it. What private bounds leave of
    sums and rows is divided by the shares; a lower end allows for the most that they take from the rows, and an upper
    end for the most that they take from the sum.

    Args:
        measured: the sums and the numbers of rows.
        summed: the bounds of the values and of each user's contribution.
        clipping: the private bound of the sums, or None.

    Returns:
        the averages; standard errors are first-order errors of a quotient, at most high - low.
    """
    lowest, highest = summed.units
    number = measured.rows / measured.row_share
    # A number below one row is replaced by one row: an item without rows has no average.
    least = np.maximum(number, summed.parts)
    centre = np.clip(measured.sums / measured.share / least, lowest, highest)
    has_rows = measured.rows > measured.row_width
    most_rows = replace(
        measured, rows=measured.rows / measured.least_rows, row_width=measured.row_width / measured.least_rows
    )
    most_sums = replace(measured, sums=measured.sums / measured.least, sum_width=measured.sum_width / measured.least)
    low = np.where(has_rows, _fieller(most_rows, has_rows)[0], lowest)
    high = np.where(has_rows, _fieller(most_sums, has_rows)[1], highest)
    sum_std = measured.sum_std / measured.share
    row_std = measured.row_std / measured.row_share
    moved = centre * row_std
    error = np.sqrt(sum_std**2 - 2 * measured.correlation * sum_std * moved + moved**2) / least
    shown = Measured(
        "average",
        centre,
        np.minimum(error, highest - lowest),
        np.minimum(np.maximum(low, lowest), centre),
        np.maximum(np.minimum(high, highest), centre),
        clipping,
    )
    counts = np.rint(number / summed.parts).astype(np.int64)
    width = math.ceil(measured.row_width / summed.parts)
    ends = np.rint(measured.rows / summed.parts).astype(np.int64)
    return replace(
        outcome,
        counts=counts,
        std_errors=np.full(len(number), row_std / summed.parts),
        low=np.maximum(ends - width, 0),
        high=np.maximum(np.ceil((ends + width) / measured.least_rows), 0).astype(np.int64),
        measured=shown,
    )


def _fieller(measured: SumsAndRows, has_rows: NDArray[np.bool_]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the ends of Fieller's intervals where *has_rows*, and any numbers elsewhere.

    They are the zeros of a r^2 - 2 b r + c, where b^2 - a c is computed without cancellation.
    """
    sums = measured.sums
    rows = measured.rows
    sum_width = measured.sum_width
    row_width = measured.row_width
    shared = measured.correlation * sum_width * row_width
    widths = (rows * sum_width) ** 2 + (sums * row_width) ** 2 - 2 * shared * sums * rows
    root = np.sqrt(np.maximum(widths - (row_width * sum_width) ** 2 + shared**2, 0))
    middle = sums * rows - shared
    divisor = np.where(has_rows, rows**2 - row_width**2, 1)
    return (middle - root) / divisor, (middle + root) / divisor


@dataclass(frozen=True, slots=True)
class ReleasedScaledSums:
    """Noisy scaled sums, and what the sums and their upper ends are divided by.

    Args:
        parts: noisy scaled sums, in parts of the last digit.
        noise: their noise.
        share: the share of the sums that is left.
        least: the least share that is left of a single sum, for upper ends.
    """

    parts: NDArray[np.int64]
    noise: Noise
    share: float
    least: float
    clipping: Clipping

    def measured(self) -> Measured:
        """Return the sums."""
        parts = self.parts / ROW_UNIT
        width = self.noise.half_width(MISS) / ROW_UNIT
        return Measured(
            "sum",
            np.rint(parts / self.share).astype(np.int64),
            np.full(len(parts), self.noise.std / ROW_UNIT / self.share),
            np.maximum(np.floor(parts - width), 0).astype(np.int64),
            np.maximum(np.ceil((parts + width) / self.least), 0).astype(np.int64),
            self.clipping,
        )


@dataclass(frozen=True, slots=True)
class ScaledSums:
    """Noisy sums of given items, each user's multiplied by a weight with which their length is at most a private bound.

    Args:
        summed: the bounds to choose from.
        moved: largest number of released sums that one user moves, by which the choice is priced.
        scale: noise scale at which a value that one user moves by 1 costs as much as a count.
        of_rows: True for the numbers of rows of averages in place of sums.
    """

    summed: SumBounds
    moved: int
    scale: Fraction
    noise: NoiseName
    of_rows: bool = False

    def cost(self) -> Cost:
        """Return the cost of the choice."""
        return Cost(self._users_noise().rho())

    def check(self) -> None:
        """Raise `InputError` if not even the noise of the least bound can be sampled."""
        self._noise(2 * self.summed.squared_lengths(1)[0], 1)

    def release(
        self, scaled: NDArray[np.int64] | None, users: NDArray[np.int64] | None, moved: int, bits: Bits
    ) -> ReleasedScaledSums:
        """Return noisy sums of all items, at the price of *moved* sums and the choice.

        Args:
            scaled: the exact sums by bound, as `ExactHead.scaled`.
            users: the exact users by bound, as `ExactHead.users`.
            moved: the most of these items that one user has; the bounds to choose from are for that many.
        """
        if scaled is None or users is None:
            raise InvariantViolated("the engine returned no scaled sums")
        squares = np.array(self.summed.squared_lengths(moved), dtype=np.float64)
        bounds = np.sqrt(squares) * self.summed.step
        lengths = _MIDDLE * bounds
        if self.of_rows:  # most users have few, and the squares between two bounds are whole
            lengths = np.maximum(lengths, np.sqrt(np.concatenate([[0.0], squares[:-1]]) + 1) * self.summed.step)
        users_noise = self._users_noise()
        noisy = with_noise(users, users_noise, bits, "row users" if self.of_rows else "users").astype(np.float64)
        plausible = believable(noisy, users_noise.std, _CERTAIN)
        if not plausible.any():
            plausible = np.where(noisy == noisy.max(), 1.0, 0.0)
        shares = _kept(bounds, lengths, plausible)
        errors = float(self.scale) * bounds / math.sqrt(moved) / shares  # standard errors of a sum
        errors[float(self.scale) * ROW_UNIT * bounds > MAX_SCALE / 2] = math.inf  # noise that cannot be sampled
        size = float(plausible @ lengths) / len(scaled)
        chosen = int(np.argmin((errors / size) ** 2 + (_BIAS * (1 - shares)) ** 2))
        noise = self._noise(self.summed.squared_lengths(moved)[chosen], moved)
        parts = with_noise(scaled[:, chosen], noise, bits, "rows" if self.of_rows else "sums")
        share = float(shares[chosen])
        likely = float(_kept(bounds, lengths, _with_hidden(noisy, users_noise.std, 0.0))[chosen])
        fewest = float(_kept(bounds, lengths, _with_hidden(noisy, users_noise.std, _HIDDEN))[chosen])
        least = max(1 - _UNEVEN * (1 - fewest), min(likely, share / _UNEVEN))
        clipping = _clipping(math.ceil(bounds[chosen]), noisy, chosen, users_noise, share)
        return ReleasedScaledSums(parts, noise, share, least, clipping)

    def _users_noise(self) -> Noise:
        """Return the noise of the histogram, of which a user moves one bin by 1."""
        return noise_of(self.noise, ceil_sqrt(self.scale**2 / _choice_price(self.moved)))

    def _noise(self, square: int, moved: int) -> Noise:
        """Return the noise with which sums of a squared length cost as much as *moved* counts, in parts."""
        variance = self.scale**2 * square * (self.summed.step * ROW_UNIT) ** 2 / moved
        return noise_of(self.noise, ceil_sqrt(variance))


def _kept(bounds: NDArray[np.float64], lengths: NDArray[np.float64], users: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the share of the *lengths* of *users*, a histogram by bounds, that each bound keeps."""
    shares: NDArray[np.float64] = np.minimum(lengths, bounds[:, None]) @ users / (lengths @ users)
    return np.minimum(shares, 1.0)  # all may be kept, but for rounding


def _with_hidden(noisy: NDArray[np.float64], std: float, errors: float) -> NDArray[np.float64]:
    """Return users by bounds with those that the noise may hide, by *errors* standard errors; of all, if none shows."""
    users = continued(noisy, std, _CERTAIN, errors)
    return users if users.any() else np.maximum(noisy + errors * std, 1.0)


def with_noise(exact: NDArray[np.int64], noise: Noise | SharedNoise, bits: Bits, label: str) -> NDArray[np.int64]:
    """Return noisy values; every sum and histogram that this module releases gets its noise here."""
    return exact + noise.draw(bits, label, len(exact))


def _clipping(bound: int, users: NDArray[np.float64], chosen: int, noise: Noise, kept_share: float) -> Clipping:
    """Return a clipping estimate; its interval is valid for all bounds at once, because noisy *users* chose one."""
    width = noise.half_width(MISS / len(users))
    above = float(users[chosen + 1 :].sum())
    all_ = float(users.sum())
    above_width, all_width = (width * math.sqrt(n) for n in (len(users) - chosen - 1, len(users)))
    most = all_ + all_width
    least = all_ - all_width
    low = min(max(above - above_width, 0) / most, 1.0) if most > 0 else 0.0
    high = min(max(above + above_width, 0) / least, 1.0) if least > 0 else 1.0
    share = above / all_ if all_ > 0 else 0.0
    return Clipping(bound, min(max(share, low), high), low, high, kept_share)
