"""Delta and Iceberg tables: DuckDB counts one snapshot at a time in memory; the snapshot's id is the data version."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pyarrow as pa

from discreet.engines.duckdb import DuckDBEngine
from discreet.engines.url import Url, parse_url
from discreet.errors import EngineUnreachable, InputError, how_to_install

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyiceberg.table import Table as IcebergTable


_Table = TypeVar("_Table")


class SnapshotEngine(DuckDBEngine, Generic[_Table]):
    """An engine for the newest snapshot of a table of a lakehouse.

    A snapshot is loaded whole when the table is opened, so that no value of a row can make a query fail. Queries are
    refused once there is a newer one, until the table is opened again.

    Args:
        source_url: URL of the table.
        table: must be None: the URL names the table.
        view: a SELECT of the data owner, in which the table is called source. A view has no data version.
        password: must be None.
        timeout_seconds: time limit of a query, or None.

    Raises:
        InputError: the URL is not valid, there is no such table, or a feature of the table is unsupported.
    """

    def __init__(
        self,
        source_url: str,
        *,
        table: str | None = None,
        view: str | None = None,
        password: str | None = None,
        timeout_seconds: float | None = None,
    ) -> None:
        if table is not None or password is not None:
            raise InputError(
                "the URL of a Delta or Iceberg table names the table itself: give no table and no password"
            )
        url = parse_url(source_url)
        url.check_options(())
        try:
            table_version = self._newest(url)
            snapshot = self._snapshot(table_version)
            rows = self._rows(table_version)
        except ModuleNotFoundError:
            raise InputError(f"{url.scheme}:// sources need libraries; {how_to_install(url.scheme)}") from None
        except InputError:
            raise
        except self._failures() as error:
            raise InputError(f"{url} cannot be read as a table ({type(error).__name__})") from None
        super().__init__(rows, view=view, timeout_seconds=timeout_seconds)
        self._name = str(url) if view is None else f"{url}, a view"
        narrow = (pa.int8(), pa.uint8(), pa.int16(), pa.uint16())
        names = frozenset(field.name for field in rows.schema if field.type in narrow)
        self._source = replace(self._source, name=self._name, narrow=names)
        self._place = source_url
        self.checked_fingerprint = snapshot

    @classmethod
    def fingerprint(cls, source: Any) -> str | None:  # noqa: ANN401 - as in `DuckDBEngine`
        """Return the id of the newest snapshot.

        Raises:
            EngineUnreachable: the table cannot be read.
        """
        url = parse_url(source)
        try:
            return cls._snapshot(cls._newest(url))
        except ModuleNotFoundError:
            return None  # opening says which library is missing
        except InputError:
            raise
        except cls._failures() as error:
            raise EngineUnreachable(f"{url} cannot be read ({type(error).__name__})") from None

    @staticmethod
    @abstractmethod
    def _newest(url: Url) -> _Table:
        """Return the table at *url* at its newest snapshot."""

    @staticmethod
    @abstractmethod
    def _snapshot(table: _Table) -> str:
        """Return the id of the snapshot of *table*."""

    @staticmethod
    @abstractmethod
    def _rows(table: _Table) -> pa.Table:
        """Return the rows of the snapshot of *table*."""

    @staticmethod
    @abstractmethod
    def _failures() -> tuple[type[Exception], ...]:
        """Return the exception classes of the table's library."""


class DeltaEngine(SnapshotEngine["DeltaTable"]):
    """An engine for a Delta table: delta:///data/reads, the path of its folder."""

    @staticmethod
    def _newest(url: Url) -> DeltaTable:
        from deltalake import DeltaTable

        if url.host or not url.path:
            raise InputError("a Delta URL looks like delta:///data/reads, the absolute path of its folder")
        return DeltaTable(f"/{url.path}")

    @staticmethod
    def _snapshot(table: DeltaTable) -> str:
        return f"{table.metadata().id} {table.version()}"

    @staticmethod
    def _rows(table: DeltaTable) -> pa.Table:
        return table.to_pyarrow_table()

    @staticmethod
    def _failures() -> tuple[type[Exception], ...]:
        from deltalake.exceptions import DeltaError

        return DeltaError, pa.ArrowException, OSError, ValueError


class IcebergEngine(SnapshotEngine["IcebergTable"]):
    """An engine for an Iceberg table: iceberg://catalog/namespace.table, the catalog as PyIceberg is configured."""

    @staticmethod
    def _newest(url: Url) -> IcebergTable:
        from pyiceberg.catalog import load_catalog

        if not url.host or "." not in url.path:
            raise InputError("an Iceberg URL looks like iceberg://catalog/namespace.table")
        return load_catalog(url.host).load_table(url.path)

    @staticmethod
    def _snapshot(table: IcebergTable) -> str:
        snapshot = table.current_snapshot()
        return f"{table.metadata.table_uuid} {None if snapshot is None else snapshot.snapshot_id}"

    @staticmethod
    def _rows(table: IcebergTable) -> pa.Table:
        return table.scan().to_arrow()

    @staticmethod
    def _failures() -> tuple[type[Exception], ...]:
        from pyiceberg import exceptions

        named = [kind for kind in vars(exceptions).values() if isinstance(kind, type) and issubclass(kind, Exception)]
        return *named, pa.ArrowException, OSError, ValueError, NotImplementedError
