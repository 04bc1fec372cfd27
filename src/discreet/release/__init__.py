"""Run plans (`answer`) and convert their results (`Release`)."""

from discreet.release.answer import answer
from discreet.release.keys import NoiseKey
from discreet.release.result import Release

__all__ = ["NoiseKey", "Release", "answer"]
