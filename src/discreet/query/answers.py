"""The tables `answers.q1`, `answers.q2`, ... of the answers of a statement: their columns, and how they are joined."""

from __future__ import annotations

from collections.abc import Mapping

from discreet.engines.sql import quoted
from discreet.head_request import Kind
from discreet.query.nodes import parse_table
from discreet.query.parse_tree import Node

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


def numbered_column(column: str, number: int) -> str:
    """Return the name of a column of the answer for aggregate *number*, counted from 1."""
    return column if number == 1 else f"{column} {number}"


def join_answers(answers: list[str], groups: list[Node]) -> Node:
    """Return a table that joins the answers of one SELECT: a row for each item, NULL where an answer lacks it.

    This is a full outer join, written with GROUP BY because GROUP BY treats missing labels as equal.

    Args:
        answers: the answers' tables as SQL for FROM, in the order of the aggregates.
        groups: the columns to group by.
    """
    if len(answers) == 1:
        return parse_table(answers[0])
    labels = [quoted(group["column_names"][-1]) for group in groups]
    branches = []
    columns = []
    for number, answer in enumerate(answers, start=1):
        names = NUMBERS if answer.startswith("answers.") else NUMBERS[:3]  # a quantile has no more
        numbered = {column: quoted(numbered_column(column, number)) for column in names}
        branch = labels + [f"{quoted(column)} AS {alias}" for column, alias in numbered.items()]
        branches.append(f"SELECT {', '.join(branch)} FROM {answer}")  # noqa: S608 - quoted, over answers
        columns += [f"any_value({alias}) AS {alias}" for alias in numbered.values()]
    group = f" GROUP BY {', '.join(labels)}" if labels else ""
    rows = " UNION ALL BY NAME ".join(branches)
    return parse_table(f"(SELECT {', '.join(labels + columns)} FROM ({rows}){group})")  # noqa: S608
