"""Data centres in one process, with a network that can be cut and can lose responses."""

from __future__ import annotations

import io
import itertools
import json

import anyio.from_thread
import httpx

from discreet.budget.manager import BudgetManager
from discreet.budget.stores.sqlite import SQLiteStore
from discreet.service.app import create_app
from discreet.service.observability import NullTracer, StructuredLog
from discreet.service.peers import PeerKeys, Peers, peer_routes
from discreet.service.runtime import Runtime
from tests.budget.sharing.suite.base import check_whole
from tests.budget.suite.base import FakeClock

from .deployment import Clock

KEY = "k" * 64


class Wire(httpx.BaseTransport):
    """The network between all data centres.

    Attributes:
        cut: pairs that cannot reach each other.
        lose: numbers of the messages whose responses are lost, counted from 1.
        sent: sender, path and JSON of all messages.
    """

    def __init__(self):
        self.apps, self.cut, self.lose, self.sent = {}, set(), set(), []

    def client(self, name):
        """Return the HTTP client of a data centre."""
        wire = self

        class Outlet(httpx.BaseTransport):
            def handle_request(self, request):
                return wire.carry(name, request)

        return httpx.Client(transport=Outlet())

    def carry(self, sender, request):
        """Deliver a message and return the response."""
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
        """Return the response to a request."""

        async def sending():
            transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://peer.example") as client:
                return await client.request(method, path, **request)

        return self._portal.call(sending)

    def post(self, path, **request):
        """POST."""
        return self.call("POST", path, **request)


class Centre:
    """A data centre: a store in memory, its manager, its client and its application."""

    def __init__(self, name, wire, names, portal):
        self.name, self.clock = name, FakeClock()
        self.store = SQLiteStore(None, self.clock)
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
        """Return the logged events of that name."""
        found = [json.loads(line) for line in self.lines.getvalue().splitlines()]
        return [event for event in found if event["event"] == name]

    def close(self):
        """Close the client and the store."""
        self.peers.close()
        self.store.close()


class Centres:
    """Several data centres on one network."""

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
        """Return the stores of all data centres."""
        return [centre.store for centre in self.all]

    def exchange(self, times=1):
        """Exchange shares from each data centre, and check the sums after each."""
        for _ in range(times):
            for centre in self.all:
                centre.peers.exchange()
                self.add_up()

    def add_up(self):
        """Check I8: the shares sum to the totals, no store has spent more than its share, and the ledgers verify."""
        check_whole({store.id: store.shares.holdings() for store in self.stores})
        for store in self.stores:
            store.verify()
            for holding in store.shares.holdings():
                assert holding.spent.within(holding.limit)
