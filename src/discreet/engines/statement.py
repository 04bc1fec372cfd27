"""The statement for a head: one shape for all engines, the words by each.

From the inside out: the rows that count; from them pairs of a user and an item, where more than distinct users is
counted; from the pairs each item's count; of those the largest, ties by label. It is the shape that makes heads of all
engines equal to the byte, so an engine changes words only: types, quotes, collations.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from discreet.engines.sql import Column, Conditions
from discreet.errors import InputError
from discreet.question import Kind
from discreet.values import LARGEST_COUNT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from discreet.question import HeadRequest


_SUMMED_DIGITS = 20
"""Of numbers that can be summed: 10^18 of them have a sum that no engine's decimals are too small for."""

_SCALED_DIGITS = 36
"""Digits of a decimal's type and digits behind its point, together: its product with 10^scale has room for both."""


def check_sum(name: str, column: Column) -> None:
    """Raise unless a column can be summed.

    Raises:
        InputError: it holds no exact numbers, or such with too many digits.
    """
    number = column.number
    digits = math.inf if number is None else len(str(int(number.most * 10**number.scale)))
    if number is None or digits > _SUMMED_DIGITS or digits + number.scale > _SCALED_DIGITS:
        raise InputError(
            f"column {name!r} cannot be summed: only exact numbers of at most {_SUMMED_DIGITS} digits can, and at most "
            f"{_SCALED_DIGITS} with those behind the point counted twice"
        )


