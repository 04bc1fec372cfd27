"""Pictures of releases: their formats, their labels, and what cannot be drawn."""

from __future__ import annotations

import dataclasses
import datetime
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pytest
from matplotlib.figure import Figure

from discreet.errors import InputError
from discreet.head_request import Derived, Kind
from discreet.query.predicates import bind_where
from discreet.query.sql import parse_where
from discreet.release.plot import svg_bars
from tests.release.builders import release_of


@pytest.mark.parametrize(
    ("end", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF"), ("PNG", b"\x89PNG")]
)
def test_pictures_have_the_format_of_their_extension(tmp_path, end, magic):
    """One of three formats is written completely, and the figure is returned."""
    figure = release_of(["a", "b", "c"]).plot(tmp_path / f"p.{end}")
    assert (tmp_path / f"p.{end}").read_bytes().startswith(magic)
    assert [path.name for path in tmp_path.iterdir()] == [f"p.{end}"]
    assert len(figure.axes[0].patches) == 3


def test_a_picture_shows_counts_and_intervals_of_the_first_items():
    """The largest is on top; the title has the number of items, the mechanism and the price."""
    figure = release_of([f"item {n}" for n in range(50)], k=50).plot(most=10)
    (axes,) = figure.axes
    ticks = {
        round(place): label.get_text() for place, label in zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)
    }
    bars = {round(bar.get_y() + bar.get_height() / 2): bar.get_width() for bar in axes.patches}
    assert ticks == {9 - n: f"item {n}" for n in range(10)}
    assert bars == {9 - n: 1000 - n for n in range(10)}
    (ranges,) = axes.collections
    assert {round(path[0][1]): (path[0][0], path[1][0]) for path in ranges.get_segments()} == {
        9 - n: (995 - n, 1005 - n) for n in range(10)
    }
    assert "10 of 50 items by unknown-gumbel, ε = 1, δ = 1e-08" in axes.get_title(loc="left")
    assert not axes.lines, "caps of a narrow interval would look like a mark of their own"
    assert axes.get_xlabel() == "users"


def test_a_picture_names_the_mechanism_that_auto_chose():
    """As auto chooses one for every release."""
    (axes,) = release_of(["a"], mechanism="auto", chosen="two-round").plot().axes
    assert "1 item by two-round" in axes.get_title(loc="left")


def test_the_title_fits_beside_long_labels():
    """Long labels leave the least room for it."""
    release = release_of([f"{n} {'a long label' * 9}" for n in range(5000)], mechanism="auto", chosen="unknown-gumbel")
    figure = release.plot(most=40)
    figure.canvas.draw()
    assert figure.axes[0].title.get_text() == ""  # it begins at the left
    assert figure.axes[0]._left_title.get_window_extent().x1 <= figure.bbox.x1


@pytest.mark.parametrize("label", ["$x^2$", "$", "a$b$c", "\\$x$", "$\\frac{1}{", "{}", "%s", "<&>", "#", "_a_"])
def test_labels_in_pictures_are_no_formulas(tmp_path, label):
    """A dollar sign in a label is not interpreted by Matplotlib."""
    release_of([label, "b"]).plot(tmp_path / "p.svg")
    text = (tmp_path / "p.svg").read_text("utf-8")
    escaped = label.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    assert f"<!-- {escaped} -->" in text or f"<!-- {label} -->" in text or escaped in text


@pytest.mark.parametrize("label", ["a\nb", "a\tb", "\x1b[2J", "\x00", "\u202ea"], ids=ascii)
def test_pictures_show_no_control_characters(tmp_path, label):
    """Fonts have no glyphs for control characters, and some make an SVG invalid XML."""
    figure = release_of([label, "b"]).plot(tmp_path / "p.svg")
    figure.savefig(tmp_path / "p.png")
    assert all(tick.get_text().isprintable() for tick in figure.axes[0].get_yticklabels())
    ElementTree.parse(tmp_path / "p.svg")  # noqa: S314 - we have just written it


