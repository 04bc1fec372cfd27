"""Queries as frozen values: `Select`, as an analyst writes it, and `Query`, as it is planned and answered.

The options of a query, its price and its mechanism, are declared here once for Python, JSON and the command line.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypedDict, get_args

from discreet.errors import InputError
from discreet.head_request import And, Comparison, Constant, HeadRequest, IsNull, Membership, Not, Or, Predicate
from discreet.query.pricing import PerUnit, unit_price
from discreet.values import MechanismChoice, NoiseName, Sensitivity, check_text, exact, is_unicode, number, whole

if TYPE_CHECKING:
    from discreet.catalog.model import Catalog, Dataset

MeasureKind: TypeAlias = Literal["users", "rows", "sum", "average"]

SAVED = "saved"
"""The schema of saved tables; here, so that queries need not import those."""

TOP_HEAD_LIMIT = 1_000
RELEASE_HEAD_LIMIT = 10_000
MAX_HEAD_LIMIT = 10_000_000
MAX_SEGMENT_ROWS = 1_000_000
"""The largest number of items that a query reads of all its segments together, with the one below each cut."""


def default_head_limit(k: int | None) -> int:
    """Return the default head limit dbar of a top-k query, or, if *k* is None, of a query for all accurate counts."""
    return RELEASE_HEAD_LIMIT if k is None else min(max(10 * k, TOP_HEAD_LIMIT), MAX_HEAD_LIMIT)


@dataclass(frozen=True, slots=True)
class Measure:
    """The measure of each item: a count, a sum or an average.

    Args:
        kind: "users" for COUNT(DISTINCT column), "rows" for COUNT(*), "sum" for SUM(column), "average" for AVG(column),
            which is of rows.
        column: as written in the statement; None for rows.

    Raises:
        InputError: the kind is unknown, or the column is missing or superfluous.
    """

    kind: MeasureKind
    column: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(MeasureKind):
            raise InputError("'measure.kind' must be users, rows, sum or average")
        if self.kind != "rows":
            check_name(self.column, "measure.column")
        elif self.column is not None:
            raise InputError("'measure.column' must be left out where rows are counted")


@dataclass(frozen=True, slots=True)
class Select:
    """A query of one dataset with names as written by the analyst; `planning.resolve` checks them against a catalog.

    Args:
        dataset: the name of a dataset, with its schema if there is one: "public.engagements".
        items: the columns that together name an item; empty for one total over all rows.
        measure: the measure of each item.
        where: the filter, or None for all rows.
        k: number of items, at least 1, largest first; None for as many as the budget allows, or for a total.
        each: the columns of the segments: the items of every combination of their labels are an answer of its own, with
            k items, and all together cost what one of them costs.
        ranked_by: the column in ORDER BY COUNT(DISTINCT column) beside a sum or an average, whose order that is anyway;
            `DatasetQuery` checks that it is the user column.

    Raises:
        InputError: a part has the wrong type, a column is named twice, or a total has a k or segments.
    """

    dataset: str
    items: tuple[str, ...]
    measure: Measure
    where: Predicate | None = None
    k: int | None = None
    each: tuple[str, ...] = ()
    ranked_by: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:  # noqa: C901 - one check after the other
        check_name(self.dataset, "dataset")
        for key, columns in (("items", self.items), ("each", self.each)):
            if not isinstance(columns, tuple):
                raise InputError(f"{key!r} must be a tuple of columns")
            for place, column in enumerate(columns):
                check_name(column, f"{key}[{place}]")
            if len(set(columns)) < len(columns):
                raise InputError(f"{key!r} names a column twice")
        if set(self.items) & set(self.each):
            raise InputError("a column is in 'items' and in 'each'")
        if self.each and not self.items:
            raise InputError("'each' needs items; for a total of each label, name the column in 'items' instead")
        if not isinstance(self.measure, Measure):
            raise InputError("'measure' must be a Measure")
        if not isinstance(self.where, Predicate | None):
            raise InputError("'where' must be a filter, such as discreet.query.sql.parse_where returns, or None")
        if self.k is not None:
            k = 0 if isinstance(self.k, bool) else whole(self.k, "'k'")
            if k < 1:
                raise InputError("'k' must be a whole number of at least 1")
            object.__setattr__(self, "k", k)
            if not self.items:
                raise InputError("'k' needs items: a total is one number")

    def to_dict(self) -> dict[str, Any]:
        """Return the query as JSON values, as `discreet.query.json.from_dict` reads them."""
        measure: dict[str, str] = {"kind": self.measure.kind}
        if self.measure.column is not None:
            measure["column"] = self.measure.column
        return {
            "dataset": self.dataset,
            "items": list(self.items),
            **({"each": list(self.each)} if self.each else {}),
            "measure": measure,
            "where": None if self.where is None else _nested(self.where),
            "k": self.k,
        }


@dataclass(frozen=True, slots=True)
class DatasetQuery:
    """A query with its dataset, which is found once, where the query enters.

    Args:
        select: the query, with names as written by the analyst.
        name: the name of its dataset, as the catalog spells it.
        dataset: the dataset, with the columns that may be queried.

    Raises:
        InputError: sums or averages are ordered by the number of something that is not the user column.
    """

    select: Select
    name: str
    dataset: Dataset

    def __post_init__(self) -> None:
        check_ranked_by(self.select.ranked_by, self.dataset)

    @classmethod
    def of(cls, select: Select, catalog: Catalog) -> DatasetQuery:
        """Return *select* with its dataset, or raise `NotFound` if *catalog* has no dataset of that name."""
        return cls(select, *catalog.find(select.dataset))


def check_ranked_by(column: str | None, dataset: Dataset) -> None:
    """Raise `InputError` if *column*, by which sums or averages are ordered, is not the user column of *dataset*."""
    if column is not None and column.casefold() != dataset.user.casefold():
        by = f"ORDER BY COUNT(DISTINCT {dataset.user})"
        raise InputError(f"sums and averages are of the items with the most users: {by} DESC LIMIT k")


Exact: TypeAlias = float | str | Fraction
"""A number that is taken exactly as it is written: "1e-8" and "1/3" are fractions."""


class Options(TypedDict, total=False):
    """The options of a query as callers give them; a missing one, or None, is the default of the library or service.

    Beside its type, each has the arguments of `pydantic.Field` for its field in JSON, which only services import.
    """

    epsilon: Annotated[
        float | None, {"description": "The largest epsilon of the release, with delta; not with epsilon_per."}
    ]
    delta: Annotated[Exact | None, {"description": "Delta of the release; not with epsilon_per."}]
    epsilon_per: Annotated[
        Exact | None,
        {"description": "Epsilon of one unit of information: every item and every count costs one. Not with epsilon."},
    ]
    information: Annotated[
        int | None,
        {"ge": 1, "description": "Maximum number of units of information; with epsilon_per, for queries without k."},
    ]
    relative_error: Annotated[
        Exact | None, {"description": "Relative error that most counts stay within, for queries without k."}
    ]
    counts: Annotated[bool, {"description": "False to release labels without counts."}]
    mechanism: Annotated[
        MechanismChoice | None, {"description": "Name of the mechanism; by default the best for the query."}
    ]
    noise: Annotated[
        NoiseName | None, {"description": "Kind of noise; by default the one with the smaller standard error."}
    ]
    head_limit: Annotated[int | None, {"ge": 1, "description": "Number of items to read from the engine."}]


@dataclass(frozen=True, slots=True)
class QueryOptions:
    """The options of a query as it is planned.

    Args:
        epsilon: at least 1e-6; at most 100 unless forced.
        delta: at least 1e-20 and below 1.
        per: the price of a unit, in place of epsilon and delta, or None.
        relative_error: the relative error that most counts should stay within, for queries without k; from 1e-12 to
            below 1.
        counts: True for counts, False for labels only.
        mechanism: name of the mechanism; None or "auto" for the default of `discreet.query.planning.choose`.
        noise: the noise of the counts, or None for the one with the smaller standard error.
        head_limit: dbar, the number of items to read; None for max(10 k, 1000) for a top k and 10,000 for a release.
    """

    epsilon: float = 1.0
    delta: Fraction = Fraction(1, 10**8)
    per: PerUnit | None = None
    relative_error: Fraction = Fraction(1, 10)
    counts: bool = True
    mechanism: MechanismChoice | None = None
    noise: NoiseName | None = None
    head_limit: int | None = None

    @classmethod
    def of(cls, options: Options, *, delta: Exact = "1e-8", per: PerUnit | None = None) -> QueryOptions:
        """Return *options* with the defaults of the library; numbers of any kind become Python's.

        Args:
            delta: the default of delta.
            per: the price of a unit, or None for that of *options*.

        Raises:
            InputError: an option does not exist or has the wrong type, or there are two prices.
        """
        unknown = options.keys() - Options.__annotations__
        if unknown:
            raise InputError(f"there is no option {min(unknown)!r}; choose from {', '.join(Options.__annotations__)}")
        epsilon = options.get("epsilon")
        share = options.get("relative_error")
        limit = options.get("head_limit")
        own_delta = options.get("delta")
        counts = options.get("counts")
        units = (options.get("epsilon_per"), options.get("information"))
        prices = ((epsilon, own_delta), (per,), units)
        if sum(any(part is not None for part in price) for price in prices) > 1:
            raise InputError("a query has a price per unit, or an epsilon and a delta, not both")
        return cls(
            1.0 if epsilon is None else number(epsilon, "epsilon"),
            exact(delta if own_delta is None else own_delta, "delta"),
            per if units == (None, None) else unit_price(*units),
            Fraction(1, 10) if share is None else exact(share, "the relative error"),
            True if counts is None else bool(counts),
            options.get("mechanism"),
            options.get("noise"),
            None if limit is None else whole(limit, "head limit"),
        )


ROWS_NOTE = (
    "this is not the number of all rows: some of users with many rows are left out, unless rows_per_group is as large "
    "as the most rows of a user"
)
"""What a count of rows is not, and how it is."""


@dataclass(frozen=True, slots=True)
class Query:
    """A query of one table: the rows to count, the options, and the number of items.

    Args:
        request: the request to the engine. Its limit is set to dbar: the size of a known domain, or the head limit.
        options: the price and the mechanism.
        k: number of items, of each segment if there are any, or None for as many accurate counts as possible.
        average: True for sums divided by the numbers of their rows; by those of users in releases that were stored
            before averages were of rows, which have no `SumBounds.rows`.
        min_users: the noisy number of users from which on the data owner lets an item be shown, or None.
        patterns: regular expressions that shown labels match, by item column.

    Raises:
        InputError: k is not a whole number, or a column has no name.
    """

    request: HeadRequest
    options: QueryOptions
    k: int | None = None
    average: bool = False
    min_users: int | None = None
    patterns: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        for column in (self.request.user, *self.request.items):
            check_text(column, "the name of a column")
        if self.k is not None:
            object.__setattr__(self, "k", whole(self.k, "k"))
        segments = 1 if self.request.segments is None else len(self.request.segments)
        if self.request.domain is not None:
            limit = len(self.request.domain) // segments
        elif not self.request.items:
            limit = 1
        elif self.options.head_limit is not None:
            limit = self.options.head_limit
        else:
            limit = default_head_limit(self.k)
            if self.request.segments is not None:  # the default is lowered to what many segments can have
                limit = max(min(limit, MAX_SEGMENT_ROWS // segments - 1), self.k or 1)
        object.__setattr__(self, "request", replace(self.request, limit=limit))

    @property
    def known_domain(self) -> bool:
        """True if all possible items are known."""
        return self.request.domain is not None or not self.request.items

    @property
    def rows_note(self) -> str | None:
        """`ROWS_NOTE` for a query of counts of rows, None for others."""
        return ROWS_NOTE if self.request.rows_per_group > 1 and self.request.summed is None else None

    @property
    def sensitivity(self) -> Sensitivity:
        """The declared bounds on the rows and groups of one user."""
        return Sensitivity(self.request.groups_per_user, self.request.rows_per_group)


def check_name(name: Any, key: str) -> str:  # noqa: ANN401 - any JSON value
    """Return *name*; raise unless it is a valid name.

    Raises:
        InputError: *name* is not text, or is empty, or holds NUL or a lone surrogate; the message names *key*.
    """
    if not isinstance(name, str) or not name or "\0" in name or not is_unicode(name):
        raise InputError(f"{key!r} must be a name: text that is not empty, of whole characters other than NUL")
    return name


def _nested(predicate: Predicate) -> dict[str, Any]:
    match predicate:
        case Comparison(column, operator, constant):
            return {"column": column, "operator": operator, "constant": _named(constant)}
        case Membership(column, constants):
            return {"column": column, "in": [_named(constant) for constant in constants]}
        case IsNull(column):
            return {"column": column, "missing": True}
        case Not(inner):
            return {"not": _nested(inner)}
        case And(parts):
            return {"and": [_nested(part) for part in parts]}
        case Or(parts):
            return {"or": [_nested(part) for part in parts]}


def _named(constant: Constant) -> dict[str, str]:
    return {constant.kind.name.lower(): constant.text}
