"""The suite fails for stores with a planted defect in transfers of shares."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect

import pytest

from discreet.budget.model import NOTHING
from discreet.budget.sharing import escrow, transfers
from discreet.budget.sharing.escrow import Decision
from discreet.budget.stores import statements, transaction
from discreet.budget.stores.sqlite import SQLiteStore
from discreet.budget.stores.store import BudgetStore
from discreet.budget.stores.transaction import Transaction
from tests.budget.sharing.suite import ShareStoreSuite


class _InMemory(ShareStoreSuite):
    @contextlib.contextmanager
    def opened(self, clock):
        store = SQLiteStore(None, clock)
        try:
            yield store
        finally:
            store.close()


def _failures():
    """Return names of failing tests, at least the first."""
    for name, test in inspect.getmembers(_InMemory, inspect.isfunction):
        if not name.startswith("test_"):
            continue
        marks = [mark for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
        for values in [(value,) for mark in marks for value in mark.args[1]] or [()]:
            try:
                test(_InMemory(), *values)
            except (Exception, pytest.fail.Exception):  # noqa: BLE001 - however it fails
                yield name


def _gives_what_is_held(patch):
    patch.setattr(transaction.AccountRow, "left", property(lambda row: row.terms.limit - row.tally.used))


def _gives_what_counted_before(patch):
    patch.setattr(transaction.AccountRow, "left", property(lambda row: row.terms.limit - row.tally.total))


def _forgets_what_it_gave(patch):
    patch.setattr(Transaction, "put_outgoing", lambda *_: None)


def _forgets_what_it_took(patch):
    patch.setattr(Transaction, "put_incoming", lambda *_: None)


def _takes_before_its_time(patch):
    decide = escrow.decide
    patch.setattr(
        escrow,
        "decide",
        lambda transfer, own, incoming, now_us, **rest: decide(
            transfer, own, incoming, max(now_us, transfer.sent_us), **rest
        ),
    )


def _takes_for_any_account(patch):
    decide = escrow.decide

    def generous(*args, **rest):
        decision = decide(*args, **rest)
        return Decision.TAKE if decision is Decision.DECLINE else decision

    patch.setattr(escrow, "decide", generous)


def _takes_for_any_store(patch):
    decide = escrow.decide
    patch.setattr(
        escrow,
        "decide",
        lambda transfer, *args, store, **rest: decide(
            dataclasses.replace(transfer, recipient=store), *args, store=store, **rest
        ),
    )


def _keeps_what_was_declined(patch):
    acknowledged = escrow.acknowledged
    patch.setattr(escrow, "acknowledged", lambda *args: (acknowledged(*args)[0], NOTHING))


def _never_adopts(patch):
    patch.setattr(escrow, "adopted", lambda own, _: own)


def _adopts_what_is_older(patch):
    patch.setattr(escrow, "adopted", lambda own, terms: dataclasses.replace(terms, limit=own.limit))


def _adopts_the_limit(patch):
    patch.setattr(escrow, "adopted", lambda own, terms: terms if terms.share.version > own.share.version else own)


def _alters_a_share(patch):
    patch.setattr(escrow, "altered", lambda _, wanted, *__: wanted)


def _lowers_a_total_that_is_spent(patch):
    altered = escrow.altered
    patch.setattr(escrow, "altered", lambda before, after, _, store: altered(before, after, NOTHING, store))


def _creates_what_is_split(patch):
    create = BudgetStore.create

    def trusting(self, account, action):
        create(self, dataclasses.replace(account, share=None), action)

    patch.setattr(BudgetStore, "create", trusting)


def _skips_lines(patch):
    append = Transaction.append
    patch.setattr(
        Transaction,
        "append",
        lambda work, row, kind, *args, **rest: kind == "decline" or append(work, row, kind, *args, **rest),
    )


def _opens_accounts_full(patch):
    patch.setattr(escrow, "opened", lambda terms: dataclasses.replace(terms, limit=terms.share.total))


def _announces_children_first(patch):
    patch.setattr(statements, "UNANNOUNCED", statements.UNANNOUNCED.replace("ORDER BY", "ORDER BY - "))


def _requests_tiny_differences(patch):
    patch.setattr(transfers, "granted", lambda *_: NOTHING)


_DEFECTS = [
    _gives_what_is_held,
    _gives_what_counted_before,
    _forgets_what_it_gave,
    _forgets_what_it_took,
    _takes_before_its_time,
    _takes_for_any_account,
    _takes_for_any_store,
    _keeps_what_was_declined,
    _never_adopts,
    _adopts_what_is_older,
    _adopts_the_limit,
    _alters_a_share,
    _lowers_a_total_that_is_spent,
    _creates_what_is_split,
    _skips_lines,
    _opens_accounts_full,
    _announces_children_first,
    _requests_tiny_differences,
]


def test_a_sound_store_passes():
    """The tests below depend on it."""
    assert list(_failures()) == []


@pytest.mark.parametrize("defect", _DEFECTS)
def test_a_defect_is_detected(defect, monkeypatch):
    """At least one test of the suite fails for each planted defect."""
    defect(monkeypatch)
    assert next(_failures(), None) is not None
