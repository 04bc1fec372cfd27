"""SQLAlchemy dialect, for SQLAlchemy 1.4 and 2.x."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import exc, types
from sqlalchemy.engine import default
from sqlalchemy.sql.compiler import IdentifierPreparer

import discreet_sql
from discreet_sql.errors import DatabaseError, slug_of

if TYPE_CHECKING:
    from types import ModuleType

    from sqlalchemy.engine import URL, Connection
    from sqlalchemy.types import TypeEngine

SCHEMA = "main"
"""The schema of datasets whose names have no schema."""

_TYPES: dict[str, type[TypeEngine[Any]]] = {
    "text": types.VARCHAR,
    "integer": types.BIGINT,
    "decimal": types.DECIMAL,
    "boolean": types.BOOLEAN,
    "date": types.DATE,
    "timestamp": types.TIMESTAMP,
    "float": types.FLOAT,
}
"""SQLAlchemy types by the service's column types."""


class _Preparer(IdentifierPreparer):
    """Identifier preparer that writes `reads`, not `main.reads`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.schema_for_object = lambda table: None if table.schema == SCHEMA else table.schema


class DiscreetDialect(default.DefaultDialect):
    """Dialect of discreet://name:KEY@host/?epsilon=1&delta=1e-8."""

    name = "discreet"
    driver = "http"
    default_paramstyle = "qmark"
    preparer = _Preparer
    supports_alter = False
    supports_native_boolean = True
    supports_native_decimal = True
    supports_statement_cache = True
    supports_sane_rowcount = False
    supports_sane_multi_rowcount = False
    postfetch_lastrowid = False

    @classmethod
    def import_dbapi(cls) -> ModuleType:
        """Return the DB-API module."""
        return discreet_sql

    @classmethod
    def dbapi(cls) -> ModuleType:
        """Return the DB-API module, for SQLAlchemy 1.4."""
        return discreet_sql

    def create_connect_args(self, url: URL) -> Any:
        """Return the arguments of `discreet_sql.connect`."""
        return [url.set(drivername="discreet").render_as_string(hide_password=False)], {}

    def _get_default_schema_name(self, connection: Connection) -> str:
        return SCHEMA

    def _get_server_version_info(self, connection: Connection) -> None:
        return None

    def get_schema_names(self, connection: Connection, **kw: Any) -> list[str]:
        """Return the schemas of all datasets that the account may query."""
        return sorted({SCHEMA, *(schema for schema, _ in _tables(connection))})

    def get_table_names(self, connection: Connection, schema: str | None = None, **kw: Any) -> list[str]:
        """Return the datasets of a schema that the account may query."""
        return sorted(table for own, table in _tables(connection) if own == (schema or SCHEMA))

    def has_table(self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any) -> bool:
        """Return True if the account may query the dataset."""
        return table_name in self.get_table_names(connection, schema)

    def get_columns(self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any) -> list[Any]:
        """Return the columns of a dataset; comments state their permitted uses."""
        dataset = _dataset(connection, table_name, schema)
        found = [_column(column["name"], _TYPES.get(column["type"]), _uses(column)) for column in dataset["columns"]]
        if dataset["user"] not in {column["name"] for column in found}:
            found.append(_column(dataset["user"], types.VARCHAR, ""))
        for column in found:
            if column["name"] == dataset["user"]:
                column["comment"] = f"identifies users: COUNT(DISTINCT {column['name']})"
        return found

    def get_table_comment(
        self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any
    ) -> dict[str, Any]:
        """Return the description of a dataset."""
        return {"text": _dataset(connection, table_name, schema)["description"]}

    def get_view_names(self, connection: Connection, schema: str | None = None, **kw: Any) -> list[str]:
        """Return nothing: there are no views."""
        return []

    def get_pk_constraint(
        self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any
    ) -> dict[str, Any]:
        """Return nothing: there are no keys."""
        return {"constrained_columns": [], "name": None}

    def get_foreign_keys(
        self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any
    ) -> list[Any]:
        """Return nothing: there are no keys."""
        return []

    def get_indexes(self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any) -> list[Any]:
        """Return nothing: there are no indexes."""
        return []

    def get_unique_constraints(
        self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any
    ) -> list[Any]:
        """Return nothing: there are no keys."""
        return []


def _tables(connection: Connection) -> list[tuple[str, str]]:
    """Return schema and table of each dataset; `public.reads` has the schema `public`."""
    names = [dataset["name"].rpartition(".") for dataset in _driver(connection).datasets()]
    return [(schema or SCHEMA, table) for schema, _, table in names]


def _dataset(connection: Connection, table_name: str, schema: str | None) -> dict[str, Any]:
    name = table_name if schema in {None, SCHEMA} else f"{schema}.{table_name}"
    try:
        return _driver(connection).dataset(name)
    except DatabaseError as error:
        if slug_of(error.problem) == "not-found":
            raise exc.NoSuchTableError(name) from None
        raise


def _driver(connection: Connection) -> discreet_sql.Connection:
    """Return the DB-API connection of an SQLAlchemy connection."""
    found: discreet_sql.Connection = connection.connection.dbapi_connection
    return found


def _column(name: str, kind: type[TypeEngine[Any]] | None, comment: str) -> dict[str, Any]:
    return {"name": name, "type": (kind or types.NullType)(), "nullable": True, "default": None, "comment": comment}


def _uses(column: dict[str, Any]) -> str:
    """Return the permitted uses of a column as text."""
    uses = [use for flag, use in (("group", "GROUP BY"), ("filter", "WHERE"), ("sum", "SUM and AVG")) if column[flag]]
    known = "; all its values are known in advance" if column["known_domain"] else ""
    return ("for " + ", ".join(uses) if uses else "not for queries") + known
