"""Existing answers: stored releases, idempotency keys."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from discreet.budget.errors import KeyReused
from discreet.budget.model import InFlight, Refusal, Replay, Reservation
from discreet.values import Cost
from tests.budget.suite.base import ACT, UNIT, Suite, claim, key_of, spend, units


class Answers(Suite):
    """Tests of replays."""

    # ---------------------------------------------------------------------------------------------- stored releases

    def test_the_same_query_is_free_for_the_account_that_paid(self) -> None:
        """I7: a replay has the same bytes and no charge, even with no budget left."""
        with self.accounts(limit=3) as (store, _):
            spend(store, claim("a", release="q"), UNIT * 3, b"\x00bytes\xff")
            assert store.balance("ann").remaining == Cost()
            again = store.reserve(claim("b", release="q"))
            assert isinstance(again, Replay)
            assert (again.release.result, again.charged) == (b"\x00bytes\xff", Cost())
            assert store.entitled("ann", key_of("q"))
            assert not store.entitled("bob", key_of("q"))

    def test_several_releases_are_read_at_once(self) -> None:
        """Those that do not exist are left out, and none comes twice."""
        with self.accounts() as (store, _):
            for name in ("q", "r", "s"):
                spend(store, claim(name, release=name), UNIT, name.encode())
            found = store.releases([key_of("r"), key_of("q"), key_of("none"), key_of("r")])
            assert sorted(found, key=lambda release: release.result) == [
                store.release(key_of("q")),
                store.release(key_of("r")),
            ]
            assert store.releases([]) == []

    def test_another_analyst_pays_for_the_same_bytes_and_shared_accounts_pay_once(self) -> None:
        """I7: the account pays its cost in full; organisation and dataset have paid already."""
        with self.accounts() as (store, _):
            spend(store, claim("a", release="q"), UNIT * 2, b"bytes")
            shared = store.reserve(claim("b", "bob", "q"))
            assert isinstance(shared, Replay)
            assert (shared.release.result, shared.charged) == (b"bytes", UNIT * 2)
            assert [units(store, n)[0] for n in ("ann", "bob", "org", "data")] == [2] * 4
            assert spend(store, claim("c", "bob", "q")) == Cost()

    def test_an_account_that_has_paid_needs_no_room(self) -> None:
        """I7: the organisation is full, but paid for this answer; a repeated claim gets the settled answer again."""
        with self.accounts(limit=3) as (store, _):
            store.alter(dataclasses.replace(store.account("org"), limit=UNIT * 3), ACT)
            spend(store, claim("a", release="q"), UNIT * 3, b"bytes")
            repeated = store.reserve(claim("a", release="q"))
            assert isinstance(repeated, Replay)
            assert (repeated.release.result, repeated.charged) == (b"bytes", Cost())
            assert isinstance(store.reserve(claim("b", "bob", "other")), Refusal)
            shared = store.reserve(claim("c", "bob", "q"))
            assert isinstance(shared, Replay)
            assert (shared.release.result, shared.charged) == (b"bytes", UNIT * 3)
            assert units(store, "org") == (3, 0, 0)

    def test_a_refusal_does_not_depend_on_an_unpaid_release(self) -> None:
        """I9: the worst case must fit, whether the release is stored or not."""
        with self.accounts() as (store, _):
            spend(store, claim("a", release="q"))
            store.alter(dataclasses.replace(store.path("bob")[0], limit=UNIT * 2), ACT)
            answers = [store.reserve(claim(name, "bob", name)) for name in ("q", "r")]
            assert answers[0] == answers[1]
            assert isinstance(answers[0], Refusal)

    def test_two_concurrent_first_requests_get_the_answer_settled_first(self) -> None:
        """I7: first writer wins; each analyst pays once, the shared accounts once together."""
        with self.accounts() as (store, _):
            for name, who in (("a", "ann"), ("b", "bob")):
                store.reserve(claim(name, who, "q"))
                store.start(name)
            assert units(store, "org") == (0, 6, 0)
            first = store.settle("a", UNIT, b"first")
            second = store.settle("b", UNIT * 3, b"second")
            assert {s.release.result for s in (first, second)} == {b"first"}
            assert [s.charged for s in (first, second)] == [UNIT, UNIT]
            assert [units(store, n) for n in ("ann", "bob", "org", "data")] == [(1, 0, 0)] * 4

    # ---------------------------------------------------------------------------------------------- idempotency

    def test_an_idempotency_key_is_one_charge_and_one_answer(self) -> None:
        """I4: in flight, then replayed; another query with the key is a conflict; keys belong to one account."""
        with self.accounts() as (store, _):
            keyed: dict[str, Any] = {"key": "k", "digest": b"d"}
            assert isinstance(store.reserve(claim("a", release="q", **keyed)), Reservation)
            waiting = store.reserve(claim("b", release="q", **keyed))
            assert isinstance(waiting, InFlight)
            assert waiting.reservation == "a"
            assert units(store, "ann") == (0, 3, 0)
            with pytest.raises(KeyReused):
                store.reserve(claim("c", release="r", key="k", digest=b"e"))
            store.start("a")
            store.settle("a", UNIT, b"x")
            assert isinstance(store.reserve(claim("d", release="q", **keyed)), Replay)
            with pytest.raises(KeyReused):
                store.reserve(claim("e", release="r", key="k", digest=b"e"))
            assert isinstance(store.reserve(claim("f", "bob", "r", key="k", digest=b"e")), Reservation)
            assert units(store, "ann") == (1, 0, 0)

    def test_the_same_request_at_once_is_in_flight_without_a_key_too(self) -> None:
        """I4: across processes it is held and charged once, and what it forfeits pays for the retry."""
        with self.accounts() as (store, _):
            store.reserve(claim("a", release="q", key="k"))
            for key in (None, "other"):
                waiting = store.reserve(claim(f"b{key}", release="q", key=key))
                assert isinstance(waiting, InFlight)
                assert waiting.reservation == "a"
            assert isinstance(store.reserve(claim("c", "bob", "q")), Reservation)
            store.start("a")
            store.lose("a")
            assert isinstance(store.reserve(claim("d", release="q")), Reservation)
            assert units(store, "ann") == (0, 3, 0)

    def test_a_key_is_remembered_by_a_free_replay(self) -> None:
        """I4: a free replay uses the key, so that another query with it is a conflict."""
        with self.accounts() as (store, _):
            spend(store, claim("a", release="q"))
            assert isinstance(store.reserve(claim("b", release="q", key="k", digest=b"d")), Replay)
            with pytest.raises(KeyReused):
                store.reserve(claim("c", release="r", key="k", digest=b"e"))

    def test_a_key_whose_reservation_ended_unsettled_is_used_again(self) -> None:
        """I4: a void frees it, a failure is retried with it, a refusal does not use it."""
        with self.accounts(limit=3) as (store, _):
            keyed: dict[str, Any] = {"key": "k", "digest": b"d", "release": "q"}
            assert isinstance(store.reserve(claim("z", worst=UNIT * 4, key="k", digest=b"d")), Refusal)
            store.reserve(claim("a", **keyed))
            store.void("a")
            assert isinstance(store.reserve(claim("b", **keyed)), Reservation)
            store.start("b")
            store.forfeit("b")
            assert isinstance(store.reserve(claim("c", **keyed)), Reservation)
            assert units(store, "ann") == (0, 3, 0)

    def test_a_retry_with_its_key_gets_its_answer_though_the_data_version_changed(self) -> None:
        """I4: a retry gets its answer although the data has a new version; without the key it is a new query."""
        with self.accounts() as (store, _):
            keyed: dict[str, Any] = {"key": "k", "digest": b"d"}
            spend(store, claim("a", release="yesterday", **keyed))
            again = store.reserve(claim("b", release="today", **keyed))
            assert isinstance(again, Replay)
            assert again.release == store.release(claim("a", release="yesterday").release_key)
            assert (again.charged, units(store, "ann")) == (Cost(), (1, 0, 0))
            assert isinstance(store.reserve(claim("c", release="today")), Reservation)

    def test_a_key_whose_run_failed_runs_the_query_of_the_current_version(self) -> None:
        """There was no answer to replay, so the key runs the query of the current data version."""
        with self.accounts() as (store, _):
            keyed: dict[str, Any] = {"key": "k", "digest": b"d"}
            store.reserve(claim("a", release="yesterday", **keyed))
            store.start("a")
            store.forfeit("a")
            assert isinstance(store.reserve(claim("b", release="today", **keyed)), Reservation)
