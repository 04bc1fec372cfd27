"""The order of a race is Plackett-Luce: peeling by the exponential mechanism."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from discreet.noise import Race, Rival

from .reference import SURE, StreamBits, p_value

RUNS = 4_000
RIVAL = "rival"


def plackett_luce(exponents, limit, rival=None):
    """Return the probability of every outcome: items before the rival within *limit*, and if the rival was reached."""
    competitors = dict(enumerate(exponents)) | ({} if rival is None else {RIVAL: rival})
    outcomes = Counter()

    def peel(order, chance, rest):
        if len(order) == limit or not rest:
            outcomes[order, False] += chance
            return
        weights = {i: math.exp(e - max(rest.values())) for i, e in rest.items()}
        for winner, weight in weights.items():
            share = chance * weight / math.fsum(weights.values())
            if winner == RIVAL:
                outcomes[order, True] += share
            else:
                peel((*order, winner), share, {i: e for i, e in rest.items() if i != winner})

    peel((), 1.0, competitors)
    return outcomes


def outcomes_of(runner, runs=RUNS):
    """Return how often each outcome of *runner* occurs."""
    return Counter(runner() for _ in range(runs))


def racer(race, limit, context, known_bits=64):
    """Return a function that runs *race* with fresh bits."""
    bits = StreamBits(context, 2**19)

    def once():
        order, reached = race.run(bits, "race", limit, known_bits)
        return tuple(order.tolist()), reached

    return once


def scaled(probabilities, runs=RUNS):
    """Return expected counts."""
    return {outcome: runs * p for outcome, p in probabilities.items()}


LN2 = Fraction(math.log(2))
CASES = {
    "two items": ((1, 0), LN2, None, None, 2),
    "four items, all places": ((3, 2, 1, 0), Fraction(1, 2), None, None, 4),
    "four items, one place": ((3, 2, 1, 0), Fraction(1, 2), None, None, 1),
    "four items, two places": ((0, 0, 5, 3), Fraction(2, 5), None, None, 2),
    "a limit above the number": ((1, 0, 0), Fraction(1), None, None, 7),
    "rival in the middle": ((3, 2, 0), Fraction(1, 2), Rival(1, Fraction(3, 2)), None, 3),
    "rival and a place more": ((3, 2, 0), Fraction(1, 2), Rival(1, Fraction(3, 2)), None, 4),
    "rival and one place": ((3, 2, 0), Fraction(1, 2), Rival(2, Fraction(1, 7)), None, 1),
    "rival alone with one": ((0,), Fraction(1), Rival(0, Fraction(1, 3)), None, 1),
    "divisors": ((0, 0, 0), Fraction(1), None, (1, 2, 5), 3),
    "divisors and scores": ((0, -1, -3, -3), Fraction(1, 2), None, (2, 3, 4, 5), 1),
    "divisors and a rival": ((2, 1, 1), Fraction(3, 4), Rival(1, Fraction(2)), (1, 3, 1), 2),
    "huge scores": ((2**62, 2**62 - 1, 2**62 - 2), LN2, Rival(2**62 - 1, Fraction(2)), None, 3),
    "huge negative scores": ((-(2**62), -(2**62) + 1, -(2**62) + 3), Fraction(1, 2), None, None, 3),
    "from end to end with a tiny scale": ((2**62, 0, -(2**62)), Fraction(1, 2**62), None, None, 3),
    "huge scale": ((5, 5, 4), Fraction(10**18), None, None, 3),
}


def exponents_of(scores, scale, rival, divisors):
    """Return exact differences as floats, and the rival's."""
    base = max(scores)
    exponents = [float(scale * (s - base)) - math.log(d) for s, d in zip(scores, divisors or [1] * 9, strict=False)]
    return exponents, None if rival is None else float(scale * (rival.score - base)) + math.log(rival.factor)


@pytest.mark.statistical
@pytest.mark.parametrize("case", CASES)
def test_all_ordered_outcomes_are_plackett_luce(case):
    """Chi-square over every outcome, orders and flag together."""
    scores, scale, rival, divisors, limit = CASES[case]
    exponents, bar = exponents_of(scores, scale, rival, divisors)
    race = Race(np.array(scores), scale, rival, None if divisors is None else np.array(divisors))
    expected = scaled({o: p for o, p in plackett_luce(exponents, limit, bar).items() if p > 0})
    assert p_value(outcomes_of(racer(race, limit, case)), expected) > SURE


