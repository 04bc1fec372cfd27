"""API keys: how they are made, and who comes with one.

A key is `dsc_<id>_<secret>`. The id is public and names the key in the ledger; the secret has 256 random bits, so that
its plain SHA-256 can be kept: there is nothing to guess. The text of a key is nowhere kept.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Protocol

from discreet.budget.ledger import canonical
from discreet.budget.model import AdminAction
from discreet.errors import InputError, InvariantViolated
from discreet.service.auth.identity import ROLES, Identity, Unauthorized
from discreet.service.auth.records import KEY, USED
from discreet.service.problems import NotFound, moment
from discreet.wire.administration import KeyPage, KeySummary, MadeKey

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from discreet.budget.manager import BudgetManager
    from discreet.service.auth.identity import Role
    from discreet.service.auth.records import RecordCache, Snapshot
    from discreet.wire.administration import NewKey, RotatedKey


LABEL_LONGEST = 200
"""Characters of a key's label."""

_KEY = re.compile(r"dsc_([0-9a-f]{16})_[0-9a-f]{64}")
_NOBODYS = bytes(32)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A key that was just made.

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
    """What is kept of a key.

    Args:
        sha256: of the key's text, 64 hexadecimal digits.
        account: that its questions are charged to; None if it asks none.
        roles: at least one, in the order of `ROLES`.
        created_us: when it was made, microseconds since 1970 UTC.
        expires_us: from when on it is worth nothing; None for never.
        label: whose it is or what for, for people; up to 200 printable characters.

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
            raise InputError("a key of an analyst needs an account, which her questions are charged to")
        if len(self.label) > LABEL_LONGEST or not self.label.isprintable():
            raise InputError(f"a label has up to {LABEL_LONGEST} printable characters")

    @property
    def text(self) -> str:
        """As canonical JSON."""
        return canonical(
            {
                "sha256": self.sha256,
                "account": self.account,
                "roles": list(self.roles),
                "created_us": self.created_us,
                "expires_us": self.expires_us,
                "label": self.label,
            }
        )

    @classmethod
    def of_text(cls, text: str) -> KeyRecord:
        """Back from `text`."""
        read = json.loads(text)
        return cls(**{**read, "roles": tuple(read["roles"])})

    def valid_at(self, now_us: int) -> bool:
        """True if it has not expired."""
        return self.expires_us is None or now_us < self.expires_us


class Tokens(Protocol):
    """Whoever knows identities by other tokens than API keys, such as `discreet.service.auth.oidc.Issuer`."""

    def cached(self, token: str) -> Identity | None:
        """Whose it is, from memory alone; None if that does not hold it."""
        ...

    def authenticate(self, token: str) -> Identity:
        """Whose it is; may ask the issuer.

        Raises:
            Unauthorized: nobody's.
            IssuerUnavailable: nobody can tell now.
        """
        ...


def new_key(random: Callable[[int], bytes]) -> IssuedKey:
    """A new key.

    Args:
        random: gives so many random bytes, of which nobody else knows anything, such as `secrets.token_bytes`.
    """
    id_ = random(8).hex()
    return IssuedKey(id_, f"dsc_{id_}_{random(32).hex()}")


def digest_of(text: str) -> bytes:
    """What is kept of a key's text: 32 bytes."""
    return hashlib.sha256(text.encode()).digest()


