"""Counts of listed items by auto: the exact privacy of each way after the histogram, the choice, counts, intervals."""

from __future__ import annotations

import itertools
import math
from dataclasses import astuple, replace
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from scipy import special, stats

from discreet.accounting.laplace import rho_laplace
from discreet.engines.duckdb import DuckDBEngine
from discreet.errors import InputError
from discreet.head_request import HeadRequest
from discreet.mechanisms import KnownAuto, Request, known_auto
from discreet.mechanisms.anchored import SharedLaplace, SharedNoise
from discreet.mechanisms.base import Expectation, Likely, shuffled
from discreet.mechanisms.known_auto import Way
from discreet.mechanisms.light import UNEVEN, loss_of_users
from discreet.mechanisms.two_round import most_second
from discreet.noise import DiscreteLaplace, KeyedBits
from discreet.release.keys import RecordedPairs
from discreet.testing import pairs as reference
from discreet.testing.audit import statistical_audit
from discreet.testing.pairs import ArrayPairs
from discreet.values import MAX_BASKET, WEIGHT_UNIT, Cost, Sensitivity

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
        kind = "shared laplace" if isinstance(self, SharedLaplace) else "shared"
        noises.append((kind, float(self.apart), float(self.shared)))
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
    shifts = [(by, parameters[0]) for by in moved[moved > 0].tolist()]
    if kind == "shared laplace":  # of 2 v - N for every value, and of N
        shifts = [(1, parameters[0])] * len(moved) + [(1, parameters[1])]
    losses, masses = np.zeros(1), np.ones(1)
    for by, scale in shifts:
        z = np.arange(-int(45 * scale), int(45 * scale) + 1)
        mass = np.exp(-np.abs(z) / scale) * math.tanh(1 / (2 * scale))
        loss = np.round((np.abs(z - by) - np.abs(z)) / scale, 9)
        losses, where = np.unique(np.round(np.add.outer(losses, loss), 9), return_inverse=True)
        masses = np.bincount(where.ravel(), np.outer(masses, mass).ravel())
    return np.array([masses @ np.maximum(-np.expm1(level - losses), 0) for level in levels.tolist()])


def rounded(edges, std):
    """Return the probabilities of a Gaussian between *edges*, accurate in both tails."""
    below = np.diff(stats.norm.cdf(edges, scale=std))
    above = -np.diff(stats.norm.sf(edges, scale=std))
    return np.where(edges[1:] < 0, below, above)


def after_second_histogram(mechanism, sides, levels, monkeypatch):
    """Return delta at each of *levels* of a second histogram, a bin of which moves by 1, and of the worst way then."""
    again = most_second(mechanism.pure)
    scale = float(1 / again)
    z = np.arange(-int(45 * scale), int(45 * scale) + 1)
    total = np.zeros(len(levels))
    for loss, mass in ((1 / scale, z <= 0), (-1 / scale, z > 0)):
        curves = []
        for way in WAYS:
            (sums, noise), (raised, _) = (
                drawn(monkeypatch, mechanism, replace(way, again=again), side) for side in sides
            )
            curves.append(after((raised - sums).astype(float), noise, levels - loss))
        share = math.tanh(1 / (2 * scale)) * np.exp(-np.abs(z[mass]) / scale).sum()
        total += share * np.max(curves, axis=0)
    return total


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
                curves.append(after_second_histogram(mechanism, sides, levels, monkeypatch))
                found.append(float(one @ np.max(curves, axis=0)))
    return max(found)


@pytest.mark.exact
@pytest.mark.parametrize("kind", [SharedLaplace, SharedNoise])
def test_the_histogram_and_the_worst_way_are_private_together(kind, monkeypatch):
    """Theorem 2 on small neighbours, in both directions: at most delta, of which little is unused."""
    mechanism = KnownAuto.at_epsilon(Fraction(1), DELTA, request(LISTED))
    if kind is SharedNoise:
        monkeypatch.setattr(SharedLaplace, "of", lambda *_: SharedLaplace(Fraction(100), Fraction(100)))
    assert type(mechanism.shared_noise()) is kind
    assert 0.9 * DELTA < worst_delta(mechanism, monkeypatch) <= DELTA


