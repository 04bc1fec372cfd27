"""Queries as frozen values: `Select`, as an analyst writes it, and `Query`, as it is planned and answered."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from discreet.errors import InputError
from discreet.head_request import And, Comparison, IsNull, Membership, Not, Or, Predicate
from discreet.values import Sensitivity, check_text, number, whole

if TYPE_CHECKING:
    from discreet.head_request import Constant, Derived, SumBounds
    from discreet.mechanisms import NoiseName

MechanismChoice: TypeAlias = Literal["auto", "gumbel", "laplace", "stable", "head", "two-round", "pcr"]
MeasureKind: TypeAlias = Literal["users", "rows", "sum", "average"]

TOP_HEAD_LIMIT = 1_000
RELEASE_HEAD_LIMIT = 10_000
HEAD_LIMIT_MOST = 10_000_000


def default_head_limit(k: int | None) -> int:
    """Return the default head limit dbar of a top-k query, or, if *k* is None, of a query for all accurate counts."""
    return RELEASE_HEAD_LIMIT if k is None else min(max(10 * k, TOP_HEAD_LIMIT), HEAD_LIMIT_MOST)


@dataclass(frozen=True, slots=True)
class Measure:
    """The measure of each item: a count, a sum or an average.

    Args:
        kind: "users" for COUNT(DISTINCT column), "rows" for COUNT(*), "sum" for SUM(column), "average" for AVG(column).
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

    Raises:
        InputError: a part has the wrong type, a column is named twice, or a total has a k.
    """

    dataset: str
    items: tuple[str, ...]
    measure: Measure
    where: Predicate | None = None
    k: int | None = None

    def __post_init__(self) -> None:
        check_name(self.dataset, "dataset")
        if not isinstance(self.items, tuple):
            raise InputError("'items' must be a tuple of columns")
        for place, item in enumerate(self.items):
            check_name(item, f"items[{place}]")
        if len(set(self.items)) < len(self.items):
            raise InputError("'items' names a column twice")
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
        """Return the query as JSON values, as `discreet.query.query_json.from_dict` reads them."""
        measure: dict[str, str] = {"kind": self.measure.kind}
        if self.measure.column is not None:
            measure["column"] = self.measure.column
        return {
            "dataset": self.dataset,
            "items": list(self.items),
            "measure": measure,
            "where": None if self.where is None else _nested(self.where),
            "k": self.k,
        }


@dataclass(frozen=True, slots=True)
class Query:
    """A query of one table.

    Args:
        items: the columns that together name an item; empty for all rows as one item.
        epsilon: at least 1e-6; at most 100 unless forced.
        delta: at least 1e-20 and below 1.
        k: number of items, or None for as many accurate counts as possible.
        where: the filter, or None for all rows.
        sensitivity: the declared bounds on the rows and groups of one user.
        head_limit: dbar, or None for max(10 k, 1000) for a top k and 10,000 for a release.
        counts: True for counts, False for labels only.
        noise: the noise of the counts, or None for the one with the smaller standard error.
        mechanism: name of the mechanism; None or "auto" for the default in `discreet.mechanisms`.
        relative_error: the target relative error of a released count, above 0 and below 1.
        domain: an Arrow table that lists all items, or None.
        keep_missing: True to count rows without a label as an item; otherwise they are left out.
        summed: a column whose sums are released, or None; with sums, counts are not released, except for averages.
        average: True for sums divided by counts.
        derived: computed columns that the items or the filter use.

    Raises:
        InputError: epsilon is not a number, k or the head limit not a whole number, or a column has no name.
    """

    user: str
    items: tuple[str, ...]
    epsilon: float
    delta: Fraction
    k: int | None = None
    where: Predicate | None = None
    sensitivity: Sensitivity = Sensitivity()
    head_limit: int | None = None
    counts: bool = True
    noise: NoiseName | None = None
    mechanism: MechanismChoice | None = None
    relative_error: Fraction = Fraction(1, 10)
    domain: Any = None
    keep_missing: bool = False
    summed: SumBounds | None = None
    average: bool = False
    derived: tuple[Derived, ...] = ()

    @property
    def known_domain(self) -> bool:
        """True if all possible items are known."""
        return self.domain is not None or not self.items

    def __post_init__(self) -> None:
        # Numbers of other libraries become Python numbers, so that equal queries compare and hash equal.
        object.__setattr__(self, "epsilon", number(self.epsilon, "epsilon"))
        for column in (self.user, *self.items):
            check_text(column, "the name of a column")
        for name in ("k", "head_limit"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, whole(getattr(self, name), name.replace("_", " ")))


def check_name(name: Any, key: str) -> str:  # noqa: ANN401 - any JSON value
    """Return *name*; raise unless it is a valid name.

    Raises:
        InputError: *name* is not text, or is empty, or holds NUL or a lone surrogate; the message names *key*.
    """
    if not isinstance(name, str) or not name or "\0" in name or any("\ud800" <= c <= "\udfff" for c in name):
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
