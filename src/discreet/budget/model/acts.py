"""Acts of officers and of the service."""

from __future__ import annotations

from dataclasses import dataclass

from discreet.budget.model.names import REASON_LONGEST, check_name
from discreet.errors import InputError


@dataclass(frozen=True, slots=True)
class Act:
    """Who did something to an account or to the store, and why; the ledger keeps both.

    Args:
        actor: up to 200 printable characters without white space.
        reason: up to 2,000 characters, not empty.
        id: names the act, unique for ever, or None. An act whose id the ledger has already changes nothing, so that
            whoever did not hear what became of it may send it again.
    """

    actor: str
    reason: str
    id: str | None = None

    def __post_init__(self) -> None:
        check_name(self.actor, "an actor")
        if not self.reason.strip() or len(self.reason) > REASON_LONGEST:
            raise InputError(f"a reason has up to {REASON_LONGEST:,} characters and is not empty")
        if self.id is not None:
            check_name(self.id, "the id of an act")
