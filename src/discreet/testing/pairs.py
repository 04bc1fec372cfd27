"""User-item pairs in memory, in numpy: the reference for engines, and data for tests and experiments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from discreet.values import CAPPED_BASKET, MAX_BASKET, WEIGHT_UNIT, ExactHead


class ArrayPairs:
    """`discreet.values.HeadAndPairs` over two arrays; its head counts no users above *largest_basket* either.

    Args:
        users: the user of each row, any int64.
        items: the item number of each row, 0 or more; only the last numbers may be without users.
        labels: an Arrow table with the labels of the items by number, or None to use the numbers as labels.
        largest_basket: largest number of items of a user; users with more are left out.
    """

    def __init__(
        self, users: ArrayLike, items: ArrayLike, labels: pa.Table | None = None, largest_basket: int = MAX_BASKET
    ) -> None:
        rows = np.stack([np.asarray(users, dtype=np.int64), np.asarray(items, dtype=np.int64)])
        _, user = np.unique(rows[0], return_inverse=True)
        key = np.unique(user * (rows[1].max(initial=0) + 1) + rows[1])  # a number for each pair, to drop repeated ones
        user, item = np.divmod(key, rows[1].max(initial=0) + 1)
        is_counted = np.bincount(user)[user] <= largest_basket
        # Users and items are numbered again, because some have no pairs left.
        self._user = np.unique(user[is_counted], return_inverse=True)[1]
        present, self._item = np.unique(item[is_counted], return_inverse=True)
        self._labels = labels
        self._numbers = present
        self._sizes = np.bincount(self._user)

    @property
    def counts(self) -> NDArray[np.int64]:
        """The exact number of users of each item."""
        return np.bincount(self._item, minlength=len(self._numbers))

    def head(self, limit: int) -> ExactHead:
        """Return the largest counts, with labels."""
        order = np.argsort(-self.counts, kind="stable")[: limit + 1]
        return ExactHead(self.counts[order], limit, self.labels(order))

    def users_by_size(self, bounds: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count users by their number of items."""
        bins = np.minimum(np.searchsorted(bounds, self._sizes), len(bounds) - 1)  # the last bin has no upper bound
        return np.bincount(bins, minlength=len(bounds))

    def count_items(self) -> int:
        """Return the number of items."""
        return len(self._numbers)

    def places(self) -> NDArray[np.int64]:
        """Return the items as they were given: their rows in a list of all of them."""
        return self._numbers

    def weighted_sums(self, limit: float) -> Iterator[NDArray[np.int64]]:
        """Add up the weights of every item's users."""
        weight = weights(limit / np.sqrt(self._sizes))
        yield from in_batches(_sums(self._item, weight[self._user], len(self._numbers)))

    def capped_sums(self, cap: int) -> Iterator[NDArray[np.int64]]:
        """Add up the weights of every item's users, at most *cap* items for each user."""
        weight = np.where(self._sizes > CAPPED_BASKET * cap, 0, weights(cap / self._sizes))
        yield from in_batches(_sums(self._item, weight[self._user], len(self._numbers)))

    def users_by_scale(
        self,
        items: NDArray[np.int64],
        last_scale: NDArray[np.int64],
        costs: NDArray[np.int64],
        bounds: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Count users by the first scale at which their items fit."""
        user, place = self._rows_of(items)
        scale = last_scale[place]
        cost = np.zeros(len(self._sizes), dtype=np.int64)
        first = np.full(len(self._sizes), len(bounds) - 1)
        for k in reversed(range(len(bounds))):  # in descending order of scales, costs rise and bounds fall
            rows = scale == k
            if rows.any():
                cost += _sums(user[rows], costs[place[rows]], len(cost))
            first[cost <= bounds[k]] = k
        return np.bincount(first[np.bincount(user, minlength=len(cost)) > 0], minlength=len(bounds))

    def clipped_sums(self, items: NDArray[np.int64], costs: NDArray[np.int64], bound: int) -> NDArray[np.int64]:
        """Add up the weights of the users of *items*."""
        user, place = self._rows_of(items)
        cost = _sums(user, costs[place], len(self._sizes))
        weight = weights(np.sqrt(bound / np.maximum(cost, 1)))
        return _sums(place, weight[user], len(items))

    def labels(self, items: NDArray[np.int64]) -> pa.Table | NDArray[np.int64]:
        """Return the labels of *items*, or their numbers if no labels were given."""
        numbers = self._numbers[items]
        return numbers if self._labels is None else self._labels.take(numbers)

    def _rows_of(self, items: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the users of the rows with one of *items*, and the index of that item."""
        place = np.full(len(self._numbers), -1)
        place[items] = np.arange(len(items))
        rows = place[self._item]
        return self._user[rows >= 0], rows[rows >= 0]


class ArraySegments(ArrayPairs):
    """`discreet.values.SegmentedPairs` over arrays, whose item numbers are those of (segment, item) pairs.

    Args:
        users: the user of each row, any int64.
        segments: the number of the segment of each row, from 0 on.
        items: the item of each row, 0 or more.
        seed: decides in which segment each user counts in the head.
    """

    def __init__(self, users: ArrayLike, segments: ArrayLike, items: ArrayLike, seed: int = 0) -> None:
        segment = np.asarray(segments, dtype=np.int64)
        item = np.asarray(items, dtype=np.int64)
        self._width = int(item.max(initial=0)) + 1
        self._count = int(segment.max(initial=0)) + 1
        self._seed = seed
        super().__init__(users, segment * self._width + item)

    def segments(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the segment of each of *items*."""
        return self._numbers[items] // self._width

    def head(self, limit: int) -> ExactHead:
        """Return the largest counts of each segment, where each user counts in one of the user's, at random."""
        segment = self.segments(self._item)
        priority = np.random.default_rng(self._seed).random((len(self._sizes), self._count))  # of each user by itself
        priorities = np.zeros_like(priority)
        priorities[self._user, segment] = priority[self._user, segment]
        chosen = priorities.argmax(axis=1)
        counts = np.bincount(self._item[segment == chosen[self._user]], minlength=len(self._numbers))
        rows = np.lexsort((-counts, self.segments(np.arange(len(counts)))))
        rows = rows[counts[rows] > 0]
        ends = np.searchsorted(self.segments(rows), np.arange(self._count), side="right")
        starts = np.concatenate([[0], ends[:-1]])
        is_counted = np.arange(len(rows)) - np.repeat(starts, ends - starts) <= limit
        ends = np.cumsum(np.bincount(self.segments(rows[is_counted]), minlength=self._count))
        return ExactHead(counts[rows[is_counted]], limit, self.labels(rows[is_counted]), ends=tuple(ends.tolist()))


def in_batches(sums: NDArray[np.int64], size: int = 2**20) -> Iterator[NDArray[np.int64]]:
    """Yield *sums* in batches of at most *size*."""
    for start in range(0, len(sums), size):
        yield sums[start : start + size]


def gathered(batches: Iterable[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return the batches of `weighted_sums` or `capped_sums` as one array."""
    return np.concatenate([np.zeros(0, dtype=np.int64), *batches])


def weights(share: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return users' weights, in units of 1 / WEIGHT_UNIT, from the share of their items that a bound allows."""
    rounded: NDArray[np.int64] = np.maximum(np.floor(WEIGHT_UNIT * np.minimum(1.0, share)).astype(np.int64) - 1, 0)
    return rounded


def _sums(keys: NDArray[np.int64], values: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Return the exact sums of *values* by key, in two parts, because bincount adds floats, exact only up to 2^53."""
    low = np.bincount(keys, weights=(values & (2**22 - 1)).astype(np.float64), minlength=size)
    high = np.bincount(keys, weights=(values >> 22).astype(np.float64), minlength=size)
    total: NDArray[np.int64] = low.astype(np.int64) + (high.astype(np.int64) << 22)
    return total
