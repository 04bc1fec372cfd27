"""Repeated failures, and data that changes without a new version."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import TYPE_CHECKING

import pytest

from discreet.budget.errors import DataChanged, LeaseLost, UnknownAccount
from discreet.budget.ledger import entry_of
from discreet.budget.model import AdminAction, Amount, Fingerprint, Replay, Reservation, State, Suspension
from discreet.budget.rules import DAY_US
from discreet.errors import InvariantViolated
from discreet.values import Cost
from tests.budget.suite.base import ACT, UNIT, Suite, claim, key_of, spend, units

if TYPE_CHECKING:
    from discreet.budget.stores.store import BudgetStore

_HEAD, _SAME, _OTHER = (bytes([n]) * 32 for n in range(3))


def _fail(store: BudgetStore, name: str, who: str = "ann") -> None:
    store.reserve(claim(name, who, worst=UNIT))
    store.start(name)
    store.forfeit(name)


class Failures(Suite):
    """Tests of suspensions and of fingerprints."""

    # ---------------------------------------------------------------------------------------------- suspensions

    def test_five_failures_within_a_day_suspend_the_account(self) -> None:
        """A failure may depend on the data, so their number is limited; other accounts are unaffected."""
        with self.accounts(limit=50) as (store, clock):
            first_us = clock()
            for n in range(4):
                _fail(store, f"f{n}")
                clock.advance(seconds=60)
            assert store.balance("ann").suspended_until_us is None
            assert isinstance(store.reserve(claim("fine", worst=UNIT)), Reservation)
            _fail(store, "f4")
            for n in range(2):
                assert store.reserve(claim(f"no{n}")) == Suspension("ann", first_us + DAY_US)
            assert store.balance("ann").suspended_until_us == first_us + DAY_US
            assert units(store, "ann") == (0, 1, 5)
            assert store.balance("org").suspended_until_us is None
            assert isinstance(store.reserve(claim("bobs", "bob")), Reservation)
            lines = [line.body for head in store.heads() for line in store.lines(head.chain)]
            assert sum("\trefuse\tno" in body and "suspended" in body for body in lines) == 2

    def test_a_suspension_ends_when_the_oldest_failure_is_a_day_old(self) -> None:
        """It ends to the microsecond; the next failure suspends again, by those that still count."""
        with self.accounts(limit=50) as (store, clock):
            for n in range(5):
                _fail(store, f"f{n}")
                clock.advance(seconds=60)
            clock.now_us += DAY_US - 5 * 60_000_000 - 1
            assert isinstance(store.reserve(claim("early")), Suspension)
            clock.now_us += 1
            assert store.balance("ann").suspended_until_us is None
            now_us = clock()
            _fail(store, "f5")
            assert store.reserve(claim("again")) == Suspension("ann", now_us + 60_000_000)

    def test_an_officer_suspends_an_account_and_all_below_it(self) -> None:
        """Running queries end as usual, answers that were paid for are replayed, and lifting ends it."""
        with self.accounts(limit=50) as (store, _):
            spend(store, claim("paid"))
            spend(store, claim("his", "bob"))
            store.reserve(claim("running"))
            store.start("running")
            store.suspend("org", AdminAction("key:7a39", "an audit", "act-1", "Olga"))
            store.suspend("org", AdminAction("key:7a39", "an audit", "act-1", "Olga's new label"))
            assert store.settle("running", UNIT, b"x").charged == UNIT
            assert store.reserve(claim("no")) == store.reserve(claim("nor", "bob")) == Suspension("org", None)
            assert isinstance(store.reserve(claim("again", release="paid")), Replay)
            assert store.account("org").suspended
            assert not store.account("ann").suspended
            store.verify()
            store.lift("org", ACT)
            assert not store.account("org").suspended
            assert isinstance(store.reserve(claim("yes", worst=UNIT)), Reservation)
            bodies = [line.body for head in store.heads() for line in store.lines(head.chain)]
            assert sum("\trefuse\tno" in body and '"suspended":"org"' in body for body in bodies) == 2
            assert sum('"name":"Olga"' in body and '"suspended":true' in body for body in bodies) == 1

    def test_an_officer_suspends_an_account_that_is_only_observed(self) -> None:
        """Failures never suspend it, but an officer does; lifting ends both kinds at once, and may be repeated."""
        with self.accounts(limit=50) as (store, _):
            for n in range(5):
                _fail(store, f"f{n}")
            store.suspend("ann", ACT)
            lift = AdminAction("officer", "enough", "act-2")
            store.alter(dataclasses.replace(store.account("ann"), mode="observe"), ACT)
            assert store.reserve(claim("no")) == Suspension("ann", None)
            for _ in range(2):
                store.lift("ann", lift)
            store.alter(dataclasses.replace(store.account("ann"), mode="enforce"), ACT)
            assert isinstance(store.reserve(claim("yes", worst=UNIT)), Reservation)

    def test_the_ledger_says_what_was_asked_and_what_was_refused(self) -> None:
        """A question is in the line that holds its worst case, or refuses it; a refusal says what it needed."""
        with self.accounts(limit=3) as (store, _):
            for name in ("first", "second"):
                store.reserve(claim(name, question='{"dataset":"reads"}'))
            lines = [entry_of(line) for head in store.heads() for line in store.lines(head.chain)]
            found = {entry.kind: (entry.reservation, json.loads(entry.detail)) for entry in lines if entry.reservation}
            needed = Amount.of(UNIT * 3)
            asked = {"by": "ann", "question": {"dataset": "reads"}}
            short = {"short": "ann", "rho": str(needed.rho), "delta": str(needed.delta)}
            assert found == {
                "reserve": ("first", asked | {"release": key_of("first").hex()}),
                "refuse": ("second", asked | short),
            }

    def test_the_ledger_has_the_hash_of_each_answer(self) -> None:
        """Of the first one and of its replays, with the ids of the reservations that paid for them."""
        with self.accounts() as (store, _):
            spend(store, claim("a", release="q"), UNIT, b"bytes")
            store.reserve(claim("b", "bob", "q"))
            lines = [entry_of(line) for head in store.heads() for line in store.lines(head.chain)]
            about = {"release": key_of("q").hex(), "result": hashlib.sha256(b"bytes").hexdigest()}
            answered = {
                entry.kind: (entry.reservation, json.loads(entry.detail))
                for entry in lines
                if entry.kind in {"settle", "replay"}
            }
            assert answered == {"settle": ("a", {"by": "ann"} | about), "replay": ("b", {"by": "bob"} | about)}

    def test_failures_of_different_days_do_not_suspend(self) -> None:
        """Five failures, one every seven hours, do not suspend."""
        with self.accounts(limit=50) as (store, clock):
            for n in range(8):
                _fail(store, f"f{n}")
                clock.advance(days=7 / 24)
            assert isinstance(store.reserve(claim("fine")), Reservation)

    def test_an_officer_lifts_a_suspension(self) -> None:
        """Earlier failures no longer count; the charges stay."""
        with self.accounts(limit=50) as (store, _):
            for n in range(5):
                _fail(store, f"f{n}")
            store.lift("ann", ACT)
            assert store.balance("ann").suspended_until_us is None
            for n in range(5, 10):
                assert isinstance(store.reserve(claim(f"fine{n}", worst=Cost())), Reservation)
                _fail(store, f"f{n}")
            assert isinstance(store.reserve(claim("no")), Suspension)
            assert units(store, "ann") == (0, 0, 10)
            with pytest.raises(UnknownAccount):
                store.lift("nobody", ACT)

    def test_only_runs_that_failed_suspend(self) -> None:
        """Voided, lost and expired runs do not: crashes and disconnects do not depend on the data."""
        with self.accounts(limit=50) as (store, clock):
            for n in range(5):
                store.reserve(claim(f"v{n}"))
                store.void(f"v{n}")
                store.reserve(claim(f"h{n}", lease_ms=1))
                store.reserve(claim(f"l{n}", release="lost", worst=UNIT))
                store.start(f"l{n}")
                store.lose(f"l{n}")
                store.lose(f"l{n}")  # its answer was lost
                store.reserve(claim(f"r{n}", release="dead", worst=UNIT, lease_ms=1))
                store.start(f"r{n}")
                clock.advance(seconds=1)
                assert store.expire() == 2
            assert units(store, "ann") == (0, 0, 2)  # each retry was paid for by the run before
            for n in range(5):
                assert isinstance(store.reserve(claim(f"q{n}", release="q", worst=UNIT)), Reservation)
                store.start(f"q{n}")
                store.forfeit(f"q{n}")  # a retry that fails again counts again
            assert isinstance(store.reserve(claim("no")), Suspension)

    def test_a_suspended_account_still_gets_its_paid_releases(self) -> None:
        """Running queries may still settle; an answer that only others paid for is refused like a new query."""
        with self.accounts(limit=50) as (store, _):
            spend(store, claim("a", release="mine"))
            spend(store, claim("b", "bob", "his"))
            store.reserve(claim("runs"))
            store.start("runs")
            for n in range(5):
                _fail(store, f"f{n}")
            again = store.reserve(claim("c", release="mine"))
            assert isinstance(again, Replay)
            assert again.charged == Cost()
            assert store.reserve(claim("d", release="his")) == store.reserve(claim("e", release="nobodys"))
            assert store.settle("runs", UNIT, b"x").charged == UNIT

    def test_observed_accounts_are_never_suspended(self) -> None:
        """Observed accounts refuse nothing; in enforcing mode, earlier failures count."""
        with self.accounts(limit=50) as (store, _):
            store.alter(dataclasses.replace(store.path("ann")[0], mode="observe"), ACT)
            for n in range(6):
                _fail(store, f"f{n}")
            assert isinstance(store.reserve(claim("fine")), Reservation)
            assert store.balance("ann").suspended_until_us is None
            store.alter(dataclasses.replace(store.path("ann")[0], mode="enforce"), ACT)
            assert isinstance(store.reserve(claim("no")), Suspension)

    # ---------------------------------------------------------------------------------------------- fingerprints

    def test_data_that_changes_within_one_version_is_detected(self) -> None:
        """The same head had another fingerprint before: nothing is settled, and the failure is charged."""
        with self.accounts() as (store, _):
            for name in ("a", "b", "c"):
                store.reserve(claim(name))
                store.start(name)
            store.settle("a", UNIT, b"x", Fingerprint(_HEAD, _SAME))
            store.settle("b", UNIT, b"y", Fingerprint(_HEAD, _SAME))
            for _ in range(2):
                with pytest.raises(DataChanged):
                    store.settle("c", UNIT, b"z", Fingerprint(_HEAD, _OTHER))
            assert units(store, "ann") == (2, 3, 0)
            kept = store.reservation("c")
            assert kept is not None
            assert kept.state is State.RUNNING
            assert store.release(key_of("c")) is None
            store.forfeit("c")
            assert units(store, "ann") == (2, 0, 3)

    def test_fingerprints_of_different_heads_are_not_compared(self) -> None:
        """Another query or data version, or a missing fingerprint, is not compared."""
        with self.accounts() as (store, _):
            for n, fingerprint in enumerate((Fingerprint(_HEAD, _SAME), Fingerprint(_SAME, _OTHER), None)):
                store.reserve(claim(f"a{n}"))
                store.start(f"a{n}")
                store.settle(f"a{n}", UNIT, b"x", fingerprint)
            assert units(store, "ann") == (3, 0, 0)

    def test_only_settled_fingerprints_are_compared(self) -> None:
        """A refused settlement stores no fingerprint; a repeated one is not compared."""
        with self.accounts() as (store, _):
            store.reserve(claim("a"))
            with pytest.raises(InvariantViolated):
                store.settle("a", UNIT, b"x", Fingerprint(_HEAD, _OTHER))
            store.start("a")
            with pytest.raises(InvariantViolated):
                store.settle("a", UNIT * 4, b"x", Fingerprint(_HEAD, _OTHER))
            store.settle("a", UNIT, b"x", Fingerprint(_HEAD, _SAME))
            assert store.settle("a", UNIT, b"x", Fingerprint(_HEAD, _OTHER)).release.result == b"x"
            with pytest.raises(LeaseLost):
                store.settle("never", UNIT, b"x", Fingerprint(_HEAD, _SAME))

    def test_the_fingerprint_of_the_slower_answer_is_compared_too(self) -> None:
        """The slower answer is dropped anyway, but its data is not that of the stored answer."""
        with self.accounts() as (store, _):
            for name, who in (("a", "ann"), ("b", "bob")):
                store.reserve(claim(name, who, "q"))
                store.start(name)
            store.settle("a", UNIT, b"x", Fingerprint(_HEAD, _SAME))
            with pytest.raises(DataChanged):
                store.settle("b", UNIT, b"y", Fingerprint(_HEAD, _OTHER))
            assert store.settle("b", UNIT, b"y", Fingerprint(_HEAD, _SAME)).release.result == b"x"

    def test_a_fingerprint_is_never_shown(self) -> None:
        """The ledger, which officers read, has no fingerprint."""
        with self.accounts() as (store, _):
            store.reserve(claim("a"))
            store.start("a")
            store.settle("a", UNIT, b"x", Fingerprint(_HEAD, _SAME))
            lines = "".join(line.body for head in store.heads() for line in store.lines(head.chain))
            assert _HEAD.hex() not in lines
            assert _SAME.hex() not in lines
