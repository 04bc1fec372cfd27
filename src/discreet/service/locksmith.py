"""Makes, replaces and revokes API keys: what administrators do, without HTTP."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from discreet.budget.model import Act
from discreet.budget.settings import canonical
from discreet.errors import InvariantViolated
from discreet.service.identity import ROLES
from discreet.service.keys import KeyRecord, digest_of, microseconds, new_key
from discreet.service.problems import NotFound, moment
from discreet.service.registry import KEY, USED
from discreet.wire.administration import KeyPage, KeySummary, MadeKey

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from discreet.budget.manager import BudgetManager
    from discreet.service.registry import Registry
    from discreet.wire.administration import NewKey, RotatedKey

_ALL = "keys"
_USED_EVERY_US = 3_600_000_000
_USED_MOST = 20_000


class Used(Protocol):
    """Who knows when keys were used in this process; a `discreet.service.keys.Keyring`."""

    @property
    def used(self) -> Mapping[str, int]:
        """When, microseconds since 1970 UTC, by id."""
        ...


class Locksmith:
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
        registry: Registry,
        keyring: Used,
        clock: Callable[[], datetime],
        random: Callable[[int], bytes],
    ) -> None:
        self._manager, self._registry, self._keyring = manager, registry, keyring
        self._clock, self._random = clock, random
        self._remembered_us = microseconds(clock())

    def make(self, asked: NewKey, act: Act) -> MadeKey:
        """A new key.

        Raises:
            UnknownAccount: its account does not exist.
            KeyReused: a key was made with this id of the act before; its text was shown then.
        """
        if asked.account is not None:
            self._manager.account(asked.account)
        roles = tuple(role for role in ROLES if role in asked.roles)
        return self._kept(KeyRecord("", asked.account, roles, 0, None, asked.label), asked.days, act)

    def rotate(self, key: str, asked: RotatedKey, act: Act) -> MadeKey:
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

    def revoke(self, key: str, act: Act) -> None:
        """Have a key open nothing any more; in other processes within a second.

        Raises:
            NotFound: there is no such key.
        """
        self._record(key)
        self._put(key, None, act)

    def listed(self, after: str | None, most: int) -> KeyPage:
        """Keys by id, from the one behind *after*."""
        behind = [(name, text) for name, text in self._manager.records(KEY) if after is None or name > after]
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
        self._manager.put_record(USED, _ALL, text, Act("discreet", "when API keys were last used"))

    @property
    def _now_us(self) -> int:
        return microseconds(self._clock())

    def _record(self, key: str) -> KeyRecord:
        text = self._manager.record(KEY, key)
        if text is None:
            raise NotFound
        return KeyRecord.of_text(text)

    def _kept(self, like: KeyRecord, days: int | None, act: Act) -> MadeKey:
        made, now_us = new_key(self._random), self._now_us
        if self._manager.record(KEY, made.id) is not None:
            raise InvariantViolated("the random source repeats itself")
        expires_us = None if days is None else now_us + timedelta(days=days) // timedelta(microseconds=1)
        record = dataclasses.replace(like, sha256=digest_of(made.text).hex(), created_us=now_us, expires_us=expires_us)
        self._put(made.id, record.text, act)
        return MadeKey(id=made.id, key=made.text, expires=None if expires_us is None else moment(expires_us))

    def _put(self, key: str, text: str | None, act: Act) -> None:
        self._manager.put_record(KEY, key, text, act)
        self._registry.forget()

    def _kept_used(self) -> dict[str, int]:
        text = self._manager.record(USED, _ALL)
        return {} if text is None else {str(key): int(us) for key, us in json.loads(text).items()}

    def _used(self) -> dict[str, int]:
        """When keys that still exist were last used, here or elsewhere."""
        kept, here = self._kept_used(), self._keyring.used
        names = [name for name, _ in self._manager.records(KEY) if name in kept or name in here]
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
