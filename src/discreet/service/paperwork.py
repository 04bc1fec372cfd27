"""Between what officers write and what budgets are made of. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from discreet.accounting.calibrate import limit_for
from discreet.budget.ledger import entry_of
from discreet.budget.model import LINKEDIN, LINKEDIN_CONVERSION, Calendar, Forever, Sliding, Units
from discreet.errors import InputError
from discreet.service.problems import left, moment
from discreet.service.telling import budget_of, period_told
from discreet.values import Cost, exact, float_above
from discreet.wire.administration import AccountDetail, AccountSummary, Change, LedgerLine

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from discreet.budget import model
    from discreet.budget.ledger import Line
    from discreet.budget.report import Report
    from discreet.wire.administration import AskedPeriod, Limit, Payment
    from discreet.wire.problems import Spend


def limit_of(asked: Limit) -> tuple[Cost, Fraction, Units | None]:
    """A limit as it was written: what may be spent, the total delta, and the units it was said in.

    Raises:
        InputError: a value outside its range.
    """
    if asked.preset is not None:
        return _of_units(LINKEDIN, LINKEDIN_CONVERSION)
    if asked.epsilon is not None and asked.delta is not None:
        delta = exact(asked.delta, "delta")
        return limit_for(asked.epsilon, delta), delta, None
    if asked.rho is not None and asked.lost is not None and asked.delta is not None:
        limit = Cost.at_most(exact(asked.rho, "rho"), exact(asked.lost, "lost"))
        return limit, exact(asked.delta, "delta"), None
    units = Units(
        exact(asked.epsilon_per or 0, "epsilon_per"),
        exact(asked.delta_per or 0, "delta_per"),
        asked.information or 0,
        asked.calls or 0,
    )
    conversion = LINKEDIN_CONVERSION if asked.conversion is None else exact(asked.conversion, "conversion")
    return _of_units(units, conversion)


def _of_units(units: Units, conversion: Fraction) -> tuple[Cost, Fraction, Units]:
    return units.limit, units.limit.delta + conversion, units


def amount_of(account: model.Account, asked: Payment) -> tuple[Fraction, Fraction]:
    """What a charge or refund is in rho and delta, exactly as it was written.

    Raises:
        InputError: units where the account has none.
    """
    if asked.rho is not None and asked.delta is not None:
        return exact(asked.rho, "rho"), exact(asked.delta, "delta")
    if account.units is None:
        raise InputError("the account has no units; say the amount in rho and delta")
    information, calls = asked.information or 0, asked.calls or 0
    return information * account.units.epsilon_per**2 / 8, calls * account.units.delta_per


def period_of(asked: AskedPeriod) -> model.Period:
    """A period as it was written.

    Raises:
        InputError: a value outside its range.
    """
    if asked.days is not None:
        return Sliding(asked.days)
    if asked.unit is not None:
        return Calendar(asked.unit, asked.zone or "UTC")
    return Forever()


def summary_of(account: model.Account) -> AccountSummary:
    """An account, as lists show it."""
    return AccountSummary(
        account=account.id,
        parent=account.parent,
        mode=account.mode,
        period=period_told(account.period),
        limit=left(account.limit),
        delta=float_above(account.delta),
        total=_total(account),
    )


def detail_of(path: Sequence[Report]) -> AccountDetail:
    """An account with all that is known of how it stands.

    Args:
        path: the account and its parents.
    """
    balance = path[0].balance
    return AccountDetail(
        **budget_of(path[0], path[1:]).model_dump(),
        parent=balance.account.parent,
        delta=float_above(balance.account.delta),
        as_of=balance.as_of,
        total=_total(balance.account),
    )


def _total(account: model.Account) -> Spend | None:
    return left(account.share.total) if account.share else None


def line_told(line: Line) -> LedgerLine:
    """A line of the ledger: in words, and as it is hashed.

    Raises:
        LedgerBroken: it is no line of ours.
    """
    entry = entry_of(line)
    changes = [
        Change(account=account, bucket=bucket, part=part, rho=_signed(amount.rho, 18), delta=_signed(amount.delta, 27))
        for account, bucket, tally in entry.changes
        for part in ("used", "held", "forfeited", "refunded")
        if (amount := getattr(tally, part))
    ]
    return LedgerLine(
        seq=line.seq,
        time=moment(entry.time_us),
        kind=entry.kind,
        reservation=entry.reservation,
        detail=json.loads(entry.detail),
        changes=changes,
        body=line.body,
        hash=line.hash.hex(),
    )


def _signed(quanta: int, digits: int) -> float:
    return float(quanta / 10**digits)
