"""States, periods and rules: pure functions, each compared with its definition."""

from __future__ import annotations

import dataclasses
import itertools
from datetime import UTC, datetime
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.budget import rules
from discreet.budget.errors import ClockError, LeaseLost
from discreet.budget.model import (
    LINKEDIN,
    NOTHING,
    Account,
    AccountHold,
    AdminAction,
    Amount,
    Calendar,
    Claim,
    Fingerprint,
    Forever,
    Sliding,
    State,
    Tally,
    Units,
)
from discreet.budget.periods import (
    DAY_US,
    NEVER_US,
    SECOND_US,
    Clock,
    bucket_end,
    limits_per_window,
    still_counts,
    stops_counting_us,
)
from discreet.budget.rules import REACHED, TERMINAL, TRANSITIONS, Event, requested, transition
from discreet.errors import InputError, InvariantViolated
from discreet.values import Cost

ZONES = ["UTC", "Europe/Berlin", "America/Sao_Paulo", "Pacific/Apia", "Asia/Kathmandu", "America/New_York"]
TIMES = st.integers(0, 4_102_444_800 * 10**6)  # to 2100
PERIODS = st.one_of(
    st.just(Forever()),
    st.builds(Sliding, st.integers(1, 400)),
    st.builds(Calendar, st.sampled_from(["month", "week", "day"]), st.sampled_from(ZONES)),
)


def _us(text):
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 10**6


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)))
def test_transitions_that_are_not_in_the_table_raise(state, event):
    """There are six transitions, and none from a terminal state."""
    if (state, event) in TRANSITIONS:
        assert state not in TERMINAL
        assert transition(state, event) is TRANSITIONS[state, event]
    else:
        with pytest.raises(InvariantViolated):
            transition(state, event)


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, REACHED)))
def test_repeated_and_late_requests_are_recognised(state, event):
    """Repeats change nothing; an event after another end raises; an invalid event is a bug of the caller."""
    if REACHED[event] is state:
        assert requested(state, event) is state
    elif state in TERMINAL:
        with pytest.raises(LeaseLost):
            requested(state, event)
    elif (state, event) in TRANSITIONS:
        assert requested(state, event) is TRANSITIONS[state, event]
    else:
        with pytest.raises(InvariantViolated):
            requested(state, event)


@given(PERIODS, TIMES)
def test_a_bucket_ends_after_now_and_another_begins_there(period, now_us):
    """Buckets only move forward, at every change of the clock."""
    end = bucket_end(period, now_us)
    assert now_us < end
    assert bucket_end(period, end - 1) == end
    if end != NEVER_US:
        assert end < bucket_end(period, end)
        assert still_counts(period, end, end) == isinstance(period, Sliding)


@given(st.integers(1, 60), TIMES, st.integers(0, 100 * DAY_US))
def test_a_charge_counts_for_as_long_as_the_window_and_a_day_at_most(days, charged_us, later_us):
    """I6: never less than `days`, never more than `days` + 1; and it stops at the reported time."""
    period = Sliding(days)
    end = bucket_end(period, charged_us)
    counted = still_counts(period, end, charged_us + later_us)
    if later_us < days * DAY_US:
        assert counted
    if later_us >= (days + 1) * DAY_US:
        assert not counted
    assert counted == (charged_us + later_us < stops_counting_us(period, end, charged_us))


@given(st.lists(st.integers(0, 40 * DAY_US), min_size=1, max_size=60), st.integers(1, 5))
def test_no_window_holds_more_than_the_limit(times, days):
    """I6: with as many unit charges as fit at each time, any window of `days` days holds at most the limit."""
    period, limit, charges = Sliding(days), 3, []
    for now_us in sorted(times):
        while sum(still_counts(period, bucket_end(period, t), now_us) for t in charges) < limit:
            charges.append(now_us)
    for begin in charges:
        assert sum(begin <= t < begin + days * DAY_US for t in charges) <= limit


