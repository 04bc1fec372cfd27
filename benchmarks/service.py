"""The HTTP service compared with its baselines: the same service without privacy, and Starlette alone."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import math
import multiprocessing
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.serving import add_analyst, prepare
from benchmarks.timing import table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROWS = 1_000_000
CLIENTS = 8
ROUNDS = 7
SQL = "SELECT article, COUNT(DISTINCT reader) FROM reads WHERE visits <> {number} GROUP BY article LIMIT {k}"


@dataclass
class Load:
    """Measurements of one kind of request.

    Args:
        path: path of the request.
        body: returns the body of the next request.
        each: number of requests of every client in a round.
        rates: requests per second of each round.
        seconds: seconds of each request.
        cpu: CPU seconds of the service for a request, of each round.
    """

    path: str
    body: Callable[[], dict[str, object]]
    each: int
    rates: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Return the median of the rounds' requests per second."""
        return statistics.median(self.rates)

    @property
    def p99(self) -> float:
        """Return the 99th percentile of a request's time in seconds."""
        return statistics.quantiles(self.seconds, n=100)[98]


def run() -> list[str]:
    """New queries (a million rows, dbar 1,000) and repeated ones, by 8 clients, in turns with their baselines.

    The clients are threads of another process, so that the service, not a client, is the limit of repeated queries.
    """
    numbers = itertools.count(100)

    def by_head() -> dict[str, object]:
        return {"sql": SQL.format(number=next(numbers), k=100), "mechanism": "gumbel"}

    def by_default() -> dict[str, object]:
        return {"sql": SQL.format(number=next(numbers), k=100)}

    def repeated() -> dict[str, object]:
        return {"sql": SQL.format(number=1, k=10)}

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        key = prepare(folder, ROWS)
        spawning = multiprocessing.get_context("spawn")
        with (
            started(str(folder)) as service,
            started("echo") as bare,
            ProcessPoolExecutor(1, spawning) as clients,
        ):
            private, raw = Load("/v1/query", by_head, 16), Load("/raw", by_head, 16)
            default = Load("/v1/query", by_default, 2)
            replay = Load("/v1/query", repeated, 1_000)
            echo = Load("/echo", repeated, 1_000)
            for counted in range(ROUNDS + 1):
                for load, (port, pid) in (
                    (private, service),
                    (raw, service),
                    (default, service),
                    (replay, service),
                    (echo, bare),
                ):
                    bodies = [[load.body() for _ in range(load.each)] for _ in range(CLIENTS)]
                    before = _cpu_seconds(pid)
                    seconds, took = clients.submit(_requests, port, key, load.path, bodies).result()
                    if counted:
                        load.rates.append(len(seconds) / took)
                        load.seconds += seconds
                        load.cpu.append((_cpu_seconds(pid) - before) / len(seconds))
    return table(
        ["requests", "ours", "floor", "throughput", "p99", "CPU"],
        [
            _row("new questions from the head (gumbel) : the raw head", private, raw),
            _row("new questions by two rounds (the default) : the raw head", default, raw),
            _row("repeated questions : a bare echo", replay, echo),
        ],
    )


