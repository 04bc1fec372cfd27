"""The operations of officers and admins: accounts, grants, API keys, the ledger."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Literal, get_args

from discreet._version import __version__
from discreet.budget.errors import AccountChanged, LedgerBroken, StoreBehind, UnknownAccount
from discreet.budget.ledger_replay import days_until, preview
from discreet.budget.manager import BudgetManager
from discreet.budget.model import DELTA_UNITS, RHO_UNITS, Account, AdminAction, Amount, Forever
from discreet.budget.rules import DAY_US, microseconds
from discreet.budget.stores.ledger_index import LedgerFilter
from discreet.budget.stores.store import BudgetStore
from discreet.budget.stores.transaction import LAST
from discreet.errors import InputError, NotFound
from discreet.service.answering.accounts import (
    account_detail,
    account_summary,
    read_amount,
    read_limit,
    read_period,
)
from discreet.service.answering.running import Streams, stored_streams
from discreet.service.answering.saved_tables import OwnedTable, SavedTables
from discreet.service.auth.access import (
    GRANT,
    KEY,
    Columns,
    KeyRecord,
    RecordCache,
    account_and_dataset,
    grant_name,
    grant_text,
    granted_columns,
)
from discreet.service.auth.api_keys import ApiKeys
from discreet.service.catalog_file import CatalogFile
from discreet.service.doors.http.operation import IDEMPOTENCY_KEY, Call, Operation, Parameter, in_path, integer, text
from discreet.service.middleware import check_role, context_of
from discreet.service.observability import AdminChanged, Log
from discreet.service.officer.activity import ActivityReader
from discreet.service.officer.disclosure import disclose
from discreet.service.settings import Settings
from discreet.values import Cost
from discreet.wire import administration as wire
from discreet.wire.disclosure import Disclosure
from discreet.wire.queries import iso_time

ACCOUNT = in_path("account", "Name of the account; characters such as / are percent-encoded.")
_DATASET = in_path("dataset", "Name of the dataset in the catalog.")
_KEY = in_path("key", "The id of the key, 16 hexadecimal digits.")
_LIMIT = integer("limit", "Maximum number of entries on the page.", least=1, most=1_000, default=100)
AFTER = text("after", "The `next` of the previous page.")
_REASON = Parameter(
    "reason", "query", {"type": "string", "minLength": 1, "maxLength": 2_000}, "Recorded in the ledger.", True
)

_DAYS = integer("days", "Number of days to look back.", least=1, most=366, default=30)

_DATE = {"type": "string", "pattern": "[0-9]{4}-[0-9]{2}-[0-9]{2}"}
QUERIES = frozenset({"answered", "repeated", "refused", "failed", "cancelled", "running"})
_ALL = frozenset(get_args(wire.ActivityKind))
_KINDS = {None: _ALL - {"upkeep"}, "queries": QUERIES, "changes": _ALL - QUERIES - {"upkeep"}, "all": _ALL}
ACTIVITY = (
    text("account", "Only of this account and of those below it."),
    text("dataset", "Only of this dataset."),
    Parameter(
        "kind",
        "query",
        {"type": "string", "pattern": "|".join(sorted({*filter(None, _KINDS), *_ALL}))},
        f"Only of this kind: {', '.join(sorted(_ALL))}; queries, changes or all. Without it, all but upkeep.",
    ),
    Parameter("since", "query", _DATE, "A day in UTC, such as 2026-11-20; without it, six days before today."),
    Parameter("until", "query", _DATE, "The last day in UTC, such as 2026-11-26; without it, today."),
)
"""The filters of activity."""

MAX_PREVIEW_EVENTS = 2_000
"""The most queries and changes of an account that a preview of limits reads."""

_EXPORTED_AT_ONCE = 1_000

REACHED_PERCENT = (25, 50, 75, 90)

_ACCOUNTS = "/v1/admin/accounts"
_ONE_ACCOUNT = "/v1/admin/accounts/{account:path}"
_GRANTS = "/v1/admin/grants"
_ONE_GRANT = "/v1/admin/grants/{account:path}/{dataset}"
_KEYS = "/v1/admin/keys"

_officer = partial(Operation, role="officer")
_admin = partial(Operation, role="admin")
_change_account = partial(
    _officer, answer=wire.AccountDetail, parameters=(ACCOUNT, IDEMPOTENCY_KEY), problems=("clock",)
)
_make_key = partial(_admin, "POST", answer=wire.CreatedKey, status=201)


class AdminAPI:
    """The operations of officers and admins. Every change is written to the ledger with its author and reason."""

    def __init__(
        self,
        manager: BudgetManager,
        records: RecordCache,
        keys: ApiKeys,
        catalog: CatalogFile,
        settings: Settings,
        log: Log,
        clock: Callable[[], datetime],
        streams: Streams,
    ) -> None:
        self._manager = manager
        self._store = manager.store
        self._records = records
        self._keys = keys
        self._catalog = catalog
        self._settings = settings
        self._log = log
        self._clock = clock
        self._streams = streams

    @property
    def registered(self) -> bool:
        """Return True if the settings hold what an entry of the registry needs."""
        return self._settings.disclosure is not None

    # ---------------------------------------------------------------------------------------------- accounts

    @_officer("GET", _ACCOUNTS, answer=wire.AccountPage, parameters=(AFTER, _LIMIT))
    def accounts(self, call: Call) -> wire.AccountPage:
        """List accounts by name."""
        after = call.parameters["after"]
        most = call.parameters["limit"]
        behind = [account for account in self._store.accounts() if after is None or account.id > after]
        page = [account_summary(account) for account in behind[:most]]
        return wire.AccountPage(accounts=page, next=page[-1].account if len(behind) > most else None)

    @_change_account("POST", _ACCOUNTS, body=wire.NewAccount, status=201, parameters=(IDEMPOTENCY_KEY,))
    def create_account(self, call: Call, body: wire.NewAccount) -> wire.AccountDetail:
        """Create an account.

        Its parent never changes.
        """
        limit, delta, units = read_limit(body.limit)
        account = Account(body.account, limit, delta, body.parent, read_period(body.period), body.mode, units)
        self._store.create(account, call.action(body.reason))
        return self._changed(call, body.account)

    @_change_account("POST", f"{_ONE_ACCOUNT}/charge", body=wire.Payment)
    def charge(self, call: Call, body: wire.Payment) -> wire.AccountDetail:
        """Charge an account by hand.

        Records privacy loss from releases outside of the service.
        """
        name = call.parameters["account"]
        rho, delta = read_amount(self._store.account(name), body)
        self._store.charge(name, Cost(rho, delta), call.action(body.reason))
        return self._changed(call, name)

    @_change_account("POST", f"{_ONE_ACCOUNT}/refund", body=wire.Payment)
    def refund(self, call: Call, body: wire.Payment) -> wire.AccountDetail:
        """Refund charges, up to a tenth of the limit in a period.

        The officer asserts that the charge revealed nothing, and the ledger records the reason.
        """
        name = call.parameters["account"]
        rho, delta = read_amount(self._store.account(name), body)
        self._store.refund(name, Cost.at_most(rho, delta), call.action(body.reason))
        return self._changed(call, name)

    @_change_account("POST", f"{_ONE_ACCOUNT}/lift", body=wire.AdminRequest, problems=())
    def lift(self, call: Call, body: wire.AdminRequest) -> wire.AccountDetail:
        """End the suspension of an account.

        Ends that of an officer and that for failed queries, which are then ignored for later suspensions; charges stay.
        """
        self._store.lift(call.parameters["account"], call.action(body.reason))
        return self._changed(call, call.parameters["account"])

    @_change_account("POST", f"{_ONE_ACCOUNT}/suspend", body=wire.AdminRequest, problems=())
    def suspend(self, call: Call, body: wire.AdminRequest) -> wire.AccountDetail:
        """Suspend an account until an officer lifts that.

        Queries of the account and of all accounts below it are refused; answers that were paid for can still be read.
        """
        self._store.suspend(call.parameters["account"], call.action(body.reason))
        return self._changed(call, call.parameters["account"])

    @_officer(
        "POST",
        f"{_ONE_ACCOUNT}/preview",
        body=wire.AccountChanges,
        answer=wire.Preview,
        parameters=(ACCOUNT, _DAYS),
    )
    def preview(self, call: Call, body: wire.AccountChanges) -> wire.Preview:
        """Replay the queries of the last days against changed settings of an account.

        Counts the queries that the changed limit would refuse. Nothing is changed; parents and children are ignored.
        """
        account = altered(self._store.account(call.parameters["account"]), body)
        reader = ActivityReader(self._store, {})
        reader.index.update()
        since_us = (microseconds(self._clock()) // DAY_US - call.parameters["days"] + 1) * DAY_US
        filters = LedgerFilter(tuple(_ALL), account=account.id)
        since_us, entries = reader.entries(filters, since_us, MAX_PREVIEW_EVENTS)
        replayed = preview(entries, account, since_us)
        first = None if replayed.first_us is None else iso_time(replayed.first_us)
        return wire.Preview(since=iso_time(since_us), queries=replayed.queries, refused=replayed.refused, first=first)

    @_officer(
        "PUT",
        "/v1/admin/tables/{account:path}/{name}",
        body=wire.Publication,
        status=204,
        parameters=(ACCOUNT, in_path("name", "Name of the saved table."), IDEMPOTENCY_KEY),
        problems=("not-found",),
    )
    def publish_table(self, call: Call, body: wire.Publication) -> None:
        """Publish a saved table, or end that.

        All accounts below the parent of its owner then read it free, with everything that its owner adds to it.
        """
        parameters = call.parameters
        action = call.action(body.reason)
        SavedTables(self._store).publish(parameters["account"], parameters["name"], action, published=body.published)
        self._records.invalidate()

    def tables_of(self, account: str) -> list[OwnedTable]:
        """Return the saved tables of an account that can be published: no views."""
        tables = SavedTables(self._store).listed(account)
        return [table for table in tables if table.owner == account and not table.table.view and table.stream is None]

    @_officer("GET", "/v1/admin/running", answer=wire.PaidStreams)
    def running_counts(self, call: Call) -> wire.PaidStreams:  # noqa: ARG002 - as of every operation
        """List the streams of running counts, with what they cost until when."""
        return wire.PaidStreams(streams=self._streams.listed())

    @_officer(
        "POST",
        "/v1/admin/running/{name}/erased",
        body=wire.AdminRequest,
        status=204,
        parameters=(in_path("name", "Name of the stream."), IDEMPOTENCY_KEY),
        problems=("not-found",),
    )
    def allow_erased(self, call: Call, body: wire.AdminRequest) -> None:
        """Let a stream go on after all rows of some users were erased, and nothing else changed.

        The answer of its next period then covers rows that differ from those of the last one.
        """
        self._streams.allow_erased(call.parameters["name"], call.action(body.reason))

    @_officer("GET", "/v1/admin/spending", answer=wire.Spending, parameters=(_DAYS,))
    def spending(self, call: Call) -> wire.Spending:
        """Return the daily spending of all accounts in the last days.

        Includes the fraction of analysts that used up 25, 50, 75 and 90 percent of their limits, by days since their
        first charge (Figure 5 of Rogers et al. 2021).
        """
        last = microseconds(self._clock()) // DAY_US
        days = range(last - call.parameters["days"] + 1, last + 1)
        reader = ActivityReader(self._store, {})
        reader.index.update()
        since_us = reader.complete_from_us(days[0] * DAY_US)
        by_account = {name: spent for name, spent in reader.index.spending(days[0]).items() if any(spent.values())}
        accounts = self._store.accounts()
        parents = {account.parent for account in accounts}
        limits = {account.id: Amount.of(account.limit) for account in accounts}
        analysts = [name for name in by_account if name not in parents]
        reached = []
        for percent in REACHED_PERCENT:
            after = [days_until(by_account[name], limits[name], percent) for name in analysts]
            counts = [sum(day is not None and day <= most for day in after) for most in range(len(days))]
            reached.append(wire.Reached(percent=percent, analysts=[n / max(len(after), 1) for n in counts]))
        return wire.Spending(
            since=iso_time(since_us),
            days=[f"{datetime.fromtimestamp(0, UTC) + timedelta(days=day):%Y-%m-%d}" for day in days],
            accounts=[
                wire.AccountSpending(
                    account=name,
                    rho=[spent[day].rho / RHO_UNITS if day in spent else 0.0 for day in days],
                    delta=[spent[day].delta / DELTA_UNITS if day in spent else 0.0 for day in days],
                )
                for name, spent in sorted(by_account.items())
            ],
            analysts=len(analysts),
            reached=reached,
        )

    @_officer("GET", _ONE_ACCOUNT, answer=wire.AccountDetail, parameters=(ACCOUNT,))
    def account(self, call: Call) -> wire.AccountDetail:
        """Return the balance of an account, with the remaining budgets of its parents."""
        return self._detail(call.parameters["account"])

    @_change_account("PATCH", _ONE_ACCOUNT, body=wire.ChangedAccount)
    def change_account(self, call: Call, body: wire.ChangedAccount) -> wire.AccountDetail:
        """Change the limit, period or mode of an account.

        Omitted settings stay as they are. If the new limit is below the spent budget, nothing is left.
        """
        name = call.parameters["account"]

        def change(store: BudgetStore) -> None:
            before = store.account(name)
            _alter(store, before, altered(before, body), call.action(body.reason))

        while True:
            try:
                self._store.together(change)
            except AccountChanged:  # a concurrent change came first: keep its settings where this one omits them
                continue
            return self._changed(call, name)

    # ---------------------------------------------------------------------------------------------- grants

    @_officer(
        "GET",
        _GRANTS,
        answer=wire.GrantPage,
        parameters=(text("account", "Only grants of this account."), AFTER, _LIMIT),
    )
    def grants(self, call: Call) -> wire.GrantPage:
        """List grants by account and dataset."""
        account, after, most = (call.parameters[name] for name in ("account", "after", "limit"))
        named = sorted((account_and_dataset(name), granted_columns(text)) for name, text in self._store.records(GRANT))
        grants = [
            wire.Grant(account=who, dataset=dataset, columns=None if columns is None else sorted(columns))
            for (who, dataset), columns in named
            if account in {None, who} and (after is None or grant_name(who, dataset) > after)
        ]
        page = grants[:most]
        return wire.GrantPage(
            grants=page, next=grant_name(page[-1].account, page[-1].dataset) if len(grants) > most else None
        )

    @_officer("PUT", _ONE_GRANT, body=wire.NewGrant, answer=wire.Grant, parameters=(ACCOUNT, _DATASET, IDEMPOTENCY_KEY))
    def grant(self, call: Call, body: wire.NewGrant) -> wire.Grant:
        """Let an account and all its descendants query a dataset.

        Replaces an earlier grant of the dataset to the account.
        """
        account = call.parameters["account"]
        self._store.account(account)
        name, columns = self._granted(call.parameters["dataset"], body.columns)
        _put_grant(self._store, account, name, columns, call.action(body.reason))
        self._records.invalidate()
        self._log_change(call, account)
        return wire.Grant(account=account, dataset=name, columns=None if columns is None else sorted(columns))

    def _granted(self, dataset: str, columns: Sequence[str] | None) -> tuple[str, Columns]:
        """Return a dataset and its columns to grant, as the catalog spells them; raise `InputError` for others."""
        name, declared = self._catalog.current.find(dataset)
        spelled = {column.casefold(): column for column in declared.columns}
        unknown = [column for column in columns or () if column.casefold() not in spelled]
        if unknown:
            raise InputError(f"the dataset {name!r} has no column {unknown[0]!r} that could be granted")
        return name, None if columns is None else frozenset(spelled[column.casefold()] for column in columns)

    @_officer("DELETE", _ONE_GRANT, status=204, parameters=(ACCOUNT, _DATASET, _REASON, IDEMPOTENCY_KEY))
    def revoke_grant(self, call: Call) -> None:
        """Revoke a grant.

        Within a second, requests of the account get not-found for the dataset.
        """
        account = call.parameters["account"]
        dataset = call.parameters["dataset"]
        if self._store.record(GRANT, grant_name(account, dataset)) is None:
            raise NotFound
        self._store.put_record(GRANT, grant_name(account, dataset), None, call.action(call.parameters["reason"]))
        self._records.invalidate()
        self._log_change(call, account)

    # ---------------------------------------------------------------------------------------------- people

    @_officer(
        "POST",
        "/v1/admin/import",
        body=wire.People,
        answer=wire.ImportedPeople,
        parameters=(IDEMPOTENCY_KEY,),
        problems=("not-found", "clock"),
    )
    def import_people(self, call: Call, body: wire.People) -> wire.ImportedPeople:
        """Create or change accounts, grants and API keys of many people: all of them, or nothing.

        What is already as it should be stays unchanged, so that a list can be extended and sent again. API keys need
        the role admin, too.
        """
        if any(person.roles for person in body.people):
            check_role(call.caller, "admin")
        people = self._store.together(lambda store: self._import(store, call, body), dry_run=body.dry_run)
        self._records.invalidate()
        if not body.dry_run:
            self._log_change(call, "people")
        return wire.ImportedPeople(dry_run=body.dry_run, people=people)

    def _import(self, store: BudgetStore, call: Call, body: wire.People) -> list[wire.ImportedPerson]:
        """Create or change the accounts and grants of *body*, and create keys for people without an equal one."""
        now_us = microseconds(self._clock())
        # Accounts before records, and each change with an id of its own, by which a repeated request is recognized.
        rows = [(f"row {n}", person) for n, person in enumerate(body.people, 1)]
        changes = []
        for row, person in rows:
            with _naming(row):
                changes.append(_import_account(store, person, _part(call.action(body.reason), f"{row} account")))
        grants = dict(store.records(GRANT))
        granted: list[list[str]] = []
        for row, person in rows:
            granted.append([])
            with _naming(row):
                for dataset, listed in person.grants.items():
                    name, columns = self._granted(dataset, listed)
                    if grants.get(grant_name(person.account, name)) != grant_text(columns):
                        action = _part(call.action(body.reason), f"{row} grant {name}")
                        _put_grant(store, person.account, name, columns, action)
                        granted[-1].append(name)
        keys = self._keys.within(store)
        valid = {
            (record.account, frozenset(record.roles), record.label)
            for _, text in store.records(KEY)
            if (record := KeyRecord.of_text(text)).valid_at(now_us)
        }
        people = []
        for (row, person), change, datasets in zip(rows, changes, granted, strict=True):
            created = None
            roles = frozenset(person.roles)
            exists = (person.account, roles, person.label) in valid
            if roles and not exists:
                key = wire.NewKey(
                    account=person.account,
                    roles=person.roles,
                    label=person.label,
                    days=person.key_days,
                    reason=body.reason,
                )
                with _naming(row):
                    created = keys.create(key, _part(call.action(body.reason), f"{row} key"))
                valid.add((person.account, roles, person.label))
            people.append(
                wire.ImportedPerson(
                    account=person.account,
                    change=change,
                    granted=datasets,
                    key="created" if created else "unchanged" if roles else "none",
                    created=None if body.dry_run else created,
                )
            )
        return people

    # ---------------------------------------------------------------------------------------------- API keys

    @_admin("GET", _KEYS, answer=wire.KeyPage, parameters=(AFTER, _LIMIT))
    def keys(self, call: Call) -> wire.KeyPage:
        """List API keys by id, without their secrets."""
        return self._keys.page(call.parameters["after"], call.parameters["limit"])

    @_make_key(_KEYS, body=wire.NewKey, parameters=(IDEMPOTENCY_KEY,), problems=("not-found",))
    def make_key(self, call: Call, body: wire.NewKey) -> wire.CreatedKey:
        """Create an API key.

        The response shows the key, which cannot be retrieved again.
        """
        created = self._keys.create(body, call.action(body.reason))
        self._log_change(call, created.id)
        return created

    @_make_key(f"{_KEYS}/{{key}}/rotate", body=wire.RotatedKey, parameters=(_KEY, IDEMPOTENCY_KEY))
    def rotate_key(self, call: Call, body: wire.RotatedKey) -> wire.CreatedKey:
        """Replace an API key by a new one with the same account and roles.

        Both are valid during the overlap.
        """
        created = self._keys.rotate(call.parameters["key"], body, call.action(body.reason))
        self._log_change(call, created.id)
        return created

    @_admin("DELETE", f"{_KEYS}/{{key}}", status=204, parameters=(_KEY, _REASON, IDEMPOTENCY_KEY))
    def revoke_key(self, call: Call) -> None:
        """Revoke an API key.

        Within a second, all processes refuse it.
        """
        self._keys.revoke(call.parameters["key"], call.action(call.parameters["reason"]))
        self._log_change(call, call.parameters["key"])

    # ---------------------------------------------------------------------------------------------- ledger, settings

    @_officer(
        "GET",
        "/v1/admin/ledger",
        answer=wire.LedgerPage,
        parameters=(
            integer("chain", "Chain of the ledger.", least=0, default=0),
            integer("after", "The number of the line before the page.", least=0, default=0),
            _LIMIT,
        ),
    )
    def ledger(self, call: Call) -> wire.LedgerPage:
        """Return lines of a chain of the ledger in order.

        Each line has the text that is hashed, so that clients can verify the chain.
        """
        chain, after, most = (call.parameters[name] for name in ("chain", "after", "limit"))
        lines = list(self._store.lines(chain, after, most + 1))
        return wire.LedgerPage(
            chain=chain,
            lines=[wire.ledger_line_of(line) for line in lines[:most]],
            next=lines[most - 1].seq if len(lines) > most else None,
        )

    @_officer(
        "GET",
        "/v1/admin/activity",
        answer=wire.ActivityPage,
        parameters=(*ACTIVITY, AFTER, _LIMIT),
    )
    def activity(self, call: Call) -> wire.ActivityPage:
        """List queries and administrative actions, latest first: who asked or changed what, and for how much.

        Each has all of its ledger lines together. No answer is shown.
        """
        reader, filters = self._activity(call)
        after = call.parameters["after"]
        most = call.parameters["limit"]
        if after is not None and not re.fullmatch(r"[0-9]{1,18}(:[0-9]{1,18}){2}", after):
            raise InputError("after is the next of the previous page")
        totals = reader.index.totals(filters)
        if after is not None:
            time_us, chain, seq = map(int, after.split(":"))  # its place in the ledger, as `Activity.id` has it
            filters = dataclasses.replace(filters, before=(time_us, chain, seq))
        events = reader.events(filters, most + 1)
        page = list(reader.shown(events[:most]))
        return wire.ActivityPage(
            since=iso_time(reader.complete_from_us(filters.since_us)),
            count=sum(part.events for part in totals),
            spent=reader.spent(totals),
            activity=page,
            next=page[-1].id if len(events) > most else None,
        )

    def export_activity(self, call: Call) -> tuple[str | None, Iterator[wire.Activity]]:
        """Return all queries and actions that fit the filters, in pages, latest first.

        Returns:
            the time from which on none is missing, None if that is the first one asked for; and an iterator over them.
        """
        reader, filters = self._activity(call)
        from_us = reader.complete_from_us(filters.since_us)

        def entries(filters: LedgerFilter) -> Iterator[wire.Activity]:
            while events := reader.events(filters, _EXPORTED_AT_ONCE):
                yield from reader.shown(events)
                first = events[-1].lines[0][0]
                last = events[-1].time_us
                filters = dataclasses.replace(filters, before=(last, first.chain, first.seq))

        return (iso_time(from_us) if from_us > filters.since_us else None), entries(filters)

    def _activity(self, call: Call) -> tuple[ActivityReader, LedgerFilter]:
        """Return a reader of an index that is up to date, and the filter of a request."""
        account, dataset, kind, since, until = (call.parameters[parameter.name] for parameter in ACTIVITY)
        since_us = _day(since)
        until_us = _day(until)
        if since_us is None:
            since_us = (microseconds(self._clock()) // DAY_US - 6) * DAY_US
        if until_us is not None:
            until_us += DAY_US
        reader = ActivityReader(
            self._store, {f"key:{name}": json.loads(text)["label"] for name, text in self._store.records(KEY)}
        )
        reader.index.update()
        kinds = tuple(sorted(_KINDS.get(kind, {kind})))
        return reader, LedgerFilter(kinds, since_us, LAST if until_us is None else until_us, account, dataset)

    @_officer("POST", "/v1/admin/ledger/verify", answer=wire.Verification)
    def verify(self, _: Call) -> wire.Verification:
        """Verify the whole ledger, and every balance against the ledger; make the index of its lists again."""
        checkpointed = self._settings.checkpoints is not None
        try:
            verified = self._manager.verify()
        except (LedgerBroken, StoreBehind) as error:
            return wire.Verification(
                sound=False, mistake=str(error), lines=None, chains=None, checkpointed=checkpointed
            )
        ActivityReader(self._store, {}).rebuild()
        return wire.Verification(
            sound=True, mistake=None, lines=verified.lines, chains=len(verified.heads), checkpointed=checkpointed
        )

    @_officer("POST", "/v1/admin/catalog", body=wire.AdminRequest, status=204, parameters=(IDEMPOTENCY_KEY,))
    def reload_catalog(self, call: Call, body: wire.AdminRequest) -> None:
        """Read the catalog file again.

        If it is valid, all processes and replicas that have the same file serve it within about ten seconds, and longer
        if large sources have to be checked; otherwise nothing changes.
        """
        self._catalog.reload(call.action(body.reason))
        self._log_change(call, "catalog")

    @_officer("POST", "/v1/admin/clock", body=wire.AdminRequest, status=204, parameters=(IDEMPOTENCY_KEY,))
    def confirm_clock(self, call: Call, body: wire.AdminRequest) -> None:
        """Confirm the time of the store after its clock ran ahead."""
        self._store.confirm_clock(call.action(body.reason))
        self._log_change(call, "clock")

    @_officer(
        "GET",
        "/v1/admin/disclosure",
        answer=Disclosure,
        parameters=(
            text("account", "An account without parents; without it and dataset, the only one."),
            text("dataset", "A dataset of the catalog, instead of an account."),
        ),
        problems=("not-found",),
    )
    def disclosure(self, call: Call) -> Disclosure:
        """Return what may be published about the privacy of an account or a dataset.

        It has the guarantee, the mechanisms that were used, exclusions, unprotected quantities and known limits; no
        answer and no count of users or rows.
        """
        now_us = microseconds(self._clock())
        account, dataset = (call.parameters[name] for name in ("account", "dataset"))
        return disclose(account, dataset, self._manager, self._catalog.current, self._settings, now_us)

    @_officer("GET", "/v1/admin/settings", answer=wire.RunningSettings)
    def settings(self, _: Call) -> wire.RunningSettings:
        """Return the current settings of the service, without secrets and paths."""
        service = self._settings.service
        limits = self._settings.limits
        oidc = self._settings.oidc
        return wire.RunningSettings(
            version=__version__,
            store=self._settings.store.kind,
            checkpoints=self._settings.checkpoints is not None,
            datasets=list(self._catalog.current.datasets),
            defaults={
                name: str(value)
                for name in ("epsilon", "delta", "epsilon_per", "delta_per", "information")
                if (value := getattr(self._settings.defaults, name)) is not None
            },
            max_k=limits.max_k,
            max_head_limit=limits.max_head_limit,
            max_epsilon=limits.max_epsilon,
            max_delta=float(limits.max_delta),
            max_body_bytes=service.max_body_bytes,
            max_concurrent_queries=service.max_concurrent_queries,
            requests_per_minute=service.requests_per_minute,
            release_grid_ms=service.release_grid_ms,
            issuer=None if oidc is None else oidc.issuer,
            audience=None if oidc is None else oidc.audience,
        )

    # ---------------------------------------------------------------------------------------------- shared

    def _detail(self, name: str) -> wire.AccountDetail:
        return account_detail(self._manager.path(name), self._store)

    def _changed(self, call: Call, account: str) -> wire.AccountDetail:
        self._log_change(call, account)
        return self._detail(account)

    def _log_change(self, call: Call, subject: str) -> None:
        scope = call.request.scope
        route = f"{call.request.method} {scope['route'].path}"
        self._log.event(AdminChanged(context_of(scope).request_id, call.caller.actor, route, subject))


def _day(date: str | None) -> int | None:
    """Return the start of a day in UTC, in microseconds since 1970."""
    if date is None:
        return None
    try:
        return microseconds(datetime.fromisoformat(date).replace(tzinfo=UTC))
    except ValueError:
        raise InputError(f"there is no day {date}") from None


def _put_grant(store: BudgetStore, account: str, dataset: str, columns: Columns, action: AdminAction) -> None:
    shown = {"columns": None if columns is None else sorted(columns)}
    store.put_record(GRANT, grant_name(account, dataset), grant_text(columns), action, shown)


def _import_account(
    store: BudgetStore, person: wire.Person, action: AdminAction
) -> Literal["created", "changed", "unchanged"]:
    """Create or alter the account of a person in *store*, and return what was done.

    Raises:
        InputError: a new account has no limit, or an existing one another parent.
    """
    try:
        before = store.account(person.account)
    except UnknownAccount:
        if person.limit is None:
            raise InputError(f"the new account {person.account!r} needs a limit") from None
        limit, delta, units = read_limit(person.limit)
        period = Forever() if person.period is None else read_period(person.period)
        mode = person.mode or "enforce"
        store.create(Account(person.account, limit, delta, person.parent, period, mode, units), action)
        return "created"
    if person.parent not in {None, before.parent}:
        raise InputError(f"the account {person.account!r} is below {before.parent!r}, and a parent never changes")
    if person.limit is None and person.period is None and person.mode is None:
        return "unchanged"
    after = altered(before, wire.AccountChanges(limit=person.limit, period=person.period, mode=person.mode))
    if after == before:
        return "unchanged"
    _alter(store, before, after, action)
    return "changed"


def _alter(store: BudgetStore, before: Account, after: Account, action: AdminAction) -> None:
    """Alter an account in a transaction of *store*.

    Raises:
        InputError: it would give back what running counts cost, which stay published.
        AccountChanged: it is not *before* any more.
    """
    store.alter(after, action, before)  # locks the account, so that no stream begins after the check
    if (before.period, before.mode) != (after.period, after.mode):
        for name, stream in stored_streams(store).items():
            if stream.account == before.id:
                raise InputError(f"account {before.id} paid for running counts {name}, so its period and mode stay")


def _part(action: AdminAction, part: str) -> AdminAction:
    """Return one change of an action of several, with an id of its own if the action has one."""
    if action.id is None:
        return action
    return dataclasses.replace(action, id=hashlib.sha256(f"{part} of {action.id}".encode()).hexdigest())


@contextlib.contextmanager
def _naming(row: str) -> Iterator[None]:
    """Add the row to the message of a mistake in it."""
    try:
        yield
    except (InputError, UnknownAccount) as error:
        raise InputError(f"{row}: {error}") from None


def altered(account: Account, body: wire.AccountChanges) -> Account:
    """Return *account* with the changes of *body*."""
    if body.limit is not None:
        limit, delta, units = read_limit(body.limit)
        account = dataclasses.replace(account.with_limit(limit, delta), units=units)
    if body.period is not None:
        account = dataclasses.replace(account, period=read_period(body.period))
    return dataclasses.replace(account, mode=body.mode or account.mode)
