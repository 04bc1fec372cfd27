"""Plan queries: check names, choose the mechanism and its parameters, compute the worst cost. Reads no data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, get_args

from discreet.accounting.convert import LEAST_DELTA, Guarantee, UnitCost, epsilon_tight, guarantee_of, limit_for
from discreet.errors import InputError, InvariantViolated, UnknownColumn
from discreet.head_request import HeadRequest, Kind, SumBounds, naming_error
from discreet.mechanisms import (
    PAIR_MECHANISMS,
    Auto,
    CountRelease,
    Each,
    EachAuto,
    Expectation,
    KnownAuto,
    KnownGumbel,
    KnownLaplace,
    Mechanism,
    Request,
    SelectVerify,
    TopStable,
    TwoRound,
    UnknownGumbel,
    UnknownLaplace,
    check_bounds,
    summing,
)
from discreet.mechanisms.sums import ListedSums, RankedSums, average_factors
from discreet.query.canonical import canonical, possible_labels
from discreet.query.predicates import bind_where, columns_of, find_column
from discreet.query.pricing import PerUnit, priced
from discreet.query.query import (
    MAX_HEAD_LIMIT,
    MAX_SEGMENT_ROWS,
    DatasetQuery,
    Measure,
    Query,
    QueryOptions,
    Select,
    default_head_limit,
)
from discreet.values import Cost, MechanismChoice, NoiseName, float_below

if TYPE_CHECKING:
    from discreet.catalog.model import Dataset

AVERAGE_BASIS = "an average of n rows, divided by n; "
"""How `Plan.error_basis` of averages begins; the error of those that are small follows."""

MIN_EPSILON = 1e-6
MAX_EPSILON = 100.0
MAX_FORCED_EPSILON = 500.0
MIN_RELATIVE_ERROR = Fraction(1, 10**12)
DELTA_WARNED = Fraction(1, 10_000)

AUTO_FROM_K = 6
"""The smallest k with `Auto` as default; below, its test costs more than it gains (docs/mechanisms/auto.md)."""

EACH_FROM_K = 3
"""The smallest k with the head for the items of each segment where there are no pairs (docs/mechanisms/each.md)."""

SEVERAL_LISTED = 4
"""The smallest number of listed items with `KnownAuto` as default; a user of all of fewer items costs little more."""


def bind(query: Query, columns: Mapping[str, Kind]) -> Query:
    """Return *query* with the table's spelling of columns, checked against their types, and a canonical filter.

    Raises:
        UnknownColumn: the table has no such column.
        InputError: a column cannot be a user or an item: its type cannot tell them apart, or the user is an item.
        WhereError: the filter does not fit the columns.
    """
    request = query.request
    user = find_column(request.user, columns, "user column")
    items = tuple(find_column(item, columns, "item column") for item in request.items)
    for column in (user, *items):
        wrong = naming_error(column, columns[column], is_user=column == user, has_cast=True)
        if wrong is not None:
            raise InputError(wrong)
    _check_columns(user, items)
    where = None if request.where is None else canonical(bind_where(request.where, columns), columns)
    bound = replace(request, user=user, items=items, where=where)
    segments = request.segments
    if segments is not None:
        segment_columns = items[: len(request.each)]
        segments = possible_labels(where, columns, segments.rename_columns(list(segment_columns)))
        bound = replace(bound, each=segment_columns, segments=segments)
    if request.domain is None:
        return replace(query, request=bound)
    if query.k is not None and query.k > query.request.limit:
        raise InputError(f"k must be at most the size of the domain, {query.request.limit:,}, not {query.k:,}")
    domain = possible_labels(where, columns, request.domain.rename_columns(list(items)))
    return replace(query, request=replace(bound, domain=domain), k=_k(query.k, domain, segments))


def resolve(
    select: Select,
    dataset: Dataset,
    options: QueryOptions,
    *,
    scales: Mapping[str, int],
    domain: Any = None,  # noqa: ANN401 - an Arrow table
    segments: Any = None,  # noqa: ANN401 - an Arrow table
) -> Query:
    """Return the `Query` for *select*, checked against the catalog's *dataset*.

    A column that an analyst may not use is refused exactly like one that does not exist.

    Args:
        select: the query; its names may differ from the catalog's in case.
        scales: digits after the decimal point, by summable column; 0 for columns that are missing here.
        domain: the items listed by the catalog, an Arrow table with the columns of segments and items, or None.
        segments: the segments listed by the catalog, an Arrow table with the columns of *select.each*, or None.

    Raises:
        UnknownColumn: there is no such column, or it may not be used this way.
        InputError: the catalog does not allow the query.
        WhereError: the filter does not fit the columns.
    """
    grouped = columns_named(select.each, dataset)
    items = columns_named(select.items, dataset)
    if len({*grouped, *items}) < len(grouped) + len(items):
        raise InputError("an item column is named twice")
    for column in grouped:
        wrong = dataset.segment_error(column)
        if wrong is not None:
            raise InputError(wrong)
    if grouped and segments is None:
        raise InputError(_too_many_segments("these labels have", f"{MAX_SEGMENT_ROWS:,} or more combinations"))
    summed = _summed(select.measure, dataset, scales)
    average = select.measure.kind == "average"
    if not options.counts and average:
        raise InputError("an average has no labels without numbers: leave out counts=False")
    head_limit = options.head_limit
    _check_ceilings(select.k, head_limit, dataset)
    if head_limit is None and dataset.max_head_limit is not None:
        head_limit = min(default_head_limit(select.k), dataset.max_head_limit)
    kinds = {name: dataset.columns[name].kind for name in dataset.filterable}
    where = None if select.where is None else canonical(bind_where(select.where, kinds), kinds)
    if domain is not None:
        domain = possible_labels(where, kinds, domain)
    if segments is not None:
        segments = possible_labels(where, kinds, segments)
    used = {*grouped, *items, *(() if where is None else columns_of(where))}
    request = HeadRequest(
        dataset.user,
        (*grouped, *items),
        0,  # set by Query
        where,
        _rows_per_group(select.measure, dataset),
        dataset.groups_of(items),
        domain,
        # A private bound is chosen once the returned labels are known and listed, and a missing one cannot be listed.
        dataset.missing_labels == "keep" and not (summed is not None and summed.private),
        summed,
        tuple(column for column in dataset.derived if column.name in used),
        grouped,
        segments,
    )
    options = replace(options, counts=options.counts if summed is None else average, head_limit=head_limit)
    if items and dataset.min_users is not None and (summed is not None or not options.counts):
        raise InputError(
            f"this dataset shows only items with {dataset.min_users:,} users or more, which their counts decide: "
            f"ask for COUNT(DISTINCT {dataset.user}) or COUNT(*)"
        )
    patterns = tuple((name, pattern) for name in (*grouped, *items) if (pattern := dataset.columns[name].pattern))
    return Query(request, options, _k(select.k, domain, segments), average, dataset.min_users, patterns)


def is_listed_by_filter(options: QueryOptions) -> bool:
    """Return True if a filter that names all items lists the domain: unless the mechanism finds the items itself."""
    return options.mechanism in (None, "auto", "gumbel", "laplace")


def unclipped(mechanism: MechanismChoice | None) -> MechanismChoice:
    """Return the mechanism of counts that quantiles are computed from: by default laplace, which clips no user."""
    return "laplace" if mechanism is None else mechanism


def _k(k: int | None, domain: Any, segments: Any) -> int | None:  # noqa: ANN401 - Arrow tables
    """Lower k to the number of listed items of a segment: LIMIT 10 of 3 items returns 3, as in SQL."""
    if k is None or domain is None:
        return k
    return min(k, len(domain) if segments is None else len(domain) // len(segments))


def _too_many_segments(what: str, limit: str) -> str:
    return f"{what} {limit}, and a query with 'each' reads at most {MAX_SEGMENT_ROWS:,} items of all segments together"


def columns_named(names: tuple[str, ...], dataset: Dataset) -> tuple[str, ...]:
    """Return the columns to group by, as the catalog spells them.

    Raises:
        UnknownColumn: there is no such column, or it may not be grouped by.
    """
    return tuple(_find(name, dataset.groupable, "column to group by") for name in names)


def _find(name: str, allowed: tuple[str, ...], role: str) -> str:
    spelling = {column.casefold(): column for column in allowed}.get(name.casefold())
    if spelling is None:
        raise UnknownColumn(name, allowed, role)
    return spelling


def _rows_per_group(measure: Measure, dataset: Dataset) -> int:
    if measure.kind == "users" and (measure.column or "").casefold() != dataset.user.casefold():
        raise InputError(f"users are counted, as COUNT(DISTINCT {dataset.user}); nothing else can be counted this way")
    if measure.kind != "rows":
        return 1
    if dataset.rows_per_group is None:
        raise InputError(f"rows of this dataset are not counted; count users, as COUNT(DISTINCT {dataset.user})")
    return dataset.rows_per_group


def _summed(measure: Measure, dataset: Dataset, scales: Mapping[str, int]) -> SumBounds | None:
    """Return the column to sum or to average with its bounds, or None for counts."""
    if measure.kind not in {"sum", "average"}:
        return None
    column = _find(measure.column or "", dataset.summable, "column to sum")
    summed = dataset.summed(column, scales.get(column, 0))
    if measure.kind == "sum":
        return summed
    if dataset.rows_per_group is None:
        raise InputError(
            f"AVG({column}) is the average of rows, and the catalog does not declare how many rows of a user count: "
            f"declare rows_per_group, or write SUM({column}) / COUNT(DISTINCT {dataset.user}) for the average per user"
        )
    return replace(summed, rows=dataset.rows_per_group)


def _check_ceilings(k: int | None, head_limit: int | None, dataset: Dataset) -> None:
    if k is not None and dataset.max_k is not None and k > dataset.max_k:
        raise InputError(f"a top k of this dataset has at most {dataset.max_k:,} items, not {k:,}")
    if head_limit is not None and dataset.max_head_limit is not None and head_limit > dataset.max_head_limit:
        raise InputError(f"the head limit of this dataset is at most {dataset.max_head_limit:,}, not {head_limit:,}")


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """The mechanism for a query, with all its parameters, its worst cost and its guarantee.

    Args:
        guarantee: the privacy guarantee at the worst cost.
        notes: warnings about parameters that are allowed but unwise, one sentence each.
        missed: a sentence about a better default that needs pair queries, which the engine lacks; None if none does.
    """

    query: Query
    mechanism: Mechanism | Each
    guarantee: Guarantee
    notes: tuple[str, ...]
    missed: str | None = None

    def __repr__(self) -> str:
        """Return five lines for notebooks, and its notes; `discreet plan` shows more."""
        expected = self.expectation
        request = self.query.request
        what = "a total" if not request.items else f"a top {self.query.k:,}" if self.query.k else "a release"
        likely = expected.likely[0] if expected.likely else expected
        least = likely.min_std_error
        most = likely.max_std_error
        summed = self.sum_std_error
        ends = (least, most) if summed is None else (summed,)
        errors = [f"{error:.3g}" for error in dict.fromkeys(ends) if error is not None]
        errors += ["or more"] if most is None and summed is None and errors else []
        errors += [f"for {self.error_basis}"] if self.error_basis and errors else []
        smallest = None if expected.smallest_count is None else likely.smallest_count
        sure = self.guarantee
        probably = f", probably {self.likely_mechanism}" if expected.likely else ""
        notes = "".join(f"\n  note: {note}" for note in self.notes)
        return "\n".join(
            (
                f"<Plan of {what} by {self.mechanism.name}{probably}",
                f"  guarantee       epsilon = {sure.epsilon:.4g}, delta = {float(sure.delta):.3g}",
                f"  worst cost      {self.worst_cost}",
                f"  standard error  {' to '.join(errors).replace('to or', 'or').replace('to for', 'for') or 'none'}",
                f"  smallest count  {'any' if smallest is None else f'about {smallest:,}'}{notes}>",
            )
        )

    @property
    def worst_cost(self) -> Cost:
        """The cost to reserve before any data is read."""
        return self.mechanism.worst_cost()

    @property
    def worst_units(self) -> UnitCost | None:
        """The worst cost in units, or None if the query is not priced per unit; `PerUnit.units` converts the charge."""
        per = self.query.options.per
        return None if per is None else per.units(self.worst_cost)

    @property
    def expectation(self) -> Expectation:
        """The expected error and size of the answer, computed without data."""
        return self.mechanism.expectation()

    @property
    def likely_mechanism(self) -> str:
        """The name of the mechanism that will probably answer: the likeliest branch of one that chooses."""
        likely = self.expectation.likely
        return likely[0].name if likely else self.mechanism.name

    @property
    def sum_std_error(self) -> float | None:
        """The standard error of a sum in units of the column, the most if its bound is private; None without sums."""
        error = self.expectation.sum_std_error
        summed = self.query.request.summed
        return None if error is None or summed is None else error / 10**summed.scale

    @property
    def error_basis(self) -> str | None:
        """The number of listed labels or of a user's items for which errors are expected; None if data decide.

        An average has an expected error only for a number of rows, which the answer has. The noise of that number adds
        to it; or, in part, cancels with that of the sum (docs/mechanisms/sums.md#error-bars).
        """
        mechanism = self.mechanism.inner if isinstance(self.mechanism, Each) else self.mechanism
        request = self.query.request
        summed = request.summed
        if isinstance(mechanism, RankedSums | ListedSums) and summed is not None and summed.rows is not None:
            largest = float(max(-summed.low, summed.high)) / summed.rows
            lowest, highest = average_factors(mechanism)
            factor = f"up to {highest:g}" if summed.private else f"{lowest:g} to {highest:g}"
            return f"{AVERAGE_BASIS}{factor} times that for averages up to {largest:.4g}"
        most = request.groups_per_user
        bound = None if most is None or not request.items else f"at most {most:,} item{'s' * (most > 1)} of a user"
        if request.domain is None:
            return bound
        labels = len(request.domain)
        listed = f"{labels:,} listed label{'s' * (labels > 1)}"
        return listed if bound is None else f"{listed} and {bound}"

    @property
    def reads_pairs(self) -> bool:
        """True if the mechanism queries user-item pairs, if a head was not enough."""
        return isinstance(self.mechanism, PAIR_MECHANISMS)

    @property
    def reads_sums(self) -> bool:
        """True if the mechanism reads the sums of the items that it returned, once it knows them."""
        return isinstance(self.mechanism, RankedSums) and self.mechanism.summed.private

    def one_of(self, releases: int) -> Plan:
        """Return the plan of one of several equal releases that together cost at most as much as this one.

        So the price of a release of (item, day) of four weeks can be compared with that of 28 daily releases, in a
        budget that adds up zCDP.

        Args:
            releases: at least 1.

        Raises:
            InputError: *releases* is below 1; each would have an epsilon or a delta below the least allowed one; or the
                query has a price per unit.
        """
        if releases < 1:
            raise InputError(f"the number of releases must be at least 1, not {releases}")
        options = self.query.options
        if options.per is not None:
            raise InputError("a price per unit is the same for every release; give epsilon and delta instead")
        delta = options.delta / releases
        rho = limit_for(options.epsilon, options.delta).rho / releases
        epsilon = epsilon_tight(float_below(rho), float_below(delta / 2)) * (1 - 1e-9)
        query = replace(self.query, options=replace(options, epsilon=epsilon, delta=delta))
        return make_plan(query, has_pairs=self.missed is None, shared_budget=True)

    @property
    def request(self) -> HeadRequest:
        """The request to the engine: for a head, or for the rows whose user-item pairs it queries."""
        return replace(self.query.request, limit=self.mechanism.head_limit)


@dataclass(frozen=True, slots=True)
class PlannedQuery:
    """The plan of a query.

    Args:
        question: the query, and its dataset.
        table: the name of the table from which keys are derived; see `Warehouse.key_context`.
        data_version: the version of the data that it reads, or None if nothing identifies its state.
        release_key: identifies the answer; None without a data version, where only an idempotency key replays it.
    """

    plan: Plan
    question: DatasetQuery
    table: str = ""
    data_version: str | None = None
    release_key: bytes | None = None

    @property
    def dataset(self) -> str:
        """The name of the dataset, as the catalog spells it."""
        return self.question.name


def make_plan(
    query: Query,
    *,
    has_pairs: bool = True,
    shared_budget: bool = False,
    force: bool = False,
) -> Plan:
    """Choose the mechanism and the most accurate parameters that the guarantee of *query* allows.

    Args:
        query: a result of `bind` or `resolve`.
        has_pairs: True if the engine has pair queries (`Engine.has_pairs`).
        shared_budget: True if the cost is charged to a budget shared with other queries, which adds up zCDP; otherwise
            a mechanism's own (epsilon, delta) theorem is used where it allows less noise.
        force: True to allow epsilon above 100, up to 500.

    Returns:
        the plan; if the query has a price per unit, the plan's query holds the resulting epsilon and delta.

    Raises:
        InputError: a parameter is outside its range, or the mechanism cannot answer the query.
    """
    request = _request(query)
    options = query.options
    per = query.options.per
    segments = query.request.segments
    # Quantiles are computed from the counts of listed bins, so these are not clipped by default.
    bins = query.known_domain and any(isinstance(derived.each, int) for derived in query.request.derived)
    segmented = segments is not None
    default = choose(request, has_pairs=has_pairs and not bins, per_unit=per is not None, segmented=segmented)
    kind = _mechanism(options.mechanism, request, default)
    if request.summed is not None:
        kind = summing(kind, request)
    if kind is TwoRound and segmented:
        raise InputError("two rounds count the items of all segments as one release; choose auto or head for 'each'")
    if kind in PAIR_MECHANISMS and not has_pairs:
        raise InputError(f"the {kind.name} mechanism needs an engine that can query user-item pairs; choose head")
    if per is not None:
        return _plan_per_unit(query, _on_segments(priced(kind, request, per), query), per, force)
    notes = check_price(options.epsilon, options.delta, force)
    # The k of `EachAuto` is for each segment, and no branch of it is for a top k of all pairs.
    request = replace(request, k=None) if kind is Auto and segmented else request
    mechanism = _on_segments(_most_accurate(kind, options, request, shared_budget), query)
    mechanism.expectation()  # raises, before data is read, if the noise cannot be sampled
    guarantee = guarantee_of(mechanism.worst_cost(), options.delta, mechanism.direct_epsilon())
    if guarantee.epsilon > options.epsilon * (1 + 1e-9) or Fraction(guarantee.delta) > options.delta * (
        1 + Fraction(1, 10**15)
    ):
        raise InvariantViolated("the plan would cost more than the query allows")
    missed = None
    paired = choose(request, has_pairs=not bins, segmented=segmented) if options.mechanism in (None, "auto") else None
    if not has_pairs and paired in PAIR_MECHANISMS:
        missed = (
            "this engine has no pair queries, or not all; with them, tables in which most users have few items get "
            "several times as many accurate counts"
        )
    return Plan(query, mechanism, guarantee, notes, missed)


def _on_segments(mechanism: Mechanism, query: Query) -> Mechanism | Each:
    segments = query.request.segments
    if segments is None:
        return mechanism
    return (
        EachAuto.of(mechanism, len(segments), query.k)
        if isinstance(mechanism, Auto)
        else Each(mechanism, len(segments))
    )


def _plan_per_unit(query: Query, mechanism: Mechanism | Each, per: PerUnit, force: bool) -> Plan:
    mechanism.expectation()
    guarantee = per.guarantee(mechanism)
    if guarantee.epsilon > MAX_EPSILON and not force:
        units = per.units(mechanism.worst_cost()).information
        raise InputError(
            f"{units:,} units come to an epsilon above {MAX_EPSILON:g}, where nothing is protected; use fewer units"
        )
    delta = Fraction(guarantee.delta)
    options = replace(query.options, epsilon=guarantee.epsilon, delta=delta)
    return Plan(replace(query, options=options), mechanism, guarantee, _notes(delta))


def check_price(epsilon: float, delta: Fraction, force: bool | None) -> tuple[str, ...]:
    """Raise if epsilon or delta is out of range; return warnings about unwise values.

    Args:
        force: True allows an epsilon above 100; None if the caller cannot.
    """
    if not MIN_EPSILON <= epsilon < math.inf:
        raise InputError(f"epsilon must be a number of at least {MIN_EPSILON:g}, not {epsilon:g}")
    if epsilon > MAX_EPSILON and not force:
        allowed = "" if force is None else "; allow it with force=True"
        raise InputError(
            f"epsilon must be at most {MAX_EPSILON:g}, not {epsilon:g}: above that nothing is protected{allowed}"
        )
    if epsilon > MAX_FORCED_EPSILON:  # e^epsilon is no float from 710 on
        raise InputError(f"epsilon must be at most {MAX_FORCED_EPSILON:g}, even with force, not {epsilon:g}")
    if not LEAST_DELTA <= delta < 1:
        raise InputError(f"delta must be below 1 and at least {shown_number(LEAST_DELTA)}, not {shown_number(delta)}")
    return _notes(delta)


def _notes(delta: Fraction) -> tuple[str, ...]:
    if delta > DELTA_WARNED:
        return (f"delta = {float(delta):g} is large: it should be far below one over the number of users",)
    return ()


def too_fine(column: str, instead: str) -> str:
    """Return why hardly any value of a column of timestamps is an item that is shown; *instead* holds its days."""
    return (
        f"{column} holds times to the second and finer, so few of them have enough users to be shown; "
        f"count {instead}, for example"
    )


def with_fine_times(plan: Plan, days: Mapping[str, str]) -> Plan:
    """Add a note for every unlisted item that is a time to the second; *days* names the days of such columns."""
    items = () if plan.query.known_domain else plan.query.request.items
    notes = [too_fine(item, days[item]) for item in items if item in days]
    return replace(plan, notes=(*plan.notes, *notes))


def shown_number(value: Fraction) -> str:
    """Format *value* in a few characters."""
    try:
        return f"{float(value):g}"
    except OverflowError:
        return "a number of hundreds of digits"


def _check_columns(user: str, items: tuple[str, ...]) -> None:
    if user in items:
        raise InputError(f"column {user!r} cannot be both the user and an item")
    if len(set(items)) < len(items):
        raise InputError("an item column is named twice")


def _request(query: Query) -> Request:
    """Return the request to a mechanism; raise if a parameter other than epsilon and delta is out of range."""
    rows = query.request
    options = query.options
    head_limit = query.request.limit
    if query.k is not None and query.k < 1:
        raise InputError(f"k must be at least 1, not {query.k}")
    if not MIN_RELATIVE_ERROR <= options.relative_error < 1:
        raise InputError(
            f"the relative error must be at least {shown_number(MIN_RELATIVE_ERROR)} and below 1, "
            f"not {shown_number(options.relative_error)}"
        )
    if options.noise not in (None, *get_args(NoiseName)):  # a list has no hash
        raise InputError(f"there is no noise {options.noise!r}; choose from {' and '.join(get_args(NoiseName))}")
    _check_columns(rows.user, rows.items)
    if not 1 <= head_limit <= MAX_HEAD_LIMIT:
        raise InputError(f"the head limit must be from 1 to {MAX_HEAD_LIMIT:,}, not {head_limit:,}")
    if query.k is not None and query.k > head_limit:
        limit = "the size of the domain" if query.known_domain else "the head limit"
        raise InputError(f"k must be at most {limit}, {head_limit:,}, not {query.k:,}")
    if rows.segments is not None:
        read = len(rows.segments) * (head_limit + 1)
        if read > MAX_SEGMENT_ROWS:
            listed = f"{len(rows.segments):,} segments of {head_limit + 1:,} items each are {read:,} items"
            hint = "list fewer items" if query.known_domain else "choose a smaller head limit"
            raise InputError(f"{_too_many_segments(listed, 'together')}; {hint}, or fewer segments by a filter")
        if rows.summed is not None and rows.summed.private:
            raise InputError("a bound of sums is chosen from the rows of all segments, so 'each' cannot use it")
    if rows.summed is not None:
        check_bounds(rows.summed)
    return Request(
        query.k,
        head_limit,
        # All rows are one item, so no user contributes to more than one.
        query.sensitivity if rows.items else replace(query.sensitivity, groups_per_user=1),
        options.counts and rows.summed is None,
        options.noise or "gaussian",
        known_domain=query.known_domain,
        relative_error=options.relative_error,
        summed=rows.summed,
    )


def choose(request: Request, *, has_pairs: bool, per_unit: bool = False, segmented: bool = False) -> type[Mechanism]:
    """Return the default mechanism for *request*, by its domain and declared bounds (LinkedIn 2021, Table 1).

    | | groups per user declared | not declared |
    | --- | --- | --- |
    | known domain | KnownLap | KnownGumb (top k), KnownAuto or KnownLap with Delta = the domain (all counts) |
    | unknown domain | UnkLap | UnkGumb (small top k), Auto (a larger top k), Auto or SelectVerify (all counts) |

    Auto and KnownAuto need user-item pairs and count distinct users; SelectVerify needs a head only. UnkGumb answers
    any top k on engines without pairs, without counts, of rows or sums, with Laplace noise, or priced per unit. Of each
    segment, Auto answers any k, and the head a k from 3 on where UnkGumb would; listed items are counted by KnownLap.
    TopStable, TwoRound and PCR answer only when the query names them. Sums are added by `discreet.mechanisms.summing`.

    Args:
        has_pairs: True if the engine has pair queries.
        per_unit: True if the request is priced in units: then only released items are charged.
        segmented: True for the items of each segment.
    """
    bounded = request.sensitivity.groups_per_user is not None
    distinct = request.sensitivity.rows_per_group == 1
    paired = has_pairs and distinct and not per_unit
    counted = request.counts and request.noise == "gaussian" and request.summed is None
    if request.known_domain:
        if bounded or request.k is None:
            several = request.head_limit >= SEVERAL_LISTED
            paired = paired and not segmented
            return KnownAuto if paired and counted and several and not bounded else KnownLaplace
        return KnownGumbel
    if bounded:
        return UnknownLaplace
    if request.k is None:
        return Auto if paired else SelectVerify
    if segmented and counted and not per_unit:
        head = SelectVerify if request.k >= EACH_FROM_K else UnknownGumbel
        return Auto if paired else head
    return Auto if paired and counted and request.k >= AUTO_FROM_K else UnknownGumbel


def _mechanism(named: MechanismChoice | None, request: Request, default: type[Mechanism]) -> type[Mechanism]:
    """Return the mechanism with the name *named*, or *default* without a name."""
    by_name: dict[str | None, type[Mechanism]] = {
        None: default,
        "auto": default,
        "gumbel": KnownGumbel if request.known_domain else UnknownGumbel,
        "laplace": KnownLaplace if request.known_domain else UnknownLaplace,
        "stable": TopStable,
        "head": SelectVerify,
        "two-round": TwoRound,
        "pcr": CountRelease,
    }
    choice: object = named  # callers without type checks may pass an unhashable list
    if not isinstance(choice, str | None) or choice not in by_name:
        names = ", ".join(name for name in by_name if name is not None)
        raise InputError(f"there is no mechanism {named!r}; choose from {names}")
    return by_name[named]


def _most_accurate(kind: type[Mechanism], options: QueryOptions, request: Request, shared_budget: bool) -> Mechanism:
    """Return the most accurate instance, with either noise (or the query's), by zCDP or the mechanism's own theorem."""
    best = kind.within_cost(limit_for(options.epsilon, options.delta, kind.lossless and not shared_budget), request)
    if shared_budget:
        return best
    noises: tuple[NoiseName, ...] = get_args(NoiseName) if options.noise is None else (options.noise,)
    lost = Cost.at_most(0, options.delta).delta
    own = [kind.at_epsilon(Fraction(options.epsilon), lost, replace(request, noise=noise)) for noise in noises]
    rivals = [mechanism for mechanism in own if mechanism is not None]
    return min((best, *rivals), key=_error) if rivals else best


def _error(mechanism: Mechanism) -> float:
    """Return the error of the released values, or 1 / rho for labels only, which have no error."""
    expected = mechanism.expectation()
    errors = [std for std in (expected.max_std_error, expected.sum_std_error) if std is not None]
    return errors[-1] if errors else 1 / float(mechanism.worst_cost().rho)
