"""Open the store of the budgets that the settings name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from discreet.budget.checkpoints import Checkpointer, CheckpointFile
from discreet.budget.stores.sqlite import LedgerFile, SQLiteStore
from discreet.errors import InputError
from discreet.service.auth.api_keys import microseconds
from discreet.service.secrets import signing_key, store_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime
    from pathlib import Path

    from discreet.budget.ledger import Head, Line
    from discreet.budget.ledger_replay import Verified
    from discreet.budget.stores.store import BudgetStore
    from discreet.service.settings import Store, WitnessSettings


class Ledger(Protocol):
    """What can be read of a store while a service has it open."""

    @property
    def id(self) -> str:
        """Return the id of the store."""
        ...

    def heads(self) -> tuple[Head, ...]:
        """Return the last line of each chain of the ledger."""
        ...

    def lines(self, chain: int = 0, after: int = 0, most: int | None = None) -> Iterator[Line]:
        """Yield up to *most* lines of a chain behind the line *after*."""
        ...

    def verify(self, archived: Sequence[Iterable[Line]] = ()) -> Verified:
        """Verify the ledger, with lines that were removed from it."""
        ...

    def close(self) -> None:
        """Close the store."""
        ...


def checkpointer_of(witness: WitnessSettings | None) -> Checkpointer | None:
    """Return the checkpointer of the settings, or None.

    Raises:
        InputError: the signing key cannot be used.
    """
    if witness is None:
        return None
    return Checkpointer(CheckpointFile(witness.file), signing_key(witness.signing_key_file))


def open_store(store: Store, environment: Mapping[str, str], clock: Callable[[], datetime]) -> BudgetStore:
    """Open the store to serve from it.

    Raises:
        InputError: there is no such file, or the driver or the password of PostgreSQL is missing.
        StoreUnavailable: it cannot be opened, or another process has it open.
    """
    if store.file is not None:
        _check_exists(store.file)
        return SQLiteStore(store.file, lambda: microseconds(clock()))
    return _postgres(store, environment)


def open_ledger(store: Store, environment: Mapping[str, str]) -> Ledger:
    """Open the store to read from it, while a service may have it open.

    Raises:
        InputError: as `open_store`.
        StoreUnavailable: it cannot be opened.
    """
    if store.file is not None:
        _check_exists(store.file)
        return LedgerFile(store.file)
    return _postgres(store, environment)


def _check_exists(file: Path) -> None:
    if not file.exists():
        raise InputError(f"there is no budget store {file.name!r}; discreet init creates one")


def _postgres(store: Store, environment: Mapping[str, str]) -> BudgetStore:
    try:
        from discreet.budget.stores.postgres import PostgresStore
    except ImportError:
        raise InputError(
            "a PostgreSQL store needs libraries; install them with: pip install 'discreet[postgres]'"
        ) from None
    return PostgresStore(store_url(store, environment))
