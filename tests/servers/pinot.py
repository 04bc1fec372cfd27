"""A Pinot cluster: Zookeeper, a controller, a broker and two servers, each a process with a small heap.

There are two servers because Pinot loses groups when it merges the results of servers. Needs Maven and JDK 11 or
later, from $JAVA_HOME or the path.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pyarrow as pa

from tests.servers import process

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

VERSION = "0.11.0"
"""The latest version whose parts are all in the Maven registry."""

ROLES = ("zookeeper", "controller", "broker", "server1", "server2")
"""The roles in the order in which they are started."""

_HERE = Path(__file__).parent / "pinot"
_STARTERS = {
    "controller": "org.apache.pinot.controller.ControllerStarter",
    "broker": "org.apache.pinot.broker.broker.helix.HelixBrokerStarter",
    "server1": "org.apache.pinot.server.starter.helix.HelixServerStarter",
    "server2": "org.apache.pinot.server.starter.helix.HelixServerStarter",
}
_MEGABYTES = {"zookeeper": 128, "controller": 384, "broker": 512, "server1": 512, "server2": 512}
_OPENED = ("java.nio", "sun.nio.ch", "java.lang", "java.util", "java.lang.reflect", "jdk.internal.misc")
"""Packages of Java that Pinot accesses by reflection."""

_CLUSTER = "discreet"
_PLUGIN = "3.8.1"
_POLL_SECONDS = 0.1
_TIMEOUT = 120.0


def start(folder: Path) -> dict[str, str]:
    """Start the cluster and wait until it is healthy.

    Args:
        folder: a new folder for all its state.

    Returns:
        the URLs of "broker", "controller", "server1" and "server2", and the "folder".

    Raises:
        RuntimeError: a role did not start; the message includes the end of its log.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stop(folder)  # processes of an earlier start
    ports = {role: process.free_port() for role in ROLES}
    ports |= {f"{role}.queries": process.free_port() for role in ("server1", "server2")}
    (folder / "ports.json").write_text(json.dumps(ports))
    try:
        for role in ROLES:
            start_role(folder, role)
    except BaseException:
        stop(folder)
        raise
    return addresses(folder)


def stop(folder: Path) -> None:
    """Stop all roles; their files stay."""
    for role in reversed(ROLES):
        stop_role(folder, role)


def addresses(folder: Path) -> dict[str, str]:
    """Return the addresses that `start` returned for *folder*."""
    urls = {role: f"http://127.0.0.1:{port}" for role, port in _ports(folder).items() if role in _STARTERS}
    return urls | {"folder": str(folder)}


def start_role(folder: Path, role: str, settings: Mapping[str, object] | None = None) -> None:
    """Start one role and wait until it is healthy.

    Args:
        folder: the cluster's folder.
        role: one of `ROLES`.
        settings: added to its default settings, which they override.
    """
    ports = _ports(folder)
    file = folder / f"{role}.properties"
    lines = _zookeeper(folder, ports) if role == "zookeeper" else _settings(folder, role, ports) | dict(settings or {})
    file.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    if role == "zookeeper":
        process.start(folder, role, _java(role, "org.apache.zookeeper.server.ZooKeeperServerMain", file), lambda: True)
        return
    health = f"http://127.0.0.1:{ports[role]}/health"
    command = _java(role, _HERE / "Role.java", _STARTERS[role], file)
    process.start(folder, role, command, lambda: _healthy(health))


def stop_role(folder: Path, role: str, *, seconds: float = 15) -> None:
    """Stop one role with SIGTERM, and after *seconds* with SIGKILL."""
    process.stop(folder, role, seconds=seconds)


