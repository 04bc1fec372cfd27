"""What an account says of the other data centres that it is split over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from discreet.budget.model.names import check_name
from discreet.errors import InputError

if TYPE_CHECKING:
    from discreet.values import Cost


@dataclass(frozen=True, slots=True)
class Share:
    """An account's limit is only a part of a whole; the other data centres have the rest (`discreet.budget.escrow`).

    Args:
        total: the limit of all data centres together.
        home: id of the store in which the account was made, where alone it is altered.
        version: of all its settings but the limit, from 1; the home counts it up.
    """

    total: Cost
    home: str
    version: int

    def __post_init__(self) -> None:
        check_name(self.home, "the name of a store")
        if self.version < 1:
            raise InputError(f"the version of an account's settings is at least 1, not {self.version}")
