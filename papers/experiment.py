"""The parts of an experiment: independent cells of work, a figure and a text. Each experiment has its own file."""

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
    """The tables of a run, and whether it is a smoke run.

    Args:
        tables: the tables to run on.
        smoke: True for a quick check that the experiment works: few cells, few trials.
    """

    tables: Tables
    smoke: bool = False

    def table(self, cell: Row) -> UserItems:
        """Return the table named by *cell*["table"]: made up if *cell*["made_up"] is true, otherwise real."""
        name = str(cell["table"])
        return self.tables.made_up(name) if cell["made_up"] else self.tables.real(name)


@dataclass(frozen=True)
class Experiment:
    """An experiment that reproduces one figure or table of a paper.

    Args:
        name: for file names: "linkedin-figure-3".
        paper: a key of `papers.report.PAPERS`.
        title: the heading of its section.
        source: section and figure of the paper.
        cells: returns the independent pieces of work, each a small dict of plain values that determines its result.
        measure: returns the rows of one cell. All randomness comes from `trial_bits` or from seeds made of the cell.
        draw: returns the figure of all rows.
        describe: returns the text: what the figure shows, where and why it differs from the paper. Its numbers come
            from the rows.
    """

    name: str
    paper: str
    title: str
    source: str
    cells: Callable[[Setting], Sequence[Row]]
    measure: Callable[[Setting, Row], list[Row]]
    draw: Callable[[Sequence[Row]], Figure]
    describe: Callable[[Sequence[Row]], str]


def trial_bits(experiment: str, cell: Row, trial: int) -> KeyedBits:
    """Return the random bits of one trial, the same in every run. The key is public; no real release may use it."""
    return KeyedBits(b"a public key for experiments that anybody may repeat", (experiment, cell_key(cell), trial))


def trial_seed(experiment: str, cell: Row, trial: int = 0) -> int:
    """Return a seed for numpy, for baselines that need no exact noise."""
    return int.from_bytes(hashlib.sha256(f"{experiment} {cell_key(cell)} {trial}".encode()).digest()[:8], "big")


def cell_key(cell: Row) -> str:
    """Serialize a cell as canonical JSON, for seeds and file names."""
    return json.dumps(cell, sort_keys=True)
