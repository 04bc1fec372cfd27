"""States and rules: pure functions, each compared with its definition."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from discreet.budget import rules
from discreet.budget.errors import LeaseLost
from discreet.budget.model import (
    NOTHING,
    AccountHold,
    Amount,
    State,
    Tally,
)
from discreet.budget.rules import (
    DAY_US,
    REACHED,
    SECOND_US,
    TERMINAL,
    TRANSITIONS,
    Event,
    requested,
    transition,
)
from discreet.errors import InputError, InvariantViolated


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
        assert (hold.account, hold.bucket) == (standing.account, standing.bucket)
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


@given(st.lists(st.integers(0, 40), min_size=1, max_size=30))
@example([1] * 7)
@example([6] * 7)
@example([0] * 5 + [24])
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


@pytest.mark.parametrize(
    ("spent", "worst", "fits"),
    [
        (Amount(3, 4), Amount(2, 1), True),
        (Amount(3, 4), Amount(3, 0), False),
        (Amount(3, 4), Amount(0, 2), False),
        (Amount(3, 5), Amount(0, 1), False),
        (Amount(5, 0), Amount(1, 0), False),
        (Amount(6, 4), Amount(0, 1), True),
        (Amount(4, 6), Amount(1, 0), True),
    ],
)
def test_what_is_left_can_be_spent_to_the_last_unit(spent, worst, fits):
    """Of both parts; a part that is not needed fits, even if it is overdrawn."""
    admitted = rules.admit([rules.AccountState("a", Amount(5, 5), True, 7, spent)], worst)
    left = Amount(max(5 - spent.rho, 0), max(5 - spent.delta, 0))
    assert admitted == ((AccountHold("a", 7, worst),) if fits else rules.Shortfall("a", worst, left))


@pytest.mark.parametrize(
    ("used", "refunded", "amount", "message"),
    [
        (Amount(9, 9), NOTHING, Amount(3, 2), None),
        (Amount(9, 9), Amount(1, 1), Amount(2, 1), None),
        (Amount(2, 9), NOTHING, Amount(2, 0), None),
        (Amount(2, 9), NOTHING, Amount(3, 0), "a refund cannot be more than what is used"),
        (Amount(9, 1), NOTHING, Amount(0, 2), "a refund cannot be more than what is used"),
        (Amount(9, 9), NOTHING, Amount(4, 0), "refunds cannot be more than 1/10 of the limit in a period"),
        (Amount(9, 9), NOTHING, Amount(0, 3), "refunds cannot be more than 1/10 of the limit in a period"),
        (Amount(9, 9), Amount(1, 0), Amount(3, 0), "refunds cannot be more than 1/10 of the limit in a period"),
    ],
)
def test_a_refund_is_at_most_what_is_used_and_a_tenth_of_the_limit(used, refunded, amount, message):
    """A tenth of 39 and 29 units is 3 and 2, rounded down; earlier refunds count."""
    tally = Tally(used=used, refunded=refunded)
    if message is None:
        rules.check_refund(Amount(39, 29), tally, amount)
        return
    with pytest.raises(InputError) as error:
        rules.check_refund(Amount(39, 29), tally, amount)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda _: transition(State.VOID, Event.SETTLE), "a reservation that is void cannot settle"),
        (lambda hold: rules.settled(hold, Amount(4, 0), paid=False), "an answer cost more than its worst case"),
        (lambda hold: rules.ended(hold, State.HELD), "a reservation that ends unsettled is void or forfeit"),
        (lambda hold: rules.refunded([(0, NOTHING)], hold.amount), "a refund is more than what is used"),
    ],
)
def test_a_broken_invariant_is_named(break_it, message):
    """The sentence is in the log, where an operator reads it."""
    with pytest.raises(InvariantViolated) as error:
        break_it(AccountHold("a", 0, Amount(3, 3)))
    assert str(error.value) == message


def test_a_tenth_of_a_large_limit_is_exact():
    """Amounts are whole numbers beyond 2^53, which no float may round."""
    part = 2**60 + 1
    tally, limit = Tally(used=Amount(2 * part, 2 * part)), Amount(10 * part + 9, 10 * part + 9)
    rules.check_refund(limit, tally, Amount(part, part))
    for more in (Amount(part + 1, 0), Amount(0, part + 1)):
        with pytest.raises(InputError, match="refunds cannot be more"):
            rules.check_refund(limit, tally, more)
