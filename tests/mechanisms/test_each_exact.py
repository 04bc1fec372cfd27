"""An exact audit of releases over segments, adaptive ones too, with controls that must fail."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest

from discreet.errors import InvariantViolated
from discreet.head_request import SumBounds
from discreet.mechanisms import Each, KnownLaplace, Request, UnknownGumbel, each
from discreet.mechanisms.sums import ListedSums
from discreet.noise import KeyedBits
from discreet.noise.bits import PrefixedBits
from discreet.values import Cost, ExactHead, Outcome, Sensitivity

pytestmark = pytest.mark.exact

SEGMENTS = ("a", "b")


class PaysForAnswers:
    """Answers a noisy bit, and after a yes one more. Each bit is ln(3)-private and costs one unit of rho."""

    name, lossless, head_limit = "pays", True, 1

    def worst_cost(self):
        """Return two units."""
        return Cost(Fraction(2))

    def release(self, head, bits):
        """Release a position for each yes; three of four words say yes if the user is there, otherwise one."""
        said = []
        for label in ("first", "second"):
            said.append(int(bits.uint64(label, 1)[0]) < (3 if head.counts[0] else 1))
            if not said[-1]:
                break
        cost = Cost(Fraction(len(said)))
        return Outcome(np.zeros(sum(said), dtype=np.int64), ordered=True, complete=True, cost=cost)


class Enumerated:
    """A source whose words are one of four, in the given order; it refuses a label twice."""

    def __init__(self, words):
        self.words, self.labels = words, []

    def uint64(self, label, n, start=0):
        """Return the next word, or stop the run if there is none."""
        assert (n, start) == (1, 0)
        assert label not in self.labels
        if len(self.labels) == len(self.words):
            raise StopIteration
        self.labels.append(label)
        return np.array([self.words[len(self.labels) - 1]], dtype=np.uint64)


class SharedNoise:
    """A defect: the bits of all segments are the same, because the label lacks the segment."""

    def __init__(self, bits, number):
        self.bits, self.number = bits, number

    def uint64(self, label, n, start=0):
        """Draw a label once, and return the same word for every segment."""
        drawn = self.bits.__dict__.setdefault("drawn", {})
        if label not in drawn:
            drawn[label] = self.bits.uint64(label, n, start)
        return drawn[label]


def released(present):
    """Return the probability and the charge of each answer where the user is in the segments *present*, exactly."""
    head = ExactHead(np.array([name in present for name in SEGMENTS], dtype=np.int64), 1, ends=(1, 2))
    found, runs = {}, [()]
    while runs:
        words = runs.pop()
        source = Enumerated(words)
        try:
            outcome = Each(PaysForAnswers(), 2).release(head, source)
        except StopIteration:
            runs += [(*words, word) for word in range(4)]
        else:
            answer = (tuple(outcome.positions.tolist()), outcome.cost.rho)
            found[answer] = found.get(answer, Fraction(0)) + Fraction(1, 4 ** len(words))
    assert sum(found.values()) == 1
    return found


def divergence(user, limit):
    """Return the hockey-stick divergence at epsilon = *limit* units, with as many releases as the charges allow.

    The worst case of the next release is reserved, so the charge may depend on the answers.
    """

    def after(p, q, spent, laws):
        best = max(p - Fraction(3) ** limit * q, Fraction(0))
        if spent + 2 <= limit:
            answers = {*laws[0], *laws[1]}
            next_ = (after(p * laws[0].get(a, 0), q * laws[1].get(a, 0), spent + a[1], laws) for a in sorted(answers))
            best = max(best, sum(next_, Fraction(0)))
        return best

    laws = released(user), released("")
    return max(after(Fraction(1), Fraction(1), 0, pair) for pair in (laws, laws[::-1]))


@pytest.mark.parametrize("limit", [2, 3, 4, 5])
@pytest.mark.parametrize("user", SEGMENTS)
def test_releases_over_segments_keep_the_limit_when_they_charge_the_most_that_a_segment_cost(user, limit):
    """Theorem 1 of each.md: releases that follow from answers, charged their largest segment, diverge by exactly 0."""
    assert divergence(user, limit) == 0


@pytest.mark.parametrize("limit", [3, 4, 5])
def test_charging_the_smallest_segment_breaks_the_limit(limit, monkeypatch):
    """A control of the audit: the charge must be the maximum."""
    monkeypatch.setattr(each, "max", min, raising=False)
    assert divergence("a", limit) > Fraction(1, 20)


@pytest.mark.parametrize("limit", [2, 3, 4])
def test_a_user_in_two_segments_breaks_the_limit(limit):
    """A control of the audit: engines must keep a single segment of each user."""
    assert divergence("ab", limit) > Fraction(1, 10)


@pytest.mark.parametrize("limit", [2, 3, 4])
def test_the_same_noise_in_two_segments_breaks_the_limit(limit, monkeypatch):
    """A control of the audit: the answer of one segment would tell the noise of the other."""
    monkeypatch.setattr(each, "PrefixedBits", SharedNoise)
    assert divergence("a", limit) > Fraction(1, 4)


def test_rho_and_delta_are_each_the_largest_of_a_segment():
    """A segment that costs the most rho need not be the one that loses the most mass."""
    costs = [Cost(Fraction(1), Fraction(1, 10**6)), Cost(Fraction(3)), Cost(Fraction(2), Fraction(1, 10**3))]

    class Costs(PaysForAnswers):
        def release(self, head, bits):
            del bits
            return Outcome(np.zeros(0, dtype=np.int64), ordered=True, complete=False, cost=costs[int(head.counts[0])])

    head = ExactHead(np.arange(3), 1, ends=(1, 2, 3))
    assert Each(Costs(), 3).release(head, bits_of()).cost == Cost(Fraction(3), Fraction(1, 10**3))


def bits_of(context="each"):
    """Return bits from a fixed key."""
    return KeyedBits(bytes(range(32)), context)


def gumbel(k=3):
    """Return UnkGumb for a head of ten items."""
    return UnknownGumbel.by_step(Fraction(1, 2), Fraction(1, 10**6), Request(k, 10, optimise_cutoff=True))


def test_segments_with_equal_counts_have_different_noise():
    """Their differences would otherwise be exact."""
    counts = np.array([5_000, 4_000, 3_000, 20, 20])
    found = Each(gumbel(), 2).release(ExactHead(np.tile(counts, 2), 10, ends=(5, 10)), bits_of())
    assert found.positions.tolist() == [0, 1, 2, 5, 6, 7]
    assert (found.counts[:3] != found.counts[3:]).any()


def test_a_segment_is_released_like_a_head_of_its_own():
    """Each segment, also an empty one, gets what its mechanism returns for its head and its bits."""
    parts = [np.array([9_000, 500, 400]), np.zeros(0, dtype=np.int64), np.array([7_000, 6_000])]
    ends = tuple(np.cumsum([len(part) for part in parts]).tolist())
    inner = gumbel()
    found = Each(inner, 3).release(ExactHead(np.concatenate(parts), 10, ends=ends), bits_of())
    alone = [inner.release(ExactHead(part, 10), PrefixedBits(bits_of(), n)) for n, part in enumerate(parts)]
    assert len(alone[1].positions) == 0
    for name in ("counts", "std_errors", "low", "high"):
        expected = np.concatenate([getattr(outcome, name) for outcome in alone])
        assert getattr(found, name).tolist() == expected.tolist()
    starts = (0, *ends)
    expected = np.concatenate([outcome.positions + start for outcome, start in zip(alone, starts, strict=False)])
    assert found.positions.tolist() == expected.tolist()
    assert found.cost.rho == max(outcome.cost.rho for outcome in alone)
    assert found.cost.within(Each(inner, 3).worst_cost())
    assert Each(inner, 3).worst_cost() == inner.worst_cost()
    assert found.complete is False  # the empty segment lacks items
    assert found.ordered is True


@pytest.mark.parametrize("segments", [1, 2])
def test_sums_of_segments_are_joined(segments):
    """They have values, errors and intervals of all segments, in their order."""
    summed = SumBounds(0, 10, column="x")
    request = Request(None, 2, Sensitivity(1), counts=False, known_domain=True, summed=summed)
    inner = ListedSums.within_cost(Cost(Fraction(1)), request)
    sums = np.array([30_000, 10_000, 20_000, 0])[: 2 * segments]
    ends = (2, 4)[:segments]
    outcome = Each(inner, segments).release(
        ExactHead(np.array([3, 1, 2, 0])[: ends[-1]], 2, sums=sums, ends=ends), bits_of()
    )
    assert outcome.complete is True
    found = outcome.measured
    assert found.name == "sum"
    assert [len(getattr(found, name)) for name in ("values", "std_errors", "low", "high")] == [2 * segments] * 4
    in_order = found.values[np.argsort(outcome.positions)]
    assert np.abs(in_order - sums).max() < 10 * found.std_errors.max()


def test_a_head_without_all_segments_is_refused():
    """A segment that is left out because it is empty would tell that it is."""
    inner = KnownLaplace.within_cost(Cost(Fraction(1)), Request(None, 1, Sensitivity(1), known_domain=True))
    heads = (ExactHead(np.array([1, 2]), 1, ends=(1, 2)), ExactHead(np.array([2, 1]), 1))
    for head, segments in itertools.product(heads, (1, 3)):
        with pytest.raises(InvariantViolated, match="part for every segment"):
            Each(inner, segments).release(head, bits_of())


@pytest.mark.parametrize("ends", [(1,), (1, 3), (2, 1, 2)])
def test_a_head_of_segments_holds_exactly_their_rows(ends):
    """Rows beyond the last segment, and segments that overlap, are refused."""
    with pytest.raises(InvariantViolated):
        ExactHead(np.array([2, 1]), 5, ends=ends)


def test_a_head_of_segments_has_no_single_order():
    """A mechanism of one head cannot release it by mistake."""
    head = ExactHead(np.array([1, 2]), 1, ends=(1, 2))
    assert [part.counts.tolist() for part in head.parts] == [[1], [2]]
    with pytest.raises(InvariantViolated, match="no single order"):
        gumbel().release(head, bits_of())


def test_bits_of_a_segment_are_those_of_no_other():
    """The number of the segment ends at the colon, and a label drawn twice is refused."""
    bits = bits_of()
    first = PrefixedBits(bits, 1).uint64("1: race", 4)
    assert first.tolist() != PrefixedBits(bits, 11).uint64("race", 4).tolist()
    with pytest.raises(InvariantViolated, match="drawn before"):
        PrefixedBits(bits, 1).uint64("1: race", 4)


def test_segments_state_the_part_of_their_noise_that_the_counts_of_each_share():
    """It is that of every segment, since all have the same listed items."""
    inner = KnownLaplace(None, 4, 4, Fraction(3))
    outcome = Each(inner, 2).release(ExactHead(np.full(8, 50), 4, ends=(4, 8)), bits_of())
    assert outcome.shared_error == inner.count_noise().shared_std
