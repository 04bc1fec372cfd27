"""The default release: one round, two rounds, or the head, by how many items users have (docs/mechanisms/auto.md)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import ClassVar, Self

import numpy as np

from discreet.accounting.convert import floor_bits
from discreet.accounting.gaussian import epsilon_of_branch, mu_gaussian, rho_after_second_test, rho_of_branch
from discreet.accounting.laplace import rho_laplace
from discreet.mechanisms.base import UNNAMED, Expectation, Likely, Request, WithoutSteps
from discreet.mechanisms.light import MAX_HIDDEN, SPLIT, Cap, Light, mean_sizes
from discreet.mechanisms.select_verify import SelectVerify
from discreet.mechanisms.two_round import (
    COST_UNIT,
    SCALES,
    SECOND_EVIDENCE,
    USERS_PER_SECOND_HISTOGRAM,
    Ints,
    Sizes,
    TwoRound,
    add_noise,
    are_few,
    believable,
    continued,
    most_second,
    second_epsilon,
    with_likely_tail,
)
from discreet.mechanisms.unknown_gumbel import AnchoredGumbel
from discreet.noise import Bits, DiscreteLaplace
from discreet.noise.bits import PrefixedBits
from discreet.values import MAX_BASKET, WEIGHT_UNIT, Cost, ExactHead, HeadAndPairs, Outcome, UserItemPairs, float_below

USERS_PER_NOISE = 285
"""The least ratio of users to the first round's noise per item, in users, at which two rounds are chosen: below it,
the head mostly has more accurate counts (docs/accuracy.md)."""

FEWER_USERS_PER_NOISE = 130
"""From this ratio on, two rounds are chosen for a release without a k if the count at `RANK` is at most `POPULAR` of
the users: where most users have the same items, the head has more counts."""

USERS_PER_SECOND_NOISE = 105
"""From this ratio of users to the second round's noise on, two rounds are chosen in the same way: clipping takes little
where all users have about as many items."""

RANK = 50
"""The rank of the count that decides between the head and two rounds."""

POPULAR = 0.2
"""The largest such count, relative to the users, with which two rounds are chosen."""

BRANCH_LOST = Fraction(1, 5)
"""Share of delta for the labels of the head or the race."""

GAP_SHARE = Fraction(1, 100)
"""Share of mu^2 for the noisy gap between count k and the cut-off."""

SIGNAL_SHARE = Fraction(1, 500)
"""Share of mu^2 for one noisy number after the histogram: the rest of the items, or the count at a rank."""

DENSE = 32
"""One round is not taken if hardly any user has an item that is not among so many: two rounds clip no user there."""

DENSE_EVIDENCE = 2.0
"""The sum over other items is taken for 0 up to so many standard errors, if 20 times as many are at most all users."""

PRECISE_RACE = Fraction(1, 10)
"""A race is taken without a query of pairs if its error, relative to the gap, is at most this per relative error."""

TAIL_MATTERS = 1.9
"""The head is chosen as well if a tail of the histogram that noise may hide lowers that ratio by more than this."""

TYPICAL_COUNTS = 10_000
"""A price names the race first if it would be taken for count k of a table whose counts are this over the rank."""

TWO_ROUND_SHARE = Fraction(24, 25)
"""Share of delta that the two rounds may use; the remainder covers worse outcomes of the other branches."""

HEAD_SHARE = Fraction(199, 200)
"""Share of delta that two rounds and the head may use together; the remainder covers worse outcomes of one round."""

LIGHT_LOST = Fraction(3, 10)
"""Share of delta for the labels of one round."""

USERS_PER_CLIPPING = 300
"""The least ratio of users to the noise of a bin of the histogram at which two rounds are chosen, if most users have
one item, no cap is possible, and most of the counts are those of few items."""

FEWER_USERS_PER_CLIPPING = 150
"""The same if a larger share of the users than `MOST` has one or two items, whatever items have the counts."""

MOST = 0.6
"""The largest share of users with one or two items at which the others, who are visible, have so many of the pairs that
noise hardly hides most of them."""

HIDDEN_ITEMS = 16
"""A user's items above a cap from 2 on are counted up to this number: of a few users with more, whom noise hides, a cap
takes most, and a table where all users have one item hardly has any."""

USERS_PER_HIDDEN_USER = 400
"""The noise of that count, in users with so many items above the cap, is at least this part of all users."""

HIDDEN_SHARE = Fraction(1, 32)
"""The largest share of the epsilon of one round for it."""

HIDDEN_EVIDENCE = 2.5
"""One round is not taken if it is more standard errors above what the histogram shows."""

FEW_ITEMS = 16
"""Two rounds are chosen there if hardly any user has an item that is not among so many."""

STEEP = 0.5
"""The largest share of the users, by their capped sums, that other items than these may have for the head."""


@dataclass(frozen=True, slots=True)
class Auto(WithoutSteps):
    """Measure how many items users have, then release by one round, two rounds or from the head.

    The choice depends on one noisy histogram: one round of sums with Laplace noise where users have few items, the head
    where few users have many, and otherwise two rounds, which need the histogram anyway. For a top k there is a fourth
    branch, tried first because it needs the head only: a race for k places, which is complete and more precise where
    the k-th count is far enough above the cut-off.

    Args:
        two_round: the branch of two rounds; its budget includes the histogram.
        head: the branch of the head; its budget does not include the histogram.
        light: the branch of one round; its budget does not include the histogram.
        second_head: the head after a second histogram, which its budget does not include.
        race: the branch for a top k, or None without a k; its budget is that of the head.
        second_race: that branch with the budget of the second head.
        epsilon: epsilon of the exact (epsilon, delta) theorem, if it determined the branches' budgets.
        delta: delta of that theorem; 0 without it.
    """

    two_round: TwoRound
    head: SelectVerify
    light: Light
    second_head: SelectVerify = field(metadata=UNNAMED)
    race: AnchoredGumbel | None = None
    second_race: AnchoredGumbel | None = field(default=None, metadata=UNNAMED)
    epsilon: Fraction | None = None
    delta: Fraction = Fraction(0)

    name: ClassVar[str] = "auto"
    lossless: ClassVar[bool] = False

    @classmethod
    def within_cost(cls, limit: Cost, request: Request) -> Self:
        """Return the instance whose branches may spend *limit* each, with the histogram and the gap before them."""
        two_round = _two_round(limit, request)
        rest = Cost.at_most(limit.rho - _tests(two_round), limit.delta)
        light = Light.within_cost(rest, request)
        return cls._of(two_round, rest, light, rest.rho - rho_laplace(most_second(light.epsilon), 1), request)

    @classmethod
    def at_epsilon(cls, epsilon: Fraction, delta: Fraction, request: Request) -> Self | None:
        """Return the instance that is (epsilon, delta)-DP by docs/mechanisms/two_round.md, Theorem 2.

        Returns None for noise that is not Gaussian, and if epsilon leaves no budget for the other branches.
        """
        if request.noise != "gaussian":
            return None
        mu = mu_gaussian(float(epsilon), float_below(delta * TWO_ROUND_SHARE))
        two_round = _two_round(Cost.at_most(Fraction(mu) ** 2 / 2, delta), request)
        test = math.sqrt(2 * _tests(two_round)) * (1 + 1e-12)
        lost, lost_head, lost_light = (
            float(part) * (1 + 1e-12) for part in (two_round.lost, delta * BRANCH_LOST, delta * LIGHT_LOST)
        )
        rho = rho_of_branch(float(epsilon), float_below(delta * HEAD_SHARE), mu, test, lost, lost_head)
        alone = epsilon_of_branch(float(epsilon), float_below(delta), mu, test, lost, rho, lost_head, lost_light)
        if rho == 0 or alone == 0:
            return None
        rest = Cost.at_most(floor_bits(Fraction(rho)), delta * BRANCH_LOST)
        light = Light(
            floor_bits(Fraction(alone)), delta * LIGHT_LOST, request.relative_error, request.counts, request.k
        )
        second = float(most_second(light.epsilon)) * (1 + 1e-12)
        rho_second = rho_after_second_test(
            float(epsilon), float_below(delta), mu, test, lost, rho, lost_head, alone, lost_light, second
        )
        if rho_second == 0:
            return None
        auto = cls._of(two_round, rest, light, floor_bits(Fraction(rho_second)), request)
        return replace(auto, epsilon=epsilon, delta=delta)

    @classmethod
    def _of(cls, two_round: TwoRound, rest: Cost, light: Light, rho_second: Fraction, request: Request) -> Self:
        second = Cost.at_most(rho_second, rest.delta)
        head = SelectVerify.within_cost(rest, request)
        second_head = SelectVerify.within_cost(second, request)
        race = None if request.k is None else AnchoredGumbel.within_cost(rest, request)
        second_race = None if request.k is None else AnchoredGumbel.within_cost(second, request)
        return cls(two_round, head, light, second_head, race, second_race)

    def worst_cost(self) -> Cost:
        """Return the largest cost of a branch, with the histogram and the gap."""
        two_round = self.two_round.worst_cost()
        rest = self._worst_of_one_round_and_head()
        return Cost(max(two_round.rho + _tests_alone(self.two_round), rest.rho), max(two_round.delta, rest.delta))

    def _worst_of_one_round_and_head(self) -> Cost:
        """Return the largest cost of one round and of the head, with the histogram and the other tests."""
        second = self.second_head.worst_cost() + Cost(rho_laplace(most_second(self.light.epsilon), 1))
        branches = (self.light.worst_cost(), self.head.worst_cost(), second)
        rho = max(branch.rho for branch in branches) + _tests(self.two_round)
        return Cost(rho, max(self.delta, *(branch.delta for branch in branches)))

    def direct_epsilon(self) -> Fraction | None:
        """Return epsilon of the exact theorem, if it determined the branches' budgets."""
        return self.epsilon

    @property
    def head_limit(self) -> int:
        """The number of items that the branch of the head needs."""
        return self.head.head_limit

    def expectation(self) -> Expectation:
        """Return bounds that hold for all branches, and the probable range of each, the likeliest first."""
        branches = [self.two_round.expectation(), *self._of_head_and_one_round()]
        likely = [branch.likely[0] for branch in branches]
        if self.race is not None and self.second_race is not None:
            raced = self.race.expectation()
            # A second histogram follows only if a cap is possible.
            last = self.second_race.expectation() if self._may_cap() else raced
            smallest = raced.smallest_count or 0
            most = last.smallest_count or 0
            race = Likely(self.race.name, raced.max_std_error, last.max_std_error, None, smallest, most)
            typical = TYPICAL_COUNTS / self.race.k
            first = smallest <= typical and self._is_precise(self.race, typical)
            likely.insert(0 if first else len(likely), race)
            branches.append(raced)
        errors = [branch.min_std_error for branch in branches if branch.min_std_error is not None]
        counts = [branch.smallest_count for branch in branches if branch.smallest_count is not None]
        return Expectation(min(errors, default=None), None, min(counts), likely=tuple(likely))

    def _may_cap(self) -> bool:
        """Return whether one round has less noise than two rounds for any cap."""
        return bool(self.light.possible(float(self.two_round.mu)))

    def _of_head_and_one_round(self) -> list[Expectation]:
        """Return what the head may deliver; if a cap is possible, also after a second histogram, and one round."""
        head = self.head.expectation()
        if not self._may_cap():
            return [head]
        (likely,) = head.likely
        most = self.second_head.expectation().likely[0].max_smallest_count
        return [replace(head, likely=(replace(likely, max_smallest_count=most),)), self.light.expectation()]

    def release(self, pairs: HeadAndPairs, bits: Bits) -> Outcome:
        """Release; the outcome names the chosen branch. Its positions are rows of the head if no pairs were queried."""
        gap = 0
        complete = None
        if self.race is not None:
            head = pairs.head(self.head_limit)
            gap, needed = self._gap(self.race, head, bits)
            if gap >= needed:
                complete = self._why_complete(gap, needed)
                if self._is_precise(self.race, gap):
                    return self._with_tests(self.race.release(head, bits), self.race.name, complete)
        sizes = self.two_round.measure_sizes(pairs, bits)
        error = self.two_round.histogram_error
        few = are_few(sizes.by_size, error)
        leads = not few and self.two_round.leads(sizes, gap)
        cap, signal = self._cap(sizes, pairs, bits, split=not leads)
        if cap is not None:
            if are_few(sizes.by_size, error, USERS_PER_SECOND_HISTOGRAM):
                return self._second(sizes, gap, pairs, bits)
            # Two rounds clip users whom noise hides unless items are very few.
            most = FEW_ITEMS if are_few(sizes.by_size, error, FEWER_USERS_PER_CLIPPING) else DENSE
            outcome = self._one_round(cap, sizes, gap, signal, most, pairs, bits)
            if outcome is not None:
                return outcome
        if self.race is not None and complete and not (leads and self.two_round.leading_error < self.race.std_error):
            numbers, head = self._head_of(pairs)
            outcome = self.race.release(head, bits)
            outcome = self._with_tests(outcome, self.race.name, complete)
            return replace(outcome, positions=numbers[outcome.positions])
        # Numbers of items that do not fall from one on hardly have a tail that noise could hide.
        many_hidden = are_few(sizes.by_size, error, FEWER_USERS_PER_CLIPPING, MOST)
        may_hide = many_hidden or (sizes.users < USERS_PER_CLIPPING * error and 2 * sizes.by_size[0] > sizes.users)
        needs_rest = self.race is None and cap is None and not few and may_hide
        # The rest of the items and the count at the rank are paid once, so that there is never both.
        has_rest = needs_rest or cap is not None
        tail_matters = sizes.users_per_noise > TAIL_MATTERS * sizes.continued_per_noise
        # Where the counts are those of many items, two rounds have more of them, which are small.
        most_rest = math.inf if many_hidden else STEEP * sizes.users
        hides = few or (needs_rest and self._is_steep(most_rest, sizes, pairs, signal, bits)) or tail_matters
        many = sizes.users_per_noise >= USERS_PER_NOISE and not hides
        measured = f"about {sizes.users:,.0f} users, and noise of {sizes.scale:,.1f} users per item in the first round"
        if not (leads or many):
            numbers, head = self._head_of(pairs)
            enough = sizes.users_per_noise >= FEWER_USERS_PER_NOISE
            enough = enough or self.two_round.users_per_second_noise(sizes) >= USERS_PER_SECOND_NOISE
            enough = enough and not hides and self.race is None
            if not enough or not (has_rest or self._count_at_rank(head, signal, bits) <= POPULAR * sizes.users):
                why = f"few users for the number of items they have: {measured}"
                outcome = self._with_tests(self.head.release(head, bits), self.head.name, why)
                return replace(outcome, positions=numbers[outcome.positions])
        outcome = self.two_round.release_after(sizes, pairs, bits)
        large = "" if outcome.why is None else f"; {outcome.why}"
        return replace(
            outcome,
            cost=outcome.cost + Cost(_tests_alone(self.two_round)),
            chosen=self.two_round.name,
            why=f"{'many' if many else 'enough'} users for the number of items they have: {measured}{large}",
        )

    def _is_precise(self, race: AnchoredGumbel, gap: float) -> bool:
        """Return whether a race is taken without a query of pairs, if count k is *gap* above the cut-off."""
        return race.counts is None or race.std_error <= PRECISE_RACE * self.light.relative_error * gap

    def _cap(self, sizes: Sizes, pairs: UserItemPairs, bits: Bits, *, split: bool) -> tuple[Cap | None, int]:
        """Return the cap of one round, or None, and what is left for the number that follows.

        Args:
            sizes: the noisy histogram of users by their number of items.
            pairs: the pairs.
            split: True to measure the users with 3 to 8 items where a cap of more than 2 may be possible.

        Returns:
            the cap, and a cost in units of 1 / `COST_UNIT`.
        """
        mu = float(self.two_round.mu)
        signal = _share_precision(self.two_round, SIGNAL_SHARE)
        few = are_few(sizes.by_size, self.two_round.histogram_error, USERS_PER_SECOND_HISTOGRAM)
        cap = self.light.cap(sizes, mu, most_hidden=math.inf if few else MAX_HIDDEN)
        enough = 20 * DENSE_EVIDENCE * math.sqrt(2 * COST_UNIT / signal) <= sizes.users
        if cap is None and enough and split and self.light.may_have_cap(sizes, mu):
            signal //= 2  # the rest is for the number that follows
            users = pairs.users_by_size(SPLIT)[1:-1]
            noisy = add_noise(users, 1, np.full(len(users), signal), bits, "split of sizes")
            cap = self.light.cap(sizes, mu, noisy.astype(np.float64))
        return cap, signal

    def _second(self, sizes: Sizes, gap: int, pairs: HeadAndPairs, bits: Bits) -> Outcome:
        """Release by one round, or from the head or by a complete race, as a second histogram says."""
        bits = PrefixedBits(bits, 2)  # apart from those of one round with all of its epsilon
        cap, light, spent = self._measure_again(sizes, pairs, bits)
        if cap is not None:
            outcome = light.release(cap, pairs, bits)
            return self._with_tests(replace(outcome, cost=outcome.cost + spent), "light", cap.why)
        why = "few users, and a second count of their numbers of items shows that too many have many"
        return self._head_or_race(gap, spent, why, pairs, bits)

    def _head_or_race(self, gap: int, spent: Cost, why: str, pairs: HeadAndPairs, bits: Bits) -> Outcome:
        """Release from the head, or by a complete race, after a second test that cost *spent*."""
        numbers, head = self._head_of(pairs)
        chosen: SelectVerify | AnchoredGumbel = self.second_head
        if self.second_race is not None and gap >= (needed := self._needed(self.second_race)):
            chosen = self.second_race
            why = self._why_complete(gap, needed)
        outcome = chosen.release(head, bits)
        outcome = replace(outcome, positions=numbers[outcome.positions], cost=outcome.cost + spent)
        return self._with_tests(outcome, chosen.name, why)

    def _measure_again(self, sizes: Sizes, pairs: UserItemPairs, bits: Bits) -> tuple[Cap | None, Light, Cost]:
        """Count users by their number of items again, with less noise, which one round pays with a part of its epsilon.

        Returns:
            the cap of one round, or None; one round with the rest of epsilon; and the cost of the second histogram.
        """
        epsilon = second_epsilon(self.light.epsilon, sizes.users)
        noise = DiscreteLaplace(1 / epsilon)
        users = pairs.users_by_size(2 ** np.arange(SCALES)) + noise.draw(bits, "sizes again", SCALES)
        noisy = users.astype(np.float64)
        by_size = believable(noisy, noise.std, SECOND_EVIDENCE)
        tail = continued(noisy, noise.std, SECOND_EVIDENCE, 1.0)
        likely = with_likely_tail(noisy, noise.std, SECOND_EVIDENCE)
        again = replace(sizes, by_size=by_size, continued=tail, likely=likely, stray=0.0)
        light = replace(self.light, epsilon=self.light.epsilon - epsilon)
        return self.light.cap(again, float(self.two_round.mu)), light, Cost(rho_laplace(epsilon, 1))

    def _one_round(
        self, cap: Cap, sizes: Sizes, gap: int, signal: int, most: int, pairs: HeadAndPairs, bits: Bits
    ) -> Outcome | None:
        """Release by one round, or from the head or by a complete race if hidden users have too many items for it.

        Returns None if hardly any user has an item outside the *most* largest.
        """
        epsilon = Fraction(0) if cap.items == 1 else hidden_epsilon(self.light.epsilon, sizes.users)
        watched = _Watched(pairs, most)
        light = replace(self.light, epsilon=self.light.epsilon - epsilon)
        outcome = light.release(cap, watched, bits)
        rest = self._noisy_rest(watched.rest, cap.items, signal, bits)
        if self._is_dense(rest, sizes, signal):
            return None  # what was computed is not shown
        if epsilon == 0:
            return self._with_tests(outcome, "light", cap.why)
        spent = Cost(rho_laplace(epsilon, 1))
        if self._hides(cap, epsilon, sizes, pairs, bits):  # neither is it here
            why = f"some users have many items, most of which a cap at {cap.items} would take"
            return self._head_or_race(gap, spent, why, pairs, bits)
        return self._with_tests(replace(outcome, cost=outcome.cost + spent), "light", cap.why)

    def _hides(self, cap: Cap, epsilon: Fraction, sizes: Sizes, pairs: UserItemPairs, bits: Bits) -> bool:
        """Return whether users have more items above *cap* than the histogram shows, by a count with noise.

        At most `HIDDEN_ITEMS` of each user count, so that one user moves it by no more.
        """
        noise = DiscreteLaplace(HIDDEN_ITEMS / epsilon)
        above = np.arange(HIDDEN_ITEMS + 1)
        noisy = int(pairs.users_by_size(cap.items + above) @ above + noise.draw(bits, "items above the cap", 1)[0])
        shown = sizes.by_size @ np.clip(mean_sizes(len(sizes.by_size)) - cap.items, 0, HIDDEN_ITEMS)
        return noisy - float(shown) > HIDDEN_EVIDENCE * noise.std

    def _is_steep(self, most: float, sizes: Sizes, pairs: UserItemPairs, signal: int, bits: Bits) -> bool:
        """Return whether the items but the `FEW_ITEMS` largest have a part of the counts, and not too large a one.

        Args:
            most: the largest sum of theirs that is not too large, by one item of each user.
            sizes: the noisy histogram of users by their number of items.
            pairs: the pairs.
            signal: the cost of the noisy sum, in units of 1 / `COST_UNIT`.
            bits: source of the noise.
        """
        watched = _Watched(pairs, FEW_ITEMS)
        for _ in watched.capped_sums(1):
            pass  # the rest is added up meanwhile
        rest = self._noisy_rest(watched.rest, 1, signal, bits)
        return rest <= most and not self._is_dense(rest, sizes, signal)

    def _noisy_rest(self, rest: int, cap: int, signal: int, bits: Bits) -> float:
        """Return the sum over all but the largest items, in units of the cap, with noise.

        One user moves it by at most the cap: it is the least sum that is left without any items of that number.
        """
        unit = WEIGHT_UNIT * cap
        return float(add_noise(np.array([rest]), unit, np.array([signal]), bits, "rest of items")[0]) / unit

    def _is_dense(self, rest: float, sizes: Sizes, signal: int) -> bool:
        """Return whether hardly any user has an item outside the largest; False if the noise is too large to decide."""
        std = math.sqrt(COST_UNIT / signal)
        return rest <= DENSE_EVIDENCE * std and 20 * DENSE_EVIDENCE * std <= sizes.users

    def _head_of(self, pairs: HeadAndPairs) -> tuple[Ints, ExactHead]:
        """Return the numbers of the largest items of the pairs, and their counts as a head."""
        numbers, counts = _largest_counts(pairs, self.head_limit + 1)
        return numbers, ExactHead(counts, self.head_limit)

    def _count_at_rank(self, head: ExactHead, precision: int, bits: Bits) -> float:
        """Return the count at `RANK`, or that below the cut-off, with noise; one user moves it by at most 1."""
        count = head.count_at(min(RANK, self.head_limit + 1))
        return float(add_noise(np.array([count]), 1, np.array([precision]), bits, "rank")[0])

    def _gap(self, race: AnchoredGumbel, head: ExactHead, bits: Bits) -> tuple[int, int]:
        """Return the noisy gap between count k and the cut-off, and the least gap for a complete race.

        One user moves both counts by 0 or 1 in the same direction, so it moves their difference by at most 1.
        """
        precision = _share_precision(self.two_round, GAP_SHARE)
        exact = np.array([head.count_at(race.k) - head.count_at(self.head_limit + 1)])
        gap = add_noise(exact, 1, np.array([precision]), bits, "gap")
        return int(gap[0]), self._needed(race)

    def _needed(self, race: AnchoredGumbel) -> int:
        """Return the least noisy gap for a complete race."""
        std = math.sqrt(COST_UNIT / _share_precision(self.two_round, GAP_SHARE))
        threshold = race.expectation().smallest_count or 0
        return math.ceil(threshold + 3 / float(race.epsilon) + 1.5 * std)

    def _why_complete(self, gap: int, needed: int) -> str:
        """Return why a race is complete."""
        k = self.head.k
        return f"count {k} is about {gap:,} above the cut-off; {needed:,} are enough to release all {k}"

    def _with_tests(self, outcome: Outcome, chosen: str, why: str) -> Outcome:
        """Charge *outcome* with both tests: Theorem 2 holds as if sizes were always measured."""
        cost = outcome.cost + Cost(_tests(self.two_round))
        return replace(outcome, cost=cost, chosen=chosen, why=why)


