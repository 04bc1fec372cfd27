"""Starting Spark in this process: on its own cores, or as the driver of a standalone cluster."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import threading
import warnings
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped, import-not-found, unused-ignore]
from pyspark.errors import PySparkException

from discreet.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark import SparkContext

    from discreet.engines.url import Url

_DRIVER_MEMORY = "2g"
_REACH_SECONDS = 10
_PORT = 7077

_starting = threading.Lock()  # there is one Spark in a process


def driver(url: Url) -> SparkContext:
    """Spark in this process: the one that runs already, or a new one; it runs as long as the process does.

    Raises:
        EngineError: it does not start, or what runs already is a Spark of another cluster.
    """
    from pyspark import SparkContext

    with _starting:
        running = SparkContext._active_spark_context
        if running is not None and _has_ended(SparkContext):
            # Spark's Java process was killed. PySpark would go on talking to it.
            running._jsc = None  # type: ignore[assignment, unused-ignore]
            SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = running = None
        if running is None:
            return _started(url)
    if url.host == "local" or running.master == str(url):
        return running
    raise EngineError(f"this process runs Spark at {running.master} already, and there can be only one")


@contextlib.contextmanager
def unwarned() -> Iterator[None]:
    """Hear nothing of new versions of pandas, which is not used."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


def _has_ended(context: type[SparkContext]) -> bool:
    process = getattr(context._gateway, "proc", None)
    return process is not None and process.poll() is not None


def _started(url: Url) -> SparkContext:
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    settings = {
        "spark.app.name": "discreet",
        "spark.master": "local[*]" if url.host == "local" else str(url),
        "spark.driver.memory": _DRIVER_MEMORY,
        "spark.ui.enabled": "false",
    }
    if url.host == "local":
        settings |= {"spark.driver.host": "localhost", "spark.driver.bindAddress": "127.0.0.1"}
    else:
        _reach(url)
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java", path=f"{home}/bin" if home else None) is None:
        raise EngineError("Spark needs Java 17 or later, and there is none; install one, or set JAVA_HOME")
    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    launch: Any = launch_gateway
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    try:
        gateway = None if SparkContext._gateway else launch(conf, silent)
        with unwarned():
            return SparkContext(conf=conf, gateway=gateway)
    except (PySparkException, Py4JError, OSError):
        raise EngineError(f"Spark does not start; it needs Java 17 or later and {_DRIVER_MEMORY} of memory") from None


def _reach(url: Url) -> None:
    """See whether anybody listens there: Spark would try for a minute."""
    try:
        socket.create_connection((url.host, url.port or _PORT), timeout=_REACH_SECONDS).close()
    except OSError:
        raise EngineError(f"no Spark answers at {url}; check the host and the port") from None
