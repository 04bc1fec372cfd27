"""The store of the budgets that settings name: to serve from, or to read beside a service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from discreet.budget.checkpoints import Checkpointer, CheckpointFile
from discreet.budget.stores.sqlite import LedgerFile, SQLiteStore
from discreet.errors import InputError
from discreet.service.auth.api_keys import microseconds
from discreet.service.secrets import signing_key, store_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from datetime import datetime
    from pathlib import Path

    from discreet.budget.ledger import Head, Line
    from discreet.budget.ledger_replay import Verified
    from discreet.budget.stores.store import BudgetStore
    from discreet.service.settings import Store, WitnessSettings


class Ledger(Protocol):
    """What can be read of a store beside its service."""

    @property
    def id(self) -> str:
        """See `BudgetStore.id`."""
        ...

    def heads(self) -> tuple[Head, ...]:
        """See `BudgetStore.heads`."""
        ...

    def lines(self, chain: int = 0, after: int = 0, most: int | None = None) -> Iterator[Line]:
        """See `BudgetStore.lines`."""
        ...

    def verify(self) -> Verified:
        """See `BudgetStore.verify`."""
        ...

    def close(self) -> None:
        """Let go of the store."""
        ...


def checkpointer_of(witness: WitnessSettings | None) -> Checkpointer | None:
    """Who holds the store against its witness; None if there is no witness.

    Raises:
        InputError: the key that signs cannot be used.
    """
    if witness is None:
        return None
    return Checkpointer(CheckpointFile(witness.file), signing_key(witness.signing_key_file))


def open_store(store: Store, environment: Mapping[str, str], clock: Callable[[], datetime]) -> BudgetStore:
    """The store, to serve from.

    Raises:
        InputError: there is no such file, or what PostgreSQL needs is not installed or not set.
        StoreUnavailable: it cannot be opened, or another process has it.
    """
    if store.file is not None:
        _check_exists(store.file)
        return SQLiteStore(store.file, lambda: microseconds(clock()))
    return _postgres(store, environment)


def open_ledger(store: Store, environment: Mapping[str, str]) -> Ledger:
    """The store, to read from while a service may have it.

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
        raise InputError(f"there is no budget store {file.name!r}; discreet init makes one")


def _postgres(store: Store, environment: Mapping[str, str]) -> BudgetStore:
    try:
        from discreet.budget.stores.postgres import PostgresStore
    except ImportError:
        raise InputError(
            "a PostgreSQL store needs libraries; install them with: pip install 'discreet[postgres]'"
        ) from None
    return PostgresStore(store_url(store, environment))
