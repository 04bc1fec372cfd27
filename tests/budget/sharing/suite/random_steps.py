"""Random steps of stores that share budgets, and concurrent ones."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from discreet.budget.model import NOTHING, Amount, Calendar, Forever, Reservation, Sliding
from discreet.budget.sharing.escrow import Receipt, ShareRequest
from tests.budget.sharing.suite.base import (
    ONE,
    PLENTY,
    ShareSuite,
    announce,
    asks,
    carry,
    check_whole,
)
from tests.budget.suite.base import ACT, TOTAL, UNIT, claim, units

if TYPE_CHECKING:
    from discreet.budget.model import Period
    from discreet.budget.sharing.escrow import Transfer
    from discreet.budget.stores.store import BudgetStore
    from tests.budget.suite.base import FakeClock


class _Walk:
    """Random steps."""

    def __init__(self, stores: list[BudgetStore], clocks: list[FakeClock], chance: random.Random) -> None:
        self.stores, self.clocks, self.chance = stores, clocks, chance
        self.wire: list[tuple[BudgetStore, BudgetStore, Transfer | Receipt]] = []

    def go(self, step: int) -> None:
        """Run one step."""
        one, other = self.chance.sample(self.stores, 2)
        doing = self.chance.choice("ssgggddddrwt")
        if doing == "s":
            self.spend(one, f"r{step}")
        elif doing == "g":
            need = Amount(ONE.rho * 2, ONE.delta * 2)
            transfer = one.shares.grant(other.id, asks(other, need=need), NOTHING)
            self.post(one, other, transfer)
        elif doing == "d" and self.wire:
            self.deliver(*self.wire.pop(self.chance.randrange(len(self.wire))))
        elif doing == "r":
            for transfer in one.shares.pending(other.id, PLENTY):
                self.post(one, other, transfer)
        elif doing == "w":
            self.chance.choice(self.clocks).advance(days=self.chance.random() / 2)
        elif doing == "t":
            ann = self.stores[0].path("ann")[0]
            self.stores[0].alter(ann.with_limit(ann.total_limit + UNIT, TOTAL), ACT)
            announce(*self.stores)

    def spend(self, store: BudgetStore, name: str) -> None:
        """Charge a query, or leave it running."""
        admitted = store.reserve(claim(name, worst=UNIT * self.chance.randint(1, 3)))
        if isinstance(admitted, Reservation) and self.chance.random() < 0.8:
            store.start(name)
            store.settle(name, UNIT, b"x")

    def post(self, sender: BudgetStore, recipient: BudgetStore, message: Transfer | Receipt | None) -> None:
        """Send a message once, twice or not at all."""
        if message is not None:
            self.wire += [(sender, recipient, message)] * self.chance.randint(0, 2)

    def deliver(self, sender: BudgetStore, recipient: BudgetStore, message: Transfer | Receipt) -> None:
        """Deliver a message."""
        if isinstance(message, Receipt):
            recipient.shares.acknowledge(message)
        else:
            self.post(recipient, sender, recipient.shares.receive(message))


class RandomSteps(ShareSuite):
    """I1, I8: in any order, and with concurrent threads."""

    @pytest.mark.parametrize("period", [Forever(), Sliding(2), Calendar("day")])
    def test_shares_add_up_after_any_sequence_of_steps(self, period: Period) -> None:
        """I8: queries, gifts, lost, duplicate or late messages, and officers; checked after every step."""
        with self.centres(3, period) as (stores, clocks):
            announce(*stores)
            walk = _Walk(stores, clocks, random.Random(str(period)))  # noqa: S311 - no secret
            for step in range(120):
                walk.go(step)
                check_whole({store.id: store.shares.holdings() for store in stores})
                for store in stores:
                    for each in store.shares.holdings():
                        assert each.spent.within(each.limit)

    def test_concurrent_grants_and_queries_spend_nothing_twice(self) -> None:
        """I1, I8: concurrent threads spend in both data centres while shares move."""
        with self.centres() as (stores, _):
            announce(*stores)
            together = threading.Barrier(6)

            def ask(n: int) -> int:
                together.wait(30)
                store = stores[n % 2]
                return sum(isinstance(store.reserve(claim(f"r{n}-{i}", worst=UNIT)), Reservation) for i in range(6))

            def move(n: int) -> int:
                together.wait(30)
                one, other = stores[n], stores[1 - n]
                for _ in range(6):
                    one.shares.grant(other.id, ShareRequest("ann", NOTHING, Amount(ONE.rho, ONE.delta)), NOTHING)
                    carry(one, other)
                return 0

            with ThreadPoolExecutor(6) as pool:
                working = [pool.submit(ask, n) for n in range(4)] + [pool.submit(move, n) for n in range(2)]
                admitted = sum(each.result(60) for each in working)
            held = sum(int(units(store, "ann")[1]) for store in stores)
            assert held == admitted <= 12
