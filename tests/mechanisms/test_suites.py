"""All mechanisms of heads in all variants, and the sums added to four of them, pass the public suite."""

from __future__ import annotations

from fractions import Fraction

from discreet.head_request import SumBounds
from discreet.mechanisms import (
    CountRelease,
    KnownGumbel,
    KnownLaplace,
    Request,
    SelectVerify,
    TopStable,
    UnknownGumbel,
    UnknownLaplace,
)
from discreet.mechanisms.sums import (
    KnownGumbelSums,
    KnownLaplaceSums,
    ListedSums,
    UnknownGumbelSums,
    UnknownLaplaceSums,
)
from discreet.testing.mechanisms import MechanismSuite
from discreet.values import Cost, Sensitivity

LOSSLESS = Cost(Fraction(1, 2))
TWO_ITEMS = Sensitivity(groups_per_user=2)


class TestKnownLaplace(MechanismSuite):
    """Gaussian counts of a whole domain."""

    mechanism, limit = KnownLaplace, LOSSLESS
    request = Request(None, 6, TWO_ITEMS, known_domain=True)


class TestKnownLaplaceTop(MechanismSuite):
    """The largest Laplace counts of a domain; a user may have all items, with three rows each."""

    mechanism, limit = KnownLaplace, LOSSLESS
    request = Request(3, 6, Sensitivity(None, 3), noise="laplace", known_domain=True)


class TestKnownLaplaceLabels(MechanismSuite):
    """Labels only."""

    mechanism, limit = KnownLaplace, LOSSLESS
    request = Request(3, 6, TWO_ITEMS, counts=False, known_domain=True)


class TestKnownGumbel(MechanismSuite):
    """Top k with Gaussian counts."""

    mechanism, limit = KnownGumbel, LOSSLESS
    request = Request(3, 6, known_domain=True)


class TestKnownGumbelLaplace(MechanismSuite):
    """Top k with Laplace counts, where k is above the size of the domain."""

    mechanism, limit = KnownGumbel, LOSSLESS
    request = Request(5, 4, Sensitivity(None, 2), noise="laplace", known_domain=True)


class TestKnownGumbelLabels(MechanismSuite):
    """Labels only."""

    mechanism, limit = KnownGumbel, LOSSLESS
    request = Request(3, 6, counts=False, known_domain=True)


class TestUnknownLaplace(MechanismSuite):
    """Everything above the threshold."""

    mechanism = UnknownLaplace
    request = Request(None, 6, TWO_ITEMS)


class TestUnknownLaplaceTop(MechanismSuite):
    """The largest Laplace counts above the threshold, rows counted up to three."""

    mechanism = UnknownLaplace
    request = Request(3, 6, Sensitivity(2, 3), noise="laplace")


class TestUnknownLaplaceLabels(MechanismSuite):
    """Labels only."""

    mechanism = UnknownLaplace
    request = Request(3, 6, TWO_ITEMS, counts=False)


class TestUnknownGumbel(MechanismSuite):
    """Top k with Gaussian counts."""

    mechanism = UnknownGumbel
    request = Request(3, 6)


class TestUnknownGumbelAtTheCut(MechanismSuite):
    """The cut-off is k itself; Laplace counts of rows."""

    mechanism = UnknownGumbel
    request = Request(4, 4, Sensitivity(None, 3), noise="laplace")


class TestUnknownGumbelCutoff(MechanismSuite):
    """Labels only, behind an optimised cut-off."""

    mechanism = UnknownGumbel
    request = Request(3, 8, counts=False, optimise_cutoff=True)


class TestTopStable(MechanismSuite):
    """A set."""

    mechanism = TopStable
    request = Request(4, 6, counts=False)


class TestTopStableRows(MechanismSuite):
    """A set, rows counted up to three."""

    mechanism = TopStable
    request = Request(2, 2, Sensitivity(None, 3), counts=False)


class TestCountRelease(MechanismSuite):
    """As many counts as possible."""

    mechanism = CountRelease
    request = Request(None, 6)


class TestCountReleaseLabels(MechanismSuite):
    """As many labels as possible, rows counted up to two."""

    mechanism = CountRelease
    request = Request(None, 6, Sensitivity(None, 2), counts=False)


class TestSelectVerify(MechanismSuite):
    """As many anchored counts as possible."""

    mechanism = SelectVerify
    request = Request(None, 6)


class TestSelectVerifyTop(MechanismSuite):
    """The largest of its counts."""

    mechanism = SelectVerify
    request = Request(3, 6)


class TestSelectVerifyLabels(MechanismSuite):
    """As many labels as possible, rows counted up to two."""

    mechanism = SelectVerify
    request = Request(None, 6, Sensitivity(None, 2), counts=False)


class TestKnownLaplaceSums(MechanismSuite):
    """Counts and sums of a whole domain."""

    mechanism, limit = KnownLaplaceSums, LOSSLESS
    request = Request(None, 6, TWO_ITEMS, known_domain=True, summed=SumBounds(0, 40))


class TestKnownLaplaceAverages(MechanismSuite):
    """Averages of the items with the largest counts; Laplace noise."""

    mechanism, limit = KnownLaplaceSums, LOSSLESS
    request = Request(3, 6, counts=False, noise="laplace", known_domain=True, summed=SumBounds(-5, 2, rows=3))


class TestKnownGumbelSums(MechanismSuite):
    """Sums without counts, of rows that were counted up to three."""

    mechanism, limit = KnownGumbelSums, LOSSLESS
    request = Request(3, 6, Sensitivity(None, 3), counts=False, known_domain=True, summed=SumBounds(-7, -2))


class TestUnknownLaplaceSums(MechanismSuite):
    """Sums of all items above the threshold; a user may have more items than the head."""

    mechanism = UnknownLaplaceSums
    request = Request(None, 6, Sensitivity(9), noise="laplace", summed=SumBounds(-1, 1))


class TestUnknownGumbelSums(MechanismSuite):
    """Top k with counts and sums, where a user has at most two of them."""

    mechanism = UnknownGumbelSums
    request = Request(3, 6, TWO_ITEMS, summed=SumBounds(0, 2**31))


class TestUnknownGumbelAverages(MechanismSuite):
    """Averages; every user adds about the same."""

    mechanism = UnknownGumbelSums
    request = Request(4, 4, counts=False, noise="laplace", summed=SumBounds(99, 101, rows=1))


class TestListedSums(MechanismSuite):
    """The sums of a whole domain without counts."""

    mechanism, limit = ListedSums, LOSSLESS
    request = Request(None, 6, counts=False, known_domain=True, summed=SumBounds(-3, 40))


class TestListedAverages(MechanismSuite):
    """The averages of a whole domain."""

    mechanism, limit = ListedSums, LOSSLESS
    request = Request(None, 6, counts=False, known_domain=True, summed=SumBounds(-3, 40, rows=5))


class TestOneTotal(MechanismSuite):
    """A domain of one item, whose name is known."""

    mechanism, limit = ListedSums, LOSSLESS
    request = Request(None, 1, TWO_ITEMS, counts=False, noise="laplace", known_domain=True, summed=SumBounds(1, 3))
