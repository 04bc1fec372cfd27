"""The document of a release: lossless serialization, and equal bytes for equal releases."""

from __future__ import annotations

import dataclasses
import datetime
import json
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.accounting.convert import Guarantee
from discreet.errors import InputError
from discreet.head_request import (
    And,
    Comparison,
    Constant,
    IsNull,
    Kind,
    Membership,
    Not,
    Or,
    SumBounds,
)
from discreet.query.json import from_dict
from discreet.query.query import Measure, Select
from discreet.release import Release
from discreet.release.keys import encodable
from discreet.service.doors.pages.text import title_of
from discreet.values import Clipping, Cost, Measured, Sensitivity
from discreet.wire.document import decode, encode, question_of, write_table
from tests.queries import changed, query_of

LABELS = {
    pa.string(): st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.decimal128(20, 3): st.decimals(-(10**16), 10**16, places=3),
    pa.decimal128(9, 0): st.decimals(-(10**8), 10**8, places=0),
    pa.bool_(): st.booleans(),
    pa.date32(): st.dates(),
    pa.timestamp("us"): st.datetimes(),
    pa.timestamp("us", "UTC"): st.datetimes(timezones=st.just(datetime.UTC)),
}
FLOATS = st.floats(0.1, 1e9)
WHERES = [
    None,
    Or(()),
    Comparison("age", ">=", Constant(Kind.INTEGER, "18")),
    And(
        (
            Membership("country", (Constant(Kind.TEXT, "IN"), Constant(Kind.TEXT, "it's \u2603"))),
            Or((IsNull("country"), Not(Comparison("day", "<", Constant(Kind.DATE, "2025-02-01"))))),
        )
    ),
]


@st.composite
def columns(draw, rows):
    """Return a strategy for one to three columns of labels, some missing, some named like our own columns."""
    known = ["item", "count", "rank", "low_", "ü b"]
    names = draw(st.lists(st.sampled_from(known), min_size=1, max_size=3, unique=True))
    types = [draw(st.sampled_from(list(LABELS))) for _ in names]
    return pa.table(
        {
            name: pa.array(draw(st.lists(st.none() | LABELS[type_], min_size=rows, max_size=rows)), type_)
            for name, type_ in zip(names, types, strict=True)
        }
    )


@st.composite
def releases(draw):
    """Return a strategy for releases of all shapes: counts, sums, averages, labels only, totals, empty ones."""
    rows = draw(st.integers(0, 4))
    shown = draw(st.sampled_from(["counts", "labels", "sum", "average"]))
    total = draw(st.booleans()) and shown != "labels"
    labels = pa.table({"total": ["all"]}) if total else draw(columns(rows))
    rows = labels.num_rows
    whole = st.lists(st.integers(-(2**62), 2**62), min_size=rows, max_size=rows)
    broken = st.lists(FLOATS, min_size=rows, max_size=rows)
    ints = lambda: np.array(draw(whole), dtype=np.int64)  # noqa: E731
    floats = lambda: np.array(draw(broken), dtype=np.float64)  # noqa: E731
    counted, scale = shown in {"counts", "average"}, draw(st.integers(0, 6))
    clipped = draw(st.booleans())
    made = floats if shown == "average" else ints
    kept = st.sampled_from([None, 7]) if shown == "average" else st.none()  # those of earlier versions have no rows
    return Release(
        labels=labels,
        counts=ints() if counted else None,
        std_errors=floats() if shown == "counts" else None,
        low=ints() if shown == "counts" else None,
        high=ints() if shown == "counts" else None,
        ordered=draw(st.booleans()),
        complete=draw(st.booleans()),
        mechanism="unknown-gumbel",
        guarantee=Guarantee(draw(FLOATS), 1e-8, draw(FLOATS), computational=draw(st.booleans())),
        charged=Cost(draw(st.fractions(0, 10)), draw(st.fractions(0, Fraction(1, 2)))),
        query=query_of(
            "user",
            () if total else tuple(labels.column_names),
            draw(FLOATS),
            Fraction(1, 10**8),
            k=None if total else draw(st.none() | st.integers(1, 9)),
            where=draw(st.sampled_from(WHERES)),
            sensitivity=Sensitivity(draw(st.none() | st.integers(1, 9)), draw(st.integers(1, 9))),
            counts=shown != "labels",
            relative_error=Fraction(1, 7),
            domain=draw(st.sampled_from([None, labels])),
            keep_missing=draw(st.booleans()),
            summed=SumBounds(Fraction(0), Fraction(5, 2), scale, clipped, "price", draw(kept))
            if shown in {"sum", "average"}
            else None,
            average=shown == "average",
        ),
        shared_error=draw(st.none() | FLOATS),
        measured=None
        if shown not in {"sum", "average"}
        else Measured(shown, made(), floats(), made(), made(), Clipping(125, 0.25, 0.0, 1.0) if clipped else None),
    )