def load(urls: Mapping[str, str], table: pa.Table, name: str, *, segments: int = 4) -> None:
    """Create an offline table from an Arrow table.

    Args:
        urls: URLs of the cluster's controller and broker.
        table: with columns of text, integers, booleans, floating-point numbers or timestamps in milliseconds.
        name: the table's name in Pinot.
        segments: the number of segments, to which rows are assigned round-robin, as segments are to servers.
    """
    create(urls, {"schemaName": name, "dimensionFieldSpecs": [_field(field) for field in table.schema]})
    moments = [field.name for field in table.schema if pa.types.is_timestamp(field.type)]
    for moment in moments:
        place = table.column_names.index(moment)
        table = table.set_column(
            place, moment, table.column(moment).cast(pa.timestamp("ms")).cast("int64").cast("string")
        )
    for n in range(min(segments, len(table))):
        append(urls, name, table.take(pa.array(range(n, len(table), segments))).to_pylist())


def create(urls: Mapping[str, str], schema: Mapping[str, Any], config: Mapping[str, Any] | None = None) -> None:
    """Create an empty offline table, and wait until the broker knows it.

    Args:
        urls: URLs of the cluster's controller and broker.
        schema: Pinot's schema, whose name is the table's.
        config: parts of the table's configuration that replace the defaults.
    """
    name = schema["schemaName"]
    ingestion = {"segmentIngestionType": "APPEND", "segmentIngestionFrequency": "DAILY"}
    table = {
        "tableName": name,
        "tableType": "OFFLINE",
        "segmentsConfig": {"schemaName": name, "replication": "1"},
        "tenants": {},
        "tableIndexConfig": {"loadMode": "MMAP"},
        "ingestionConfig": {"batchIngestionConfig": ingestion},
        "metadata": {},
    } | dict(config or {})
    for kind, value in (("schemas", schema), ("tables", table)):
        httpx.post(f"{urls['controller']}/{kind}", json=value, timeout=_TIMEOUT).raise_for_status()
    wait_for(urls, name, 0)


