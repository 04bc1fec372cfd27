"""The PostgreSQL store's writing transaction: three statements, whatever is asked.

The first locks the accounts, the second reads what is needed, the rules decide, and the third writes everything. What
is read after the locks is read by a statement of its own, which in READ COMMITTED sees all that those who held the
locks before have committed.
"""

# ruff: noqa: S608 - statements are put together here, from constants; values are bound

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from discreet.budget.amount import EMPTY
from discreet.budget.errors import UnknownAccount
from discreet.budget.ledger import Entry, Head, head_of, next_line
from discreet.budget.periods import GUARD_US, NEVER_US, SECOND_US, Clock, bucket_end, counts
from discreet.budget.settings import canonical
from discreet.budget.stores.postgres_rows import ACCOUNT, Bucket, page_of, tally_array, tally_of
from discreet.errors import InvariantViolated

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import psycopg

    from discreet.budget.amount import Tally
    from discreet.budget.ledger import Line
    from discreet.budget.stores.postgres_rows import Page

_LOCK = (
    f"SELECT {ACCOUNT} FROM budget_accounts a WHERE a.id = ANY ({{}}::text[]) "
    "ORDER BY a.depth DESC FOR NO KEY UPDATE"  # whoever holds a row waits only for rows further up
)

ACCOUNT_ALONE = f"SELECT {ACCOUNT} FROM budget_accounts a WHERE a.id = %s FOR NO KEY UPDATE"
"""Locks an account."""

ACCOUNT_OF_RESERVATION = (
    f"SELECT {ACCOUNT} FROM budget_accounts a "
    "WHERE a.id = (SELECT q.account FROM budget_reservations q WHERE q.id = %s) FOR NO KEY UPDATE"
)
"""Locks the account that has a reservation."""

PATH = _LOCK.format("(SELECT p.path FROM budget_accounts p WHERE p.id = %s)")
"""Locks an account and its parents, that account first."""

PATH_OF_RESERVATION = _LOCK.format(
    "(SELECT p.path FROM budget_reservations q JOIN budget_accounts p ON p.id = q.account WHERE q.id = %s)"
)
"""Locks the path of the account that has a reservation."""

_NOW = "SELECT budget_now_us(), seen_us FROM budget_meta"

_SAVE = """
UPDATE budget_accounts AS a
SET settings = v.settings, seq = v.seq, hash = v.hash, bucket = v.bucket, end_us = v.end_us, tally = v.tally,
    older = v.older
FROM (VALUES {}) AS v (id, settings, seq, hash, bucket, end_us, tally, older) WHERE a.id = v.id"""

_SAVE_BUCKETS = """
INSERT INTO budget_buckets (account, bucket, end_us, counting, tally) VALUES {}
ON CONFLICT (account, bucket) DO UPDATE SET counting = excluded.counting, tally = excluded.tally"""

_SEEN_EVERY_US = SECOND_US  # so that not everybody waits for the one row that holds it


