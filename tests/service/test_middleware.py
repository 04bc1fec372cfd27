"""The middleware: response times on a grid, and messages that pass through."""

from __future__ import annotations

import pytest


def test_responses_are_sent_on_a_time_grid(services):
    """Durations are not visible beyond the grid, neither in responses nor in the log."""
    service = services(service="release_grid_ms = 50")
    engine = service.warehouse.engine("reads")
    head = engine.head

    def slow(*arguments, **named):
        service.monotonic.now += 0.07
        return head(*arguments, **named)

    engine.head = slow
    service.ask()
    assert service.monotonic.pauses == [pytest.approx(0.03)]
    assert service.events("requested")[-1]["milliseconds"] == 100

    def fails(*_, **__):
        service.monotonic.now += 0.011
        raise OSError

    engine.head = fails
    service.ask(epsilon=0.7)
    assert service.monotonic.pauses[1:] == [pytest.approx(0.039)]
    assert service.events("requested")[-1]["milliseconds"] == 50


def test_lifespan_messages_pass_through(service):
    """Lifespan messages are no requests, and are not logged."""
    messages = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
    sent, before = [], service.events()

    async def live():
        async def receive():
            return messages.pop(0)

        async def send(message):
            sent.append(message["type"])

        await service.app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send)

    service.portal.call(live)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert service.events() == before
