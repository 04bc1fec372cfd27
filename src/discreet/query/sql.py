"""The SQL front door: one SELECT over one table, read into a `Select`.

    statement  = SELECT selected {"," selected} FROM table [WHERE filter] [GROUP BY group {"," group}]
                 [ORDER BY largest DESC] [LIMIT number] [";"]
    selected   = column | aggregate [[AS] name]                      exactly one aggregate; all columns are grouped by
    aggregate  = COUNT "(" DISTINCT column ")" | COUNT "(" "*" ")" | SUM "(" column ")" | AVG "(" column ")"
    table      = [name "."] name [[AS] name]                         group   = column | number, counted in the list
    column     = [table "."] name                                    largest = the aggregate: name, itself or number
    filter     = the language of `discreet.query.where`              name    = a bare name or a "quoted name"

A statement is read twice: here, which gives it its meaning, and by SQLGlot, which must take it for the same plain
SELECT (`discreet.query.tree`). Its text never reaches an engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from discreet.errors import SQLError, WhereError
from discreet.query import where
from discreet.query.query import Measure, Select
from discreet.query.tokens import Reader, Token, tokenize
from discreet.query.words import HINTS, REFUSED, RESERVED

if TYPE_CHECKING:
    from collections.abc import Callable

    from discreet.question import Predicate

LONGEST = 20_000
"""Characters in a statement."""

DEEPEST = 20
"""Parentheses and NOTs within each other. SQLGlot needs Python's stack for them, and how much is left of it must not
decide what is accepted."""

LONGEST_WHOLE = 18
"""Digits of a LIMIT, or of a place in the select list."""

_CLAUSES = ("WHERE", "GROUP BY", "ORDER BY", "LIMIT")
_AGGREGATES = "COUNT(DISTINCT column), COUNT(*), SUM(column) and AVG(column)"


def parse_select(text: str) -> Select:
    """Read a statement.

    Args:
        text: one SELECT, at most 20,000 characters.

    Returns:
        the question: its items in the order of the select list; without a LIMIT there is no k.

    Raises:
        SQLError: anything outside the grammar, with its position.
        WhereError: the same in the filter; its position too is that in the statement.
    """
    # SQLGlot is loaded with this module, once: threads that loaded its parts one by one would get some half made.
    from discreet.query.tree import check_tree

    select = _SelectReader(tokenize(text, SQLError, LONGEST, "(),.;*", HINTS)).read()
    check_tree(text)
    return select


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of the select list."""

    name: str
    position: int


@dataclass(frozen=True, slots=True)
class _Aggregate:
    """An aggregate of the select list, and what it is named there."""

    measure: Measure
    name: str | None
    position: int


@dataclass(frozen=True, slots=True)
class _Reference:
    """What is grouped or ordered by: a name, an aggregate, or a place in the select list, from 1."""

    what: str | Measure | int
    position: int


