"""A release in other formats, for every type of label."""

from __future__ import annotations

import csv
import datetime
import io
import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

from discreet.errors import InputError

from .builders import GUARANTEE, release_of

_ZONE = datetime.UTC
TYPES = {
    "text": (pa.string(), ["é", "a,\"b\"\n'c'", "😀", ""], None),
    "whole numbers": (pa.int64(), [-(2**63), 0, 2**63 - 1, 2**53 + 1], None),
    "unsigned": (pa.uint64(), [2**64 - 1, 0, 1, 2], None),
    "truth": (pa.bool_(), [True, False], None),
    "decimals": (pa.decimal128(9, 2), [Decimal("1.10"), Decimal("-0.01")], ["1.10", "-0.01"]),
    "wide decimals": (pa.decimal128(38, 0), [Decimal(10**38 - 1)], ["9" * 38]),
    "dates": (pa.date32(), [datetime.date(2024, 2, 29), datetime.date(1, 1, 1)], ["2024-02-29", "0001-01-01"]),
    "seconds": (pa.timestamp("s"), [datetime.datetime(2024, 2, 29, 1)], ["2024-02-29T01:00:00"]),
    "microseconds": (pa.timestamp("us"), [datetime.datetime(1960, 1, 1, 0, 0, 0, 7)], ["1960-01-01T00:00:00.000007"]),
    "zoned": (pa.timestamp("us", "UTC"), [datetime.datetime(2024, 1, 1, tzinfo=_ZONE)], ["2024-01-01T00:00:00+00:00"]),
    "nanoseconds": (pa.timestamp("ns"), [pd.Timestamp(1_000_000_001)], ["1970-01-01T00:00:01.000000001"]),
}


@pytest.fixture(params=TYPES)
def typed(request):
    """Return a release with labels of one type, the labels, and their JSON."""
    type_, labels, plain = TYPES[request.param]
    return release_of(pa.table({"item": pa.array(labels, type_)}), k=len(labels)), labels, plain or labels


def test_arrow_keeps_the_type_of_the_labels(typed):
    """Columns are rank, labels, counts and errors, in this order."""
    release, labels, _ = typed
    table = release.to_arrow()
    assert table.column_names == ["rank", "item", "count", "std_error", "low", "high"]
    assert table.schema.field("item").type == release.labels.schema.field("item").type
    types = [str(table.schema.field(name).type) for name in ("rank", "count", "std_error", "low", "high")]
    assert types == ["int64", "int64", "double", "int64", "int64"]
    assert table.to_pylist()[0] == {
        "rank": 1, "item": labels[0], "count": 1000, "std_error": 2.5, "low": 995, "high": 1005,
    }  # fmt: skip


def test_frames_are_the_arrow_table(typed):
    """Frames of pandas and Polars have the values of the Arrow table."""
    release, _, _ = typed
    table = release.to_arrow()
    assert release.to_polars().to_arrow().cast(table.schema).equals(table)
    frame = release.to_pandas()
    assert list(frame.columns) == table.column_names
    assert frame["item"].tolist() == table.column("item").to_pylist()
    assert frame["count"].tolist() == table.column("count").to_pylist()


def test_json_holds_every_label(typed):
    """Timestamps are ISO 8601, decimals text, and the text is strict JSON."""
    release, _, plain = typed
    text = release.to_json()
    assert text.endswith("}\n")

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    assert json.loads(text, parse_constant=refuse) == release.to_dict()
    assert [item["item"] for item in release.to_dict()["items"]] == plain


def test_csv_holds_every_label(typed):
    """There is a header and a line for each item with CSV quoting; text is read back unchanged."""
    release, labels, _ = typed
    header, *lines = csv.reader(io.StringIO(release.to_csv(), newline=""))
    assert header == ["rank", "item", "count", "std_error", "low", "high"]
    assert [line[0] for line in lines] == [str(n + 1) for n in range(len(labels))]
    assert [line[2:] for line in lines] == [
        [str(1000 - n), "2.5", str(995 - n), str(1005 - n)] for n in range(len(lines))
    ]
    if isinstance(labels[0], str):
        assert [line[1] for line in lines] == labels


def test_a_label_cannot_compute_in_a_spreadsheet():
    """CSV has an apostrophe before a text that begins like a formula."""
    assert "'=1+1" in release_of(["=1+1", "b"]).to_csv()


def test_parquet_holds_every_label_and_the_guarantee(typed, tmp_path):
    """The file has the table, and the rest of the JSON in its metadata."""
    release, _, _ = typed
    release.to_parquet(tmp_path / "r.parquet")
    table = pyarrow.parquet.read_table(tmp_path / "r.parquet")
    assert table.equals(release.to_arrow()) or table.cast(release.to_arrow().schema).equals(release.to_arrow())
    about = json.loads(table.schema.metadata[b"discreet"])
    assert about == {name: value for name, value in release.to_dict().items() if name != "items"}


def test_text_and_html_show_every_label(typed):
    """Labels of every type are shown, each on one line of the text."""
    release, labels, plain = typed
    assert len(str(release).splitlines()) == 1 + len(labels)
    assert release._repr_html_().count("<tr>") == 1 + len(labels)
    shown = str(plain[0]) if not isinstance(plain[0], str) else plain[0].split("\n")[0]
    assert shown in str(release)


