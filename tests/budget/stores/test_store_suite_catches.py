"""The suite fails for stores with a planted defect."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import threading

import pytest

from discreet.budget import rules
from discreet.budget.model import NOTHING, AdminAction, Amount, Refusal, State, Tally
from discreet.budget.rules import Event
from discreet.budget.stores import statements, store, transaction
from discreet.budget.stores.sqlite import SQLiteStore
from discreet.budget.stores.store import BudgetStore
from discreet.budget.stores.transaction import Transaction
from discreet.values import Cost
from tests.budget.suite import BudgetStoreSuite


class Sound(SQLiteStore):
    """The store without a defect, in memory."""


class CheckThenUpdate(SQLiteStore):
    """The paper's order, check and then write: eight concurrent claims are all admitted."""

    def __init__(self, *args):
        super().__init__(*args)
        self._together = threading.Barrier(8)

    def reserve(self, claim):
        """Check first."""
        try:
            short = next(
                (a.id for a in self.path(claim.account) if not claim.worst.within(self.balance(a.id).remaining)), None
            )
            if threading.current_thread() is not threading.main_thread():
                with contextlib.suppress(threading.BrokenBarrierError):
                    self._together.wait(0.2)
        except Exception:  # noqa: BLE001 - the store itself refuses it below
            short = None
        if short is not None:
            return super().reserve(claim)

        def write(transaction):  # on the writer's thread, so that the rule is broken in this thread only
            before, rules._fits = rules._fits, lambda *_: True
            try:
                return BudgetStore.reserve.__wrapped__(self, transaction, claim)
            finally:
                rules._fits = before

        return self._writer.run(write)


class IgnoresKeys(SQLiteStore):
    """Every request is treated as a new one."""

    def reserve(self, claim):
        """Reserve without the key."""
        return super().reserve(dataclasses.replace(claim, key=None))


class ChecksKeysInTheProcess(SQLiteStore):
    """Keys are recognised, but another body under the same key is not detected."""

    def reserve(self, claim):
        """Reserve with any digest."""
        return super().reserve(dataclasses.replace(claim, digest=b""))


class ChargesTheWorstCase(SQLiteStore):
    """The worst case is charged."""

    def settle(self, reservation, actual, result, fingerprint=None):  # noqa: ARG002
        """Charge what was held."""
        return super().settle(reservation, self.reservation(reservation).worst, result, fingerprint)


class AnswersWithItsOwnBytes(SQLiteStore):
    """The slower of two queries returns its own answer."""

    def settle(self, reservation, actual, result, fingerprint=None):
        """Return its own bytes."""
        settled = super().settle(reservation, actual, result, fingerprint)
        return dataclasses.replace(settled, release=dataclasses.replace(settled.release, result=result))


class TrustsTheClock(SQLiteStore):
    """The clock has no guard."""

    def __init__(self, path, clock):
        super().__init__(path, clock, guard_us=2**60)


class ForgetsRefusals(SQLiteStore):
    """A refusal leaves no line in the ledger."""

    def reserve(self, claim):
        """Check the balances first."""
        if any(not claim.worst.within(self.balance(a.id).remaining) for a in self.path(claim.account)):
            return Refusal(claim.account, claim.worst, Cost(), None)
        return super().reserve(claim)


def _no_fence(monkeypatch):
    def requested(state, event):
        return State.SETTLED if event is Event.SETTLE and state is State.FORFEIT else rules.requested(state, event)

    monkeypatch.setattr(store, "requested", requested)


def _refunds_failures(monkeypatch):
    monkeypatch.setattr(rules, "ended", lambda hold, _: Tally(held=-hold.amount))


def _refunds_voided_retries(monkeypatch):
    whole = rules.ended
    monkeypatch.setattr(rules, "ended", lambda hold, state: whole(dataclasses.replace(hold, funded=NOTHING), state))


def _never_pays_from_forfeits(monkeypatch):
    monkeypatch.setattr(store, "_newest_forfeits", lambda *_: {})


def _shared_accounts_pay_twice(monkeypatch):
    monkeypatch.setattr(rules, "settled", lambda hold, actual, _: Tally(used=actual, held=-hold.amount))


def _voids_what_runs(monkeypatch):
    monkeypatch.setitem(rules.TRANSITIONS, (State.RUNNING, Event.VOID), State.VOID)


def _forgets_on_alter(monkeypatch):
    open_bucket = Transaction.open_bucket

    def forgetful(self, account, closed_at_us, kind, detail):
        open_bucket(self, account, 0 if kind == "alter" else closed_at_us, kind, detail)

    monkeypatch.setattr(Transaction, "open_bucket", forgetful)


def _window_a_day_short(monkeypatch):
    monkeypatch.setattr(
        transaction, "still_counts", lambda period, end, now: rules.still_counts(period, end, now + rules.DAY_US)
    )


