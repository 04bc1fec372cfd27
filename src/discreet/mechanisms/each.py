"""Each: one release over segments, charged the most that the answer of any segment cost (docs/mechanisms/each.md)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Self

import numpy as np

from discreet.errors import InvariantViolated
from discreet.mechanisms.auto import Auto
from discreet.mechanisms.base import Expectation, Mechanism
from discreet.mechanisms.two_round import USERS_PER_SECOND_HISTOGRAM, are_few
from discreet.noise import Bits
from discreet.noise.bits import PrefixedBits
from discreet.values import Cost, Measured, Outcome, SegmentedPairs


@dataclass(frozen=True, slots=True)
class Each:
    """Release the head of each segment by itself, with independent noise.

    Every user counts in a single segment, so adding or removing one changes the head of a single segment, and the
    release costs the most that any segment's did: parallel composition inside one release, here with costs that depend
    on the answers. Rho and delta are each the largest of any segment. A user who is replaced by another may leave one
    segment and enter another, and then pays for both.

    Args:
        inner: the mechanism of every segment; it takes an `ExactHead`.
        segments: the number of segments, at least 1; all are released, also those without rows.
    """

    inner: Mechanism
    segments: int

    @property
    def name(self) -> str:
        """The name of the mechanism of every segment."""
        return self.inner.name

    @property
    def lossless(self) -> bool:
        """True if no probability mass is lost."""
        return self.inner.lossless

    @property
    def head_limit(self) -> int:
        """The number of items that are needed from the head of a segment, without the one below the cut."""
        return self.inner.head_limit

    def worst_cost(self) -> Cost:
        """Return the largest cost of a release, which is that of one segment."""
        return self.inner.worst_cost()

    def direct_epsilon(self) -> Fraction | None:
        """Return epsilon of the inner mechanism's own theorem, which holds for all segments together, or None."""
        return self.inner.direct_epsilon()

    def expectation(self) -> Expectation:
        """Return the expected error and size of the answer of a segment."""
        return self.inner.expectation()

    def release(self, head: Any, bits: Bits, /) -> Outcome:  # noqa: ANN401 - as `Mechanism.release` is declared
        """Release every segment, and return the outcomes in the order of the segments, with the cost to charge.

        Args:
            head: an `ExactHead` with the heads of the segments, in the order of the request.
            bits: source of randomness; the number of the segment stands before each label.
        """
        parts = head.parts
        if head.ends is None or len(parts) != self.segments:
            raise InvariantViolated("a head has a part for every segment, also for those without rows")
        outcomes = [self.inner.release(part, PrefixedBits(bits, number)) for number, part in enumerate(parts)]
        starts = (0, *head.ends)
        positions = [outcome.positions + start for outcome, start in zip(outcomes, starts, strict=False)]
        measured = [outcome.measured for outcome in outcomes if outcome.measured is not None]
        return Outcome(
            np.concatenate(positions),
            _joined(outcome.counts for outcome in outcomes),
            _joined(outcome.std_errors for outcome in outcomes),
            _joined(outcome.low for outcome in outcomes),
            _joined(outcome.high for outcome in outcomes),
            ordered=all(outcome.ordered for outcome in outcomes),
            complete=all(outcome.complete for outcome in outcomes),
            cost=Cost(max(outcome.cost.rho for outcome in outcomes), max(outcome.cost.delta for outcome in outcomes)),
            measured=_together(measured) if len(measured) == len(outcomes) else None,
            shared_error=outcomes[0].shared_error,
        )


@dataclass(frozen=True, slots=True)
class EachAuto(Auto):
    """Measure how many (segment, item) pairs users have, then release by one round of all pairs, or each head.

    Where users have few pairs, a pair is an item of one round, in which all rows of a user count. Otherwise each
    segment is released from its head. There are neither two rounds nor a race.

    Args:
        segments: the number of segments, at least 1.
        k: number of items of each segment, or None for as many accurate counts as possible.
    """

    segments: int = 1
    k: int | None = None

    @classmethod
    def of(cls, auto: Auto, segments: int, k: int | None) -> Self:
        """Return the release of *segments* with the budgets of *auto*, which has no k."""
        head = replace(auto.head, k=k)
        second_head = replace(auto.second_head, k=k)
        # The k largest of a segment need not be precise, and may be below those of another.
        light = auto.light if k is None else replace(auto.light, k=segments * auto.head_limit)
        return cls(auto.two_round, head, light, second_head, None, None, auto.epsilon, auto.delta, segments, k)

    def worst_cost(self) -> Cost:
        """Return the largest cost of one round or of a head, with the histogram."""
        return self._worst_of_one_round_and_head()

    def expectation(self) -> Expectation:
        """Return bounds that hold for both branches, and the probable range of each: the head, and then one round."""
        branches = self._of_head_and_one_round()
        errors = [branch.min_std_error for branch in branches if branch.min_std_error is not None]
        counts = [branch.smallest_count for branch in branches if branch.smallest_count is not None]
        likely = tuple(branch.likely[0] for branch in branches)
        return Expectation(min(errors, default=None), None, min(counts), likely=likely)

    def release(self, pairs: SegmentedPairs, bits: Bits) -> Outcome:  # type: ignore[override]
        """Release; the outcome's positions are rows of the head if it is chosen, and otherwise numbers of pairs."""
        sizes = self.two_round.measure_sizes(pairs, bits)
        cap, _ = self._cap(sizes, pairs, bits, split=True)
        head = self.head
        light = self.light
        spent = Cost()
        if cap is not None and are_few(sizes.by_size, self.two_round.histogram_error, USERS_PER_SECOND_HISTOGRAM):
            bits = PrefixedBits(bits, 2)  # as in auto
            cap, light, spent = self._measure_again(sizes, pairs, bits)
            head = self.second_head
        if cap is None:
            outcome = Each(head, self.segments).release(pairs.head(self.head_limit), bits)
            why = f"too few of about {sizes.users:,.0f} users have few items in all segments together"
            return self._with_tests(replace(outcome, cost=outcome.cost + spent), head.name, why)
        outcome = light.release(cap, pairs, bits)
        segment = pairs.segments(outcome.positions)
        order = np.argsort(segment, kind="stable")  # of a segment, the largest first
        segment = segment[order]
        rank = np.arange(len(order)) - np.searchsorted(segment, segment)
        outcome = outcome.take(order[rank < (len(order) if self.k is None else self.k)])
        complete = self.k is not None and len(outcome.positions) == self.k * self.segments
        outcome = replace(outcome, complete=complete, cost=outcome.cost + spent)
        return self._with_tests(outcome, "light", cap.why)


def _joined(arrays: Iterable[Any]) -> Any:  # noqa: ANN401 - arrays of one type, or None without numbers
    """Return the arrays of all segments, one after the other, or None if they have none."""
    present = [array for array in arrays if array is not None]
    return np.concatenate(present) if present else None


def _together(parts: list[Measured]) -> Measured:
    """Return the sums or averages of all segments; their bounds are declared, so there is no clipping to tell of."""
    names = ("values", "std_errors", "low", "high")
    return Measured(parts[0].name, *(_joined(getattr(part, name) for part in parts) for name in names))
