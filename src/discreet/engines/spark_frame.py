"""Data frames of Spark, classic or of Spark Connect, counted by the Spark that they belong to."""

from __future__ import annotations

import contextlib
import re
import secrets
import weakref
from typing import TYPE_CHECKING, Any

from discreet.engines.spark import STRICT, SparkEngine
from discreet.engines.spark_session import FAILURES, ServerSession, SessionRun, condition_of, silence
from discreet.errors import EngineError, InputError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_REFUSED_STEPS = {
    "GlobalLimit": "limit()",
    "LocalLimit": "limit()",
    "Offset": "offset()",
    "Tail": "tail()",
    "Sample": "sample()",
    "Window": "a window function",
    "Deduplicate": "dropDuplicates() or distinct()",
}
"""Steps of Spark's plans in which rows of one user decide about rows of another, by their names in a plan."""

_STEP = re.compile(rf"^[\s:+|-]*({'|'.join(_REFUSED_STEPS)})\b", re.MULTILINE)
_RANDOM = re.compile(r"\b(rand|randn|randstr|uniform|shuffle|uuid|monotonically_increasing_id|spark_partition_id)\(")
_ANALYZED = "== Analyzed Logical Plan =="
_OPTIMIZED = "== Optimized Logical Plan =="
_LENIENT = re.compile(rf'({"|".join(STRICT)})"?( -> |=|\s+value: ")true', re.IGNORECASE)
"""An option that leaves files out, as maps of Scala, maps of Java and messages of Spark Connect are printed."""


class SparkFrameEngine(SparkEngine):
    """An engine for a data frame of Spark, which stays what it is: a plan that every query computes again.

    The frame gets a global temporary view with a random name, which other sessions of the same Spark can read until
    the engine is closed, garbage, or the process ends. Queries have sessions of their own.

    Args:
        frame: a data frame of Spark in this process, or of a Spark Connect server.
        table: must be None, as *view* and *password*.
        timeout_seconds: time limit of a query, or None.

    Raises:
        InputError: the frame is a stream, leaves out files that cannot be read, or has a step in which rows of one user
            decide about rows of another.
        EngineError: Spark cannot be reached, or cannot make the view.
    """

    def __init__(
        self,
        frame: DataFrame,
        *,
        table: str | None = None,
        view: str | None = None,
        password: str | None = None,
        timeout_seconds: float | None = None,
    ) -> None:
        if (table, view, password) != (None, None, None):
            raise InputError("a Spark DataFrame is one table: give no table, view or password")
        user_session: Any = frame.sparkSession
        client: Any = user_session.client if _is_remote(frame) else None
        self._builder: Any = getattr(client, "_builder", None)
        name = f"discreet_{secrets.token_hex(16)}"
        with silence():
            try:
                if frame.isStreaming:
                    raise InputError("the Spark DataFrame is a stream; write it to a table, and scan that")
                if _LENIENT.search(_options(frame)):
                    raise InputError(
                        "the Spark DataFrame leaves out files that cannot be read; read it again without the options "
                        + ", ".join(STRICT)
                    )
                place = user_session.conf.get("spark.sql.globalTempDatabase", "global_temp")
                frame.createGlobalTempView(name)
            except FAILURES as error:
                raise EngineError(f"Spark cannot make a view of the DataFrame ({condition_of(error)})") from None
        self.close_view = weakref.finalize(self, _drop, user_session, name)
        source = "spark://local" if self._builder is None else f"sc://{self._builder.endpoint}"
        super().__init__(source, table=f"{place}.{name}", timeout_seconds=timeout_seconds)
        self._name = "the Spark DataFrame"
        try:
            self._check_plan(f"{place}.{name}")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        super().close()
        self.close_view()

    def _connect(self) -> SessionRun:
        if self._builder is None:
            return super()._connect()
        return ServerSession(self._url, self._builder)

    def _check_plan(self, view: str) -> None:
        """Refuse a plan in which rows of one user decide about rows of another, or chance about rows.

        Raises:
            InputError: the plan has such a step.
            EngineError: Spark cannot be reached, or fails.
        """
        text: str = self.fetch(f"EXPLAIN EXTENDED SELECT * FROM {view}").column(0)[0].as_py()
        plan, optimized, _ = text.partition(_ANALYZED)[2].partition(_OPTIMIZED)
        step = _STEP.search(plan)
        random = _RANDOM.search(plan)
        if step or random or not optimized:  # the texts of long plans end early
            what = _REFUSED_STEPS[step[1]] if step else f"{random[1]}()" if random else "a plan that is too long"
            raise InputError(
                f"the Spark DataFrame has {what}, so that rows of one user can depend on those of others; scan it "
                "without, or write it to a table whose rows each belong to a user, and scan that"
            )


def _is_remote(frame: DataFrame) -> bool:
    return type(frame).__module__.startswith("pyspark.sql.connect.")


def _options(frame: DataFrame) -> str:
    """Return a text that has the options of all files and tables that *frame* reads, as far as its plan shows them."""
    if _is_remote(frame):
        session: Any = frame.sparkSession
        plan: Any = frame._plan  # type: ignore[attr-defined, operator, unused-ignore]
        return str(plan.to_proto(session.client))
    texts = []
    nodes: list[Any] = [frame._jdf.queryExecution().analyzed()]
    while nodes:
        node = nodes.pop()
        kind = node.getClass().getSimpleName()
        if kind == "LogicalRelation" and node.relation().getClass().getSimpleName() == "HadoopFsRelation":
            texts.append(node.relation().options().toString())
        elif kind == "DataSourceV2Relation":
            texts.append(node.options().asCaseSensitiveMap().toString())
        for below in (node.children(), node.subqueries()):
            nodes.extend(below.apply(place) for place in range(below.size()))
    return "\n".join(texts)


def _drop(session: SparkSession, name: str) -> None:
    with silence(), contextlib.suppress(*FAILURES):
        session.catalog.dropGlobalTempView(name)
