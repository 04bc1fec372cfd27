"""The PostgreSQL store's writing transaction: two round trips, whatever is asked.

The first locks the accounts and reads what is needed, the rules decide, and the second writes everything and commits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from discreet.budget.errors import UnknownAccount
from discreet.budget.ledger import Head
from discreet.budget.periods import GUARD_US, Clock
from discreet.budget.stores import postgres_reads as reads
from discreet.budget.stores.books import ClaimFacts, EventFacts
from discreet.budget.stores.postgres_rows import amount_of, head_of, kept_of, page_of, release_of, tally_of
from discreet.budget.stores.postgres_writes import PostgresWrites
from discreet.budget.stores.rows import Bucket, Fund, Keyed
from discreet.errors import InvariantViolated

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import psycopg

    from discreet.budget.model import Account, Claim, Fingerprint, StoredRelease
    from discreet.budget.stores.rows import Page

    _Asked: TypeAlias = tuple[str, Sequence[Any] | dict[str, Any]]


class PostgresBooks(PostgresWrites):
    """A writing transaction.

    Args:
        db: a connection of this transaction's own.
        line: the pipeline that it is in. Whoever waits for answers synchronizes it and asks for nothing behind that: a
            server takes its locks from a process that hangs (`idle_in_transaction_session_timeout`) only if the last
            message that it got was a Sync.
        seen_us: the latest time that this process has seen.
        step: called with the name of each step, for fault tests.
        guard_us: how far the clock may run ahead of the last time seen.
    """

    def __init__(
        self,
        db: psycopg.Connection[Any],
        line: psycopg.Pipeline,
        seen_us: int,
        step: Callable[[str], None],
        guard_us: int = GUARD_US,
    ) -> None:
        super().__init__(db, seen_us)
        self._line, self._begun = line, False
        self.clock = Clock(seen_us, seen_us, guard_us)
        self._process_seen_us, self._guard_us, self._step = seen_us, guard_us, step

    def trust_clock(self) -> None:
        """See `Books.trust_clock`."""
        self.clock = Clock(self.clock.raw_us, max(self.clock.raw_us, self.clock.seen_us), self._guard_us)

    # ------------------------------------------------------------------------------------------------ beginning

    def begin_claim(self, claim: Claim) -> ClaimFacts:
        """See `Books.begin_claim`."""
        facts = reads.CLAIM if claim.key is None else reads.CLAIM_WITH_KEY
        values = {"account": claim.account, "reservation": claim.reservation, "release_key": claim.release_key}
        path, (forfeits, *row) = self._begin(reads.PATH, claim.account, facts, values | {"key": claim.key})
        release, known, (digest, under_way, lease_until_us) = release_of(row[:4]), kept_of(row[4:13]), row[13:16]
        self._pay(path, release)
        keyed = None if digest is None else Keyed(digest, under_way, lease_until_us, release_of(row[16:]))
        return ClaimFacts(path, known, keyed, release, forfeits)

    def begin_start(self, reservation: str) -> EventFacts:
        """See `Books.begin_start`."""
        path, row = self._reservation(reads.START, reservation)
        return EventFacts(path, kept_of(row))

    def begin_settle(self, reservation: str, fingerprint: Fingerprint | None) -> EventFacts:
        """See `Books.begin_settle`."""
        head_key = None if fingerprint is None else fingerprint.head_key
        path, row = self._reservation(reads.SETTLE, reservation, head_key=head_key)
        if not path:
            return EventFacts([], None)
        release = release_of(row[9:13])
        self._pay(path, release)
        return EventFacts(path, kept_of(row[:9]), release, row[13])

    def begin_end(self, reservation: str) -> EventFacts:
        """See `Books.begin_end`."""
        path, row = self._reservation(reads.END, reservation)
        return EventFacts(path, kept_of(row))

    def begin_creation(self, account: Account) -> bool:
        """See `Books.begin_creation`."""
        chain, known, above = self._facts(reads.CREATION, (account.id, account.parent))
        if account.parent is not None and above is None:
            raise UnknownAccount(account.parent)
        self._heads[account.id], self._parent_path = Head.empty(chain), above or []
        return known is not None

    def begin_account(self, account: str) -> Page:
        """See `Books.begin_account`."""
        pages, _ = self._begin(reads.ACCOUNT_ALONE, account, reads.NOW)
        if not pages:
            raise UnknownAccount(account)
        return pages[0]

    def begin_store(self) -> None:
        """See `Books.begin_store`."""
        locked, told = self._ask(("SELECT seq, hash FROM budget_meta FOR NO KEY UPDATE", ()), (reads.NOW, ()))
        ((seq, hash_),) = locked
        self._heads[None] = Head(0, seq, hash_)
        self._look(told.fetchone())

    # ------------------------------------------------------------------------------------------------ reading

    def closed_buckets(self, account: str) -> list[Bucket]:
        """See `Books.closed_buckets`."""
        query = "SELECT bucket, end_us, counting, tally::text FROM budget_buckets WHERE account = %s ORDER BY bucket"
        rows = self._rows(query, (account,))
        return [Bucket(number, end_us, counting, tally_of(text)) for number, end_us, counting, text in rows]

    def forfeits(self, accounts: Sequence[str], release_key: bytes) -> list[tuple[str, Fund]]:
        """See `Books.forfeits`."""
        rows = self._rows(
            "SELECT account, number, bucket, amount::text FROM budget_forfeits "
            "WHERE account = ANY (%s::text[]) AND release_key = %s ORDER BY number",
            (accounts, release_key),
        )
        return [(account, Fund(number, bucket, amount_of(text))) for account, number, bucket, text in rows]

    def act_digest(self, act: str) -> bytes | None:
        """See `Books.act_digest`."""
        rows = self._rows("SELECT digest FROM budget_acts WHERE id = %s", (act,))
        return rows[0][0] if rows else None

    def due(self) -> list[str]:
        """Begin; accounts whose period has moved on."""
        self._facts(reads.NOW)
        now_us = max(self.clock.raw_us, self.clock.seen_us)
        rows = self._rows("SELECT id FROM budget_accounts WHERE end_us <= %s ORDER BY id", (now_us,))
        return [name for (name,) in rows]

    def dead(self) -> list[str]:
        """Begin; reservations that are over, those first whose lease ended first; at most a thousand."""
        self._facts(reads.NOW)
        query = (
            "SELECT id FROM budget_reservations WHERE state IN ('held', 'running') AND lease_until_us <= %s "
            "ORDER BY lease_until_us, id LIMIT 1000"
        )
        return [name for (name,) in self._rows(query, (self.clock.now_us,))]

    # ------------------------------------------------------------------------------------------------ inside

    def _begin(
        self, lock: str, name: str, facts: str, values: Sequence[Any] | dict[str, Any] = ()
    ) -> tuple[list[Page], tuple[Any, ...]]:
        """Begin, lock the accounts that *lock* finds, and then ask *facts*; all in one round trip.

        Returns:
            the accounts, that at the beginning of the path first, and what `_facts` returns.
        """
        locked, told = self._ask((lock, (name,)), (facts, values))
        self._keep(locked.fetchall())
        return self._pages, self._look(told.fetchone())

    def _reservation(self, query: str, name: str, **values: bytes | None) -> tuple[list[Page], tuple[Any, ...]]:
        """Begin, and lock a reservation with its accounts; these, and the row of the reservation, if there is one."""
        (locked,) = self._ask((query, values | {"reservation": name}))
        rows = locked.fetchall()
        self._keep(rows)
        return self._pages, self._look(rows[0][10:]) if rows else (None,) * 9

    def _keep(self, rows: list[tuple[Any, ...]]) -> None:
        """Keep accounts that are locked."""
        for row in rows:
            page = page_of(row[:7])
            self._pages.append(page)
            self._heads[page.id] = head_of(row[7:10])

    def _facts(self, query: str, values: Sequence[Any] = ()) -> tuple[Any, ...]:
        """Begin; the row that *query* finds, after the clock and the last time seen."""
        (told,) = self._ask((query, values))
        return self._look(told.fetchone())

    def _look(self, row: tuple[Any, ...] | None) -> tuple[Any, ...]:
        """Look at the clock in the beginning of *row*; the rest."""
        if row is None:
            raise InvariantViolated("the store has lost its own row")
        raw_us, self._recorded_us, *rest = row
        self.clock = Clock(raw_us, max(self._recorded_us, self._process_seen_us), self._guard_us)
        self._step("locked")
        return tuple(rest)

    def _pay(self, path: list[Page], release: StoredRelease | None) -> None:
        """Mark who on the path has paid for the release."""
        if release is not None:
            paid = {name for (name,) in self._rows(reads.PAID, ([page.id for page in path], release.release_key))}
            for page in path:
                page.paid = page.id in paid

    def _rows(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """What *query* finds, after the locks."""
        (found,) = self._ask((query, values))
        return found.fetchall()

    def _ask(self, *asked: _Asked) -> list[psycopg.Cursor[Any]]:
        """What is found by each statement with its values, in one round trip; the first ones begin the transaction."""
        if not self._begun:
            self._begun = True
            self._db.execute("BEGIN")
        found = [self._db.execute(query, values) for query, values in asked]
        self._line.sync()
        return found
