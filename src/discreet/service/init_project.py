"""Create the files of a new service: settings, a catalog, secrets, a store with its first accounts and keys."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from pathlib import Path

import numpy as np

from discreet.budget.checkpoints import Checkpointer, CheckpointFile
from discreet.budget.model import Account, AdminAction, Sliding
from discreet.budget.rules import clock_us, microseconds
from discreet.budget.stores import sqlite
from discreet.budget.stores.sqlite import SQLiteStore
from discreet.budget.stores.store import BudgetStore
from discreet.catalog.loader import load_catalog, write_text
from discreet.catalog.model import Catalog
from discreet.errors import InputError, SQLError, file_error
from discreet.query.sql import parse_select
from discreet.secrets import write_secret
from discreet.service.auth.access import GRANT, KEY, IssuedKey, KeyRecord, digest_of, grant_name, grant_text, new_key
from discreet.service.settings import Store
from discreet.service.stores import open_store, signing_key, utc_now
from discreet.wire.administration import Role

DATA = "data"
ORGANISATION = "example"
ANALYST = "ann@example"
"""The first accounts: all data, an organisation, and one of its analysts."""

RETENTION_DAYS = 30
"""The budget period in days for datasets without `retention_days`."""

# In the order in which they are moved: the settings last, because nothing starts without them.
_FILES = (
    *("reads.parquet", "catalog.toml", "noise.key", "checkpoints.key", "checkpoints.log"),
    *("budget.db", "budget.db-wal", "budget.db-shm", "discreet.toml"),
)
_ROLES: Mapping[Role, str | None] = {"admin": None, "officer": None, "analyst": ANALYST}
_YEAR_US = 365 * 86_400_000_000


@dataclass(frozen=True, slots=True, repr=False)
class Project:
    """A new project.

    Args:
        keys: the first key of each role, to be shown once.
        query: a SELECT that the catalog permits, without quotes; None if its names need some.
    """

    settings: Path
    keys: Mapping[Role, str]
    query: str | None


def create_project(
    folder: Path,
    *,
    catalog: Path | None = None,
    store: Store = Store(),  # noqa: B008 - frozen
    force: bool = False,
    environment: Mapping[str, str] | None = None,
    clock: Callable[[], datetime] = utc_now,
    random: Callable[[int], bytes] = secrets.token_bytes,
) -> Project:
    """Create all files of a new service, or none.

    Args:
        folder: the folder of the files; it is created if it does not exist.
        catalog: the catalog to serve; None for one with example data.
        store: the store of budgets: an SQLite file to create in *folder*, or an empty PostgreSQL database.
        force: True to move existing files to a backup folder.
        random: returns a number of secret random bytes.

    Raises:
        InputError: files or accounts exist already, or the catalog is not valid.
        StoreUnavailable: the store cannot be opened, or a service has it open.
    """
    loaded = None if catalog is None else load_catalog(catalog)
    names = (
        _FILES if catalog is None else tuple(name for name in _FILES if name not in {"reads.parquet", "catalog.toml"})
    )
    aside = f"replaced-{clock():%Y%m%dT%H%M%SZ}" if force else None
    with contextlib.ExitStack() as stack:
        if force and (folder / "budget.db").exists():
            stack.enter_context(contextlib.closing(sqlite.lock(folder / "budget.db")))  # a service may be running
        stage = stack.enter_context(staged(folder, names, aside=aside))
        for name in ("noise.key", "checkpoints.key"):
            write_secret(stage / name, random(32))
        if loaded is None:
            write_reads(stage / "reads.parquet")
            (stage / "catalog.toml").write_text(CATALOG, "utf-8")
            loaded = load_catalog(stage / "catalog.toml")
        where = "catalog.toml" if catalog is None else str(catalog.parent.resolve() / catalog.name)
        password = "" if store.password_env is None else f"password_env = {write_text(store.password_env)}\n"
        url = "sqlite:budget.db" if store.file is not None else store.url
        filled = SETTINGS.format(catalog=write_text(where), url=write_text(url), password=password)
        (stage / "discreet.toml").write_text(filled, "utf-8")
        keys = _create_store(stage, store, loaded, environment or {}, clock, random)
    return Project(folder / "discreet.toml", keys, QUESTION if catalog is None else _query_of(loaded))


def _query_of(catalog: Catalog) -> str | None:
    """Return a top ten of the first dataset and column that can be named without quotes, or None."""
    for name, dataset in catalog.datasets.items():
        for item in dataset.groupable:
            largest = f"COUNT(DISTINCT {dataset.user})"
            query = f"SELECT {item}, {largest} FROM {name} GROUP BY {item} ORDER BY {largest} DESC LIMIT 10"  # noqa: S608 - shown
            with contextlib.suppress(SQLError):
                select = parse_select(query)
                if (select.items, select.dataset, select.measure.column) == ((item,), name, dataset.user):
                    return query
    return None


def make_key(
    role: Role, account: str | None, now_us: int, random: Callable[[int], bytes]
) -> tuple[IssuedKey, KeyRecord]:
    """Return a new API key and its record. Callers can write the store anyway, so there is no authentication."""
    key = new_key(random)
    expires_us = None if role == "admin" else now_us + _YEAR_US
    return key, KeyRecord(digest_of(key.text).hex(), account, (role,), now_us, expires_us, f"first {role}")


def _create_store(
    stage: Path,
    store: Store,
    catalog: Catalog,
    environment: Mapping[str, str],
    clock: Callable[[], datetime],
    random: Callable[[int], bytes],
) -> Mapping[Role, str]:
    """Create the store with accounts, grants and keys, and its first checkpoint."""
    opened: BudgetStore
    if store.file is not None:
        opened = SQLiteStore(stage / "budget.db", clock_us(clock))
    else:
        opened = open_store(store, environment, clock)
    with contextlib.closing(opened):
        if opened.accounts() or opened.records(KEY):
            raise InputError("the store has accounts or keys already, and can be served as it is")
        action = AdminAction("discreet", "discreet init")
        retention = [dataset.retention_days for dataset in catalog.datasets.values()]
        period = Sliding(max(days or RETENTION_DAYS for days in retention))
        shared = Fraction(1, 10**6)
        for name, epsilon, delta, parent in (
            (DATA, 20.0, shared, None),
            (ORGANISATION, 10.0, shared, DATA),
            (ANALYST, 5.0, shared / 10, ORGANISATION),  # no analyst can spend more than a tenth of the shared delta
        ):
            opened.create(Account.of_epsilon(name, epsilon, delta, parent, period), action)
        for dataset in catalog.datasets:
            opened.put_record(GRANT, grant_name(ORGANISATION, dataset), grant_text(None), action, {"columns": None})
        now_us = microseconds(clock())
        keys = {}
        for role, account in _ROLES.items():
            key, record = make_key(role, account, now_us, random)
            opened.put_record(KEY, key.id, record.text, action, record.shown)
            keys[role] = key.text
        Checkpointer(CheckpointFile(stage / "checkpoints.log"), signing_key(stage / "checkpoints.key")).begin(opened)
    with contextlib.suppress(FileNotFoundError):
        (stage / "budget.db").chmod(0o600)  # it holds answers, and the accounts that paid for them
    return keys


QUESTION = (
    "SELECT article, COUNT(DISTINCT reader) AS readers FROM reads GROUP BY article ORDER BY readers DESC LIMIT 10"
)
"""A query over the example data."""

CATALOG = """\
# What analysts may query of a made-up reading log. To serve data of your own, start another catalog with
# discreet catalog init, check it with discreet catalog check, and name it in discreet.toml.

