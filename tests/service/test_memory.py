"""The memory of a service does not grow with requests, whether they are answered, replayed or refused.

python -m tests.service.test_memory 100000 sends so many requests, and prints the memory of the process.
"""

from __future__ import annotations

import functools
import gc
import resource
import sys
import tempfile
from pathlib import Path

from discreet.service.answering.queries import ReplayCache
from discreet.values import Cost
from tests.budget.suite import set_limit

from .deployment import ACT, DELTA, TOP, Deployment

WARM, MORE = 40, 60
"""Rounds of requests."""


def ask_round(service, number):
    """Send a new query, its repetition, an estimate, and refusals of all kinds; all are new in each round."""
    question = TOP.replace("GROUP", f"WHERE article <> 'x{number}' GROUP")
    replies = [
        service.ask(question, key=f"first-{number}"),
        service.ask(question, key=f"second-{number}"),
        service.ask(
            question.replace("reads", "loose").replace(f" WHERE article <> 'x{number}'", ""), key=f"loose-{number}"
        ),
        service.send("POST", "/v1/estimate", json={"sql": question}),
        service.ask(question, key=f"second-{number}", epsilon=0.5),
        service.ask(question.replace("article", f"article{number}")),
        service.ask(question.replace("reads", f"reads{number}")),
        service.ask(f"SELECT {number}"),
        service.send("GET", f"/v1/releases/{number:064x}"),
        service.send("GET", f"/v1/datasets/d{number}"),
        service.send("GET", f"/nowhere/{number}"),
        service.send("GET", "/v1/budget", f"dsc_{number:016x}_{number:064x}"),
        service.ask(question, "bob"),
    ]
    return [reply.status_code for reply in replies]


EXPECTED = [200, 200, 200, 200, 409, 404, 404, 400, 404, 404, 404, 401, 403]


def prepared(deployment, service):
    """Give ann an unlimited budget and bob none."""
    for account, rho in (("sales", 10**6), ("ann@sales", 10**6), ("bob@sales", 0)):
        set_limit(service.manager.store, account, Cost(rho, DELTA / 2 * (rho > 0)), DELTA, ACT)
        limit = service.manager.store.account(account)
        service.manager.store.alter(
            limit.with_limit(Cost(limit.limit.rho, DELTA * 10**5 * (rho > 0)), DELTA * 10**6 / 2), ACT
        )
    deployment.responses = _Forgets()


class _Forgets(set):
    """A set that keeps nothing of the sent responses."""

    def add(self, _):
        """Drop the response."""


def allocated(service):
    """Return the number of memory blocks that Python has allocated, without caches that are known to be bounded."""
    service.log.seek(0)
    service.log.truncate()
    gc.unfreeze()  # see tests/conftest.py: frozen objects are not among them
    gc.collect()
    for cache in [found for found in gc.get_objects() if isinstance(found, functools._lru_cache_wrapper)]:
        if cache.__module__.startswith("discreet"):
            assert cache.cache_info().maxsize is not None
            cache.cache_clear()
    gc.collect()
    gc.freeze()
    return sys.getallocatedblocks()


def test_memory_does_not_grow_with_queries(tmp_path, monkeypatch):
    """All state of a request is released: a request leaves less than one memory block."""
    monkeypatch.setattr("discreet.service.app.ReplayCache", functools.partial(ReplayCache, max_bytes=30_000))
    deployment = Deployment(tmp_path / "deployment")
    with deployment.open() as service:
        prepared(deployment, service)
        for number in range(WARM):
            assert ask_round(service, number) == EXPECTED
        before = allocated(service)
        for number in range(WARM, WARM + MORE):
            ask_round(service, number)
        assert allocated(service) - before < MORE * len(EXPECTED)


def main():
    """Send requests, and print the memory of the process."""
    count = int(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        deployment = Deployment(Path(folder) / "deployment")
        with deployment.open(checked=False) as service:
            prepared(deployment, service)
            for number in range(count // len(EXPECTED)):
                if ask_round(service, number) != EXPECTED:
                    raise SystemExit("a question was answered otherwise than it should be")
                service.log.seek(0)
                service.log.truncate()
                if number % 100 == 0:
                    pages = int(Path("/proc/self/statm").read_text().split()[1])
                    sys.stdout.write(
                        f"{number * len(EXPECTED):>8,} {pages * resource.getpagesize() / 2**20:8.1f} MiB\n"
                    )


if __name__ == "__main__":
    main()
