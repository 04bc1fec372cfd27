"""Releases as tables of text and of HTML, whatever their labels hold."""

from __future__ import annotations

import unicodedata
from html.parser import HTMLParser

import numpy as np
import pyarrow as pa
import pytest

from tests.release.builders import release_of


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
        "(intervals are wide where the noise is large for so few users)",
    ]


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
