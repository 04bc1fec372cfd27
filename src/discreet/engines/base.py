"""What every engine can do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from discreet.question import HeadRequest, Kind
    from discreet.values import ExactHead


class Engine(Protocol):
    """A table in some engine, and how to count in it exactly."""

    @property
    def name(self) -> str:
        """What people call the table. Part of what keyed noise depends on."""
        ...

    def columns(self) -> Mapping[str, Kind]:
        """The table's columns, in order.

        Raises:
            EngineError: the engine failed.
        """
        ...

    def data_version(self) -> str | None:
        """A public name of the state of the data that depends on no row; None if there is none.

        When the data changes, so does it.
        """
        ...

    def head(
        self, request: HeadRequest, *, seed: bytes = b"", progress: Callable[[float], None] | None = None
    ) -> ExactHead:
        """The request.limit + 1 largest counts with their labels, exactly.

        Rows without a user, or without one of the item columns, are left out. Ties stand in ascending order of the
        labels (text by UTF-8 bytes). With a domain, its items and no others, all of them.

        Args:
            request: what is wanted.
            seed: which random items of a user are kept, where request.groups_per_user bounds them.
            progress: called with a share from 0 to 1 every now and then.

        Raises:
            EngineError: the engine failed; its own words, which may hold data, are left out.
            InputError: the data is not what the question takes it for.
        """
        ...