[datasets.reads]
description = "Which reader read which article; made up."
source = "reads.parquet"
user = "reader"
rows_per_group = 20  # of a reader's rows in a group: allows COUNT(*), AVG and quantiles
data_version = "1"  # change it whenever the data changes
retention_days = 30
max_k = 100

[datasets.reads.columns]
article = { type = "text", group = true, filter = true }
country = { type = "text", group = true, filter = true, domain = ["BR", "DE", "IN", "KE", "US"] }
day = { type = "date", group = true, filter = true, domain = { first = 2026-01-01, last = 2026-01-30 } }
# The bound of all that a reader reads; for fewer rows, such as those of one article, each query chooses a lower one.
minutes = { type = "integer", sum = { low = 0, high = 500, private_bound = true } }
"""

_READERS = 6_000
_ROWS = 60_000
_COUNTRIES = ("BR", "DE", "IN", "KE", "US")


def write_reads(path: Path) -> None:
    """Write the example data, a reading log: 60,000 rows of 6,000 readers; a few of 200 articles have many readers."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    random = np.random.default_rng(2021)
    popularity = 1.0 / (np.arange(200) + 3.0)
    readers = random.integers(0, _READERS, _ROWS)
    articles = random.choice(200, size=_ROWS, p=popularity / popularity.sum())
    table = {
        "reader": readers,
        "article": np.array([f"article-{n:03}" for n in range(1, 201)])[articles],
        "country": np.array(_COUNTRIES)[readers % len(_COUNTRIES)],
        "day": np.datetime64("2026-01-01") + random.integers(0, 30, _ROWS),
        "minutes": random.integers(1, 45, _ROWS),
    }
    pq.write_table(pa.table(table), path)


