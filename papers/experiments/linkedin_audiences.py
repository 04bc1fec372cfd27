"""Audiences: random subsets of a table's users, in place of analysts' filters, for experiments with many queries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from discreet.values import ExactHead

if TYPE_CHECKING:
    from papers.experiment import Row, Setting
    from papers.user_items import UserItems

MAX_DEPTH = 5_000
"""Items below this rank of the whole table are left out of every audience; no head here reaches so far."""


def tables(setting: Setting) -> list[Row]:
    """Return the cells of the made-up table of articles, and of the real check-ins if they are there."""
    found: list[Row] = [{"table": "linkedin-articles", "made_up": True}]
    if setting.tables.has("gowalla") and not setting.smoke:
        found.append({"table": "gowalla", "made_up": False})
    return found


def head_of(table: UserItems, limit: int) -> ExactHead:
    """Return the head of the whole table."""
    return ExactHead(table.head[: limit + 1], limit)


def audience(table: UserItems, share: float, limit: int, rng: np.random.Generator) -> ExactHead:
    """Return the head of a random audience, to which each user of an item belongs with probability *share*.

    Which users items have in common is ignored; the counts alone are right.
    """
    counts = np.sort(rng.binomial(table.head[:MAX_DEPTH], share))[::-1]
    return ExactHead(counts[: limit + 1].astype(np.int64), limit)
