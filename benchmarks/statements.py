"""Statements that take much memory or time to compute, and what they do to the service and to other analysts."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import socket
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.service import SQL, resident_mib, started
from benchmarks.serving import add_analyst, prepare
from benchmarks.timing import table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROWS = 100_000
CLIENTS = 8
ROUNDS = 5
EACH = 6
REPEATED = 60
"""Requests of a round for repeated queries: a mean of few that take less than a millisecond is that of the slowest."""
SETTLING_SECONDS = 8.0
_DIGITS = "(VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9))"


def _times(count: int) -> str:
    """Return a FROM clause of 10 ** *count* rows."""
    return ", ".join(f"{_DIGITS} t{n}(d)" for n in range(count))


def _replaced(times: int) -> str:
    """Return an expression of a text that has a hundred times as many characters with each of *times*."""
    text = "'" + "a" * 100 + "'"
    for _ in range(times):
        text = f"replace({text}, 'a', '{'a' * 100}')"
    return text


def _doubled(times: int, columns: str = "*") -> str:
    """Return a statement whose columns, or whose SELECTs, double with each of *times* names of WITH."""
    named = [f"c{n} AS (SELECT {columns} FROM c{n - 1} a, c{n - 1} b)" for n in range(1, times)]
    return f"WITH c0 AS (SELECT 1 AS x), {', '.join(named)} SELECT * FROM c{times - 1}"


HOSTILE = {
    "160 rows of replace": f"SELECT length({_replaced(4)} || t0.d) FROM {_times(2)}, (VALUES (0), (1)) AS two(e)",
    "100,000 rows of 190 columns": "SELECT "
    + ", ".join(f"t{n % 5}.d + {n} AS c{n}" for n in range(190))
    + f" FROM {_times(5)}",
    "columns that double": _doubled(30),
    "SELECTs that double": _doubled(30, "a.x"),
    "a cross join of 10^12 rows": f"SELECT SUM(t0.d * t11.d) FROM {_times(12)}",
    "a window over 10^7 rows": f"SELECT MAX(r) FROM (SELECT SUM(t0.d) OVER (ORDER BY t1.d) AS r FROM {_times(7)})",
    "10^7 groups": "SELECT COUNT(*) FROM (SELECT DISTINCT "
    + " || ".join(f"t{n}.d" for n in range(7))
    + f" || 'x' FROM {_times(7)})",
    "one text of 50 MB": f"SELECT string_agg({_replaced(2)}, '') FROM {_times(2)}",
    "100,000 rows of text": f"SELECT repeat FROM (SELECT {_replaced(1)} AS repeat FROM {_times(5)})",
    "sets of groups": " UNION ALL ".join(
        ["SELECT 1 FROM (SELECT 1) GROUP BY CUBE (a, b, c, d, e, f, g, h, i, j, k, l, m, n, o)"] * 50
    ),
}
"""Statements over no dataset, by what they do; each is free."""

_QUICK = f"SELECT MAX(t0.d * t1.d % 7 + t2.d) FROM {_times(7)}"
"""A statement that takes somewhat less CPU time than what is counted as slow."""


def run() -> list[str]:
    """Hostile statements alone, and eight at once beside an analyst (100,000 rows), in turns with the analyst alone."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        keys = [prepare(folder, ROWS), *(add_analyst(folder, f"eve{n}@org") for n in range(CLIENTS))]
        with started(str(folder)) as (port, pid):
            return [*_alone(port, pid, keys[1]), "", *_beside(port, pid, keys)]


def _alone(port: int, pid: int, key: str) -> list[str]:
    """Return the time of each statement, the memory of its worker, and that of the service before and after."""
    rows = []
    for about, sql in HOSTILE.items():
        before, peaks, over = resident_mib(pid), [0.0], threading.Event()
        watching = threading.Thread(target=_watch, args=(pid, peaks, over))
        watching.start()
        seconds = {}
        for path in ("/v1/sql/estimate", "/v1/sql"):
            start = time.perf_counter()
            status, answer = _send(port, key, path, {"sql": sql})
            seconds[path] = time.perf_counter() - start
        over.set()
        watching.join()
        rows.append(
            [
                about,
                f"{len(sql):,}",
                f"{seconds['/v1/sql/estimate']:.1f} s",
                f"{seconds['/v1/sql']:.1f} s",
                f"{max(peaks):.0f} MiB",
                f"{resident_mib(pid) - before:+.0f} MiB",
                f"{status}: {json.loads(answer).get('detail', 'an answer')}",
            ]
        )
    return table(["statement", "characters", "estimate", "answer", "its worker", "the service", "result"], rows)