SETTINGS = """\
# Settings of the budget service: discreet serve discreet.toml
# Relative paths start at the folder of this file. It holds no secrets.

[service]
catalog = {catalog}
host = "127.0.0.1"            # this machine only; put a proxy with TLS in front before you change it
port = 8080                   # 0 for any free port
#trusted_proxies = ["10.0.0.5"]   # whose headers about the client are trusted
#hosts = ["discreet.example.org"]    # its names for other machines, which clients of Trino need
#max_concurrent_queries = 16         # queries that may run at once
#max_dataset_memory = 1024    # MiB of DuckDB for each dataset, beyond which it writes to disk
#max_statement_workers = 4    # statements that are computed from answers at once, each with up to 300 MB
#requests_per_minute = 600    # of each key
#release_grid_ms = 50         # responses are sent at multiples of it, so that their time says less about the data

[store]
url = {url}
{password}
[noise]
key_file = "noise.key"        # with it the noise can be removed: protect and back it up like the data

[checkpoints]
file = "checkpoints.log"      # put it on another disk: it shows when the store is an older copy
signing_key_file = "checkpoints.key"

[defaults]                    # for queries without privacy parameters
epsilon = 1
delta = 1e-9
#preset = "linkedin"          # or units: 0.15 for each result, 1e-10 for each query

[limits]                      # limits of one query
max_k = 1_000
max_head_limit = 100_000
max_epsilon = 4
max_delta = 1e-8

#[oidc]                       # tokens of an OpenID issuer, beside API keys
#issuer = "https://login.example.org/realms/work"
#audience = "discreet"
#account_claim = "discreet_account"   # a claim that users cannot change themselves
#roles_claim = "groups"
#roles = {{ analysts = "analyst", privacy-office = "officer" }}
#client_id = "discreet"       # for logins on the web page; redirect URI: https://YOUR-SERVICE/login/callback

#[mcp]                        # tools for agents at /mcp; needs the extra mcp
#max_unasked_share = 0.25     # a query that could take more of what is left needs the consent of a person

[logs]
format = "json"               # or console

#[traces]
#endpoint = "http://collector:4318/v1/traces"
"""
"""A format string of the settings file, with the TOML texts catalog, url and password."""


@contextlib.contextmanager
def staged(folder: Path, names: Sequence[str], *, aside: str | None) -> Iterator[Path]:
    """Return a hidden folder for new files, which are moved to *folder* when the context ends without an error.

    Args:
        folder: the destination of the files; it is created if it does not exist.
        names: names of all files that may be written, in the order in which they are moved.
        aside: the name of a backup folder in *folder* for existing files; None to refuse if a file exists.

    Raises:
        InputError: a file exists already, or cannot be written.
    """
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if aside is None:
            _refuse_existing(folder, names)
        stage = Path(tempfile.mkdtemp(dir=folder, prefix=".discreet-"))
    except OSError as error:
        raise file_error(folder, "written", error) from None
    try:
        yield stage
        _move(stage, folder, names, None if aside is None else folder / aside)
    except BaseException:
        shutil.rmtree(stage, ignore_errors=True)
        if is_new:
            with contextlib.suppress(OSError):  # another process wrote a file to it
                folder.rmdir()
        raise
    shutil.rmtree(stage, ignore_errors=True)


def _refuse_existing(folder: Path, names: Sequence[str]) -> None:
    """Raise `InputError` if one of the files exists."""
    old = [name for name in names if os.path.lexists(folder / name)]
    if old:
        raise InputError(f"{', '.join(map(repr, old))} in {str(folder)!r} would be replaced; --force puts it aside")


def _move(stage: Path, folder: Path, names: Sequence[str], aside: Path | None) -> None:
    """Move all new files, or leave everything as it was."""
    done: list[tuple[Path, Path]] = []
    try:
        if aside is None:
            _refuse_existing(folder, names)
        else:
            old = [name for name in names if os.path.lexists(folder / name)]
            if old:
                aside.mkdir()
            for name in old:
                done.append(_move_file(folder / name, aside / name))
        for name in names:
            if (stage / name).exists():
                done.append(_move_file(stage / name, folder / name))
    except BaseException as error:
        for source, target in reversed(done):
            target.rename(source)
        if aside is not None and aside.is_dir() and not any(aside.iterdir()):
            aside.rmdir()
        if isinstance(error, OSError):
            raise file_error(folder, "written", error) from None
        raise


def _move_file(source: Path, target: Path) -> tuple[Path, Path]:
    source.rename(target)
    return source, target
