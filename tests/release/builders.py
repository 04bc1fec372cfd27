"""Releases and an engine with given contents."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import numpy as np
import pyarrow as pa

from discreet.accounting.convert import Guarantee
from discreet.errors import EngineUnreachable, InputError
from discreet.head_request import Kind
from discreet.release import Release
from discreet.values import Cost, ExactHead
from tests.queries import query_of

GUARANTEE = Guarantee(1.0, 1e-8, 0.0165)


def release_of(labels, *, counts=True, ordered=True, k=3, **parts):
    """Return a release of *labels*, an Arrow table or a list for the column item, with the counts 1000, 999, ..."""
    table = labels if isinstance(labels, pa.Table) else pa.table({"item": labels})
    m = table.num_rows
    made = np.arange(1000, 1000 - m, -1, dtype=np.int64) if counts else None
    release = Release(
        labels=table,
        counts=made,
        std_errors=np.full(m, 2.5) if counts else None,
        low=made - 5 if counts else None,
        high=made + 5 if counts else None,
        ordered=ordered,
        complete=m == k,
        mechanism="unknown-gumbel",
        guarantee=GUARANTEE,
        charged=Cost(Fraction(1, 100), Fraction(1, 10**9)),
        query=query_of("user", tuple(table.column_names), 1.0, Fraction(1, 10**8), k=k, counts=counts),
        seconds=0.12345,
    )
    return dataclasses.replace(release, **parts)


class TinyEngine:
    """Returns given counts or raises an error, and records the requests.

    Args:
        counts: descending.
        error: raised instead.
        whole: True to return all counts, however few were asked for.
        before: called first.
    """

    name = "tiny"
    has_pairs = False

    def __init__(self, counts=(1000, 900, 800, 5, 1), error=None, before=None, whole=False):
        self.counts, self.error, self.before, self.whole = counts, error, before, whole
        self.checked, self.requests = [], []

    def columns(self):
        """See `Engine.columns`."""
        return {"user": Kind.INTEGER, "item": Kind.TEXT}

    def data_version(self):
        """See `Engine.data_version`."""

    def check(self, request):
        """Raise the error if it is one that needs no data."""
        self.checked.append(request)
        if isinstance(self.error, InputError | EngineUnreachable):
            raise self.error

    def check_pairs(self):
        """See `Engine.check_pairs`."""

    def head(self, request, *, seed=b"", progress=None):
        """See `Engine.head`."""
        self.requests.append((request, seed, progress))
        if self.before is not None:
            self.before()
        if self.error is not None:
            raise self.error
        counts = np.array(self.counts if self.whole else self.counts[: request.limit + 1], dtype=np.int64)
        return ExactHead(counts, request.limit, pa.table({"item": [f"label-{n}" for n in range(len(counts))]}))
