"""The header Accept alone selects the form."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.service.doors.http.operation import MEDIA_TYPES, negotiate
from discreet.service.problems import NotAcceptable


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        (None, "json"),
        ("", "json"),
        ("*/*", "json"),
        ("application/json", "json"),
        ("APPLICATION/JSON", "json"),
        ("application/*", "json"),
        ("text/csv", "csv"),
        ("text/*", "csv"),
        ("text/csv; q=0.5, application/json; q=0.4", "csv"),
        ("text/csv;q=0.5, */*", "json"),
        ("text/html, application/xhtml+xml, */*;q=0.8", "json"),
        ("application/vnd.apache.arrow.stream", "arrow"),
        ("application/json;q=0, */*", "csv"),
        ("application/vnd.apache.arrow.stream, text/csv;q=0.9", "arrow"),
        ("text/csv, application/json", "json"),
        ("application/json; charset=utf-8", "json"),
    ],
)
def test_the_form_with_the_largest_weight_is_given(accept, form):
    """The most specific range counts; of equals, JSON, then CSV."""
    assert negotiate(accept) == form


@pytest.mark.parametrize(
    "accept", ["image/png", "application/json;q=0", "text/html, text/plain", "x", "*/*;q=0", "*/*;q=x"]
)
def test_an_unknown_form_is_refused(accept):
    """The message lists the available forms."""
    with pytest.raises(NotAcceptable, match="application/json or text/csv or application/vnd"):
        negotiate(accept)


@given(st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=60))
def test_any_accept_header_selects_a_form_or_is_refused(accept):
    """Any header selects a form or is refused."""
    with contextlib.suppress(NotAcceptable):
        assert negotiate(accept) in MEDIA_TYPES


def test_a_refused_form_costs_nothing(service):
    """The header is checked before the query."""
    answer = service.ask(headers={"Accept": "image/png"})
    assert (answer.status_code, answer.json()["type"]) == (406, "/problems/not-acceptable")
    assert service.balance().spent.rho == 0


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "text/plain"},
        {"Content-Type": ""},
        {"Content-Type": "application/json", "Content-Encoding": "gzip"},
        {"Content-Type": "application/x-www-form-urlencoded"},
    ],
)
@pytest.mark.parametrize("route", ["/v1/query", "/v1/estimate"])
def test_a_body_with_another_content_type_than_json_is_not_read(service, route, headers):
    """The status is 415 for any content."""
    answer = service.send("POST", route, content=b'{"sql": "x"}', headers=headers)
    assert (answer.status_code, answer.json()["type"]) == (415, "/problems/unsupported-media-type")