def _capless(monkeypatch):
    """Plant: weights are those of a cap that is twice as large."""
    plain = ArrayPairs.capped_sums
    monkeypatch.setattr(ArrayPairs, "capped_sums", lambda self, cap: plain(self, 2 * cap))


def _unpaid(monkeypatch):
    """Plant: Gaussian sums spend what the histogram costs as well."""
    monkeypatch.setattr(KnownAuto, "_sums", lambda self, _again: math.floor(self.mu**2 * known_auto.COST_UNIT))


def _unpaid_before_shared(monkeypatch):
    """Plant: shared counts spend what the histogram costs as well."""
    monkeypatch.setattr(KnownAuto, "shared_noise", lambda self, _again=0: SharedNoise.of(self.domain_size, self.mu**2))


def _fewer(monkeypatch):
    """Plant: shared noise, here Laplace, is priced for one item less."""
    plain = KnownAuto.shared_noise
    monkeypatch.setattr(
        KnownAuto, "shared_noise", lambda self, *again: plain(replace(self, domain_size=self.domain_size - 1), *again)
    )


def _fewer_gaussian(monkeypatch):
    """Plant: shared Gaussian noise is priced for one item less."""
    monkeypatch.setattr(
        KnownAuto, "shared_noise", lambda self, again=Fraction(0): SharedNoise.of(LISTED - 1, self._precision(again))
    )


def _one_scale(monkeypatch):
    """Plant: every cap has the noise of a cap of one item."""
    plain = KnownAuto._laplace
    monkeypatch.setattr(KnownAuto, "_laplace", lambda self, _cap, again: plain(self, 1, again))


@pytest.mark.exact
@pytest.mark.parametrize("planted", [_capless, _unpaid, _unpaid_before_shared, _fewer, _fewer_gaussian, _one_scale])
def test_planted_defects_are_detected(planted, monkeypatch):
    """The audit sees sums above their cap, a histogram that nothing pays for, and noise of too low a price."""
    planted(monkeypatch)
    mechanism = KnownAuto.at_epsilon(Fraction(1), DELTA, request(LISTED))
    assert worst_delta(mechanism, monkeypatch) > DELTA


def _forgetful(monkeypatch):
    """Plant: Laplace sums keep all of their epsilon after a second histogram."""
    plain = KnownAuto._laplace
    monkeypatch.setattr(KnownAuto, "_laplace", lambda self, cap, _again: plain(self, cap, Fraction(0)))


def _generous(monkeypatch):
    """Plant: Gaussian sums keep all of their rho after a second histogram."""
    plain = KnownAuto._precision
    monkeypatch.setattr(KnownAuto, "_precision", lambda self, _again: plain(self, Fraction(0)))


@pytest.mark.exact
@pytest.mark.parametrize("planted", [_forgetful, _generous])
def test_sums_that_forget_a_second_histogram_are_detected(planted, monkeypatch):
    """With Gaussian shared noise, of which Laplace noise of four items is no example."""
    planted(monkeypatch)
    monkeypatch.setattr(SharedLaplace, "of", lambda *_: SharedLaplace(Fraction(100), Fraction(100)))
    assert worst_delta(KnownAuto.at_epsilon(Fraction(1), DELTA, request(LISTED)), monkeypatch) > DELTA


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
    assert mechanism.shared_noise().rho(8) + histogram <= mechanism.mu**2 / 2
    assert outcome.cost.rho >= mechanism.mu**2 / 2


