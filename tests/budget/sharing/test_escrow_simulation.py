"""I8 with crashes, partitions, wrong clocks and late, duplicate or lost messages; and planted defects."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from discreet.budget.model import NOTHING, Amount
from discreet.budget.sharing import escrow
from discreet.budget.sharing.escrow import Decision, Incoming, Outgoing
from discreet.errors import DiscreetError
from tests.budget.sharing.escrow_simulation import TOTAL, Simulation, simulation_of

SEEDS = 96
STEPS = 4_000


@pytest.mark.parametrize("first", range(0, SEEDS, 24))
def test_shares_add_up_after_every_step(first):
    """I8: no budget is created or lost; no store exceeds its share, no window or period the total."""
    for seed in range(first, first + 24):
        simulation_of(seed).run(STEPS)


def test_the_simulation_reaches_every_event():
    """The test above depends on it."""
    simulations = [simulation_of(seed).run(STEPS) for seed in range(24)]
    reached = {each for simulation in simulations for each in simulation.reached}
    assert reached >= {*Decision, *(action.__name__ for _, action in simulations[0].actions)}
    assert sum(len(simulation.charges) for simulation in simulations) > 15_000
    assert sum(simulation.strict for simulation in simulations) > 12


def _rules(**defects):
    return SimpleNamespace(**{**vars(escrow), **defects})


def _takes_twice(transfer, own, incoming, now_us, **rest):
    decision = escrow.decide(transfer, own, incoming, now_us, **rest)
    return Decision.TAKE if decision is Decision.KNOWN else decision


def _takes_before_its_time(transfer, own, incoming, now_us, **rest):
    return escrow.decide(transfer, own, incoming, max(now_us, transfer.sent_us), **rest)


def _takes_whatever_comes(transfer, own, incoming, now_us, **rest):
    decision = escrow.decide(transfer, own, incoming, now_us, **rest)
    return Decision.TAKE if decision is Decision.DECLINE else decision


def _forgets_at_once(outgoing, amount, left, now_us):
    return replace(escrow.sent(outgoing, amount, left, now_us), pending=None)


def _returns_what_was_taken(outgoing, receipt, version):
    return escrow.acknowledged(outgoing, replace(receipt, taken=False), version)


def _keeps_what_was_declined(outgoing, receipt, version):
    return escrow.acknowledged(outgoing, replace(receipt, taken=True), version)


def _acknowledges_old_receipts(outgoing, receipt, version):
    return escrow.acknowledged(outgoing, replace(receipt, number=outgoing.number), version)


def _forgets_what_it_declined(incoming, _):
    return Incoming(incoming.number, False, incoming.received)


def _keeps_what_it_gives(outgoing, amount, left, now_us):
    return escrow.sent(outgoing, NOTHING, left, now_us) if amount else escrow.sent(outgoing, amount, left, now_us)


class _GivesItsShare(Simulation):
    """Defect: the donor divides its limit, not what is left of it."""

    def asked(self, centre, peer, _):
        """Give half of the limit."""
        out = centre.outgoing.get(peer.id, Outgoing())
        if centre.account is not None and out.pending is None:
            self.give(centre, peer, out, Amount(centre.limit.rho // 2, centre.limit.delta // 2))


class _TakesBackWhatIsLate(Simulation):
    """Defect: a transfer that is not acknowledged for a while is treated as lost."""

    def tend(self):
        """Take a pending transfer back."""
        centre = self.any()
        for peer, out in centre.outgoing.items():
            if out.pending is not None:
                centre.limit += out.pending
                centre.outgoing[peer] = replace(out, pending=None)


class _NumbersAnew(Simulation):
    """Defect: each retry of a transfer has a new number."""

    def tend(self):
        """Send a pending transfer with a new number."""
        centre = self.any()
        for peer, out in centre.outgoing.items():
            if out.pending is not None:
                again = centre.outgoing[peer] = replace(out, number=out.number + 1)
                self.post(centre, self.by_id[peer], self.transfer(centre, peer, again))


class _LowersWithoutLooking(Simulation):
    """Defect: an officer lowers the total below what is spent at home."""

    def alter(self):
        """Lower the total by a tenth, whatever is left."""
        home = self.centres[0]
        least = home.limit.least(Amount(TOTAL.rho // 10, TOTAL.delta // 10))
        self.total -= least
        home.limit -= least


_DEFECTS = {
    "takes twice": {"decide": _takes_twice},
    "takes before its time": {"decide": _takes_before_its_time},
    "takes whatever comes": {"decide": _takes_whatever_comes},
    "forgets at once": {"sent": _forgets_at_once},
    "returns what was taken": {"acknowledged": _returns_what_was_taken},
    "keeps what was declined": {"acknowledged": _keeps_what_was_declined},
    "acknowledges old receipts": {"acknowledged": _acknowledges_old_receipts},
    "forgets what it declined": {"declined": _forgets_what_it_declined},
    "keeps what it gives": {"sent": _keeps_what_it_gives},
}


def _fails(**rest):
    """Return True if a simulation detects the defect."""
    for seed in range(SEEDS):
        try:
            simulation_of(seed, **rest).run(STEPS)
        except (AssertionError, DiscreetError, ValueError):
            return True
    return False


@pytest.mark.parametrize("name", _DEFECTS)
def test_a_defective_rule_is_detected(name):
    """Each planted defect creates or loses budget in some simulation."""
    assert _fails(rules=_rules(**_DEFECTS[name]))


@pytest.mark.parametrize("kind", [_GivesItsShare, _TakesBackWhatIsLate, _NumbersAnew, _LowersWithoutLooking])
def test_a_defective_store_is_detected(kind):
    """Each planted defect of a store creates or loses budget in some simulation."""
    assert _fails(kind=kind)
