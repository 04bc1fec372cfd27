"""Questions to the lines of a ledger: previews of limits, and the spending of each day."""

from __future__ import annotations

from fractions import Fraction

from discreet.budget.ledger import Entry
from discreet.budget.ledger_replay import days_until, preview, spent_by_day
from discreet.budget.model import Account, Amount, Forever, Sliding, Tally
from discreet.budget.rules import DAY_US
from discreet.values import Cost


def query_lines(day, name, worst, actual=None):
    """Return the lines of a query that held *worst* and cost *actual*."""
    time = day * DAY_US
    yield Entry(time, "reserve", name, "{}", [("a", 0, Tally(held=Amount(worst, 0)))])
    if actual is not None:
        yield Entry(time + 1, "settle", name, "{}", [("a", 0, Tally(Amount(actual, 0), Amount(-worst, 0)))])


def account_of(quanta, period):
    """Return an account with a limit of so many quanta of rho."""
    return Account("a", Cost(Fraction(quanta, 10**18)), Fraction(1, 10**6), None, period)


def test_a_preview_refuses_by_the_rule_that_refuses_queries():
    """Worst cases are held, actual costs stay, refused queries cost nothing, and old charges stop counting."""
    queries = [(0, "q1", 5, 3), (1, "q2", 5, 4), (2, "q3", 3, 3), (40, "q4", 8, 8)]
    entries = [line for query in queries for line in query_lines(*query)]
    for_ever = preview(entries, account_of(8, Forever()), 0)
    assert (for_ever.queries, for_ever.refused, for_ever.first_us) == (4, 2, 2 * DAY_US)
    sliding = preview(entries, account_of(8, Sliding(30)), 0)
    assert (sliding.queries, sliding.refused) == (4, 1)
    recent = preview(entries, account_of(8, Forever()), 3 * DAY_US)
    assert (recent.queries, recent.refused) == (1, 1)
    assert preview(entries, account_of(100, Forever()), 0).refused == 0


def test_the_spending_of_each_day_is_the_sum_of_the_ledger():
    """Charges and forfeits count; holds do not."""
    entries = [*query_lines(0, "q1", 5, 3), *query_lines(1, "q2", 5, 4), *query_lines(1, "q3", 2)]
    assert spent_by_day(entries, 0)["a"] == {0: Amount(3), 1: Amount(4)}
    assert spent_by_day(entries, DAY_US)["a"] == {1: Amount(4)}


def test_a_part_of_a_limit_is_reached_by_rho_or_delta_counted_from_the_first_charge():
    """Figure 5 of Rogers et al. (2021): analysts begin on different days."""
    spent = {2: Amount(), 3: Amount(20), 5: Amount(30, 5), 9: Amount(30, 5)}
    limit = Amount(100, 20)
    assert [days_until(spent, limit, percent) for percent in (20, 25, 50, 80, 81)] == [0, 2, 2, 6, None]
    assert days_until({4: Amount(0, 10)}, limit, 50) == 0
    assert days_until({4: Amount(10)}, Amount(100), 25) is None
