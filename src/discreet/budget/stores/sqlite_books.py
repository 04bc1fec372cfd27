"""The SQLite store's writing transaction: what all its operations share. Only the writer's thread comes here."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from discreet.budget.amount import EMPTY, Amount, Tally
from discreet.budget.errors import UnknownAccount
from discreet.budget.ledger import Entry, Head, head_of, next_line
from discreet.budget.model import StoredRelease
from discreet.budget.periods import GUARD_US, NEVER_US, Clock, bucket_end, counts, stops_us
from discreet.budget.settings import canonical
from discreet.budget.states import State
from discreet.budget.stores.sqlite_rows import (
    Kept,
    all_of,
    amount_of,
    cost_of,
    holds_of,
    one_of,
    tally_of,
    tally_text,
    terms_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import apsw

    from discreet.budget.stores.sqlite_rows import Terms

_ACCOUNT = "SELECT id, settings, bucket, end_us, tally, older, 0, 0 FROM accounts WHERE id = ?1"

_PATH = """
WITH RECURSIVE path (place, id) AS (
    SELECT 0, ?1
    UNION ALL
    SELECT place + 1, parent FROM path JOIN accounts USING (id) WHERE parent IS NOT NULL
)
SELECT a.id, a.settings, a.bucket, a.end_us, a.tally, a.older,
    EXISTS (SELECT 1 FROM entitlements e WHERE e.account = a.id AND e.release_key = ?2),
    EXISTS (SELECT 1 FROM forfeits f WHERE f.account = a.id AND f.release_key = ?2)
FROM path JOIN accounts a USING (id) ORDER BY place
"""

_KEPT = (
    "SELECT id, account, release_key, worst, holds, state, lease_until_us, lease_ms, charged FROM reservations "
    "WHERE id = ?"
)


@dataclass(slots=True)
class Page:
    """An account's row, while it is worked on.

    Args:
        id: its name.
        settings: as text.
        bucket: number of the open bucket.
        end_us: when it ends.
        tally: what it holds.
        older: what the closed buckets hold that count.
        paid: True if the account has paid for the release in question.
        forfeits: True if it forfeited for it.
    """

    id: str
    settings: str
    bucket: int
    end_us: int
    tally: Tally
    older: Tally
    paid: bool = False
    forfeits: bool = False

    @property
    def terms(self) -> Terms:
        """Its settings."""
        return terms_of(self.settings)

    @property
    def spent(self) -> Amount:
        """What counts against its limit."""
        return self.tally.total + self.older.total


class Books:
    """A writing transaction.

    Args:
        db: the writer's connection.
        clock: the database's clock, in microseconds since 1970 UTC.
        step: called with the name of each step, for fault tests.
        guard_us: how far the clock may run ahead.
    """

    def __init__(
        self, db: apsw.Connection, clock: Callable[[], int], step: Callable[[str], None], guard_us: int = GUARD_US
    ) -> None:
        self.db, self.step = db, step
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

    def tick(self) -> None:
        """Look at the clock: once for each operation."""
        self.clock = Clock(self._read_clock(), self.clock.now_us, self._guard_us)

    def trust_clock(self) -> None:
        """Take the time as it is."""
        self.clock = Clock(self.clock.raw_us, max(self.clock.raw_us, self.clock.seen_us), self._guard_us)

    def record_seen(self) -> None:
        """Keep the latest time seen; before a commit."""
        if self.clock.now_us != self.recorded_us:
            self.db.execute("UPDATE meta SET value = ? WHERE name = 'seen_us'", (self.clock.now_us,))
            self.recorded_us = self.clock.now_us

    def append(
        self,
        kind: str,
        reservation: str | None = None,
        detail: str = "{}",
        changes: Sequence[tuple[str, int, Tally]] = (),
    ) -> None:
        """Add a line to the ledger."""
        line = next_line(self.head, Entry(self.clock.now_us, kind, reservation, detail, changes))
        self.db.execute("INSERT INTO ledger VALUES (?, ?, ?)", (line.seq, line.body, line.hash))
        self.head = head_of(line)
        self.step("ledger")

    # ------------------------------------------------------------------------------------------------ accounts

    def page(self, account: str) -> Page:
        """The account's row.

        Raises:
            UnknownAccount: there is none.
        """
        page = page_of(self.db, account)
        if page is None:
            raise UnknownAccount(account)
        return page

    def path(self, account: str, release_key: bytes) -> list[Page]:
        """The account's row and those of its parents, with what they paid and forfeited for the release.

        Raises:
            UnknownAccount: there is none.
        """
        pages = [_page(row) for row in all_of(self.db, _PATH, (account, release_key))]
        if not pages:
            raise UnknownAccount(account)
        return pages

    def save(self, page: Page) -> None:
        """Write a row back."""
        self.db.execute("UPDATE accounts SET tally = ? WHERE id = ?", (tally_text(page.tally), page.id))
        self.step("account")

    def save_older(self, page: Page) -> None:
        """Write back what closed buckets hold: it seldom changes."""
        self.db.execute("UPDATE accounts SET older = ? WHERE id = ?", (tally_text(page.older), page.id))

    def add(self, page: Page, bucket: int, change: Tally) -> None:
        """Change a bucket of *page*; the caller saves the open one."""
        if bucket == page.bucket:
            page.tally += change
            return
        ((counting, text),) = all_of(
            self.db, "SELECT counting, tally FROM buckets WHERE account = ? AND bucket = ?", (page.id, bucket)
        )
        self.db.execute(
            "UPDATE buckets SET tally = ? WHERE account = ? AND bucket = ?",
            (tally_text(tally_of(text) + change), page.id, bucket),
        )
        if counting:
            page.older += change
            self.save_older(page)

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
        now_us, period = self.clock.now_us, page.terms.period
        self.db.execute(
            "INSERT INTO buckets VALUES (?, ?, ?, 1, ?)", (page.id, page.bucket, closed_at_us, tally_text(page.tally))
        )
        older = EMPTY
        for bucket, end_us, counting, text in all_of(
            self.db, "SELECT bucket, end_us, counting, tally FROM buckets WHERE account = ?", (page.id,)
        ):
            still = counts(period, end_us, now_us)
            if still:
                older += tally_of(text)
            if still != bool(counting):
                self.db.execute(
                    "UPDATE buckets SET counting = ? WHERE account = ? AND bucket = ?", (still, page.id, bucket)
                )
        page.bucket, page.end_us, page.tally, page.older = page.bucket + 1, bucket_end(period, now_us), EMPTY, older
        self.db.execute(
            "UPDATE accounts SET settings = ?, bucket = ?, end_us = ? WHERE id = ?",
            (page.settings, page.bucket, page.end_us, page.id),
        )
        self.save(page)
        self.save_older(page)
        opened = {"account": json.loads(page.settings), "bucket": page.bucket, "end_us": page.end_us}
        self.append(kind, detail=canonical(detail | opened))

    def closed(self, page: Page) -> list[tuple[int, int, Tally]]:
        """Number, end and tally of the closed buckets that count, oldest first."""
        return closed_buckets(self.db, page.id)

    def resets_us(self, page: Page) -> int | None:
        """When the first charge of *page* stops counting."""
        return resets_us(page, self.closed(page), self.clock.now_us)

    # ------------------------------------------------------------------------------------------------ reservations

    def kept(self, reservation: str) -> Kept | None:
        """The reservation's row."""
        return kept_of(self.db, reservation)


