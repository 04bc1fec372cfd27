"""The largest parameters that a limit allows. Rounds down, so that costs computed from the results fit the limit."""

from __future__ import annotations

import math
from fractions import Fraction

from discreet.accounting.convert import rho_tight
from discreet.errors import InputError
from discreet.values import Cost, float_below

PRECISION_BITS = 28
"""Parameters are rounded to so many significant bits: coarser than what two machines' logarithms differ by, so that
equal questions have equal parameters everywhere, and too fine for anybody to notice (4e-9)."""


def limit_for(epsilon: float, delta: Fraction, lossless: bool = False) -> Cost:
    """Return the (rho, delta) that may be spent under an (epsilon, delta) guarantee.

    Half of delta pays for the conversion, the other half is mass that mechanisms may lose; a mechanism that loses none
    (*lossless*) leaves all of it to the conversion.

    Args:
        epsilon: above 0.
        delta: above 0, below 1.
        lossless: True if no mass will be lost.

    Raises:
        InputError: a value outside its range.
    """
    if not 0 < delta < 1:
        raise InputError(f"delta must be above 0 and below 1, not {delta}")
    lost = Fraction(0) if lossless else delta / 2
    return Cost.at_most(floor_bits(Fraction(rho_tight(epsilon, float_below(delta - lost)))), lost)


def epsilon_per_unit(rho: Fraction, units: int | Fraction) -> Fraction:
    """Return the largest epsilon (to 28 bits) with units * epsilon^2 / 8 <= rho."""
    return floor_sqrt(8 * rho / units)


def floor_bits(value: Fraction, bits: int = PRECISION_BITS) -> Fraction:
    """*value* > 0, rounded down to *bits* significant bits."""
    shift = bits - (value.numerator.bit_length() - value.denominator.bit_length())
    return math.floor(value * Fraction(2) ** shift) / Fraction(2) ** shift


def floor_sqrt(value: Fraction, bits: int = PRECISION_BITS) -> Fraction:
    """Return the square root of *value*, rounded down to a dyadic fraction of about *bits* bits; 0 for 0."""
    if value <= 0:
        return Fraction(0)
    magnitude = (value.numerator.bit_length() - value.denominator.bit_length()) // 2
    shift = bits - magnitude
    scaled = value * Fraction(4) ** shift
    return Fraction(math.isqrt(math.floor(scaled))) / Fraction(2) ** shift


def ceil_sqrt(value: Fraction, bits: int = PRECISION_BITS) -> Fraction:
    """Return the square root of *value* > 0, rounded up to a fraction of about *bits* bits."""
    return 1 / floor_sqrt(1 / value, bits)
