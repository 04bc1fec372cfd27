"""Quantiles of a column with listed labels, computed from its noisy histogram; they cost as much as the histogram."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from discreet.query.parse_tree import Node

QUANTILES = frozenset({"median", "quantile", "quantile_cont", "quantile_disc", "approx_quantile"})
"""Quantile functions, by DuckDB's names: PERCENTILE_CONT(0.9) WITHIN GROUP (ORDER BY x) is quantile_cont."""

_DIGITS = 9


@dataclass(frozen=True, slots=True)
class Quantile:
    """A quantile of a column.

    Args:
        column: the column, a node of the tree.
        share: the share of the total count at or below the quantile, above 0 and below 1.
    """

    column: Node
    share: Fraction


def read_quantile(node: Node) -> Quantile | None:
    """Parse a call of one of `QUANTILES`; None if its arguments are not a column and a share."""
    arguments = [argument["expression"] for argument in node["arguments"]]
    orders = node["order_bys"]["orders"]
    if len(orders) == 1 and orders[0]["type"] in {"ORDER_DEFAULT", "ASCENDING"}:  # WITHIN GROUP (ORDER BY column)
        arguments.insert(0, orders[0]["expression"])
    elif orders:
        return None
    if node["function_name"] == "median" and len(arguments) == 1:
        share = Fraction(1, 2)
    elif node["function_name"] != "median" and len(arguments) == 2 and arguments[1]["type"] == "VALUE_CONSTANT":
        text = str(arguments[1]["literal"]["text"])
        is_number = len(text) <= _DIGITS and text.replace(".", "", 1).isdecimal()
        share = Fraction(text if is_number else 0)
    else:
        return None
    if not 0 < share < 1 or arguments[0]["type"] != "COLUMN_REF" or node["distinct"] or node["filter"] is not None:
        return None
    return Quantile({**arguments[0], "alias": ""}, share)


def quantile_sql(
    histogram: str, labels: Sequence[str], column: str, share: Fraction, columns: Sequence[str], *, apart: bool = True
) -> str:
    """Return the SELECT that computes a quantile and the ends of its 95 % interval from a histogram.

    Let S_b be (1 - share) times the count up to bin b, minus share times the count after it: the quantile is the bin
    with S_(b-1) < 0 <= S_b. With noisy counts, the bin that comes nearest to this is returned. The interval goes from
    the first to the last bin for which neither S_(b-1) < 0 nor S_b >= 0 is rejected at 2.5 %: both hold for the true
    bin, so it is among them with a probability of at least 95 % (Woodruff 1952 inverts the same test). All are NULL if
    the total is not above 0.

    Args:
        histogram: a table with all bins, whose counts have noise of the same variance, a part of which they may share.
        labels: the columns to group by, quoted.
        column: the column of bins, quoted.
        columns: three columns of the histogram and of the result, quoted: the count, and the ends of its 95 % interval;
            and one of the histogram: the share of the variance that is of noise that all counts share.
        apart: False for counts whose errors differ and may depend on each other in unknown ways, as those of clipped
            users do: then half widths of intervals are added up, which bounds the error of any sum.
    """
    count, low, high, shared = columns
    part = share.numerator
    whole = share.denominator
    by = f"PARTITION BY {', '.join(labels)}" if labels else ""
    every = f"OVER ({by})"
    up_to = f"OVER ({by} ORDER BY {column})"
    # Intervals are clipped at 0, so for counts near or below 0 the upper end is further away than the noise's width.
    counted = f"""SELECT *, min({high} - {count}) OVER () AS "$miss", sum({count}) {every} AS "$total",
        {whole} * sum({count}) {up_to} - {part} * sum({count}) {every} AS "$to",
        1e0 * count(*) {every} AS "$bins", 1e0 * count(*) {up_to} AS "$place"
        FROM {histogram}"""  # noqa: S608 - quoted names and numbers, over answers
    # S_b adds up place counts times whole - part, and the others times -part, so that noise they share is in it
    # (whole place - part bins) times.
    miss = [
        f"""sqrt((1 - {shared}) * ({(whole - part) ** 2} * {place} + {part**2} * ("$bins" - {place}))
            + {shared} * pow({whole} * {place} - {part} * "$bins", 2))"""
        for place in ('"$place"', '("$place" - 1)')
    ]
    misses = [f'"$miss" * {width}' for width in miss]
    if not apart:
        width = f"({high} - {count})"
        to = f"{whole - 2 * part} * sum({width}) {up_to} + {part} * sum({width}) {every}"
        misses = [to, f"{to} - {whole - 2 * part} * {width}"]
    tested = f"""SELECT *, "$to" - {whole} * {count} AS "$before",
        {misses[0]} AS "$miss_to", {misses[1]} AS "$miss_before"
        FROM ({counted})"""  # noqa: S608
    among = 'FILTER (WHERE "$total" > 0 AND "$before" < "$miss_before" AND "$to" >= -"$miss_to")'
    group = f" GROUP BY {', '.join(labels)}" if labels else ""
    return f"""SELECT {"".join(f"{label}, " for label in labels)}
        arg_min({column}, greatest("$before", -"$to") ORDER BY {column}) FILTER (WHERE "$total" > 0) AS {count},
        min({column}) {among} AS {low}, max({column}) {among} AS {high}
        FROM ({tested}){group}"""  # noqa: S608
