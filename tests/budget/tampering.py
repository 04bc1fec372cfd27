"""Changes to the tables that verification must detect: SQL statements for both databases.

`prepare` and `prepare_shares` fill a store so that each statement changes a row.
"""

from __future__ import annotations

from discreet.budget.model import NOTHING, AdminAction, Sliding
from tests.budget.sharing.suite.base import announce, asks, carry
from tests.budget.suite import ACT, UNIT, account, claim, spend

CHANGES = {
    "a limit": """UPDATE budget_accounts SET settings = replace(settings, '"mode":"enforce"', '"mode":"observe"')""",
    "a balance": "UPDATE budget_accounts SET tally = '0 0 0 0 0 0 0 0' WHERE id = 'ann'",
    "a refund": "UPDATE budget_accounts SET tally = tally || '1' WHERE id = 'ann'",
    "what older buckets hold": "UPDATE budget_accounts SET older = '0 0 1 0 0 0 0 0' WHERE id = 'ann'",
    "a closed bucket": "INSERT INTO budget_buckets SELECT id, 7, 1, true, '1 1 0 0 0 0 0 0' FROM budget_accounts",
    "when a period ends": "UPDATE budget_accounts SET end_us = end_us - 86400000000 WHERE id = 'ann'",
    "a bucket's number": "UPDATE budget_accounts SET bucket = bucket + 1 WHERE id = 'ann'",
    "an account that vanishes": "DELETE FROM budget_accounts WHERE id = 'bob'",
    "an account from nowhere": "INSERT INTO budget_accounts SELECT 'eve', settings, bucket, end_us, tally, older, "
    "failures, 0, seq, hash FROM budget_accounts WHERE id = 'bob'",
    "a path cut short": "DELETE FROM budget_paths WHERE place = 1",
    "a path that leads elsewhere": "UPDATE budget_paths SET member = 'ann' WHERE account = 'bob' AND place = 1",
    "a reservation that ends": "UPDATE budget_reservations SET state = 'void' WHERE id = 'open'",
    "a reservation that vanishes": "DELETE FROM budget_reservations WHERE id = 'open'",
    "a reservation that holds less": "UPDATE budget_reservations SET holds = replace(holds, '3000000000000000', '1') "
    "WHERE id = 'open'",
    "who holds": "UPDATE budget_reservations SET holds = replace(holds, 'org', 'ann')",
    "the last line": "DELETE FROM budget_ledger WHERE (chain, seq) IN "
    "(SELECT chain, max(seq) FROM budget_ledger GROUP BY chain)",
    "all lines": "DELETE FROM budget_ledger",
    "a line's text": "UPDATE budget_ledger SET body = body || '0' WHERE seq = 2",
    "a line's account": "UPDATE budget_ledger SET body = replace(body, 'ann', 'eve')",
    "a line's hash": "UPDATE budget_ledger SET hash = sha256(hash) WHERE seq = 1",
    "the order of lines": "UPDATE budget_ledger SET seq = -seq",
    "the chain of lines": "UPDATE budget_ledger SET chain = chain + 10",
    "an answer": "UPDATE budget_releases SET result = sha256(result)",
    "a price": "UPDATE budget_releases SET cost = '1 1'",
    "an answer that vanishes": "DELETE FROM budget_releases",
    "an answer from nowhere": "INSERT INTO budget_releases SELECT sha256(release_key), result, cost, time_us, digest "
    "FROM budget_releases",
    "who may see an answer": "INSERT INTO budget_entitlements SELECT 'bob', release_key, number, time_us "
    "FROM budget_entitlements WHERE account = 'ann'",
    "who may see it no more": "DELETE FROM budget_entitlements WHERE account = 'ann'",
    "what a failure pays for": "UPDATE budget_forfeits SET amount = '9 9' WHERE account = 'ann'",
    "for which question": "UPDATE budget_forfeits SET release_key = sha256(release_key)",
    "for whom": "UPDATE budget_forfeits SET account = 'bob' WHERE account = 'ann'",
    "that it pays twice": "INSERT INTO budget_forfeits (account, release_key, bucket, amount) "
    "SELECT account, release_key, bucket, amount FROM budget_forfeits WHERE account = 'ann'",
    "that it was paid for": "DELETE FROM budget_forfeits",
    "that runs failed": "UPDATE budget_accounts SET failures = '' WHERE id = 'ann'",
    "a record": "UPDATE budget_records SET text = '{}'",
    "a record that vanishes": "DELETE FROM budget_records",
    "a record from nowhere": "INSERT INTO budget_records VALUES ('key', 'another', 'a text')",
    "how often records changed": "UPDATE budget_meta SET records = 1",
    "an action that can be done again": "DELETE FROM budget_actions",
    "what an action did": "UPDATE budget_actions SET digest = sha256(digest)",
}


def prepare(store):
    """Make accounts with a release, an open and a failed reservation, and records."""
    for name, parent in (("org", None), ("ann", "org"), ("bob", "org")):
        store.create(account(name, 20, parent, Sliding(30)), ACT)
    spend(store, claim("a"))
    store.reserve(claim("open"))
    store.reserve(claim("failed"))
    store.start("failed")
    store.forfeit("failed")
    store.put_record("key", "k", "a text", AdminAction("officer", "a record", "act-1"))
    store.put_record("key", "l", "another", ACT)
    store.put_record("key", "l", None, ACT)
    store.verify()


SHARE_CHANGES = {
    "a number": "UPDATE budget_shares SET number = number + 1",
    "what was given": "UPDATE budget_shares SET given = '0 0'",
    "that it is under way": "UPDATE budget_shares SET pending = NULL",
    "how much is under way": "UPDATE budget_shares SET pending = given",
    "when it was sent": "UPDATE budget_shares SET sent_us = 0",
    "to whom": "UPDATE budget_shares SET peer = 'elsewhere'",
    "all that moved": "DELETE FROM budget_shares",
    "a number that was taken": "UPDATE budget_shares SET taken_number = 0",
    "that it was taken": "UPDATE budget_shares SET taken = NOT taken",
    "what was taken": "UPDATE budget_shares SET received = '1 1'",
    "a transfer from nowhere": "INSERT INTO budget_shares (account, peer, taken_number, received) "
    "SELECT account, 'elsewhere', 1, received FROM budget_shares",
    "the total": """UPDATE budget_accounts SET settings = replace(settings, '"share":["1', '"share":["2')""",
}


def prepare_shares(here, there):
    """Move shares of an account, so that a transfer of *here* is pending."""
    here.create(account("ann", 12), ACT)
    announce(here, there)
    here.charge("ann", UNIT * 6, ACT)
    assert there.shares.grant(here.id, asks(here), NOTHING)
    carry(there, here)
    there.charge("ann", UNIT * 3, ACT)
    assert here.shares.grant(there.id, asks(there), NOTHING)
    here.verify()
