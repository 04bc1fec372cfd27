"""Sampled releases by two rounds: a statistical audit with fixed keys, and the same release by DuckDB."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest

from discreet.accounting.gaussian import delta_gaussian
from discreet.engines.duckdb import DuckDBEngine
from discreet.head_request import HeadRequest
from discreet.mechanisms import two_round
from discreet.mechanisms.two_round import Tuning, TwoRound
from discreet.noise import KeyedBits
from discreet.testing.audit import statistical_audit
from discreet.testing.pairs import ArrayPairs

pytestmark = pytest.mark.statistical

RUNS = 600
SECRETS = b"two rounds without the last user", b"two rounds with one user more..."
ITEMS = [f"s{n}" for n in range(6)]
TABLE = [ITEMS[user % 4 : user % 4 + 3] for user in range(60)]


class Loose(TwoRound):
    """Three standard errors verify, so that tables of sixty users have releases."""

    def _evidence(self):
        return 3.0


MECHANISM = Loose(Fraction(2), Fraction(1, 10**6), Fraction(1, 2), tuning=Tuning(precise=10.0))


def rows_of(baskets):
    """Return users and numbers of items, one for each row."""
    rows = [(user, ITEMS.index(item)) for user, basket in enumerate(baskets) for item in basket]
    users, items = zip(*rows, strict=True)
    return users, items


def releases(baskets, secret):
    """Return what is published of many releases: which items, and counts in steps of 8."""
    pairs, seen = ArrayPairs(*rows_of(baskets)), []
    for run in range(RUNS):
        outcome = MECHANISM.release(pairs, KeyedBits(secret, run))
        numbers = pairs.labels(outcome.positions).tolist()
        seen.append(tuple(sorted(zip(numbers, (outcome.counts // 8).tolist(), strict=True))))
    return seen


def shown_delta(epsilon):
    """Return a lower bound for delta at *epsilon* between sixty users and one more, who has all items."""
    tables = zip((TABLE, [*TABLE, ITEMS]), SECRETS, strict=True)
    return statistical_audit(*(releases(baskets, secret) for baskets, secret in tables), epsilon)


def test_one_more_user_is_not_detected():
    """What releases show is below delta of 2-GDP."""
    assert shown_delta(1.0) <= delta_gaussian(2.0, 1.0)


def test_releases_without_noise_are_detected(monkeypatch):
    """The audit can fail: it detects missing noise."""
    monkeypatch.setattr(two_round, "add_noise", lambda values, *_: values)
    monkeypatch.setattr(two_round, "add_noise_in_batches", lambda batches, *_: batches)
    assert shown_delta(1.0) > 0.75


def test_duckdb_and_arrays_have_the_same_release():
    """Equal pairs, mechanism and key have equal items, counts and errors."""
    users, items = rows_of([*TABLE, ITEMS])
    engine = DuckDBEngine(pa.table({"user": users, "item": [ITEMS[item] for item in items]}))
    released = set()
    with engine.pairs(HeadRequest("user", ("item",), 0)) as pairs:
        for run in range(8):
            one, other = (MECHANISM.release(p, KeyedBits(SECRETS[0], run)) for p in (pairs, ArrayPairs(users, items)))
            assert one.positions.tolist() == other.positions.tolist()
            assert np.array_equal(one.counts, other.counts)
            assert np.array_equal(one.std_errors, other.std_errors)
            released |= set(one.positions.tolist())
    engine.close()
    assert released
