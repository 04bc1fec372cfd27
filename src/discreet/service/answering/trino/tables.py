"""What Trino clients read about datasets: `information_schema`, `system.jdbc`, `system.metadata`, and types.

All tables are in `information_schema` under one name: `system.jdbc.tables` is `information_schema.jdbc_tables`. They
are computed from the catalog of the account, and from its budget.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from discreet.catalog.model import Catalog
from discreet.head_request import Kind
from discreet.query.query import SAVED
from discreet.release.postprocess import columns_of
from discreet.service.answering.trino.dialect import CATALOG, SCHEMA, VERSION
from discreet.wire.queries import BudgetReport, ParentBudget, StatementRequest

if TYPE_CHECKING:
    from discreet.service.answering.saved_tables import OwnedTable

TYPES: Mapping[Kind, tuple[str, int, int | None, int | None]] = {
    Kind.TEXT: ("varchar", 12, 2**31 - 1, None),
    Kind.INTEGER: ("bigint", -5, 19, 0),
    Kind.DECIMAL: ("decimal(38,6)", 3, 38, 6),
    Kind.FLOAT: ("double", 8, 53, None),
    Kind.BOOLEAN: ("boolean", 16, None, None),
    Kind.DATE: ("date", 91, None, None),
    Kind.TIMESTAMP: ("timestamp(6)", 93, None, None),
}
"""Trino's type of each kind of columns, with its number, precision and scale in JDBC."""

_PLACE = "table_catalog table_schema table_name"
_PROPERTIES = "catalog_name property_name default_value type description"

COLUMNS: Mapping[str, str] = {
    "schemata": "catalog_name schema_name",
    "tables": f"{_PLACE} table_type table_comment",
    "views": f"{_PLACE} view_definition",
    "columns": f"{_PLACE} column_name ordinal_position:bigint column_default is_nullable data_type comment "
    "column_comment",
    "applicable_roles": "grantee grantee_type role_name is_grantable",
    "enabled_roles": "role_name",
    "table_privileges": f"grantor grantor_type grantee grantee_type {_PLACE} privilege_type is_grantable "
    "with_hierarchy",
    "budget": "account mode share_left:double rho_limit:double rho_left:double delta_limit:double delta_left:double "
    "epsilon_left:double resets_at",
    "session_properties": "name value default type description",
    "functions": "function return_type argument_types function_type deterministic:boolean description",
    "jdbc_catalogs": "table_cat",
    "jdbc_schemas": "table_schem table_catalog",
    "jdbc_table_types": "table_type",
    "jdbc_tables": "table_cat table_schem table_name table_type remarks type_cat type_schem type_name "
    "self_referencing_col_name ref_generation",
    "jdbc_columns": "table_cat table_schem table_name column_name data_type:bigint type_name column_size:bigint "
    "buffer_length:bigint decimal_digits:bigint num_prec_radix:bigint nullable:bigint remarks column_def "
    "sql_data_type:bigint sql_datetime_sub:bigint char_octet_length:bigint ordinal_position:bigint is_nullable "
    "scope_catalog scope_schema scope_table source_data_type:bigint is_autoincrement is_generatedcolumn",
    "jdbc_types": "type_name data_type:bigint precision:bigint literal_prefix literal_suffix create_params "
    "nullable:bigint case_sensitive:boolean searchable:bigint unsigned_attribute:boolean fixed_prec_scale:boolean "
    "auto_increment:boolean local_type_name minimum_scale:bigint maximum_scale:bigint sql_data_type:bigint "
    "sql_datetime_sub:bigint num_prec_radix:bigint",
    "jdbc_attributes": "type_cat type_schem type_name attr_name data_type:bigint attr_type_name attr_size:bigint "
    "decimal_digits:bigint num_prec_radix:bigint nullable:bigint remarks attr_def sql_data_type:bigint "
    "sql_datetime_sub:bigint char_octet_length:bigint ordinal_position:bigint is_nullable scope_catalog scope_schema "
    "scope_table source_data_type:bigint",
    "jdbc_super_tables": "table_cat table_schem table_name supertable_name",
    "jdbc_super_types": "type_cat type_schem type_name supertype_cat supertype_schem supertype_name",
    "jdbc_udts": "type_cat type_schem type_name class_name data_type:bigint remarks base_type:bigint",
    "jdbc_procedures": "procedure_cat procedure_schem procedure_name remarks procedure_type:bigint specific_name",
    "jdbc_procedure_columns": "procedure_cat procedure_schem procedure_name column_name column_type:bigint "
    "data_type:bigint type_name precision:bigint length:bigint scale:bigint radix:bigint nullable:bigint remarks "
    "column_def sql_data_type:bigint sql_datetime_sub:bigint char_octet_length:bigint ordinal_position:bigint "
    "is_nullable specific_name",
    "jdbc_pseudo_columns": "table_cat table_schem table_name column_name data_type:bigint column_size:bigint "
    "decimal_digits:bigint num_prec_radix:bigint column_usage remarks char_octet_length:bigint is_nullable",
    "metadata_catalogs": "catalog_name connector_id connector_name state",
    "metadata_table_comments": "catalog_name schema_name table_name comment",
    "metadata_materialized_views": "catalog_name schema_name name storage_catalog storage_schema storage_table "
    "freshness comment definition",
    "metadata_table_properties": _PROPERTIES,
    "metadata_column_properties": _PROPERTIES,
    "metadata_schema_properties": _PROPERTIES,
    "metadata_analyze_properties": _PROPERTIES,
    "metadata_materialized_view_properties": _PROPERTIES,
    "runtime_nodes": "node_id http_uri node_version coordinator:boolean state",
    "runtime_queries": "query_id state user source query",
}
"""The columns of each table, of type varchar where no other is given; tables that `table` does not fill are empty."""