@pytest.mark.parametrize("d", [1, 2, 4, 9, 10, 11, 16, 60])
@pytest.mark.parametrize("epsilon", [Fraction(1, 2), 1, 4, 8, 40])
def test_counts_without_clipping_have_the_smaller_noise_of_what_they_are_charged(d, epsilon, monkeypatch):
    """Laplace noise up to about ten items, within the epsilon and the rho of capped sums; Gaussian noise beyond."""
    mechanism = KnownAuto.at_epsilon(Fraction(epsilon), DELTA, request(d))
    noise = mechanism.shared_noise()
    laplace = SharedLaplace.of(d, mechanism.pure)
    gaussian = SharedNoise.of(d, Fraction(mechanism._sums(Fraction(0)), known_auto.COST_UNIT))
    assert noise.std <= gaussian.std * (1 + 1e-9)
    assert noise.std <= laplace.std or laplace.rho(d) > rho_laplace(mechanism.pure, WEIGHT_UNIT)
    monkeypatch.setattr(KnownAuto, "_choose", lambda *_: Way("shared", math.inf, noise.std))
    outcome = mechanism.release(Listed([[0]], d), bits())
    pure = isinstance(noise, SharedLaplace)
    assert pure == (noise.std < gaussian.std)
    charged = rho_laplace(mechanism.pure, WEIGHT_UNIT) + mechanism._measuring if pure else mechanism.mu**2 / 2
    assert outcome.cost == Cost(charged)
    assert noise.rho(d) + mechanism._measuring <= charged
    assert not pure or noise.epsilon(d) <= mechanism.pure
    width = (known_auto.LAPLACE_INTERVAL if pure else 1.96) * noise.std
    assert outcome.high.tolist() == np.maximum(np.ceil(outcome.counts + width), 0).tolist()
    assert noise.half_width() <= math.ceil(width)
    if epsilon == 1 and d >= 4:
        assert pure == (d <= 10)


@pytest.mark.parametrize(
    "rho", [Fraction(1, 700), Fraction(1, 13), Fraction(3, 7), Fraction(90), (1 - Fraction(1, 2 * 10**12)) / 2]
)
def test_each_way_may_spend_its_limit_and_no_more(rho):
    """Gaussian sums, and Laplace sums with the histogram, cost the limit but for what rounding takes."""
    mechanism = KnownAuto.within_cost(Cost(rho, Fraction(1, 100)), request(40))
    histogram = Fraction(known_auto._histogram(mechanism.mu), 2 * known_auto.COST_UNIT)
    assert histogram == known_auto.COST_UNIT * mechanism.mu**2 // 125 / Fraction(2 * known_auto.COST_UNIT)
    for cost in (mechanism.mu**2 / 2, histogram + rho_laplace(mechanism.pure, WEIGHT_UNIT)):
        assert (1 - Fraction(1, 10**8)) * rho < cost <= rho
        assert cost <= mechanism.worst_cost().rho <= rho
    laplace = replace(mechanism, pure=2 * mechanism.pure, delta=DELTA).worst_cost()
    gaussian = replace(mechanism, mu=3 * mechanism.mu).worst_cost()
    assert laplace == Cost(histogram + rho_laplace(2 * mechanism.pure, WEIGHT_UNIT), DELTA)
    assert gaussian == Cost(9 * mechanism.mu**2 / 2)
    assert mechanism.direct_epsilon() is None


@pytest.mark.parametrize("epsilon", [Fraction(1, 7), Fraction(1), Fraction(3), Fraction(7)])
def test_the_theorem_gets_a_test_that_costs_no_less_than_the_histogram(epsilon, monkeypatch):
    """Roots are rounded: up where they are a cost; and epsilon, delta and the relative error are kept."""
    tests = []
    branch = known_auto.epsilon_of_branch

    def recorded(*values):
        tests.append(values)
        return branch(*values)

    monkeypatch.setattr(known_auto, "epsilon_of_branch", recorded)
    asked = replace(request(40), relative_error=Fraction(1, 8))
    mechanism = KnownAuto.at_epsilon(epsilon, DELTA, asked)
    ((*_, mu, test, lost, rho, lost_other, lost_pure),) = tests
    histogram = Fraction(known_auto._histogram(mechanism.mu), known_auto.COST_UNIT)
    assert histogram <= Fraction(test) ** 2 <= histogram * (1 + Fraction(1, 10**11))
    assert (lost, rho, lost_other, lost_pure) == (0, 0, 0, 0)
    assert mu == mechanism.mu
    assert 0.8 * epsilon < mechanism.pure < epsilon
    assert (mechanism.epsilon, mechanism.direct_epsilon(), mechanism.delta) == (epsilon, epsilon, DELTA)
    assert mechanism.relative_error == Fraction(1, 8)