def hidden_epsilon(epsilon: Fraction, users: float) -> Fraction:
    """Return what the count of items above a cap takes of *epsilon*, that of one round, as `most_second` allows."""
    needed = Fraction(USERS_PER_HIDDEN_USER * math.sqrt(2) / max(users, 1.0))
    return min(epsilon * HIDDEN_SHARE, most_second(epsilon), needed)


class _Watched:
    """Capped sums of pairs, and the rest: the sum of all but the largest of the sums that were yielded.

    Args:
        pairs: the pairs.
        left_out: the number of the largest sums that the rest does not have.
    """

    def __init__(self, pairs: UserItemPairs, left_out: int) -> None:
        self._pairs = pairs
        self._left_out = left_out
        self._largest = np.zeros(0, dtype=np.int64)
        self.rest = 0

    def capped_sums(self, cap: int) -> Iterator[Ints]:
        """Yield the capped sums of the pairs."""
        for sums in self._pairs.capped_sums(cap):
            ordered = np.append(self._largest, sums)
            if len(ordered) > self._left_out:
                ordered = np.partition(ordered, -self._left_out)
            self._largest = ordered[-self._left_out :]
            self.rest += int(ordered[: -self._left_out].sum())
            yield sums


def _largest_counts(pairs: UserItemPairs, limit: int) -> tuple[Ints, Ints]:
    """Return the items with the *limit* largest counts of users, and these counts, descending; ties by number."""
    items = np.zeros(0, dtype=np.int64)
    counts = np.zeros(0, dtype=np.int64)
    number = 0
    for sums in pairs.weighted_sums(float(MAX_BASKET)):  # a limit that no user reaches
        items = np.append(items, np.arange(number, number + len(sums)))
        counts = np.append(counts, sums // (WEIGHT_UNIT - 1))
        number += len(sums)
        order = np.argsort(-counts, kind="stable")[:limit]
        items = items[order]
        counts = counts[order]
    return items, counts


def _two_round(limit: Cost, request: Request) -> TwoRound:
    share = _shares(request.k)
    return TwoRound.within_cost(Cost.at_most(limit.rho * (1 - share), limit.delta), request)


def _shares(k: int | None) -> Fraction:
    """Return the share of mu^2 for the tests beside the histogram."""
    return SIGNAL_SHARE + (0 if k is None else GAP_SHARE)


def _share_precision(branch: TwoRound, share: Fraction) -> int:
    """Return the cost of a test with a *share* of mu^2, in units of 1 / `COST_UNIT`."""
    return int(branch.mu**2 * COST_UNIT * share / (1 - _shares(branch.k)))


def _tests(branch: TwoRound) -> Fraction:
    """Return the rho of the histogram and of the other tests."""
    return Fraction(branch.budget.histogram, 2 * COST_UNIT) + _tests_alone(branch)


def _tests_alone(branch: TwoRound) -> Fraction:
    """Return the rho of the tests beside the histogram, which two rounds pay themselves."""
    gap = Fraction(0) if branch.k is None else GAP_SHARE
    return Fraction(sum(_share_precision(branch, share) for share in (SIGNAL_SHARE, gap)), 2 * COST_UNIT)
