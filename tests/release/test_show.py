"""A release in terminals, notebooks and pictures."""

from __future__ import annotations

import dataclasses
import html
import unicodedata
from fractions import Fraction
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pytest
from matplotlib.figure import Figure

from discreet.errors import InputError
from discreet.head_request import SumBounds
from discreet.release.plot import svg_bars
from discreet.values import Clipping, Measured, Sensitivity
from tests.queries import changed

from .builders import release_of


def _columns_of(text):
    """Return the positions at which each line's fields end, in cells of a terminal."""
    wide = {"W": 2, "F": 2}
    return [
        sum(
            0 if unicodedata.category(c) in {"Mn", "Me"} else wide.get(unicodedata.east_asian_width(c), 1) for c in line
        )
        for line in text.splitlines()
    ]


def test_text_is_a_table_with_right_aligned_numbers():
    """Thousands are separated, errors rounded, and the interval is one column."""
    counts = np.array([1_234_567, -12])
    release = release_of(
        ["long label", "b"], k=2, std_errors=np.array([1234.5, 0.0342]), low=counts - 1000, high=counts + 1000
    )
    lines = str(release).splitlines()
    assert lines == [
        "rank  item        count  std_error           95 % interval",
        "   1  long label  1,000   1.23e+03  1,233,567 to 1,235,567",
        "   2  b             999     0.0342           -1,012 to 988",
    ]


def test_a_release_reports_what_was_clipped():
    """Text, notebook and JSON report it; the intervals cover the noise alone."""
    release = release_of(["a"], k=1)
    assert release.clipped is None
    expected = {
        "each user's sum of minutes for an item is clipped to -0.5 to 60": {
            "summed": SumBounds(Fraction(-1, 2), Fraction(60), 1, column="minutes")
        },
        "at most 3 rows of each user and item are counted; at most 5 items of each user are counted": {
            "sensitivity": Sensitivity(5, 3)
        },
    }
    numbers = np.array([1.0])
    chosen = Measured("average", numbers, numbers, numbers, numbers, Clipping(125, 0.0312, 0.0, 0.1))
    private = {"summed": SumBounds(Fraction(0), Fraction(60), 1, private=True, column="minutes")}
    sentence = (
        "each user's sum of minutes for an item is clipped to 0 to 12.5, which was chosen privately; about 3.12 % of a "
        "user's sums are above that (0 to 10 %)"
    )
    for bounds, parts in [*expected.items(), (sentence, private)]:
        clipped = dataclasses.replace(release, query=changed(release.query, **parts))
        if parts is private:
            clipped = dataclasses.replace(clipped, measured=chosen)
            assert clipped.clipping == {"bound": "12.5", "share": 0.0312, "low": 0.0, "high": 0.1}
        for shown in (str(clipped), html.unescape(clipped._repr_html_()), clipped.to_json()):
            assert f"{bounds}; the intervals do not cover what that leaves out" in shown


@pytest.mark.parametrize(
    "labels",
    [
        ["日本語", "abc"],
        ["ｆｕｌｌ", "é", "e\u0301"],
        ["กำลัง", "हिन्दी", "x"],
        ["a\u20dd", "👍", "Ω"],
    ],
    ids=["wide", "combining", "vowels", "enclosing"],
)
def test_text_is_aligned_in_every_script(labels):
    """Wide characters take two cells of a terminal and combining marks none."""
    assert len(set(_columns_of(str(release_of(labels, k=len(labels)))))) == 1


HOSTILE = ["\x1b[2J", "a\nb", "a\rb", "a\tb", "\x00", "\x7f", "\x9b31m", "\u202eabc", "\u200b", "\u2028", "\ue000"]


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_text_shows_no_control_characters(text):
    """No label or column name can clear the screen, break a line or change its direction."""
    for release in (release_of([text, "b"]), release_of(pa.table({f"{text}.": ["a", "b"]}))):
        shown = str(release)
        assert len(shown.split("\n")) == 4
        assert all(line.isprintable() for line in shown.split("\n"))
        assert "\N{REPLACEMENT CHARACTER}" in shown


def test_text_cuts_long_labels():
    """Text shows the beginning of a long label, and other formats all of it."""
    release = release_of(["x" * 100_000, "b"])
    assert max(map(len, str(release).splitlines())) < 120
    assert "x" * 40 + "x" in str(release)
    assert "…" in str(release)
    assert release.to_dict()["items"][0]["item"] == "x" * 100_000


class _Cells(HTMLParser):
    """Collects the texts of the cells, and all tags."""

    def __init__(self):
        super().__init__()
        self.tags, self.texts = set(), []

    def handle_starttag(self, tag, attrs):
        """See `HTMLParser`."""
        self.tags.add((tag, bool(attrs)))
        self.texts.append("")

    def handle_data(self, data):
        """See `HTMLParser`."""
        self.texts[-1] += data


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", "a & b", '"><img src=x onerror=y>', "</td>", "&lt;"])
def test_html_escapes_labels_and_column_names(text):
    """There are no tags but ours, with attributes in charts only."""
    release = release_of(pa.table({text: [text]}), mechanism=text)
    cells = _Cells()
    cells.feed(release._repr_html_())
    tags = {tag for tag, _ in cells.tags}
    assert {tag for tag, attributes in cells.tags if attributes} == {"svg", "path"}
    assert tags == {"table", "thead", "tr", "th", "tbody", "td", "p", "svg", "path"}
    assert cells.texts.count(text) == 2
    assert any(shown.startswith(f"1 items by {text}; (1, 1e-08)-differential privacy") for shown in cells.texts)


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
    assert axes.get_xlabel() == "users"


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


def test_an_empty_release_is_an_empty_picture(tmp_path):
    """The picture has a title and no bars."""
    figure = release_of(pa.table({"item": pa.array([], pa.string())})).plot(tmp_path / "p.png")
    assert len(figure.axes[0].patches) == 0
    assert "0 items" in figure.axes[0].get_title(loc="left")


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
    assert 'd="M90.0 4V10M90.0 7H180.0M180.0 4V10"' in first
    assert 'd="M0.0 4V10M0.0 7H54.0M54.0 4V10"' in last