class _SelectReader(Reader):
    """The grammar above, one method a rule."""

    error = SQLError

    def __init__(self, tokens: tuple[Token, ...]) -> None:
        super().__init__(tokens, RESERVED)
        self._clauses: tuple[str, ...] = _CLAUSES  # those that may come next
        self._starts: dict[str, int] = {}  # of those that came
        self._qualifiers: list[_Column] = []

    def read(self) -> Select:
        """The whole statement: first its form, then whether its parts fit each other."""
        self._expect("SELECT")
        selected = [self._selected()]
        while self._accept(","):
            selected.append(self._selected())
        if not self._accept("FROM"):
            raise self._refuse("expected a comma or FROM")
        dataset, tables = self._table()
        predicate = self._filter(tables)
        groups = self._groups()
        order = self._order()
        k = self._limit()
        self._end()
        for qualifier in self._qualifiers:
            if qualifier.name.casefold() not in tables:
                raise SQLError("columns may be qualified by the table of the statement only", qualifier.position)
        aggregate = _only_aggregate(selected)
        columns = {place: item for place, item in enumerate(selected, 1) if isinstance(item, _Column)}
        _check_names(columns, aggregate)
        _check_groups(columns, groups)
        if order is not None and aggregate.measure.kind in {"sum", "average"}:
            raise SQLError(
                "leave ORDER BY out: sums and averages are of the items that most users have, in their order",
                order.position,
            )
        if order is not None:
            _check_order(order, aggregate, selected.index(aggregate) + 1)
        for clause in ("ORDER BY", "LIMIT"):
            if clause in self._starts and not columns:
                raise SQLError(f"a total is one number: leave {clause} out", self._starts[clause])
        return Select(dataset, tuple(column.name for column in columns.values()), aggregate.measure, predicate, k)

    def _selected(self) -> _Column | _Aggregate:
        position = self._peek().position
        if not self._at_call():
            column = _Column(self._column(), position)
            if self._peek().word == "AS" or self._at_name():
                raise self._refuse("only the aggregate may have another name")
            return column
        measure = self._measure()
        named = self._accept("AS") or self._at_name()
        return _Aggregate(measure, self._name("a name") if named else None, position)

    def _measure(self) -> Measure:
        token = self._peek()
        if token.word not in {"COUNT", "SUM", "AVG"}:
            what = REFUSED.get(token.word, "functions are")
            raise SQLError(f"{what} not allowed; the aggregates are {_AGGREGATES}", token.position)
        self.next += 2
        if token.word != "COUNT":
            measure = Measure("sum" if token.word == "SUM" else "average", self._column())
        elif self._accept("*"):
            measure = Measure("rows")
        elif self._accept("DISTINCT"):
            measure = Measure("users", self._column())
        else:
            raise self._refuse("expected * or DISTINCT in COUNT")
        if not self._accept(")"):
            raise self._refuse("expected ) behind the one column of an aggregate")
        return measure

    def _table(self) -> tuple[str, set[str]]:
        """The table as it is written, and what columns may be qualified by."""
        schema, name = "", self._name("a table")
        if self._accept("."):
            schema, name = f"{name}.", self._name("a table")
        tables = {name.casefold()}
        if self._accept("AS") or self._at_name():
            tables.add(self._name("a name").casefold())
        if self._peek().text == ",":
            raise self._refuse("joins are not allowed; expected one table")
        return schema + name, tables

    def _filter(self, tables: set[str]) -> Predicate | None:
        if not self._clause("WHERE"):
            return None
        start = self._peek().position
        reader = where.FilterReader(self._tokens, self.next, RESERVED, tables, DEEPEST)
        predicate = reader.read()
        self.next = reader.next
        if self._peek().position - start > where.LONGEST:
            raise WhereError(f"it may have {where.LONGEST:,} characters at most", start)
        return predicate

    def _groups(self) -> list[_Reference]:
        if not self._clause("GROUP BY"):
            return []
        groups = [self._reference(self._column)]
        while self._accept(","):
            groups.append(self._reference(self._column))
        return groups

    def _order(self) -> _Reference | None:
        if not self._clause("ORDER BY"):
            return None
        order = self._reference(partial(self._name, "the aggregate"))
        if not self._accept("DESC"):
            raise self._refuse("expected DESC: the largest come first")
        return order

    def _reference(self, read_name: Callable[[], str]) -> _Reference:
        position = self._peek().position
        if self._peek().kind == "number":
            return _Reference(self._whole("a place in the select list"), position)
        return _Reference(self._measure() if self._at_call() else read_name(), position)

    def _limit(self) -> int | None:
        if not self._clause("LIMIT"):
            return None
        position = self._peek().position
        k = self._whole("a whole number of items")
        if k < 1:
            raise SQLError("LIMIT must be at least 1", position)
        return k

    def _end(self) -> None:
        if self._accept(";"):
            self.finish("the end: one statement is allowed")
        behind = ", ".join(("AND", "OR", *self._clauses) if len(self._clauses) == 3 else self._clauses)
        self.finish(f"{behind} or the end" if behind else "the end")

    def _clause(self, words: str) -> bool:
        """Pass the words that a clause begins with, if they come next."""
        first, _, second = words.partition(" ")
        position = self._peek().position
        if not self._accept(first):
            return False
        if second:
            self._expect(second)
        self._starts[words] = position
        self._clauses = _CLAUSES[_CLAUSES.index(words) + 1 :]
        return True

    def _column(self) -> str:
        position = self._peek().position
        name = self._name("a column")
        if self._accept("."):
            self._qualifiers.append(_Column(name, position))
            name = self._name("a column")
        if self._peek().text == "(":
            raise SQLError("functions are not allowed", position)
        return name

    def _whole(self, expected: str) -> int:
        token = self._peek()
        if token.kind != "number" or not token.text.isdigit() or len(token.text) > LONGEST_WHOLE:
            raise self._refuse(f"expected {expected}")
        self.next += 1
        return int(token.text)

    def _at_call(self) -> bool:
        return self._peek().kind == "name" and self._peek(1).text == "("

    def _at_name(self) -> bool:
        token = self._peek()
        return token.kind == "quoted" or (token.kind == "name" and token.word not in RESERVED)

    def _refuse(self, message: str) -> SQLError:
        token = self._peek()
        if "SELECT" in {token.word, self._peek(1).word if token.text == "(" else ""}:
            message = f"subqueries are not allowed; {message}"
        elif token.kind == "name" and token.word in REFUSED:
            message = f"{REFUSED[token.word]} not allowed; {message}"
        return SQLError(f"{message}, not {token.text!r}" if token.text else message, token.position)


