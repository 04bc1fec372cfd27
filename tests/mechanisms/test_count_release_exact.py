"""Exact audit of PCR: every run of a naive reference, on all neighbouring pairs; `test_sampled` ties the code to it."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache

import pytest

from discreet.testing.audit import divergence

from .neighbours import named, pairs, shapes, worst
from .pcr_reference import Pcr, transcripts

pytestmark = pytest.mark.exact


class Spendthrift(Pcr):
    """A planted defect: each try may lose the mass of ten."""

    @property
    def mass(self):
        """Return the mass that a try may lose."""
        return self.delta / 200


def lost_by(pcr, tau):
    """Return the largest delta over all pairs at the largest epsilon of a run's tries, and the allowed mass.

    Every try is epsilon-DP but for a mass of delta / 2,000, and no run makes more tries than the longest one found.
    """

    @cache
    def runs(counts):
        return {tries: p for (tries, _), p in transcripts(pcr, named(counts), 1e-10).items()}

    worlds = list(pairs(shapes(3, 4 - tau), tau))
    tries = {t for pair in worlds for counts in pair for t in runs(counts)}
    epsilon = max(math.fsum(e for e, _ in t) for t in tries)
    found, _ = worst(lambda one, other: divergence(runs(one), runs(other), epsilon), iter(worlds))
    return found, max(map(len, tries)) * float(pcr.delta) / 2000


@pytest.mark.parametrize(("cutoff", "tau"), [(1, 1), (2, 1), (2, 2)])
def test_count_release_is_private(cutoff, tau):
    """Labels, levels and the end of the run: each try costs its epsilon, and loses delta / 2,000 at most."""
    pcr = Pcr(Fraction(8), Fraction(9, 10), cutoff, Fraction(1, 2), tau, counts=False)
    found, allowed = lost_by(pcr, tau)
    assert 0.9 * allowed < found <= allowed


def test_tries_that_lose_more_are_rejected():
    """The audit can fail: it detects tries that lose ten times the mass."""
    found, allowed = lost_by(Spendthrift(Fraction(8), Fraction(9, 10), 2, Fraction(1, 2), 1, counts=False), 1)
    assert found > allowed
