"""The balance of an account as epsilons, units and guarantees. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import TYPE_CHECKING

from discreet.accounting.bounds import SystemBound, linkedin_system
from discreet.accounting.convert import Guarantee, epsilon_simple, epsilon_tight, guarantee_of, units_of_cost
from discreet.budget.periods import doubled
from discreet.values import Cost, float_above, float_below

if TYPE_CHECKING:
    from discreet.budget.model import Account, Balance

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ANYTHING = Fraction(1, 2)


@dataclass(frozen=True, slots=True)
class UnitsReport:
    """A balance in LinkedIn's units: what is spent is rounded up, what is left down.

    Args:
        information_spent: units of information spent, held or forfeited.
    """

    information_spent: int
    calls_spent: int
    information_left: int
    calls_left: int


@dataclass(frozen=True, slots=True)
class Report:
    """The balance of an account, with what follows from it.

    Args:
        balance: exactly.
        epsilon_spent: epsilon of all that is spent, by the tight formula at `conversion`.
        epsilon_left: epsilon of one release that takes all that is left, likewise; rounded down.
        conversion: the delta of both; what releases may lose comes on top.
        units: in LinkedIn's units, or None if the account has none.
        resets_at: when some charge stops counting, or None if none will.
        guarantee: what holds for all releases in any window as long as the period, or None: observed accounts, and
            limits that promise nothing.
        published: the same by the paper's Theorem 2, if the limit is that of the account's units and was kept.
    """

    balance: Balance
    epsilon_spent: float
    epsilon_left: float
    conversion: float
    units: UnitsReport | None
    resets_at: datetime | None
    guarantee: Guarantee | None
    published: SystemBound | None


def report(balance: Balance, computational: bool = False) -> Report:
    """Return the report of *balance*.

    Args:
        computational: True if noise is keyed, so that the guarantee rests on cryptography.
    """
    account, spent = balance.account, balance.spent
    conversion = account.delta - account.whole.delta
    left = epsilon_tight(float_below(balance.remaining.rho), float_above(conversion))
    resets_us = balance.resets_at_us
    return Report(
        balance,
        epsilon_tight(float_above(spent.rho), float_below(conversion)),
        left * (1 - 1e-9),
        float_below(conversion),
        _units(balance),
        None if resets_us is None else _EPOCH + timedelta(microseconds=resets_us),
        guarantee(account, spent, computational),
        published(account, spent),
    )


def guarantee(account: Account, spent: Cost, computational: bool = False) -> Guarantee | None:
    """Return what holds for all releases of *account* in any window as long as its period.

    A calendar period is counted twice: a window can hold the end of one and the beginning of the next. What was charged
    beyond the limit (it was lowered, or charged by hand) counts too. For an account that is split it covers all
    data centres; what was charged beyond the share of another one is reported there.
    """
    if not account.enforced:
        return None
    cost = doubled(account.period) * (account.whole + _beyond(account.limit, spent))
    delta = account.delta - account.whole.delta + cost.delta
    return None if delta >= 1 else guarantee_of(cost, delta, computational=computational)


def published(account: Account, spent: Cost) -> SystemBound | None:
    """Return the same by Theorem 2 of Rogers et al. 2021, for accounts with the limit of their units.

    Without its shortcut for a handful of steps, the sum of their epsilons: Gaussian noise has no epsilon of its own.
    """
    units = account.units
    if units is None or not account.enforced or account.whole != units.limit or not spent.within(account.limit):
        return None
    if units.information == 0:
        return None
    times, conversion = doubled(account.period), account.delta - account.whole.delta
    epsilon_per = float_above(units.epsilon_per)
    found = linkedin_system(times * units.information, times * units.calls, epsilon_per, units.delta_per, conversion)
    rho = float_above(times * units.information * units.epsilon_per**2 / 8)
    return replace(found, epsilon=epsilon_simple(rho, float_below(conversion)))


def _units(balance: Balance) -> UnitsReport | None:
    units = balance.account.units
    if units is None:
        return None
    spent, left = balance.spent, balance.remaining
    per_call = units.delta_per
    information, calls = units_of_cost(spent, units.epsilon_per, per_call or _ANYTHING)
    return UnitsReport(
        information,
        calls if per_call else 0,  # calls that cost nothing are not counted
        math.floor(left.rho / (units.epsilon_per**2 / 8)),
        math.floor(left.delta / per_call) if per_call else 0,
    )


def _beyond(limit: Cost, spent: Cost) -> Cost:
    return Cost(max(spent.rho - limit.rho, Fraction(0)), max(spent.delta - limit.delta, Fraction(0)))
