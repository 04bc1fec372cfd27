"""Write accounts, their budgets and the costs of queries as models and headers of the API; read limits and charges."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal

from discreet.accounting.convert import limit_for
from discreet.budget import model
from discreet.budget.errors import ReleaseDamaged
from discreet.budget.manager import Report
from discreet.budget.model import LINKEDIN, LINKEDIN_CONVERSION, Balance, Calendar, Forever, PaidRelease, Sliding
from discreet.budget.model import Period as AccountPeriod
from discreet.budget.stores.store import BudgetStore
from discreet.errors import InputError
from discreet.service.answering.estimates import privacy_of, queries_left
from discreet.service.answering.running import streams_above
from discreet.values import Cost, exact, float_above
from discreet.wire import document
from discreet.wire.administration import AccountDetail, AccountSummary, Limit, Payment, PeriodRequest
from discreet.wire.queries import (
    BudgetReport,
    HistoryEntry,
    ParentBudget,
    Period,
    Spend,
    UnitBudget,
    UnitsReport,
    iso_time,
    spend_above,
    spend_below,
)


def budget_report(
    report: Report, parents: Sequence[Report], store: BudgetStore, default_cost: Cost | None = None
) -> BudgetReport:
    """Return the balance of an account, with the limits and remaining budgets of its parents.

    Args:
        store: holds the streams of running counts, which the account can read besides.
        default_cost: the worst-case cost of a query at the default price; None to omit the number of queries left.
    """
    balance = report.balance
    units = None
    price = balance.account.units
    if price is not None:
        limit = price.rounded_down(balance.account.limit)
        left = price.rounded_down(balance.remaining)
        spent = price.rounded_up(balance.spent)
        units = UnitsReport(
            epsilon_per=_decimal(price.epsilon_per),
            delta_per=_decimal(price.delta_per),
            information=UnitBudget(limit=limit.information, spent=spent.information, left=left.information),
            calls=UnitBudget(limit=limit.calls, spent=spent.calls, left=left.calls),
        )
    return BudgetReport(
        account=balance.account.id,
        mode=balance.account.mode,
        period=period_of(balance.account.period),
        limit=spend_below(balance.account.limit),
        used=spend_above(balance.used),
        held=spend_above(balance.held),
        forfeited=spend_above(balance.forfeited),
        left=spend_below(balance.remaining),
        epsilon_limit=limit_epsilon(balance.account),
        epsilon_spent=report.epsilon_spent,
        epsilon_left=report.epsilon_left,
        conversion_delta=report.conversion,
        units=units,
        resets_at=_resets_at(balance),
        suspended_until=None if balance.suspended_until_us is None else iso_time(balance.suspended_until_us),
        suspended_by_officer=next(
            (level.balance.account.id for level in (report, *parents) if level.balance.account.suspended), None
        ),
        guarantee=None if report.guarantee is None else privacy_of(report.guarantee),
        queries_left=None if default_cost is None else queries_left(default_cost, (report, *parents))[0],
        parents=[
            ParentBudget(
                account=parent.balance.account.id,
                mode=parent.balance.account.mode,
                limit=spend_below(parent.balance.account.limit),
                left=spend_below(parent.balance.remaining),
                resets_at=_resets_at(parent.balance),
            )
            for parent in parents
        ],
        running=streams_above(store, [parent.balance.account.id for parent in parents]),
    )


def history_entry(paid: PaidRelease) -> HistoryEntry:
    """Return the history entry of a paid release: its question, time and charge, without items.

    Raises:
        ReleaseDamaged: its bytes are not those that were stored.
        InputError: it cannot be read.
    """
    if paid.release is None:
        raise ReleaseDamaged(paid.release_key)
    fields = document.read(paid.release.result)
    return HistoryEntry(
        id=fields["id"],
        dataset=fields["dataset"],
        question=fields["question"],
        data_version=fields["data_version"],
        mechanism=fields["mechanism"],
        charged=spend_above(paid.charged),
        time=iso_time(paid.time_us),
    )


def period_of(period: AccountPeriod) -> Period:
    """Return the budget period of an account as a model of the API."""
    match period:
        case Sliding(days):
            return Period(kind="sliding", days=days)
        case Calendar(unit, zone):
            return Period(kind="calendar", unit=unit, zone=zone)
    return Period(kind="forever")


def period_in_words(period: Period) -> str:
    """Return the budget period in words, as in "in any 30 days"."""
    if period.kind == "sliding":
        return f"in any {period.days} days"
    return "for ever" if period.kind == "forever" else f"in each {period.unit} ({period.zone})"


def _decimal(value: Fraction) -> str:
    """Return a fraction as text that parses to exactly the same number."""
    return str(float(value)) if Fraction(str(float(value))) == value else str(value)


def _resets_at(balance: Balance) -> str | None:
    return None if balance.resets_at_us is None else iso_time(balance.resets_at_us)


def read_limit(body: Limit) -> tuple[Cost, Fraction, model.Units | None]:
    """Return the limit in rho and delta, the delta of the guarantee, and the units, or None without units.

    Raises:
        InputError: a value is outside its range.
    """
    if body.epsilon is not None and body.delta is not None:
        delta = exact(body.delta, "delta")
        return limit_for(body.epsilon, delta), delta, None
    if body.rho is not None and body.lost is not None and body.delta is not None:
        limit = Cost.at_most(exact(body.rho, "rho"), exact(body.lost, "lost"))
        return limit, exact(body.delta, "delta"), None
    units = LINKEDIN
    if body.preset is None:
        units = model.Units(
            exact(body.epsilon_per or 0, "epsilon_per"),
            exact(body.delta_per or 0, "delta_per"),
            body.information or 0,
            body.calls or 0,
        )
    conversion = LINKEDIN_CONVERSION if body.conversion is None else exact(body.conversion, "conversion")
    return units.limit, units.limit.delta + conversion, units


def read_amount(account: model.Account, body: Payment) -> tuple[Fraction, Fraction]:
    """Return the exact rho and delta of a charge or refund, converted from units if necessary.

    Raises:
        InputError: the amount is in units and the account has none.
    """
    if body.rho is not None and body.delta is not None:
        return exact(body.rho, "rho"), exact(body.delta, "delta")
    if account.units is None:
        raise InputError("the account has no units; say the amount in rho and delta")
    information = body.information or 0
    calls = body.calls or 0
    return information * account.units.epsilon_per**2 / 8, calls * account.units.delta_per


def read_period(body: PeriodRequest) -> model.Period:
    """Parse the period of a request; raise `InputError` if a value is outside its range."""
    if body.days is not None:
        return Sliding(body.days)
    if body.unit is not None:
        return Calendar(body.unit, body.zone or "UTC")
    return Forever()


def limit_epsilon(account: model.Account) -> float:
    """Return epsilon of the limit at the account's delta: as it was set, if it was set in epsilon."""
    epsilon = account.epsilon_of(account.total_limit.rho)
    rounded = float(f"{epsilon:.6g}")  # `limit_for` rounds down in the ninth digit
    return rounded if rounded > 0 and limit_for(rounded, account.delta) == account.total_limit else epsilon


