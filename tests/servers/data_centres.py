"""Two data centres, each with a PostgreSQL server and a service process, joined by connections that tests can cut."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import httpx

from discreet.budget.stores.postgres import PostgresStore
from discreet.service.init_project import CATALOG, write_reads
from tests.budget.sharing.suite.base import check_whole, holding
from tests.servers import postgres as server_of
from tests.servers import process
from tests.servers.budget_schemas import new_schema
from tests.servers.proxies import SwitchedProxy

_ROOT = Path(__file__).parents[2]
_PATIENCE_SECONDS = 60
_ENVIRONMENT = {"STORE_PASSWORD": server_of.OWNER, "PEER_KEY": "p" * 64}

# a service with short polling intervals that kills itself before or after a given step of a transfer
_SERVE = """
import os, signal, sys
from discreet.budget.sharing.transfers import ShareStore
from discreet.service import peers
from discreet.cli import main

peers.EVERY_SECONDS, peers.TIMEOUT_SECONDS = 0.1, 5.0
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
peers.{other} = "http://127.0.0.1:{proxy}"
"""


class DataCentre:
    """A data centre: a PostgreSQL store, a service process and the proxy that its peer connects to.

    Args:
        name: its name.
        folder: a new folder for its files.
        server: URL of its PostgreSQL server, with the reader's credentials.
    """

    def __init__(self, name, folder, server):
        self.name, self.folder, self._store_url = name, folder, new_schema(server)
        self.port = process.free_port()
        self.proxy = SwitchedProxy(("127.0.0.1", self.port))
        self.store = PostgresStore(self._store_url)
        self.keys, self._service = {}, None
        folder.mkdir()
        (folder / "noise.key").write_bytes(b"n" * 32)
        (folder / "noise.key").chmod(0o600)
        (folder / "catalog.toml").write_text(CATALOG)

    def configure(self, other):
        """Write its settings and create the administrator's key."""
        url = self._store_url.replace(f":{server_of.OWNER}@", "@")
        text = _SETTINGS.format(port=self.port, url=url, name=self.name, other=other.name, proxy=other.proxy.port)
        (self.folder / "discreet.toml").write_text(text)
        made = self.run("key", "admin", "--config", str(self.folder / "discreet.toml"), "--reason", "a test")
        self.keys["admin"] = made.stdout.strip()

    def create_key(self, role, account=None):
        """Create an API key for a role."""
        asked = {"account": account, "roles": [role], "reason": "a test"}
        self.keys[role] = self.call("POST", "/v1/admin/keys", "admin", json=asked).json()["key"]

    # ------------------------------------------------------------------------------------------ processes

    def start(self, part="-", when="-"):
        """Start the service; optionally have it die before or after a step of a transfer."""
        command = [sys.executable, "-c", _SERVE, part, when, "serve", str(self.folder / "discreet.toml")]
        self._log = (self.folder / "log").open("ab")
        self._service = subprocess.Popen(
            command, cwd=_ROOT, stdout=self._log, stderr=self._log, env={**os.environ, **_ENVIRONMENT}
        )

    def ready(self):
        """Wait until the service is ready, and return self."""
        wait_until(lambda: self._service.poll() is not None or self._answers())
        assert self._service.poll() is None, (self.folder / "log").read_text()
        return self

    def wait_until_killed(self):
        """Wait until the service has killed itself."""
        assert self._service.wait(_PATIENCE_SECONDS) == -9
        self._log.close()

    def stop(self):
        """Stop the service if it is running."""
        if self._service is not None and self._service.poll() is None:
            self._service.terminate()
            self._service.wait(_PATIENCE_SECONDS)
        if self._service is not None:
            self._log.close()

    def close(self):
        """Stop the service and close the proxy and the store."""
        self.stop()
        self.proxy.close()
        self.store.close()

    def run(self, *words):
        """Run a discreet command."""
        command, environment = [sys.executable, "-m", "discreet", *words], {**os.environ, **_ENVIRONMENT}
        return subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True, check=True)

    # ------------------------------------------------------------------------------------------ requests

    def call(self, method, path, role, **request):
        """Send a request with a role's key and return the response."""
        headers = {"Authorization": f"Bearer {self.keys[role]}"}
        answer = httpx.request(
            method, f"http://127.0.0.1:{self.port}{path}", headers=headers, timeout=_PATIENCE_SECONDS, **request
        )
        assert answer.status_code < 300 or role == "analyst", answer.text
        return answer

    def ask(self, k):
        """Send a query with the limit *k* and return the response's status."""
        statement = f"SELECT article, COUNT(DISTINCT reader) FROM reads GROUP BY article LIMIT {k}"
        return self.call("POST", "/v1/query", "analyst", json={"sql": statement, "epsilon": 1.0}).status_code

    def open_account(self, name, epsilon, parent=None):
        """Create an account whose whole limit starts in this data centre."""
        limit = {"epsilon": epsilon, "delta": "1e-6"}
        asked = {"account": name, "parent": parent, "limit": limit, "reason": "a test"}
        self.call("POST", "/v1/admin/accounts", "officer", json=asked)

    def _answers(self):
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}/readyz").status_code == 200
        except httpx.HTTPError:
            return False

    # ------------------------------------------------------------------------------------------ state

    def has(self, name):
        """Return True if the store has a share of an account."""
        return any(account.id == name for account in self.store.accounts())

    def holding(self, name="ann"):
        """Return its share of an account."""
        return holding(self.store, name)

    def events(self, name):
        """Return the logged events with that name."""
        lines = [line for line in (self.folder / "log").read_text().splitlines() if line.startswith("{")]
        return [event for event in map(json.loads, lines) if event["event"] == name]


