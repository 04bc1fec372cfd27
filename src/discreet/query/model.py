"""The question, as a frozen value."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from discreet.values import Sensitivity, check_text, number, whole

if TYPE_CHECKING:
    from discreet.mechanisms import NoiseName
    from discreet.question import Predicate, Summed

MechanismChoice: TypeAlias = Literal["auto", "gumbel", "laplace", "stable", "pcr"]

TOP_HEAD_LIMIT = 1_000
RELEASE_HEAD_LIMIT = 10_000
HEAD_LIMIT_MOST = 10_000_000


def default_head_limit(k: int | None) -> int:
    """How many items are read where nobody says: dbar for a top *k*, or for as many counts as can be had (None)."""
    return RELEASE_HEAD_LIMIT if k is None else min(max(10 * k, TOP_HEAD_LIMIT), HEAD_LIMIT_MOST)


@dataclass(frozen=True, slots=True)
class Query:
    """One question about one table.

    Args:
        user: the column that says whose a row is.
        items: the columns that together name an item; none for all rows as one item.
        epsilon: at least 1e-6; at most 100 unless forced.
        delta: at least 1e-20 and below 1.
        k: how many items, or None for as many accurate counts as can be had.
        where: which rows count, or None for all.
        sensitivity: what is declared about one user.
        head_limit: dbar, or None for max(10 k, 1000) for a top k and 10,000 for a release.
        counts: True for counts, False for labels only.
        noise: which noise the counts get, or None for the one with the smaller standard error.
        mechanism: by name, or None (for a top k also "auto") for the one that the table in
            `discreet.mechanisms` names.
        relative_error: what a released count should stay within, above 0 and below 1.
        domain: an Arrow table that lists all items, or None.
        keep_missing: True to count rows without a label as an item; otherwise they are left out.
        summed: a column whose sums are released, or None; with counts only where it is averaged.
        average: True for sums divided by counts.
    """

    user: str
    items: tuple[str, ...]
    epsilon: float
    delta: Fraction
    k: int | None = None
    where: Predicate | None = None
    sensitivity: Sensitivity = Sensitivity()
    head_limit: int | None = None
    counts: bool = True
    noise: NoiseName | None = None
    mechanism: MechanismChoice | None = None
    relative_error: Fraction = Fraction(1, 10)
    domain: Any = None
    keep_missing: bool = False
    summed: Summed | None = None
    average: bool = False

    @property
    def known_domain(self) -> bool:
        """True if all items there can be are known."""
        return self.domain is not None or not self.items

    def __post_init__(self) -> None:
        """Numbers of other libraries become Python's, so that equal questions are equal.

        Raises:
            InputError: epsilon is no number, k or the head limit no whole number, or a column has no name.
        """
        object.__setattr__(self, "epsilon", number(self.epsilon, "epsilon"))
        for column in (self.user, *self.items):
            check_text(column, "the name of a column")
        for name in ("k", "head_limit"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, whole(getattr(self, name), name.replace("_", " ")))
