"""The door for analysts: a catalog, its engines, and questions in SQL, JSON or Python."""

from __future__ import annotations

import datetime
import os
import threading
import time
import warnings
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Self

from discreet.catalog.check import misfits
from discreet.catalog.connect import open_dataset
from discreet.catalog.domain import known_domain
from discreet.catalog.load import load_catalog
from discreet.catalog.model import Catalog
from discreet.catalog.version import current_version
from discreet.errors import EngineError, InputError
from discreet.noise import SystemBits
from discreet.query.plan import make_plan
from discreet.query.resolve import items_of, resolve
from discreet.query.select import Select, from_dict
from discreet.query.sql import parse_select
from discreet.question import Kind
from discreet.release import NoiseKey, Release, answer
from discreet.values import exact

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from types import TracebackType

    import pyarrow as pa

    from discreet.budget import Budget
    from discreet.engines.base import Engine
    from discreet.mechanisms import NoiseName
    from discreet.query.model import MechanismChoice
    from discreet.query.plan import Plan
    from discreet.question import HeadRequest
    from discreet.values import ExactHead


def connect(catalog: str | Path | Catalog) -> Warehouse:
    """Ask the datasets of a catalog.

    Args:
        catalog: a TOML file (docs/catalog.md), or what was read from one. Engines are connected to when they are asked.

    Raises:
        InputError: the catalog cannot be used; all mistakes are listed.
    """
    return Warehouse(catalog if isinstance(catalog, Catalog) else load_catalog(catalog))


