"""What officers and administrators ask of the service, and what it says, as JSON."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from discreet.wire.problems import (
    Spend,
    mistake,
)
from discreet.wire.questions import BudgetReport, Exact, Period

Role = Literal["analyst", "officer", "admin"]
Mode = Literal["observe", "enforce"]
Whole = Annotated[int, Field(ge=0, le=10**12)]


class Request(BaseModel):
    """Something that somebody wants done, and why."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)

    reason: str = Field(min_length=1, max_length=2_000, description="Why; it is kept in the ledger.")


class Part(BaseModel):
    """A part of a request."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)


class Told(BaseModel):
    """An answer. Clients may be older than the service."""

    model_config = ConfigDict(frozen=True, extra="ignore")


# ------------------------------------------------------------------------------------------------------ accounts


class Limit(Part):
    """How much may be spent in a period: said in one of four ways."""

    epsilon: Annotated[float, Field(allow_inf_nan=False)] | None = Field(
        default=None, description="Epsilon of all answers together, with delta."
    )
    delta: Exact | None = Field(
        default=None, description="Delta of all answers together; with epsilon, or with rho and lost."
    )
    rho: Exact | None = Field(default=None, description="Or zCDP itself, with lost and delta.")
    lost: Exact | None = Field(default=None, description="The part of delta that answers may lose; below delta.")
    information: Whole | None = Field(default=None, description="Or units of information, with calls and their prices.")
    calls: Whole | None = Field(default=None, description="Calls over unknown domains.")
    epsilon_per: Exact | None = Field(default=None, description="Of one unit of information.")
    delta_per: Exact | None = Field(default=None, description="Of one call.")
    conversion: Exact | None = Field(
        default=None, description="With units: the delta of the conversion, on top of what calls lose; 1e-9 by default."
    )
    preset: Literal["linkedin"] | None = Field(default=None, description="Or units that were published.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        given = frozenset(name for name in type(self).model_fields if getattr(self, name) is not None)
        units = {"information", "calls", "epsilon_per", "delta_per"}
        if given not in ({"epsilon", "delta"}, {"rho", "lost", "delta"}, units, units | {"conversion"}, {"preset"}):
            raise mistake(
                "a limit is epsilon and delta, or rho, lost and delta, or information, calls, epsilon_per and "
                "delta_per, or a preset, and no two of these"
            )
        return self


class AskedPeriod(Part):
    """When charges stop counting: sliding with days, calendar with unit and perhaps zone, or forever."""

    kind: Literal["sliding", "calendar", "forever"] = Field(
        description="sliding: any window of that many days holds one limit; calendar: can hold two."
    )
    days: int | None = Field(default=None, ge=1, le=36_500, description="How long the data is kept.")
    unit: Literal["month", "week", "day"] | None = Field(default=None, description="Of a calendar period.")
    zone: str | None = Field(default=None, max_length=100, description="Its time zone; UTC by default.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        given = {name for name in ("days", "unit", "zone") if getattr(self, name) is not None}
        fitting = {"sliding": ({"days"},), "calendar": ({"unit"}, {"unit", "zone"}), "forever": (set(),)}
        if given not in fitting[self.kind]:
            raise mistake("a period is sliding with days, calendar with unit and perhaps zone, or forever")
        return self


class NewAccount(Request):
    """An account to open."""

    account: str = Field(min_length=1, max_length=200, description="Its name, for ever; without white space.")
    parent: str | None = Field(default=None, description="The account that is charged too; it never changes.")
    limit: Limit
    period: AskedPeriod = Field(default=AskedPeriod(kind="forever"), description="When charges stop counting.")
    mode: Mode = Field(default="enforce", description="observe charges and never refuses, and guarantees nothing.")


class ChangedAccount(Request):
    """What is to be different about an account; what is left out stays."""

    limit: Limit | None = Field(default=None, description="Below what is spent, nothing is left.")
    period: AskedPeriod | None = Field(default=None, description="Charges that it counts count, whenever made.")
    mode: Mode | None = Field(default=None, description="Whether it refuses.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.limit is None and self.period is None and self.mode is None:
            raise mistake("a change is of limit, period or mode")
        return self


class Payment(Request):
    """A charge or a refund by hand: in rho and delta, or in the account's units."""

    rho: Exact | None = Field(default=None, description="zCDP; goes with delta.")
    delta: Exact | None = Field(default=None, description="Mass that was lost.")
    information: Whole | None = Field(default=None, description="Or units of information; goes with calls.")
    calls: Whole | None = Field(default=None, description="Calls over unknown domains.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        given = {name for name in ("rho", "delta", "information", "calls") if getattr(self, name) is not None}
        if given not in ({"rho", "delta"}, {"information", "calls"}):
            raise mistake("an amount is rho and delta, or information and calls")
        return self


class Act(Request):
    """Something to do that needs no more words than why."""


class AccountDetail(BudgetReport):
    """An account, and how it stands."""

    parent: str | None
    delta: float = Field(description="Of the guarantee: what may be lost, and what the conversion takes.")
    as_of: int = Field(description="Number of the ledger's last line before.")
    total: Spend | None = Field(description="The limit of all data centres together; null if there is only this one.")


class AccountSummary(Told):
    """An account."""

    account: str
    parent: str | None
    mode: Mode
    period: Period
    limit: Spend
    delta: float
    total: Spend | None = Field(description="The limit of all data centres together; null if there is only this one.")


class AccountPage(Told):
    """Accounts, by name."""

    accounts: list[AccountSummary]
    next: str | None = Field(description="Give it as after for the next page; null if this is the last.")


# ------------------------------------------------------------------------------------------------------ keys


class NewKey(Request):
    """An API key to make."""

    account: str | None = Field(default=None, description="Whose budget its questions take; analysts need one.")
    roles: list[Role] = Field(min_length=1, max_length=3, description="What it may do.")
    label: str = Field(default="", max_length=200, description="Whose it is, or what for.")
    days: int | None = Field(default=365, ge=1, le=3_650, description="How long it is good; null for ever.")


class RotatedKey(Request):
    """A key to be replaced by another."""

    overlap_hours: int = Field(default=24, ge=0, le=720, description="How long both are good.")
    days: int | None = Field(default=365, ge=1, le=3_650, description="How long the new one is good; null for ever.")


class KeySummary(Told):
    """An API key, without its text, which is kept nowhere."""

    id: str
    account: str | None
    roles: list[Role]
    label: str
    created: str
    expires: str | None
    last_used: str | None = Field(description="Within an hour; null if it was not used.")


class MadeKey(Told):
    """A key that was just made."""

    id: str
    key: str = Field(description="The key itself. It is shown now and never again.")
    expires: str | None


class KeyPage(Told):
    """API keys, by id."""

    keys: list[KeySummary]
    next: str | None = Field(description="Give it as after for the next page; null if this is the last.")


# ------------------------------------------------------------------------------------------------------ grants


class NewGrant(Request):
    """What an account and all below it may ask about a dataset."""

    columns: list[str] | None = Field(
        max_length=10_000,
        description="Columns by name; null for all, now and later. None at all: only totals.",
    )


class Grant(Told):
    """What an account and all below it may ask about a dataset."""

    account: str
    dataset: str
    columns: list[str] | None = Field(description="null for all.")


class GrantPage(Told):
    """Grants, by account and dataset."""

    grants: list[Grant]
    next: str | None = Field(description="Give it as after for the next page; null if this is the last.")


# ------------------------------------------------------------------------------------------------------ the ledger


class Change(Told):
    """What a line changed in a bucket of an account."""

    account: str
    bucket: int
    part: Literal["used", "held", "forfeited", "refunded"]
    rho: float
    delta: float


class LedgerLine(Told):
    """A line of the ledger."""

    seq: int
    time: str
    kind: str
    reservation: str | None
    detail: dict[str, Any]
    changes: list[Change]
    body: str = Field(description="What is hashed, with the hash of the line before; amounts are exact.")
    hash: str = Field(description="SHA-256 in hexadecimal digits.")


class LedgerPage(Told):
    """Lines of a chain of the ledger, in order."""

    chain: int
    lines: list[LedgerLine]
    next: int | None = Field(description="Give it as after for the next page; null if this is the last.")


class Verdict(Told):
    """Whether the ledger can be trusted."""

    sound: bool
    mistake: str | None = Field(description="What is wrong, in a sentence.")
    lines: int | None = Field(description="How many lines there are.")
    chains: int | None = Field(description="How many chains they are in.")
    witnessed: bool = Field(description="True if a witness vouches that no lines are missing at the end.")


# ------------------------------------------------------------------------------------------------------ settings


class RunningSettings(Told):
    """What the service runs with; no secret and no path."""

    version: str
    store: Literal["sqlite", "postgresql"]
    witness: bool
    datasets: list[str]
    defaults: dict[str, str | int | None] = Field(description="Privacy parameters of questions that say none.")
    k_most: int
    head_limit_most: int
    epsilon_most: float
    body_most_bytes: int
    concurrent_most: int
    requests_per_minute: int
    release_grid_ms: int
    issuer: str | None = Field(description="The OpenID issuer whose tokens are taken.")
    audience: str | None


# ------------------------------------------------------------------------------------------------------ health


class Alive(Told):
    """The process lives."""

    status: Literal["ok"]


class Readiness(Told):
    """Whether questions can be answered."""

    status: Literal["ready", "unready"]
    checks: dict[str, str] = Field(description="Each check by name, with ok or a word of what is wrong.")
