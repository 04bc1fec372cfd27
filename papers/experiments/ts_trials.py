"""Trials of Top Stable and the Gumbel method: as run by the authors, as published or corrected, and ours.

Tables 2 to 4 and Figure 1 of Carvalho et al. 2020 share them. "As run" is what the authors' public code does, which
produced their numbers. "Published" is the paper's own algorithm. "Corrected" is the Gumbel method under the paper's
accounting (Durfee & Rogers 2019, Theorem 1), with the cut-off chosen in the right direction and half of delta for each
of threshold and composition. "Ours" are `TopStable` and `UnknownGumbel` as released by this package.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from discreet.accounting.convert import limit_for
from discreet.mechanisms import Request, TopStable, UnknownGumbel
from discreet.values import ExactHead
from papers import stable_baselines as baselines
from papers.experiment import trial_bits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from papers.experiment import Row, Setting
    from papers.stable_baselines import Metrics
    from papers.user_items import UserItems

EPSILONS = (0.4, 0.8, 1.0)
KS = (3, 10, 50)
TRIALS, TRIALS_EXACT = 2_000, 300

TS_RUN, TS_PUBLISHED, TS_OURS = "TS as run", "TS published", "TS ours"
GUMBEL_RUN, GUMBEL_CORRECTED, GUMBEL_OURS = "Gumbel as run", "Gumbel corrected", "Gumbel ours"
METHODS = (TS_RUN, TS_PUBLISHED, TS_OURS, GUMBEL_RUN, GUMBEL_CORRECTED, GUMBEL_OURS)
SEED_NAMES = {GUMBEL_CORRECTED: "Gumbel mended"}
"""The name in a method's seeds where it differs from the label; changing it would change published numbers."""
MADE_UP = ("ts-gowalla", "ts-brightkite", "ts-foursquare")
REAL = ("gowalla", "foursquare", "movielens-1m", "retail", "online-retail")


def tables(setting: Setting, made_up: Sequence[str], real: Sequence[str]) -> list[Row]:
    """Return cells that name tables: the paper's, made up; then real ones (the paper's if official files are given).

    A small run has the smallest table of the paper only.
    """
    if setting.smoke:
        return [{"table": "ts-foursquare", "made_up": True}]
    present = [name for name in (*made_up, *real) if setting.tables.has(name)]
    return [{"table": name, "made_up": True} for name in made_up] + [{"table": n, "made_up": False} for n in present]


def rows_of(table: UserItems, method: str, epsilon: float, k: int, trials: int, exact: Row | None, seed: int) -> Row:
    """Return one row: the mean metrics of a method.

    Args:
        table: with the counts.
        method: one of `METHODS`.
        epsilon: of the release; delta is one over the number of users.
        k: how many items are requested.
        trials: the number of trials.
        exact: a cell for `trial_bits` if our two methods are to be released by our mechanisms; None for the same
            distributions in floating point.
        seed: for numpy.
    """
    if exact is not None and method in {TS_OURS, GUMBEL_OURS}:
        found = by_mechanism(table, method, epsilon, k, trials, exact)
    else:
        found = in_floats(table, method, epsilon, k, trials, np.random.default_rng(seed))
    row: Row = {
        "table": table.name,
        "users": table.number_of_users,
        "epsilon": epsilon,
        "k": k,
        "method": method,
        "trials": trials,
    }
    columns = {"P": found.proportion, "P_run": found.proportion_run, "S": found.relative_sum}
    for name, values in columns.items():
        row |= {name: float(values.mean()), f"{name}_error": float(values.std(ddof=1) / np.sqrt(trials))}
    return row


def mechanism(method: str, epsilon: float, k: int, users: int) -> TopStable | UnknownGumbel:
    """Return our mechanism under (epsilon, 1 / users), labels only, with a cut-off chosen up to 5k."""
    exact, delta = Fraction(str(epsilon)), Fraction(1, users)
    if method == TS_OURS:
        return TopStable(k, exact, delta)
    request = Request(k, 5 * k, counts=False, optimise_cutoff=True)
    return UnknownGumbel.within_cost(limit_for(epsilon, delta), request)


def by_mechanism(table: UserItems, method: str, epsilon: float, k: int, trials: int, cell: Row) -> Metrics:
    """Return metrics of releases of our mechanism, with exact noise."""
    ours = mechanism(method, epsilon, k, table.number_of_users)
    head = ExactHead(table.head[: ours.head_limit + 1], ours.head_limit)
    chosen = np.zeros((trials, 5 * k + 1), dtype=np.bool_)
    for trial in range(trials):
        bits = trial_bits("ts", cell | {"method": method, "epsilon": epsilon, "k": k}, trial)
        chosen[trial, ours.release(head, bits).positions] = True
    return baselines.metrics_of_ranks(baselines.padded(table.head, 5 * k + 1), k, chosen)


def in_floats(table: UserItems, method: str, epsilon: float, k: int, trials: int, rng: np.random.Generator) -> Metrics:
    """Return metrics of many trials at once, with numpy's noise."""
    delta = 1 / table.number_of_users
    if method == TS_RUN:
        return _stable(table, k, baselines.stable_sizes(table.head, k, epsilon, delta, trials, rng, rule="as run"))
    if method == TS_PUBLISHED:
        return _stable(table, k, baselines.stable_sizes(table.head, k, epsilon, delta, trials, rng))
    if method == GUMBEL_RUN:
        per_round = baselines.epsilon_per_round_as_run(epsilon, k + 1, delta / 2)
        return _gumbel(table, k, per_round, (delta / 2, delta), trials, rng, right=False)
    if method == GUMBEL_CORRECTED:
        per_round = baselines.theorem1_epsilon_per_round(epsilon, k + 1, delta / 2)
        return _gumbel(table, k, per_round, (delta / 2, delta / 2), trials, rng, right=True)
    ours = mechanism(method, epsilon, k, table.number_of_users)
    if isinstance(ours, TopStable):
        scales = float(ours.threshold_noise().scale), float(ours.gap_noise().scale)
        gaps = ours.gaps(ExactHead(table.head[: k + 1], k))
        sizes = baselines.discrete_stable_sizes(gaps, ours.threshold(), *scales, trials, rng)
        return _stable(table, k, np.minimum(sizes, np.count_nonzero(table.head[:k])))
    mass = float(ours.delta)
    return _gumbel(table, k, float(ours.epsilon), (mass, mass), trials, rng, right=True)


def _stable(table: UserItems, k: int, sizes: NDArray[np.int64]) -> Metrics:
    return baselines.metrics_of_sizes(table.head, k, sizes)


def _gumbel(
    table: UserItems,
    k: int,
    epsilon: float,
    deltas: tuple[float, float],
    trials: int,
    rng: np.random.Generator,
    *,
    right: bool,
) -> Metrics:
    """Return metrics of the Gumbel method; *deltas* are those of the choice of the cut-off and of the threshold."""
    cutoffs, shares = baselines.cutoff_probabilities(table.head, k, epsilon, deltas[0], "right" if right else "as run")
    drawn = rng.choice(cutoffs, trials, p=shares)
    chosen = baselines.gumbel_sets(table.head, k, drawn, epsilon, deltas[1], rng, strict=right)
    return baselines.metrics_of_ranks(baselines.padded(table.head, 5 * k + 1), k, chosen)