def document_of(release, **parts):
    """Return the document as the service makes it."""
    about = {"id": "ab" * 32, "dataset": "reads", "data_version": "1", "question": question_of(release.query, "reads")}
    return encode(release, **{**about, **parts})


@given(releases())
def test_a_document_is_read_back_as_the_same_release(release):
    """Labels and numbers with their types, guarantee, price and query are kept, in all shapes."""
    back = decode(document_of(release))
    assert back.to_arrow().equals(release.to_arrow())
    assert back.to_dict() == release.to_dict()
    assert back.labels.equals(release.labels)
    assert back.shared_error == release.shared_error
    assert back.guarantee == release.guarantee
    assert (back.ordered, back.complete, back.mechanism) == (release.ordered, release.complete, release.mechanism)
    assert str(back) == str(release)


@given(releases())
def test_the_document_of_a_decoded_release_is_the_same_bytes(release):
    """Encoding is deterministic."""
    document = document_of(release)
    assert document_of(decode(document)) == document


@given(releases())
def test_csv_and_arrow_of_a_document_are_those_of_the_release(release):
    """Formats derived from stored bytes equal those of the library."""
    document = document_of(release)
    assert write_table(decode(document).to_arrow(), "csv") == release.to_csv().encode()
    assert pa.ipc.open_stream(write_table(decode(document).to_arrow(), "arrow")).read_all().equals(release.to_arrow())


def test_a_text_of_an_answer_cannot_compute_in_a_spreadsheet():
    """CSV has an apostrophe before a text that begins like a formula; numbers stay as they are."""
    assert write_table(pa.table({"label": ["=1+1"], "n": [-1]}), "csv") == b'"label","n"\n"\'=1+1",-1\n'


@given(releases())
def test_sums_are_read_back_in_units_of_the_last_digit(release):
    """Sums are exact, and averages and errors are equal to the last bit."""
    back = decode(document_of(release))
    if release.measured is None:
        assert back.measured is None
        return
    power = 10**release.query.request.summed.scale
    assert back.query.request.summed == release.query.request.summed
    assert back.measured.clipping == release.measured.clipping
    for name in ("values", "std_errors", "low", "high"):
        one, other = getattr(release.measured, name), getattr(back.measured, name)
        assert one.dtype == other.dtype
        assert np.array_equal(one / power, other / power)


def test_a_document_holds_no_duration_and_has_sorted_keys():
    """A duration depends on the data; the same release has the same bytes at any time."""
    release = made()
    assert document_of(dataclasses.replace(release, seconds=1.5)) == document_of(release)
    assert b"seconds" not in document_of(release)


def test_dates_outside_pythons_calendar_are_read_back():
    """Dates and timestamps before the year 1 and after 9999."""
    labels = pa.table(
        {
            "day": pa.array([-735160, 2147483646, 0, None], pa.int32()).view(pa.date32()),
            "moment": pa.array([-63517820276999999, 9089348860800000000, 1, None], pa.int64()).view(pa.timestamp("us")),
        }
    )
    release = made(labels)
    assert decode(document_of(release)).labels.equals(labels)


