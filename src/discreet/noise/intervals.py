"""Rigorous enclosures of logarithms, as exact fractions.

`decimal` rounds ln correctly to any number of digits, so the true value lies between the two neighbours of what it
returns. Used only where 64 bits could not decide: rarely, so clarity beats speed here.
"""

from __future__ import annotations

import decimal
from fractions import Fraction


def log_bounds(value: Fraction, digits: int) -> tuple[Fraction, Fraction]:
    """Enclose ln(*value*): two fractions with it between, apart by less than 10**(2 - *digits*) (1 + |ln(value)|).

    Args:
        value: above 0.
        digits: significant decimal digits to work with.
    """
    down = decimal.Context(digits, decimal.ROUND_FLOOR, decimal.MIN_EMIN, decimal.MAX_EMAX)
    up = decimal.Context(digits, decimal.ROUND_CEILING, decimal.MIN_EMIN, decimal.MAX_EMAX)
    # Next to 1 the logarithm may round to 0, and what is next to 0 must not have a billion digits.
    beside = decimal.Context(digits, Emin=-8 * digits, Emax=decimal.MAX_EMAX)
    numerator, denominator = decimal.Decimal(value.numerator), decimal.Decimal(value.denominator)
    low = down.divide(numerator, denominator).ln(beside).next_minus(beside)
    high = up.divide(numerator, denominator).ln(beside).next_plus(beside)
    return Fraction(low), Fraction(high)
