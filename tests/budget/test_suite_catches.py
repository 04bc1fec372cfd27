"""Stores with a planted defect do not pass the suite."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import threading

import pytest

from discreet.budget import periods, rules, states
from discreet.budget.amount import NOTHING, Amount, Tally
from discreet.budget.model import Refusal
from discreet.budget.states import Event, State
from discreet.budget.stores import sqlite_accounts, sqlite_books, sqlite_claims
from discreet.budget.stores.sqlite import SQLiteStore
from discreet.testing.budget import BudgetStoreSuite
from discreet.values import Cost


class Sound(SQLiteStore):
    """The store itself, in memory."""


class CheckThenUpdate(SQLiteStore):
    """The paper's order: look, and then write; eight who look at the same time are all admitted."""

    def __init__(self, *args):
        super().__init__(*args)
        self._together = threading.Barrier(8)

    def reserve(self, claim):
        """Look first."""
        try:
            short = next(
                (a.id for a in self.path(claim.account) if not claim.worst.within(self.balance(a.id).remaining)), None
            )
            if threading.current_thread() is not threading.main_thread():
                with contextlib.suppress(threading.BrokenBarrierError):
                    self._together.wait(0.2)
        except Exception:  # noqa: BLE001 - what the store itself refuses, it refuses below
            short = None
        if short is not None:
            return super().reserve(claim)

        def write(books):  # on the writer's thread, so that the rule is broken for nobody else
            before, rules._fits = rules._fits, lambda *_: True
            try:
                return sqlite_claims.reserve(books, claim)
            finally:
                rules._fits = before

        return self._writer.run(write)


class IgnoresKeys(SQLiteStore):
    """Every request is a new one."""

    def reserve(self, claim):
        """Without the key."""
        return super().reserve(dataclasses.replace(claim, key=None))


class ChecksKeysInTheProcess(SQLiteStore):
    """Keys are known, but a second body is not noticed."""

    def reserve(self, claim):
        """Any digest will do."""
        return super().reserve(dataclasses.replace(claim, digest=b""))


class ChargesTheWorstCase(SQLiteStore):
    """Nobody gets anything back."""

    def settle(self, reservation, actual, result):  # noqa: ARG002
        """Charge what was held."""
        return super().settle(reservation, self.reservation(reservation).worst, result)


class AnswersWithItsOwn(SQLiteStore):
    """The slower one answers what it computed."""

    def settle(self, reservation, actual, result):
        """Its own bytes."""
        settled = super().settle(reservation, actual, result)
        return dataclasses.replace(settled, release=dataclasses.replace(settled.release, result=result))


class TrustsTheClock(SQLiteStore):
    """No guard."""

    def __init__(self, path, clock):
        super().__init__(path, clock, guard_us=2**60)


class ForgetsRefusals(SQLiteStore):
    """A refusal leaves no line, because it is raised."""

    def reserve(self, claim):
        """Ask first."""
        if any(not claim.worst.within(self.balance(a.id).remaining) for a in self.path(claim.account)):
            return Refusal(claim.account, claim.worst, Cost(), None)
        return super().reserve(claim)


def _no_fence(monkeypatch):
    def asked(state, event):
        return State.SETTLED if event is Event.SETTLE and state is State.FORFEIT else states.asked(state, event)

    monkeypatch.setattr(sqlite_claims, "asked", asked)


def _refunds_failures(monkeypatch):
    monkeypatch.setattr(rules, "ended", lambda hold, _: Tally(held=-hold.amount))
    monkeypatch.setattr(rules, "forfeit_of", lambda *_: NOTHING)


def _refunds_voided_retries(monkeypatch):
    whole = rules.ended
    monkeypatch.setattr(rules, "ended", lambda hold, state: whole(dataclasses.replace(hold, funded=NOTHING), state))
    monkeypatch.setattr(rules, "forfeit_of", lambda hold, state: NOTHING if state is State.VOID else hold.amount)


