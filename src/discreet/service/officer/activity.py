"""What the ledger says, a query or an administrative action at a time: who asked or changed what, and for how much.

Read from the ledger, the stored questions of answers and the names of keys; never from data, and no count of an answer.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from discreet.budget.ledger import ACCOUNT_KINDS, Entry, Line, account_of, canonical
from discreet.budget.model import NOTHING, Account, Amount
from discreet.budget.stores.ledger_index import Description, LedgerFilter, LedgerIndex, Total
from discreet.budget.stores.store import BudgetStore
from discreet.errors import InputError
from discreet.query.json import from_dict
from discreet.query.sql import condition
from discreet.service.answering.accounts import limit_in_words, period_in_words, period_of
from discreet.service.answering.saved_tables import PUBLISHED, RECORD
from discreet.service.auth.access import GRANT, KEY, account_and_dataset
from discreet.wire import administration as wire
from discreet.wire import document
from discreet.wire.queries import iso_time, spend_above

_OUTCOMES: Mapping[str, wire.ActivityKind] = {
    "settle": "answered",
    "replay": "repeated",
    "refuse": "refused",
    "forfeit": "failed",
    "void": "cancelled",
}
_ACTIONS: Mapping[str, wire.ActivityKind] = {
    **dict.fromkeys(("create", "alter", "charge", "refund", "lift"), "account"),
    **dict.fromkeys(("clock", "prune", "note"), "store"),
}
_RECORDS: Mapping[str, wire.ActivityKind] = {GRANT: "grant", KEY: "key", RECORD: "account", PUBLISHED: "grant"}
_ACTION_KINDS = (*dict.fromkeys([*_ACTIONS.values(), *_RECORDS.values()]), "upkeep")


_RELEASES_AT_ONCE = 50
"""Stored answers that are in memory at once: one of 10,000 items has about a megabyte."""

_MAX_STORED = 4096


@dataclass(slots=True)
class ActivityEvent:
    """The lines of one query, or one other line.

    Args:
        lines: in the order of time.
        details: what the lines say of the request or the action.
        accounts: the account that asked or was changed, and all others whose balance changed.
        question: what was asked: dataset, items, measure and k; None if it is not known, and for other lines.
    """

    kind: wire.ActivityKind
    time_us: int
    lines: list[tuple[Line, Entry]]
    details: list[dict[str, Any]]
    account: str | None = None
    dataset: str | None = None
    question: dict[str, Any] | None = None
    accounts: set[str] = field(default_factory=set)
    charged: dict[str, Amount] = field(default_factory=dict)
    held: dict[str, Amount] = field(default_factory=dict)


class ActivityReader:
    """Reads events from the ledger of a store.

    Args:
        store: it is read only.
        labels: the labels of API keys, by actor, for lines that do not hold the name of theirs.

    Attributes:
        index: the index of the ledger, which is to be updated before events are read.
    """

    def __init__(self, store: BudgetStore, labels: Mapping[str, str]) -> None:
        self._store = store
        self._labels = labels
        self._accounts = {account.id: account for account in store.accounts()}
        self._stored: dict[str, tuple[dict[str, Any], str, str | None] | None] = {}
        self._charge = functools.lru_cache(maxsize=4096)(self._new_charge)
        self.index = LedgerIndex(store, self._described)

    def rebuild(self) -> None:
        """Make the index of the ledger again."""
        self.index.rebuild()
        self.index.update()

    def complete_from_us(self, since_us: int) -> int:
        """Return the time from *since_us* on from which no event is missing, because its lines were removed."""
        return max(since_us, self.index.complete_from_us())

    def events(self, filters: LedgerFilter, most: int) -> list[ActivityEvent]:
        """Return at most *most* events, the latest first."""
        return [self._event(lines) for lines in self.index.events(filters, most)]

    def entries(self, filters: LedgerFilter, since_us: int, most: int) -> tuple[int, list[Entry]]:
        """Return the entries of the last *most* events, in the order of time.

        Returns:
            the time from *since_us* on from which none is missing, and the entries, of which some may be earlier.
        """
        events = self.index.events(filters, most)
        since_us = self.complete_from_us(since_us)
        if len(events) == most:
            since_us = max(since_us, events[-1][0][1].time_us)
        return since_us, sorted((entry for event in events for _, entry in event), key=lambda entry: entry.time_us)

    def spent(self, of_queries: Iterable[Total]) -> list[wire.Spent]:
        """Return the amounts that accounts were charged, for queries or by hand, the largest share of a limit first."""
        totals: defaultdict[str, Amount] = defaultdict(lambda: NOTHING)
        queries: defaultdict[str, int] = defaultdict(int)
        parts: defaultdict[str, defaultdict[str, Amount]] = defaultdict(lambda: defaultdict(lambda: NOTHING))
        for part in of_queries:
            is_query = part.kind in {"answered", "repeated", "failed"}
            if part.account in self._accounts and (is_query or part.charged != NOTHING):
                totals[part.account] += part.charged
                queries[part.account] += part.events if is_query else 0
                parts[part.account][part.question or "{}"] += part.charged
        spent = []
        for name, total in totals.items():
            # Of several questions with equal shares the first in the order of their texts, for equal pages.
            most = max(sorted(parts[name]), key=lambda question: parts[name][question].rho)
            whole = self._charge(name, NOTHING, total)
            question = json.loads(most)
            spent.append(
                wire.Spent(
                    account=name,
                    queries=queries[name],
                    charged=whole.charged,
                    epsilon=whole.epsilon_charged,
                    share=whole.share_charged,
                    dataset=question.get("dataset"),
                    question=question or None,
                    question_share=parts[name][most].rho / total.rho if total.rho else 0.0,
                )
            )
        return sorted(spent, key=lambda row: (-row.share, -row.epsilon, row.account))

    def shown(self, events: Sequence[ActivityEvent]) -> Iterator[wire.Activity]:
        """Yield events with everything that is known of them."""
        for begin in range(0, len(events), _RELEASES_AT_ONCE):
            some = events[begin : begin + _RELEASES_AT_ONCE]
            self._read(self._release(event) for event in some if event.kind in {"answered", "repeated"})
            yield from map(self._shown, some)

    def _shown(self, event: ActivityEvent) -> wire.Activity:
        """Return an event as a model of the API, with the question of its release if that is stored."""
        first = event.lines[0][0]
        detail = event.details[0]
        actor = detail.get("actor")
        accounts = [name for name in dict.fromkeys([*event.held, *event.charged]) if name in self._accounts]
        mechanism = None
        where = None
        if event.question is not None:
            where = ", ".join(event.question.get("where") or []) or None
            stored = self._stored.get(self._release(event)) if event.kind in {"answered", "repeated"} else None
            if stored is not None:
                mechanism = stored[1]
                where = stored[2]
        needed = event.kind == "refused" and "short" in detail
        return wire.Activity(
            id=f"{event.time_us}:{first.chain}:{first.seq}",
            time=iso_time(event.time_us),
            kind=event.kind,
            account=event.account,
            dataset=event.dataset,
            question=event.question,
            where=where,
            mechanism=mechanism,
            charges=[
                self._charge(name, event.held.get(name, NOTHING), event.charged.get(name, NOTHING)) for name in accounts
            ],
            refused_by=detail.get("short", detail.get("suspended")) if event.kind == "refused" else None,
            needed=self._charge(detail["short"], Amount(int(detail["rho"]), int(detail["delta"])), NOTHING)
            if needed and detail["short"] in self._accounts
            else None,
            actor=actor,
            name=detail.get("name") or self._labels.get(actor or "") or None,
            reason=detail.get("reason"),
            changes=self._changes(event, detail),
            lines=[f"{line.chain}:{line.seq}" for line, _ in event.lines],
        )

    # ---------------------------------------------------------------------------------------------- reading

    def _described(self, lines: list[tuple[Line, Entry]]) -> Description:
        """Return what the index holds of an event."""
        event = self._event(lines)
        is_charge = lines[0][1].reservation or lines[0][1].kind == "charge"
        charged = event.charged.get(event.account or "", NOTHING) if is_charge else NOTHING
        return Description(
            event.kind,
            event.account,
            event.dataset,
            None if lines[0][1].reservation else _subject(lines[0][1]),
            canonical(event.question) if event.question is not None else None,
            charged,
        )

    def _event(self, lines: list[tuple[Line, Entry]]) -> ActivityEvent:
        """Return the event of *lines*, which are of one reservation, or one line."""
        entries = [entry for _, entry in lines]
        first = entries[0]
        details = [json.loads(entry.detail) for entry in entries]
        detail = details[0]
        event = ActivityEvent(_kind_of(entries, detail), first.time_us, lines, details)
        for entry in entries:
            for account, _, tally in entry.changes:
                event.held[account] = event.held.get(account, NOTHING).most(tally.held)
                event.charged[account] = event.charged.get(account, NOTHING) + tally.used + tally.forfeited
        if first.reservation is not None:
            event.account = next((by for part in details if (by := part.get("by"))), None)
            event.question = detail.get("question")
            if event.question is None and (release := self._release(event)):  # by an earlier version
                self._read([release])
                stored = self._stored[release]
                event.question = None if stored is None else stored[0]
            event.dataset = None if event.question is None else event.question["dataset"]
        elif "record" in detail and detail["record"]["kind"] == GRANT:
            event.account, event.dataset = account_and_dataset(detail["record"]["name"])
        elif "record" in detail and detail["record"]["kind"] in {RECORD, PUBLISHED}:
            event.account, _ = account_and_dataset(detail["record"]["name"])
        elif "account" in detail:
            event.account = detail["account"] if isinstance(detail["account"], str) else detail["account"]["id"]
        elif event.kind == "key":
            event.account = detail.get("shown", {}).get("account")
        else:
            event.account = next(iter(event.charged), None)
        event.accounts = {*event.charged, *([] if event.account is None else [event.account])}
        return event

    def _release(self, event: ActivityEvent) -> str:
        return next((name for detail in event.details if (name := detail.get("release"))), "")

    def _read(self, releases: Iterable[str]) -> None:
        """Read the question, the mechanism and the filter of stored answers; None without one that can be read."""
        if len(self._stored) > _MAX_STORED:
            self._stored.clear()
        unread = {name for name in releases if name and name not in self._stored}
        if not unread:
            return
        self._stored |= dict.fromkeys(unread)
        for release in self._store.releases(map(bytes.fromhex, unread)):
            with contextlib.suppress(InputError, KeyError):
                fields = document.read(release.result)
                filtered = None if fields["question"].get("where") is None else from_dict(fields["question"]).where
                where = None if filtered is None else condition(filtered)
                question = {**fields["question"], "where": []}
                self._stored[release.release_key.hex()] = question, fields["chosen"] or fields["mechanism"], where

    # ---------------------------------------------------------------------------------------------- amounts and changes

    def _new_charge(self, name: str, held_amount: Amount, charged: Amount) -> wire.AccountCharge:
        """Return amounts of an account as epsilon at its delta, as a share of its present limit, and in zCDP.

        Args:
            charged: below 0 for a refund, which is shown as the amount that came back.
        """
        account = self._accounts[name]
        charged_or_refunded = charged.most(-charged)
        cost_held = held_amount.cost
        cost_charged = charged_or_refunded.cost
        return wire.AccountCharge(
            account=name,
            epsilon_held=account.epsilon_of(cost_held.rho),
            epsilon_charged=account.epsilon_of(cost_charged.rho),
            share_held=_share(account, held_amount),
            share_charged=_share(account, charged_or_refunded),
            held=spend_above(cost_held),
            charged=spend_above(cost_charged),
        )

    def _changes(self, event: ActivityEvent, detail: Mapping[str, Any]) -> list[wire.SettingChange]:
        """Return the settings that an action changed, with their old and new values."""
        entry = event.lines[0][1]
        old: Mapping[str, str | None] = {}
        if entry.kind in {"create", "alter"}:
            new = _settings(account_of(canonical(detail["account"])))
            if entry.kind == "alter" and (before := self._before(event)) is not None:
                old = _settings(account_of(canonical(before["account"])))
        elif entry.kind == "lift":
            new = {"failed queries": "forgotten"}
        elif entry.kind in {"charge", "refund"}:
            new = {"charge by hand" if entry.kind == "charge" else "refund": "see the cost"}
        elif "record" in detail and detail["record"]["kind"] in _RECORDS:
            record = detail["record"]
            new = _record(record, detail.get("shown"))
            if (before := self._before(event)) is not None:
                old = _record(before["record"], before.get("shown"))
        else:
            new = {key: value for key, value in detail.items() if key in {"what", "seen_us"}}
        return [
            wire.SettingChange(setting=name, old=old.get(name), new=new.get(name))
            for name in dict.fromkeys([*new, *old])
            if new.get(name) != old.get(name) and not (name not in old and new[name] in {"no", None})
        ]

    def _before(self, event: ActivityEvent) -> dict[str, Any] | None:
        """Return the detail of the action before an event on the same subject, or None."""
        line, entry = event.lines[0]
        filters = LedgerFilter(_ACTION_KINDS, subject=_subject(entry), before=(entry.time_us, line.chain, line.seq))
        earlier = self.index.events(filters, 1)
        return json.loads(earlier[0][0][1].detail) if earlier else None


def _subject(entry: Entry) -> str | None:
    """Return what an action changed: an account, or a record."""
    detail = json.loads(entry.detail)
    if entry.kind in ACCOUNT_KINDS:
        return f"account {detail['account']['id']}"
    record = detail.get("record")
    return None if record is None else f"{record['kind']} {record['name']}"


def _kind_of(entries: Sequence[Entry], detail: Mapping[str, Any]) -> wire.ActivityKind:
    last = entries[-1].kind
    kinds = {entry.kind for entry in entries}
    if entries[0].reservation is None:
        record = detail.get("record", {}).get("kind")
        return (
            "upkeep"
            if record is not None and record not in _RECORDS
            else _RECORDS.get(record, _ACTIONS.get(last, "upkeep"))
        )
    if last in {"expire", "lose"}:  # if data was read, what was held stays charged
        charged = any(tally.forfeited for entry in entries for _, _, tally in entry.changes)
        return "failed" if "start" in kinds or charged else "cancelled"
    return _OUTCOMES.get(last, "running")


def _share(account: Account, amount: Amount) -> float:
    """Return the share of the account's present limit, of rho or delta, whichever is larger."""
    limit = Amount.of(account.limit)
    pairs = ((amount.rho, limit.rho), (amount.delta, limit.delta))
    return max(spent / most if most else float(spent > 0) for spent, most in pairs)


