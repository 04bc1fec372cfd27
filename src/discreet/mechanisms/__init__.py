"""Private top-k and counts: pure functions of exact data, parameters and bits. One mechanism a file.

Which mechanism answers is decided by what is declared (LinkedIn 2021, Table 1):

| | groups per user declared | not declared |
| --- | --- | --- |
| known domain | KnownLap | KnownGumb (top k), KnownLap with Delta = the domain (all counts) |
| unknown domain | UnkLap | UnkGumb (small top k), Auto (counts of a larger top k), Auto or SelectVerify (all counts) |

Auto needs user-item pairs and counts distinct users; SelectVerify needs a head only. UnkGumb answers any top k on
engines without pairs, without counts, of rows or sums, with Laplace noise, or priced per unit. TopStable, TwoRound and
PCR answer when they are asked for by name. `summing` adds sums and averages to what KnownLap, KnownGumb, UnkLap and
UnkGumb return. To add a mechanism: a file, a line in `MECHANISMS`, a test case, a page.
"""

from __future__ import annotations

from discreet.mechanisms.auto import Auto
from discreet.mechanisms.base import Expectation, Magnitude, Mechanism, NoiseName, PrivateMagnitude, Request
from discreet.mechanisms.count_release import CountRelease
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
        UnknownLaplace,
        UnknownGumbel,
        TopStable,
        CountRelease,
        SelectVerify,
        TwoRound,
        Auto,
    )
}

PAIR_MECHANISMS: tuple[type[Mechanism], ...] = (TwoRound, Auto)
"""The mechanisms that query `UserItemPairs`; all others are given an `ExactHead`."""

__all__ = [
    "MECHANISMS",
    "PAIR_MECHANISMS",
    "Auto",
    "CountRelease",
    "Expectation",
    "KnownGumbel",
    "KnownLaplace",
    "Magnitude",
    "Mechanism",
    "NoiseName",
    "PrivateMagnitude",
    "Request",
    "SelectVerify",
    "TopStable",
    "TwoRound",
    "UnknownGumbel",
    "UnknownLaplace",
    "choose",
    "summing",
]


AUTO_FROM_K = 6
"""For a smaller k, a race alone is best: choosing costs more than it brings (docs/mechanisms/auto.md)."""


def choose(request: Request, *, has_pairs: bool, per_unit: bool = False) -> type[Mechanism]:
    """Return the mechanism that the table above names for *request*, not yet summing anything: see `summing`.

    Args:
        has_pairs: True if the engine has pair queries.
        per_unit: True if the request is priced in units: what is not returned shall not be charged then.
    """
    bounded = request.sensitivity.groups_per_user is not None
    if request.known_domain:
        return KnownLaplace if bounded or request.k is None else KnownGumbel
    if bounded:
        return UnknownLaplace
    distinct = request.sensitivity.rows_per_group == 1
    paired = has_pairs and distinct and not per_unit
    if request.k is None:
        return Auto if paired else SelectVerify
    counted = request.counts and request.noise == "gaussian" and request.summed is None
    return Auto if paired and counted and request.k >= AUTO_FROM_K else UnknownGumbel
