"""Replay audit of the two-round release: every noisy value of a real run, set against a neighbour's.

A run on one table is recorded: the mean, precision and value of everything that gets noise. The same code then runs on
the neighbouring table and is given the same noisy values. So the likelihood ratio of all of them is known exactly, and
what each step makes of the values that are common to both tables can be compared. Items that only the extra user has
(V) are no part of this: their first values have the same noise on both tables, their second ones fresh noise, and what
protects them is the verification (docs/mechanisms/two_round.md, Theorem 1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np
import pytest

from discreet.accounting.gaussian import delta_gaussian, normal_tail
from discreet.mechanisms import Request, auto, two_round
from discreet.mechanisms.auto import Auto
from discreet.mechanisms.two_round import COST_UNIT, Tuning, TwoRound
from discreet.testing.pairs import ArrayPairs, gathered, weights
from discreet.values import WEIGHT_UNIT, Cost, Outcome

pytestmark = pytest.mark.exact

TENTH = Fraction(1, 10)


class Pairs(ArrayPairs):
    """User-item pairs by label, which record the queries."""

    def __init__(self, baskets):
        names = sorted({item for basket in baskets for item in basket})
        self.names = names
        users = [user for user, basket in enumerate(baskets) for _ in basket]
        super().__init__(users, [names.index(item) for basket in baskets for item in basket])
        self.baskets = baskets
        self.queries = []
        self.measured = []

    def users_by_size(self, bounds):
        self.queries.append("users_by_size")
        return super().users_by_size(bounds)

    def weighted_sums(self, limit):
        self.queries.append("weighted_sums")
        self.measured = self.names
        return super().weighted_sums(limit)

    def users_by_scale(self, items, last_scale, costs, bounds):
        self.queries.append("users_by_scale")
        return super().users_by_scale(items, last_scale, costs, bounds)

    def clipped_sums(self, items, costs, bound):
        self.queries.append("clipped_sums")
        self.measured = [self.names[item] for item in items]
        return super().clipped_sums(items, costs, bound)


class Divergent(Exception):
    """Raised if the neighbour's run needs a value that the recorded run lacks: the two are then distinguished."""


@dataclass
class Noise:
    """In place of bits: draws and records values, or gives those of a record.

    Args:
        rng: for the values.
        own: standard normals of V in the first round, by item.
        given: the record of the neighbour's run, or None to draw.
    """

    rng: np.random.Generator
    own: dict
    given: dict | None = None
    pairs: Pairs | None = None
    record: dict = field(default_factory=dict)
    own_passed: bool = False

    def add(self, values, unit, precisions, label):
        """Return what `two_round.add_noise` returns."""
        keys = self.pairs.measured if label in ("first", "second") else range(len(values))
        noisy = []
        for key, value, precision in zip(keys, values.tolist(), precisions.tolist(), strict=True):
            std = unit * math.sqrt(COST_UNIT / precision)
            if key in self.own:
                normal = self.own[key] if label == "first" else self.rng.normal()
                drawn = value + std * normal
            elif self.given is None:
                drawn = value + std * self.rng.normal()
            elif (label, key) in self.given:
                drawn = self.given[label, key][2]
            else:
                raise Divergent(f"{label} has no {key} on the other table")
            if key not in self.own:
                self.record[label, key] = (value, std, drawn)
            noisy.append(round(drawn))
        return np.array(noisy, dtype=np.int64)


@dataclass
class Path:
    """One recorded run and its replay: squared shift in units of mu^2, log likelihood ratio, and what differs."""

    shift: float
    loss: float
    own_passed: bool
    fault: str = ""


def run(mechanism, pairs, noise):
    """Run the mechanism and return what is published, by item."""
    noise.pairs = pairs
    outcome = mechanism.release(pairs, noise)
    if outcome.counts is None:
        return {"visible": True}
    columns = (outcome.counts.tolist(), outcome.std_errors.tolist(), outcome.low.tolist(), outcome.high.tolist())
    return dict(zip([pairs.names[item] for item in outcome.positions], zip(*columns, strict=True), strict=True))


