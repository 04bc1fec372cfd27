"""Formulas and quotations of LinkedIn 2021, sections 8.3 and 8.4, as they are printed.

`discreet.accounting.advice` has the exact probabilities that the first two of them approximate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from discreet.accounting.bounds import linkedin_system

if TYPE_CHECKING:
    from discreet.accounting.bounds import SystemBound


def averaging_published(epsilon_per: float, answers: int, tolerance: float = 0.5) -> float:
    """Return the probability that the mean of independent noisy answers is within *tolerance* (8.3.1), as published.

    The paper takes the mean of Laplace noise for normal; `discreet.accounting.advice.averaging` is exact.

    Args:
        epsilon_per: above 0.
        answers: how many, on data that did not change.
        tolerance: in counts, above 0; at 1/2 rounding the mean reveals the count.
    """
    return math.erf(tolerance * epsilon_per * math.sqrt(answers) / 4)


def unique_count(epsilon_per: float, delta_per: float, calls: int) -> float:
    """Return the published bound on the chance that a call shows an item of one user (8.3.3): l* delta e^-epsilon.

    The paper takes a histogram of single-user items *only* for the worst case, where the count at the cut is 1 too. If
    fewer items are stored than the cut-off has places, that count is 0 and the factor e^-epsilon is lost: use
    calls * delta_per for a bound in all cases.

    Args:
        epsilon_per: above 0.
        delta_per: of one call, at least 0 and below 1.
        calls: l*, at least 0.
    """
    return min(calls * delta_per * math.exp(-epsilon_per), 1.0)


@dataclass(frozen=True, slots=True)
class Deployment:
    """A row of the paper's Table 2: a deployed system's parameters as published at the time.

    Args:
        name: of the system.
        local: True if noise is added on the users' devices (a stronger model).
        epsilon: of one report.
        reports_per_day: about one user, or None where nothing was published.
    """

    name: str
    local: bool
    epsilon: Fraction
    reports_per_day: int | None

    def epsilon_of(self, days: int) -> Fraction | None:
        """Return epsilon of that many days by basic composition; delta is 0 wherever it is known."""
        return None if self.reports_per_day is None else self.epsilon * self.reports_per_day * days


DEPLOYMENTS = (
    Deployment("Google - RAPPOR, Chrome homepages", True, Fraction("0.534"), 48),
    Deployment("Apple - Safari domains", True, Fraction(4), 2),
    Deployment("Apple - emojis", True, Fraction(4), 1),
    Deployment("Microsoft - telemetry collection, per app", True, Fraction("0.686"), 4),
    Deployment("Google - mobility reports", False, Fraction("0.22"), 12),
    Deployment("Microsoft - assistive AI", False, Fraction(4), None),
)
"""Table 2, without its last row, which is `linkedin_deployment`."""


def linkedin_deployment() -> SystemBound:
    """Return what the paper's own parameters guarantee per month: (34.9, 7e-9) in section 8.4 (Table 2, last row)."""
    return linkedin_system(3000, 30, 0.15, Fraction(1, 10**10), Fraction(1, 10**9))
