"""LinkedIn 2021, section 8.3: the attacks from which the paper derives its parameters."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from discreet.accounting.advice import averaging, differencing
from discreet.mechanisms import UnknownGumbel
from discreet.noise import DiscreteLaplace
from discreet.values import ExactHead
from papers.experiment import Experiment, trial_bits
from papers.linkedin_published import averaging_published, unique_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from papers.experiment import Row, Setting

NAME = "linkedin-section-8-3"
EPSILON = 0.15
EPSILONS = (0.05, 0.1, EPSILON, 0.2, 0.3, 0.4)
DAYS = 30
CALLS, DELTA = 30, 1e-10
SEEN_DELTA = Fraction(1, 20)
"""A delta large enough that a simulation observes events of probability delta."""
AVERAGING, CHANCE, ITEMS, OVERLAP, INFORMATION, UNIQUE, SEEN = (
    "an average of 30 answers reveals the count (8.3.1)",
    "one noisy count is within 1/2 (8.3.2)",
    "most items k, 1/p² (8.3.2)",
    "precise counts that two results of k = 738 share (8.3.2)",
    "information budget 4k + 2 (8.3.2)",
    "single users' items in a month: one in (8.3.3)",
    "a single user's item is shown, one call of δ = 0.05",
)
PUBLISHED = {AVERAGING: 0.11, CHANCE: 0.0368, ITEMS: 738.0, OVERLAP: 1.0, INFORMATION: 3000.0, UNIQUE: 4e8}


def cells(setting: Setting) -> list[Row]:
    """Return cells for averaging at several epsilons, and for the other numbers at the paper's epsilon."""
    trials = 400 if setting.smoke else 20_000
    found: list[Row] = [{"number": AVERAGING, "epsilon_per": epsilon, "trials": trials} for epsilon in EPSILONS]
    others = {CHANCE: 50 * trials, ITEMS: 0, OVERLAP: trials // 10, INFORMATION: 0, UNIQUE: 0, SEEN: trials}
    return found + [{"number": number, "epsilon_per": EPSILON, "trials": times} for number, times in others.items()]


def measure(_: Setting, cell: Row) -> list[Row]:
    """Return the published number, its formula, the exact value, and a simulation with the noise of a release."""
    number, epsilon = str(cell["number"]), float(cell["epsilon_per"] or 0)
    attack = differencing(epsilon)
    formula, exact = {
        AVERAGING: (averaging_published(epsilon, DAYS), averaging(epsilon, DAYS)),
        CHANCE: (1 - math.exp(-epsilon / 4), attack.chance),
        ITEMS: (attack.chance**-2, float(attack.items)),
        OVERLAP: (attack.chance**2 * attack.items, attack.chance**2 * attack.items),
        INFORMATION: (4 * attack.chance**-2 + 2, float(attack.information)),
        UNIQUE: (1 / unique_count(epsilon, DELTA, CALLS), 1 / (CALLS * DELTA)),
        SEEN: (unique_count(epsilon, float(SEEN_DELTA), 1), float(SEEN_DELTA / (1 + SEEN_DELTA))),
    }[number]
    gaussian = averaging(epsilon, DAYS, noise="gaussian") if number == AVERAGING else None
    published = PUBLISHED.get(number) if epsilon == EPSILON else None
    result: Row = {"published": published, "formula": formula, "exact": exact, "gaussian": gaussian}
    return [cell | result | {"simulated": simulate(cell) if cell["trials"] else None}]


def simulate(cell: Row) -> float:
    """Return a cell's number as simulated with integer noise; a mean halfway between integers is half a success."""
    trials, number = int(cell["trials"] or 0), cell["number"]
    epsilon = Fraction(str(cell["epsilon_per"]))
    if number == SEEN:
        return _shown(epsilon, cell, trials)
    answers = {AVERAGING: DAYS, CHANCE: 1, OVERLAP: 2 * differencing(float(epsilon)).items}[str(number)]
    noise = DiscreteLaplace(2 / epsilon).draw(trial_bits(NAME, cell, 0), "noise", trials * answers)
    if number == OVERLAP:
        precise = noise.reshape(trials, 2, -1) == 0
        return float(np.mean(np.sum(precise[:, 0] & precise[:, 1], axis=1)))
    sums = 2 * np.abs(noise.reshape(trials, answers).sum(axis=1))
    return float(np.mean((sums < answers) + 0.5 * (sums == answers)))


def _shown(epsilon: Fraction, cell: Row, trials: int) -> float:
    """Return how often UnkGumb shows an item of a table with as many single-user items as the head holds."""
    mechanism = UnknownGumbel(10, 100, epsilon, SEEN_DELTA, counts=None)
    head = ExactHead(np.ones(100, dtype=np.int64), 100)
    return float(
        np.mean([len(mechanism.release(head, trial_bits(NAME, cell, i)).positions) > 0 for i in range(trials)])
    )


def draw(rows: Sequence[Row]) -> Figure:
    """Draw averaging against epsilon_per on the left, precise counts shared by two results against k on the right."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    own = [row for row in rows if row["number"] == AVERAGING]
    x = [float(row["epsilon_per"] or 0) for row in own]
    lines = (("formula", "normal approximation (paper)", "--"), ("exact", "exact, Laplace", "-"))
    for key, label, line in (*lines, ("gaussian", "exact, Gaussian", "-."), ("simulated", "integer noise", "k.")):
        left.plot(x, [float(row[key] or 0) for row in own], line, label=label)
    left.axvline(EPSILON, color="grey", linewidth=0.8)
    left.set(
        xlabel="ε_per", ylabel="probability", title=f"the mean of {DAYS} answers reveals the count", ylim=(0, None)
    )
    items = np.arange(1, 2001)
    for epsilon in (0.1, EPSILON, 0.2):
        right.plot(items, differencing(epsilon).chance ** 2 * items, label=f"ε_per = {epsilon:g}")
    right.axhline(1, color="grey", linewidth=0.8)
    right.set(xlabel="k", ylabel="expected number", title="precise counts that two results share")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    return figure


def describe(rows: Sequence[Row]) -> str:
    """Describe the numbers at the paper's epsilon_per, and in which direction they are off."""
    own = {str(row["number"]): row for row in rows if row["epsilon_per"] == EPSILON}
    lines = [f"| at ε_per = {EPSILON} | paper | formula | exact | simulated |", "| --- |" + " ---: |" * 4]
    for number, row in own.items():
        values = (row[key] for key in ("published", "formula", "exact", "simulated"))
        lines.append(f"| {number} | {' | '.join('' if v is None else f'{v:,.4g}' for v in values)} |")
    off = max(abs(float(r["published"] or 0) / float(r["formula"] or 1) - 1) for r in own.values() if r["published"])
    mean, unique, seen = own[AVERAGING], own[UNIQUE], own[SEEN]
    return (
        "\n".join(lines) + "\n\n"
        f"The paper's rounded numbers are within {off:.0%} of its formulas. "
        "Its normal approximation of the averaging attack is slightly optimistic "
        f"({mean['formula']:.4f} for {mean['exact']:.4f}); with Gaussian counts at the same cost the attack succeeds "
        f"more often ({mean['gaussian']:.4f}), because their noise is smaller. Integer noise is 0 "
        f"about as often as continuous noise is within 1/2 ({own[CHANCE]['simulated']:.4f} simulated). The bound "
        "l* δ e^(−ε) on showing an item of a single user assumes a table full of such items as the worst case; if they "
        "all fit into the head, the count at the cut is 0 and the factor e^(−ε) is lost: "
        f"one in {unique['exact']:,.0f} instead of {unique['formula']:,.0f}. The last line shows it at a δ large "
        f"enough to observe: {seen['simulated']:.4f} of the releases, where δ e^(−ε) is {seen['formula']:.4f} and "
        f"δ/(1 + δ), the exact value, {seen['exact']:.4f}."
    )


EXPERIMENT = Experiment(
    NAME,
    "linkedin",
    "Section 8.3: parameters from attacks",
    "Rogers et al. 2021, section 8.3",
    cells,
    measure,
    draw,
    describe,
)
