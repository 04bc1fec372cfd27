"""A release as the service stores and sends it: one JSON document, from which CSV, Arrow and Parquet are made."""

from __future__ import annotations

import decimal
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import DTypeLike, NDArray
from pydantic import ConfigDict, Field

from discreet.accounting.convert import Guarantee
from discreet.errors import InputError
from discreet.head_request import HeadRequest, Predicate, SumBounds
from discreet.query.json import from_dict
from discreet.query.query import Measure, Query, QueryOptions, Select
from discreet.release import Release
from discreet.release.tables import guarded
from discreet.values import Clipping, Cost, Measured, exact
from discreet.wire.queries import Privacy, Reply, Spend


def question_of(query: Query, dataset: str) -> dict[str, Any]:
    """Return the JSON form of a query, as `discreet.query.json.from_dict` reads it; equal for equal plans.

    Args:
        query: the planned query, with the catalog's names and its filter in canonical form.
    """
    request = query.request
    if request.summed is not None:
        measure = Measure("average" if query.average else "sum", request.summed.column)
    elif request.rows_per_group > 1:
        measure = Measure("rows")
    else:
        measure = Measure("users", request.user)
    items = request.items[len(request.each) :]
    k = query.k if request.items else None
    return Select(dataset, items, measure, request.where, k, request.each).to_dict()


_EXAMPLE: dict[str, Any] = {
    "id": "5f2c" * 16,
    "dataset": "reads",
    "question": {
        "dataset": "reads",
        "items": ["article"],
        "measure": {"kind": "users", "column": "reader"},
        "where": {"column": "country", "operator": "=", "constant": {"text": "IN"}},
        "k": 10,
    },
    "data_version": "2026-11-20T04:00+01:00",
    "mechanism": "unknown-gumbel",
    "chosen": None,
    "why": None,
    "ordered": True,
    "complete": False,
    "clipped": None,
    "clipping": None,
    "columns": [
        {"name": "rank", "type": "integer"},
        {"name": "article", "type": "text"},
        {"name": "count", "type": "integer"},
        {"name": "std_error", "type": "float"},
        {"name": "low", "type": "integer"},
        {"name": "high", "type": "integer"},
    ],
    "items": [
        {"rank": 1, "article": "the-last-mile", "count": 20341, "std_error": 30.5, "low": 20279, "high": 20403},
    ],
    "privacy": {
        "unit": "user",
        "neighbours": "tables that differ in all rows of one user, added or removed",
        "epsilon": 0.5,
        "delta": 1e-8,
        "rho": 0.0036,
        "computational": True,
    },
    "charged": {"rho": 0.0011, "delta": 5e-9},
    "query": {
        "user": "reader",
        "items": ["article"],
        "k": 10,
        "epsilon": 0.5,
        "delta": 1e-8,
        "filtered": True,
        "known_domain": False,
        "groups_per_user": None,
        "rows_per_user_and_item": 1,
        "relative_error": None,
        "counts": True,
        "summed": None,
        "average": False,
        "keep_missing": False,
        "bounds": None,
    },
}


class ColumnType(Reply):
    """The name and the type of a column of the items."""

    name: str
    type: str


class Bounds(Reply):
    """The bounds of one user's sum for one item, as exact numbers."""

    low: str
    high: str
    scale: int
    private: bool = False
    rows: int | None = Field(
        default=None,
        description="The most rows of a user and an item that an average counts; null for sums, and for averages per "
        "user, which AVG meant in earlier versions.",
    )


class Parameters(Reply):
    """The parameters of an answered query."""

    user: str
    items: list[str]
    each: list[str] = Field(default=[], description="The columns of the segments, if every segment has its own items.")
    k: int | None
    epsilon: float
    delta: float
    filtered: bool
    known_domain: bool
    groups_per_user: int | None
    rows_per_user_and_item: int
    relative_error: float | None
    counts: bool
    summed: str | None
    average: bool
    keep_missing: bool
    bounds: Bounds | None


def _complete_schema(schema: dict[str, Any]) -> None:
    """Add an example, and permit documents without the field that earlier versions did not write."""
    schema["examples"] = [_EXAMPLE]
    schema["required"] = [name for name in schema["required"] if name != "shared_error"]


