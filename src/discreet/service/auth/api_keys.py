"""API keys: their format and records, authentication by them, and their administration.

A key is `dsc_<id>_<secret>`. The id is public and names the key in the ledger; the secret has 256 random bits, so that
its plain SHA-256 can be stored: guessing is hopeless. The key itself is stored nowhere.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import hmac
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discreet.budget.ledger import canonical
from discreet.budget.model import AdminAction
from discreet.budget.rules import microseconds
from discreet.budget.stores.store import BudgetStore
from discreet.errors import InputError, InvariantViolated, NotFound
from discreet.secrets import read_secret, write_secret
from discreet.service.auth.grants import KEY, USED, RecordCache, Snapshot
from discreet.service.auth.identity import ROLES, Identity
from discreet.service.problems import KeyRefused
from discreet.wire.administration import CreatedKey, KeyPage, KeySummary, NewKey, Role, RotatedKey
from discreet.wire.queries import iso_time

if TYPE_CHECKING:
    from discreet.service.auth.oidc import Issuer


MAX_LABEL_LENGTH = 200
"""The maximum length of a key's label, in characters."""

_KEY = re.compile(r"dsc_([0-9a-f]{16})_[0-9a-f]{64}")
_NO_DIGEST = bytes(32)


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A new key.

    Args:
        id: 16 hexadecimal digits.
        text: the key itself, to be shown once.
    """

    id: str
    text: str

    def __repr__(self) -> str:
        return f"IssuedKey({self.id!r}, ...)"


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """The stored record of a key.

    Args:
        sha256: the SHA-256 of the key's text, 64 hexadecimal digits.
        account: the account that its queries are charged to; None for a key without the role analyst.
        roles: at least one, in the order of `ROLES`.
        created_us: the creation time, microseconds since 1970 UTC.
        expires_us: the expiry time, from which on the key is refused; None for a key that never expires.
        label: a description; up to 200 printable characters.

    Raises:
        InputError: a value outside its range.
    """

    sha256: str
    account: str | None
    roles: tuple[Role, ...]
    created_us: int
    expires_us: int | None = None
    label: str = ""

    def __post_init__(self) -> None:
        if not self.roles or any(role not in ROLES for role in self.roles):
            raise InputError(f"a key has one or more of the roles {', '.join(ROLES)}")
        if "analyst" in self.roles and self.account is None:
            raise InputError("a key with the role analyst needs an account, which its queries are charged to")
        if len(self.label) > MAX_LABEL_LENGTH or not self.label.isprintable():
            raise InputError(f"a label has up to {MAX_LABEL_LENGTH} printable characters")

    @property
    def text(self) -> str:
        """Return the record as canonical JSON."""
        return canonical(dataclasses.asdict(self))

    @property
    def shown(self) -> dict[str, Any]:
        """Return what the ledger shows of the record."""
        expires = None if self.expires_us is None else iso_time(self.expires_us)
        return {"label": self.label, "account": self.account, "roles": list(self.roles), "expires": expires}

    @classmethod
    def of_text(cls, text: str) -> KeyRecord:
        """Parse a record from its canonical JSON."""
        read = json.loads(text)
        return cls(**{**read, "roles": tuple(read["roles"])})

    def valid_at(self, now_us: int) -> bool:
        """Return True if the key has not expired at that time."""
        return self.expires_us is None or now_us < self.expires_us


def new_key(random: Callable[[int], bytes]) -> IssuedKey:
    """Return a new key.

    Args:
        random: returns a number of secret random bytes, such as `secrets.token_bytes`.
    """
    id_ = random(8).hex()
    return IssuedKey(id_, f"dsc_{id_}_{random(32).hex()}")


def key_file_of(store: Path) -> Path:
    """Return the file through which a key reaches the process that has the SQLite file *store* open."""
    return store.with_name(f"{store.name}.new-key")


def write_key_file(store: Path, key: IssuedKey, record: KeyRecord, reason: str) -> None:
    """Write a key file for the process that has the SQLite file *store* open; its next maintenance imports the key.

    Raises:
        InputError: the file exists already, or the folder cannot be written.
    """
    write_secret(key_file_of(store), json.dumps([key.id, record.text, reason]).encode())


def digest_of(text: str) -> bytes:
    """Return the SHA-256 of a key: 32 bytes."""
    return hashlib.sha256(text.encode()).digest()


class Authenticator:
    """Identify callers by the header Authorization. Usable from several threads.

    Args:
        issuer: the issuer of tokens that are accepted beside API keys, or None.
    """

    def __init__(self, records: RecordCache, clock: Callable[[], datetime], issuer: Issuer | None = None) -> None:
        self._records = records
        self._clock = clock
        self._issuer = issuer
        self._parsed: tuple[int, dict[str, tuple[KeyRecord, Identity]]] = -1, {}  # by id, for one version of records
        self._used: dict[str, int] = {}

    @property
    def used(self) -> Mapping[str, int]:
        """Return the time of each key's last use in this process, in microseconds since 1970 UTC, by id."""
        return dict(self._used)

    def cached(self, header: str | None) -> Identity | None:
        """Return the identity in *header* from memory, without blocking.

        Returns:
            None if memory does not hold it or is older than a second; then call `authenticate`, which may block.

        Raises:
            KeyRefused: the header has no valid key or token.
        """
        token, id_ = _read_token(header)
        if id_ is None:
            return self._token_issuer.cached(token)
        snapshot = self._records.cached()
        return None if snapshot is None else self._check(token, id_, snapshot)

    def authenticate(self, header: str | None) -> Identity:
        """Return the identity in *header*; may query the store and the issuer of tokens.

        Args:
            header: the value of the header Authorization, or None if the request has none.

        Raises:
            KeyRefused: the header has no valid key or token.
            IssuerUnavailable: the header has a token, and its issuer cannot be reached.
            StoreUnavailable: the store cannot be read.
        """
        token, id_ = _read_token(header)
        if id_ is None:
            return self._token_issuer.authenticate(token)
        return self._check(token, id_, self._records.read())

    @property
    def _token_issuer(self) -> Issuer:
        if self._issuer is None:
            raise KeyRefused("malformed")
        return self._issuer

    def _check(self, token: str, id_: str, snapshot: Snapshot) -> Identity:
        entry = self._find(id_, snapshot)
        # Compare also for an unknown id, so that the response time does not reveal which ids exist.
        matches = hmac.compare_digest(digest_of(token), bytes.fromhex(entry[0].sha256) if entry else _NO_DIGEST)
        now_us = microseconds(self._clock())
        if entry is None or not matches:
            raise KeyRefused("unknown")
        if not entry[0].valid_at(now_us):
            raise KeyRefused("expired", id_)
        self._used[id_] = now_us
        return entry[1]

    def _find(self, id_: str, snapshot: Snapshot) -> tuple[KeyRecord, Identity] | None:
        version, parsed = self._parsed
        if version != snapshot.version:
            parsed = {}
            self._parsed = snapshot.version, parsed
        if id_ not in parsed:
            if id_ not in snapshot.keys:
                return None
            record = KeyRecord.of_text(snapshot.keys[id_])
            parsed[id_] = record, Identity(f"key:{id_}", record.account, frozenset(record.roles), id_, record.label)
        return parsed[id_]


def _read_token(header: str | None) -> tuple[str, str | None]:
    """Return the token of a header, and the key id if it is an API key; raise `KeyRefused` if there is no token."""
    if header is None:
        raise KeyRefused("missing")
    scheme, _, token = header.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise KeyRefused("malformed")
    token = token.strip()
    key = _KEY.fullmatch(token)
    return token, None if key is None else key[1]


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
