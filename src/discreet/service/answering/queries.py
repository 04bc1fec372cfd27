"""Plan, answer and estimate queries of an account, and keep the latest plans and answers in memory.

A repeated request is neither planned nor stored again. A stored answer never changes, and an account that has paid for
it stays entitled to it. But the meaning of a request changes with the grants of its account and with the version of
the data. So a cache entry is valid for one catalog object and one version of the data, and requests are cached only if
that version is known without querying an engine.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Container
from dataclasses import dataclass, field, replace
from datetime import datetime
from fractions import Fraction
from functools import partial
from typing import Any

from discreet.accounting.convert import limit_for, share_of_delta
from discreet.budget.errors import AccountSuspended, BudgetRefused, DataChanged, LeaseLost, StoreUnavailable
from discreet.budget.ledger import canonical
from discreet.budget.manager import BudgetManager, StoredBudget
from discreet.budget.model import InFlight, Refusal, Replay, Settled, StoredRelease
from discreet.catalog.engine_pool import scheduled_version
from discreet.catalog.model import Catalog, Dataset, Schedule
from discreet.errors import DiscreetError, EngineError, EngineTimeout, InputError, InvariantViolated
from discreet.head_request import And, Comparison, Membership
from discreet.noise import SystemBits
from discreet.query.json import from_dict
from discreet.query.planning import MIN_EPSILON, Plan, PlannedQuery, make_plan, shown_number
from discreet.query.predicates import columns_of
from discreet.query.pricing import PRESETS, unit_price
from discreet.query.query import DatasetQuery, Options, default_head_limit
from discreet.query.sql import parse_select
from discreet.release import Release
from discreet.release.answer import answer
from discreet.release.keys import DerivedKeys
from discreet.service.answering.estimates import estimate_of
from discreet.service.observability import Cause, Forfeited, Log, Refused, Released, Tracer
from discreet.service.problems import ClientDisconnected, RequestInFlight, RunFailed, UnaffordableQuery
from discreet.service.settings import Defaults, Limits, Settings
from discreet.values import Cost, exact, float_above
from discreet.warehouse import Warehouse
from discreet.wire import document
from discreet.wire.document import Form, encode, question_of
from discreet.wire.problems import Fitting, Together
from discreet.wire.queries import Estimate, Malformed, QueryRequest, spend_above

_CAUSES: tuple[tuple[tuple[type[Exception], ...], Cause], ...] = (
    ((EngineTimeout,), "timeout"),
    ((EngineError, InputError), "engine"),
    ((ClientDisconnected,), "client-gone"),
    ((DataChanged,), "data-changed"),
    ((LeaseLost,), "lease-lost"),
)
"""What the log says of a failed run, by its error; the first that fits."""

_BISECTIONS = 14
"""Steps of the bisection that finds the largest epsilon that fits."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a request: who asks, how the request is known again, and how the run is watched.

    Args:
        account: the account that is charged.
        request_id: the id of the request, for the log.
        key: the idempotency key of the request, or None.
        digest: a digest of its body.
        disconnected: returns True once the client has disconnected.
        progress: called with the share of the data of a query that was read, from 0 to 1.
        max_share: the largest fraction of what is left that a statement may take, from 0 to 1, or None. With it, the
            key is for data without a version only: with a key, a newer version would get the answer of the older one.
    """

    account: str
    request_id: str
    key: str | None = None
    digest: bytes = b""
    disconnected: Callable[[], bool] = lambda: False
    progress: Callable[[float], object] = lambda _: None
    max_share: float | None = None


class Queries:
    """Plans queries and answers them, charging accounts. Usable from several threads.

    Args:
        keys: derives the ids of releases and their noise.
        refused: called with every refusal because of a budget.
    """

    def __init__(
        self,
        manager: BudgetManager,
        warehouse: Warehouse,
        settings: Settings,
        keys: DerivedKeys,
        log: Log,
        tracer: Tracer,
        random: Callable[[int], bytes],
        refused: Callable[[Refusal], None],
    ) -> None:
        self._manager = manager
        self._warehouse = warehouse
        self._settings = settings
        self._keys = keys
        self._log = log
        self._tracer = tracer
        self._random = random
        self._refused = refused

    def plan(self, question: DatasetQuery, requested: Options, run: Run) -> PlannedQuery:
        """Plan a query for a shared budget.

        Args:
            question: a query of a dataset with the columns granted to the account of *run*; errors name only these.
            requested: the privacy parameters and options of the request.

        Raises:
            UnknownColumn: the dataset has no such column.
            InputError: the query or an option is not allowed, or exceeds a limit.
            EngineError: planning needs metadata from the engine, and the engine cannot be queried.
        """
        with self._tracer.span("plan", run.request_id, run.account):
            options = planning_options(requested, question.select.k, self._settings.defaults, self._settings.limits)
            plan = self._warehouse.plan(question, shared=True, **options)
            version, table = self._warehouse.key_context(question)
            key = None if version is None else self._keys.release_key(plan, table, version)
            return PlannedQuery(plan, question, table, version, key)

    def answer(self, planned: PlannedQuery, run: Run) -> Settled | Replay:
        """Answer *planned* and charge the account of *run*; only the returned bytes may leave the service.

        Raises:
            UnaffordableQuery: the account or one of its parents cannot pay the worst case; nothing was reserved.
            RequestInFlight: the same request of this account is being answered.
            EngineError: the data cannot be queried; nothing was charged.
            RunFailed: the run failed after the data was queried; its worst case is forfeited.
            DiscreetError: as `discreet.release.answer.answer`.
        """
        plan = planned.plan
        version = planned.data_version
        account = run.account
        request_id = run.request_id
        key = run.key or self._random(32).hex()
        name = planned.release_key or self._keys.release_key_once(account, key, run.digest)
        question = question_of(plan.query, planned.dataset)
        filtered = sorted(columns_of(plan.query.request.where)) if plan.query.request.where else []
        entry = canonical(question | {"where": filtered})  # the ledger has names of the catalog, no text of analysts
        reserve = partial(self._manager.reserve, account, name, key=run.key, digest=run.digest, question=entry)
        budget = StoredBudget(self._manager.store, reserve)

        shown = self.shown_version(planned.question.dataset, version)

        def document(release: Release) -> bytes:
            return encode(release, id=name.hex(), dataset=planned.dataset, question=question, data_version=shown)

        def check_connected(share: float) -> None:
            run.progress(share)
            if run.disconnected():
                budget.lost = True  # not caused by the data: no step towards a suspension
                raise ClientDisconnected

        try:
            answered = answer(
                plan,
                self._warehouse.versioned_reader(planned.question, version),
                budget,
                SystemBits() if version is None else self._keys.bits(plan, planned.table, version),
                queue=self._warehouse.queue(planned.question),
                computational=version is not None,
                encode=document,
                fingerprint_key=None if version is None else self._keys.fingerprint_key(planned.table, version),
                progress=check_connected,
                span=lambda step: self._tracer.span(step, request_id, account),
            )
        except BudgetRefused as error:
            raise self._budget_short(error.refusal, planned, run) from error
        except AccountSuspended as error:
            self._log.event(Refused(request_id, account, "suspended", error.account))
            raise
        except StoreUnavailable:
            raise
        except Exception as error:
            if not budget.forfeited or budget.reservation is None:
                raise
            cause: Cause = next((cause for kinds, cause in _CAUSES if isinstance(error, kinds)), "internal")
            self._log.event(Forfeited(request_id, account, planned.dataset, cause, budget.reservation))
            raise RunFailed(budget.reservation) from error
        if isinstance(answered, InFlight):
            raise RequestInFlight
        self._log.event(
            Released(
                request_id,
                account,
                planned.dataset,
                plan.mechanism.name,
                answered.release.release_key.hex(),
                float_above(answered.charged.rho),
                float_above(answered.charged.delta),
                "store" if isinstance(answered, Replay) else "engine",
                budget.reservation,
            )
        )
        return answered

    def pay(self, stored: StoredRelease, price: Cost, run: Run) -> Replay:
        """Charge the account of *run* for a stored release that another account was answered.

        Args:
            price: the most that it can have cost, which the budget must have: a refusal says nothing of the answer.

        Raises:
            UnaffordableQuery, AccountSuspended, RequestInFlight: as `answer`.
        """
        fields = document.read(stored.result)
        where = from_dict(fields["question"]).where
        entry = canonical(fields["question"] | {"where": sorted(columns_of(where)) if where else []})
        try:
            paid = self._manager.reserve(run.account, stored.release_key, price, question=entry)
        except BudgetRefused as error:
            raise UnaffordableQuery(error.refusal, None) from error
        if isinstance(paid, InFlight):
            raise RequestInFlight
        if not isinstance(paid, Replay):
            raise InvariantViolated("a stored release is not reserved")
        rho = float_above(paid.charged.rho)
        delta = float_above(paid.charged.delta)
        release = stored.release_key.hex()
        mechanism = fields["mechanism"]
        self._log.event(
            Released(run.request_id, run.account, fields["dataset"], mechanism, release, rho, delta, "store", None)
        )
        return paid

    def shown_version(self, dataset: Dataset, version: str | None) -> str | None:
        """Return a version of a dataset's data as analysts see it.

        The version of files is a digest of their paths, sizes and times, which could be guessed; so it is keyed.
        """
        if version is None or dataset.data_version is not None:
            return version
        return self._keys.shown_version(version)

    def has_paid(self, planned: PlannedQuery, run: Run) -> bool:
        """Return True if the account has paid for the answer to *planned*; without a version, look for its key only."""
        name = planned.release_key
        if name is None and run.key is not None:
            name = self._keys.release_key_once(run.account, run.key, run.digest)
        return name is not None and self._manager.store.entitled(run.account, name)

    def estimate(self, planned: PlannedQuery, run: Run) -> Estimate:
        """Return the worst-case cost of *planned*, and whether it fits; no data is read and nothing is reserved.

        Args:
            run: the run of the request that would be sent.
        """
        paid = self.has_paid(planned, run)
        path = self._manager.path(run.account)
        request = planned.plan.query.request
        dataset = planned.question.dataset
        grouped = [dataset.columns[name] for name in (*request.each, *request.items)]
        by_day = any((column.each or column.type) in ("day", "date") for column in grouped)
        version = self.shown_version(dataset, planned.data_version)
        return estimate_of(planned.plan, planned.dataset, version, path, paid=paid, by_day=by_day)

    def default_cost(self) -> Cost | None:
        """Return the worst-case cost of a query at the default price, or None where prices are per unit."""
        defaults = self._settings.defaults
        if defaults.epsilon is None or defaults.delta is None:
            return None
        return limit_for(defaults.epsilon, Fraction(defaults.delta))

    def _budget_short(self, refusal: Refusal, planned: PlannedQuery, run: Run) -> UnaffordableQuery:
        """Log and count a refusal; return its error, with the largest price that fits."""
        needed = refusal.needed
        self._log.event(
            Refused(
                run.request_id,
                run.account,
                "budget-short",
                refusal.account,
                float_above(needed.rho),
                float_above(needed.delta),
            )
        )
        self._refused(refusal)
        balances = [report.balance for report in self._manager.path(run.account)]
        rest = [balance.remaining for balance in balances if balance.account.enforced]
        left = Cost(min(cost.rho for cost in rest), min(cost.delta for cost in rest)) if rest else Cost()
        return UnaffordableQuery(refusal, most_that_fits(planned.plan, left), self._together(planned))

    def _together(self, planned: PlannedQuery) -> Together | None:
        """Return one query for all labels of a column in place of *planned*, whose filter takes some of its labels."""
        query = planned.plan.query
        dataset = planned.question.dataset
        where = query.request.where
        parts = where.predicates if isinstance(where, And) else () if where is None else (where,)
        for part in parts:
            equality = isinstance(part, Membership) or (isinstance(part, Comparison) and part.operator == "=")
            column = part.column if isinstance(part, Comparison | Membership) else ""
            free = equality and column in dataset.groupable and column not in query.request.items
            if not free or not query.request.items or dataset.segment_error(column) is not None:
                continue
            rest = tuple(other for other in parts if other is not part)
            select = replace(
                from_dict(question_of(query, planned.dataset)),
                where=And(rest) if len(rest) > 1 else rest[0] if rest else None,
                each=(column, *query.request.each),
            )
            options: dict[str, Any] = {"counts": query.options.counts, "noise": query.options.noise}
            price = {"epsilon": query.options.epsilon, "delta": query.options.delta}
            options |= price if query.options.per is None else {"per": query.options.per}
            with contextlib.suppress(DiscreetError):  # this is a hint: the query itself is refused for its price
                question = DatasetQuery(select, planned.dataset, dataset)
                plan = self._warehouse.plan(question, shared=True, **options)
                return Together(column=column, needed=spend_above(plan.worst_cost))
        return None


def planning_options(requested: Options, k: int | None, defaults: Defaults, limits: Limits) -> dict[str, Any]:
    """Return the options of `Warehouse.plan` for a request, with the default price if it has none.

    Args:
        k: the LIMIT of the query, or None.
        defaults: the default prices in the settings.

    Raises:
        InputError: an option exceeds its limit.
    """
    if k is not None and k > limits.max_k:
        raise InputError(f"k must be at most {limits.max_k:,}, not {k:,}")
    head_limit = requested.get("head_limit")
    if head_limit is not None and head_limit > limits.max_head_limit:
        raise InputError(f"the head limit must be at most {limits.max_head_limit:,}, not {head_limit:,}")
    if head_limit is None and default_head_limit(k) > limits.max_head_limit:
        head_limit = limits.max_head_limit
    options: dict[str, Any] = {**requested, "head_limit": head_limit}
    units = (options.pop("epsilon_per", None), options.pop("information", None))
    by_epsilon = "epsilon" in requested or "delta" in requested
    if units != (None, None) or (defaults.epsilon_per is not None and not by_epsilon):
        return options | {"per": unit_price(*units, defaults.per or PRESETS["linkedin"])}
    own_epsilon = requested.get("epsilon")
    epsilon = (defaults.epsilon or 1.0) if own_epsilon is None else own_epsilon
    if epsilon > limits.max_epsilon:
        raise InputError(f"epsilon must be at most {limits.max_epsilon:g}, not {epsilon:g}")
    delta = requested.get("delta")
    if delta is not None:
        requested_delta = exact(delta, "delta")
        if requested_delta > limits.max_delta:
            most = f"{float(limits.max_delta):g}"
            raise InputError(f"delta must be at most {most}, not {shown_number(requested_delta)}")
    elif epsilon > 0:  # and at most the largest one, which is finite
        usual = exact("1e-8" if defaults.delta is None else defaults.delta, "delta")
        delta = share_of_delta(epsilon, limit_for(defaults.epsilon or 1.0, usual), usual)
    return options | {"epsilon": epsilon, "delta": delta}


def most_that_fits(plan: Plan, remaining: Cost) -> Fitting | None:
    """Return the largest epsilon, k or information whose worst case is within *remaining*, all else equal.

    Args:
        remaining: the smallest balance of the account and its parents, in rho and in delta.
    """

    def fits(k: int | None = plan.query.k, **options: Any) -> bool:
        query = replace(plan.query, k=k, options=replace(plan.query.options, **options))
        try:
            return make_plan(query, has_pairs=plan.reads_pairs, shared_budget=True).worst_cost.within(remaining)
        except InputError:  # the parameter is below its range
            return False

    query = plan.query
    per = plan.query.options.per
    if per is None:
        epsilon = _largest_epsilon(query.options.epsilon, lambda e: fits(epsilon=e))
        return None if epsilon is None else Fitting(epsilon=epsilon)
    if query.k is not None:
        k = _largest(query.k, fits)
        return None if k is None else Fitting(k=k)
    most = _largest(per.information, lambda n: fits(per=replace(per, information=n)))
    return None if most is None else Fitting(information=most)


def _largest(limit: int, fits: Callable[[int], bool]) -> int | None:
    """Return the largest integer from 1 to *limit* - 1 that fits, or None; *fits* is monotone."""
    low = 0
    high = limit
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low or None


def _largest_epsilon(limit: float, fits: Callable[[float], bool]) -> float | None:
    """Return about the largest epsilon below *limit* that fits, to two digits, or None."""
    low = MIN_EPSILON
    high = limit
    best = None
    for _ in range(_BISECTIONS):
        middle = (low * high) ** 0.5
        epsilon = float(f"{middle:.1e}")
        if epsilon < limit and fits(epsilon):
            low = middle
            best = epsilon
        else:
            high = middle
    return best


def question_in(request: QueryRequest, catalog: Catalog, today: str) -> DatasetQuery:
    """Return the query of a request, with its dataset.

    Args:
        catalog: the datasets and columns that its account may query.
        today: the date that current_date is, YYYY-MM-DD.

    Raises:
        Malformed: its SQL is not valid.
        NotFound: there is no such dataset.
    """
    try:
        select = request.query or parse_select(request.sql or "", today)
    except InputError as error:
        raise Malformed(str(error), getattr(error, "position", None)) from None
    return DatasetQuery.of(select, catalog)


@dataclass(slots=True)
class _CachedRequest:
    """A cached request: its plan, and its answers in the representations sent so far.

    Args:
        minute: the minute of the last check that the data version is current; schedules have whole minutes.
        answers: response bodies by representation.
    """

    catalog: Catalog
    planned: PlannedQuery
    minute: int
    answers: dict[Form, bytes] = field(default_factory=dict)

    def bytes(self, body: bytes) -> int:
        """Estimate the memory of the entry; a plan is many times larger than the text of its request."""
        return 4_000 + 40 * len(body) + sum(map(len, self.answers.values()))


_TODAY = re.compile(rb"current_date|today", re.IGNORECASE)


class ReplayCache:
    """An LRU cache of plans and answers, by account and request body. Usable from several threads.

    Args:
        clock: returns the current time, with a time zone.
        unavailable: returns the datasets that are unavailable, to requests in the cache like to all others.
        max_bytes: the approximate memory limit of all entries.
    """

    def __init__(
        self,
        clock: Callable[[], datetime],
        unavailable: Callable[[], Container[str]],
        max_bytes: int = 64 * 2**20,
    ) -> None:
        self._clock = clock
        self._unavailable = unavailable
        self._max_bytes = max_bytes
        self._entries: OrderedDict[tuple[str, bytes], _CachedRequest] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def plan(self, account: str, body: bytes, catalog: Catalog) -> PlannedQuery | None:
        """Return the plan of a request, or None if none is cached for this catalog and the current data version."""
        with self._lock:
            entry = self._current(account, body, catalog)
            return None if entry is None else entry.planned

    def answer(self, account: str, body: bytes, catalog: Catalog, form: Form) -> tuple[PlannedQuery, bytes] | None:
        """Return the plan of a request and its paid answer in *form*, or None as in `plan`."""
        with self._lock:
            entry = self._current(account, body, catalog)
            return None if entry is None or form not in entry.answers else (entry.planned, entry.answers[form])

    def keep(
        self, account: str, body: bytes, catalog: Catalog, planned: PlannedQuery, form: Form, answer: bytes
    ) -> None:
        """Cache the plan and the answer of a request, if the data version is known without querying an engine."""
        now = self._clock()
        is_relative = _TODAY.search(body) is not None  # and another query tomorrow
        if is_relative or known_version(catalog.datasets[planned.dataset], now) is None:
            return
        with self._lock:
            entry = self._entries.pop((account, body), None)
            self._bytes -= 0 if entry is None else entry.bytes(body)
            if entry is None or entry.catalog is not catalog or entry.planned.release_key != planned.release_key:
                entry = _CachedRequest(catalog, planned, _minute(now))
            entry.answers[form] = answer
            self._entries[account, body] = entry
            self._bytes += entry.bytes(body)
            while self._bytes > self._max_bytes:
                self._drop(next(iter(self._entries)))

    def _current(self, account: str, body: bytes, catalog: Catalog) -> _CachedRequest | None:
        """Return a cached request if its catalog and the version of its data are the present ones, or drop it."""
        entry = self._entries.get((account, body))
        if entry is None or entry.planned.dataset in self._unavailable():
            return None
        now = self._clock()
        current = entry.catalog is catalog
        if current and _minute(now) != entry.minute:
            entry.minute = _minute(now)
            dataset = catalog.datasets[entry.planned.dataset]
            current = known_version(dataset, now) == entry.planned.data_version
        if not current:
            self._drop((account, body))
            return None
        self._entries.move_to_end((account, body))
        return entry

    def _drop(self, name: tuple[str, bytes]) -> None:
        self._bytes -= self._entries.pop(name).bytes(name[1])


def known_version(dataset: Dataset, now: datetime) -> str | None:
    """Return the version of a dataset's data if the catalog or a schedule determines it, else None."""
    match dataset.data_version:
        case str() as text:
            return text
        case Schedule() as schedule:
            return scheduled_version(schedule, now)
    return None


def _minute(now: datetime) -> int:
    return int(now.timestamp() // 60)
