"""Records and accounts in memory: the two ports that keys and grants are read from."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from fractions import Fraction

from discreet.budget.errors import UnknownAccount
from discreet.budget.model import Account
from discreet.values import Cost

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        """The time."""
        return self.now

    def pass_(self, **time: float) -> None:
        """Let time pass, in the units of `timedelta`; negative for a clock that is put back."""
        self.now += timedelta(**time)


class Shelf:
    """Keeps records and accounts, and counts how often it is asked."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], str] = {}
        self.paths: dict[str, str | None] = {}
        self.version = 0
        self.asked = 0

    def put(self, kind: str, name: str, text: str | None) -> None:
        """Keep a record, or remove it."""
        self.version += 1
        if text is None:
            del self.kept[kind, name]
        else:
            self.kept[kind, name] = text

    def records(self, kind: str) -> list[tuple[str, str]]:
        """Of that kind, by name."""
        return sorted((name, text) for (of, name), text in self.kept.items() if of == kind)

    def records_version(self) -> int:
        """How often a record was put."""
        self.asked += 1
        return self.version

    def account(self, name: str) -> Account:
        """An account with nothing to spend."""
        if name not in self.paths:
            raise UnknownAccount(name)
        return Account(name, Cost(), Fraction(1, 10**9), self.paths[name])
