"""The writing half of the PostgreSQL store's transaction: what was decided is gathered and written in one statement."""

# ruff: noqa: S608 - statements are put together here, from constants; values are bound

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from discreet.budget.fixed_point import Amount
from discreet.budget.ledger import Entry, head_of, next_line
from discreet.budget.periods import SECOND_US
from discreet.budget.stores.books import Books
from discreet.budget.stores.postgres_rows import amount_array, failures_array, tally_array
from discreet.budget.stores.rows import holds_text
from discreet.errors import InvariantViolated

if TYPE_CHECKING:
    from collections.abc import Sequence

    import psycopg

    from discreet.budget.fixed_point import Tally
    from discreet.budget.ledger import Head, Line
    from discreet.budget.model import Account, Claim, Fingerprint, Hold, State, StoredRelease
    from discreet.budget.stores.rows import Fund, Kept, Page

_SAVE = """
UPDATE budget_accounts AS a SET seq = v.seq, hash = v.hash, tally = v.tally
FROM (VALUES {}) AS v (id, seq, hash, tally) WHERE a.id = v.id"""

_SAVE_ALL = """
UPDATE budget_accounts AS a
SET seq = v.seq, hash = v.hash, tally = v.tally, settings = v.settings, bucket = v.bucket, end_us = v.end_us,
    older = v.older, failures = v.failures
FROM (VALUES {}) AS v (id, seq, hash, tally, settings, bucket, end_us, older, failures) WHERE a.id = v.id"""

_SAVE_BUCKETS = """
INSERT INTO budget_buckets (account, bucket, end_us, counting, tally) VALUES {}
ON CONFLICT (account, bucket) DO UPDATE SET counting = excluded.counting, tally = excluded.tally"""

_SEEN_EVERY_US = SECOND_US  # so that not everybody waits for the one row that holds it