def microseconds(moment: datetime) -> int:
    """Whole microseconds from 1970 UTC to *moment*, which has a zone."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


class Authenticator:
    """Tells by a header who is asking. Usable from several threads.

    Args:
        registry: where the keys are.
        clock: the time.
        tokens: whoever knows tokens that are no API keys; None if only API keys are good.
    """

    def __init__(self, registry: RecordCache, clock: Callable[[], datetime], tokens: Tokens | None = None) -> None:
        self._registry, self._clock, self._tokens = registry, clock, tokens
        self._cards: tuple[int, dict[str, tuple[KeyRecord, Identity]]] = -1, {}
        self._used: dict[str, int] = {}

    @property
    def used(self) -> Mapping[str, int]:
        """When each key was last used here since the start, microseconds since 1970 UTC, by id."""
        return dict(self._used)

    def cached(self, header: str | None) -> Identity | None:
        """Who sent a header, from memory alone: for those who must not wait.

        Returns:
            None if memory is older than a second or does not hold it: then ask `identify`, which may wait.

        Raises:
            Unauthorized: nobody.
        """
        token, id_ = _read(header)
        if id_ is None:
            return self._issuer.cached(token)
        snapshot = self._registry.cached()
        return None if snapshot is None else self._judge(token, id_, snapshot)

    def authenticate(self, header: str | None) -> Identity:
        """Who sent a header; may ask the store and the issuer of tokens.

        Args:
            header: the value of Authorization, or None if there was none.

        Raises:
            Unauthorized: nobody.
            IssuerUnavailable: the header holds a token, and its issuer cannot be asked.
            StoreUnavailable: the store cannot be asked.
        """
        token, id_ = _read(header)
        if id_ is None:
            return self._issuer.authenticate(token)
        return self._judge(token, id_, self._registry.read())

    @property
    def _issuer(self) -> Tokens:
        if self._tokens is None:
            raise Unauthorized("malformed")
        return self._tokens

    def _judge(self, token: str, id_: str, snapshot: Snapshot) -> Identity:
        card = self._card(id_, snapshot)
        # A key that does not exist takes as long as one that does.
        good = hmac.compare_digest(digest_of(token), bytes.fromhex(card[0].sha256) if card else _NOBODYS)
        now_us = microseconds(self._clock())
        if card is None or not good:
            raise Unauthorized("unknown")
        if not card[0].valid_at(now_us):
            raise Unauthorized("expired", id_)
        self._used[id_] = now_us
        return card[1]

    def _card(self, id_: str, snapshot: Snapshot) -> tuple[KeyRecord, Identity] | None:
        version, cards = self._cards
        if version != snapshot.version:
            cards = {}
            self._cards = snapshot.version, cards
        if id_ not in cards:
            if id_ not in snapshot.keys:
                return None
            record = KeyRecord.of_text(snapshot.keys[id_])
            cards[id_] = record, Identity(f"key:{id_}", record.account, frozenset(record.roles), id_)
        return cards[id_]


def _read(header: str | None) -> tuple[str, str | None]:
    """The token of a header, and the id of the key if it is one.

    Raises:
        Unauthorized: it holds no token.
    """
    if header is None:
        raise Unauthorized("missing")
    scheme, _, token = header.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthorized("malformed")
    token = token.strip()
    found = _KEY.fullmatch(token)
    return token, None if found is None else found[1]


_ALL = "keys"
_USED_EVERY_US = 3_600_000_000
_USED_MOST = 20_000


class Used(Protocol):
    """Who knows when keys were used in this process; a `discreet.service.auth.api_keys.Authenticator`."""

    @property
    def used(self) -> Mapping[str, int]:
        """When, microseconds since 1970 UTC, by id."""
        ...


class ApiKeys:
    """API keys in the store of the budgets.

    Args:
        manager: keeps the records.
        registry: what keyrings remember of them.
        keyring: knows when keys were last used here.
        clock: the time.
        random: gives random bytes for keys.
    """

    def __init__(
        self,
        manager: BudgetManager,
        registry: RecordCache,
        keyring: Used,
        clock: Callable[[], datetime],
        random: Callable[[int], bytes],
    ) -> None:
        self._manager, self._registry, self._keyring = manager, registry, keyring
        self._clock, self._random = clock, random
        self._remembered_us = microseconds(clock())

    def make(self, asked: NewKey, act: AdminAction) -> MadeKey:
        """A new key.

        Raises:
            UnknownAccount: its account does not exist.
            KeyReused: a key was made with this id of the act before; its text was shown then.
        """
        if asked.account is not None:
            self._manager.store.account(asked.account)
        roles = tuple(role for role in ROLES if role in asked.roles)
        return self._kept(KeyRecord("", asked.account, roles, 0, None, asked.label), asked.days, act)

    def rotate(self, key: str, asked: RotatedKey, act: AdminAction) -> MadeKey:
        """Another key for the same, which is good until then or for the overlap, whichever is shorter.

        Raises:
            NotFound: there is no such key.
            KeyReused: as in `make`.
        """
        before = self._record(key)
        made = self._kept(before, asked.days, act)
        until_us = self._now_us + asked.overlap_hours * _USED_EVERY_US
        ends_us = until_us if before.expires_us is None else min(until_us, before.expires_us)
        ending = dataclasses.replace(act, id=None if act.id is None else _second(act.id))
        self._put(key, dataclasses.replace(before, expires_us=ends_us).text, ending)
        return made

    def revoke(self, key: str, act: AdminAction) -> None:
        """Have a key open nothing any more; in other processes within a second.

        Raises:
            NotFound: there is no such key.
        """
        self._record(key)
        self._put(key, None, act)

    def listed(self, after: str | None, most: int) -> KeyPage:
        """Keys by id, from the one behind *after*."""
        behind = [(name, text) for name, text in self._manager.store.records(KEY) if after is None or name > after]
        used = self._used()
        keys = [_summary(name, KeyRecord.of_text(text), used.get(name)) for name, text in behind[:most]]
        return KeyPage(keys=keys, next=keys[-1].id if len(behind) > most else None)

    def remember(self, *, at_once: bool) -> None:
        """Keep when keys were last used: once an hour, in one record, so that the ledger does not grow with use.

        Args:
            at_once: True if nobody will remember any more.
        """
        now_us = self._now_us
        if not at_once and now_us - self._remembered_us < _USED_EVERY_US:
            return
        self._remembered_us = now_us
        kept, used = self._kept_used(), self._used()
        if used == kept:
            return
        latest = sorted(used, key=lambda key: used[key])[-_USED_MOST:]
        text = canonical({key: used[key] for key in latest})
        self._manager.store.put_record(USED, _ALL, text, AdminAction("discreet", "when API keys were last used"))

    @property
    def _now_us(self) -> int:
        return microseconds(self._clock())

    def _record(self, key: str) -> KeyRecord:
        text = self._manager.store.record(KEY, key)
        if text is None:
            raise NotFound
        return KeyRecord.of_text(text)

    def _kept(self, like: KeyRecord, days: int | None, act: AdminAction) -> MadeKey:
        made, now_us = new_key(self._random), self._now_us
        if self._manager.store.record(KEY, made.id) is not None:
            raise InvariantViolated("the random source repeats itself")
        expires_us = None if days is None else now_us + timedelta(days=days) // timedelta(microseconds=1)
        record = dataclasses.replace(like, sha256=digest_of(made.text).hex(), created_us=now_us, expires_us=expires_us)
        self._put(made.id, record.text, act)
        return MadeKey(id=made.id, key=made.text, expires=None if expires_us is None else moment(expires_us))

    def _put(self, key: str, text: str | None, act: AdminAction) -> None:
        self._manager.store.put_record(KEY, key, text, act)
        self._registry.invalidate()

    def _kept_used(self) -> dict[str, int]:
        text = self._manager.store.record(USED, _ALL)
        return {} if text is None else {str(key): int(us) for key, us in json.loads(text).items()}

    def _used(self) -> dict[str, int]:
        """When keys that still exist were last used, here or elsewhere."""
        kept, here = self._kept_used(), self._keyring.used
        names = [name for name, _ in self._manager.store.records(KEY) if name in kept or name in here]
        return {name: max(kept.get(name, 0), here.get(name, 0)) for name in names}


def _second(act: str) -> str:
    """The id of the second half of an act."""
    return hashlib.sha256(f"second half of {act}".encode()).hexdigest()


def _summary(name: str, record: KeyRecord, used_us: int | None) -> KeySummary:
    return KeySummary(
        id=name,
        account=record.account,
        roles=list(record.roles),
        label=record.label,
        created=moment(record.created_us),
        expires=None if record.expires_us is None else moment(record.expires_us),
        last_used=None if used_us is None else moment(used_us),
    )
