"""What all stores of this package have in common: every writing method is one transaction on books."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol, TypeVar

from discreet.budget.fixed_point import Amount
from discreet.budget.model import check_record
from discreet.budget.states import Event
from discreet.budget.stores import acts, claims, events
from discreet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from discreet.budget.model import Account, AdminAction, Claim, Fingerprint, Reservation, Settled
    from discreet.budget.store import Admission
    from discreet.budget.stores.books import Books
    from discreet.values import Cost

LAST = 2**63 - 1
"""Above the number of whatever was paid for."""

PAGE_MOST = 1_000
"""Releases on a page of a history."""

Answer_co = TypeVar("Answer_co", covariant=True)
Answer = TypeVar("Answer")


class Work(Protocol[Answer_co]):
    """What is done in a transaction."""

    def __call__(self, books: Books, /) -> Answer_co:
        """Read, decide, write."""
        ...


class Transactions(ABC):
    """The writing methods of a `discreet.budget.store.BudgetStore`."""

    @property
    @abstractmethod
    def id(self) -> str:
        """See `BudgetStore.id`."""

    @abstractmethod
    def _write(self, work: Work[Answer], *, repeat: bool) -> Answer:
        """Run *work* in a transaction and return what it returns, once that is durable.

        Args:
            work: what to do.
            repeat: True if it may be done again when nobody knows whether it was committed.
        """

    def reserve(self, claim: Claim) -> Admission:
        """See `BudgetStore.reserve`."""
        return self._write(lambda books: claims.reserve(books, claim), repeat=True)

    def start(self, reservation: str) -> Reservation:
        """See `BudgetStore.start`."""
        return self._write(lambda books: events.start(books, reservation), repeat=True)

    def settle(self, reservation: str, actual: Cost, result: bytes, fingerprint: Fingerprint | None = None) -> Settled:
        """See `BudgetStore.settle`."""
        amount = Amount.of(actual)
        return self._write(lambda books: events.settle(books, reservation, amount, result, fingerprint), repeat=True)

    def void(self, reservation: str) -> None:
        """See `BudgetStore.void`."""
        self._write(lambda books: events.end(books, reservation, Event.VOID), repeat=True)

    def forfeit(self, reservation: str) -> None:
        """See `BudgetStore.forfeit`."""
        self._write(lambda books: events.end(books, reservation, Event.FORFEIT), repeat=True)

    def create(self, account: Account, act: AdminAction) -> None:
        """See `BudgetStore.create`."""
        self._act(lambda books: acts.create(books, account, act), act)

    def alter(self, account: Account, act: AdminAction, before: Account | None = None) -> None:
        """See `BudgetStore.alter`."""
        self._act(lambda books: acts.alter(books, account, act, self.id, before), act)

    def charge(self, account: str, cost: Cost, act: AdminAction) -> None:
        """See `BudgetStore.charge`."""
        self._act(lambda books: acts.charge(books, account, cost, act), act)

    def refund(self, account: str, cost: Cost, act: AdminAction) -> None:
        """See `BudgetStore.refund`."""
        self._act(lambda books: acts.refund(books, account, cost, act), act)

    def lift(self, account: str, act: AdminAction) -> None:
        """See `BudgetStore.lift`."""
        self._act(lambda books: acts.lift(books, account, act), act)

    def confirm_clock(self, act: AdminAction) -> None:
        """See `BudgetStore.confirm_clock`."""
        self._act(lambda books: acts.confirm_clock(books, act), act)

    def note(self, act: AdminAction, detail: Mapping[str, str]) -> None:
        """See `BudgetStore.note`."""
        self._act(lambda books: acts.note(books, act, detail), act)

    def put_record(self, kind: str, name: str, text: str | None, act: AdminAction) -> None:
        """See `BudgetStore.put_record`."""
        check_record(kind, name, text)
        self._act(lambda books: acts.put_record(books, kind, name, text, act), act)

    def _act(self, work: Work[None], act: AdminAction) -> None:
        """An act that has an id is known by it, so that it may be done again."""
        self._write(work, repeat=act.id is not None)


def check_page(most: int) -> None:
    """Raise unless a history may have so many on a page.

    Raises:
        InputError: it may not.
    """
    if not 1 <= most <= PAGE_MOST:
        raise InputError(f"a page of a history has from 1 to {PAGE_MOST:,} releases, not {most}")