def test_json_has_exactly_this_shape():
    """Items with label, integer count and errors; then mechanism, guarantee, cost and query."""
    shape = release_of(["a", "b"]).to_dict()
    assert shape["items"] == [
        {"rank": 1, "item": "a", "count": 1000, "std_error": 2.5, "low": 995, "high": 1005},
        {"rank": 2, "item": "b", "count": 999, "std_error": 2.5, "low": 994, "high": 1004},
    ]
    assert all(type(value) is int for item in shape["items"] for value in (item["count"], item["low"], item["high"]))
    assert {name: value for name, value in shape.items() if name != "items"} == {
        "mechanism": "unknown-gumbel",
        "chosen": None,
        "why": None,
        "complete": False,
        "clipped": None,
        "clipping": None,
        "privacy": {
            "unit": "user",
            "neighbours": GUARANTEE.neighbours,
            "epsilon": 1.0,
            "delta": 1e-8,
            "rho": 0.0165,
            "computational": False,
        },
        "charged": {"rho": 0.01, "delta": 1e-9},
        "query": {
            "user": "user",
            "items": ["item"],
            "k": 3,
            "epsilon": 1.0,
            "delta": 1e-8,
            "filtered": False,
            "known_domain": False,
            "groups_per_user": None,
            "rows_per_user_and_item": 1,
            "relative_error": None,
            "counts": True,
            "summed": None,
            "average": False,
        },
        "seconds": 0.123,
    }
    assert release_of(["a"], k=None).to_dict()["query"]["relative_error"] == 0.1


def test_a_release_of_counts_has_no_rank():
    """Only a top k has ranks."""
    assert release_of(["a"], k=None).to_arrow().column_names == ["item", "count", "std_error", "low", "high"]


def test_labels_alone_have_no_counts_and_a_set_has_no_ranks():
    """The column rank of a set is empty, since its order means nothing."""
    labels = release_of(["a", "b"], counts=False)
    assert labels.to_dict()["items"] == [{"rank": 1, "item": "a"}, {"rank": 2, "item": "b"}]
    unordered = release_of(["a", "b"], counts=False, ordered=False)
    assert unordered.to_dict()["items"] == [{"rank": None, "item": "a"}, {"rank": None, "item": "b"}]
    assert [line.split() for line in str(unordered).splitlines()] == [["rank", "item"], ["a"], ["b"]]


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (["rank", "count"], ["rank_", "count_"]),
        (["std_error", "low", "high"], ["std_error_", "low_", "high_"]),
        (["count", "count_"], ["count__", "count_"]),
        (["count_", "count"], ["count_", "count__"]),
        (["Count", "item"], ["Count", "item"]),
    ],
)
def test_item_columns_named_like_ours_get_an_underscore(given, shown):
    """No label is lost, and none replaces a count."""
    release = release_of(pa.table({name: [f"in {name}"] for name in given}))
    (row,) = release.to_dict()["items"]
    assert list(row) == ["rank", *shown, "count", "std_error", "low", "high"]
    assert [row[name] for name in shown] == [f"in {name}" for name in given]
    assert row["count"] == 1000
    assert release.to_pandas().columns.tolist() == release.to_polars().columns == list(row)


def test_an_empty_release_has_all_its_columns(tmp_path):
    """A release without items has a header and a sentence."""
    release = release_of(pa.table({"item": pa.array([], pa.string())}))
    assert release.to_dict()["items"] == []
    assert release.to_csv() == '"rank","item","count","std_error","low","high"\n'
    assert release.to_pandas().shape == release.to_polars().shape == (0, 6)
    assert str(release).startswith("nothing stands out enough to be released: an item needs about ")
    assert "at epsilon = 1, delta = 1e-08; a larger epsilon" in str(release)
    release.to_parquet(tmp_path / "r.parquet")
    assert pyarrow.parquet.read_table(tmp_path / "r.parquet").num_rows == len(release) == 0
    assert release._repr_html_() == f"<p>{str(release).strip()}</p>"


@pytest.mark.parametrize(
    ("library", "use"),
    [
        ("pandas", lambda release: release.to_pandas()),
        ("polars", lambda release: release.to_polars()),
        ("matplotlib", lambda release: release.plot()),
    ],
)
def test_a_missing_library_is_reported_with_the_command_that_installs_it(monkeypatch, library, use):
    """The message names the extra, and no other format needs the library."""
    monkeypatch.setitem(sys.modules, library, None)
    release = release_of(["a"])
    extra = "plots" if library == "matplotlib" else library
    with pytest.raises(
        InputError, match=rf"needs {library}; install it in a checkout with: pip install '.\[{extra}\]', or"
    ):
        use(release)
    assert release.to_json()
    assert release.to_csv()


@pytest.mark.parametrize(
    ("type_", "value", "year"),
    [
        (pa.date32(), 2_932_897, "10000"),
        (pa.date32(), -719_163, "0000"),
        (pa.timestamp("us"), 253_402_300_800_000_000, "10000"),
        (pa.timestamp("us"), -62_135_596_800_000_001, "0000"),
    ],
)
def test_timestamps_beyond_pythons_years_are_shown(type_, value, year):
    """A paid answer is not lost because Python has no such date."""
    release = release_of(pa.table({"item": pa.array([value], type_)}))
    for shown in (str(release), release.to_json(), release.to_csv(), release._repr_html_()):
        assert f"{year}-" in shown


def test_nanoseconds_need_no_pandas():
    """Labels that Python's datetime cannot represent are exported without the optional library."""
    script = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "pandas":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
import pyarrow as pa
from tests.release.builders import release_of
release = release_of(pa.table({"item": pa.array([1_000_000_001], pa.timestamp("ns"))}))
for shown in (str(release), release.to_json(), release.to_csv(), release._repr_html_()):
    assert "01.000000001" in shown
"""
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_release_has_a_length_a_time_and_a_representation():
    """Its repr has no count and no label."""
    release = release_of(["secret", "b"])
    assert len(release) == 2
    assert release.timed(2.0).seconds == 2.0
    assert repr(release) == f"<Release of 2 items by unknown-gumbel, {GUARANTEE}>"
    assert np.array_equal(release.timed(2.0).counts, release.counts)
