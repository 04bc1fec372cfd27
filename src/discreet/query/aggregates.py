"""The aggregates of a SELECT over a dataset, and the expressions around them, which read columns of the answers."""

from __future__ import annotations

from collections.abc import Callable

from discreet.engines.sql import quoted
from discreet.query.allowed import AGGREGATES, OUTER_AGGREGATES, check_allowed
from discreet.query.answers import HIGH, LOW, NUMBERS, VALUE, numbered_column
from discreet.query.intervals import interval_sql, read_ratio
from discreet.query.nodes import children, column_place, column_reference, expression_key
from discreet.query.output import ENDS, NO_INTERVAL, unwrap
from discreet.query.parse_tree import REFUSED, Json, Node, TreeReader
from discreet.query.quantiles import QUANTILES

MEASURED = AGGREGATES | QUANTILES
"""Functions of rows of a dataset."""

_NAMES = {"count": "count", "count_star": "count", "sum": "sum", "avg": "average"}


class Aggregates:
    """Collects the aggregates of a SELECT over a dataset and replaces them by columns of their answers.

    Args:
        reader: refuses what is not allowed.
        rewrite_subquery: rewrites a subquery to read answers.

    Attributes:
        columns: all columns outside of the aggregates.
    """

    def __init__(self, reader: TreeReader, rewrite_subquery: Callable[[Node], Node]) -> None:
        self._reader = reader
        self._rewrite_subquery = rewrite_subquery
        self._aggregates: dict[str, Node] = {}
        self.columns: list[Node] = []

    def __len__(self) -> int:
        return len(self._aggregates)

    @property
    def nodes(self) -> list[Node]:
        """The distinct aggregates, without aliases, in the order in which they were met."""
        return list(self._aggregates.values())

    def rewrite(self, part: Json) -> Json:
        """Return *part* with columns of the answer instead of the aggregates and their intervals."""
        if isinstance(part, list):
            return [self.rewrite(child) for child in part]
        if not isinstance(part, dict):
            return part
        match part:
            case {"type": "FUNCTION", "function_name": str(name)} if name in MEASURED:
                return column_reference(numbered_column(VALUE, self._number(part)), part)
            case {"type": "FUNCTION", "function_name": str(name), "arguments": [{"expression": inner}]} if (
                name.casefold() in ENDS
            ):
                return self._end(part, inner, name.casefold())
            case {"type": "FUNCTION", "function_name": str(name)} if name.casefold() in OUTER_AGGREGATES:
                self._reader.refuse(
                    f"{name.upper()} of rows is not allowed; the aggregates of a dataset are COUNT(DISTINCT column), "
                    "COUNT(*), SUM(column), AVG(column) and QUANTILE(column, number)",
                    part,
                )
            case {"type": "COLUMN_REF"}:
                self.columns.append(part)
            case {"type": "STAR"}:
                self._reader.refuse(REFUSED["STAR"], part)
            case {"type": "SUBQUERY", "subquery": subquery}:
                return {**part, "subquery": self._rewrite_subquery(subquery), "child": self.rewrite(part.get("child"))}
        check_allowed(self._reader, part)
        return {key: self.rewrite(value) for key, value in part.items()}

    def _end(self, part: Node, inner: Node, end: str) -> Node:
        """Return an end of the interval of an expression of aggregates."""
        interval = self.interval(inner)
        if interval is None:
            self._reader.refuse(NO_INTERVAL.format(end.upper()), part)
        low, high, *_ = interval()
        return {**(low if end == "low" else high), "alias": part["alias"]}

    def interval(self, node: Node) -> Callable[[], tuple[Node, ...]] | None:
        """Return a function that writes the ends of the interval of an expression of aggregates, the low one first.

        None if it has no interval, because it is not a ratio of linear forms of aggregates (`read_ratio`).
        """
        numbers: dict[str, int] = {}

        def answer(part: Node) -> str | None:
            if part.get("type") != "FUNCTION" or part.get("function_name") not in AGGREGATES:
                return None
            # The same column may be qualified or not; it is one answer.
            arguments = [argument["expression"] for argument in part.get("arguments", ())]
            columns = [argument.get("column_names", [""])[-1].casefold() for argument in arguments]
            rows = expression_key(part["filter"]) if part.get("filter") else ""
            name = f"{part['function_name']} {part.get('distinct')} {columns} {rows}"
            numbers.setdefault(name, self._number(part))
            return name

        inner, wrap = unwrap(node)
        if inner.get("function_name") in QUANTILES:
            number = self._number(inner)
            return lambda: wrap((quoted(numbered_column(LOW, number)), quoted(numbered_column(HIGH, number))))
        ratio = read_ratio(inner, answer)
        if ratio is None or not numbers:
            return None

        def ends() -> tuple[Node, ...]:
            columns = {
                name: tuple(quoted(numbered_column(column, number)) for column in NUMBERS)
                for name, number in numbers.items()
            }
            return wrap(interval_sql(ratio, columns))

        return ends

    def numbers(self, node: Json) -> set[int]:
        """Return the numbers of the aggregates in an expression, counted from 1."""
        if isinstance(node, dict) and node.get("type") == "FUNCTION" and self._is_known(node):
            return {self._number(node)}
        return set[int]().union(*map(self.numbers, children(node)))

    def is_aggregate(self, expression: Node, selected: list[Node]) -> bool:
        """Return True if an expression of ORDER BY is an aggregate, its alias, or its position in the select list."""
        if expression["type"] == "VALUE_CONSTANT":
            place = column_place(expression)
            return 1 <= place <= len(selected) and self._is_known(selected[place - 1])
        if expression["type"] == "COLUMN_REF":
            name = expression["column_names"][-1].casefold()
            return any(self._is_known(item) for item in selected if item["alias"].casefold() == name)
        return self._is_known(expression)

    def default_name(self, selected: Node) -> str:
        """Return the default column name of an aggregate, or of an end of its interval."""
        name = selected.get("function_name", "")
        return _NAMES.get(name, name.casefold() if name.casefold() in {*ENDS, *QUANTILES} else "")

    def _number(self, aggregate: Node) -> int:
        """Return the number of an aggregate, counted from 1, which is added unless there is an equal one."""
        key = expression_key(aggregate)
        self._aggregates.setdefault(key, {**aggregate, "alias": ""})
        return list(self._aggregates).index(key) + 1

    def _is_known(self, node: Node) -> bool:
        return expression_key(node) in self._aggregates