class HeadStatement(Conditions):
    """The words of standard SQL; engines override what they say otherwise.

    Args:
        request: what is wanted.
        relation: what stands behind FROM.
        columns: the table's.
        seed: which random items of a user are kept, where their number is bounded.
    """

    text: ClassVar[str] = "VARCHAR"

    def __init__(self, request: HeadRequest, relation: str, columns: Mapping[str, Column], seed: bytes = b"") -> None:
        super().__init__(columns)
        self.request = request
        self._relation = relation
        self._seed = seed
        self._names = [f"i{n}" for n in range(len(request.items))]
        self._items = ", ".join(self._names)
        self._leading = "".join(f"{name}, " for name in self._names)
        self._grouped = f" GROUP BY {self._items}" if self._names else ""

    def write(self) -> str:
        """The statement. It selects i0, i1, ... (labels), n (counts) and, where a column is summed, t (sums)."""
        counts = self._counts(self._listed_rows(self.rows()))
        if not self._names:
            return counts
        return f"{counts} ORDER BY n DESC, {self.ordered()} LIMIT {self.request.limit + 1}"

    # What engines say in their own words.

    def label(self, column: str) -> str:
        """How a label is selected: as text, BIGINT, DECIMAL, BOOLEAN, DATE or TIMESTAMP, text compared by its bytes."""
        name = self.quoted(column)
        return f"CAST({name} AS BIGINT)" if self.columns[column].kind is Kind.INTEGER else name

    def user(self, column: str) -> str:
        """How users are told apart."""
        return self.label(column)

    def present(self, column: str) -> str:
        """Whether a row has a label or user."""
        return f"{self.quoted(column)} IS NOT NULL"

    def ordered(self) -> str:
        """The labels in ascending order, missing ones first."""
        return ", ".join(f"{name} ASC NULLS FIRST" for name in self._names)

    def listed(self) -> str:
        """The listed items, as a relation called listed with the columns i0, i1, ... in the types of the labels."""
        return "listed"

    def as_text(self, name: str, column: str) -> str:
        """A label or user, selected as *name* from *column*, as the text that all engines write."""
        del column
        return f"CAST({name} AS {self.text})"

    def size(self, text: str) -> str:
        """Bytes of a text in UTF-8, as text."""
        return f"CAST(octet_length({text}) AS {self.text})"

    def digest(self, text: str) -> str:
        """MD5 in lower-case hexadecimal digits, compared by their bytes."""
        return f"md5({text})"

    def same(self, left: str, right: str) -> str:
        """Whether two labels are equal or both missing, in a form that the engine can join by."""
        return f"{left} IS NOT DISTINCT FROM {right}"

    # The shape.

    def rows(self) -> str:
        """The rows that count: labels i0, i1, ..., user u and, where a column is summed, its value x."""
        request = self.request
        needed = (request.user,) if request.keep_missing else (request.user, *request.items)
        kept = [self.present(column) for column in needed]
        if request.where is not None:
            kept.append(self.filtered(request.where))
        selected = [f"{self.label(item)} AS {name}" for item, name in zip(request.items, self._names, strict=True)]
        selected.append(f"{self.user(request.user)} AS u")
        if request.summed is not None:
            selected.append(f"{self._summand(request.summed.column, request.summed.scale)} AS x")
        return f"SELECT {', '.join(selected)} FROM {self._relation} WHERE {' AND '.join(kept)}"

    def _summand(self, column: str, scale: int) -> str:
        """A value in whole units of its last digit, in a type in which no sum overflows."""
        check_sum(column, self.columns[column])
        name = self.quoted(column)
        whole = f"{name} * CAST({10**scale} AS DECIMAL({scale + 1}, 0))" if scale else name
        return f"CAST({whole} AS DECIMAL(38, 0))"

    def _listed_rows(self, rows: str) -> str:
        """Only the rows whose items are listed, where the domain is known."""
        if self.request.domain is None:
            return rows
        value = "" if self.request.summed is None else ", x"
        return f"SELECT {self._items}, u{value} FROM ({rows}) AS r JOIN {self.listed()} USING ({self._items})"

    def _counts(self, rows: str) -> str:
        request = self.request
        if request.groups_per_user is None and request.rows_per_group == 1 and request.summed is None:
            counts = f"SELECT {self._leading}count(DISTINCT u) AS n FROM ({rows}) AS r{self._grouped}"
        else:
            counts = self._counts_of_pairs(rows)
        if request.domain is None:
            return counts
        total = "" if request.summed is None else ", coalesce(t, 0) AS t"
        every = f"{self.listed()} LEFT JOIN ({counts}) AS k USING ({self._items})"
        return f"SELECT {self._items}, coalesce(n, 0) AS n{total} FROM {every}"

    def _counts_of_pairs(self, rows: str) -> str:
        request, summed = self.request, self.request.summed
        value = "" if summed is None else ", sum(x) AS s"
        pairs = f"SELECT {self._leading}u, count(*) AS c{value} FROM ({rows}) AS r GROUP BY {self._leading}u"
        if request.groups_per_user is not None and request.items:
            pairs = self._bounded(pairs, request.groups_per_user)
        counts = f"CAST(coalesce(sum(least(c, {request.rows_per_group})), 0) AS BIGINT) AS n"
        if summed is not None:
            low, high = (int(bound * 10**summed.scale) for bound in (summed.low, summed.high))
            total = f"coalesce(sum(greatest(least(coalesce(s, 0), {high}), {low})), 0)"
            # Saturating: a sum too large for the result must not be an error, which one user could cause.
            counts += f", CAST(greatest(least({total}, {LARGEST_COUNT}), {-LARGEST_COUNT}) AS BIGINT) AS t"
        return f"SELECT {self._leading}{counts} FROM ({pairs}) AS p{self._grouped}"

    def _bounded(self, pairs: str, groups: int) -> str:
        """Of each user's items so many, in an order of her own that depends on the seed, herself and the item only."""
        texts = [self.as_text("u", self.request.user)]
        texts += [self.as_text(name, item) for name, item in zip(self._names, self.request.items, strict=True)]
        framed = "".join(f" || coalesce({self.size(text)} || ':' || {text}, '-')" for text in texts)
        digest = self.digest(f"'{self._seed.hex()}'{framed}")
        place = f"row_number() OVER (PARTITION BY u ORDER BY {digest}, {self.ordered()}) AS place"
        return f"SELECT * FROM (SELECT q.*, {place} FROM ({pairs}) AS q) AS o WHERE place <= {groups}"
