"""Measures of answers to ordinary questions, for the tests and for `python -m benchmarks ordinary`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from discreet.errors import DiscreetError, InputError
from tests.ordinary.questions import QUESTIONS
from tests.ordinary.tables import SHAPES, Ordinary, ordinary

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

LARGEST = 10
"""Precision is measured by the errors of this many items, the largest by the truth."""

MECHANISMS = ("head", "two-round", "gumbel")
"""The mechanisms with which the default is compared. The others were never the best here."""

DENSE = tuple(name for name, shape in SHAPES.items() if shape.items <= 50)
"""Tables of few items, each with many users: all of their counts are to be precise, not only many."""


@dataclass(frozen=True)
class Precision:
    """The precision of releases of one question.

    Args:
        errors: of the largest items in each run, shape (n,). An item that is not released counts with all its users.
        std_error: the mean standard error that was said.
        low, high: the mean distances of the ends of intervals from the truth.
        accurate: the number of counts within 10 %, of all runs.
    """

    errors: NDArray[np.float64]
    std_error: float
    low: float
    high: float
    accurate: int

    @property
    def error(self) -> float:
        """The root mean square error, or what was said if that is more, because few runs may be lucky."""
        return max(self.actual, self.std_error)

    @property
    def actual(self) -> float:
        """The root mean square error."""
        return float(np.sqrt(np.mean(self.errors**2)))


class Measured:
    """Tables of a folder, and answers about them, each made once."""

    def __init__(self, folder: Path) -> None:
        self.table = cache(lambda name: ordinary(name, folder))
        self.truth = cache(lambda name, question: QUESTIONS[question].truth(self.table(name)))
        self.answer = cache(self._answer)
        self.precision = cache(self._precision)

    def _answer(
        self, name: str, question: str, epsilon: float = 1.0, run: int = 0, mechanism: str | None = None
    ) -> list[tuple[float, float, float, float]]:
        """Return the value of every released label, the ends of its interval, and the truth.

        Labels without rows count 0. They have no average and no quantile, and are left out.

        Raises:
            DiscreetError: it is refused.
        """
        asked, truth = QUESTIONS[question], self.truth(name, question)
        chosen = {} if mechanism is None else {"mechanism": mechanism}
        released = asked.answer(self.table(name), epsilon, run, **chosen)
        missing = 0 if asked.measure.startswith(("COUNT", "SUM(amount)", "SUM(price)")) else None
        exact = {label: truth.get(label, missing) for label in released}
        return [
            (float(value.value), float(value.low), float(value.high), float(exact[label]))
            for label, value in released.items()
            if exact[label] is not None and value.value is not None
        ]

    def _precision(
        self, name: str, question: str, epsilon: float, mechanism: str | None = None, runs: int = 3
    ) -> Precision | None:
        """Return the precision of a mechanism, None for the default, or None if it cannot answer the question."""
        largest = sorted(self.truth(name, question).values(), reverse=True)[:LARGEST]
        errors: list[float] = []
        ends: list[tuple[float, float, float]] = []
        accurate = 0
        for run in range(runs):
            try:
                rows = self.answer(name, question, epsilon, run, mechanism)
            except InputError:
                return None
            rows = sorted(rows, key=lambda row: -row[3])
            accurate += sum(abs(value - exact) <= 0.1 * exact for value, _, _, exact in rows)
            rows = rows[: len(largest)]
            errors += [value - exact for value, _, _, exact in rows] + largest[len(rows) :]
            ends += [((high - low) / 2 / 1.96, exact - low, high - exact) for _, low, high, exact in rows]
        means = np.mean(ends, axis=0) if ends else np.zeros(3)
        return Precision(np.array(errors, dtype=np.float64), *map(float, means), accurate)

    def best(
        self, name: str, question: str, epsilon: float, mechanisms: tuple[str, ...] = MECHANISMS, runs: int = 3
    ) -> list[Precision]:
        """Return the precision of each of *mechanisms* that can answer a question."""
        rivals = (self.precision(name, question, epsilon, mechanism, runs) for mechanism in mechanisms)
        return [rival for rival in rivals if rival is not None]


def is_refused(made: Ordinary, text: str) -> str | None:
    """Return the sentence with which a statement is refused, or None if it is answered."""
    try:
        made.warehouse.sql(text)
    except DiscreetError as error:
        return str(error)
    return None
