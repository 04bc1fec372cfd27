"""Split whole statements into queries, which are charged, and post-processing of their answers, which is free.

Every SELECT directly over a dataset becomes a query for each of its aggregates, in the grammar of `discreet.query.sql`:
its groups, the aggregate, its filter, and k if it is ordered by its only aggregate, largest first, with a LIMIT. A
quantile is a query for the histogram of its column. Everything else (the select list around the aggregates, HAVING,
other orders, OFFSET, windows, subqueries, joins, UNION) is post-processing: the outer statement, which is written as
SQL over the tables `answers.q1`, `answers.q2`, ... that hold the answers.

    SELECT upper(country), COUNT(DISTINCT reader) / 2 FROM reads GROUP BY country HAVING COUNT(DISTINCT reader) > 9

    answers.q1  SELECT country, count(DISTINCT reader) FROM reads GROUP BY country
    outer       SELECT upper(country), ("$value" / 2) FROM answers.q1 AS reads WHERE ("$value" > 9)

The outer statement is checked against an allow-list of node types, functions and types of casts. So it can read
nothing but the answers, even if the database that runs it holds more.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from discreet.engines.sql import quoted
from discreet.errors import InputError, SQLError
from discreet.head_request import Kind, Period
from discreet.query.intervals import (
    MONOTONE,
    ColumnKind,
    Mark,
    OutputColumn,
    OutputColumns,
    interval_sql,
    read_ratio,
    sum_sql,
)
from discreet.query.parse_tree import (
    REFUSED,
    TOO_DEEP,
    TOO_MANY_SETS,
    Json,
    Node,
    TreeReader,
    character,
    check_size,
    parse_statement,
    write_expression,
    write_statement,
)
from discreet.query.quantiles import QUANTILES, quantile_sql, read_quantile
from discreet.query.query import SAVED, Select
from discreet.query.saved import MAX_NESTED, SavedPart, unknown_table
from discreet.query.sql import MAX_LIMIT_DIGITS, SelectReader, to_sql

if TYPE_CHECKING:
    from discreet.catalog.model import Catalog, Dataset
    from discreet.query.saved import SavedTable

MAX_QUERIES = 20
"""The largest number of queries in one statement."""

MAX_SELECTS = 100
"""The largest number of SELECTs in one statement, including SELECTs over answers."""

MAX_COLUMNS = 200
"""The largest number of columns of a SELECT, of GROUP BY and of FROM, with those that * stands for."""

MAX_SELECTS_EXPANDED = 1_000
"""The largest number of SELECTs after each name of WITH is replaced by its SELECT wherever it is used."""

VALUE = "$value"
LOW = "$low"
HIGH = "$high"
BIAS = "$bias"
NOISE = "$noise"
SHARED = "$shared"
NUMBERS = (VALUE, LOW, HIGH, BIAS, NOISE, SHARED)
"""Columns of answers: the aggregate, the ends of its 95 % interval, the parts of its half width that may be errors in
one direction and that are independent noise, and the share of this noise's variance that all rows share."""

SQL_TYPES: Mapping[Kind, str] = {
    Kind.TEXT: "VARCHAR",
    Kind.INTEGER: "BIGINT",
    Kind.DECIMAL: "DECIMAL(38,6)",
    Kind.FLOAT: "DOUBLE",
    Kind.BOOLEAN: "BOOLEAN",
    Kind.DATE: "DATE",
    Kind.TIMESTAMP: "TIMESTAMP",
}
"""The SQL types of labels."""

SCHEMAS = ("tables", "columns")
"""Tables of information_schema."""

