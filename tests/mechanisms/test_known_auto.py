"""Counts of listed items by auto: the exact privacy of each way after the histogram, the choice, counts, intervals."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from scipy import special, stats

from discreet.engines.duckdb import DuckDBEngine
from discreet.errors import InputError
from discreet.head_request import HeadRequest
from discreet.mechanisms import KnownAuto, Request, known_auto
from discreet.mechanisms.anchored import SharedNoise
from discreet.mechanisms.known_auto import Way
from discreet.noise import DiscreteLaplace, KeyedBits
from discreet.release.keys import RecordedPairs
from discreet.testing import pairs as reference
from discreet.testing.audit import statistical_audit
from discreet.testing.pairs import ArrayPairs
from discreet.values import WEIGHT_UNIT, Sensitivity

DELTA = Fraction(1, 10**8)
LISTED = 4
"""So many that a user of three of them costs exactly what shared noise is priced at."""

UNIT = 16
"""The unit of weights in exact audits, small enough to enumerate all noise."""

WAYS = [Way("capped", 1, 1.0), Way("capped", 2, 1.0), Way("shared", math.inf, 1.0)]
WAYS += [Way("scaled", limit, 1.0) for limit in (1.0, 2**0.5, 2.0)]


def bits(run=0):
    """Return bits that follow from *run*."""
    return KeyedBits(b"a secret for all of the listed items", run)


def request(d):
    """Return a request for the counts of *d* listed items."""
    return Request(None, d, known_domain=True)


class Listed(ArrayPairs):
    """Pairs of users, given by their items, that keep the last sums and counts of users by size."""

    def __init__(self, baskets, d=LISTED):
        users = [user for user, basket in enumerate(baskets) for _ in basket]
        super().__init__(users, [item for basket in baskets for item in basket])
        self.d = d
        self.last = np.zeros(0)

    def _kept(self, batches):
        self.last = np.zeros(self.d, dtype=np.int64)
        self.last[self.places()] = np.concatenate([self.last[:0], *batches])
        return [self.last[self.places()]]

    def weighted_sums(self, limit):
        """Return and keep the sums."""
        return self._kept(super().weighted_sums(limit))

    def capped_sums(self, cap):
        """Return and keep the sums."""
        return self._kept(super().capped_sums(cap))

    def users_by_size(self, bounds):
        """Return and keep the numbers of users."""
        self.last = super().users_by_size(bounds)
        return self.last


def drawn(monkeypatch, mechanism, way, baskets):
    """Return the exact sums that *way* releases of *baskets*, and the noise that it draws: its kind and parameters."""
    noises = []

    def added(values, unit, precisions, _bits, _label):
        noises.append(("gaussian", math.sqrt(known_auto.COST_UNIT / precisions[0]) * unit))
        return values

    def laplace(self, _bits, _label, n):
        noises.append(("laplace", float(self.scale)))
        return np.zeros(n, dtype=np.int64)

    def shared(self, _bits, _label, n):
        noises.append(("shared", float(self.apart), float(self.shared)))
        return np.zeros(n, dtype=np.int64)

    pairs = Listed(baskets)
    with monkeypatch.context() as patch:
        if way is not None and way.name == "capped":
            patch.setattr(known_auto, "WEIGHT_UNIT", UNIT)
            patch.setattr(reference, "WEIGHT_UNIT", UNIT)
        patch.setattr(known_auto, "add_noise", added)
        patch.setattr(DiscreteLaplace, "draw", laplace)
        patch.setattr(SharedNoise, "draw", shared)
        if way is None:
            mechanism._choose(pairs, bits())
        else:
            patch.setattr(KnownAuto, "_choose", lambda *_: way)
            mechanism.release(pairs, bits())
    full = WEIGHT_UNIT - 1 if way is not None and way.name == "shared" else 1  # the weight of a user who counts in full
    return pairs.last // full, noises[-1]


def gaussian(shift, levels):
    """Return delta at each of *levels* of a Gaussian whose mean moves by *shift* standard deviations."""
    if shift == 0:
        return np.maximum(-np.expm1(levels), 0)
    return special.ndtr(shift / 2 - levels / shift) - np.exp(levels + special.log_ndtr(-shift / 2 - levels / shift))


def after(moved, noise, levels):
    """Return delta at each of *levels*, any real numbers, of values that move by *moved* and have *noise*, exactly."""
    kind, *parameters = noise
    if kind == "gaussian":
        return gaussian(float(np.linalg.norm(moved)) / parameters[0], levels)
    if kind == "shared":
        covariance = (parameters[0] * np.eye(len(moved)) + parameters[1]) / 4
        return gaussian(math.sqrt(moved @ np.linalg.solve(covariance, moved)), levels)
    (scale,) = parameters
    z = np.arange(-int(45 * scale), int(45 * scale) + 1)
    mass = np.exp(-np.abs(z) / scale) * math.tanh(1 / (2 * scale))
    losses, masses = np.zeros(1), np.ones(1)
    for by in moved[moved > 0].tolist():
        loss = np.round((np.abs(z - by) - np.abs(z)) / scale, 9)
        losses, where = np.unique(np.round(np.add.outer(losses, loss), 9), return_inverse=True)
        masses = np.bincount(where.ravel(), np.outer(masses, mass).ravel())
    return np.array([masses @ np.maximum(-np.expm1(level - losses), 0) for level in levels.tolist()])


def rounded(edges, std):
    """Return the probabilities of a Gaussian between *edges*, accurate in both tails."""
    below = np.diff(stats.norm.cdf(edges, scale=std))
    above = -np.diff(stats.norm.sf(edges, scale=std))
    return np.where(edges[1:] < 0, below, above)


def worst_delta(mechanism, monkeypatch, epsilon=1.0):
    """Return the largest delta at *epsilon* over neighbours, of the histogram and then the worst way after it."""
    found = []
    for table in ([], [[0], [1, 2, 3]]):
        for size in range(1, LISTED + 1):
            sides = (table, [*table, list(range(size))])
            (bins, noise), (more, _) = (drawn(monkeypatch, mechanism, None, side) for side in sides)
            std = noise[1]
            shift = int(np.linalg.norm(more - bins))
            y = np.arange(-math.ceil(9 * std), math.ceil(9 * std) + 1)
            p, q = (rounded(np.append(y, y[-1] + 1) - 0.5 - m, std) for m in (0, shift))
            for one, other in ((p, q), (q, p)):
                levels = epsilon - np.log(one / other)
                curves = []
                for way in WAYS:
                    (sums, noise), (raised, _) = (drawn(monkeypatch, mechanism, way, side) for side in sides)
                    curves.append(after((raised - sums).astype(float), noise, levels))
                found.append(float(one @ np.max(curves, axis=0)))
    return max(found)


@pytest.mark.exact
def test_the_histogram_and_the_worst_way_are_private_together(monkeypatch):
    """Theorem 2 on small neighbours, in both directions: at most delta, of which little is unused."""
    mechanism = KnownAuto.at_epsilon(Fraction(1), DELTA, request(LISTED))
    assert 0.9 * DELTA < worst_delta(mechanism, monkeypatch) <= DELTA


def _capless(monkeypatch):
    """Plant: weights are those of a cap that is twice as large."""
    plain = ArrayPairs.capped_sums
    monkeypatch.setattr(ArrayPairs, "capped_sums", lambda self, cap: plain(self, 2 * cap))


def _unpaid(monkeypatch):
    """Plant: Gaussian sums spend what the histogram costs as well."""
    monkeypatch.setattr(KnownAuto, "_sums", property(lambda self: math.floor(self.mu**2 * known_auto.COST_UNIT)))


def _unpaid_before_shared(monkeypatch):
    """Plant: shared counts spend what the histogram costs as well."""
    monkeypatch.setattr(KnownAuto, "_shared", lambda self: SharedNoise.of(self.domain_size, self.mu**2))


def _fewer(monkeypatch):
    """Plant: shared noise is priced for one item less."""
    plain = KnownAuto._shared
    monkeypatch.setattr(KnownAuto, "_shared", lambda self: plain(replace(self, domain_size=self.domain_size - 1)))


def _one_scale(monkeypatch):
    """Plant: every cap has the noise of a cap of one item."""
    plain = KnownAuto._laplace
    monkeypatch.setattr(KnownAuto, "_laplace", lambda self, _cap: plain(self, 1))


@pytest.mark.exact
@pytest.mark.parametrize("planted", [_capless, _unpaid, _unpaid_before_shared, _fewer, _one_scale])
def test_planted_defects_are_detected(planted, monkeypatch):
    """The audit sees sums above their cap, a histogram that nothing pays for, and noise of too low a price."""
    planted(monkeypatch)
    mechanism = KnownAuto.at_epsilon(Fraction(1), DELTA, request(LISTED))
    assert worst_delta(mechanism, monkeypatch) > DELTA


@pytest.mark.exact
def test_laplace_sums_with_all_of_epsilon_are_detected(monkeypatch):
    """Planted: the histogram is forgotten in the epsilon of capped sums."""
    mechanism = KnownAuto.at_epsilon(Fraction(1), DELTA, request(LISTED))
    assert worst_delta(replace(mechanism, pure=Fraction(1)), monkeypatch) > DELTA


def test_costs_in_zcdp_are_the_histogram_and_the_way(monkeypatch):
    """What is charged is never above the worst cost, and the noise of each way costs what is charged."""
    mechanism = KnownAuto.within_cost(KnownAuto.at_epsilon(Fraction(4), DELTA, request(8)).worst_cost(), request(8))
    pairs = Listed([[0], [1, 2]], 8)
    for way in WAYS:
        monkeypatch.setattr(KnownAuto, "_choose", lambda *_, way=way: way)
        outcome = mechanism.release(pairs, bits())
        assert outcome.cost.within(mechanism.worst_cost())
        assert outcome.chosen == way.name
    histogram = Fraction(known_auto._histogram(mechanism.mu), 2 * known_auto.COST_UNIT)
    assert mechanism._shared().rho(8) + histogram <= mechanism.mu**2 / 2
    assert outcome.cost.rho >= mechanism.mu**2 / 2


def made_up(rng, users, d, most):
    """Return pairs of *users* with up to *most* of *d* items each, popular ones more often, and the true counts."""
    sizes = np.minimum(rng.zipf(1.8, users), most)
    user = np.repeat(np.arange(users), sizes)
    item = (d * rng.random(len(user)) ** 2).astype(np.int64)
    pairs = ArrayPairs(user, item)
    truth = np.zeros(d, dtype=np.int64)
    truth[pairs.places()] = pairs.counts
    return pairs, truth


TABLES = [(30_000, 50, 1), (30_000, 50, 3), (30_000, 300, 6), (30_000, 300, 40), (3_000, 40, 40), (200, 20, 5)]


@pytest.mark.statistical
def test_intervals_hold_and_errors_are_within_the_priced_range():
    """Of all counts at least 93 % are in their intervals, and in 95 % of the releases all errors are as priced."""
    covered, priced, taken = [], [], set()
    for users, d, most in TABLES:
        pairs, truth = made_up(np.random.default_rng(d), users, d, most)
        for epsilon, run in itertools.product((0.5, 1, 2, 4), range(3)):
            mechanism = KnownAuto.at_epsilon(Fraction(epsilon), DELTA, request(d))
            outcome = mechanism.release(pairs, bits(f"{users} {d} {most} {epsilon} {run}"))
            exact = truth[outcome.positions]
            covered.append(((outcome.low <= exact) & (exact <= outcome.high)).mean())
            likely = next(way for way in mechanism.expectation().likely if way.name == outcome.chosen)
            most_lost = (likely.max_relative_error or 0) * np.maximum(outcome.counts, 0)
            errors = outcome.std_errors
            priced.append(
                (errors >= 0.999 * likely.min_std_error).all()
                and (errors <= 1.001 * np.hypot(likely.max_std_error, most_lost)).all()
            )
            taken.add(outcome.chosen)
    assert np.mean(covered) >= 0.93
    assert np.mean(priced) >= 0.95
    assert taken == {"capped", "scaled", "shared"}


def test_where_users_have_one_item_noise_is_a_hundredth():
    """200 listed items and one of them a user, at epsilon 1: 1.6 in place of 41."""
    rng = np.random.default_rng(1)
    outcome = KnownAuto.at_epsilon(Fraction(1), DELTA, request(200)).release(
        ArrayPairs(np.arange(40_000), rng.integers(0, 150, 40_000)), bits()
    )
    assert len(outcome.positions) == 200
    assert outcome.complete
    assert outcome.chosen == "capped"
    assert np.abs(np.sort(outcome.counts)[:50]).max() < 20  # items that no user has


@pytest.mark.parametrize("epsilon", [1e-6, 1e-4, 50])
def test_any_epsilon_has_an_answer(epsilon):
    """Where a share of the budget is too small to be measured with, shared noise is taken."""
    plan = KnownAuto.at_epsilon(Fraction(epsilon), DELTA, request(40))
    mechanism = plan or KnownAuto.within_cost(
        KnownAuto(40, Fraction(epsilon) / 6, Fraction(1), Fraction(1, 10)).worst_cost(), request(40)
    )
    outcome = mechanism.release(Listed([[0], [1, 2]], 40), bits())
    assert len(outcome.counts) == 40


def test_the_same_release_by_an_engine_and_in_memory():
    """Items of the list that no row has, and rows with other items: all listed items are returned, and only these."""
    rng = np.random.default_rng(5)
    users, items = rng.integers(0, 3_000, 20_000), rng.integers(0, 60, 20_000)
    domain = pa.table({"item": [f"s{n:02}" for n in range(40, 90)]})
    table = pa.table({"who": users, "item": [f"s{n:02}" for n in items]})
    kept = items >= 40
    mechanism = KnownAuto.at_epsilon(Fraction(1), DELTA, request(50))
    expected = mechanism.release(ArrayPairs(users[kept], items[kept] - 40), bits())
    sent = HeadRequest("who", ("item",), 50, domain=domain)
    with RecordedPairs(DuckDBEngine(table), sent) as pairs:
        outcome = mechanism.release(pairs, bits())
        labels = pairs.labels(outcome.positions)
    assert np.array_equal(outcome.counts, expected.counts)
    assert labels.column("item").to_pylist() == [f"s{40 + n}" for n in expected.positions.tolist()]


@pytest.mark.statistical
@pytest.mark.parametrize(("loud", "detected"), [(1, False), (8, True)])
def test_released_counts_reveal_no_more_than_stated(loud, detected):
    """A sampled audit of what is released between two neighbours; noise of an eighth is seen."""
    table = [[user % 4] for user in range(60)]
    mechanism = KnownAuto.at_epsilon(Fraction(2), Fraction(1, 1000), request(4))
    mechanism = replace(mechanism, mu=loud * mechanism.mu, pure=loud * mechanism.pure)

    def views(baskets, secret):
        pairs = Listed(baskets)
        for run in range(3_000):
            outcome = mechanism.release(pairs, KeyedBits(secret, run))
            yield int(outcome.counts.sum()) // 2

    sides = (views(table, bytes(32)), views([*table, [0, 1, 2, 3]], bytes([1]) * 32))
    assert (statistical_audit(*sides, 2.0) > 0.001) == detected


@pytest.mark.parametrize(
    "refused",
    [
        {"known_domain": False},
        {"k": 3},
        {"counts": False},
        {"sensitivity": Sensitivity(2)},
        {"sensitivity": Sensitivity(None, 2)},
        {"noise": "laplace"},
    ],
)
def test_other_requests_are_refused_in_one_sentence(refused):
    """It counts the distinct users of listed items, without a bound."""
    with pytest.raises(InputError):
        KnownAuto.within_cost(
            KnownAuto(9, Fraction(1), Fraction(1), Fraction(1, 10)).worst_cost(), replace(request(9), **refused)
        )
