"""Delta and Iceberg tables: DuckDB counts one snapshot at a time in memory; the snapshot's id is the data version."""

from __future__ import annotations

import threading
from abc import abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from discreet.engines.duckdb import DuckDBEngine
from discreet.engines.opening import parse_url
from discreet.errors import EngineUnreachable, InputError

if TYPE_CHECKING:
    import duckdb

    from discreet.engines.opening import Url


class SnapshotEngine(DuckDBEngine):
    """An engine for the newest snapshot of a table of a lakehouse.

    A snapshot is loaded whole before any query, so that no value of a row can make a query fail. The check of the data
    version refuses a query during which a new snapshot appears.

    Args:
        source_url: URL of the table.
        table: must be None: the URL names the table.
        view: a SELECT of the data owner, in which the table is called source. A view has no data version.
        password: must be None.
        timeout_seconds: time limit of a query, or None.

    Raises:
        InputError: the URL is not valid, there is no such table, or a feature of the table is unsupported.
    """

    keeps_connections: ClassVar[bool] = False  # a reused connection would read the snapshot of its first request

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
        self._url = parse_url(source_url)
        self._url.check_options(())
        self._loading = threading.Lock()
        try:
            self._loaded, snapshot = self._load(None) or ("", None)
        except ModuleNotFoundError:
            scheme = self._url.scheme
            raise InputError(
                f"{scheme}:// sources need libraries; install them with: pip install 'discreet[{scheme}]'"
            ) from None
        except InputError:
            raise
        except self._failures() as error:
            raise InputError(f"{self._url} cannot be read as a table ({type(error).__name__})") from None
        super().__init__(snapshot, view=view, timeout_seconds=timeout_seconds)
        self._name = str(self._url) if view is None else f"{self._url}, a view"
        self._source = replace(self._source, name=self._name)
        self._has_view = view is not None

    def data_version(self) -> str | None:
        """Return the id of the newest snapshot, and load it for the next request; None for a view."""
        with self._loading:
            try:
                newer = self._load(self._loaded)
            except self._failures() as error:
                raise EngineUnreachable(f"{self._url} cannot be read ({type(error).__name__})") from None
            if newer is not None:
                self._loaded, snapshot = newer
                self._source = replace(self._source, frame=snapshot, names=tuple(snapshot.column_names))
        return None if self._has_view else self._loaded

    def _connect(self) -> duckdb.DuckDBPyConnection:
        self.data_version()
        return super()._connect()

    @abstractmethod
    def _load(self, known: str | None) -> tuple[str, pa.Table] | None:
        """Return the newest snapshot and its id, or None if its id is *known*."""

    @staticmethod
    @abstractmethod
    def _failures() -> tuple[type[Exception], ...]:
        """Return the exception classes of the table's library."""


class DeltaEngine(SnapshotEngine):
    """An engine for a Delta table: delta:///data/reads, the path of its folder."""

    def _load(self, known: str | None) -> tuple[str, pa.Table] | None:
        from deltalake import DeltaTable

        table = DeltaTable(_folder(self._url))
        version = f"{table.metadata().id} {table.version()}"
        return None if version == known else (version, _valid(table.to_pyarrow_table()))

    @staticmethod
    def _failures() -> tuple[type[Exception], ...]:
        from deltalake.exceptions import DeltaError

        return DeltaError, pa.ArrowException, OSError, ValueError


class IcebergEngine(SnapshotEngine):
    """An engine for an Iceberg table: iceberg://catalog/namespace.table, the catalog as PyIceberg is configured."""

    def _load(self, known: str | None) -> tuple[str, pa.Table] | None:
        from pyiceberg.catalog import load_catalog

        if not self._url.host or "." not in self._url.path:
            raise InputError("an Iceberg URL looks like iceberg://catalog/namespace.table")
        table = load_catalog(self._url.host).load_table(self._url.path)
        snapshot = table.current_snapshot()
        version = f"{table.metadata.table_uuid} {None if snapshot is None else snapshot.snapshot_id}"
        return None if version == known else (version, _valid(table.scan().to_arrow()))

    @staticmethod
    def _failures() -> tuple[type[Exception], ...]:
        from pyiceberg import exceptions

        named = [kind for kind in vars(exceptions).values() if isinstance(kind, type) and issubclass(kind, Exception)]
        return *named, pa.ArrowException, OSError, ValueError, NotImplementedError


def _folder(url: Url) -> str:
    if url.host or not url.path:
        raise InputError("a Delta URL looks like delta:///data/reads, the absolute path of its folder")
    return f"/{url.path}"


def _valid(table: Any) -> pa.Table:  # noqa: ANN401 - an Arrow table of either library
    """Return *table* in plain types, its text validated: invalid data is refused as a whole, before any query."""
    table.validate(full=True)
    plain = {pa.string_view(): pa.string(), pa.large_string(): pa.string()}
    fields = [pa.field(field.name, plain.get(field.type, field.type)) for field in table.schema]
    return table.cast(pa.schema(fields))
