"""The question, as a frozen value."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from discreet.values import Sensitivity, whole

if TYPE_CHECKING:
    from discreet.mechanisms import NoiseName
    from discreet.question import Predicate

MechanismChoice: TypeAlias = Literal["auto", "gumbel", "laplace", "stable", "pcr"]

TOP_HEAD_LIMIT = 1_000
RELEASE_HEAD_LIMIT = 10_000


@dataclass(frozen=True, slots=True)
class Query:
    """One question about one table.

    Args:
        user: the column that says whose a row is.
        items: the columns that together name an item.
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

    def __post_init__(self) -> None:
        """Numbers of other libraries become Python's, so that equal questions are equal.

        Raises:
            InputError: k or the head limit is no whole number.
        """
        object.__setattr__(self, "epsilon", float(self.epsilon))
        for name in ("k", "head_limit"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, whole(getattr(self, name), name.replace("_", " ")))