_FUNCTIONS = (
    ("count", "bigint", "", "The number of rows; distinct users as COUNT(DISTINCT column)."),
    ("sum", "decimal(38,6)", "decimal", "A sum, clipped to the bounds in the catalog."),
    ("avg", "double", "decimal", "The average of rows, clipped to the bounds in the catalog."),
    ("low", "double", "aggregate", "The lower end of the 95 % interval of an aggregate."),
    ("high", "double", "aggregate", "The upper end of the 95 % interval of an aggregate."),
    ("quantile", "double", "column, share", "A quantile, from the histogram of a column with bins."),
)


MAX_RUN_TIME = "query_max_run_time"
"""The session property of Trino by which drivers limit the time of a statement."""


_JSON_TYPES = {frozenset({"boolean"}): "boolean", frozenset({"integer"}): "bigint", frozenset({"number"}): "double"}
PROPERTIES: Mapping[str, tuple[str, str]] = {
    **{
        # a number that may be text is taken exactly
        name: (_JSON_TYPES.get(frozenset(kinds - {"null"}), "varchar"), schema.get("description", ""))
        for name, schema in StatementRequest.model_json_schema()["properties"].items()
        for kinds in [{each.get("type") for each in schema.get("anyOf", [schema])}]
        if name not in {"sql", "counts"}
    },
    MAX_RUN_TIME: ("varchar", "The longest time that a statement may take, such as 30s or 5m."),
}
"""The types and descriptions of all session properties: the options of a statement, and its longest time."""


def table(
    name: str,
    catalog: Catalog,
    saved: Sequence[OwnedTable],
    budget: BudgetReport,
    properties: Mapping[str, str],
) -> pa.Table:
    """Return the rows of a table of `COLUMNS`.

    Args:
        catalog: of the account.
        saved: the saved tables of the account.
        properties: the session properties that are set.
    """
    types = {"": pa.string(), "bigint": pa.int64(), "double": pa.float64(), "boolean": pa.bool_()}
    columns = [column.partition(":") for column in COLUMNS[name].split()]
    schema = pa.schema([(column, types[type_]) for column, _, type_ in columns])
    rows = [(*row, *[None] * (len(columns) - len(row))) for row in _rows(name, catalog, saved, budget, properties)]
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


