"""A writing transaction of a store, as its rules see it: one reading, decisions, one writing.

`claims`, `events` and `acts` say what happens, once for all stores; a store's own books say how it is read and written.
A transaction begins with one of the `begin` methods, which locks the accounts that it names, the asking one first;
whatever changes is written by `flush`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from discreet.budget.fixed_point import EMPTY
from discreet.budget.ledger import canonical
from discreet.budget.periods import NEVER_US, bucket_end, counts
from discreet.budget.stores.rows import Bucket

if TYPE_CHECKING:
    from collections.abc import Sequence

    from discreet.budget.fixed_point import Amount, Tally
    from discreet.budget.model import Account, Claim, Fingerprint, Hold, State, StoredRelease
    from discreet.budget.periods import Clock
    from discreet.budget.stores.rows import Fund, Kept, Keyed, Page


@dataclass(frozen=True, slots=True)
class ClaimFacts:
    """What a claim is decided by.

    Args:
        path: the account and its parents; empty if there is no such account.
        known: the reservation of that name, if there is one.
        keyed: what became of the claim's idempotency key, if it was used.
        release: the stored release, if there is one.
        forfeits: True if somebody on the path has forfeited something for it.
    """

    path: list[Page]
    known: Kept | None
    keyed: Keyed | None
    release: StoredRelease | None
    forfeits: bool


@dataclass(frozen=True, slots=True)
class EventFacts:
    """What an event of a reservation is decided by.

    Args:
        path: the accounts on its path, or as much of it as the event changes.
        kept: the reservation, if there is one.
        release: the stored release, if the event asks for it and there is one.
        head_digest: what is known of the fingerprint's head key.
    """

    path: list[Page]
    kept: Kept | None
    release: StoredRelease | None = None
    head_digest: bytes | None = None


class Books(ABC):
    """See above.

    Attributes:
        clock: the database's, once the transaction has begun.
    """

    clock: Clock

    # ------------------------------------------------------------------------------------------------ beginning

    @abstractmethod
    def begin_claim(self, claim: Claim) -> ClaimFacts:
        """Lock the path of the claim's account, and read what the claim is decided by."""

    @abstractmethod
    def begin_start(self, reservation: str) -> EventFacts:
        """Lock the account that has the reservation, and read it."""

    @abstractmethod
    def begin_settle(self, reservation: str, fingerprint: Fingerprint | None) -> EventFacts:
        """Lock the path of the reservation; read it, its release if that is stored, and what is known of the head."""

    @abstractmethod
    def begin_end(self, reservation: str) -> EventFacts:
        """Lock the path of the reservation, and read it."""

    @abstractmethod
    def begin_creation(self, account: Account) -> bool:
        """Make ready for a new account; True if there is one of that name already.

        Raises:
            UnknownAccount: there is no such parent.
        """

    @abstractmethod
    def begin_account(self, account: str) -> Page:
        """Lock an account.

        Raises:
            UnknownAccount: there is none.
        """

    @abstractmethod
    def begin_store(self) -> None:
        """Lock what belongs to no account."""

    # ------------------------------------------------------------------------------------------------ reading

    @abstractmethod
    def closed_buckets(self, account: str) -> list[Bucket]:
        """All closed buckets of an account, oldest first."""

    @abstractmethod
    def forfeits(self, accounts: Sequence[str], release_key: bytes) -> list[tuple[str, Fund]]:
        """What *accounts* have forfeited for a release, with their names; the oldest first."""

    @abstractmethod
    def act_digest(self, act: str) -> bytes | None:
        """What an act of that id did, if there was one."""

    # ------------------------------------------------------------------------------------------------ writing

    @abstractmethod
    def append(
        self,
        page: Page | None,
        kind: str,
        reservation: str | None = None,
        detail: str = "{}",
        changes: Sequence[tuple[str, int, Tally]] = (),
    ) -> None:
        """Add a line to the ledger, to the chain of *page* or to that of no account."""

    @abstractmethod
    def add_account(self, page: Page, account: Account) -> None:
        """Write a new account, after the line that makes it."""

    @abstractmethod
    def add_reservation(self, kept: Kept) -> None:
        """Write a new reservation."""

    @abstractmethod
    def update_reservation(
        self, reservation: str, state: State, lease_until_us: int | None = None, charged: Amount | None = None
    ) -> None:
        """Write what became of a reservation; what is None stays as it is."""

    @abstractmethod
    def remember_key(self, claim: Claim) -> None:
        """Remember the claim's idempotency key, if it has one."""

    @abstractmethod
    def add_release(self, release: StoredRelease) -> None:
        """Write an answer."""

    @abstractmethod
    def add_fingerprint(self, fingerprint: Fingerprint) -> None:
        """Write what an engine returned."""

    @abstractmethod
    def entitle(self, accounts: Sequence[str], release_key: bytes) -> None:
        """Write that *accounts* have paid for a release, before the line that says so."""

    @abstractmethod
    def add_forfeit(self, hold: Hold, release_key: bytes, amount: Amount) -> None:
        """Write what an account forfeited for a release, in the bucket of *hold*."""

    @abstractmethod
    def drop_forfeit(self, fund: Fund) -> None:
        """Remove what pays for a retry."""

    @abstractmethod
    def add_act(self, act: str, digest: bytes) -> None:
        """Remember the id of an act."""

    @abstractmethod
    def put_record(self, kind: str, name: str, text: str | None) -> None:
        """Write or remove a record, and count that."""

    @abstractmethod
    def trust_clock(self) -> None:
        """Take the time as it is."""

    @abstractmethod
    def flush(self) -> None:
        """Write all that was decided and is not written yet."""

    # ------------------------------------------------------------------------------------------------ accounts

    def closed(self, page: Page) -> list[Bucket]:
        """All closed buckets of *page*, oldest first."""
        if page.closed is None:
            page.closed = self.closed_buckets(page.id)
        return page.closed

    def change(self, page: Page, bucket: int, change: Tally, changes: list[tuple[str, int, Tally]]) -> None:
        """Change a bucket, open or closed, and add that to *changes*, for the ledger."""
        changes.append((page.id, bucket, change))
        page.changed = True
        if bucket == page.bucket:
            page.tally += change
            return
        closed = next(each for each in self.closed(page) if each.number == bucket)
        closed.tally += change
        page.touched[bucket] = closed
        if closed.counting:
            page.older += change

    def resets_us(self, page: Page) -> int | None:
        """When the first charge of *page* stops counting."""
        return page.resets_us(self.closed(page), self.clock.now_us)

    def advance(self, page: Page) -> bool:
        """Open the account's next bucket if its last one is over.

        Raises:
            ClockError: the clock ran ahead.
        """
        if page.end_us == NEVER_US or not self.clock.opening(page.end_us):
            return False
        self.turn(page, page.end_us, "refresh", {})
        return True

    def turn(self, page: Page, closed_at_us: int, kind: str, detail: dict[str, Any]) -> None:
        """Close the open bucket and open the next, with a ledger line; what counts is looked at again."""
        now_us, period, closed = self.clock.now_us, page.terms.period, self.closed(page)
        last = Bucket(page.bucket, closed_at_us, True, page.tally)
        page.touched[last.number] = last
        closed.append(last)
        page.older = EMPTY
        for bucket in closed:
            counting = counts(period, bucket.end_us, now_us)
            if counting:
                page.older += bucket.tally
            if counting != bucket.counting:
                bucket.counting = counting
                page.touched[bucket.number] = bucket
        page.bucket, page.end_us, page.tally = page.bucket + 1, bucket_end(period, now_us), EMPTY
        page.changed = True
        self.append(page, kind, detail=opened(page, detail))


def opened(page: Page, detail: dict[str, Any]) -> str:
    """What a line says that makes or alters an account or opens its bucket."""
    return canonical(detail | {"account": json.loads(page.settings), "bucket": page.bucket, "end_us": page.end_us})
