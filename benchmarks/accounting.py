"""Benchmark of the accounting functions."""

from __future__ import annotations

from fractions import Fraction

from benchmarks.timing import in_turns, table
from discreet.accounting.adaptive import adaptive_epsilon
from discreet.accounting.bounds import nonadaptive_br, optimal_dp
from discreet.accounting.convert import delta_tight, epsilon_tight, rho_tight
from papers.unit_settings import information_for, settings_for

DELTA = Fraction(1, 10**9)


def run() -> list[str]:
    """Time of one call of each function, in one process (medians)."""
    calls = [
        ("epsilon from rho", "2 ms", 51, lambda: epsilon_tight(8.4375, 1e-9)),
        ("rho from epsilon", "2 ms", 51, lambda: rho_tight(1.0, 1e-9)),
        ("delta from rho and epsilon", "2 ms", 51, lambda: delta_tight(8.4375, 30.0)),
        ("epsilon_per from a promise", "50 ms", 51, lambda: settings_for(8.0, DELTA, 1_000_000, 30)),
        ("information budget from a promise", "50 ms", 51, lambda: information_for(8.0, DELTA, Fraction(3, 20), 30)),
        ("optimal composition of 1,000 epsilon-DP steps", "1 s", 11, lambda: optimal_dp(1_000, 0.1, 1e-9)),
        ("optimum for 3,000 bounded-range steps in advance", "", 5, lambda: nonadaptive_br(3_000, 0.15, 1e-9)),
        ("optimum for 3,000 adaptive bounded-range steps", "10 s", 1, lambda: adaptive_epsilon(3_000, 0.15, 1e-9)),
    ]
    rows = []
    for name, target, rounds, call in calls:
        (seconds,) = in_turns([call], rounds)
        rows.append([name, f"{1e3 * seconds:.2f} ms" if seconds < 0.1 else f"{seconds:.2f} s", target])
    return table(["call", "median", "target"], rows)
