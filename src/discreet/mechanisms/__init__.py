"""Private top-k and counts: pure functions of exact data, parameters and bits. One file for each mechanism.

`summing` adds sums and averages to KnownLap, KnownGumb, UnkLap and UnkGumb. A new mechanism needs a module, a line in
`MECHANISMS`, a test case and a page. `discreet.query.planning.choose` returns the default mechanism of a query.
"""

from __future__ import annotations

from discreet.mechanisms.auto import Auto
from discreet.mechanisms.base import Expectation, Likely, Mechanism, NoiseName, Request, check_bounds
from discreet.mechanisms.count_release import CountRelease
from discreet.mechanisms.each import Each, EachAuto
from discreet.mechanisms.known_auto import KnownAuto
from discreet.mechanisms.known_gumbel import KnownGumbel
from discreet.mechanisms.known_laplace import KnownLaplace
from discreet.mechanisms.select_verify import SelectVerify
from discreet.mechanisms.sums import summing
from discreet.mechanisms.top_stable import TopStable
from discreet.mechanisms.two_round import TwoRound
from discreet.mechanisms.unknown_gumbel import UnknownGumbel
from discreet.mechanisms.unknown_laplace import UnknownLaplace

MECHANISMS: dict[str, type[Mechanism]] = {
    mechanism.name: mechanism
    for mechanism in (
        KnownLaplace,
        KnownGumbel,
        KnownAuto,
        UnknownLaplace,
        UnknownGumbel,
        TopStable,
        CountRelease,
        SelectVerify,
        TwoRound,
        Auto,
    )
}

PAIR_MECHANISMS: tuple[type[Mechanism], ...] = (TwoRound, Auto, KnownAuto)
"""The mechanisms that take `HeadAndPairs`, `SegmentedPairs` for `EachAuto`, or `ListedPairs` of a known domain; all
others read an `ExactHead`."""

__all__ = [
    "MECHANISMS",
    "PAIR_MECHANISMS",
    "Auto",
    "CountRelease",
    "Each",
    "EachAuto",
    "Expectation",
    "KnownAuto",
    "KnownGumbel",
    "KnownLaplace",
    "Likely",
    "Mechanism",
    "NoiseName",
    "Request",
    "SelectVerify",
    "TopStable",
    "TwoRound",
    "UnknownGumbel",
    "UnknownLaplace",
    "check_bounds",
    "summing",
]
