"""The ledger: every change of it is detected."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import re
import shutil

import apsw
import pytest

from discreet.budget.errors import LedgerBroken
from discreet.budget.ledger import Entry, Head, Line, account_of, entry_of, head_of, next_line, settings_text
from discreet.budget.ledger_replay import chunks_of, digest_of, reader_of, replay
from discreet.budget.manager import BudgetManager
from discreet.budget.model import AdminAction, Amount, Calendar, Sliding, Tally, Units
from discreet.budget.rules import DAY_US
from discreet.budget.stores.sqlite import SQLiteStore
from tests.budget.suite import ACT, UNIT, FakeClock, account, claim, key_of, spend
from tests.budget.tampering import CHANGES, prepare


@pytest.fixture(scope="module")
def lines():
    """Return a small ledger with lines of every kind."""
    clock = FakeClock()
    store = SQLiteStore(None, clock)
    for name, parent in (("org", None), ("ann", "org"), ("bob", "org")):
        store.create(account(name, 20, parent, Sliding(30)), ACT)
    spend(store, claim("a", release="q"))
    spend(store, claim("b", "bob", "q"))
    for name, event in (("v", store.void), ("f", store.forfeit)):
        store.reserve(claim(name))
        if event == store.forfeit:
            store.start(name)
        event(name)
    store.reserve(claim("e"))
    clock.advance(days=1)
    store.expire()
    store.reserve(claim("big", worst=UNIT * 100))
    store.charge("ann", UNIT, ACT)
    store.refund("ann", UNIT, ACT)
    store.alter(dataclasses.replace(store.path("ann")[0], limit=UNIT * 30), ACT)
    store.confirm_clock(ACT)
    store.note(ACT, {"what": "nothing"})
    store.put_record("key", "k", "a text", AdminAction("officer", "a record", "act-1"))
    store.put_record("key", "l", "another", ACT)
    store.put_record("key", "l", None, ACT)
    store.lift("ann", ACT)
    store.refresh()
    store.reserve(claim("open"))
    found = list(store.lines())
    store.close()
    return found


def _refused(lines):
    """Return True if verification fails."""
    try:
        replay([(0, lines)])
    except LedgerBroken:
        return True
    return False


def test_the_ledger_of_the_fixture_has_every_kind_of_line(lines):
    """The tests below depend on it."""
    kinds = {entry_of(line).kind for line in lines}
    assert kinds == {
        "create", "alter", "refresh", "reserve", "start", "settle", "replay", "void", "forfeit", "expire", "refuse",
        "charge", "refund", "clock", "note", "lift",
    }  # fmt: skip
    assert not _refused(lines)


def test_a_change_of_any_field_of_any_line_is_detected(lines):
    """I5: one field at a time, also where a number stays a number."""
    tried = 0
    for n, line in enumerate(lines):
        fields = line.body.split("\t")
        for at, field in enumerate(fields):
            for other in {field + "0", field[:-1], "0", "-" + field, ""} - {field}:
                body = "\t".join([*fields[:at], other, *fields[at + 1 :]])
                tried += 1
                assert _refused([*lines[:n], dataclasses.replace(line, body=body), *lines[n + 1 :]])
        for other in (dataclasses.replace(line, seq=line.seq + 1), dataclasses.replace(line, chain=1)):
            assert _refused([*lines[:n], other, *lines[n + 1 :]])
        assert _refused([*lines[:n], dataclasses.replace(line, hash=bytes(32)), *lines[n + 1 :]])
    assert tried > 1_000


def test_a_removed_duplicate_or_moved_line_is_detected(lines):
    """I5: anywhere but at the end, which only a checkpoint can detect."""
    for n in range(len(lines) - 1):
        assert _refused(lines[:n] + lines[n + 1 :])
        assert _refused([*lines[:n], lines[n + 1], lines[n], *lines[n + 2 :]])
        assert _refused([*lines[: n + 1], lines[n], *lines[n + 1 :]])
        assert not _refused(lines[: n + 1])
    assert _refused([*lines, lines[-1]])


def _rewritten(lines, change):
    """Return the lines with bodies changed by *change* and every hash computed again."""
    head, made = Head.empty(), []
    for line in lines:
        body = change(line)
        digest = hashlib.sha256(head.hash + body.encode()).digest()
        made.append(Line(0, line.seq, body, digest))
        head = Head(0, line.seq, digest)
    return made


def test_an_inconsistent_ledger_is_detected_even_with_valid_hashes(lines):
    """Reservations follow the state table, accounts exist, no amount is negative."""
    assert not _refused(_rewritten(lines, lambda line: line.body))
    for before, after in (
        ("\tstart\ta\t", "\tsettle\ta\t"),
        ("\tsettle\ta\t", "\tstart\ta\t"),
        ("\tvoid\tv\t", "\tforfeit\tv\t"),
        ("\treserve\tv\t", "\treserve\ta\t"),
        ("\tnote\t", "\tjoke\t"),
        ("\tcreate\t", "\trefresh\t"),
        ("\trefresh\t", "\tcreate\t"),
        ("\tcharge\t-\t", "\tcharge\tnobody\t"),
        ('"bucket":1', '"bucket":2'),
        ("\tann\t0\th\t3", "\teve\t0\th\t3"),
        ("\tann\t0\tu\t", "\tann\t0\tu\t-"),
        ("\th\t3", "\th\tthree"),
        ('"action":{"id"', '"action":{"name"'),
        ('"record":{"kind"', '"record":{"sort"'),
        ("\tlift\t-\t{", "\tlift\t-\t{]"),
        (f'"bob","release":"{key_of("q").hex()}","result":"', f'"bob","release":"{key_of("q").hex()}","result":"0'),
        ("\tbob\t0\tu\t1", "\tbob\t0\tu\t2"),
        ('{"actor":"suite","reason":"a test","record"', '{"action":{"id":"act-1","sha256":""},"record"'),
        ("\tann\t0\tf\t", "\tann\t0\tf\t-"),
    ):
        changed = _rewritten(lines, lambda line, before=before, after=after: line.body.replace(before, after))
        assert any(a.body != b.body for a, b in zip(lines, changed, strict=True)), before
        if before != "\tcharge\t-\t":
            assert _refused(changed), before


def test_lines_without_the_hash_of_the_answer_are_accepted(lines):
    """Lines of earlier versions lack the hash of the answer; these answers are compared by price only."""
    older = _rewritten(lines, lambda line: re.sub(',"result":"[0-9a-f]*"', "", line.body))
    answered = [replay([(0, some)]).releases[key_of("q").hex()] for some in (lines, older)]
    assert [one.result for one in answered] == [hashlib.sha256(b"answer").hexdigest(), None]
    assert {(one.cost, one.by) for one in answered} == {(Amount.of(UNIT), frozenset({"ann", "bob"}))}


def test_the_error_names_the_line(lines):
    """The error has the chain and the line."""
    broken = [*lines[:4], dataclasses.replace(lines[4], body=lines[4].body + "0"), *lines[5:]]
    with pytest.raises(LedgerBroken, match="line 5 of chain 0") as caught:
        replay([(0, broken)])
    assert (caught.value.chain, caught.value.seq) == (0, 5)


def test_chains_add_up_in_any_order():
    """Sums between chains are not negative at the end; each chain has its own start."""
    text = settings_text(account("ann"))
    created = Entry(1, "create", None, '{"account":' + text + ',"bucket":0,"end_us":9}')
    more = Entry(1, "charge", None, "{}", [("ann", 0, Tally(used=Amount(5, 7)))])
    less = Entry(1, "refund", None, "{}", [("ann", 0, Tally(used=Amount(-5, -7)))])
    first = next_line(Head.empty(0), created)
    chains = [(0, [first, next_line(head_of(first), less)]), (1, [next_line(Head.empty(1), more)])]
    assert replay(chains).counting_tally("ann") == Tally()
    with pytest.raises(LedgerBroken, match="is negative"):
        replay(chains[:1])
    with pytest.raises(LedgerBroken):
        replay([(1, chains[0][1]), (0, chains[1][1])])
    with pytest.raises(LedgerBroken, match="never created"):
        replay(chains[1:])


def test_a_line_is_read_back_as_it_was_written(lines):
    """Lines of all kinds, with amounts beyond 64 bits, keep every field."""
    change = Tally(Amount(10**30, -1), Amount(0, 2), Amount(3, 0), Amount(-(10**40), 5))
    entry = Entry(12, "charge", "r", '{"a":"b"}', (("ann", 3, change), ("org", 0, Tally(held=Amount(1, 1)))))
    assert entry_of(next_line(Head.empty(), entry)) == entry
    for before, line in itertools.pairwise(lines):
        assert next_line(head_of(before), entry_of(line)) == line
    with pytest.raises(LedgerBroken):
        entry_of(Line(0, 1, "no line", bytes(32)))


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_any_table_is_detected(change, tmp_path):
    """I5: edits of the database without new hashes, and edits of balances only."""
    store = SQLiteStore(tmp_path / "budget.db", FakeClock())
    prepare(store)
    store._db.execute(CHANGES[change])
    assert store._db.changes() > 0
    with pytest.raises(LedgerBroken):
        store.verify()
    store.close()


@pytest.fixture(scope="module")
def pruned(tmp_path_factory):
    """Return a store that `prepare` filled and that was pruned since, and the SHA-256 of its base."""
    path = tmp_path_factory.mktemp("pruned") / "budget.db"
    store = SQLiteStore(path, FakeClock())
    prepare(store)
    store._clock.advance(days=2)
    BudgetManager(store, str).prune(store._clock() - DAY_US, ACT, list)
    base = store.verify().base
    store.close()
    return path, base


_OF_REMOVED_LINES = {"a line's text", "a line's account", "a line's hash"}
_CHANGES_OF_A_BASE = {
    "the base": "DELETE FROM budget_base",
    "a sum in the base": "UPDATE budget_base SET text = replace(text, '3000000000000000', '4000000000000000')",
    "who was answered": "UPDATE budget_base SET text = text || char(10) || '[\"records\", 1]'",
    "a base that cannot be read": "UPDATE budget_base SET text = '[]'",
}


@pytest.mark.parametrize("change", [*(name for name in CHANGES if name not in _OF_REMOVED_LINES), *_CHANGES_OF_A_BASE])
def test_a_change_of_any_table_is_detected_in_a_pruned_store(change, pruned, tmp_path):
    """I5: the base is protected like the lines that it replaces."""
    shutil.copy(pruned[0], tmp_path)
    store = SQLiteStore(tmp_path / "budget.db", FakeClock())
    store.verify()
    store._db.execute((CHANGES | _CHANGES_OF_A_BASE)[change])
    assert store._db.changes() > 0
    with pytest.raises(LedgerBroken):
        store.verify()
    store.close()


def test_a_base_is_read_back_as_it_was_written(pruned):
    """Its digest is over the text, so the text is canonical."""
    with contextlib.closing(apsw.Connection(str(pruned[0]))) as db:
        chunks = [chunk for (chunk,) in db.execute("SELECT text FROM budget_base ORDER BY place")]
    assert digest_of(chunks) == digest_of(chunks_of(reader_of(chunks))) == pruned[1]


def test_a_change_of_an_ended_bucket_is_detected():
    """I5: its amount is verified, whether it counts for the balance or not."""
    clock = FakeClock()
    store = SQLiteStore(None, clock)
    store.create(account("ann", 20, period=Sliding(30)), ACT)
    spend(store, claim("a"))
    clock.advance(days=1)
    spend(store, claim("b"))
    for change in ("budget_buckets SET tally", "budget_accounts SET older"):
        store.verify()
        (before,) = store._db.execute(f"SELECT {change[-5:]} FROM {change.split()[0]}").fetchall()
        store._db.execute(f"UPDATE {change} = '0 0 0 0 0 0 0 0'")
        with pytest.raises(LedgerBroken):
            store.verify()
        store._db.execute(f"UPDATE {change} = ?", before)
    store.close()


@pytest.mark.parametrize("period", [Sliding(30), Calendar("week", "Asia/Kolkata")])
def test_settings_are_read_back_as_they_were_written(period):
    """Every field of an account is kept."""
    made = dataclasses.replace(
        account("ann", 3, "org", period), mode="observe", units=Units(UNIT.rho, UNIT.delta, 3, 1)
    )
    assert account_of(settings_text(made)) == made
    assert account_of(settings_text(account("b"))) == account("b")
