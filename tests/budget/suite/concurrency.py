"""Concurrent use of one store."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from discreet.budget.model import AdminAction, InFlight, Replay, Reservation
from discreet.values import Cost
from tests.budget.suite.base import UNIT, Suite, claim, units

if TYPE_CHECKING:
    from discreet.budget.model import Admission


class Concurrency(Suite):
    """Tests with threads."""

    @pytest.mark.parametrize("threads", [8, 32])
    def test_threads_that_race_for_the_last_unit_overspend_nothing(self, threads: int) -> None:
        """I1: exactly as many are admitted as fit, with no spurious refusal, and the shared account adds up."""
        with self.accounts(limit=20) as (store, _):
            barrier = threading.Barrier(threads)

            def ask(n: int) -> int:
                barrier.wait(30)
                return sum(
                    isinstance(store.reserve(claim(f"r{n}-{i}", ("ann", "bob")[n % 2])), Reservation) for i in range(3)
                )

            with ThreadPoolExecutor(threads) as pool:
                admitted = sum(pool.map(ask, range(threads)))
            assert admitted == 12  # 20 // 3 for each of two
            assert [units(store, n)[1] for n in ("ann", "bob", "org")] == [18, 18, 36]

    def test_fifty_requests_with_one_key_are_one_charge(self) -> None:
        """I4: one is admitted, the others wait for it and get its bytes."""
        with self.accounts() as (store, _):
            barrier = threading.Barrier(50)

            def ask(n: int) -> Admission:
                barrier.wait(30)
                return store.reserve(claim(f"r{n}", release="q", key="k", digest=b"d"))

            with ThreadPoolExecutor(50) as pool:
                answers = list(pool.map(ask, range(50)))
            (first,) = [a for a in answers if isinstance(a, Reservation)]
            assert {a.reservation for a in answers if isinstance(a, InFlight)} == {first.id}
            store.start(first.id)
            store.settle(first.id, UNIT, b"once")
            for n in range(3):
                again = store.reserve(claim(f"s{n}", release="q", key="k", digest=b"d"))
                assert isinstance(again, Replay)
                assert (again.release.result, again.charged) == (b"once", Cost())
            assert units(store, "ann") == (1, 0, 0)

    def test_of_changes_of_one_record_at_once_none_is_lost(self) -> None:
        """Each begins with the text that the one before it left, and a change to the same text has no line."""
        with self.accounts() as (store, _):
            barrier = threading.Barrier(8)

            def add(n: int) -> None:
                barrier.wait(30)
                for _ in range(3):
                    action = AdminAction("ann", "a change")
                    store.change_record("names", "ann", lambda text: f"{text or ''}{n}", action)

            with ThreadPoolExecutor(8) as pool:
                list(pool.map(add, range(8)))
            text = store.record("names", "ann") or ""
            assert sorted(text) == sorted("01234567" * 3)
            heads = store.heads()
            store.change_record("names", "ann", lambda text: text, AdminAction("ann", "no change"))
            assert store.heads() == heads

    def test_an_action_sent_many_times_at_once_is_done_once(self) -> None:
        """I4: concurrent retries of one administrative action leave one line and one charge."""
        with self.accounts() as (store, _):
            barrier = threading.Barrier(8)

            def ask(_: int) -> None:
                barrier.wait(30)
                store.charge("ann", UNIT, AdminAction("officer", "once", "c1"))

            with ThreadPoolExecutor(8) as pool:
                list(pool.map(ask, range(8)))
            assert units(store, "ann") == (1, 0, 0)
