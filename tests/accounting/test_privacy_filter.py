"""The privacy filter admits exactly the sequences of costs that fit, for any adaptive adversary."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet.accounting.privacy_filter import PrivacyFilter
from discreet.errors import BudgetExceeded
from discreet.values import DELTA_QUANTUM, RHO_QUANTUM, Cost

LIMIT = Cost(Fraction(1), Fraction(1, 10**6))

fractions_of_limit = st.fractions(0, 2)


class FloatFilter:
    """A planted defect: budgets are added up as floats."""

    def __init__(self, limit):
        self.limit, self.rho, self.delta = limit, 0.0, 0.0

    def admits(self, cost):
        """Compare sums of floats."""
        return self.rho + float(cost.rho) <= self.limit.rho and self.delta + float(cost.delta) <= self.limit.delta

    def spend(self, cost):
        """Add floats."""
        if not self.admits(cost):
            raise BudgetExceeded
        self.rho += float(cost.rho)
        self.delta += float(cost.delta)


def is_exact(kind, parts, step):
    """Return True if a filter of *kind* admits exactly *parts* equal parts of its limit, and then not one *step*."""
    cost = Cost(Fraction(1, parts), Fraction(1, parts * 10**6))
    budget = kind(Cost(parts * cost.rho, parts * cost.delta))
    try:
        for _ in range(parts):
            budget.spend(cost)
    except BudgetExceeded:
        return False
    return not budget.admits(step)


@pytest.mark.parametrize("parts", [1, 3, 7, 10, 1000])
@pytest.mark.parametrize("step", [Cost(RHO_QUANTUM), Cost(Fraction(0), DELTA_QUANTUM)], ids=["rho", "delta"])
def test_the_whole_limit_can_be_spent_and_not_one_quantum_more(parts, step):
    """The boundary is exact: no rounding errors add up, in either part."""
    assert is_exact(PrivacyFilter, parts, step)


def test_a_filter_of_floats_is_not_exact():
    """Planted defect: it refuses the last of ten tenths, or admits a quantum too many."""
    assert not all(is_exact(FloatFilter, parts, Cost(RHO_QUANTUM)) for parts in (1, 3, 7, 10, 1000))


def test_the_first_overspend_is_refused_and_nothing_is_charged_for_it():
    """In rho, in delta or in both: the remaining budget is unchanged and can be spent."""
    budget = PrivacyFilter(LIMIT)
    budget.spend(Cost(Fraction(3, 4), Fraction(3, 4 * 10**6)))
    spent, remaining = budget.spent, budget.remaining
    for rho, delta in ((Fraction(1, 4) + RHO_QUANTUM, 0), (0, Fraction(1, 4 * 10**6) + DELTA_QUANTUM), (1, 1)):
        cost = Cost(Fraction(rho), Fraction(delta))
        assert not budget.admits(cost)
        with pytest.raises(BudgetExceeded):
            budget.spend(cost)
        assert (budget.spent, budget.remaining) == (spent, remaining)
    budget.spend(remaining)
    assert budget.remaining == Cost()
    assert budget.spent == LIMIT


def test_admits_charges_nothing():
    """`admits` can be called any number of times."""
    budget = PrivacyFilter(LIMIT)
    assert all(budget.admits(LIMIT) for _ in range(5))
    assert budget.spent == Cost()


def test_a_free_step_always_fits():
    """A cost of 0 is admitted even by an empty filter."""
    budget = PrivacyFilter(Cost())
    budget.spend(Cost())
    assert budget.admits(Cost())
    assert not budget.admits(Cost(RHO_QUANTUM))


@settings(max_examples=50)
@given(st.data())
def test_an_adaptive_adversary_never_exceeds_the_limit(data):
    """Before every step it knows the remaining budget and requests all of it, a quantum more, or any amount."""
    budget = PrivacyFilter(LIMIT)
    admitted = Cost()
    for _ in range(data.draw(st.integers(1, 25))):
        left = budget.remaining
        share = data.draw(fractions_of_limit)
        cost = data.draw(
            st.sampled_from(
                [
                    left,
                    left + Cost(RHO_QUANTUM),
                    left + Cost(Fraction(0), DELTA_QUANTUM),
                    Cost(left.rho * share, left.delta * share),
                    Cost(LIMIT.rho * share),
                    Cost(Fraction(0), LIMIT.delta * share),
                    Cost(left.rho / 3, left.delta / 7),
                ]
            )
        )
        fits = admitted.rho + cost.rho <= LIMIT.rho and admitted.delta + cost.delta <= LIMIT.delta
        assert budget.admits(cost) == fits
        if fits:
            budget.spend(cost)
            admitted += cost
        else:
            with pytest.raises(BudgetExceeded):
                budget.spend(cost)
        assert budget.spent == admitted
        assert budget.spent.within(LIMIT)
        assert budget.spent + budget.remaining == LIMIT
