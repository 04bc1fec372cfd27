"""All experiments, in the order of the report. To add one, write a file with an EXPERIMENT and list it here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from papers.experiments import (
    dr19_figure_1,
    dr19_lemma_3_1,
    dr19_pay_what_you_get,
    linkedin_figure_3,
    linkedin_figure_4,
    linkedin_figure_5,
    linkedin_section_8_3,
    linkedin_table_2,
    parameters_accuracy,
    parameters_bounds,
    pcr_figures,
    pcr_table_1,
    ts_figure_1,
    ts_table_1,
    ts_tables_2_3,
)

if TYPE_CHECKING:
    from papers.experiment import Experiment

_ALL: tuple[Experiment, ...] = (
    dr19_figure_1.EXPERIMENT,
    dr19_lemma_3_1.EXPERIMENT,
    dr19_pay_what_you_get.EXPERIMENT,
    linkedin_figure_3.EXPERIMENT,
    linkedin_figure_4.EXPERIMENT,
    linkedin_figure_5.EXPERIMENT,
    linkedin_section_8_3.EXPERIMENT,
    linkedin_table_2.EXPERIMENT,
    pcr_table_1.EXPERIMENT,
    *pcr_figures.FIGURES,
    ts_table_1.EXPERIMENT,
    ts_tables_2_3.EXPERIMENT,
    ts_figure_1.EXPERIMENT,
    parameters_bounds.EXPERIMENT,
    parameters_accuracy.EXPERIMENT,
)

EXPERIMENTS: dict[str, Experiment] = {experiment.name: experiment for experiment in _ALL}
