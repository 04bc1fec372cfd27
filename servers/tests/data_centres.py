"""Two data centres as they run: a PostgreSQL server and a service process each, and wires between them to be cut."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
from tests.budget.share_suite.base import check_whole, holding

from discreet.budget.stores.postgres import PostgresStore
from discreet.service.init_project import CATALOG, write_reads
from servers import postgres as server_of
from servers import process
from servers.tests.budget_places import new_place

_ROOT = Path(__file__).parents[2]
_PATIENCE_SECONDS = 60
_ENVIRONMENT = {"STORE_PASSWORD": server_of.OWNER, "PEER_KEY": "p" * 64}

# a service with short rounds, which kills itself before or after a part of a move if it is told to
_SERVE = """
import os, signal, sys
from discreet.budget.stores.transfers import ShareStore
from discreet.service import peers
from discreet.cli import main

peers.EVERY_SECONDS, peers.TIMEOUT_SECONDS = 0.1, 1.0
part, when = sys.argv.pop(1), sys.argv.pop(1)

def dying(whole):
    def until_then(*arguments):
        if when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        answer = whole(*arguments)
        if answer is not None or part == "acknowledge":
            os.kill(os.getpid(), signal.SIGKILL)
        return answer
    return until_then

if part != "-":
    setattr(ShareStore, part, dying(getattr(ShareStore, part)))
main()
"""

_SETTINGS = """
[service]
catalog = "catalog.toml"
port = {port}
requests_per_minute = 0
[store]
url = "{url}"
password_env = "STORE_PASSWORD"
[noise]
key_file = "noise.key"
[datacentre]
name = "{name}"
key_env = "PEER_KEY"
peers.{other} = "http://127.0.0.1:{wire}"
"""


class Wire:
    """Carries what is sent to its port to another one, unless it is cut.

    Args:
        to: the other port.
    """

    def __init__(self, to):
        self._to = to
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.cut = False
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client):
        with client, contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._to)) as server:
            while not self.cut:
                for ready in select.select([client, server], [], [], 0.02)[0]:
                    data = ready.recv(65_536)
                    if not data or self.cut:
                        return
                    (server if ready is client else client).sendall(data)

    def close(self):
        """Carry nothing any more."""
        self.cut = True
        self._listener.close()


class DataCentre:
    """A data centre.

    Args:
        name: of it.
        folder: for its files.
        server: URL of its PostgreSQL server, as the reader.
    """

    def __init__(self, name, folder, server):
        self.name, self.folder, self._place = name, folder, new_place(server)
        self.port = process.free_port()
        self.wire = Wire(self.port)
        self.store = PostgresStore(self._place)
        self.keys, self._service = {}, None
        folder.mkdir()
        (folder / "noise.key").write_bytes(b"n" * 32)
        (folder / "noise.key").chmod(0o600)
        (folder / "catalog.toml").write_text(CATALOG)

    def settle_in(self, other):
        """Write its settings, and make keys for everybody."""
        url = self._place.replace(f":{server_of.OWNER}@", "@")
        text = _SETTINGS.format(port=self.port, url=url, name=self.name, other=other.name, wire=other.wire.port)
        (self.folder / "discreet.toml").write_text(text)
        made = self.run("key", "admin", "--config", str(self.folder / "discreet.toml"), "--reason", "a test")
        self.keys["admin"] = made.stdout.strip()

    def hire(self, role, account=None):
        """A key for somebody."""
        asked = {"account": account, "roles": [role], "reason": "a test"}
        self.keys[role] = self.call("POST", "/v1/admin/keys", "admin", json=asked).json()["key"]

    # ------------------------------------------------------------------------------------------ processes

    def start(self, part="-", when="-"):
        """Serve; and die before or after a part of a move."""
        command = [sys.executable, "-c", _SERVE, part, when, "serve", str(self.folder / "discreet.toml")]
        self._log = (self.folder / "log").open("ab")
        self._service = subprocess.Popen(
            command, cwd=_ROOT, stdout=self._log, stderr=self._log, env={**os.environ, **_ENVIRONMENT}
        )

    def ready(self):
        """Wait until it answers."""
        until(lambda: self._service.poll() is not None or self._answers())
        assert self._service.poll() is None, (self.folder / "log").read_text()
        return self

    def died(self):
        """Wait until it has killed itself."""
        assert self._service.wait(_PATIENCE_SECONDS) == -9
        self._log.close()

    def stop(self):
        """End it, if it runs."""
        if self._service is not None and self._service.poll() is None:
            self._service.terminate()
            self._service.wait(_PATIENCE_SECONDS)
        if self._service is not None:
            self._log.close()

    def close(self):
        """All of it."""
        self.stop()
        self.wire.close()
        self.store.close()

    def run(self, *words):
        """A command of discreet's."""
        command, environment = [sys.executable, "-m", "discreet", *words], {**os.environ, **_ENVIRONMENT}
        return subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True, check=True)

    # ------------------------------------------------------------------------------------------ requests

    def call(self, method, path, role, **request):
        """What it answers to one of its people."""
        headers = {"Authorization": f"Bearer {self.keys[role]}"}
        answer = httpx.request(
            method, f"http://127.0.0.1:{self.port}{path}", headers=headers, timeout=_PATIENCE_SECONDS, **request
        )
        assert answer.status_code < 300 or role == "analyst", answer.text
        return answer

    def ask(self, k):
        """A question that was not asked before; the status of the answer."""
        statement = f"SELECT article, COUNT(DISTINCT reader) FROM reads GROUP BY article LIMIT {k}"
        return self.call("POST", "/v1/query", "analyst", json={"sql": statement, "epsilon": 1.0}).status_code

    def open_account(self, name, epsilon, parent=None):
        """An account whose whole limit is here at first."""
        limit = {"epsilon": epsilon, "delta": "1e-6"}
        asked = {"account": name, "parent": parent, "limit": limit, "reason": "a test"}
        self.call("POST", "/v1/admin/accounts", "officer", json=asked)

    def _answers(self):
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}/readyz").status_code == 200
        except httpx.HTTPError:
            return False

    # ------------------------------------------------------------------------------------------ what is there

    def has(self, name):
        """True if it has a share of that account."""
        return any(account.id == name for account in self.store.accounts())

    def holding(self, name="ann"):
        """Its share of an account."""
        return holding(self.store, name)

    def events(self, name):
        """What it logged of that kind."""
        lines = [line for line in (self.folder / "log").read_text().splitlines() if line.startswith("{")]
        return [event for event in map(json.loads, lines) if event["event"] == name]


