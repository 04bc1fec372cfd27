"""JSON shapes of the analysts' API: queries, estimates, budgets, datasets, history. Releases are in `document`.

What all shapes share comes first: the bases of requests and replies, how a body is read, and amounts of privacy.
"""

from __future__ import annotations

import datetime
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias, TypeVar, cast, get_type_hints

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    create_model,
    model_validator,
)
from pydantic_core import PydanticCustomError

from discreet.budget.model import CalendarUnit, Mode
from discreet.errors import InputError, WhereError
from discreet.head_request import ColumnType
from discreet.head_request import Period as LabelPeriod
from discreet.query import query as queries
from discreet.query.json import QueryObject, from_dict
from discreet.query.query import Options, Select
from discreet.values import Cost, float_above, float_below

Shape = TypeVar("Shape", bound=BaseModel)

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)

MAX_LABELS = 1_000
"""The largest number of labels of a known domain that are listed with their column."""


BudgetPart: TypeAlias = Literal["rho", "delta"]
PeriodKind: TypeAlias = Literal["sliding", "calendar", "forever"]


class RequestBody(BaseModel):
    """Base of the models of requests and their parts; unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)


class Reply(BaseModel):
    """Base of the models of replies and their parts."""

    model_config = ConfigDict(frozen=True, extra="ignore")  # clients may be older than the service


class Malformed(InputError):
    """A request that cannot be parsed.

    Attributes:
        position: 0-based offset of the error in the statement or the filter, or None.
    """

    problem = WhereError.problem

    def __init__(self, message: str, position: int | None = None) -> None:
        self.position = position
        super().__init__(message)


def request_error(sentence: str) -> PydanticCustomError:
    """Return the error for a validator to raise, with *sentence* as its message."""
    return PydanticCustomError("mistake", "{sentence}", {"sentence": sentence})


_SENTENCES = {
    "json_invalid": "the body must be JSON",
    "extra_forbidden": "there is no field {place}",
    "string_type": "{place} must be text",
    "string_unicode": "{place} must be text of Unicode characters",
    "string_too_short": "{place} must not be empty",
    "string_too_long": "{place} must have at most {max_length} characters",
    "float_type": "{place} must be a number",
    "int_type": "{place} must be a whole number",
    "int_from_float": "{place} must be a whole number",
    "bool_type": "{place} must be true or false",
    "dict_type": "{place} must be an object",
    "model_type": "{place} must be an object",
    "model_attributes_type": "{place} must be an object",
    "list_type": "{place} must be a list",
    "literal_error": "{place} must be {expected}",
    "finite_number": "{place} must be a finite number",
    "missing": "{place} is missing",
    "greater_than": "{place} must be above {gt:g}",
    "greater_than_equal": "{place} must be at least {ge}",
    "less_than_equal": "{place} must be at most {le}",
    "mistake": "{sentence}",
    "value_error": "{error}",
}
"""Messages by pydantic's error type."""


def message_of(error: ValidationError) -> str:
    """Return the first error as one sentence, which shows names of fields but no values that were sent."""
    first = error.errors(include_url=False, include_input=False)[0]
    # pydantic adds the names of validators and of the types of a union to the location.
    place = ".".join(str(part) for part in first["loc"] if not str(part).startswith(("constrained-", "function-")))
    if not place:
        place = "the body"
    elif first["loc"][-1] in {"float", "str"}:  # a field that takes either
        return f"'{place.rpartition('.')[0]}' must be a finite number or text"
    sentence = _SENTENCES.get(first["type"], "{place} is not what this field takes")
    shown = place if place == "the body" else repr(place[:100])
    return sentence.format(**{**first.get("ctx", {}), "place": shown})


def read_body(kind: type[Shape], body: bytes) -> Shape:
    """Parse a JSON body as a model.

    Raises:
        Malformed: the body is not a valid *kind*; the message shows no values that were sent.
    """
    try:
        value = kind.model_validate_json(body)
    except ValidationError as error:
        sentence = message_of(error)
        first = error.errors(include_url=False, include_input=False)[0]
        position = getattr(first.get("ctx", {}).get("error"), "position", None)  # of an error in a filter
    else:
        # JSON parsers do not agree which of two fields of the same name to keep (RFC 8259, section 4), so another one,
        # such as a proxy's, could have read another request.
        json.loads(body, object_pairs_hook=_refuse_duplicates, parse_int=str, parse_float=str)
        return value
    raise Malformed(sentence, position)  # outside the except block: pydantic's error may hold values that were sent


