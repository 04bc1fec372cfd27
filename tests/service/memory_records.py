"""Records and accounts in memory, for the two ports of API keys and grants."""

from __future__ import annotations

from fractions import Fraction

from discreet.budget.errors import UnknownAccount
from discreet.budget.model import Account
from discreet.values import Cost


class MemoryRecords:
    """Stores records and accounts, and counts how often their version is read."""

    def __init__(self) -> None:
        self.stored: dict[tuple[str, str], str] = {}
        self.paths: dict[str, str | None] = {}
        self.version = 0
        self.reads = 0

    def put(self, kind: str, name: str, text: str | None) -> None:
        """Store a record, or remove it."""
        self.version += 1
        if text is None:
            del self.stored[kind, name]
        else:
            self.stored[kind, name] = text

    def records(self, kind: str) -> list[tuple[str, str]]:
        """Return the records of a kind, by name."""
        return sorted((name, text) for (of, name), text in self.stored.items() if of == kind)

    def records_version(self) -> int:
        """Return how often a record was stored."""
        self.reads += 1
        return self.version

    def account(self, name: str) -> Account:
        """Return an account without budget."""
        if name not in self.paths:
            raise UnknownAccount(name)
        return Account(name, Cost(), Fraction(1, 10**9), self.paths[name])

    def path(self, name: str) -> tuple[Account, ...]:
        """Return an account and its parents."""
        account = self.account(name)
        return (account, *(() if account.parent is None else self.path(account.parent)))