def _series(each):
    """Return a release of days or months, the largest count first, without those of May."""
    days = [datetime.date(2025, 3, 1) + datetime.timedelta(n) for n in range(120)]
    days = [day for day in days if day.month != 5]
    if each == "month":
        days = sorted({day.replace(day=1) for day in days})
    days = days[len(days) // 2 :] + days[: len(days) // 2]
    derived = () if each is None else (Derived("item", "at", each),)
    return release_of(pa.table({"item": days}), k=len(days)), derived


@pytest.mark.parametrize(("each", "lengths"), [(None, [61, 29 - 1]), ("month", [2, 1])])
def test_times_are_a_line_in_their_order_with_a_band(tmp_path, each, lengths):
    """The line has a gap where a period is missing, and every interval is in the band."""
    release, derived = _series(each)
    query = dataclasses.replace(release.query, request=dataclasses.replace(release.query.request, derived=derived))
    release = dataclasses.replace(release, query=query)
    (axes,) = release.plot(tmp_path / "p.png").axes
    drawn = [line.get_xdata() for line in axes.lines]
    assert [len(part) for part in drawn] == lengths
    places = np.concatenate(drawn)
    assert (places[1:] > places[:-1]).all()
    counts = dict(zip(release.labels.column(0).to_pylist(), release.counts.tolist(), strict=True))
    values = np.concatenate([line.get_ydata() for line in axes.lines]).tolist()
    assert values == [counts[day] for day in sorted(counts)]
    assert len(axes.collections) == len(lengths)
    assert not axes.patches
    assert "band: 95 % intervals" in axes.get_title(loc="left")


@pytest.mark.parametrize(
    ("where", "hatched"),
    [
        ("day >= '2026-01-15' AND day < '2026-04-01'", [True, False]),
        ("day >= '2026-01-01' AND day <= '2026-03-30'", [False, True]),
        ("day >= '2026-01-01' AND day <= '2026-03-31'", [False, False]),
        ("", [False, False]),
    ],
)
def test_periods_that_the_filter_cuts_are_hatched(where, hatched):
    """From the first or the last month to the middle between it and its neighbour; the title says so."""
    months = [datetime.date(2026, month, 1) for month in (1, 2, 3)]
    release = release_of(pa.table({"item": months}), k=3)
    parts = {"derived": (Derived("item", "day", "month"),)}
    if where:
        parts["where"] = bind_where(parse_where(where), {"day": Kind.DATE})
    query = dataclasses.replace(release.query, request=dataclasses.replace(release.query.request, **parts))
    (axes,) = dataclasses.replace(release, query=query).plot().axes
    assert len(axes.patches) == sum(hatched)
    assert ("; hatched: incomplete" in axes.get_title(loc="left")) == any(hatched)
    first, _, last = axes.lines[0].get_xdata(orig=False)
    for span in axes.patches:
        edges = [span.get_x(), span.get_x() + span.get_width()]
        assert [first in edges, last in edges] == hatched
        assert abs(span.get_width()) < 16, "half a month"


@pytest.mark.parametrize("constant", ["''", "'unknown'", "5"])
def test_filters_of_files_without_types_may_have_constants_that_are_no_times(constant):
    """A release that was charged is plotted; other conditions still say what is cut, by dates that are text."""
    months = [datetime.date(2026, month, 1) for month in (1, 2, 3)]
    release = release_of(pa.table({"item": months}), k=3)
    where = bind_where(
        parse_where(f"day <> {constant} AND day >= '2026-01-15' AND day <= '2026-03-31'"), {"day": Kind.UNTYPED}
    )
    request = dataclasses.replace(release.query.request, derived=(Derived("item", "day", "month"),), where=where)
    query = dataclasses.replace(release.query, request=request)
    (axes,) = dataclasses.replace(release, query=query).plot().axes
    assert len(axes.patches) == 1


def test_all_periods_that_the_present_or_the_filter_cuts_are_hatched():
    """A listed period may lie before the filter, and the present one is not over: one span at each end."""
    first = datetime.datetime.now(datetime.UTC).date().replace(day=1)
    years = [first.replace(month=1, year=first.year - n) for n in (3, 2, 1, 0)]
    release = release_of(pa.table({"item": years}), k=4)
    where = bind_where(parse_where(f"day >= '{first.year - 2}-03-01'"), {"day": Kind.DATE})
    request = dataclasses.replace(release.query.request, derived=(Derived("item", "day", "year"),), where=where)
    query = dataclasses.replace(release.query, request=request)
    (axes,) = dataclasses.replace(release, query=query).plot().axes
    assert [round(abs(span.get_width()) / 365.25, 1) for span in axes.patches] == [1.5, 0.5]


def test_pairs_of_a_day_and_another_column_are_bars():
    """A line is of one column of times."""
    table = pa.table({"item": [datetime.date(2025, 1, 1)], "other": ["a"]})
    (axes,) = release_of(table).plot().axes
    assert len(axes.patches) == 1


def test_a_fresh_notebook_shows_the_picture():
    """Without pyplot, nothing registers how a figure is shown; the figure itself is a PNG for IPython."""
    assert release_of(["a"]).plot()._repr_png_().startswith(b"\x89PNG")


def test_an_empty_release_is_an_empty_picture(tmp_path):
    """The picture says why it has no bars, also where items are times, whose axis would show days that are none."""
    for type_ in (pa.string(), pa.timestamp("us")):
        figure = release_of(pa.table({"item": pa.array([], type_)})).plot(tmp_path / "p.png", most=5)
        assert len(figure.axes[0].patches) == 0
        assert not figure.axes[0].get_ylabel(), "an axis of counts, which a line has"
        assert figure.axes[0].get_title(loc="left").startswith("0 items")
        assert "nothing stands out enough" in figure.axes[0].get_title(loc="left")


def test_a_picture_that_is_too_long_has_its_own_error(tmp_path, monkeypatch):
    """Matplotlib refuses more than 2^16 pixels, some 1,900 items, with the error type of unknown extensions."""

    def too_long(*_, **__):
        raise ValueError("Image size of 960x100944 pixels is too large. It must be less than 2^16 in each direction.")

    monkeypatch.setattr(Figure, "savefig", too_long)
    with pytest.raises(ValueError, match=r"large|most|many") as error:
        release_of(["a", "b"]).plot(tmp_path / "p.png")
    assert ".svg" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["p.xyz", "p", "p.csv", ".png"])
def test_other_extensions_are_refused(tmp_path, name):
    """Nothing is written, and an existing file stays."""
    (tmp_path / name).write_text("mine")
    with pytest.raises(InputError, match=r"\.png, \.svg or \.pdf"):
        release_of(["a"]).plot(tmp_path / name)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "mine")]


def test_labels_without_counts_cannot_be_drawn(tmp_path):
    """Nothing is written, because there is nothing to draw."""
    with pytest.raises(InputError, match="without counts"):
        release_of(["a"], counts=False).plot(tmp_path / "p.png")
    assert list(tmp_path.iterdir()) == []


def test_a_notebook_shows_a_bar_with_its_interval_for_each_count():
    """All bars have one scale that includes 0; labels without counts have no bars."""
    release = release_of(["a", "b", "c"])
    assert release._repr_html_().count("<svg") == 3
    (first, *_, last) = svg_bars([10.0, -2.0], [5.0, -5.0], [15.0, 1.0])
    assert 'd="M45.0 2H135.0V12H45.0Z"' in first
    assert 'd="M90.0 7H180.0"' in first
    assert 'd="M0.0 7H54.0"' in last
