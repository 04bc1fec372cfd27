"""What the PostgreSQL store asks at the beginning of a transaction: first for locks, then for all that decides.

What is locked is read as those left it who held the lock before; what else may have changed meanwhile is read by a
statement of its own, which in READ COMMITTED sees all that they have committed.
"""

# ruff: noqa: S608 - statements are put together here, from constants; values are bound

from __future__ import annotations

from discreet.budget.stores.postgres_rows import ACCOUNT, HEAD, KEPT, RELEASE

ACCOUNT_ALONE = f"SELECT {ACCOUNT}, {HEAD} FROM budget_accounts a WHERE a.id = %s FOR NO KEY UPDATE"
"""Locks an account."""

PATH = (
    f"SELECT {ACCOUNT}, {HEAD} FROM budget_accounts a "
    "WHERE a.id = ANY ((SELECT p.path FROM budget_accounts p WHERE p.id = %s)::text[]) "
    "ORDER BY a.depth DESC FOR NO KEY UPDATE"  # whoever holds a row waits only for rows further up
)
"""Locks an account and its parents, that account first."""

NOW = "SELECT budget_now_us(), seen_us FROM budget_meta"
"""The clock and the last time seen, with which all of the following begin."""

_CLAIM = f"""
SELECT budget_now_us(), m.seen_us, EXISTS (
    SELECT FROM budget_forfeits f
    WHERE f.account = ANY ((SELECT a.path FROM budget_accounts a WHERE a.id = %(account)s)::text[])
        AND f.release_key = %(release_key)s
), {RELEASE}, {KEPT} {{}}
FROM budget_meta m
LEFT JOIN budget_releases s ON s.release_key = %(release_key)s
LEFT JOIN budget_reservations r ON r.id = %(reservation)s {{}}
"""

CLAIM = _CLAIM.format(", NULL, NULL, NULL, NULL, NULL, NULL, NULL", "")
"""Whether there is a forfeit, the release, the reservation of that name."""

CLAIM_WITH_KEY = _CLAIM.format(
    f", k.digest, w.id, coalesce(w.lease_until_us, 0), {RELEASE.replace('s.', 'o.')}",
    "LEFT JOIN budget_keys k ON k.account = %(account)s AND k.key = %(key)s "
    "LEFT JOIN budget_reservations w ON w.id = k.reservation AND w.state IN ('held', 'running') "
    "LEFT JOIN budget_entitlements e ON e.account = k.account AND e.release_key = k.release_key "
    "LEFT JOIN budget_releases o ON o.release_key = e.release_key AND o.release_key <> %(release_key)s",
)
"""And what became of the idempotency key, and the release that answered it, if that is another one and paid for."""

_OF_RESERVATION = f"""
SELECT {ACCOUNT}, {HEAD}, budget_now_us(), m.seen_us, {KEPT} {{}}
FROM budget_reservations r {{}} CROSS JOIN budget_meta m
WHERE r.id = %(reservation)s ORDER BY a.depth DESC FOR NO KEY UPDATE OF a, r
"""

_ON_PATH = "JOIN budget_accounts p ON p.id = r.account JOIN budget_accounts a ON a.id = ANY (p.path)"

START = _OF_RESERVATION.format("", "JOIN budget_accounts a ON a.id = r.account")
"""Locks a reservation and the account that has it; both, in one row."""

END = _OF_RESERVATION.format("", _ON_PATH)
"""Locks a reservation and the path of the account that has it."""

SETTLE = _OF_RESERVATION.format(
    f", {RELEASE}, (SELECT f.digest FROM budget_fingerprints f WHERE f.head_key = %(head_key)s)",
    f"{_ON_PATH} LEFT JOIN budget_releases s ON s.release_key = r.release_key",
)
"""And reads its release and what is known of the head, as they were before the locks: if somebody stored one meanwhile,
the insert fails, and all is asked again."""

CREATION = """
SELECT budget_now_us(), m.seen_us, nextval('budget_chains'), a.id, p.path
FROM budget_meta m LEFT JOIN budget_accounts a ON a.id = %s LEFT JOIN budget_accounts p ON p.id = %s::text
"""
"""A new chain, whether there is an account of that name, the path of the parent."""

PAID = "SELECT account FROM budget_entitlements WHERE account = ANY (%s::text[]) AND release_key = %s"
"""Which of some accounts have paid for a release."""
