"""Ordinary tables and questions in more runs than the tests have time for (tests/ordinary)."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.timing import table
from tests.ordinary.measured import MECHANISMS, Measured
from tests.ordinary.questions import QUESTIONS
from tests.ordinary.tables import SHAPES

RUNS = 10


def run() -> list[str]:
    """Coverage of all answers, and the default beside the best mechanism: error of the ten largest, accurate counts.

    The columns are the table, the share of all numbers within their 95 % intervals, epsilon, and of the release of all
    items: the root mean square error of the ten largest, or what was said if that is more, that of the best other
    mechanism, the root mean square error alone, that of the best, the mean reach of intervals above the truth, that of
    the best, counts within 10 % for each run, and those of the best.
    """
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        measured = Measured(Path(folder))
        for name in SHAPES:
            for epsilon in (1.0, 4.0):
                covered = [
                    low <= exact <= high
                    for question in QUESTIONS
                    for trial in range(RUNS)
                    for _, low, high, exact in measured.answer(name, question, epsilon, trial)
                ]
                question = "table: users by item"
                default = measured.precision(name, question, epsilon, runs=RUNS)
                rivals = measured.best(name, question, epsilon, (*MECHANISMS, "pcr"), runs=RUNS)
                if default is not None:
                    rows.append(
                        [
                            name,
                            f"{sum(covered) / len(covered):.3f}",
                            f"{epsilon:g}",
                            f"{default.error:.1f}",
                            f"{min(rival.error for rival in rivals):.1f}",
                            f"{default.actual:.1f}",
                            f"{min(rival.actual for rival in rivals):.1f}",
                            f"{default.high:.1f}",
                            f"{min(rival.high for rival in rivals):.1f}",
                            f"{default.accurate / RUNS:.1f}",
                            f"{max(rival.accurate for rival in rivals) / RUNS:.1f}",
                        ]
                    )
    return table(
        ["table", "covered", "epsilon", "error", "best", "actual", "best", "above", "best", "accurate", "best"], rows
    )
