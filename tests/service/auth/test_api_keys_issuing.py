"""API keys are created, replaced and revoked, and their texts are not stored."""

from __future__ import annotations

import hashlib
import itertools
import json
from datetime import timedelta
from fractions import Fraction

import pytest

from discreet.budget.errors import KeyReused, UnknownAccount
from discreet.budget.model import Account, AdminAction
from discreet.budget.rules import microseconds
from discreet.errors import InvariantViolated
from discreet.service.auth.access import Authenticator, RecordCache
from discreet.service.auth.api_keys import ApiKeys
from discreet.service.problems import KeyRefused, NotFound
from discreet.wire.administration import CreatedKey, NewKey, RotatedKey
from tests.service.deployment import NOON, Clock
from tests.service.memory_budget import LAUNCH, open_manager

HOUR = timedelta(hours=1)


@pytest.fixture
def clock():
    """Return a clock at noon."""
    return Clock()


@pytest.fixture
def manager(clock):
    """Return a manager with the account ann."""
    manager = open_manager(clock)
    manager.store.create(Account.of_epsilon("ann", 1.0, Fraction(1, 10**9)), LAUNCH)
    yield manager
    manager.close()


@pytest.fixture
def registry(manager, clock):
    """Return the registry of keys."""
    return RecordCache(manager.store, clock)


@pytest.fixture
def ring(registry, clock):
    """Return a keyring that accepts the keys of the manager."""
    return Authenticator(registry, clock)


@pytest.fixture
def api_keys(manager, registry, ring, clock):
    """Return the key operations, with numbered random bytes."""
    numbers = itertools.count(1)
    return ApiKeys(
        manager.store, registry, ring, clock, lambda n: hashlib.shake_256(str(next(numbers)).encode()).digest(n)
    )


def key(**more) -> NewKey:
    """Return a request for a key of ann's account."""
    return NewKey(**({"account": "ann", "roles": ["analyst"], "label": "laptop", "reason": "new colleague"} | more))


def is_valid(ring, made) -> bool:
    """Return True if the key is valid."""
    try:
        return ring.authenticate(f"Bearer {made.key}").key_id == made.id
    except KeyRefused:
        return False


def test_a_new_key_is_valid(api_keys, ring):
    """A new key has its account and roles."""
    made = api_keys.create(key(roles=["admin", "analyst"]), LAUNCH)
    identity = ring.authenticate(f"Bearer {made.key}")
    assert (identity.account, identity.roles) == ("ann", {"analyst", "admin"})


def test_neither_store_nor_ledger_contains_a_key(api_keys, manager):
    """T9: the store has the SHA-256 of the text, and the ledger the SHA-256 of that record."""
    made = api_keys.create(key(), LAUNCH)
    secret = made.key.rpartition("_")[2]
    kept = [text for _, text in manager.store.records("key")] + [line.body for line in manager.store.lines()]
    assert all(secret not in text for text in kept)
    assert hashlib.sha256(made.key.encode()).hexdigest() in kept[0]
    assert all(hashlib.sha256(made.key.encode()).hexdigest() not in line.body for line in manager.store.lines())


def test_a_key_expires(api_keys, ring, clock):
    """Keys expire after a year by default, and never only if requested."""
    made, lasting = api_keys.create(key(), LAUNCH), api_keys.create(key(days=None), LAUNCH)
    assert made.expires == (NOON + timedelta(days=365)).isoformat()
    assert lasting.expires is None
    clock.pass_(days=365)
    assert not is_valid(ring, made)
    assert is_valid(ring, lasting)


def test_a_key_needs_an_account_that_exists(api_keys):
    """A misspelled account gets no key."""
    with pytest.raises(UnknownAccount):
        api_keys.create(key(account="anne"), LAUNCH)


def test_a_key_is_created_once_per_action_id(api_keys, manager):
    """I4: a repeated request gets no second key, nor the text of the first, which is not stored."""
    act = AdminAction("key:1", "new colleague", "request-1")
    api_keys.create(key(), act)
    with pytest.raises(KeyReused):
        api_keys.create(key(), act)
    assert len(manager.store.records("key")) == 1


def test_repeated_random_bytes_create_no_key(manager, registry, ring, clock):
    """An existing key is never overwritten."""
    api_keys = ApiKeys(manager.store, registry, ring, clock, bytes)
    api_keys.create(key(), LAUNCH)
    with pytest.raises(InvariantViolated):
        api_keys.create(key(), LAUNCH)


