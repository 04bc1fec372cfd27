"""Answers of Pinot's broker, believed only with every sign that nothing was left out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from discreet.errors import EngineError, EngineTimeout, InexactHead
from discreet.question import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from discreet.engines.pinot_attest import Attested
    from discreet.engines.pinot_schema import PinotColumn

_TIME_OUTS = {240, 250, 400}
"""Pinot's codes of servers and brokers that ran out of time."""

LABEL_TYPES = {
    Kind.TEXT: pa.string(),
    Kind.INTEGER: pa.int64(),
    Kind.BOOLEAN: pa.bool_(),
    Kind.TIMESTAMP: pa.timestamp("us"),
}
"""What labels of a kind are in Arrow."""

_FETCHED = {
    "STRING": pa.string(),
    "TIMESTAMP": pa.string(),  # in the time zone of the servers
    "INT": pa.int64(),
    "LONG": pa.int64(),
    "BOOLEAN": pa.bool_(),
    "FLOAT": pa.float64(),
    "DOUBLE": pa.float64(),
}


def check_complete(answer: dict[str, Any], attested: Attested) -> None:
    """Refuse an answer that is not of all servers and all segments.

    Args:
        answer: of the broker, to a statement that servers were asked.
        attested: what is known of the cluster.

    Raises:
        InexactHead: a part is missing, or may be.
    """
    queried = _number(answer, "numServersQueried")
    if not 1 <= queried == _number(answer, "numServersResponded"):
        raise InexactHead("not all of Pinot's servers answered")
    # A segment that no server has loaded yet is left out without a word.
    if _number(answer, "numSegmentsQueried") + _number(answer, "numSegmentsPrunedByBroker") != len(attested.segments):
        raise InexactHead("Pinot did not look at all segments of the table; it may be loading them")


def check_signs(answer: dict[str, Any], attested: Attested) -> None:
    """Refuse an answer with a sign that something was left out.

    Args:
        answer: of the broker.
        attested: what is known of the cluster; its generation says which signs there are.

    Raises:
        InexactHead: a sign of something left out is there, or one of completeness is not.
        EngineTimeout: Pinot ran out of time.
    """
    exceptions = answer.get("exceptions")
    if not isinstance(exceptions, list):
        raise InexactHead("Pinot did not say whether there were errors")
    codes = sorted({int(each.get("errorCode", -1)) for each in exceptions})
    if codes and _TIME_OUTS.issuperset(codes):
        raise EngineTimeout("Pinot did not answer within its time limit")
    if codes:  # its messages hold SQL and may hold data
        raise InexactHead(f"Pinot reported errors, with the codes {', '.join(map(str, codes))}")
    for sign, meaning in attested.generation.signs.items():
        if answer.get(sign) is not False:
            raise InexactHead(f"{meaning}: its answer's {sign} is not false")
    if _number(answer, "numConsumingSegmentsQueried"):
        raise InexactHead("Pinot counted rows that are still coming in; only offline tables stand still")
    if attested.generation.named and answer.get("brokerId") != attested.broker:
        raise InexactHead("another broker answered than the one whose settings were read; name one broker, not several")


def asked_nobody(answer: dict[str, Any]) -> bool:
    """True if the broker answered by itself, because it sees from the statement or its notes that nothing counts."""
    return _number(answer, "numServersQueried") == 0 and _number(answer, "numServersResponded") == 0


def rows_of(answer: dict[str, Any], names: Sequence[str], types: Sequence[str], limit: int) -> list[list[Any]]:
    """The rows of an answer to a statement for a head.

    Args:
        answer: checked.
        names: of the columns, which tell what was counted.
        types: Pinot's, of the columns.
        limit: how many rows were asked for.

    Raises:
        InexactHead: the answer is to another question.
    """
    table = answer.get("resultTable")
    schema = table.get("dataSchema") if isinstance(table, dict) else None
    rows = table.get("rows") if isinstance(table, dict) else None
    if not isinstance(schema, dict) or not isinstance(rows, list):
        raise InexactHead("Pinot answered without a table")
    if schema.get("columnNames") != list(names):
        raise InexactHead(
            f"Pinot counted something else than {names[-1]}: its settings rewrite the count into one that is not exact"
        )
    # The type of a column without values is whatever Pinot makes of it.
    if rows and schema.get("columnDataTypes") != list(types):
        raise InexactHead("Pinot answered with columns of other types than its schema declares")
    if len(rows) > limit or _number(answer, "numRowsResultSet") != len(rows):
        raise InexactHead("Pinot answered with another number of rows than it should")
    if not all(isinstance(row, list) and len(row) == len(names) for row in rows):
        raise InexactHead("Pinot answered with a row that is not one")
    return rows


def whole_table(answer: dict[str, Any]) -> pa.Table:
    """The rows of an answer to a statement of the data owner's, checked.

    Raises:
        EngineError: there is no table, or a column of a type that is not read.
    """
    try:
        schema, rows = answer["resultTable"]["dataSchema"], answer["resultTable"]["rows"]
        types = [_FETCHED[type_] for type_ in schema["columnDataTypes"]]
        columns = [pa.array([row[n] for row in rows], type_) for n, type_ in enumerate(types)]
        return pa.table(columns, schema["columnNames"])
    except (LookupError, TypeError, pa.ArrowInvalid):
        raise EngineError("Pinot answered without rows, or with a column of a type that is not read") from None


def labels_of(values: Sequence[Any], column: PinotColumn) -> pa.Array:
    """A column of labels as Arrow has it.

    Raises:
        InexactHead: a value is not of the column's type.
    """
    type_ = {Kind.TEXT: str, Kind.BOOLEAN: bool}.get(column.kind, int)
    if not all(type(value) is type_ for value in values):
        raise InexactHead("Pinot answered with a label that is not of its column's type")
    try:
        if column.kind is Kind.TIMESTAMP:
            return pa.array([value * 1000 for value in values], pa.int64()).cast(pa.timestamp("us"))
        return pa.array(values, LABEL_TYPES[column.kind])
    except (OverflowError, pa.ArrowInvalid, UnicodeError):
        raise InexactHead("Pinot answered with a label that its column cannot hold") from None


def counts_of(values: Sequence[Any]) -> pa.Array:
    """The counts as Arrow has them.

    Raises:
        InexactHead: one is no whole number from 0 to 2^31 - 1, which is what Pinot counts up to.
    """
    if not all(type(value) is int and 0 <= value < 2**31 for value in values):
        raise InexactHead("Pinot answered with a count that is none")
    return pa.array(values, pa.int64())


def _number(answer: dict[str, Any], key: str) -> int:
    value = answer.get(key)
    if type(value) is not int or value < 0:
        raise InexactHead(f"Pinot's answer does not tell {key}")
    return value
