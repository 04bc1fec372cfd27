"""Pictures of what privacy costs: for advice, and for the page about choosing parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from discreet.accounting import bounds
from discreet.accounting.adaptive import adaptive_epsilon
from discreet.release.result import write_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from discreet.accounting.advice import Advice

RESOLUTION = 32
"""Grid of the adaptive optimum in pictures: an upper bound at any resolution, here within the width of a line."""

BOUNDS: dict[str, Callable[[int, float, float], float]] = {
    "basic": lambda k, epsilon, _: k * epsilon,
    "advanced (DR19, Theorem 3)": lambda k, epsilon, delta: bounds.advanced([epsilon] * k, delta),
    "optimal for epsilon-DP (KOV)": bounds.optimal_dp,
    "bounded range (DR19, Lemma 4.4)": lambda k, epsilon, delta: bounds.bounded_range([epsilon] * k, delta),
    "LinkedIn, Lemma 2.1": bounds.linkedin,
    "zCDP, tight (what we charge by)": lambda k, epsilon, delta: bounds.zcdp_tight([epsilon] * k, delta),
    "adaptive optimum": lambda k, epsilon, delta: adaptive_epsilon(k, epsilon, delta, RESOLUTION),
    "optimum if fixed in advance (DDR20)": bounds.nonadaptive_br,
}
"""Epsilon of k bounded-range steps by every bound, from (k, epsilon of a step, delta)."""


def epsilon_curves(axes: Axes, curves: Mapping[str, Sequence[float]], steps: Sequence[int]) -> None:
    """Draw epsilon against the information budget, a curve for each bound.

    Args:
        axes: where to draw.
        curves: for each bound, epsilon at each of *steps*.
    """
    top = 2.0 * max(curves["LinkedIn, Lemma 2.1"])
    for name, values in curves.items():
        axes.plot(steps, values, label=name, linewidth=1.6, linestyle="--" if "optim" in name else "-")
    axes.set_ylim(0, top)
    axes.set_xlim(0, max(steps))
    axes.set_xlabel("information budget k* (steps)")
    axes.set_ylabel("epsilon")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))


def draw_advice(advice: Advice, path: Path, progress: Callable[[float], None] | None = None) -> None:
    """Draw what the advised epsilon_per costs, up to the advised information budget and a little beyond.

    Args:
        progress: called with the share of the curves that is done.

    Raises:
        InputError: *path* cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    epsilon, delta = float(advice.epsilon_per), float(advice.calls * advice.delta_per)
    most = min(advice.information + advice.information // 5 + 2, bounds.MOST_STEPS)
    steps = sorted({max(1, round(most * (n / 12) ** 2)) for n in range(1, 13)})
    curves: dict[str, list[float]] = {}
    for name, bound in BOUNDS.items():
        curves[name] = []
        for k in steps:
            curves[name].append(bound(k, epsilon, delta))
            if progress is not None:
                progress((len(curves) - 1 + len(curves[name]) / len(steps)) / len(BOUNDS))
    figure = Figure(figsize=(9, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    epsilon_curves(axes, curves, steps)
    axes.axvline(advice.information, color="#22303c", linewidth=1, linestyle=":")
    axes.set_title(
        f"steps of epsilon {epsilon:g}, delta = {delta:.2g}; advised: {advice.information:,} steps",
        loc="left",
        fontsize=10,
    )
    write_whole(path, lambda part: figure.savefig(part, dpi=120))
