"""Clients of servers that do as they are told."""

from __future__ import annotations

import contextlib

import pytest

from discreet.client import Client
from discreet.client.retries import Runtime

from .scripted import Scripted, World

KEY = "dsc_0123456789abcdef_" + "5ec2e7" * 10 + "abcd"


@pytest.fixture
def scripted():
    """To make a client of a script, with its server and its world."""
    with contextlib.ExitStack() as stack:

        def make(script, **settings):
            server = Scripted(script)
            stack.callback(server.close)
            world = World()
            runtime = Runtime(world.clock, world.sleep, world.chance, world.ids)
            client = stack.enter_context(Client(server.url, KEY, runtime=runtime, **settings))
            return client, server, world

        yield make
