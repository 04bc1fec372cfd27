"""Exceptions of PEP 249, and their construction from the service's problems.

    DatabaseError
    ├── ProgrammingError   the statement is malformed or not allowed
    ├── OperationalError   the key is not valid, the budget is short, or the service cannot answer now
    └── InternalError      the service failed

A malformed URL or option is an `InterfaceError`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


class Warning(Exception):  # noqa: A001 - the name is from PEP 249
    """Part of PEP 249; never raised."""


class Error(Exception):
    """Base class of all errors.

    Attributes:
        problem: the problem (RFC 9457) that the service replied with; empty if the error is not from the service.
    """

    def __init__(self, message: str, problem: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.problem = dict(problem or {})


class InterfaceError(Error):
    """The URL of the service or an option is malformed."""


class DatabaseError(Error):
    """The service cannot answer."""


class DataError(DatabaseError):
    """Part of PEP 249; never raised."""


class OperationalError(DatabaseError):
    """The key is not valid, the budget is short, or the service cannot be reached or cannot answer now."""


class IntegrityError(DatabaseError):
    """Part of PEP 249; never raised."""


class InternalError(DatabaseError):
    """The service failed."""


class ProgrammingError(DatabaseError):
    """The statement is malformed or not allowed, or the cursor is used wrongly."""


class NotSupportedError(DatabaseError):
    """The service has no such feature."""


_KINDS: Mapping[str, type[DatabaseError]] = {
    "malformed": ProgrammingError,
    "not-found": ProgrammingError,
    "out-of-range": ProgrammingError,
    "too-large": ProgrammingError,
    "internal": InternalError,
}
"""Exceptions by the name of the problem; all other problems raise `OperationalError`."""


def error_of(problem: Mapping[str, Any]) -> DatabaseError:
    """Return the exception for a problem; its message includes the parameters that would still fit the budget."""
    message = str(problem.get("detail") or problem.get("title") or "the service refused the request")
    fits = problem.get("fits")
    if isinstance(fits, dict):
        limits = [f"{name} {value:g}" for name, value in fits.items() if isinstance(value, int | float)]
        if limits:
            message += f"; {' or '.join(limits)} would fit"
    return _KINDS.get(slug_of(problem), OperationalError)(message, problem)


def slug_of(problem: Mapping[str, Any]) -> str:
    """Return the name of a problem: the last segment of its type."""
    return str(problem.get("type", "")).rpartition("/")[2]
