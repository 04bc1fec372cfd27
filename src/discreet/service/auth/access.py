"""Who calls, and what the account may query: API keys and grants, of which every request reads both.

A key is `dsc_<id>_<secret>`. The id is public and names the key in the ledger; the secret has 256 random bits, so that
its plain SHA-256 can be stored: guessing is hopeless. The key itself is stored nowhere.

Datasets and columns without a grant do not exist for an account.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import json
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from discreet.budget.ledger import canonical
from discreet.budget.rules import microseconds
from discreet.budget.stores.store import BudgetStore
from discreet.catalog.model import Catalog, ImpliedColumn
from discreet.errors import InputError
from discreet.service.auth.identity import ROLES, Identity
from discreet.service.problems import KeyRefused
from discreet.wire.administration import Role
from discreet.wire.queries import iso_time

if TYPE_CHECKING:
    from discreet.service.auth.oidc import Issuer
    from discreet.warehouse import Warehouse


FRESH = timedelta(seconds=1)
"""How long records are cached, and so how long a key that another process revoked is still accepted."""

KEY = "key"
GRANT = "grant"
USED = "used"
LOGOUT = "logout"
"""Kinds of records: API keys by id, grants by account and dataset, the last use of keys, logouts by caller."""

MAX_LABEL_LENGTH = 200
"""The maximum length of a key's label, in characters."""

_KEY = re.compile(r"dsc_([0-9a-f]{16})_[0-9a-f]{64}")
_NO_DIGEST = bytes(32)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The records of keys, grants and logouts, read at one time.

    Args:
        version: a number that changes with every change of a record.
        logouts: how often each caller has logged out of the web page; callers who never did are missing.
    """

    version: int
    keys: Mapping[str, str]
    grants: Mapping[str, str]
    logouts: Mapping[str, str]


class RecordCache:
    """A cache of the records that is at most a second old. Usable from several threads."""

    def __init__(self, store: BudgetStore, clock: Callable[[], datetime]) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._last: tuple[datetime, Snapshot] | None = None

    def cached(self) -> Snapshot | None:
        """Return the records from memory, without blocking; None if they are older than a second."""
        last = self._last
        # The absolute difference, because a clock that was set back must not extend the cache.
        return last[1] if last is not None and abs(self._clock() - last[0]) <= FRESH else None

    def read(self) -> Snapshot:
        """Return the records from memory if they are fresh, otherwise from the store.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        with self._lock:
            return self.cached() or self._read()

    def invalidate(self) -> None:
        """Empty the cache, because this process changed a record."""
        with self._lock:  # a concurrent read may have read the records before the change
            self._last = None

    def _read(self) -> Snapshot:
        # Read the version first: if the records change in between, the next read sees a new version.
        now = self._clock()
        version = self._store.records_version()
        if self._last is None or self._last[1].version != version:
            snapshot = Snapshot(version, *(dict(self._store.records(kind)) for kind in (KEY, GRANT, LOGOUT)))
        else:
            snapshot = self._last[1]
        self._last = now, snapshot
        return snapshot


# ------------------------------------------------------------------------------------------------ keys


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


def new_key(random: Callable[[int], bytes]) -> IssuedKey:
    """Return a new key.

    Args:
        random: returns a number of secret random bytes, such as `secrets.token_bytes`.
    """
    id_ = random(8).hex()
    return IssuedKey(id_, f"dsc_{id_}_{random(32).hex()}")


def digest_of(text: str) -> bytes:
    """Return the SHA-256 of a key: 32 bytes."""
    return hashlib.sha256(text.encode()).digest()


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


# ------------------------------------------------------------------------------------------------ grants


Columns: TypeAlias = frozenset[str] | None
"""The granted columns of a dataset; None for all, including columns that are added later."""


def grant_name(account: str, dataset: str) -> str:
    """Return the name of the record of a grant."""
    return f"{account}\t{dataset}"  # account names contain no tabs


def account_and_dataset(name: str) -> tuple[str, str]:
    """Return the account and the dataset in the name of the record of a grant."""
    account, _, dataset = name.partition("\t")
    return account, dataset


def grant_text(columns: Columns) -> str:
    """Return the text of the record of a grant."""
    return canonical({"columns": None if columns is None else sorted(columns)})


def granted_columns(text: str) -> Columns:
    """Return the columns in the text of the record of a grant."""
    columns = json.loads(text)["columns"]
    return None if columns is None else frozenset(columns)


class Grants:
    """The catalogs of accounts: the datasets and columns granted to each. Usable from several threads.

    An account inherits the grants of its parents: a grant to an organisation applies to all its analysts.

    Args:
        warehouse: has the present catalog of all datasets.
    """

    def __init__(self, warehouse: Warehouse, records: RecordCache, store: BudgetStore) -> None:
        self._warehouse = warehouse
        self._records = records
        self._store = store
        self._lock = threading.Lock()
        self._paths: dict[str, tuple[str, ...]] = {}  # never invalidated: parents do not change
        self._seen: tuple[tuple[int, Catalog] | None, dict[str, Catalog]] = None, {}

    def cached(self, account: str) -> Catalog | None:
        """Return the catalog of *account* from memory, without blocking; None if it is older than a second."""
        snapshot = self._records.cached()
        seen, catalogs = self._seen
        current = snapshot is not None and seen is not None and seen[0] == snapshot.version
        return catalogs.get(account) if current and seen is not None and seen[1] is self._warehouse.catalog else None

    def catalog_for(self, account: str) -> Catalog:
        """Return the catalog of *account*: the same object until a record or the catalog changes.

        Raises:
            UnknownAccount: there is no such account.
            StoreUnavailable: the store cannot be read.
        """
        snapshot = self._records.read()
        with self._lock:
            catalog = self._warehouse.catalog
            seen, catalogs = self._seen
            if seen is None or seen[0] != snapshot.version or seen[1] is not catalog:
                catalogs = {}
                self._seen = (snapshot.version, catalog), catalogs
            if account not in catalogs:
                catalogs[account] = _granted_catalog(catalog, snapshot, frozenset(self._path(account)))
            return catalogs[account]

    def _path(self, account: str) -> tuple[str, ...]:
        if account not in self._paths:
            self._paths[account] = tuple(member.id for member in self._store.path(account))
        return self._paths[account]


def _granted_catalog(catalog: Catalog, snapshot: Snapshot, accounts: frozenset[str]) -> Catalog:
    """Return *catalog* with the datasets and columns that are granted to any of *accounts*."""
    granted: dict[str, Columns] = {}
    for name, text in snapshot.grants.items():
        account, dataset = account_and_dataset(name)
        if account in accounts:
            more = granted_columns(text)
            before = granted.get(dataset, frozenset())
            granted[dataset] = None if more is None or before is None else before | more
    datasets = {}
    for name, declared in catalog.datasets.items():
        if name not in granted:
            continue
        columns = granted[name]
        update = {}
        if columns is not None:
            allowed = {
                column: uses
                for column, uses in declared.columns.items()
                if column in columns or (isinstance(uses, ImpliedColumn) and uses.source in columns)
            }
            update = {"columns": MappingProxyType(allowed)}
        datasets[name] = declared.model_copy(update=update) if update else declared
    return catalog.model_copy(update={"datasets": MappingProxyType(datasets)})
