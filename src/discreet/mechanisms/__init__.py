"""Private top-k and counts: pure functions of an exact head, parameters and bits. One mechanism a file.

Which mechanism answers is decided by what is declared (LinkedIn 2021, Table 1):

| | groups per user declared | not declared |
| --- | --- | --- |
| known domain | KnownLap | KnownGumb (top k), KnownLap with Delta = the domain (all counts) |
| unknown domain | UnkLap | UnkGumb (top k), PCR (all counts) |

TopStable answers when it is asked for by name. `summing` adds sums and averages to what KnownLap, KnownGumb, UnkLap and
UnkGumb return. To add a mechanism: a file, a line in `MECHANISMS`, a test case, a page.
"""

from __future__ import annotations

from discreet.mechanisms.base import Expectation, Magnitude, Mechanism, NoiseName, Request
from discreet.mechanisms.count_release import CountRelease
from discreet.mechanisms.known_gumbel import KnownGumbel
from discreet.mechanisms.known_laplace import KnownLaplace
from discreet.mechanisms.sums import summing
from discreet.mechanisms.top_stable import TopStable
from discreet.mechanisms.unknown_gumbel import UnknownGumbel
from discreet.mechanisms.unknown_laplace import UnknownLaplace

MECHANISMS: dict[str, type[Mechanism]] = {
    mechanism.name: mechanism
    for mechanism in (KnownLaplace, KnownGumbel, UnknownLaplace, UnknownGumbel, TopStable, CountRelease)
}

__all__ = [
    "MECHANISMS",
    "CountRelease",
    "Expectation",
    "KnownGumbel",
    "KnownLaplace",
    "Magnitude",
    "Mechanism",
    "NoiseName",
    "Request",
    "TopStable",
    "UnknownGumbel",
    "UnknownLaplace",
    "choose",
    "summing",
]


def choose(request: Request) -> type[Mechanism]:
    """Return the mechanism that the table above names for *request*, not yet summing anything: see `summing`."""
    bounded = request.sensitivity.groups_per_user is not None
    if request.known_domain:
        return KnownLaplace if bounded or request.k is None else KnownGumbel
    if bounded:
        return UnknownLaplace
    return CountRelease if request.k is None else UnknownGumbel
