"""The catalog as frozen values: what may be asked, as the owner of the data declared it.

Nothing is read here, neither data nor files; `discreet.catalog.load` makes a `Catalog` from a file.
"""

import difflib
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from discreet.catalog.column import Column
from discreet.catalog.schedule import Version
from discreet.catalog.settings import Name, Place, Statement, Table, Text, Url, Variable, frozen, mistake, mistake_above
from discreet.errors import InputError
from discreet.question import Summed
from discreet.values import Sensitivity


def _is_asked(column: str, info: ValidationInfo) -> str:
    if column.casefold() == info.data.get("user", "").casefold():
        raise mistake("is the user column, which nobody may ask about; leave it out")
    return column


class EngineSettings(Table):
    """An engine that several datasets may be in."""

    url: Url = Field(description="Where it is, such as postgresql://reader@db:5432/warehouse; never with a password.")
    password_env: Variable | None = Field(
        default=None, description="The environment variable that holds the password, if the engine needs one from us."
    )
    timeout_seconds: int = Field(default=60, ge=1, le=86_400, description="How long a count may take.")


class Dataset(Table):
    """A table, whose rows belong to users, and what may be asked about it."""

    description: Text | None = Field(default=None, description="What it is, for analysts.")
    engine: str | None = Field(default=None, description="The engine it is in, one of those declared.")
    source: Place | None = Field(
        default=None,
        validate_default=True,
        description="Or the files it is: a path, a pattern or a URL. Paths begin at the folder of the catalog.",
    )
    table: Text | None = Field(default=None, description="The table, with its schema; or the one of a DuckDB file.")
    view: Statement | None = Field(
        default=None,
        validate_default=True,
        description="Or a SELECT that stands in place of a table. In it, the files of a source are called source.",
    )
    user: Text = Field(description="The column that says whose a row is. Nobody may ask about it.")
    groups_per_user: int | None = Field(
        default=None, ge=1, le=2**31, description="So many random groups of a user are counted, the others are not."
    )
    rows_per_group: int | None = Field(
        default=None, ge=1, le=2**31, description="Allows COUNT(*): so many rows of a user are counted in a group."
    )
    missing_labels: Literal["drop", "keep"] = Field(
        default="drop", description="Rows without a label are left out (drop) or are a group of their own (keep)."
    )
    data_version: Version | None = Field(
        default=None, description="Which state of the data it is. The same question about the same state is free."
    )
    retention_days: int | None = Field(default=None, ge=1, le=36_500, description="After how many days rows are gone.")
    head_limit_most: int | None = Field(default=None, ge=1, le=10_000_000, description="The largest head limit.")
    k_most: int | None = Field(default=None, ge=1, le=10_000_000, description="The largest k of a top k.")
    columns: Annotated[
        Mapping[Annotated[Text, AfterValidator(_is_asked)], Column],
        Field(min_length=1),
        AfterValidator(frozen),
    ] = Field(description="What may be asked about each column. One that is not listed does not exist for analysts.")

    @field_validator("engine")
    @classmethod
    def _check_engine(cls, engine: str | None, info: ValidationInfo) -> str | None:
        if info.context and engine not in info.context.engines:
            raise mistake(f"must be one of the declared engines: {', '.join(sorted(info.context.engines)) or 'none'}")
        return engine

    @field_validator("source")
    @classmethod
    def _check_source(cls, source: str | None, info: ValidationInfo) -> str | None:
        if "engine" in info.data and (info.data["engine"] is None) == (source is None):
            raise mistake_above("needs either an engine or a source" + (", not both" if source else ""))
        return source

    @field_validator("view")
    @classmethod
    def _check_view(cls, view: str | None, info: ValidationInfo) -> str | None:
        if "table" not in info.data:
            return view
        table = info.data["table"]
        if table is not None and view is not None:
            raise mistake_above("needs either a table or a view, not both")
        if table is None and view is None and info.data.get("engine") is not None and "source" in info.data:
            raise mistake_above("needs either a table or a view")
        return view

    @field_validator("k_most")
    @classmethod
    def _check_k_most(cls, k_most: int | None, info: ValidationInfo) -> int | None:
        head_limit = info.data.get("head_limit_most")
        if k_most is not None and head_limit is not None and k_most > head_limit:
            raise mistake("must be at most head_limit_most")
        return k_most

    @property
    def sensitivity(self) -> Sensitivity:
        """How far one user can move the counts: in COUNT(*), or the distinct users where that is not allowed."""
        return Sensitivity(self.groups_per_user, self.rows_per_group or 1)

    @property
    def groupable(self) -> tuple[str, ...]:
        """The columns that may name items."""
        return tuple(name for name, column in self.columns.items() if column.group)

    @property
    def filterable(self) -> tuple[str, ...]:
        """The columns that may stand in filters."""
        return tuple(name for name, column in self.columns.items() if column.filter)

    @property
    def summable(self) -> tuple[str, ...]:
        """The columns that may be summed and averaged."""
        return tuple(name for name, column in self.columns.items() if column.sum)

    def summed(self, column: str, scale: int = 0) -> Summed:
        """How *column* is summed.

        Args:
            column: as the catalog has it.
            scale: digits behind the point of the column in its table, at least 0.

        Raises:
            InputError: it may not be summed, or is clipped to bounds with more digits behind the point than it has.
        """
        clip = self.columns[column].sum if column in self.columns else None
        if clip is None:
            raise InputError(f"column {column!r} may not be summed")
        if {(bound * 10**scale).denominator for bound in (clip.low, clip.high)} != {1}:
            raise InputError(
                f"the bounds for sums of column {column!r} have more digits behind the point than the column: {scale}"
            )
        return Summed(column, clip.low, clip.high, scale)


class Catalog(Table):
    """What may be asked, declared by the owner of the data."""

    engines: Annotated[Mapping[Name, EngineSettings], AfterValidator(frozen)] = Field(
        default_factory=dict, validate_default=True, description="The engines that datasets are in, by a name of yours."
    )
    datasets: Annotated[Mapping[Name, Dataset], Field(min_length=1), AfterValidator(frozen)] = Field(
        description="What analysts may ask about, by the name that stands behind FROM."
    )

    def find(self, name: str) -> str:
        """The dataset's name as it is declared; *name* may differ in case.

        Raises:
            InputError: there is no such dataset.
        """
        folded = {known.casefold(): known for known in self.datasets}
        if name.casefold() in folded:
            return folded[name.casefold()]
        nearest = difflib.get_close_matches(name.casefold(), folded, n=1)
        hint = f"; did you mean {folded[nearest[0]]!r}?" if nearest else ""
        raise InputError(f"there is no dataset {name!r}{hint}")
