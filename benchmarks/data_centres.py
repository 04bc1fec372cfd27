"""Spending of one budget by several data centres: with eventual consistency, and with shares."""

from __future__ import annotations

import itertools
import random

from benchmarks.timing import table
from discreet.accounting.bounds import linkedin_system
from discreet.budget.model import LINKEDIN, LINKEDIN_CONVERSION, NOTHING, Amount
from discreet.budget.sharing.escrow import ShareRequest, first_grant, granted

TOTAL = LINKEDIN.information
COST = 30  # cost of a query: a hundred of them fit
EVERY = 16  # queries between two rounds of exchange
QUESTIONS = 2_000
SEEDS = 50
LINKS = {"always up": 0.0, "each down half of the time": 0.5, "down": 1.0}
CENTRES = (2, 3, 5)

_WHOLE, _ONE = Amount(TOTAL), Amount(COST)


def run() -> list[str]:
    """Total spending of data centres with one budget: eventual consistency, and shares."""
    rows = []
    for centres, (links, down) in itertools.product(CENTRES, LINKS.items()):
        eventual, shares = (
            [_spent(kind, centres, down, seed) for seed in range(SEEDS)] for kind in (_Eventual, _Shares)
        )
        rows.append(
            [
                str(centres),
                links,
                f"{sum(eventual) / SEEDS / TOTAL:.2f}",
                f"{max(eventual) / TOTAL:.2f}",
                f"{_epsilon(max(eventual)):.1f}",
                f"{sum(shares) / SEEDS / TOTAL:.2f}",
                f"{max(shares) / TOTAL:.2f}",
            ]
        )
    heads = [
        "data centres",
        "links",
        "eventual: spent / limit",
        "at most",
        "epsilon",
        "shares: spent / limit",
        "at most",
    ]
    return [
        f"{TOTAL:,} units, {COST} a question; data centres tell each other every {EVERY} questions; {SEEDS} runs;",
        f"epsilon of the worst run by the paper's Theorem 2; what was promised is {_epsilon(TOTAL):.1f}",
        *table(heads, rows),
    ]


class _Eventual:
    """Each data centre checks the spending it knows of, exchanged when connected (Rogers et al. 2021, section 4.2)."""

    def __init__(self, centres: int) -> None:
        self.known = [[0] * centres for _ in range(centres)]

    def spend(self, centre: int) -> bool:
        known = self.known[centre]
        fits = sum(known) + COST <= TOTAL
        known[centre] += COST if fits else 0
        return fits

    def meet(self, one: int, other: int) -> None:
        for centre, (mine, theirs) in enumerate(zip(self.known[one], self.known[other], strict=True)):
            self.known[one][centre] = self.known[other][centre] = max(mine, theirs)


class _Shares:
    """Each data centre checks its own share, and requests more from the other ones when connected."""

    def __init__(self, centres: int) -> None:
        first = first_grant(_WHOLE, _WHOLE, centres)
        self.left = [_WHOLE, *[first] * (centres - 1)]
        for gone in self.left[1:]:
            self.left[0] -= gone
        self.need = [NOTHING] * centres

    def spend(self, centre: int) -> bool:
        fits = _ONE.within(self.left[centre])
        if fits:
            self.left[centre] -= _ONE
        self.need[centre] = NOTHING if fits else _ONE
        return fits

    def meet(self, one: int, other: int) -> None:
        for recipient, donor in ((one, other), (other, one)):
            moved = granted(
                ShareRequest("a", self.left[recipient], self.need[recipient]),
                self.left[donor],
                _WHOLE,
                self.need[donor],
            )
            self.left[recipient], self.left[donor] = self.left[recipient] + moved, self.left[donor] - moved


def _spent(kind: type[_Eventual | _Shares], centres: int, down: float, seed: int) -> int:
    chance, budgets, spent = random.Random(seed), kind(centres), 0  # noqa: S311 - not a secret
    for n in range(QUESTIONS):
        spent += COST if budgets.spend(chance.randrange(centres)) else 0
        if n % EVERY == EVERY - 1:
            for one, other in itertools.combinations(range(centres), 2):
                if chance.random() >= down:
                    budgets.meet(one, other)
    return spent


def _epsilon(units: int) -> float:
    calls = LINKEDIN.calls * units // LINKEDIN.information
    return linkedin_system(units, calls, float(LINKEDIN.epsilon_per), LINKEDIN.delta_per, LINKEDIN_CONVERSION).epsilon
