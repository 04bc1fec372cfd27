"""LinkedIn 2021, Figure 5: the share of analysts who exceed a budget, by days since it was refreshed."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from discreet.accounting.convert import units_of_cost
from discreet.mechanisms import UnknownGumbel
from papers.experiment import Experiment, trial_bits, trial_seed
from papers.experiments import linkedin_audiences

if TYPE_CHECKING:
    from collections.abc import Sequence

    from papers.experiment import Row, Setting

NAME = "linkedin-figure-5"
DAYS = 30
EPSILON, DELTA = Fraction(15, 100), Fraction(1, 10**10)
INFORMATION_BUDGETS = (500, 1000, 2000, 3000, 5000)
CALL_BUDGETS = (5, 10, 20, 30, 50)
BLOCKS, ANALYSTS = 10, 80

# Assumptions, chosen so that budgets of 3000 and 30 are exceeded about as rarely as in the paper.
CALLS_MEDIAN, CALLS_SPREAD, MAX_CALLS = 5.0, 1.05, 200
SESSION_MEAN = 4.0
K_SHARES = {10: 0.1, 25: 0.15, 50: 0.25, 100: 0.3, 250: 0.2}
LEAST_AUDIENCE = 0.1


def cells(setting: Setting) -> list[Row]:
    """Return a cell for each block of analysts."""
    blocks, analysts = (1, 6) if setting.smoke else (BLOCKS, ANALYSTS)
    return [{"table": "linkedin-articles", "made_up": True, "block": i, "analysts": analysts} for i in range(blocks)]


def measure(setting: Setting, cell: Row) -> list[Row]:
    """Return, for each analyst and day with queries, the units used so far and those of the worst cases."""
    table = setting.table(cell)
    rng = np.random.default_rng(trial_seed(NAME, cell))
    rows: list[Row] = []
    for analyst in range(int(cell["analysts"] or 0)):
        k = int(rng.choice(list(K_SHARES), p=list(K_SHARES.values())))
        limit = max(10 * k, 1000)
        mechanism = UnknownGumbel(k, limit, EPSILON, DELTA, counts="laplace", optimise_cutoff=True)
        worst, _ = units_of_cost(mechanism.worst_cost(), EPSILON, DELTA)
        information = calls = 0
        days = days_of_queries(rng)
        for call, day in enumerate(days):
            head = linkedin_audiences.audience(table, LEAST_AUDIENCE ** rng.random(), limit, rng)
            cost = mechanism.release(head, trial_bits(NAME, cell | {"analyst": analyst}, call)).cost
            paid, called = units_of_cost(cost, EPSILON, DELTA)
            information, calls = information + paid, calls + called
            if call + 1 == len(days) or days[call + 1] > day:
                used: Row = {"information": information, "worst_case": worst * calls, "calls": calls}
                rows.append({"analyst": f"{cell['block']}-{analyst}", "k": k, "day": day} | used)
    return rows


def days_of_queries(rng: np.random.Generator) -> list[int]:
    """Return the day of each query of an analyst, ascending: sessions of geometric size, the first on day 0."""
    calls = int(np.clip(np.rint(CALLS_MEDIAN * np.exp(CALLS_SPREAD * rng.standard_normal())), 1, MAX_CALLS))
    days: list[int] = []
    while len(days) < calls:
        days += [int(rng.integers(DAYS)) if days else 0] * int(rng.geometric(1 / SESSION_MEAN))
    return sorted(days[:calls])


def share_beyond(rows: Sequence[Row], key: str, budget: int) -> list[float]:
    """Return the share of analysts whose *key* exceeds *budget* by the end of each day."""
    analysts = {str(row["analyst"]) for row in rows}
    first: dict[str, int] = {}
    for row in rows:
        if int(row[key] or 0) > budget:
            name, day = str(row["analyst"]), int(row["day"] or 0)
            first[name] = min(day, first.get(name, DAYS))
    return [sum(day <= today for day in first.values()) / len(analysts) for today in range(DAYS)]


def draw(rows: Sequence[Row]) -> Figure:
    """Draw the information budgets on the left, dotted if the worst case were charged; call budgets on the right."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for budget in INFORMATION_BUDGETS:
        (line,) = left.plot([100 * x for x in share_beyond(rows, "information", budget)], label=f"k* = {budget}")
        left.plot([100 * x for x in share_beyond(rows, "worst_case", budget)], ":", color=line.get_color(), linewidth=1)
    for budget in CALL_BUDGETS:
        right.plot([100 * x for x in share_beyond(rows, "calls", budget)], label=f"l* = {budget}")
    for axes, title in ((left, "information budget (dotted: if the worst case were charged)"), (right, "call budget")):
        axes.set(xlabel="days since refresh", ylabel="% of analysts beyond the budget", ylim=(0, None))
        axes.set_title(title, fontsize=10)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    return figure


def describe(rows: Sequence[Row]) -> str:
    """Describe the two published shares, the first day, and what charging only returned items saves."""
    analysts = len({row["analyst"] for row in rows})
    information, worst_case = (share_beyond(rows, key, 3000) for key in ("information", "worst_case"))
    calls = share_beyond(rows, "calls", 30)
    last: dict[str, Row] = {str(row["analyst"]): row for row in rows}
    paid, would = (sum(int(row[key] or 0) for row in last.values()) for key in ("information", "worst_case"))
    return (
        f"{analysts} simulated analysts; the behaviour of LinkedIn's is not public. Assumed: calls per month are "
        f"log-normal, median {CALLS_MEDIAN:g}, spread {CALLS_SPREAD:g}; in sessions of "
        f"{SESSION_MEAN:g} calls on average, the first on day 0 and the others on any day; each analyst "
        "always requests the same k, "
        + ", ".join(f"{k} with probability {p:g}" for k, p in K_SHARES.items())
        + f"; each query about an audience of {LEAST_AUDIENCE:.0%} to 100 % of the members (log-uniform). Spread "
        "and mix were chosen to come near the two shares that the paper gives, so these shares confirm nothing: at the "
        f"end of the month {1 - information[-1]:.1%} of the analysts are within an information budget of 3000 (paper: "
        f"more than 93 %) and {1 - calls[-1]:.1%} within a call budget of 30 (paper: more than 95 %). As in the paper, "
        "queries in batches exhaust budgets on the first day "
        f"({share_beyond(rows, 'information', 500)[0]:.1%} of the analysts a budget of 500, "
        f"{share_beyond(rows, 'calls', 10)[0]:.1%} a call budget of 10). Charging only what is returned, with counts, "
        f"threshold and cut-off, costs {paid / would:.0%} of what charging the worst case would; "
        f"{worst_case[-1]:.1%} of the analysts would then be beyond 3000, not {information[-1]:.1%}. Each answer is a "
        f"release of UnkGumb at ε_per = {float(EPSILON):g}, δ = 1e-10, in the paper's units (two an item, one for the "
        "threshold if it was reached, one for the cut-off); as in the paper, use is tracked but no query is refused."
    )


EXPERIMENT = Experiment(
    NAME,
    "linkedin",
    "Figure 5: analysts beyond their budget",
    "Rogers et al. 2021, section 8.1, Figure 5",
    cells,
    measure,
    draw,
    describe,
)
