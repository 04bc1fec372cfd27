"""The engine that reads a source, by the scheme of its URL or its type."""

from __future__ import annotations

import importlib
import re
import typing
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from discreet.engines.url import parse_url  # noqa: F401 - engines of other packages may import it from here
from discreet.errors import InputError, how_to_install

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
    "clickhouse": ("clickhouse", "ClickHouseEngine", None),
    "delta": ("lakehouse", "DeltaEngine", "delta"),
    "iceberg": ("lakehouse", "IcebergEngine", "iceberg"),
    "pinot": ("pinot", "PinotEngine", None),
    "pinots": ("pinot", "PinotEngine", None),
}
"""For each URL scheme, the module, its class, and the extra that installs its libraries, if it needs any."""

GROUP = "discreet.engines"
"""Entry points of engines in other packages: a scheme, and a class with the parameters of `open_engine`."""


def open_engine(
    source: Any,  # noqa: ANN401 - paths, URLs and frames of four libraries
    *,
    table: str | None = None,
    view: str | None = None,
    password: str | None = None,
    timeout_seconds: float | None = None,
    cast: Mapping[str, str] | None = None,
    defers_check: bool = False,
) -> Engine:
    """Return the engine that reads *source*.

    Args:
        source: a URL with one of the schemes in `ENGINES` or of an installed package, or a source of
            `discreet.engines.duckdb.DuckDBEngine`.
        table: name of the table, if the URL does not name it.
        view: a SELECT of the data owner, used instead of a table.
        password: password of the account, if the engine finds it nowhere else.
        timeout_seconds: time limit of a query, or None.
        cast: types of columns of files and frames, as in `discreet.scan`, or None.
        defers_check: as in `discreet.engines.duckdb.DuckDBEngine`; other engines have nothing to defer.

    Raises:
        InputError: no engine reads such a source, its library is not installed, or the source does not exist.
        EngineError: the engine cannot be reached.
    """
    where: dict[str, Any] = {"table": table, "view": view, "timeout_seconds": timeout_seconds}
    kind, takes_password = _class_of(source)
    if cast:
        if takes_password:
            raise InputError(
                "only columns of files, DuckDB tables and frames in memory can be cast; cast others in a view, or by "
                "withColumn() of a Spark DataFrame"
            )
        where["cast"] = cast
    if takes_password:
        return kind(source, **where, password=password)
    return kind(source, **where, defers_check=defers_check)


def source_fingerprint(source: Any) -> str | None:  # noqa: ANN401 - as in `open_engine`
    """Return a public text that changes whenever *source* changes; an engine opened before then refuses it.

    Returns:
        the paths, inodes, sizes and times of files, or the snapshot of a Delta or Iceberg table. None for frames, and
        for servers, which always answer from their present state.

    Raises:
        InputError: no engine reads such a source, its library is not installed, or there is no such file.
        EngineUnreachable: the table cannot be read.
        OSError: a file cannot be reached.
    """
    fingerprint: str | None = getattr(_class_of(source)[0], "fingerprint", lambda _: None)(source)
    return fingerprint


def _class_of(source: Any) -> tuple[Callable[..., Engine], bool]:  # noqa: ANN401 - as in `open_engine`
    """Return the class of the engine that reads *source*, and whether it takes a password.

    Raises:
        InputError: as `open_engine`.
    """
    frame = _frame_of_spark(source)
    if frame is not None:
        return frame, True
    scheme = _SCHEME.match(source) if isinstance(source, str) else None
    name = scheme[1].lower() if scheme else "duckdb"
    if name in ENGINES and name != "duckdb":
        return _builtin(name), True
    if (plugin := _installed(name)) is not None:
        return plugin, True
    if name != "duckdb" and scheme and scheme[0].endswith("//"):
        from importlib.metadata import entry_points

        others = {point.name for point in entry_points(group=GROUP)}
        raise InputError(f"no engine reads {name}:// sources; there are {', '.join(sorted({*ENGINES, *others}))}")
    return _builtin("duckdb"), False


def _frame_of_spark(source: Any) -> Callable[..., Engine] | None:  # noqa: ANN401 - as in `open_engine`
    """Return the class of the engine that reads a data frame of Spark, or None for another source.

    Raises:
        InputError: *source* is another type of PySpark.
    """
    module = type(source).__module__
    name = type(source).__name__
    if not module.startswith("pyspark."):
        return None
    if module.startswith("pyspark.pandas.") or name != "DataFrame":
        raise InputError(
            f"a Spark DataFrame is a source, {name} of {module} is not; convert it, for example by to_spark()"
        )
    from discreet.engines.spark_frame import SparkFrameEngine

    return SparkFrameEngine


def _builtin(name: str) -> Callable[..., Engine]:
    """Return the class of an engine in `ENGINES`.

    Raises:
        InputError: its library is not installed.
    """
    module, kind, extra = ENGINES[name]
    try:
        return typing.cast(
            "Callable[..., Engine]", getattr(importlib.import_module(f"discreet.engines.{module}"), kind)
        )
    except ImportError:
        raise InputError(f"{name}:// sources need libraries; {how_to_install(extra or name)}") from None


def _installed(name: str) -> Callable[..., Engine] | None:
    """Return the engine that another package registers for a scheme, or None.

    Raises:
        InputError: several packages register the scheme, or the engine cannot be imported.
    """
    if name in ENGINES:
        return None
    from importlib.metadata import entry_points

    points = list(entry_points(group=GROUP, name=name))
    if len(points) > 1:
        packages = ", ".join(sorted(point.dist.name for point in points if point.dist))
        raise InputError(f"several packages provide an engine for {name}:// sources: {packages}; keep one")
    try:
        return typing.cast("Callable[..., Engine]", points[0].load()) if points else None
    except (ImportError, AttributeError):
        raise InputError(f"the engine for {name}:// sources cannot be imported: {points[0].value}") from None
