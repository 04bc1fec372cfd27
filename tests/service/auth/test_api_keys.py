"""API keys: valid and invalid credentials."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import threading
import types

import pytest

from discreet.budget.rules import microseconds
from discreet.errors import InputError
from discreet.service.auth import access
from discreet.service.auth.access import KEY, Authenticator, KeyRecord, RecordCache, digest_of, new_key
from discreet.service.auth.identity import Identity
from discreet.service.middleware import check_role
from discreet.service.problems import KeyRefused, RoleRefused
from tests.service.deployment import NOON, Clock
from tests.service.memory_records import MemoryRecords

ANALYST = ("analyst",)


@pytest.fixture
def clock():
    """Return a clock at noon."""
    return Clock()


@pytest.fixture
def records():
    """Return a store without records."""
    return MemoryRecords()


@pytest.fixture
def ring(records, clock):
    """Return a keyring on these records."""
    return Authenticator(RecordCache(records, clock), clock)


@pytest.fixture
def make(records):
    """Create a key and store its record."""
    seeds = itertools.count(1)

    def make(account="ann", roles=ANALYST, expires_us=None):
        seed = next(seeds)
        made = new_key(lambda n: hashlib.shake_256(bytes([seed, n])).digest(n))
        record = KeyRecord(digest_of(made.text).hex(), account, roles, microseconds(NOON), expires_us, "laptop")
        records.put(KEY, made.id, record.text)
        return made

    return make


def header(made) -> str:
    """Return the header of a request."""
    return f"Bearer {made.text}"


def test_a_key_has_256_random_bits_and_a_public_id():
    """T1: 32 bytes of the random source are the secret, and all of them are in the text."""
    asked = []

    def random(n):
        asked.append(n)
        return bytes(range(n))

    made = new_key(random)
    assert asked == [8, 32]
    assert made.text == f"dsc_{bytes(range(8)).hex()}_{bytes(range(32)).hex()}"
    assert made.id == bytes(range(8)).hex()


def test_the_text_of_a_key_is_not_in_its_repr_and_not_in_its_record(make, records):
    """T9: stored or logged values cannot be used as a key."""
    made = make()
    secret = made.text.rpartition("_")[2]
    assert secret not in repr(made)
    assert all(secret not in text for text in records.stored.values())


def test_a_key_identifies_the_sender(ring, make):
    """The actor in the ledger is the key's id, with its label beside it, and not its text."""
    made = make()
    identity = ring.authenticate(header(made))
    assert identity == Identity(f"key:{made.id}", "ann", frozenset({"analyst"}), made.id, "laptop")


@pytest.mark.parametrize(
    ("spoilt", "reason"),
    [
        (None, "missing"),
        ("", "malformed"),
        ("Bearer", "malformed"),
        ("Bearer ", "malformed"),
        ("{key}", "malformed"),
        ("Basic {key}", "malformed"),
        ("Bearer {key}0", "malformed"),
        ("Bearer {key} {key}", "malformed"),
        ("Bearer dsc_{nought:.16}_{secret}", "unknown"),
        ("Bearer dsc_{id}_{nought}", "unknown"),
        ("Bearer dsc_{id}_{secret:.63}", "malformed"),
        ("Bearer DSC_{id}_{secret}", "malformed"),
        ("Bearer dsc_ä", "malformed"),
        ("Bearer a.b.c", "malformed"),
    ],
)
def test_invalid_keys_get_the_same_error(ring, make, spoilt, reason):
    """T1: the message does not distinguish a wrong id from a wrong secret; the log may."""
    made = make()
    parts = {"key": made.text, "id": made.id, "secret": made.text.rpartition("_")[2], "nought": "0" * 64}
    for ask in (ring.authenticate, ring.cached):
        with pytest.raises(KeyRefused) as caught:
            ask(spoilt and spoilt.format(**parts))
        assert str(caught.value) == str(KeyRefused("missing"))
        assert (caught.value.reason, caught.value.key_id) == (reason, None)


def test_the_scheme_may_be_written_in_any_case_and_be_followed_by_spaces(ring, make):
    """RFC 9110, section 11.1: "bearer" is case-insensitive, and one or more spaces come after it."""
    assert ring.authenticate(f"bearer  {make().text}").account == "ann"


def test_digests_are_compared_in_constant_time_also_for_ids_that_do_not_exist(ring, make, monkeypatch):
    """T1: one comparison of 32 bytes for each well-formed key."""
    compared = []

    def compare(one, other):
        compared.append((len(one), len(other)))
        return hmac.compare_digest(one, other)

    made = make()
    monkeypatch.setattr(access, "hmac", types.SimpleNamespace(compare_digest=compare))
    ring.authenticate(header(made))
    with pytest.raises(KeyRefused):
        ring.authenticate(f"Bearer dsc_{'0' * 16}_{'0' * 64}")
    assert compared == [(32, 32)] * 2


