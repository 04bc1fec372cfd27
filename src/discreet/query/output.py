"""The columns of the SELECTs of a statement over answers: which are noisy, and which have 95 % intervals.

A column that is computed from answers has an interval if it is an expression of `discreet.query.intervals`, over
answers whose noise is independent. The interval goes with the column through subqueries, WITH and UNION ALL: its ends,
and the rest of what sums over rows take, are selected as hidden columns of the inner SELECT once an outer one needs
them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, TypeAlias

from discreet.engines.sql import quoted
from discreet.query.allowed import OUTER_AGGREGATES
from discreet.query.answers import HIGH, LOW, NUMBERS
from discreet.query.intervals import MONOTONE, interval_sql, read_ratio, sum_sql
from discreet.query.nodes import children, column_reference, expression_key, parse_expression, selected_name
from discreet.query.parse_tree import PLACES, Json, Node, write_expression

ENDS = {"low": LOW, "high": HIGH}
"""The functions LOW and HIGH, and the columns of answers that they are of a single answer."""

NO_INTERVAL = (
    "{} takes an aggregate, or sums, differences, multiples and a ratio of aggregates of different queries, or SUM of "
    "a column of answers whose rows no noisy number selects; columns of a subquery are named without *"
)
"""The refusal of LOW or HIGH of an expression without an interval."""

Mark: TypeAlias = 'tuple[int, int] | Literal["none"] | None'
"""A column of a result: the places of the ends of its interval, "none" for a noisy number without them in the result,
or None for what has no noise and for ends of intervals."""

ColumnKind: TypeAlias = Literal["", "answer", "sum"]
"""What a column is: the number of one query, an expression with a sum of these over rows, or anything else."""


@dataclass(slots=True)
class OutputColumn:
    """A column of a SELECT over answers.

    Args:
        name: casefolded; empty if it has no name that is known.
        noisy: True if it depends on answers.
        key: equal for the same expression of the same SELECT.
        end: "low" or "high" if it is an end of the interval of the expression *key*.
        queries: the names of the queries whose answers it is computed from.
        ends: returns its interval as nodes of that SELECT, and the rest of what `sum_sql` takes of its rows, NULL
            unless *kind* is "answer"; None if it has no interval.
        written: its name as it was written.
    """

    name: str
    noisy: bool
    key: str
    end: str = ""
    queries: frozenset[str] = frozenset()
    ends: Callable[[], tuple[Node, ...]] | None = None
    written: str = ""
    kind: ColumnKind = ""


@dataclass(slots=True)
class OutputColumns:
    """The columns of a SELECT, in order.

    Args:
        select: the SELECT as it will be written; None if no columns can be added to it.
        columns: None if they are not known.
        hidden: the ends that were added to it, by the name of their column.
        union: for UNION ALL, the columns of its SELECTs, in which ends are added.
        whole: True if no noisy number decides which rows of the answers there are, and each is there once.
    """

    select: Node | None
    columns: list[OutputColumn] | None
    hidden: dict[str, tuple[str, ...]] = field(default_factory=dict)
    union: list[OutputColumns] = field(default_factory=list)
    whole: bool = False

    def has_ends(self, column: OutputColumn) -> bool:
        """Return True if the ends of the interval of one of the columns can be selected."""
        if self.find(column.name) is not column:
            return False
        if self.union:
            return all(part.has_ends(own) and own.noisy for part, own in self._alike(column))
        return column.ends is not None and self.select is not None

    def find(self, name: str) -> OutputColumn | None:
        """Return the only column called *name*, or None."""
        matches = [column for column in self.columns or () if column.name == name.casefold()]
        return matches[0] if len(matches) == 1 and name else None

    def _alike(self, column: OutputColumn) -> list[tuple[OutputColumns, OutputColumn]]:
        """Return the columns of UNION ALL in the place of *column*."""
        place = next(place for place, one in enumerate(self.columns or ()) if one is column)
        return [(part, (part.columns or [])[place]) for part in self.union]

    def ends_of(self, name: str) -> tuple[str, ...] | None:
        """Add the `ends` of a column to the SELECT; return their names, or None if it has none."""
        column = self.find(name)
        if column is None or not self.has_ends(column):
            return None
        if column.name not in self.hidden and self.union:
            selected = [part.ends_of(own.name) or () for part, own in self._alike(column)]
            self.hidden[column.name] = selected[0]  # the first SELECT names the columns
        elif column.name not in self.hidden and self.select is not None and column.ends is not None:
            names = tuple(f"${part} {column.name}" for part in ("low", "high", "bias", "noise", "shared"))
            for node, alias in zip(column.ends(), names, strict=True):
                self.select["select_list"].append({**node, "alias": alias})
            self.hidden[column.name] = names
        return self.hidden[column.name]

    def select_ends(self, named: Collection[str]) -> None:
        """Select the ends of the interval of each named column, as NAME_low and NAME_high, unless they are selected.

        They follow the other columns, so that ORDER BY 2 means the same column as before.

        Args:
            named: casefolded names of columns to which the statement refers; none of these becomes that of an end.
        """
        if self.select is None or self.columns is None:
            return
        ends_selected = {(column.key, column.end) for column in self.columns}
        selected = self.select["select_list"]
        names_in_use = {*named, *(column.name for column in self.columns)}
        for column, node in list(zip(self.columns, selected, strict=True)):
            if column.ends is None or not column.name:
                continue
            name = selected_name(node)
            for end, end_node in zip(("low", "high"), column.ends()[:2], strict=True):
                alias = f"{name}_{end}"
                if (column.key, end) not in ends_selected and alias.casefold() not in names_in_use:
                    selected.append({**end_node, "alias": alias})
                    self.columns.append(OutputColumn(alias.casefold(), noisy=True, key=column.key, end=end))

    def marks(self) -> tuple[Mark, ...] | None:
        """Return a mark for each column, or None if they are not known."""
        if self.columns is None:
            return None
        ends = {(column.key, column.end): place for place, column in enumerate(self.columns) if column.end}
        marks: list[Mark] = []
        for column in self.columns:
            low = ends.get((column.key, "low"))
            high = ends.get((column.key, "high"))
            if column.end or not column.noisy:
                marks.append(None)
            else:
                marks.append("none" if low is None or high is None else (low, high))
        return tuple(marks)


UNKNOWN = OutputColumns(None, None)
"""The columns of what is not followed."""


def unite(outputs: list[OutputColumns], *, all_rows: bool) -> OutputColumns:
    """Return the columns of a set operation: a column is noisy if it is in any of its SELECTs.

    Args:
        all_rows: True if a column more cannot change which rows there are.
    """
    if any(output.columns is None for output in outputs):
        return UNKNOWN
    columns = [output.columns or [] for output in outputs]
    if len(set(map(len, columns))) > 1:
        return UNKNOWN
    whole = all_rows and all(output.whole for output in outputs)
    united = [_united_column(alike) for alike in zip(*columns, strict=True)]
    return OutputColumns(None, united, union=outputs if all_rows else [], whole=whole)


def _united_column(alike: tuple[OutputColumn, ...]) -> OutputColumn:
    """Return the column of a set operation, of those in the same place of its SELECTs."""
    first = alike[0]
    same = len({(column.key, column.end) for column in alike}) == 1
    noisy = any(column.noisy for column in alike)
    end = first.end if len({column.end for column in alike}) == 1 else ""
    # Columns of the same place belong together if they do in each SELECT.
    key = first.key if same else " ".join(column.key for column in alike)
    queries = frozenset[str]().union(*(column.queries for column in alike))
    kind: ColumnKind = first.kind if len({column.kind for column in alike}) == 1 else ""
    if kind == "answer" and len(queries) < sum(len(column.queries) for column in alike):
        kind = ""  # its rows are there twice
    if any(column.kind == "sum" for column in alike):
        kind = "sum"
    return OutputColumn(first.name, noisy, key, end, queries, None, first.written, kind)


def relations_in(
    table: Node, ctes: Mapping[str, OutputColumns], output_of: Callable[[Node], OutputColumns]
) -> dict[str, OutputColumns]:
    """Return the columns of the relations of a FROM, by their casefolded names; that of an unknown one is "".

    Args:
        ctes: the columns of the names of WITH, casefolded.
        output_of: returns the columns of a SELECT.
    """
    match table:
        # A natural join would also join the columns that carry ends of intervals out of both sides.
        case {"type": "JOIN", "ref_type": ref, "left": left, "right": right} if ref != "NATURAL":
            return relations_in(left, ctes, output_of) | relations_in(right, ctes, output_of)
        case {"type": "SUBQUERY", "alias": alias, "subquery": {"node": inner}}:
            renamed = table.get("column_name_alias")
            return {alias.casefold(): UNKNOWN if renamed else output_of(inner)}
        case {"type": "BASE_TABLE", "schema_name": "", "table_name": name, "alias": alias}:
            renamed = table.get("column_name_alias")
            return {(alias or name).casefold(): UNKNOWN if renamed else ctes.get(name.casefold(), UNKNOWN)}
        case {"type": "EMPTY"}:
            return {}
    return {"": UNKNOWN}


class ScopedColumn(NamedTuple):
    """A column of a relation in FROM."""

    relation: str
    output: OutputColumns
    column: OutputColumn


class Interval(NamedTuple):
    """The 95 % interval of an expression.

    Args:
        ends: as in `OutputColumn`.
        queries: the names of the queries whose answers it is computed from.
        kind: that of the column that the expression is.
    """

    ends: Callable[[], tuple[Node, ...]]
    queries: frozenset[str]
    kind: ColumnKind


@dataclass(frozen=True, slots=True)
class Scope:
    """What the expressions of a SELECT over answers can refer to.

    Args:
        relations: the columns of the relations in FROM, by their casefolded names.
        whole: True if no noisy number decides which rows of answers the SELECT reads, and how they are grouped.
    """

    relations: Mapping[str, OutputColumns]
    whole: bool = False

    def find(self, node: Json) -> ScopedColumn | None:
        """Return the column that a node names; None if it is not known."""
        match node:
            case {"type": "COLUMN_REF", "column_names": [str(relation), str(name)]}:
                relation = relation.casefold()
                owners = [(relation, self.relations[relation])] if relation in self.relations else []
            case {"type": "COLUMN_REF", "column_names": [str(name)]}:
                if any(output.columns is None for output in self.relations.values()):
                    return None
                owners = [(alias, output) for alias, output in self.relations.items() if output.find(name)]
            case _:
                return None
        if len(owners) != 1:
            return None
        ((relation, output),) = owners
        column = output.find(name)
        return None if column is None else ScopedColumn(relation, output, column)

    def is_noisy(self, part: Json) -> bool:
        """Return True unless an expression is known to have no noise."""
        if not isinstance(part, dict):
            return any(map(self.is_noisy, children(part)))
        kind = part.get("type")
        function = str(part.get("function_name")).casefold()
        if kind == "COLUMN_REF":
            scoped = self.find(part)
            columns = [] if scoped is None else [scoped.column]
            if scoped is None and len(part["column_names"]) == 1:  # USING joins columns of the same name
                outputs = self.relations.values()
                if all(output.columns is not None for output in outputs):
                    columns = [column for output in outputs if (column := output.find(part["column_names"][0]))]
            return not columns or any(column.noisy for column in columns)
        computed = part.get("class") == "WINDOW" or (part.get("class") == "FUNCTION" and function in OUTER_AGGREGATES)
        return computed or kind in {"SUBQUERY", "STAR"} or any(map(self.is_noisy, part.values()))

    def interval(
        self, node: Node, rewrite: Callable[[Json], Json], may_share: Callable[[Collection[str]], bool]
    ) -> Interval | None:
        """Return the interval of an expression of columns, or of sums of these over rows; None if it has none.

        Args:
            rewrite: checks and rewrites the FILTER of a sum.
            may_share: returns True if two of some queries may have one answer.
        """
        used: dict[str, tuple[ScopedColumn, str | None]] = {}  # with the FILTER clause of a sum

        def answer(part: Node) -> str | None:
            summed = _sum_over_rows(part)
            column, rows = (part, None) if summed is None else summed
            scoped = self.find(column)
            if scoped is None or not scoped.column.noisy or not scoped.output.has_ends(scoped.column):
                return None
            name = f"{scoped.relation} {scoped.column.name}"
            if summed is None:
                used[name] = scoped, None
                return name
            if scoped.column.kind != "answer" or not self.whole or self.is_noisy(rows):
                return None
            clause = "" if rows is None else f" FILTER (WHERE {write_expression(rewrite(rows))})"
            name = f"sum {name}{clause}"
            used[name] = scoped, clause
            return name

        inner, wrap = unwrap(node)
        ratio = read_ratio(inner, answer)
        queries = [scoped.column.queries for scoped, _ in used.values()]
        together = frozenset[str]().union(*queries)
        # Two columns that are computed from one answer are not independent.
        if ratio is None or not used or len(together) != sum(map(len, queries)) or may_share(together):
            return None
        sums = [name for name, (scoped, clause) in used.items() if clause is not None or scoped.column.kind == "sum"]

        def ends() -> tuple[Node, ...]:
            columns: dict[str, tuple[str, ...]] = {}
            for name, ((relation, output, column), clause) in used.items():
                qualifier = f"{quoted(relation)}." if relation else ""
                names = (column.name, *(output.ends_of(column.name) or ()))
                cells = tuple(f"{qualifier}{quoted(cell)}" for cell in names)
                columns[name] = cells if clause is None else sum_sql(cells, clause)
            return wrap(interval_sql(ratio, columns, [columns[name][3] for name in sums]))

        kind: ColumnKind = "sum" if sums else ""
        if inner is node and node["type"] == "COLUMN_REF":
            (((_, _, column), _),) = used.values()
            kind = column.kind
        return Interval(ends, together, kind)

    def expand_star(self, item: Node) -> list[Node]:
        """Return the columns that * stands for if they are known, so that it does not select the ends of intervals."""
        parts = set(item) - {"class", "type", *PLACES}
        if item["type"] != "STAR" or any(item.get(part) for part in parts) or len(self.relations) != 1:
            return [item]
        (only,) = self.relations.values()
        columns = only.columns or []
        if not columns or any(column is not only.find(column.name) for column in columns):
            return [item]
        return [column_reference(column.written, {**item, "alias": ""}) for column in columns]

    def output(self, select: Node, rewritten: Node, interval: Callable[[Node], Interval | None]) -> OutputColumns:
        """Return the columns of a SELECT that reads answers through others.

        Args:
            rewritten: the same SELECT as it will be written.
            interval: returns that of an expression.
        """
        columns: list[OutputColumn] = []
        for item in select["select_list"]:
            if item["type"] == "STAR":
                only = next(iter(self.relations.values())) if len(self.relations) == 1 else UNKNOWN
                plain = not any(item.get(part) for part in ("exclude_list", "replace_list", "expr", "relation_name"))
                if not plain or only.columns is None or only.hidden:
                    return UNKNOWN
                columns += [replace(column, ends=None) for column in only.columns]
                continue
            end, inner = end_of(item)
            scoped = self.find(inner)
            name = selected_name(item)
            # The relation tells two columns of a name of WITH apart that is joined with itself.
            key = f"{scoped.relation} {scoped.column.key}" if scoped else f"{id(select)} {expression_key(inner)}"
            noisy = self.is_noisy(item)
            of_item = None if end or not noisy else interval(item)
            ends, queries, kind = of_item or (None, frozenset[str](), "")
            if not end and scoped:
                end = scoped.column.end
            columns.append(OutputColumn(name.casefold(), noisy, key, end, queries, ends, name, kind))
        # With a column more, a row that is selected once could be selected twice, or a group could split.
        distinct = any(modifier["type"] == "DISTINCT_MODIFIER" for modifier in select["modifiers"])
        plain = not select["group_expressions"] and not distinct
        return OutputColumns(rewritten if plain else None, columns, whole=self.whole and plain and keeps_rows(select))


def end_of(node: Json) -> tuple[str, Node]:
    """Return "low" or "high" and the argument of a call of LOW or HIGH; otherwise "" and *node*."""
    match node:
        case {"type": "FUNCTION", "function_name": str(name), "arguments": [{"expression": inner}]} if (
            name.casefold() in ENDS
        ):
            return name.casefold(), inner
    return "", node


def keeps_rows(node: Node) -> bool:
    """Return True if nothing behind WHERE leaves out rows of a SELECT."""
    ordered = all(modifier["type"] == "ORDER_MODIFIER" for modifier in node["modifiers"])
    return ordered and node["having"] is None and node["qualify"] is None


def unwrap(node: Node) -> tuple[Node, Callable[[tuple[str, ...]], tuple[Node, ...]]]:
    """Return the argument of calls that round it, and a function that parses the `ends` of a column, rounded too."""
    calls = []
    while (
        node.get("type") == "FUNCTION" and str(node.get("function_name")).casefold() in MONOTONE and node["arguments"]
    ):
        calls.append(node)
        node = node["arguments"][0]["expression"]

    def wrap(ends: tuple[str, ...]) -> tuple[Node, ...]:
        rest = () if calls else ends[2:]
        missing = len(NUMBERS) - 3 - len(rest)
        nodes = [parse_expression(end) for end in (*ends[:2], *rest, *["CAST(NULL AS DOUBLE)"] * missing)]
        for call in reversed(calls):
            for place in (0, 1):
                first = {**call["arguments"][0], "expression": nodes[place]}
                nodes[place] = {**call, "arguments": [first, *call["arguments"][1:]]}
        return tuple(nodes)

    return node, wrap


def _sum_over_rows(node: Node) -> tuple[Node, Node | None] | None:
    """Return the argument and the filter of SUM(column) over rows of answers; None for anything else."""
    match node:
        case {"type": "FUNCTION", "function_name": str(name), "distinct": False, "order_bys": {"orders": []}} if (
            name.casefold() == "sum" and len(node["arguments"]) == 1
        ):
            return node["arguments"][0]["expression"], node["filter"]
    return None
