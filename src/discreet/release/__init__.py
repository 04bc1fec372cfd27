"""The main path: `answer` runs a plan, `Release` is what comes out of it."""

from discreet.release.answer import answer
from discreet.release.key import NoiseKey
from discreet.release.result import Release

__all__ = ["NoiseKey", "Release", "answer"]
