"""THE MAIN PATH. A question walks down this stair, never up: planned, reserved, fetched, noised, settled, shown.

Read this file first. Everything above it prepares a plan, everything below does one of these steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from discreet.release.result import Release

if TYPE_CHECKING:
    from collections.abc import Callable

    from discreet.budget import Budget
    from discreet.engines.base import Engine
    from discreet.noise import Bits
    from discreet.query.plan import Plan


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
        EngineError: counting failed; nothing was charged.
        InputError: the data is not what the question takes it for; nothing was charged.
    """
    hold = budget.reserve(plan.worst_cost) if budget is not None else None
    try:
        bounded = plan.request.groups_per_user is not None
        seed = bits.uint64("groups", 4).tobytes() if bounded else b""
        head = engine.head(plan.request, seed=seed, progress=progress)
    except BaseException:
        if budget is not None and hold is not None:
            budget.void(hold)
        raise
    try:
        outcome = plan.mechanism.release(head, bits)
    except BaseException:
        if budget is not None and hold is not None:
            budget.forfeit(hold)
        raise
    if budget is not None and hold is not None:
        budget.settle(hold, outcome.cost)
    return Release.of(plan, head.labels, outcome, computational=computational)
