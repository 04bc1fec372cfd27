"""An engine in plain Python: a correct one, and ones with typical defects."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import numpy as np
import pyarrow as pa

from discreet.engines.base import check_named
from discreet.errors import InputError
from discreet.head_request import Kind, Not
from discreet.testing import engines
from discreet.testing.engines import digest, reference_head, reference_pairs
from discreet.testing.pairs import gathered
from discreet.values import ExactHead

_KINDS = [
    (pa.types.is_string, Kind.TEXT),
    (pa.types.is_integer, Kind.INTEGER),
    (pa.types.is_decimal, Kind.DECIMAL),
    (pa.types.is_floating, Kind.FLOAT),
    (pa.types.is_boolean, Kind.BOOLEAN),
    (pa.types.is_date, Kind.DATE),
    (pa.types.is_timestamp, Kind.TIMESTAMP),
]


class PlainEngine:
    """Counts with `reference_head`, and bounds the items of users by hashing."""

    def __init__(self, table):
        self.table = table

    def columns(self):
        """See `Engine.columns`."""
        return {f.name: next(kind for matches, kind in _KINDS if matches(f.type)) for f in self.table.schema}

    def data_version(self):
        """See `Engine.data_version`."""

    def scale(self, column):
        """See `Engine.scale`."""
        return getattr(self.table.schema.field(column).type, "scale", 0)

    def check_sum(self, column):
        """See `Engine.check_sum`."""
        type_ = self.table.schema.field(column).type
        if not (pa.types.is_integer(type_) or (pa.types.is_decimal(type_) and type_.precision <= 20)):
            raise InputError(f"column {column!r} cannot be summed")

    def check(self, request):
        check_named(request, self.columns().__getitem__)
        if request.domain is not None:
            self._checked(request)

    def head(self, request, *, seed=b"", progress=None):
        """See `Engine.head`."""
        check_named(request, self.columns().__getitem__)
        if request.domain is not None:
            request = replace(request, domain=self._checked(request))
        if request.each:
            return self._segmented(request, seed)
        if request.groups_per_user is not None:
            rows = self._bounded(request, seed)
            request = replace(request, where=None, groups_per_user=None)
        else:
            rows = self.table
        if progress is not None:
            progress(1.0)
        counted = self._counted(rows, request)
        labels = {item: [label[n] for label, _ in counted] for n, item in enumerate(request.items)}
        types = [self.table.schema.field(item).type for item in request.items]
        table = pa.table(
            [pa.array(labels[item], t) for item, t in zip(request.items, types, strict=True)], request.items
        )
        return ExactHead(np.array([count for _, count in counted], dtype=np.int64), request.limit, table)

    def _segmented(self, request, seed):
        """Return the heads of segments."""
        return self._in_parts(self._each_counted(request, seed), request)

    def _each_counted(self, request, seed):
        """Return the rows of the heads of segments."""
        return reference_head(self.table, request, seed)

    def _in_parts(self, counted, request):
        types = [self.table.schema.field(item).type for item in request.items]
        columns = [pa.array([labels[n] for labels, _ in counted], type_) for n, type_ in enumerate(types)]
        owners = [labels[: len(request.each)] for labels, _ in counted]
        sizes = [owners.count(tuple(row.values())) for row in request.segments.to_pylist()]
        counts = np.array([count for _, count in counted], dtype=np.int64)
        ends = tuple(np.cumsum(sizes).tolist())
        return ExactHead(counts, request.limit, pa.table(columns, request.items), ends=ends)

    has_pairs = True
    has_capped_sums = True

    def pairs(self, request, *, progress=None):
        """See `Engine.pairs`."""
        if progress is not None:
            progress(1.0)
        return contextlib.nullcontext(self._found(request))

    def _found(self, request):
        return reference_pairs(self.table, request)

    def _counted(self, rows, request):
        """Return the head."""
        return reference_head(rows, request)

    def _checked(self, request):
        """Return the domain in the types of the labels."""
        try:
            columns = []
            for item in request.items:
                given = request.domain.column(item)
                columns.append(given.cast(self.table.schema.field(item).type))
                if columns[-1].cast(given.type) != given:
                    raise InputError("the domain lists a label that its column would change")
            domain = pa.table(columns, request.items)
        except pa.ArrowInvalid:
            raise InputError("the domain lists a label of another type") from None
        rows = [tuple(row.values()) for row in domain.to_pylist()]
        if any(None in row for row in rows) or len(set(rows)) < len(rows):
            raise InputError("the domain lists an item twice, or a missing label")
        return domain

    def _bounded(self, request, seed):
        """Return the rows that count, of the items that each user keeps."""
        eligible = replace(request, groups_per_user=None, limit=10**9)
        owned = {}
        rows = self.table.to_pylist()
        for n, row in enumerate(rows):
            if reference_head(self.table.slice(n, 1), replace(eligible, domain=None)):
                labels = tuple(row[item] for item in request.items)
                owned.setdefault(row[request.user], {}).setdefault(labels, []).append(n)
        kept = []
        for user, items in owned.items():
            order = sorted(items, key=lambda labels: self._place(seed, user, labels, len(owned)))
            kept += [n for labels in order[: self._most(request)] for n in items[labels]]
        return self.table.take(pa.array(sorted(kept), pa.int64()))

    def _most(self, request):
        """Return how many items a user keeps."""
        return request.groups_per_user

    def _place(self, seed, user, labels, users):
        """Return the position of an item in the order of a user."""
        del users
        return digest(seed, user, labels)


class RowsAsUsers(PlainEngine):
    """Counts rows, not users."""

    def _counted(self, rows, request):
        return super()._counted(rows, replace(request, rows_per_group=2**31))


class UnclippedAtTwo(PlainEngine):
    """Checks only whether rows were requested, not how many count."""

    def _counted(self, rows, request):
        return super()._counted(rows, replace(request, rows_per_group=min(request.rows_per_group, 2)))


class TiesByAppearance(PlainEngine):
    """Keeps ties in the order of the rows."""

    def _counted(self, rows, request):
        whole = super()._counted(rows, replace(request, limit=10**9))
        seen = [tuple(row[item] for item in request.items) for row in rows.to_pylist()]
        return sorted(whole, key=lambda item: (-item[1], seen.index(item[0])))[: request.limit + 1]


class Utf16Ties(PlainEngine):
    """Orders text by UTF-16 units, as the JVM does."""

    def _counted(self, rows, request):
        whole = super()._counted(rows, replace(request, limit=10**9))
        return sorted(whole, key=lambda item: (-item[1], *(str(part).encode("utf-16-be") for part in item[0])))[
            : request.limit + 1
        ]


class NothingBelowTheCut(PlainEngine):
    """Returns no more items than may be released."""

    def _counted(self, rows, request):
        return super()._counted(rows, request)[: request.limit]


class UnknownUsers(PlainEngine):
    """Counts rows without a user as those of one user."""

    def _counted(self, rows, request):
        place = rows.column_names.index(request.user)
        return super()._counted(rows.set_column(place, request.user, rows.column(request.user).fill_null(-1)), request)


class TwoValuedNot(PlainEngine):
    """Treats unknown as false, so that NOT makes it true."""

    def _counted(self, rows, request):
        three = engines.truth
        engines.truth = lambda p, row: three(p.predicate, row) is not True if isinstance(p, Not) else three(p, row)
        try:
            return super()._counted(rows, request)
        finally:
            engines.truth = three


class OneTooMany(PlainEngine):
    """Keeps one item too many."""

    def _most(self, request):
        return request.groups_per_user + 1


class FirstItems(PlainEngine):
    """Keeps the first items by label."""

    def _place(self, *facts):
        return facts[2]


class CommonOrder(PlainEngine):
    """Keeps items in an order that is the same for all users."""

    def _place(self, seed, _, labels, users):
        return super()._place(seed, None, labels, users)


class IgnoresTheSeed(PlainEngine):
    """Keeps the same items for every seed."""

    def _place(self, _, user, labels, users):
        return super()._place(b"", user, labels, users)


class DependsOnUserCount(PlainEngine):
    """Lets the items that a user keeps depend on the number of users."""

    def _place(self, seed, user, labels, users):
        return super()._place(seed + bytes(users), user, labels, users)


class EverySegment(PlainEngine):
    """Counts a user in every segment that the user has rows in."""

    def _each_counted(self, request, seed):
        found = []
        for row in request.segments.to_pylist():
            within = pa.table({name: [value] for name, value in row.items()})
            found += reference_head(self.table, replace(request, segments=within), seed)
        return found


class CommonSegment(PlainEngine):
    """Keeps the segment of a user in an order that is the same for all users."""

    def _each_counted(self, request, seed):
        right, engines.digest = engines.digest, lambda seed, _, labels: digest(seed, None, labels)
        try:
            return reference_head(self.table, request, seed)
        finally:
            engines.digest = right


class OnlyStored(PlainEngine):
    """Omits listed items without users."""

    def _counted(self, rows, request):
        return [(labels, count) for labels, count in super()._counted(rows, request) if count]


class LossyDomain(PlainEngine):
    """Casts listed labels to the type of the column."""

    def _checked(self, request):
        types = [self.table.schema.field(item).type for item in request.items]
        columns = [request.domain.column(i).cast(t, safe=False) for i, t in zip(request.items, types, strict=True)]
        return pa.table(columns, request.items)


class CutLabels(PlainEngine):
    """Truncates long labels, as a VARCHAR(65535) does."""

    def __init__(self, table):
        cut = pa.array([None if label is None else str(label)[:65_535] for label in table.column("item").to_pylist()])
        super().__init__(table.set_column(table.column_names.index("item"), "item", cut))


class UsersByCase(PlainEngine):
    """Takes users whose names differ in case only for one."""

    def _counted(self, rows, request):
        place, users = rows.column_names.index(request.user), rows.column(request.user)
        folded = [user.lower() if isinstance(user, str) else user for user in users.to_pylist()]
        return super()._counted(rows.set_column(place, request.user, pa.array(folded, users.type)), request)


class WeightsRoundedToNearest(PlainEngine):
    """Lets the squared weights of a user's items exceed the limit by rounding."""

    def _found(self, request):
        pairs = reference_pairs(self.table, request)
        exact, pairs.weighted_sums = pairs.weighted_sums, lambda limit: iter([gathered(exact(limit)) + pairs.counts])
        return pairs


class PairsByAppearance(PlainEngine):
    """Numbers items in another order than that of their labels."""

    def _found(self, request):
        pairs = reference_pairs(self.table, request)
        exact, pairs.weighted_sums = pairs.weighted_sums, lambda limit: iter([gathered(exact(limit))[::-1]])
        return pairs
