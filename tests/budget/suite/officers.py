"""Administrative actions of officers, and the ledger of all changes."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import TYPE_CHECKING

import pytest

from discreet.budget.errors import AccountChanged, UnknownAccount
from discreet.budget.ledger import canonical, entry_of
from discreet.budget.model import AdminAction, Calendar, Forever, Refusal, Replay, Reservation, Sliding
from discreet.errors import DiscreetError, InputError
from discreet.values import RHO_QUANTUM, Cost
from tests.budget.suite.base import ACT, UNIT, Suite, account, claim, spend, units

if TYPE_CHECKING:
    from collections.abc import Callable

    from discreet.budget.model import Period


class Officers(Suite):
    """Tests of administrative actions and of the ledger."""

    # ---------------------------------------------------------------------------------------------- officers

    def test_a_concurrent_change_of_an_account_is_not_overwritten(self) -> None:
        """An update based on an outdated account is refused."""
        with self.accounts() as (store, _):
            before = store.path("ann")[0]
            store.alter(dataclasses.replace(before, limit=UNIT), ACT, before)
            with pytest.raises(AccountChanged):
                store.alter(dataclasses.replace(before, mode="observe"), ACT, before)
            assert store.path("ann")[0] == dataclasses.replace(before, limit=UNIT)
            store.verify()

    def test_the_ledger_says_who_did_what_and_why(self) -> None:
        """The name is for readers only; the id of an action is stored with a hash of who did what."""
        with self.accounts() as (store, _):
            store.lift("ann", AdminAction("key:1", "because", "once", "Olga"))
            store.lift("ann", AdminAction("key:1", "because", "once", "renamed"))
            store.lift("ann", AdminAction("key:1", "again"))
            lines = [entry_of(line) for head in store.heads() for line in store.lines(head.chain)]
            what = {"actor": "key:1", "reason": "because", "what": ["lift", "ann"]}
            digest = hashlib.sha256(canonical(what).encode()).hexdigest()
            lift = {"actor": "key:1", "account": "ann"}
            assert [json.loads(entry.detail) for entry in lines if entry.kind == "lift"] == [
                lift | {"reason": "because", "name": "Olga", "action": {"id": "once", "sha256": digest}},
                lift | {"reason": "again"},
            ]

    def test_a_limit_may_be_lowered_below_what_is_used(self) -> None:
        """Nothing is left then, holds are kept, and queries that cost nothing more are still answered."""
        with self.accounts() as (store, _):
            spend(store, claim("a", release="q"), UNIT * 3)
            store.reserve(claim("b"))
            store.alter(dataclasses.replace(store.path("ann")[0], limit=UNIT), ACT)
            assert store.balance("ann").remaining == Cost()
            assert isinstance(store.reserve(claim("c", worst=Cost(RHO_QUANTUM))), Refusal)
            assert isinstance(store.reserve(claim("d", release="q")), Replay)
            store.start("b")
            store.settle("b", UNIT * 3, b"x")
            assert units(store, "ann") == (6, 0, 0)

    def test_an_observed_account_charges_and_never_refuses(self) -> None:
        """In the phased launch, charges are the same and nothing is refused."""
        with self.accounts(limit=3) as (store, _):
            store.alter(dataclasses.replace(store.path("ann")[0], mode="observe"), ACT)
            for n in range(2):
                spend(store, claim(f"a{n}"), UNIT * 3)
            assert units(store, "ann") == (6, 0, 0)
            assert isinstance(store.reserve(claim("b", worst=UNIT)), Refusal)  # the organisation enforces

    @pytest.mark.parametrize(
        ("before", "after"),
        [(Sliding(3), Sliding(30)), (Calendar("day"), Sliding(30)), (Forever(), Sliding(2)), (Sliding(1), Forever())],
    )
    def test_another_period_forgets_no_charge_that_it_counts(self, before: Period, after: Period) -> None:
        """I6: charges of buckets outside the old period count again in a longer one."""
        with self.accounts(before, limit=3) as (store, clock):
            spend(store, claim("a"), UNIT * 3)
            for _ in range(4):
                clock.advance(days=1)
                store.refresh()
            short = isinstance(after, Sliding) and after.days == 2
            if before != Forever():
                assert store.balance("ann").remaining == UNIT * 3
            for name in ("ann", "org", "data"):
                store.alter(dataclasses.replace(store.path(name)[0], period=after), ACT)
            assert isinstance(store.reserve(claim("b", worst=UNIT)), Refusal)
            for _ in range(4 if short else 0):
                clock.advance(days=1)
                store.refresh()
            assert isinstance(store.reserve(claim("c", worst=UNIT)), Reservation if short else Refusal)

    def test_refunds_are_capped_and_charges_by_hand_are_not(self) -> None:
        """Refunds are at most a tenth of the limit in all, and what is used; a charge may exceed the limit."""
        with self.accounts() as (store, _):
            with pytest.raises(InputError):
                store.refund("ann", UNIT, ACT)
            spend(store, claim("a"), UNIT * 3)
            store.refund("ann", UNIT, ACT)
            with pytest.raises(InputError):
                store.refund("ann", Cost(RHO_QUANTUM), ACT)
            assert units(store, "ann") == (2, 0, 0)
            store.charge("ann", UNIT * 20, ACT)
            assert units(store, "ann") == (22, 0, 0)
            assert isinstance(store.reserve(claim("b")), Refusal)

    def test_refunds_count_as_long_as_the_charges_of_their_bucket(self) -> None:
        """A tenth of the limit is refunded in all buckets that count, not in each."""
        with self.accounts(Sliding(3), limit=10) as (store, clock):
            spend(store, claim("a"), UNIT * 2)
            store.refund("ann", UNIT, ACT)
            for day in range(1, 4):
                clock.advance(days=1)
                store.heartbeat()
                spend(store, claim(f"b{day}"), UNIT)
                with pytest.raises(InputError, match="refunds cannot be more than 1/10 of the limit in a period"):
                    store.refund("ann", UNIT, ACT)
            clock.advance(days=1)
            store.heartbeat()
            store.refund("ann", UNIT, ACT)
            assert units(store, "ann") == (2, 0, 0)

    def test_a_refund_makes_room_no_longer_than_the_charge_took_it(self) -> None:
        """It is taken from the oldest bucket, so that newer charges count to the end of their time."""
        with self.accounts(Sliding(3), limit=10) as (store, clock):
            spend(store, claim("a"), UNIT)
            clock.advance(days=1)
            spend(store, claim("b"), UNIT)
            store.refund("ann", UNIT, ACT)
            for _ in range(4):
                assert units(store, "ann") == (1, 0, 0)
                clock.advance(days=1)
                store.heartbeat()
            assert units(store, "ann") == (0, 0, 0)

    def test_accounts_are_checked_when_they_are_made(self) -> None:
        """Names are unique and valid; parents and time zones must exist."""
        with self.accounts() as (store, _):
            for wrong in (
                account("ann"),
                account("eve", parent="none"),
                account("eve", period=Calendar("day", "Mars/X")),
            ):
                with pytest.raises(InputError):
                    store.create(wrong, ACT)
            with pytest.raises(InputError):
                store.alter(dataclasses.replace(store.path("ann")[0], parent=None), ACT)
            for ask in (store.path, store.balance, lambda name: store.charge(name, UNIT, ACT)):
                with pytest.raises(UnknownAccount):
                    ask("nobody")
            with pytest.raises(UnknownAccount):
                store.reserve(claim("a", "nobody"))
            assert [one.id for one in store.accounts()] == ["ann", "bob", "data", "org"]

    # ---------------------------------------------------------------------------------------------- the ledger

    def test_every_change_is_a_line_and_the_lines_give_the_balances(self) -> None:
        """I5: the ledger alone gives every balance, and can be read from any line."""
        with self.accounts() as (store, _):
            spend(store, claim("a"))
            store.reserve(claim("b"))
            store.void("b")
            store.reserve(claim("c", worst=UNIT * 50))
            store.note(ACT, {"what": "a key was made"})
            heads = store.heads()
            lines = [line for head in heads for line in store.lines(head.chain)]
            kinds = [line.body.split("\t")[3] for line in lines]
            expected = ["create"] * 4 + ["reserve", "start", "settle", "reserve", "void", "refuse", "note"]
            assert sorted(kinds) == sorted(expected)
            verified = store.verify()
            assert (verified.heads, verified.lines) == (heads, len(lines))
            for name in ("ann", "bob", "org", "data"):
                assert verified.counting_tally(name).used.cost == store.balance(name).used
            for head in heads:
                whole = [line for line in lines if line.chain == head.chain]
                tail = list(store.lines(head.chain, 1, 2))
                assert tail == whole[1:3]

    def test_an_operation_that_raises_leaves_no_line(self) -> None:
        """An operation that raises has changed nothing."""
        with self.accounts() as (store, _):
            store.reserve(claim("a", key="k", digest=b"d"))
            before = store.heads()
            asks: list[Callable[[], object]] = [
                lambda: store.reserve(claim("b", key="k", digest=b"e")),
                lambda: store.settle("a", UNIT, b""),
                lambda: store.refund("ann", UNIT, ACT),
                lambda: store.start("zz"),
                lambda: store.create(account("ann"), ACT),
            ]
            for ask in asks:
                with pytest.raises(DiscreetError):
                    ask()
            assert store.heads() == before
