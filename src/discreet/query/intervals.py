"""95 % intervals of expressions of answers: linear forms of answers, and ratios of two linear forms.

Given the data, the noise of different queries is independent. Let h_i be the half width of the interval of answer x_i,
the longer side, so that |error of x_i| <= h_i with a probability of at least 95 %.

- A linear form sum a_i x_i + c has the half width sqrt(sum (a_i h_i)^2). This is exact for Gaussian noise, whose widths
  add like this, and covers more than 95 % for Laplace noise: its sums have lighter tails than one of the same width.
- A ratio of linear forms L / M has Fieller's interval (Fieller 1954): all r for which |L - r M| is at most the half
  width of the linear form L - r M. The true ratio is among them whenever that linear form covers, so it needs no
  approximation, even if L and M share answers. If M is within its own half width of 0, these r are no interval, and
  there is none (NULL).

- A sum of an answer's numbers over its rows has the half width of `sum_sql`, if neither the rows nor their groups were
  chosen by noisy numbers. It may hold errors that all point in one direction, as those of counts that were selected by
  their noise. Such a sum in an expression of m answers multiplies the squares of all half widths by m, because
  (sum |a_i| h_i)^2 <= m sum (a_i h_i)^2 (Cauchy-Schwarz).

Not covered, as for single answers: what the bounds of a user's contribution leave out. An answer that is selected by
its noisy value covers on average over the released items. Products of answers, and other functions, have no interval.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from discreet.errors import InputError
from discreet.query.parse_tree import Node
from discreet.values import exact

Linear: TypeAlias = "Mapping[str, Fraction]"
"""The coefficients by the name of the answer; that of the name "" is the constant."""

MONOTONE = frozenset({"round", "floor", "ceil", "ceiling", "trunc"})
"""Functions that keep the order of their first argument: an end of the interval is that of the argument, rounded."""

LAPLACE_TAIL = 1.081
"""The half width of a 95 % interval of Laplace noise relative to that of Gaussian noise of the same variance."""

_ONE: Linear = {"": Fraction(1)}


@dataclass(frozen=True, slots=True)
class Ratio:
    """A linear form divided by another, *below*, which is 1 for a linear form."""

    above: Linear
    below: Linear


def read_ratio(node: Node, answer: Callable[[Node], str | None]) -> Ratio | None:
    """Return an expression as a ratio of linear forms of answers, or None if it is not one.

    Args:
        answer: returns the name of the answer that a node is, or None.
    """
    name = answer(node)
    ratio = None if name is None else Ratio({name: Fraction(1)}, _ONE)
    match node:
        case {"type": "VALUE_CONSTANT", "literal": {"kind": "INTEGER" | "NUMERIC" | "FLOAT", "text": str(text)}}:
            with contextlib.suppress(InputError):
                ratio = Ratio({"": exact(text, "a number")}, _ONE)
        case {"type": "OPERATOR_CAST", "child": child, "type_expr": {"type_name": str(type_)}}:
            ratio = read_ratio(child, answer) if type_.upper() in {"DOUBLE", "FLOAT"} else None
        case {"type": "FUNCTION", "function_name": str(operator), "arguments": [one]} if ratio is None:
            inner = read_ratio(one["expression"], answer)
            ratio = _times(inner, Fraction(-1)) if operator == "-" and inner is not None else None
        case {"type": "FUNCTION", "function_name": str(operator), "arguments": [one, other]} if ratio is None:
            left, right = (read_ratio(operand["expression"], answer) for operand in (one, other))
            ratio = None if left is None or right is None else _combined(operator, left, right)
    return ratio


def _combined(operator: str, left: Ratio, right: Ratio) -> Ratio | None:
    """Return the ratio that a binary operator makes of two, or None if it is not one."""
    # the values of those of the two that are constants
    is_number = [part.below == _ONE and part.above.keys() <= {""} for part in (left, right)]
    numbers = [part.above.get("", Fraction(0)) if is_number[n] else None for n, part in enumerate((left, right))]
    ratio = None
    match operator:
        case "+" | "-":
            right = right if operator == "+" else _times(right, Fraction(-1))
            if left.below == right.below:
                ratio = Ratio(_sum(left.above, right.above), left.below)
            elif any(number is not None for number in numbers):  # a / b + c = (a + c b) / b
                one, other = (right, left) if numbers[1] is None else (left, right)
                constant = other.above.get("", Fraction(0))
                ratio = Ratio(_sum(one.above, {name: x * constant for name, x in one.below.items()}), one.below)
        case "*" if numbers != [None, None]:
            ratio = _times(right, numbers[0] or Fraction(0)) if numbers[1] is None else _times(left, numbers[1])
        case "/":
            if numbers[1]:
                ratio = _times(left, 1 / numbers[1])
            elif numbers[1] is None and left.below == right.below == _ONE:
                ratio = Ratio(left.above, right.above)
        case "nullif":  # where it is NULL, so are the ends of a ratio, whose divisor is 0
            ratio = left if numbers[1] == 0 else None
    return ratio


def _times(ratio: Ratio, factor: Fraction) -> Ratio:
    return Ratio({name: value * factor for name, value in ratio.above.items()}, ratio.below)


def _sum(left: Linear, right: Linear) -> Linear:
    return {name: left.get(name, Fraction(0)) + right.get(name, Fraction(0)) for name in {**left, **right}}


def interval_sql(
    ratio: Ratio, columns: Mapping[str, tuple[str, ...]], one_sided: Collection[str] = ()
) -> tuple[str, ...]:
    """Return the SQL of the ends of the 95 % interval of a ratio; NULL where there is none.

    Args:
        columns: for each answer the SQL of its value, and of the ends of its interval; what follows is returned as well
            if the ratio is just this answer.
        one_sided: the SQL of what is above 0 or NULL if an error may be in one direction, for sums of answers.

    Raises:
        OverflowError: a coefficient is no float.
    """
    if ratio.below == _ONE and len(ratio.above.keys() - {""}) == 1:  # with its own ends, which are not below 0
        (name,) = ratio.above.keys() - {""}
        if ratio.above == {name: 1}:
            return columns[name][1:]
        factor = _float(ratio.above[name])
        shift = _float(ratio.above.get("", Fraction(0)))
        ends = [f"({factor} * {end} + {shift})" for end in columns[name][1:]]
        return (ends[0], ends[1]) if ratio.above[name] > 0 else (ends[1], ends[0])
    half = {name: f"greatest({high} - {value}, {value} - {low})" for name, (value, low, high, *_) in columns.items()}
    if one_sided and len(columns) > 1:
        wider = (
            f"CASE WHEN {' + '.join(f'coalesce({x}, 1)' for x in one_sided)} > 0 THEN sqrt({len(columns)}) ELSE 1 END"
        )
        half = {name: f"({width} * {wider})" for name, width in half.items()}
    value = _value(ratio.above, columns)
    if ratio.below == _ONE:
        width = f"sqrt({_product(ratio.above, ratio.above, half)})"
        return f"({value} - {width})", f"({value} + {width})"
    # r is in Fieller's interval if a r^2 - 2 b r + c <= 0.
    divisor = _value(ratio.below, columns)
    a = f"({divisor} * {divisor} - {_product(ratio.below, ratio.below, half)})"
    b = f"({value} * {divisor} - {_product(ratio.above, ratio.below, half)})"
    c = f"({value} * {value} - {_product(ratio.above, ratio.above, half)})"
    root = f"sqrt(greatest({b} * {b} - {a} * {c}, 0))"
    low, high = (f"CASE WHEN {a} > 0 THEN ({b} {sign} {root}) / {a} END" for sign in "-+")
    return low, high


def sum_sql(cells: tuple[str, ...], rows: str) -> tuple[str, ...]:
    """Return the SQL of the sum of a column over rows, of the ends of its 95 % interval, and of what may be one-sided.

    Errors that may be in one direction add up. Independent noise adds up in squares, but for the part that all rows of
    a release share: its squares add up over the releases, and are at most the square of the sum over all rows. It may
    be Laplace noise, of which a sum of many rows has more, and so a longer tail, than a single one.

    Args:
        cells: the column, the ends of its interval, the part of the half width that may be in one direction, that of
            noise, and the share of the noise's variance that the rows of its release share.
        rows: "" or the FILTER clause.
    """
    value, _, _, bias, noise, shared = cells
    apart = f"sum(pow({noise}, 2) * (1 - {shared})){rows}"
    common = f"{LAPLACE_TAIL} * sum({noise} * sqrt({shared})){rows}"
    total = f"sum({value}){rows}"
    width = f"(sum({bias}){rows} + sqrt({apart} + pow({common}, 2)))"
    return total, f"({total} - {width})", f"({total} + {width})", f"sum({bias}){rows}"


def _value(linear: Linear, columns: Mapping[str, tuple[str, ...]]) -> str:
    terms = [_float(x) if not name else f"{_float(x)} * {columns[name][0]}" for name, x in linear.items()]
    return f"({' + '.join(terms)})"


def _product(left: Linear, right: Linear, half: Mapping[str, str]) -> str:
    """Return the sum of left_i right_i h_i^2."""
    terms = [f"{_float(left[name] * right[name])} * pow({half[name]}, 2)" for name in left if name and name in right]
    return f"({' + '.join(terms) or '0'})"


def _float(value: Fraction) -> str:
    number = float(value)
    return f"({'' if math.copysign(1, number) > 0 else '-'}{abs(number):.17e})"