class PostgresWrites(Books):
    """What a transaction is going to write.

    Args:
        db: a connection of this transaction's own.
        recorded_us: the last time seen that the database has.
    """

    def __init__(self, db: psycopg.Connection[Any], recorded_us: int) -> None:
        self._db, self._recorded_us = db, recorded_us
        self._pages: list[Page] = []
        self._heads: dict[str | None, Head] = {}
        self._parent_path: list[str] = []
        self._lines: list[Line] = []
        self._records = 0
        self._writes: list[tuple[str, Sequence[Any]]] = []

    def append(
        self,
        page: Page | None,
        kind: str,
        reservation: str | None = None,
        detail: str = "{}",
        changes: Sequence[tuple[str, int, Tally]] = (),
    ) -> None:
        """See `Books.append`."""
        chain = None if page is None else page.id
        if chain not in self._heads:
            raise InvariantViolated("a line is added to a chain that is not locked")
        line = next_line(self._heads[chain], Entry(self.clock.now_us, kind, reservation, detail, changes))
        self._lines.append(line)
        self._heads[chain] = head_of(line)
        if page is not None:
            page.changed = True

    def add_account(self, page: Page, account: Account) -> None:  # noqa: ARG002 - the parent's path was read before
        """See `Books.add_account`."""
        head, tally, path = self._heads[page.id], tally_array(page.tally), self._parent_path
        self._add(
            "INSERT INTO budget_accounts (id, path, depth, settings, chain, seq, hash, bucket, end_us, tally, older) "
            "VALUES (%s, %s::text[], %s, %s, %s, %s, %s, 0, %s, %s::numeric[], %s::numeric[])",
            (
                page.id,
                [page.id, *path],
                len(path),
                page.settings,
                head.chain,
                head.seq,
                head.hash,
                page.end_us,
                tally,
                tally,
            ),
        )

    def add_reservation(self, kept: Kept) -> None:
        """See `Books.add_reservation`."""
        self._add(
            "INSERT INTO budget_reservations (id, account, release_key, worst, holds, state, lease_until_us, lease_ms) "
            "VALUES (%s, %s, %s, %s::numeric[], %s, %s, %s, %s)",
            (
                kept.id,
                kept.account,
                kept.release_key,
                amount_array(kept.worst),
                holds_text(kept.holds),
                kept.state.value,
                kept.lease_until_us,
                kept.lease_ms,
            ),
        )

    def update_reservation(
        self, reservation: str, state: State, lease_until_us: int | None = None, charged: Amount | None = None
    ) -> None:
        """See `Books.update_reservation`."""
        self._add(
            "UPDATE budget_reservations SET state = %s, lease_until_us = coalesce(%s::bigint, lease_until_us), "
            "charged = coalesce(%s::numeric[], charged) WHERE id = %s",
            (state.value, lease_until_us, None if charged is None else amount_array(charged), reservation),
        )

    def remember_key(self, claim: Claim) -> None:
        """See `Books.remember_key`."""
        if claim.key is not None:
            self._add(
                "INSERT INTO budget_keys (account, key, digest, reservation, release_key) "
                "VALUES (%s, %s, %s::bytea, %s, %s::bytea) ON CONFLICT (account, key) "
                "DO UPDATE SET reservation = excluded.reservation, release_key = excluded.release_key",
                (claim.account, claim.key, claim.digest, claim.reservation, claim.release_key),
            )

    def add_release(self, release: StoredRelease) -> None:
        """See `Books.add_release`."""
        cost = amount_array(Amount.of(release.cost))
        self._add(
            "INSERT INTO budget_releases (release_key, result, cost, time_us) VALUES (%s, %s, %s::numeric[], %s)",
            (release.release_key, release.result, cost, release.time_us),
        )

    def add_fingerprint(self, fingerprint: Fingerprint) -> None:
        """See `Books.add_fingerprint`."""
        statement = "INSERT INTO budget_fingerprints (head_key, digest) VALUES (%s, %s)"
        self._add(statement, (fingerprint.head_key, fingerprint.digest))

    def entitle(self, accounts: Sequence[str], release_key: bytes) -> None:
        """See `Books.entitle`."""
        if accounts:
            rows = ", ".join(["(%s, %s, %s)"] * len(accounts))
            values = [value for account in accounts for value in (account, release_key, self.clock.now_us)]
            self._add(f"INSERT INTO budget_entitlements (account, release_key, time_us) VALUES {rows}", values)

    def add_forfeit(self, hold: Hold, release_key: bytes, amount: Amount) -> None:
        """See `Books.add_forfeit`."""
        self._add(
            "INSERT INTO budget_forfeits (account, release_key, bucket, amount) VALUES (%s, %s, %s, %s::numeric[])",
            (hold.account, release_key, hold.bucket, amount_array(amount)),
        )

    def drop_forfeit(self, fund: Fund) -> None:
        """See `Books.drop_forfeit`."""
        self._add("DELETE FROM budget_forfeits WHERE number = %s", (fund.number,))

    def add_act(self, act: str, digest: bytes) -> None:
        """See `Books.add_act`; of two who do it at once, the slower one is asked again, and finds it done."""
        self._add("INSERT INTO budget_acts (id, digest) VALUES (%s, %s)", (act, digest))

    def put_record(self, kind: str, name: str, text: str | None) -> None:
        """See `Books.put_record`."""
        if text is None:
            self._add("DELETE FROM budget_records WHERE kind = %s AND name = %s", (kind, name))
        else:
            self._add(
                "INSERT INTO budget_records (kind, name, text) VALUES (%s, %s, %s) "
                "ON CONFLICT (kind, name) DO UPDATE SET text = excluded.text",
                (kind, name, text),
            )
        self._records = 1

    def record_seen(self) -> None:
        """Keep the latest time seen, unless somebody else is about to."""
        self._add(
            "UPDATE budget_meta SET seen_us = greatest(seen_us, %s) "
            "WHERE id IN (SELECT id FROM budget_meta FOR NO KEY UPDATE SKIP LOCKED)",
            (self.clock.now_us,),
        )
        self._recorded_us = self.clock.now_us

    def flush(self) -> None:
        """See `Books.flush`: in one statement, which the caller commits."""
        self._gather()
        if self._writes:
            parts = [f"w{n} AS ({statement})" for n, (statement, _) in enumerate(self._writes)]
            self._db.execute(f"WITH {', '.join(parts)} SELECT", [v for _, values in self._writes for v in values])

    # ------------------------------------------------------------------------------------------------ inside

    def _add(self, statement: str, values: Sequence[Any]) -> None:
        """Do this when the transaction commits. No two statements of a transaction may write the same row."""
        self._writes.append((statement, values))

    def _gather(self) -> None:
        """Turn what changed into statements."""
        pages = [page for page in self._pages if page.changed]
        self._save(pages)
        self._save_buckets(pages)
        if self._lines:
            lines = [value for line in self._lines for value in (line.chain, line.seq, line.body, line.hash)]
            rows = ", ".join(["(%s, %s, %s, %s)"] * len(self._lines))
            self._add(f"INSERT INTO budget_ledger (chain, seq, body, hash) VALUES {rows}", lines)
        if None in self._heads:
            head = self._heads[None]
            self._add(
                "UPDATE budget_meta SET seq = %s, hash = %s, seen_us = greatest(seen_us, %s), records = records + %s",
                (head.seq, head.hash, self.clock.now_us, self._records),
            )
        elif self._writes and self.clock.now_us >= self._recorded_us + _SEEN_EVERY_US:
            self.record_seen()

    def _save(self, pages: Sequence[Page]) -> None:
        """Write accounts; nearly always only what their open buckets hold."""
        statement, one = _SAVE, "(%s, %s, %s::bytea, %s::numeric[])"
        whole = not all(page.only_tally for page in pages)
        if whole:
            statement, one = _SAVE_ALL, f"{one[:-1]}, %s, %s, %s, %s::numeric[], %s::bigint[])"
        values: list[Any] = []
        for page in pages:
            head = self._heads[page.id]
            values += (page.id, head.seq, head.hash, tally_array(page.tally))
            if whole:
                values += (page.settings, page.bucket, page.end_us)
                values += (tally_array(page.older), failures_array(page.failures))
        if values:
            self._add(statement.format(", ".join([one] * len(pages))), values)

    def _save_buckets(self, pages: Sequence[Page]) -> None:
        """Write closed buckets."""
        values: list[Any] = []
        for page in pages:
            for bucket in page.touched.values():
                values += (page.id, bucket.number, bucket.end_us, bucket.counting, tally_array(bucket.tally))
        if values:
            one = "(%s, %s, %s, %s, %s::numeric[])"
            self._add(_SAVE_BUCKETS.format(", ".join([one] * (len(values) // 5))), values)
