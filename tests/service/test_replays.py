"""Answers from memory: the same bytes, as long as they are the answer, and never longer."""

from __future__ import annotations

import dataclasses

import pytest

from discreet.catalog.model import Catalog
from discreet.service.replays import KEYS_MOST, Kept, Replays, Standings, UsedKeys, known_version

from .shelf import NOON, Clock
from .world import TOP

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
NAME = ("ann", b"{}", "json")


def kept(body=b"answer", dataset="fixed", version="1", catalog=CATALOG):
    """An answer."""
    return Kept(body, [], "id", dataset, "gumbel", catalog, version)


def served(world):
    """Where the answers that left came from."""
    return [event.get("release") is not None for event in world.events("requested")]


def test_an_answer_from_memory_is_the_answer_of_the_store(world):
    """Bytes and headers; it touches neither the engine nor the store, but for how the account stands."""
    world.ask()
    before = world.ask(TOP + " ")
    world.store.close()
    after = world.ask()
    assert after.content == before.content
    plain = lambda answer: {name: value for name, value in answer.headers.items() if name != "x-request-id"}  # noqa: E731
    assert plain(after) == plain(before)
    assert after.headers["x-request-id"] != before.headers["x-request-id"]
    assert served(world) == [False, False, True]


def test_how_the_account_stands_is_at_most_a_second_old(world):
    """After that it is looked at again, and the answer still comes from memory."""
    world.ask()
    assert '"rho";r=1466' in world.ask().headers["ratelimit"]
    world.manager.charge("ann@sales", dataclasses.replace(world.balance().remaining, delta=0), _act())
    assert '"rho";r=1466' in world.ask().headers["ratelimit"]
    world.ticks.now += 1.1
    assert '"rho";r=0' in world.ask().headers["ratelimit"]
    assert served(world) == [False, True, True, True]


def _act():
    from .world import ACT

    return ACT


@pytest.mark.parametrize("change", ["body", "accept", "account", "grants", "revoked key"])
def test_whatever_the_answer_depends_on_is_looked_at(world, change):
    """Another one of these is not answered from memory, or not at all."""
    world.ask()
    assert served(world) == [False]
    match change:
        case "body":
            world.ask(TOP + " ")
        case "accept":
            world.ask(headers={"Accept": "text/csv"})
        case "account":
            world.ask(who="bob")
        case "grants":
            world.grant("sales", "secret")
            world.clock.pass_(seconds=2)
            world.ask()
        case "revoked key":
            world.manager.put_record("key", world.keys["ann"].split("_")[1], None, _act())
            world.clock.pass_(seconds=2)
            assert world.ask().status_code == 401
    assert served(world) == [False, False]


def test_each_account_has_its_own_memory(world):
    """The answer of one is not lost or lent when another asks the same."""
    for who in ("ann", "bob", "ann", "bob"):
        assert world.ask(who=who).status_code == 200
    assert served(world) == [False, False, True, True]
    assert world.balance("bob@sales").spent == world.balance("ann@sales").spent


def test_a_key_is_one_request_from_memory_too(world):
    """I4: also if the store never heard of the key, because the answer was free."""
    other = TOP.replace("5", "4")
    for question in (TOP, other):
        assert world.ask(question).status_code == 200
    key = {"Idempotency-Key": "k"}
    assert world.ask(headers=key).status_code == 200
    for _ in range(2):
        assert world.ask(other, headers=key).json()["type"] == "/problems/key-reused"
    assert world.ask(headers=key).status_code == 200
    assert world.ask(other, "bob", headers=key).status_code == 200
    assert served(world) == [False, False, True, False, False, True, False]