def test_a_canonical_filter_can_be_sent_again():
    """The service reads the query of a document, except for the filter that no row passes."""
    for where in WHERES:
        question = json.loads(json.dumps(question_of(changed(made().query, where=where), "reads")))
        if where == Or(()):
            assert question["where"] == {"or": []}
        else:
            assert from_dict(question).where == where


def test_an_average_of_an_earlier_version_is_still_one_of_users():
    """It says how it was clipped, and the page how it was counted; those of rows have another sentence and name."""
    old, new = (SumBounds(0, 60, column="minutes", rows=rows) for rows in (None, 5))
    numbers = np.array([4.0, 3.0])
    measured = Measured("average", numbers, numbers, numbers, numbers)
    stored = [
        dataclasses.replace(made(), measured=measured, query=query_of("user", ("item",), summed=summed, average=True))
        for summed in (old, new)
    ]
    sentences = [decode(document_of(release)).clipped for release in stored]
    assert sentences[0].startswith("each user's sum of minutes for an item is clipped to 0 to 60")
    assert sentences[1].startswith("values of minutes are clipped to 0 to 60; the rows of a user and an item have less")
    select = Select("reads", (), Measure("average", "minutes"))
    assert title_of(select, per_user=True) == "minutes per user in total"
    assert title_of(select) == "Average of minutes in total"
    assert encodable(old) != encodable(new)


@pytest.mark.parametrize(
    ("parts", "kind"),
    [
        ({}, {"kind": "users", "column": "user"}),
        ({"sensitivity": Sensitivity(None, 3)}, {"kind": "rows"}),
        ({"summed": SumBounds(0, 1, column="m"), "counts": False}, {"kind": "sum", "column": "m"}),
        (
            {"summed": SumBounds(0, 1, column="m"), "average": True},
            {"kind": "average", "column": "m"},
        ),
    ],
)
def test_the_query_names_what_was_measured(parts, kind):
    """The query is derived from the plan alone, so that equal queries have equal documents."""
    assert question_of(changed(made().query, **parts), "reads")["measure"] == kind


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"{}",
        b"[]",
        b'{"id": 1, "columns": [], "items": [], "query": {}}',
        b"\xff",
        b'{"id":"","dataset":"","question":{"where":null},"columns":[{"name":"a","type":"x"}],"items":[{}],"query":{}}',
    ],
)
def test_an_invalid_document_is_refused(document):
    """Any invalid document is refused in a sentence."""
    with pytest.raises(InputError, match="not the document of a release"):
        decode(document)


def test_items_are_those_of_the_library():
    """Decimals are text, dates ISO 8601, missing labels null."""
    labels = pa.table({"a": [Decimal("1.50"), None], "b": [datetime.date(2025, 2, 1), None]})
    items = json.loads(document_of(made(labels)))["items"]
    assert items == made(labels).to_dict()["items"]
    assert [(item["a"], item["b"]) for item in items] == [("1.50", "2025-02-01"), (None, None)]


def made(labels=None):
    """Return a small release."""
    labels = pa.table({"item": ["a", "b"]}) if labels is None else labels
    m = labels.num_rows
    return Release(
        labels,
        np.arange(m, dtype=np.int64),
        np.ones(m),
        np.zeros(m, dtype=np.int64),
        np.ones(m, dtype=np.int64),
        ordered=True,
        complete=False,
        mechanism="unknown-gumbel",
        guarantee=Guarantee(1.0, 1e-8, 0.1),
        charged=Cost(Fraction(1, 10)),
        query=query_of("user", tuple(labels.column_names), 1.0, Fraction(1, 10**8), k=5),
    )


def test_a_filter_of_the_largest_depth_is_read_back():
    """Each AND in an OR adds two levels of JSON, which is more than some parsers read."""
    where = Comparison("age", ">=", Constant(Kind.INTEGER, "18"))
    for n in range(119):
        where = (And, Or)[n % 2]((where, IsNull("country")))
    release = made()
    release = dataclasses.replace(release, query=changed(release.query, where=where))
    assert decode(document_of(release)).query.request.where == where