def _refuse_duplicates(pairs: list[tuple[str, object]]) -> None:
    """Refuse an object with a repeated field."""
    if len({name for name, _ in pairs}) < len(pairs):
        raise Malformed("an object in the body has a field twice")


class Spend(BaseModel):
    """An amount of privacy, spent or left, in delta-approximate rho-zCDP.

    Costs are rounded up, balances are rounded down.
    """

    model_config = ConfigDict(frozen=True)

    rho: float = Field(ge=0, description="rho of zCDP.")
    delta: float = Field(ge=0, description="Probability mass that the zCDP bound does not cover.")

    def __str__(self) -> str:
        return f"rho={self.rho:.3g}, delta={self.delta:.3g}"

    def share_of(self, budget: Spend) -> float:
        """Return the fraction of *budget* that this takes, the larger of rho and delta: from 0 to 1.

        A part that costs nothing takes 0, and one that costs something takes 1 of an empty budget.
        """
        parts = (self.rho, budget.rho), (self.delta, budget.delta)
        return max(0.0 if not cost else min(cost / left, 1.0) if left else 1.0 for cost, left in parts)

    def left_of(self, limit: Spend) -> float:
        """Return the fraction of *limit* that this balance is, the smaller of rho and delta: from 0 to 1."""
        parts = (self.rho, limit.rho), (self.delta, limit.delta)
        return min((min(left / whole, 1.0) for left, whole in parts if whole), default=1.0)


def percent(share: float) -> str:
    """Format a fraction of 1 as a percentage."""
    shown = 100 * share
    if 0 < shown < 0.1 or 99.5 <= shown < 100:
        return "< 0.1 %" if shown < 1 else f"{shown:.1f} %" if shown < 99.9 else "> 99.9 %"
    return f"{shown:,.0f} %" if shown >= 10 or not shown else f"{shown:.1f} %"


def iso_time(time_us: int) -> str:
    """Return microseconds since 1970 as ISO 8601 in UTC."""
    return (_EPOCH + datetime.timedelta(microseconds=time_us)).isoformat()


def spend_above(cost: Cost) -> Spend:
    """Return *cost* as floats, rounded up."""
    return Spend(rho=float_above(cost.rho), delta=float_above(cost.delta))


def spend_below(cost: Cost) -> Spend:
    """Return *cost* as floats, rounded down."""
    return Spend(rho=float_below(cost.rho), delta=float_below(cost.delta))


Exact = Annotated[
    Annotated[float, Field(allow_inf_nan=False)] | str,
    Field(description='A number, or text such as "1e-8" or "1/3", which is taken exactly.'),
]
"""A number that may be written as text, so that no JSON parser rounds it."""


_JSON = {float | None: Annotated[float, Field(allow_inf_nan=False)] | None, queries.Exact | None: Exact | None}
"""The types of JSON for types of Python."""

if TYPE_CHECKING:
    from discreet.catalog.model import Column, Dataset
    from discreet.query.planning import Plan

    _OptionFields = RequestBody
else:
    _OptionFields = create_model(
        "_OptionFields",
        __base__=RequestBody,
        **{
            name: (
                Annotated[_JSON.get(hint.__origin__, hint.__origin__), Field(**hint.__metadata__[0])],
                name == "counts" or None,
            )
            for name, hint in get_type_hints(Options, include_extras=True).items()
        },
    )


class RequestOptions(_OptionFields):
    """The options of a query: the fields of `discreet.query.query.Options`."""

    @property
    def options(self) -> Options:
        """The options that were sent."""
        return cast("Options", self.model_dump(include=set(Options.__annotations__), exclude_none=True))

    @model_validator(mode="after")
    def _check_price(self) -> Self:
        if self.options.keys() & {"epsilon", "delta"} and self.options.keys() & {"epsilon_per", "information"}:
            raise request_error("a query has either epsilon and delta or epsilon_per and information, not both")
        return self


class QueryRequest(RequestOptions):
    """A query, with its options."""

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
    query: (
        Annotated[
            Select, PlainValidator(from_dict, json_schema_input_type=QueryObject), PlainSerializer(Select.to_dict)
        ]
        | None
    ) = Field(default=None, description="The same as an object: dataset, items, measure and optionally where and k.")

    @model_validator(mode="before")
    @classmethod
    def _check(cls, value: Any) -> Any:  # noqa: ANN401 - any JSON value
        if isinstance(value, dict) and (value.get("sql") is None) == (value.get("query") is None):
            raise request_error(
                "a query needs either sql or query" + (", not both" if value.get("sql") is not None else "")
            )
        return value


