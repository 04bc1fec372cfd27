"""From random bits to exact distributions. Noise is never computed as float(count) + noise.

`bits` draws uniform words. `distributions` turns them into exponential variates, known up to an interval, runs the
Gumbel race and draws discrete noise; `rounded` and `correlated` draw Gaussian noise. Comparisons use fast floating
point with a rigorous error bound, and where that is not conclusive, more bits and exact intervals: the results have
exactly the documented distribution.
"""

from discreet.noise.bits import Bits, Encodable, KeyedBits, SystemBits, encode
from discreet.noise.correlated import CorrelatedGaussians
from discreet.noise.distributions import DiscreteGaussian, DiscreteLaplace, Noise, Race, Rival
from discreet.noise.rounded import RoundedGaussians, rounded_gaussian

__all__ = [
    "Bits",
    "CorrelatedGaussians",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "Encodable",
    "KeyedBits",
    "Noise",
    "Race",
    "Rival",
    "RoundedGaussians",
    "SystemBits",
    "encode",
    "rounded_gaussian",
]
