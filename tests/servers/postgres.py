"""A PostgreSQL server with an owner and a reader, installed from Debian's packages where it is missing.

Its default collation is American English (ICU), not byte order.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psycopg
import pyarrow as pa
import pyarrow.csv
from psycopg import sql

from tests import debian
from tests.servers import process

if TYPE_CHECKING:
    from collections.abc import Sequence

OWNER, READER = "owner", "reader"
"""The accounts; each one's password is its name. The server listens on the loopback address only."""

_DATABASE = "library"
_TYPES = {
    pa.string(): "text",
    pa.int64(): "bigint",
    pa.float64(): "double precision",
    pa.bool_(): "boolean",
    pa.date32(): "date",
    pa.timestamp("s"): "timestamp(0)",
    pa.timestamp("ms"): "timestamp(3)",
    pa.timestamp("us"): "timestamp",
}
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "off",  # its data is discarded
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "shared_buffers": "256MB",
}
_READ_ONLY = (
    "CREATE ROLE reader LOGIN PASSWORD 'reader'",
    "ALTER ROLE reader SET default_transaction_read_only = on",
    "ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT ON TABLES TO reader",
)


def start(folder: Path) -> str:
    """Start a new server and wait until it accepts connections.

    Args:
        folder: a new folder for all its state.

    Returns:
        the URL of its database with the reader's credentials.

    Raises:
        RuntimeError: PostgreSQL is missing and cannot be installed, or it did not start.
    """
    programs, port = _programs(), process.free_port()
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / "data"
    data.mkdir()
    if _is_root():
        shutil.chown(data, "postgres", "postgres")
    password = data.with_name("password")
    password.write_text(OWNER)
    access = ["--username", OWNER, "--pwfile", password, "--auth=scram-sha-256"]
    text = ["--encoding=UTF8", "--locale=C", "--locale-provider=icu", "--icu-locale=en-US"]
    _run([programs / "initdb", "--pgdata", data, *access, *text, "--no-sync"])
    settings = [f"--{name}={value}" for name, value in {**_SETTINGS, "port": str(port)}.items()]
    command = _unprivileged([programs / "postgres", "-D", data, *settings])
    process.start(folder, "postgres", command, lambda: _answers(port))
    with _connected(port, "postgres") as connection:
        connection.execute(f"CREATE DATABASE {_DATABASE}")
    with _connected(port) as connection:
        for statement in _READ_ONLY:
            connection.execute(statement)
    return f"postgresql://{READER}:{READER}@127.0.0.1:{port}/{_DATABASE}"


def stop(folder: Path) -> None:
    """Stop the server that was started in *folder*, aborting its transactions."""
    if (folder / "data" / "postmaster.pid").exists():
        _run([_programs() / "pg_ctl", "stop", "--pgdata", folder / "data", "--mode=fast"])
    process.stop(folder, "postgres")


def load(url: str, table: pa.Table, name: str) -> None:
    """Load *table* into the database as the table *name*, which the reader may read.

    Args:
        url: the URL that `start` returned.
        table: with columns of text, int64, decimal128, float64, bool, date32 and timestamps in s, ms or us.
        name: a name that is not in use.
    """
    columns = [
        sql.SQL("{} {}").format(sql.Identifier(field.name), sql.SQL(_type(field.type))) for field in table.schema
    ]
    rows = io.BytesIO()
    style = pa.csv.WriteOptions(include_header=False, quoting_style="all_valid")  # "" is empty text, nothing is NULL
    pa.csv.write_csv(table, rows, style)
    with owner(url) as connection, connection.cursor() as cursor:
        cursor.execute(sql.SQL("CREATE TABLE {} ({})").format(sql.Identifier(name), sql.SQL(", ").join(columns)))
        with cursor.copy(sql.SQL("COPY {} FROM STDIN (FORMAT csv)").format(sql.Identifier(name))) as copy:
            copy.write(rows.getbuffer())
        if len(table) > 1000:
            cursor.execute(sql.SQL("ANALYZE {}").format(sql.Identifier(name)))


def owner(url: str) -> psycopg.Connection:
    """Open a connection to the database of *url* with the owner's rights, in autocommit mode."""
    parts = urlsplit(url)
    return _connected(parts.port or 5432, parts.path.removeprefix("/"))


def _connected(port: int, database: str = _DATABASE) -> psycopg.Connection:
    return psycopg.connect(
        host="127.0.0.1", port=port, user=OWNER, password=OWNER, dbname=database, autocommit=True, connect_timeout=10
    )


def _answers(port: int) -> bool:
    try:
        _connected(port, "postgres").close()
    except psycopg.OperationalError:
        return False
    return True


def _type(type_: pa.DataType) -> str:
    if pa.types.is_decimal(type_):
        return f"numeric({type_.precision},{type_.scale})"
    return _TYPES[type_]


def _programs() -> Path:
    """Return the folder of initdb and postgres."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    if on_path:
        return Path(on_path).resolve().parent
    debian.install("PostgreSQL's server", "postgresql")
    return _programs()


def _is_root() -> bool:
    return os.geteuid() == 0


def _unprivileged(command: Sequence[str | Path]) -> list[str]:
    """Wrap *command* to run as the user postgres with access to any folder: PostgreSQL does not run as root."""
    words = [str(word) for word in command]
    if not _is_root():
        return words
    user = ["--reuid=postgres", "--regid=postgres", "--init-groups"]
    return ["setpriv", *user, "--inh-caps=+dac_override", "--ambient-caps=+dac_override", *words]


def _run(command: Sequence[str | Path]) -> None:
    done = subprocess.run(_unprivileged(command), check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed:\n{done.stdout}{done.stderr}")
