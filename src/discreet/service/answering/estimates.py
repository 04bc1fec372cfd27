"""Estimates: the worst-case cost of a query, its expected errors, and how many such queries a budget allows."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from discreet.accounting.convert import Guarantee
from discreet.budget.manager import Report
from discreet.errors import InputError
from discreet.query.planning import Plan
from discreet.release.result import privacy_to_dict
from discreet.values import Cost, float_above
from discreet.wire import document
from discreet.wire.queries import BudgetPart, Daily, Estimate, Expected, Fit, Privacy, spend_above, spend_below

_DAILY = 28
"""The daily queries of four weeks."""


def estimate_of(
    plan: Plan, dataset: str, version: str | None, path: Sequence[Report], *, paid: bool, by_day: bool = False
) -> Estimate:
    """Return the worst-case cost of a query, its expected errors, and whether the cost fits the budget.

    Args:
        version: the current version of the data, from which noise is derived; None if unknown.
        path: reports of the account and its parents.
        paid: True if the account has already paid for the answer.
        by_day: True if the query groups by the days of a column.
    """
    daily = None
    if by_day and not paid:
        with contextlib.suppress(InputError):  # too small, or a price per unit
            one = plan.one_of(_DAILY)
            options = one.query.options
            daily = Daily(
                releases=_DAILY, epsilon=options.epsilon, delta=float_above(options.delta), expected=Expected.of(one)
            )
    worst = plan.worst_cost
    units = path[0].balance.account.units
    worst_units = None if units is None else units.rounded_up(worst)
    fits = []
    for balance in (report.balance for report in path):
        rest = balance.remaining
        after = Cost(max(rest.rho - worst.rho, Fraction(0)), max(rest.delta - worst.delta, Fraction(0)))
        fits.append(
            Fit(
                account=balance.account.id,
                fits=paid or balance.admits(worst),
                left=spend_below(rest),
                left_after=spend_below(rest if paid else after),
            )
        )
    left, runs_out = (None, None) if paid else queries_left(worst, path)
    return Estimate(
        dataset=dataset,
        data_version=version,
        question=document.question_of(plan.query, dataset),
        mechanism=plan.mechanism.name,
        worst_cost=spend_above(worst),
        information=None if worst_units is None else worst_units.information,
        calls=None if worst_units is None else worst_units.calls,
        privacy=privacy_of(replace(plan.guarantee, computational=version is not None)),
        expected=Expected.of(plan),
        daily=daily,
        paid=paid,
        fits=all(fit.fits for fit in fits),
        accounts=fits,
        queries_left=left,
        runs_out=runs_out,
        notes=[note for note in (*plan.notes, plan.query.rows_note, plan.missed) if note is not None],
    )


def queries_left(worst: Cost, path: Sequence[Report]) -> tuple[int | None, BudgetPart | None]:
    """Return the number of queries of cost *worst* that all enforced accounts can pay now, and what runs out first.

    Both are None without limit.
    """
    fits: list[tuple[Fraction, BudgetPart]] = []
    for balance in (report.balance for report in path if report.balance.account.enforced):
        remaining = balance.remaining
        fits += [(remaining.rho / worst.rho, "rho")] if worst.rho else []
        fits += [(remaining.delta / worst.delta, "delta")] if worst.delta else []
    if not fits:
        return None, None
    number, part = min(fits, key=lambda part_: part_[0])
    return max(int(number), 0), part


def privacy_of(guarantee: Guarantee) -> Privacy:
    """Return a guarantee as a model of the API."""
    return Privacy.model_validate(privacy_to_dict(guarantee))