class Books:
    """A writing transaction.

    Args:
        db: a connection of this transaction's own, which begins with the first statement.
        seen_us: the latest time that this process has seen.
        step: called with the name of each step, for fault tests.
        guard_us: how far the clock may run ahead.
    """

    def __init__(
        self, db: psycopg.Connection[Any], seen_us: int, step: Callable[[str], None], guard_us: int = GUARD_US
    ) -> None:
        self._cursor, self._step = db.cursor(), step  # one for all: making one costs as much as a small statement
        self.clock = Clock(seen_us, seen_us, guard_us)
        self._process_seen_us, self._recorded_us, self._guard_us = seen_us, seen_us, guard_us
        self._pages: list[Page] = []
        self._head: Head | None = None
        self._lines: list[Line] = []
        self._writes: list[tuple[str, Sequence[Any]]] = []

    def begin(
        self, path: str = "", of: Sequence[Any] = (), facts: str = _NOW, values: Sequence[Any] | dict[str, Any] = ()
    ) -> tuple[list[Page], tuple[Any, ...]]:
        """Begin, lock the accounts of a path, read the clock and then what is asked of them.

        Args:
            path: one of the four above, or nothing.
            of: its value.
            facts: a query for one row that begins with the clock and the last time seen.
            values: of *facts*.

        Returns:
            the accounts, that at the beginning of the path first, and the rest of the row.
        """
        if path:
            self._pages = [page_of(row) for row in self._cursor.execute(path, of)]
        return self._pages, self._facts(facts, values)

    def begin_store(self) -> None:
        """Begin, and lock the chain that belongs to no account."""
        ((seq, hash_),) = self._cursor.execute("SELECT seq, hash FROM budget_meta FOR NO KEY UPDATE")
        self._head = Head(0, seq, hash_)
        self._facts(_NOW)

    def begin_account(self, account: str) -> Page:
        """Begin, and lock one account.

        Raises:
            UnknownAccount: there is none.
        """
        pages, _ = self.begin(ACCOUNT_ALONE, (account,))
        if not pages:
            raise UnknownAccount(account)
        return pages[0]

    def trust_clock(self) -> None:
        """Take the time as it is."""
        self.clock = Clock(self.clock.raw_us, max(self.clock.raw_us, self.clock.seen_us), self._guard_us)

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """What *query* finds, after the locks."""
        return self._cursor.execute(query, values).fetchall()

    def write(self, statement: str, values: Sequence[Any]) -> None:
        """Do this when the transaction commits. No two statements of a transaction may write the same row."""
        self._writes.append((statement, values))

    def append(
        self,
        page: Page | None,
        kind: str,
        reservation: str | None = None,
        detail: str = "{}",
        changes: Sequence[tuple[str, int, Tally]] = (),
    ) -> None:
        """Add a line to the chain of *page*, or to that of no account."""
        head = self._head if page is None else page.head
        if head is None:
            raise InvariantViolated("a line is added to a chain that is not locked")
        line = next_line(head, Entry(self.clock.now_us, kind, reservation, detail, changes))
        self._lines.append(line)
        if page is None:
            self._head = head_of(line)
        else:
            page.head, page.changed = head_of(line), True

    def flush(self) -> None:
        """Write all that was decided, in one statement, which the caller commits."""
        self._gather()
        if self._writes:
            parts = [f"w{n} AS ({statement})" for n, (statement, _) in enumerate(self._writes)]
            self._cursor.execute(f"WITH {', '.join(parts)} SELECT", [v for _, values in self._writes for v in values])

    # ------------------------------------------------------------------------------------------------ accounts

    def change(self, page: Page, bucket: int, change: Tally) -> None:
        """Change a bucket of *page*."""
        page.changed = True
        if bucket == page.bucket:
            page.tally += change
            return
        closed = next(each for each in self.closed(page) if each.number == bucket)
        closed.tally += change
        page.touched[bucket] = closed
        if closed.counting:
            page.older += change

    def closed(self, page: Page) -> list[Bucket]:
        """All closed buckets, oldest first."""
        if page.closed is None:
            rows = self.rows(
                "SELECT bucket, end_us, counting, tally::text FROM budget_buckets WHERE account = %s ORDER BY bucket",
                (page.id,),
            )
            page.closed = [Bucket(number, end_us, counting, tally_of(text)) for number, end_us, counting, text in rows]
        return page.closed

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
        opened = {"account": json.loads(page.settings), "bucket": page.bucket, "end_us": page.end_us}
        self.append(page, kind, detail=canonical(detail | opened))

    # ------------------------------------------------------------------------------------------------ inside

    def _facts(self, facts: str, values: Sequence[Any] | dict[str, Any] = ()) -> tuple[Any, ...]:
        ((raw_us, self._recorded_us, *rest),) = self._cursor.execute(facts, values)
        self.clock = Clock(raw_us, max(self._recorded_us, self._process_seen_us), self._guard_us)
        self._step("locked")
        return tuple(rest)

    def record_seen(self) -> None:
        """Keep the latest time seen, unless somebody else is about to."""
        self.write(
            "UPDATE budget_meta SET seen_us = greatest(seen_us, %s) "
            "WHERE id IN (SELECT id FROM budget_meta FOR NO KEY UPDATE SKIP LOCKED)",
            (self.clock.now_us,),
        )
        self._recorded_us = self.clock.now_us

    def _gather(self) -> None:
        """Turn what changed into statements."""
        pages = [page for page in self._pages if page.changed]
        if pages:
            one = "(%s, %s, %s, %s::bytea, %s, %s, %s::numeric[], %s::numeric[])"
            values: list[Any] = []
            for page in pages:
                values += (page.id, page.settings, page.head.seq, page.head.hash, page.bucket, page.end_us)
                values += (tally_array(page.tally), tally_array(page.older))
            self.write(_SAVE.format(", ".join([one] * len(pages))), values)
        buckets = [(page.id, bucket) for page in pages for bucket in page.touched.values()]
        if buckets:
            values = []
            for account, bucket in buckets:
                values += (account, bucket.number, bucket.end_us, bucket.counting, tally_array(bucket.tally))
            self.write(_SAVE_BUCKETS.format(", ".join(["(%s, %s, %s, %s, %s::numeric[])"] * len(buckets))), values)
        if self._lines:
            lines = [value for line in self._lines for value in (line.chain, line.seq, line.body, line.hash)]
            rows = ", ".join(["(%s, %s, %s, %s)"] * len(self._lines))
            self.write(f"INSERT INTO budget_ledger (chain, seq, body, hash) VALUES {rows}", lines)
        if self._head is not None:
            self.write(
                "UPDATE budget_meta SET seq = %s, hash = %s, seen_us = greatest(seen_us, %s)",
                (self._head.seq, self._head.hash, self.clock.now_us),
            )
        elif self._writes and self.clock.now_us >= self._recorded_us + _SEEN_EVERY_US:
            self.record_seen()
