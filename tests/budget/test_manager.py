"""The manager: balances, refusals and suspensions of accounts."""

from __future__ import annotations

import dataclasses
import itertools
from datetime import UTC, datetime
from fractions import Fraction

import pytest

from discreet.accounting.convert import epsilon_tight
from discreet.budget.errors import AccountSuspended, BudgetRefused, DataChanged
from discreet.budget.manager import BudgetManager, guarantee, published
from discreet.budget.model import (
    LINKEDIN,
    Account,
    Calendar,
    Fingerprint,
    Forever,
    Reservation,
    Sliding,
    Units,
)
from discreet.budget.rules import DAY_US, microseconds
from discreet.budget.stores.sqlite import SQLiteStore
from discreet.errors import BudgetExceeded
from discreet.values import Cost
from tests.budget.suite import ACT, NOON_US, UNIT, FakeClock, account, key_of, set_limit, set_mode, set_period


@pytest.fixture
def manager():
    """Return a manager with the account ann in LinkedIn's units under an organisation."""
    store = SQLiteStore(None, FakeClock())
    numbers = itertools.count()
    made = BudgetManager(store, lambda: f"r{next(numbers)}")
    made.store.create(account("org", 9_000, period=Sliding(30)), ACT)
    made.store.create(Account.of_units("ann", parent="org"), ACT)
    yield made
    made.verify()
    store.close()


def _spend(manager, name, worst, actual):
    held = manager.reserve("ann", key_of(name), worst)
    manager.store.start(held.id)
    return manager.store.settle(held.id, actual, name.encode())


def _units(information, calls):
    return dataclasses.replace(LINKEDIN, information=information, calls=calls).limit


def test_the_preset_has_the_guarantee_of_the_paper_for_one_month_and_for_two(manager):
    """Theorem 2: (34.9, 7e-9) with Sliding; 54.3 with Calendar, whose months can touch."""
    sliding = Account.of_units("x", period=Sliding(30))
    assert published(sliding, Cost()).epsilon == pytest.approx(34.9, abs=0.05)
    assert published(sliding, Cost()).delta_published == pytest.approx(7e-9, rel=1e-9)
    report = manager.get("ann")
    assert report.published.epsilon == pytest.approx(54.3, abs=0.05)
    assert report.guarantee.epsilon < report.published.epsilon
    assert report.guarantee.delta == pytest.approx(7e-9, rel=1e-9)
    assert report.guarantee.rho == pytest.approx(2 * 8.4375)
    assert guarantee(sliding, Cost()).rho == pytest.approx(8.4375)


def test_a_balance_is_reported_in_rho_in_epsilon_and_in_units(manager):
    """Spent amounts are rounded up, remaining ones down; both parts of a hold count."""
    _spend(manager, "q", _units(201, 1), _units(101, 1))
    manager.reserve("ann", key_of("r"), _units(201, 1))
    report = manager.get("ann")
    assert report.balance.used == _units(101, 1)
    assert report.balance.held == _units(201, 1)
    units = report.balance.account.units
    assert units.rounded_up(report.balance.spent) == (302, 2)
    assert units.rounded_down(report.balance.remaining) == (2_698, 28)
    assert report.epsilon_spent == pytest.approx(epsilon_tight(302 * 0.15**2 / 8, 1e-9))
    assert report.epsilon_left == pytest.approx(epsilon_tight(2_698 * 0.15**2 / 8, 1e-9))
    assert report.balance.resets_at_us == microseconds(datetime(2025, 11, 1, tzinfo=UTC))
    assert manager.get("org").balance.resets_at_us == microseconds(datetime(2025, 11, 9, tzinfo=UTC))


def test_observed_accounts_and_exceeded_limits_have_no_guarantee(manager):
    """Without refusals there is no guarantee; charges beyond a limit count."""
    set_mode(manager.store, "ann", "observe", ACT)
    assert (manager.get("ann").guarantee, manager.get("ann").published) == (None, None)
    set_mode(manager.store, "ann", "enforce", ACT)
    _spend(manager, "q", _units(200, 1), _units(200, 1))
    set_limit(manager.store, "ann", _units(100, 1), Fraction(1, 10**8), ACT)
    report = manager.get("ann")
    assert report.balance.remaining == Cost()
    assert report.epsilon_left == 0
    assert report.published is None
    assert report.guarantee.rho == pytest.approx(2 * 200 * 0.15**2 / 8)
    hopeless = Account("x", Cost(Fraction(1), Fraction(1, 2)), Fraction(3, 4), period=Calendar("day"))
    assert guarantee(hopeless, Cost()) is None
    assert guarantee(dataclasses.replace(hopeless, period=Forever()), Cost()).delta == 0.75


def test_units_without_calls_are_reported_too():
    """A budget for known domains only, and one that allows nothing."""
    store = SQLiteStore(None, FakeClock())
    manager = BudgetManager(store, lambda: "r", computational=True)
    manager.store.create(Account.of_units("a", Units(Fraction(1, 10), Fraction(0), 100, 0)), ACT)
    manager.store.create(Account.of_units("b", Units(Fraction(1, 10), Fraction(0), 0, 0), period=Sliding(1)), ACT)
    balance = manager.get("a").balance
    assert balance.account.units.rounded_up(balance.spent) == (0, 0)
    assert balance.account.units.rounded_down(balance.remaining) == (100, 0)
    assert manager.get("a").guarantee.computational
    assert manager.get("b").published is None
    assert manager.get("b").balance.resets_at_us is None
    store.close()