class ReleaseDocument(Reply):
    """A release. The same query of the same data gives the same bytes."""

    model_config = ConfigDict(json_schema_extra=_complete_schema, json_schema_serialization_defaults_required=True)

    id: str = Field(description="The id of the release.")
    dataset: str
    question: dict[str, Any] = Field(description="The query in canonical form.")
    data_version: str | None = Field(description="Version of the data that it was computed from; null if unknown.")
    mechanism: str
    chosen: str | None = Field(default=None, description="The mechanism that auto chose.")  # documents of earlier
    why: str | None = Field(
        default=None, description="The reason for the choice, which depends on noisy numbers only."
    )  # versions lack the defaults
    shared_error: float | None = Field(
        default=None,
        description="The standard error of the part of the noise that all counts or sums, of a segment if there are "
        "segments, share: the covariance of two is its square. Left out if they share none, or how much is not known.",
    )
    ordered: bool = Field(description="True if the order of the items is a ranking.")
    complete: bool = Field(description="True if all items that the query asks for were returned.")
    clipped: str | None = Field(description="The bound on what one user contributes, in words; null if there is none.")
    clipping: dict[str, Any] | None = Field(
        default=None,
        description="The privately chosen bound on the length of a user's sums, the share of users above it with a "
        "95 % interval, and the share of the sums that is kept. Without kept: a bound of each sum, and the share of a "
        "user's sums above it.",
    )
    columns: list[ColumnType] = Field(description="Names and types of the columns of the items, in order.")
    items: list[dict[str, Any]]
    privacy: Privacy = Field(description="The guarantee for each user.")
    charged: Spend = Field(description="The cost charged to the first account that received it.")
    query: Parameters = Field(description="The query with its parameters, as in the library.")


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
    request = release.query.request
    bounds = None
    if request.summed is not None:
        bounds = {"low": str(request.summed.low), "high": str(request.summed.high), "scale": request.summed.scale}
        bounds |= {"private": True} if request.summed.private else {}
        bounds |= {} if request.summed.rows is None else {"rows": request.summed.rows}
    parts = release.to_dict() | {"id": id, "dataset": dataset, "question": question, "data_version": data_version}
    parts |= {
        "ordered": release.ordered,
        "columns": [{"name": field.name, "type": type_name(field.type)} for field in release.to_arrow().schema],
        "query": parts["query"] | {"keep_missing": request.keep_missing, "bounds": bounds},
    }
    # The bytes are hashed in ledgers, and pydantic writes numbers in other ways than json.
    document = {name: parts[name] for name in ReleaseDocument.model_fields if name in parts}
    return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def read(document: bytes) -> dict[str, Any]:
    """Parse the document of a release as JSON, or raise `InputError`."""
    try:
        value = json.loads(document)
    except ValueError:
        value = None
    if not isinstance(value, dict) or not {"id", "columns", "items", "query"} <= value.keys():
        raise InputError("this is not the document of a release")
    return value


def decode(document: bytes) -> Release:
    """Return the release of a document, with the same labels, numbers, guarantee and cost.

    The document does not hold the items of a known domain or the duration, so the release lacks them.

    Raises:
        InputError: *document* is not the document of a release.
    """
    try:
        body = ReleaseDocument.model_validate(read(document))  # pydantic's own parser reads 200 levels only
        query = _query(body.query, from_dict(body.question).where)
        columns = {
            column.name: _to_column([item[column.name] for item in body.items], column.type) for column in body.columns
        }
        names = [column.name for column in body.columns][0 if query.k is None else 1 :]
        measured = _measured(query, columns, body.clipping)
        return Release(
            pa.table({item: columns[name] for item, name in zip(query.request.labels, names, strict=False)}),
            numbers(columns.get("count"), np.int64),
            None if measured else numbers(columns.get("std_error"), np.float64),
            None if measured else numbers(columns.get("low"), np.int64),
            None if measured else numbers(columns.get("high"), np.int64),
            body.ordered,
            body.complete,
            body.mechanism,
            Guarantee(**dict(body.privacy)),
            Cost.at_most(body.charged.rho, body.charged.delta),
            query,
            measured=measured,
            chosen=body.chosen,
            why=body.why,
            shared_error=body.shared_error,
        )
    except (KeyError, TypeError, ValueError, ArithmeticError, pa.ArrowException):
        raise InputError("this is not the document of a release") from None


