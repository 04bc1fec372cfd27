"""What the API says about itself: the analysts' routes, with every status that they answer, and an example of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from discreet.service.api.openapi_example import RELEASE
from discreet.service.representations import MEDIA_TYPES
from discreet.wire.problems import KINDS, PROBLEM_TYPE, Problem, problem
from discreet.wire.questions import BudgetReport, DatasetDetail, DatasetList, Estimate, HistoryPage, Question

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fastapi import FastAPI
    from pydantic import BaseModel

    from discreet.wire.problems import Slug

SCHEME = "key"
"""The security scheme of all routes but those that need no key."""

_REF = "#/components/schemas/{model}"
_MODELS: tuple[type[BaseModel], ...] = (Problem, Estimate, BudgetReport, DatasetList, DatasetDetail, HistoryPage)
_EVERYWHERE: tuple[Slug, ...] = (
    "unauthorized",
    "forbidden",
    "out-of-range",
    "too-many-requests",
    "internal",
    "store-unavailable",
)
_BODY: tuple[Slug, ...] = ("malformed", "too-large", "unsupported-media-type", "not-found", "engine-unavailable")

_HEADERS: Mapping[str, str] = {
    "Discreet-Release": "The id of the release.",
    "Discreet-Charged": "What the account was charged for it just now: rho=..., delta=...",
    "Discreet-Replayed": "?1 if it was there already, so that no data was asked.",
    "Discreet-Mode": "enforce, or observe if the account is charged but never refused.",
    "RateLimit-Policy": "The account's budget: q is its limit, w the seconds of its period.",
    "RateLimit": "What is left of it: r, and t seconds until some of it comes back.",
}


@dataclass(frozen=True, slots=True)
class About:
    """What there is to say about a route.

    Args:
        name: of its handler.
        method: of HTTP.
        path: with its parameters.
        summary: in a few words.
        description: in a few sentences.
        answer: the shape of the answer; None for a release.
        problems: that it may answer beside those of all routes.
        body: the shape of the request's body, or None.
        parameters: of path, query and header.
        headers: of the answer.
        tag: who it is for.
        status: of an answer.
    """

    name: str
    method: str
    path: str
    summary: str
    description: str
    answer: type[BaseModel] | None = None
    problems: tuple[Slug, ...] = ()
    body: type[BaseModel] | None = None
    parameters: tuple[Mapping[str, Any], ...] = ()
    headers: tuple[str, ...] = field(default=())
    tag: str = "analysts"
    status: int = 200

    def told(self) -> dict[str, Any]:
        """The same in FastAPI's words."""
        extra: dict[str, Any] = {"security": [{SCHEME: []}], "parameters": list(self.parameters)}
        if self.body is not None:
            schema = {"$ref": _REF.format(model=self.body.__name__)}
            extra["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
        return {
            "operation_id": self.name,
            "summary": self.summary,
            "description": self.description,
            "tags": [self.tag],
            "openapi_extra": extra,
            "status_code": self.status,
            "responses": {self.status: self._answer(), **problem_responses(*_EVERYWHERE, *self.problems)},
        }

    def _answer(self) -> dict[str, Any]:
        headers = {name: {"description": _HEADERS[name], "schema": {"type": "string"}} for name in self.headers}
        about: dict[str, Any] = (
            {"description": self.summary, "headers": headers} if headers else {"description": self.summary}
        )
        if self.status == 204:
            return about
        if self.answer is not None:
            schema = {"$ref": _REF.format(model=self.answer.__name__)}
            return {**about, "content": {"application/json": {"schema": schema}}}
        text = {"schema": {"type": "string"}}
        binary = {"schema": {"type": "string", "format": "binary"}}
        release = {"schema": {"$ref": _REF.format(model="Release")}}
        contents = dict(zip(MEDIA_TYPES.values(), (release, text, binary), strict=True))
        return {**about, "content": contents}


def problem_responses(*slugs: Slug) -> dict[int | str, dict[str, Any]]:
    """The responses that say one of the problems, by status, each with an example of every kind."""
    by_status: dict[int | str, dict[str, Any]] = {}
    for slug in dict.fromkeys(slugs):
        kind = KINDS[slug]
        made = by_status.setdefault(kind.status, {"description": kind.title, "content": {}})
        if kind.title not in made["description"]:
            made["description"] += f"; or: {kind.title}"
        shown = made["content"].setdefault(
            PROBLEM_TYPE, {"schema": {"$ref": _REF.format(model="Problem")}, "examples": {}}
        )
        example = problem(slug, f"{kind.title}.", "5c1f0d2e").model_dump(exclude_none=True)
        shown["examples"][slug] = {"summary": f"Charged: {kind.charged}.", "value": example}
    return by_status


def schema_of(app: FastAPI, more: Sequence[About] = ()) -> dict[str, Any]:
    """The OpenAPI document of *app*, made once.

    Args:
        app: the application.
        more: its routes beside those of analysts.
    """
    if app.openapi_schema is None:
        made = get_openapi(
            title=app.title,
            version=app.version,
            description="Differentially private answers at the expense of budgets that nobody overspends.",
            routes=app.routes,
        )
        components = made.setdefault("components", {})
        answers: dict[type[BaseModel], None] = dict.fromkeys(_MODELS)
        bodies: dict[type[BaseModel], None] = {Question: None}
        for about in more:
            answers |= {about.answer: None} if about.answer else {}
            bodies |= {about.body: None} if about.body else {}
        _, shapes = models_json_schema([(model, "serialization") for model in answers], ref_template=_REF)
        _, asked = models_json_schema([(model, "validation") for model in bodies], ref_template=_REF)
        components["schemas"] = {
            **components.get("schemas", {}),
            **shapes["$defs"],
            **asked["$defs"],
            "Release": RELEASE,
        }
        components["securitySchemes"] = {
            **components.get("securitySchemes", {}),
            SCHEME: {"type": "http", "scheme": "bearer", "description": "An API key, or a token of the issuer."},
        }
        app.openapi_schema = made
    return app.openapi_schema


def parameter_of(name: str, place: str, schema: Mapping[str, Any], description: str) -> dict[str, Any]:
    """A parameter in OpenAPI's words."""
    return {"name": name, "in": place, "required": place == "path", "schema": schema, "description": description}


_KEY = parameter_of(
    "Idempotency-Key",
    "header",
    {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[!-~]+$"},
    "Names the request: sent again with the same body, it is charged once.",
)
_NAME = parameter_of("name", "path", {"type": "string"}, "Of the dataset.")
_RELEASE_ID = parameter_of("id", "path", {"type": "string"}, "Of the release.")
_PAGE = (
    parameter_of("limit", "query", {"type": "integer", "minimum": 1, "maximum": 100, "default": 20}, "Of answers."),
    parameter_of("before", "query", {"type": "integer", "minimum": 1}, "The `next` of the page before."),
)

ANALYSTS: tuple[About, ...] = (
    About(
        "query",
        "POST",
        "/v1/query",
        "A private answer",
        "Reserves the worst case, asks the data, adds noise, charges what the answer cost and answers what was "
        "stored. The same question about the same version of the data is answered with the same bytes, and free.",
        None,
        (
            *_BODY,
            "not-acceptable",
            "budget-short",
            "suspended",
            "in-flight",
            "key-reused",
            "engine-failed",
            "engine-timeout",
            "data-changed",
            "clock",
        ),
        Question,
        (_KEY,),
        tuple(_HEADERS),
    ),
    About(
        "estimate",
        "POST",
        "/v1/estimate",
        "What a question could cost",
        "Plans the question and holds its worst case against the budget. No data is touched and nothing is reserved.",
        Estimate,
        _BODY,
        Question,
    ),
    About(
        "budget",
        "GET",
        "/v1/budget",
        "How the account stands",
        "The account of the key, and what is left of the accounts above it, which others share.",
        BudgetReport,
    ),
    About(
        "datasets",
        "GET",
        "/v1/datasets",
        "What may be asked about",
        "The datasets that were granted to the account of the key.",
        DatasetList,
    ),
    About(
        "dataset",
        "GET",
        "/v1/datasets/{name}",
        "What may be asked about one dataset",
        "The columns that were granted, and what may be asked about each.",
        DatasetDetail,
        ("not-found",),
        None,
        (_NAME,),
    ),
    About(
        "releases",
        "GET",
        "/v1/releases",
        "What was paid for",
        "The answers that the account of the key has paid for, newest first.",
        HistoryPage,
        (),
        None,
        _PAGE,
    ),
    About(
        "release",
        "GET",
        "/v1/releases/{id}",
        "An answer that was paid for",
        "The stored bytes, as they were answered. Free.",
        None,
        ("not-found", "not-acceptable"),
        None,
        (_RELEASE_ID,),
        ("Discreet-Release",),
    ),
)
"""The routes of analysts; their handlers are in `discreet.service.api.query`."""
