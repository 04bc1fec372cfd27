"""What a service can answer instead of what was asked, as the errors that the library raises too.

    DiscreetError
    ├── InputError
    │   ├── Unauthorized       the service does not know the key
    │   ├── Forbidden          the key is not for that
    │   ├── Suspended          too many runs failed; wait, or ask an officer
    │   ├── NotFound           nothing of that name, or nothing that this key may see
    │   └── Busy               too many requests, or the same one is still under way
    ├── BudgetExceeded
    │   └── BudgetShort        which account falls short, by how much, and what would fit
    ├── EngineError            the engine behind the service failed
    └── ServiceError           the service cannot be reached, or failed

A statement outside the grammar is an `SQLError` or a `WhereError` with its position, whatever else is wrong with a
question an `InputError`. The messages are the service's own sentences.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from discreet.errors import BudgetExceeded, DiscreetError, InputError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from discreet.values import Cost


class Unauthorized(InputError):
    """The service does not know the key: it is wrong, it expired, or it was revoked."""


class Forbidden(InputError):
    """The key is known, and is not for that: another role is needed."""


class NotFound(InputError):
    """There is nothing of that name, or nothing that this key may see; nobody is told which."""


class Suspended(InputError):
    """Too many runs of the account failed.

    Attributes:
        until: when it may ask again, or None if the service does not say.
    """

    def __init__(self, message: str, until: datetime | None) -> None:
        self.until = until
        super().__init__(message)


class Busy(InputError):
    """Too many requests, or the same one is still under way, for longer than the client waits.

    Attributes:
        retry_after: seconds after which to ask again, or None if the service does not say.
    """

    def __init__(self, message: str, retry_after: float | None) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class BudgetShort(BudgetExceeded):
    """The answer could cost more than an account has left. Nothing was read, nothing was charged.

    Attributes:
        account: which account, of those that are charged: the asking one or a parent.
        needed: the most that the answer could cost.
        left: what is left of the account.
        resets_at: when some of it comes back, or None if never.
        fits: the largest that would still fit, by name: "k", "epsilon"; empty if nothing would.
    """

    def __init__(
        self,
        message: str,
        *,
        account: str,
        needed: Cost,
        left: Cost,
        resets_at: datetime | None,
        fits: Mapping[str, float],
    ) -> None:
        self.account, self.needed, self.left = account, needed, left
        self.resets_at, self.fits = resets_at, dict(fits)
        super().__init__(message)


class ServiceError(DiscreetError):
    """The service cannot be reached, failed, or is not one.

    Attributes:
        status: of HTTP, or None if there was no answer.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        self.status = status
        super().__init__(message)
