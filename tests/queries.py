"""Queries of a table that does not exist."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

from discreet.head_request import HeadRequest
from discreet.query.query import Query, QueryOptions
from discreet.values import number, whole

_REQUEST = {field.name for field in dataclasses.fields(HeadRequest)}
_OPTIONS = {field.name for field in dataclasses.fields(QueryOptions)}


def query_of(user="user", items=("item",), epsilon=1.0, delta=Fraction(1, 10**8), **parts):
    """Return a query; *parts* are fields of the query, its request and its options, and a sensitivity."""
    query = Query(HeadRequest(user, items, 0), QueryOptions(number(epsilon, "epsilon"), delta))
    return changed(query, **parts)


def changed(query, **parts):
    """Return *query* with other parts."""
    if "sensitivity" in parts:
        bounds = parts.pop("sensitivity")
        parts |= {"rows_per_group": bounds.rows_per_group, "groups_per_user": bounds.groups_per_user}
    if parts.get("head_limit") is not None:
        parts["head_limit"] = whole(parts["head_limit"], "head limit")
    request = dataclasses.replace(query.request, **{name: parts.pop(name) for name in _REQUEST & parts.keys()})
    options = dataclasses.replace(query.options, **{name: parts.pop(name) for name in _OPTIONS & parts.keys()})
    return dataclasses.replace(query, request=request, options=options, **parts)