@pytest.mark.statistical
@pytest.mark.parametrize(("known_bits", "runs"), [(1, 150), (2, 250), (4, 500)])
def test_forced_refinements_change_no_probability(known_bits, runs):
    """Three items and a rival, with one, two and four bits known at first."""
    race = Race(np.array([3, 2, 1]), Fraction(1, 2), Rival(2))
    expected = scaled(plackett_luce([1.5, 1.0, 0.5], 3, 1.0), runs)
    assert p_value(outcomes_of(racer(race, 3, ("forced", known_bits), known_bits), runs), expected) > SURE


@pytest.mark.statistical
def test_equal_scores_come_in_every_order_alike():
    """All 24 orders of four equal items; a stable sort of coarse keys would prefer the first."""
    expected = scaled(dict.fromkeys(((p, False) for p in itertools.permutations(range(4))), 1 / 24))
    race = Race(np.full(4, 17), Fraction(1, 5))
    assert p_value(outcomes_of(racer(race, 4, "equal")), expected) > SURE
    words = StreamBits("coarse")

    def coarse():
        return tuple(np.argsort(words.uint64("", 4) >> np.uint64(61), kind="stable").tolist()), False

    assert p_value(outcomes_of(coarse), expected) < SURE


@pytest.mark.statistical
def test_the_published_example_of_the_strict_rule_is_reproduced():
    """Items 3 and 2 with a rival of score 2, factor 2 / .05, at .5: .0386581642, .0234473618, .9378944739."""
    race = Race(np.array([3, 2]), Fraction(1, 2), Rival(2, Fraction(40)))
    expected = scaled({((0,), False): 0.0386581642, ((1,), False): 0.0234473618, ((), True): 0.9378944739})
    assert p_value(outcomes_of(racer(race, 1, "published")), expected) > SURE


def planted(race, limit, keys):
    """Return a race that orders by *keys*, floats, the last of which is a rival's."""
    rng = np.random.default_rng(7)

    def once():
        order = np.argsort(-keys(race, rng), kind="stable").tolist()
        n = len(race.scores)
        ahead = order[: order.index(n)] if n in order else order
        return tuple(ahead[:limit]), n in order and len(ahead) < limit

    return once


def float_keys(race, rng):
    """A planted defect: scores become floats before they are compared."""
    base = race.scores.astype(np.float64) * float(race.scale)
    if race.rival is not None:
        base = np.append(base, race.rival.score * float(race.scale) + math.log(race.rival.factor))
    return base + rng.gumbel(size=len(base))


def wrong_sign(race, rng):
    """A planted defect: Gumbel noise of the wrong sign (the published cut-off rule)."""
    return race.exponents() - rng.gumbel(size=len(race.exponents()))


def laplace_keys(race, rng):
    """A planted defect: noisy maximum with Laplace noise."""
    return race.exponents() + rng.laplace(size=len(race.exponents()))


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("case", "keys"),
    [
        ("huge scores", float_keys),
        ("huge negative scores", float_keys),
        ("four items, all places", wrong_sign),
        ("rival and a place more", wrong_sign),
        ("four items, all places", laplace_keys),
    ],
)
def test_other_races_are_distinguished_from_plackett_luce(case, keys):
    """The chi-square test of this file rejects each of three planted defects."""
    scores, scale, rival, divisors, limit = CASES[case]
    exponents, bar = exponents_of(scores, scale, rival, divisors)
    race = Race(np.array(scores), scale, rival, None if divisors is None else np.array(divisors))
    expected = scaled(plackett_luce(exponents, limit, bar))
    assert p_value(outcomes_of(planted(race, limit, keys)), expected) < SURE


def test_the_planted_race_passes_with_correct_keys():
    """The test above rejects the defects, not the race around them."""
    scores, scale, rival, divisors, limit = CASES["divisors and a rival"]
    exponents, bar = exponents_of(scores, scale, rival, divisors)
    race = Race(np.array(scores), scale, rival, np.array(divisors))
    right = planted(race, limit, lambda r, rng: r.exponents() + rng.gumbel(size=4))
    assert p_value(outcomes_of(right), scaled(plackett_luce(exponents, limit, bar))) > SURE


def test_the_expected_probabilities_are_those_of_the_exponential_mechanism():
    """They sum to one, and the first place has probabilities proportional to the weights."""
    exponents, bar = [1.5, 1.0, 0.0], 0.8
    total = math.fsum(map(math.exp, [*exponents, bar]))
    for limit in (1, 2, 3, 4):
        outcomes = plackett_luce(exponents, limit, bar)
        assert math.fsum(outcomes.values()) == pytest.approx(1, abs=1e-12)
        assert outcomes[(), True] == pytest.approx(math.exp(bar) / total)
        first = math.fsum(p for (order, _), p in outcomes.items() if order[:1] == (0,))
        assert first == pytest.approx(math.exp(1.5) / total)
