"""The writing half of the SQLite store's transaction. Only the writer's thread comes here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from discreet.budget.fixed_point import Amount
from discreet.budget.ledger import Entry, Head, head_of, next_line
from discreet.budget.stores.books import Books
from discreet.budget.stores.rows import holds_text
from discreet.budget.stores.sqlite_rows import amount_text, failures_text, tally_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import apsw

    from discreet.budget.fixed_point import Tally
    from discreet.budget.model import Account, Claim, Fingerprint, Hold, State, StoredRelease
    from discreet.budget.stores.rows import Fund, Kept, Page


class SQLiteWrites(Books):
    """What a transaction writes, as soon as it is decided; balances when all is.

    Args:
        db: the writer's connection.
        step: called with the name of each step, for fault tests.
    """

    def __init__(self, db: apsw.Connection, step: Callable[[str], None]) -> None:
        self.db, self._step = db, step
        self.head = Head.empty()
        self._pages: list[Page] = []

    def append(
        self,
        page: Page | None,  # noqa: ARG002 - there is one chain
        kind: str,
        reservation: str | None = None,
        detail: str = "{}",
        changes: Sequence[tuple[str, int, Tally]] = (),
    ) -> None:
        """See `Books.append`."""
        line = next_line(self.head, Entry(self.clock.now_us, kind, reservation, detail, changes))
        self.db.execute("INSERT INTO ledger VALUES (?, ?, ?)", (line.seq, line.body, line.hash))
        self.head = head_of(line)
        self._step("ledger")

    def add_account(self, page: Page, account: Account) -> None:
        """See `Books.add_account`."""
        self.db.execute(
            "INSERT INTO accounts (id, parent, settings, bucket, end_us, tally, older) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                page.id,
                account.parent,
                page.settings,
                page.bucket,
                page.end_us,
                tally_text(page.tally),
                tally_text(page.older),
            ),
        )

    def add_reservation(self, kept: Kept) -> None:
        """See `Books.add_reservation`."""
        self.db.execute(
            "INSERT INTO reservations VALUES (?, ?, ?, ?, ?, ?, ?, ?, NULL)",
            (
                kept.id,
                kept.account,
                kept.release_key,
                amount_text(kept.worst),
                holds_text(kept.holds),
                kept.state.value,
                kept.lease_until_us,
                kept.lease_ms,
            ),
        )
        self._step("reservation")

    def update_reservation(
        self, reservation: str, state: State, lease_until_us: int | None = None, charged: Amount | None = None
    ) -> None:
        """See `Books.update_reservation`."""
        self.db.execute(
            "UPDATE reservations SET state = ?, lease_until_us = coalesce(?, lease_until_us), "
            "charged = coalesce(?, charged) WHERE id = ?",
            (state.value, lease_until_us, None if charged is None else amount_text(charged), reservation),
        )

    def remember_key(self, claim: Claim) -> None:
        """See `Books.remember_key`."""
        if claim.key is not None:
            self.db.execute(
                "INSERT INTO keys VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE "
                "SET reservation = excluded.reservation, release_key = excluded.release_key",
                (claim.account, claim.key, claim.digest, claim.reservation, claim.release_key),
            )

    def add_release(self, release: StoredRelease) -> None:
        """See `Books.add_release`."""
        cost = amount_text(Amount.of(release.cost))
        self.db.execute(
            "INSERT INTO releases VALUES (?, ?, ?, ?)", (release.release_key, release.result, cost, release.time_us)
        )
        self._step("release")

    def add_fingerprint(self, fingerprint: Fingerprint) -> None:
        """See `Books.add_fingerprint`."""
        self.db.execute("INSERT INTO fingerprints VALUES (?, ?)", (fingerprint.head_key, fingerprint.digest))
        self._step("fingerprint")

    def entitle(self, accounts: Sequence[str], release_key: bytes) -> None:
        """See `Books.entitle`; their number is that of the line, of which each account has one for a release."""
        for account in accounts:
            self.db.execute(
                "INSERT INTO entitlements (account, release_key, number, time_us) VALUES (?, ?, ?, ?)",
                (account, release_key, self.head.seq + 1, self.clock.now_us),
            )
        self._step("entitlement")

    def add_forfeit(self, hold: Hold, release_key: bytes, amount: Amount) -> None:
        """See `Books.add_forfeit`."""
        self.db.execute(
            "INSERT INTO forfeits (account, release_key, bucket, amount) VALUES (?, ?, ?, ?)",
            (hold.account, release_key, hold.bucket, amount_text(amount)),
        )
        self._step("forfeit")

    def drop_forfeit(self, fund: Fund) -> None:
        """See `Books.drop_forfeit`."""
        self.db.execute("DELETE FROM forfeits WHERE number = ?", (fund.number,))

    def add_act(self, act: str, digest: bytes) -> None:
        """See `Books.add_act`."""
        self.db.execute("INSERT INTO acts VALUES (?, ?)", (act, digest))
        self._step("act")

    def put_record(self, kind: str, name: str, text: str | None) -> None:
        """See `Books.put_record`."""
        if text is None:
            self.db.execute("DELETE FROM records WHERE kind = ? AND name = ?", (kind, name))
        else:
            statement = "INSERT INTO records VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET text = excluded.text"
            self.db.execute(statement, (kind, name, text))
        self.db.execute("UPDATE meta SET value = value + 1 WHERE name = 'records'")
        self._step("record")

    def flush(self) -> None:
        """See `Books.flush`."""
        for page in self._pages:
            if page.changed:
                self._save(page)
        self._pages = []

    def _save(self, page: Page) -> None:
        tally = tally_text(page.tally)
        if page.only_tally:
            self.db.execute("UPDATE accounts SET tally = ? WHERE id = ?", (tally, page.id))
        else:
            rest = (page.settings, page.bucket, page.end_us, tally_text(page.older), failures_text(page.failures))
            self.db.execute(
                "UPDATE accounts SET tally = ?, settings = ?, bucket = ?, end_us = ?, older = ?, failures = ? "
                "WHERE id = ?",
                (tally, *rest, page.id),
            )
        for bucket in page.touched.values():
            self.db.execute(
                "INSERT INTO buckets VALUES (?, ?, ?, ?, ?) "
                "ON CONFLICT DO UPDATE SET counting = excluded.counting, tally = excluded.tally",
                (page.id, bucket.number, bucket.end_us, bucket.counting, tally_text(bucket.tally)),
            )
        self._step("account")
