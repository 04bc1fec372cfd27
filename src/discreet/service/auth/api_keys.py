"""Administration of API keys: create, rotate, revoke and list them, or read one that `discreet key admin` wrote."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

from discreet.budget.ledger import canonical
from discreet.budget.model import AdminAction
from discreet.budget.rules import microseconds
from discreet.budget.stores.store import BudgetStore
from discreet.errors import InputError, InvariantViolated, NotFound
from discreet.secrets import read_secret, write_secret
from discreet.service.auth.access import (
    KEY,
    USED,
    Authenticator,
    IssuedKey,
    KeyRecord,
    RecordCache,
    digest_of,
    new_key,
)
from discreet.service.auth.identity import ROLES
from discreet.wire.administration import CreatedKey, KeyPage, KeySummary, NewKey, RotatedKey
from discreet.wire.queries import iso_time


def key_file_of(store: Path) -> Path:
    """Return the file through which a key reaches the process that has the SQLite file *store* open."""
    return store.with_name(f"{store.name}.new-key")


def write_key_file(store: Path, key: IssuedKey, record: KeyRecord, reason: str) -> None:
    """Write a key file for the process that has the SQLite file *store* open; its next maintenance imports the key.

    Raises:
        InputError: the file exists already, or the folder cannot be written.
    """
    write_secret(key_file_of(store), json.dumps([key.id, record.text, reason]).encode())


_LAST_USED = "keys"
_HOUR_US = 3_600_000_000
_MAX_USED = 20_000


class ApiKeys:
    """Create, rotate, revoke and list API keys.

    Args:
        authenticator: records the last use of each key in this process.
        key_file: the file that `discreet key admin` writes while this process has the store open, or None.
    """

    def __init__(
        self,
        store: BudgetStore,
        records: RecordCache,
        authenticator: Authenticator,
        clock: Callable[[], datetime],
        random: Callable[[int], bytes],
        key_file: Path | None = None,
    ) -> None:
        self._store = store
        self._records = records
        self._authenticator = authenticator
        self._key_file = key_file
        self._clock = clock
        self._random = random
        self._saved_us = microseconds(clock())

    def within(self, store: BudgetStore) -> ApiKeys:
        """Return the same keys in *store*, which is a transaction of this store (`BudgetStore.together`)."""
        other = copy.copy(self)
        other._store = store
        return other

    def create(self, body: NewKey, action: AdminAction) -> CreatedKey:
        """Create a key.

        Raises:
            UnknownAccount: its account does not exist.
            KeyReused: the same action already created a key, which was shown in that response.
        """
        if body.account is not None:
            self._store.account(body.account)
        roles = tuple(role for role in ROLES if role in body.roles)
        return self._create(KeyRecord("", body.account, roles, 0, None, body.label), body.days, action)

    def rotate(self, key: str, body: RotatedKey, action: AdminAction) -> CreatedKey:
        """Create another key with the same account and roles, and let *key* expire after the overlap.

        Raises:
            NotFound: there is no such key.
            KeyReused: as in `create`.
        """
        before = self._record(key)
        created = self._create(before, body.days, action)
        until_us = self._now_us + body.overlap_hours * _HOUR_US
        ends_us = until_us if before.expires_us is None else min(until_us, before.expires_us)
        # The second change of one action has an id of its own, by which a repeated request is recognized.
        second = None if action.id is None else hashlib.sha256(f"second half of {action.id}".encode()).hexdigest()
        ending = dataclasses.replace(action, id=second)
        self._put(key, dataclasses.replace(before, expires_us=ends_us), ending)
        return created

    def revoke(self, key: str, action: AdminAction) -> None:
        """Revoke a key at once; other processes refuse it within a second.

        Raises:
            NotFound: there is no such key.
        """
        self._put(key, self._record(key), action, revoked=True)

    def import_key_file(self) -> None:
        """Import the key of the file that `write_key_file` wrote, if it exists, and remove the file.

        Raises:
            InputError: other users can read or write the file, or it holds no key.
        """
        if self._key_file is None or not self._key_file.exists():
            return
        try:
            name, text, reason = json.loads(read_secret(self._key_file, "new key"))
            record = KeyRecord.of_text(text)
        except (ValueError, TypeError, KeyError, RecursionError):
            raise InputError(f"the file {self._key_file.name!r} holds no key; remove it") from None
        self._put(name, record, AdminAction("discreet", reason, name))  # idempotent: the record is stored once
        self._key_file.unlink()

    def page(self, after: str | None, most: int) -> KeyPage:
        """Return up to *most* keys in the order of their ids, from the first after *after*."""
        behind = [(name, text) for name, text in self._store.records(KEY) if after is None or name > after]
        used = self._last_used()
        keys = []
        for name, text in behind[:most]:
            record = KeyRecord.of_text(text)
            used_us = used.get(name)
            keys.append(
                KeySummary(
                    id=name,
                    account=record.account,
                    roles=list(record.roles),
                    label=record.label,
                    created=iso_time(record.created_us),
                    expires=None if record.expires_us is None else iso_time(record.expires_us),
                    last_used=None if used_us is None else iso_time(used_us),
                )
            )
        return KeyPage(keys=keys, next=keys[-1].id if len(behind) > most else None)

    def save_last_used(self, *, at_once: bool) -> None:
        """Store the last use of all keys, once an hour in one record, so that the ledger does not grow with requests.

        Args:
            at_once: True to store it before the hour has passed.
        """
        now_us = self._now_us
        if not at_once and now_us - self._saved_us < _HOUR_US:
            return
        self._saved_us = now_us
        saved = self._saved_last_used()
        used = self._last_used()
        if used == saved:
            return
        latest = sorted(used, key=lambda key: used[key])[-_MAX_USED:]
        text = canonical({key: used[key] for key in latest})
        self._store.put_record(USED, _LAST_USED, text, AdminAction("discreet", "when API keys were last used"))

    @property
    def _now_us(self) -> int:
        return microseconds(self._clock())

    def _record(self, key: str) -> KeyRecord:
        text = self._store.record(KEY, key)
        if text is None:
            raise NotFound
        return KeyRecord.of_text(text)

    def _create(self, like: KeyRecord, days: int | None, action: AdminAction) -> CreatedKey:
        key = new_key(self._random)
        now_us = self._now_us
        if self._store.record(KEY, key.id) is not None:
            raise InvariantViolated("the random source repeats itself")
        expires_us = None if days is None else now_us + timedelta(days=days) // timedelta(microseconds=1)
        record = dataclasses.replace(like, sha256=digest_of(key.text).hex(), created_us=now_us, expires_us=expires_us)
        self._put(key.id, record, action)
        return CreatedKey(id=key.id, key=key.text, expires=None if expires_us is None else iso_time(expires_us))

    def _put(self, key: str, record: KeyRecord, action: AdminAction, *, revoked: bool = False) -> None:
        self._store.put_record(KEY, key, None if revoked else record.text, action, record.shown)
        self._records.invalidate()

    def _saved_last_used(self) -> dict[str, int]:
        text = self._store.record(USED, _LAST_USED)
        return {} if text is None else {str(key): int(us) for key, us in json.loads(text).items()}

    def _last_used(self) -> dict[str, int]:
        """Return the last use of all existing keys, in this process or another."""
        saved = self._saved_last_used()
        used = self._authenticator.used
        names = [name for name, _ in self._store.records(KEY) if name in saved or name in used]
        return {name: max(saved.get(name, 0), used.get(name, 0)) for name in names}