class StatementRequest(RequestOptions):
    """A whole SQL statement, with the options of each query of a dataset in it."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "sql": "SELECT country, n, n / SUM(n) OVER () AS share FROM "
                    "(SELECT country, COUNT(DISTINCT reader) AS n FROM reads GROUP BY country) ORDER BY country",
                    "epsilon": 0.5,
                }
            ]
        }
    )

    sql: str = Field(min_length=1, description="A SELECT, or EXPLAIN and a SELECT.")
    counts: Literal[True] = Field(default=True, description="Statements compute with counts.")
    rehearse: bool = Field(
        default=False,
        description="True to compute it from made-up rows, free of charge; the result has a column made_up.",
    )
    intervals: bool = Field(
        default=False,
        description="True to add columns NAME_low and NAME_high, the ends of the 95 % interval, for each column NAME "
        "of the outermost SELECT that LOW and HIGH take; they cost nothing.",
    )


# ------------------------------------------------------------------------------------------------------ answers


class Privacy(Reply):
    """The privacy guarantee for each user."""

    unit: str = Field(description="The unit that is protected, such as a user.")
    neighbours: str = Field(description="The tables that the guarantee compares: its neighbouring tables.")
    epsilon: float = Field(description="Epsilon, rounded up.")
    delta: float = Field(description="Delta, rounded up.")
    rho: float = Field(description="rho of the worst case, in zCDP.")
    computational: bool = Field(
        description="True if it rests on cryptography, because the noise is derived from a key."
    )


_INTERVAL = 1.96
"""`discreet.mechanisms.base.INTERVAL`, which clients do not import."""


class LikelyRange(Reply):
    """The probable range of the errors of a release if the mechanism takes this branch."""

    name: str = Field(description="Name of the branch.")
    min_std_error: float | None = Field(description="Smallest standard error of a count.")
    max_std_error: float | None = Field(
        description="Largest standard error of a count; null if it grows with the count."
    )
    max_relative_error: float | None = Field(
        description="Largest standard error relative to the count, if it grows with the count."
    )
    smallest_count: int = Field(description="Lower end of the range of the smallest released count.")
    max_smallest_count: int = Field(description="Upper end of that range.")
    interval: float = Field(
        default=_INTERVAL,
        description="Half width of 95 % intervals in standard errors: 1.96, or 2.12 of Laplace noise.",
    )


class Expected(Reply):
    """The expected accuracy of a release, computed before any data is read."""

    min_std_error: float | None = Field(description="Smallest standard error of a count.")
    max_std_error: float | None = Field(
        description="Largest standard error of a count; null if it depends on the data."
    )
    smallest_count: int | None = Field(
        description="A count above which an item is more likely released than not; null where every item can appear."
    )
    sum_std_error: float | None = Field(
        description="Standard error of a sum, at most if its bound is chosen privately; null where there are no sums."
    )
    likely: list[LikelyRange] = Field(
        default_factory=list,
        description="Probable ranges of the mechanism's branches, the likeliest first; empty if it has no branches.",
    )
    basis: str | None = Field(
        default=None,
        description="The number of listed labels or of a user's items that errors are for; of averages, that the "
        "error is divided by the number of rows, and a factor; null if the data decide.",
    )
    min_half_width: int | None = Field(
        default=None,
        description="Half width of 95 % intervals if as many counts as possible are released; null if it is a multiple "
        "of the standard error: `interval` of `likely`, or 1.96.",
    )
    max_half_width: int | None = Field(default=None, description="The same if as few counts as possible are released.")

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """Return the expected accuracy of a plan, sums in units of the column."""
        expected = plan.expectation
        return cls(
            min_std_error=expected.min_std_error,
            max_std_error=expected.max_std_error,
            smallest_count=expected.smallest_count,
            sum_std_error=plan.sum_std_error,
            likely=[LikelyRange(**asdict(range_)) for range_ in expected.likely],
            basis=plan.error_basis,
            min_half_width=expected.min_half_width,
            max_half_width=expected.max_half_width,
        )

    def error_ranges(self, unit: str = "", *, intervals: bool = False) -> list[str]:
        """Return the ranges of standard errors in words: the likeliest, then that of all others; empty without counts.

        A range is "24.6", "1.66 up to 12 % of the count", or "1.66 to 24.6, or up to 12 % of the count".

        Args:
            unit: comes after each range's numbers, such as " users".
            intervals: True for the half widths of 95 % intervals in place of standard errors.
        """
        if self.min_std_error is None:
            return []
        ranges = []
        for part in filter(None, (self.likely[:1], self.likely[1:])):
            factors = [range_.interval if intervals else 1.0 for range_ in part]
            scaled = list(zip(factors, part, strict=True))
            least = rounded(min(factor * (range_.min_std_error or 0.0) for factor, range_ in scaled))
            share = 100 * max(factor * (range_.max_relative_error or 0.0) for factor, range_ in scaled)
            # Where errors are fixed, the smallest count is so large that the error is a smaller share of it.
            ends = [factor * range_.max_std_error for factor, range_ in scaled if range_.max_std_error is not None]
            largest = rounded(max(ends)) if len(ends) == len(part) else least
            numbers = f"{least}{unit}" if largest == least else f"{least} to {largest}{unit}"
            separator = ", or" if largest != least or unit else ""
            ranges.append(f"{numbers}{separator} up to {share:.2g} % of the count" if share else numbers)
        if not ranges:
            factor = _INTERVAL if intervals else 1.0
            least = rounded(factor * self.min_std_error)
            most = None if self.max_std_error is None else rounded(factor * self.max_std_error)
            numbers = least if most == least else f"{least} or more" if most is None else f"{least} to {most}"
            ranges.append(f"{numbers}{unit}")
        return ranges

    def interval_ranges(self, unit: str = "") -> list[str]:
        """Return the ranges of half widths of 95 % intervals in words, like `error_ranges`."""
        if self.min_half_width is None or self.max_half_width is None:
            return self.error_ranges(unit, intervals=True)
        ends = dict.fromkeys((self.min_half_width, self.max_half_width))
        return [" to ".join(f"{width:,}" for width in ends) + unit]

    def count_ranges(self) -> list[str]:
        """Return the ranges of the smallest released count in words, like `error_ranges`; empty if any can be."""
        if self.smallest_count is None:
            return []
        if not self.likely:
            return [f"{self.smallest_count:,}"]
        ranges = []
        for part in filter(None, (self.likely[:1], self.likely[1:])):
            least = min(range_.smallest_count for range_ in part)
            most = max(range_.max_smallest_count for range_ in part)
            ranges.append(f"{least:,}" if least == most else f"{least:,} to {most:,}")
        return ranges


def rounded(value: float) -> str:
    """Return a number above 0 with three digits, or as a whole number from 1,000 on."""
    return f"{value:,.0f}" if value >= 1_000 else f"{value:.3g}"


class Fit(Reply):
    """Whether a query fits the budget of an account."""

    account: str
    fits: bool = Field(description="True if the account would not refuse it now.")
    left: Spend
    left_after: Spend = Field(description="The amount left if the release costs its worst case.")


class Daily(Reply):
    """One of several queries, one a day, that cost at most as much together as one query by day."""

    releases: int = Field(description="The number of queries: 28, one on each day of four weeks.")
    epsilon: float = Field(description="epsilon of each.")
    delta: float = Field(description="delta of each.")
    expected: Expected


class Estimate(Reply):
    """The plan of a query and its worst cost. No data was read."""

    dataset: str
    data_version: str | None = Field(
        default=None, description="Version of the data; null if unknown, so that the same query is charged again."
    )
    question: dict[str, Any] = Field(description="The query in canonical form; can be sent as `query`.")
    mechanism: str
    worst_cost: Spend = Field(description="The amount that is reserved; the release often costs less.")
    information: int | None = Field(
        description="Units of information of the worst cost; null if the account has no units."
    )
    calls: int | None = Field(
        description="Calls over unknown domains of the worst cost; null if the account has no units."
    )
    privacy: Privacy
    expected: Expected
    daily: Daily | None = Field(
        default=None,
        description="The price of asking every day for four weeks instead; null if the query is not by day, if it is "
        "paid for, or if the prices of the daily queries would be below the least.",
    )
    paid: bool = Field(description="True if the account has paid for this release, so that it is free.")
    fits: bool = Field(description="True if no account on the path would refuse it now.")
    accounts: list[Fit] = Field(description="The account and its parents.")
    queries_left: int | None = Field(
        default=None,
        description="Number of such queries that fit at their worst cost; null if it is paid for, or unlimited.",
    )
    runs_out: BudgetPart | None = Field(
        default=None, description="The part of the budget that such queries use up first; null if queries_left is."
    )
    notes: list[str] = Field(description="Warnings.")


class StatementColumn(Reply):
    """A column of the result of a statement."""

    name: str
    type: str = Field(description="The SQL type, such as VARCHAR or BIGINT.")
    interval: tuple[str, str] | Literal["none"] | None = Field(
        default=None,
        description="The columns of the result that hold the ends of its 95 % interval, or none for a noisy number "
        "without them: select LOW(...) and HIGH(...) of it. Null for what has no noise, and for ends of intervals.",
    )


class StatementQuery(Reply):
    """A query of a dataset in a statement."""

    sql: str
    dataset: str
    status: Literal["released", "replayed", "public", "made up"] = Field(
        description="public: labels of known domains, which are free. made up: rows of a rehearsal."
    )
    charged: Spend
    id: str | None = Field(default=None, description="Id of the release; null for public labels.")
    note: str | None = Field(
        default=None, description="What its count is not, in words, for COUNT(*), which may leave out rows of a user."
    )


class StatementAnswer(Reply):
    """The result of a statement, and the queries whose answers it is computed from."""

    columns: list[StatementColumn]
    rows: list[list[Any]]
    queries: list[StatementQuery]


class SavedTableSummary(Reply):
    """A saved table: a name for statements and the releases that answered them."""

    name: str = Field(description="Its name in the schema saved; with its owner if that is another account.")
    owner: str = Field(description="The account that made it.")
    kind: Literal["table", "view"] = Field(description="A view is a statement, whose queries run whenever it is read.")
    columns: list[StatementColumn]
    comment: str
    published: bool = Field(
        description="True if an officer decided that all accounts below the owner's parent read it free."
    )


class RunningSummary(Reply):
    """What running counts cost, until when, and which users and items they show."""

    epsilon: float = Field(description="Epsilon of all periods together, as often as their owner paid it.")
    first: str = Field(description="The start of the first period, from which on users are counted.")
    answered: str = Field(description="The start of the last period that was answered.")
    until: str = Field(description="The start of the last period.")
    groups_per_user: int = Field(description="The most items that a user counts for, over all periods.")
    kept_share: float | None = Field(
        description="The share of users' pairs with listed items that this bound kept, for which counts are corrected, "
        "on the last answered period; null if they are not corrected."
    )
    smallest: int | None = Field(
        description="About the users from which on an item is shown, on the last answered period; null if none is, "
        "because too few pairs are kept."
    )


class SavedTableDetail(SavedTableSummary):
    """A saved table with its statements, for those who may read it."""

    statements: list[str] = Field(description="Its statement, and one for each INSERT.")
    releases: list[str] = Field(description="Ids of the releases that its rows are computed from.")
    paid: Spend = Field(description="The cost of these releases together, as it was charged to their first account.")
    omits_items: bool = Field(
        description="True if items with too few users are missing, so that sums of its rows are too small."
    )
    running: RunningSummary | None = Field(
        default=None, description="Set for running counts, which the service refreshes, and whose owner paid for them."
    )


class SavedTableList(Reply):
    """The saved tables of an account, and those published to it."""

    tables: list[SavedTableSummary]


class NewTable(RequestOptions):
    """A statement to be saved, with the options of each query of a dataset in it."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"sql": "SELECT country, COUNT(DISTINCT reader) AS n FROM reads GROUP BY country", "epsilon": 0.5}
            ]
        }
    )

    sql: str = Field(
        min_length=1,
        description="A SELECT. LIMIT without ORDER BY the aggregate DESC cuts what is saved; all rows are paid for.",
    )
    counts: Literal[True] = Field(default=True, description="Statements compute with counts.")
    view: bool = Field(default=False, description="True to save the statement only; its queries run at each read.")
    comment: str = Field(default="", max_length=2_000)
    replace: bool = Field(default=True, description="False to refuse the name of a table that there is.")
    releases: tuple[str, ...] | None = Field(
        default=None,
        max_length=20,
        description="Ids of releases that the account has paid for and that answer the queries of the statement, in "
        "their order: they are saved, and nothing is queried or charged. Without them the queries run.",
    )


