"""Authenticated callers, and their roles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from discreet.wire.administration import Role

ROLES: tuple[Role, ...] = get_args(Role)

Needed: TypeAlias = Role | Literal["any"]
"""The role that a caller needs, or "any" for every caller."""


@dataclass(frozen=True, slots=True)
class Identity:
    """An authenticated caller.

    Args:
        actor: the name in the ledger: "key:" and the key's id, or "oidc:" and the token's subject.
        account: the account that queries are charged to; None without the role analyst.
        key_id: the id of the API key; None for a token.
        label: the label of the API key, which the ledger shows beside the actor; empty without one.
    """

    actor: str
    account: str | None
    roles: frozenset[Role]
    key_id: str | None = None
    label: str = ""
