"""Pay what you get: the charge follows exactly from what was returned."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from discreet.mechanisms import CountRelease, KnownGumbel, KnownLaplace, TopStable, UnknownGumbel, UnknownLaplace
from discreet.noise import KeyedBits
from discreet.testing.audit import head_of
from discreet.values import Cost, ExactHead

from .pcr_reference import Pcr, found_by, transcripts

HALF, DELTA = Fraction(1, 2), Fraction(1, 1000)
LARGE = dict.fromkeys("abcdefgh", 10_000)


def outcomes(mechanism, histogram, runs, known_domain=False):
    """Return some releases."""
    head = head_of(histogram, mechanism.head_limit, known_domain=known_domain)
    return [mechanism.release(head, KeyedBits(b"a secret for what is charged....", run)) for run in range(runs)]


@pytest.mark.parametrize("optimise", [False, True])
@pytest.mark.parametrize("counts", [None, "gaussian", "laplace"])
def test_unknown_gumbel_charges_labels_threshold_counts_and_cutoff(counts, optimise):
    """One peel for each label, the threshold, each count and an optimised cut-off; delta once."""
    mechanism = UnknownGumbel(4, 6, HALF, DELTA, 1, counts, optimise)
    lengths = set()
    for outcome in outcomes(mechanism, {"a": 29, "b": 27, "c": 24, "d": 22, "e": 20, "f": 3}, 60):
        r = len(outcome.positions)
        lengths.add(r)
        units = r + (r < 4) + (r if counts else 0) + optimise
        assert outcome.cost == Cost(units * Fraction(1, 32), DELTA)
        assert outcome.complete == (r == 4)
    assert len(lengths) >= 4  # answers of many lengths were looked at


def test_an_empty_unknown_gumbel_answer_costs_the_threshold_only():
    """An empty table costs one peel, with or without counts."""
    for counts in (None, "gaussian"):
        (outcome,) = outcomes(UnknownGumbel(4, 6, HALF, DELTA, counts=counts), {}, 1)
        assert outcome.cost == Cost(Fraction(1, 32), DELTA)


def test_a_full_unknown_gumbel_answer_costs_no_threshold():
    """The last of k labels ends the race before the threshold is known."""
    (outcome,) = outcomes(UnknownGumbel(4, 8, HALF, DELTA), LARGE, 1)
    assert outcome.cost == Cost(8 * Fraction(1, 32), DELTA)


@pytest.mark.parametrize(
    ("mechanism", "rho", "delta"),
    [
        (KnownLaplace(None, 8, 3, Fraction(2), 2), Fraction(3, 2), 0),
        (KnownLaplace(2, 8, 3, Fraction(2), 1, "laplace", counts=False), Fraction(3, 8), 0),
        (KnownGumbel(3, 8, HALF), Fraction(6, 32), 0),
        (KnownGumbel(3, 8, HALF, counts=None), Fraction(3, 32), 0),
        (UnknownLaplace(None, 8, 3, Fraction(2), DELTA, 2), Fraction(3, 2), DELTA),
        (TopStable(4, HALF, DELTA, 3), Fraction(1, 8), DELTA),
    ],
)
@pytest.mark.parametrize("histogram", [{}, LARGE])
def test_other_mechanisms_have_one_price(mechanism, rho, delta, histogram):
    """The proofs of other mechanisms know one price only."""
    known = isinstance(mechanism, (KnownLaplace, KnownGumbel))
    (outcome,) = outcomes(mechanism, histogram or dict.fromkeys("abcdefgh", 0), 1, known)
    assert outcome.cost == mechanism.worst_cost() == Cost(rho, delta)


@pytest.mark.parametrize("counts", [True, False])
def test_count_release_charges_every_try_and_every_count(counts):
    """Three items found at the first level, then the threshold at every level that the budget can pay."""
    pcr = Pcr(Fraction(4), DELTA, 9, HALF, counts=counts)
    (outcome,) = outcomes(CountRelease(Cost(pcr.rho, DELTA), 9, HALF, counts=counts), dict.fromkeys("abc", 10**9), 1)
    first = pcr.root / 4096
    peels = 3 * first**2 / 8 + sum((first * 2**level) ** 2 / 8 for level in range(12))
    spent = Cost(peels + 3 * pcr.count_cost(first), (3 + 12) * pcr.mass)
    assert sorted(outcome.positions.tolist()) == [0, 1, 2]
    assert abs(outcome.cost.rho - spent.rho) <= Fraction(20, 10**18)  # each step is rounded up to the quantum
    assert outcome.cost.delta == spent.delta
    assert not outcome.complete


def test_count_release_charges_the_peel_of_an_item_whose_count_no_longer_fits():
    """Whitehouse et al. 2023: a step is paid before it is run, also the last one, which releases nothing."""
    histogram = {"a": 30, "b": 12, "c": 8}
    pcr = Pcr(Fraction(4), DELTA, 3, Fraction(1, 20))

    def released_at(tries):
        return sum((e**2 / 8 + (pcr.count_cost(e) if label else 0) for e, label in tries), Fraction(0))

    ends = [(found_by(tries), spent, spent > released_at(tries)) for tries, spent in transcripts(pcr, histogram, 1e-9)]
    unpaid = 0
    for outcome in outcomes(CountRelease(Cost(pcr.rho, DELTA), 3, Fraction(1, 20)), histogram, 60):
        labels = tuple("abc"[position] for position in outcome.positions)
        # Each step is rounded up to the quantum.
        fitting = [end for end in ends if end[0] == labels and 0 <= outcome.cost.rho - end[1] <= Fraction(40, 10**18)]
        assert fitting, "what was charged is what the reference spends for the same labels"
        unpaid += all(end[2] for end in fitting)
    assert unpaid >= 10, "runs end so often enough to be looked at"


def test_count_release_of_all_that_the_cutoff_allows_tries_no_further():
    """After as many items as the cut-off there is nothing to try for: the last item is the last that is paid for."""
    mechanism = CountRelease(Cost(Fraction(2), DELTA), 2, HALF, counts=False)
    (outcome,) = outcomes(mechanism, dict.fromkeys("ab", 10**9), 1)
    assert len(outcome.positions) == 2
    assert outcome.cost.delta == 2 * DELTA / 2000


def test_count_release_stops_at_a_delta_that_is_spent():
    """No more than 2,000 tries: after that many items the run ends, with the delta used up and rho left."""
    mechanism = CountRelease(Cost(Fraction(1000), DELTA), 3000, Fraction(9, 10), counts=False)
    head = ExactHead(np.full(2500, 10**9), 3000)
    outcome = mechanism.release(head, KeyedBits(b"a secret for what is charged....", 0))
    assert len(outcome.positions) == 2000
    assert outcome.cost.delta == DELTA
    assert outcome.cost.rho < 1000


def test_a_delta_that_is_no_multiple_of_the_quantum_is_never_passed():
    """Tries are charged rounded up; with the least of deltas, fewer of them fit and the limit still holds."""
    limit = Cost(Fraction(1000), Fraction(2999, 10**27))
    head = ExactHead(np.full(2500, 10**9), 3000)
    outcome = CountRelease(limit, 3000, HALF, counts=False).release(head, KeyedBits(bytes(32), 0))
    assert outcome.cost.within(limit)
    assert len(outcome.positions) == 1499