class QueryEstimate(Reply):
    """The estimate of a query of a dataset in a statement."""

    sql: str
    estimate: Estimate | None = Field(description="Null for the labels of known domains, which are free.")


class StatementEstimate(Reply):
    """The estimates of the queries of a statement, and their worst cost together. No data was read."""

    queries: list[QueryEstimate]
    worst_cost: Spend = Field(description="Worst cost of all queries that are not paid for.")
    fits: bool = Field(description="True if no account on the path would refuse them together now.")


class Period(Reply):
    """The period for which a limit holds."""

    kind: PeriodKind
    days: int | None = Field(default=None, description="Days of a sliding period.")
    unit: CalendarUnit | None = Field(default=None, description="Length of a calendar period.")
    zone: str | None = Field(default=None, description="Time zone of a calendar period.")


class UnitBudget(Reply):
    """A budget in whole units; spent is rounded up, left is rounded down."""

    limit: int
    spent: int
    left: int


class UnitsReport(Reply):
    """A budget in units of information and calls."""

    epsilon_per: str = Field(description="Epsilon of one unit of information.")
    delta_per: str = Field(description="Delta of one call over an unknown domain.")
    information: UnitBudget
    calls: UnitBudget


class ParentBudget(Reply):
    """A budget that several accounts share."""

    account: str
    mode: Mode
    limit: Spend
    left: Spend
    resets_at: str | None


