"""Reading a period of running counts, and correcting them for the bounds on users (docs/running-counts.md#two-levels).

The state of corrected counts is one text: the mechanism, whose bounds a pilot may have chosen with the first answer;
the list, with the period in which each item was listed; and the noisy numbers from which the counts are corrected.
Everything in it has noise or follows from what has.
"""

from __future__ import annotations

import base64
import dataclasses
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import TypeAdapter

from discreet.engines.base import arrow_array
from discreet.head_request import MAX_RUNNING_GROUPS, HeadRequest
from discreet.mechanisms.running import CorrectedCounts, RunningCounts, pilot_places
from discreet.noise import CorrelatedGaussians, encode
from discreet.noise.bits import Encodable
from discreet.release.declaration import RunningDeclaration
from discreet.release.keys import derived_key, encodable
from discreet.values import MAX_COUNT, ExactHead

_SINCE = "since"
_KEPT = "kept"
_CORRECTED = "corrected"
_MECHANISM = TypeAdapter(CorrectedCounts)


@dataclass(frozen=True, slots=True)
class AnsweredPeriod:
    """What is kept of an answered period.

    Args:
        number: of the period.
        seal: keyed digest of the counts that the next answer compares.
        digests: `PeriodReader.digests`, on which the noise depends.
        kept: the sum of all noisy counts, if they are corrected.
        whole: the share of all pairs so far that the bounds kept, by which standard errors are divided.
        reached: the noisy numbers of users by place, if counts are corrected.
    """

    number: int
    seal: str
    digests: list[str]
    kept: float = 0.0
    whole: float = 1.0
    reached: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class CorrectedState:
    """The state of a stream that is corrected.

    Args:
        mechanism: with all of its numbers, which never change.
        listing: the items, since (the number of the period in which each was listed), and of the last answered period
            kept (the noisy count) and corrected; no columns before the first answer.
    """

    mechanism: CorrectedCounts
    listing: pa.Table

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values; equal states have equal ones."""
        buffer = io.BytesIO()
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_stream(buffer, self.listing.schema, options=options) as writer:
            writer.write_table(self.listing.combine_chunks())
        listing = base64.b64encode(buffer.getvalue()).decode()
        return {"mechanism": dataclasses.asdict(self.mechanism), "listing": listing}

    @classmethod
    def of_dict(cls, values: dict[str, Any]) -> CorrectedState:
        """Return the state of `to_dict`."""
        listing = pa.ipc.open_stream(base64.b64decode(values["listing"])).read_all()
        return cls(_MECHANISM.validate_python(values["mechanism"]), listing)

    def since(self, labels: pa.Table) -> list[int]:
        """Return the number of the period in which each of some listed items was listed."""
        since = self.by_name(_SINCE)
        return [since[name] for name in label_names(labels)]

    @property
    def labels(self) -> pa.Table | None:
        """The listed items; None before the first answer."""
        return self.listing.drop_columns(_OWN) if self.listing.num_columns else None

    def by_name(self, column: str) -> dict[bytes, Any]:
        """Return a column of the list by the names of the items."""
        if self.labels is None:
            return {}
        return dict(zip(label_names(self.labels), self.listing.column(column).to_pylist(), strict=True))


_OWN = [_SINCE, _KEPT, _CORRECTED]


@dataclass(frozen=True, slots=True)
class PeriodReader:
    """Reads a period of a stream, and adds noise.

    The noise that begins with a period depends on all that was read so far. So if a period is answered again from an
    older copy of the state, the numbers are the same on the same rows, and have independent noise on other rows.

    Args:
        answered: the answered periods, in order.
        number: of the period to read, after all that were answered.
        read: returns the head for a request; the order of a user's items is the same for the whole stream.
        key: returns the key of the stream for a use.

    Attributes:
        digests: a keyed digest for each head of the period that was read, of that head and all before it: one, or two
            in two levels.
    """

    declaration: RunningDeclaration
    answered: Sequence[AnsweredPeriod]
    number: int
    read: Callable[[HeadRequest], ExactHead]
    key: Callable[[str], bytes]
    digests: list[str] = field(default_factory=list, init=False)

    def begin(self, square: Fraction, mass: Fraction) -> CorrectedState:
        """Return the state before the first answer, with bounds that the pilot chooses, if there is one.

        Args:
            square: mu^2.
            mass: beta.
        """
        declared = self.declaration
        has_pilot = declared.pilot is not None
        pilot: list[int] = []
        if declared.pilot is not None:
            parts = {"reached": pilot_places(), "of": declared.request.items}
            request = declared.arrived(declared.pilot, declared.periods, MAX_RUNNING_GROUPS, 1, **parts)
            head = self.read(dataclasses.replace(request, items=()))
            users = -np.diff(_reached(head, np.array([0])), append=0)
            digest = self._digest("digest", *users.tolist())
            noise = self._noise("pilot", CorrectedCounts.pilot_variance(square), [digest], 1)
            pilot = (users + noise.draw([encode(place) for place in pilot_places()], 1)).tolist()
        mechanism = CorrectedCounts.within(declared.periods, square, mass, has_pilot=has_pilot, pilot=pilot)
        return CorrectedState(mechanism, pa.table({}))

    def answer(self, state: CorrectedState) -> tuple[CorrectedState, AnsweredPeriod, pa.Table, NDArray[np.int64], str]:
        """Answer the period.

        Returns:
            the next state and the period; the labels and the counts that are precise enough to show, the largest first;
            and the seal of the last period, as it is now.
        """
        mechanism = state.mechanism
        number = self.number
        level = mechanism.counting
        if level is None:
            labels, names, noisy, reached, seals = self.count_in_one_level(
                mechanism.listing, state.labels, "listing", mechanism.places
            )
            # The noise of all counts starts with the stream, in whatever period an item is listed.
            since = np.ones(len(noisy), dtype=np.int64)
        else:
            labels, names, since, noisy, reached, seals = self._count_in_two_levels(state)
        places = [encode(place) for place in mechanism.places]
        noise = self._noise("places", mechanism.places_variance, self._digests_of(-1))
        reached = reached + noise.draw(places, number)
        window = [period for period in self.answered if level and period.number <= number - mechanism.window]
        share = mechanism.share(float(noisy.sum()), reached, (window[-1].kept, window[-1].reached) if window else None)
        past = (state.by_name(column) for column in (_CORRECTED, _KEPT))
        earlier = np.array([[counts.get(name, 0) for name in names] for counts in past], dtype=np.float64)
        corrected, whole = mechanism.corrected(noisy, share, earlier)
        counts = np.rint(corrected).astype(np.int64)
        precise = mechanism.precise(corrected, mechanism.published.std_errors(number, since) / whole, share)
        order = sorted(np.flatnonzero(precise).tolist(), key=lambda place: (-counts[place], names[place]))
        listing = labels
        for name, values in zip(_OWN, (since, noisy, corrected), strict=True):
            listing = listing.append_column(name, pa.array(values))
        period = AnsweredPeriod(number, seals[0], self.digests, float(noisy.sum()), whole, reached.tolist())
        shown = np.array(order, dtype=np.int64)
        return CorrectedState(mechanism, listing), period, labels.take(arrow_array(shown)), counts[shown], seals[1]

    def count_in_one_level(
        self,
        level: RunningCounts,
        earlier: pa.Table | None,
        use: str,
        reached: tuple[int, ...] = (),
    ) -> tuple[pa.Table, list[bytes], NDArray[np.int64], NDArray[np.int64], tuple[str, str]]:
        """Count the items that were listed before or are now.

        Args:
            earlier: the labels that were listed; None before the first.
            use: of the noise.
            reached: places of a user.

        Returns:
            the labels, their names, their noisy counts, the users by place, and the seals of this period and the last.
        """
        head, names = self._head(level.groups_per_user, earlier, level.least, reached=reached)
        seal, last_seal = (
            "" if counts is None else self._digest("seal", *_in_order(names, counts, level.least))
            for counts in (head.counts, head.before)
        )
        labels = head.labels
        counts = head.counts
        listed: set[bytes] = set()
        if earlier is not None:  # with the items that were listed and have no users
            listed_names = label_names(earlier)
            listed.update(listed_names)
            missing = listed.difference(names)
            places = np.array([place for place, name in enumerate(listed_names) if name in missing], dtype=np.int64)
            labels = pa.concat_tables([labels, earlier.take(arrow_array(places)).cast(labels.schema)])
            counts = np.append(counts, np.zeros(len(places), dtype=np.int64))
            names = [*names, *(listed_names[place] for place in places)]
        noise = self._noise(use, level.variance, self._digests_of(0))
        is_listed = np.array([name in listed for name in names], dtype=bool)
        positions, noisy = level.release(counts, is_listed, names, self.number, noise)
        shown = [names[position] for position in positions]
        by_place = _reached(head, positions[positions < len(head.counts)])
        return labels.take(arrow_array(positions)), shown, noisy, by_place, (seal, last_seal)

    def _count_in_two_levels(
        self, state: CorrectedState
    ) -> tuple[pa.Table, list[bytes], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], tuple[str, str]]:
        """Return what `count_in_one_level` returns, with since when each item is listed after the names."""
        listing = state.mechanism.listing
        counting = state.mechanism.published
        declared = self.declaration
        none = np.zeros(0, dtype=np.int64)

        def dated(labels: pa.Table) -> pa.Table:
            periods = pa.array([declared.value(number) for number in since.tolist()], declared.type)
            return labels.append_column(declared.request.derived[0].name, periods)

        labels = state.labels
        since = none if labels is None else state.listing.column(_SINCE).to_numpy()
        listed = None if labels is None else dated(labels)
        bounds = listing.groups_per_user, listed, listing.least
        candidates, unlisted_names = self._head(*bounds, among="unlisted")
        unlisted = np.zeros(len(candidates.counts), dtype=bool)
        noise = self._noise("listing", listing.variance, self._digests_of(0))
        new, _ = listing.release(candidates.counts, unlisted, unlisted_names, self.number, noise)
        added = candidates.labels.take(arrow_array(new))
        labels = added if labels is None else pa.concat_tables([labels, added.cast(labels.schema)])
        since = np.append(since, np.full(len(new), self.number))
        head = ExactHead(none, MAX_COUNT, labels, before=none)  # without a list, all items would compete
        counted: list[bytes] = []
        if len(labels):
            places = state.mechanism.places
            head, counted = self._head(counting.groups_per_user, dated(labels), 1, among="listed", reached=places)
        names = label_names(labels)
        counts = dict(zip(counted, head.counts.tolist(), strict=True))
        noisy = np.array([counts.get(name, 0) for name in names], dtype=np.int64)
        noise = self._noise("counting", counting.variance, self._digests_of(-1))
        noisy += noise.draw(names, self.number, since)
        rest = np.setdiff1d(np.arange(len(candidates.counts)), new)
        remaining = [unlisted_names[position] for position in rest]
        sealed = *_in_order(remaining, candidates.counts[rest], listing.least), *_in_order(counted, head.counts)
        seal = self._digest("seal", *sealed)
        last_seal = ""
        if candidates.before is not None and head.before is not None:
            sealed = *_in_order(unlisted_names, candidates.before, listing.least), *_in_order(counted, head.before)
            last_seal = self._digest("seal", *sealed)
        return labels, names, since, noisy, _reached(head, np.arange(len(head.counts))), (seal, last_seal)

    def _head(self, groups: int, listed: pa.Table | None, least: int, **parts: Any) -> tuple[ExactHead, list[bytes]]:
        """Return a head so far and the names of its items; add the digest of all heads so far to `digests`.

        Args are those of `RunningDeclaration.arrived`, and the listed items.
        """
        before = self.declaration.name(self.answered[-1].number) if self.answered else None
        first = self.declaration.first
        request = self.declaration.arrived(first, self.number, groups, least, before=before, **parts)
        head = self.read(dataclasses.replace(request, domain=listed if listed is None or len(listed) else None))
        names = label_names(head.labels)
        numbers = head.counts[:, None] if head.reached is None else np.column_stack([head.counts, head.reached])
        earlier = self.digests or (self.answered[-1].digests if self.answered else [""])
        self.digests.append(self._digest("digest", earlier[-1], *_in_order(names, numbers)))
        return head, names

    def _digest(self, use: str, *read: Encodable) -> str:
        return derived_key(self.key(use), read).hex()

    def _digests_of(self, level: int) -> list[str]:
        """Return the digest on which the noise of each period so far depends: of a missed one, that of the next answer.

        Args:
            level: the place in `digests`: 0 for the first head of a period, -1 for the last.
        """
        digests: list[str] = []
        for period in [*self.answered, AnsweredPeriod(self.number, "", self.digests)]:
            digests += [period.digests[level]] * (period.number - len(digests))
        return digests

    def _noise(
        self, use: str, variance: Fraction, digests: list[str], periods: int | None = None
    ) -> CorrelatedGaussians:
        return CorrelatedGaussians(
            self.key("noise"), (use, variance), variance, periods or self.declaration.periods, digests
        )


def label_names(labels: pa.Table) -> list[bytes]:
    """Return an injective encoding of each label."""
    return [encode(encodable(label)) for label in zip(*(column.to_pylist() for column in labels.columns), strict=True)]


def _in_order(names: list[bytes], numbers: NDArray[np.int64], least: int = 1) -> tuple[bytes, bytes]:
    """Return injective encodings of the names of which a number is *least* or more, and of their numbers, by name."""
    large = (numbers if numbers.ndim == 1 else numbers.max(axis=1)) >= least
    order = sorted(np.flatnonzero(large).tolist(), key=names.__getitem__)
    return b"".join(names[place] for place in order), numbers[order].astype("<i8").tobytes()


def _reached(head: ExactHead, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers of users by place, of some rows of a head together."""
    none = np.zeros((len(head.counts), 1), dtype=np.int64)
    return np.asarray((none if head.reached is None else head.reached)[rows].sum(axis=0), dtype=np.int64)
