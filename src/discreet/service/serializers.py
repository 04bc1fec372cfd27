"""Convert budgets, plans, datasets and accounts to models of the API, and back."""

from __future__ import annotations

import datetime
import json
import math
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Literal, TypeAlias

from discreet.accounting.convert import limit_for
from discreet.budget import model
from discreet.budget.ledger import entry_of
from discreet.budget.model import LINKEDIN, LINKEDIN_CONVERSION, Calendar, Forever, Sliding
from discreet.errors import InputError
from discreet.release.result import privacy_to_dict
from discreet.service.problems import NotAcceptable
from discreet.values import Cost, exact, float_above
from discreet.wire import document
from discreet.wire.administration import AccountDetail, AccountSummary, Change, LedgerLine
from discreet.wire.problems import iso_time, spend_above, spend_below
from discreet.wire.queries import (
    BudgetReport,
    ColumnDetail,
    DatasetDetail,
    Estimate,
    Expected,
    Fit,
    HistoryEntry,
    ParentBudget,
    Period,
    Privacy,
    SumBounds,
    UnitBudget,
    Units,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from discreet.accounting.convert import Guarantee
    from discreet.budget.ledger import Line
    from discreet.budget.manager import Report
    from discreet.budget.model import Balance, PaidRelease
    from discreet.budget.model import Period as AccountPeriod
    from discreet.catalog.model import Column, Dataset, Label
    from discreet.query.planning import Plan
    from discreet.service.settings import Limits
    from discreet.wire.administration import Limit, Payment, PeriodRequest
    from discreet.wire.problems import Spend


LABELS_MOST = 1_000
"""The maximum of labels of a known domain that are listed with their column."""

_SECONDS = {"day": 86_400, "week": 604_800, "month": 2_678_400}


def budget_report(report: Report, parents: Sequence[Report], default_cost: Cost | None = None) -> BudgetReport:
    """Return the balance of an account, with the limits and remaining budgets of its parents.

    Args:
        default_cost: the worst-case cost of a query at the default price; None to omit the number of queries left.
    """
    balance = report.balance
    return BudgetReport(
        account=balance.account.id,
        mode=balance.account.mode,
        period=period_of(balance.account.period),
        limit=spend_below(balance.account.limit),
        used=spend_above(balance.used),
        held=spend_above(balance.held),
        forfeited=spend_above(balance.forfeited),
        left=spend_below(balance.remaining),
        epsilon_spent=report.epsilon_spent,
        epsilon_left=report.epsilon_left,
        conversion_delta=report.conversion,
        units=_units(balance),
        resets_at=_resets_at(balance),
        suspended_until=None if balance.suspended_until_us is None else iso_time(balance.suspended_until_us),
        guarantee=None if report.guarantee is None else _privacy(report.guarantee),
        queries_left=None if default_cost is None else _queries_left(default_cost, (report, *parents)),
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
    )


def estimate_of(plan: Plan, dataset: str, version: str | None, path: Sequence[Report], *, paid: bool) -> Estimate:
    """Return the worst-case cost of a query, its expected errors, and whether the cost fits the budget.

    Args:
        version: the current version of the data, from which noise is derived; None if unknown.
        path: reports of the account and its parents.
        paid: True if the account has already paid for the answer.
    """
    worst, expected, units = plan.worst_cost, plan.expectation, path[0].balance.account.units
    information, calls = (None, None) if units is None else units.rounded_up(worst)
    summed = plan.query.request.summed
    fits = [_fit(report.balance, worst, paid=paid) for report in path]
    return Estimate(
        dataset=dataset,
        question=document.question_of(plan.query, dataset),
        mechanism=plan.mechanism.name,
        worst_cost=spend_above(worst),
        information=information,
        calls=calls,
        privacy=_privacy(replace(plan.guarantee, computational=version is not None)),
        expected=Expected(
            std_error_least=expected.std_error_least,
            std_error_most=expected.std_error_most,
            smallest_count=expected.smallest_count,
            sum_std_error=None
            if expected.sum_std_error is None
            else expected.sum_std_error / 10 ** (summed.scale if summed else 0),
        ),
        paid=paid,
        fits=all(fit.fits for fit in fits),
        accounts=fits,
        queries_left=None if paid else _queries_left(worst, path),
        notes=list(plan.notes),
    )


def _queries_left(worst: Cost, path: Sequence[Report]) -> int | None:
    """Return the number of queries of cost *worst* that all enforced accounts can pay now, or None without limit."""
    fits: list[int] = []
    for balance in (report.balance for report in path if report.balance.account.enforced):
        parts = ((balance.remaining.rho, worst.rho), (balance.remaining.delta, worst.delta))
        fits += [max(int(rest / cost), 0) for rest, cost in parts if cost > 0]
    return min(fits, default=None)


def dataset_detail(name: str, dataset: Dataset, limits: Limits, version: str | None) -> DatasetDetail:
    """Return the description of a dataset for its analysts.

    Args:
        dataset: without the columns that the caller may not see.
        limits: limits of the service, which apply in addition to those of the dataset.
    """
    return DatasetDetail(
        name=name,
        description=dataset.description,
        user=dataset.user,
        rows=dataset.rows_per_group is not None,
        groups_per_user=dataset.groups_per_user,
        rows_per_group=dataset.rows_per_group,
        missing_labels=dataset.missing_labels,
        k_most=min(dataset.k_most or limits.k_most, limits.k_most),
        head_limit_most=min(dataset.head_limit_most or limits.head_limit_most, limits.head_limit_most),
        retention_days=dataset.retention_days,
        data_version=version,
        columns=[_column(column, about) for column, about in dataset.columns.items()],
    )


def history_entry(paid: PaidRelease) -> HistoryEntry:
    """Return the history entry of a paid release: its question, time and charge, without items."""
    about = document.read(paid.release.result)
    return HistoryEntry(
        id=about["id"],
        dataset=about["dataset"],
        question=about["question"],
        data_version=about["data_version"],
        mechanism=about["mechanism"],
        charged=spend_above(paid.charged),
        time=iso_time(paid.time_us),
    )


def charged_header(cost: Cost) -> str:
    """Return the value of the header Discreet-Charged."""
    spend = spend_above(cost)
    return f"rho={spend.rho!r}, delta={spend.delta!r}"


def budget_headers(balance: Balance) -> tuple[tuple[str, str], ...]:
    """Return the headers with the balance of an account: its mode, and its budget as a rate limit.

    RateLimit-Policy and RateLimit follow draft-ietf-httpapi-ratelimit-headers-11. Their quotas are whole numbers: units
    of an account that has units, otherwise thousandths of rho and 1e-12 of delta; limits and remaining budgets are
    rounded down.
    """
    account, now_us = balance.account, balance.time_us
    window = _window_seconds(account.period)
    reset = None if balance.resets_at_us is None else max(math.ceil((balance.resets_at_us - now_us) / 1_000_000), 0)
    quotas = _quotas(balance)
    policy = ", ".join(f'"{name}";q={most}{_parameter("w", window)}' for name, most, _ in quotas)
    limit = ", ".join(f'"{name}";r={rest}{_parameter("t", reset)}' for name, _, rest in quotas)
    return ("Discreet-Mode", account.mode), ("RateLimit-Policy", policy), ("RateLimit", limit)


def _parameter(name: str, seconds: int | None) -> str:
    return "" if seconds is None else f";{name}={seconds}"


def _quotas(balance: Balance) -> list[tuple[str, int, int]]:
    """Return the name, the limit and the remaining quota of each resource."""
    limit, rest, units = balance.account.limit, balance.remaining, balance.account.units
    if units is None:
        return [
            ("rho", math.floor(limit.rho * 1000), math.floor(rest.rho * 1000)),
            ("delta", math.floor(limit.delta * 10**12), math.floor(rest.delta * 10**12)),
        ]
    most, remaining = units.rounded_down(limit), units.rounded_down(rest)
    return [("information", most[0], remaining[0]), ("calls", most[1], remaining[1])]


def _window_seconds(period: AccountPeriod) -> int | None:
    match period:
        case Sliding(days):
            return days * 86_400
        case Calendar(unit, _):
            return _SECONDS[unit]
    return None


def period_of(period: AccountPeriod) -> Period:
    """Return the budget period of an account as a model of the API."""
    match period:
        case Sliding(days):
            return Period(kind="sliding", days=days)
        case Calendar(unit, zone):
            return Period(kind="calendar", unit=unit, zone=zone)
    return Period(kind="forever")


def _units(balance: Balance) -> Units | None:
    units = balance.account.units
    if units is None:
        return None
    limit, left = units.rounded_down(balance.account.limit), units.rounded_down(balance.remaining)
    spent = units.rounded_up(balance.spent)
    return Units(
        epsilon_per=_decimal(units.epsilon_per),
        delta_per=_decimal(units.delta_per),
        information=UnitBudget(limit=limit[0], spent=spent[0], left=left[0]),
        calls=UnitBudget(limit=limit[1], spent=spent[1], left=left[1]),
    )


def _decimal(value: Fraction) -> str:
    """Return a fraction as text that parses to exactly the same number."""
    return str(float(value)) if Fraction(str(float(value))) == value else str(value)


def _resets_at(balance: Balance) -> str | None:
    return None if balance.resets_at_us is None else iso_time(balance.resets_at_us)


def _privacy(guarantee: Guarantee) -> Privacy:
    return Privacy.model_validate(privacy_to_dict(guarantee))


def _fit(balance: Balance, worst: Cost, *, paid: bool) -> Fit:
    rest = balance.remaining
    after = Cost(max(rest.rho - worst.rho, Fraction(0)), max(rest.delta - worst.delta, Fraction(0)))
    return Fit(
        account=balance.account.id,
        fits=paid or balance.admits(worst),
        left=spend_below(rest),
        left_after=spend_below(rest if paid else after),
    )


def _column(name: str, column: Column) -> ColumnDetail:
    return ColumnDetail(
        name=name,
        type=column.type,
        group=column.group,
        filter=column.filter,
        sum=None
        if column.sum is None
        else SumBounds(low=float(column.sum.low), high=float(column.sum.high), private_bound=column.sum.private_bound),
        known_domain=column.domain is not None,
        groups_per_user=column.groups_per_user,
        labels=_labels(column),
    )


def _labels(column: Column) -> list[str | int | bool] | None:
    if not isinstance(column.domain, tuple) or len(column.domain) > LABELS_MOST:
        return None
    return [_label(label) for label in column.domain]


def _label(label: Label) -> str | int | bool:
    """Return a label in the JSON form that releases use."""
    if isinstance(label, datetime.date):
        return label.isoformat()
    return label if isinstance(label, str | int) else str(label)


def read_limit(body: Limit) -> tuple[Cost, Fraction, model.Units | None]:
    """Return the limit in rho and delta, the delta of the guarantee, and the units, or None without units.

    Raises:
        InputError: a value is outside its range.
    """
    if body.preset is not None:
        return _of_units(LINKEDIN, LINKEDIN_CONVERSION)
    if body.epsilon is not None and body.delta is not None:
        delta = exact(body.delta, "delta")
        return limit_for(body.epsilon, delta), delta, None
    if body.rho is not None and body.lost is not None and body.delta is not None:
        limit = Cost.at_most(exact(body.rho, "rho"), exact(body.lost, "lost"))
        return limit, exact(body.delta, "delta"), None
    units = model.Units(
        exact(body.epsilon_per or 0, "epsilon_per"),
        exact(body.delta_per or 0, "delta_per"),
        body.information or 0,
        body.calls or 0,
    )
    conversion = LINKEDIN_CONVERSION if body.conversion is None else exact(body.conversion, "conversion")
    return _of_units(units, conversion)


def _of_units(units: model.Units, conversion: Fraction) -> tuple[Cost, Fraction, model.Units]:
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
    information, calls = body.information or 0, body.calls or 0
    return information * account.units.epsilon_per**2 / 8, calls * account.units.delta_per


def read_period(body: PeriodRequest) -> model.Period:
    """Parse the period of a request; raise `InputError` if a value is outside its range."""
    if body.days is not None:
        return Sliding(body.days)
    if body.unit is not None:
        return Calendar(body.unit, body.zone or "UTC")
    return Forever()


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


def account_detail(path: Sequence[Report]) -> AccountDetail:
    """Return an account with its whole balance."""
    balance = path[0].balance
    return AccountDetail(
        **budget_report(path[0], path[1:]).model_dump(),
        parent=balance.account.parent,
        delta=float_above(balance.account.delta),
        as_of=balance.as_of,
        total=_total(balance.account),
    )


def _total(account: model.Account) -> Spend | None:
    return spend_below(account.share.total) if account.share else None


def ledger_line_of(line: Line) -> LedgerLine:
    """Return a line of the ledger: its fields, and the text that is hashed.

    Raises:
        LedgerBroken: the line cannot be parsed.
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
        time=iso_time(entry.time_us),
        kind=entry.kind,
        reservation=entry.reservation,
        detail=json.loads(entry.detail),
        changes=changes,
        body=line.body,
        hash=line.hash.hex(),
    )


def _signed(quanta: int, digits: int) -> float:
    return float(quanta / 10**digits)


Form: TypeAlias = Literal["json", "csv", "arrow", "parquet"]
"""A representation of a release."""

MEDIA_TYPES: Mapping[Form, str] = {
    "json": "application/json",
    "csv": "text/csv",
    "arrow": "application/vnd.apache.arrow.stream",
    "parquet": "application/vnd.apache.parquet",
}
"""The media type of each form, in order of preference."""

_CONTENT_TYPES: Mapping[Form, str] = {**MEDIA_TYPES, "csv": "text/csv; charset=utf-8; header=present"}


def negotiate(accept: str | None) -> Form:
    """Return the form that a header Accept prefers.

    Args:
        accept: the value of the header (RFC 9110, section 12.5.1), or None if the request has none.

    Raises:
        NotAcceptable: the header allows none of the forms.
    """
    if accept is None or accept == "*/*" or accept == MEDIA_TYPES["json"]:
        return "json"
    ranges = dict(_parse_media_range(part) for part in accept.split(",") if part.strip())
    weighed = {form: _weight(media, ranges) for form, media in MEDIA_TYPES.items()}
    best = max(weighed, key=lambda form: weighed[form])  # on a tie, the first
    if ranges and not weighed[best]:
        raise NotAcceptable(tuple(MEDIA_TYPES.values()))
    return best


def represent(stored: bytes, form: Form) -> bytes:
    """Convert the stored document of a release to *form*."""
    return stored if form == "json" else document.write_table(document.decode(stored).to_arrow(), form)


def content_headers(form: Form) -> dict[str, str]:
    """Return the content headers of a response in *form*, which depends on the header Accept."""
    return {"Content-Type": _CONTENT_TYPES[form], "Vary": "Accept"}


def _parse_media_range(part: str) -> tuple[str, float]:
    """Return a media range and its weight from 0 to 1; a malformed weight is 0."""
    media, *parameters = (piece.strip() for piece in part.split(";"))
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "q":
            return media.lower(), _parse_weight(value.strip())
    return media.lower(), 1.0


def _parse_weight(text: str) -> float:
    digits = text.replace(".", "", 1)
    return min(float(text), 1.0) if digits.isascii() and digits.isdigit() and len(text) <= 5 else 0.0


def _weight(media: str, ranges: Mapping[str, float]) -> float:
    """Return the weight of *media* in the most specific matching media range, or 0."""
    family = media.partition("/")[0]
    return next((ranges[name] for name in (media, f"{family}/*", "*/*") if name in ranges), 0.0)
