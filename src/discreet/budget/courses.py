"""How accounts' buckets go on, by the lines of the ledger that make or alter an account or open its buckets. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from discreet.budget.periods import counts
from discreet.budget.settings import account_of, canonical


@dataclass(slots=True)
class Course:
    """How an account's buckets went.

    Args:
        settings: its settings as text, as they are now.
        bucket: number of the open one.
        end_us: when it ends.
        closed: number and end of those that were closed and still count.
    """

    settings: str
    bucket: int
    end_us: int
    closed: list[tuple[int, int]] = field(default_factory=list)

    @property
    def counting(self) -> list[int]:
        """Numbers of all buckets that count, oldest first."""
        return [number for number, _ in self.closed] + [self.bucket]


def follow(
    courses: dict[str, Course], closed: list[tuple[int, int]], kind: str, time_us: int, detail: dict[str, Any]
) -> None:
    """A bucket opens, or settings change.

    Args:
        courses: of all accounts, where that is put in.
        closed: number and end of all buckets of the account that were ever closed, where the next one is added.
        kind: of the line.
        time_us: of the line.
        detail: what the line says.

    Raises:
        ValueError: that cannot be.
    """
    settings = canonical(detail["account"])
    account = account_of(settings)
    bucket, end_us = int(detail["bucket"]), int(detail["end_us"])
    before = courses.get(account.id)
    if (before is None) != (kind == "create"):
        raise ValueError
    if before is not None and bucket == before.bucket:
        if end_us != before.end_us:
            raise ValueError
        courses[account.id] = Course(settings, bucket, end_us, before.closed)
        return
    if before is not None:
        if bucket != before.bucket + 1:
            raise ValueError
        closed.append((before.bucket, min(before.end_us, time_us + 1)))
    still = [(number, end) for number, end in closed if counts(account.period, end, time_us)]
    courses[account.id] = Course(settings, bucket, end_us, still)