class DataCentres:
    """Two data centres, frankfurt and dublin.

    Args:
        folder: a new folder for the files of both.
        servers: URLs of their PostgreSQL servers.
    """

    def __init__(self, folder, servers):
        self.frankfurt = DataCentre("frankfurt", folder / "frankfurt", servers[0])
        self.dublin = DataCentre("dublin", folder / "dublin", servers[1])
        self.both = (self.frankfurt, self.dublin)
        write_reads(self.frankfurt.folder / "reads.parquet")
        shutil.copy(self.frankfurt.folder / "reads.parquet", self.dublin.folder)
        for centre, other in (self.both, self.both[::-1]):
            centre.configure(other)

    def start(self):
        """Start both services and create an officer's key in each."""
        for centre in self.both:
            centre.start()
        for centre in self.both:
            centre.ready().create_key("officer")

    def share(self):
        """Create an account that both share in halves, with an analyst's key in each."""
        self.frankfurt.open_account("org", 8.0)
        self.frankfurt.open_account("ann", 4.0, "org")
        wait_until(lambda: self.dublin.has("ann") and not self.in_flight())
        for centre in self.both:
            centre.create_key("analyst", "ann")
            centre.call("PUT", "/v1/admin/grants/org/reads", "officer", json={"columns": None, "reason": "a test"})
        self.check_sums()

    def cut(self):
        """Cut the connections between them."""
        for centre in self.both:
            centre.proxy.cut = True

    def heal(self):
        """Restore the connections between them."""
        for centre in self.both:
            centre.proxy.cut = False

    def in_flight(self):
        """Return True if a transfer is pending."""
        return any(
            out.pending is not None
            for centre in self.both
            for each in centre.store.shares.holdings()
            for out in each.outgoing.values()
        )

    def check_sums(self):
        """Check I8: shares add up to the totals, spending is within each share, and each ledger verifies.

        The two stores are not read at one instant, so both are read again until two readings agree.
        """

        def stands_still():
            found = [self._read() for _ in range(2)]
            return found[0] if found[0] == found[1] else None

        whole = wait_until(stands_still)
        check_whole(whole)
        for holdings in whole.values():
            for each in holdings:
                assert each.spent.within(each.limit)
        for centre in self.both:
            centre.store.verify()

    def _read(self):
        return {centre.store.id: centre.store.shares.holdings() for centre in self.both}

    def close(self):
        """Close both."""
        for centre in self.both:
            centre.close()


def wait_until(found):
    """Call *found* until it returns a true value, and return that."""
    end = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < end:
        answer = found()
        if answer:
            return answer
    raise AssertionError("it did not happen")
