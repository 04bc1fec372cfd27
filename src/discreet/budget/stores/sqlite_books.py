"""The SQLite store's writing transaction. Only the writer's thread comes here."""

# ruff: noqa: S608 - statements are put together here, from constants; values are bound

from __future__ import annotations

from typing import TYPE_CHECKING

from discreet.budget.errors import UnknownAccount
from discreet.budget.ledger import Head
from discreet.budget.periods import GUARD_US, Clock
from discreet.budget.stores.books import ClaimFacts, EventFacts
from discreet.budget.stores.rows import Bucket, Fund, Keyed
from discreet.budget.stores.sqlite_rows import (
    ACCOUNT,
    KEPT,
    RELEASE,
    all_of,
    amount_of,
    kept_of,
    one_of,
    page_of,
    release_of,
    tally_of,
)
from discreet.budget.stores.sqlite_writes import SQLiteWrites

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import apsw

    from discreet.budget.model import Account, Claim, Fingerprint, StoredRelease
    from discreet.budget.stores.rows import Kept, Page

_PATH = f"""
WITH RECURSIVE path (place, id) AS (
    SELECT 0, ?1
    UNION ALL
    SELECT place + 1, parent FROM path JOIN accounts USING (id) WHERE parent IS NOT NULL
)
SELECT {ACCOUNT},
    EXISTS (SELECT 1 FROM entitlements e WHERE e.account = path.id AND e.release_key = ?2),
    EXISTS (SELECT 1 FROM forfeits f WHERE f.account = path.id AND f.release_key = ?2)
FROM path JOIN accounts USING (id) ORDER BY place
"""

_KEYED = (
    "SELECT k.digest, r.id, coalesce(r.lease_until_us, 0), e.release_key FROM keys k "
    "LEFT JOIN reservations r ON r.id = k.reservation AND r.state IN ('held', 'running') "
    "LEFT JOIN entitlements e ON e.account = k.account AND e.release_key = k.release_key "
    "WHERE k.account = ? AND k.key = ?"
)