_AGGREGATES = frozenset({"count", "count_star", "sum", "avg"})
_MEASURED = _AGGREGATES | QUANTILES
_ENDS = {"low": LOW, "high": HIGH}
# A comment that is not closed is one match too: to look for the end of each /* again takes quadratic time.
_COMMENT = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|(?P<comment>--[^\n]*|/\*.*?\*/)|/\*.*""", re.DOTALL)
_EXPLAIN = re.compile(r"\s*EXPLAIN\b", re.IGNORECASE)


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
_OUTER_AGGREGATES = _AGGREGATES | _word_set(
    "min max median mode stddev stddev_samp stddev_pop variance var_samp var_pop first last any_value string_agg "
    "bool_and bool_or arg_min arg_max min_by max_by quantile_cont quantile_disc corr"
)
_WINDOWS = _OUTER_AGGREGATES | _word_set(
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
_GROUPED = {
    "FUNCTION": "only columns and date_trunc('month', column) may be grouped by, not expressions, which are for a view "
    "of the data owner",
    "CASE_EXPR": "CASE is not allowed in GROUP BY, because a user with two of its labels would count twice: count each "
    "group by COUNT(DISTINCT user) FILTER (WHERE column IN (...))",
}
_RAW = "rows are never shown: select an aggregate, such as COUNT(DISTINCT ...), and GROUP BY the columns"


@dataclass(frozen=True, slots=True)
class Leaf:
    """A SELECT directly over a dataset.

    Args:
        name: the answer is in the table `answers.<name>`.
        sql: its text, in the grammar of `discreet.query.sql`.
        dataset: name of the dataset, as written in the statement.
        items: columns to group by, as written in the statement.
        select: the query; None for the labels of columns with known domains, which are public.
        ranked_by: the column in ORDER BY COUNT(DISTINCT column), beside a sum or an average; must be the user column.
        complete: True if quantiles are computed from the answer, which then needs all labels.
        release: the id of the release that a saved table names as the answer; None for a query that is asked.
        counts: False if the answer is labels only, in the order of their counts.
    """

    name: str
    sql: str
    dataset: str
    items: tuple[str, ...]
    select: Select | None
    ranked_by: str | None = None
    complete: bool = False
    release: str | None = None
    counts: bool = True

    def limit_k(self, max_k: float | None) -> Leaf:
        """Return the query without k if k is above *max_k*; the LIMIT is then applied to the answer only."""
        select = self.select
        if select is None or select.k is None or max_k is None or select.k <= max_k or select.each:
            return self  # planning refuses a k of segments that is above it
        if select.measure.kind in {"sum", "average"}:
            return self  # planning refuses it: k selects the items to sum
        leaf = self.with_counts()
        return replace(leaf, select=replace(select, k=None), sql=leaf.sql.rpartition(" ORDER BY ")[0])

    def with_counts(self) -> Leaf:
        """Return the query with counts, which the answer is then ordered by."""
        if self.counts or self.select is None:
            return self
        return replace(self, counts=True, sql=to_sql(self.select).replace("\n", " "))


@dataclass(frozen=True, slots=True)
class FilterList:
    """A SELECT in the filter of a query, as `article IN (SELECT ...)`: its values take its place before that is asked.

    Args:
        start: where its parenthesis begins in the text of the statement.
        end: the character after its last parenthesis.
        sql: the SELECT.
    """

    start: int
    end: int
    sql: str


@dataclass(frozen=True, slots=True)
class Statement:
    """A whole statement.

    Args:
        outer: the post-processing, as SQL over `answers.q1`, ...
        leaves: the queries, without duplicates.
        schemas: the tables of information_schema that it reads, as `answers.tables` and `answers.columns`.
        explain: True to return the plan only.
        marks: for each column of the result, whether it has an interval; None if that is not known.
        lists: in filters of queries, in their order; with any, its other parts are those of another statement.
    """

    outer: str
    leaves: tuple[Leaf, ...]
    schemas: frozenset[str]
    explain: bool
    marks: tuple[Mark, ...] | None = None
    lists: tuple[FilterList, ...] = ()


def split_statement(
    text: str,
    catalog: Catalog | None = None,
    schemas: Collection[str] = SCHEMAS,
    *,
    intervals: bool = False,
    today: str | None = None,
    saved: Mapping[str, SavedTable] | None = None,
) -> Statement:
    """Split a statement into queries and post-processing.

    Args:
        text: one SELECT, or EXPLAIN and a SELECT, of at most 20,000 characters.
        catalog: declares the columns for `date_trunc(unit, column)`, and the bins of quantiles; without one, neither
            is allowed.
        schemas: the tables of information_schema.
        intervals: True to add columns NAME_low and NAME_high for each named column of the outermost SELECT that LOW and
            HIGH take; they cost nothing. A statement with DISTINCT, UNION or GROUP BY of answers there, with a
            * that is not replaced by names, or with more than 66 columns stays as it is.
        today: the date that current_date is, YYYY-MM-DD, in UTC; None to refuse it.
        saved: the saved tables that the statement may name, by name in lower case.

    Raises:
        SQLError: part of the statement is not allowed, with its position.
        WhereError: part of the filter of a query is not allowed, with its position.
        NotFound: *catalog* has no such dataset; only for statements that need the catalog.
    """
    check_size(text)
    text = without_comments(text)
    found = _EXPLAIN.match(text)
    if found:
        text = " " * found.end() + text[found.end() :]
    tree = parse_statement(text, arithmetic=True, today=today)
    splitter = _Splitter(text, catalog, schemas, saved or {}, today)
    try:
        splitter.measure(tree["node"], {})
        outer = splitter.subquery(tree, {})
        output = splitter.output_of(outer["node"])
        few = 3 * len(output.columns or ()) <= MAX_COLUMNS
        if intervals and few and not splitter.has_star:  # a * would show columns that carry ends out of subqueries
            output.select_ends(_names_in(tree["node"]))
        written = write_statement(outer)
    except RecursionError:
        raise SQLError(TOO_DEEP) from None
    if splitter.has_star and splitter.uses_hidden:
        raise SQLError("LOW and HIGH of columns of a subquery go with no *: name the columns")
    leaves = tuple(splitter.leaves.values())
    return Statement(
        written,
        leaves,
        frozenset(splitter.schemas),
        bool(found),
        output.marks(),
        tuple(sorted(splitter.lists, key=lambda one: one.start)),
    )


def without_comments(text: str) -> str:
    """Return a statement with spaces instead of its comments."""
    return _COMMENT.sub(lambda match: " " * len(match[0]) if match["comment"] else match[0], text)


@dataclass(frozen=True, slots=True)
class _Size:
    columns: int
    selects: int


_COLUMNS_OF_TABLE = 24  # at most, of a table of metadata; those of datasets are never selected by *


def _children(part: Json) -> Iterable[Json]:
    """Return the parts of a list or an object of a tree; nothing for other values."""
    return part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()


def _has_star(part: Json) -> bool:
    kind = part.get("type") if isinstance(part, dict) else None
    return kind == "STAR" or (kind != "SUBQUERY" and any(map(_has_star, _children(part))))


class _Splitter(TreeReader):
    """Rewrites the tree of a statement and collects its queries."""

    def __init__(
        self,
        text: str,
        catalog: Catalog | None,
        schemas: Collection[str],
        saved: Mapping[str, SavedTable],
        today: str | None,
        outside: _Splitter | None = None,
        answered: SavedPart | None = None,
    ) -> None:
        """Args: *outside* reads the statement that names a saved table, *answered* is what answers the queries."""
        super().__init__(text, SQLError)
        self._catalog = catalog
        self._schemas = schemas
        self._saved = saved
        self._today = today
        self._answered = answered
        self._nested: int = 0 if outside is None else outside._nested + 1
        self._texts: dict[int, tuple[_Splitter, Node, _Size]] = {}
        self.leaves: dict[object, Leaf] = {} if outside is None else outside.leaves
        self.schemas: set[str] = set() if outside is None else outside.schemas
        self.lists: set[FilterList] = set()
        self.has_star = False
        self.uses_hidden = False
        self._selects = 0
        self._relations: Mapping[str, OutputColumns] = {}
        self._whole = False
        self._outputs: dict[int, OutputColumns] = {} if outside is None else outside._outputs

    def measure(self, part: Json, ctes: Mapping[str, _Size]) -> _Size:
        """Return the size of a part of a statement once its names of WITH and its * are expanded; raise above a limit.

        Both can double it with every few characters, and a database that binds the statement expands them first.
        """
        if isinstance(part, list):
            parts = [self.measure(child, ctes) for child in part]
            return _Size(sum(size.columns for size in parts), sum(size.selects for size in parts))
        if not isinstance(part, dict):
            return _Size(0, 0)
        kind = part.get("type")
        if kind == "BASE_TABLE":
            named = ctes.get(part["table_name"].casefold()) if not part["schema_name"] else self._saved_size(part)
            return named or _Size(_COLUMNS_OF_TABLE, 0)
        for entry in part["cte_map"]["map"] if "cte_map" in part else ():
            ctes = {**ctes, str(entry["key"]).casefold(): self.measure(entry["value"]["query_node"], ctes)}
        sizes = {key: self.measure(value, ctes) for key, value in part.items() if key not in {"cte_map", "children"}}
        children = [self.measure(child, ctes) for child in part.get("children") or ()]
        selects = sum(size.selects for size in (*sizes.values(), *children))
        columns = sum(size.columns for size in (*sizes.values(), *children))
        largest = columns
        match kind:
            case "EXPRESSION_LIST":
                largest = columns = max(map(len, part["values"]), default=0)
            case "SET_OPERATION_NODE" if not part["setop_type"].endswith("BY_NAME"):
                largest = columns = max(child.columns for child in children)
            case "SELECT_NODE":
                source = sizes["from_table"].columns
                stars = Counter(column.get("relation_name", "") for column in part["select_list"] if _has_star(column))
                columns = len(part["select_list"]) - stars.total()
                unnamed = stars.pop("", 0)  # * and COLUMNS(*); a.* and b.* together are one of them, unless repeated
                columns += source * (unnamed + max(stars.values(), default=0))
                largest = max(columns, source, len(part["group_expressions"]))
                selects = selects + 1
        if largest > MAX_COLUMNS:
            self.refuse(f"there may be {MAX_COLUMNS} columns at most, with those that * stands for", part)
        if selects > MAX_SELECTS_EXPANDED:
            names = "with those of WITH wherever they are named"
            self.refuse(f"a statement has at most {MAX_SELECTS_EXPANDED:,} SELECTs, {names}", part)
        return _Size(columns, selects)

    def subquery(self, tree: Node, ctes: Mapping[str, OutputColumns]) -> Node:
        """Return a subquery rewritten to read answers."""
        return tree | {"node": self._query(tree["node"], ctes)}

    def _query(self, node: Json, ctes: Mapping[str, OutputColumns]) -> Node:
        """Return a SELECT or set operation over answers; *ctes* are those defined by WITH, by casefolded name."""
        self._selects += 1
        if self._selects > MAX_SELECTS:
            self.refuse(f"a statement has at most {MAX_SELECTS} SELECTs", node)
        if node.get("type") not in {"SELECT_NODE", "SET_OPERATION_NODE"}:
            self._refuse_node(node)
        entries = []
        for entry in node["cte_map"]["map"]:
            value = entry["value"]
            if value.get("key_targets") or value.get("payload_aggregates"):
                self.refuse("WITH takes a SELECT only", value)
            body = self._query(value["query_node"], ctes)  # a CTE may use the names defined before it
            entries.append({**entry, "value": {**value, "query_node": body}})
            named = value.get("aliases") or entry.get("aliases")
            ctes = {**ctes, str(entry["key"]).casefold(): OutputColumns(None, None) if named else self.output_of(body)}
        node = {**node, "cte_map": {"map": entries}}
        if node["type"] == "SET_OPERATION_NODE":
            children = [self._query(child, ctes) for child in node["children"]]
            rewritten = {**node, "children": children, "modifiers": self._rewrite(node["modifiers"], ctes)}
            all_rows = node["setop_type"] == "UNION" and node["setop_all"] and not rewritten["modifiers"]
            self._outputs[id(rewritten)] = self._united(
                [self.output_of(child) for child in children], all_rows=all_rows
            )
            return rewritten
        if node["sample"] is not None:
            self.refuse(REFUSED["sample"], node)
        if len(node["group_sets"]) > MAX_QUERIES:
            self.refuse(TOO_MANY_SETS, node["group_expressions"], node)
        table = node["from_table"]
        if table["type"] == "BASE_TABLE":
            schema = table["schema_name"].casefold()
            name = table["table_name"].casefold()
            if schema not in {"information_schema", SAVED} and (schema or name not in ctes):
                node = self._with_periods(node)
                sets = node["group_sets"]
                several = len(sets) > 1 or (sets and sets[0] != [*range(len(node["group_expressions"]))])
                return self._over_sets(node, ctes) if several else self._over_dataset(node, ctes)
        outside = self._relations, self._whole
        source = self._rewrite(node["from_table"], ctes)
        self._relations = self._named(source, ctes)
        self._whole = self._has_whole_rows(node)
        node = {**node, "select_list": [named for item in node["select_list"] for named in self._expanded(item)]}
        rest = {key: value for key, value in node.items() if key not in {"cte_map", "from_table"}}
        rewritten = {**node, "from_table": source, **{key: self._rewrite(value, ctes) for key, value in rest.items()}}
        self._outputs[id(rewritten)] = self._selected_output(node, rewritten)
        self._relations, self._whole = outside
        return rewritten

    def _has_whole_rows(self, node: Node) -> bool:
        """Return True if no noisy number decides which rows of answers a SELECT reads, and how they are grouped."""
        if node["from_table"]["type"] not in {"BASE_TABLE", "SUBQUERY"}:  # a join may repeat rows
            return False
        groups = [self._selected(group, node["select_list"]) for group in node["group_expressions"]]
        standard = node["aggregate_handling"] == "STANDARD_HANDLING"
        whole = all(output.whole for output in self._relations.values())
        columns = map(self._column, node["group_expressions"])  # which a name means rather than an alias
        by_noise = any(found is not None and found[2].noisy for found in columns)
        return standard and whole and not by_noise and not self._is_noisy([node["where_clause"], *groups])

    def _saved_size(self, table: Node) -> _Size | None:
        if table["schema_name"].casefold() != SAVED:
            return None
        sizes = [size for *_, size in self._read_saved(table)]
        return _Size(sizes[0].columns, sum(size.selects for size in sizes) + 1)

    def _read_saved(self, place: Node) -> list[tuple[_Splitter, Node, _Size]]:
        """Return what reads each part of a saved table, with its tree and its size."""
        name = place["table_name"].lower()
        table = self._saved.get(name) or unknown_table(name)
        if self._nested == MAX_NESTED:
            self.refuse(f"saved tables are made from others at most {MAX_NESTED} deep", place)
        for part in table.parts:
            if id(part) in self._texts:
                continue
            today = self._today if table.view else part.today
            answered = self._answered if table.view else part
            inner = _Splitter(part.sql, self._catalog, self._schemas, part.uses, today, self, answered)
            tree = parse_statement(part.sql, arithmetic=True, today=today)
            self._texts[id(part)] = inner, tree, inner.measure(tree["node"], {})
        return [self._texts[id(part)] for part in table.parts]

    def _over_saved(self, table: Node) -> Node:
        """Return a saved table as a subquery: the SELECTs of its parts."""
        made: Node = parse_statement("SELECT 1 FROM (SELECT 1 UNION ALL SELECT 2) AS x")["node"]["from_table"]
        parts = []
        for inner, tree, _ in self._read_saved(table):
            inner._selects = 0
            try:
                parts.append(inner._query(tree["node"], {}))
            except InputError:  # whose sentence may quote a statement of another account
                why = "the catalog has changed since it was saved, or its data were not granted"
                raise SQLError(f"saved.{table['table_name']} cannot be read: {why}") from None
            self.has_star = self.has_star or inner.has_star
            self.uses_hidden = self.uses_hidden or inner.uses_hidden
        body = parts[0]
        if len(parts) > 1:
            body = made["subquery"]["node"] | {"children": parts}
            self._outputs[id(body)] = self._united([self.output_of(part) for part in parts], all_rows=True)
        alias = {key: table[key] for key in ("column_name_alias",)} | {"alias": table["alias"] or table["table_name"]}
        return made | alias | {"subquery": made["subquery"] | {"node": body}}

    # ------------------------------------------------------------------------------- the columns of a SELECT

    def output_of(self, node: Node) -> OutputColumns:
        """Return the columns of a rewritten SELECT."""
        return self._outputs.get(id(node)) or OutputColumns(None, None)

    def _united(self, outputs: list[OutputColumns], *, all_rows: bool) -> OutputColumns:
        """Return the columns of a set operation: a column is noisy if it is in any of its SELECTs.

        Args:
            all_rows: True if a column more cannot change which rows there are.
        """
        if any(output.columns is None for output in outputs):
            return OutputColumns(None, None)
        columns = [output.columns or [] for output in outputs]
        if len(set(map(len, columns))) > 1:
            return OutputColumns(None, None)
        united = []
        for alike in zip(*columns, strict=True):
            same = len({(column.key, column.end) for column in alike}) == 1
            first = alike[0]
            noisy = any(column.noisy for column in alike)
            ended = first.end if len({column.end for column in alike}) == 1 else ""
            # Columns of the same place belong together if they do in each SELECT.
            key = first.key if same else " ".join(column.key for column in alike)
            queries = frozenset[str]().union(*(column.queries for column in alike))
            kind: ColumnKind = first.kind if len({column.kind for column in alike}) == 1 else ""
            if kind == "answer" and len(queries) < sum(len(column.queries) for column in alike):
                kind = ""  # its rows are there twice
            if any(column.kind == "sum" for column in alike):
                kind = "sum"
            united.append(OutputColumn(first.name, noisy, key, ended, queries, None, first.written, kind))
        whole = all_rows and all(output.whole for output in outputs)
        return OutputColumns(None, united, union=outputs if all_rows else [], whole=whole)

    def _named(self, table: Node, ctes: Mapping[str, OutputColumns]) -> dict[str, OutputColumns]:
        """Return the relations of a FROM by their casefolded names."""
        match table:
            # A natural join would also join the columns that carry ends of intervals out of both sides.
            case {"type": "JOIN", "ref_type": ref, "left": left, "right": right} if ref != "NATURAL":
                both = self._named(left, ctes), self._named(right, ctes)
                return both[0] | both[1]
            case {"type": "SUBQUERY", "alias": alias, "subquery": {"node": inner}}:
                renamed = table.get("column_name_alias")
                return {alias.casefold(): OutputColumns(None, None) if renamed else self.output_of(inner)}
            case {"type": "BASE_TABLE", "schema_name": "", "table_name": name, "alias": alias}:
                renamed = table.get("column_name_alias")
                found = ctes.get(name.casefold())
                return {(alias or name).casefold(): OutputColumns(None, None) if renamed or found is None else found}
            case {"type": "EMPTY"}:
                return {}
        return {"": OutputColumns(None, None)}

    def _column(self, node: Json) -> tuple[str, OutputColumns, OutputColumn] | None:
        """Return the relation of a column of FROM, and the column; None if it is not known."""
        match node:
            case {"type": "COLUMN_REF", "column_names": [str(relation), str(name)]}:
                found = [(relation.casefold(), self._relations.get(relation.casefold()))]
            case {"type": "COLUMN_REF", "column_names": [str(name)]}:
                if any(output.columns is None for output in self._relations.values()):
                    return None
                found = [(alias, output) for alias, output in self._relations.items() if output.find(name)]
            case _:
                return None
        if len(found) != 1 or found[0][1] is None:
            return None
        column = found[0][1].find(name)
        return None if column is None else (found[0][0], found[0][1], column)

    def _interval(self, node: Node) -> tuple[Callable[[], tuple[Node, ...]], frozenset[str], ColumnKind] | None:
        """Return what makes the interval of an expression of columns of FROM, or of sums of these over its rows.

        Returns:
            what makes it, its queries and its kind, as in `OutputColumn`; None if it has no interval.
        """
        used: dict[str, tuple[str, OutputColumns, OutputColumn, str | None]] = {}

        def answer(part: Node) -> str | None:
            added = _added_up(part)
            column, rows = (part, None) if added is None else added
            found = self._column(column)
            if found is None or not found[2].noisy or not found[1].has_ends(found[2]):
                return None
            if added is not None and (found[2].kind != "answer" or not self._whole or self._is_noisy(rows)):
                return None
            clause = "" if rows is None else f" FILTER (WHERE {write_expression(self._rewrite(rows, {}))})"
            name = f"{found[0]} {found[2].name}" if added is None else f"sum {found[0]} {found[2].name}{clause}"
            used[name] = (*found, None if added is None else clause)
            return name

        inner, wrap = _unwrapped(node)
        ratio = read_ratio(inner, answer)
        queries = [column.queries for _, _, column, _ in used.values()]
        together = frozenset[str]().union(*queries)
        # Two columns that are computed from one answer are not independent.
        if ratio is None or not used or len(together) != sum(map(len, queries)) or self._may_share(together):
            return None
        sums = [name for name, (_, _, column, clause) in used.items() if clause is not None or column.kind == "sum"]

        def ends() -> tuple[Node, ...]:
            columns: dict[str, tuple[str, ...]] = {}
            for name, (relation, output, column, clause) in used.items():
                at = f"{quoted(relation)}." if relation else ""
                cells = tuple(f"{at}{quoted(each)}" for each in (column.name, *(output.ends_of(column.name) or ())))
                columns[name] = cells if clause is None else sum_sql(cells, clause)
            return wrap(interval_sql(ratio, columns, [columns[name][3] for name in sums]))

        kind: ColumnKind = "sum" if sums else ""
        if inner is node and node["type"] == "COLUMN_REF":
            ((_, _, column, _),) = used.values()
            kind = column.kind
        return ends, together, kind

    def _may_share(self, answers: Collection[str]) -> bool:
        """Return True if a query among *answers* may be answered by a release among them, of a saved table."""
        used = [leaf for leaf in self.leaves.values() if f"answers.{leaf.name}" in answers]
        asked = {leaf.select for leaf in used if leaf.release is None}
        return any(leaf.select in asked for leaf in used if leaf.release is not None)

    def _expanded(self, item: Node) -> list[Node]:
        """Return the columns that * stands for if they are known, so that it does not select the ends of intervals."""
        parts = set(item) - {"class", "type", "query_location", "query_location_length"}
        if item["type"] != "STAR" or any(item.get(part) for part in parts) or len(self._relations) != 1:
            return [item]
        (only,) = self._relations.values()
        columns = only.columns or []
        if not columns or any(column is not only.find(column.name) for column in columns):
            return [item]
        place = {key: item[key] for key in ("query_location", "query_location_length") if key in item}
        reference: Node = {"class": "COLUMN_REF", "type": "COLUMN_REF", "alias": ""} | place
        return [{**reference, "column_names": [column.written]} for column in columns]

    def _selected_output(self, given: Node, made: Node) -> OutputColumns:
        """Return the columns of a SELECT that reads answers through others."""
        columns: list[OutputColumn] = []
        for item in given["select_list"]:
            self.has_star = self.has_star or _has_star(item)
            if item["type"] == "STAR":
                (only,) = self._relations.values() if len(self._relations) == 1 else (OutputColumns(None, None),)
                plain = not any(item.get(part) for part in ("exclude_list", "replace_list", "expr", "relation_name"))
                if not plain or only.columns is None or only.hidden:
                    return OutputColumns(None, None)
                columns += [replace(column, ends=None) for column in only.columns]
                continue
            end, inner = _end_of(item)
            found = self._column(inner)
            name = item["alias"] or (item["column_names"][-1] if item["type"] == "COLUMN_REF" else "")
            # The relation tells two columns of a name of WITH apart that is joined with itself.
            key = f"{found[0]} {found[2].key}" if found else f"{id(given)} {_aggregate_key(inner)}"
            noisy = self._is_noisy(item)
            interval = None if end or not noisy else self._interval(item)
            ends, queries, kind = interval or (None, frozenset(), "")
            if not end and found:
                end = found[2].end
            columns.append(OutputColumn(name.casefold(), noisy, key, end, queries, ends, name, kind))
        # With a column more, a row that is selected once could be selected twice, or a group could split.
        distinct = any(modifier["type"] == "DISTINCT_MODIFIER" for modifier in given["modifiers"])
        plain = not given["group_expressions"] and not distinct
        whole = self._whole and plain and _keeps_rows(given)
        return OutputColumns(made if plain else None, columns, whole=whole)

    def _is_noisy(self, part: Json) -> bool:
        """Return True unless an expression is known to have no noise."""
        if not isinstance(part, dict):
            return any(map(self._is_noisy, _children(part)))
        kind = part.get("type")
        function = str(part.get("function_name")).casefold()
        if kind == "COLUMN_REF":
            found = self._column(part)
            alike = [] if found is None else [found[2]]
            if found is None and len(part["column_names"]) == 1:  # USING joins columns of the same name
                outputs = self._relations.values()
                if all(output.columns is not None for output in outputs):
                    alike = [column for output in outputs if (column := output.find(part["column_names"][0]))]
            return not alike or any(column.noisy for column in alike)
        computed = part.get("class") == "WINDOW" or (part.get("class") == "FUNCTION" and function in _OUTER_AGGREGATES)
        return computed or kind in {"SUBQUERY", "STAR"} or any(map(self._is_noisy, part.values()))

    # -------------------------------------------------------------------------------------- SELECT over a dataset

    def _over_dataset(self, node: Node, ctes: Mapping[str, OutputColumns]) -> Node:  # noqa: PLR0915
        """Return *node* rewritten to read the answers of its queries."""
        table = node["from_table"]
        selected = node["select_list"]
        distinct = any(modifier["type"] == "DISTINCT_MODIFIER" for modifier in node["modifiers"])
        # The outer statement: aggregates of the dataset become columns of their answers.
        wrapped = _Wrapped(self, ctes)
        parts = {"select_list": wrapped.rewrite(selected)}
        selects_counts = bool(wrapped.aggregates)
        by_users = _ranked_by_users(node) if len(wrapped.aggregates) == 1 else None
        if by_users is not None:
            node = {**node, "modifiers": []}  # the answer has only these items, in this order
        parts |= {key: wrapped.rewrite(node[key]) for key in ("modifiers", "having", "qualify")}
        aggregates = list(wrapped.aggregates.values())
        groups = self._groups(node, not aggregates and distinct)
        qualify = self._each(node, wrapped, groups)
        if qualify is not None:
            parts["qualify"] = None  # the answer has only these items, in this order
        if not aggregates and not groups:
            star = next((column for column in selected if column["type"] == "STAR"), None)
            self.refuse(_RAW if star is None else REFUSED["STAR"], star or selected, node)
        self._check_columns(wrapped.columns, groups, selected)
        for column, rewritten in zip(selected, parts["select_list"], strict=True):
            if rewritten is not column and not rewritten["alias"]:
                rewritten["alias"] = wrapped.name_of(column)
        reader = SelectReader(self._text)
        where = node["where_clause"]
        # What all queries of this SELECT share: its groups and filter. HAVING and the order are the outer statement's.
        leaf = {
            **node,
            "modifiers": [],
            "cte_map": {"map": []},
            "select_list": groups,
            "group_expressions": groups,
            "group_sets": [list(range(len(groups)))] if groups else [],
            "having": None,
            "qualify": qualify,
        }
        if not aggregates:
            # Labels that the catalog lists are public: the answer is all of them, and the filter applies to these rows.
            dataset = reader.table(table)
            items = tuple(reader.column(group) for group in groups)
            leaf |= {"where_clause": None, "group_expressions": [], "group_sets": [], "modifiers": [_DISTINCT]}
            answers = [f"answers.{self._leaf(leaf, dataset, items)}"]
            parts["where_clause"] = self._rewrite(where, ctes)
        else:
            leaf["where_clause"] = self._without_lists(where)
            ranked_by = None
            if by_users is None:
                leaf["modifiers"] = self._top(node, wrapped)
            else:
                (argument,), limit = by_users
                leaf["modifiers"], ranked_by = [limit], reader.column(argument["expression"])
            answers = []
            for aggregate in aggregates:
                if aggregate["function_name"] in QUANTILES:
                    answers.append(self._quantile(aggregate, leaf, groups))
                    continue
                tree = {**leaf, "select_list": [*groups, aggregate]}
                select = reader.read({"node": tree, "named_param_map": []})
                counts = selects_counts or not (select.k or qualify)
                tree = tree if counts else {**tree, "select_list": groups}
                name = self._leaf(tree, select.dataset, select.items, select, ranked_by, counts=counts)
                answers.append(f"answers.{name}")
            parts["where_clause"] = parts.pop("having")  # rows of answers are the groups, so HAVING filters rows
        over = {**_answers(answers, groups), "alias": table["alias"] or table["table_name"]}
        outer = {**node, **parts, "having": None, "from_table": over, "group_expressions": [], "group_sets": []}
        columns = self._dataset_columns(node, parts["select_list"], wrapped, answers)
        whole = not distinct and _keeps_rows(node)
        self._outputs[id(outer)] = OutputColumns(None if distinct else outer, columns, whole=whole)
        return outer

    def _over_sets(self, node: Node, ctes: Mapping[str, OutputColumns]) -> Node:
        """Return ROLLUP, CUBE or GROUPING SETS as the UNION ALL of a SELECT for each set of columns."""
        selected = node["select_list"]
        if node["qualify"] is not None or _has_window(selected):
            self.refuse("windows over several sets of groups need a subquery: SELECT ... FROM (SELECT ...) AS x", node)
        groups = [
            next(iter(self._groups({**node, "group_expressions": [group]}, distinct=False)))
            for group in node["group_expressions"]
        ]
        names = [group["column_names"][-1].casefold() for group in groups]
        about = self._dataset(SelectReader(self._text).table(node["from_table"]))
        kinds = {} if about is None else {name.casefold(): column.kind for name, column in about.columns.items()}
        nulls = {name: f"CAST(NULL AS {SQL_TYPES[kinds[name]]})" if name in kinds else "NULL" for name in names}
        children = []
        for places in node["group_sets"]:
            inside = {names[place] for place in places}
            left_out = {name: None if name in inside else _constant(null) for name, null in nulls.items()}
            parts = {key: self._in_set(node[key], left_out) for key in ("select_list", "having")}
            for item, placed in zip(selected, parts["select_list"], strict=True):
                if not placed["alias"] and item["type"] == "COLUMN_REF" != placed["type"]:
                    placed["alias"] = item["column_names"][-1]
            kept: Node = {
                "modifiers": [],
                "cte_map": {"map": []},
                "group_expressions": [groups[place] for place in places],
            }
            kept |= {"group_sets": [[*range(len(places))]] if places else []}
            children.append({**node, **parts, **kept})
        modifiers = [self._over_union(modifier, selected) for modifier in node["modifiers"]]
        distinct = [modifier for modifier in modifiers if modifier["type"] == "DISTINCT_MODIFIER"]
        if distinct and distinct[0]["distinct_on_targets"]:
            self.refuse("DISTINCT ON over several sets of groups needs a subquery", node)
        made: Node = parse_statement(f"SELECT 1 UNION {'' if distinct else 'ALL'} SELECT 2")["node"]
        modifiers = [modifier for modifier in modifiers if modifier not in distinct]
        united = self._query({**made, "children": children, "modifiers": modifiers}, ctes)
        united["cte_map"] = node["cte_map"]
        return united

    def _in_set(self, part: Json, left_out: Mapping[str, Node | None]) -> Json:
        """Return an expression as it is for one set: NULL for grouped columns outside of it, a number for GROUPING.

        Args:
            left_out: NULL for each grouped column, casefolded, that is outside, and None for each one inside.
        """
        match part:
            case list():
                return [self._in_set(each, left_out) for each in part]
            case {"type": "FUNCTION", "function_name": str(name)} if name in _MEASURED:
                return part
            case {"type": "COLUMN_REF", "column_names": [*_, str(name)]} if null := left_out.get(name.casefold()):
                return null | {"alias": part["alias"]}
            case {"type": "GROUPING_FUNCTION", "children": children}:
                columns = [child.get("column_names", [""])[-1].casefold() for child in children]
                if not left_out.keys() >= set(columns):
                    self.refuse("GROUPING takes columns of GROUP BY", part)
                number = sum(bool(left_out[name]) << place for place, name in enumerate(reversed(columns)))
                return _constant(f"CAST({number} AS BIGINT)") | {"alias": part["alias"] or "grouping"}
            case dict():
                return {key: self._in_set(value, left_out) for key, value in part.items()}
        return part

    def _over_union(self, modifier: Node, selected: list[Node]) -> Node:
        """Return ORDER BY with places in the select list for its expressions, as a UNION needs; LIMIT as it is."""
        if modifier["type"] != "ORDER_MODIFIER":
            return modifier
        orders = []
        for order in modifier["orders"]:
            by = order["expression"]
            alike = [place for place, item in enumerate(selected, 1) if _aggregate_key(item) == _aggregate_key(by)]
            if by["type"] == "COLUMN_REF":
                name = by["column_names"][-1].casefold()
                named = [(item["alias"] or item.get("column_names", [""])[-1]).casefold() for item in selected]
                alike = [place for place, one in enumerate(named, 1) if one == name]
            if by["type"] == "VALUE_CONSTANT":
                alike = [_place(by)]
            if not alike:
                self.refuse("ORDER BY over several sets of groups takes what is selected", by)
            orders.append({**order, "expression": _constant(str(alike[0]))})
        return {**modifier, "orders": orders}

    def _without_lists(self, part: Json) -> Json:
        """Return a filter with any constants in place of lists that are selected, which are added to `lists`."""
        match part:
            case list():
                return [self._without_lists(each) for each in part]
            case {"type": "SUBQUERY", "subquery_type": "ANY", "comparison_type": "COMPARE_EQUAL", "child": child}:
                start, end = (
                    character(self._text, part["query_location"] + length, 0)
                    for length in (0, part["query_location_length"])
                )
                if self._nested:
                    self.refuse("a view has no such filter", part)
                if not self._text.startswith("(", start):
                    self.refuse("a list is selected by IN (SELECT ...)", part)
                if len(self.lists) == MAX_QUERIES:
                    self.refuse(f"a statement has at most {MAX_QUERIES} lists in its filters", part)
                self.lists.add(FilterList(start, end, self._text[start + 1 : end - 1]))
                constants: Node = parse_statement("SELECT 1 WHERE 1 IN ('', ' ')")["node"]["where_clause"]
                return {**constants, "children": [child, *constants["children"][1:]]}
            case dict():
                return {key: self._without_lists(value) for key, value in part.items()}
        return part

    def _dataset_columns(
        self, node: Node, rewritten: list[Node], wrapped: _Wrapped, answers: list[str]
    ) -> list[OutputColumn]:
        """Return the columns of a SELECT over a dataset, and name those of *rewritten* that have no name.

        Args:
            answers: those of its aggregates.
        """
        columns: list[OutputColumn] = []
        for given, made in zip(node["select_list"], rewritten, strict=True):
            end, inner = _end_of(given)
            name = made["alias"] or (given["column_names"][-1] if given["type"] == "COLUMN_REF" else "")
            aliases = {column.name for column in columns if column.noisy}  # which the columns after them may use
            noisy = bool(answers) and (made != given or bool(_names_in(given) & aliases))
            interval = wrapped.interval(inner) if noisy and not end else None
            queries = frozenset(answers[number - 1] for number in wrapped.numbers(inner))
            key = f"{id(node)} {_aggregate_key(inner)}"
            queries = queries if interval else frozenset()
            kind: ColumnKind = ""
            if interval is not None and inner.get("function_name") in {"count", "count_star", "sum"}:
                kind = "answer"  # an average is not added up
            columns.append(OutputColumn(name.casefold(), noisy, key, end, queries, interval, name, kind))
            if made != given and not made["alias"]:  # DuckDB would name it after columns of answers
                made["alias"] = write_expression(given)
        return columns

    def _with_periods(self, node: Node) -> Node:
        """Replace `date_trunc` in GROUP BY and WHERE by the catalog's columns of periods."""
        table = dict(node["from_table"])
        if table["schema_name"].casefold() == "main" and not table["catalog_name"]:
            table |= {"schema_name": "", "qualified_name": {"path": [table["table_name"]]}}
        dataset = ".".join(filter(None, (table["schema_name"], table["table_name"])))
        grouped: dict[str, Node] = {}
        for group in node["group_expressions"]:
            expression = self._selected(group, node["select_list"])
            if (call := _truncated(expression)) is not None:
                grouped[_aggregate_key(expression)] = self._column_of(dataset, *call, expression)

        def in_place(part: Json, *, everywhere: bool) -> Json:
            if isinstance(part, list):
                return [in_place(each, everywhere=everywhere) for each in part]
            if not isinstance(part, dict):
                return part
            call = _truncated(part)
            if call is not None and (everywhere or _aggregate_key(part) in grouped):
                return {**self._column_of(dataset, *call, part), "alias": part["alias"]}
            return {key: in_place(value, everywhere=everywhere) for key, value in part.items()}

        parts = ("select_list", "group_expressions", "modifiers", "having", "qualify")
        rewritten = {key: in_place(node[key], everywhere=False) for key in parts if grouped}
        where = in_place(node["where_clause"], everywhere=True)
        return {**node, **rewritten, "where_clause": where, "from_table": table}

    def _column_of(self, dataset: str, unit: str, column: Node, place: Node) -> Node:
        name = column["column_names"][-1]
        about = self._dataset(dataset)
        found = None if about is None else about.period(name, cast("Period", unit))
        if found is None:
            self.refuse(f"the catalog declares no column with the {unit} of {name!r}, so it cannot be used here", place)
        return {**column, "column_names": [*column["column_names"][:-1], found], "alias": ""}

    def _dataset(self, name: str) -> Dataset | None:
        return None if self._catalog is None else self._catalog.datasets[self._catalog.find(name)]

    def _quantile(self, aggregate: Node, leaf: Node, groups: list[Node]) -> str:
        """Add a query for a histogram of rows; return the SQL of a subquery that computes a quantile from it."""
        reader = SelectReader(self._text)
        quantile = read_quantile(aggregate)
        if quantile is None:
            self.refuse("a quantile takes a column and a number above 0 and below 1: QUANTILE(column, 0.9)", aggregate)
        dataset = self._dataset(reader.table(leaf["from_table"]))
        if dataset is None:
            self.refuse("quantiles need a catalog, which lists the bins", aggregate)
        name = reader.column(quantile.column)
        column = next((its for key, its in dataset.columns.items() if key.casefold() == name.casefold()), None)
        if column is not None and not column.group:
            self.refuse(
                f"quantiles are not declared for {name!r}: they need a column of bins that may be grouped", aggregate
            )
        if dataset.rows_per_group is None:
            self.refuse(
                "a quantile is of rows, and the catalog does not declare how many rows of a user count: declare "
                f"rows_per_group, or count users by {name}, as SELECT {name}, COUNT(DISTINCT {dataset.user})",
                aggregate,
            )
        rows = parse_statement("SELECT count(*)")["node"]["select_list"]
        columns = [*groups, quantile.column]
        tree = {**leaf, "modifiers": [], "select_list": columns + rows, "group_expressions": columns}
        tree["group_sets"] = [list(range(len(columns)))]
        select = reader.read({"node": tree, "named_param_map": []})
        unordered = {name.casefold() for name, its in dataset.columns.items() if its.kind in {Kind.TEXT, Kind.BOOLEAN}}
        if select.items[-1].casefold() in unordered:
            self.refuse("quantiles are of numbers, dates and timestamps", aggregate)
        name = self._leaf(tree, select.dataset, select.items, select, complete=True)
        labels = [quoted(group["column_names"][-1]) for group in groups]
        bins = quoted(quantile.column["column_names"][-1])
        counts = [quoted(count) for count in (VALUE, LOW, HIGH, SHARED)]
        return f"({quantile_sql(f'answers.{name}', labels, bins, quantile.share, counts)})"

    def _leaf(
        self,
        tree: Node,
        dataset: str,
        items: tuple[str, ...],
        select: Select | None = None,
        ranked_by: str | None = None,
        *,
        complete: bool = False,
        counts: bool = True,
    ) -> str:
        """Add a query, unless there is an equal one; return the name of the table that holds its answer."""
        query = (dataset, items, select, ranked_by)
        sql = write_statement({"node": tree, "named_param_map": []})
        release = None
        if select is not None and self._answered is not None:
            release = self._answered.answers.get(sql)
            if release is None:
                self.refuse("the catalog now reads its statement in another way", tree)
        key = (*query, release, counts)
        if key not in self.leaves:
            asked = sum(leaf.release is None for leaf in self.leaves.values())
            if release is None and asked == MAX_QUERIES:
                self.refuse(f"a statement has at most {MAX_QUERIES} queries", tree)
            self.leaves[key] = Leaf(f"q{len(self.leaves) + 1}", sql, *query, release=release, counts=counts)
        if complete:
            self.leaves[key] = replace(self.leaves[key], complete=True)
        return self.leaves[key].name

    def _groups(self, node: Node, distinct: bool) -> list[Node]:
        """Return the columns of GROUP BY, or of SELECT DISTINCT, without duplicates."""
        selected = node["select_list"]
        groups = node["group_expressions"]
        if node["aggregate_handling"] != "STANDARD_HANDLING":
            self.refuse(REFUSED["aggregate_handling"], node)
        found: dict[str, Node] = {}
        for group in groups or (selected if distinct else []):
            column = self._selected(group, selected)
            if column["type"] == "STAR":
                self.refuse(REFUSED["STAR"], column)
            if column["type"] != "COLUMN_REF":
                self.refuse(_GROUPED.get(column["type"], _GROUPED["FUNCTION"]), column)
            found.setdefault(column["column_names"][-1].casefold(), {**column, "alias": ""})
        return list(found.values())

    def _selected(self, group: Node, selected: list[Node]) -> Node:
        """Return the expression that a number or an alias in GROUP BY refers to."""
        if group["type"] == "VALUE_CONSTANT":
            place = _place(group)
            if not 1 <= place <= len(selected):
                self.refuse("GROUP BY takes columns, or their numbers in the select list", group)
            return selected[place - 1]
        if group["type"] != "COLUMN_REF" or len(group["column_names"]) > 1:
            return group
        name = group["column_names"][0].casefold()
        if any(each["type"] == "COLUMN_REF" and each["column_names"][-1].casefold() == name for each in selected):
            return group
        return next((each for each in selected if each["alias"].casefold() == name), group)

    def _check_columns(self, columns: list[Node], groups: list[Node], selected: list[Node]) -> None:
        """Raise unless each column outside of aggregates is grouped by, or is an alias in the select list."""
        known = {group["column_names"][-1].casefold() for group in groups}
        known |= {each["alias"].casefold() for each in selected if each["alias"]}
        for column in columns:
            name = column["column_names"][-1]
            if name.casefold() not in known:
                self.refuse(f"column {name!r} is selected, but not in GROUP BY", column)

    def _top(self, node: Node, wrapped: _Wrapped) -> list[Node]:
        """Return ORDER BY and LIMIT of a top-k query if the statement uses only the k largest items, otherwise []."""
        if len(wrapped.aggregates) != 1 or not node["group_expressions"]:
            return []  # the top k by one measure are not the top k by another
        kinds = [modifier["type"] for modifier in node["modifiers"]]
        if kinds != ["ORDER_MODIFIER", "LIMIT_MODIFIER"] or node["having"] or node["qualify"]:
            return []
        order, limit = node["modifiers"]
        number = limit["limit"]
        whole = number is not None and number["type"] == "VALUE_CONSTANT" and number["literal"]["kind"] == "INTEGER"
        if limit["offset"] is not None or limit["limit_type"] != "ROW_COUNT" or not whole or len(order["orders"]) > 1:
            return []
        largest = order["orders"][0]
        if largest["type"] != "DESCENDING" or not wrapped.is_aggregate(largest["expression"], node["select_list"]):
            return []
        (aggregate,) = wrapped.aggregates.values()
        if aggregate["function_name"] not in {"count", "count_star"} or int(number["literal"]["text"][:9]) == 0:
            return []  # sums are released for the items with the most users, not for the largest sums
        by = {"type": "DESCENDING", "null_order": "ORDER_DEFAULT", "expression": aggregate}
        return [{"type": "ORDER_MODIFIER", "orders": [by]}, limit]

    def _each(self, node: Node, wrapped: _Wrapped, groups: list[Node]) -> Node | None:
        """Return the QUALIFY of a query whose segments the catalog allows; None if it filters the answer instead."""
        match node["qualify"]:
            case {"left": {"type": "WINDOW_ROW_NUMBER", "partitions": [_, *_] as columns, "orders": [order]} as window}:
                dataset = SelectReader(self._text).table(node["from_table"])
            case _:
                return None
        about = self._dataset(dataset)
        by = order["expression"]
        names = {name.casefold(): name for name in (() if about is None else about.groupable)}
        each = [names.get(column["column_names"][-1].casefold()) for column in columns if "column_names" in column]
        if about is None or len(each) < len(columns) or any(c is None or about.segment_error(c) for c in each):
            return None
        # HAVING is applied before QUALIFY, and here it would choose among the largest by their noisy counts.
        if len(wrapped.aggregates) != 1 or node["having"] or len(groups) <= len(each):
            return None
        (aggregate,) = wrapped.aggregates.values()
        ranked = by["type"] != "VALUE_CONSTANT" and wrapped.is_aggregate(by, node["select_list"])
        if not ranked or aggregate["function_name"] not in {"count", "count_star"}:
            return None
        qualify = {**node["qualify"], "left": {**window, "orders": [{**order, "expression": aggregate}]}}
        probe = {**node, "cte_map": {"map": []}, "select_list": [*groups, aggregate], "group_expressions": groups}
        probe |= {"group_sets": [list(range(len(groups)))], "modifiers": [], "where_clause": None, "qualify": qualify}
        try:
            SelectReader(self._text).read({"node": probe, "named_param_map": []})
        except SQLError:
            return None
        return qualify

    # ------------------------------------------------------------------------------------------- over answers

    def _rewrite(self, part: Json, ctes: Mapping[str, OutputColumns]) -> Json:
        """Check that a part of a statement is allowed in the outer statement, and rewrite it to read answers."""
        if isinstance(part, list):
            return [self._rewrite(each, ctes) for each in part]
        if not isinstance(part, dict):
            return part
        kind = part.get("type")
        if kind in {"SELECT_NODE", "SET_OPERATION_NODE"}:
            return self._query(part, ctes)
        if kind == "BASE_TABLE":
            return self._table(part, ctes)
        end, inner = _end_of(part)
        if end:
            interval = self._interval(inner)
            if interval is None:
                self.refuse(_NO_INTERVAL.format(end.upper()), part)
            self.uses_hidden = True
            low, high, *_ = interval[0]()
            return {**(low if end == "low" else high), "alias": part["alias"] or end}
        self.check_allowed(part)
        names = part.get("column_names", ())
        if len(names) > 2 and names[0].casefold() == SAVED:  # as in saved.top.article
            part = {**part, "column_names": names[1:]}
        return {key: self._rewrite(value, ctes) for key, value in part.items()}

    def _table(self, table: Node, ctes: Mapping[str, OutputColumns]) -> Node:
        schema = table["schema_name"].casefold()
        name = table["table_name"].casefold()
        if table["sample"] is not None or table["at_clause"] is not None or table["catalog_name"]:
            self.refuse("expected the name of a table", table)
        if not schema and name in ctes:
            return table
        if schema == SAVED:
            return self._over_saved(table)
        if schema != "information_schema":
            hint = "join the answers instead, as FROM (SELECT ... FROM a GROUP BY ...) JOIN (SELECT ... FROM b ...)"
            self.refuse(f"rows of a dataset are never joined; {hint}", table)
        if name not in self._schemas:
            self.refuse(f"information_schema has the tables {' and '.join(SCHEMAS)}", table)
        self.schemas.add(name)
        path = {"schema_name": "answers", "table_name": name, "qualified_name": {"path": ["answers", name]}}
        return {**table, **path, "alias": table["alias"] or name}

    def check_allowed(self, node: Node) -> None:
        """Raise unless the type of a node of an outer statement, and its function or cast, are allowed."""
        kind = node.get("type")
        if kind is None or (isinstance(kind, str) and kind in _NODES):
            return
        match node:
            case {"class": "FUNCTION", "function_name": str(name), "qualified_name": {"path": [str(path)]}}:
                if path == name and name.casefold() in _SCALARS | _OUTER_AGGREGATES:
                    return
                self.refuse(f"function {name!r} is not allowed here; docs/sql.md lists those that are allowed", node)
            case {"class": "WINDOW", "function_name": str(name), "qualified_name": {"path": [str(path)]}}:
                if path == name and name.casefold() in _WINDOWS:
                    return
                self.refuse(f"window function {name!r} is not allowed here", node)
            case {"type": "OPERATOR_CAST"}:
                return
            case {"type": "TYPE", "type_name": str(name), "qualified_name": {"path": [str(path)]}}:
                if path == name and name.upper() in _CASTS:
                    return
                self.refuse(f"casts to {name} are not allowed here", node)
        self._refuse_node(node)

    def _refuse_node(self, node: Node) -> None:
        kind = str(node.get("type"))
        self.refuse(_UNKNOWN.get(kind) or REFUSED.get(kind) or REFUSED.get(str(node.get("class"))) or _ANSWERS, node)


