"""From random bits to exact distributions. Noise is never computed as float(count) + noise.

`bits` draws uniform words, `gumbel` reads them as exponential variates known to an interval and runs the race,
`discrete` draws noise. Every decision is taken in fast floating point with a rigorous error bound, and where the
bound cannot decide, with more bits and exact intervals: the result has exactly the distribution it claims.
"""

from discreet.noise.bits import Bits, Encodable, KeyedBits, SystemBits, encode
from discreet.noise.discrete import DiscreteGaussian, DiscreteLaplace, Noise
from discreet.noise.gumbel import Race, Rival
from discreet.noise.rounded import rounded_gaussian

__all__ = [
    "Bits",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "Encodable",
    "KeyedBits",
    "Noise",
    "Race",
    "Rival",
    "SystemBits",
    "encode",
    "rounded_gaussian",
]
