"""Who sent a request, and what they may do.

DiscreetError
├── Unauthorized         401: no valid key or token, without a reason
├── Forbidden            403: a valid key or token without the role
└── IssuerUnavailable    503: tokens cannot be checked, because their issuer cannot be reached
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from discreet.errors import DiscreetError

Role: TypeAlias = Literal["analyst", "officer", "admin"]
"""analyst: queries at the expense of an account; officer: accounts, budgets, grants and the ledger; admin: API keys.

No role includes another.
"""

ROLES: tuple[Role, ...] = get_args(Role)

Reason: TypeAlias = Literal["missing", "malformed", "unknown", "expired", "token"]
"""Why a request is unauthorized: for the log, never for the client."""


class Unauthorized(DiscreetError):
    """A request has no valid key or token. Its message never says why, so that it does not tell which keys exist.

    Attributes:
        reason: for the log.
        key_id: of a key that expired, otherwise None.
    """

    def __init__(self, reason: Reason, key_id: str | None = None) -> None:
        self.reason, self.key_id = reason, key_id
        super().__init__("this needs a valid key: send the header Authorization: Bearer KEY")


class Forbidden(DiscreetError):
    """The caller does not have the role that an operation needs.

    Attributes:
        role: that it needs.
    """

    def __init__(self, role: Role) -> None:
        self.role = role
        super().__init__(f"this needs the role {role!r}, which this key does not have")


class IssuerUnavailable(DiscreetError):
    """The issuer of tokens cannot be reached, so its keys are not known."""

    def __init__(self) -> None:
        super().__init__("the issuer of tokens cannot be reached, so tokens cannot be checked now; try again later")


@dataclass(frozen=True, slots=True)
class Identity:
    """An authenticated caller.

    Args:
        actor: the name in the ledger: "key:" and the key's id, or "oidc:" and the token's subject.
        account: that queries are charged to; None for callers that are no analysts.
        roles: of the caller.
        key_id: of the API key; None for a token.
    """

    actor: str
    account: str | None
    roles: frozenset[Role]
    key_id: str | None = None

    def require(self, role: Role) -> None:
        """Raise `Forbidden` unless the caller has *role*."""
        if role not in self.roles:
            raise Forbidden(role)

    def analyst_account(self) -> str:
        """Return the account that queries are charged to, or raise `Forbidden` if there is none."""
        self.require("analyst")
        if self.account is None:
            raise Forbidden("analyst")
        return self.account
