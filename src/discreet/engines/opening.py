"""Which engine reads a source."""

from __future__ import annotations

import importlib
import re
from typing import TYPE_CHECKING, Any

from discreet.errors import InputError

if TYPE_CHECKING:
    from discreet.engines.base import Engine

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://?", re.IGNORECASE)

ENGINES = {
    "duckdb": ("duckdb", "DuckDBEngine", None),
    "postgresql": ("postgres", "PostgresEngine", "postgres"),
    "postgres": ("postgres", "PostgresEngine", "postgres"),
    "spark": ("spark", "SparkEngine", "spark"),
    "sc": ("spark", "SparkEngine", "spark"),
    "trino": ("trino", "TrinoEngine", "trino"),
    "pinot": ("pinot", "PinotEngine", "pinot"),
    "pinots": ("pinot", "PinotEngine", "pinot"),
}
"""By the scheme of a URL: the module, its class, and the extra that brings its libraries."""


def open_engine(
    source: Any,  # noqa: ANN401 - paths, URLs and frames of four libraries
    *,
    table: str | None = None,
    view: str | None = None,
    password: str | None = None,
    timeout_seconds: float | None = None,
) -> Engine:
    """The engine that reads *source*.

    Args:
        source: a URL with one of the schemes in `ENGINES`, or whatever DuckDB reads: see
            `discreet.engines.duckdb.DuckDBEngine`.
        table: which table; a URL may name it, too.
        view: or a SELECT of the data owner's, which stands in its place.
        password: of the account, where the engine has no other way to learn it.
        timeout_seconds: how long a count may take, or None.

    Raises:
        InputError: no engine reads such a source, its library is not installed, or there is nothing there.
        EngineError: the engine cannot be reached.
    """
    scheme = _SCHEME.match(source) if isinstance(source, str) else None
    name = scheme[1].lower() if scheme else "duckdb"
    if name not in ENGINES:
        if scheme and source[scheme.end() - 2 : scheme.end()] == "//":
            raise InputError(f"no engine reads {name}:// sources; there are {', '.join(sorted(ENGINES))}")
        name = "duckdb"
    module, kind, extra = ENGINES[name]
    try:
        engine = getattr(importlib.import_module(f"discreet.engines.{module}"), kind)
    except ImportError:
        raise InputError(
            f"{name}:// sources need libraries; install them with: pip install 'discreet[{extra}]'"
        ) from None
    where = {"table": table, "view": view, "timeout_seconds": timeout_seconds}
    opened: Engine = engine(source, **where) if extra is None else engine(source, **where, password=password)
    return opened
