"""Every error Discreet raises on purpose.

    DiscreetError
    ├── InputError            invalid input; the message says what is allowed
    │   ├── NotFound          a name that does not exist or was not granted
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
of InputError, BudgetRefused of BudgetExceeded; AccountSuspended, DataChanged, ClockError, LeaseLost, StoreUnavailable,
StoreBehind and LedgerBroken of DiscreetError.

Messages are single sentences. They never hold a count, a row, a key or a seed.

Every class carries the problem that a budget service replies with; a subclass inherits it unless it has its own.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal


@dataclass(frozen=True, slots=True)
class ProblemKind:
    """A kind of problem (RFC 9457) that a budget service replies with.

    Args:
        slug: the name of the kind, the last segment of its type URI.
        status: HTTP status.
        title: the kind in words.
        charged: the amount that a request with this problem is charged.
        detail: the sentence that is sent in place of an error's message, which may hold data; None to send the message.
        retry_after: seconds until a retry may succeed without another charge; None if clients should not retry.
    """

    slug: str
    status: int
    title: str
    charged: str = "nothing"
    detail: str | None = None
    retry_after: int | None = None


_FORFEITED = "the worst case, which pays for the same query again"


class DiscreetError(Exception):
    """Base of all errors raised on purpose.

    Attributes:
        problem: the problem that a budget service replies with, unless a subclass has another.
    """

    problem: ClassVar[ProblemKind] = ProblemKind(
        "internal",
        500,
        "The service has a bug",
        "nothing, or the worst case if data was read",
        detail="the service has a bug; its log has the details",
    )


class InputError(DiscreetError, ValueError):
    """The request is invalid, on any data; no row of the data decides this."""

    problem = ProblemKind("out-of-range", 422, "Something in the request is not allowed")


def how_to_install(extra: str) -> str:
    """Return how to install an optional part, as the end of a sentence.

    No package index has this project, so a name without a path could install a package of others.
    """
    return f"install it in a checkout with: pip install '.[{extra}]', or from a wheel: pip install 'WHEEL[{extra}]'"


def file_error(path: object, what: Literal["read", "written"], error: OSError) -> InputError:
    """Return the error of a file that cannot be read or written, with the reason of the operating system."""
    return InputError(f"{str(path)!r} cannot be {what}: {(error.strerror or 'no access').lower()}")


class NotFound(InputError):
    """Something does not exist, or the caller may not see it; the message does not say which.

    Args:
        sentence: the message; it depends only on data that the caller may see.
    """

    problem = ProblemKind("not-found", 404, "There is nothing of that name")

    def __init__(self, sentence: str = "there is nothing of that name, or it was not granted") -> None:
        super().__init__(sentence)


class UnknownColumn(InputError):
    """A column that the table does not have.

    Attributes:
        nearest: the existing column with the most similar name, or None.
    """

    problem = NotFound.problem

    def __init__(self, name: str, names: Iterable[str], role: str = "column") -> None:
        columns = list(names)
        self.name = name
        # Matched without case, and shown as the table spells it.
        matches = difflib.get_close_matches(name.casefold(), [c.casefold() for c in columns], n=1)
        self.nearest = next((c for c in columns if matches and c.casefold() == matches[0]), None)
        hint = f"the columns are {', '.join(map(repr, columns))}" if columns else "there is none"
        if self.nearest:
            hint = f"did you mean {self.nearest!r}?"
        super().__init__(f"there is no {role} {name!r}; {hint}")


class WhereError(InputError):
    """A filter outside the grammar.

    Attributes:
        reason: the message without the position.
        position: 0-based offset of the refused part in the text, or None if there is no single position.
    """

    problem = ProblemKind("malformed", 400, "The request cannot be read")

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

    problem = WhereError.problem

    def __init__(self, message: str, position: int | None = None) -> None:
        self.reason = message
        self.position = position
        where = "" if position is None else f" at character {position + 1}"
        super().__init__(f"the statement cannot be used{where}: {message}")


class BudgetExceeded(DiscreetError):
    """The answer could cost more than is left. Nothing was read, nothing was charged."""

    problem = ProblemKind("budget-short", 403, "The answer could cost more than is left")


class EngineError(DiscreetError):
    """The engine failed; its error text may hold data and is not part of the message.

    Whether a query fails may depend on the rows, so a query that was sent is charged even if it fails.
    """

    problem = ProblemKind(
        "engine-failed",
        503,
        "Data was read, and the query failed",
        _FORFEITED,
        detail="the data was queried, and the query failed; its worst case stays charged, and pays for the same query "
        "again",
    )


class EngineUnreachable(EngineError):
    """No connection to the engine. Found before data is queried (`Engine.check`), nothing is charged."""

    problem = ProblemKind(
        "engine-unavailable",
        503,
        "The data cannot be reached",
        detail="the data cannot be reached now; nothing was charged, send the query again",
        retry_after=5,
    )


class EngineBusy(EngineError):
    """Too many queries run on the engine already. Nothing was sent to it, nothing was charged."""

    problem = replace(
        EngineUnreachable.problem,
        detail="too many queries wait for this data; nothing was charged, send the same request again",
    )


class EngineTimeout(EngineError):
    """The engine did not answer within its time limit."""

    problem = ProblemKind(
        "engine-timeout",
        504,
        "Data was read, and the query timed out",
        _FORFEITED,
        detail="the data was queried, and the query timed out; its worst case stays charged, and pays for the same "
        "query again",
    )


class UnfitData(EngineError):
    """A row of the data does not have the declared form."""


class InexactHead(EngineError):
    """The engine returned a head that is not proven exact, so nothing is released from it."""


class InvariantViolated(DiscreetError, AssertionError):
    """A bug: continuing would violate a guarantee of privacy or budget."""