def _truncated(node: Json) -> tuple[str, Node] | None:
    """Return the unit and the column if *node* is `date_trunc(unit, column)`, otherwise None."""
    match node:
        case {
            "type": "FUNCTION",
            "function_name": str(name),
            "arguments": [
                {"expression": {"type": "VALUE_CONSTANT", "literal": {"kind": "STRING", "text": str(unit)}}},
                {"expression": {"type": "COLUMN_REF"} as column},
            ],
        } if name.casefold() in {"date_trunc", "datetrunc"}:
            return unit.casefold(), column
    return None


def _ranked_by_users(node: Node) -> tuple[Json, Node] | None:
    """Match ORDER BY COUNT(DISTINCT ...) DESC LIMIT n beside sums or averages; return its arguments and the LIMIT."""
    match node:
        case {
            "having": None,
            "qualify": None,
            "modifiers": [
                {"type": "ORDER_MODIFIER", "orders": [{"type": "DESCENDING", "expression": by}]},
                {"type": "LIMIT_MODIFIER", "offset": None} as limit,
            ],
        } if any(each.get("function_name") in {"sum", "avg"} for each in node["select_list"]):
            if by.get("function_name") == "count" and by["distinct"] and len(by["arguments"]) == 1:
                return by["arguments"], limit
    return None


