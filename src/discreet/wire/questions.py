"""What is asked of the service and what it says besides releases, as JSON. The shapes of releases are in `document`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, model_validator

from discreet.query.query import MechanismChoice  # noqa: TC001 - pydantic reads it
from discreet.wire.problems import (
    Spend,
    mistake,
    read_body,
)


class _Asked(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)


class _Told(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")  # clients may be older than the service


Exact = Annotated[
    Annotated[float, Field(allow_inf_nan=False)] | str,
    Field(description='A number, or text such as "1e-8" or "1/3", which is taken exactly.'),
]
"""A number that may be written as text, so that no reader of JSON rounds it."""


_QUERY = {
    "type": "object",
    "additionalProperties": False,
    "required": ["dataset", "items", "measure"],
    "properties": {
        "dataset": {"type": "string", "minLength": 1},
        "items": {"type": "array", "items": {"type": "string", "minLength": 1}, "uniqueItems": True},
        "measure": {
            "type": "object",
            "additionalProperties": False,
            "required": ["kind"],
            "properties": {
                "kind": {"enum": ["users", "rows", "sum", "average"]},
                "column": {"type": ["string", "null"], "minLength": 1},
            },
        },
        "where": {"type": ["string", "object", "null"]},
        "k": {"type": ["integer", "null"], "minimum": 1},
    },
}
"""What `discreet.query.query_json.from_dict` reads, which says more of it."""


class Question(_Asked):
    """One question, with the privacy that it may cost."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {"required": ["sql"], "properties": {"sql": {"type": "string"}}},
                {"required": ["query"], "properties": {"query": {"type": "object"}}},
            ],
            "examples": [
                {
                    "sql": "SELECT article, COUNT(DISTINCT reader) FROM reads WHERE country = 'IN' "
                    "GROUP BY article LIMIT 10",
                    "epsilon": 0.5,
                    "delta": "1e-8",
                }
            ],
        }
    )

    sql: str | None = Field(default=None, min_length=1, description="A SELECT; either this or query.")
    query: Annotated[dict[str, Any], WithJsonSchema(_QUERY)] | None = Field(
        default=None, description="The same as an object: dataset, items, measure and, if wanted, where and k."
    )
    epsilon: Annotated[float, Field(allow_inf_nan=False)] | None = Field(
        default=None, description="The most epsilon that the answer may have, with delta; not with epsilon_per."
    )
    delta: Exact | None = Field(default=None, description="Goes with epsilon.")
    epsilon_per: Exact | None = Field(
        default=None, description="Of one unit of information: every item and every count costs one. Not with epsilon."
    )
    information: int | None = Field(
        default=None, ge=1, description="The most units of information; goes with epsilon_per, for questions without k."
    )
    relative_error: Exact | None = Field(
        default=None, description="What most counts should stay within where as many as can be had are asked for."
    )
    counts: bool = Field(default=True, description="False for labels only.")
    mechanism: MechanismChoice | None = Field(default=None, description="By name; by default what fits the question.")
    noise: Literal["gaussian", "laplace"] | None = Field(
        default=None, description="By default the one with the smaller standard error."
    )
    head_limit: int | None = Field(default=None, ge=1, description="How many items to read from the engine.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.sql is None) == (self.query is None):
            raise mistake("a question needs either sql or query" + (", not both" if self.sql is not None else ""))
        by_epsilon = self.epsilon is not None or self.delta is not None
        by_unit = self.epsilon_per is not None or self.information is not None
        if by_epsilon and by_unit:
            raise mistake("a question has either epsilon and delta or epsilon_per and information, not both")
        return self


def read_question(body: bytes) -> Question:
    """The question that the body of a request holds.

    Raises:
        Malformed: it holds none; the message says what is wrong, never what was sent.
    """
    return read_body(Question, body)


# ------------------------------------------------------------------------------------------------------ answers


class Privacy(_Told):
    """What is promised to every single user."""

    unit: str = Field(description="Whom it protects.")
    neighbours: str = Field(description="Between which tables it holds.")
    epsilon: float = Field(description="Rounded up.")
    delta: float = Field(description="Rounded up.")
    rho: float = Field(description="zCDP of the worst case.")
    computational: bool = Field(description="True if it rests on cryptography (consistent noise).")


class Expected(_Told):
    """What can be said about an answer before any data is read."""

    std_error_least: float | None = Field(description="Smallest standard error of a count.")
    std_error_most: float | None = Field(description="Largest standard error of a count.")
    smallest_count: int | None = Field(
        description="A count above which an item is more likely returned than not; null where every item can appear."
    )
    sum_std_error: float | None = Field(description="Standard error of a sum, or null where there are no sums.")


class Fit(_Told):
    """Whether a question fits an account."""

    account: str
    fits: bool = Field(description="True if the account would not refuse it now.")
    left: Spend
    left_after: Spend = Field(description="What would be left if the answer cost its worst case.")


class Estimate(_Told):
    """How a question would be answered and what it could cost. No data was touched."""

    dataset: str
    question: dict[str, Any] = Field(description="In canonical form; can be sent as query.")
    mechanism: str
    worst_cost: Spend = Field(description="What is reserved; what the answer costs is often less.")
    information: int | None = Field(description="The same in the account's units, or null if it has none.")
    calls: int | None = Field(description="Likewise.")
    privacy: Privacy
    expected: Expected
    paid: bool = Field(description="True if the account has paid for this answer: asking for it is free.")
    fits: bool = Field(description="True if no account on the path would refuse it now.")
    accounts: list[Fit] = Field(description="The account and its parents.")
    notes: list[str] = Field(description="What is allowed but unwise.")


class Period(_Told):
    """When charges stop counting."""

    kind: Literal["sliding", "calendar", "forever"]
    days: int | None = Field(default=None, description="Of a sliding period.")
    unit: Literal["month", "week", "day"] | None = Field(default=None, description="Of a calendar period.")
    zone: str | None = Field(default=None, description="Of a calendar period.")


class UnitBudget(_Told):
    """A budget in whole units; what is spent is rounded up, what is left down."""

    limit: int
    spent: int
    left: int


class Units(_Told):
    """A budget in units of information and calls."""

    epsilon_per: str = Field(description="Of one unit of information.")
    delta_per: str = Field(description="Of one call over an unknown domain.")
    information: UnitBudget
    calls: UnitBudget


class ParentBudget(_Told):
    """A budget that is shared with others."""

    account: str
    mode: Literal["observe", "enforce"]
    limit: Spend
    left: Spend
    resets_at: str | None


class BudgetReport(_Told):
    """How an account stands."""

    account: str
    mode: Literal["observe", "enforce"] = Field(description="observe charges and never refuses.")
    period: Period
    limit: Spend
    used: Spend
    held: Spend = Field(description="Reserved for questions under way.")
    forfeited: Spend = Field(description="Charged for runs that failed; pays for asking the same again.")
    left: Spend
    epsilon_spent: float = Field(description="Of all that is spent, at the delta of the conversion.")
    epsilon_left: float = Field(description="Of one answer that takes all that is left, likewise.")
    conversion_delta: float
    units: Units | None
    resets_at: str | None = Field(description="When some charge stops counting; null if none will.")
    suspended_until: str | None
    guarantee: Privacy | None = Field(
        description="What holds for all answers of the account together; null if it observes."
    )
    parents: list[ParentBudget] = Field(description="Charged too, for every question.")


class DatasetSummary(_Told):
    """A dataset that may be asked about."""

    name: str
    description: str | None


class DatasetList(_Told):
    """The datasets that may be asked about."""

    datasets: list[DatasetSummary]


class SumBounds(_Told):
    """What one user's sum for one item is clipped to."""

    low: float
    high: float


class ColumnDetail(_Told):
    """A column, and what may be asked about it."""

    name: str
    type: Literal["text", "integer", "decimal", "boolean", "date", "timestamp", "float"]
    group: bool = Field(description="It may stand behind GROUP BY.")
    filter: bool = Field(description="It may stand behind WHERE.")
    sum: SumBounds | None = Field(description="It may be summed and averaged, within these bounds for each user.")
    known_domain: bool = Field(description="True if all its labels are known in advance: every one can be returned.")
    labels: list[str | int | bool] | None = Field(description="Those labels, if the catalog lists a thousand at most.")


class DatasetDetail(_Told):
    """A dataset, and what may be asked about it."""

    name: str
    description: str | None
    user: str = Field(description="The column whose distinct values are counted; it cannot be asked about.")
    rows: bool = Field(description="True if rows can be counted, with COUNT(*).")
    groups_per_user: int | None
    rows_per_group: int | None
    missing_labels: Literal["drop", "keep"]
    k_most: int | None
    head_limit_most: int | None
    retention_days: int | None
    data_version: str | None = Field(
        description="Which state of the data it is; the same question about it is free. Null if nobody can say."
    )
    columns: list[ColumnDetail]


class HistoryEntry(_Told):
    """An answer that the account has paid for."""

    id: str
    dataset: str
    question: dict[str, Any]
    data_version: str | None
    mechanism: str
    charged: Spend
    time: str = Field(description="When it was paid for.")


class HistoryPage(_Told):
    """Answers that the account has paid for, newest first."""

    releases: list[HistoryEntry]
    next: int | None = Field(description="Give it as before for the next page; null if this is the last.")