def _only_aggregate(selected: list[_Column | _Aggregate]) -> _Aggregate:
    aggregates = [item for item in selected if isinstance(item, _Aggregate)]
    if not aggregates:
        raise SQLError(f"an aggregate must be selected: {_AGGREGATES}", selected[0].position)
    if len(aggregates) > 1:
        raise SQLError("only one aggregate is allowed", aggregates[1].position)
    return aggregates[0]


def _check_names(columns: dict[int, _Column], aggregate: _Aggregate) -> None:
    names: set[str] = set()
    for column in columns.values():
        if column.name in names:
            raise SQLError(f"column {column.name!r} is selected twice", column.position)
        if aggregate.name is not None and column.name.casefold() == aggregate.name.casefold():
            raise SQLError(f"column {column.name!r} and the aggregate have one name", aggregate.position)
        names.add(column.name)


def _check_groups(columns: dict[int, _Column], groups: list[_Reference]) -> None:
    """Columns are selected if and only if they are grouped by; names are matched exactly, or else without case."""
    exact: dict[object, int] = {place: place for place in columns}
    exact |= {column.name: place for place, column in columns.items()}
    alike: dict[object, list[int]] = {}
    for place, column in columns.items():
        alike.setdefault(_folded(column.name), []).append(place)
    left = set(columns)
    for group in groups:
        found = [exact[group.what]] if group.what in exact else alike.get(_folded(group.what), [])
        if len(found) != 1:
            raise SQLError("only columns of the select list may be grouped by", group.position)
        if found[0] not in left:
            raise SQLError("a column is grouped by twice", group.position)
        left.remove(found[0])
    for place in sorted(left):
        raise SQLError(f"column {columns[place].name!r} is selected, but not in GROUP BY", columns[place].position)


def _check_order(order: _Reference, aggregate: _Aggregate, place: int) -> None:
    if _folded(order.what) not in {place, _folded(aggregate.name), _folded(aggregate.measure)}:
        raise SQLError("only the aggregate may be ordered by: its name, itself, or its number", order.position)


def _folded(what: str | Measure | int | None) -> object:
    """*what* without regard to case."""
    match what:
        case str():
            return what.casefold()
        case Measure(kind, column):
            return kind, (column or "").casefold()
    return what