_ANSWERS = "this is not allowed over answers; see docs/sql.md for what is"
_DISTINCT = {"type": "DISTINCT_MODIFIER", "distinct_on_targets": []}
_NAMES = {"count": "count", "count_star": "count", "sum": "sum", "avg": "average"}


class _Wrapped:
    """The expressions around the aggregates of a SELECT over a dataset.

    Attributes:
        aggregates: the distinct aggregates, without aliases, by `_aggregate_key`.
        columns: all columns outside of the aggregates.
    """

    def __init__(self, splitter: _Splitter, ctes: Mapping[str, OutputColumns]) -> None:
        self._splitter = splitter
        self._ctes = ctes
        self.aggregates: dict[str, Node] = {}
        self.columns: list[Node] = []

    def rewrite(self, part: Json) -> Json:
        """Return *part* with columns of the answer instead of the aggregates and their intervals."""
        if isinstance(part, list):
            return [self.rewrite(each) for each in part]
        if not isinstance(part, dict):
            return part
        match part:
            case {"type": "FUNCTION", "function_name": str(name)} if name in _MEASURED:
                return self._column(part, part, VALUE)
            case {"type": "FUNCTION", "function_name": str(name), "arguments": [{"expression": inner}]} if (
                name.casefold() in _ENDS
            ):
                return self._end(part, inner, name.casefold())
            case {"type": "FUNCTION", "function_name": str(name)} if name.casefold() in _OUTER_AGGREGATES:
                self._splitter.refuse(
                    f"{name.upper()} of rows is not allowed; the aggregates of a dataset are COUNT(DISTINCT column), "
                    "COUNT(*), SUM(column), AVG(column) and QUANTILE(column, number)",
                    part,
                )
            case {"type": "COLUMN_REF"}:
                self.columns.append(part)
            case {"type": "STAR"}:
                self._splitter.refuse(REFUSED["STAR"], part)
            case {"type": "SUBQUERY", "subquery": subquery}:
                inner = self._splitter.subquery(subquery, self._ctes)
                return {**part, "subquery": inner, "child": self.rewrite(part.get("child"))}
        self._splitter.check_allowed(part)
        return {key: self.rewrite(value) for key, value in part.items()}

    def _end(self, part: Node, inner: Node, end: str) -> Node:
        """Return an end of the interval of an expression of aggregates."""
        interval = self.interval(inner)
        if interval is None:
            self._splitter.refuse(_NO_INTERVAL.format(end.upper()), part)
        low, high, *_ = interval()
        return {**(low if end == "low" else high), "alias": part["alias"]}

    def interval(self, node: Node) -> Callable[[], tuple[Node, ...]] | None:
        """Return what makes the interval of an expression of aggregates, or None if it has none."""
        measures: dict[str, int] = {}

        def answer(part: Node) -> str | None:
            if part.get("type") != "FUNCTION" or part.get("function_name") not in _AGGREGATES:
                return None
            self._column(part, part, VALUE)
            # The same column may be qualified or not; it is one answer.
            arguments = [argument["expression"] for argument in part.get("arguments", ())]
            columns = [argument.get("column_names", [""])[-1].casefold() for argument in arguments]
            rows = _aggregate_key(part["filter"]) if part.get("filter") else ""
            name = f"{part['function_name']} {part.get('distinct')} {columns} {rows}"
            measures.setdefault(name, list(self.aggregates).index(_aggregate_key(part)) + 1)
            return name

        inner, wrap = _unwrapped(node)
        if inner.get("function_name") in QUANTILES:
            self._column(inner, inner, VALUE)
            number = list(self.aggregates).index(_aggregate_key(inner)) + 1
            return lambda: wrap((quoted(_numbered_column(LOW, number)), quoted(_numbered_column(HIGH, number))))
        ratio = read_ratio(inner, answer)
        if ratio is None or not measures:
            return None

        def ends() -> tuple[Node, ...]:
            columns = {
                name: tuple(quoted(_numbered_column(column, number)) for column in NUMBERS)
                for name, number in measures.items()
            }
            return wrap(interval_sql(ratio, columns))

        return ends

    def numbers(self, node: Json) -> set[int]:
        """Return the numbers of the aggregates in an expression, counted from 1."""
        if isinstance(node, dict) and node.get("type") == "FUNCTION" and self._is_known(node):
            return {list(self.aggregates).index(_aggregate_key(node)) + 1}
        return set[int]().union(*map(self.numbers, _children(node)))

    def is_aggregate(self, expression: Node, selected: list[Node]) -> bool:
        """Return True if an expression of ORDER BY is an aggregate, its alias, or its position in the select list."""
        if expression["type"] == "VALUE_CONSTANT":
            place = _place(expression)
            return 1 <= place <= len(selected) and self._is_known(selected[place - 1])
        if expression["type"] == "COLUMN_REF":
            name = expression["column_names"][-1].casefold()
            return any(self._is_known(each) for each in selected if each["alias"].casefold() == name)
        return self._is_known(expression)

    def name_of(self, selected: Node) -> str:
        """Return the default column name of an aggregate, or of an end of its interval."""
        name = selected.get("function_name", "")
        return _NAMES.get(name, name.casefold() if name.casefold() in {*_ENDS, *QUANTILES} else "")

    def _column(self, place: Node, aggregate: Node, column: str) -> Node:
        shape = _aggregate_key(aggregate)
        self.aggregates.setdefault(shape, {**aggregate, "alias": ""})
        number = list(self.aggregates).index(shape) + 1
        located = {key: place[key] for key in ("query_location", "query_location_length") if key in place}
        return {
            "class": "COLUMN_REF",
            "type": "COLUMN_REF",
            "alias": place["alias"],
            "column_names": [_numbered_column(column, number)],
        } | located

    def _is_known(self, node: Node) -> bool:
        return _aggregate_key(node) in self.aggregates