def _rows(  # noqa: C901, PLR0911, PLR0912 - a case for each table
    name: str, catalog: Catalog, saved: Sequence[OwnedTable], budget: BudgetReport, properties: Mapping[str, str]
) -> Sequence[tuple[Any, ...]]:
    """Return the rows of a table, without the columns behind the last that is not null."""
    places = {}
    for full_name, dataset in sorted(catalog.datasets.items()):
        schema, _, short = full_name.rpartition(".")
        places[schema or SCHEMA, short] = dataset
    schemas = sorted({SCHEMA, SAVED, *(schema for schema, _ in places)})
    own_tables = [(SAVED, of.name, "VIEW" if of.table.view else "TABLE", of.table.comment or None) for of in saved]
    listed: list[tuple[Any, ...]]
    match name:
        case "schemata":
            return [(CATALOG, schema) for schema in [*schemas, "information_schema"]]
        case "tables":
            kinds = {"TABLE": "BASE TABLE", "VIEW": "VIEW"}
            listed = [(CATALOG, *place, "BASE TABLE", dataset.description) for place, dataset in places.items()]
            listed += [(CATALOG, *place, kinds[kind], comment) for *place, kind, comment in own_tables]
            return [*listed, *((CATALOG, "information_schema", own, "BASE TABLE") for own in COLUMNS if "_" not in own)]
        case "views":
            return [(CATALOG, SAVED, of.name, of.table.parts[0].sql) for of in saved if of.table.view]
        case "jdbc_tables":
            listed = [(CATALOG, *place, "TABLE", dataset.description) for place, dataset in places.items()]
            return [*listed, *((CATALOG, *row) for row in own_tables)]
        case "metadata_table_comments":
            listed = [(CATALOG, *place, dataset.description) for place, dataset in places.items()]
            return [*listed, *((CATALOG, *place, comment) for *place, _, comment in own_tables)]
        case "jdbc_catalogs":
            return [(CATALOG,)]
        case "jdbc_schemas":
            return [(schema, CATALOG) for schema in [*schemas, "information_schema"]]
        case "jdbc_table_types":
            return [("TABLE",), ("VIEW",)]
        case "jdbc_types":
            return [
                (type_, number, size, None, None, None, 1, type_ == "varchar", 3, None, False, *[None] * 6, 10)
                for type_, number, size, _ in TYPES.values()
            ]
        case "metadata_catalogs":
            return [(CATALOG, CATALOG, CATALOG, "OPERATIONAL")]
        case "runtime_nodes":
            return [("discreet", "", VERSION, True, "active")]
        case "functions":
            return [(own, type_, arguments, "aggregate", False, text) for own, type_, arguments, text in _FUNCTIONS]
        case "session_properties":
            return [(name, properties.get(name, ""), "", *described) for name, described in PROPERTIES.items()]
        case "budget":
            path: list[tuple[BudgetReport | ParentBudget, float | None]] = [(budget, budget.epsilon_left)]
            path += [(parent, None) for parent in budget.parents]
            rows_of = []
            for of, epsilon in path:
                amounts = (of.left.left_of(of.limit), of.limit.rho, of.left.rho, of.limit.delta, of.left.delta)
                rows_of.append((of.account, of.mode, *amounts, epsilon, of.resets_at))
            return rows_of
    rows: list[tuple[Any, ...]] = []
    jdbc_types = {type_.partition("(")[0]: numbers for type_, *numbers in TYPES.values()}
    for table_ in saved:
        for number, (column, duckdb_type) in enumerate(table_.table.columns, 1):
            type_ = trino_type(duckdb_type)
            if name == "columns":
                rows.append((CATALOG, SAVED, table_.name, column, number, None, "YES", type_))
            elif name == "jdbc_columns":
                jdbc, size, digits = jdbc_types.get(type_.partition("(")[0], [12, None, None])
                described = (jdbc, type_, size, None, digits, 10, 1)
                rows.append((CATALOG, SAVED, table_.name, column, *described, *[None] * 5, number, "YES"))
    for place, dataset in places.items():
        for number, (column, kind, uses) in enumerate(columns_of(dataset), 1):
            type_, jdbc, size, digits = TYPES[kind]
            if name == "columns":
                rows.append((CATALOG, *place, column, number, None, "YES", type_, uses, uses))
            elif name == "jdbc_columns":
                jdbc_columns = (jdbc, type_, size, None, digits, 10, 1, uses)
                rows.append((CATALOG, *place, column, *jdbc_columns, *[None] * 4, number, "YES"))
    return rows


# ------------------------------------------------------------------------------------------------------ types


def trino_type(type_: str) -> str:
    """Return Trino's type for a type of DuckDB, such as VARCHAR or DECIMAL(38,6)."""
    type_ = type_.lower().replace(" ", "")
    if type_.startswith("timestamp"):
        return "timestamp(6) with time zone" if "zone" in type_ else "timestamp(6)"
    renamed = {"hugeint": "decimal(38,0)", "uhugeint": "decimal(38,0)", "ubigint": "decimal(20,0)", "float": "real"}
    renamed |= {"utinyint": "smallint", "usmallint": "integer", "uinteger": "bigint", '"null"': "unknown"}
    plain = {"boolean", "tinyint", "smallint", "integer", "bigint", "double", "date"}
    return renamed.get(type_, type_ if type_ in plain or type_.startswith("decimal(") else "varchar")


def column(name: str, type_: str) -> dict[str, Any]:
    """Return the description of a column of a result, of a type of Trino."""
    raw, _, rest = type_.partition("(")
    numbers, _, zone = rest.partition(")")
    arguments = [int(number) for number in numbers.split(",") if number] or [2**31 - 1] * (raw == "varchar")
    signature = {"rawType": raw + zone, "arguments": [{"kind": "LONG", "value": number} for number in arguments]}
    return {"name": name, "type": type_, "typeSignature": signature}


def cell_writer(type_: str) -> Callable[[Any], str] | None:
    """Return the function from the JSON values of results to those of the protocol; None if they are the same."""
    return _TEXTS.get(type_.partition("(")[0])


_TEXTS: Mapping[str, Callable[[Any], str]] = {
    "timestamp": lambda value: value.replace("T", " ").replace("+00:00", " UTC"),
    "decimal": str,
    "varchar": lambda value: value if isinstance(value, str) else json.dumps(value),
}