def test_a_key_is_valid_until_its_expiry(ring, make, clock):
    """The expiry is exact to the microsecond, also if the cache is fresh."""
    made = make(expires_us=microseconds(NOON) + 500_000)
    assert ring.authenticate(header(made)).key_id == made.id
    clock.pass_(milliseconds=499)
    assert ring.cached(header(made)).key_id == made.id
    clock.pass_(milliseconds=1)
    for ask in (ring.authenticate, ring.cached):
        with pytest.raises(KeyRefused) as caught:
            ask(header(made))
        assert (caught.value.reason, caught.value.key_id) == ("expired", made.id)


def test_a_revoked_key_is_invalid_after_a_second(ring, make, records, clock):
    """The store is queried once a second, and the cache is not older."""
    made = make()
    ring.authenticate(header(made))
    records.put(KEY, made.id, None)
    clock.pass_(seconds=1)
    assert ring.authenticate(header(made)).key_id == made.id
    clock.pass_(microseconds=1)
    with pytest.raises(KeyRefused):
        ring.authenticate(header(made))


def test_a_clock_set_back_keeps_no_key_valid(ring, make, records, clock):
    """Cache entries from the future are as stale as old ones."""
    made = make()
    ring.authenticate(header(made))
    records.put(KEY, made.id, None)
    clock.pass_(hours=-1)
    with pytest.raises(KeyRefused):
        ring.authenticate(header(made))


def test_the_store_is_read_at_most_once_a_second(ring, make, records, clock):
    """Many requests do not load the store."""
    made = make()
    for _ in range(100):
        ring.authenticate(header(made))
        clock.pass_(milliseconds=10)
    assert records.reads == 1


def test_the_cache_answers_only_while_it_is_fresh(ring, make, records, clock):
    """The event loop never blocks: None means that a thread must read the store."""
    made = make()
    assert ring.cached(header(made)) is None
    assert records.reads == 0
    ring.authenticate(header(made))
    assert ring.cached(header(made)).key_id == made.id
    with pytest.raises(KeyRefused):
        ring.cached(header(made)[:-1])
    clock.pass_(seconds=2)
    assert ring.cached(header(made)) is None


def test_the_last_use_of_a_key_is_recorded(ring, make, clock):
    """The last use is recorded for valid keys only."""
    made, idle = make(), make()
    clock.pass_(milliseconds=3)
    ring.authenticate(header(made))
    with pytest.raises(KeyRefused):
        ring.authenticate(header(idle)[:-1] + "x")
    assert ring.used == {made.id: microseconds(NOON) + 3_000}


@pytest.mark.parametrize(
    ("account", "roles", "label", "sentence"),
    [
        ("ann", (), "", "one or more of the roles"),
        ("ann", ("root",), "", "one or more of the roles"),
        (None, ANALYST, "", "needs an account"),
        (None, ("officer", "analyst"), "", "needs an account"),
        ("ann", ANALYST, "x" * 201, "label"),
        ("ann", ANALYST, "a\nb", "label"),
    ],
)
def test_an_invalid_key_cannot_be_created(account, roles, label, sentence):
    """The message names the allowed values."""
    with pytest.raises(InputError, match=sentence):
        KeyRecord("00" * 32, account, roles, 0, None, label)
    assert KeyRecord("00" * 32, "ann", ANALYST, 0, None, "x" * 200), "the longest label is allowed"


def test_a_record_is_read_back_from_its_text():
    """The text is canonical, because the ledger has its digest."""
    record = KeyRecord("ab" * 32, None, ("officer", "admin"), 5, 6, "Größe")
    assert KeyRecord.of_text(record.text) == record
    assert record.text.isascii()


def test_no_role_includes_another():
    """An administrator cannot query, an officer creates no keys, an analyst does neither."""
    for role in ("analyst", "officer", "admin"):
        identity = Identity("key:1", "ann", frozenset({role}), "1")
        check_role(identity, role)
        for other in {"analyst", "officer", "admin"} - {role}:
            with pytest.raises(RoleRefused) as caught:
                check_role(identity, other)
            assert caught.value.role == other


def test_concurrent_threads_all_see_a_change(ring, make, records, clock):
    """One of them reads the registry, and none keeps an older record."""
    made = make()
    ring.authenticate(header(made))
    records.put(KEY, made.id, None)
    clock.pass_(seconds=2)
    barrier, refused = threading.Barrier(8), []

    def ask():
        barrier.wait()
        for _ in range(50):
            try:
                ring.authenticate(header(made))
            except KeyRefused:
                refused.append(1)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 8 * 50
    assert records.reads == 2
