"""Whether and when a request is retried."""

from __future__ import annotations

import pytest

from discreet.client.retries import MAX_SECONDS, HttpReply, NoReply, pause_before_next, read_retry_after
from discreet.wire.problems import KINDS, PROBLEM_TYPE, problem

AGAIN = {"in-flight", "too-many-requests", "engine-unavailable", "store-unavailable"}
"""All other problems are not retried."""

BROKEN = NoReply("the connection broke", final=False)


def reply_with(slug, **headers):
    """Return a reply with a problem."""
    body = problem(slug, "a sentence", "r").to_bytes()
    return HttpReply(KINDS[slug].status, {"content-type": PROBLEM_TYPE, **headers}, body)


@pytest.mark.parametrize("slug", sorted(KINDS))
def test_only_problems_that_cost_nothing_are_retried(slug):
    """A failed run is a forfeit, and five suspend the account; a refusal is final."""
    reply = reply_with(slug)
    again = pause_before_next(reply, int(reply.failed), int(reply.waits), 3, 0.5) is not None
    assert again == (slug in AGAIN)


@pytest.mark.parametrize(
    ("status", "again"),
    [(None, True), (502, True), (503, True), (504, True), (429, True), (500, False), (403, False), (409, False)],
)
def test_errors_of_gateways_are_retried(status, again):
    """A proxy's 502, 503 and 504, and a broken connection; no other response without a problem document."""
    reply = BROKEN if status is None else HttpReply(status, {}, b"")
    assert (pause_before_next(reply, 1, 1, 3, 0.5) is not None) == again


def test_final_errors_are_not_retried():
    """An untrusted certificate, for example, will not become trusted."""
    assert pause_before_next(NoReply("not trusted", final=True), 1, 0, 3, 0.5) is None


def test_pauses_double_with_jitter():
    """Exponential backoff with half of it random; bounded."""
    pauses = [pause_before_next(BROKEN, n, 0, 100, 0.0) for n in range(1, 12)]
    assert pauses[:4] == [0.125, 0.25, 0.5, 1.0]
    assert pauses[-1] == MAX_SECONDS / 2
    assert pause_before_next(BROKEN, 100, 0, 100, 1.0) == MAX_SECONDS
    assert pause_before_next(BROKEN, 2, 0, 3, 1.0) == 0.5


def test_failures_have_a_maximum_number_of_retries_and_running_queries_have_none():
    """A running query is awaited until the deadline."""
    assert pause_before_next(BROKEN, 3, 0, 3, 0.5) is not None
    assert pause_before_next(BROKEN, 4, 0, 3, 0.5) is None
    assert pause_before_next(reply_with("in-flight"), 0, 10_000, 0, 0.5) is not None


@pytest.mark.parametrize("chance", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("seconds", [0, 1, 3600])
def test_a_retry_is_never_earlier_than_retry_after(seconds, chance):
    """A retry is never earlier than the requested time, nor much later."""
    pause = pause_before_next(reply_with("engine-unavailable", **{"retry-after": str(seconds)}), 5, 0, 10, chance)
    assert seconds <= pause <= seconds + 1.0


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": " 0 "}, 0.0),
        ({"retry-after": "Fri, 20 Nov 2026 10:00:30 GMT", "date": "Fri, 20 Nov 2026 10:00:00 GMT"}, 30.0),
        ({"retry-after": "Fri, 20 Nov 2026 10:00:00 GMT", "date": "Fri, 20 Nov 2026 10:00:30 GMT"}, 0.0),
        ({"retry-after": "Fri, 20 Nov 2026 10:00:30 GMT"}, None),
        ({"retry-after": "Fri, 20 Nov 2026 10:00:30 -0000", "date": "Fri, 20 Nov 2026 10:00:00 GMT"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "1.5"}, None),
        ({"retry-after": "²"}, None),
        ({"retry-after": "9" * 5000}, None),
        ({}, None),
    ],
)
def test_retry_after_is_read_in_both_forms_and_ignored_if_invalid(headers, seconds):
    """Seconds, or a date relative to the response's own date."""
    assert read_retry_after(headers) == seconds
