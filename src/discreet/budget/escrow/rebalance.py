"""When shares of a budget move between data centres, and how much. Pure; run by upkeep, never in the way of a query.

Who is short asks, and whoever has plenty gives half of the difference: afterwards both have the same, so that nothing
moves back before three quarters of it are spent. A question that was refused for want of a share is a better reason:
then what it needs is given, by everybody who has refused nobody themselves, so that no crumbs stay behind.
"""

from __future__ import annotations

from dataclasses import dataclass

from discreet.budget.fixed_point import NOTHING, Amount

SHORT = 4
"""Who has left less than this part of what another has left is short."""

CRUMB = 1024
"""Parts of the total: less than one of them is not moved, unless a question needs it."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What a data centre that is short tells the others.

    Args:
        account: whose share.
        left: of its limit; negative if it is overdrawn.
        need: the largest worst case that was refused of late; nothing if none was.
    """

    account: str
    left: Amount
    need: Amount = NOTHING


def is_short(left: Amount, limit: Amount, total: Amount, need: Amount = NOTHING) -> bool:
    """True if it is worth asking: a question was refused, or most of the share is spent.

    Args:
        left: of the share.
        limit: the share.
        total: of all data centres; a part that is nothing there is nobody's.
        need: see `Ask`.
    """
    if need and not need.within(left):
        return True
    rho = total.rho > 0 and left.rho * SHORT <= limit.rho
    return rho or (total.delta > 0 and left.delta * SHORT <= limit.delta)


def gift(ask: Ask, left: Amount, total: Amount, need: Amount = NOTHING) -> Amount:
    """What the asked data centre gives.

    Args:
        ask: of the other one.
        left: of its own share.
        total: of all data centres.
        need: the largest worst case that it refused itself of late.
    """
    wanted = (ask.need - ask.left).most(NOTHING).least(left.most(NOTHING)) if ask.need and not need else NOTHING
    return Amount(
        _part(left.rho, ask.left.rho, wanted.rho, total.rho),
        _part(left.delta, ask.left.delta, wanted.delta, total.delta),
    )


def first_gift(left: Amount, total: Amount, centres: int) -> Amount:
    """What a data centre that has no share yet gets from the account's home: an equal part of the total.

    Args:
        left: at home.
        total: of all data centres.
        centres: how many there are, the home among them.
    """
    return Amount(total.rho // centres, total.delta // centres).least(left.most(NOTHING))


def _part(left: int, other: int, wanted: int, total: int) -> int:
    """Of rho or of delta."""
    half = min((left - other) // 2, left)
    if other * SHORT >= left or half * CRUMB < total:
        half = 0
    return max(half, wanted)
