"""JSON shapes of the officers' and administrators' API, and of the health checks."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from discreet.budget.ledger import Line, entry_of
from discreet.budget.model import DELTA_UNITS, RHO_UNITS, CalendarUnit, Mode
from discreet.wire.queries import (
    BudgetReport,
    Exact,
    Period,
    PeriodKind,
    Reply,
    RequestBody,
    Spend,
    iso_time,
    request_error,
)

Role = Literal["analyst", "officer", "admin"]
"""analyst: queries charged to an account; officer: accounts, budgets, grants and the ledger; admin: API keys.

No role includes another.
"""

StoreKind = Literal["sqlite", "postgresql"]
Whole = Annotated[int, Field(ge=0, le=10**12)]


class AdminRequest(RequestBody):
    """A change by an officer or an admin, with its reason."""

    reason: str = Field(min_length=1, max_length=2_000, description="Recorded in the ledger.")


class Publication(AdminRequest):
    """Whether all accounts below the parent of the owner read a saved table free."""

    published: bool


class PaidStream(Reply):
    """A stream of running counts, which the catalog declares with an account."""

    name: str
    account: str = Field(
        description="The account that pays, once, for all periods; and once more after a restored store was accepted."
    )
    epsilon: float = Field(description="Epsilon of all periods together, as often as it was paid.")
    paid: Spend | None = Field(description="What it cost; null before it has begun.")
    periods: int = Field(description="The number of periods that were answered.")
    until: str | None = Field(description="The start of the last period; null before it has begun.")
    begins: str | None = Field(
        description="When its first period is complete, in UTC: then, or later when the account can pay, it is paid, "
        "and all complete periods are answered, from the first on. Null once it has begun, and if it cannot."
    )
    problem: str | None = Field(
        description="Why the last refresh by the process that was asked failed; null if none did."
    )


class PaidStreams(Reply):
    """All streams, by name."""

    streams: list[PaidStream]


# ------------------------------------------------------------------------------------------------------ accounts


class Limit(RequestBody):
    """The largest amount that may be spent in a period, in one of four forms."""

    epsilon: Annotated[float, Field(allow_inf_nan=False)] | None = Field(
        default=None, description="Epsilon of all releases together, with delta."
    )
    delta: Exact | None = Field(
        default=None, description="Delta of all releases together; with epsilon, or with rho and lost."
    )
    rho: Exact | None = Field(default=None, description="rho of zCDP, with lost and delta.")
    lost: Exact | None = Field(
        default=None, description="The part of delta for the deltas of the releases; the rest is for the conversion."
    )
    information: Whole | None = Field(default=None, description="Units of information, with calls and their prices.")
    calls: Whole | None = Field(default=None, description="Calls over unknown domains.")
    epsilon_per: Exact | None = Field(default=None, description="Epsilon of one unit of information.")
    delta_per: Exact | None = Field(default=None, description="Delta of one call.")
    conversion: Exact | None = Field(
        default=None,
        description="With units: the delta of the conversion, added to the deltas of the calls; 1e-9 by default.",
    )
    preset: Literal["linkedin"] | None = Field(default=None, description="The name of published units and prices.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = frozenset(name for name in type(self).model_fields if getattr(self, name) is not None)
        units = {"information", "calls", "epsilon_per", "delta_per"}
        if names not in ({"epsilon", "delta"}, {"rho", "lost", "delta"}, units, units | {"conversion"}, {"preset"}):
            raise request_error(
                "a limit is epsilon and delta, or rho, lost and delta, or information, calls, epsilon_per and "
                "delta_per, or a preset, and no two of these"
            )
        return self


class PeriodRequest(RequestBody):
    """The period of a limit: sliding with days, calendar with unit and optionally zone, or forever."""

    kind: PeriodKind = Field(
        description="sliding: the limit is for any window of days; calendar: for each unit, so a window may hold two."
    )
    days: int | None = Field(
        default=None, ge=1, le=36_500, description="Days of a sliding period; as many as the data is kept."
    )
    unit: CalendarUnit | None = Field(default=None, description="Length of a calendar period.")
    zone: str | None = Field(
        default=None, max_length=100, description="Time zone of a calendar period; UTC by default."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = {name for name in ("days", "unit", "zone") if getattr(self, name) is not None}
        fitting = {"sliding": ({"days"},), "calendar": ({"unit"}, {"unit", "zone"}), "forever": (set(),)}
        if names not in fitting[self.kind]:
            raise request_error("a period is sliding with days, calendar with unit and optionally zone, or forever")
        return self


class NewAccount(AdminRequest):
    """An account to open."""

    account: str = Field(
        min_length=1, max_length=200, description="Name of the account, without white space; it never changes."
    )
    parent: str | None = Field(default=None, description="The parent account, which is charged too; it never changes.")
    limit: Limit
    period: PeriodRequest = Field(
        default=PeriodRequest(kind="forever"), description="The period after which charges stop counting."
    )
    mode: Mode = Field(
        default="enforce",
        description="enforce refuses what exceeds the limit; observe only charges, and guarantees nothing.",
    )


class AccountChanges(RequestBody):
    """Changes of an account; fields that are left out stay as they are."""

    limit: Limit | None = Field(
        default=None, description="The new limit; if it is below the amount spent, nothing is left."
    )
    period: PeriodRequest | None = Field(
        default=None, description="The new period, which applies to earlier charges too."
    )
    mode: Mode | None = Field(default=None, description="The new mode.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.limit is None and self.period is None and self.mode is None:
            raise request_error("a change needs a limit, a period or a mode")
        return self


class ChangedAccount(AccountChanges, AdminRequest):
    """Changes of an account, with their reason."""


class Payment(AdminRequest):
    """The amount of a manual charge or refund: in rho and delta, or in the account's units."""

    rho: Exact | None = Field(default=None, description="rho of zCDP; needs delta.")
    delta: Exact | None = Field(default=None, description="delta; needs rho.")
    information: Whole | None = Field(default=None, description="Units of information, in place of rho; needs calls.")
    calls: Whole | None = Field(default=None, description="Calls over unknown domains; needs information.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = {name for name in ("rho", "delta", "information", "calls") if getattr(self, name) is not None}
        if names not in ({"rho", "delta"}, {"information", "calls"}):
            raise request_error("an amount is rho and delta, or information and calls")
        return self


class AccountDetail(BudgetReport):
    """An account and its balance."""

    parent: str | None
    delta: float = Field(description="Delta of the guarantee: the deltas of the releases and that of the conversion.")
    as_of: int = Field(description="Number of the last ledger line that the balance includes.")
    total: Spend | None = Field(description="The limit of all data centres together; null if there is only this one.")
    limit_unit: Literal["epsilon", "units", "rho"] = Field(description="The unit in which the limit was set.")
    limit_in_words: str = Field(description="The limit in that unit.")


class AccountSummary(Reply):
    """An account in a list."""

    account: str
    parent: str | None
    mode: Mode
    period: Period
    limit: Spend
    delta: float
    total: Spend | None = Field(description="The limit of all data centres together; null if there is only this one.")


class AccountPage(Reply):
    """A page of accounts, ordered by name."""

    accounts: list[AccountSummary]
    next: str | None = Field(description="The value of after for the next page; null on the last.")


class Preview(Reply):
    """The queries of the last days that changes of an account would have refused."""

    since: str = Field(description="The start of the covered time: later than requested if the ledger is too long.")
    queries: int = Field(description="Number of queries of the account since then.")
    refused: int = Field(description="Number of these that the limit, if enforced, would have refused.")
    first: str | None = Field(description="The time of the first of these.")


class AccountSpending(Reply):
    """The amounts that an account spent on each day, oldest first."""

    account: str
    rho: list[float]
    delta: list[float]


class Reached(Reply):
    """The days in which analysts use up a percentage of their limits."""

    percent: int = Field(description="Percent of the limit, by rho or delta, whichever is used up first.")
    analysts: list[float] = Field(
        description="The share of analysts that had used it n days after their first charge, for n = 0, 1, 2, ..."
    )


class Spending(Reply):
    """The amounts that all accounts spent on each of the last days, failed queries included."""

    since: str = Field(description="The start of the covered time: later than requested if the ledger is too long.")
    days: list[str] = Field(description="The days, in UTC; the last one is today.")
    accounts: list[AccountSpending] = Field(description="The accounts with charges, by name.")
    analysts: int = Field(description="Number of accounts with charges that have no child accounts.")
    reached: list[Reached]


# ------------------------------------------------------------------------------------------------------ keys


class NewKey(AdminRequest):
    """An API key to create."""

    account: str | None = Field(
        default=None, description="The account to which its queries are charged; the role analyst needs one."
    )
    roles: list[Role] = Field(min_length=1, max_length=3, description="Roles of the key.")
    label: str = Field(default="", max_length=200, description="Owner or purpose of the key.")
    days: int | None = Field(default=365, ge=1, le=3_650, description="Days until it expires; null for never.")


class RotatedKey(AdminRequest):
    """The rotation of a key: when the old and the new key expire."""

    overlap_hours: int = Field(default=24, ge=0, le=720, description="Hours during which both keys are valid.")
    days: int | None = Field(default=365, ge=1, le=3_650, description="Days until the new one expires; null for never.")


class KeySummary(Reply):
    """An API key without its secret, which is not stored."""

    id: str
    account: str | None
    roles: list[Role]
    label: str
    created: str
    expires: str | None
    last_used: str | None = Field(description="Time of the last use, to the hour; null if it was never used.")


class CreatedKey(Reply):
    """A new API key with its secret."""

    id: str
    key: str = Field(description="The key, which is shown once and not stored.")
    expires: str | None


class KeyPage(Reply):
    """A page of API keys, ordered by id."""

    keys: list[KeySummary]
    next: str | None = Field(description="The value of after for the next page; null on the last.")


# ------------------------------------------------------------------------------------------------------ grants


class NewGrant(AdminRequest):
    """The columns of a dataset that an account and its descendants may query."""

    columns: list[str] | None = Field(
        max_length=10_000,
        description="Names of columns; null for all, also those added later. An empty list allows totals only.",
    )


class Grant(Reply):
    """The columns of a dataset that an account and its descendants may query."""

    account: str
    dataset: str
    columns: list[str] | None = Field(description="Names of columns; null for all.")


class GrantPage(Reply):
    """A page of grants, ordered by account and dataset."""

    grants: list[Grant]
    next: str | None = Field(description="The value of after for the next page; null on the last.")


# ------------------------------------------------------------------------------------------------------ people


class Person(RequestBody):
    """An account with its limit, grants and API key, as it should be."""

    account: str = Field(
        min_length=1,
        max_length=200,
        description="Name of the account. For tokens of an OpenID issuer, the value of the claim that names accounts.",
    )
    parent: str | None = Field(default=None, description="The parent account; it never changes.")
    limit: Limit | None = Field(default=None, description="The limit; a new account needs one.")
    period: PeriodRequest | None = Field(default=None, description="The period; of a new account forever by default.")
    mode: Mode | None = Field(default=None, description="The mode; of a new account enforce by default.")
    grants: dict[str, list[str] | None] = Field(
        default_factory=dict, max_length=1_000, description="Columns by dataset; null for all columns."
    )
    roles: list[Role] = Field(
        default_factory=list, max_length=3, description="Roles of an API key; none without. Needs the role admin, too."
    )
    label: str = Field(default="", max_length=200, description="Owner or purpose of the key.")
    key_days: int | None = Field(default=365, ge=1, le=3_650, description="Days until the key expires; null for never.")


class People(AdminRequest):
    """People whose accounts, grants and keys are created or changed together, parents before their children."""

    people: list[Person] = Field(min_length=1, max_length=10_000)
    dry_run: bool = Field(default=False, description="True to change nothing, and return what would be changed.")


class ImportedPerson(Reply):
    """What was changed for a person, or would be."""

    account: str
    change: Literal["created", "changed", "unchanged"]
    granted: list[str] = Field(description="Datasets with a new or another grant.")
    key: Literal["created", "unchanged", "none"] = Field(
        description="unchanged if the account has a valid key with these roles and this label."
    )
    created: CreatedKey | None = Field(description="The new key with its secret; null without one, or in a dry run.")


class ImportedPeople(Reply):
    """What was changed, or would be."""

    dry_run: bool
    people: list[ImportedPerson]


# ------------------------------------------------------------------------------------------------------ the ledger


class Change(Reply):
    """A change that a ledger line made to a bucket of an account."""

    account: str
    bucket: int
    part: Literal["used", "held", "forfeited", "refunded"]
    rho: float
    delta: float


class LedgerLine(Reply):
    """A line of the ledger."""

    seq: int
    time: str
    kind: str
    reservation: str | None
    detail: dict[str, Any]
    changes: list[Change]
    body: str = Field(description="The text that is hashed with the hash of the previous line; its amounts are exact.")
    hash: str = Field(description="SHA-256 in hexadecimal digits.")


def ledger_line_of(line: Line) -> LedgerLine:
    """Return a line of the ledger: its fields, and the text that is hashed.

    Raises:
        LedgerBroken: the line cannot be parsed.
    """
    entry = entry_of(line)
    changes = [
        Change(account=account, bucket=bucket, part=part, rho=amount.rho / RHO_UNITS, delta=amount.delta / DELTA_UNITS)
        for account, bucket, tally in entry.changes
        for part in ("used", "held", "forfeited", "refunded")
        if (amount := getattr(tally, part))
    ]
    return LedgerLine(
        seq=line.seq,
        time=iso_time(entry.time_us),
        kind=entry.kind,
        reservation=entry.reservation,
        detail=json.loads(entry.detail),
        changes=changes,
        body=line.body,
        hash=line.hash.hex(),
    )


class LedgerPage(Reply):
    """A page of the lines of one chain of the ledger, in order."""

    chain: int
    lines: list[LedgerLine]
    next: int | None = Field(description="The value of after for the next page; null on the last.")


ActivityKind = Literal[
    "answered", "repeated", "refused", "failed", "cancelled", "running", "account", "grant", "key", "store", "upkeep"
]
"""The outcome of a query, or the subject of an action.

answered: computed and charged; repeated: answered to another account before; refused: nothing was charged; failed:
charged without an answer, which pays for a retry; cancelled: before data was read; upkeep: what happens by itself.
"""


class AccountCharge(Reply):
    """The amounts that a query held and was charged in one account."""

    account: str
    epsilon_held: float = Field(description="Epsilon of the amount held by itself, at the account's delta.")
    epsilon_charged: float = Field(description="Epsilon of the amount charged by itself, at the account's delta.")
    share_held: float = Field(description="The amount held as a share of the present limit, by rho or delta.")
    share_charged: float = Field(description="The amount charged as a share of the present limit, by rho or delta.")
    held: Spend = Field(description="The amount that was reserved.")
    charged: Spend = Field(description="The amount that stays charged, or that a refund gave back.")


class SettingChange(Reply):
    """A setting before and after an action; null where there is none, or where the ledger does not say."""

    setting: str
    old: str | None
    new: str | None


class Activity(Reply):
    """A query or an action, from all of its ledger lines."""

    id: str = Field(description="Its place in the ledger, for `after`.")
    time: str
    kind: ActivityKind
    account: str | None = Field(description="The account that asked or was changed.")
    dataset: str | None
    question: dict[str, Any] | None = Field(
        description="The question: dataset, items, measure, k, and the columns of the filter; null if unknown."
    )
    where: str | None = Field(description="The filter as SQL; of a query without an answer, the names of its columns.")
    mechanism: str | None = Field(description="The mechanism that answered.")
    charges: list[AccountCharge] = Field(description="The account that asked, and those above it.")
    refused_by: str | None = Field(description="The account that was short or suspended.")
    needed: AccountCharge | None = Field(description="The worst case, as held, that this account could not pay.")
    actor: str | None = Field(description="The identity of the actor; null for queries.")
    name: str | None = Field(description="The label that the key of the actor was created with.")
    reason: str | None
    changes: list[SettingChange]
    lines: list[str] = Field(description="Its lines in the ledger, as chain:number.")


class Spent(Reply):
    """The amount that an account was charged for queries, running counts, and by hand."""

    account: str
    queries: int = Field(description="Number of queries that were charged or answered.")
    charged: Spend
    epsilon: float = Field(description="Epsilon of the amount, at the account's delta.")
    share: float = Field(description="The amount as a share of the present limit, by rho or delta.")
    dataset: str | None = Field(description="The dataset of the question that cost most.")
    question: dict[str, Any] | None = Field(
        description="The question that cost most, without its filter's constants; null for a charge without one."
    )
    question_share: float = Field(description="The share of that question in the account's rho.")


class ActivityPage(Reply):
    """Queries and actions, latest first."""

    since: str = Field(description="The start of the covered time: later than requested if the ledger is too long.")
    count: int = Field(description="Number of queries and actions on all pages.")
    spent: list[Spent] = Field(description="The amounts charged to accounts, on all pages; the largest share first.")
    activity: list[Activity]
    next: str | None = Field(description="The value of after for the next page; null on the last.")


class Verification(Reply):
    """The result of a verification of the ledger."""

    sound: bool
    mistake: str | None = Field(description="The error that was found, in one sentence; null if there is none.")
    lines: int | None = Field(description="Number of lines.")
    chains: int | None = Field(description="Number of chains.")
    checkpointed: bool = Field(description="True if a signed checkpoint shows that no lines are missing at the end.")


# ------------------------------------------------------------------------------------------------------ settings


class RunningSettings(Reply):
    """Settings of the service without secrets and paths."""

    version: str
    store: StoreKind
    checkpoints: bool
    datasets: list[str]
    defaults: dict[str, str | int | None] = Field(description="The privacy parameters of queries without any.")
    max_k: int
    max_head_limit: int
    max_epsilon: float
    max_delta: float
    max_body_bytes: int
    max_concurrent_queries: int
    requests_per_minute: int
    release_grid_ms: int
    issuer: str | None = Field(description="The OpenID issuer whose tokens are accepted.")
    audience: str | None


# ------------------------------------------------------------------------------------------------------ health


class Alive(Reply):
    """The process is alive."""

    status: Literal["ok"]


class Readiness(Reply):
    """The readiness of the service to answer queries."""

    status: Literal["ready", "unready"]
    checks: dict[str, str] = Field(description="The result of each check, by name: ok, or the error.")
