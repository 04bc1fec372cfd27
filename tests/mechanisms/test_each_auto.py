"""The items of each segment by auto: an exact audit of the histogram and what follows it, answers and prices."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from discreet.accounting.convert import limit_for
from discreet.accounting.laplace import rho_laplace
from discreet.engines.duckdb import DuckDBEngine
from discreet.errors import InexactHead
from discreet.mechanisms import Each, EachAuto, Request, SelectVerify, UnknownGumbel, auto, each, light, two_round
from discreet.mechanisms.auto import Auto
from discreet.mechanisms.light import Cap, Light
from discreet.mechanisms.two_round import COST_UNIT, most_second
from discreet.noise import DiscreteLaplace, KeyedBits
from discreet.release.keys import RecordedPairs
from discreet.testing import pairs as reference
from discreet.testing.pairs import ArrayPairs, ArraySegments
from discreet.values import Cost, Outcome
from tests.queries import query_of

DELTA = Fraction(1, 10**8)
UNIT = 16
"""The unit of weights in the audit, small enough to enumerate all noise."""

PAIRS = [(segment, item) for segment in range(2) for item in range(2)]


def bits(run=0):
    """Return bits that follow from *run*."""
    return KeyedBits(b"a secret for the segments of a release", run)


def made(epsilon=1.0, k=None, segments=2, head_limit=10):
    """Return the release of *segments* at *epsilon*."""
    return EachAuto.of(Auto.at_epsilon(Fraction(epsilon), DELTA, Request(None, head_limit)), segments, k)


class Kept(ArraySegments):
    """Pairs of users, given by their (segment, item) pairs, that keep what was read of them last."""

    def __init__(self, baskets):
        rows = [(user, *pair) for user, basket in enumerate(baskets) for pair in basket]
        super().__init__(*zip(*rows, strict=True))

    def capped_sums(self, cap):
        """Return and keep the sums."""
        sums = np.concatenate(list(super().capped_sums(cap)))
        self.sums = np.zeros(len(PAIRS), dtype=np.int64)
        self.sums[self._numbers] = sums
        yield sums


def steps_of(mechanism, cap, baskets, monkeypatch, again=False):
    """Return the values and precisions of both histograms, and the sums with their noise, or the heads, that follow.

    Args:
        cap: the cap of one round, or None for the heads.
        again: True if there is a second histogram with Laplace noise after both, whose scale precedes that of the sums.
    """
    drawn, scales, parts = [], [], []

    def added(values, _unit, precisions, _bits, _label):
        drawn.append((values, int(precisions[0])))
        return values

    def laplace(self, _bits, _label, n, _first=0):
        scales.append(self.scale)
        return np.zeros(n, dtype=np.int64)

    def released(_self, head, _bits):
        parts.append(head.counts.tolist())
        return Outcome(np.zeros(0, dtype=np.int64), ordered=True, complete=False, cost=Cost())

    pairs = Kept(baskets)
    with monkeypatch.context() as patch:
        patch.setattr(light, "WEIGHT_UNIT", UNIT)
        patch.setattr(reference, "WEIGHT_UNIT", UNIT)
        patch.setattr(two_round, "add_noise", added)
        patch.setattr(auto, "add_noise", added)
        patch.setattr(auto, "DENSE_EVIDENCE", 0)  # the split of sizes is measured of few users as well
        patch.setattr(DiscreteLaplace, "draw", laplace)
        patch.setattr(SelectVerify, "release", released)
        patch.setattr(Light, "may_have_cap", lambda *_: True)
        chosen = None if cap is None else Cap(cap, 1.0, 0.0, 0.0)
        patch.setattr(each, "are_few", lambda *_: again)
        # Of three requests for a cap, the second has the split of sizes, and the third follows the second histogram.
        caps = iter([None, Cap(1, 1.0, 0.0, 0.0) if again else chosen, chosen])
        patch.setattr(Light, "cap", lambda *_, **__: next(caps))
        mechanism.release(pairs, bits())
        spent = 1 / scales[0] if again else 0
        rest = replace(mechanism.light, epsilon=mechanism.light.epsilon - spent)
        threshold = None if cap is None else rest._threshold(cap)
    assert len(drawn) == 2
    if again:
        return drawn, float(scales[0]), (parts if cap is None else (pairs.sums, float(scales[1]), threshold))
    return drawn, (parts if cap is None else (pairs.sums, float(scales[0]), threshold))


def pure(one, other, scale, threshold, levels):
    """Return delta at each of *levels* of the released sums of two neighbours, exactly but for rounding.

    Args:
        one: the sums with the noise, of which those of pairs that nobody has are not released.
        other: those of the neighbour.
        scale: of the Laplace noise.
        threshold: the least released sum.
    """
    z = np.arange(-int(45 * scale), int(45 * scale) + 1)
    mass = np.exp(-np.abs(z) / scale) * math.tanh(1 / (2 * scale))
    alone = [max(a, b) for a, b in zip(one, other, strict=True) if a != b and min(a, b) == 0]
    lost = 1 - math.prod(1 - float(mass[z >= threshold - value].sum()) for value in alone)
    losses, masses = np.zeros(1), np.ones(1)
    for a, b in zip(one, other, strict=True):
        if a != b and min(a, b) > 0:
            loss = np.round((np.abs(z - abs(a - b)) - np.abs(z)) / scale, 9)
            losses, where = np.unique(np.round(np.add.outer(losses, loss), 9), return_inverse=True)
            masses = np.bincount(where.ravel(), np.outer(masses, mass).ravel())
    return lost + np.array([masses @ np.maximum(-np.expm1(level - losses), 0) for level in levels.tolist()])


def zcdp(rho, levels):
    """Return a bound on delta at each of *levels* of what is *rho*-zCDP."""
    orders = 1 + np.exp(np.linspace(-3, 8, 200))
    exponent = (orders - 1) * (orders * rho - levels[:, None])
    return np.exp(np.minimum(0, (exponent + orders * np.log1p(-1 / orders) - np.log(orders - 1)).min(axis=1)))


def after_second_histogram(mechanism, runs, levels):
    """Return delta at each of *levels* of a second histogram, one bin of which moves by 1, and what follows it."""
    (_, scale, heads), (_, _, neighbours) = runs.pop(None)
    changed = sum(a != b for a, b in zip(heads, neighbours, strict=True))
    limit = mechanism.second_head.limit
    z = np.arange(-int(45 * scale), int(45 * scale) + 1)
    total = np.zeros(len(levels))
    for loss, mass in ((1 / scale, z <= 0), (-1 / scale, z > 0)):
        left = levels - loss
        curves = [zcdp(changed * float(limit.rho), left) + changed * float(limit.delta)] if changed else []
        for (_, _, (sums, of_sums, threshold)), (_, _, (more, _, _)) in runs.values():
            curves.append(pure(sums, more, of_sums, threshold, left))
        share = math.tanh(1 / (2 * scale)) * np.exp(-np.abs(z[mass]) / scale).sum()
        total += share * np.minimum(np.max(curves, axis=0), 1)
    return total


def worst_delta(mechanism, monkeypatch, epsilon=1.0):
    """Return the largest delta over neighbours, in both directions, of the histograms and what follows them."""
    edges = np.arange(-9, 9.01, 0.1)
    masses = np.diff(stats.norm.cdf(edges))
    found = []
    few, many = [PAIRS[:1], PAIRS[3:]], [PAIRS] * 20
    baskets = [PAIRS[:1], PAIRS[:2], PAIRS[::3], PAIRS[:3], PAIRS]
    for table, basket in itertools.product((few, many), baskets):
        for sides in ((table, [*table, basket]), ([*table, basket], table)):
            runs = {cap: [steps_of(mechanism, cap, side, monkeypatch) for side in sides] for cap in (None, 1, 2, 4)}
            (tests, heads), (others, neighbours) = runs.pop(None)
            cost = sum(p * ((a - b) ** 2).sum() for (a, p), (b, _) in zip(tests, others, strict=True)) / COST_UNIT
            levels = epsilon - (cost / 2 + math.sqrt(cost) * (edges[:-1] + 0.05))
            changed = sum(a != b for a, b in zip(heads, neighbours, strict=True))
            limit = mechanism.head.limit
            curves = [zcdp(changed * float(limit.rho), levels) + changed * float(limit.delta)] if changed else []
            for (_, (sums, scale, threshold)), (_, (more, _, _)) in runs.values():
                curves.append(pure(sums, more, scale, threshold, levels))
            again = {cap: [steps_of(mechanism, cap, side, monkeypatch, True) for side in sides] for cap in (None, 1, 2)}
            curves.append(after_second_histogram(mechanism, again, levels))
            found.append(float(masses @ np.minimum(np.max(curves, axis=0), 1)))
    return max(found)


@pytest.mark.exact
def test_the_histograms_and_the_worst_branch_are_private_together(monkeypatch):
    """Theorem 2 on small neighbours, in both directions: at most delta, of which at most a tenth is unused."""
    assert 0.9 * DELTA < worst_delta(made(), monkeypatch) <= DELTA


def _capless(monkeypatch):
    """Plant: weights are those of a cap that is twice as large."""
    plain = ArrayPairs.capped_sums
    monkeypatch.setattr(ArrayPairs, "capped_sums", lambda self, cap: plain(self, 2 * cap))


def _everywhere(monkeypatch):
    """Plant: a user counts in the heads of all segments."""
    plain = ArraySegments.head

    def head(self, limit):
        self._user, self._sizes = np.arange(len(self._user)), np.ones(len(self._user), dtype=np.int64)
        return plain(self, limit)

    monkeypatch.setattr(ArraySegments, "head", head)


def _low(monkeypatch):
    """Plant: the threshold is that of one pair of a user, whatever the cap is, and two users less."""
    plain = Light._threshold
    monkeypatch.setattr(Light, "_threshold", lambda self, _cap: plain(self, 1) - 2 * UNIT)


def _one_scale(monkeypatch):
    """Plant: every cap has the noise of a cap of one pair."""
    plain = Light._noise
    monkeypatch.setattr(Light, "_noise", lambda self, _cap: plain(self, 1))


@pytest.mark.exact
@pytest.mark.parametrize("planted", [_capless, _everywhere, _low, _one_scale])
def test_planted_defects_are_detected(planted, monkeypatch):
    """The audit sees sums above their cap, users of several segments, a low threshold and noise of too low a price."""
    planted(monkeypatch)
    assert worst_delta(made(), monkeypatch) > DELTA


@pytest.mark.exact
def test_budgets_that_forget_the_histograms_are_detected(monkeypatch):
    """Planted: one round with all of epsilon, and heads with the rho of a query without a test."""
    mechanism = made()
    assert worst_delta(replace(mechanism, light=replace(mechanism.light, epsilon=Fraction(1))), monkeypatch) > DELTA
    whole = replace(mechanism.head, limit=Cost(limit_for(1.0, DELTA).rho * Fraction(6, 5), DELTA / 5))
    assert worst_delta(replace(mechanism, head=whole), monkeypatch) > DELTA
    assert worst_delta(replace(mechanism, second_head=mechanism.head), monkeypatch) > DELTA


@pytest.mark.parametrize(("epsilon", "delta"), [("1/1000", "0.03"), ("1/4", "0.9"), ("1", "1e-8")])
def test_a_head_after_a_second_histogram_costs_no_more_than_is_reserved(epsilon, delta):
    """Also where delta is so large that the theorem allows it as much as the head without one."""
    mechanism = EachAuto.of(Auto.at_epsilon(Fraction(epsilon), Fraction(delta), Request(None, 10)), 2, None)
    spent = Cost(rho_laplace(most_second(mechanism.light.epsilon), 1))
    spent = spent + mechanism.second_head.limit
    outcome = Outcome(np.zeros(0, np.int64), ordered=True, complete=False, cost=spent)
    outcome = mechanism._with_tests(outcome, "head", "")
    assert outcome.cost.within(mechanism.worst_cost())


@pytest.mark.exact
def test_one_round_that_forgets_the_second_histogram_is_detected(monkeypatch):
    """Planted: it keeps all of its epsilon."""
    plain = EachAuto._measure_again
    monkeypatch.setattr(EachAuto, "_measure_again", lambda self, *args: (*plain(self, *args)[:1], self.light, Cost()))
    assert worst_delta(made(), monkeypatch) > DELTA


# ------------------------------------------------------------------------------------------------ answers


def rows_of(rng, users, segments, pairs):
    """Return users, segments and items of *users* with up to *pairs* pairs each, of segments of falling sizes."""
    user = np.repeat(np.arange(users), rng.integers(1, pairs + 1, users))
    segment = np.minimum(rng.zipf(1.6, len(user)), segments) - 1
    return user, segment, np.minimum(rng.zipf(1.4, len(user)), 300) - 1


@pytest.mark.parametrize("pairs", [1, 40])
@pytest.mark.parametrize("k", [None, 3])
def test_the_same_release_by_an_engine_and_in_memory(pairs, k):
    """One round of the pairs of listed segments, or the heads; segments are in the order of the request."""
    user, segment, item = rows_of(np.random.default_rng(3), 30_000 // pairs, 5, pairs)
    names = np.array(["d", "a", "c", "b", "elsewhere"])
    table = pa.table({"who": user, "segment": names[segment], "item": [f"i{n:03}" for n in item]})
    listed = pa.table({"segment": [*names[:4], "empty"]})
    sent = query_of("who", ("segment", "item"), each=("segment",), segments=listed, head_limit=50).request
    mechanism = made(4.0, k, 5, 50)
    with RecordedPairs(DuckDBEngine(table), sent, seed=bytes(32)) as recorded:
        outcome = mechanism.release(recorded, bits())
        labels = recorded.labels(outcome.positions).to_pydict()
    assert outcome.chosen == ("light" if pairs == 1 else "head")
    assert outcome.cost.within(mechanism.worst_cost())
    places = [listed["segment"].to_pylist().index(label) for label in labels["segment"]]
    assert places == sorted(places)
    assert set(places) <= {0, 1, 2, 3}
    assert k is None or max(np.bincount(places)) == k
    assert not outcome.complete
    for place in set(places):
        counts = outcome.counts[np.array(places) == place].tolist()
        assert counts == sorted(counts, reverse=True)
    users = {}
    for who, place, what in zip(user.tolist(), segment.tolist(), item.tolist(), strict=True):
        users.setdefault((str(names[place]), f"i{what:03}"), set()).add(who)
    exact = [len(users[label]) for label in zip(labels["segment"], labels["item"], strict=True)]
    if pairs == 1:
        assert np.abs(outcome.counts - exact).max() < 10
    else:  # a user counts in a single segment of the head
        assert outcome.counts.sum() < sum(exact)


def test_the_k_largest_of_each_segment_are_returned():
    """Also where another segment has more items with larger counts, and those are not precise."""
    counts = [[900, 800, 700, 600, 500], [90, 80, 70]]
    rows = [(s, n) for s, sizes in enumerate(counts) for n, size in enumerate(sizes) for _ in range(size)]
    segments, items = np.array(rows).T
    pairs = ArraySegments(np.arange(len(rows)), segments, items)
    outcome = made(1.0, 2).release(pairs, bits())
    assert (outcome.chosen, outcome.complete) == ("light", True)
    assert pairs.labels(outcome.positions).tolist() == [0, 1, 5, 6]
    assert made(1.0, 2).light.k == 20


def test_a_segment_that_was_not_requested_is_an_error():
    """An engine that ignores what a request lists would release other labels."""
    table = pa.table({"who": range(5_000), "segment": ["a", "b"] * 2_500, "item": ["x"] * 5_000})
    sent = query_of("who", ("segment", "item"), each=("segment",), segments=pa.table({"segment": ["a"]})).request

    class Careless(DuckDBEngine):
        def pairs(self, request, *, progress=None):
            return super().pairs(replace(request, segments=None), progress=progress)

    with (
        RecordedPairs(Careless(table), sent, seed=bytes(32)) as recorded,
        pytest.raises(InexactHead, match="not requested"),
    ):
        made(2.0, 1, 1).release(recorded, bits())


@pytest.mark.statistical
def test_intervals_hold_and_errors_are_within_the_priced_range():
    """Of all counts at least 93 % are in their intervals, and in 95 % of the releases all errors are as priced."""
    covered, priced, taken = [], [], set()
    for pairs, k, epsilon in itertools.product((1, 2, 4, 30), (None, 10), (0.5, 1, 2, 4)):
        rows = rows_of(np.random.default_rng(pairs), 40_000 // pairs, 10, pairs)
        table = ArraySegments(*rows)
        mechanism = made(epsilon, k, 10, 100)
        outcome = mechanism.release(table, bits(f"{pairs} {k} {epsilon}"))
        taken.add(outcome.chosen)
        if not len(outcome.counts):
            continue
        likely = next(branch for branch in mechanism.expectation().likely if branch.name == outcome.chosen)
        if outcome.chosen == "light":
            exact = table.counts[outcome.positions]
            covered.append(((outcome.low <= exact) & (exact <= outcome.high)).mean())
        most = likely.max_std_error or likely.max_relative_error * np.maximum(outcome.counts, 1)
        errors = outcome.std_errors
        priced.append((errors >= 0.999 * likely.min_std_error).all() and (errors <= 1.2 * most).all())
    assert np.mean(covered) >= 0.93
    assert np.mean(priced) >= 0.95
    assert taken == {"light", "head"}


def test_one_round_finds_more_of_each_segment_than_heads_and_these_more_than_races():
    """Where users have one pair: the shares of the ten largest items of ten segments at epsilon 1."""
    user, segment, item = rows_of(np.random.default_rng(7), 40_000, 10, 1)
    pairs = ArraySegments(user, segment, item)
    of = pairs.segments(np.arange(pairs.count_items()))
    ranked = np.lexsort((-pairs.counts, of))
    largest = np.concatenate([ranked[of[ranked] == n][:10] for n in range(10)])
    head, limit = pairs.head(1_000), limit_for(1.0, DELTA)
    found = []
    for mechanism, source in (
        (made(1.0, 10, 10, 1_000), pairs),
        (Each(SelectVerify.within_cost(limit, Request(10, 1_000)), 10), head),
        (Each(UnknownGumbel.within_cost(limit, Request(10, 1_000)), 10), head),
    ):
        outcome = mechanism.release(source, bits())
        labels = (
            outcome.positions if source is pairs else np.searchsorted(pairs.places(), head.labels[outcome.positions])
        )
        found.append(np.isin(largest, labels).mean())
    assert found[0] > 1.5 * found[1] > 1.5 * 1.5 * found[2]


@pytest.mark.parametrize("k", [None, 3])
def test_a_price_has_the_least_error_and_count_of_the_head_and_of_one_round(k):
    """The head is named first; where one round is not possible, it is the only one; the theorem is that of auto."""
    mechanism = made(2.0, k)
    plain = Auto.at_epsilon(Fraction(2), DELTA, Request(None, 10))
    assert mechanism.direct_epsilon() == plain.direct_epsilon() == 2
    assert mechanism.light.k == (None if k is None else 2 * plain.head_limit)
    head, one_round = mechanism.head.expectation(), mechanism.light.expectation()
    expected = mechanism.expectation()
    most = mechanism.second_head.expectation().likely[0].max_smallest_count
    assert most > head.likely[0].max_smallest_count  # after a second histogram
    assert expected.likely == (replace(head.likely[0], max_smallest_count=most), one_round.likely[0])
    assert expected.max_std_error is None
    assert expected.min_std_error == min(head.min_std_error, one_round.min_std_error)
    assert expected.smallest_count == min(head.smallest_count, one_round.smallest_count)
    shared = EachAuto.of(Auto.within_cost(limit_for(1.0, DELTA), Request(None, 10)), 2, k).expectation()
    assert [part.name for part in shared.likely] == ["head"]
    labels = EachAuto.of(Auto.at_epsilon(Fraction(2), DELTA, Request(None, 10, counts=False)), 2, k).expectation()
    assert labels.min_std_error is None
    assert labels.smallest_count > 0


def test_an_answer_says_why_it_is_one_round_or_the_heads():
    """By the number of users, which is noisy, and the share of the counts that is kept."""
    one = ArraySegments(np.arange(20_000), np.arange(20_000) % 2, np.arange(20_000) % 5)
    many = ArraySegments(*(part.ravel() for part in np.indices((300, 2, 40))))
    assert (
        made(2.0).release(one, bits()).why
        == "most users have one item: about 100% of the counts are kept with a cap there"
    )
    outcome = made(2.0).release(many, bits())
    assert outcome.chosen == "head"
    assert outcome.why.startswith("too few of about ")
