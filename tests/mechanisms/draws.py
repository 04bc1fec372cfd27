"""Records of all that a release draws, from the functions of `discreet.noise`, which keep drawing as they do."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest

from discreet.mechanisms import anchored, select_verify, two_round
from discreet.noise import DiscreteGaussian, DiscreteLaplace, KeyedBits, Race, RoundedGaussians, rounded_gaussian

if TYPE_CHECKING:
    from numpy.typing import NDArray

SECRET = b"a secret for all that is drawn.."


class Added(NamedTuple):
    """Noise that is added to a vector: the variance of each value (Gaussian), or twice its squared scale (Laplace).

    So a value that one user moves by s costs s^2 / 2 variance of Gaussian noise, and s^2 / variance of Laplace noise.
    """

    label: str
    kind: str
    variances: list[Fraction]
    values: NDArray[np.int64]

    def rho(self, moved: int = 1) -> Fraction:
        """Return the zCDP cost if one user moves all values by *moved*."""
        factor = Fraction(1, 2) if self.kind == "gaussian" else Fraction(1)
        return sum((moved**2 * factor / variance for variance in self.variances), Fraction(0))


class Raced(NamedTuple):
    """A race and its result."""

    label: str
    race: Race
    order: NDArray[np.int64]
    reached: bool


class RecordedBits(KeyedBits):
    """Bits that record their labels."""

    def __init__(self, run: int) -> None:
        super().__init__(SECRET, run)
        self.labels: list[str] = []

    def uint64(self, label: str, n: int, start: int = 0) -> NDArray[np.uint64]:
        """Draw, and record the label."""
        self.labels.append(label)
        return super().uint64(label, n, start)


@dataclass
class Draws:
    """The draws of one release, by label."""

    added: dict[str, Added] = field(default_factory=dict)
    raced: dict[str, Raced] = field(default_factory=dict)

    def starting(self, prefix: str) -> list[Added]:
        """Return the noise whose labels start with *prefix*, in order."""
        return [draw for label, draw in self.added.items() if label.startswith(prefix)]


def release(mechanism, source, run=0):
    """Return the outcome of a release, and its draws, without which no bits were drawn."""
    draws, bits = Draws(), RecordedBits(run)
    with pytest.MonkeyPatch.context() as patch:
        for kind, name in ((DiscreteGaussian, "gaussian"), (DiscreteLaplace, "laplace")):
            patch.setattr(kind, "draw", _recorded(kind.draw, name, draws))
        for module in (two_round, select_verify, anchored):
            patch.setattr(module, "rounded_gaussian", _recorded_rounded(draws))
        patch.setattr(two_round, "RoundedGaussians", _recorded_in_turn(draws))
        patch.setattr(Race, "run", _recorded_race(Race.run, draws))
        outcome = mechanism.release(source, bits)
    known = [*draws.added, *draws.raced]
    labels = [label.rpartition(": ")[2] for label in bits.labels]  # without the number of `PrefixedBits`
    assert all(any(f"{label}/".startswith(f"{start}/") for start in known) for label in labels)
    return outcome, draws


def _recorded(draw, name, draws):
    def recorded(self, bits, label, n, *first):
        values = draw(self, bits, label, n, *first)
        variance = self.variance if name == "gaussian" else 2 * self.scale**2
        draws.added[label] = Added(label, name, [variance] * n, values)
        return values

    return recorded


def _recorded_rounded(draws):
    def recorded(bits, label, numerator, precisions):
        values = rounded_gaussian(bits, label, numerator, precisions)
        variances = [Fraction(numerator, precision) for precision in precisions.tolist()]
        draws.added[label] = Added(label, "gaussian", variances, values)
        return values

    return recorded


def _recorded_in_turn(draws):
    class Recorded(RoundedGaussians):
        def __init__(self, bits, label, numerator, n):
            super().__init__(bits, label, numerator, n)
            draws.added[label] = Added(label, "gaussian", [], np.zeros(0, dtype=np.int64))

        def draw(self, precisions):
            values, (label, kind, drawn, before) = super().draw(precisions), draws.added[self._label]
            variances = [Fraction(self._numerator, precision) for precision in precisions.tolist()]
            draws.added[label] = Added(label, kind, drawn + variances, np.append(before, values))
            return values

    return Recorded


def _recorded_race(run, draws):
    def recorded(self, bits, label, limit, *rest):
        order, reached = run(self, bits, label, limit, *rest)
        draws.raced[label] = Raced(label, self, order, reached)
        return order, reached

    return recorded


class Coins:
    """Bits of which each word is *word*."""

    def __init__(self, word):
        self.word = word

    def uint64(self, _label, n):
        """Return *n* words, as `discreet.noise.Bits` does."""
        return np.full(n, self.word, dtype=np.uint64)
