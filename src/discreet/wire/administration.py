"""JSON shapes of the officers' and administrators' API, and of the health checks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from discreet.budget.ledger import entry_of
from discreet.budget.model import DELTA_UNITS, RHO_UNITS
from discreet.wire.problems import Spend, iso_time, request_error
from discreet.wire.queries import BudgetReport, Exact, Period, Reply, Request

if TYPE_CHECKING:
    from discreet.budget.ledger import Line

Role = Literal["analyst", "officer", "admin"]
"""analyst: queries charged to an account; officer: accounts, budgets, grants and the ledger; admin: API keys.

No role includes another.
"""

Mode = Literal["observe", "enforce"]
Whole = Annotated[int, Field(ge=0, le=10**12)]


class AdminRequest(Request):
    """A change by an officer or an admin, with its reason."""

    reason: str = Field(min_length=1, max_length=2_000, description="Recorded in the ledger.")


# ------------------------------------------------------------------------------------------------------ accounts


class Limit(Request):
    """The largest amount that may be spent in a period, in one of four forms."""

    epsilon: Annotated[float, Field(allow_inf_nan=False)] | None = Field(
        default=None, description="Epsilon of all releases together, with delta."
    )
    delta: Exact | None = Field(
        default=None, description="Delta of all releases together; with epsilon, or with rho and lost."
    )
    rho: Exact | None = Field(default=None, description="Or zCDP itself, with lost and delta.")
    lost: Exact | None = Field(default=None, description="The part of delta that releases may lose; below delta.")
    information: Whole | None = Field(default=None, description="Or units of information, with calls and their prices.")
    calls: Whole | None = Field(default=None, description="Calls over unknown domains.")
    epsilon_per: Exact | None = Field(default=None, description="Epsilon of one unit of information.")
    delta_per: Exact | None = Field(default=None, description="Delta of one call.")
    conversion: Exact | None = Field(
        default=None, description="With units: the delta of the conversion, on top of what calls lose; 1e-9 by default."
    )
    preset: Literal["linkedin"] | None = Field(default=None, description="Or units that were published.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        given = frozenset(name for name in type(self).model_fields if getattr(self, name) is not None)
        units = {"information", "calls", "epsilon_per", "delta_per"}
        if given not in ({"epsilon", "delta"}, {"rho", "lost", "delta"}, units, units | {"conversion"}, {"preset"}):
            raise request_error(
                "a limit is epsilon and delta, or rho, lost and delta, or information, calls, epsilon_per and "
                "delta_per, or a preset, and no two of these"
            )
        return self


class PeriodRequest(Request):
    """The period of a limit: sliding with days, calendar with unit and optionally zone, or forever."""

    kind: Literal["sliding", "calendar", "forever"] = Field(
        description="sliding: any window of that many days holds one limit; calendar: can hold two."
    )
    days: int | None = Field(
        default=None, ge=1, le=36_500, description="Days of a sliding period: how long the data is kept."
    )
    unit: Literal["month", "week", "day"] | None = Field(default=None, description="Length of a calendar period.")
    zone: str | None = Field(
        default=None, max_length=100, description="Time zone of a calendar period; UTC by default."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        given = {name for name in ("days", "unit", "zone") if getattr(self, name) is not None}
        fitting = {"sliding": ({"days"},), "calendar": ({"unit"}, {"unit", "zone"}), "forever": (set(),)}
        if given not in fitting[self.kind]:
            raise request_error("a period is sliding with days, calendar with unit and optionally zone, or forever")
        return self


class NewAccount(AdminRequest):
    """An account to open."""

    account: str = Field(
        min_length=1, max_length=200, description="Name of the account, without white space; it never changes."
    )
    parent: str | None = Field(default=None, description="The account that is charged too; it never changes.")
    limit: Limit
    period: PeriodRequest = Field(default=PeriodRequest(kind="forever"), description="When charges stop counting.")
    mode: Mode = Field(default="enforce", description="observe charges and never refuses, and guarantees nothing.")


class AccountChanges(Request):
    """Changes of an account; fields that are left out stay as they are."""

    limit: Limit | None = Field(default=None, description="If it is below what is spent, nothing is left.")
    period: PeriodRequest | None = Field(default=None, description="It applies to earlier charges, too.")
    mode: Mode | None = Field(default=None, description="Whether it refuses queries.")

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
    information: Whole | None = Field(default=None, description="Or units of information; needs calls.")
    calls: Whole | None = Field(default=None, description="Calls over unknown domains; needs information.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        given = {name for name in ("rho", "delta", "information", "calls") if getattr(self, name) is not None}
        if given not in ({"rho", "delta"}, {"information", "calls"}):
            raise request_error("an amount is rho and delta, or information and calls")
        return self


class AccountDetail(BudgetReport):
    """An account and its balance."""

    parent: str | None
    delta: float = Field(description="Delta of the guarantee: what releases may lose, and what the conversion takes.")
    as_of: int = Field(description="Number of the last ledger line that the balance includes.")
    total: Spend | None = Field(description="The limit of all data centres together; null if there is only this one.")


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

    since: str = Field(
        description="When the time that is covered begins: later than requested if the ledger is too long."
    )
    queries: int = Field(description="Number of queries of the account since then.")
    refused: int = Field(description="How many of them would have been refused, if it enforced its limit.")
    first: str | None = Field(description="When the first of these was sent.")


class AccountSpending(Reply):
    """The amounts that an account spent on each day, oldest first."""

    account: str
    rho: list[float]
    delta: list[float]


class Reached(Reply):
    """How many days it takes analysts to use up a percentage of their limits."""

    percent: int = Field(description="Percent of the limit, by rho or delta, whichever is used up first.")
    analysts: list[float] = Field(
        description="The part of the analysts that had used it so many days after their first charge, from 0."
    )


class Spending(Reply):
    """The amounts that all accounts spent on each of the last days, failed queries included."""

    since: str = Field(
        description="When the time that is covered begins: later than requested if the ledger is too long."
    )
    days: list[str] = Field(description="Days of UTC, the last one today.")
    accounts: list[AccountSpending] = Field(description="Those with charges, by name.")
    analysts: int = Field(description="Accounts with charges and without accounts below them.")
    reached: list[Reached]


# ------------------------------------------------------------------------------------------------------ keys


class NewKey(AdminRequest):
    """An API key to create."""

    account: str | None = Field(
        default=None, description="The account that its queries are charged to; analysts need one."
    )
    roles: list[Role] = Field(min_length=1, max_length=3, description="Roles of the key.")
    label: str = Field(default="", max_length=200, description="Owner or purpose of the key.")
    days: int | None = Field(default=365, ge=1, le=3_650, description="Days until it expires; null for never.")


class RotatedKey(AdminRequest):
    """The rotation of a key: when the old and the new key expire."""

    overlap_hours: int = Field(default=24, ge=0, le=720, description="Hours during which both are valid.")
    days: int | None = Field(default=365, ge=1, le=3_650, description="Days until the new one expires; null for never.")


class KeySummary(Reply):
    """An API key without its secret, which is not stored."""

    id: str
    account: str | None
    roles: list[Role]
    label: str
    created: str
    expires: str | None
    last_used: str | None = Field(description="When it was last used, to the hour; null if never.")


class CreatedKey(Reply):
    """A new API key with its secret."""

    id: str
    key: str = Field(description="The key itself, shown once and stored nowhere.")
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
        description="Columns by name; null for all, now and later. An empty list allows only totals.",
    )


class Grant(Reply):
    """The columns of a dataset that an account and its descendants may query."""

    account: str
    dataset: str
    columns: list[str] | None = Field(description="Columns by name; null for all.")


class GrantPage(Reply):
    """A page of grants, ordered by account and dataset."""

    grants: list[Grant]
    next: str | None = Field(description="The value of after for the next page; null on the last.")


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
    body: str = Field(description="What is hashed, with the hash of the line before; amounts are exact.")
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


class Verification(Reply):
    """The result of a verification of the ledger."""

    sound: bool
    mistake: str | None = Field(description="What is wrong, in one sentence.")
    lines: int | None = Field(description="How many lines there are.")
    chains: int | None = Field(description="How many chains they are in.")
    checkpointed: bool = Field(description="True if a signed checkpoint shows that no lines are missing at the end.")


# ------------------------------------------------------------------------------------------------------ settings


class RunningSettings(Reply):
    """Settings of the service without secrets and paths."""

    version: str
    store: Literal["sqlite", "postgresql"]
    checkpoints: bool
    datasets: list[str]
    defaults: dict[str, str | int | None] = Field(description="Privacy parameters of queries that give none.")
    k_most: int
    head_limit_most: int
    epsilon_most: float
    delta_most: float
    body_most_bytes: int
    concurrent_most: int
    requests_per_minute: int
    release_grid_ms: int
    issuer: str | None = Field(description="The OpenID issuer whose tokens are accepted.")
    audience: str | None


# ------------------------------------------------------------------------------------------------------ health


class Alive(Reply):
    """The process is alive."""

    status: Literal["ok"]


class Readiness(Reply):
    """Whether queries can be answered."""

    status: Literal["ready", "unready"]
    checks: dict[str, str] = Field(description="Checks by name, with ok or what is wrong.")
