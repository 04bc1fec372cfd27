"""Keys of consistent noise and stored releases, and fingerprints: keyed digests of an engine's results.

Fingerprints detect data that changed without a new version. Keyed noise depends on the query, the mechanism with
every parameter, and a public version of the data.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import hmac
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from discreet.budget.model import Fingerprint
from discreet.engines.base import Reader, arrow_array, typed_domain
from discreet.errors import InexactHead, InputError
from discreet.head_request import HeadRequest, SumBounds
from discreet.mechanisms import Auto, Each, KnownAuto, KnownGumbel, KnownLaplace, Mechanism, TwoRound
from discreet.mechanisms.anchored import SharedNoise
from discreet.mechanisms.sums import ListedSums, RankedSums, difference_noise
from discreet.noise import Encodable, KeyedBits
from discreet.noise.bits import MIN_SECRET_BYTES, encode
from discreet.values import ExactHead, UserItemPairs

if TYPE_CHECKING:
    from discreet.query.planning import Plan

    Ints = NDArray[np.int64]


NAMING = "0.2.0"
"""Part of the names of releases, for ever: up to version 0.2.0 they held the version of the software."""

DRAWING = "2"
"""The order in which mechanisms draw their bits. A change of the order needs another text here, so that no stream of
bits is used in two ways; `tests/test_stored_bytes.py` fails until then."""


@dataclass(frozen=True, slots=True, repr=False)
class NoiseKey:
    """A key for consistent noise: the same query of the same version of the data gets the same answer.

    Args:
        secret: at least 32 random bytes. With it the noise can be removed.
        data_version: a public name of the data and its state that does not depend on its rows, such as the name of a
            table with the number or the time of its ingest. Each change of the data needs a new version, and each
            table its own: equal noise on different data reveals the difference.
    """

    secret: bytes
    data_version: str

    def __post_init__(self) -> None:
        values: tuple[object, object] = (self.secret, self.data_version)
        if not isinstance(values[0], bytes) or len(values[0]) < MIN_SECRET_BYTES:
            raise InputError(f"a noise secret has at least {MIN_SECRET_BYTES} bytes")
        if not isinstance(values[1], str) or not values[1]:
            raise InputError("a noise key needs a data version: text that names the data and its state")

    def bits(self, plan: Plan, table: str) -> KeyedBits:
        """Return the keyed randomness for *plan* on the table with the name *table*."""
        return KeyedBits(self.secret, release_context(plan, table, self.data_version, drawing(plan.mechanism)))

    def __repr__(self) -> str:
        return f"NoiseKey(..., data_version={self.data_version!r})"


def release_context(plan: Plan, table: str, data_version: str, edition: str = NAMING) -> Encodable:
    """Return all inputs of an answer except the data: with `NAMING` for its name, with `DRAWING` for its bits.

    So an answer keeps its name when the order of drawing changes: a stored one is returned, and not drawn again.
    """
    request = plan.query.request
    return (
        "discreet-release-1",
        edition,
        table,
        data_version,
        request.user,
        request.items,
        plan.query.k,
        encodable(request.where),
        encodable(plan.query.sensitivity),
        request.keep_missing,
        encodable(request.summed),
        None if request.domain is None else encodable(request.domain.to_pylist()),
        plan.mechanism.name,
        encodable(plan.mechanism),
        *map(encodable, request.derived),
        *(("each", request.each, encodable(request.segments.to_pylist())) if request.each else ()),
        *(("arrivals", encodable(request.arrivals)) if request.arrivals else ()),
    )


def drawing(mechanism: Mechanism | Each) -> str:
    """Return the order in which *mechanism* draws its bits: `DRAWING`, with a mark if values share noise.

    Mechanisms over listed items drew independent noise before, in streams of the same labels; known-auto Gaussian noise
    for few items, and that of other caps for few users; privately bounded sums the noise of each sum's own bound, and
    their numbers of rows that of the declared bound; averages no noise of differences; two rounds the same noise,
    widened by other factors, and of other widths for the largest items; all that measure a histogram first chose other
    scales by the same bins; and auto other caps, with all of epsilon for one round.
    """
    inner = mechanism.inner if isinstance(mechanism, Each) else mechanism
    if isinstance(inner, Auto):  # names of releases do not hold what the head after a second histogram may spend
        return f"{DRAWING}, hidden, {inner.second_head.limit.rho}"
    if isinstance(inner, TwoRound):
        return f"{DRAWING}, graded"
    if isinstance(inner, KnownAuto):
        return f"{DRAWING}, few users"
    noises: list[object] = []
    if isinstance(inner, RankedSums | ListedSums):
        if inner.summed.private:
            return f"{DRAWING}, scaled rows" if inner.average else f"{DRAWING}, scaled apart"
        if difference_noise(inner) is not None:
            return f"{DRAWING}, differences"
        noises.append(inner.released_noise())
    ranking = inner.ranking if isinstance(inner, RankedSums) else inner
    if isinstance(ranking, KnownLaplace | KnownGumbel):
        noises.append(ranking.count_noise())
    return f"{DRAWING}, shared" if any(isinstance(noise, SharedNoise) for noise in noises) else DRAWING


def encodable(value: Any) -> Encodable:  # noqa: ANN401, PLR0911 - a frozen dataclass, or a label
    """Convert a frozen value to nested tuples with its type and field names, and a label to its type and text."""
    match value:
        case None | bool() | int() | str() | bytes() | Fraction():
            return value
        case tuple() | list():
            return tuple(map(encodable, value))
        case dict():
            return tuple((str(key), encodable(part)) for key, part in value.items())
        case HeadRequest():  # a request without segments or arrivals keeps the digests from before there were any
            own = {field.name: encodable(getattr(value, field.name)) for field in dataclasses.fields(value)[:-3]}
            own |= {"each": (value.each, encodable(value.segments.to_pylist()))} if value.each else {}
            own |= {"arrivals": encodable(value.arrivals)} if value.arrivals else {}
            return (type(value).__name__, *own.items())
        # Bounds of sums keep the names under which releases were stored when they had four types.
        case SumBounds():
            name = "PrivatelyScaled" if value.private else "Summed"
            fields = ("column", "low", "high", "scale", *(() if value.rows is None else ("rows",)))
            return (name, *((field, encodable(getattr(value, field))) for field in fields))
        case RankedSums() | ListedSums():
            low, high = value.summed.units
            bounds: dict[str, Encodable] = {"low": low, "high": high, "average": value.average}
            if value.summed.private:
                bounds["choices"] = value.summed.squared_lengths(1)
            name = "PrivateLength" if value.summed.private else "Magnitude"
            own = {field.name: encodable(getattr(value, field.name)) for field in _named_fields(value)}
            own |= {"summed": (name, *bounds.items())}
            return (type(value).__name__, *own.items())
        case _ if dataclasses.is_dataclass(value):
            named = ((field.name, encodable(getattr(value, field.name))) for field in _named_fields(value))
            return (type(value).__name__, *named)
        case _:
            return (type(value).__name__, str(value))


def _named_fields(value: Any) -> list[dataclasses.Field[Any]]:  # noqa: ANN401 - a dataclass
    return [field for field in dataclasses.fields(value) if field.metadata.get("named", True)]


class DerivedKeys:
    """Keys for separate purposes, derived from a service's secret so that no key reveals another.

    Args:
        secret: at least 32 random bytes. With it the noise of all answers can be removed.

    Attributes:
        sessions: 32 bytes that encrypt the sessions of the web page.
        pages: 32 bytes that encrypt the addresses of pages of answers.
        agents: 32 bytes that encrypt the state of an agent's query while a person is asked about its price.
        running: 32 bytes from which the noise of running counts follows.
        identity: 32 bytes that differ for another secret and reveal nothing of it.
    """

    def __init__(self, secret: bytes) -> None:
        if len(secret) < MIN_SECRET_BYTES:
            raise InputError(f"the secret of a service has at least {MIN_SECRET_BYTES} bytes")

        def key(purpose: str) -> bytes:
            return derived_key(secret, ("discreet-key-1", purpose))

        self._names = key("release key")
        self._noise = key("noise")
        self._fingerprints = key("fingerprint")
        self.sessions = key("sessions")
        self.pages = key("pages")
        self.agents = key("agents")
        self.running = key("running counts")
        self.identity = key("identity")
        self._versions = key("versions")

    def __repr__(self) -> str:
        return "DerivedKeys(...)"

    def release_key(self, plan: Plan, table: str, data_version: str) -> bytes:
        """Return the key of the answer to *plan*: 32 bytes, equal only for equal queries of the same data version.

        Args:
            table: a name of the table, see `Warehouse.key_context`.
        """
        return derived_key(self._names, ("version", release_context(plan, table, data_version)))

    def release_key_once(self, account: str, key: str, digest: bytes) -> bytes:
        """Return the key of an answer about data without a version; only the same request gets the same key.

        Args:
            key: the request's idempotency key, or random text.
        """
        return derived_key(self._names, ("once", account, key, digest))

    def bits(self, plan: Plan, table: str, data_version: str) -> KeyedBits:
        """Return the randomness of the answer to *plan*; arguments as in `release_key`."""
        return NoiseKey(self._noise, data_version).bits(plan, table)

    def shown_version(self, data_version: str) -> str:
        """Return a text that changes with a version of data, and from which the version cannot be guessed."""
        return derived_key(self._versions, data_version).hex()[:32]

    def fingerprint_key(self, table: str, data_version: str) -> bytes:
        """Return the key for fingerprints of one version of a table's data."""
        return derived_key(self._fingerprints, (table, data_version))


