"""A race decides exactly by its bits, for any number of bits that it sees first."""

from __future__ import annotations

import functools
from fractions import Fraction

import numpy as np
import pytest

from discreet.errors import InvariantViolated
from discreet.noise import Race, Rival
from discreet.noise.distributions import _ULPS

from .reference import (
    ALL_ONES,
    REFERENCE,
    ScriptedBits,
    exact_exponentials,
    exact_fraction,
    exact_uniform,
    keyed,
    log,
    real,
    words_of,
)

RACES = {1: 80, 2: 120, 4: 250, 8: 400, 20: 500, 36: 500, 64: 1200}
"""How many random races are run with so many known bits: the fewer bits, the more there is to decide exactly."""


def run(scores, scale, bits, *, rival=None, divisors=None, limit=None, known_bits=64):
    """Run a race and return the order as a list."""
    race = Race(
        np.array(scores, dtype=np.int64), scale, rival, None if divisors is None else np.array(divisors, dtype=np.int64)
    )
    order, reached = race.run(bits, "race", len(scores) if limit is None else limit, known_bits)
    assert order.dtype == np.int64
    return order.tolist(), reached


def reference(scores, scale, make_bits, *, rival=None, divisors=None, limit=None, known_bits=64):
    """Return the same order by 300-bit keys: scale * score + ln factor - ln E, from the documentation."""
    n = len(scores)
    noise = exact_exponentials(make_bits(), "race", n + (rival is not None), known_bits)
    keys = [real(scale * score) - log(e) for score, e in zip(scores, noise, strict=False)]
    if divisors is not None:
        keys = [key - log(divisor) for key, divisor in zip(keys, divisors, strict=True)]
    order = sorted(range(n), key=keys.__getitem__, reverse=True)
    places = n if limit is None else limit
    if rival is None:
        return order[:places], False
    bar = real(scale * rival.score) + log(rival.factor) - log(noise[n])
    ahead = [i for i in order if keys[i] > bar]
    return ahead[:places], len(ahead) < places