def append(urls: Mapping[str, str], table: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Add a segment to an offline table, and wait until the broker queries it."""
    before = _documents(urls, table)
    lines = "".join(f"{json.dumps(row)}\n" for row in rows)
    httpx.post(
        f"{urls['controller']}/ingestFromFile",
        params={"tableNameWithType": f"{table}_OFFLINE", "batchConfigMapStr": '{"inputFormat":"json"}'},
        files={"file": ("rows.json", lines.encode())},
        timeout=_TIMEOUT,
    ).raise_for_status()
    wait_for(urls, table, before + len(rows))


def wait_for(urls: Mapping[str, str], table: str, rows: int) -> None:
    """Wait until the broker counts *rows* rows in an offline table."""
    _until(lambda: _documents(urls, table) == rows)


def _field(field: pa.Field) -> dict[str, Any]:
    """Return a column's schema whose substitute for NULL is not Pinot's default, which tests use as data."""
    if pa.types.is_string(field.type):
        return {"name": field.name, "dataType": "STRING", "defaultNullValue": "(missing)", "maxLength": 1_000_000}
    if pa.types.is_boolean(field.type):  # BOOLEAN has no value to spare for NULL
        return {"name": field.name, "dataType": "BOOLEAN", "notNull": True}
    if pa.types.is_timestamp(field.type):
        return {"name": field.name, "dataType": "TIMESTAMP"}  # NULL is stored as 1970
    if pa.types.is_integer(field.type):
        return {"name": field.name, "dataType": "LONG", "defaultNullValue": 1 - 2**63}
    return {"name": field.name, "dataType": "DOUBLE"}


def _documents(urls: Mapping[str, str], table: str) -> int:
    sql = f"SELECT COUNT(*) FROM {table}_OFFLINE"
    answer = httpx.post(f"{urls['broker']}/query/sql", json={"sql": sql}, timeout=_TIMEOUT).json()
    return -1 if answer["exceptions"] else int(answer["totalDocs"])


def _ports(folder: Path) -> dict[str, int]:
    ports: dict[str, int] = json.loads((folder / "ports.json").read_text())
    return ports


def _zookeeper(folder: Path, ports: Mapping[str, int]) -> dict[str, object]:
    return {
        "clientPort": ports["zookeeper"],
        "clientPortAddress": "127.0.0.1",
        "dataDir": folder / "zookeeper",
        "maxClientCnxns": 0,
        "admin.enableServer": "false",
    }


def _settings(folder: Path, role: str, ports: Mapping[str, int]) -> dict[str, object]:
    zookeeper = f"127.0.0.1:{ports['zookeeper']}"
    if role == "controller":
        return {
            "controller.helix.cluster.name": _CLUSTER,
            "controller.zk.str": zookeeper,
            "controller.host": "127.0.0.1",
            "controller.vip.host": "127.0.0.1",
            "controller.vip.port": ports[role],
            "controller.data.dir": folder / role,
        } | _listener("controller", ports[role])
    shared = {"pinot.cluster.name": _CLUSTER, "pinot.zk.server": zookeeper}
    if role == "broker":
        return (
            shared
            | {
                "pinot.broker.hostname": "127.0.0.1",
                "pinot.broker.delayShutdownTimeMs": 0,
                "pinot.broker.enable.query.cancellation": "true",
                "pinot.broker.groupby.trim.threshold": 1_000_000_000,
            }
            | _listener("pinot.broker.client", ports[role])
        )
    return (
        shared
        | {
            "pinot.server.netty.host": "127.0.0.1",
            "pinot.server.netty.port": ports[f"{role}.queries"],
            "pinot.server.grpc.enable": "false",
            "pinot.server.enable.query.cancellation": "true",
            "pinot.server.instance.dataDir": folder / role / "data",
            "pinot.server.instance.segmentTarDir": folder / role / "segments",
            "pinot.server.startup.serviceStatusCheckIntervalMs": 200,
            "pinot.server.shutdown.enableQueryCheck": "false",
            "pinot.server.query.executor.num.groups.limit": 1_000_000,
        }
        | _listener("pinot.server.adminapi", ports[role])
    )


def _listener(role: str, port: int) -> dict[str, object]:
    """Return the settings of an HTTP listener on the loopback address."""
    listener = f"{role}.access.protocols"
    return {listener: "http", f"{listener}.http.host": "127.0.0.1", f"{listener}.http.port": port}


def _java(role: str, *command: object) -> list[str]:
    home = os.environ.get("JAVA_HOME")
    options = [f"-Xmx{_MEGABYTES[role]}m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.forceSync=no"]
    options.append("-Duser.timezone=Europe/Berlin")  # differs from the tests' zone, and one hour occurs twice
    opened = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENED]
    java = Path(home, "bin", "java") if home else "java"
    return [str(java), *options, *opened, "-cp", f"{_jars()}/*", *map(str, command)]


def _jars() -> Path:
    """Return the folder of Pinot's jars, which Maven downloads once."""
    pom = _HERE / "pom.xml"
    cache = Path(os.environ.get("DISCREET_CACHE") or Path.home() / ".cache" / "discreet-servers")
    jars = cache / f"pinot-{hashlib.sha256(pom.read_bytes()).hexdigest()[:16]}"
    if not jars.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            goal = f"org.apache.maven.plugins:maven-dependency-plugin:{_PLUGIN}:copy-dependencies"
            options = [f"-DoutputDirectory={folder}/jars", "-DincludeScope=runtime"]
            subprocess.run(["mvn", "-q", "-B", "-C", "-f", str(pom), goal, *options], cwd=folder, check=True)
            with contextlib.suppress(OSError):  # another process has installed it
                Path(folder, "jars").rename(jars)
    return jars


def _healthy(url: str) -> bool:
    try:
        return httpx.get(url, timeout=_TIMEOUT).text == "OK"
    except httpx.HTTPError:
        return False


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + _TIMEOUT
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError("Pinot did not come to be in the state that was waited for")
        time.sleep(_POLL_SECONDS)