def derived_key(key: bytes, value: Encodable) -> bytes:
    """Return 32 bytes that differ for other *key* or *value*, and reveal neither."""
    return hmac.digest(key, encode(value), hashlib.sha256)


def fingerprint(head: ExactHead, request: HeadRequest, seed: bytes, key: bytes) -> Fingerprint:
    """Return keyed digests of *request* and of the engine's result, which reveal nothing about the data.

    Args:
        seed: the seed that selected the groups of each user.
        key: a key from `DerivedKeys.fingerprint_key`.
    """
    listed = None if request.domain is None else _lossless(request.domain)
    sent = encodable(dataclasses.replace(request, domain=None)), listed, seed
    sums = None if head.sums is None else head.sums.tobytes() + (b"" if head.rows is None else head.rows.tobytes())
    by_length = (head.scaled, head.users, head.scaled_rows, head.row_users)
    bounds = [numbers.tobytes() for numbers in by_length if numbers is not None]
    returned = _lossless(head.labels), head.counts.tobytes(), sums, *bounds
    return Fingerprint(*(hmac.digest(key, encode(part), hashlib.sha256) for part in (sent, returned)))


def _lossless(table: pa.Table) -> tuple[str, bytes]:
    """Serialize *table* unambiguously: text is quoted, so that a missing label differs from an empty one."""
    import pyarrow.csv

    rows = io.BytesIO()
    pyarrow.csv.write_csv(table, rows)
    return str(table.schema.remove_metadata()), rows.getvalue()


