"""Discreet: differentially private top-k and counts over items nobody listed in advance."""

from discreet._version import __version__

__all__ = ["__version__"]