class RunningAbove(Reply):
    """Running counts that an account above another one paid for, so that both read them free."""

    name: str = Field(description="The name of the stream, which is a saved table.")
    account: str = Field(description="The account that paid for it, and whose guarantee covers it.")
    epsilon: float = Field(description="Epsilon of all periods together, as often as it was paid.")


class BudgetReport(Reply):
    """The balance of an account."""

    account: str
    mode: Mode = Field(description="observe: queries are charged and never refused.")
    period: Period
    limit: Spend
    used: Spend
    held: Spend = Field(description="Reserved for queries that are being answered.")
    forfeited: Spend = Field(description="Charged for failed queries; pays for the same queries again.")
    left: Spend
    epsilon_limit: float = Field(description="Epsilon of the limit, at the delta of the conversion and of the answers.")
    epsilon_spent: float = Field(description="Epsilon of all that is spent, at the delta of the conversion.")
    epsilon_left: float = Field(description="Epsilon of one release that costs all that is left, at the same delta.")
    conversion_delta: float
    units: UnitsReport | None
    resets_at: str | None = Field(description="Time at which the next charge stops counting; null if none will.")
    suspended_until: str | None = Field(
        description="End of the suspension after failed queries; null if there is none."
    )
    suspended_by_officer: str | None = Field(
        default=None,
        description="The account that an officer suspended, this one or one above it; null if there is none.",
    )
    guarantee: Privacy | None = Field(
        description="Guarantee of all releases together; null if the account is only observed."
    )
    queries_left: int | None = Field(
        default=None,
        description="Approximate number of queries at the service's default price that fit; null if unlimited.",
    )
    parents: list[ParentBudget] = Field(description="The parent accounts, to which every query is charged as well.")
    running: list[RunningAbove] = Field(
        default_factory=list,
        description="Running counts that accounts above paid for. This account can read them besides its own answers: "
        "epsilon_spent and guarantee do not cover them.",
    )

    @property
    def enforced(self) -> list[BudgetReport | ParentBudget]:
        """The budgets that can refuse a query: the account and its parents, without those that are only observed."""
        path: list[BudgetReport | ParentBudget] = [self, *self.parents]
        return [budget for budget in path if budget.mode == "enforce"]

    def share_of_left(self, cost: Spend) -> float:
        """Return the fraction that *cost* takes of what is left of the tightest enforced budget, from 0 to 1."""
        return max((cost.share_of(budget.left) for budget in self.enforced), default=0.0)


