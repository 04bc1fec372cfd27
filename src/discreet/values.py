"""Values shared by all packages: costs, sensitivities, exact heads, outcomes.

A value never changes its meaning; a new meaning gets a new name.
"""

from __future__ import annotations

import decimal
import math
import operator
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from discreet.errors import InputError, InvariantViolated, UnfitData

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MechanismChoice: TypeAlias = Literal["auto", "gumbel", "laplace", "stable", "head", "two-round", "pcr"]
"""The names by which a query chooses its mechanism."""

NoiseName: TypeAlias = Literal["gaussian", "laplace"]

RHO_QUANTUM = Fraction(1, 10**18)
"""Costs are whole multiples of this much rho."""

DELTA_QUANTUM = Fraction(1, 10**27)
"""Costs are whole multiples of this much delta."""

MAX_EXPONENT = 1_000
"""Largest power of ten in a number written as text: larger ones would take forever to parse exactly."""

MAX_COUNT = 2**62
"""Counts and sums above this are refused, so that one of them plus noise always fits an int64."""


def _ceil_to(value: Fraction | int | float, quantum: Fraction, name: str) -> Fraction:
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{name} must be a finite number that is not negative, not {value}")
    try:
        exact = value if type(value) is Fraction else Fraction(value)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be a number, not {value!r}") from None
    if exact.numerator < 0:
        raise InputError(f"{name} must not be negative")
    if quantum.denominator % exact.denominator == 0:  # already a multiple of the quantum, like all sums of costs
        return exact
    return math.ceil(exact / quantum) * quantum


MAX_NUMBER_LENGTH = 1_000
"""The most characters of a number that is taken exactly: reading one takes quadratic time."""


def exact(value: float | str | Fraction, name: str) -> Fraction:
    """Return a number exactly as written: 1e-8 means 1/100,000,000, not the nearest float.

    Raises:
        InputError: *value* is not a finite number.
    """
    if isinstance(value, bool):
        raise InputError(f"{name} must be a number, not {value}")
    if isinstance(value, int | Fraction):
        return Fraction(value)
    above, _, below = str(value).partition("/")
    if len(above) + len(below) > MAX_NUMBER_LENGTH:
        raise InputError(f"{name} may have {MAX_NUMBER_LENGTH:,} characters at most")
    if "/" in below:
        raise InputError(f"{name} must be a finite number, not {value!r}")
    if below:
        try:
            return exact(above, name) / exact(below, name)
        except ZeroDivisionError:
            raise InputError(f"{name} must be a finite number, not {value!r}") from None
    try:
        number = decimal.Decimal(above)
    except decimal.InvalidOperation:
        number = decimal.Decimal("nan")
    if not number.is_finite():
        raise InputError(f"{name} must be a finite number{notation(value)}, not {value!r}")
    if abs(number.adjusted()) > MAX_EXPONENT:
        raise InputError(f"{name} must be a number of ordinary size, not {value!r}")
    return Fraction(number)


def number(value: float, name: str) -> float:
    """Return *value*, any kind of number, as a float; infinities and NaN are allowed.

    Raises:
        InputError: *value* is not a number, or has hundreds of digits.
    """
    try:
        if not isinstance(value, bool):
            return float(value)
    except (TypeError, ValueError):
        pass
    except OverflowError:
        raise InputError(f"{name} must be a number of ordinary size") from None
    raise InputError(f"{name} must be a number{notation(value)}, not {value!r}")


def notation(value: object) -> str:
    """Return a hint how a number is written, if *value* is text with a decimal comma or a percent sign, or ''."""
    if not isinstance(value, str):
        return ""
    if "," in value:
        return " with a decimal point, such as 0.5"
    return " without a sign for percent, such as 0.5 for 50 %" if value.strip().endswith("%") else ""


def check_text(value: str, name: str) -> str:
    """Return *value* if it is text.

    Raises:
        InputError: *value* is not text.
    """
    text: object = value
    if not isinstance(text, str):
        raise InputError(f"{name} must be text, not {text!r}")
    return text


def whole(value: int, name: str) -> int:
    """Return *value*, any kind of whole number, as an int.

    Raises:
        InputError: *value* is not a whole number.
    """
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    raise InputError(f"{name} must be a whole number, not {value!r}")


def float_above(value: Fraction) -> float:
    """Return the smallest float that is at least *value*."""
    nearest = float(value)
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)


