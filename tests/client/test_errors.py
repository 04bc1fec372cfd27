"""Problems of a service as exceptions."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path

import pytest

from discreet.client import BudgetShort, Busy, Forbidden, NotFound, ServiceError, Suspended, Unauthorized, errors
from discreet.client.errors import error_of, read_problem
from discreet.errors import (
    BudgetExceeded,
    DiscreetError,
    EngineError,
    EngineTimeout,
    EngineUnreachable,
    InputError,
    SQLError,
    WhereError,
)
from discreet.values import Cost
from discreet.wire.problems import KINDS, PROBLEM_TYPE, problem

PAGE = Path(__file__).resolve().parents[2] / "docs" / "service" / "client.md"

TYPES = {
    "malformed": InputError,
    "unauthorized": Unauthorized,
    "budget-short": BudgetShort,
    "suspended": Suspended,
    "forbidden": Forbidden,
    "not-found": NotFound,
    "method-not-allowed": InputError,
    "not-acceptable": InputError,
    "in-flight": Busy,
    "key-reused": InputError,
    "too-large": InputError,
    "unsupported-media-type": InputError,
    "out-of-range": InputError,
    "too-many-requests": Busy,
    "internal": ServiceError,
    "engine-unavailable": EngineUnreachable,
    "engine-failed": EngineError,
    "engine-timeout": EngineTimeout,
    "store-unavailable": ServiceError,
    "data-changed": EngineError,
    "clock": ServiceError,
}
SHORT = {
    "account": "sales",
    "needed": {"rho": 0.02, "delta": 1e-8},
    "left": {"rho": 0.01, "delta": 2e-9},
    "resets_at": "2026-12-01T00:00:00+00:00",
    "fits": {"k": 3},
}


@pytest.mark.parametrize("slug", sorted(KINDS.keys() - {"budget-short"}))
def test_every_problem_is_an_error_of_its_kind_with_the_services_sentence(slug):
    """4xx are about the query or the budget, 5xx about the service or its engine."""
    error = error_of(problem(slug, "A sentence.", "req7"), 2.0)
    assert type(error) is TYPES[slug]
    assert str(error) == "A sentence."
    assert error.__notes__ == ["in the log of the service: request req7"]
    about_the_question = isinstance(error, InputError | BudgetExceeded)
    assert about_the_question == (400 <= KINDS[slug].status < 500)


def test_a_budget_refusal_names_the_account_and_what_would_fit():
    """In the message and as attributes, with the exact values."""
    error = error_of(problem("budget-short", "Short.", "r", **SHORT), None)
    assert str(error) == (
        "the answer could cost rho = 0.02 and delta = 1e-08, but account 'sales' has only 0.01 and 2e-09 left; "
        "k = 3 would still fit; some comes back at 2026-12-01 00:00 UTC"
    )
    assert error.__notes__ == ["in the log of the service: request r"]
    assert (error.account, error.fits) == ("sales", {"k": 3})
    assert error.needed == Cost(Fraction(2, 100), Fraction(1, 10**8))
    assert error.left == Cost(Fraction(1, 100), Fraction(2, 10**9))
    assert error.resets_at == datetime(2026, 12, 1, tzinfo=UTC)
    assert isinstance(error, BudgetExceeded)


def test_a_budget_refusal_may_lack_its_details():
    """All details are optional, for later versions of the service."""
    error = error_of(problem("budget-short", "Short.", "r"), None)
    assert type(error) is BudgetExceeded


@pytest.mark.parametrize("until", ["2026-12-01T00:00:00+00:00", None, "soon"])
def test_a_suspension_has_its_end(until):
    """If it ends without an officer, and if its time is valid."""
    error = error_of(problem("suspended", "Suspended.", "r", until=until), None)
    assert error.until == (datetime(2026, 12, 1, tzinfo=UTC) if until == "2026-12-01T00:00:00+00:00" else None)


@pytest.mark.parametrize("made", [SQLError("joins are not allowed", 49), WhereError("a number is missing", 4)])
def test_an_error_in_a_statement_keeps_its_type_text_and_position(made):
    """The client raises the library's own error of a statement."""
    error = error_of(problem("malformed", str(made), "r", position=made.position), None)
    assert (type(error), str(error), error.position) == (type(made), str(made), made.position)


@pytest.mark.parametrize("made", [SQLError("it is too long"), WhereError("it is too long")])
def test_an_error_without_a_position_has_none(made):
    """Some faults have no single position."""
    error = error_of(problem("malformed", str(made), "r"), None)
    assert (type(error), str(error), error.position) == (type(made), str(made), None)


def test_a_retry_after_has_its_seconds():
    """The seconds are those of Retry-After."""
    assert error_of(problem("too-many-requests", "Slow.", "r"), 7.0).retry_after == 7.0
    assert error_of(problem("in-flight", "Wait.", "r"), None).retry_after is None


def test_an_unknown_problem_is_classified_by_its_status():
    """4xx is the fault of the query, 5xx of the service."""
    made = problem("internal", "New.", "r").model_copy(update={"type": "/problems/new-thing"})
    assert type(error_of(made.model_copy(update={"status": 418}), None)) is InputError
    assert type(error_of(made.model_copy(update={"status": 599}), None)) is ServiceError


@pytest.mark.parametrize(
    ("content_type", "body", "found"),
    [
        (PROBLEM_TYPE, problem("clock", "x", "r").to_bytes(), True),
        (f"{PROBLEM_TYPE}; charset=utf-8", problem("clock", "x", "r").to_bytes(), True),
        (
            PROBLEM_TYPE,
            b'{"type":"/problems/clock","title":"","status":503,"detail":"","request_id":"","later":1}',
            True,
        ),
        ("application/json", problem("clock", "x", "r").to_bytes(), False),
        (PROBLEM_TYPE, b"{}", False),
        (PROBLEM_TYPE, b"<html>", False),
        (PROBLEM_TYPE, b"\xff", False),
        ("text/html", b"<html>", False),
        ("", b"", False),
    ],
)
def test_error_pages_of_proxies_are_no_problems(content_type, body, found):
    """An error page of a proxy is none."""
    assert (read_problem({"content-type": content_type}, body) is not None) == found


def test_the_page_draws_the_tree_of_the_module():
    """docs/service/client.md and the docstring of the module have the same classes under the same parents."""

    def drawn(text):
        lines = [line for line in text.splitlines() if "─ " in line]
        return {
            (line.index("─ "), name.strip(",")) for line in lines for name in re.findall(r"\b[A-Z]\w+,?", line[:36])
        }

    page = PAGE.read_text().partition("## Errors")[2].partition("Messages")[0]
    module = {(depth - 4, name) for depth, name in drawn(errors.__doc__)}
    assert drawn(page) - module == {(6, "SQLError"), (6, "WhereError"), (6, "EngineUnreachable"), (6, "EngineTimeout")}
    assert module <= drawn(page)


def test_all_are_discreet_errors():
    """One except clause catches them all."""
    assert all(issubclass(type_, DiscreetError) for type_ in TYPES.values())