def _time_goes_back(monkeypatch):
    monkeypatch.setattr(rules.Clock, "now_us", property(lambda clock: clock.raw_us))
    monkeypatch.setattr(rules.Clock, "has_passed", lambda clock, end: not end - rules.DAY_US <= clock.raw_us < end)


def _charges_when_it_settles(monkeypatch):
    change = Transaction.change
    monkeypatch.setattr(
        Transaction,
        "change",
        lambda self, page, _, tally, changes: change(self, page, page.bucket, tally, changes),
    )


def _takes_refunds_from_the_newest(monkeypatch):
    monkeypatch.setattr(rules, "refunded", lambda buckets, amount: [(buckets[-1][0], amount)])


def _no_cap_of_refunds(monkeypatch):
    monkeypatch.setattr(rules, "check_refund", lambda *_: None)


def _counts_refunds_of_the_open_bucket_only(monkeypatch):
    begin, check = Transaction.begin_account, rules.check_refund
    opened = []

    def begin_account(self, account):
        opened.append(begin(self, account))
        return opened[-1]

    def check_refund(limit, tally, amount):
        check(limit, dataclasses.replace(tally, refunded=opened[-1].tally.refunded), amount)

    monkeypatch.setattr(Transaction, "begin_account", begin_account)
    monkeypatch.setattr(rules, "check_refund", check_refund)


def _loses_delta(monkeypatch):
    monkeypatch.setattr(rules, "_fits", lambda needed, left: needed.rho <= left.rho)


def _floats(monkeypatch):
    exact = transaction.tally_text

    def rounded(tally):
        return exact(dataclasses.replace(tally, used=Amount(int(float(tally.used.rho)), tally.used.delta)))

    monkeypatch.setattr(transaction, "tally_text", rounded)


def _skips_ledger_lines(monkeypatch):
    append = Transaction.append
    monkeypatch.setattr(
        Transaction,
        "append",
        lambda self, page, kind, *a, **k: kind == "void" or append(self, page, kind, *a, **k),
    )


def _replays_to_any_account(monkeypatch):
    mark = Transaction._mark_paid

    def paid(self, path, release):
        mark(self, path, release)
        if path and release is not None:
            path[0].paid = True

    monkeypatch.setattr(Transaction, "_mark_paid", paid)


def _never_suspends(monkeypatch):
    monkeypatch.setattr(rules, "suspended_until_us", lambda *_: None)


def _suspends_a_failure_late(monkeypatch):
    monkeypatch.setattr(rules, "MAX_FAILURES", 6)


def _suspends_for_voids(monkeypatch):
    def failing(self, reservation, state, **rest):
        if state is State.VOID:
            self._accounts[0].failures = rules.failed(self._accounts[0].failures, self.clock.now_us)
        update(self, reservation, state, **rest)

    update = Transaction.update_reservation
    monkeypatch.setattr(Transaction, "update_reservation", failing)


def _counts_failures_for_ever(monkeypatch):
    monkeypatch.setattr(rules, "SUSPENSION_US", 1000 * rules.DAY_US)


def _suspends_observers(monkeypatch):
    monkeypatch.setattr(
        transaction.AccountRow, "suspended_until_us", lambda row, now_us: rules.suspended_until_us(row.failures, now_us)
    )


def _replays_unpaid_releases_to_suspended_accounts(monkeypatch):
    @transaction.writes
    def reserve(self, transaction, claim):
        facts = transaction.begin_claim(claim)
        if facts.release and facts.path and not facts.path[0].paid:
            return store._admit(transaction, claim, facts)
        return whole(self, transaction, claim)

    whole = BudgetStore.reserve.__wrapped__
    monkeypatch.setattr(BudgetStore, "reserve", reserve)


def _lifts_nothing(monkeypatch):
    monkeypatch.setattr(BudgetStore, "lift", lambda self, account, action: self.note(action, {"lifted": account}))


def _compares_no_heads(monkeypatch):
    monkeypatch.setattr(store, "_check_fingerprint", lambda *_: None)


def _replaces_fingerprints(monkeypatch):
    def replace(self, fingerprint):
        statement = "INSERT OR REPLACE INTO budget_fingerprints VALUES (?, ?)"
        self._writes.append((statement, (fingerprint.head_key, fingerprint.digest)))

    monkeypatch.setattr(Transaction, "add_fingerprint", replace)
    monkeypatch.setattr(store, "_check_fingerprint", lambda work, fingerprint, _: work.add_fingerprint(fingerprint))


def _shows_fingerprints(monkeypatch):
    settle = BudgetStore.settle

    def shown(self, reservation, actual, result, fingerprint=None):
        settled = settle(self, reservation, actual, result, fingerprint)
        if fingerprint is not None:
            self.note(AdminAction("store", "settled"), {"head": fingerprint.head_key.hex()})
        return settled

    monkeypatch.setattr(BudgetStore, "settle", shown)


