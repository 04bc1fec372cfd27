"""When shares of a budget move between data centres, and how much. Pure; run in the background, never during a query.

A data centre that is short asks, and one with much more gives half of the difference: afterwards both have the same, so
that nothing moves back before three quarters of it are spent. For a query that was refused for want of a share, every
data centre that has refused none gives what is needed, so that small remainders are used, too.
"""

from __future__ import annotations

from dataclasses import dataclass

from discreet.budget.fixed_point import NOTHING, Amount

SHORT = 4
"""A data centre is short that has left less than this part (1 / SHORT) of its share, or of what another has left."""

CRUMB = 1024
"""Less than this part (1 / CRUMB) of the total is not moved, unless a query needs it."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What a data centre that is short sends to the others.

    Args:
        account: that is short.
        left: of its limit; negative if it is overdrawn.
        need: the largest worst case that was refused of late; nothing if none was.
    """

    account: str
    left: Amount
    need: Amount = NOTHING


def is_short(left: Amount, limit: Amount, total: Amount, need: Amount = NOTHING) -> bool:
    """Return True if a query was refused, or most of the share is spent.

    Args:
        left: of the share.
        limit: the share.
        total: of all data centres; a part that is 0 there is not considered.
        need: see `Ask`.
    """
    if need and not need.within(left):
        return True
    rho = total.rho > 0 and left.rho * SHORT <= limit.rho
    return rho or (total.delta > 0 and left.delta * SHORT <= limit.delta)


def gift(ask: Ask, left: Amount, total: Amount, need: Amount = NOTHING) -> Amount:
    """Return what the asked data centre gives.

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
    """Return what a data centre without a share gets from the account's home: an equal part of the total.

    Args:
        left: at home.
        total: of all data centres.
        centres: how many there are, the home among them.
    """
    return Amount(total.rho // centres, total.delta // centres).least(left.most(NOTHING))


def _part(left: int, other: int, wanted: int, total: int) -> int:
    """Return what is given of rho or of delta."""
    half = min((left - other) // 2, left)
    if other * SHORT >= left or half * CRUMB < total:
        half = 0
    return max(half, wanted)