def compare(mechanism, table, basket, rng, side, kind=Pairs):
    """Run on one table, with (side 1) or without the extra user's items, replay on the other, and return the path."""
    common = {item for other in table for item in other}
    own = {item: rng.normal() for item in basket if item not in common}
    sides = [kind(table), kind([*table, basket])]
    recorded, replayed = Noise(rng, own), Noise(rng, own)
    shown = run(mechanism, sides[side], recorded)
    replayed.given = recorded.record
    try:
        other = run(mechanism, sides[1 - side], replayed)
    except Divergent as error:
        return Path(math.inf, math.inf, False, str(error))
    if recorded.record.keys() != replayed.record.keys():
        return Path(math.inf, math.inf, False, "another set of values gets noise")
    shift = loss = 0.0
    fault = ""
    for key, (mean, std, value) in recorded.record.items():
        other_mean, other_std, _ = replayed.record[key]
        if abs(std - other_std) > 1e-12 * std:
            fault = f"noise of {key} differs"
        step = (mean - other_mean) / std
        shift += step**2
        loss += ((value - other_mean) ** 2 - (value - mean) ** 2) / (2 * std**2)
    passed = any(item in own for item in (*shown, *other))
    if not passed and shown != other:
        fault = "the outcome differs"
    return Path(shift / float(mechanism.mu) ** 2, loss, passed, fault)


@pytest.fixture(autouse=True)
def _hook(monkeypatch):
    """Route every noisy value of the mechanism through one function."""
    monkeypatch.setattr(
        two_round, "add_noise", lambda values, unit, precisions, bits, label: bits.add(values, unit, precisions, label)
    )

    def in_batches(batches, n, unit, precision, bits, label):
        values = gathered(batches)
        assert len(values) == n
        yield two_round.add_noise(values, unit, np.full(n, precision), bits, label)

    monkeypatch.setattr(two_round, "add_noise_in_batches", in_batches)


def instance(mu, noise, kind=TwoRound, clipping=0.05, **tuned):
    """Return a mechanism with a low cut for tables of thirty users; *noise* is the relative error at the cut.

    The cut falls by as much as a fifth where the first round allows it.
    """
    tuned = {"known": 0.1, "precise": 17.5 * noise, "clipping": 10 * clipping, **tuned}
    tuning = Tuning(noise=10 * noise, most_noise=12 * noise, **tuned)
    return kind(Fraction(mu), Fraction(1, 10**6), TENTH, tuning=tuning)


SHARED = [f"s{n}" for n in range(40)]
OWN = [f"v{n}" for n in range(30)]
TABLES = {
    "one item": ([["a"]] * 20, ["a"]),
    "a heavy user": ([[s for n, s in enumerate(SHARED) if (n + u) % 3] for u in range(25)], SHARED),
    "far above the others": ([[SHARED[(u + 13 * n) % 40] for n in range(3)] for u in range(80)], SHARED),
    "own items": ([SHARED[:5]] * 20, SHARED[:5] + OWN),
    "nearly empty": ([["a"]], OWN[:10]),
    "mixed": ([SHARED[u % 7 : u % 7 + 1 + u % 9] for u in range(30)], SHARED[:12:2] + OWN[:3]),
}


def paths(mechanism, name, runs, kind=Pairs, seed=1):
    """Return recorded and replayed paths, in both directions."""
    rng = np.random.default_rng([seed, len(name)])
    table, basket = TABLES[name]
    return [compare(mechanism, table, basket, rng, number % 2, kind) for number in range(runs)]


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize(("mu", "noise"), [(1, 2.0), (3, 0.5), (8, 0.05), (3, 2.0)])
def test_one_user_shifts_all_noisy_values_together_by_mu_at_most(name, mu, noise):
    """Theorem 1: the squared shift over noise is at most mu^2 on every path, and everything else is equal."""
    found = paths(instance(mu, noise), name, 12)
    assert [path.fault for path in found if path.fault] == []
    assert max(path.shift for path in found) <= 1 + 1e-9


def test_a_heavy_user_uses_all_of_mu():
    """The bound is attained, so that the audit measures what it claims to."""
    assert max(path.shift for path in paths(instance(3, 2.0), "far above the others", 12)) > 0.99


@pytest.mark.parametrize(("mu", "epsilon"), [(1, 1), (3, 4)])
def test_the_likelihood_ratios_stay_under_the_gaussian_curve(mu, epsilon):
    """Theorem 1: E max(0, 1 - e^(epsilon - loss)) is at most delta of mu-GDP."""
    losses = np.array([path.loss for path in paths(instance(mu, 2.0), "far above the others", 300)])
    terms = np.maximum(0, 1 - np.exp(epsilon - losses))
    assert terms.mean() - 4 * terms.std() / math.sqrt(len(terms)) <= delta_gaussian(mu, epsilon)
    assert terms.mean() > delta_gaussian(mu, epsilon) / 4  # the audit sees something


