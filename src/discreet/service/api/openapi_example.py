"""An example of a release for the API's description of itself, and the shape that it is an example of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_ID = "5f2c" * 16

DOCUMENT: Mapping[str, Any] = {
    "id": _ID,
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
    "ordered": True,
    "complete": False,
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
    "description": "A release. The same question gives the same bytes.",
    "required": list(DOCUMENT),
    "properties": {
        "id": {"type": "string", "description": "Its name."},
        "dataset": {"type": "string"},
        "question": {"type": "object", "description": "What was asked, in canonical form."},
        "data_version": {"type": ["string", "null"], "description": "Which state of the data it is about."},
        "mechanism": {"type": "string"},
        "ordered": {"type": "boolean", "description": "True if the order of the items is a ranking."},
        "complete": {"type": "boolean", "description": "True if all that was asked for was returned."},
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
        "privacy": {"type": "object", "description": "What is promised to every single user."},
        "charged": {"type": "object", "description": "What it cost whom it was first answered to."},
        "query": {"type": "object", "description": "What was asked, as the library says it."},
    },
    "examples": [DOCUMENT],
}
