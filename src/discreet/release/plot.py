"""A release as a picture: bars with error bars."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from discreet.errors import InputError
from discreet.release.export import python_values, require, shortened, shown_values, write_whole

if TYPE_CHECKING:
    from discreet.release.result import Release

_INK, _BAR, _ERROR = "#22303c", "#4c8dae", "#c2542d"
_LONGEST_LABEL = 44
MOST_BARS = 1_000


def plot(release: Release, path: str | Path | None = None, *, most: int = 40) -> Any:  # noqa: ANN401 - a Figure
    """Draw the first *most* items, largest on top, with their 95 % intervals.

    Args:
        release: with counts.
        path: where to write it too; the ending says the format (png, svg, pdf).
        most: how many items at most.

    Raises:
        InputError: there are no counts, matplotlib is missing, or *path* cannot be written.
    """
    numbers = shown_values(release)
    shown = next((name for name in ("sum", "average", "count") if name in numbers), None)
    if shown is None:
        raise InputError("labels without counts cannot be drawn")
    require("matplotlib", "plotting")
    if path is not None:
        check_ending(path)
    if most > MOST_BARS:
        raise InputError(f"a picture has at most {MOST_BARS:,} bars, not {most:,}")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    n = min(len(release), most)
    figure = Figure(figsize=(8, 1.2 + 0.28 * max(n, 3)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    places = np.arange(n)[::-1]
    counts, low, high = (np.array(numbers[name].to_pylist()[:n], dtype=float) for name in (shown, "low", "high"))
    bars = np.maximum(np.stack([counts - low, high - counts]), 0)
    axes.barh(places, counts, color=_BAR, height=0.72)
    axes.errorbar(counts, places, xerr=bars, fmt="none", ecolor=_ERROR, elinewidth=1.4, capsize=2.5)
    axes.set_yticks(places, _labels(release, n), color=_INK)
    axes.set_ylim(-0.6, max(n, 1) - 0.4)
    axes.set_xlabel(_measured(release, shown), color=_INK)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    guarantee = release.guarantee
    items = f"{n} of {len(release)} items" if n < len(release) else f"{n} items"
    axes.set_title(
        f"{items} by {release.mechanism}, ε = {guarantee.epsilon:.3g}, δ = {guarantee.delta:.2g}; bars: 95 % intervals",
        loc="left",
        fontsize=10,
        color=_INK,
    )
    if path is not None:
        write_whole(path, lambda part: figure.savefig(part, dpi=120))
    return figure


def check_ending(path: str | Path) -> None:
    """Refuse a name that says no format of a picture.

    Raises:
        InputError: another ending.
    """
    if Path(path).suffix.lower() not in {".png", ".svg", ".pdf"}:
        raise InputError(f"pictures end in .png, .svg or .pdf, not {str(path)!r}")


def _measured(release: Release, shown: str) -> str:
    """What the bars say."""
    if release.query.summed is not None:
        return f"{shown} of {release.query.summed.column} (clipped per user)"
    return "users" if release.query.sensitivity.rows_per_group == 1 else "rows (clipped per user)"


def _labels(release: Release, n: int) -> list[str]:
    rows = zip(*map(python_values, release.labels.slice(0, n).columns), strict=True)
    texts = [" · ".join(map(str, row)) for row in rows]
    # A dollar sign would start a formula.
    return [shortened(text, _LONGEST_LABEL).replace("$", r"\$") for text in texts]