@pytest.mark.parametrize(
    ("period", "now", "end"),
    [
        (Sliding(30), "2024-02-29T23:59:59", "2024-03-01"),
        (Calendar("month", "UTC"), "2024-02-29T23:59:59", "2024-03-01"),
        (Calendar("month", "Europe/Berlin"), "2024-12-31T22:59:59", "2024-12-31T23:00:00"),
        (Calendar("month", "Europe/Berlin"), "2024-12-31T23:00:00", "2025-01-31T23:00:00"),
        (Calendar("week", "UTC"), "2024-01-01T00:00:00", "2024-01-08"),
        (Calendar("week", "UTC"), "2024-01-07T23:59:59", "2024-01-08"),
        (Calendar("day", "Europe/Berlin"), "2024-03-31T12:00:00", "2024-03-31T22:00:00"),  # 23 hours
        (Calendar("day", "Europe/Berlin"), "2024-10-27T12:00:00", "2024-10-27T23:00:00"),  # 25 hours
        (Calendar("day", "America/Sao_Paulo"), "2017-10-15T02:59:59", "2017-10-15T03:00:00"),  # no midnight there
        (Calendar("day", "Pacific/Apia"), "2011-12-30T09:00:00", "2011-12-30T10:00:00"),  # no 30th there
    ],
)
def test_periods_begin_by_the_calendar(period, now, end):
    """Leap days, years, zones, and days that are shorter, longer or missing."""
    assert bucket_end(period, _us(now)) == _us(end)


def test_only_calendar_periods_are_doubled():
    """The paper's 34.9 becomes 54.3 for queries on the 31st and on the 1st."""
    assert [limits_per_window(p) for p in (Sliding(30), Forever(), Calendar("month"))] == [1, 1, 2]


def test_the_time_never_goes_back_and_stops_when_the_clock_runs_ahead():
    """I6, at the guard's limit and a microsecond beyond."""
    assert Clock(5, 9).now_us == 9
    assert Clock(9 + 100, 9, 100).now_us == 109
    assert not Clock(9 + 100, 9, 100).ahead
    ahead = Clock(9 + 101, 9, 100)
    assert ahead.ahead
    assert ahead.now_us == 9
    assert not ahead.has_passed(111)
    with pytest.raises(ClockError):
        ahead.has_passed(110)
    assert Clock(109, 9, 100).has_passed(109)
    assert not Clock(108, 9, 100).has_passed(109)
    assert Clock(0, 109, 100).has_passed(109)


AMOUNTS = st.builds(Amount, st.integers(0, 6), st.integers(0, 6))
STANDINGS = st.builds(
    rules.AccountState, st.sampled_from("ab"), AMOUNTS, st.booleans(), st.just(0), AMOUNTS, st.booleans(), AMOUNTS
)


@given(st.lists(STANDINGS, min_size=1, max_size=3), AMOUNTS)
def test_a_claim_is_admitted_exactly_if_it_fits(path, worst):
    """I1, part by part; an account that paid needs nothing; a forfeit pays first and is used completely."""
    admitted = rules.admit(path, worst)
    if isinstance(admitted, rules.Shortfall):
        short = next(s for s in path if s.account == admitted.account and s.enforced and not s.paid)
        assert admitted.needed
        assert NOTHING.within(admitted.remaining)
        assert any(not (s.spent + worst).within(s.limit) for s in path if s.enforced and not s.paid)
        assert short.enforced
        return
    for standing, hold in zip(path, admitted, strict=True):
        if standing.paid:
            assert (hold.amount, hold.funded) == (NOTHING, NOTHING)
            continue
        assert worst.within(hold.amount)
        assert hold.funded == standing.forfeit
        total = standing.spent + hold.amount - hold.funded
        for part, before, limit in (
            (total.rho, standing.spent.rho, standing.limit.rho),
            (total.delta, standing.spent.delta, standing.limit.delta),
        ):
            assert part <= limit or not standing.enforced or part == before


@given(AMOUNTS, AMOUNTS, st.sampled_from([State.VOID, State.FORFEIT]))
def test_a_retry_that_ends_unsettled_keeps_the_forfeit(amount, funded, state):
    """I3: a retry that fails or is voided refunds no failure."""
    hold = AccountHold("a", 0, amount.most(funded), funded)
    change = rules.held(hold) + rules.ended(hold, state)
    assert change.held == NOTHING
    assert funded.within(change.forfeited)
    assert change.forfeited == (funded if state is State.VOID else hold.amount)


def test_a_settlement_is_charged_within_its_hold():
    """More than the worst case, or a negative amount, is a bug."""
    hold = AccountHold("a", 0, Amount(3, 3))
    assert rules.settled(hold, Amount(2, 3), paid=False) == Tally(used=Amount(2, 3), held=Amount(-3, -3))
    assert rules.settled(hold, Amount(2, 3), paid=True) == Tally(held=Amount(-3, -3))
    for wrong in (Amount(4, 0), Amount(0, 4), Amount(-1, 0), Amount(0, -1)):
        with pytest.raises(InvariantViolated):
            rules.settled(hold, wrong, paid=False)
    with pytest.raises(InvariantViolated):
        rules.ended(hold, State.SETTLED)


