"""What can go wrong with budgets that are kept in a store.

    DiscreetError
    ├── InputError
    │   ├── UnknownAccount     no account has that name
    │   └── KeyReused          an idempotency key came back with another question
    ├── BudgetExceeded
    │   └── BudgetRefused      as above, with the account that fell short
    ├── ClockError             the database's clock ran ahead: an officer has to confirm it
    ├── LeaseLost              the reservation is no longer this caller's: drop the answer
    ├── StoreUnavailable       the store could not write; nothing is known to have changed
    ├── StoreBehind            the store is older than its witness says: it must not serve
    └── LedgerBroken           the ledger was changed, or does not say what the balances say

Messages are single sentences for people. They never hold a true count, a row, a key or a seed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from discreet.errors import BudgetExceeded, DiscreetError, InputError

if TYPE_CHECKING:
    from discreet.budget.model import Refusal


class UnknownAccount(InputError):
    """No account has that name.

    Attributes:
        name: what was asked for.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"there is no account {name!r}; accounts are made by an officer")


class KeyReused(InputError):
    """An idempotency key came back with another question; a new question needs a new key."""

    def __init__(self) -> None:
        super().__init__("this idempotency key was used for another question; a new question needs a new key")


class BudgetRefused(BudgetExceeded):
    """The answer could cost more than an account on the path has left.

    Attributes:
        refusal: which account, what was needed, what is left, when more comes.
    """

    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal
        super().__init__(
            f"the answer could cost rho = {float(refusal.needed.rho):.3g} and delta = {float(refusal.needed.delta):.3g}"
            f", but account {refusal.account!r} has only rho = {float(refusal.remaining.rho):.3g} and "
            f"delta = {float(refusal.remaining.delta):.3g} left"
        )


class ClockError(DiscreetError):
    """The database's clock is far beyond the last time that the store has seen; an officer has to confirm it."""

    def __init__(self) -> None:
        super().__init__(
            "the clock of the database ran far ahead of the last time seen, so no budget is refreshed until an officer "
            "confirms the clock"
        )


class LeaseLost(DiscreetError):
    """The reservation was taken from this caller: whatever it computed must be dropped."""

    def __init__(self) -> None:
        super().__init__("the reservation has ended, so the answer must be dropped; ask again")


class StoreUnavailable(DiscreetError):
    """The store could not write (or not be opened): no answer may leave."""


class StoreBehind(DiscreetError):
    """The store is older than its witness says: a backup was restored or a replica promoted."""


class LedgerBroken(DiscreetError):
    """The ledger was changed, or does not say what the balances say.

    Attributes:
        chain: of the first line that is wrong, or None if no single line is.
        seq: likewise.
    """

    def __init__(self, message: str, chain: int | None = None, seq: int | None = None) -> None:
        self.chain, self.seq = chain, seq
        where = "" if seq is None else f" at line {seq} of chain {chain}"
        super().__init__(f"the ledger cannot be trusted{where}: {message}")
