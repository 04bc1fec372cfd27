"""Plot bars with error bars."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from discreet.errors import InputError
from discreet.release.result import require, shortened, write_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_INK, _BAR, _ERROR = "#22303c", "#4c8dae", "#c2542d"
_LONGEST_LABEL = 44
MOST_BARS = 1_000
_SVG_WIDTH = 180


@dataclass(frozen=True, slots=True)
class Bars:
    """What is plotted: n bars, the first on top.

    Args:
        values: lengths, shape (n,).
        low: lower ends of the intervals, shape (n,).
        high: upper ends, shape (n,).
        title: above the plot.
    """

    labels: Sequence[str]
    values: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    title: str
    axis_label: str


def plot_bars(bars: Bars, path: str | Path | None, most: int) -> Any:  # noqa: ANN401 - a Figure
    """Return a figure of *bars*, and write it to *path* if one is given.

    Args:
        bars: at most *most*.
        path: its ending chooses the format (png, svg, pdf).

    Raises:
        InputError: too many bars, matplotlib is missing, or *path* cannot be written.
    """
    require("matplotlib", "plotting")
    if path is not None:
        check_ending(path)
    if most > MOST_BARS:
        raise InputError(f"a plot has at most {MOST_BARS:,} bars, not {most:,}")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    n = len(bars.labels)
    figure = Figure(figsize=(8, 1.2 + 0.28 * max(n, 3)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    places = np.arange(n)[::-1]
    errors = np.maximum(np.stack([bars.values - bars.low, bars.high - bars.values]), 0)
    axes.barh(places, bars.values, color=_BAR, height=0.72)
    axes.errorbar(bars.values, places, xerr=errors, fmt="none", ecolor=_ERROR, elinewidth=1.4, capsize=2.5)
    # A dollar sign would start a formula.
    labels = [shortened(text, _LONGEST_LABEL).replace("$", r"\$") for text in bars.labels]
    axes.set_yticks(places, labels, color=_INK)
    axes.set_ylim(-0.6, max(n, 1) - 0.4)
    axes.set_xlabel(bars.axis_label, color=_INK)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_title(bars.title, loc="left", fontsize=10, color=_INK)
    if path is not None:
        write_whole(path, lambda part: figure.savefig(part, dpi=120))
    return figure


def check_ending(path: str | Path) -> None:
    """Raise `InputError` if the ending of *path* is not that of a supported format."""
    if Path(path).suffix.lower() not in {".png", ".svg", ".pdf"}:
        raise InputError(f"plots end in .png, .svg or .pdf, not {str(path)!r}")


def svg_bars(values: Sequence[float], low: Sequence[float], high: Sequence[float]) -> list[str]:
    """Return one small SVG image for each value: a bar with its interval, all on one scale that includes 0."""
    least, most = min([0.0, *low]), max([0.0, *high])
    scale = _SVG_WIDTH / (most - least or 1.0)
    images = []
    for ends in zip(values, low, high, strict=True):
        end, left, right, zero = (round((place - least) * scale, 1) for place in (*ends, 0.0))
        images.append(
            f'<svg width="{_SVG_WIDTH + 2}" height="14" viewBox="-1 0 {_SVG_WIDTH + 2} 14">'
            f'<path fill="{_BAR}" d="M{zero} 2H{end}V12H{zero}Z"/>'
            f'<path fill="none" stroke="{_ERROR}" d="M{left} 4V10M{left} 7H{right}M{right} 4V10"/></svg>'
        )
    return images