def random_race(seed):
    """Return a close race: a few competitors whose scores differ by about one Gumbel deviation."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 9))
    scale = Fraction(int(rng.integers(1, 10**6)), int(rng.integers(1, 10**6))) / int(rng.choice([1, 10**9]))
    top = int(rng.choice([0, 1000, 2**40, 2**62]))
    spread = min(max(int(3 / scale), 1), 2**61)
    scores = [max(min(top + int(x), 2**62), -(2**62)) for x in rng.integers(-spread, spread + 1, n)]
    rival, divisors = None, None
    if rng.random() < 0.6:
        rival = Rival(scores[0], Fraction(int(rng.integers(1, 10**6)), int(rng.integers(1, 10**6))))
    if rng.random() < 0.4:
        divisors = rng.integers(1, 40, n).tolist()
    limit = int(rng.integers(1, n + 3))
    return {"scores": scores, "scale": scale, "rival": rival, "divisors": divisors, "limit": limit}


@pytest.mark.parametrize(("known_bits", "races"), RACES.items())
def test_random_races_end_as_at_300_bits(known_bits, races):
    """Close races with rivals, divisors, limits, huge and tiny scores have the exact order and flag."""
    reached = 0
    for seed in range(races):
        race = random_race(seed)
        make_bits = functools.partial(keyed, "random", seed, known_bits)
        found = run(bits=make_bits(), known_bits=known_bits, **race)
        assert found == reference(make_bits=make_bits, known_bits=known_bits, **race), seed
        reached += found[1]
    assert races / 8 < reached < races * 7 / 8


def test_the_first_bits_alone_do_not_decide_these_races():
    """The test above can fail: keys of 4 known bits, ties by index, often give another order."""
    wrong = 0
    for seed in range(100):
        race = random_race(seed) | {"rival": None, "divisors": None, "limit": None}
        make_bits = functools.partial(keyed, "random", seed, 4)
        words = make_bits().uint64("race", len(race["scores"]))
        uniform = ((words >> np.uint64(60)).astype(np.float64) + 0.5) / 16
        keys = float(race["scale"]) * np.array(race["scores"], dtype=np.float64) - np.log(-np.log(uniform))
        wrong += np.argsort(-keys, kind="stable").tolist() != reference(make_bits=make_bits, known_bits=4, **race)[0]
    assert wrong > 15


@pytest.mark.parametrize(
    ("n", "scale", "known_bits"), [(1000, Fraction(1, 7), 64), (1000, Fraction(1, 300), 64), (60, Fraction(1, 2), 8)]
)
def test_long_races_cut_to_few_places_end_as_at_300_bits(n, scale, known_bits):
    """Candidates that are dropped before the exact comparison could not have been placed."""
    scores = np.random.default_rng(5).integers(0, 60, n).tolist()
    make_bits = functools.partial(keyed, "long", scale)
    for rival in (None, Rival(55, Fraction(2))):
        race = {"scores": scores, "scale": scale, "rival": rival, "known_bits": known_bits}
        order, _ = reference(make_bits=make_bits, **race)
        assert len(order) > 2
        for limit in (1, 2, 10, 50):
            found = run(bits=make_bits(), limit=limit, **race)
            assert found == (order[:limit], len(order) < limit)


def test_places_do_not_depend_on_how_many_there_are():
    """The first places are the same with and without a limit."""
    scores = np.random.default_rng(6).integers(0, 20, 400).tolist()
    full, _ = run(scores, Fraction(1, 3), keyed("prefix"))
    for limit in (1, 2, 17, 399, 400, 401, 10_000):
        assert run(scores, Fraction(1, 3), keyed("prefix"), limit=limit) == (full[:limit], False)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(
    "word", [1 << 40, 1 << 55, 1 << 62, 1 << 63, 3 << 62, ALL_ONES - (1 << 45), ALL_ONES - (1 << 30)]
)
@pytest.mark.parametrize(
    ("scores", "scale"),
    [
        ((3, 0, 1), Fraction(1, 3)),
        ((0, 2**62, 2**62 - 1), Fraction(1)),
        ((-(2**62), 0, 2**62), Fraction(1, 2**63)),
        ((2**50, 5, 7), Fraction(1, 3)),
    ],
    ids=["small", "huge", "tiny scale", "both far behind another"],
)
def test_keys_that_meet_within_a_word_are_decided_by_the_next(word, scores, scale, depth):
    """Item 2's uniform makes up for its score to 64 or 128 bits; the last word decides against item 1, either way."""
    middle = log(exact_uniform(ScriptedBits({}), "race", 1, word))
    *words, last = words_of(REFERENCE.exp(middle * REFERENCE.exp(-real(scale * (scores[1] - scores[2])))), depth + 1)
    for further, ahead in ((last + 2**45, 2), (last - 2**45, 1)):
        assert 0 <= further <= ALL_ONES
        script = {"race": [1 << 63, word, words[0]], f"race/2/{depth}": [further]}
        script |= {f"race/2/{i}": [w] for i, w in enumerate(words[1:], 1)}
        make_bits = functools.partial(ScriptedBits, script)
        order, _ = run(scores, scale, make_bits())
        assert order == reference(scores, scale, make_bits)[0]
        assert order.index(ahead) < order.index(3 - ahead)


def test_equal_words_and_scores_are_decided_by_further_words():
    """Ties of 64 and of 128 bits are decided by further words, not by index and position; 64 are the default."""
    for third, expected in (((5, 9), [1, 0]), ((9, 5), [0, 1])):
        words = {
            "race": [1 << 60] * 2,
            "race/0/1": [7],
            "race/1/1": [7],
            "race/0/2": [third[0]],
            "race/1/2": [third[1]],
        }
        assert run([4, 4], Fraction(1), ScriptedBits(words)) == (expected, False)
        assert Race(np.array([4, 4]), Fraction(1)).run(ScriptedBits(words), "race", 2)[0].tolist() == expected


