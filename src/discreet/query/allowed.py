"""The allow-list of what post-processing may contain: types of nodes, functions, windows and types of casts.

What is computed from answers runs in DuckDB. With nothing but these it can read nothing but the answers, even if the
database that runs it holds more.
"""

from __future__ import annotations

from typing import NoReturn

from discreet.query.parse_tree import REFUSED, Node, TreeReader

AGGREGATES = frozenset({"count", "count_star", "sum", "avg"})
"""Aggregates of rows of a dataset, besides quantiles."""


def _word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SCALARS = _word_set(
    "+ - * / % || ~~ !~~ ~~* !~~* ^ ** like_escape not_like_escape abs ceil ceiling floor round trunc sign sqrt "
    "cbrt exp ln log log10 log2 pow power mod greatest least nullif ifnull isnan isfinite isinf lower upper trim "
    "ltrim rtrim length strlen substr substring left right replace concat starts_with ends_with prefix suffix "
    "contains strpos position instr split_part reverse ascii if date_trunc date_part datepart date_diff datediff "
    "date_add year quarter month week weekofyear yearweek day dayofmonth dayofweek dayofyear isodow isoyear hour "
    "minute second epoch dayname monthname last_day strftime make_date to_years to_months to_weeks to_days "
    "to_hours to_minutes to_seconds"
)
OUTER_AGGREGATES = AGGREGATES | _word_set(
    "min max median mode stddev stddev_samp stddev_pop variance var_samp var_pop first last any_value string_agg "
    "bool_and bool_or arg_min arg_max min_by max_by quantile_cont quantile_disc corr"
)
"""Aggregates of rows of answers."""

_WINDOWS = OUTER_AGGREGATES | _word_set(
    "row_number rank dense_rank percent_rank cume_dist ntile lag lead first_value last_value nth_value"
)
_CASTS = _word_set(
    "BOOLEAN TINYINT SMALLINT INTEGER BIGINT HUGEINT FLOAT DOUBLE DECIMAL VARCHAR DATE TIME TIMESTAMP INTERVAL"
) | {"TIMESTAMP WITH TIME ZONE"}
_NODES = _word_set(
    "ORDER_MODIFIER LIMIT_MODIFIER LIMIT_PERCENT_MODIFIER DISTINCT_MODIFIER ASCENDING DESCENDING ORDER_DEFAULT "
    "SUBQUERY JOIN EMPTY EXPRESSION_LIST COLUMN_REF VALUE_CONSTANT CASE_EXPR STAR CONJUNCTION_AND CONJUNCTION_OR "
    "OPERATOR_NOT OPERATOR_IS_NULL OPERATOR_IS_NOT_NULL OPERATOR_COALESCE COMPARE_IN COMPARE_NOT_IN "
    "COMPARE_BETWEEN COMPARE_EQUAL COMPARE_NOTEQUAL COMPARE_LESSTHAN COMPARE_LESSTHANOREQUALTO "
    "COMPARE_GREATERTHAN COMPARE_GREATERTHANOREQUALTO COMPARE_DISTINCT_FROM COMPARE_NOT_DISTINCT_FROM "
    "GROUPING_FUNCTION"
)
"""Types of nodes of an outer statement that are allowed without further checks."""

_UNKNOWN = {
    "TABLE_FUNCTION": "functions in FROM are not allowed",
    "SHOW_REF": "SHOW and DESCRIBE are not allowed; information_schema.tables and information_schema.columns are",
    "RECURSIVE_CTE_NODE": "WITH RECURSIVE is not allowed",
    "CTE_NODE": "this form of WITH is not allowed",
    "VALUE_PARAMETER": REFUSED["PARAMETER"],
    "LAMBDA": "functions of functions are not allowed",
}

_ANSWERS = "this is not allowed over answers; see docs/sql.md for what is"


def check_allowed(reader: TreeReader, node: Node) -> None:
    """Raise unless the type of a node of an outer statement, and its function or cast, are allowed."""
    kind = node.get("type")
    if kind is None or (isinstance(kind, str) and kind in _NODES):
        return
    match node:
        case {"class": "FUNCTION", "function_name": str(name), "qualified_name": {"path": [str(path)]}}:
            if path == name and name.casefold() in _SCALARS | OUTER_AGGREGATES:
                return
            reader.refuse(f"function {name!r} is not allowed here; docs/sql.md lists those that are allowed", node)
        case {"class": "WINDOW", "function_name": str(name), "qualified_name": {"path": [str(path)]}}:
            if path == name and name.casefold() in _WINDOWS:
                return
            reader.refuse(f"window function {name!r} is not allowed here", node)
        case {"type": "OPERATOR_CAST"}:
            return
        case {"type": "TYPE", "type_name": str(name), "qualified_name": {"path": [str(path)]}}:
            if path == name and name.upper() in _CASTS:
                return
            reader.refuse(f"casts to {name} are not allowed here", node)
    refuse_node(reader, node)


def refuse_node(reader: TreeReader, node: Node) -> NoReturn:
    """Raise with the reason why the type of a node is not allowed."""
    kind = str(node.get("type"))
    reader.refuse(_UNKNOWN.get(kind) or REFUSED.get(kind) or REFUSED.get(str(node.get("class"))) or _ANSWERS, node)