_PAIR_QUERIES = 10
"""The largest number of statements about pairs: write them, the eight queries of two rounds, and labels."""


class RecordedPairs:
    """`HeadAndPairs`, `SegmentedPairs`, `ListedPairs` or `HeadAndSums` of an engine, with a digest of what it returned.

    With keyed noise, the queries of a plan follow from the data and the key; so equal data give an equal digest. As a
    context, it deletes the pairs on exit if they were written.

    Args:
        seed: decides in which segment a user counts, and which items of a user are kept, where the request bounds them.
        progress: called with the finished share of all queries, which never falls, although engines report each
            statement from 0 to 1: a head is the first half, and each of the queries of pairs an equal part of the rest;
            or the head is what is left after the queries.
    """

    def __init__(
        self,
        engine: Reader,
        request: HeadRequest,
        *,
        seed: bytes = b"",
        progress: Callable[[float], None] | None = None,
    ) -> None:
        self._engine = engine
        self._request = request
        self._seed = seed
        self._progress = progress
        self._begin = 0.0  # of the query that runs
        self._part = 0.0
        self._shown = 0.0
        self._head: ExactHead | None = None
        self._pairs: UserItemPairs | None = None
        self._items: int | None = None
        self._listed: pa.Table | None = None
        self._open = contextlib.ExitStack()
        self._digest = hashlib.sha256()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> bool | None:
        return self._open.__exit__(*error)

    def head(self, limit: int) -> ExactHead:
        request = dataclasses.replace(self._request, limit=limit, summed=None)
        if self._pairs is None:
            self._part = 0.5
        else:  # an engine answers nothing else while it has the pairs
            self._open.close()
            self._pairs = None
            self._begin += self._part
            self._part = 1 - self._begin
        self._head = self._engine.head(request, seed=self._seed, progress=self._report)
        self._digest.update(encode(_lossless(self._head.labels)))
        self._record(self._head.counts)
        return self._head

    def sums_of(self, positions: Ints) -> ExactHead:
        listed = self.labels(positions)
        request = dataclasses.replace(self._request, domain=listed, limit=len(listed))
        self._begin = self._part
        head = self._engine.head(request, seed=self._seed, progress=self._report)
        if head.scaled is None or head.users is None:
            raise InexactHead("the engine answered without sums")
        places = {tuple(row.values()): n for n, row in enumerate(head.labels.to_pylist())}
        order = [places[tuple(row.values())] for row in listed.to_pylist()]
        ordered = head.scaled[order]
        self._record(ordered.ravel())
        users = self._record(head.users)
        counts = np.zeros(len(order), dtype=np.int64)
        if head.scaled_rows is None or head.row_users is None:
            return ExactHead(counts, len(order), None, None, ordered, users)
        rows = head.scaled_rows[order]
        self._record(rows.ravel())
        row_users = self._record(head.row_users)
        return ExactHead(counts, len(order), None, None, ordered, users, scaled_rows=rows, row_users=row_users)

    def users_by_size(self, bounds: Ints) -> Ints:
        return self._record(self._written().users_by_size(bounds))

    def count_items(self) -> int:
        if self._items is None:
            self._items = (self._written() if self._pairs is None else self._pairs).count_items()
        return self._items

    def weighted_sums(self, limit: float) -> Iterator[Ints]:
        return self._record_batches(self._written().weighted_sums(limit))

    def capped_sums(self, cap: int) -> Iterator[Ints]:
        return self._record_batches(self._written().capped_sums(cap))

    def users_by_scale(self, items: Ints, last_scale: Ints, costs: Ints, bounds: Ints) -> Ints:
        return self._record(self._written().users_by_scale(items, last_scale, costs, bounds))

    def clipped_sums(self, items: Ints, costs: Ints, bound: int) -> Ints:
        return self._record(self._written().clipped_sums(items, costs, bound))

    def places(self) -> Ints:
        """Return the row of each numbered item in the request's domain.

        Raises:
            InexactHead: an item is not listed.
        """
        numbered = self._labels(np.arange(self.count_items()))
        self._listed = _typed_as(self._request.domain, numbered)
        return _rows_of(numbered, self._listed)

    def segments(self, items: Ints) -> Ints:
        """Return the row of the segment of each of *items* in the request's segments.

        Raises:
            InexactHead: a segment is not listed.
        """
        labels = self._labels(items).select(list(self._request.each))
        return _rows_of(labels, _typed_as(self._request.segments, labels))

    def labels(self, items: Ints) -> pa.Table:
        """Return the labels of the positions of an outcome."""
        if self._listed is not None:
            return self._listed.rename_columns(list(self._request.items)).take(arrow_array(items))
        if self._pairs is None and self._head is not None:
            return self._head.labels.take(arrow_array(items))
        return self._labels(items)

    def _labels(self, items: Ints) -> pa.Table:
        labels: pa.Table = self._written().labels(items)
        self._digest.update(encode(_lossless(labels)))
        return labels

    def fingerprint(self, plan: Plan, key: bytes) -> Fingerprint:
        """Return keyed digests of the plan's request and mechanism, and of all query results."""
        rows = dataclasses.replace(plan.request, domain=None)
        listed = () if plan.request.domain is None else _lossless(plan.request.domain)
        request = encode((encodable(rows), encodable(plan.mechanism), *listed))
        return Fingerprint(*(hmac.digest(key, part, hashlib.sha256) for part in (request, self._digest.digest())))

    def _written(self) -> UserItemPairs:
        """Return the pairs for the next query; the first one writes them."""
        if self._pairs is None:
            self._begin = self._part
            self._part = (1 - self._begin) / _PAIR_QUERIES
            # With segments, the pairs are those of all of a user's rows that have one.
            request = dataclasses.replace(self._request, each=())
            self._pairs = self._open.enter_context(self._engine.pairs(request, progress=self._report))
        self._begin += self._part
        return self._pairs

    def _report(self, share: float) -> None:
        if self._progress is not None:
            self._shown = max(self._shown, min(self._begin + self._part * share, 1.0))
            self._progress(self._shown)

    def _record_batches(self, batches: Iterator[Ints]) -> Iterator[Ints]:
        """Yield *batches*, which hold one value for each item; their digest is that of one array of them."""
        self._digest.update(self.count_items().to_bytes(8, "little"))
        for batch in batches:
            self._digest.update(batch.tobytes())
            yield batch

    def _record(self, result: Ints) -> Ints:
        self._digest.update(len(result).to_bytes(8, "little"))
        self._digest.update(result.tobytes())
        return result


def _typed_as(listed: pa.Table, labels: pa.Table) -> pa.Table:
    """Return the *listed* labels in the types of *labels*, which an engine returned."""
    return typed_domain(listed, {field.name: field.type for field in labels.schema})


def _rows_of(labels: pa.Table, listed: pa.Table) -> Ints:
    """Return the row of each of *labels* in *listed*.

    Raises:
        InexactHead: one is not listed.
    """
    rows = {tuple(row.values()): n for n, row in enumerate(listed.to_pylist())}
    named = [tuple(row.values()) for row in labels.to_pylist()]
    if not rows.keys() >= set(named):
        raise InexactHead("the engine answered with an item that was not requested")
    return np.array([rows[label] for label in named], dtype=np.int64)