def float_below(value: Fraction) -> float:
    """Return the largest float that is at most *value*."""
    return -float_above(-value) + 0.0  # not -0.0


def is_unicode(text: str) -> bool:
    """Return False if *text* holds half a character (a lone surrogate), which UTF-8 does not have."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True, slots=True, repr=False)
class Cost:
    """The cost of a release: delta-approximate rho-zCDP (Bun & Steinke 2016), the unit of all costs.

    Both parts are exact multiples of `RHO_QUANTUM` and `DELTA_QUANTUM`; values are rounded *up* to them.
    Costs of adaptively chosen steps add.

    Args:
        rho: zCDP part, at least 0.
        delta: probability mass that the zCDP bound does not cover, at least 0.
    """

    rho: Fraction = Fraction(0)
    delta: Fraction = Fraction(0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rho", _ceil_to(self.rho, RHO_QUANTUM, "rho"))
        object.__setattr__(self, "delta", _ceil_to(self.delta, DELTA_QUANTUM, "delta"))

    @classmethod
    def at_most(cls, rho: Fraction | float, delta: Fraction | float) -> Cost:
        """Return a limit: the largest cost with parts at most *rho* and *delta* (limits round down, costs up)."""
        return cls(
            math.floor(Fraction(rho) / RHO_QUANTUM) * RHO_QUANTUM,
            math.floor(Fraction(delta) / DELTA_QUANTUM) * DELTA_QUANTUM,
        )

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.rho + other.rho, self.delta + other.delta)

    def __str__(self) -> str:
        return f"rho = {float(self.rho):.4g}, delta = {float(self.delta):.4g}"

    def __repr__(self) -> str:
        return f"<Cost {self}>"

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.rho - other.rho, self.delta - other.delta)

    def __mul__(self, times: int) -> Cost:
        return Cost(self.rho * times, self.delta * times)

    __rmul__ = __mul__

    def within(self, limit: Cost) -> bool:
        """Return True if neither part exceeds that of *limit*."""
        return self.rho <= limit.rho and self.delta <= limit.delta


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """The largest change of the counts by one user.

    Args:
        groups_per_user: the most items that one user adds to (l_0, the papers' Delta); None if unbounded.
        rows_per_group: the most that one user adds to one item (l_infinity, tau); 1 when distinct users are counted.
    """

    groups_per_user: int | None = None
    rows_per_group: int = 1

    def __post_init__(self) -> None:
        if self.groups_per_user is not None:
            object.__setattr__(self, "groups_per_user", whole(self.groups_per_user, "groups per user"))
        object.__setattr__(self, "rows_per_group", whole(self.rows_per_group, "rows per user and item"))
        if self.groups_per_user is not None and self.groups_per_user < 1:
            raise InputError("groups per user must be at least 1")
        if not 1 <= self.rows_per_group <= 2**31:
            raise InputError("rows per user and item must be from 1 to 2,147,483,648")


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class ExactHead:
    """The largest counts of a histogram, exact: the secret that mechanisms protect.

    Its repr shows no data, and it has neither equality of values nor an encoder, so that it does not leak by accident.

    Args:
        counts: int64 counts of shape (n,), none negative. Of each segment there are at most limit + 1, descending; the
            order of equal counts depends on labels only.
        limit: the most items that may be released (dbar); the engine reads limit + 1.
        labels: the n labels, in the columnar form that the engine and the release share; mechanisms never read them.
        sums: int64 sums of a column beside the counts, shape (n,), in units of its last digit, none beyond 2^62 on
            either side of 0; None without sums.
        scaled: for each of m bounds, ascending, the sums with each user's sums multiplied by the weight with which
            their length is at most the bound: int64 of shape (n, m), in parts of 1 / `ROW_UNIT` of the last digit. The
            length of a user's sums is the root of the sum of their squares, over the items of the head, which are all
            that the query selects. None unless a bound is chosen from them.
        users: int64 of shape (m,): the users whose sums have a length above bound i - 1 and at most bound i; users
            whose sums are all 0 are left out. None unless a bound is chosen.
        rows: int64 numbers of the rows that the sums are of, shape (n,), in parts of a row; None without averages.
        scaled_rows: as *scaled*, for the numbers of rows and bounds of their lengths; None unless both are there.
        row_users: as *users*, for the lengths of the numbers of rows.
        before: int64 counts of an earlier day, shape (n,), each at most that of the day; None without one.
        reached: int64 numbers of users who have an item in each of B places of theirs, shape (n, B); None without any.
        ends: for a head of several segments, the row after the last one of each, in the order of the request; None for
            the head of all rows, which is a single segment.
    """

    counts: NDArray[np.int64]
    limit: int
    labels: Any = None
    sums: NDArray[np.int64] | None = None
    scaled: NDArray[np.int64] | None = None
    users: NDArray[np.int64] | None = None
    ends: tuple[int, ...] | None = None
    rows: NDArray[np.int64] | None = None
    scaled_rows: NDArray[np.int64] | None = None
    row_users: NDArray[np.int64] | None = None
    before: NDArray[np.int64] | None = None
    reached: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:  # noqa: C901 - one check after the other
        counts = self.counts
        if self.ends is not None:
            if self.users is not None or self.ends[-1] != len(counts) or list(self.ends) != sorted(self.ends):
                raise InvariantViolated("a head of segments holds exactly their rows, without users of all rows")
            _ = self.parts  # each is checked like the head of all rows
            return
        if counts.ndim != 1 or counts.dtype.str[1:] != "i8":
            raise InvariantViolated("a head is one row of int64 counts")
        if self.sums is not None and (self.sums.shape != counts.shape or self.sums.dtype.str[1:] != "i8"):
            raise InvariantViolated("a head has one int64 sum for each count")
        if self.rows is not None and (self.rows.shape != counts.shape or self.rows.dtype.str[1:] != "i8"):
            raise InvariantViolated("a head has one int64 number of rows for each count")
        for scaled, users in ((self.scaled, self.users), (self.scaled_rows, self.row_users)):
            if (scaled is None) != (users is None):
                raise InvariantViolated("a head has sums at several bounds and users between them, or neither")
            if scaled is not None and users is not None and scaled.shape != (len(counts), len(users)):
                raise InvariantViolated("a head has one sum for each count and bound")
        if len(counts) > self.limit + 1:
            raise InvariantViolated("the engine returned more items than requested")
        if len(counts) and (bool((counts[1:] > counts[:-1]).any()) or counts[-1] < 0):
            raise InvariantViolated("a head is sorted by descending counts that are not negative")
        if len(counts) and counts[0] > MAX_COUNT:
            raise UnfitData("counts above 2^62 cannot be protected")
        if self.sums is not None and bool(((self.sums > MAX_COUNT) | (self.sums < -MAX_COUNT)).any()):
            raise UnfitData("sums beyond 2^62 units of the column's last digit cannot be protected")

    def __repr__(self) -> str:
        return f"ExactHead(limit={self.limit})"

    @property
    def parts(self) -> tuple[ExactHead, ...]:
        """The heads of the segments, in the order of the request, without labels; this head itself if it has none."""
        if self.ends is None:
            return (self,)
        rows = [slice(start, end) for start, end in zip((0, *self.ends), self.ends, strict=False)]
        return tuple(
            ExactHead(
                self.counts[part],
                self.limit,
                sums=None if self.sums is None else self.sums[part],
                rows=None if self.rows is None else self.rows[part],
            )
            for part in rows
        )

    def count_at(self, rank: int) -> int:
        """Return the count at 1-based *rank*, 0 past the end; *rank* may be limit + 1 at most."""
        if self.ends is not None:
            raise InvariantViolated("a head of segments has no single order of counts")
        if not 1 <= rank <= self.limit + 1:
            raise InvariantViolated("the head does not reach that far")
        return int(self.counts[rank - 1]) if rank <= len(self.counts) else 0


WEIGHT_UNIT = 2**20
"""A user's weight in a sum of `UserItemPairs` is a whole multiple of 1 / WEIGHT_UNIT."""

MAX_BASKET = 10**6
"""Users with more items than this are left out of `UserItemPairs`."""

CAPPED_BASKET = 10
"""Users with more than this times the cap of items have the weight 0 in `UserItemPairs.capped_sums`."""

MAX_ITEM_COST = 2**43
"""Costs of items above this are refused, so that a user's sum of them fits an int64."""


class CappedSums(Protocol):
    """Pairs of users and items of which capped sums can be queried."""

    def capped_sums(self, cap: int) -> Iterator[NDArray[np.int64]]:
        """Add up the weights of every item's users: max(0, floor(W min(1, cap / n)) - 1) for a user of n items.

        The weights of a user's items add up to less than W cap. A user of more than `CAPPED_BASKET` * *cap* items has
        the weight 0.

        Args:
            cap: number of items of a user that count in full, at least 1.

        Yields:
            one sum for each item, as `weighted_sums` does.
        """
        ...


class UserItemPairs(CappedSums, Protocol):
    """The distinct (user, item) pairs of a table, which can be aggregated but not read: a secret, like `ExactHead`.

    The pairs do not change between two queries. Rows without a user are left out, and so are users with more than
    `MAX_BASKET` items. Items are numbered 0, 1, ... in ascending order of their labels, as heads order ties.
    Every array is int64. No result of a query may be logged or shown.
    """

    def count_items(self) -> int:
        """Return the number of items."""
        ...

    def users_by_size(self, bounds: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count users by number of items: a user with n items is in the first bin with n <= bound.

        Args:
            bounds: ascending, at most 32; users above the last one are in the last bin.

        Returns:
            users per bin, of the shape of *bounds*.
        """
        ...

    def weighted_sums(self, limit: float) -> Iterator[NDArray[np.int64]]:
        """Add up the weights of every item's users: max(0, floor(W min(1, limit / sqrt(n))) - 1) for a user of n items.

        W is `WEIGHT_UNIT`. The 1 that is subtracted makes up for the rounding of the root, so that the squared weights
        of a user's items never add up to more than (W limit)^2.

        Args:
            limit: above 0; from sqrt(MAX_BASKET) on, every user has the weight W - 1.

        Yields:
            one sum for each item, by its number, in batches; no other query is made before the last one.
        """
        ...

    def users_by_scale(
        self,
        items: NDArray[np.int64],
        last_scale: NDArray[np.int64],
        costs: NDArray[np.int64],
        bounds: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Count users that have one of *items* by the first scale k at which their items cost at most bounds[k].

        At scale k a user's items cost the sum of costs[i] over the user's *items* with last_scale[i] >= k.

        Args:
            items: numbers of items, ascending, of shape (m,).
            last_scale: the last scale at which each item costs something, shape (m,).
            costs: from 1 to `MAX_ITEM_COST`, shape (m,).
            bounds: ascending, at most 32; users that fit at no scale are in the last bin.

        Returns:
            users per scale, of the shape of *bounds*.
        """
        ...

    def clipped_sums(self, items: NDArray[np.int64], costs: NDArray[np.int64], bound: int) -> NDArray[np.int64]:
        """Add up the weights of the users of *items*.

        A user whose items cost c together has the weight max(0, floor(W min(1, sqrt(bound / c))) - 1), so that the
        sum of costs[i] weight^2 over a user's items is at most W^2 bound.

        Args:
            items: numbers of items, ascending, of shape (m,).
            costs: from 1 to `MAX_ITEM_COST`, shape (m,).
            bound: from 1 to 2^53.

        Returns:
            one sum for each of *items*.
        """
        ...

    def labels(self, items: NDArray[np.int64]) -> Any:  # noqa: ANN401 - an Arrow table, which this layer does not know
        """Return the labels of *items*, in that order, in the form of `ExactHead.labels`."""
        ...


class ListedPairs(UserItemPairs, Protocol):
    """`UserItemPairs` of listed items: the items that have users are numbered, and each has a row in the list."""

    def places(self) -> NDArray[np.int64]:
        """Return the row of each numbered item in the list, which holds all items in a public order."""
        ...


class SegmentedPairs(UserItemPairs, Protocol):
    """`UserItemPairs` whose items begin with the labels of a listed segment, and the head of each segment.

    The pairs are of all rows of a user with a listed segment; the heads, of those in a single segment of each user.
    """

    def head(self, limit: int) -> ExactHead:
        """Return the *limit* + 1 largest counts of each segment; after it, no other query is made."""
        ...

    def segments(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the segment of each of *items*, by its number in the request."""
        ...


class HeadAndSums(Protocol):
    """A head, and the sums of those of its items that were returned, which are read once they are known."""

    def head(self, limit: int) -> ExactHead:
        """Return the *limit* + 1 largest counts, without sums."""
        ...

    def sums_of(self, positions: NDArray[np.int64]) -> ExactHead:
        """Return the head of the items at *positions* of the first one alone, in that order, with `scaled` and `users`.

        For averages, it has `scaled_rows` and `row_users` as well. Its counts are not used.
        """
        ...


class HeadAndPairs(UserItemPairs, Protocol):
    """`UserItemPairs` of which a head can be read first; engines write the pairs only if one of their queries follows.

    If none does, the positions of the outcome are rows of the head, and otherwise numbers of items.
    """

    def head(self, limit: int) -> ExactHead:
        """Return the *limit* + 1 largest counts of distinct users of the same rows; before any other query.

        The counts include users with more than `MAX_BASKET` items.
        """
        ...


@dataclass(frozen=True, slots=True)
class Clipping:
    """The privately chosen bound on a user's contribution to the sums, and noisy estimates of what it takes away.

    Args:
        bound: the bound on the length of a user's sums of the returned items, rounded up to units of the column's last
            digit.
        share: the share of users who are above the bound, of those who add to a returned sum; from 0 to 1.
        low: lower end of a 95 % interval for the share.
        high: upper end.
        kept: the share of the sums that is left, by which the released sums were divided. None in releases that were
            stored before version 0.3: there the bound is on each sum by itself, and the share is that of a user's items
            above it, averaged over users.
    """

    bound: int
    share: float
    low: float
    high: float
    kept: float | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """Released sums or averages of the released items, in units of the column's last digit.

    Args:
        name: "sum", or "average" for the sum of an item divided by the number of its rows (of its users, in releases
            that were stored before averages were of rows).
        values: shape (m,): int64 sums, unbiased, or float64 averages.
        std_errors: standard deviation of the noise in each sum, or approximately of the error of each average; shape
            (m,).
        low: lower ends of 95 % intervals for the true values, shape (m,), of the type of the values.
        high: upper ends, of the same shape and type.
        clipping: the bound to which values are clipped, if it was chosen privately; None if not, or without items.
    """

    name: Literal["sum", "average"]
    values: NDArray[np.int64] | NDArray[np.float64]
    std_errors: NDArray[np.float64]
    low: NDArray[np.int64] | NDArray[np.float64]
    high: NDArray[np.int64] | NDArray[np.float64]
    clipping: Clipping | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a mechanism. All fields are safe to publish.

    Args:
        positions: rows of the head that were released, or numbers of items if user-item pairs were queried; shape
            (m,), in the order of release.
        counts: released counts, shape (m,), or None for labels only. Unbiased, so they may be negative.
        std_errors: standard deviation of the noise in each count, shape (m,), or None.
        low: lower ends of 95 % intervals for the true counts, shape (m,), or None.
        high: upper ends, shape (m,), or None.
        ordered: True if the order is a ranking; False if it was shuffled.
        complete: True if everything requested was returned.
        cost: the cost to charge, never above the mechanism's worst cost.
        measured: sums or averages of the released items, or None without.
        chosen: name of the mechanism that was chosen, for mechanisms that choose one, or None.
        why: the reason for the choice in one sentence, from noisy values alone, or how the items were counted; None
            if there is nothing to say.
        shared_error: standard deviation of the part of the noise that all counts or sums (in units of the column's last
            digit) of the release, or of a segment, share: the covariance of two is its square. None if they share none,
            or how much is not known.
    """

    positions: NDArray[np.int64]
    counts: NDArray[np.int64] | None = None
    std_errors: NDArray[np.float64] | None = None
    low: NDArray[np.int64] | None = None
    high: NDArray[np.int64] | None = None
    _: KW_ONLY
    ordered: bool
    complete: bool
    cost: Cost
    measured: Measured | None = None
    chosen: str | None = None
    why: str | None = None
    shared_error: float | None = None

    def take(self, rows: NDArray[Any]) -> Outcome:
        """Return the outcome with only these *rows*, a mask or their numbers, in that order."""

        def part(values: Any) -> Any:  # noqa: ANN401 - an array of any numbers, or None
            return None if values is None else values[rows]

        numbers: dict[str, Any] = {name: part(getattr(self, name)) for name in ("counts", "std_errors", "low", "high")}
        measured = self.measured
        if measured is not None:
            arrays = {name: part(getattr(measured, name)) for name in ("values", "std_errors", "low", "high")}
            measured = replace(measured, **arrays)
        return replace(self, positions=self.positions[rows], measured=measured, **numbers)
