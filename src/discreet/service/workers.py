"""Several processes that serve at one port, behind one PostgreSQL store."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

from discreet.errors import DiscreetError
from discreet.service.load import load_settings
from discreet.service.start import listen, open_parts, serve, url_of

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping
    from multiprocessing.context import SpawnProcess

    from discreet.service.settings import Settings


class WorkerDied(DiscreetError):
    """A process of the service ended by itself; the others were stopped."""


def serve_many(
    path: str,
    overrides: Mapping[str, Any],
    settings: Settings,
    environment: Mapping[str, str],
    announce: Callable[[str], None],
) -> None:
    """Serve in as many processes as the settings say, until SIGTERM or SIGINT.

    If one of them ends by itself, all do: whoever watches over the service starts it anew.

    Args:
        path: of the settings file, which each process reads.
        overrides: settings in place of the file's.
        settings: the same as this process read them.
        environment: the variables in which secrets are.
        announce: is told the URL.

    Raises:
        WorkerDied: a process ended by itself.
        DiscreetError: as `open_parts`.
    """
    context = multiprocessing.get_context("spawn")
    with contextlib.closing(listen(settings)) as listener:
        with open_parts(settings, environment):  # what is wrong is told once, and schemas are made by one
            pass
        workers = [
            context.Process(target=_work, args=(path, dict(overrides), listener), name=f"worker {n + 1}")
            for n in range(settings.service.workers)
        ]
        asked: list[int] = []
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: _pass_on(asked, workers, number))
        for worker in workers:
            worker.start()
        announce(url_of(listener))
        wait([worker.sentinel for worker in workers])
        died = not asked
        _pass_on(asked, workers, signal.SIGTERM)
        for worker in workers:
            worker.join()
    if died:
        raise WorkerDied("a process of the service ended by itself, so the others were stopped; its log says more")


def _pass_on(asked: list[int], workers: list[SpawnProcess], number: int) -> None:
    asked.append(number)
    for worker in workers:
        if worker.is_alive():
            worker.terminate()


def _work(path: str, overrides: dict[str, Any], listener: socket.socket) -> None:
    """What each process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which passes it on once
    try:
        serve(load_settings(path, overrides), os.environ, lambda _: None, listener)
    except DiscreetError as error:
        sys.stderr.write(f"discreet: {error}\n")
        sys.exit(3)
