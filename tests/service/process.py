"""The service as a process, `discreet serve`, on a free port."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx

from discreet.service.init_project import QUESTION


class ServiceProcess:
    """Runs a service until it is stopped.

    Args:
        folder: made by `discreet init`.
        keys: by role.
        arguments: of `discreet serve`.
        serve: the command without its arguments.
    """

    def __init__(
        self,
        folder,
        keys,
        *arguments,
        settings="discreet.toml",
        serve=(sys.executable, "-m", "discreet", "serve"),
    ):
        self._process = subprocess.Popen(
            [*serve, settings, "--port", "0", *arguments],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=dict(os.environ),
            start_new_session=True,
        )
        self.keys, self.url, self.err = keys, None, ""
        for line in self._process.stderr:
            found = re.search(r"https?://\S+", line)
            if found:
                self.url = found[0]
                break
            self.err += line
        self.lines: list[str] = []
        self._seen = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(ProcessLookupError):  # its workers, too: while one lives, the pipe has no end
            os.killpg(self._process.pid, signal.SIGKILL)
        self.end()

    def _read(self):
        for line in self._process.stdout:
            with self._seen:
                self.lines.append(line)
                self._seen.notify_all()

    def until(self, event):
        """Wait until an event is logged, and return it."""
        with self._seen:
            assert self._seen.wait_for(lambda: self.events(event), 60)
            return self.events(event)[0]

    def until_count(self, event, count):
        """Wait until an event is logged *count* times."""
        with self._seen:
            assert self._seen.wait_for(lambda: len(self.events(event)) >= count, 60)

    def children(self):
        """Return the ids of its child processes, without Python's own."""
        task = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        found = [int(word) for word in task.read_text().split()]
        return [pid for pid in found if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    def events(self, name):
        """Return the logged events of that name."""
        return [event for event in map(json.loads, self.lines) if event["event"] == name]

    def ask(self, question=QUESTION, **options):
        """POST /v1/query as the analyst."""
        headers = {"Authorization": f"Bearer {self.keys['analyst']}"}
        return httpx.post(f"{self.url}/v1/query", headers=headers, json={"sql": question, **options}, timeout=60)

    def get(self, path, role=None):
        """GET, with the API key of a role or without one."""
        headers = {} if role is None else {"Authorization": f"Bearer {self.keys[role]}"}
        return httpx.get(f"{self.url}{path}", headers=headers, timeout=60)

    def signal(self, number):
        """Send it a signal."""
        self._process.send_signal(number)

    def stop(self):
        """Send SIGTERM, and return the exit code."""
        self.signal(signal.SIGTERM)
        return self.end()

    def end(self):
        """Wait until it exits, and return the exit code."""
        code = self._process.wait(60)
        self._reader.join()
        self.err += self._process.stderr.read()
        self._process.stdout.close()
        self._process.stderr.close()
        self.end = lambda: code
        return code
