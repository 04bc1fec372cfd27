"""One form for all filters that are true for the same rows, so that they are one question.

First SQL's three-valued logic goes. WHERE keeps the rows for which a filter is true, so every condition becomes the set
of values that it is true for, and under NOT the set that it is false for; missing values are in neither, and where
IS NULL asks for them in one. What remains is AND and OR of sets of values, of one column each. That becomes a decision
diagram, which is the same for all ways to write it, and the diagram becomes a filter again, in one way.

Engines are given that filter and no other, so that equal forms are equal rows in any case, and may share their noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from discreet.errors import WhereError
from discreet.query.diagram import FALSE, TRUE, Diagrams, too_hard
from discreet.query.line import reading
from discreet.query.sets import compared, listed, written
from discreet.question import Comparison, Every, Kind, Membership, Missing, Not, Some

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from discreet.query.diagram import Diagram
    from discreet.query.line import Cut, Segment
    from discreet.question import Constant, Predicate

MOST_CONDITIONS = 1_000
"""In a form; a list is one."""

MOST_COLUMNS = 50
"""In a filter."""

MOST_WAYS = 30
"""Ways on from one column's values beyond which they are not held against each other: there are too many pairs."""

NO_ROW = Some(())
"""The form of filters that are true for no row."""

_Column: TypeAlias = "tuple[str, Kind]"
"""A column's name and what it is read as."""

_Way: TypeAlias = "tuple[Diagram, Diagram]"
"""What values of a column lead to: rows that must pass, and rows that may."""


def canonical(predicate: Predicate, columns: Mapping[str, Kind]) -> Predicate | None:
    """The one form of a filter.

    Filters get the same form exactly if they are true for the same rows of all tables with such columns, as far as
    `discreet.query.line` tells values apart. A column without types is one column for each way of reading it.

    Args:
        predicate: a filter as `bind_where` returns it.
        columns: those of the table that it was bound to.

    Returns:
        a filter that is true for the same rows; None if it is true for all rows, `NO_ROW` if for none.

    Raises:
        WhereError: the form would have more than 1,000 conditions or takes too long to find, or the filter has more
            than 50 columns.
    """
    form = _Form(columns, sorted(_read(predicate, columns), key=lambda column: (column[0], column[1].name)))
    diagram = form.diagram(predicate, True)
    if diagram == FALSE:
        return NO_ROW
    conditions = form.cover(diagram, diagram).conditions
    return _all(conditions) if conditions else None


def _read(predicate: Predicate, columns: Mapping[str, Kind]) -> set[_Column]:
    """The columns of a filter."""
    match predicate:
        case Not(inner):
            return _read(inner, columns)
        case Every(parts) | Some(parts):
            return set().union(*(_read(part, columns) for part in parts))
        case Missing(name):
            return {(name, reading(columns[name], None))}
        case Comparison(name, _, constant):
            return {(name, reading(columns[name], constant.kind))}
        case Membership(name, constants):
            return {(name, reading(columns[name], constant.kind)) for constant in constants}


@dataclass(frozen=True, slots=True)
class _Cover:
    """Conditions that are all true for the rows of a diagram, and for no others.

    Args:
        conditions: none for all rows.
        diagram: of these rows.
        size: how many conditions there are, counted inside of AND and OR.
    """

    conditions: tuple[Predicate, ...]
    diagram: Diagram
    size: int


