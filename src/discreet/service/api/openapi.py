"""The OpenAPI document, from the declarations of the operations, and a page that shows it."""

from __future__ import annotations

import json
from functools import lru_cache
from html import escape
from typing import TYPE_CHECKING, Any

from pydantic.json_schema import models_json_schema
from starlette.responses import Response

from discreet._version import __version__
from discreet.service.api.operation import Operation
from discreet.wire.problems import KINDS, PROBLEM_TYPE, Problem, problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pydantic import BaseModel

    from discreet.wire.problems import Slug

_REF = "#/components/schemas/{model}"
_SCHEME = "key"
_TAGS = {"analyst": "queries", "officer": "administration", "admin": "administration", None: "service"}


_PROTOCOL = {"408": "The request was not sent in time", "431": "The headers are too large"}
"""Problems of HTTP itself, whatever the operation."""

_PROTOCOL_PROBLEM: Mapping[str, Any] = {
    "type": "object",
    "description": "A problem that is found before the request is read; nothing is charged.",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"const": "about:blank"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
    },
}

_STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1a1a1a}
code,pre{font:14px/1.45 ui-monospace,monospace}pre{background:#f5f5f5;padding:.8rem;overflow-x:auto}
table{border-collapse:collapse}td,th{border:1px solid #ccc;padding:.2rem .6rem;text-align:left;vertical-align:top}"""


class OpenAPI:
    """Serves the OpenAPI document, and a page that shows it without a script and without another server."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        # Made by the first request: it takes longer than everything else at startup.
        self._document = lru_cache(1)(lambda: openapi_document(operations))

    @Operation("GET", "/docs", role=None)
    async def docs(self) -> Response:
        """Return the OpenAPI document as a page."""
        headers = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
        return Response(html_page(self._document()), media_type="text/html", headers=headers)

    @Operation("GET", "/openapi.json", role=None)
    async def openapi(self) -> Response:
        """Return the OpenAPI document."""
        return Response(json.dumps(self._document()), media_type="application/json")


def openapi_document(operations: Iterable[Operation]) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of *operations*, with an example of each problem that they can answer."""
    paths: dict[str, dict[str, Any]] = {}
    answers: dict[type[BaseModel], None] = {Problem: None}
    bodies: dict[type[BaseModel], None] = {}
    for each in operations:
        paths.setdefault(each.path.replace(":path}", "}"), {})[each.method.lower()] = _operation_object(each)
        answers |= dict.fromkeys([*([each.answer] if each.answer else []), *each.other_answers.values()])
        bodies |= {} if each.body is None else {each.body: None}
    _, answered = models_json_schema([(model, "serialization") for model in answers], ref_template=_REF)
    _, sent = models_json_schema([(model, "validation") for model in bodies], ref_template=_REF)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Discreet",
            "version": __version__,
            "description": "Differentially private answers within budgets that cannot be overspent.",
        },
        "paths": paths,
        "components": {
            "schemas": {**answered["$defs"], **sent["$defs"], "Release": RELEASE, "ProtocolProblem": _PROTOCOL_PROBLEM},
            "securitySchemes": {
                _SCHEME: {"type": "http", "scheme": "bearer", "description": "An API key, or a token of the issuer."}
            },
        },
    }


def html_page(document: Mapping[str, Any]) -> str:
    """Return an OpenAPI document as a page of its own: operations with their parameters and responses, then schemas."""
    info = document["info"]
    parts = [f"<h1>{escape(info['title'])} {escape(info['version'])}</h1><p>{escape(info['description'])}</p>"]
    parts.append('<p>For programs: <a href="/openapi.json">openapi.json</a> (OpenAPI 3.1).</p>')
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            parts.append(
                f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{escape(operation['description'])}</p>"
            )
            given = [(p["name"], p["in"], p["description"]) for p in operation["parameters"]]
            if "requestBody" in operation:
                (content,) = operation["requestBody"]["content"].values()
                given.append((_schema_name(content), "body", "JSON"))
            answers = [
                (status, answer["description"], ", ".join(map(_schema_name, answer.get("content", {}).values())))
                for status, answer in sorted(operation["responses"].items())
            ]
            parts.append(_table(("parameter", "in", "description"), given) if given else "")
            parts.append(_table(("status", "description", "schema"), answers))
    parts.append("<h2>Schemas</h2>")
    for name, schema in sorted(document["components"]["schemas"].items()):
        text = escape(json.dumps(schema, indent=2, ensure_ascii=False))
        parts.append(
            f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary><pre>{text}</pre></details>'
        )
    head = f'<meta charset="utf-8"><title>{escape(info["title"])}: API</title><style>{_STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>'


def _schema_name(content: Mapping[str, Any]) -> str:
    """Return the name of the schema of a content, or its type."""
    schema = content["schema"]
    return str(schema["$ref"]).rpartition("/")[2] if "$ref" in schema else str(schema.get("type", ""))


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _operation_object(each: Operation) -> dict[str, Any]:
    made: dict[str, Any] = {
        "operationId": each.name,
        "summary": each.summary,
        "description": each.description,
        "tags": [_TAGS[each.role]],
        "parameters": [
            {
                "name": parameter.name,
                "in": parameter.location,
                "required": parameter.required,
                "schema": parameter.schema,
                "description": parameter.description,
            }
            for parameter in each.parameters
        ],
        "responses": {
            str(each.status): _success_response(each),
            **{str(status): _json_response(each.summary, model) for status, model in each.other_answers.items()},
            **_problem_responses(each.all_problems),
            **{
                status: {
                    "description": title,
                    "content": {PROBLEM_TYPE: {"schema": {"$ref": _REF.format(model="ProtocolProblem")}}},
                }
                for status, title in _PROTOCOL.items()
            },
        },
    }
    if each.role is not None:
        made["security"] = [{_SCHEME: []}]
    if each.body is not None:
        made["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _schema_reference(each.body)}},
        }
    return made