@pytest.mark.parametrize("extreme", [0, ALL_ONES, 1, ALL_ONES - 1])
def test_extreme_words_are_placed_exactly(extreme):
    """Words of only zeros or ones leave infinite intervals, which further words close."""
    scores = [0, 1, 2, 3]
    for rival in (None, Rival(1, Fraction(3, 2))):
        for at in range(4 + (rival is not None)):
            words = [1 << 61, 1 << 62, 1 << 63, 3 << 61, 5 << 61][: 4 + (rival is not None)]
            words[at] = extreme
            make_bits = functools.partial(ScriptedBits, {"race": words})
            for limit in (1, 2, 4, 5):
                race = {"scores": scores, "scale": Fraction(1), "rival": rival, "limit": limit}
                assert run(bits=make_bits(), **race) == reference(make_bits=make_bits, **race)


@pytest.mark.parametrize("extreme", [0, ALL_ONES])
def test_variates_that_128_bits_leave_infinite_are_placed_by_more(extreme):
    """After two words of zeros or of ones W may still be 0 or 1; the third word decides."""
    for at in range(3):
        words = [1 << 61, 1 << 62, 1 << 63]
        words[at] = extreme
        make_bits = functools.partial(ScriptedBits, {"race": words, f"race/{at}/1": [extreme]})
        for scores in ([0, 1, 2], [0, 80, 0], [90, 0, 90]):
            race = {"scores": scores, "scale": Fraction(1)}
            assert run(bits=make_bits(), **race) == reference(make_bits=make_bits, **race)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("ahead", [0, 1])
def test_keys_that_differ_in_the_61st_digit_are_placed_by_the_third_word(seed, ahead):
    """At the ends of their intervals of 128 bits even the rounding of logarithms must not decide."""
    ends = [ALL_ONES, 0] if ahead == 0 else [0, ALL_ONES]
    further = {f"race/{i}/{depth}": [ends[i]] for i in (0, 1) for depth in (2, 3, 4)}
    first = {f"race/{i}/1": keyed("close", seed).uint64(f"{i}", 1) for i in (0, 1)}
    make_bits = functools.partial(ScriptedBits, {"race": keyed("close", seed).uint64("x", 2)} | first | further)
    one, other = exact_exponentials(make_bits(), "race", 2)
    side = 1 if ahead == 0 else -1
    lead = exact_fraction(log(other) - log(one)) - side * Fraction(3, 10**61)
    race = {"scores": [0, 1] if lead > 0 else [1, 0], "scale": abs(lead)}
    assert run(bits=make_bits(), **race)[0] == reference(make_bits=make_bits, **race)[0] == [ahead, 1 - ahead]


@pytest.mark.parametrize("known_bits", [33, 40, 48, 51, 56])
def test_nearly_equal_great_variates_are_not_cut_away(known_bits):
    """Of two uniforms next to 1 with equal known bits, the lower score has the greater variate and is placed."""
    word = ALL_ONES - (1 << 34) - (1 << 33)
    lead = Fraction(1, 2 ** (known_bits - 29))
    make_bits = functools.partial(
        ScriptedBits, {"race": [word, word], "race/0/1": [ALL_ONES - 5], "race/1/1": [5], "race/0/2": [0]}
    )
    race = {"scores": [0, 1], "scale": lead, "limit": 1, "known_bits": known_bits}
    assert run(bits=make_bits(), **race) == reference(make_bits=make_bits, **race)


def test_a_score_that_floats_put_512_lower_is_not_cut_away():
    """Far behind the best item, where scores that differ by 2 are rounded to either side, noise still decides."""
    make_bits = functools.partial(ScriptedBits, {"race": [1 << 63, 1 << 40, ALL_ONES - (1 << 40)]})
    race = {"scores": [0, -(2**61) - 255, -(2**61) - 257], "scale": Fraction(1), "limit": 2}
    assert run(bits=make_bits(), **race) == reference(make_bits=make_bits, **race) == ([0, 2], False)