class _Form:
    """The way to the one form, and what was found on it.

    Args:
        columns: the table's.
        places: the columns of the filter in their order.
    """

    def __init__(self, columns: Mapping[str, Kind], places: Sequence[_Column]) -> None:
        if len(places) > MOST_COLUMNS:
            raise WhereError(f"it may have conditions on {MOST_COLUMNS} columns at most")
        self._columns = columns
        self._places = places
        self._place = {column: place for place, column in enumerate(places)}
        self._diagrams = Diagrams()
        self._covers: dict[_Way, _Cover] = {}

    def diagram(self, predicate: Predicate, wanted: bool) -> Diagram:
        """The rows for which *predicate* is true, or false if that is *wanted*."""
        match predicate:
            case Not(inner):
                return self.diagram(inner, not wanted)
            case Every(parts) | Some(parts):
                diagrams = [self.diagram(part, wanted) for part in parts]
                return self._joined(diagrams, isinstance(predicate, Every) is wanted)
            case Missing(name):
                place = self._place[name, reading(self._columns[name], None)]
                return self._diagrams.node(place, (), (FALSE, TRUE) if wanted else (TRUE, FALSE))
            case Comparison(name, operator, constant):
                kind = reading(self._columns[name], constant.kind)
                return self._pieces((name, kind), *compared(kind, operator, constant), wanted)
            case Membership(name, constants):
                kinds: dict[Kind, list[Constant]] = {}
                for constant in constants:
                    kinds.setdefault(reading(self._columns[name], constant.kind), []).append(constant)
                diagrams = [self._pieces((name, kind), *listed(kind, some), wanted) for kind, some in kinds.items()]
                return self._joined(diagrams, not wanted)

    def _joined(self, diagrams: list[Diagram], by_and: bool) -> Diagram:
        return self._diagrams.all(diagrams) if by_and else self._diagrams.any(diagrams)

    def _pieces(self, column: _Column, cuts: list[Cut], first: bool, wanted: bool) -> Diagram:
        """Every second piece of a line, and missing values never."""
        self._diagrams.count(len(cuts))
        ways = (TRUE, FALSE) if first is wanted else (FALSE, TRUE)
        return self._diagrams.node(self._place[column], cuts, [*(ways[n % 2] for n in range(len(cuts) + 1)), FALSE])

    def cover(self, least: Diagram, most: Diagram) -> _Cover:
        """Conditions that all rows of *least* pass, and perhaps others of *most*, which holds *least*.

        Whatever can do without a condition on the first column goes without. For the rest, the values of the column
        that lead one way get a condition, and with them those that may (after Minato 1992, irredundant sums of
        products, with sets of values in the place of literals).

        Text that cannot be read as what it is compared with is missing, but not NULL: no condition says so, and none
        has to. No comparison is true there, so what may pass there may pass anywhere, and goes without a condition.

        Raises:
            WhereError: there are too many conditions.
        """
        if least == FALSE or most == TRUE:
            return _Cover((), FALSE if least == FALSE else TRUE, 0)
        if (least, most) not in self._covers:
            self._covers[least, most] = self._covered(least, most)
        return self._covers[least, most]

    def _covered(self, least: Diagram, most: Diagram) -> _Cover:
        diagrams = self._diagrams
        place, cuts, pairs = diagrams.split(least, most)
        ways: dict[_Way, list[int]] = {}
        for piece, way in enumerate(pairs):
            ways.setdefault(way, []).append(piece)
        anywhere = diagrams.all([may for _, may in ways])
        shared = self.cover(diagrams.any([diagrams.both(must, anywhere) for must, _ in ways]), anywhere)
        left = {way: diagrams.without(way[0], shared.diagram) for way in ways}
        passed = dict.fromkeys(ways, shared.diagram)
        parts = []
        for way in ways:
            if left[way] == FALSE:
                continue
            part = self.cover(left[way], way[1])
            chosen, conditions = self._chosen(place, cuts, ways, way, part.diagram)
            parts.append((conditions + part.conditions, _count(conditions) + part.size))
            for other in chosen:
                left[other] = diagrams.without(left[other], part.diagram)
                passed[other] = diagrams.either(passed[other], part.diagram)
        if shared.diagram != FALSE:
            parts.append((shared.conditions, shared.size))
        conditions, size = _any(parts)
        if size > MOST_CONDITIONS:
            raise too_hard()
        diagram = least if least == most else diagrams.node(place, cuts, [passed[way] for way in pairs])
        return _Cover(conditions, diagram, size)

    def _chosen(
        self, place: int, cuts: tuple[Cut, ...], ways: Mapping[_Way, list[int]], way: _Way, passing: Diagram
    ) -> tuple[list[_Way], tuple[Predicate, ...]]:
        """The ways on which rows pass, and the conditions on the values that lead there: all that may, if as short."""
        chosen = [way]
        conditions = self._conditions(place, cuts, ways[way])
        if len(ways) <= MOST_WAYS:
            wide = [other for other in ways if self._diagrams.without(passing, other[1]) == FALSE]
            if wide != chosen:
                others = self._conditions(place, cuts, sorted(piece for other in wide for piece in ways[other]))
                if _count(others) <= _count(conditions):
                    return wide, others
        return chosen, conditions

    def _conditions(self, place: int, cuts: tuple[Cut, ...], pieces: list[int]) -> tuple[Predicate, ...]:
        """Conditions for pieces of a column's line, in ascending order; behind the last stand missing values."""
        self._diagrams.count(len(pieces))
        name, kind = self._places[place]
        missing = pieces[-1] == len(cuts) + 1
        ends = [None, *cuts, None]
        segments: list[Segment] = []
        last = None
        for piece in pieces[: len(pieces) - missing]:
            low = segments.pop()[0] if piece - 1 == last else ends[piece]
            segments.append((low, ends[piece + 1]))
            last = piece
        return written(name, kind, segments, missing=missing, untyped=self._columns[name] is Kind.UNTYPED)


def _any(parts: list[tuple[tuple[Predicate, ...], int]]) -> tuple[tuple[Predicate, ...], int]:
    """Conditions that are all true where those of one part are, and their size; what all parts have is said once."""
    if len(parts) == 1:
        return parts[0]
    common = tuple(condition for condition in parts[0][0] if all(condition in others for others, _ in parts[1:]))
    some: list[Predicate] = []
    for conditions, _ in parts:
        rest = _all(tuple(condition for condition in conditions if condition not in common))
        some += rest.predicates if isinstance(rest, Some) else (rest,)
    return (Some(tuple(some)), *common), sum(size for _, size in parts) - (len(parts) - 1) * _count(common)


def _all(conditions: tuple[Predicate, ...]) -> Predicate:
    return conditions[0] if len(conditions) == 1 else Every(conditions)


def _count(conditions: Sequence[Predicate]) -> int:
    count = 0
    for condition in conditions:
        match condition:
            case Every(parts) | Some(parts):
                count += _count(parts)
            case _:
                count += 1
    return count
