"""A release as the service stores and sends it: one JSON document, from which CSV, Arrow and Parquet are made."""

from __future__ import annotations

import decimal
import io
import json
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from discreet.accounting.convert import Guarantee
from discreet.errors import InputError
from discreet.head_request import TOTAL, SumBounds
from discreet.query.query import Measure, Query, Select
from discreet.query.query_json import from_dict
from discreet.release import Release
from discreet.values import Clipping, Cost, Measured, Sensitivity, exact

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import DTypeLike, NDArray


def question_of(query: Query, dataset: str) -> dict[str, Any]:
    """Return the JSON form of a query, as `discreet.query.query_json.from_dict` reads it; equal for equal plans.

    Args:
        query: the planned query, with the catalog's names and its filter in canonical form.
    """
    if query.average and query.summed is not None:
        measure = Measure("average", query.summed.column)
    elif query.summed is not None:
        measure = Measure("sum", query.summed.column)
    elif query.sensitivity.rows_per_group > 1:
        measure = Measure("rows")
    else:
        measure = Measure("users", query.user)
    return Select(dataset, query.items, measure, query.where, query.k if query.items else None).to_dict()


def encode(
    release: Release,
    *,
    id: str,  # noqa: A002 - as the field
    dataset: str,
    question: Mapping[str, Any],
    data_version: str | None,
) -> bytes:
    """Return the document of a release; the same release gives the same bytes.

    Args:
        release: its duration is left out.
    """
    fields, table, summed = release.to_dict(), release.to_arrow(), release.query.summed
    bounds = None if summed is None else {"low": str(summed.low), "high": str(summed.high), "scale": summed.scale}
    if summed is not None and bounds is not None and summed.private:
        bounds["private"] = True
    document = {
        "id": id,
        "dataset": dataset,
        "question": question,
        "data_version": data_version,
        "mechanism": fields["mechanism"],
        "chosen": fields["chosen"],
        "why": fields["why"],
        "ordered": release.ordered,
        "complete": fields["complete"],
        "clipped": fields["clipped"],
        "clipping": fields["clipping"],
        "columns": [{"name": field.name, "type": type_name(field.type)} for field in table.schema],
        "items": fields["items"],
        "privacy": fields["privacy"],
        "charged": fields["charged"],
        "query": fields["query"] | {"keep_missing": release.query.keep_missing, "bounds": bounds},
    }
    return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def read(document: bytes) -> dict[str, Any]:
    """Parse the document of a release as JSON, or raise `InputError`."""
    try:
        found = json.loads(document)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not {"id", "columns", "items", "query"} <= found.keys():
        raise InputError("this is not the document of a release")
    return found


def decode(document: bytes) -> Release:
    """Return the release of a document, with the same labels, numbers, guarantee and cost.

    The document does not hold the items of a known domain or the duration, so the release lacks them.

    Raises:
        InputError: *document* is not the document of a release.
    """
    found = read(document)
    try:
        return _release(found)
    except (KeyError, TypeError, ValueError, ArithmeticError, pa.ArrowException):
        raise InputError("this is not the document of a release") from None


def write_table(table: pa.Table, form: Literal["csv", "arrow", "parquet"]) -> bytes:
    """Return an Arrow table as CSV in UTF-8 with a header, as an Arrow IPC stream, or as a Parquet file."""
    stream = io.BytesIO()
    match form:
        case "csv":
            pyarrow.csv.write_csv(table, stream)
        case "arrow":
            with pa.ipc.new_stream(stream, table.schema) as writer:
                writer.write_table(table)
        case "parquet":
            pyarrow.parquet.write_table(table, stream)
    return stream.getvalue()


@dataclass(frozen=True, slots=True)
class _StoredQuery(Query):
    """A query read from a document, which holds whether the domain was known, but not its items."""

    listed: bool = False

    @property
    def known_domain(self) -> bool:
        """True if all possible items were known."""
        return self.listed


def _release(found: Mapping[str, Any]) -> Release:
    query = _query(found["query"], found["question"])
    columns = {
        column["name"]: to_column([item[column["name"]] for item in found["items"]], column["type"])
        for column in found["columns"]
    }
    names = [column["name"] for column in found["columns"]][0 if query.k is None else 1 :]
    items = query.items or (TOTAL,)
    measured = _measured(query, columns, found.get("clipping"))  # missing in documents of earlier versions
    privacy = found["privacy"]
    return Release(
        pa.table({item: columns[name] for item, name in zip(items, names, strict=False)}),
        numbers(columns.get("count"), np.int64),
        None if measured else numbers(columns.get("std_error"), np.float64),
        None if measured else numbers(columns.get("low"), np.int64),
        None if measured else numbers(columns.get("high"), np.int64),
        found["ordered"],
        found["complete"],
        found["mechanism"],
        Guarantee(**privacy),
        Cost.at_most(found["charged"]["rho"], found["charged"]["delta"]),
        query,
        measured=measured,
        chosen=found.get("chosen"),  # missing in documents of earlier versions, like why
        why=found.get("why"),
    )