def memory(questions: int = 100_000) -> list[str]:
    """Resident memory of the service over 100,000 queries: a tenth of them new, the others replays."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        key = prepare(folder, 1_000)
        with started(str(folder)) as (port, pid):
            numbers = itertools.count()

            def mixed() -> dict[str, object]:
                n = next(numbers)
                return {"sql": SQL.format(number=100 + (n if n % 10 == 0 else n * 7 % (n + 1) // 10 * 10), k=10)}

            each = questions // 10 // CLIENTS
            for part in range(1, 11):
                _round(Load("/v1/query", mixed, each), port, key)
                rows.append([f"{part * each * CLIENTS:,}", f"{resident_mib(pid):.0f} MiB"])
    return table(["questions", "resident memory"], rows)


ANALYSTS = 16


def analysts() -> list[str]:
    """Resident memory while 16 analysts send new queries at once over a million rows, by two settings."""
    rows = []
    for most, mib in ((4, None), (16, None), (16, 128)):
        with tempfile.TemporaryDirectory() as name:
            keys = [prepare(Path(name), ROWS, most, mib)]
            keys += [add_analyst(Path(name), f"analyst{number}@org") for number in range(1, ANALYSTS)]
            with started(name) as (port, pid):
                numbers = itertools.count(100)
                row = [str(most), "" if mib is None else str(mib), f"{resident_mib(pid):.0f} MiB"]
                for mechanism, each in (("gumbel", 4), ("auto", 2)):
                    row.append(f"{_peak_mib(port, pid, keys, mechanism, each, numbers):.0f} MiB")
                rows.append([*row, f"{resident_mib(pid):.0f} MiB"])
    settings = ["max_concurrent_queries", "max_dataset_memory"]
    return table([*settings, "idle", "at most, by the head", "at most, by auto", "afterwards"], rows)


def _peak_mib(port: int, pid: int, keys: list[str], mechanism: str, each: int, numbers: Iterator[int]) -> float:
    """Return the largest resident memory of the service while every analyst sends *each* new queries."""
    ended = threading.Event()
    peak = 0.0

    def watch() -> None:
        nonlocal peak
        while not ended.wait(0.02):
            peak = max(peak, resident_mib(pid))

    def client(key: str) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        for _ in range(each):
            body = json.dumps({"sql": SQL.format(number=next(numbers), k=100), "mechanism": mechanism})
            status = 429  # while all places are taken
            while status == 429:
                connection.request("POST", "/v1/query", body, headers)
                response = connection.getresponse()
                response.read()
                status = response.status
                if status == 429:
                    time.sleep(0.3)
            if status != 200:
                raise RuntimeError(f"a query failed with status {status}")

    watcher = threading.Thread(target=watch)
    watcher.start()
    with ThreadPoolExecutor(len(keys)) as clients:
        try:
            list(clients.map(client, keys))
        finally:
            ended.set()
            watcher.join()
    return peak


SOAK_MINUTES = 11


def soak() -> list[str]:
    """Memory and open files of the service under 11 minutes of full load: queries, statements, pages, refusals."""
    numbers, stop = itertools.count(), threading.Event()
    answered: Counter[int] = Counter()

    def client(port: int, key: str) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        for method, path, body in _everything(itertools.takewhile(lambda _: not stop.is_set(), numbers)):
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            response.read()
            answered[response.status] += 1
        connection.close()

    rows = []
    with tempfile.TemporaryDirectory() as name:
        key = prepare(Path(name), 10_000)
        with started(name) as (port, pid):
            clients = [threading.Thread(target=client, args=(port, key)) for _ in range(CLIENTS)]
            for thread in clients:
                thread.start()
            for minute in range(1, SOAK_MINUTES + 1):
                time.sleep(60)
                files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
                rows.append([str(minute), f"{answered.total():,}", f"{resident_mib(pid):.0f} MiB", str(files)])
            stop.set()
            for thread in clients:
                thread.join()
    if any(status >= 500 for status in answered):
        raise RuntimeError(f"requests failed: {dict(answered)}")
    return table(["minute", "requests", "resident memory", "open files"], rows)


def _everything(numbers: Iterator[int]) -> Iterator[tuple[str, str, dict[str, object] | None]]:
    """Yield requests of all kinds, new ones and repeated ones."""
    for n in numbers:
        sql = SQL.format(number=100 + n, k=10)
        yield "POST", "/v1/query", {"sql": sql}
        yield "POST", "/v1/query", {"sql": sql}
        yield "POST", "/v1/query", {"sql": SQL.format(number=n // 2, k=10), "mechanism": "gumbel"}
        yield "POST", "/v1/estimate", {"sql": SQL.format(number=-n, k=10)}
        yield "POST", "/v1/sql", {"sql": f"SELECT upper(article), {n} FROM ({SQL.format(number=n // 9 * 9, k=5)})"}
        yield "POST", "/v1/query", {"sql": f"SELECT {n}"}
        yield "POST", "/v1/query", {"sql": sql.replace("article", f"a{n}")}
        for path in ("/v1/budget", "/v1/releases", "/v1/datasets/reads", f"/v1/releases/{n:064x}"):
            yield "GET", path, None
        for path in ("/openapi.json", "/metrics", "/healthz", "/login", f"/ask?k={n}", f"/nowhere/{n}"):
            yield "GET", path, None


def _row(name: str, ours: Load, floor: Load) -> list[str]:
    cpu = [statistics.median(load.cpu) for load in (ours, floor)]
    return [
        name,
        *(
            f"{x.rate:,.0f}/s, p99 {1e3 * x.p99:.1f} ms, CPU {1e3 * y:.3g} ms"
            for x, y in zip((ours, floor), cpu, strict=True)
        ),
        f"{ours.rate / floor.rate:.2f}x",
        f"{ours.p99 / floor.p99:.2f}x",
        f"{cpu[0] / cpu[1]:.2f}x",
    ]


def _round(load: Load, port: int, key: str) -> None:
    """Run all clients concurrently in this process."""
    _requests(port, key, load.path, [[load.body() for _ in range(load.each)] for _ in range(CLIENTS)])


def _requests(port: int, key: str, path: str, bodies: list[list[dict[str, object]]]) -> tuple[list[float], float]:
    """Send the bodies of each client over a connection of its own; return the seconds of each request and of all.

    Requests are written before the time is taken, and responses are not parsed beyond their length: Python's client
    takes more CPU time than the service.
    """
    seconds: list[float] = []
    failed: list[bytes] = []
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n"
    )
    written = [
        [f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode() for body in map(json.dumps, of)] for of in bodies
    ]

    def client(requests: list[bytes]) -> None:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            for request in requests:
                start = time.perf_counter()
                connection.sendall(request)
                response = b""
                size = math.inf
                while len(response) < size:
                    part = connection.recv(2**16)
                    response += part
                    if size == math.inf and b"\r\n\r\n" in response:
                        length = re.search(rb"content-length: (\d+)", response, re.IGNORECASE)
                        size = response.index(b"\r\n\r\n") + 4 + (int(length[1]) if length else 0)
                    if not part:
                        break
                seconds.append(time.perf_counter() - start)
                if not response.startswith(b"HTTP/1.1 200 "):
                    failed.append(response)

    clients = [threading.Thread(target=client, args=(requests,)) for requests in written]
    start = time.perf_counter()
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()
    took = time.perf_counter() - start
    if failed or len(seconds) < sum(map(len, bodies)):
        raise RuntimeError(f"{len(failed)} requests failed: {failed[:1]}")
    return seconds, took


def _cpu_seconds(pid: int) -> float:
    """Return the CPU seconds that a process has used."""
    return time.clock_gettime((~pid << 3) | 2)


@contextlib.contextmanager
def started(what: str) -> Iterator[tuple[int, int]]:
    """Start a process of `benchmarks.serving` and return its port and process id."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    child = subprocess.Popen([sys.executable, "-m", "benchmarks.serving", what, str(port)])
    try:
        while True:
            if child.poll() is not None:
                raise RuntimeError("the service does not start")
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.05)
        yield port, child.pid
    finally:
        child.terminate()
        child.wait()


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
