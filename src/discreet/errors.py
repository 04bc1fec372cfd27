"""Every error Discreet raises on purpose.

    DiscreetError
    ├── InputError            invalid input; the message says what is allowed
    │   ├── UnknownColumn     a column that the table does not have
    │   ├── WhereError        a filter outside the grammar, with the position
    │   └── SQLError          a statement outside the grammar, with the position
    ├── BudgetExceeded        the worst cost is above the balance; nothing was read or charged
    ├── EngineError           the engine failed while it read data; the reserved amount is charged
    │   ├── EngineUnreachable no connection; if found before data is queried, nothing is charged
    │   ├── EngineBusy        too many queries wait for the engine; nothing is charged
    │   ├── EngineTimeout     the engine did not answer in time
    │   ├── UnfitData         a row does not have the declared form
    │   └── InexactHead       the engine returned a head that is not proven exact
    └── InvariantViolated     a bug: a guarantee of privacy or budget would have been violated

Stored budgets add the errors in `discreet.budget.errors`: UnknownAccount, AccountChanged and KeyReused are subclasses
of InputError, BudgetRefused of BudgetExceeded; Suspended, DataChanged, ClockError, LeaseLost, StoreUnavailable,
StoreBehind and LedgerBroken of DiscreetError.

Messages are single sentences. They never hold a count, a row, a key or a seed.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class DiscreetError(Exception):
    """Base of all errors raised on purpose."""


class InputError(DiscreetError, ValueError):
    """The request is invalid, on any data; no row of the data decides this."""


class UnknownColumn(InputError):
    """A column that the table does not have.

    Attributes:
        nearest: the existing column with the most similar name, or None.
    """

    def __init__(self, name: str, known: Iterable[str], role: str = "column") -> None:
        columns = list(known)
        self.name = name
        matches = difflib.get_close_matches(name.casefold(), [c.casefold() for c in columns], n=1)
        self.nearest = next((c for c in columns if matches and c.casefold() == matches[0]), None)
        hint = f"did you mean {self.nearest!r}?" if self.nearest else f"the columns are {', '.join(map(repr, columns))}"
        super().__init__(f"there is no {role} {name!r}; {hint}")


class WhereError(InputError):
    """A filter outside the grammar.

    Attributes:
        reason: the message without the position.
        position: 0-based offset of the refused part in the text, or None if there is no single position.
    """

    def __init__(self, message: str, position: int | None = None) -> None:
        self.reason = message
        self.position = position
        where = "" if position is None else f" at character {position + 1}"
        super().__init__(f"the filter cannot be used{where}: {message}")


class SQLError(InputError):
    """A statement outside the grammar. An error in its filter is a `WhereError`, with the position in the statement.

    Attributes:
        reason: the message without the position.
        position: 0-based offset of the refused part in the text, or None if there is no single position.
    """

    def __init__(self, message: str, position: int | None = None) -> None:
        self.reason = message
        self.position = position
        where = "" if position is None else f" at character {position + 1}"
        super().__init__(f"the statement cannot be used{where}: {message}")


class BudgetExceeded(DiscreetError):
    """The answer could cost more than is left. Nothing was read, nothing was charged."""


class EngineError(DiscreetError):
    """The engine failed; its error text may hold data and is not part of the message.

    Whether a query fails may depend on the rows, so a query that was sent is charged even if it fails.
    """


class EngineUnreachable(EngineError):
    """No connection to the engine. Found before data is queried (`Engine.check`), nothing is charged."""


class EngineBusy(EngineError):
    """Too many queries run on the engine already. Nothing was sent to it, nothing was charged."""


class EngineTimeout(EngineError):
    """The engine did not answer within its time limit."""


class UnfitData(EngineError):
    """A row of the data does not have the declared form."""


class InexactHead(EngineError):
    """The engine returned a head that is not proven exact, so nothing is released from it."""


class InvariantViolated(DiscreetError, AssertionError):
    """A bug: continuing would violate a guarantee of privacy or budget."""