def _query(fields: Mapping[str, Any], question: Mapping[str, Any]) -> Query:
    where = from_dict(dict(question)).where
    bounds = fields["bounds"]
    return _StoredQuery(
        fields["user"],
        tuple(fields["items"]),
        fields["epsilon"],
        Fraction(fields["delta"]),
        k=fields["k"],
        where=where,
        sensitivity=Sensitivity(fields["groups_per_user"], fields["rows_per_user_and_item"]),
        counts=fields["counts"],
        relative_error=Fraction(1, 10) if fields["relative_error"] is None else Fraction(fields["relative_error"]),
        keep_missing=fields["keep_missing"],
        summed=None if bounds is None else _summed(fields["summed"], bounds),
        average=fields["average"],
        listed=fields["known_domain"],
    )


def _summed(column: str, bounds: Mapping[str, Any]) -> SumBounds:
    low, high = exact(bounds["low"], "low"), exact(bounds["high"], "high")
    return SumBounds(low, high, bounds["scale"], bounds.get("private", False), column)


def _measured(query: Query, columns: Mapping[str, pa.Array], clipping: Mapping[str, Any] | None) -> Measured | None:
    """Return the sums or averages of a document in units of the last digit of their column."""
    if query.summed is None:
        return None
    scale = query.summed.scale
    clipped = None
    if clipping is not None:
        bound = int(exact(clipping["bound"], "the bound") * 10**scale)
        clipped = Clipping(bound, clipping["share"], clipping["low"], clipping["high"])
    std_errors = _in_last_digits(columns["std_error"], scale)
    if query.average:
        values, low, high = (_in_last_digits(columns[name], scale) for name in ("average", "low", "high"))
        return Measured("average", values, std_errors, low, high, clipped)
    sums, least, most = (_whole_digits(columns[name], scale) for name in ("sum", "low", "high"))
    return Measured("sum", sums, std_errors, least, most, clipped)


def _whole_digits(column: pa.Array, scale: int) -> NDArray[np.int64]:
    return np.array([int(value * 10**scale) for value in column.to_pylist()], dtype=np.int64)


def _in_last_digits(column: pa.Array, scale: int) -> NDArray[np.float64]:
    """Return *column* times 10^scale; dividing by 10^scale gives the same numbers, to the last bit."""
    return np.array(column.to_pylist(), dtype=np.float64) * float(10**scale)


_NAMES = {
    pa.int64(): "integer",
    pa.uint64(): "unsigned",
    pa.float64(): "float",
    pa.bool_(): "boolean",
    pa.date32(): "date",
    pa.string(): "text",
}
_TYPES = {name: type_ for type_, name in _NAMES.items()}
_TEXT = {pa.large_string(), pa.string_view()}
_DECIMAL = re.compile(r"decimal\((\d+),(-?\d+)\)")
_MOMENT = re.compile(r"timestamp(?:\[(s|ms|ns)\])?(?:\((.+)\))?")
_BEYOND = re.compile(r"<value out of range: (-?\d+)>")
"""The text that Arrow writes for a date outside its calendar."""


def type_name(type_: pa.DataType) -> str:
    """Return the name that documents have for an Arrow type.

    Raises:
        InputError: item columns of this type cannot be released.
    """
    if pa.types.is_decimal128(type_):
        return f"decimal({type_.precision},{type_.scale})"
    if pa.types.is_timestamp(type_):
        unit = "" if type_.unit == "us" else f"[{type_.unit}]"
        return f"timestamp{unit}" + (f"({type_.tz})" if type_.tz else "")
    if type_ in _TEXT:
        return "text"
    if type_ not in _NAMES:
        raise InputError("an item column has a type that the service does not release; its owner has to cast it")
    return _NAMES[type_]


def type_named(name: str) -> pa.DataType:
    """Return the Arrow type of a name from `type_name`, or raise `InputError`."""
    if name in _TYPES:
        return _TYPES[name]
    if found := _DECIMAL.fullmatch(name):
        return pa.decimal128(int(found[1]), int(found[2]))
    if found := _MOMENT.fullmatch(name):
        return pa.timestamp(found[1] or "us", found[2])
    raise InputError("there is no column type of that name")


def to_column(values: Sequence[Any], name: str) -> pa.Array:
    """Convert JSON values to an Arrow column.

    Args:
        values: None for missing values.
        name: the name of the column's type, from `type_name`.
    """
    type_ = type_named(name)
    if pa.types.is_decimal(type_):
        return pa.array([None if value is None else decimal.Decimal(value) for value in values], type_)
    if pa.types.is_date(type_):
        return pa.array([_moment(value, "D") for value in values], pa.int32()).view(type_)
    if pa.types.is_timestamp(type_):
        return pa.array([_moment(value, type_.unit) for value in values], pa.int64()).view(type_)
    return pa.array(values, type_)


def numbers(column: pa.Array | None, kind: DTypeLike) -> NDArray[Any] | None:
    """Return a column as an array of *kind*, or None if *column* is None."""
    return None if column is None else np.array(column.to_pylist(), dtype=kind)


def _moment(text: str | None, unit: str) -> int | None:
    """Parse a date or timestamp to *unit*s since 1970; unlike Python, also before the year 1 and after 9999."""
    if text is None:
        return None
    if found := _BEYOND.fullmatch(text):
        return int(found[1])
    plain = text.replace(" ", "T").removesuffix("Z").removesuffix("+00:00")
    return int(np.array(plain, f"datetime64[{unit}]").astype(np.int64))
