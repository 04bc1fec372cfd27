"""Sets of a column's values: made from conditions, written as conditions that engines run well."""

from __future__ import annotations

from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

from discreet.errors import InvariantViolated
from discreet.query.line import ENDS, STEPS, WRITABLE, constant_of, cuts_around, values_between
from discreet.question import Comparison, Every, Kind, Membership, Missing, Not, Some

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from discreet.query.line import Cut, Segment
    from discreet.question import Constant, Operator, Predicate

FEW = 8
"""So many whole numbers or days in a row may stand in a list with others; more are a range."""

PAIR = 2
"""So many may stand in a list by themselves."""

_SOME_VALUE: dict[Kind, Any] = {Kind.FLOAT: 0.0, Kind.BOOLEAN: 0, Kind.DATE: 1, Kind.TIMESTAMP: 86_400_000_000}


def compared(kind: Kind, operator: Operator, constant: Constant) -> tuple[list[Cut], bool]:
    """The values that a comparison is true for.

    Args:
        kind: what the column is read as.
        operator: as in `Comparison`.
        constant: as in `Comparison`.

    Returns:
        cuts in ascending order, and whether what lies before the first belongs; from there on every second piece does.
    """
    below, above = cuts_around(kind, constant)
    if operator in {"=", "<>"}:
        cuts = [] if below == above else [below, above]
    else:
        cuts = [below if operator in {"<", ">="} else above]
    return _within(kind, cuts, operator in {"<>", "<", "<="})


def listed(kind: Kind, constants: Iterable[Constant]) -> tuple[list[Cut], bool]:
    """The values in a list, as from `compared`."""
    cuts: list[Cut] = []
    for below, above in sorted({cuts_around(kind, constant) for constant in constants}):
        if cuts and cuts[-1] == below:
            cuts[-1] = above
        elif below != above:
            cuts += below, above
    return _within(kind, cuts, False)


def _within(kind: Kind, cuts: list[Cut], first: bool) -> tuple[list[Cut], bool]:
    """Without cuts at the ends of the line."""
    low, high = ENDS.get(kind, (None, None))
    if cuts and cuts[0] == low:
        cuts, first = cuts[1:], not first
    if cuts and cuts[-1] == high:
        cuts = cuts[:-1]
    return cuts, first


def written(
    column: str, kind: Kind, segments: Sequence[Segment], *, missing: bool, untyped: bool
) -> tuple[Predicate, ...]:
    """Conditions that are all true for a set of values, and for no others.

    Args:
        column: whose values.
        kind: what it is read as.
        segments: what belongs, in ascending order, none touching the next.
        missing: True if missing values belong, too.
        untyped: True if the column has no type of its own.

    Raises:
        InvariantViolated: missing values were to belong that no condition finds.
    """
    if missing and untyped and kind is not Kind.TEXT:
        raise InvariantViolated("text that is not of a kind is not NULL")
    if not segments:
        return (Missing(column),)
    anything = segments == [(None, None)]
    conditions = _present(column, kind, untyped) if anything else _inside(column, kind, segments)
    return (Some((_all(conditions), Missing(column))),) if missing else conditions


def _present(column: str, kind: Kind, untyped: bool) -> tuple[Predicate, ...]:
    """Whatever is not missing: text that cannot be read as *kind* is, without being NULL."""
    if not untyped or kind is Kind.TEXT:
        return (Not(Missing(column)),)
    constant = constant_of(kind, _SOME_VALUE[kind])
    return (Some((Comparison(column, "=", constant), Comparison(column, "<>", constant))),)


def _inside(column: str, kind: Kind, segments: Sequence[Segment]) -> tuple[Predicate, ...]:
    """Ranges, a list of other values, and a list of values that are left out of the ranges."""
    least, most = ENDS.get(kind, (None, None))
    bounded = [(least if low is None else low, most if high is None else high) for low, high in segments]
    if len(bounded) == 1:
        values = values_between(kind, *bounded[0], PAIR)
        return _bounds(column, kind, *bounded[0]) if values is None else (_among(column, kind, values),)
    ranges, values, left_out = _sorted_out(kind, bounded)
    bounds = [_bounds(column, kind, low, high) for low, high in ranges]
    parts = [*filter(None, bounds), *([(_among(column, kind, values),)] if values else [])]
    conditions = parts[0] if len(parts) == 1 else (Some(tuple(map(_all, parts))),) if parts else ()
    if len(left_out) == 1:
        return (*conditions, Comparison(column, "<>", constant_of(kind, left_out[0])))
    return (*conditions, Not(_among(column, kind, left_out))) if left_out else conditions


def _sorted_out(kind: Kind, segments: list[Segment]) -> tuple[list[Segment], list[Any], list[Any]]:
    """Ranges, values outside of them, and values that are left out of them.

    Segments with a few values between each other are values, or else one range that leaves out what is between. At its
    ends, values are not drawn in that are fewer than would be left out.
    """
    ranges: list[Segment] = []
    values: list[Any] = []
    left_out: list[Any] = []
    for run, gaps in _runs(kind, segments):
        few = [values_between(kind, low, high, FEW) or [] for low, high in run]  # nothing where there are more
        first, last = 0, len(run)
        if all(few):
            first = last
        while first < last and 0 < len(few[first]) < len(gaps[first]):
            first += 1
        while first < last and 0 < len(few[last - 1]) < len(gaps[last - 2]):
            last -= 1
        values += chain.from_iterable(few[:first] + few[last:])
        left_out += chain.from_iterable(gaps[first : last - 1])
        if first < last:
            ranges.append((run[first][0], run[last - 1][1]))
    return ranges, values, left_out


def _runs(kind: Kind, segments: list[Segment]) -> list[tuple[list[Segment], list[list[Any]]]]:
    """Segments with a few values between each other, and these values."""
    runs: list[tuple[list[Segment], list[list[Any]]]] = [([segments[0]], [])]
    for (_, before), segment in pairwise(segments):
        gap = values_between(kind, before, segment[0], FEW)
        if gap is None:
            runs.append(([segment], []))
        else:
            runs[-1][0].append(segment)
            runs[-1][1].append(gap)
    return runs


def _bounds(column: str, kind: Kind, low: Cut | None, high: Cut | None) -> tuple[Predicate, ...]:
    """A range in one or two comparisons, or in none if it is the whole line."""
    least, most = ENDS.get(kind, (None, None))
    bounds: list[Predicate] = []
    if low is not None and low != least:
        bounds.append(_from(column, kind, low))
    if high is not None and high != most:
        bounds.append(_up_to(column, kind, high))
    return tuple(bounds)


def _from(column: str, kind: Kind, low: Cut) -> Comparison:
    value, above = low
    operator: Operator = ">" if above else ">="
    if kind in STEPS and value > WRITABLE[kind][1]:
        operator, value = ">", value - 1
    return Comparison(column, operator, constant_of(kind, value))


def _up_to(column: str, kind: Kind, high: Cut) -> Comparison:
    value, above = high
    operator: Operator = "<=" if above else "<"
    if kind in STEPS and value > WRITABLE[kind][0]:
        operator, value = "<=", value - 1
    return Comparison(column, operator, constant_of(kind, value))


def _among(column: str, kind: Kind, values: list[Any]) -> Comparison | Membership:
    if len(values) == 1:
        return Comparison(column, "=", constant_of(kind, values[0]))
    return Membership(column, tuple(constant_of(kind, value) for value in values))


def _all(conditions: tuple[Predicate, ...]) -> Predicate:
    return conditions[0] if len(conditions) == 1 else Every(conditions)