_NO_INTERVAL = (
    "{} takes an aggregate, or sums, differences, multiples and a ratio of aggregates of different queries, or SUM of "
    "a column of answers whose rows no noisy number selects; columns of a subquery are named without *"
)


def _end_of(node: Json) -> tuple[str, Node]:
    """Return "low" or "high" and the argument of a call of LOW or HIGH; otherwise "" and *node*."""
    match node:
        case {"type": "FUNCTION", "function_name": str(name), "arguments": [{"expression": inner}]} if (
            name.casefold() in _ENDS
        ):
            return name.casefold(), inner
    return "", node


def _added_up(node: Node) -> tuple[Node, Node | None] | None:
    """Return the argument and the filter of SUM(column) over rows of answers; None for anything else."""
    match node:
        case {"type": "FUNCTION", "function_name": str(name), "distinct": False, "order_bys": {"orders": []}} if (
            name.casefold() == "sum" and len(node["arguments"]) == 1
        ):
            return node["arguments"][0]["expression"], node["filter"]
    return None


def _keeps_rows(node: Node) -> bool:
    """Return True if nothing behind WHERE leaves out rows of a SELECT."""
    ordered = all(modifier["type"] == "ORDER_MODIFIER" for modifier in node["modifiers"])
    return ordered and node["having"] is None and node["qualify"] is None


