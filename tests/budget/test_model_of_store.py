"""The manager against a reference of a few lines, in any order of anything."""

from __future__ import annotations

import itertools
from fractions import Fraction

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from discreet.budget.errors import BudgetRefused, LeaseLost
from discreet.budget.manager import BudgetManager
from discreet.budget.model import Replay, Sliding
from discreet.budget.stores.sqlite import SQLiteStore
from discreet.testing.budget import ACT, TOTAL, UNIT, FakeClock, account, key_of, units

DAYS, LIMIT = 3, 12
PARENTS = {"ann": ("ann", "org"), "bob": ("bob", "org"), "org": ("org",)}
LIMITS = {"ann": LIMIT, "bob": LIMIT, "org": LIMIT + 6}


class Manager(RuleBasedStateMachine):
    """Two analysts and their organisation, a sliding window of days; costs are 1 or 2 units of a worst case of 3."""

    def __init__(self):
        super().__init__()
        self.clock = FakeClock()
        self.store = SQLiteStore.in_memory(self.clock)
        numbers = itertools.count()
        self.manager = BudgetManager(self.store, lambda: f"r{next(numbers)}", 86_400_000)
        for name in ("org", "ann", "bob"):
            parent = None if name == "org" else "org"
            self.store.create(account(name, LIMITS[name], parent, Sliding(DAYS)), ACT)
        # the reference: charges as [account, day, units, kind, release], and open reservations by name
        self.charges, self.open, self.answers, self.day = [], {}, {}, 0

    def _spent(self, name, kinds=("used", "held", "forfeit")):
        return sum(c[2] for c in self.charges if c[0] == name and c[1] >= self.day - DAYS and c[3] in kinds)

    def _paid(self, name, release):
        return any(c[0] == name and c[3] == "used" and c[4] == release for c in self.charges)

    def _fund(self, name, release):
        found = [c for c in self.charges if (c[0], c[3], c[4]) == (name, "forfeit", release)]
        return max((c for c in found if c[1] >= self.day - DAYS), key=lambda c: c[5], default=None)

    def _needed(self, name, release):
        return 0 if self._paid(name, release) or self._fund(name, release) else 3

    @rule(who=st.sampled_from(["ann", "bob"]), release=st.integers(0, 5))
    def reserve(self, who, release):
        """A claim is admitted exactly if the reference has room on the whole path."""
        path = PARENTS[who]
        if self._paid(who, release):
            assert self.manager.reserve(who, key_of(str(release)), UNIT * 3).charged == UNIT * 0
            return
        fits = all(not self._needed(n, release) or self._spent(n) + self._needed(n, release) <= LIMITS[n] for n in path)
        try:
            admitted = self.manager.reserve(who, key_of(str(release)), UNIT * 3)
        except BudgetRefused:
            assert not fits
            return
        assert fits
        taken = {n: None if self._paid(n, release) else self._fund(n, release) for n in path}
        for charge in taken.values():
            if charge is not None:
                self.charges.remove(charge)
        if isinstance(admitted, Replay):
            cost, _ = self.answers[release]
            self.charges += [[n, self.day, cost, "used", release, 0] for n in path if not self._paid(n, release)]
            return
        held = [[n, self.day, 0 if self._paid(n, release) else 3, "held", release, taken[n] is not None] for n in path]
        self.charges += held
        self.open[admitted.id] = ["held", held, release]

    @precondition(lambda self: self.open)
    @rule(data=st.data(), cost=st.integers(0, 3), event=st.sampled_from(["start", "settle", "void", "forfeit"]))
    def go_on(self, data, cost, event):
        """An open reservation goes on as the table says."""
        name = data.draw(st.sampled_from(sorted(self.open)))
        state, held, release = self.open[name]
        if event == "start" and state == "held":
            self.manager.start(name)
            self.open[name][0] = "running"
        elif event == "settle" and state == "running":
            settled = self.manager.settle(name, UNIT * cost, b"%d" % cost)
            self.answers.setdefault(release, (cost, b"%d" % cost))
            cost, result = self.answers[release]
            assert settled.release.result == result
            for charge in held:
                charge[2] = 0 if self._paid(charge[0], release) else cost
                charge[3] = "used"
            del self.open[name]
        elif (event, state) in {("void", "held"), ("forfeit", "running")}:
            getattr(self.manager, event)(name)
            self._end(name)

    def _end(self, name):
        state, held, _ = self.open.pop(name)
        for charge in held:
            self.charges.remove(charge)
            if charge[2] and (state == "running" or charge[5]):
                self.numbered = getattr(self, "numbered", 0) + 1
                self.charges.append([*charge[:3], "forfeit", charge[4], self.numbered])

    @rule()
    def expire(self):
        """A day later everything that was open is dead, and its caller hears so."""
        self.clock.go(days=1)
        self.day += 1
        # the order of ending decides which forfeit is the newest: by lease
        assert self.store.expire() == len(self.open)
        for name in sorted(self.open, key=lambda n: self.store.reservation(n).lease_until_us):
            running = self.open[name][0] == "running"
            self._end(name)
            if running:
                try:
                    self.manager.settle(name, UNIT, b"zombie")
                except LeaseLost:
                    continue
                raise AssertionError

    @rule(days=st.sampled_from([-3.0, -0.5, 0.5, 1.0]))
    def back_and_forth(self, days):
        """Time that goes back and returns changes nothing."""
        self.clock.go(days=-abs(days))
        self.store.heartbeat()
        self.clock.go(days=abs(days))

    @rule()
    def refresh(self):
        """Opening buckets early changes no balance."""
        self.manager.refresh()

    @invariant()
    def balances_agree(self):
        """Part by part, for every account; nothing is overspent (I1)."""
        for name in PARENTS:
            shown = tuple(self._spent(name, (kind,)) for kind in ("used", "held", "forfeit"))
            assert units(self.store, name) == shown
            assert sum(shown) <= LIMITS[name]

    def teardown(self):
        """The ledger says the same (I5)."""
        self.manager.verify()
        self.store.close()


class TestManager(Manager.TestCase):
    """Whatever is done in whatever order, the manager agrees with the reference."""

    settings = settings(max_examples=60, stateful_step_count=40)


def test_the_reference_counts_in_units():
    """Its costs are those of the suite."""
    assert UNIT.rho * 1000 == 1
    assert Fraction(1, 100) == TOTAL
