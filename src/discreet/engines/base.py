"""What every engine can do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    import pyarrow as pa

    from discreet.question import HeadRequest, Kind
    from discreet.values import ExactHead, UserItemPairs


class Engine(Protocol):
    """A table in some engine, and how to count in it exactly."""

    @property
    def name(self) -> str:
        """What people call the table, without passwords. Part of what keyed noise depends on, unless a catalog says."""
        ...

    def columns(self) -> Mapping[str, Kind]:
        """The table's columns, in order.

        Raises:
            EngineError: the engine failed.
        """
        ...

    def scale(self, column: str) -> int:
        """Digits behind the point of a column of decimal numbers, 0 of whole ones.

        Raises:
            EngineError: the engine failed.
        """
        ...

    def check_sum(self, column: str) -> None:
        """Raise unless the column can be summed, by its type: no sum of it overflows, and none is rounded.

        Raises:
            InputError: it cannot.
            EngineError: the engine failed.
        """
        ...

    def data_version(self) -> str | None:
        """A public name of the state of the data that depends on no row; None if there is none.

        When the data changes, so does it.
        """
        ...

    def check(self, request: HeadRequest) -> None:
        """Raise unless the engine can be reached and can answer *request*; no part of it is sent and no row is read.

        Raises:
            InputError: the engine cannot answer such a request, as its form and the types of the columns show.
            EngineUnreachable: there is no connection.
            EngineError: the engine failed in another way.
        """
        ...

    def head(
        self, request: HeadRequest, *, seed: bytes = b"", progress: Callable[[float], None] | None = None
    ) -> ExactHead:
        """The request.limit + 1 largest counts with their labels, exactly.

        Rows without a user are left out, and so are rows without one of the labels unless missing labels are kept. Ties
        stand in ascending order of the labels, missing ones first, text by UTF-8 bytes. With a domain, its items and no
        others, all of them. Labels are text, int64, decimals, booleans, dates or microseconds, whatever the engine.

        Args:
            request: what is wanted.
            seed: which random items of a user are kept, where request.groups_per_user bounds them: the same ones in
                every engine.
            progress: called with a share from 0 to 1 every now and then; whatever it raises stops the engine.

        Raises:
            InputError: as `check`.
            EngineUnreachable: there is no connection, and no part of the request was sent.
            EngineError: the engine failed in another way; its own words, which may hold data, are left out.
            UnfitData: a row is not what the question takes it for.
            InexactHead: the engine answered, but not with a head that is proven exact.
        """
        ...

    @property
    def has_pairs(self) -> bool:
        """Whether `pairs` can be asked for. Known without a connection."""
        ...

    def pairs(
        self, request: HeadRequest, *, progress: Callable[[float], None] | None = None
    ) -> AbstractContextManager[UserItemPairs]:
        """Write the distinct user-item pairs of the rows that count, and make them queryable until the context ends.

        Whatever was written for it is deleted then. Inside, nothing else can be asked of the engine.

        Args:
            request: its user, items, filter and keep_missing; the limit does not matter.
            progress: as for `head`, of each query.

        Raises:
            InputError: the engine has no pair queries, or not for such a request.
            EngineError: and its kinds, from every query, as from `head`.
        """
        ...

    def fetch(self, statement: str) -> pa.Table:
        """What a statement of the data owner's returns, whole: the values of a domain, the version of the data.

        Raises:
            EngineError: the engine failed, or the statement is wrong.
        """
        ...

    def close(self) -> None:
        """Give up connections and whatever was kept in files."""
        ...