def _unwrapped(node: Node) -> tuple[Node, Callable[[tuple[str, ...]], tuple[Node, ...]]]:
    """Return the argument of calls that round it, and a function that parses the `ends` of a column, rounded too."""
    calls = []
    while (
        node.get("type") == "FUNCTION" and str(node.get("function_name")).casefold() in MONOTONE and node["arguments"]
    ):
        calls.append(node)
        node = node["arguments"][0]["expression"]

    def wrap(ends: tuple[str, ...]) -> tuple[Node, ...]:
        found: list[Node] = []
        rest = () if calls else ends[2:]
        for end in (*ends[:2], *rest, *["CAST(NULL AS DOUBLE)"] * (len(NUMBERS) - 3 - len(rest))):
            made: Node = parse_statement(f"SELECT {end}", arithmetic=True)["node"]["select_list"][0]
            for call in reversed(calls if len(found) < 2 else ()):
                made = {**call, "arguments": [{**call["arguments"][0], "expression": made}, *call["arguments"][1:]]}
            found.append(made)
        return tuple(found)

    return node, wrap


def _names_in(part: Json) -> set[str]:
    """Return the casefolded names of the columns in an expression."""
    if isinstance(part, dict) and part.get("type") == "COLUMN_REF":
        return {part["column_names"][-1].casefold()}
    return set[str]().union(*map(_names_in, _children(part)))


