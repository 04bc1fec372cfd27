"""API keys: how they are made, and who comes with one.

A key is `dsc_<id>_<secret>`. The id is public and names the key in the ledger; the secret has 256 random bits, so that
its plain SHA-256 can be kept: there is nothing to guess. The text of a key is nowhere kept.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Protocol

from discreet.budget.settings import canonical
from discreet.errors import InputError
from discreet.service.identity import ROLES, Identity, Unauthorized

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from discreet.service.identity import Role
    from discreet.service.registry import Registry, Snapshot

LABEL_LONGEST = 200
"""Characters of a key's label."""

_KEY = re.compile(r"dsc_([0-9a-f]{16})_[0-9a-f]{64}")
_NOBODYS = bytes(32)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key that was just made.

    Args:
        id: 16 hexadecimal digits.
        text: the key itself, to be shown once.
    """

    id: str
    text: str

    def __repr__(self) -> str:
        return f"NewKey({self.id!r}, ...)"


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
    """Whoever knows identities by other tokens than API keys, such as `discreet.service.oidc.Issuer`."""

    def recall(self, token: str) -> Identity | None:
        """Whose it is, from memory alone; None if that does not hold it."""
        ...

    def identify(self, token: str) -> Identity:
        """Whose it is; may ask the issuer.

        Raises:
            Unauthorized: nobody's.
            IssuerUnavailable: nobody can tell now.
        """
        ...


def new_key(random: Callable[[int], bytes]) -> NewKey:
    """A new key.

    Args:
        random: gives so many random bytes, of which nobody else knows anything, such as `secrets.token_bytes`.
    """
    id_ = random(8).hex()
    return NewKey(id_, f"dsc_{id_}_{random(32).hex()}")


def digest_of(text: str) -> bytes:
    """What is kept of a key's text: 32 bytes."""
    return hashlib.sha256(text.encode()).digest()


def microseconds(moment: datetime) -> int:
    """Whole microseconds from 1970 UTC to *moment*, which has a zone."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


class Keyring:
    """Tells by a header who is asking. Usable from several threads.

    Args:
        registry: where the keys are.
        clock: the time.
        tokens: whoever knows tokens that are no API keys; None if only API keys are good.
    """

    def __init__(self, registry: Registry, clock: Callable[[], datetime], tokens: Tokens | None = None) -> None:
        self._registry, self._clock, self._tokens = registry, clock, tokens
        self._cards: tuple[int, dict[str, tuple[KeyRecord, Identity]]] = -1, {}
        self._used: dict[str, int] = {}

    @property
    def used(self) -> Mapping[str, int]:
        """When each key was last used here since the start, microseconds since 1970 UTC, by id."""
        return dict(self._used)

    def recall(self, header: str | None) -> Identity | None:
        """Who sent a header, from memory alone: for those who must not wait.

        Returns:
            None if memory is older than a second or does not hold it: then ask `identify`, which may wait.

        Raises:
            Unauthorized: nobody.
        """
        token, id_ = _read(header)
        if id_ is None:
            return self._issuer.recall(token)
        snapshot = self._registry.recall()
        return None if snapshot is None else self._judge(token, id_, snapshot)

    def identify(self, header: str | None) -> Identity:
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
            return self._issuer.identify(token)
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
