"""A Spark Connect server that stores its tables in Parquet files, and a standalone cluster of one worker.

Everything comes from the package pyspark. Spark has no accounts: a client with the token has all rights.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark

from discreet.engines.url import parse_url
from tests.servers import process

if TYPE_CHECKING:
    from collections.abc import Iterator

_HOME = Path(pyspark.__file__).parent
_HERE = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(_HOME)}
_ROWS_AT_ONCE = 250_000

CONFLICTING_SETTINGS = {
    "spark.sql.ansi.enabled": "false",
    "spark.sql.caseSensitive": "true",
    "spark.sql.execution.arrow.useLargeVarTypes": "true",
    "spark.sql.files.ignoreCorruptFiles": "true",
    "spark.sql.files.ignoreInvalidPartitionPaths": "true",
    "spark.sql.files.ignoreMissingFiles": "true",
    "spark.sql.legacy.timeParserPolicy": "LEGACY",
    "spark.sql.parser.escapedStringLiterals": "true",
    "spark.sql.session.timeZone": "Asia/Kolkata",
}
"""Server settings that conflict with those that the engine sets for each query."""


def start(folder: Path) -> str:
    """Start a server in *folder* and wait until it accepts connections.

    Returns:
        its URL with its token, without a table.

    Raises:
        RuntimeError: the server does not start; it needs Java 17 or later.
    """
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    port, token = process.free_port(), secrets.token_hex(16)
    settings = {
        "spark.master": "local[2]",
        "spark.driver.memory": "2g",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.authenticate.token": token,
        "spark.ui.port": str(process.free_port()),
        "spark.ui.retainedJobs": "100",  # the suite runs thousands of queries in the memory above
        "spark.ui.retainedStages": "100",
        "spark.ui.retainedTasks": "1000",
        "spark.sql.ui.retainedExecutions": "100",
        "spark.log.level": "WARN",
        "spark.sql.shuffle.partitions": "4",  # for small tables on two cores
        "spark.local.dir": str(folder / "scratch"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        **CONFLICTING_SETTINGS,
    }
    (folder / "warehouse").mkdir(exist_ok=True)
    file = folder / "spark.conf"
    file.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    file.chmod(0o600)
    command = [_HOME / "bin" / "spark-submit", "--properties-file", file]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    process.start(folder, "spark", command, lambda: _listens(port), env=_HERE)
    return f"sc://:{token}@localhost:{port}"


def stop(folder: Path) -> None:
    """Stop the server in *folder*."""
    process.stop(folder.resolve(), "spark")


@contextlib.contextmanager
def local_session() -> Iterator[Any]:
    """Yield a session in this process, with settings that conflict with those that exact heads need."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        settings = {"spark.ui.enabled": "false", "spark.driver.memory": "1g", "spark.driver.host": "localhost"}
        builder = SparkSession.builder.master("local[2]").config(map={**settings, **CONFLICTING_SETTINGS})
        session = builder.getOrCreate()
        session.range(1).toArrow()
    try:
        yield session
    finally:
        session.stop()
        gateway: Any = SparkContext._gateway
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(30)
        SparkContext._gateway = SparkContext._jvm = None


def load(url: str, table: pa.Table, name: str) -> None:
    """Load *table* as the new table *name*; timestamps without a zone stay without one."""
    warehouse = Path(execute(url, "SET spark.sql.warehouse.dir")[0]["value"].removeprefix("file:"))
    folder = warehouse / f"of {secrets.token_hex(8)}"
    folder.mkdir()
    for part, rows in enumerate(_parts(table)):
        pq.write_table(rows, folder / f"{part}.parquet")
    execute(url, f"CREATE TABLE {quoted(name)} USING parquet LOCATION '{folder}'")


def execute(url: str, statement: str) -> list[dict[str, Any]]:
    """Run *statement* and return its rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # ignore warnings about new versions of pandas
        from pyspark.sql.connect.session import SparkSession

    parts = parse_url(url)
    session: Any = SparkSession(f"sc://{parts.host}:{parts.port}/;token={parts.password}")
    session.client.set_retry_policies([])  # a server that has ended is an error at once, not after ten minutes
    try:
        rows: list[dict[str, Any]] = session.sql(statement).toArrow().to_pylist()
        return rows
    finally:
        session.stop()


def running(url: str) -> tuple[int, int]:
    """Return the numbers of running jobs and of running tasks."""
    port = execute(url, "SET spark.ui.port")[0]["value"]
    api = f"http://127.0.0.1:{port}/api/v1/applications"
    application = _json(api)[0]["id"]
    jobs, executors = (_json(f"{api}/{application}/{what}") for what in ("jobs?status=running", "executors"))
    return len(jobs), sum(executor["activeTasks"] for executor in executors)


def start_cluster(folder: Path) -> str:
    """Start a master and a worker with one core.

    Returns:
        the URL of the master.

    Raises:
        RuntimeError: the master or the worker does not start.
    """
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    port, pages = process.free_port(), process.free_port()
    run = [_HOME / "bin" / "spark-class"]
    here = {**_HERE, "SPARK_DAEMON_MEMORY": "256m", "SPARK_WORKER_DIR": str(folder / "work")}
    master = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port)]
    process.start(folder, "master", [*run, *master, "--webui-port", str(pages)], lambda: _listens(port), env=here)
    url = f"spark://127.0.0.1:{port}"
    worker = ["org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--cores", "1", "--memory", "1g"]
    worker += ["--webui-port", "0", url]
    try:
        process.start(
            folder,
            "worker",
            [*run, *worker],
            lambda: _json(f"http://127.0.0.1:{pages}/json/")["aliveworkers"] > 0,
            env=here,
        )
    except BaseException:
        process.stop(folder, "master")
        raise
    return url


def stop_cluster(folder: Path) -> None:
    """Stop the cluster in *folder*."""
    for name in ("worker", "master"):
        process.stop(folder.resolve(), name)


def quoted(name: str) -> str:
    """Quote *name* as an identifier."""
    return "`" + name.replace("`", "``") + "`"


def _parts(table: pa.Table) -> Iterator[pa.Table]:
    for first in range(0, max(len(table), 1), _ROWS_AT_ONCE):
        yield table.slice(first, _ROWS_AT_ONCE)


def _listens(port: int) -> bool:
    socket.create_connection(("127.0.0.1", port), timeout=5).close()
    return True


def _json(url: str) -> Any:
    with urlopen(url, timeout=60) as answer:  # noqa: S310 - a local URL; the machine may be busy
        return json.load(answer)
