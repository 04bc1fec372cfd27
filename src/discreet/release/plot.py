"""Plot releases as bars with error bars, and bounds on epsilon as curves."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from discreet.accounting import bounds
from discreet.accounting.adaptive import adaptive_epsilon
from discreet.errors import InputError
from discreet.release.files import require, write_atomically
from discreet.release.tables import shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from discreet.accounting.advice import Advice

_INK = "#22303c"
_BAR = "#4c8dae"
_MAX_LABEL_LENGTH = 44
MAX_BARS = 1_000
_SVG_WIDTH = 180


def plot_bars(
    labels: Sequence[str],
    values: NDArray[np.float64],
    low: NDArray[np.float64],
    high: NDArray[np.float64],
    path: str | Path | None,
    *,
    title: str,
    axis_label: str,
) -> Any:  # noqa: ANN401 - a Figure
    """Return a figure with a bar and interval for each label, the first on top; with *path*, also write it.

    Args:
        values: lengths of the bars, shape (n,).
        low: lower ends of the intervals, shape (n,).
        high: upper ends, shape (n,).
        path: the file to write; its ending chooses the format (png, svg, pdf).

    Raises:
        InputError: matplotlib is missing, or *path* cannot be written.
    """
    n = len(labels)
    figure, axes = _figure(path, 1.2 + 0.28 * max(n, 3))
    places = np.arange(n)[::-1]
    errors = np.maximum(np.stack([values - low, high - values]), 0)  # intervals begin at 0, below which a value may be
    axes.barh(places, values, color=_BAR, height=0.72)
    # Without caps: those of a narrow interval would run together into a block that looks like a mark of its own.
    axes.errorbar(values, places, xerr=errors, fmt="none", ecolor=_INK, elinewidth=1.6)
    # matplotlib would parse text between dollar signs as a formula.
    texts = [shortened(text, _MAX_LABEL_LENGTH).replace("$", r"\$") for text in labels]
    axes.set_yticks(places, texts, color=_INK)
    axes.set_ylim(-0.6, max(n, 1) - 0.4)
    axes.set_xlabel(axis_label, color=_INK)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return _finished(figure, axes, title, path)


def plot_line(
    times: NDArray[np.datetime64],
    values: NDArray[np.float64],
    low: NDArray[np.float64],
    high: NDArray[np.float64],
    path: str | Path | None,
    *,
    title: str,
    axis_label: str,
    apart: int | None,
    incomplete: tuple[int, int] = (0, 0),
) -> Any:  # noqa: ANN401 - a Figure
    """Return a figure with a line in the order of time and a band of intervals; with *path*, also write it.

    Args:
        times: of any unit and order, shape (n,).
        values: shape (n,), as *low* and *high*, the ends of the intervals.
        path: as in `plot_bars`.
        apart: units between two neighbouring times; where more are between two, the line has a gap. None for no gaps.
        incomplete: the numbers of first and of last times of which rows of a part, or none, were counted: hatched.

    Raises:
        InputError: as `plot_bars`.
    """
    figure, axes = _figure(path, 4)
    order = np.argsort(times, kind="stable")
    steps = np.diff(times[order].astype(np.int64))
    ends = np.flatnonzero(steps > (steps.max(initial=0) if apart is None else apart)) + 1
    for part in np.split(order, ends):
        moments = times[part].astype("M8[us]")
        axes.fill_between(moments, low[part], high[part], color=_BAR, alpha=0.3, linewidth=0)
        axes.plot(moments, values[part], color=_INK, linewidth=1.4, marker="o", markersize=3)
    for cut, inwards in zip(incomplete, (order, order[::-1]), strict=True):
        if cut:
            moments = times[inwards].astype("M8[us]")
            middle = moments[cut - 1] + (moments[min(cut, len(moments) - 1)] - moments[cut - 1]) // 2
            axes.axvspan(moments[0], middle, fill=False, edgecolor=_INK, alpha=0.3, hatch="//")
    if any(incomplete):
        title += "; hatched: incomplete"
    axes.set_ylim(bottom=min(0, *low, *values) if len(values) else 0)
    axes.set_ylabel(axis_label, color=_INK)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.spines[["top", "right"]].set_visible(False)
    for text in axes.get_xticklabels():
        text.set_rotation(30)
    return _finished(figure, axes, title.replace("dark lines", "band"), path)


def _figure(path: str | Path | None, height: float) -> tuple[Any, Any]:
    """Return a figure that notebooks show, also those that did not load pyplot, and its axes."""
    require("matplotlib", "plotting")
    if path is not None:
        check_ending(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    class Picture(Figure):
        def _repr_png_(self) -> bytes:
            content = io.BytesIO()
            self.savefig(content, format="png", dpi=100)
            return content.getvalue()

    figure = Picture(figsize=(8, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def _finished(figure: Any, axes: Axes, title: str, path: str | Path | None) -> Any:  # noqa: ANN401 - a Figure
    axes.set_title(title, loc="left", fontsize=10, color=_INK)
    if path is not None:
        write_atomically(path, lambda part: figure.savefig(part, dpi=120))
    return figure


def check_ending(path: str | Path) -> None:
    """Raise `InputError` unless *path* ends with a supported image format."""
    if Path(path).suffix.lower() not in {".png", ".svg", ".pdf"}:
        raise InputError(f"plots end in .png, .svg or .pdf, not {str(path)!r}")


def svg_bars(values: Sequence[float], low: Sequence[float], high: Sequence[float]) -> list[str]:
    """Return a small SVG image for each value: a bar with its interval, all on one scale that includes 0."""
    least = min([0.0, *low])
    most = max([0.0, *high])
    scale = _SVG_WIDTH / (most - least or 1.0)
    images = []
    for ends in zip(values, low, high, strict=True):
        end, left, right, zero = (round((place - least) * scale, 1) for place in (*ends, 0.0))
        images.append(
            f'<svg width="{_SVG_WIDTH + 2}" height="14" viewBox="-1 0 {_SVG_WIDTH + 2} 14">'
            f'<path fill="{_BAR}" d="M{zero} 2H{end}V12H{zero}Z"/>'
            f'<path fill="none" stroke="{_INK}" stroke-width="1.5" d="M{left} 7H{right}"/></svg>'
        )
    return images


RESOLUTION = 32
"""Grid of the adaptive optimum in plots: an upper bound at any resolution, here with an error below a line's width."""

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
"""Functions from (k, epsilon of a step, delta) to the epsilon of k bounded-range steps, by the bound's name."""


def epsilon_curves(axes: Axes, curves: Mapping[str, Sequence[float]], steps: Sequence[int]) -> None:
    """Draw epsilon against the information budget, a curve for each bound.

    Args:
        axes: the axes to draw on.
        curves: for each bound, epsilon at each of *steps*.
    """
    top = 2.0 * max(curves["LinkedIn, Lemma 2.1"])  # basic composition would flatten all other curves
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
    """Plot the cost of the advised epsilon_per up to slightly more than the advised information budget.

    Args:
        progress: called with the finished share of the curves.

    Raises:
        InputError: *path* cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    epsilon = float(advice.epsilon_per)
    delta = float(advice.calls * advice.delta_per)
    most = min(advice.information + advice.information // 5 + 2, bounds.MAX_STEPS)
    # Denser at the start, where the curves bend.
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
    write_atomically(path, lambda part: figure.savefig(part, dpi=120))
