"""Pruning of the ledger: verification and state afterwards."""

from __future__ import annotations

import pytest

from discreet.budget.errors import LedgerBroken
from discreet.budget.manager import BudgetManager
from discreet.budget.model import AdminAction, Replay, Sliding
from discreet.errors import InputError
from tests.budget.suite.base import ACT, UNIT, Suite, account, claim, spend, units

PUT = ("key", "k", "a text", AdminAction("suite", "a record", "put-1"))


class Pruning(Suite):
    """Old lines can be archived and removed."""

    def test_balances_and_everything_paid_for_survive_pruning(self) -> None:
        """I5: a pruned ledger gives every balance; with its archives it is verified from its first line."""
        with self.accounts(Sliding(30), 20) as (store, clock):
            manager, archives = BudgetManager(store, iter("ab").__next__), []
            store.put_record(*PUT)
            spend(store, claim("a", release="one"))
            store.reserve(claim("f", release="two"))
            store.start("f")
            store.forfeit("f")
            store.reserve(claim("long", release="three", lease_ms=86_400_000))
            store.start("long")
            for days in (3, 40):
                clock.advance(days=days)
                store.confirm_clock(ACT)
                store.refresh()
                before = {line for head in store.heads() for line in store.lines(head.chain)}
                balances = [store.balance(name).used for name in ("ann", "bob", "org", "data")]
                archives.append([])
                assert manager.prune(clock() - 2 * 86_400_000_000, ACT, archives[-1].extend) == len(archives[-1]) > 0
                after = {line for head in store.heads() for line in store.lines(head.chain)}
                assert before == (before & after) | set(archives[-1])
                assert not after & set(archives[-1])
                assert [store.balance(name).used for name in ("ann", "bob", "org", "data")] == balances
                store.verify()
                replayed = store.reserve(claim(f"again-{days}", release="one"))
                assert isinstance(replayed, Replay)
                assert not replayed.charged.rho
            store.lose("long")
            assert spend(store, claim("b", "bob", "one")) == UNIT
            store.put_record(*PUT)
            assert store.records_version() == 1
            store.create(account("eve", 5, "org"), ACT)
            assert spend(store, claim("e", "eve", "four")) == UNIT
            lines = sum(head.seq for head in store.heads())
            assert store.verify().lines == lines - sum(map(len, archives))
            assert store.verify(archives).lines == lines
            for wrong in (archives[:1], archives[1:], [archives[0][1:], archives[1]]):
                with pytest.raises(LedgerBroken):
                    store.verify(wrong)

    def test_a_forfeit_pays_for_its_retry_after_pruning(self) -> None:
        """I3: the base keeps the forfeited amount, which pays once."""
        with self.accounts(limit=20) as (store, clock):
            store.reserve(claim("f", release="two"))
            store.start("f")
            store.forfeit("f")
            clock.advance(days=2)
            assert BudgetManager(store, str).prune(clock() - 86_400_000_000, ACT, list) > 0
            assert units(store, "ann") == (0, 0, 3)
            assert spend(store, claim("g", release="two")) == UNIT
            assert units(store, "ann") == (1, 0, 0)

    def test_old_idempotency_keys_and_ended_reservations_are_removed_with_the_lines(self) -> None:
        """Rows of keyed replays are removed, too; recent ones stay, so that a request can be retried."""
        with self.accounts() as (store, clock):
            spend(store, claim("a", release="q"))
            store.reserve(claim("b", release="q", key="old", digest=b"1"))
            clock.advance(days=2)
            store.reserve(claim("c", release="q", key="young", digest=b"1"))
            BudgetManager(store, str).prune(clock() - 86_400_000_000, ACT, list)
            assert store.reservation("a") is None
            assert isinstance(store.reserve(claim("d", release="q", key="old", digest=b"2")), Replay)
            with pytest.raises(InputError):
                store.reserve(claim("e", release="q", key="young", digest=b"2"))

    def test_lines_of_the_last_day_are_not_pruned(self) -> None:
        """Nothing of the last day is removed, and a cut that is not the next one is refused."""
        with self.accounts() as (store, clock):
            archived, heads = [], store.heads()
            with pytest.raises(InputError, match="24 hours"):
                BudgetManager(store, str).prune(clock(), ACT, archived.extend)
            assert not archived
            assert store.heads() == heads
            clock.advance(days=2)
            store.note(ACT, {})
            first, second = (store.cut(clock() - 86_400_000_000, store.heads(), list) for _ in "ab")
            store.prune(first, ACT)
            with pytest.raises(InputError, match="same time"):
                store.prune(second, ACT)
