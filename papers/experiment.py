"""What an experiment is: independent cells of work, a picture, and a paragraph. One experiment a file."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from discreet.noise import KeyedBits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.figure import Figure

    from papers.tables import Tables
    from papers.user_items import UserItems

Row: TypeAlias = dict[str, str | int | float | bool | None]
"""One line of an experiment's CSV file; the same keys in all rows of an experiment."""


@dataclass(frozen=True)
class Setting:
    """What a run is given.

    Args:
        tables: where tables come from.
        smoke: True for the least run that shows the experiment works: few cells, few trials.
    """

    tables: Tables
    smoke: bool = False

    def table(self, cell: Row) -> UserItems:
        """The table that *cell* names: its "table", made up if its "made_up" is true."""
        name = str(cell["table"])
        return self.tables.made_up(name) if cell["made_up"] else self.tables.real(name)


@dataclass(frozen=True)
class Experiment:
    """One figure or table of a paper.

    Args:
        name: for files: "linkedin-figure-3".
        paper: whose it is: a key of `papers.report.PAPERS`.
        title: one line for people.
        source: where in the paper.
        cells: the independent pieces of work, each a dict of plain values that says all about it; public and small.
        measure: the rows of one cell. All its randomness comes from `trial_bits` or from seeds made of the cell.
        draw: the picture of all rows.
        say: what the picture shows, where it differs from the paper and why; numbers in it come from the rows.
    """

    name: str
    paper: str
    title: str
    source: str
    cells: Callable[[Setting], Sequence[Row]]
    measure: Callable[[Setting, Row], list[Row]]
    draw: Callable[[Sequence[Row]], Figure]
    say: Callable[[Sequence[Row]], str]


def trial_bits(experiment: str, cell: Row, trial: int) -> KeyedBits:
    """The randomness of one trial: the same in every run. The key is public; no real release may use it."""
    return KeyedBits(b"a public key for experiments that anybody may repeat", (experiment, as_key(cell), trial))


def trial_seed(experiment: str, cell: Row, trial: int = 0) -> int:
    """A seed for numpy, where a baseline is not ours to make exact."""
    return int.from_bytes(hashlib.sha256(f"{experiment} {as_key(cell)} {trial}".encode()).digest()[:8], "big")


def as_key(cell: Row) -> str:
    """A cell as canonical text."""
    return json.dumps(cell, sort_keys=True)