@pytest.mark.parametrize("side", [0, 1])
def test_own_items_pass_no_more_often_than_the_verification_lets_them(side):
    """With 2 standard errors in place of 8: at most Q(2) for each of the items that only one user has."""

    class Loose(TwoRound):
        def _evidence(self):
            return 2.0

    rng = np.random.default_rng(7)
    table, basket = TABLES["nearly empty"]
    passed = [compare(instance(3, 2.0, Loose), table, basket, rng, side).own_passed for _ in range(150)]
    assert 0 < np.mean(passed) <= 10 * normal_tail(2) + 3 * math.sqrt(0.2 * 0.8 / 150)


class Top(Auto):
    """A top k whose race is never chosen, since it could not be replayed."""

    @property
    def mu(self):
        """Return mu of the two rounds and the gap together."""
        return math.sqrt(2 * self.worst_cost().rho)

    def _gap(self, race, head, bits):
        gap, _ = super()._gap(race, head, bits)
        return gap, 10**6


@pytest.mark.parametrize("name", ["one item", "far above the others", "own items", "nearly empty"])
def test_the_gap_of_a_top_k_is_part_of_mu(name, monkeypatch):
    """The gap between count k and the cut-off moves by 1 at most, and with it all shifts are mu^2 at most."""
    monkeypatch.setattr(
        auto, "add_noise", lambda values, unit, precisions, bits, label: bits.add(values, unit, precisions, label)
    )
    monkeypatch.setattr(auto, "USERS_PER_NOISE", 0)
    monkeypatch.setattr(auto, "TAIL_MATTERS", math.inf)
    monkeypatch.setattr(auto, "are_few", lambda *_: False)
    mechanism = Top.within_cost(Cost(Fraction(9, 2), Fraction(1, 10**6)), Request(2, 4))
    never = replace(mechanism.light, epsilon=Fraction(1, 1000))
    mechanism = replace(mechanism, two_round=replace(mechanism.two_round, tuning=Tuning(noise=5.0)), light=never)
    found = paths(mechanism, name, 12)
    assert [path.fault for path in found if path.fault] == []
    assert max(path.shift for path in found) <= 1 + 1e-9


# Planted errors: each of them must be seen.


class Having(Pairs):
    """A planted defect: the first query has HAVING count(*) >= 2."""

    def weighted_sums(self, limit):
        sums = gathered(super().weighted_sums(limit))
        yield np.where(self.counts >= 2, sums, -(2**50))


class Longest(Pairs):
    """A planted defect: the first query has a LIMIT of the five largest sums."""

    def weighted_sums(self, limit):
        sums = gathered(super().weighted_sums(limit))
        yield np.where(np.argsort(np.argsort(-sums, kind="stable"), kind="stable") < 5, sums, -(2**50))


class Repeated(Pairs):
    """A planted defect: rows in place of distinct pairs, three for each of the last user's."""

    def weighted_sums(self, limit):
        sums = gathered(super().weighted_sums(limit))
        if len(self.baskets) == 81:  # the table with the extra user
            weight = weights(np.array([limit / math.sqrt(len(self.baskets[-1]))]))[0]
            sums[[self.names.index(item) for item in self.baskets[-1]]] += 2 * weight
        yield sums


class OwnItemsFree(Pairs):
    """A planted defect: the cap counts only items of at least twenty users."""

    def clipped_sums(self, items, costs, bound):
        super().clipped_sums(items, costs, bound)
        seen = np.where(self.counts[items] >= 20, costs, 0)
        user, place = self._rows_of(items)
        cost = np.bincount(user, weights=seen[place].astype(float), minlength=len(self._sizes))
        share = weights(np.sqrt(bound / np.maximum(cost, 1)))
        return np.bincount(place, weights=share[user].astype(float), minlength=len(items)).astype(np.int64)