def _beside(port: int, pid: int, keys: list[str]) -> list[str]:
    """Return the times of an analyst's requests alone and, in turns with these, while hostile statements are sent."""
    numbers = itertools.count(100)
    requests: dict[str, tuple[str, Callable[[], dict[str, object]]]] = {
        "new queries": (
            "/v1/query",
            lambda: {"sql": SQL.format(number=next(numbers), k=100), "mechanism": "gumbel"},
        ),
        "repeated queries": ("/v1/query", lambda: {"sql": SQL.format(number=1, k=10)}),
        "statements over a repeated query": ("/v1/sql", lambda: {"sql": f"SELECT MAX(n) FROM ({_counted()}) q"}),
    }
    heavy = list(HOSTILE.values())
    arms: dict[str, tuple[list[str], list[str]] | None] = {
        "alone": None,
        "heavy, one account": (keys[1:2], heavy),
        "heavy, eight accounts": (keys[1:], heavy),
        "just quick, eight accounts": (keys[1:], [_QUICK]),
    }
    seconds: dict[tuple[str, str], list[float]] = {(name, arm): [] for name in requests for arm in arms}
    memory = dict.fromkeys(arms, 0.0)
    for counted in range(ROUNDS + 1):
        for arm, attack in arms.items():
            with contextlib.nullcontext() if attack is None else _attacked(port, *attack):
                for name, (path, body) in requests.items():
                    taken = _seconds(port, keys[0], path, body, REPEATED if name == "repeated queries" else EACH)
                    seconds[name, arm] += taken if counted else []
                memory[arm] = max(memory[arm], resident_mib(pid))
    rows = []
    for name in requests:
        alone = seconds[name, "alone"]
        row = [name, f"{1e3 * statistics.median(alone):.1f} ms"]
        for arm in list(arms)[1:]:
            median = statistics.median(seconds[name, arm]) / statistics.median(alone)
            mean = statistics.mean(seconds[name, arm]) / statistics.mean(alone)
            row.append(f"{median:.2f}x, mean {mean:.2f}x")
        rows.append(row)
    rows.append(["memory of the service", *(f"{memory[arm]:.0f} MiB" for arm in arms)])
    return table(["times of another analyst", *arms], rows)


def _counted() -> str:
    return "SELECT article, COUNT(DISTINCT reader) AS n FROM reads WHERE visits <> 1 GROUP BY article"


@contextlib.contextmanager
def _attacked(port: int, keys: list[str], statements: list[str]) -> Iterator[None]:
    """Send hostile statements by eight clients, with *keys* in turn, until the context ends."""
    over = threading.Event()
    connections: dict[int, http.client.HTTPConnection] = {}

    def attack(number: int) -> None:
        for sql in itertools.islice(itertools.cycle(statements), number, None):
            if over.is_set():
                return
            connections[number] = http.client.HTTPConnection("127.0.0.1", port)
            with contextlib.suppress(OSError, http.client.HTTPException):  # closed below
                _send(port, keys[number % len(keys)], "/v1/sql", {"sql": sql}, connections[number])

    clients = [threading.Thread(target=attack, args=(number,)) for number in range(CLIENTS)]
    for client in clients:
        client.start()
    time.sleep(SETTLING_SECONDS)
    try:
        yield
    finally:
        over.set()
        for connection in list(connections.values()):
            if connection.sock is not None:
                with contextlib.suppress(OSError):
                    connection.sock.shutdown(socket.SHUT_RDWR)
        for client in clients:
            client.join()


def _seconds(port: int, key: str, path: str, body: Callable[[], dict[str, object]], requests: int) -> list[float]:
    """Return the seconds of *requests*, one after the other."""
    seconds = []
    for _ in range(requests):
        start = time.perf_counter()
        status, answer = _send(port, key, path, body())
        seconds.append(time.perf_counter() - start)
        if status != 200:
            raise RuntimeError(f"a request of the analyst failed: {answer.decode()}")
    return seconds


def _send(
    port: int, key: str, path: str, body: dict[str, object], connection: http.client.HTTPConnection | None = None
) -> tuple[int, bytes]:
    connection = connection or http.client.HTTPConnection("127.0.0.1", port)
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    try:
        connection.request("POST", path, json.dumps(body), headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def _watch(pid: int, peaks: list[float], over: threading.Event) -> None:
    """Add the largest resident memory of a worker of the service *pid* to *peaks*, in MiB, every few milliseconds."""
    while not over.wait(0.005):
        for parent in _children(pid):
            for worker in _children(parent):
                with contextlib.suppress(OSError, ValueError, IndexError):
                    status = Path(f"/proc/{worker}/status").read_text()
                    peaks.append(int(status.partition("VmHWM:")[2].split()[0]) / 1024)


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []
