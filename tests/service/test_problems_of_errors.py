"""The problem of every error, as published: programs depend on its name, status, sentence and headers."""

from __future__ import annotations

import contextlib
import importlib
import json
import pkgutil
from fractions import Fraction
from pathlib import Path

import pytest
from starlette.exceptions import HTTPException

import discreet
from discreet import client, errors
from discreet.budget import errors as budget
from discreet.budget.model import Refusal
from discreet.catalog.loader import CatalogError
from discreet.service import problems
from discreet.service.doors.pages.site import InvalidCsrfToken
from discreet.service.peers import PeerUnreachable
from discreet.service.server import WorkerDied
from discreet.service.settings import SettingsError
from discreet.values import Cost
from discreet.wire.problems import KINDS, Fitting, problem
from discreet.wire.queries import Malformed

PUBLISHED = json.loads(Path(__file__).with_name("problems.json").read_text())
"""The kinds of problems in the order of the documentation, and the problems of errors before and after a run began."""

REFUSAL = Refusal("sales", Cost(Fraction(1, 3), Fraction(1, 10**8)), Cost(Fraction(1, 7)), 1_795_000_000_000_000)
HUSH = "row 4711 says hush"

ERRORS = {
    "HTTPException 405": HTTPException(405, headers={"Allow": "GET"}),
    "HTTPException 404": HTTPException(404, detail=HUSH),
    "HTTPException 400": HTTPException(400, detail=HUSH),
    "ValueError": ValueError(HUSH),
    "KeyError": KeyError(HUSH),
    "MemoryError": MemoryError(),
    "WhereError at 4": errors.WhereError("a number is missing", 4),
    "SQLError at 0": errors.SQLError("joins are not allowed", 0),
    "Malformed at 3": Malformed("no", 3),
    "UnaffordableQuery that nothing fits": problems.UnaffordableQuery(Refusal("a", Cost(), Cost(), None), None),
} | {
    type(error).__name__: error
    for error in (
        errors.DiscreetError(HUSH),
        errors.InputError("epsilon is too large"),
        errors.UnknownColumn("colour", ["color"]),
        errors.WhereError("it is too long"),
        errors.SQLError("it is too long"),
        errors.EngineError(HUSH),
        errors.EngineUnreachable(HUSH),
        errors.EngineBusy(HUSH),
        errors.EngineTimeout(HUSH),
        errors.UnfitData(HUSH),
        errors.InexactHead(HUSH),
        errors.InvariantViolated(HUSH),
        budget.UnknownAccount("ann"),
        budget.AccountChanged(),
        budget.KeyReused(),
        budget.BudgetRefused(REFUSAL),
        budget.AccountSuspended("ann", 1_795_000_000_000_000),
        budget.DataChanged(),
        budget.ClockError(),
        budget.LeaseLost(),
        budget.StoreUnavailable(HUSH),
        budget.StoreInUse(HUSH),
        budget.StoreBehind(HUSH),
        budget.LedgerBroken(HUSH, 1, 2),
        budget.ReleaseDamaged(bytes(32)),
        CatalogError(Path("catalog.toml"), ["a sentence"]),
        SettingsError(Path("discreet.toml"), ["a sentence"]),
        Malformed("the body must be JSON"),
        InvalidCsrfToken(),
        PeerUnreachable(),
        WorkerDied(HUSH),
        problems.KeyRefused("expired", "4711"),
        problems.RoleRefused("analyst"),
        problems.IssuerUnavailable(),
        errors.NotFound(),
        problems.TooLarge(1000),
        problems.UnsupportedMediaType("application/json"),
        problems.NotAcceptable(("JSON", "CSV")),
        problems.TooManyRequests(1.2),
        problems.RequestInFlight(),
        problems.StatementsUnavailable(),
        problems.StatementFailed(),
        problems.UnaffordableQuery(REFUSAL, Fitting(k=3)),
        problems.ClientDisconnected(),
    )
}
"""Errors by name; every class that the service could meet is here."""


def published(error):
    """Return the problem of *error* as the parts of a response, without those that are absent."""
    found = problems.problem_of(error)
    made = problem(found.slug, found.detail, "r", **found.more)
    body = json.loads(made.to_bytes())
    del body["request_id"], body["title"], body["type"]
    return {"slug": found.slug, **body, "headers": dict(found.headers)}


def failed(cause):
    """Return the error of a run that *cause* ended after the data was queried."""
    error = problems.RunFailed("reservation")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_the_problem_of_an_error_is_the_published_one(name):
    """Before a run begins nothing is charged; after it, no message is sent that the data could decide."""
    assert published(ERRORS[name]) == PUBLISHED["before a run"][name]
    assert published(failed(ERRORS[name])) == PUBLISHED["failed run"][name]


def test_the_kinds_of_problems_are_the_published_ones():
    """Clients know them by name; their order is that of the documentation."""
    found = {slug: [kind.status, kind.title, kind.charged] for slug, kind in KINDS.items()}
    assert list(found.items()) == [*PUBLISHED["kinds"].items()]


def test_every_error_has_a_published_problem():
    """A new error needs a decision: its message is shown to users, or replaced."""
    for module in pkgutil.walk_packages(discreet.__path__, "discreet."):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(ModuleNotFoundError):  # of an engine whose client is not installed
                importlib.import_module(module.name)
    found, classes = set(), [errors.DiscreetError]
    while classes:
        each = classes.pop()
        classes += each.__subclasses__()
        # the client raises its own, and so do engines, which catch those below
        if each.__module__.startswith("discreet.") and not each.__module__.startswith("discreet.client."):
            found.add(each.__name__)
    assert found - ERRORS.keys() - {"_NotFoundError"} == {  # Spark catches its own, and its client may be missing
        "BudgetExceeded",  # raised by a budget in memory, which a service does not have
        "TomlError",  # raised as CatalogError or SettingsError
        "RunFailed",  # has the problem of its cause
        "ClickHouseNotFoundError",
        "TrinoNotFoundError",
        "ForbiddenError",
        "_DryRun",  # ends a transaction, which catches it
    }
    assert issubclass(client.ServiceError, errors.DiscreetError)