def _forgets_acts(monkeypatch):
    monkeypatch.setattr(Transaction, "action_digest", lambda *_: None)
    monkeypatch.setattr(Transaction, "add_action", lambda *_: None)


def _takes_any_act_for_the_first(monkeypatch):
    known = Transaction.action_digest

    def same(self, action):
        return None if known(self, action) is None else Anything()

    monkeypatch.setattr(Transaction, "action_digest", same)


class Anything:
    """Equal to every other value."""

    __hash__ = None

    def __eq__(self, other):
        return True


def _puts_texts_into_the_ledger(monkeypatch):
    monkeypatch.setattr(store, "hashlib", _Unhashed)


class _Unhashed:
    """A hash function that returns its input."""

    class sha256:  # noqa: N801 - hashlib's name
        """Keep the input in place of its hash."""

        def __init__(self, data):
            self.data = data

        def digest(self):
            """Return the input."""
            return self.data

        def hexdigest(self):
            """Return the input."""
            return self.data.decode()


def _records_of_all_kinds(monkeypatch):
    monkeypatch.setattr(statements, "RECORDS", statements.RECORDS.replace("kind = ?", "? != ''"))


def _histories_in_the_order_of_keys(monkeypatch):
    monkeypatch.setattr(statements, "HISTORY", statements.HISTORY.replace("BY e.number DESC", "BY s.release_key"))


def _histories_that_repeat(monkeypatch):
    monkeypatch.setattr(statements, "HISTORY", statements.HISTORY.replace("number < ?", "number <= ?"))


SUBCLASSES = [
    CheckThenUpdate,
    IgnoresKeys,
    ChecksKeysInTheProcess,
    ChargesTheWorstCase,
    AnswersWithItsOwnBytes,
    TrustsTheClock,
    ForgetsRefusals,
]


def _suspends_for_crashes(monkeypatch):
    end = store._end_reservation

    def counted(work, path, row, after, event):
        end(work, path, row, after, Event.FORFEIT if event is Event.LOSE else event)

    monkeypatch.setattr(store, "_end_reservation", counted)


PATCHES = [
    _no_fence,
    _refunds_failures,
    _refunds_voided_retries,
    _never_pays_from_forfeits,
    _shared_accounts_pay_twice,
    _voids_what_runs,
    _forgets_on_alter,
    _window_a_day_short,
    _time_goes_back,
    _charges_when_it_settles,
    _takes_refunds_from_the_newest,
    _no_cap_of_refunds,
    _counts_refunds_of_the_open_bucket_only,
    _loses_delta,
    _floats,
    _skips_ledger_lines,
    _replays_to_any_account,
    _never_suspends,
    _suspends_a_failure_late,
    _suspends_for_voids,
    _counts_failures_for_ever,
    _suspends_for_crashes,
    _suspends_observers,
    _replays_unpaid_releases_to_suspended_accounts,
    _lifts_nothing,
    _compares_no_heads,
    _replaces_fingerprints,
    _shows_fingerprints,
    _forgets_acts,
    _takes_any_act_for_the_first,
    _puts_texts_into_the_ledger,
    _records_of_all_kinds,
    _histories_in_the_order_of_keys,
    _histories_that_repeat,
]


def failures(kind, stop=True):
    """Return the tests of the suite that stores of *kind* fail; only the first if *stop*."""

    class Suite(BudgetStoreSuite):
        @contextlib.contextmanager
        def opened(self, clock):
            store = kind(None, clock)
            try:
                yield store
            finally:
                store.close()

    failed = []
    for name, test in inspect.getmembers(Suite(), inspect.ismethod):
        if not name.startswith("test_"):
            continue
        marks = getattr(test, "pytestmark", [])
        for values in marks[0].args[1] if marks else [()]:
            try:
                test(*(values if isinstance(values, tuple) else (values,)))
            except BaseException as error:  # pytest.raises raises no Exception
                if isinstance(error, KeyboardInterrupt):
                    raise
                failed.append(name)
                if stop:
                    return failed
                break
    return failed


def test_the_store_itself_passes():
    """The tests below depend on it."""
    assert failures(Sound) == []


@pytest.mark.parametrize("defective", SUBCLASSES)
def test_the_suite_rejects_a_defective_store(defective):
    """At least one test of the suite fails for each defect of a store."""
    assert failures(defective)


@pytest.mark.parametrize("plant", PATCHES)
def test_the_suite_rejects_a_defective_rule(plant, monkeypatch):
    """At least one test of the suite fails for each defect of a rule."""
    plant(monkeypatch)
    assert failures(Sound)
