"""Rigorous enclosures of logarithms, as exact fractions.

`decimal` rounds ln correctly to any number of digits, so the true value lies between the two neighbours of what it
returns. Used only where 64 bits could not decide: rarely, so clarity beats speed here.
"""

from __future__ import annotations

import decimal
from fractions import Fraction


def log_bounds(value: Fraction, digits: int) -> tuple[Fraction, Fraction]:
    """Enclose ln(*value*): two fractions, at most about 4 * 10**-*digits* (relative) apart, with ln(value) between.

    Args:
        value: above 0.
        digits: significant decimal digits to work with.
    """
    # Next to 1 the logarithm may round to 0, and what is next to 0 must not have a billion digits.
    down = decimal.Context(digits, decimal.ROUND_FLOOR, -8 * digits, decimal.MAX_EMAX)
    up = decimal.Context(digits, decimal.ROUND_CEILING, -8 * digits, decimal.MAX_EMAX)
    numerator, denominator = decimal.Decimal(value.numerator), decimal.Decimal(value.denominator)
    low = down.divide(numerator, denominator).ln(down).next_minus(down)
    high = up.divide(numerator, denominator).ln(up).next_plus(up)
    return Fraction(low), Fraction(high)