class SQLiteBooks(SQLiteWrites):
    """A writing transaction after the other; nothing needs a lock, since there is one writer.

    Args:
        db: the writer's connection.
        clock: the database's clock, in microseconds since 1970 UTC.
        step: called with the name of each step, for fault tests.
        guard_us: how far the clock may run ahead.
    """

    def __init__(
        self, db: apsw.Connection, clock: Callable[[], int], step: Callable[[str], None], guard_us: int = GUARD_US
    ) -> None:
        super().__init__(db, step)
        self._read_clock, self._guard_us = clock, guard_us
        self.load()

    def load(self) -> None:
        """Read again what is kept in memory: after opening and after a rollback."""
        row = one_of(self.db, "SELECT seq, hash FROM ledger ORDER BY seq DESC LIMIT 1")
        self.head = Head(0, *row) if row else Head.empty()
        ((seen,),) = all_of(self.db, "SELECT value FROM meta WHERE name = 'seen_us'")
        raw = self._read_clock()
        self.clock = Clock(raw, raw if seen is None else seen, self._guard_us)
        self.recorded_us = seen
        self._pages = []

    def tick(self) -> None:
        """Look at the clock: once for each operation."""
        self.clock = Clock(self._read_clock(), self.clock.now_us, self._guard_us)
        self._pages = []

    def trust_clock(self) -> None:
        """See `Books.trust_clock`."""
        self.clock = Clock(self.clock.raw_us, max(self.clock.raw_us, self.clock.seen_us), self._guard_us)

    def record_seen(self) -> None:
        """Keep the latest time seen; before a commit."""
        if self.clock.now_us != self.recorded_us:
            self.db.execute("UPDATE meta SET value = ? WHERE name = 'seen_us'", (self.clock.now_us,))
            self.recorded_us = self.clock.now_us

    # ------------------------------------------------------------------------------------------------ beginning

    def begin_claim(self, claim: Claim) -> ClaimFacts:
        """See `Books.begin_claim`."""
        known = self._reservation(claim.reservation)
        keyed = self._keyed(claim)
        path, forfeits = self._path(claim.account, claim.release_key)
        release = self._release(claim.release_key)
        return ClaimFacts(path, known, keyed, release, forfeits)

    def begin_start(self, reservation: str) -> EventFacts:
        """See `Books.begin_start`; there is one chain, so that no account has to be read for its line."""
        return EventFacts([], self._reservation(reservation))

    def begin_settle(self, reservation: str, fingerprint: Fingerprint | None) -> EventFacts:
        """See `Books.begin_settle`."""
        facts = self.begin_end(reservation)
        if facts.kept is None:
            return facts
        head = None
        if fingerprint is not None:
            head = one_of(self.db, "SELECT digest FROM fingerprints WHERE head_key = ?", (fingerprint.head_key,))
        return EventFacts(facts.path, facts.kept, self._release(facts.kept.release_key), head[0] if head else None)

    def begin_end(self, reservation: str) -> EventFacts:
        """See `Books.begin_end`."""
        kept = self._reservation(reservation)
        return EventFacts([] if kept is None else self._path(kept.account, kept.release_key)[0], kept)

    def begin_creation(self, account: Account) -> bool:
        """See `Books.begin_creation`."""
        if account.parent is not None:
            self.begin_account(account.parent)
        return one_of(self.db, "SELECT 1 FROM accounts WHERE id = ?", (account.id,)) is not None

    def begin_account(self, account: str) -> Page:
        """See `Books.begin_account`."""
        row = one_of(self.db, f"SELECT {ACCOUNT} FROM accounts WHERE id = ?", (account,))
        if row is None:
            raise UnknownAccount(account)
        page = page_of(row)
        self._pages = [page]
        return page

    def begin_store(self) -> None:
        """See `Books.begin_store`."""

    # ------------------------------------------------------------------------------------------------ reading

    def closed_buckets(self, account: str) -> list[Bucket]:
        """See `Books.closed_buckets`."""
        query = "SELECT bucket, end_us, counting, tally FROM buckets WHERE account = ? ORDER BY bucket"
        rows = all_of(self.db, query, (account,))
        return [Bucket(number, end_us, bool(counting), tally_of(text)) for number, end_us, counting, text in rows]

    def forfeits(self, accounts: Sequence[str], release_key: bytes) -> list[tuple[str, Fund]]:
        """See `Books.forfeits`."""
        query = "SELECT number, bucket, amount FROM forfeits WHERE account = ? AND release_key = ? ORDER BY number"
        return [
            (account, Fund(number, bucket, amount_of(text)))
            for account in accounts
            for number, bucket, text in all_of(self.db, query, (account, release_key))
        ]

    def act_digest(self, act: str) -> bytes | None:
        """See `Books.act_digest`."""
        row = one_of(self.db, "SELECT digest FROM acts WHERE id = ?", (act,))
        return None if row is None else row[0]

    def due(self) -> list[str]:
        """Accounts whose period has moved on."""
        now_us = max(self.clock.raw_us, self.clock.seen_us)
        return [name for (name,) in all_of(self.db, "SELECT id FROM accounts WHERE end_us <= ?", (now_us,))]

    def dead(self) -> list[str]:
        """Reservations that are over, those first whose lease ended first; at most a thousand."""
        query = (
            "SELECT id FROM reservations WHERE state IN ('held', 'running') AND lease_until_us <= ? "
            "ORDER BY lease_until_us, id LIMIT 1000"
        )
        return [name for (name,) in all_of(self.db, query, (self.clock.now_us,))]

    # ------------------------------------------------------------------------------------------------ inside

    def _path(self, account: str, release_key: bytes) -> tuple[list[Page], bool]:
        """The account and its parents, and whether one of them has forfeited something for the release."""
        rows = all_of(self.db, _PATH, (account, release_key))
        self._pages = [page_of(row[:7]) for row in rows]
        for page, row in zip(self._pages, rows, strict=True):
            page.paid = bool(row[7])
        return self._pages, any(row[8] for row in rows)

    def _reservation(self, reservation: str) -> Kept | None:
        row = one_of(self.db, f"SELECT {KEPT} FROM reservations WHERE id = ?", (reservation,))
        return None if row is None else kept_of(row)

    def _keyed(self, claim: Claim) -> Keyed | None:
        row = None if claim.key is None else one_of(self.db, _KEYED, (claim.account, claim.key))
        if row is None:
            return None
        digest, reservation, lease_until_us, paid = row
        answered = None if paid in {None, claim.release_key} else self._release(paid)
        return Keyed(digest, reservation, lease_until_us, answered)

    def _release(self, release_key: bytes) -> StoredRelease | None:
        row = one_of(self.db, f"SELECT {RELEASE} FROM releases WHERE release_key = ?", (release_key,))
        return None if row is None else release_of(row)
