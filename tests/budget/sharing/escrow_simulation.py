"""Simulation of data centres with wrong clocks and a lossy network in one thread, checked after each step.

python -m tests.budget.sharing.escrow_simulation SEEDS STEPS     # a longer run; prints the steps per second
"""

from __future__ import annotations

import bisect
import random
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field, replace
from fractions import Fraction

from discreet.budget.model import NOTHING, Account, Amount, Calendar, Forever, Share, Sliding
from discreet.budget.rules import DAY_US, NEVER_US, bucket_end, still_counts
from discreet.budget.sharing import escrow
from discreet.budget.sharing.escrow import Decision, Incoming, Outgoing, Receipt, ShareRequest, Transfer
from discreet.values import DELTA_QUANTUM

HOUR_US = DAY_US // 24
BEGINNING_US = 20_000 * DAY_US + 22 * HOUR_US
PERIODS = (Forever(), Sliding(2), Calendar("day", "Europe/Berlin"))
TOTAL = Amount(10**21 + 7, 10**21 + 11)


@dataclass(slots=True)
class Centre:
    """A data centre: its store's state of one account, and its clock."""

    id: str
    ahead_us: int
    account: Account | None = None
    limit: Amount = NOTHING
    spent: Amount = NOTHING
    open: Amount = NOTHING
    end_us: int = 0
    closed: list = field(default_factory=list)
    seen_us: int = 0
    now_us: int = 0
    outgoing: dict = field(default_factory=dict)
    incoming: dict = field(default_factory=dict)

    def look(self, true_us):
        """Read the clock, and open the next bucket if it is due."""
        self.now_us = self.seen_us = max(self.seen_us, true_us + self.ahead_us)
        if self.end_us <= self.now_us and self.account is not None:
            self.turn(self.end_us)

    def turn(self, closed_at_us):
        """Close the open bucket, as stores do."""
        self.closed.append((closed_at_us, self.open))
        period, self.spent, self.open = self.account.period, NOTHING, NOTHING
        self.closed = [bucket for bucket in self.closed if not isinstance(period, Sliding) or bucket[1]]
        for end_us, amount in self.closed:
            if still_counts(period, end_us, self.now_us):
                self.spent += amount
        self.end_us = bucket_end(period, self.now_us)

    def settings(self, account):
        """Adopt other settings."""
        turns = self.account is not None and account.period != self.account.period
        made = self.account is None
        self.account = account
        if turns:
            self.turn(min(self.end_us, self.now_us + 1))
        if made:
            self.end_us = bucket_end(account.period, self.now_us)


