"""Open the store of the budgets that the settings name, and read the secrets, from private files or the environment."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit, urlunsplit

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from discreet.budget.checkpoints import Checkpointer, CheckpointFile
from discreet.budget.ledger import canonical
from discreet.budget.manager import BudgetManager
from discreet.budget.model import AdminAction
from discreet.budget.rules import clock_us
from discreet.budget.stores.sqlite import LedgerFile, SQLiteStore
from discreet.budget.stores.store import BudgetStore
from discreet.errors import InputError, how_to_install
from discreet.noise.bits import MIN_SECRET_BYTES
from discreet.secrets import read_secret, read_variable

if TYPE_CHECKING:
    from discreet.release.keys import DerivedKeys
    from discreet.service.settings import Checkpoints, NoiseSettings, Settings, Store


def utc_now() -> datetime:
    """Return the time in UTC."""
    return datetime.now(UTC)


def checkpointer_of(settings: Checkpoints | None) -> Checkpointer | None:
    """Return the checkpointer of the settings, None without settings; raise `InputError` if the key is not valid."""
    if settings is None:
        return None
    return Checkpointer(CheckpointFile(settings.file), signing_key(settings.signing_key_file))


def open_store(store: Store, environment: Mapping[str, str], clock: Callable[[], datetime]) -> BudgetStore:
    """Open the store to serve from it.

    Raises:
        InputError: the file does not exist, or the driver or the password of PostgreSQL is missing.
        StoreUnavailable: the store cannot be opened, or another process has it open.
    """
    if store.file is not None:
        _check_exists(store.file)
        return SQLiteStore(store.file, clock_us(clock))
    return _open_postgres(store, environment)


@contextlib.contextmanager
def open_manager(settings: Settings, environment: Mapping[str, str]) -> Iterator[BudgetManager]:
    """Open the store for a command, as `open_store`, until the context ends."""
    with contextlib.closing(open_store(settings.store, environment, utc_now)) as store:
        yield BudgetManager(store, lambda: secrets.token_hex(16), checkpointer=checkpointer_of(settings.checkpoints))


def open_ledger(store: Store, environment: Mapping[str, str]) -> BudgetStore | LedgerFile:
    """Open the store for reading, even while a service has it open.

    Raises:
        InputError: as `open_store`.
        StoreUnavailable: the store cannot be opened.
    """
    if store.file is not None:
        _check_exists(store.file)
        return LedgerFile(store.file)
    return _open_postgres(store, environment)


def _check_exists(file: Path) -> None:
    if not file.exists():
        raise InputError(f"there is no budget store {file.name!r}; discreet init creates one")


def _open_postgres(store: Store, environment: Mapping[str, str]) -> BudgetStore:
    try:
        from discreet.budget.stores.postgres import PostgresStore
    except ImportError:
        raise InputError(f"a PostgreSQL store needs psycopg; {how_to_install('postgres')}") from None
    return PostgresStore(store_url(store, environment))


SIGNING_KEY_BYTES = 32


def noise_secret(noise: NoiseSettings, environment: Mapping[str, str]) -> bytes:
    """Return the secret that noise is derived from: 32 bytes or more.

    Raises:
        InputError: the secret is missing or too short, or other users can read its file.
    """
    if noise.key_file is not None:
        secret = read_secret(noise.key_file, "noise key")
    else:
        digits = read_variable(noise.key_env, environment, "noise key") or ""
        try:
            secret = bytes.fromhex(digits)
        except ValueError:
            raise InputError(
                f"the environment variable {noise.key_env!r} must hold the noise key in hexadecimal digits"
            ) from None
    if len(secret) < MIN_SECRET_BYTES:
        raise InputError(f"the noise key must have at least {MIN_SECRET_BYTES} bytes; discreet key new makes one")
    return secret


_NOISE = "noise", "key"
"""Kind and name of the record with the identity of the noise key."""


def check_noise_key(store: BudgetStore, keys: DerivedKeys) -> None:
    """Record the identity of the noise key in a store that has none.

    Raises:
        InputError: the store's releases were made with another key, so that each query would be charged again.
    """
    recorded = store.record(*_NOISE)
    if recorded is None:
        accept_noise_key(store, keys, AdminAction("discreet", "the first start with this key", keys.identity.hex()))
    elif recorded != _identity(keys):
        raise InputError(
            "the noise key is not the one of the store, so every query would be charged again, and running "
            "counts would end; put the key back, or accept the new one with: discreet key accept"
        )


def accept_noise_key(store: BudgetStore, keys: DerivedKeys, action: AdminAction) -> None:
    """Record the identity of a new noise key."""
    store.put_record(*_NOISE, _identity(keys), action)


def _identity(keys: DerivedKeys) -> str:
    return canonical({"identity": keys.identity.hex()})


def signing_key(path: Path) -> Ed25519PrivateKey:
    """Return the key that signs checkpoints.

    Raises:
        InputError: the file is missing or holds no key, or other users can read it.
    """
    secret = read_secret(path, "signing key of the checkpoints")
    if len(secret) != SIGNING_KEY_BYTES:
        raise InputError(
            f"the signing key of the checkpoints must have {SIGNING_KEY_BYTES} bytes; discreet key new makes one"
        )
    return Ed25519PrivateKey.from_private_bytes(secret)


def store_url(store: Store, environment: Mapping[str, str]) -> str:
    """Return the URL of a PostgreSQL store with its password, for the driver only.

    Raises:
        InputError: the environment does not hold the password.
    """
    password = read_variable(store.password_env, environment)
    if password is None:
        return store.url
    parts = urlsplit(store.url)
    user, at, host = parts.netloc.rpartition("@")
    if not at:
        raise InputError("store.url must name the user whose password store.password_env holds")
    return urlunsplit(parts._replace(netloc=f"{user}:{quote(password, safe='')}@{host}"))
