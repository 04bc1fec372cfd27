"""Requests as JSON: what is read, what is refused, and that refusals repeat nothing that was sent."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.wire.queries import BudgetReport, Malformed, QueryRequest, read_body

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text("hush4711 ", min_size=4, max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from([*QueryRequest.model_fields, "nonsense"])


@given(st.dictionaries(FIELDS, VALUES, max_size=4) | VALUES)
def test_any_json_is_a_query_or_malformed(sent):
    """One sentence, without a value that was sent."""
    message = ""
    try:
        question = read_body(QueryRequest, json.dumps(sent).encode())
    except Malformed as error:
        message = str(error)
    else:
        assert (question.sql is None) != (question.query is None)
    assert len(message) < 250
    assert not {"\n", "hush", "4711"} & {message[i : i + n] for n in (1, 4) for i in range(len(message))}


@given(st.binary(max_size=40))
def test_any_bytes_are_a_query_or_malformed(body):
    """Also those that are no UTF-8."""
    with pytest.raises(Malformed):
        read_body(QueryRequest, body)


def test_numbers_are_exact():
    """Text stays text, so that 1e-8 is a hundred-millionth; whole numbers are numbers, true is none."""
    question = read_body(QueryRequest, b'{"sql": "x", "epsilon": 1, "delta": "1e-8", "relative_error": 0.5}')
    assert (question.epsilon, question.delta, question.relative_error) == (1.0, "1e-8", 0.5)
    for wrong in (b'{"sql": "x", "epsilon": true}', b'{"sql": "x", "head_limit": 1e3}'):
        with pytest.raises(Malformed):
            read_body(QueryRequest, wrong)


def test_a_query_that_was_written_is_read_as_the_same():
    """A client sends what the service reads."""
    question = QueryRequest(
        query={"dataset": "reads", "items": [], "measure": {"kind": "rows"}}, epsilon=0.5, delta="1e-8", counts=False
    )
    assert read_body(QueryRequest, question.model_dump_json().encode()) == question


def test_answers_of_a_newer_service_are_read():
    """Fields that an older client does not know are passed over; what it needs is still needed."""
    fields = BudgetReport.model_json_schema()["required"]
    with pytest.raises(ValueError, match=f"{len(fields)} validation errors"):
        BudgetReport.model_validate({"new": 1})
