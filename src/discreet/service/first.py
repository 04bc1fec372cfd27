"""Everything that a service needs to start: settings, a catalog, secrets, a store with its first accounts and keys."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from discreet.budget.manager import BudgetManager
from discreet.budget.model import Account, Act, Sliding
from discreet.budget.stores import place
from discreet.budget.stores.sqlite import SQLiteStore
from discreet.budget.witness import FileWitness, Notary
from discreet.catalog.load import load_catalog
from discreet.catalog.toml import write_text
from discreet.errors import InputError
from discreet.service.example import CATALOG, QUESTION, write_reads
from discreet.service.grants import grant_name, grant_text
from discreet.service.keys import KeyRecord, digest_of, microseconds, new_key
from discreet.service.registry import GRANT, KEY
from discreet.service.secret import signing_key, write_secret
from discreet.service.staging import staged
from discreet.service.stores import open_store
from discreet.service.template import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime
    from pathlib import Path

    from discreet.budget.store import BudgetStore
    from discreet.catalog.model import Catalog
    from discreet.service.identity import Role
    from discreet.service.settings import Store

DATA, ORGANISATION, ANALYST = "data", "example", "ann@example"
"""The accounts that are opened: all data, an organisation, and one of its analysts."""

RETENTION_DAYS = 30
"""The period of their budgets, if the catalog does not say how long data is kept."""

# The order in which they come to be: without settings nothing starts.
_FILES = (
    *("reads.parquet", "catalog.toml", "noise.key", "witness.key", "witness.log"),
    *("budget.db", "budget.db-wal", "budget.db-shm", "discreet.toml"),
)
_ROLES: Mapping[Role, str | None] = {"admin": None, "officer": None, "analyst": ANALYST}
_YEAR_US = 365 * 86_400_000_000


@dataclass(frozen=True, slots=True, repr=False)
class Founded:
    """What was made.

    Args:
        settings: the file to serve with.
        keys: the first key of each role, to be shown once.
        question: a SELECT that the analyst may ask; None if the catalog is not ours.
    """

    settings: Path
    keys: Mapping[Role, str]
    question: str | None


def found(
    folder: Path,
    *,
    catalog: Path | None,
    store: Store,
    force: bool,
    environment: Mapping[str, str],
    clock: Callable[[], datetime],
    random: Callable[[int], bytes],
) -> Founded:
    """Make all that a service needs, wholly or not at all.

    Args:
        folder: where; it is made if it is missing.
        catalog: of analysts' data; None for one with data that is made up.
        store: where budgets are to be kept: an SQLite file that is made in *folder*, or an empty PostgreSQL database.
        force: True to put files aside that are there already.
        environment: the variables in which secrets are.
        clock: the time.
        random: gives random bytes that nobody else knows.

    Raises:
        InputError: files or accounts are there already, or the catalog cannot be used.
        StoreUnavailable: the store cannot be opened, or a service has it.
    """
    known = None if catalog is None else load_catalog(catalog)
    names = (
        _FILES if catalog is None else tuple(name for name in _FILES if name not in {"reads.parquet", "catalog.toml"})
    )
    aside = f"replaced-{clock():%Y%m%dT%H%M%SZ}" if force else None
    with contextlib.ExitStack() as stack:
        if force and (folder / "budget.db").exists():
            stack.enter_context(contextlib.closing(place.lock(folder / "budget.db")))  # a service may be running
        stage = stack.enter_context(staged(folder, names, aside=aside))
        for name in ("noise.key", "witness.key"):
            write_secret(stage / name, random(32))
        if known is None:
            write_reads(stage / "reads.parquet")
            (stage / "catalog.toml").write_text(CATALOG, "utf-8")
            known = load_catalog(stage / "catalog.toml")
        where = "catalog.toml" if catalog is None else str(catalog.absolute())
        (stage / "discreet.toml").write_text(_settings(where, store), "utf-8")
        keys = _stocked(stage, store, known, environment, clock, random)
    return Founded(folder / "discreet.toml", keys, QUESTION if catalog is None else None)


def make_key(
    manager: BudgetManager, role: Role, account: str | None, now_us: int, random: Callable[[int], bytes], act: Act
) -> str:
    """Put a key into the store without asking anybody: for whoever has the store.

    Returns:
        the key's text.
    """
    made, expires_us = new_key(random), None if role == "admin" else now_us + _YEAR_US
    record = KeyRecord(digest_of(made.text).hex(), account, (role,), now_us, expires_us, f"first {role}")
    manager.put_record(KEY, made.id, record.text, act)
    return made.text


def _settings(catalog: str, store: Store) -> str:
    password = "" if store.password_env is None else f"password_env = {write_text(store.password_env)}\n"
    url = "sqlite:budget.db" if store.file is not None else store.url
    return SETTINGS.format(catalog=write_text(catalog), url=write_text(url), password=password)


def _stocked(
    stage: Path,
    store: Store,
    catalog: Catalog,
    environment: Mapping[str, str],
    clock: Callable[[], datetime],
    random: Callable[[int], bytes],
) -> Mapping[Role, str]:
    """The store with accounts, grants and keys, and a witness of it."""
    opened: BudgetStore
    if store.file is not None:
        opened = SQLiteStore(stage / "budget.db", lambda: microseconds(clock()))
    else:
        opened = open_store(store, environment, clock)
    numbers = itertools.count(1)
    with contextlib.closing(opened):
        manager = BudgetManager(opened, lambda: f"first-{next(numbers)}")
        if manager.accounts() or manager.records(KEY):
            raise InputError("the store has accounts or keys already, and can be served as it is")
        act = Act("discreet", "discreet init")
        _open_accounts(manager, catalog, act)
        now_us = microseconds(clock())
        keys = {role: make_key(manager, role, account, now_us, random, act) for role, account in _ROLES.items()}
        Notary(FileWitness(stage / "witness.log"), signing_key(stage / "witness.key")).seal(opened)
    with contextlib.suppress(FileNotFoundError):
        (stage / "budget.db").chmod(0o600)  # answers are in it, and who paid for them
    return keys


def _open_accounts(manager: BudgetManager, catalog: Catalog, act: Act) -> None:
    kept = [dataset.retention_days for dataset in catalog.datasets.values()]
    period = Sliding(max(days or RETENTION_DAYS for days in kept))
    delta = Fraction(1, 10**6)
    for name, epsilon, parent in ((DATA, 20.0, None), (ORGANISATION, 10.0, DATA), (ANALYST, 5.0, ORGANISATION)):
        manager.create(Account.of_epsilon(name, epsilon, delta, parent, period), act)
    for dataset in catalog.datasets:
        manager.put_record(GRANT, grant_name(ORGANISATION, dataset), grant_text(None), act)