class DataCentres:
    """Two of them: frankfurt and dublin.

    Args:
        folder: a new one, for both.
        servers: URLs of their PostgreSQL servers.
    """

    def __init__(self, folder, servers):
        self.frankfurt = DataCentre("frankfurt", folder / "frankfurt", servers[0])
        self.dublin = DataCentre("dublin", folder / "dublin", servers[1])
        self.both = (self.frankfurt, self.dublin)
        write_reads(self.frankfurt.folder / "reads.parquet")
        shutil.copy(self.frankfurt.folder / "reads.parquet", self.dublin.folder)
        for centre, other in (self.both, self.both[::-1]):
            centre.settle_in(other)

    def start(self):
        """Serve, with an officer each."""
        for centre in self.both:
            centre.start()
        for centre in self.both:
            centre.ready().hire("officer")

    def share(self):
        """Open a budget, of which both get a half, for an analyst of both."""
        self.frankfurt.open_account("org", 8.0)
        self.frankfurt.open_account("ann", 4.0, "org")
        until(lambda: self.dublin.has("ann") and not self.in_flight())
        for centre in self.both:
            centre.hire("analyst", "ann")
            centre.call("PUT", "/v1/admin/grants/org/reads", "officer", json={"columns": None, "reason": "a test"})
        self.add_up()

    def cut(self):
        """Nothing gets from one to the other."""
        for centre in self.both:
            centre.wire.cut = True

    def heal(self):
        """Everything does again."""
        for centre in self.both:
            centre.wire.cut = False

    def in_flight(self):
        """True if something is on its way."""
        return any(
            out.pending is not None
            for centre in self.both
            for each in centre.store.shares.holdings()
            for out in each.outgoing.values()
        )

    def add_up(self):
        """I8: the shares are the totals, nobody has spent more than a share, and each ledger says so too.

        What is read of one store may be older than what is read of the other: while shares move it is read again.
        """

        def stands_still():
            found = [self._read() for _ in range(2)]
            return found[0] if found[0] == found[1] else None

        whole = until(stands_still)
        check_whole(whole)
        for holdings in whole.values():
            for each in holdings:
                assert each.spent.within(each.limit)
        for centre in self.both:
            centre.store.verify()

    def _read(self):
        return {centre.store.id: centre.store.shares.holdings() for centre in self.both}

    def close(self):
        """All of it."""
        for centre in self.both:
            centre.close()


def until(found):
    """Ask until there is something, and return it."""
    end = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < end:
        answer = found()
        if answer:
            return answer
    raise AssertionError("it did not happen")