def test_a_price_has_the_noise_of_each_way_and_the_largest_loss():
    """The least noise of any, and of those above shared noise none; a budget too small for a histogram has one way.

    The most is the noise of all that is left after the dearest second histogram.
    """
    mechanism = replace(KnownAuto.at_epsilon(Fraction(1), DELTA, request(40)), relative_error=Fraction(1, 8))
    shared = mechanism.shared_noise().std
    most = mechanism.shared_noise(mechanism.pure / 8).std
    assert shared < 0.9 * most
    scaled = math.sqrt(known_auto.COST_UNIT / mechanism._sums(Fraction(0)))
    capped = DiscreteLaplace(WEIGHT_UNIT / mechanism.pure).std / WEIGHT_UNIT
    lost = 0.9 / 8
    ways = (Likely("shared", shared, most, None, 0, 0), Likely("scaled", scaled, most, lost, 0, 0))
    least = Likely("capped", capped, most, lost, 0, 0, math.log(20) / math.sqrt(2))  # intervals of Laplace noise
    assert mechanism.expectation() == Expectation(capped, likely=(*ways, least))
    steep = replace(mechanism, pure=mechanism.pure / 100)
    steep_most = steep.shared_noise(steep.pure / 8).std
    ways = tuple(replace(way, max_std_error=steep_most) for way in ways)
    assert steep.expectation() == Expectation(scaled, likely=ways)
    small = replace(mechanism, mu=Fraction(1, 10**6))
    least = small.shared_noise().std
    assert small.expectation() == Expectation(least, likely=(Likely("shared", least, least, None, 0, 0),))


@pytest.mark.parametrize("epsilon", [1e-6, 2e-4, 1e-3])
def test_an_epsilon_too_small_for_a_histogram_or_laplace_sums_has_no_theorem_of_its_own(epsilon):
    """The budget is then that of shared noise alone."""
    assert KnownAuto.at_epsilon(Fraction(epsilon), DELTA, request(40)) is None