def page_of(db: apsw.Connection, account: str) -> Page | None:
    """The account's row."""
    row = one_of(db, _ACCOUNT, (account,))
    return None if row is None else _page(row)


def closed_buckets(db: apsw.Connection, account: str) -> list[tuple[int, int, Tally]]:
    """See `Books.closed`."""
    rows = all_of(
        db, "SELECT bucket, end_us, tally FROM buckets WHERE account = ? AND counting ORDER BY bucket", (account,)
    )
    return [(bucket, end_us, tally_of(text)) for bucket, end_us, text in rows]


def resets_us(page: Page, closed: list[tuple[int, int, Tally]], now_us: int) -> int | None:
    """When the first charge stops counting; None if never, or if there is none."""
    for _, end_us, tally in [*closed, (page.bucket, page.end_us, page.tally)]:
        if tally.total:
            return stops_us(page.terms.period, end_us, now_us)
    return None


def kept_of(db: apsw.Connection, reservation: str) -> Kept | None:
    """See `Books.kept`."""
    row = one_of(db, _KEPT, (reservation,))
    if row is None:
        return None
    name, account, release_key, worst, holds, state, until_us, lease_ms, charged = row
    return Kept(
        name,
        account,
        release_key,
        amount_of(worst),
        holds_of(holds),
        State(state),
        until_us,
        lease_ms,
        None if charged is None else amount_of(charged),
    )


def release_of(db: apsw.Connection, release_key: bytes) -> StoredRelease | None:
    """The stored release."""
    row = one_of(db, "SELECT result, cost, time_us FROM releases WHERE release_key = ?", (release_key,))
    return None if row is None else StoredRelease(release_key, row[0], cost_of(amount_of(row[1])), row[2])


def _page(row: tuple[Any, ...]) -> Page:
    name, settings, bucket, end_us, tally, older, paid, forfeits = row
    return Page(name, settings, bucket, end_us, tally_of(tally), tally_of(older), bool(paid), bool(forfeits))