class AnswerWithin(Reply):
    """The result of a statement that takes at most a share of what is left of a budget, otherwise its estimate."""

    answer: StatementAnswer | None = None
    estimate: StatementEstimate | None = Field(
        default=None, description="Of a statement that could take more; nothing was charged."
    )
    budget: BudgetReport


class DatasetSummary(Reply):
    """A dataset that the account may query."""

    name: str
    description: str | None


class DatasetList(Reply):
    """The datasets that the account may query."""

    datasets: list[DatasetSummary]


class DeclaredSumBounds(Reply):
    """The bounds to which the sum of a user and an item is clipped."""

    low: float
    high: float
    private_bound: bool = Field(description="True if each query chooses an upper bound privately, high at most.")


class ColumnDetail(Reply):
    """A column, and its permitted uses."""

    name: str
    type: ColumnType
    each: LabelPeriod | int | None = Field(
        default=None,
        description="The period whose start the column holds, or the width of its bins; null for other columns.",
    )
    period_of: str | None = Field(
        default=None, description="The declared column of which this is a coarser period; null for declared columns."
    )
    group: bool = Field(description="It may be used in GROUP BY.")
    filter: bool = Field(description="It may be used in WHERE.")
    sum: DeclaredSumBounds | None = Field(description="It may be summed and averaged, clipped to these bounds.")
    known_domain: bool = Field(description="True if all its labels are known in advance.")
    labels: list[str | int | bool] | None = Field(
        description="The labels of a known domain, if the catalog lists at most 1,000."
    )
    groups_per_user: int | None = Field(
        default=None, description="Maximum number of labels of one user that are counted; null if unlimited."
    )

    @classmethod
    def of(cls, name: str, column: Column) -> Self:
        """Return the description of a column of a catalog."""
        from discreet.catalog.model import ImpliedColumn  # which clients do not need

        labels = None
        bounds = None
        clip = column.sum
        if clip is not None:
            bounds = DeclaredSumBounds(low=float(clip.low), high=float(clip.high), private_bound=clip.private_bound)
        if isinstance(column.domain, tuple) and len(column.domain) <= MAX_LABELS:  # in the JSON form of releases
            dated = (label.isoformat() if isinstance(label, datetime.date) else label for label in column.domain)
            labels = [label if isinstance(label, str | int) else str(label) for label in dated]
        return cls(
            name=name,
            type=column.type,
            each=column.each,
            period_of=column.source if isinstance(column, ImpliedColumn) else None,
            group=column.group,
            filter=column.filter,
            sum=bounds,
            known_domain=column.domain is not None,
            groups_per_user=column.groups_per_user,
            labels=labels,
        )