class Simulation:
    """N data centres with one account, made in the first.

    Args:
        seed: of all randomness.
        centres: how many.
        period: of the account, at first.
        alters: what officers change occasionally: "nothing", the "total", or the "period" too.
        namesake: True if the last one has another account of that name, for the first half.
        rules: the module `escrow`, or a defective one.
    """

    def __init__(self, seed, centres=3, period=PERIODS[0], alters="nothing", namesake=False, rules=escrow):
        self.random, self.alters, self.rules = random.Random(seed), alters, rules  # noqa: S311 - no secret
        self.true_us = BEGINNING_US
        self.total = self.most = TOTAL
        self.cut = set()
        self.network = []
        self.charges = []
        self.steps = 0
        self.reached = defaultdict(int)
        self.strict = True
        skew = self.random.choice([0, HOUR_US // 60, 3 * HOUR_US, 30 * HOUR_US])
        self.centres = [Centre(f"c{n}", self.random.randint(-skew, skew)) for n in range(centres)]
        self.by_id = {centre.id: centre for centre in self.centres}
        for centre in self.centres:
            centre.now_us = centre.seen_us = self.true_us + centre.ahead_us
        home = self.centres[0]
        home.limit = TOTAL
        home.settings(replace(_account(period), share=Share(TOTAL.cost, home.id, 1)))
        self.namesake = self.centres[-1] if namesake else None
        if namesake:
            self.namesake.settings(replace(_account(period), share=Share(NOTHING.cost, "elsewhere", 1)))
            self.namesake.limit = TOTAL
        self.actions = [
            (40, self.spend), (12, self.ask), (30, self.deliver), (4, self.tend), (6, self.wait), (2, self.announce),
            (1, self.lose), (2, self.twice), (0.3, self.crash), (0.3, self.cut_off), (0.4, self.heal),
            (0.2, self.clock), (0.2 if alters != "nothing" else 0, self.alter),
        ]  # fmt: skip
        self.weights = []
        for weight, _ in self.actions:
            self.weights.append(weight + (self.weights[-1] if self.weights else 0))

    def run(self, steps):
        """Run so many steps, with a check after each, and check the whole history at the end."""
        draw, weights, actions, most = self.random.random, self.weights, self.actions, self.weights[-1]
        for step in range(steps):
            if step == steps // 2 and self.namesake is not None:
                self.namesake.account, self.namesake.limit, self.namesake.spent = None, NOTHING, NOTHING
                self.namesake = None
            action = actions[bisect.bisect(weights, draw() * most)][1]
            action()
            self.reached[action.__name__] += 1
            self.check()
        self.steps += steps
        self.check_history()
        return self

    # ------------------------------------------------------------------------------------------ what happens

    def spend(self):
        """Charge a query if it fits."""
        centre = self.any()
        if centre.account is None or centre is self.namesake:
            return
        cost = Amount(self.random.randrange(1, TOTAL.rho >> 6), self.random.randrange(1, TOTAL.delta >> 6))
        spent = centre.spent + cost
        if spent.within(centre.limit):
            centre.spent, centre.open = spent, centre.open + cost
            self.charges.append((centre.now_us, centre.end_us, cost.rho, cost.delta))

    def ask(self):
        """Send a request from one data centre to another."""
        centre = self.any()
        if centre.account is None:
            return
        left = centre.limit - centre.spent if centre is not self.namesake else NOTHING
        if escrow.is_short(left, centre.limit, self.total):
            self.post(centre, self.another(centre), ShareRequest("a", left))

    def tend(self):
        """Send pending transfers again."""
        centre = self.any()
        for peer, out in centre.outgoing.items():
            if out.pending is not None and centre.account is not None:
                self.post(centre, self.by_id[peer], self.transfer(centre, peer, out))

    def announce(self):
        """Send the account or its new settings from the home to another store."""
        home, peer = self.centres[0], self.another(self.centres[0])
        home.look(self.true_us)
        out = home.outgoing.get(peer.id, Outgoing())
        if out.pending is None and out.version < home.account.share.version:
            left = home.limit - home.spent
            amount = escrow.first_grant(left, self.total, len(self.centres)) if out.number == 0 else NOTHING
            self.give(home, peer, out, amount)

    def deliver(self):
        """Deliver any of the messages in flight."""
        if not self.network:
            return
        n = self.random.randrange(len(self.network))
        sender, recipient, message = self.network[n]
        if (sender.id, recipient.id) in self.cut:
            return
        self.network[n] = self.network[-1]
        self.network.pop()
        self.arrive(sender, recipient, message)

    def twice(self):
        """Deliver a message that will be delivered again."""
        if self.network:
            sender, recipient, message = self.random.choice(self.network)
            if (sender.id, recipient.id) not in self.cut:
                self.arrive(sender, recipient, message)

    def lose(self):
        """Lose a message."""
        if self.network:
            self.network.pop(self.random.randrange(len(self.network)))

    def crash(self):
        """Lose all messages to and from a data centre that crashes; its store is kept."""
        centre = self.any()
        self.network = [m for m in self.network if m[0] is not centre and m[1] is not centre]

    def cut_off(self):
        """Block messages between two data centres, in one direction or both."""
        one = self.any()
        other = self.another(one)
        self.cut.add((one.id, other.id))
        if self.random.random() < 0.7:
            self.cut.add((other.id, one.id))

    def heal(self):
        """Deliver all messages again."""
        self.cut.clear()

    def wait(self):
        """Advance the time."""
        self.true_us += self.random.choice([HOUR_US // 100, HOUR_US, 5 * HOUR_US])

    def clock(self):
        """Set a clock, forward or back."""
        self.any().ahead_us += self.random.randint(-5 * HOUR_US, 5 * HOUR_US)

    def alter(self):
        """Change the total or the period, at home."""
        home = self.centres[0]
        home.look(self.true_us)
        share = home.account.share
        if self.alters == "total" or self.random.random() < 0.7:
            change = Amount(self.random.randint(-(10**20), 10**20), self.random.randint(-(10**20), 10**20))
            left = (home.limit - home.spent).most(NOTHING)
            total = self.total + change.most(-left)
            wanted = replace(home.account, limit=home.limit.cost, share=replace(share, total=total.cost))
        else:
            wanted = replace(home.account, limit=home.limit.cost, period=self.random.choice(PERIODS))
            self.strict = self.strict and wanted.period == home.account.period
        before = replace(home.account, limit=home.limit.cost)
        after = self.rules.altered(before, wanted, home.spent, home.id)
        self.total = Amount.of(after.share.total)
        self.most = self.most.most(self.total)
        home.settings(replace(after, limit=NOTHING.cost))
        home.limit = Amount.of(after.limit)

    # ------------------------------------------------------------------------------------------ inside

    def any(self):
        """Return a data centre that has read its clock."""
        centre = self.centres[int(self.random.random() * len(self.centres))]
        centre.look(self.true_us)
        return centre

    def another(self, centre):
        """Return another data centre."""
        others = [other for other in self.centres if other is not centre]
        return others[int(self.random.random() * len(others))]

    def post(self, sender, recipient, message):
        """Send a message; the oldest of more than 50 is dropped."""
        self.network.append((sender, recipient, message))
        if len(self.network) > 50:
            self.network.pop(0)

    def transfer(self, centre, peer, out):
        """Return the pending transfer as a message."""
        return Transfer(centre.id, peer, out.number, out.pending, out.sent_us, centre.account)

    def give(self, centre, peer, out, amount):
        """Run the donor's transaction; the message follows, unless the donor crashes."""
        out = self.rules.sent(out, amount, centre.limit - centre.spent, centre.now_us)
        centre.outgoing[peer.id] = out
        centre.limit -= amount
        if self.random.random() < 0.9:
            self.post(centre, peer, self.transfer(centre, peer.id, out))

    def arrive(self, sender, recipient, message):
        """Run the recipient's transaction; its reply follows, unless the recipient crashes."""
        recipient.look(self.true_us)
        if isinstance(message, ShareRequest):
            self.asked(recipient, sender, message)
        elif isinstance(message, Transfer):
            self.received(recipient, sender, message)
        else:
            out, back = self.rules.acknowledged(recipient.outgoing[sender.id], message, recipient.account.share.version)
            recipient.outgoing[sender.id] = out
            recipient.limit += back

    def asked(self, centre, peer, ask):
        """Give half of the difference."""
        out = centre.outgoing.get(peer.id, Outgoing())
        if centre.account is None or centre is self.namesake or out.pending is not None:
            return
        amount = escrow.granted(ask, centre.limit - centre.spent, self.total)
        if amount:
            self.give(centre, peer, out, amount)

    def received(self, centre, peer, transfer):
        """Take a transfer, decline it, or neither."""
        incoming = centre.incoming.get(peer.id, Incoming())
        own, rules = centre.account, self.rules
        decision = rules.decide(transfer, own, incoming, centre.now_us, store=centre.id, parent_is_here=True)
        if decision is Decision.TAKE:
            if own is None or transfer.terms.share.version > own.share.version:
                centre.settings(transfer.terms)
            incoming = centre.incoming[peer.id] = rules.taken(incoming, transfer)
            centre.limit += transfer.amount
        elif decision is Decision.DECLINE:
            incoming = centre.incoming[peer.id] = rules.declined(incoming, transfer)
        self.reached[decision] += 1
        if decision is not Decision.WAIT and self.random.random() < 0.9:
            version = centre.account.share.version if centre.account else 0
            number = max(transfer.number, incoming.number)
            receipt = Receipt("a", peer.id, centre.id, number, incoming.taken, version)
            self.post(centre, peer, receipt)

    def check(self):
        """Check that no budget was made or lost, and no share overspent."""
        rho = delta = spent_rho = spent_delta = 0
        for centre in self.centres:
            limit, spent = centre.limit, centre.spent
            if centre is self.namesake:
                if limit != TOTAL:
                    raise AssertionError("a share went to another account of that name")
                continue
            rho += limit.rho
            delta += limit.delta
            spent_rho += spent.rho
            spent_delta += spent.delta
            if self.strict and not (spent.rho <= limit.rho and spent.delta <= limit.delta):
                raise AssertionError(f"{centre.id} has spent more than its share")
            for peer, out in centre.outgoing.items():
                pending = out.pending
                if pending is not None:
                    into = self.by_id[peer].incoming.get(centre.id)
                    if into is None or into.number < out.number or not into.taken:
                        rho += pending.rho
                        delta += pending.delta
        if rho != self.total.rho or delta != self.total.delta:
            raise AssertionError("the shares are not what the total is")
        if self.strict and (spent_rho > self.total.rho or spent_delta > self.total.delta):
            raise AssertionError("more is spent than the total")

    def check_history(self):
        """Check that any window or period, by the times in the ledgers, holds at most the total."""
        if not self.strict:
            return
        period, most = self.centres[0].account.period, self.most
        if isinstance(period, Sliding):
            self.charges.sort()
            first = rho = delta = 0
            for at_us, _, r, d in self.charges:
                rho, delta = rho + r, delta + d
                while self.charges[first][0] <= at_us - period.days * DAY_US:
                    rho, delta, first = rho - self.charges[first][2], delta - self.charges[first][3], first + 1
                assert rho <= most.rho
                assert delta <= most.delta
            return
        sums = defaultdict(lambda: [0, 0])
        for _, end_us, r, d in self.charges:
            sums[end_us][0] += r
            sums[end_us][1] += d
        for end_us, (rho, delta) in sums.items():
            assert rho <= most.rho
            assert delta <= most.delta
            assert end_us == NEVER_US or not isinstance(period, Forever)


def simulation_of(seed, kind=Simulation, **rest):
    """Return the simulation of a seed; consecutive seeds cover all kinds."""
    alters = ("nothing", "total", "nothing", "period")[seed // 3 % 4]
    return kind(seed, 2 + seed % 4, PERIODS[seed % 3], alters, seed % 5 == 4, **rest)


def _account(period):
    return Account("a", NOTHING.cost, Fraction(1, 2) + DELTA_QUANTUM, None, period)


def main():
    """Run the simulations of many seeds."""
    seeds, steps = int(sys.argv[1]), int(sys.argv[2])
    began = time.perf_counter()
    for seed in range(seeds):
        try:
            simulation_of(seed).run(steps)
        except BaseException:
            sys.stderr.write(f"seed {seed}\n")
            raise
    sys.stdout.write(f"{seeds * steps / (time.perf_counter() - began):,.0f} steps a second\n")


if __name__ == "__main__":
    main()
