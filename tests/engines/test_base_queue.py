"""The request queue of an engine: its order, bound and deadline, and that waiting costs nothing."""

from __future__ import annotations

import threading
from fractions import Fraction

import pytest

from discreet.budget import Budget
from discreet.engines import base
from discreet.engines.base import RequestQueue
from discreet.errors import EngineBusy
from discreet.noise import SystemBits
from discreet.query.planning import make_plan
from discreet.release import answer
from discreet.values import Cost
from tests.queries import query_of
from tests.release.builders import TinyEngine


class Gone(Exception):
    """The client left."""


def leave(_):
    """Raise the error of a client that left, as `progress` does."""
    raise Gone


@pytest.fixture(autouse=True)
def _fast(monkeypatch):
    monkeypatch.setattr(base, "_POLL_SECONDS", 1e-3)


def test_slots_are_given_in_the_order_of_arrival():
    """No request overtakes another, however the threads are scheduled."""
    queue, order, arrived, threads = RequestQueue(1), [], threading.Semaphore(0), []

    def enter(n):
        waited = False

        def progress(_):
            nonlocal waited
            if not waited:
                waited = True
                arrived.release()

        with queue.slot(progress):
            order.append(n)

    with queue.slot():
        for n in range(4):
            threads.append(threading.Thread(target=enter, args=(n,)))
            threads[-1].start()
            arrived.acquire()
        assert order == []
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3]


def test_requests_beyond_the_bound_are_refused_at_once():
    """Four requests wait for each slot; the next one is refused, and those that leave make room."""
    queue, waiting, leaving, threads = RequestQueue(1), threading.Semaphore(0), threading.Event(), []

    def wait():
        def progress(_):
            waiting.release()
            if leaving.wait():
                raise Gone

        with pytest.raises(Gone), queue.slot(progress):
            pass

    with queue.slot():
        for _ in range(4):
            threads.append(threading.Thread(target=wait))
            threads[-1].start()
            waiting.acquire()
        with pytest.raises(EngineBusy, match="4 queries wait"), queue.slot():
            pass
        leaving.set()
        for thread in threads:
            thread.join()
        with pytest.raises(Gone), queue.slot(leave):
            pass
    with queue.slot():
        pass


def test_waiting_has_a_deadline():
    """The deadline is the engine's `timeout_seconds`."""
    queue = RequestQueue(1, 0.01)
    with queue.slot(), pytest.raises(EngineBusy, match=r"0\.01 seconds"), queue.slot():
        pass


@pytest.mark.parametrize("progress", [None, leave], ids=["deadline", "client left"])
def test_a_query_that_ends_while_it_waits_costs_nothing(progress):
    """I3: neither the engine nor the budget is used, since no data was queried."""
    budget, engine, queue = Budget(5, 1e-8), TinyEngine(), RequestQueue(1, 0.01 if progress is None else None)
    plan = make_plan(query_of("user", ("item",), 4.0, Fraction(1, 10**9), k=3), shared_budget=True)
    calls = []

    def later(share):
        calls.append(share)
        if len(calls) > 1:
            leave(share)

    with queue.slot(), pytest.raises(EngineBusy if progress is None else Gone):
        answer(plan, engine, budget, SystemBits(), queue=queue, progress=None if progress is None else later)
    assert (budget.spent, budget.held) == (Cost(), Cost())
    assert (engine.checked, engine.requests) == ([], [])
    answer(plan, engine, budget, SystemBits(), queue=queue)
    with queue.slot():
        pass