class DatasetDetail(Reply):
    """A dataset, its columns, and the limits of its queries."""

    name: str
    description: str | None
    user: str = Field(description="The column that identifies users; it cannot be queried otherwise.")
    rows: bool = Field(description="True if rows can be counted, with COUNT(*).")
    groups_per_user: int | None
    rows_per_group: int | None
    missing_labels: Literal["drop", "keep"]
    min_users: int | None = Field(default=None, description="Items with fewer users, by noisy counts, are not shown.")
    max_k: int | None
    max_head_limit: int | None
    retention_days: int | None
    data_version: str | None = Field(
        description="Version of the data; the same query of the same version is free. Null if unknown."
    )
    columns: list[ColumnDetail]

    @classmethod
    def of(cls, name: str, dataset: Dataset, version: str | None, *, max_k: int, max_head_limit: int) -> Self:
        """Return the description of a dataset of a catalog.

        Args:
            dataset: without the columns that the caller may not see.
            max_k: the limit of the service, which applies in addition to that of the dataset, like *max_head_limit*.
        """
        return cls(
            name=name,
            description=dataset.description,
            user=dataset.user,
            rows=dataset.rows_per_group is not None,
            groups_per_user=dataset.groups_per_user,
            rows_per_group=dataset.rows_per_group,
            missing_labels=dataset.missing_labels,
            min_users=dataset.min_users,
            max_k=min(dataset.max_k or max_k, max_k),
            max_head_limit=min(dataset.max_head_limit or max_head_limit, max_head_limit),
            retention_days=dataset.retention_days,
            data_version=version,
            columns=[ColumnDetail.of(column, declared) for column, declared in dataset.columns.items()],
        )


class HistoryEntry(Reply):
    """A release that the account has paid for."""

    id: str
    dataset: str
    question: dict[str, Any]
    data_version: str | None
    mechanism: str
    charged: Spend
    time: str = Field(description="Time of the payment.")


class HistoryPage(Reply):
    """Releases that the account has paid for, newest first."""

    releases: list[HistoryEntry]
    damaged: list[str] = Field([], description="Ids of releases of the page that are damaged and cannot be read.")
    next: int | None = Field(description="The value of before for the next page; null on the last.")
