"""Superset engine: supported features, and the metrics of a new dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import types
from superset.constants import TimeGrain
from superset.db_engine_specs.base import BaseEngineSpec, LimitMethod

if TYPE_CHECKING:
    from datetime import datetime

_USER_COMMENT = "identifies users: "


class DiscreetEngineSpec(BaseEngineSpec):
    """Superset engine of a Discreet service."""

    engine = "discreet"
    engine_name = "Discreet"
    default_driver = "http"
    sqlalchemy_uri_placeholder = "discreet://name:KEY@host/?epsilon=1&delta=1e-8"
    metadata = {  # noqa: RUF012 - overrides the base class's attribute
        "description": "Counts, sums and averages with differential privacy.",
        "pypi_packages": ["discreet-sql"],
        "connection_string": sqlalchemy_uri_placeholder,
    }
    limit_method = LimitMethod.FETCH_MANY  # LIMIT in a statement would set k
    allows_joins = False  # Superset then queries the largest series first and filters by them, in place of a join
    allows_sql_comments = False
    supports_file_upload = False

    _time_grain_expressions = {  # noqa: RUF012
        None: "{col}",
        TimeGrain.HOUR: "DATE_TRUNC('hour', {col})",
        TimeGrain.DAY: "DATE_TRUNC('day', {col})",
        TimeGrain.WEEK: "DATE_TRUNC('week', {col})",
        TimeGrain.MONTH: "DATE_TRUNC('month', {col})",
    }

    @classmethod
    def convert_dttm(cls, target_type: str, dttm: datetime, db_extra: dict[str, Any] | None = None) -> str | None:
        """Return the SQL literal of a time in a filter."""
        kind = cls.get_sqla_column_type(target_type)
        if isinstance(kind, types.Date):
            return f"DATE '{dttm.date().isoformat()}'"
        if isinstance(kind, types.DateTime):
            return f"TIMESTAMP '{dttm.isoformat(sep=' ', timespec='microseconds')}'"
        return None

    @classmethod
    def extract_errors(
        cls, ex: Exception, context: dict[str, Any] | None = None, database_name: str | None = None
    ) -> list[Any]:
        """Return no errors with details, so that SQL Lab shows the service's sentence with HTTP 400, not 500."""
        return []

    @classmethod
    def get_metrics(cls, database: Any, inspector: Any, table: Any) -> list[dict[str, Any]]:
        """Return the default metrics of a new dataset: its number of users, and the ends of the 95 % interval."""
        comments = [column["comment"] or "" for column in inspector.get_columns(table.table, table.schema)]
        users = [text.removeprefix(_USER_COMMENT) for text in comments if text.startswith(_USER_COMMENT)]
        return [
            {"metric_name": name, "verbose_name": label, "metric_type": kind, "expression": template.format(expression)}
            for expression in users
            for name, label, kind, template in (
                ("users", "Users", "count_distinct", "{}"),
                ("users_low", "Users, low end of 95 %", "expression", "LOW({})"),
                ("users_high", "Users, high end of 95 %", "expression", "HIGH({})"),
            )
        ]