def _success_response(each: Operation) -> dict[str, Any]:
    made: dict[str, Any] = {"description": each.summary}
    if each.headers:
        made["headers"] = {
            name: {"description": about, "schema": {"type": "string"}} for name, about in each.headers.items()
        }
    if each.answer is not None:
        made |= _json_response(each.summary, each.answer)
    if each.contents:
        made["content"] = made.get("content", {}) | {
            media: {"schema": schema} for media, schema in each.contents.items()
        }
    return made


def _json_response(description: str, model: type[BaseModel]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": _schema_reference(model)}}}


def _problem_responses(slugs: Iterable[Slug]) -> dict[str, dict[str, Any]]:
    """Return the responses that are problems by status, each with an example of every kind."""
    by_status: dict[str, dict[str, Any]] = {}
    for slug in slugs:
        kind = KINDS[slug]
        made = by_status.setdefault(
            str(kind.status),
            {
                "description": kind.title,
                "content": {PROBLEM_TYPE: {"schema": _schema_reference(Problem), "examples": {}}},
            },
        )
        if kind.title not in made["description"]:
            made["description"] += f"; or: {kind.title}"
        example = problem(slug, f"{kind.title}.", "5c1f0d2e").model_dump(exclude_none=True)
        made["content"][PROBLEM_TYPE]["examples"][slug] = {"summary": f"Charged: {kind.charged}.", "value": example}
    return by_status


def _schema_reference(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": _REF.format(model=model.__name__)}


_RELEASE_EXAMPLE: Mapping[str, Any] = {
    "id": "5f2c" * 16,
    "dataset": "reads",
    "question": {
        "dataset": "reads",
        "items": ["article"],
        "measure": {"kind": "users", "column": "reader"},
        "where": {"column": "country", "operator": "=", "constant": {"text": "IN"}},
        "k": 10,
    },
    "data_version": "2026-11-20T04:00+01:00",
    "mechanism": "unknown-gumbel",
    "chosen": None,
    "why": None,
    "ordered": True,
    "complete": False,
    "clipped": None,
    "clipping": None,
    "columns": [
        {"name": "rank", "type": "integer"},
        {"name": "article", "type": "text"},
        {"name": "count", "type": "integer"},
        {"name": "std_error", "type": "float"},
        {"name": "low", "type": "integer"},
        {"name": "high", "type": "integer"},
    ],
    "items": [
        {"rank": 1, "article": "the-last-mile", "count": 20341, "std_error": 30.5, "low": 20279, "high": 20403},
    ],
    "privacy": {
        "unit": "user",
        "neighbours": "tables that differ in all rows of one user, added or removed",
        "epsilon": 0.5,
        "delta": 1e-8,
        "rho": 0.0036,
        "computational": True,
    },
    "charged": {"rho": 0.0011, "delta": 5e-9},
    "query": {
        "user": "reader",
        "items": ["article"],
        "k": 10,
        "epsilon": 0.5,
        "delta": 1e-8,
        "filtered": True,
        "known_domain": False,
        "groups_per_user": None,
        "rows_per_user_and_item": 1,
        "relative_error": None,
        "counts": True,
        "summed": None,
        "average": False,
        "keep_missing": False,
        "bounds": None,
    },
}

RELEASE: Mapping[str, Any] = {
    "type": "object",
    "description": "A release. The same query of the same data gives the same bytes.",
    "required": list(_RELEASE_EXAMPLE),
    "properties": {
        "id": {"type": "string", "description": "The id of the release."},
        "dataset": {"type": "string"},
        "question": {"type": "object", "description": "The query in canonical form."},
        "data_version": {"type": ["string", "null"], "description": "Which state of the data it is about."},
        "mechanism": {"type": "string"},
        "chosen": {"type": ["string", "null"], "description": "The mechanism that auto took."},
        "why": {"type": ["string", "null"], "description": "Why, from noisy numbers only."},
        "ordered": {"type": "boolean", "description": "True if the order of the items is a ranking."},
        "complete": {"type": "boolean", "description": "True if all items that the query asks for were returned."},
        "clipped": {"type": ["string", "null"], "description": "How much of one user counts, if not all of it does."},
        "clipping": {
            "type": ["object", "null"],
            "description": "The privately chosen bound of sums, and a 95 % interval for the share of a user's sums "
            "above it.",
        },
        "columns": {
            "type": "array",
            "description": "Names and types of what is in the items, in order.",
            "items": {
                "type": "object",
                "required": ["name", "type"],
                "properties": {"name": {"type": "string"}, "type": {"type": "string"}},
            },
        },
        "items": {"type": "array", "items": {"type": "object"}},
        "privacy": {"type": "object", "description": "The guarantee to every single user."},
        "charged": {"type": "object", "description": "What it cost the first account that got it."},
        "query": {"type": "object", "description": "The query with its parameters, as in the library."},
    },
    "examples": [_RELEASE_EXAMPLE],
}