def _never_pays_from_forfeits(monkeypatch):
    monkeypatch.setattr(sqlite_claims, "_forfeit", lambda *_: (0, 0, NOTHING))


def _shared_accounts_pay_twice(monkeypatch):
    monkeypatch.setattr(rules, "settled", lambda hold, actual, _: Tally(used=actual, held=-hold.amount))


def _voids_what_runs(monkeypatch):
    monkeypatch.setitem(states.TRANSITIONS, (State.RUNNING, Event.VOID), State.VOID)


def _forgets_on_alter(monkeypatch):
    turn = sqlite_books.Books.turn

    def forgetful(books, page, closed_at_us, kind, detail):
        turn(books, page, 0 if kind == "alter" else closed_at_us, kind, detail)

    monkeypatch.setattr(sqlite_books.Books, "turn", forgetful)


def _window_a_day_short(monkeypatch):
    monkeypatch.setattr(
        sqlite_books, "counts", lambda period, end, now: periods.counts(period, end, now + periods.DAY_US)
    )


def _time_goes_back(monkeypatch):
    monkeypatch.setattr(periods.Clock, "now_us", property(lambda clock: clock.raw_us))
    monkeypatch.setattr(periods.Clock, "opening", lambda clock, end: not end - periods.DAY_US <= clock.raw_us < end)


def _charges_when_it_settles(monkeypatch):
    add = sqlite_books.Books.add
    monkeypatch.setattr(sqlite_books.Books, "add", lambda books, page, _, change: add(books, page, page.bucket, change))


def _takes_refunds_from_the_newest(monkeypatch):
    monkeypatch.setattr(sqlite_accounts.rules, "refunded", lambda buckets, amount: [(buckets[-1][0], amount)])


def _no_cap_of_refunds(monkeypatch):
    monkeypatch.setattr(rules, "check_refund", lambda *_: None)


def _loses_delta(monkeypatch):
    monkeypatch.setattr(rules, "_fits", lambda needed, left: needed.rho <= left.rho)


def _floats(monkeypatch):
    monkeypatch.setattr(
        sqlite_claims, "amount_of", lambda text: Amount(*(int(float(part)) for part in text.split(" ")))
    )
    exact = sqlite_books.tally_text

    def rounded(tally):
        return exact(dataclasses.replace(tally, used=Amount(int(float(tally.used.rho)), tally.used.delta)))

    monkeypatch.setattr(sqlite_books, "tally_text", rounded)


def _skips_ledger_lines(monkeypatch):
    append = sqlite_books.Books.append
    monkeypatch.setattr(
        sqlite_books.Books, "append", lambda books, kind, *a, **k: kind == "void" or append(books, kind, *a, **k)
    )


def _replays_to_anybody(monkeypatch):
    path = sqlite_books.Books.path

    def paid(books, account, release_key):
        pages = path(books, account, release_key)
        if sqlite_claims.release_of(books.db, release_key) is not None:
            pages[0].paid = True
        return pages

    monkeypatch.setattr(sqlite_books.Books, "path", paid)


SUBCLASSES = [
    CheckThenUpdate,
    IgnoresKeys,
    ChecksKeysInTheProcess,
    ChargesTheWorstCase,
    AnswersWithItsOwn,
    TrustsTheClock,
    ForgetsRefusals,
]
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
    _loses_delta,
    _floats,
    _skips_ledger_lines,
    _replays_to_anybody,
]


def failures(kind, stop=True):
    """Names of the tests of the suite that stores of *kind* fail; the first of them if *stop*."""

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
    """Run this way, too: a defect is caught for what it is."""
    assert failures(Sound) == []


@pytest.mark.parametrize("defective", SUBCLASSES)
def test_a_defective_store_is_caught(defective):
    """By at least one test of the suite."""
    assert failures(defective)


@pytest.mark.parametrize("plant", PATCHES)
def test_a_defective_rule_is_caught(plant, monkeypatch):
    """By at least one test of the suite."""
    plant(monkeypatch)
    assert failures(Sound)