def limit_unit(account: model.Account) -> Literal["epsilon", "units", "rho"]:
    """Return the unit in which the limit was set."""
    if account.units is not None and account.units.limit == account.total_limit:
        return "units"
    epsilon = limit_epsilon(account)
    return "epsilon" if epsilon > 0 and limit_for(epsilon, account.delta) == account.total_limit else "rho"


def limit_in_words(account: model.Account) -> str:
    """Return the limit in the unit in which it was set."""
    total = account.total_limit
    units = account.units
    match limit_unit(account):
        case "units" if units is not None:
            return f"{units.information:,} units of information and {units.calls:,} calls"
        case "epsilon":
            return f"ε {_short(limit_epsilon(account))} at δ {_short(account.delta)}"
    return f"ρ {_short(total.rho)} and δ {_short(total.delta)}, at δ {_short(account.delta)}"


def _short(value: Fraction | float) -> str:
    return re.sub("e-0+", "e-", f"{float(value):.4g}")


def account_summary(account: model.Account) -> AccountSummary:
    """Return the entry of an account in lists."""
    return AccountSummary(
        account=account.id,
        parent=account.parent,
        mode=account.mode,
        period=period_of(account.period),
        limit=spend_below(account.limit),
        delta=float_above(account.delta),
        total=_total(account),
    )


def account_detail(path: Sequence[Report], store: BudgetStore) -> AccountDetail:
    """Return an account with its whole balance."""
    balance = path[0].balance
    return AccountDetail(
        **budget_report(path[0], path[1:], store).model_dump(),
        parent=balance.account.parent,
        delta=float_above(balance.account.delta),
        as_of=balance.as_of,
        total=_total(balance.account),
        limit_unit=limit_unit(balance.account),
        limit_in_words=limit_in_words(balance.account),
    )


def _total(account: model.Account) -> Spend | None:
    return spend_below(account.share.total) if account.share else None