@given(st.lists(AMOUNTS, max_size=5), st.data())
def test_a_refund_takes_the_oldest_charges_first(used, data):
    """A refund of everything takes all charges."""
    whole = Amount(sum(a.rho for a in used), sum(a.delta for a in used))
    amount = Amount(data.draw(st.integers(0, whole.rho)), data.draw(st.integers(0, whole.delta)))
    taken = rules.refunded(enumerate(used), amount)
    assert Amount(sum(a.rho for _, a in taken), sum(a.delta for _, a in taken)) == amount
    assert all(part.within(used[n]) for n, part in taken)
    last_rho = max((n for n, part in taken if part.rho), default=-1)
    assert all(used[n].rho == dict(taken).get(n, NOTHING).rho for n in range(last_rho))
    with pytest.raises(InvariantViolated):
        rules.refunded(enumerate(used), whole + Amount(1, 0))


@given(st.fractions(0, 10), st.fractions(0, 1))
def test_amounts_are_costs_exactly(rho, delta):
    """Conversion to quanta and back is exact."""
    cost = Cost(rho, delta)
    assert Amount.of(cost).cost == cost


SOUND = Account("a", Cost(Fraction(1), Fraction(1, 100)), Fraction(1, 10))
CLAIM = Claim("r", "a", bytes(32), Cost())
WRONG = [
    lambda: dataclasses.replace(SOUND, id=""),
    lambda: dataclasses.replace(SOUND, id="a b"),
    lambda: dataclasses.replace(SOUND, id="a\tb"),
    lambda: dataclasses.replace(SOUND, id="a" * 201),
    lambda: dataclasses.replace(SOUND, parent="a"),
    lambda: dataclasses.replace(SOUND, parent="a\nb"),
    lambda: dataclasses.replace(SOUND, mode="off"),
    lambda: dataclasses.replace(SOUND, delta=Fraction(1, 100)),
    lambda: dataclasses.replace(SOUND, delta=Fraction(1)),
    lambda: Sliding(0),
    lambda: Sliding(40_000),
    lambda: Calendar("year"),
    lambda: Units(Fraction(0), Fraction(0), 1, 1),
    lambda: Units(Fraction(1), Fraction(1), 1, 1),
    lambda: Units(Fraction(1), Fraction(0), -1, 1),
    lambda: AdminAction("a", " "),
    lambda: AdminAction("a b", "why"),
    lambda: AdminAction("a", "x" * 2_001),
    lambda: AdminAction("a", "why", ""),
    lambda: AdminAction("a", "why", "a b"),
    lambda: Fingerprint(bytes(15), bytes(32)),
    lambda: Fingerprint(bytes(32), bytes(65)),
    lambda: dataclasses.replace(CLAIM, release_key=bytes(15)),
    lambda: dataclasses.replace(CLAIM, release_key=bytes(65)),
    lambda: dataclasses.replace(CLAIM, digest=bytes(65)),
    lambda: dataclasses.replace(CLAIM, key=""),
    lambda: dataclasses.replace(CLAIM, lease_ms=0),
    lambda: dataclasses.replace(CLAIM, lease_ms=86_400_001),
]


@pytest.mark.parametrize("make", WRONG)
def test_values_outside_their_range_are_refused(make):
    """Invalid values are refused before any call of a store."""
    with pytest.raises(InputError):
        make()


@given(st.lists(st.integers(0, 40), min_size=1, max_size=30))
def test_an_account_is_suspended_while_five_failures_lie_within_a_day(gaps):
    """Suspended exactly then, for any gaps in hours, until the first of the last five is a day old."""
    times, kept = list(itertools.accumulate(gap * SECOND_US * 3_600 for gap in gaps)), ()
    for n, now_us in enumerate(times, 1):
        kept = rules.failed(kept, now_us)
        counting = [t for t in times[:n] if now_us < t + DAY_US]
        until_us = rules.suspended_until_us(kept, now_us)
        assert (until_us is not None) == (len(counting) >= 5)
        if until_us is not None:
            assert rules.suspended_until_us(kept, until_us - 1) == until_us
            assert rules.suspended_until_us(kept, until_us) is None


def test_the_preset_is_the_papers():
    """(0.15, 1e-10, 3000, 30): rho = 3000 * 0.15^2 / 8, and 3e-9 that may be lost."""
    assert LINKEDIN.limit == Cost(Fraction("8.4375"), Fraction(3, 10**9))