def _answers(answers: list[str], groups: list[Node]) -> Node:
    """Return a table that joins the answers of one SELECT: a row for each item, NULL where an answer lacks it.

    This is a full outer join, written with GROUP BY because GROUP BY treats missing labels as equal.

    Args:
        answers: the answers' tables as SQL for FROM, in the order of the aggregates.
        groups: the columns to group by.
    """
    labels = [quoted(group["column_names"][-1]) for group in groups]
    branches = []
    columns = []
    for number, answer in enumerate(answers, start=1):
        names = NUMBERS if answer.startswith("answers.") else NUMBERS[:3]  # a quantile has no more
        numbered = {column: quoted(_numbered_column(column, number)) for column in names}
        branch = labels + [f"{quoted(column)} AS {alias}" for column, alias in numbered.items()]
        branches.append(f"SELECT {', '.join(branch)} FROM {answer}")  # noqa: S608 - quoted, over answers
        columns += [f"any_value({alias}) AS {alias}" for alias in numbered.values()]
    group = f" GROUP BY {', '.join(labels)}" if labels else ""
    rows = " UNION ALL BY NAME ".join(branches)
    joined = f"(SELECT {', '.join(labels + columns)} FROM ({rows}){group})"  # noqa: S608
    text = f"SELECT 1 FROM {joined if len(answers) > 1 else answers[0]}"  # noqa: S608
    table: Node = parse_statement(text, arithmetic=True)["node"]["from_table"]
    return table


