"""Who asks, and what she may do. The decisions; how she proves it is in `keys` and `oidc`.

DiscreetError
├── Unauthorized         401: nobody known, and no word about why
├── Forbidden            403: known, but not in this role
└── IssuerUnavailable    503: nobody can tell, because the issuer of tokens cannot be asked
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from discreet.errors import DiscreetError

Role: TypeAlias = Literal["analyst", "officer", "admin"]
"""analyst: asks at the expense of her account; officer: accounts, budgets, grants and the ledger; admin: keys.

No role includes another: whoever is to have two is given two.
"""

ROLES: tuple[Role, ...] = get_args(Role)


Reason: TypeAlias = Literal["missing", "malformed", "unknown", "expired", "token"]
"""Why somebody is nobody: for our log, never for who asked."""


class Unauthorized(DiscreetError):
    """Nobody known. What is said is the same whatever was wrong, so that nobody learns which keys there are.

    Attributes:
        reason: for our log.
        key_id: of a key that expired; None for all others.
    """

    def __init__(self, reason: Reason, key_id: str | None = None) -> None:
        self.reason, self.key_id = reason, key_id
        super().__init__("this needs a valid key: send the header Authorization: Bearer KEY")


class Forbidden(DiscreetError):
    """Somebody known who is not in the role that this needs.

    Attributes:
        role: the one that is needed.
    """

    def __init__(self, role: Role) -> None:
        self.role = role
        super().__init__(f"this needs the role {role!r}, which this key does not have")


class IssuerUnavailable(DiscreetError):
    """The issuer of tokens cannot be asked for its keys, so nobody can tell whether a token is good."""

    def __init__(self) -> None:
        super().__init__("the issuer of tokens cannot be reached, so tokens cannot be checked now; try again later")


@dataclass(frozen=True, slots=True)
class Identity:
    """Somebody who proved who she is.

    Args:
        actor: her name in the ledger: "key:" and the key's id, or "oidc:" and the token's subject.
        account: the account that her questions are charged to; None if she asks none.
        roles: what she may do.
        key_id: of the API key; None if she came with a token of an issuer.
    """

    actor: str
    account: str | None
    roles: frozenset[Role]
    key_id: str | None = None

    def require(self, role: Role) -> None:
        """Raise unless she is in *role*.

        Raises:
            Forbidden: she is not.
        """
        if role not in self.roles:
            raise Forbidden(role)

    def analyst_account(self) -> str:
        """The account that her questions are charged to.

        Raises:
            Forbidden: she is no analyst.
        """
        self.require("analyst")
        if self.account is None:
            raise Forbidden("analyst")
        return self.account