def test_a_key_that_was_refused_is_not_used_up(world):
    """Whoever mends a question may send it with the key of the one that was wrong."""
    key = {"Idempotency-Key": "k"}
    assert world.ask("SELECT", headers=key).status_code == 400
    assert world.ask(epsilon=9, headers=key).status_code == 422
    assert world.ask(headers=key).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "application/json ; charset=utf-8"},
        {"Content-Encoding": "identity"},
        {"X-Twice": "1"},
        {"Accept": "application/json;q=0.9"},
    ],
)
def test_what_the_short_way_does_not_take_the_usual_one_does(world, headers):
    """The same answer, whatever the headers look like."""
    first = world.ask()
    answer = world.send(
        "POST", "/v1/query", content=first.request.content, headers={"Content-Type": "application/json", **headers}
    )
    assert (answer.status_code, answer.content) == (200, first.content)


def test_an_answer_of_another_version_is_dropped():
    """The version is that of the clock, and looked at when the minute changes."""
    clock = Clock()
    replays = Replays(clock)
    replays.keep(NAME, kept(dataset="hourly", version="2026-11-20T11:30+00:00"))
    assert replays.recall(NAME, CATALOG) is not None
    clock.pass_(minutes=29, seconds=59)
    assert replays.recall(NAME, CATALOG) is not None
    clock.pass_(seconds=1)
    assert replays.recall(NAME, CATALOG) is None
    clock.pass_(minutes=-10)
    assert replays.recall(NAME, CATALOG) is None, "dropped is dropped"


def test_another_catalog_is_another_question():
    """Equal is not enough: it is the same object as long as nothing changes."""
    replays = Replays(Clock())
    for catalog in (CATALOG.model_copy(), None):
        replays.keep(NAME, kept())
        assert replays.recall(NAME, catalog) is None


@pytest.mark.parametrize("dataset", ["asked", "none"])
def test_versions_that_an_engine_tells_are_not_kept(dataset):
    """Nobody could say that they are still the same without asking it."""
    replays = Replays(Clock())
    replays.keep(NAME, kept(dataset=dataset))
    assert replays.recall(NAME, CATALOG) is None
    assert known_version(CATALOG.datasets[dataset], NOON) is None


def test_memory_is_bounded_and_the_oldest_goes_first():
    """By bytes; what was asked for lately stays."""
    replays = Replays(Clock(), bytes_most=10_000)
    names = [("ann", bytes([n]), "json") for n in range(5)]
    for name in names[:3]:
        replays.keep(name, kept(b"x" * 1000))
    assert replays.recall(names[0], CATALOG) is not None
    replays.keep(names[3], kept(b"x" * 1000))
    assert [replays.recall(name, CATALOG) is not None for name in names[:4]] == [True, False, True, True]
    replays.keep(names[4], kept(b"x" * 20_000))
    assert all(replays.recall(name, CATALOG) is None for name in names)


def test_idempotency_keys_are_bounded():
    """The latest are remembered; one that was forgotten is like one that was never seen."""
    keys = UsedKeys()
    for number in range(KEYS_MOST + 1):
        keys.note("ann", f"key {number}", b"{}", "release")
    assert not keys.allow("ann", f"key {KEYS_MOST}", b"[]")
    assert keys.allow("ann", f"key {KEYS_MOST}", b"{}")
    assert keys.allow("bob", f"key {KEYS_MOST}", b"[]")
    assert keys.allow("ann", "key 0", b"[]")
    assert keys.allow("ann", None, b"[]")


def test_a_key_that_got_an_answer_is_given_no_other_one_from_memory():
    """I4: the store knows which it was; a key that was never seen may have any."""
    keys = UsedKeys()
    keys.note("ann", "key", b"{}", "yesterday's")
    assert keys.fits("ann", "key", "yesterday's")
    assert not keys.fits("ann", "key", "today's")
    assert keys.fits("ann", "another", "today's")
    assert keys.fits("bob", "key", "today's")
    assert keys.fits("ann", None, "today's")


def test_a_standing_is_as_old_as_it_is():
    """A second, and not more; of each account."""
    now = [5.0]
    standings = Standings(lambda: now[0])
    assert standings.recall("ann") is None
    standings.note("ann", [(b"a", b"b")])
    now[0] = 6.0
    assert standings.recall("ann") == [(b"a", b"b")]
    now[0] = 6.001
    assert standings.recall("ann") is None
    assert standings.recall("bob") is None