def _numbered_column(column: str, number: int) -> str:
    """Return the name of a column of the answer for aggregate *number*, counted from 1."""
    return column if number == 1 else f"{column} {number}"


def _aggregate_key(node: Node) -> str:
    """Return a key of an aggregate that ignores its alias and its position in the text."""
    return json.dumps(_without_places({**node, "alias": ""}))


def _place(constant: Node) -> int:
    """Return the place in the select list that a constant names, counted from 1; 0 if it is no number of a place."""
    text = str(constant["literal"]["text"])
    return int(text) if text.isdecimal() and len(text) <= MAX_LIMIT_DIGITS else 0


def _constant(text: str) -> Node:
    """Return NULL or a whole number as an expression."""
    constant: Node = parse_statement(f"SELECT {text}")["node"]["select_list"][0]
    return constant


def _has_window(part: Json) -> bool:
    is_window = isinstance(part, dict) and part.get("class") == "WINDOW"
    return is_window or any(map(_has_window, _children(part)))


def _without_places(part: Any) -> Any:  # noqa: ANN401 - a part of the tree
    if isinstance(part, list):
        return [_without_places(each) for each in part]
    if not isinstance(part, dict):
        return part.casefold() if isinstance(part, str) else part
    return {key: _without_places(value) for key, value in part.items() if not key.startswith("query_location")}
