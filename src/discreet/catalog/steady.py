"""The engine of a dataset as questions get it: of one version of its data, and silent about where it is."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from discreet.errors import EngineError, EngineTimeout, EngineUnreachable, InexactHead, UnfitData

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pyarrow as pa

    from discreet.engines.base import Engine
    from discreet.question import HeadRequest, Kind
    from discreet.values import ExactHead, UserItemPairs

_SENTENCES: Mapping[type[EngineError], str] = {
    EngineUnreachable: "the engine of the dataset {!r} cannot be reached now; nothing was asked",
    EngineTimeout: "the engine of the dataset {!r} did not answer in time",
    UnfitData: "the dataset {!r} holds a value that is not what its owner declared it to be",
    InexactHead: "the engine of the dataset {!r} answered, but its answer is not proven exact",
    EngineError: "the engine of the dataset {!r} failed",
}
"""What analysts are told. The engine's own sentence, chained, names files and hosts."""


class SteadyEngine:
    """An engine whose head is refused if the data got another version while it was counted.

    Otherwise equal noise could be put on different data, which would show the difference.

    Args:
        engine: counts.
        dataset: what analysts call it.
        unchanged: asked when the head is there: True if the data has the same version as before.
    """

    def __init__(self, engine: Engine, dataset: str, unchanged: Callable[[], bool]) -> None:
        self._engine = engine
        self._dataset = dataset
        self._unchanged = unchanged

    @property
    def name(self) -> str:
        """See `Engine.name`: what analysts call it."""
        return self._dataset

    def columns(self) -> Mapping[str, Kind]:
        """See `Engine.columns`."""
        return self._engine.columns()

    def scale(self, column: str) -> int:
        """See `Engine.scale`."""
        return self._engine.scale(column)

    def check_sum(self, column: str) -> None:
        """See `Engine.check_sum`."""
        self._engine.check_sum(column)

    def data_version(self) -> str | None:
        """See `Engine.data_version`."""
        return self._engine.data_version()

    def fetch(self, statement: str) -> pa.Table:
        """See `Engine.fetch`."""
        return self._engine.fetch(statement)

    def close(self) -> None:
        """See `Engine.close`."""
        self._engine.close()

    def check(self, request: HeadRequest) -> None:
        with self._without_hosts():
            self._engine.check(request)

    def head(
        self, request: HeadRequest, *, seed: bytes = b"", progress: Callable[[float], None] | None = None
    ) -> ExactHead:
        """See `Engine.head`."""
        with self._without_hosts():
            head = self._engine.head(request, seed=seed, progress=progress)
        self._check_unchanged()
        return head

    @property
    def has_pairs(self) -> bool:
        return self._engine.has_pairs

    @contextlib.contextmanager
    def pairs(
        self, request: HeadRequest, *, progress: Callable[[float], None] | None = None
    ) -> Iterator[UserItemPairs]:
        with self._without_hosts(), self._engine.pairs(request, progress=progress) as pairs:
            yield pairs
        self._check_unchanged()

    def _check_unchanged(self) -> None:
        if not self._unchanged():
            raise EngineError(f"the data of {self._dataset!r} got a new version while it was counted; ask again")

    @contextlib.contextmanager
    def _without_hosts(self) -> Iterator[None]:
        """Replace an engine's message, which may name files and hosts, by one that names the dataset."""
        try:
            yield
        except EngineError as error:
            kind = next(kind for kind in _SENTENCES if isinstance(error, kind))
            raise kind(_SENTENCES[kind].format(self._dataset)) from error
