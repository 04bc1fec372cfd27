"""Cached answers: the same bytes as from the store, and only while they are valid."""

from __future__ import annotations

import dataclasses

import pytest

from discreet.catalog.model import Catalog
from discreet.query.planning import PlannedQuery
from discreet.query.query import DatasetQuery
from discreet.query.sql import parse_select
from discreet.service.answering.queries import ReplayCache, known_version
from tests.service.deployment import NOON, TOP, Clock

CATALOG = Catalog.model_validate(
    {
        "datasets": {
            name: {
                "source": "x.parquet",
                "user": "reader",
                "data_version": version,
                "columns": {"article": {"type": "text", "group": True}},
            }
            for name, version in {
                "fixed": "1",
                "hourly": {"schedule": "hourly", "at": ":30", "zone": "UTC"},
                "asked": {"query": "SELECT 1"},
                "none": None,
            }.items()
        }
    }
)


def query_of(dataset):
    """Return a query of a dataset of the catalog."""
    return DatasetQuery.of(
        parse_select(f'SELECT article, COUNT(DISTINCT reader) FROM "{dataset}" GROUP BY article'), CATALOG
    )


PLANNED = PlannedQuery(None, query_of("fixed"), "fixed", "1", b"name")


def cache_answer(cache, account="ann", body=b"{}", answer=b"answer", catalog=CATALOG, planned=PLANNED):
    """Cache an answer."""
    cache.keep(account, body, catalog, planned, "json", answer)


def cached(cache, account="ann", body=b"{}", catalog=CATALOG, form="json"):
    """Return the bytes of a cached answer, or None."""
    found = cache.answer(account, body, catalog, form)
    return None if found is None else found[1]


def served(service):
    """Return the sources of the sent answers."""
    return [event.get("release") is not None for event in service.events("requested")]


def test_a_cached_answer_equals_the_answer_of_the_store(service):
    """Bytes and headers are equal; neither the engine nor the store is used, except for the balance."""
    service.ask()
    before = service.ask(TOP + " ")
    service.store.close()
    after = service.ask()
    assert after.content == before.content
    plain = lambda answer: {name: value for name, value in answer.headers.items() if name != "x-request-id"}  # noqa: E731
    assert plain(after) == plain(before)
    assert after.headers["x-request-id"] != before.headers["x-request-id"]
    assert served(service) == [False, False, True]


def test_the_balance_of_a_replay_is_at_most_a_second_old(service):
    """After that it is read again, and the answer is still cached."""
    service.ask()
    assert '"rho";r=1466' in service.ask().headers["ratelimit"]
    service.manager.store.charge("ann@sales", dataclasses.replace(service.balance().remaining, delta=0), _act())
    assert '"rho";r=1466' in service.ask().headers["ratelimit"]
    service.monotonic.now += 1.1
    assert '"rho";r=0' in service.ask().headers["ratelimit"]
    assert served(service) == [False, True, True, True]


def _act():
    from tests.service.deployment import ACT

    return ACT


@pytest.mark.parametrize("change", ["body", "accept", "account", "grants", "revoked key"])
def test_a_cached_answer_is_used_for_equal_requests_only(service, change):
    """With another of these values, another answer or none is returned from the cache."""
    service.ask()
    assert served(service) == [False]
    match change:
        case "body":
            service.ask(TOP + " ")
        case "accept":
            service.ask(headers={"Accept": "text/csv"})
        case "account":
            service.ask(who="bob")
        case "grants":
            service.grant("sales", "secret")
            service.clock.pass_(seconds=2)
            service.ask()
        case "revoked key":
            service.manager.store.put_record("key", service.keys["ann"].split("_")[1], None, _act())
            service.clock.pass_(seconds=2)
            assert service.ask().status_code == 401
    assert served(service) == [False, False]


def test_each_account_has_its_own_cached_answers(service):
    """The answer of one account is neither lost nor given to another with an equal request."""
    for who in ("ann", "bob", "ann", "bob"):
        assert service.ask(who=who).status_code == 200
    assert served(service) == [False, False, True, True]
    assert service.balance("bob@sales").spent == service.balance("ann@sales").spent


def test_a_request_with_an_idempotency_key_is_answered_by_the_store(service):
    """I4: only the store knows the use of a key, also where the answer was free."""
    other = TOP.replace("5", "4")
    for question in (TOP, other):
        assert service.ask(question).status_code == 200
    key = {"Idempotency-Key": "k"}
    assert service.ask(headers=key).status_code == 200
    for _ in range(2):
        assert service.ask(other, headers=key).json()["type"] == "/problems/key-reused"
    assert service.ask(headers=key).status_code == 200
    assert service.ask(other, "bob", headers=key).status_code == 200
    assert not any(served(service))


