"""Records stored with the budgets, idempotent administrative actions, and paid releases."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from typing import TYPE_CHECKING

import pytest

from discreet.budget.errors import KeyReused, UnknownAccount
from discreet.budget.manager import BudgetManager
from discreet.budget.model import NOTHING, AdminAction, Amount, Reservation
from discreet.budget.rules import DAY_US
from discreet.budget.stores.ledger_index import Description, LedgerFilter, LedgerIndex
from discreet.errors import InputError
from discreet.values import Cost
from tests.budget.suite.base import ACT, UNIT, Suite, account, claim, key_of, spend, units

if TYPE_CHECKING:
    from collections.abc import Callable

    from discreet.budget.stores.ledger_index import EventLines
    from discreet.budget.stores.store import BudgetStore


def _lines(store: BudgetStore) -> list[str]:
    return [line.body for head in store.heads() for line in store.lines(head.chain)]


class Records(Suite):
    """Tests of records, administrative actions and histories."""

    # ---------------------------------------------------------------------------------------------- several changes

    def test_several_changes_are_one_transaction(self) -> None:
        """A part reads what earlier parts changed; accounts, a child of a new one, and records."""
        with self.accounts() as (store, _):

            def work(within: BudgetStore) -> list[str]:
                within.create(account("parent", 5), ACT)
                within.create(account("child", 2, parent="parent"), ACT)
                within.put_record("key", "a", "1", ACT)
                within.put_record("key", "b", "2", ACT)
                assert within.record("key", "a") == "1"
                return [member.id for member in within.path("child")]

            before = sum(head.seq for head in store.heads())
            version = store.records_version()
            assert store.together(work, dry_run=True) == ["child", "parent"]
            assert sum(head.seq for head in store.heads()) == before
            assert (store.records("key"), store.records_version()) == ([], version)
            assert store.together(work) == ["child", "parent"]
            assert store.records("key") == [("a", "1"), ("b", "2")]
            assert store.records_version() > version
            assert store.account("child").parent == "parent"

    def test_a_record_that_is_put_again_has_a_line_again(self) -> None:
        """Each says who put it, and shows what may be shown; the text itself is in none."""
        with self.accounts() as (store, _):
            for _ in range(2):
                store.put_record("key", "a", '"secret"', ACT, {"label": "of ann"})
            details = [json.loads(body.split("\t")[5]) for body in _lines(store) if "\tnote\t" in body]
            record = {"kind": "key", "name": "a", "sha256": hashlib.sha256(b'"secret"').hexdigest()}
            assert (
                details
                == [{"actor": ACT.actor, "reason": ACT.reason, "record": record, "shown": {"label": "of ann"}}] * 2
            )

    def test_of_several_changes_all_are_made_or_none(self) -> None:
        """An error in the last part undoes the first; the next transaction is not affected."""
        with self.accounts() as (store, _):

            def work(within: BudgetStore) -> None:
                within.create(account("parent", 5), ACT)
                within.put_record("key", "a", "1", ACT)
                within.create(account("child", 2, parent="missing"), ACT)

            with pytest.raises(UnknownAccount):
                store.together(work)
            assert store.records("key") == []
            with pytest.raises(UnknownAccount):
                store.account("parent")
            store.create(account("parent", 5), ACT)

    # ---------------------------------------------------------------------------------------------- records

    def test_a_record_is_kept_replaced_and_removed(self) -> None:
        """The latest record is valid, kinds are separate, and every change raises the version."""
        with self.accounts() as (store, _):
            assert (store.records("key"), store.record("key", "a"), store.records_version()) == ([], None, 0)
            for kind, name, text in (("key", "b", "1"), ("key", "a", "2"), ("grant", "a", "3"), ("key", "b", "4")):
                store.put_record(kind, name, text, ACT)
            assert store.records("key") == [("a", "2"), ("b", "4")]
            assert (store.record("key", "b"), store.record("grant", "a"), store.record("grant", "b")) == (
                "4",
                "3",
                None,
            )
            before = store.records_version()
            store.put_record("key", "a", None, ACT)
            assert (store.records("key"), store.record("key", "a")) == ([("b", "4")], None)
            assert store.records_version() > before
            store.put_record("key", "a", "5", ACT)
            assert store.record("key", "a") == "5"

    def test_a_record_is_read_back_unchanged(self) -> None:
        """Names with any printable characters and tabs, and texts of any length, in the order of code points."""
        with self.accounts() as (store, _):
            names = ["Z", "a", "a\tb c", "aa", "\u00e9", "\U0001f511", "x" * 2_000]
            for name in names:
                store.put_record("grant", name, f'{{"{name}":"\u00e9\\n\t\U0001f511"}}', ACT)
            store.put_record("grant", "long", "x" * 1_000_000, ACT)
            store.put_record("grant", "empty", "", ACT)
            found = dict(store.records("grant"))
            assert list(found) == sorted([*names, "long", "empty"])
            assert all(found[name] == f'{{"{name}":"\u00e9\\n\t\U0001f511"}}' for name in names)
            assert (found["long"], store.record("grant", "empty")) == ("x" * 1_000_000, "")

    def test_the_ledger_has_the_hash_of_a_record_and_never_its_text(self) -> None:
        """The ledger has actor, name and hash of a record, without any secret."""
        with self.accounts() as (store, _):
            store.put_record("key", "a", "s3cret", ACT)
            store.put_record("key", "a", None, ACT)
            first, second = [body for body in _lines(store) if '"record"' in body]
            assert hashlib.sha256(b"s3cret").hexdigest() in first
            assert '"sha256":null' in second
            assert not any("s3cret" in body for body in (first, second))
            assert all("\tnote\t" in body and '"reason":"a test"' in body for body in (first, second))

    @pytest.mark.parametrize(
        ("kind", "name", "text"),
        [
            ("", "a", ""),
            ("a b", "a", ""),
            ("a", "", ""),
            ("a", "a\nb", ""),
            ("a", "x" * 2_001, ""),
            ("a", "a", "x\0"),
            ("a", "a", "\ud800"),
            ("a", "a", "x" * 1_000_001),
        ],
    )
    def test_invalid_records_are_refused(self, kind: str, name: str, text: str) -> None:
        """Invalid records are refused before anything is written."""
        with self.accounts() as (store, _):
            with pytest.raises(InputError):
                store.put_record(kind, name, text, ACT)
            assert store.records_version() == 0

    def test_a_note_cannot_be_mistaken_for_a_record_or_an_action(self) -> None:
        """The values of a note are text, whatever their keys; a value of another type is refused."""
        with self.accounts() as (store, _):
            store.note(ACT, {"record": '{"kind":"key"}', "act": "a1"})
            with pytest.raises(InputError):
                store.note(ACT, {"record": {"kind": "key", "name": "a", "sha256": None}})  # type: ignore[dict-item]
            store.note(AdminAction("officer", "another", "a1"), {})
            assert store.records_version() == 0

    # ---------------------------------------------------------------------------------------------- acts

    def test_an_action_with_an_id_is_done_once(self) -> None:
        """I4: a repeated request changes nothing and adds no line."""
        with self.accounts(limit=20) as (store, _):
            spend(store, claim("a"), UNIT * 3)
            larger = dataclasses.replace(store.path("ann")[0], limit=UNIT * 30)
            acts: list[Callable[[AdminAction], None]] = [
                lambda act: store.create(account("eve", 5, "org"), act),
                lambda act: store.alter(larger, act),
                lambda act: store.charge("ann", UNIT, act),
                lambda act: store.refund("ann", UNIT, act),
                lambda act: store.lift("ann", act),
                store.confirm_clock,
                lambda act: store.note(act, {"what": "something"}),
                lambda act: store.put_record("key", "a", "1", act),
            ]
            for n, do in enumerate(acts):
                before = len(_lines(store))
                do(AdminAction("officer", "once", f"a{n}"))
                heads = store.heads()
                do(AdminAction("officer", "once", f"a{n}"))
                assert store.heads() == heads
                assert len(_lines(store)) == before + 1
            assert (units(store, "ann"), store.records_version()) == ((3, 0, 0), 1)
            store.put_record("key", "a", "2", ACT)
            acts[-1](AdminAction("officer", "once", "a7"))  # after any delay: later changes stay
            assert store.record("key", "a") == "2"

    def test_the_id_of_an_action_is_refused_for_another_action(self) -> None:
        """Another verb, amount, account or reason under the same id is refused, and nothing changes."""
        with self.accounts() as (store, _):
            act = AdminAction("officer", "once", "a1")
            store.charge("ann", UNIT, act)
            before = store.heads()
            others: list[Callable[[], None]] = [
                lambda: store.charge("ann", UNIT * 2, act),
                lambda: store.charge("bob", UNIT, act),
                lambda: store.refund("ann", UNIT, act),
                lambda: store.put_record("key", "a", "1", act),
                lambda: store.note(act, {}),
                lambda: store.charge("ann", UNIT, AdminAction("officer", "twice", "a1")),
                lambda: store.charge("ann", UNIT, AdminAction("another", "once", "a1")),
            ]
            for other in others:
                with pytest.raises(KeyReused):
                    other()
            assert store.heads() == before
            assert (units(store, "ann"), units(store, "bob")) == ((1, 0, 0), (0, 0, 0))

    def test_a_refused_action_does_not_use_its_id(self) -> None:
        """An action that raises has changed nothing, so its id can be used again."""
        with self.accounts() as (store, _):
            act = AdminAction("officer", "give back", "a1")
            with pytest.raises(InputError):
                store.refund("ann", UNIT, act)
            spend(store, claim("a"), UNIT * 3)
            store.refund("ann", UNIT, act)
            store.refund("ann", UNIT, act)
            assert units(store, "ann") == (2, 0, 0)

    # ---------------------------------------------------------------------------------------------- histories

    def test_a_history_lists_paid_releases_newest_first(self) -> None:
        """Each account has its own, with the exact bytes; replays with a cost are listed, free ones are not."""
        with self.accounts(limit=20) as (store, clock):
            for n in range(3):
                clock.advance(seconds=1)
                spend(store, claim(f"a{n}", release=f"q{n}"), UNIT * n, b"%d" % n)
            clock.advance(seconds=1)
            spend(store, claim("b", "bob", "q1"))
            spend(store, claim("again", release="q0"))
            assert isinstance(store.reserve(claim("open")), Reservation)
            for name, answers in (("ann", [2, 1, 0]), ("org", [2, 1, 0]), ("bob", [1])):
                found = store.history(name, None, 10)
                assert [paid.release.result for paid in found] == [b"%d" % n for n in answers]
                assert [paid.charged for paid in found] == [UNIT * n for n in answers]
                assert [paid.release for paid in found] == [store.release(key_of(f"q{n}")) for n in answers]
                assert all(newer.number > older.number for newer, older in itertools.pairwise(found))
            assert [paid.time_us - clock() for paid in store.history("ann")] == [-1_000_000, -2_000_000, -3_000_000]
            assert store.history("bob")[0].time_us == clock()

    def test_a_history_is_paged_without_gaps(self) -> None:
        """Releases bought between two pages neither repeat nor hide entries."""
        with self.accounts(limit=100) as (store, _):
            for n in range(7):
                spend(store, claim(f"a{n}"), Cost(), b"%d" % n)
            pages = store.history("ann", None, 3)
            for size in (3, 1, 0):
                spend(store, claim(f"later{len(pages)}"), Cost())
                page = store.history("ann", pages[-1].number, 3)
                assert len(page) == size
                pages += page
            assert [paid.release.result for paid in pages] == [b"%d" % n for n in reversed(range(7))]

    def test_the_history_of_an_unknown_account_is_refused(self) -> None:
        """An unknown account and a page size out of range are refused."""
        with self.accounts() as (store, _):
            assert store.history("ann") == []
            with pytest.raises(UnknownAccount):
                store.history("nobody")
            for most in (0, -1, 1_001):
                with pytest.raises(InputError):
                    store.history("ann", None, most)

    def test_the_index_of_the_ledger_has_every_event_once(self) -> None:
        """Events by account, time and subject, with exact sums, however the lines were read; pruning removes them."""

        def describe(lines: EventLines) -> Description:
            entry, kinds = lines[0][1], {each.kind for _, each in lines}
            detail = json.loads(entry.detail)
            if entry.reservation is None:
                return Description("action", "ann", subject=detail.get("account", {}).get("id"))
            used = sum((tally.used for _, each in lines for name, _, tally in each.changes if name == "ann"), NOTHING)
            question = '{"n":1}' if "settle" in kinds else None
            return Description(max(kinds), detail["by"], "reads", question=question, charged=used)

        with pytest.MonkeyPatch.context() as patch, self.accounts(limit=100) as (store, clock):
            patch.setattr("discreet.budget.stores.ledger_index.LINES_AT_ONCE", 2)
            index = LedgerIndex(store, describe)
            for n in range(3):
                spend(store, claim(f"r{n}"))
            store.reserve(claim("open"))
            for act in (lambda: None, lambda: store.start("open")):
                act()
                index.update()
                running = index.totals(LedgerFilter(("start", "settle", "reserve"), account="ann"))
                assert sum(total.events for total in running) == 4
            store.settle("open", UNIT, b"late")
            for _ in range(2):
                index.update()
                settled = LedgerFilter(("start", "settle", "reserve"), account="org")
                (total,) = index.totals(settled)
                assert (total.account, total.events, total.question) == ("ann", 4, '{"n":1}')
                assert total.charged == Amount.of(store.balance("ann").used)
                pages, before = [], None
                while page := index.events(dataclasses.replace(settled, before=before), 3):
                    pages += page
                    first, entry = page[-1][0]
                    before = entry.time_us, first.chain, first.seq
                assert sorted(lines[0][1].reservation for lines in pages) == ["open", "r0", "r1", "r2"]
                assert [[entry.kind for _, entry in lines] for lines in pages] == [["reserve", "start", "settle"]] * 4
                assert not index.events(dataclasses.replace(settled, account="bob"), 9)
                assert not index.events(dataclasses.replace(settled, until_us=clock()), 9)
                assert not index.events(dataclasses.replace(settled, dataset="other"), 9)
                assert [len(lines) for lines in index.events(LedgerFilter(("action",), subject="ann"), 9)] == [1]
                spent = index.spending(0)
                day = clock() // DAY_US
                assert spent["ann"] == spent["org"] == {day: total.charged}
                assert index.complete_from_us() == 0
                index.rebuild()
                assert not index.events(settled, 9)
            index.update()
            clock.advance(days=2)
            store.heartbeat()
            BudgetManager(store, str).prune(clock() - DAY_US, ACT, list)
            index.update()
            assert not index.events(settled, 9)
            assert not index.totals(settled)
            assert index.spending(0) == {}
            assert 0 < index.complete_from_us() <= clock()

    def test_totals_are_those_of_the_events_of_their_days(self) -> None:
        """Days are whole, and lines that pruning keeps stay counted."""

        def describe(lines: EventLines) -> Description:
            detail = json.loads(lines[0][1].detail)
            return Description("query", detail["by"]) if "by" in detail else Description("action")

        with self.accounts(limit=100) as (store, clock):
            index = LedgerIndex(store, describe)
            days = []
            for day in range(4):
                days.append(clock() // DAY_US * DAY_US)
                for n in range(day + 1):
                    spend(store, claim(f"d{day}n{n}"))
                clock.advance(days=1)
                store.heartbeat()

            def counted(*times: int) -> int:
                return sum(total.events for total in index.totals(LedgerFilter(("query",), *times)))

            index.update()
            assert [counted(day, day + DAY_US) for day in days] == [1, 2, 3, 4]
            assert counted(days[1], days[3]) == 5
            BudgetManager(store, str).prune(days[2] + DAY_US // 4, ACT, list)
            assert [counted(day, day + DAY_US) for day in days] == [0, 0, 3, 4]
            index.rebuild()
            assert counted() == 0
            index.update()
            assert [counted(day, day + DAY_US) for day in days] == [0, 0, 3, 4]
