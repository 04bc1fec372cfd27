"""The test suite that the mechanisms of this and of other packages must pass. Needs pytest.

    class TestMyMechanism(MechanismSuite):
        mechanism = MyMechanism
        request = Request(k=3, head_limit=8, counts=False)

It tests the properties of `Mechanism` and `Outcome` that can be seen from outside, but not privacy, which
`discreet.testing.audit` tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import fields
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar, NoReturn, TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray

from discreet.errors import InputError, InvariantViolated
from discreet.mechanisms import KnownGumbel, KnownLaplace, Mechanism, Request, UnknownGumbel, UnknownLaplace
from discreet.mechanisms.anchored import SharedNoise
from discreet.mechanisms.base import count_noise
from discreet.mechanisms.sums import ListedSums, RankedSums
from discreet.noise import KeyedBits, Noise
from discreet.testing.audit import ROUNDING, distribution, merge_equal_ratios, moved_noise, values_divergence
from discreet.values import MAX_COUNT, Cost, ExactHead, Outcome

HEADS: dict[str, Callable[[int], list[int]]] = {
    "empty": lambda _: [],
    "one user": lambda _: [1],
    "one item": lambda _: [100_000],
    "all zero": lambda n: [0] * n,
    "short": lambda n: [100_000 - 7 * i for i in range(n // 2)],
    "just full": lambda n: [100_000 - 7 * i for i in range(n)],
    "one below the cut": lambda n: [100_000 - 7 * i for i in range(n + 1)],
    "steep": lambda n: [10**9 >> 3 * i for i in range(n + 1)],
    "tied with the cut": lambda n: [100_000] * (n + 1),
    "largest counts": lambda n: [MAX_COUNT] * (n - 1) + [1],
}
"""Counts as functions of the head limit; in a known domain they are truncated or padded with zeros to its size."""

RUNS = range(3)


def on_every_head(test: Callable[[MechanismSuite, str], None]) -> Callable[[MechanismSuite], None]:
    """Run a test on all `HEADS` as one pytest test, because starting a test takes longer than running it on a head."""

    def run(self: MechanismSuite) -> None:
        for head in HEADS:
            try:
                test(self, head)
            except AssertionError as error:
                error.add_note(f"with the head {head!r}")
                raise

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    return run


class _Unseen:
    """Labels that raise when they are read."""

    def __getattribute__(self, name: str) -> NoReturn:
        raise AssertionError("a mechanism looked at the labels")

    __len__ = __iter__ = __getitem__ = __eq__ = __hash__ = lambda self, *_: self.looked  # type: ignore[assignment]


class MechanismSuite:
    """The properties of a mechanism, as tests; subclass it and set the attributes.

    Attributes:
        request: the request for the mechanism, preferably with k and head limit between 2 and 10.
        limit: largest cost of a release.
    """

    mechanism: ClassVar[type[Mechanism]]
    request: ClassVar[Request]
    limit: ClassVar[Cost] = Cost(Fraction(1, 2), Fraction(1, 10**6))

    def make(self) -> Mechanism:
        """Return the mechanism under test; override this for mechanisms that are constructed differently."""
        return self.mechanism.within_cost(self.limit, self.request)

    def counts(self, head: str) -> NDArray[np.int64]:
        """Return the counts of a head of `HEADS`, read-only, as an engine returns them to this mechanism."""
        limit = self.make().head_limit
        listed = HEADS[head](limit)
        return self._frozen((listed + [0] * limit)[:limit] if self.request.known_domain else listed)

    def release(self, counts: NDArray[np.int64], run: int) -> Outcome:
        """Return one release with bits determined by *run*, from a head whose labels must not be read."""
        return self.make().release(self._head(counts, _Unseen()), self._bits(run))

    @classmethod
    @lru_cache(maxsize=1024)
    def released(cls, head: str, run: int) -> Outcome:
        """Return the release from a head of `HEADS` with the bits of *run*; cached, because several tests use it."""
        suite = cls()
        return suite.release(suite.counts(head), run)

    def _head(self, counts: NDArray[np.int64], labels: object = None) -> ExactHead:
        """Return a head; if the request has sums, every user contributes the largest allowed value."""
        sums = None
        summed = self.request.summed
        if summed is not None:
            bound = summed.parts * (summed.high if summed.most == summed.parts * summed.high else summed.low)
            sums = self._frozen((np.minimum(counts, MAX_COUNT // summed.most) * bound).tolist())
        return ExactHead(counts, self.make().head_limit, labels, sums, rows=self._rows(counts))

    def _rows(self, counts: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Return the numbers of rows if the request is for averages: one row of every user."""
        summed = self.request.summed
        if summed is None or summed.rows is None:
            return None
        return self._frozen((np.minimum(counts, MAX_COUNT // summed.parts) * summed.parts).tolist())

    @staticmethod
    def _frozen(counts: list[int]) -> NDArray[np.int64]:
        array = np.array(counts, dtype=np.int64)
        array.flags.writeable = False
        return array

    @staticmethod
    def _bits(run: int) -> KeyedBits:
        return KeyedBits(b"a secret of thirty-two bytes....", run)

    @staticmethod
    def _comparable(outcome: Outcome) -> tuple[object, ...]:
        arrays = [outcome.positions, outcome.counts, outcome.std_errors, outcome.low, outcome.high]
        if (measured := outcome.measured) is not None:
            arrays += [measured.values, measured.std_errors, measured.low, measured.high]
        return (
            *(None if a is None else tuple(a.tolist()) for a in arrays),
            outcome.ordered,
            outcome.complete,
            outcome.cost,
        )

    def test_it_has_a_name(self) -> None:
        """Options and records refer to it by that name."""
        assert self.make().name

    def test_the_worst_cost_is_within_the_limit(self) -> None:
        """`within_cost` returns an instance that the limit can pay for."""
        assert self.make().worst_cost().within(self.limit)

    def test_only_a_lossless_mechanism_costs_no_delta(self) -> None:
        """A mechanism is declared lossless exactly if it costs no delta."""
        assert self.make().lossless == (self.make().worst_cost().delta == 0)

    def test_its_parameters_are_a_frozen_value(self) -> None:
        """Parameters cannot change after payment, and mechanisms with equal parameters are equal."""
        mechanism = self.make()
        assert mechanism == self.make()
        assert hash(mechanism) == hash(self.make())
        for field in fields(mechanism):  # type: ignore[arg-type]
            with pytest.raises(AttributeError):
                setattr(mechanism, field.name, None)

    @on_every_head
    def test_the_charge_is_within_the_worst_cost(self, head: str) -> None:
        """No more is charged than was reserved."""
        for run in RUNS:
            assert self.released(head, run).cost.within(self.make().worst_cost())

    @on_every_head
    def test_equal_bits_give_equal_outcomes(self, head: str) -> None:
        """All randomness comes from the bits."""
        for run in RUNS:
            assert self._comparable(self.release(self.counts(head), run)) == self._comparable(self.released(head, run))

    def test_other_bits_give_other_outcomes(self) -> None:
        """Other bits change the outcome."""
        counts, _ = self._tied()
        assert len({self._comparable(self.release(counts, run)) for run in range(20)}) > 1

    @on_every_head
    def test_labels_are_never_looked_at(self, head: str) -> None:
        """Nothing depends on labels: a head without labels gives the same outcome."""
        mechanism = self.make()
        counts = self.counts(head)
        bare = mechanism.release(self._head(counts), self._bits(0))
        assert self._comparable(self.released(head, 0)) == self._comparable(bare)

    def test_no_bits_are_drawn_twice(self) -> None:
        """A second release from the same bits is refused, so no noise is used twice."""
        mechanism = self.make()
        counts = self._tied()[0]
        bits = self._bits(0)
        mechanism.release(self._head(counts), bits)
        with pytest.raises(InvariantViolated):
            mechanism.release(self._head(counts), bits)

    @on_every_head
    def test_positions_are_different_rows_above_the_cut(self, head: str) -> None:
        """Each released item is in the head, only once, and is not the item that is read only for the threshold."""
        rows = range(min(len(self.counts(head)), self.make().head_limit))
        for run in RUNS:
            positions = self.released(head, run).positions
            assert positions.dtype == np.int64
            assert positions.ndim == 1
            assert len(set(positions.tolist())) == len(positions)
            assert all(p in rows for p in positions.tolist())

    @on_every_head
    def test_an_item_without_users_appears_only_in_a_known_domain(self, head: str) -> None:
        """Without a known domain, an item with a count of 0 is treated like an item that is not in the table."""
        counts = self.counts(head)
        for run in RUNS:
            assert self.request.known_domain or (counts[self.released(head, run).positions] > 0).all()

    @on_every_head
    def test_complete_means_that_all_was_returned(self, head: str) -> None:
        """At most k items are returned; an outcome is complete with k items or, without a k, only with all items."""
        counts = self.counts(head)
        for run in RUNS:
            outcome = self.released(head, run)
            k = self.request.k
            if k is None:
                assert not outcome.complete or len(outcome.positions) == len(counts)
            else:
                assert len(outcome.positions) <= k
                assert outcome.complete == (len(outcome.positions) == k)

    @on_every_head
    def test_counts_come_if_and_only_if_they_were_requested(self, head: str) -> None:
        """Counts, errors and intervals are all there, one for each position, or none of them is; averages have them."""
        outcome = self.released(head, 0)
        parts = (outcome.counts, outcome.std_errors, outcome.low, outcome.high)
        for part, kind in zip(parts, (np.int64, np.float64, np.int64, np.int64), strict=True):
            assert (part is not None) == (self.request.counts or self.request.average)
            assert part is None or (part.shape == outcome.positions.shape and part.dtype == kind)

    @on_every_head
    def test_intervals_are_sane(self, head: str) -> None:
        """0 <= low <= high, and the released count is in the interval unless it is negative."""
        for run in RUNS:
            outcome = self.released(head, run)
            if outcome.counts is None or outcome.low is None or outcome.high is None:
                return
            shown = np.maximum(outcome.counts, 0)
            assert (outcome.low >= 0).all()
            assert ((outcome.low <= shown) & (shown <= outcome.high)).all()

    @on_every_head
    def test_standard_errors_are_as_expected(self, head: str) -> None:
        """Every standard error is within the range that `expectation` returned before any data was read."""
        expected = self.make().expectation()
        least = expected.min_std_error
        most = expected.max_std_error
        assert (least is None) == (most is None) == (not self.request.counts)
        errors = self.released(head, 0).std_errors
        if errors is not None and least is not None and most is not None:
            assert ((least <= errors) & (errors <= most)).all()
            assert 0 < least <= most < np.inf

    @on_every_head
    def test_sums_come_if_and_only_if_they_were_requested(self, head: str) -> None:
        """Sums or averages, errors and intervals are all there, one for each position, or none of them is."""
        summed = self.request.summed
        outcome = self.released(head, 0)
        assert (outcome.measured is not None) == (summed is not None)
        if outcome.measured is not None and summed is not None:
            measured = outcome.measured
            kind = np.float64 if self.request.average else np.int64
            assert measured.name == ("average" if self.request.average else "sum")
            parts = (measured.values, measured.std_errors, measured.low, measured.high)
            for part, of in zip(parts, (kind, np.float64, kind, kind), strict=True):
                assert part.shape == outcome.positions.shape
                assert part.dtype == of

    @on_every_head
    def test_intervals_of_sums_are_sane(self, head: str) -> None:
        """Averages and interval ends are within the bounds of users' contributions; unbiased sums need not be."""
        summed = self.request.summed
        measured = self.released(head, 1).measured
        if summed is None or measured is None:
            return
        (low, high), average = summed.units, self.request.average
        least = low if average else 0 if low >= 0 else -np.inf
        most = high if average else 0 if high <= 0 else np.inf
        shown = measured.values if average else np.clip(measured.values, least, most)
        assert ((least <= measured.low) & (measured.low <= shown)).all()
        assert ((shown <= measured.high) & (measured.high <= most)).all()

    @on_every_head
    def test_standard_errors_of_sums_are_as_expected(self, head: str) -> None:
        """They equal `expectation`'s; an average's is at most the width of the bounds of one user's contribution."""
        summed = self.request.summed
        expected = self.make().expectation().sum_std_error
        assert (expected is None) == (summed is None)
        measured = self.released(head, 0).measured
        if summed is not None and measured is not None and expected is not None:
            most = summed.units[1] - summed.units[0] if self.request.average else expected
            assert ((measured.std_errors == expected) | self.request.average).all()
            assert ((measured.std_errors >= 0) & (measured.std_errors <= most)).all()
            assert 0 < expected < np.inf

    @on_every_head
    def test_sums_find_nothing(self, head: str) -> None:
        """Which items are returned, with which counts and at what cost, does not depend on their sums."""
        tried = self.make()
        counts = self.counts(head)
        sums = None if self.request.summed is None else self._frozen([(-7) ** i for i in range(len(counts))])
        one = tried.release(self._head(counts), self._bits(0))
        other = tried.release(ExactHead(counts, tried.head_limit, None, sums, rows=self._rows(counts)), self._bits(0))
        assert sorted(one.positions.tolist()) == sorted(other.positions.tolist())
        assert one.cost == other.cost
        if one.counts is not None and other.counts is not None:
            assert one.counts.tolist() == other.counts.tolist()

    def test_ties_follow_no_order(self) -> None:
        """Equal counts are in random order, not in the head's: each of them is sometimes first."""
        counts, tied = self._tied()
        first = [self.release(counts, run).positions[:1].tolist() for run in range(80)]
        assert {row for rows in first for row in rows} == set(range(tied))

    @pytest.mark.parametrize("epsilon", [Fraction(1, 10), Fraction(3)])
    def test_its_own_theorem_stays_within_what_was_requested(self, epsilon: Fraction) -> None:
        """An instance from `at_epsilon` states that it is (epsilon, delta)-DP with at most the requested parameters."""
        mechanism = self.mechanism.at_epsilon(epsilon, self.limit.delta, self.request)
        if mechanism is not None:
            direct = mechanism.direct_epsilon()
            assert direct is not None
            assert direct <= epsilon
            assert mechanism.worst_cost().delta <= self.limit.delta

    def _tied(self) -> tuple[NDArray[np.int64], int]:
        """Return a head of equal, large counts with nothing below them, and the largest number of released items."""
        limit = self.make().head_limit
        tied = min(self.request.k or limit, limit)
        rest = limit - tied if self.request.known_domain else 0
        return self._frozen([10**7] * tied + [0] * rest), tied


Step: TypeAlias = "tuple[Noise, Mapping[str, int], Mapping[str, int]]"
"""A noise, and the values by label that it is added to on one head and on the other."""


def sums_divergence(mechanism: RankedSums | ListedSums, head: ExactHead, neighbour: ExactHead, epsilon: float) -> float:
    """Return delta at *epsilon*, in both directions, of all that *mechanism* releases and that its proof reveals.

    The noise of values does not affect the selection, so the values are independent conditionally on the labels, and
    values that are equal on both heads carry no information. Averages follow from counts and sums.

    Args:
        mechanism: sums of a whole listed domain, of a Gumbel mechanism's items (with their counts, if released), or of
            all items above the threshold of a Laplace mechanism.
        head: with labels and sums, as from `head_of`.
        neighbour: the head of a table with one user more or less, with labels and sums.
        epsilon: at least 0.

    Raises:
        InputError: sums of the k largest items of a Laplace mechanism, whose audit covers only sums of all items; or
            values share a part of their noise.
    """
    noise = mechanism.released_noise()
    ranked = None if isinstance(mechanism, ListedSums) else mechanism.ranking
    counted = ranked.count_noise() if isinstance(ranked, KnownGumbel) else None
    if isinstance(noise, SharedNoise) or isinstance(counted, SharedNoise):
        raise InputError("the values share a part of their noise, and the audit covers independent noise only")
    steps: list[Step] = [(noise, _by_label(head, head.sums), _by_label(neighbour, neighbour.sums))]
    if isinstance(mechanism, ListedSums):
        certain: Mapping[Hashable, float] = {(0, head.labels, False): 1.0}
        return _divergence(certain, certain, steps, epsilon)
    ranking = mechanism.ranking
    if isinstance(ranking, KnownLaplace | UnknownLaplace) and ranking.k is None:
        return values_divergence(ranking, head, neighbour, epsilon, noise)
    if not isinstance(ranking, KnownGumbel | UnknownGumbel):
        raise InputError(f"the outcomes of {mechanism.name} with a k are not enumerated")
    if ranking.counts is not None:
        counted = count_noise(ranking.counts, ranking.epsilon, ranking.rows_per_group)
        steps.append((counted, _by_label(head, head.counts), _by_label(neighbour, neighbour.counts)))
    return _divergence(distribution(ranking, head), distribution(ranking, neighbour), steps, epsilon)


def _by_label(head: ExactHead, values: NDArray[np.int64] | None) -> Mapping[str, int]:
    if values is None:
        raise InputError("an audit of sums needs heads with sums")
    return dict(zip(head.labels, values.tolist(), strict=True))


def _divergence(
    one: Mapping[Hashable, float], other: Mapping[Hashable, float], steps: list[Step], epsilon: float
) -> float:
    """Return the divergence, in both directions, of outcomes (cut-off, labels, reached) with noisy values."""
    beside: dict[frozenset[str], tuple[NDArray[np.float64], NDArray[np.float64]]] = {}
    factor = math.exp(epsilon)
    one_head, other_head = (values.keys() for values in steps[0][1:])
    backward = forward = ROUNDING
    for outcome in {**one, **other}:
        labels = frozenset(outcome[1])  # type: ignore[index]
        if labels not in beside:
            # the joint distributions of the independent noises, by likelihood ratio
            common = sorted(labels & one_head & other_head)
            around = moved = np.ones(1)
            for noise, shift in ((noise, b[i] - a[i]) for noise, a, b in steps for i in common):
                if shift:
                    before, after = moved_noise(noise, shift)
                    around, moved = merge_equal_ratios(np.outer(around, before), np.outer(moved, after))
            beside[labels] = around, moved
        p = one.get(outcome, 0.0) * beside[labels][0]
        q = other.get(outcome, 0.0) * beside[labels][1]
        forward += float(np.maximum(p - factor * q, 0).sum())
        backward += float(np.maximum(q - factor * p, 0).sum())
    return max(forward, backward)