class Warehouse:
    """Datasets that a catalog declares. Made by `connect`; usable from several threads.

    Args:
        catalog: what may be asked.
        clock: the time with its zone, for data versions on a schedule.
        environment: the variables in which passwords of engines are.
    """

    def __init__(
        self,
        catalog: Catalog,
        clock: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self.catalog = catalog
        self._clock = clock
        self._environment = environment
        self._engines: dict[str, Engine] = {}
        self._domains: dict[tuple[str, tuple[str, ...], str | None], pa.Table | None] = {}
        self._lock = threading.Lock()

    def query(
        self,
        question: str | Mapping[str, Any] | Select,
        *,
        epsilon: float = 1.0,
        delta: float | str | Fraction | None = None,
        relative_error: float | str | Fraction = Fraction(1, 10),
        counts: bool = True,
        mechanism: MechanismChoice | None = None,
        noise: NoiseName | None = None,
        head_limit: int | None = None,
        budget: Budget | None = None,
        key: bytes | None = None,
        force: bool = False,
        progress: Callable[[float], None] | None = None,
    ) -> Release:
        """Private counts, sums or averages.

        Args:
            question: a SELECT, see `discreet.query.sql`; or its JSON form as a mapping, or `discreet.Select`.
                With LIMIT k, a top k; without, as many accurate counts as can be had; without GROUP BY, one total.
            epsilon: at least 1e-6; above 100 only if forced.
            delta: at least 1e-20; far below one over the number of users. Text such as "1e-8" is taken exactly. By
                default 1e-8, or a hundredth of the budget's if there is one.
            relative_error: what most counts should stay within where as many as can be had are asked for.
            counts: False for labels only.
            mechanism: by name; by default what fits the catalog.
            noise: "gaussian" or "laplace"; by default the one with the smaller standard error.
            head_limit: how many items to read from the engine, at least k.
            budget: a budget to draw from, pay what you get; without one the guarantee is this question's own.
            key: a secret of 32 bytes or more for consistent noise: the same question about the same version of the
                data gets the same answer, whatever the engine. The catalog must say the data's version.
            force: True to allow epsilon above 100.
            progress: called with the share of the counting that is done; whatever it raises stops the engine.

        Raises:
            InputError: something in the question is not allowed; the message says what is.
            BudgetExceeded: the budget cannot cover the worst case; nothing was read.
            EngineError: the engine failed; nothing was charged.
            InexactHead: the engine's answer is not proven exact; nothing was charged.
        """
        start = time.perf_counter()
        select = _read(question)
        name = self.catalog.find(select.dataset)
        engine = self.engine(name)
        plan = self.plan(
            select,
            epsilon=epsilon,
            delta=delta,
            relative_error=relative_error,
            counts=counts,
            mechanism=mechanism,
            noise=noise,
            head_limit=head_limit,
            budget=budget,
            force=force,
        )
        for note in plan.notes:
            warnings.warn(note, stacklevel=2)
        if key is None:
            release = answer(plan, engine, budget, SystemBits(), progress=progress)
            return release.timed(time.perf_counter() - start)
        version = self.data_version(name)
        if version is None:
            raise InputError(f"a key needs a data version, and the catalog gives {name!r} none")
        # An edited view is other data; where a table is, and in which engine, is not part of what it is.
        view = self.catalog.datasets[name].view
        bits = NoiseKey(key, version).bits(plan, name if view is None else f"{name}\n{view}")
        steady = _Steady(engine, lambda: self.data_version(name) == version)
        release = answer(plan, steady, budget, bits, computational=True, progress=progress)
        return release.timed(time.perf_counter() - start)

    def plan(
        self,
        question: str | Mapping[str, Any] | Select,
        *,
        epsilon: float = 1.0,
        delta: float | str | Fraction | None = None,
        relative_error: float | str | Fraction = Fraction(1, 10),
        counts: bool = True,
        mechanism: MechanismChoice | None = None,
        noise: NoiseName | None = None,
        head_limit: int | None = None,
        budget: Budget | None = None,
        force: bool = False,
    ) -> Plan:
        """How a question would be answered and what it could cost; no row is read. Parameters as in `query`.

        Raises:
            InputError: something in the question is not allowed; the message says what is.
            EngineError: the engine failed when it was asked for its columns, or for the items of a listed domain.
        """
        select = _read(question)
        name = self.catalog.find(select.dataset)
        dataset = self.catalog.datasets[name]
        if delta is None:
            delta = "1e-8" if budget is None else budget.delta / 100
        query = resolve(
            select,
            dataset,
            epsilon=epsilon,
            delta=exact(delta, "delta"),
            scales=self._scales(name, select),
            domain=self._domain(name, select),
            head_limit=head_limit,
            mechanism=mechanism,
            noise=noise,
            relative_error=exact(relative_error, "the relative error"),
            counts=counts,
        )
        return make_plan(query, shared_budget=budget is not None, force=force)

    def data_version(self, dataset: str) -> str | None:
        """The version of a dataset's data now, or None if nobody says it.

        Raises:
            InputError: there is no such dataset, or the owner's statement does not return a version.
            EngineError: the engine failed.
        """
        name = self.catalog.find(dataset)
        return current_version(self.catalog.datasets[name], self.engine(name), self._clock())

    def engine(self, dataset: str) -> Engine:
        """The engine of a dataset, connected to once.

        Raises:
            InputError: there is no such dataset, or its table is not what the catalog says.
            EngineError: the engine cannot be reached.
        """
        name = self.catalog.find(dataset)
        with self._lock:
            if name not in self._engines:
                self._engines[name] = self._opened(name)
            return self._engines[name]

    def close(self) -> None:
        """Give up all connections."""
        with self._lock:
            while self._engines:
                self._engines.popitem()[1].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _opened(self, name: str) -> Engine:
        opened = open_dataset(self.catalog, name, self._environment)
        try:
            wrong = misfits(self.catalog.datasets[name], opened.columns())
        except BaseException:
            opened.close()
            raise
        if wrong:
            opened.close()
            # What is wrong may name columns that analysts are not to know of.
            raise InputError(f"the dataset {name!r} cannot be asked now: its owner should run discreet catalog check")
        return opened

    def _scales(self, name: str, select: Select) -> dict[str, int]:
        """Digits behind the point of the decimal columns that may be summed, where one is."""
        if select.measure.kind not in {"sum", "average"}:
            return {}
        dataset = self.catalog.datasets[name]
        decimal = [column for column in dataset.summable if dataset.columns[column].kind is Kind.DECIMAL]
        return {column: self.engine(name).scale(column) for column in decimal}

    def _domain(self, name: str, select: Select) -> pa.Table | None:
        """All items there can be, where the catalog lists those of every item column."""
        dataset = self.catalog.datasets[name]
        items = items_of(select, dataset)
        if not items or any(dataset.columns[item].domain is None for item in items):
            return None
        found = (name, items, self.data_version(name))
        if found not in self._domains or found[2] is None:
            self._domains[found] = known_domain(dataset, items, self.engine(name))
        return self._domains[found]


def _read(question: str | Mapping[str, Any] | Select) -> Select:
    match question:
        case str():
            return parse_select(question)
        case Select():
            return question
        case dict():
            return from_dict(question)
    raise InputError("a question is a SELECT as text, its JSON form as a dictionary, or a discreet.Select")


class _Steady:
    """An engine whose head is refused if the data got another version while it was counted.

    Otherwise equal noise could be put on different data, which would show the difference.
    """

    def __init__(self, engine: Engine, steady: Callable[[], bool]) -> None:
        self._engine = engine
        self._steady = steady

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the engine has
        return getattr(self._engine, name)

    def head(
        self, request: HeadRequest, *, seed: bytes = b"", progress: Callable[[float], None] | None = None
    ) -> ExactHead:
        head = self._engine.head(request, seed=seed, progress=progress)
        if not self._steady():
            raise EngineError("the data got a new version while it was counted; ask again")
        return head
