"""All experiments, in the order of the report. A new one: a file with an EXPERIMENT, and its line here."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from papers.experiment import Experiment

_ALL: tuple[Experiment, ...] = ()

EXPERIMENTS: dict[str, Experiment] = {experiment.name: experiment for experiment in _ALL}