@pytest.mark.parametrize("key", ["a b", "x" * 201])
def test_a_malformed_idempotency_key_is_refused_where_the_answer_is_cached(service, key):
    """Keys are checked in one place for all answers."""
    assert service.ask().status_code == 200
    refused = service.ask(headers={"Idempotency-Key": key})
    assert (refused.status_code, refused.json()["type"]) == (422, "/problems/out-of-range")


def test_a_refused_query_does_not_use_its_key(service):
    """A corrected query may reuse the idempotency key of the wrong one."""
    key = {"Idempotency-Key": "k"}
    assert service.ask("SELECT", headers=key).status_code == 400
    assert service.ask(epsilon=9, headers=key).status_code == 422
    assert service.ask(headers=key).status_code == 200


def test_an_answer_of_another_version_is_dropped():
    """The version is that of the clock, and compared when the minute changes."""
    clock = Clock()
    cache = ReplayCache(clock, dict)
    cache_answer(
        cache,
        planned=dataclasses.replace(PLANNED, question=query_of("hourly"), data_version="2026-11-20T11:30+00:00"),
    )
    assert cached(cache) is not None
    clock.pass_(minutes=29, seconds=59)
    assert cached(cache) is not None
    clock.pass_(seconds=1)
    assert cached(cache) is None
    clock.pass_(minutes=-10)
    assert cached(cache) is None, "dropped is dropped"


def test_another_catalog_is_another_query():
    """Catalogs are compared by identity: the object stays the same while nothing changes."""
    for minutes in (0, 2):
        clock = Clock()
        cache = ReplayCache(clock, dict)
        cache_answer(cache)
        assert cache.plan("ann", b"{}", CATALOG) is PLANNED
        clock.pass_(minutes=minutes)
        assert cached(cache, catalog=CATALOG.model_copy()) is None
        assert cache.plan("ann", b"{}", CATALOG) is None


@pytest.mark.parametrize("word", [b"current_date", b"CURRENT_DATE", b"Today"])
def test_a_query_of_a_relative_date_is_not_cached(word):
    """Tomorrow the same request is another query."""
    cache = ReplayCache(Clock(), dict)
    cache_answer(cache, body=b'{"sql": "SELECT ... WHERE day = ' + word + b'"}')
    assert cache._entries == {}


def test_each_form_of_an_answer_is_cached():
    """Of one plan; none of them takes the place of another."""
    cache = ReplayCache(Clock(), dict)
    for form, answer in (("json", b"{}"), ("csv", b"a,b")):
        cache.keep("ann", b"{}", CATALOG, PLANNED, form, answer)
    assert (cached(cache), cached(cache, form="csv")) == (b"{}", b"a,b")


def test_an_answer_that_is_cached_again_takes_no_more_memory():
    """Nor does one that was dropped; the last byte that is allowed may be used."""
    size = 4_000 + 40 * len(b"{}") + len(b"answer")
    cache = ReplayCache(Clock(), dict, max_bytes=2 * size)
    for account in ("bob", *["ann"] * 20):
        cache_answer(cache, account)
    assert cached(cache, "bob") is not None
    assert cached(cache, "ann") is not None
    cache_answer(cache, "bob", answer=b"one more byte")
    assert cached(cache, "ann") is None
    cache_answer(cache, "bob", body=b"x" * 1_000)
    assert cache._bytes == 0


def test_a_new_plan_of_a_request_drops_its_old_answers():
    """An answer in another form belongs to the plan that it was made by."""
    cache = ReplayCache(Clock(), dict)
    cache_answer(cache)
    cache.keep("ann", b"{}", CATALOG, dataclasses.replace(PLANNED, release_key=b"another"), "csv", b"a,b")
    assert cached(cache) is None
    assert cached(cache, form="csv") == b"a,b"


@pytest.mark.parametrize("dataset", ["asked", "none"])
def test_answers_with_versions_reported_by_an_engine_are_not_cached(dataset):
    """Without the engine it is unknown whether they are still current."""
    cache = ReplayCache(Clock(), dict)
    cache_answer(cache, planned=dataclasses.replace(PLANNED, question=query_of(dataset)))
    assert cached(cache) is None
    assert known_version(CATALOG.datasets[dataset], NOON) is None


def test_the_cache_is_bounded_in_bytes_and_drops_the_least_recently_used():
    """Requests count as well as answers."""
    cache = ReplayCache(Clock(), dict, max_bytes=16_000)
    bodies = [bytes([n]) for n in range(5)]
    for body in bodies[:3]:
        cache_answer(cache, body=body, answer=b"x" * 1000)
    assert cached(cache, body=bodies[0]) is not None
    cache_answer(cache, body=bodies[3], answer=b"x" * 1000)
    assert [cached(cache, body=body) is not None for body in bodies[:4]] == [True, False, True, True]
    cache_answer(cache, body=b"x" * 1000)
    assert all(cached(cache, body=body) is None for body in bodies)
