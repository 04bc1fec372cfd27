"""Split whole statements into queries, which are charged, and post-processing of their answers, which is free.

Every SELECT directly over a dataset becomes a query for each of its aggregates, in the grammar of `discreet.query.sql`:
its groups, the aggregate, its filter, and k if it is ordered by its only aggregate, largest first, with a LIMIT. A
quantile is a query for the histogram of its column. Everything else (the select list around the aggregates, HAVING,
other orders, OFFSET, windows, subqueries, joins, UNION) is post-processing: the outer statement, which is written as
SQL over the tables `answers.q1`, `answers.q2`, ... that hold the answers.

    SELECT upper(country), COUNT(DISTINCT reader) / 2 FROM reads GROUP BY country HAVING COUNT(DISTINCT reader) > 9

    answers.q1  SELECT country, count(DISTINCT reader) FROM reads GROUP BY country
    outer       SELECT upper(country), ("$value" / 2) FROM answers.q1 AS reads WHERE ("$value" > 9)

The outer statement is checked against the allow-list of `discreet.query.allowed`, so that it can read nothing but the
answers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from discreet.engines.sql import quoted
from discreet.errors import InputError, SQLError
from discreet.head_request import Kind, Period
from discreet.query.aggregates import Aggregates
from discreet.query.allowed import check_allowed, refuse_node
from discreet.query.answers import HIGH, LOW, SHARED, SQL_TYPES, VALUE, join_answers
from discreet.query.grouping_sets import split_sets
from discreet.query.nodes import column_place, expression_key, has_star, names_in, parse_table, selected_name
from discreet.query.output import (
    NO_INTERVAL,
    UNKNOWN,
    ColumnKind,
    Interval,
    Mark,
    OutputColumn,
    OutputColumns,
    Scope,
    end_of,
    keeps_rows,
    relations_in,
    unite,
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
from discreet.query.saved import MAX_NESTED, SavedPart, SavedTable, unknown_table
from discreet.query.sql import SelectReader, to_sql

if TYPE_CHECKING:
    from discreet.catalog.model import Catalog, Dataset

MAX_QUERIES = 20
"""The largest number of queries in one statement."""

MAX_SELECTS = 100
"""The largest number of SELECTs in one statement, including SELECTs over answers."""

MAX_COLUMNS = 200
"""The largest number of columns of a SELECT, of GROUP BY and of FROM, with those that * stands for."""

MAX_SELECTS_EXPANDED = 1_000
"""The largest number of SELECTs after each name of WITH is replaced by its SELECT wherever it is used."""

SCHEMAS = ("tables", "columns")
"""Tables of information_schema."""

# A comment that is not closed is one match too: to look for the end of each /* again takes quadratic time.
_COMMENT = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|(?P<comment>--[^\n]*|/\*.*?\*/)|/\*.*""", re.DOTALL)
_EXPLAIN = re.compile(r"\s*EXPLAIN\b", re.IGNORECASE)

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
        release: the id of the release that a saved table names as the answer; None for a query that runs.
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
    """A SELECT in the filter of a query, as `article IN (SELECT ...)`: its values take its place before that runs.

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
    explain = _EXPLAIN.match(text)
    if explain:
        text = " " * explain.end() + text[explain.end() :]
    tree = parse_statement(text, arithmetic=True, today=today)
    splitter = _Splitter(text, catalog, schemas, saved or {}, today)
    try:
        splitter.measure(tree["node"], {})
        outer = splitter.subquery(tree, {})
        output = splitter.output_of(outer["node"])
        few = 3 * len(output.columns or ()) <= MAX_COLUMNS
        if intervals and few and not splitter.has_star:  # a * would show columns that carry ends out of subqueries
            output.select_ends(names_in(tree["node"]))
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
        explain is not None,
        output.marks(),
        tuple(sorted(splitter.lists, key=lambda filter_list: filter_list.start)),
    )


def without_comments(text: str) -> str:
    """Return a statement with spaces instead of its comments."""
    return _COMMENT.sub(lambda match: " " * len(match[0]) if match["comment"] else match[0], text)


@dataclass(frozen=True, slots=True)
class _Size:
    columns: int
    selects: int


_COLUMNS_OF_TABLE = 24  # at most, of a table of metadata; those of datasets are never selected by *


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
        self._scope = Scope({})
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
                stars = Counter(column.get("relation_name", "") for column in part["select_list"] if has_star(column))
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
            refuse_node(self, node)
        entries = []
        for entry in node["cte_map"]["map"]:
            value = entry["value"]
            if value.get("key_targets") or value.get("payload_aggregates"):
                self.refuse("WITH takes a SELECT only", value)
            body = self._query(value["query_node"], ctes)  # a CTE may use the names defined before it
            entries.append({**entry, "value": {**value, "query_node": body}})
            named = value.get("aliases") or entry.get("aliases")
            ctes = {**ctes, str(entry["key"]).casefold(): UNKNOWN if named else self.output_of(body)}
        node = {**node, "cte_map": {"map": entries}}
        if node["type"] == "SET_OPERATION_NODE":
            children = [self._query(child, ctes) for child in node["children"]]
            rewritten = {**node, "children": children, "modifiers": self._rewrite(node["modifiers"], ctes)}
            all_rows = node["setop_type"] == "UNION" and node["setop_all"] and not rewritten["modifiers"]
            self._outputs[id(rewritten)] = unite(list(map(self.output_of, children)), all_rows=all_rows)
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
        outside = self._scope
        source = self._rewrite(node["from_table"], ctes)
        scope = Scope(relations_in(source, ctes, self.output_of))
        self._scope = replace(scope, whole=self._has_whole_rows(node, scope))
        node = {**node, "select_list": [named for item in node["select_list"] for named in scope.expand_star(item)]}
        rest = {key: value for key, value in node.items() if key not in {"cte_map", "from_table"}}
        rewritten = {**node, "from_table": source, **{key: self._rewrite(value, ctes) for key, value in rest.items()}}
        self.has_star = self.has_star or has_star(node["select_list"])
        self._outputs[id(rewritten)] = self._scope.output(node, rewritten, self._interval)
        self._scope = outside
        return rewritten

    def _has_whole_rows(self, node: Node, scope: Scope) -> bool:
        """Return True if no noisy number decides which rows of answers a SELECT reads, and how they are grouped."""
        if node["from_table"]["type"] not in {"BASE_TABLE", "SUBQUERY"}:  # a join may repeat rows
            return False
        groups = [self._selected(group, node["select_list"]) for group in node["group_expressions"]]
        standard = node["aggregate_handling"] == "STANDARD_HANDLING"
        whole = all(output.whole for output in scope.relations.values())
        columns = map(scope.find, node["group_expressions"])  # which a name means rather than an alias
        by_noise = any(scoped is not None and scoped.column.noisy for scoped in columns)
        return standard and whole and not by_noise and not scope.is_noisy([node["where_clause"], *groups])

    def _interval(self, node: Node) -> Interval | None:
        """Return the interval of an expression over answers, or None if it has none."""
        return self._scope.interval(node, lambda rows: self._rewrite(rows, {}), self._may_share)

    def _may_share(self, answers: Collection[str]) -> bool:
        """Return True if a query among *answers* may be answered by a release among them, of a saved table."""
        leaves = [leaf for leaf in self.leaves.values() if f"answers.{leaf.name}" in answers]
        queries = {leaf.select for leaf in leaves if leaf.release is None}
        return any(leaf.select in queries for leaf in leaves if leaf.release is not None)

    def output_of(self, node: Node) -> OutputColumns:
        """Return the columns of a rewritten SELECT."""
        return self._outputs.get(id(node), UNKNOWN)

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
        subquery = parse_table("(SELECT 1 UNION ALL SELECT 2) AS x")
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
            body = subquery["subquery"]["node"] | {"children": parts}
            self._outputs[id(body)] = unite(list(map(self.output_of, parts)), all_rows=True)
        subquery |= {"alias": table["alias"] or table["table_name"], "column_name_alias": table["column_name_alias"]}
        return subquery | {"subquery": subquery["subquery"] | {"node": body}}

    # ------------------------------------------------------------------------------- the columns of a SELECT

    # -------------------------------------------------------------------------------------- SELECT over a dataset

    def _over_dataset(self, node: Node, ctes: Mapping[str, OutputColumns]) -> Node:
        """Return *node* rewritten to read the answers of its queries."""
        table = node["from_table"]
        selected = node["select_list"]
        distinct = any(modifier["type"] == "DISTINCT_MODIFIER" for modifier in node["modifiers"])
        # The outer statement: aggregates of the dataset become columns of their answers.
        aggregates = Aggregates(self, lambda tree: self.subquery(tree, ctes))
        parts = {"select_list": aggregates.rewrite(selected)}
        selects_counts = bool(aggregates)
        by_users = _ranked_by_users(node) if len(aggregates) == 1 else None
        if by_users is not None:
            node = {**node, "modifiers": []}  # the answer has only these items, in this order
        parts |= {key: aggregates.rewrite(node[key]) for key in ("modifiers", "having", "qualify")}
        groups = self._groups(node, not aggregates and distinct)
        qualify = self._each(node, aggregates, groups)
        if qualify is not None:
            parts["qualify"] = None  # the answer has only these items, in this order
        if not aggregates and not groups:
            star = next((column for column in selected if column["type"] == "STAR"), None)
            self.refuse(_RAW if star is None else REFUSED["STAR"], star or selected, node)
        self._check_columns(aggregates.columns, groups, selected)
        for column, rewritten in zip(selected, parts["select_list"], strict=True):
            if rewritten is not column and not rewritten["alias"]:
                rewritten["alias"] = aggregates.default_name(column)
        # What all queries of this SELECT share: its groups and filter. HAVING and the order are the outer statement's.
        query = {
            **node,
            "modifiers": [],
            "cte_map": {"map": []},
            "select_list": groups,
            "group_expressions": groups,
            "group_sets": [list(range(len(groups)))] if groups else [],
            "having": None,
            "qualify": qualify,
        }
        if aggregates:
            query["where_clause"] = self._without_lists(node["where_clause"])
            ranked_by = None
            if by_users is None:
                query["modifiers"] = self._top(node, aggregates)
            else:
                (argument,), limit = by_users
                query["modifiers"] = [limit]
                ranked_by = SelectReader(self._text).column(argument["expression"])
            answers = [
                self._answer(aggregate, query, groups, ranked_by, selects_counts=selects_counts)
                for aggregate in aggregates.nodes
            ]
            parts["where_clause"] = parts.pop("having")  # rows of answers are the groups, so HAVING filters rows
        else:
            # all labels of the columns, which the catalog lists: they are public, and the filter is applied to them
            reader = SelectReader(self._text)
            items = tuple(map(reader.column, groups))
            unfiltered = {"where_clause": None, "group_expressions": [], "group_sets": [], "modifiers": [_DISTINCT]}
            leaf = self._leaf({**query, **unfiltered}, reader.table(query["from_table"]), items)
            answers = [f"answers.{leaf}"]
            parts["where_clause"] = self._rewrite(node["where_clause"], ctes)
        source = {**join_answers(answers, groups), "alias": table["alias"] or table["table_name"]}
        outer = {**node, **parts, "having": None, "from_table": source, "group_expressions": [], "group_sets": []}
        columns = self._dataset_columns(node, parts["select_list"], aggregates, answers)
        whole = not distinct and keeps_rows(node)
        self._outputs[id(outer)] = OutputColumns(None if distinct else outer, columns, whole=whole)
        return outer

    def _answer(
        self, aggregate: Node, query: Node, groups: list[Node], ranked_by: str | None, *, selects_counts: bool
    ) -> str:
        """Add the query of an aggregate; return the table of its answer as SQL for FROM.

        Args:
            query: the SELECT without an aggregate.
            selects_counts: False if the statement uses counts for the order only.
        """
        if aggregate["function_name"] in QUANTILES:
            return self._quantile(aggregate, query, groups)
        tree = {**query, "select_list": [*groups, aggregate]}
        select = SelectReader(self._text).read({"node": tree, "named_param_map": []})
        counts = selects_counts or not (select.k or query["qualify"])
        tree = tree if counts else {**tree, "select_list": groups}
        return f"answers.{self._leaf(tree, select.dataset, select.items, select, ranked_by, counts=counts)}"

    def _over_sets(self, node: Node, ctes: Mapping[str, OutputColumns]) -> Node:
        """Return ROLLUP, CUBE or GROUPING SETS as the UNION ALL of a SELECT for each set of columns."""
        groups = [
            next(iter(self._groups({**node, "group_expressions": [group]}, distinct=False)))
            for group in node["group_expressions"]
        ]
        dataset = self._dataset(SelectReader(self._text).table(node["from_table"]))
        columns = {} if dataset is None else dataset.columns
        types = {name.casefold(): SQL_TYPES[column.kind] for name, column in columns.items()}
        union = self._query(split_sets(self, node, groups, types), ctes)
        union["cte_map"] = node["cte_map"]
        return union

    def _without_lists(self, part: Json) -> Json:
        """Return a filter with any constants in place of lists that are selected, which are added to `lists`."""
        match part:
            case list():
                return [self._without_lists(child) for child in part]
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
        self, node: Node, rewritten: list[Node], aggregates: Aggregates, answers: list[str]
    ) -> list[OutputColumn]:
        """Return the columns of a SELECT over a dataset, and name those of *rewritten* that have no name.

        Args:
            answers: those of its aggregates.
        """
        columns: list[OutputColumn] = []
        for item, written in zip(node["select_list"], rewritten, strict=True):
            end, inner = end_of(item)
            name = written["alias"] or selected_name(item)
            aliases = {column.name for column in columns if column.noisy}  # which the columns after them may use
            noisy = bool(answers) and (written != item or bool(names_in(item) & aliases))
            interval = aggregates.interval(inner) if noisy and not end else None
            queries = frozenset(answers[number - 1] for number in aggregates.numbers(inner) if interval)
            key = f"{id(node)} {expression_key(inner)}"
            kind: ColumnKind = ""
            if interval is not None and inner.get("function_name") in {"count", "count_star", "sum"}:
                kind = "answer"  # an average is not added up
            columns.append(OutputColumn(name.casefold(), noisy, key, end, queries, interval, name, kind))
            if written != item and not written["alias"]:  # DuckDB would name it after columns of answers
                written["alias"] = write_expression(item)
        return columns

    def _with_periods(self, node: Node) -> Node:
        """Replace `date_trunc` in GROUP BY and WHERE by the catalog's columns of periods."""
        table = dict(node["from_table"])
        # A dataset is named without DuckDB's default schema, and "schema.table" may be the name of one.
        if table["schema_name"].casefold() == "main" and not table["catalog_name"]:
            table |= {"schema_name": "", "qualified_name": {"path": [table["table_name"]]}}
        dataset = ".".join(filter(None, (table["schema_name"], table["table_name"])))
        grouped: dict[str, Node] = {}
        for group in node["group_expressions"]:
            expression = self._selected(group, node["select_list"])
            if (call := _truncated(expression)) is not None:
                grouped[expression_key(expression)] = self._column_of(dataset, *call, expression)

        # In filters every date_trunc is of rows; elsewhere one that is not grouped by may be of an answer.
        def in_place(part: Json, *, everywhere: bool) -> Json:
            if isinstance(part, list):
                return [in_place(child, everywhere=everywhere) for child in part]
            if not isinstance(part, dict):
                return part
            call = _truncated(part)
            if call is not None and (everywhere or expression_key(part) in grouped):
                return {**self._column_of(dataset, *call, part), "alias": part["alias"]}
            return {key: in_place(value, everywhere=everywhere) for key, value in part.items()}

        parts = ("select_list", "group_expressions", "modifiers", "having", "qualify")
        rewritten = {key: in_place(node[key], everywhere=False) for key in parts if grouped}
        where = in_place(node["where_clause"], everywhere=True)
        return {**node, **rewritten, "where_clause": where, "from_table": table}

    def _column_of(self, dataset: str, unit: str, column: Node, place: Node) -> Node:
        name = column["column_names"][-1]
        declaration = self._dataset(dataset)
        period = None if declaration is None else declaration.period(name, cast("Period", unit))
        if period is None:
            self.refuse(f"the catalog declares no column with the {unit} of {name!r}, so it cannot be used here", place)
        return {**column, "column_names": [*column["column_names"][:-1], period], "alias": ""}

    def _dataset(self, name: str) -> Dataset | None:
        return None if self._catalog is None else self._catalog.find(name)[1]

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
        column = next((uses for key, uses in dataset.columns.items() if key.casefold() == name.casefold()), None)
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
        labels_only = {Kind.TEXT, Kind.BOOLEAN}  # of which none is the larger
        unordered = {name.casefold() for name, uses in dataset.columns.items() if uses.kind in labels_only}
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
            queries = sum(leaf.release is None for leaf in self.leaves.values())
            if release is None and queries == MAX_QUERIES:
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
        columns: dict[str, Node] = {}
        for group in groups or (selected if distinct else []):
            column = self._selected(group, selected)
            if column["type"] == "STAR":
                self.refuse(REFUSED["STAR"], column)
            if column["type"] != "COLUMN_REF":
                self.refuse(_GROUPED.get(column["type"], _GROUPED["FUNCTION"]), column)
            columns.setdefault(column["column_names"][-1].casefold(), {**column, "alias": ""})
        return list(columns.values())

    def _selected(self, group: Node, selected: list[Node]) -> Node:
        """Return the expression that a number or an alias in GROUP BY refers to."""
        if group["type"] == "VALUE_CONSTANT":
            place = column_place(group)
            if not 1 <= place <= len(selected):
                self.refuse("GROUP BY takes columns, or their numbers in the select list", group)
            return selected[place - 1]
        if group["type"] != "COLUMN_REF" or len(group["column_names"]) > 1:
            return group
        name = group["column_names"][0].casefold()
        if any(item["type"] == "COLUMN_REF" and item["column_names"][-1].casefold() == name for item in selected):
            return group
        return next((item for item in selected if item["alias"].casefold() == name), group)

    def _check_columns(self, columns: list[Node], groups: list[Node], selected: list[Node]) -> None:
        """Raise unless each column outside of aggregates is grouped by, or is an alias in the select list."""
        names = {group["column_names"][-1].casefold() for group in groups}
        names |= {item["alias"].casefold() for item in selected if item["alias"]}
        for column in columns:
            name = column["column_names"][-1]
            if name.casefold() not in names:
                self.refuse(f"column {name!r} is selected, but not in GROUP BY", column)

    def _top(self, node: Node, aggregates: Aggregates) -> list[Node]:
        """Return ORDER BY and LIMIT of a top-k query if the statement uses only the k largest items, otherwise []."""
        if len(aggregates) != 1 or not node["group_expressions"]:
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
        if largest["type"] != "DESCENDING" or not aggregates.is_aggregate(largest["expression"], node["select_list"]):
            return []
        (aggregate,) = aggregates.nodes
        if aggregate["function_name"] not in {"count", "count_star"} or int(number["literal"]["text"][:9]) == 0:
            return []  # sums are released for the items with the most users, not for the largest sums
        by = {"type": "DESCENDING", "null_order": "ORDER_DEFAULT", "expression": aggregate}
        return [{"type": "ORDER_MODIFIER", "orders": [by]}, limit]

    def _each(self, node: Node, aggregates: Aggregates, groups: list[Node]) -> Node | None:
        """Return the QUALIFY of a query whose segments the catalog allows; None if it filters the answer instead."""
        match node["qualify"]:
            case {"left": {"type": "WINDOW_ROW_NUMBER", "partitions": [_, *_] as columns, "orders": [order]} as window}:
                dataset = SelectReader(self._text).table(node["from_table"])
            case _:
                return None
        declaration = self._dataset(dataset)
        if declaration is None:
            return None
        by = order["expression"]
        names = {name.casefold(): name for name in declaration.groupable}
        each = [names.get(column["column_names"][-1].casefold()) for column in columns if "column_names" in column]
        if len(each) < len(columns) or any(name is None or declaration.segment_error(name) for name in each):
            return None
        # HAVING is applied before QUALIFY, and here it would choose among the largest by their noisy counts.
        if len(aggregates) != 1 or node["having"] or len(groups) <= len(each):
            return None
        (aggregate,) = aggregates.nodes
        ranked = by["type"] != "VALUE_CONSTANT" and aggregates.is_aggregate(by, node["select_list"])
        if not ranked or aggregate["function_name"] not in {"count", "count_star"}:
            return None
        qualify = {**node["qualify"], "left": {**window, "orders": [{**order, "expression": aggregate}]}}
        probe = {**node, "cte_map": {"map": []}, "select_list": [*groups, aggregate], "group_expressions": groups}
        probe |= {"group_sets": [list(range(len(groups)))], "modifiers": [], "where_clause": None, "qualify": qualify}
        return qualify if self._is_query(probe) else None

    def _is_query(self, node: Node) -> bool:
        """Return True if a SELECT is in the grammar of `discreet.query.sql`."""
        try:
            SelectReader(self._text).read({"node": node, "named_param_map": []})
        except SQLError:
            return False
        return True

    # ------------------------------------------------------------------------------------------- over answers

    def _rewrite(self, part: Json, ctes: Mapping[str, OutputColumns]) -> Json:
        """Check that a part of a statement is allowed in the outer statement, and rewrite it to read answers."""
        if isinstance(part, list):
            return [self._rewrite(child, ctes) for child in part]
        if not isinstance(part, dict):
            return part
        kind = part.get("type")
        if kind in {"SELECT_NODE", "SET_OPERATION_NODE"}:
            return self._query(part, ctes)
        if kind == "BASE_TABLE":
            return self._table(part, ctes)
        end, inner = end_of(part)
        if end:
            interval = self._interval(inner)
            if interval is None:
                self.refuse(NO_INTERVAL.format(end.upper()), part)
            self.uses_hidden = True
            low, high, *_ = interval.ends()
            return {**(low if end == "low" else high), "alias": part["alias"] or end}
        check_allowed(self, part)
        names = part.get("column_names", ())
        if len(names) > 2 and names[0].casefold() == SAVED:  # as in saved.top.article
            part = {**part, "column_names": names[1:]}
        return {key: self._rewrite(value, ctes) for key, value in part.items()}

    def _table(self, table: Node, ctes: Mapping[str, OutputColumns]) -> Node:
        """Return a relation of the outer statement: one of WITH, a saved table, or one of information_schema."""
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
        } if any(item.get("function_name") in {"sum", "avg"} for item in node["select_list"]):
            if by.get("function_name") == "count" and by["distinct"] and len(by["arguments"]) == 1:
                return by["arguments"], limit
    return None


_DISTINCT = {"type": "DISTINCT_MODIFIER", "distinct_on_targets": []}
