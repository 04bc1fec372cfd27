"""What may be asked about a column."""

import datetime
from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, PlainValidator, Tag, ValidationInfo, WithJsonSchema, field_validator, model_validator

from discreet.catalog.settings import Number, OwnersQuery, Place, Table, mistake, ways
from discreet.question import Kind

Label: TypeAlias = str | int | bool | Decimal | datetime.date
ColumnType: TypeAlias = Literal["text", "integer", "decimal", "boolean", "date", "timestamp", "float"]

DOMAIN_MOST = 1_000_000
"""Items in a known domain, of one column or of several together."""

KINDS: Mapping[ColumnType, Kind] = {
    "text": Kind.TEXT,
    "integer": Kind.INTEGER,
    "decimal": Kind.DECIMAL,
    "boolean": Kind.BOOLEAN,
    "date": Kind.DATE,
    "timestamp": Kind.TIMESTAMP,
    "float": Kind.FLOAT,
}
"""What the types of the catalog are called elsewhere."""

_NUMBERS = ("integer", "decimal")
_LABELS: Mapping[str, tuple[tuple[type, ...], str]] = {
    "text": ((str,), "text in quotes"),
    "integer": ((int,), "whole numbers"),
    "decimal": ((int, Decimal), "numbers"),
    "boolean": ((bool,), "true or false"),
    "date": ((datetime.date,), "dates without quotes, such as 2026-11-20"),
    "timestamp": ((datetime.datetime,), "moments without quotes and zone, such as 2026-11-20T12:00:00"),
}
"""What labels in a list are, by the type of their column: in Python, and for people."""


def _labels(value: Any) -> tuple[Label, ...]:  # noqa: ANN401 - a list of whatever the file holds
    if not 1 <= len(value) <= DOMAIN_MOST:
        raise mistake(f"must list from 1 to {DOMAIN_MOST:,} labels")
    return tuple(value)


def _is_label(value: object, type_: str) -> bool:
    types, _ = _LABELS[type_]
    if type(value) not in types or (isinstance(value, Decimal) and not value.is_finite()):
        return False  # not isinstance(): True is no whole number, and a moment is no date
    return not (isinstance(value, datetime.datetime) and value.tzinfo)


class Clip(Table):
    """What one user's sum for one item is clipped to, so that nobody moves a sum further."""

    low: Number = Field(description="The sum of one user for one item is raised to this.")
    high: Number = Field(description="The sum of one user for one item is lowered to this.")

    @field_validator("high")
    @classmethod
    def _check_high(cls, high: Number, info: ValidationInfo) -> Number:
        if "low" in info.data and high <= info.data["low"]:
            raise mistake("must be above low")
        return high


class LabelFile(Table):
    """Labels in a file."""

    file: Place = Field(description="A CSV or Parquet file that has a column of the same name.")


Domain = Annotated[
    Annotated[
        tuple[Label, ...],
        PlainValidator(_labels),
        WithJsonSchema({"type": "array", "minItems": 1, "maxItems": DOMAIN_MOST, "uniqueItems": True}),
        Tag("~list"),
    ]
    | Annotated[OwnersQuery, Tag("~query")]
    | Annotated[LabelFile, Tag("~file")],
    ways('must be a list of labels, { query = "SELECT ..." } or { file = "..." }'),
]


class Column(Table):
    """What may be asked about a column. Whatever is not said is not allowed."""

    type: ColumnType = Field(description="What the column holds. A float column can only be filtered.")
    group: bool = Field(default=False, description="True if it may name items: stand behind GROUP BY.")
    filter: bool = Field(default=False, description="True if it may stand in filters: behind WHERE.")
    sum: Clip | None = Field(
        default=None, description="It may be summed and averaged, each user's sum for an item clipped to this."
    )
    domain: Domain | None = Field(default=None, description="All items there can be, if that is known in advance.")

    @field_validator("group")
    @classmethod
    def _check_group(cls, group: bool, info: ValidationInfo) -> bool:
        if group and info.data.get("type") == "float":
            raise mistake("must not be true: engines disagree which floating-point numbers are equal")
        return group

    @field_validator("sum")
    @classmethod
    def _check_sum(cls, clip: Clip | None, info: ValidationInfo) -> Clip | None:
        type_ = info.data.get("type")
        if clip is not None and type_ is not None and type_ not in _NUMBERS:
            raise mistake("is for integer and decimal columns only")
        if clip is not None and type_ == "integer" and {clip.low.denominator, clip.high.denominator} != {1}:
            raise mistake("must have whole bounds, because the column holds whole numbers")
        return clip

    @field_validator("domain")
    @classmethod
    def _check_domain(cls, domain: Domain | None, info: ValidationInfo) -> Domain | None:
        if domain is not None and info.data.get("group") is False:
            raise mistake("is for columns that may be grouped: set group = true")
        type_ = info.data.get("type", "")
        if not isinstance(domain, tuple) or type_ not in _LABELS:
            return domain
        if not all(_is_label(label, type_) for label in domain):
            raise mistake(f"must list {_LABELS[type_][1]}, because the column is declared {type_}")
        if len(set(domain)) < len(domain):
            raise mistake("must not list a label twice")
        if type_ == "decimal":  # Arrow wants them to be alike
            return tuple(Decimal(label) if isinstance(label, int) else label for label in domain)
        return domain

    @model_validator(mode="after")
    def _check_use(self) -> "Column":
        if not (self.group or self.filter or self.sum):
            raise mistake("allows nothing; set group, filter or sum, or leave the column out")
        return self

    @property
    def kind(self) -> Kind:
        """What the column holds, in the words of filters and engines."""
        return KINDS[self.type]
