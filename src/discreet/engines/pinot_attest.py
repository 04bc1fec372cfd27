"""What must hold of a Pinot cluster and a table before its counts are believed.

Some settings of brokers and tables make counts inexact, or cut answers, and nothing in an answer tells so. They are
read from the controller and the broker before every question; one that is not understood is not trusted.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from discreet.engines.pinot_schema import PinotColumn, columns_of
from discreet.errors import EngineError, InexactHead, InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, slots=True)
class Generation:
    """Versions of Pinot whose source was read, and that were held to the tests.

    Args:
        signs: keys of an answer that must be there and false, and what it means if they are not.
        threshold: True if the broker trims above a number of groups that only its settings raise.
        named: True if an answer tells which broker it is of.
        made: where the controller tells of segments, and under which key when each was made.
    """

    signs: Mapping[str, str]
    threshold: bool
    named: bool
    made: tuple[str, str]


_LIMIT = {"numGroupsLimitReached": "Pinot left groups out, because a segment has more than it keeps"}
_LATER = _LIMIT | {
    "partialResult": "Pinot's answer is partial",
    "groupsTrimmed": "Pinot trimmed groups",
    "rlsFiltersApplied": "Pinot filtered rows by the account that asks",
}
_BY_SERVERS = ("metadata", "creationTimeMillis")
_BY_ZOOKEEPER = ("zkmetadata", "segment.creation.time")
GENERATIONS: Mapping[str, Generation] = MappingProxyType(
    {
        "0.11": Generation(MappingProxyType(_LIMIT), threshold=True, named=False, made=_BY_SERVERS),
        "1.4": Generation(MappingProxyType(_LATER), threshold=False, named=True, made=_BY_ZOOKEEPER),
        "1.5": Generation(MappingProxyType(_LATER), threshold=False, named=True, made=_BY_ZOOKEEPER),
    }
)
"""By the first two numbers of the version."""

THRESHOLD_OFF = 1_000_000_000
"""From here on a broker of 0.11 does not trim."""

_CORE = ("pinot-controller", "pinot-distribution", "pinot-core", "pinot-common")
_MUST_BE_OFF = {
    "pinot.broker.use.approximate.function": "makes the broker count approximately",
    "enable.distinct.count.bitmap.override": "makes the broker count hashes of users",
}
_MUST_BE_UNSET = {
    "pinot.broker.query.rewriter.class.names": "makes the broker rewrite questions",
    "pinot.broker.result.rewriter.class.names": "makes the broker rewrite answers",
}


@dataclass(frozen=True, slots=True)
class Attested:
    """What was read about a table and its cluster.

    Args:
        generation: of the cluster's version.
        columns: of the table.
        partitioned: columns that Pinot counts segment by segment, and adds up.
        broker: its name in the cluster, or None if it is not told.
        limit: rows that the broker returns at most, or None.
        segments: of the table, by name.
    """

    generation: Generation
    columns: Mapping[str, PinotColumn]
    partitioned: frozenset[str]
    broker: str | None
    limit: int | None
    segments: frozenset[str]


def attested(controller: Callable[[str], Any], broker: Callable[[str], Any], table: str) -> Attested:
    """Read the settings, and refuse those under which a count may not be exact.

    Args:
        controller: returns what the controller answers at a path.
        broker: likewise.
        table: its name, without the type.

    Raises:
        InputError: there is no such table.
        InexactHead: a setting makes counts inexact, or the version is not known.
        EngineError: the controller or the broker cannot be reached, or is something else.
    """
    try:
        generation = _generation(controller("/version"))
        partitioned = _check_table(controller(f"/tables/{table}"), table)
        columns = columns_of(controller(f"/tables/{table}/schema"), table)
        name, limit = _check_broker(broker("/appconfigs")["pinotConfig"], generation)
        listed = controller(f"/segments/{table}?type=OFFLINE&excludeReplacedSegments=true")
        segments = frozenset(map(str, listed[0]["OFFLINE"]))
    except InputError:  # a ValueError, too
        raise
    except (LookupError, TypeError, ValueError, AttributeError):
        raise EngineError("the controller or the broker of Pinot answered with something else than was asked") from None
    return Attested(generation, columns, partitioned, name, limit, segments)


def _generation(versions: Mapping[str, str]) -> Generation:
    """The generation of all the components that count."""
    found = {".".join(versions[name].split("-")[0].split(".")[:2]) for name in _CORE if name in versions}
    if len(found) != 1 or not found <= GENERATIONS.keys():
        raise InexactHead(
            "this version of Pinot is not known to count exactly; the ones that are known are " + ", ".join(GENERATIONS)
        )
    return GENERATIONS[found.pop()]


def _check_table(configs: Mapping[str, Any], table: str) -> frozenset[str]:
    """Refuse what makes a table's counts inexact; return its columns that are partitioned by segment."""
    if "REALTIME" in configs:
        raise InexactHead(f"table {table!r} takes in rows while it is counted; only offline tables stand still")
    if "OFFLINE" not in configs:
        raise InputError(f"Pinot has no offline table {table!r}")
    config = configs["OFFLINE"]
    query = config.get("query") or {}
    if query.get("useApproximateFunction"):
        raise InexactHead(f"query.useApproximateFunction of table {table!r} makes Pinot count approximately")
    if query.get("expressionOverrideMap"):
        raise InexactHead(f"query.expressionOverrideMap of table {table!r} makes Pinot rewrite questions")
    if (config.get("upsertConfig") or {}).get("mode", "NONE") != "NONE":
        raise InexactHead(f"upsertConfig of table {table!r} makes rows come and go while they are counted")
    return frozenset(
        field["name"]
        for field in config.get("fieldConfigList") or ()
        if _is_true((field.get("properties") or {}).get("isSegmentPartitioned"))
    )


def _check_broker(settings: Mapping[str, Any], generation: Generation) -> tuple[str | None, int | None]:
    """Refuse what makes a broker's counts inexact; return its name, and how many rows it returns at most."""
    # The spellings that Pinot takes for one.
    known = {name.lower().replace("-", "").replace("_", ""): value for name, value in settings.items()}
    for name, effect in _MUST_BE_OFF.items():
        if _is_true(known.get(name)):
            raise InexactHead(f"{name} {effect}; set it to false")
    for name, effect in _MUST_BE_UNSET.items():
        if known.get(name):
            raise InexactHead(f"{name} {effect}; leave it out")
    if generation.threshold and int(known.get("pinot.broker.groupby.trim.threshold", 0)) < THRESHOLD_OFF:
        raise InexactHead(
            "this version of Pinot trims groups at the broker without a word; set pinot.broker.groupby.trim.threshold "
            f"to {THRESHOLD_OFF}"
        )
    limit = known.get("pinot.broker.query.response.limit")
    return known.get("pinot.broker.instance.id"), None if limit is None else int(limit)


def _is_true(value: object) -> bool:
    return str(value).strip().lower() == "true"