Form: TypeAlias = Literal["json", "csv", "arrow", "parquet"]
"""A form in which releases and rows are sent."""

FORMS: tuple[Form, ...] = get_args(Form)


def write_table(table: pa.Table, form: Literal["csv", "arrow", "parquet"]) -> bytes:
    """Return an Arrow table as CSV in UTF-8 with a header, as an Arrow IPC stream, or as a Parquet file.

    In CSV, texts that a spreadsheet would compute begin with an apostrophe (`discreet.release.tables.guarded`).
    """
    stream = io.BytesIO()
    match form:
        case "csv":
            pyarrow.csv.write_csv(guarded(table), stream)
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


def _query(parameters: Parameters, where: Predicate | None) -> Query:
    """Return the query of a stored document, with what of its request is stored."""
    summed = None
    if parameters.bounds is not None and parameters.summed is not None:
        low = exact(parameters.bounds.low, "low")
        high = exact(parameters.bounds.high, "high")
        summed = SumBounds(
            low, high, parameters.bounds.scale, parameters.bounds.private, parameters.summed, parameters.bounds.rows
        )
    request = HeadRequest(
        parameters.user,
        (*parameters.each, *parameters.items),
        0,  # set by Query
        where,
        parameters.rows_per_user_and_item,
        parameters.groups_per_user,
        keep_missing=parameters.keep_missing,
        summed=summed,
        each=tuple(parameters.each),
    )
    share = Fraction(1, 10) if parameters.relative_error is None else Fraction(parameters.relative_error)
    options = QueryOptions(
        parameters.epsilon, Fraction(parameters.delta), relative_error=share, counts=parameters.counts
    )
    return _StoredQuery(request, options, parameters.k, parameters.average, listed=parameters.known_domain)


def _measured(query: Query, columns: Mapping[str, pa.Array], clipping: Mapping[str, Any] | None) -> Measured | None:
    """Return the sums or averages of a document in units of the last digit of their column."""
    if query.request.summed is None:
        return None
    scale = query.request.summed.scale
    clipped = None
    if clipping is not None:
        bound = int(exact(clipping["bound"], "the bound") * 10**scale)
        clipped = Clipping(bound, clipping["share"], clipping["low"], clipping["high"], clipping.get("kept"))
    std_errors = _in_last_digits(columns["std_error"], scale)
    if query.average:
        values, low, high = (_in_last_digits(columns[name], scale) for name in ("average", "low", "high"))
        return Measured("average", values, std_errors, low, high, clipped)
    sums, least, most = (
        np.array([int(value * 10**scale) for value in columns[name].to_pylist()], dtype=np.int64)
        for name in ("sum", "low", "high")
    )
    return Measured("sum", sums, std_errors, least, most, clipped)


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


def _type_named(name: str) -> pa.DataType:
    """Return the Arrow type of a name from `type_name`, or raise `InputError`."""
    if name in _TYPES:
        return _TYPES[name]
    if match := _DECIMAL.fullmatch(name):
        return pa.decimal128(int(match[1]), int(match[2]))
    if match := _MOMENT.fullmatch(name):
        return pa.timestamp(match[1] or "us", match[2])
    raise InputError("there is no column type of that name")


def _to_column(values: Sequence[Any], name: str) -> pa.Array:
    """Convert JSON values to an Arrow column.

    Args:
        values: None for missing values.
        name: the name of the column's type, from `type_name`.
    """
    type_ = _type_named(name)
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
    if years := _BEYOND.fullmatch(text):
        return int(years[1])
    plain = text.replace(" ", "T").removesuffix("Z").removesuffix("+00:00")
    return int(np.array(plain, f"datetime64[{unit}]").astype(np.int64))
