"""Data centres in one process that reach each other over a wire which can be cut, and loses what it is told to."""

from __future__ import annotations

import io
import itertools
import json

import anyio.from_thread
import httpx

from discreet.budget.escrow import check_whole
from discreet.budget.manager import BudgetManager
from discreet.budget.stores.sqlite import SQLiteStore
from discreet.service.app import Runtime, create_app
from discreet.service.observability.logging import StructuredLog
from discreet.service.observability.traces import NullTracer
from discreet.service.peers import PeerKeys, Peers, peer_routes
from tests.budget.suite.base import FakeClock

from .deployment import Clock

KEY = "k" * 64


class Wire(httpx.BaseTransport):
    """Between all data centres.

    Attributes:
        cut: pairs that cannot reach each other.
        lose: numbers of the messages whose answers are lost, counted from the first.
        sent: path and JSON of all messages, by who sent them.
    """

    def __init__(self):
        self.apps, self.cut, self.lose, self.sent = {}, set(), set(), []

    def client(self, name):
        """What one of them reaches the others with."""
        wire = self

        class Outlet(httpx.BaseTransport):
            def handle_request(self, request):
                return wire.carry(name, request)

        return httpx.Client(transport=Outlet())

    def carry(self, sender, request):
        """A message to another one, and its answer."""
        recipient = request.url.host
        if {sender, recipient} in self.cut:
            raise httpx.ConnectError("cut", request=request)
        body = request.read()
        self.sent.append((sender, request.url.path, json.loads(body)))
        answer = self.apps[recipient].post(request.url.path, content=body, headers=dict(request.headers))
        if len(self.sent) in self.lose:
            raise httpx.ReadTimeout("lost", request=request)
        return httpx.Response(answer.status_code, headers=dict(answer.headers), content=answer.content)


class Caller:
    """Calls an application from any thread."""

    def __init__(self, app, portal):
        self._app, self._portal = app, portal

    def call(self, method, path, **request):
        """What it answers."""

        async def sending():
            transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://peer.example") as client:
                return await client.request(method, path, **request)

        return self._portal.call(sending)

    def post(self, path, **request):
        """POST."""
        return self.call("POST", path, **request)


class Centre:
    """A data centre: a store in memory, its manager, what reaches the others, and what others reach."""

    def __init__(self, name, wire, names, portal):
        self.name, self.clock = name, FakeClock()
        self.store = SQLiteStore.in_memory(self.clock)
        numbers = itertools.count()
        self.manager = BudgetManager(self.store, lambda: f"{name}-{next(numbers)}")
        self.lines = io.StringIO()
        log = StructuredLog(self.lines, "json", Clock())
        urls = {other: f"http://{other}" for other in names if other != name}
        self.peers = Peers(name, self.store, urls, PeerKeys([KEY]), wire.client(name), log)
        runtime = Runtime(monotonic=lambda: 0.0, new_id=lambda: f"request-{next(numbers)}")
        app = create_app(peer_routes(self.peers), runtime, NullTracer(), log, 0)
        self.app = Caller(app, portal)
        wire.apps[name] = self.app

    def events(self, name):
        """What was logged of that kind."""
        found = [json.loads(line) for line in self.lines.getvalue().splitlines()]
        return [event for event in found if event["event"] == name]

    def close(self):
        """All of it."""
        self.peers.close()
        self.store.close()


class Centres:
    """Several of them."""

    def __init__(self, number=2):
        self.wire = Wire()
        self._portal_of = anyio.from_thread.start_blocking_portal()
        portal, names = self._portal_of.__enter__(), [f"c{n}" for n in range(number)]
        self.all = [Centre(name, self.wire, names, portal) for name in names]

    def __enter__(self):
        return self

    def __exit__(self, *error):
        try:
            if error == (None, None, None):
                self.add_up()
        finally:
            for centre in self.all:
                centre.close()
            self._portal_of.__exit__(None, None, None)

    def __getitem__(self, number):
        return self.all[number]

    @property
    def stores(self):
        """Of all."""
        return [centre.store for centre in self.all]

    def exchange(self, times=1):
        """Everybody does so; it adds up after each."""
        for _ in range(times):
            for centre in self.all:
                centre.peers.exchange()
                self.add_up()

    def add_up(self):
        """I8: the shares are the totals, nobody has spent more than a share, and the ledgers say so too."""
        check_whole({store.id: store.shares.holdings() for store in self.stores})
        for store in self.stores:
            store.verify()
            for holding in store.shares.holdings():
                assert holding.spent.within(holding.limit)