def _settings(account: Account) -> dict[str, str | None]:
    return {
        "limit": limit_in_words(account),
        "period": period_in_words(period_of(account.period)),
        "mode": account.mode,
        "parent": account.parent,
        "suspended": "yes" if account.suspended else "no",
    }


def _record(record: Mapping[str, Any], shown: Mapping[str, Any] | None) -> dict[str, str | None]:
    """Return the settings of a grant or a key as text; lines of earlier versions say only that there is one."""
    if record["kind"] == GRANT:
        if record["sha256"] is None:
            return {"columns": None}
        columns = None if shown is None else shown["columns"]
        return {"columns": "granted" if shown is None else "all" if columns is None else ", ".join(columns) or "none"}
    if record["kind"] in {RECORD, PUBLISHED}:
        _, name = account_and_dataset(record["name"])
        added = len((shown or {}).get("releases", ()))
        answers = f"{added} {'release' if added == 1 else 'releases'} added"
        state = "published" if record["kind"] == PUBLISHED else answers
        return {f"saved table {name}": "none" if record["sha256"] is None else state}
    settings = {} if shown is None else {name: value for name, value in shown.items() if value}
    if "expires" in settings:
        settings["expires"] = settings["expires"][:10]
    texts = {name: ", ".join(value) if isinstance(value, list) else str(value) for name, value in settings.items()}
    return {"key": record["name"], **texts, "state": "revoked" if record["sha256"] is None else "valid"}
