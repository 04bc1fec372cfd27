"""The manager compared with a small reference model, under random operations."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from discreet.budget.errors import AccountSuspended, BudgetRefused, DataChanged, LeaseLost
from discreet.budget.manager import BudgetManager
from discreet.budget.model import AdminAction, Fingerprint, InFlight, Replay, Sliding
from discreet.budget.rules import DAY_US
from discreet.budget.stores.sqlite import SQLiteStore
from tests.budget.suite import ACT, TOTAL, UNIT, FakeClock, account, key_of, units

DAYS, LIMIT = 3, 12
PARENTS = {"ann": ("ann", "org"), "bob": ("bob", "org"), "org": ("org",)}
LIMITS = {"ann": LIMIT, "bob": LIMIT, "org": LIMIT + 6}


class Manager(RuleBasedStateMachine):
    """Two analysts and their organisation, a sliding window of days; costs are 1 or 2 units of a worst case of 3."""

    def __init__(self):
        super().__init__()
        self.clock = FakeClock()
        self.store = SQLiteStore(None, self.clock)
        numbers = itertools.count()
        self.manager = BudgetManager(self.store, lambda: f"r{next(numbers)}", 86_400_000)
        for name in ("org", "ann", "bob"):
            parent = None if name == "org" else "org"
            self.store.create(account(name, LIMITS[name], parent, Sliding(DAYS)), ACT)
        # the reference: charges as [account, day, units, kind, release], and open reservations by name
        self.charges, self.open, self.answers, self.day = [], {}, {}, 0
        # when runs failed by account, releases paid for by account, records, what the engine gave, acts that were done
        self.failed, self.bought = {name: [] for name in PARENTS}, {name: [] for name in PARENTS}
        self.records, self.puts, self.gave, self.acts = {}, 0, None, 0

    def _spent(self, name, kinds=("used", "held", "forfeit")):
        return sum(c[2] for c in self.charges if c[0] == name and c[1] >= self.day - DAYS and c[3] in kinds)

    def _paid(self, name, release):
        return any(c[0] == name and c[3] == "used" and c[4] == release for c in self.charges)

    def _fund(self, name, release):
        found = [c for c in self.charges if (c[0], c[3], c[4]) == (name, "forfeit", release)]
        return max((c for c in found if c[1] >= self.day - DAYS), key=lambda c: c[5], default=None)

    def _needed(self, name, release):
        return 0 if self._paid(name, release) or self._fund(name, release) else 3

    def _suspended(self, name):
        """Return the end of a suspension: five failures, the oldest of which is less than a day old."""
        return self.failed[name][-5] + DAY_US if len(self.failed[name]) >= 5 else 0

    @rule(who=st.sampled_from(["ann", "bob"]), release=st.integers(0, 5))
    def reserve(self, who, release):
        """Admit a claim exactly if its account is not suspended and the reference has room on the whole path."""
        self._reserve(who, release)

    def _reserve(self, who, release):
        """Return the name of a new reservation, or None."""
        path = PARENTS[who]
        if self._paid(who, release):
            assert self.manager.reserve(who, key_of(str(release)), UNIT * 3).charged == UNIT * 0
            return None
        if any((held[0][0], of) == (who, release) for _, held, of in self.open.values()):
            assert isinstance(self.manager.reserve(who, key_of(str(release)), UNIT * 3), InFlight)
            return None
        if self._suspended(who) > self.clock():
            with pytest.raises(AccountSuspended) as refused:
                self.manager.reserve(who, key_of(str(release)), UNIT * 3)
            assert (refused.value.account, refused.value.until_us) == (who, self._suspended(who))
            return None
        fits = all(not self._needed(n, release) or self._spent(n) + self._needed(n, release) <= LIMITS[n] for n in path)
        try:
            admitted = self.manager.reserve(who, key_of(str(release)), UNIT * 3)
        except BudgetRefused:
            assert not fits
            return None
        assert fits
        taken = {n: None if self._paid(n, release) else self._fund(n, release) for n in path}
        for charge in taken.values():
            if charge is not None:
                self.charges.remove(charge)
        if isinstance(admitted, Replay):
            cost, _ = self.answers[release]
            new = [n for n in path if not self._paid(n, release)]
            self.charges += [[n, self.day, cost, "used", release, 0] for n in new]
            self._buy(new, release)
            return None
        held = [[n, self.day, 0 if self._paid(n, release) else 3, "held", release, taken[n] is not None] for n in path]
        self.charges += held
        self.open[admitted.id] = ["held", held, release]
        return admitted.id

    def _buy(self, names, release):
        for name in names:
            self.bought[name].append(release)

    @rule(who=st.sampled_from(["ann", "bob"]), release=st.integers(0, 1), times=st.integers(1, 5))
    def fail(self, who, release, times):
        """Run queries that fail one after the other; each pays for the next."""
        for _ in range(times):
            name = self._reserve(who, release)
            if name is not None:
                self.manager.store.start(name)
                self.open[name][0] = "running"
                self.manager.store.forfeit(name)
                self._end(name)

    @rule(who=st.sampled_from(["ann", "bob"]))
    def lift(self, who):
        """Lift a suspension."""
        self.manager.store.lift(who, ACT)
        self.failed[who].clear()

    @rule(name=st.sampled_from("abc"), text=st.sampled_from(["1", "2", None]), again=st.booleans())
    def put_record(self, name, text, again):
        """Put or remove a record; a repeated action does nothing, whatever was put in between."""
        self.acts += 1
        act = AdminAction("officer", "a record", f"act-{self.acts}")
        self.manager.store.put_record("key", name, text, act)
        self.puts += 1
        self.records[name] = text
        if again:
            self.manager.store.put_record("key", name, None, ACT)
            self.puts += 1
            self.records[name] = None
            self.manager.store.put_record("key", name, text, act)

    @precondition(lambda self: self.open)
    @rule(
        data=st.data(),
        cost=st.integers(0, 3),
        well=st.sampled_from([True, True, True, False]),
        gave=st.sampled_from([0, 0, 1]),
    )
    def advance_reservation(self, data, cost, well, gave):
        """Advance an open reservation by the state table, unless the fingerprint differs from the stored one."""
        name = data.draw(st.sampled_from(sorted(self.open)))
        state, held, release = self.open[name]
        if state == "held" and well:
            self.manager.store.start(name)
            self.open[name][0] = "running"
        elif state == "running" and well:
            seen = Fingerprint(key_of("head"), key_of(f"gave {gave}"))
            if self.gave not in (None, gave):
                with pytest.raises(DataChanged):
                    self.manager.store.settle(name, UNIT * cost, b"%d" % cost, seen)
                return
            settled = self.manager.store.settle(name, UNIT * cost, b"%d" % cost, seen)
            self.gave = gave
            self._buy([c[0] for c in held if not self._paid(c[0], release)], release)
            self.answers.setdefault(release, (cost, b"%d" % cost))
            cost, result = self.answers[release]
            assert settled.release.result == result
            for charge in held:
                charge[2] = 0 if self._paid(charge[0], release) else cost
                charge[3] = "used"
            del self.open[name]
        elif gave:
            self.manager.store.lose(name)
            self._end(name, counts=False)
        else:
            (self.manager.store.void if state == "held" else self.manager.store.forfeit)(name)
            self._end(name)

    def _end(self, name, *, counts=True):
        state, held, _ = self.open.pop(name)
        if state == "running" and counts:
            self.failed[held[0][0]].append(self.clock())
        for charge in held:
            self.charges = [other for other in self.charges if other is not charge]  # equal ones are held by others
            if charge[2] and (state == "running" or charge[5]):
                self.numbered = getattr(self, "numbered", 0) + 1
                self.charges.append([*charge[:3], "forfeit", charge[4], self.numbered])

    @rule()
    def expire(self):
        """Let all leases expire: a day later every open reservation is dead, and its caller gets an error."""
        self.clock.advance(days=1)
        self.day += 1
        # the order of ending decides which forfeit is the newest: by lease
        assert self.manager.maintain() == len(self.open)
        for name in sorted(self.open, key=lambda n: self.store.reservation(n).lease_until_us):
            running = self.open[name][0] == "running"
            self._end(name, counts=False)
            if running:
                try:
                    self.manager.store.settle(name, UNIT, b"zombie")
                except LeaseLost:
                    continue
                raise AssertionError

    @rule(days=st.sampled_from([-3.0, -0.5, 0.5, 1.0]))
    def back_and_forth(self, days):
        """Set the time back and forward again, which changes nothing."""
        self.clock.advance(days=-abs(days))
        self.store.heartbeat()
        self.clock.advance(days=abs(days))

    @rule()
    def refresh(self):
        """Open buckets early, which changes no balance."""
        self.manager.store.refresh()

    @invariant()
    def balances_agree(self):
        """Compare balances part by part, for every account; nothing is overspent (I1)."""
        for name in PARENTS:
            shown = tuple(self._spent(name, (kind,)) for kind in ("used", "held", "forfeit"))
            assert units(self.store, name) == shown
            assert sum(shown) <= LIMITS[name]

    @invariant()
    def the_rest_agrees(self):
        """Compare histories, records and suspensions."""
        for name, releases in self.bought.items():
            found = self.manager.store.history(name, None, 1_000)
            assert [paid.release.release_key for paid in found] == [key_of(str(r)) for r in reversed(releases)]
            assert [paid.charged for paid in found] == [UNIT * self.answers[r][0] for r in reversed(releases)]
            until_us = self._suspended(name)
            told_us = self.manager.get(name).balance.suspended_until_us
            assert told_us == (until_us if until_us > self.clock() else None)
        assert dict(self.manager.store.records("key")) == {
            n: text for n, text in self.records.items() if text is not None
        }
        assert self.manager.store.records_version() == self.puts

    def teardown(self):
        """Verify that the ledger has the same balances (I5)."""
        self.manager.verify()
        self.store.close()


class TestManager(Manager.TestCase):
    """The manager agrees with the reference after any sequence of operations."""

    settings = settings(max_examples=60, stateful_step_count=40)


def test_the_reference_counts_in_units():
    """The costs of the reference are those of the suite."""
    assert UNIT.rho * 1000 == 1
    assert Fraction(1, 100) == TOTAL