class OldWeights(Pairs):
    """A planted defect: the second round weights users by their number of items, like the first."""

    def weighted_sums(self, limit):
        self.limit = limit
        return super().weighted_sums(limit)

    def clipped_sums(self, items, costs, bound):
        super().clipped_sums(items, costs, bound)
        user, place = self._rows_of(items)
        share = weights(self.limit / np.sqrt(self._sizes))
        return np.bincount(place, weights=share[user].astype(float), minlength=len(items)).astype(np.int64)


class NoiseByCandidates(TwoRound):
    """A planted defect: the noise of the second round grows with the number of candidates."""

    def _second_round(self, first, scale, *rest):
        above = (first.values >= scale / self._noise()).sum()
        return super()._second_round(first, scale * max(above, 1) ** 0.25, *rest)


class EarlyReturn(TwoRound):
    """A planted defect: the run ends visibly if nothing is above the cut."""

    def _scale(self, first, power, pairs, bits):
        if not len(first.items):
            raise Divergent("early return")
        return super()._scale(first, power, pairs, bits)

    def release(self, pairs, bits):
        try:
            return super().release(pairs, bits)
        except Divergent:
            return Outcome(np.zeros(0, np.int64), ordered=True, complete=False, cost=self.worst_cost())


FALLIBLE = {
    "half of equal items": ([[SHARED[(u + 13 * n) % 40] for n in range(3)] for u in range(80)], SHARED[20:]),
    "pairs": ([SHARED[u : u + 2] for u in range(20)], SHARED[:12:2]),
    "nineteen owners": ([*[SHARED[:30]] * 19, *[["q"]] * 100], SHARED[:30]),
    "three rare items": ([[f"r{u // 12}", *SHARED[:5]] for u in range(300)], ["r0", "r1", "r2"]),
    **TABLES,
}


@pytest.mark.parametrize(
    ("mechanism", "pairs", "name", "mu", "noise"),
    [
        (TwoRound, Longest, "half of equal items", 3, 2.0),
        (TwoRound, Having, "pairs", 3, 2.0),
        (TwoRound, Repeated, "far above the others", 3, 2.0),
        (TwoRound, OwnItemsFree, "nineteen owners", 3, 0.2),
        (TwoRound, OldWeights, "three rare items", 3, 0.05),
        (NoiseByCandidates, Pairs, "own items", 3, 2.0),
        (EarlyReturn, Pairs, "nearly empty", 3, 2.0),
    ],
)
def test_planted_defects_are_detected(mechanism, pairs, name, mu, noise):
    """Each defect gives a larger shift, or runs that differ elsewhere."""

    def seen(kind, asked):
        rng = np.random.default_rng(3)
        found = [compare(instance(mu, noise, kind, 0.9), *FALLIBLE[name], rng, n % 2, asked) for n in range(30)]
        return any(path.fault or path.shift > 1 + 1e-9 for path in found)

    assert seen(mechanism, pairs)
    assert not seen(TwoRound, Pairs)


def test_missing_noise_in_empty_bins_is_detected(monkeypatch):
    """Planted defect: bins and sums of 0 get no noise."""
    noisy = two_round.add_noise

    def sparse(values, unit, precisions, bits, label):
        added = noisy(values, unit, precisions, bits, label)
        for place in np.flatnonzero(values == 0).tolist():
            mean, _, _ = bits.record[label, place]
            bits.record[label, place] = (mean, 1e-9, mean)
        return added

    found = paths(instance(3, 2.0), "one item", 4)
    assert max(path.shift for path in found) <= 1
    monkeypatch.setattr(two_round, "add_noise", sparse)
    assert any(path.shift > 1.01 or path.fault for path in paths(instance(3, 2.0), "mixed", 10))


def test_a_loss_estimated_from_items_is_detected(monkeypatch):
    """Planted defect: the loss by clipping is estimated from the sums of all items."""
    noisy, seen = two_round.add_noise, {}

    def remember(values, unit, precisions, bits, label):
        added = noisy(values, unit, precisions, bits, label)
        if label == "first":
            seen["sum"] = added.sum() / WEIGHT_UNIT
        return added

    monkeypatch.setattr(two_round, "add_noise", remember)
    monkeypatch.setattr(two_round, "_clipping_loss", lambda *_: (1.0, min(0.7, abs(seen["sum"]) / 1000), 0.1, 0.1, 0.0))
    found = paths(instance(3, 0.5, head_share=0.0, alone_noise=0.0), "own items", 40)
    assert any(path.fault for path in found)