@pytest.mark.parametrize("digits", [1, 18, 60, 324, 3000])
def test_exponents_are_within_the_margin_that_the_race_assumes(digits):
    """Differences of huge scores, divisors, and a rival factor of many digits."""
    rng = np.random.default_rng(digits)
    for scale in (Fraction(1, 3), Fraction(10**6, 7), *[Fraction(1, 2**61)] * 30):
        scores = [2**62, 2**62 - 1, 2**62 - 10**9, 0, -(2**62)]
        divisors = [1, 2, 3, 10**6, 2**62]
        numerator, denominator = (int.from_bytes(rng.bytes(digits * 5 // 12 + 1)) + 1 for _ in range(2))
        rival = Rival(2**62 - 3, Fraction(numerator, denominator))
        found = Race(np.array(scores), scale, rival, np.array(divisors)).exponents()
        exact = [real(scale * (s - 2**62)) - log(d) for s, d in zip(scores, divisors, strict=True)]
        exact.append(real(scale * (rival.score - 2**62)) + log(rival.factor))
        for value, truth in zip(found.tolist(), exact, strict=True):
            assert abs(truth - value) <= _ULPS * (abs(value) + 64)


def test_the_exact_exponents_enclose_the_truth():
    """For items, items with a divisor, and the rival, whose index is the last."""
    race = Race(np.array([7, 2**62]), Fraction(2, 7), Rival(5, Fraction(10, 3)), np.array([1, 12]))
    truths = [real(Fraction(2)), real(Fraction(2, 7) * 2**62) - log(12), real(Fraction(10, 7)) + log(Fraction(10, 3))]
    for i, truth in enumerate(truths):
        low, high = race.exact_exponent(i, 50)
        assert low - Fraction(1, 10**80) <= exact_fraction(truth) <= high + Fraction(1, 10**80)
        assert high - low < Fraction(1, 10**47)


class TestTheRival:
    """When a race ends by its rival."""

    def test_only_the_rival_races(self):
        """No items: nothing is returned, and the rival was reached if there is one; no bits are needed."""
        for limit in (1, 5):
            assert run([], Fraction(1), ScriptedBits({}), limit=limit) == ([], False)
            assert run([], Fraction(1), ScriptedBits({}), rival=Rival(0), limit=limit) == ([], True)

    def test_it_is_reached_only_within_the_limit(self):
        """The order is 2, 0, rival, 1: limits 1 and 2 are filled before it, limit 3 and more reach it."""
        make_bits = functools.partial(ScriptedBits, {"race": [1 << 63] * 4})
        for limit, expected in ((1, ([2], False)), (2, ([2, 0], False)), (3, ([2, 0], True)), (9, ([2, 0], True))):
            found = run([60, 20, 80], Fraction(1), make_bits(), rival=Rival(40), limit=limit)
            assert found == expected

    def test_an_item_far_behind_it_is_never_returned(self):
        """An item far ahead always is, on both sides of 2^62."""
        bits = keyed("far")
        assert run([0, 2**62], Fraction(1), bits, rival=Rival(2**61)) == ([1], True)

    def test_its_score_may_be_the_greatest_or_the_least(self):
        """A score one tau above the largest count is included."""
        assert run([2**62, 0], Fraction(1), keyed("a"), rival=Rival(2**62 + 2**31)) == ([], True)
        assert run([2**62, 2**61], Fraction(1), keyed("a"), rival=Rival(-(2**62)), limit=3) == ([0, 1], True)


def test_a_label_used_twice_raises():
    """Two races never share their noise."""
    bits = keyed("twice")
    run([1, 2], Fraction(1), bits)
    with pytest.raises(InvariantViolated):
        run([1, 2], Fraction(1), bits)


def test_a_race_does_not_change_its_scores():
    """The scores are the head's."""
    scores = np.array([5, 4, 3, 3])
    scores.flags.writeable = False
    Race(scores, Fraction(1, 2), Rival(3)).run(keyed("frozen"), "race", 2)
    assert scores.tolist() == [5, 4, 3, 3]
