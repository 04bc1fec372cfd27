"""Clients of a scripted server."""

from __future__ import annotations

import contextlib

import pytest

from discreet.client import Client
from discreet.client.retries import RetryRuntime

from .scripted_server import FakeRuntime, ScriptedServer

KEY = "dsc_0123456789abcdef_" + "5ec2e7" * 10 + "abcd"


@pytest.fixture
def make_client():
    """Return a function that makes a client of a scripted server, with both and the fake runtime."""
    with contextlib.ExitStack() as stack:

        def make(script, **settings):
            server = ScriptedServer(script)
            stack.callback(server.close)
            fake = FakeRuntime()
            runtime = RetryRuntime(fake.clock, fake.sleep, fake.random, fake.ids)
            client = stack.enter_context(Client(server.url, KEY, runtime=runtime, **settings))
            return client, server, fake

        yield make
