"""Fingerprints: keyed digests of what an engine returned, to notice data that changed while its version did not."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import io
from typing import TYPE_CHECKING

from discreet.budget.model import Fingerprint
from discreet.noise.bits import encode
from discreet.release.keys import encodable

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from discreet.query.planning import Plan
    from discreet.question import HeadRequest
    from discreet.values import ExactHead, UserItemPairs

    Ints = NDArray[np.int64]


def fingerprint(head: ExactHead, request: HeadRequest, seed: bytes, key: bytes) -> Fingerprint:
    """Return a keyed digest of what an engine returned for *request*, which reveals nothing and changes with any of it.

    Args:
        head: what it returned.
        request: what was requested.
        seed: which random groups of users were kept.
        key: of the table and the version of its data.
    """
    listed = None if request.domain is None else _lossless(request.domain)
    asked = encodable(dataclasses.replace(request, domain=None)), listed, seed
    returned = _lossless(head.labels), head.counts.tobytes(), None if head.sums is None else head.sums.tobytes()
    return Fingerprint(*(hmac.digest(key, encode(part), hashlib.sha256) for part in (asked, returned)))


def _lossless(table: pa.Table) -> tuple[str, bytes]:
    """Return *table* as text that no other table has: text is quoted, so that a missing label is not an empty one."""
    import pyarrow.csv

    rows = io.BytesIO()
    pyarrow.csv.write_csv(table, rows)
    return str(table.schema.remove_metadata()), rows.getvalue()


class RecordedPairs:
    """`UserItemPairs` that digest what every query returns.

    With keyed noise, the queries of a plan follow from the data and the key; so equal data give an equal digest.
    """

    def __init__(self, pairs: UserItemPairs) -> None:
        self._pairs = pairs
        self._digest = hashlib.sha256()

    def users_by_size(self, bounds: Ints) -> Ints:
        return self._seen(self._pairs.users_by_size(bounds))

    def weighted_sums(self, limit: float) -> Ints:
        return self._seen(self._pairs.weighted_sums(limit))

    def users_by_scale(self, items: Ints, last_scale: Ints, costs: Ints, bounds: Ints) -> Ints:
        return self._seen(self._pairs.users_by_scale(items, last_scale, costs, bounds))

    def clipped_sums(self, items: Ints, costs: Ints, bound: int) -> Ints:
        return self._seen(self._pairs.clipped_sums(items, costs, bound))

    def labels(self, items: Ints) -> pa.Table:
        labels: pa.Table = self._pairs.labels(items)
        self._digest.update(encode(_lossless(labels)))
        return labels

    def fingerprint(self, plan: Plan, key: bytes) -> Fingerprint:
        """Return a keyed digest of the plan's request and mechanism, and one of all that the queries returned."""
        asked = encode((encodable(plan.request), encodable(plan.mechanism)))
        return Fingerprint(*(hmac.digest(key, part, hashlib.sha256) for part in (asked, self._digest.digest())))

    def _seen(self, result: Ints) -> Ints:
        self._digest.update(len(result).to_bytes(8, "little"))
        self._digest.update(result.tobytes())
        return result
