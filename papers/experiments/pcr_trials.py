"""Trials of Private Count Release and Plume on one table, shared by the figures of Rogers 2024."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from discreet.accounting.convert import limit_for, rho_simple
from discreet.errors import InvariantViolated
from discreet.mechanisms import CountRelease, Request
from discreet.values import ExactHead
from papers.baselines import Counted, plume, published_count_release
from papers.experiment import trial_bits, trial_seed
from papers.user_items import UserItems

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from papers.experiment import Row, Setting

DELTA = Fraction(1, 10**8)
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
TARGET = 0.1
CONSTANT = 1.645
"""Counts at a threshold stay within the target with probability 90 %, in our release and in Plume's threshold alike."""
CUTOFF = 10_000
TRIALS = 10
HALF, TENTH = 0.5, 0.1

OURS, PUBLISHED = "PCR (ours)", "PCR (as published)"
FAMILIES = (OURS, PUBLISHED, "Plume 95", "Plume 99")


def thresholded(family: str) -> str:
    """Return the name of a Plume family's variant with a threshold on the released counts."""
    return f"{family}, threshold"


def tenth(family: str) -> str:
    """Return the name of the thresholded variant that spends a tenth of rho on the selection."""
    return f"{family}, threshold, tenth"


def cells(setting: Setting, made_up: str, real: Sequence[str], users: int | None = None) -> list[Row]:
    """Return a cell for each table and method family.

    Args:
        setting: of the run.
        made_up: the paper's table, perhaps with a divisor; its official file is used too if it was named.
        real: nearest real tables.
        users: how many users of a real table to keep, the first; None for all.
    """
    paper = made_up.partition("/")[0]
    tables: list[tuple[str, bool]] = [(f"{paper}/100" if setting.smoke and users is None else made_up, True)]
    if not setting.smoke:
        tables += [(name, False) for name in (paper, *real) if setting.tables.has(name)]
    return [
        {
            "table": name,
            "made_up": fake,
            "users": None if fake else users,
            "family": family,
            "trials": 2 if setting.smoke else TRIALS,
        }
        for name, fake in tables
        for family in FAMILIES
    ]


def measure(setting: Setting, cell: Row) -> list[Row]:
    """Return a row for each method of one family and each epsilon, on one table."""
    table = setting.table(cell)
    if cell["users"] is not None:
        table = first_users(table, int(cell["users"]))
    family, trials = str(cell["family"]), range(int(cell["trials"] or 0))
    epsilons = EPSILONS[1::2] if setting.smoke else EPSILONS
    if family == OURS:
        found = _ours(table, cell, epsilons, trials)
    elif family == PUBLISHED:
        found = _published(table, cell, epsilons, trials)
    else:
        found = _plume(table, cell, epsilons, trials)
    fixed = {"table": table.name, "made_up": cell["made_up"], "users": table.number_of_users}
    return [fixed | row for row in found]


def first_users(table: UserItems, users: int) -> UserItems:
    """Return the first *users* users of a table and their items."""
    items = table.items[: np.searchsorted(table.users, users)]
    return UserItems(
        f"{table.name}, first {users}", table.users[: len(items)], np.unique(items, return_inverse=True)[1]
    )


def _ours(table: UserItems, cell: Row, epsilons: Sequence[float], trials: Iterable[int]) -> list[Row]:
    head = ExactHead(table.head[: CUTOFF + 1], CUTOFF)
    request = Request(None, CUTOFF, relative_error=Fraction(1, 10))
    rows = []
    for epsilon in epsilons:
        mechanism = CountRelease.within_cost(limit_for(epsilon, DELTA), request)
        releases = []
        for trial in trials:
            outcome = mechanism.release(head, trial_bits("pcr", cell | {"epsilon": epsilon}, trial))
            if outcome.counts is None or outcome.std_errors is None:
                raise InvariantViolated("the mechanism was requested to return counts")
            releases.append(Counted(outcome.positions, outcome.counts.astype(np.float64), outcome.std_errors))
        rows.append(summary(OURS, epsilon, releases, table.head))
    return rows


def _published(table: UserItems, cell: Row, epsilons: Sequence[float], trials: Iterable[int]) -> list[Row]:
    rows = []
    for epsilon in epsilons:
        limit = rho_simple(epsilon, float(DELTA / 2)), float(DELTA / 2)
        releases = [
            published_count_release(
                table.head[: CUTOFF + 1],
                limit,
                CUTOFF,
                np.random.default_rng(trial_seed("pcr", cell | {"epsilon": epsilon}, trial)),
            )
            for trial in trials
        ]
        rows.append(summary(PUBLISHED, epsilon, releases, table.head))
    return rows


def _plume(table: UserItems, cell: Row, epsilons: Sequence[float], trials: Iterable[int]) -> list[Row]:
    family = str(cell["family"])
    limits = [(float(limit.rho), float(limit.delta)) for limit in (limit_for(e, DELTA) for e in epsilons)]
    percent = float(family.split()[1])
    found: dict[tuple[str, float], list[Counted]] = {}
    for trial in trials:
        for share in (HALF, TENTH):
            rng = np.random.default_rng(trial_seed("pcr", cell | {"share": share}, trial))
            for epsilon, release in zip(epsilons, plume(table, limits, percent, rng, share), strict=True):
                least = CONSTANT / TARGET * float(release.sigma[0]) if len(release.sigma) else 0.0
                cut = release.above(least)
                if share == TENTH:
                    found.setdefault((tenth(family), epsilon), []).append(cut)
                else:
                    found.setdefault((family, epsilon), []).append(release)
                    found.setdefault((thresholded(family), epsilon), []).append(cut)
    return [summary(method, epsilon, releases, table.counts) for (method, epsilon), releases in found.items()]


def summary(method: str, epsilon: float, releases: Sequence[Counted], truth: NDArray[np.int64]) -> Row:
    """Return one row: how much was returned, and which share of it is beyond the target relative error.

    Args:
        method: its name.
        epsilon: of the releases.
        releases: one a trial.
        truth: true counts of the items that the releases speak of.
    """
    returned = np.array([len(release.items) for release in releases])
    trues = [truth[release.items] for release in releases]
    errors = [np.abs(release.counts - true) / true for release, true in zip(releases, trues, strict=True)]
    wrong = np.array([int(np.count_nonzero(error > TARGET)) for error in errors])
    shares = wrong[returned > 0] / returned[returned > 0]
    bounds = [release.bounds for release in releases if release.bounds]
    return {
        "method": method,
        "epsilon": epsilon,
        "trials": len(releases),
        "returned": float(returned.mean()),
        "returned_sd": float(returned.std(ddof=1)),
        "beyond": float(wrong.sum() / returned.sum()) if returned.any() else None,
        "beyond_sd": float(shares.std(ddof=1)) if len(shares) > 1 else None,
        "accurate": float((returned - wrong).mean()),
        "first_bound": float(np.mean([first for first, _ in bounds])) if bounds else None,
        "second_bound": float(np.mean([second for _, second in bounds])) if bounds else None,
    }
