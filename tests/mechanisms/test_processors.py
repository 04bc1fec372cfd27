"""Keyed answers are equal on all processors: numpy orders equal values and rounds powers by the vectors it has."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest

from discreet.mechanisms.auto import Auto
from discreet.mechanisms.base import Request
from discreet.mechanisms.two_round import TwoRound
from discreet.noise import KeyedBits
from discreet.testing.pairs import ArrayPairs

_PRINT = "import json; from tests.mechanisms.test_processors import answers; print(json.dumps(answers()))"


def answers():
    """Return digests of keyed answers about tables with many ties, and of an unstable sort."""
    found = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        rows = 20_000
        items = np.floor(np.exp(rng.random(rows) * rng.uniform(5, 8))).astype(np.int64)
        pairs = ArrayPairs(rng.integers(0, rows // 3, rows), items)
        for mechanism, k in ((TwoRound, None), (TwoRound, 50), (Auto, None), (Auto, 50)):
            chosen = mechanism.at_epsilon(Fraction(2), Fraction(1, 10**8), Request(k, 10_000))
            outcome = chosen.release(pairs, KeyedBits(b"k" * 32, seed))
            with np.printoptions(threshold=sys.maxsize, floatmode="unique"):
                found.append(repr([getattr(outcome, name) for name in outcome.__slots__]))
    tied = np.random.default_rng(0).integers(0, 50, 100_000)
    return [hashlib.sha256(text.encode()).hexdigest() for text in [*found, repr(np.argsort(tied).tolist())]]


@pytest.mark.parametrize("without", ["X86_V4 AVX512_ICL AVX512_SPR", "X86_V3 X86_V4 AVX512_ICL AVX512_SPR"])
def test_keyed_answers_do_not_depend_on_the_processor(without):
    """Without AVX-512, and without AVX2, an unstable sort has another order, and all answers are equal."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _PRINT],
        env={**os.environ, "NPY_DISABLE_CPU_FEATURES": without},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode and "NPY_DISABLE_CPU_FEATURES" in done.stderr:
        pytest.skip("this numpy or processor has no such features")
    assert done.returncode == 0, done.stderr
    *ours, unstable = answers()
    *others, other_unstable = json.loads(done.stdout)
    assert ours == others
    if unstable == other_unstable:
        pytest.skip("this processor sorts alike without them")