def test_new_and_revoked_keys_take_effect_at_once(api_keys, ring, manager, clock):
    """In other processes within a second; it cannot be revoked twice."""
    elsewhere = Authenticator(RecordCache(manager.store, clock), clock)
    assert not is_valid(elsewhere, CreatedKey(id="0" * 16, key=f"dsc_{'0' * 16}_{'0' * 64}", expires=None))
    made = api_keys.create(key(), LAUNCH)
    assert (is_valid(ring, made), is_valid(elsewhere, made)) == (True, False)
    clock.pass_(seconds=1, microseconds=1)
    assert (is_valid(ring, made), is_valid(elsewhere, made)) == (True, True)
    api_keys.revoke(made.id, LAUNCH)
    assert (is_valid(ring, made), is_valid(elsewhere, made)) == (False, True)
    clock.pass_(seconds=1, microseconds=1)
    assert not is_valid(elsewhere, made)
    with pytest.raises(NotFound):
        api_keys.revoke(made.id, LAUNCH)


def test_both_keys_are_valid_during_the_overlap(api_keys, ring, clock):
    """Afterwards only the new one is valid, which differs from the old one only in its expiry."""
    made = api_keys.create(key(), LAUNCH)
    other = api_keys.rotate(
        made.id, RotatedKey(overlap_hours=24, days=30, reason="yearly"), AdminAction("a", "yearly", "r-1")
    )
    clock.pass_(hours=24, microseconds=-1)
    assert is_valid(ring, made)
    assert is_valid(ring, other)
    clock.pass_(microseconds=1)
    assert not is_valid(ring, made)
    assert is_valid(ring, other)
    page = api_keys.page(None, 10)
    assert {(found.account, found.label, tuple(found.roles)) for found in page.keys} == {
        ("ann", "laptop", ("analyst",))
    }
    clock.pass_(days=29)
    assert not is_valid(ring, other)


def test_an_overlap_extends_no_key(api_keys, ring, clock):
    """A key that would expire in a day expires in a day."""
    made = api_keys.create(key(days=1), LAUNCH)
    api_keys.rotate(made.id, RotatedKey(overlap_hours=720, reason="yearly"), LAUNCH)
    clock.pass_(days=1)
    assert not is_valid(ring, made)


def test_a_stolen_key_can_be_replaced_at_once(api_keys, ring, clock):
    """With an overlap of zero the old key is invalid at once."""
    made = api_keys.create(key(), LAUNCH)
    other = api_keys.rotate(made.id, RotatedKey(overlap_hours=0, reason="stolen"), LAUNCH)
    clock.pass_(seconds=2)
    assert not is_valid(ring, made)
    assert is_valid(ring, other)


def test_a_key_that_does_not_exist_cannot_be_replaced(api_keys):
    """Replacing an unknown key creates none."""
    with pytest.raises(NotFound):
        api_keys.rotate("0" * 16, RotatedKey(reason="yearly"), LAUNCH)
    assert api_keys.page(None, 10).keys == []


def test_keys_are_listed_page_by_page(api_keys):
    """Each is listed once, by id, despite changes between pages."""
    made = sorted(api_keys.create(key(), LAUNCH).id for _ in range(5))
    pages, after = [], None
    while True:
        page = api_keys.page(after, 2)
        pages.append([found.id for found in page.keys])
        after = page.next
        if after is None:
            break
    assert pages == [made[:2], made[2:4], made[4:]]


def test_the_list_shows_when_a_key_was_last_used(api_keys, ring, clock):
    """From memory at once, and from the store after a restart."""
    made = api_keys.create(key(), LAUNCH)
    assert api_keys.page(None, 1).keys[0].last_used is None
    clock.pass_(minutes=5)
    is_valid(ring, made)
    assert api_keys.page(None, 1).keys[0].last_used == (NOON + timedelta(minutes=5)).isoformat()


def test_last_use_is_written_once_an_hour_in_one_record(api_keys, ring, manager, clock):
    """One record holds all keys, and is not written if none was used."""
    keys = [api_keys.create(key(), LAUNCH) for _ in range(3)]
    before = manager.store.records_version()
    for _ in range(180):
        for made in keys:
            is_valid(ring, made)
        api_keys.save_last_used(at_once=False)
        clock.pass_(minutes=1)
    assert manager.store.records_version() - before == 2
    (name, text) = manager.store.records("used")[0]
    assert name == "keys"
    assert json.loads(text).keys() == {made.id for made in keys}
    for _ in range(5):
        clock.pass_(hours=1)
        api_keys.save_last_used(at_once=False)
    assert manager.store.records_version() - before == 3, "the last minutes, and then nothing new"


def test_last_uses_written_by_another_process_are_kept(api_keys, ring, manager):
    """Replicas write the same record, and keep each other's times."""
    made, others = api_keys.create(key(), LAUNCH), api_keys.create(key(), LAUNCH)
    text = json.dumps({others.id: 5, "gone": 6}, separators=(",", ":"))
    manager.store.put_record("used", "keys", text, LAUNCH)
    is_valid(ring, made)
    api_keys.save_last_used(at_once=True)
    kept = json.loads(manager.store.record("used", "keys"))
    assert kept == {made.id: microseconds(NOON), others.id: 5}
