"""Statements over the Trino client protocol, sent to a service in this process."""

from __future__ import annotations

import threading
from urllib.parse import quote, urlsplit


class Blocked:
    """An engine that counts only once `go_on` is set, and reports progress before.

    Args:
        service: has hooks of its engines in `engines`.
    """

    def __init__(self, service):
        self.begun, self.go_on, self.ended = threading.Event(), threading.Event(), threading.Event()
        service.engines.head = self

    def __call__(self, count, progress):
        self.begun.set()
        try:
            while not self.go_on.wait(0.01):
                progress(0.5)
            return count()
        finally:
            self.ended.set()


def post(service, sql, who="ann", session=None, **headers):
    """POST a statement and return the reply."""
    sent = {f"X-Trino-{name.replace('_', '-').title()}": text for name, text in headers.items()}
    if session:
        sent["X-Trino-Session"] = ",".join(f"{name}={quote(str(value), safe='')}" for name, value in session.items())
    return service.send("POST", "/v1/statement", who, content=sql.encode(), headers=sent)


def page(service, reply, who="ann", method="GET", **headers):
    """Request the page that a reply names and return its reply."""
    return service.send(method, urlsplit(reply.json()["nextUri"]).path, who, headers=headers)


def answered(service, reply, who="ann"):
    """Request the page that a reply names until it is answered, and return the reply with its rows."""
    reply = page(service, reply, who)
    while "nextUri" in reply.json() and "data" not in reply.json():
        reply = page(service, reply, who)
    return reply


def last(service, reply, who="ann"):
    """Follow a statement to its last page and return that reply's JSON, with the data of all pages."""
    rows = []
    while "nextUri" in reply.json():
        reply = page(service, reply, who)
        assert reply.status_code == 200, reply.text
        rows += reply.json().get("data", [])
    return {**reply.json(), "data": rows or reply.json().get("data", [])}


def run(service, sql, who="ann", session=None, **headers):
    """Send a statement and return the JSON of its last reply, with the data of all pages."""
    reply = post(service, sql, who, session, **headers)
    assert reply.status_code == 200, reply.text
    return last(service, reply, who)


def rows(service, sql, who="ann", session=None, **headers):
    """Return the rows of a statement, which must succeed."""
    found = run(service, sql, who, session, **headers)
    assert "error" not in found, found["error"]
    return found["data"]


def error(service, sql, who="ann", session=None, **headers):
    """Return the error of a statement, which must fail."""
    return run(service, sql, who, session, **headers)["error"]