def test_a_refusal_names_the_account_and_what_is_left(manager):
    """It explains an HTTP 403; `Balance.admits` agrees and holds nothing."""
    assert manager.store.balance("ann").admits(_units(3_000, 30))
    with pytest.raises(BudgetRefused, match="more than account 'ann' has left") as caught:
        manager.reserve("ann", key_of("q"), _units(3_001, 1))
    refusal = caught.value.refusal
    assert isinstance(caught.value, BudgetExceeded)
    assert (refusal.account, refusal.needed) == ("ann", _units(3_001, 1))
    assert refusal.remaining == LINKEDIN.limit
    assert not manager.store.balance("ann").admits(_units(3_001, 1))
    set_limit(manager.store, "org", UNIT, Fraction(1, 2), ACT)
    assert not manager.store.balance("org").admits(_units(10, 1))
    set_mode(manager.store, "org", "observe", ACT)
    assert manager.store.balance("org").admits(_units(10, 1))
    assert manager.get("ann").balance.held == Cost()


def test_limits_are_made_from_epsilon_too():
    """As in the library's own budget, half of delta is converted."""
    made = Account.of_epsilon("a", 1.0, Fraction(1, 10**8))
    assert guarantee(made, Cost()).epsilon == pytest.approx(1.0, rel=1e-6)
    assert made.limit.delta == Fraction(1, 2 * 10**8)


def test_officers_adjust_with_a_reason_and_the_ledger_has_it(manager):
    """Charges, refunds and settings are in the ledger with actor and reason."""
    manager.store.charge("ann", _units(10, 1), ACT)
    manager.store.refund("ann", _units(10, 1), ACT)
    set_period(manager.store, "ann", Sliding(7), ACT)
    manager.store.confirm_clock(ACT)
    assert manager.get("ann").balance.used == Cost()
    bodies = [line.body for line in manager.store.lines()]
    assert sum('"actor":"suite"' in body and '"reason":"a test"' in body for body in bodies) == 6


def test_maintenance_ends_expired_reservations(manager):
    """A heartbeat and an expiry; `void`, `forfeit` and `refresh` are forwarded."""
    clock = manager.store._clock
    first, second = (manager.reserve("ann", key_of(n), UNIT) for n in "ab")
    manager.store.void(first.id)
    clock.advance(seconds=61)
    assert manager.maintain() == 1
    third = manager.reserve("ann", key_of("c"), UNIT)
    manager.store.start(third.id)
    manager.store.forfeit(third.id)
    assert manager.get("ann").balance.forfeited == UNIT
    clock.advance(days=1)
    assert manager.store.refresh() == 1
    assert second.id != third.id


def test_a_suspension_is_reported_with_its_end(manager):
    """It explains an HTTP 403; the message has no amount, and an officer lifts it."""
    for n in range(5):
        held = manager.reserve("ann", key_of(f"f{n}"), _units(1, 0))
        manager.store.start(held.id)
        manager.store.forfeit(held.id)
    with pytest.raises(AccountSuspended, match="'ann' is suspended") as caught:
        manager.reserve("ann", key_of("q"), _units(1, 0))
    assert (caught.value.account, caught.value.until_us) == ("ann", NOON_US + DAY_US)
    assert manager.get("ann").balance.suspended_until_us == NOON_US + DAY_US
    manager.store.lift("ann", ACT)
    assert isinstance(manager.reserve("ann", key_of("q"), _units(1, 0)), Reservation)


def test_the_message_of_a_refusal_holds_no_amount(manager):
    """Only the service may show the balance of a shared account."""
    with pytest.raises(BudgetRefused) as caught:
        manager.reserve("ann", key_of("q"), _units(3_001, 1))
    assert not any(character.isdigit() for character in str(caught.value))


def test_releases_and_their_payers_can_be_listed(manager):
    """The history, a release, and the accounts that paid for it."""
    _spend(manager, "q", _units(10, 1), _units(5, 1))
    _spend(manager, "r", _units(10, 1), _units(7, 1))
    newest, oldest = manager.store.history("ann")
    assert [oldest.release.result, newest.release.result] == [b"q", b"r"]
    assert manager.store.history("ann", newest.number, 10) == [oldest]
    assert manager.store.history("ann", most=1) == [newest]
    assert (newest.charged, newest.time_us) == (_units(7, 1), NOON_US)
    assert manager.store.release(key_of("q")) == oldest.release
    assert manager.store.entitled("ann", key_of("q"))
    assert not manager.store.entitled("ann", key_of("s"))


def test_a_changed_fingerprint_is_refused(manager):
    """The fingerprint is forwarded; the caller forfeits."""
    for name, gave, fine in (("q", "one", True), ("r", "another", False)):
        held = manager.reserve("ann", key_of(name), _units(1, 0))
        manager.store.start(held.id)
        seen = Fingerprint(key_of("head"), key_of(gave))
        if fine:
            manager.store.settle(held.id, _units(1, 0), b"x", seen)
        else:
            with pytest.raises(DataChanged):
                manager.store.settle(held.id, _units(1, 0), b"x", seen)
            manager.store.forfeit(held.id)
    assert manager.get("ann").balance.forfeited == _units(1, 0)
