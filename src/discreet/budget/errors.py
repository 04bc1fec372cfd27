"""Exceptions of budgets that are kept in a store.

    DiscreetError
    ├── InputError
    │   ├── UnknownAccount     no account has that name
    │   ├── AccountChanged     the account was changed since it was read
    │   └── KeyReused          an idempotency key came with another request, or an action's id with another action
    ├── BudgetExceeded
    │   └── BudgetRefused      an account in the store falls short
    ├── AccountSuspended       too many runs of the account failed, or an officer suspended it
    ├── DataChanged            the engine returned other data for the same version of the data
    ├── ClockError             the database's clock ran ahead and has to be confirmed
    ├── LeaseLost              the reservation has ended: drop the answer
    ├── StoreUnavailable       the store could not write; nothing is known to have changed
    ├── StoreBehind            the store is, or may be, older than its last checkpoint: it must not serve
    └── LedgerBroken           the ledger was changed, or the tables contradict it
        └── ReleaseDamaged     the bytes of a stored release are not those that were stored

Messages are single sentences. They never hold a true count, a row, a key or a seed.
"""

from __future__ import annotations

from dataclasses import replace

from discreet.budget.model import Refusal
from discreet.errors import BudgetExceeded, DiscreetError, EngineError, InputError, ProblemKind, UnknownColumn


class UnknownAccount(InputError):
    """No account has that name."""

    problem = UnknownColumn.problem

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"there is no account {name!r}; an officer can create it")


class AccountChanged(InputError):
    """The account was changed since it was read."""

    def __init__(self) -> None:
        super().__init__("the account was changed since it was read; read it again, then change it")


class KeyReused(InputError):
    """An idempotency key came with another request, or the id of an action with another action."""

    problem = ProblemKind("key-reused", 409, "The idempotency key was used with another request")

    def __init__(self) -> None:
        super().__init__("this idempotency key was used for another request; use a new key for a new request")


class BudgetRefused(BudgetExceeded):
    """The answer could cost more than an account on the path has left.

    The message names the account and no amounts, since other users may share it: the caller decides who sees them.

    Attributes:
        refusal: the account, the amounts needed and left, and when charges next stop counting.
    """

    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal
        super().__init__(f"the answer could cost more than account {refusal.account!r} has left")


class AccountSuspended(DiscreetError):
    """All claims of the account are refused: an officer suspended it, or too many runs failed after data was queried.

    Attributes:
        account: the account itself, or the one above it that an officer suspended.
        until_us: the end of the suspension, in microseconds since 1970 UTC, if no officer lifts it before; None if an
            officer suspended the account.
    """

    problem = ProblemKind("suspended", 403, "The account is suspended")

    def __init__(self, account: str, until_us: int | None) -> None:
        self.account = account
        self.until_us = until_us
        why = "for up to a day, because too many of its queries failed;" if until_us else "by a privacy officer, and"
        super().__init__(f"account {account!r} is suspended {why} an officer can lift that")


class DataChanged(DiscreetError):
    """The engine returned other data for the same query and version of the data than before."""

    problem = ProblemKind(
        "data-changed",
        503,
        "The data changed without a new version",
        EngineError.problem.charged,
        detail="the data changed although its version did not, so nothing is answered until its owner gives it a new "
        "version",
    )

    def __init__(self) -> None:
        super().__init__(
            "the data changed although its version did not, so nothing was answered; with every change of the data "
            "its version in the catalog has to change"
        )


class ClockError(DiscreetError):
    """The database's clock is far ahead of the last time that the store has seen, and has to be confirmed."""

    problem = ProblemKind(
        "clock",
        503,
        "The clock of the budget store ran ahead",
        detail="the clock of the budget store ran ahead; no query is answered until an officer confirms the time",
    )

    def __init__(self) -> None:
        super().__init__(
            "the clock of the database ran far ahead of the last time seen, so no budget is refreshed until an officer "
            "confirms the clock"
        )


class LeaseLost(DiscreetError):
    """The reservation has ended, and the result computed for it must be dropped."""

    problem = EngineError.problem

    def __init__(self) -> None:
        super().__init__("the reservation has ended, so the answer must be dropped; send the query again")


class StoreUnavailable(DiscreetError):
    """The store could not be opened, reached or written: no answer may be returned."""

    problem = ProblemKind(
        "store-unavailable",
        503,
        "The budget store cannot be reached",
        f"nothing, or at most {EngineError.problem.charged}",
        detail="the budget store cannot be reached, so no query is answered; send the same request again, and it is "
        "charged once",
        retry_after=2,
    )


class StoreInUse(StoreUnavailable):
    """Another process has the file of the store open."""


class StoreBehind(DiscreetError):
    """The store is older than its last checkpoint (a restored backup, a promoted replica), or may be: there is none."""

    problem = StoreUnavailable.problem


class LedgerBroken(DiscreetError):
    """The ledger was changed, or the tables contradict it.

    Attributes:
        chain: the chain of the first wrong line, or None if no single line is wrong.
        seq: the number of that line in its chain, or None.
    """

    problem = StoreUnavailable.problem

    def __init__(self, message: str, chain: int | None = None, seq: int | None = None) -> None:
        self.chain = chain
        self.seq = seq
        where = "" if seq is None else f" at line {seq} of chain {chain}"
        super().__init__(f"the ledger cannot be trusted{where}: {message}")


class ReleaseDamaged(LedgerBroken):
    """The bytes of a stored release are not those that were stored: it is not returned, and nothing is charged."""

    problem = replace(
        StoreUnavailable.problem,
        charged="nothing",
        detail="the stored answer is damaged; an administrator has to restore the budget store from a backup",
        retry_after=None,
    )

    def __init__(self, release_key: bytes) -> None:
        super().__init__(f"the stored release {release_key.hex()} is damaged; restore the store from a backup")
