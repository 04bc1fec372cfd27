"""THE MAIN PATH. A question walks down this stair, never up: planned, reserved, fetched, noised, settled, shown.

Read this file first. Everything above it prepares a plan, everything below does one of these steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from discreet.budget import Budget
from discreet.errors import EngineUnreachable, InputError
from discreet.release.result import Release

if TYPE_CHECKING:
    from collections.abc import Callable
    from fractions import Fraction

    from discreet.engines.base import Engine
    from discreet.noise import Bits
    from discreet.query.plan import Plan


def delta_of(delta: float | str | Fraction | None, budget: Budget | None) -> float | str | Fraction:
    """A question's delta if nobody says it: 1e-8, or so little of a budget's that many questions fit.

    Raises:
        InputError: *budget* is none.
    """
    if not isinstance(budget, Budget | None):
        raise InputError("a budget is a discreet.Budget")
    if delta is not None:
        return delta
    return "1e-8" if budget is None else budget.delta / 100


def answer(
    plan: Plan,
    engine: Engine,
    budget: Budget | None,
    bits: Bits,
    *,
    computational: bool = False,
    progress: Callable[[float], None] | None = None,
) -> Release:
    """Answer *plan* from the table of *engine*, at the expense of *budget*.

    Args:
        plan: from `discreet.query.plan.make_plan`.
        engine: where the exact head comes from.
        budget: shared with other questions, or None if the plan's own guarantee is all that is promised.
        bits: source of randomness.
        computational: True if *bits* are keyed, so that the guarantee rests on cryptography.
        progress: called with the share of the counting that is done.

    Raises:
        BudgetExceeded: the worst case does not fit; nothing was read.
        InputError: the engine cannot answer such a question; nothing was charged.
        EngineUnreachable: the engine was not asked; nothing was charged.
        EngineError: counting failed; the worst case is charged, because the rows may have had a say in it.
    """
    hold = budget.reserve(plan.worst_cost) if budget is not None else None
    asked = True
    try:
        bounded = plan.request.groups_per_user is not None
        seed = bits.uint64("groups", 4).tobytes() if bounded else b""
        try:
            head = engine.head(plan.request, seed=seed, progress=progress)
        except (InputError, EngineUnreachable):  # no row has a say in these
            asked = False
            raise
        outcome = plan.mechanism.release(head, bits)
    except BaseException:  # whether it came to this may depend on the data, so a refund would tell about them for free
        if budget is not None and hold is not None:
            (budget.forfeit if asked else budget.void)(hold)
        raise
    if budget is not None and hold is not None:
        budget.settle(hold, outcome.cost)
    return Release.of(plan, head.labels, outcome, computational=computational)