def test_a_histogram_needs_a_budget_that_a_share_of_it_does_not_round_away():
    """From 2,000 units on, of which a 125th is 16."""
    for total, histogram in ((0, 0), (1_999, 0), (2_000, 16), (2_124, 16), (2_125, 17)):
        mu = Fraction(math.isqrt(total * 4**60 // known_auto.COST_UNIT) + 1, 2**60)
        assert known_auto._histogram(mu) == histogram


@pytest.mark.parametrize("d", [1, 5, 16, 17, 40])
def test_every_cap_and_every_limit_is_tried(d, monkeypatch):
    """Caps of 1 to 6 items, limits by an eighth of a power of two, and what each removes."""
    tried, bounds = {}, []
    users_by_size = ArrayPairs.users_by_size

    def counted(pairs, given):
        bounds.extend(given.tolist())
        return users_by_size(pairs, given)

    def way(name, limit, noise, lost, n, users, tail):
        tried.setdefault(name, {})[limit] = noise, lost.tolist(), n.tolist()
        return known_auto.Way(name, limit, noise, *loss_of_users(lost, n, users, tail))

    monkeypatch.setattr(ArrayPairs, "users_by_size", counted)
    monkeypatch.setattr(known_auto, "_way", way)
    mechanism = KnownAuto.at_epsilon(Fraction(1), DELTA, request(d))
    mechanism._choose(ArrayPairs(np.arange(6_000), np.zeros(6_000, dtype=np.int64)), bits())
    assert bounds == [2**n for n in range(7) if 2**n < 2 * d]
    sizes = [math.sqrt((last // 2 + 1) * min(last, d)) for last in bounds]
    caps = {cap for cap in (1, 2, 3, 4, 6) if cap <= d}
    assert tried["capped"].keys() == caps
    for cap, (noise, lost, n) in tried["capped"].items():
        assert noise == mechanism._capped(cap)
        assert n == pytest.approx(sizes)
        assert lost == pytest.approx([1.0 if size > 10 * cap else 1 - min(1, cap / size) for size in sizes])
    assert list(tried["scaled"]) == pytest.approx([2 ** (n / 8) for n in range(4 * len(bounds) - 3)])
    for limit, (noise, lost, n) in tried["scaled"].items():
        assert noise == mechanism._scaled(limit)
        assert n == pytest.approx(sizes)
        assert lost == pytest.approx([1 - min(1, limit / math.sqrt(size)) for size in sizes])


@pytest.mark.parametrize("relative_error", [Fraction(1, 1_000), Fraction(1, 20), Fraction(1, 2)])
def test_clipping_loses_no_more_than_nine_tenths_of_the_relative_error(relative_error):
    """Less noise is not worth more loss; where more may be lost, more is."""
    mechanism = replace(KnownAuto.at_epsilon(Fraction(1), DELTA, request(300)), relative_error=relative_error)
    pairs, _ = made_up(np.random.default_rng(1), 30_000, 300, 40)
    way = mechanism._choose(pairs, bits())
    assert way.loss <= 0.9 * relative_error
    assert (way.loss > 0.9 / 20) == (relative_error == Fraction(1, 2))


def test_scaled_users_cost_no_more_than_is_left_for_them(monkeypatch):
    """The squared weights of a user, times the precision, are below the budget, whatever the limit."""
    mechanism = KnownAuto.at_epsilon(Fraction(1), DELTA, request(300))
    limits, precisions = [], []
    weighted = ArrayPairs.weighted_sums
    monkeypatch.setattr(ArrayPairs, "weighted_sums", lambda self, limit: limits.append(limit) or weighted(self, limit))

    def added(values, unit, given, _bits, _label):
        assert unit == WEIGHT_UNIT
        precisions.extend(set(given.tolist()))
        return values

    monkeypatch.setattr(known_auto, "add_noise", added)
    for way in [Way("scaled", limit, 1.0) for limit in 2.0 ** (np.arange(37) / 8)]:
        monkeypatch.setattr(KnownAuto, "_choose", lambda *_, way=way: way)
        mechanism.release(Listed([[0], [1, 2]], 300), bits())
    assert len(limits) == len(precisions) == 37
    left = mechanism._sums(Fraction(0))
    for limit, precision in zip(limits, precisions, strict=True):
        spent = Fraction(limit) ** 2 * precision
        assert left * (1 - Fraction(1, 10**9)) < spent <= left


@pytest.mark.parametrize("users", [1, 7, 5_000_001, 2**42 + 1])
def test_shared_counts_are_whole_users(users, monkeypatch):
    """A user's weight is one less than the unit of weights; counts of any size are divided by it exactly."""
    mechanism = KnownAuto(1, Fraction(1, 10**6), Fraction(1), Fraction(1, 10))
    weights = []

    def sums(_, limit):
        assert limit == MAX_BASKET
        return [np.array([weights[-1] * (WEIGHT_UNIT - 1)])]

    monkeypatch.setattr(ArrayPairs, "weighted_sums", sums)
    counts = []
    for n in (0, users):
        weights.append(n)
        outcome = mechanism.release(ArrayPairs([0], [0]), bits())
        assert outcome.chosen == "shared"
        assert outcome.shared_error == mechanism.shared_noise().shared_std
        counts += outcome.counts.tolist()
    assert counts == [counts[0], counts[0] + users]


def test_clipping_has_no_part_in_the_error_of_an_item_without_users():
    """Its error is that of the noise, and its interval begins at 0, as it does where noise takes all of a count."""
    users = np.repeat(np.arange(30_000), 3)
    items = np.concatenate([np.arange(90_000) % 3, np.arange(4_000) % 40])
    pairs = ArrayPairs(np.concatenate([users, np.zeros(4_000, dtype=np.int64) + 30_001]), items)
    mechanism = KnownAuto.at_epsilon(Fraction(1), DELTA, request(300))
    for way in (Way("capped", 2, 9.0, 0.7, 0.4, 0.3), Way("shared", math.inf, 38.0)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(KnownAuto, "_choose", lambda *_, way=way: way)
            outcome = mechanism.release(pairs, bits())
        counts = outcome.counts
        quantile = known_auto.LAPLACE_INTERVAL if way.name == "capped" else 1.96
        seen = np.maximum(counts, 0)
        assert outcome.std_errors == pytest.approx(np.hypot(way.noise, UNEVEN * way.spread / way.kept * seen))
        assert set(outcome.std_errors[counts <= 0].tolist()) == {way.noise}
        above = np.maximum(outcome.std_errors, np.hypot(way.noise, way.unseen * seen))
        assert outcome.high.tolist() == np.maximum(np.ceil(counts + quantile * above), 0).tolist()
        assert outcome.low.tolist() == np.maximum(np.floor(counts - quantile * outcome.std_errors), 0).tolist()
    assert 0 in outcome.high.tolist()


@pytest.mark.parametrize(("users", "d", "most"), [(4_000, 50, 1), (9_000, 300, 6), (200, 20, 5)])
def test_items_are_ranked_and_ties_are_in_random_order(users, d, most):
    """The largest count first; equal ones in the order of a shuffle, however many there are."""
    pairs, _ = made_up(np.random.default_rng(d), users, d, most)
    outcome = KnownAuto.at_epsilon(Fraction(30), DELTA, request(d)).release(pairs, bits())
    assert (outcome.ordered, outcome.complete) == (True, True)
    assert {values.dtype for values in (outcome.positions, outcome.counts, outcome.low, outcome.high)} == {
        np.dtype(np.int64)
    }
    places = np.empty(d, dtype=np.int64)
    places[shuffled(d, bits(), "ties")] = np.arange(d)
    ranks = list(zip((-outcome.counts).tolist(), places[outcome.positions].tolist(), strict=True))
    assert ranks == sorted(ranks)
    assert len(set(outcome.counts.tolist())) < d


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


@pytest.mark.statistical
@pytest.mark.parametrize(("users", "d", "epsilon"), [(1_000, 9, 1), (4_000, 40, 1), (500, 9, 4), (2_000, 40, 1)])
def test_of_few_users_clipping_hides_no_one(users, d, epsilon):
    """Most users have one item, and the few with many have most of the pairs: intervals hold for 93 % of the counts."""
    rng = np.random.default_rng(4)
    weights = 1 / np.arange(1, d + 1)
    sizes = np.minimum(rng.zipf(2.0, users), d)
    pairs = Listed([rng.choice(d, n, replace=False, p=weights / weights.sum()).tolist() for n in sizes], d)
    mechanism = KnownAuto.at_epsilon(Fraction(epsilon), DELTA, request(d))
    covered = []
    for run in range(30):
        outcome = mechanism.release(pairs, bits(run))
        exact = np.bincount(pairs.places(), pairs.counts, d)[outcome.positions]
        covered.append((outcome.low <= exact) & (exact <= outcome.high))
    assert np.mean(covered) >= 0.93


def test_noise_after_a_second_histogram_is_within_the_price():
    """Few users, of whom some have many items: counts are not clipped, and have what a second histogram left."""
    rng = np.random.default_rng(2)
    sizes = np.repeat([1, 40], [900, 130])
    pairs = Listed([rng.choice(50, n, replace=False).tolist() for n in sizes], 50)
    mechanism = KnownAuto.at_epsilon(Fraction(1), DELTA, request(50))
    outcome = mechanism.release(pairs, bits())
    likely = mechanism.expectation().likely[0]
    assert outcome.chosen == likely.name == "shared"
    assert outcome.std_errors.min() > 1.1 * likely.min_std_error
    assert outcome.std_errors.max() <= likely.max_std_error


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
    with pytest.raises(InputError, match=r"^known-auto "):
        KnownAuto.within_cost(
            KnownAuto(9, Fraction(1), Fraction(1), Fraction(1, 10)).worst_cost(), replace(request(9), **refused)
        )


def rounded_to_six(values):
    """Return numbers with six significant digits."""
    return [float(f"{float(value):.6g}") for value in values]


def pinned(users, d, most, epsilon):
    """Return the way that is chosen for a made-up table, and the first, the second and the last released counts."""
    mechanism = KnownAuto.at_epsilon(Fraction(epsilon), DELTA, request(d))
    pairs, _ = made_up(np.random.default_rng(d), users, d, most)
    way = mechanism._choose(pairs, bits())
    outcome = mechanism.release(pairs, bits())
    assert (outcome.chosen, outcome.why) == (way.name, way.why)
    assert (outcome.shared_error is None) == (way.name != "shared")
    shown = [0, 1, d - 1]
    whole = [values[shown].tolist() for values in (outcome.positions, outcome.counts, outcome.low, outcome.high)]
    return way.name, rounded_to_six(astuple(way)[1:-1]), *whole, rounded_to_six(outcome.std_errors[shown])


PINNED = {
    (30000, 50, 1, 4): (
        "capped",
        [2.0, 0.775366, 1.0, 0.0, 0.0],
        [0, 1, 49],
        [4220, 1758, 293],
        [4218, 1756, 291],
        [4222, 1760, 295],
        [0.775366, 0.775366, 0.775366],
    ),
    (30000, 50, 3, 1): (
        "capped",
        [6.0, 9.33759, 0.999598, 0.00858769, 0.00727781],
        [0, 1, 49],
        [6967, 3035, 519],
        [6900, 3001, 498],
        [7077, 3086, 541],
        [31.3501, 16.0361, 9.60004],
    ),
    (30000, 300, 6, 1): (
        "capped",
        [6.0, 9.58168, 0.974133, 0.0397182, 0.0328453],
        [0, 1, 240],
        [3941, 1715, 90],
        [3769, 1638, 69],
        [4216, 1837, 112],
        [80.9124, 36.252, 9.75577],
    ),
    (30000, 300, 40, 1): (
        "scaled",
        [5.65685, 30.4548, 0.95252, 0.0886578, 0.0810188],
        [0, 1, 290],
        [5490, 2819, 169],
        [4985, 2555, 107],
        [6364, 3271, 235],
        [257.305, 134.681, 31.454],
    ),
    (30000, 300, 40, 4): (
        "scaled",
        [6.72717, 9.46135, 0.997474, 0.00439961, 0.028849],
        [0, 1, 286],
        [5304, 2719, 200],
        [5274, 2697, 181],
        [5605, 2874, 222],
        [15.0447, 11.2015, 9.47163],
    ),
    (20000, 5, 5, 1): (
        "shared",
        [math.inf, 6.05041, 1.0, 0.0, 0.0],
        [0, 1, 4],
        [12641, 6654, 4299],
        [12628, 6641, 4286],
        [12654, 6667, 4312],
        [6.05041, 6.05041, 6.05041],
    ),
    (20000, 16, 9, 1): (
        "shared",
        [math.inf, 12.8267, 1.0, 0.0, 0.0],
        [0, 1, 15],
        [9010, 4706, 1621],
        [8984, 4680, 1595],
        [9036, 4732, 1647],
        [12.8267, 12.8267, 12.8267],
    ),
    (200, 20, 5, 4): (
        "shared",
        [math.inf, 3.86009, 1.0, 0.0, 0.0],
        [0, 1, 17],
        [91, 43, 7],
        [83, 35, 0],
        [99, 51, 15],
        [3.86009, 3.86009, 3.86009],
    ),
}


@pytest.mark.parametrize("table", PINNED, ids=str)
def test_choices_and_numbers_are_kept(table):
    """What a key releases: a stored release, its replay and a peer's copy must agree for years."""
    assert pinned(*table) == PINNED[table]
