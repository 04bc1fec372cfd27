"""Workers that compute outer statements: what they may use, what ends them, and what is left of them."""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import signal
import socket
import threading
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from discreet.errors import InputError, SQLError
from discreet.service.answering import pool as statement_pool
from discreet.service.answering.pool import StatementPool
from discreet.service.answering.worker import MAX_MEMORY_BYTES, MAX_RESULT_BYTES, RESPONSE
from discreet.service.problems import (
    ClientDisconnected,
    StatementFailed,
    StatementsUnavailable,
    TooManyRequests,
    describe_exception,
)
from tests.service.deployment import shared_pool

DIGITS = "(VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9))"
ENDLESS = f"SELECT SUM(t0.d * t11.d) FROM {', '.join(f'{DIGITS} t{n}(d)' for n in range(12))}"
MANY = f"SELECT t0.d + 100000 AS d FROM {', '.join(f'{DIGITS} t{n}(d)' for n in range(5))}"
ANSWERS = {"q1": pa.table({"a": ["x", None], "$value": [5, -7]})}


@pytest.fixture
def pool():
    """Return the pool of the services of this process."""
    return shared_pool()


@pytest.fixture(scope="module")
def own_pool():
    """Return a pool of one worker that tests may break: each of them shows that it recovers."""
    with contextlib.closing(StatementPool(1)) as opened:
        yield opened


def computed(pool, outer="SELECT 1 AS x", account="ann", **options):
    """Return the result of a statement over `ANSWERS`."""
    arguments = {"form": "json", "queries": "[]", **options}
    return pool.compute(account, outer, ANSWERS, **arguments)


def repeated(times):
    """Return an expression of a text of 1,000 ** (times + 1) characters."""
    text = "'" + "a" * 1_000 + "'"
    for _ in range(times):
        text = f"replace({text}, 'a', '{'a' * 1_000}')"
    return text


def test_a_statement_is_computed_in_another_process(pool, monkeypatch):
    """This process opens no database, neither to check a statement nor to compute it."""
    monkeypatch.setattr("duckdb.connect", None)
    pool.check("ann", 'SELECT "$value" + 1 FROM answers.q1', {"q1": {"a": "VARCHAR", "$value": "BIGINT"}})
    found = computed(
        pool, 'SELECT a, "$value" * 2 AS v, 0.5 / 0 AS n FROM answers.q1 ORDER BY a NULLS LAST', max_rows=1
    )
    assert found.rows == 2
    assert found.content == (
        b'{"columns":[{"name": "a", "type": "VARCHAR", "interval": null}, {"name": "v", "type": "BIGINT", '
        b'"interval": null}, {"name": "n", "type": "DOUBLE", "interval": null}],"rows":[["x",10,null]],"queries":[]}'
    )
    with pytest.raises(SQLError, match=r'^the statement cannot be used: [^:]*"b"'):
        pool.check("ann", "SELECT b FROM answers.q1", {"q1": {"a": "VARCHAR"}})
    with pytest.raises(InputError, match="cannot be computed"):
        computed(pool, "SELECT CAST(a AS INTEGER) FROM answers.q1")


@pytest.mark.parametrize("form", ["json", "csv", "arrow", "parquet", "trino"])
def test_values_of_every_type_are_encoded_without_opening_a_file(pool, form):
    """Nothing is imported after the limits are set, not even time zones."""
    values = (
        "DATE '2026-01-31', TIME '12:00:00', TIMESTAMP '2026-01-31 12:00:00', CAST('2026-01-31' AS TIMESTAMPTZ), 1.5, "
        "'a', TRUE, NULL, 1e300, CAST(1 AS HUGEINT), 170141183460469231731687303715884105727, DATE '0044-03-15 (BC)'"
    )
    assert computed(pool, f"SELECT {values}", form=form).content


def test_rows_that_a_form_cannot_hold_are_a_sentence(pool):
    """Intervals have no text in CSV."""
    with pytest.raises(InputError, match="cannot be represented as csv"):
        computed(pool, "SELECT INTERVAL 1 DAY", form="csv")


def test_a_worker_has_no_environment_files_or_connections_and_cannot_get_any(monkeypatch):
    """The operating system enforces it: hard limits, which only shrink."""
    monkeypatch.setenv("PASSWORD", "hunter2")
    with contextlib.closing(StatementPool(1)) as opened, opened._worker() as (_, process):
        place = Path(f"/proc/{process}")
        environment = dict(pair.split("=", 1) for pair in (place / "environ").read_text().rstrip("\0").split("\0"))
        opened_files = {str(entry.readlink()) for entry in (place / "fd").iterdir()}
        limits = {line[:25].strip(): line[26:].split() for line in (place / "limits").read_text().splitlines()[1:]}
        mapped = int((place / "statm").read_text().split()[0]) * resource.getpagesize()
        assert (place / "cwd").resolve() == Path("/")
    assert environment == statement_pool._ENVIRONMENT
    assert len([name for name in opened_files if name.startswith("socket:")]) == 1
    others = {name for name in opened_files if not name.startswith("socket:")}
    assert {name for name in others if not Path(name).name.startswith("libffi.so")} == {"/dev/null"}  # it opens itself
    for name in ("Max open files", "Max file size", "Max core file size"):
        assert limits[name][:2] == ["0", "0"], name
    soft, hard = map(int, limits["Max address space"][:2])
    assert soft == hard <= mapped + MAX_MEMORY_BYTES
    assert int(limits["Max cpu time"][1]) <= 10


@pytest.mark.parametrize(
    "outer",
    [
        f"SELECT max(length({repeated(3)} || a)) FROM answers.q1",
        f"SELECT string_agg({repeated(1)} || d, '') FROM ({MANY})",
        f"SELECT MAX(r) FROM (SELECT SUM(x.d) OVER (ORDER BY y.e) AS r FROM ({MANY}) x, {DIGITS} y(e), {DIGITS} z(e))",
    ],
)
def test_a_statement_that_takes_too_much_memory_is_a_sentence(pool, outer):
    """By DuckDB's own limit, or by that of the operating system, which covers what DuckDB does not count."""
    with pytest.raises(InputError, match="too much memory"):
        computed(pool, outer)
    assert computed(pool).rows == 1


def test_a_statement_that_takes_too_long_is_killed(pool, monkeypatch):
    """By the clock of this process, whatever the worker does."""
    monkeypatch.setattr(statement_pool, "MAX_SECONDS", 0.2)
    with pytest.raises(InputError, match="the statement takes more than"):
        computed(pool, ENDLESS)
    monkeypatch.undo()
    assert computed(pool).rows == 1


@pytest.mark.parametrize("form", ["json", "csv", "arrow"])
def test_a_result_is_limited_in_bytes(pool, form):
    """In every form: 100,000 rows of 200 characters are more."""
    with pytest.raises(InputError, match="more than 16 MiB"):
        computed(pool, f"SELECT '{'a' * 200}' || d FROM ({MANY})", form=form)


@pytest.mark.parametrize(
    ("response", "ends"),
    [
        (b"", True),
        (b"\1", True),
        (RESPONSE.pack(True, 1, 9) + b"x", True),
        (RESPONSE.pack(True, 1, 2**62), False),
        (RESPONSE.pack(True, 1, MAX_RESULT_BYTES + 2**21), False),
    ],
)
def test_a_worker_that_answers_nonsense_is_not_believed(own_pool, monkeypatch, response, ends):
    """A bug of DuckDB may let a statement write it: it is neither read without bound nor taken for a result."""
    ours, theirs = socket.socketpair()

    @contextlib.contextmanager
    def replaced():
        with ours, theirs:
            ours.settimeout(0.01)
            theirs.sendall(response)
            if ends:
                theirs.shutdown(socket.SHUT_WR)
            yield ours, os.getpid()

    monkeypatch.setattr(own_pool, "_worker", replaced)
    monkeypatch.setattr(statement_pool, "QUICK_SECONDS", math.inf)  # or it would be sent again
    with pytest.raises(InputError, match="its process ended early"):
        computed(own_pool)


@pytest.mark.parametrize(
    "sent",
    [
        b"\xff" * 5_000,
        b"{}",
        json.dumps({"type": "InputError", "name": None, "reason": "x" * 1_001, "position": None}).encode(),
        json.dumps({"type": "SystemExit", "name": None, "reason": "x", "position": None}).encode(),
        json.dumps({"type": "SQLError", "name": None, "reason": "x", "position": -1}).encode(),
        json.dumps({"type": "StatementFailed", "name": "1 of 7 readers", "reason": "", "position": None}).encode(),
        json.dumps({"type": "StatementFailed", "name": None, "reason": "", "position": None}).encode(),
    ],
)
def test_an_error_of_a_worker_that_is_none_is_not_shown(own_pool, monkeypatch, sent):
    """It is a sentence of at most 1,000 characters, of one of six kinds, or the names of the types of exceptions."""
    ours, theirs = socket.socketpair()

    @contextlib.contextmanager
    def replaced():
        with ours, theirs:
            ours.settimeout(0.01)
            theirs.sendall(RESPONSE.pack(False, 0, len(sent)) + sent)
            yield ours, os.getpid()

    monkeypatch.setattr(own_pool, "_worker", replaced)
    monkeypatch.setattr(statement_pool, "QUICK_SECONDS", math.inf)  # or it would be sent again
    with pytest.raises(InputError, match="its process ended early"):
        computed(own_pool)


def children(process):
    """Return the ids of the processes that *process* started."""
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def kill(process):
    """Kill a process and wait until it is dead; its parent has still to wait for it."""
    os.kill(process, signal.SIGKILL)
    with contextlib.suppress(OSError):  # its parent has waited for it
        while Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
            pass


def test_after_its_workers_or_their_parent_are_killed_the_next_statement_works(own_pool):
    """As the operating system does when memory runs out."""
    parent = own_pool._parent.pid
    assert computed(own_pool).rows == 1
    for child in children(parent):
        kill(child)
    assert computed(own_pool).rows == 1
    own_pool._parent.kill()
    own_pool._parent.wait()
    assert computed(own_pool).rows == 1
    assert own_pool._parent.pid != parent


def test_a_worker_that_is_killed_during_a_statement_is_a_sentence(own_pool):
    """And the workers that were ready do not replace it: the statement may have been the reason."""
    seen = []

    def kill_all():
        for child in children(own_pool._parent.pid):
            kill(child)
            seen.append(child)
        return False

    with pytest.raises(InputError, match="its process ended early"):
        computed(own_pool, ENDLESS, disconnected=kill_all)
    assert seen
    assert computed(own_pool).rows == 1


def test_without_processes_a_statement_is_a_sentence(own_pool, monkeypatch):
    """Neither Python nor a fork may be possible; later it works again."""
    computed(own_pool)
    loader = "import os\ndef fork(): raise OSError\nos.fork = fork\n" + statement_pool._LOADER
    for broken in ({"_LOADER": loader}, {"_LOADER": "raise SystemExit"}):
        with monkeypatch.context() as patched:
            for name, value in broken.items():
                patched.setattr(statement_pool, name, value)
            own_pool._parent.kill()
            own_pool._parent.wait()
            with pytest.raises(StatementsUnavailable, match="no process can be started"):
                computed(own_pool)
        own_pool._parent.kill()
        own_pool._parent.wait()
        assert computed(own_pool).rows == 1


BUG = """
def run(*_):
    try:
        {}
    except LookupError as error:
        raise ValueError("7 readers") from error
worker._run = run
"""


def with_bug(monkeypatch, statement):
    """Replace what workers do by *statement*."""
    change_workers(monkeypatch, BUG.format(statement))


def change_workers(monkeypatch, code):
    """Run *code* in the process that workers are forked from; `_LOADER` is formatted once more."""
    body = code.replace("{", "{{").replace("}", "}}")
    loader = statement_pool._LOADER.replace(
        "main()", f"import discreet.service.answering.worker as worker\n{body}main()"
    )
    monkeypatch.setattr(statement_pool, "_LOADER", loader)


def test_a_bug_in_a_worker_is_not_taken_for_a_lack_of_memory(monkeypatch):
    """Its types and places are for the log; its message, which may hold counts, stays in the worker."""
    with_bug(monkeypatch, '{"x": 7}["7 readers"]')
    with contextlib.closing(StatementPool(1)) as broken, pytest.raises(StatementFailed) as caught:
        computed(broken)
    assert caught.value.error == "ValueError from KeyError"
    assert all(frame.startswith("service/answering/worker.py:") for frame in caught.value.frames)
    assert caught.value.frames
    assert "memory" not in str(caught.value)
    described = describe_exception(caught.value)
    assert described[0] == "StatementFailed from ValueError from KeyError"
    assert described[1][: len(caught.value.frames)] == caught.value.frames
    assert "readers" not in f"{described} {caught.value}"


@pytest.mark.parametrize(
    ("statement", "sentence"),
    [
        ("raise MemoryError", "takes too much memory"),
        ("import duckdb; raise duckdb.OutOfMemoryException", "takes too much memory"),
        ("import os; os.abort()", "its process ended early"),
    ],
)
def test_memory_and_crashes_are_no_bugs(monkeypatch, statement, sentence):
    """Nothing is logged of a statement that takes too much, and nothing can be said of a process that died."""
    with_bug(monkeypatch, statement)
    with contextlib.closing(StatementPool(1)) as broken, pytest.raises(InputError, match=sentence):
        computed(broken)


def test_a_lack_of_memory_is_not_taken_for_a_mistake_in_a_statement(monkeypatch):
    """DuckDB describes it as it does an error of the parser."""
    change_workers(monkeypatch, f"worker.MAX_MEMORY_BYTES = {4 * 2**20}\n")
    text = f"SELECT {', '.join(f'COUNT(DISTINCT a) + {n}' for n in range(700))} FROM t"
    with contextlib.closing(StatementPool(1)) as small:
        assert small.split("ann", "SELECT 1", None)
        with pytest.raises(SQLError, match="it takes too much memory to parse"):
            small.split("ann", text, None)


def test_places_that_are_none_are_left_out():
    """A statement that controls its worker writes no text into the log."""
    sent = {"type": "StatementFailed", "name": "KeyError", "reason": "a/b.py:1 7-readers /etc/x.py:2", "position": None}
    content = json.dumps(sent).encode()
    error = statement_pool._error(content)
    assert (type(error), error.error, error.frames) == (StatementFailed, "KeyError", ("a/b.py:1",))


def test_a_disconnect_kills_the_worker(own_pool):
    """It soon runs no longer, and the parent serves other statements meanwhile."""
    running = []

    def gone():
        running.append(set(children(own_pool._parent.pid)))
        return len(running) > 2 and bool(running[-1])

    with pytest.raises(ClientDisconnected):
        computed(own_pool, ENDLESS, disconnected=gone)
    until = time.monotonic() + 30  # at the lowest priority a process takes long to die on a busy machine
    while running[-1] & set(children(own_pool._parent.pid)):
        assert time.monotonic() < until
        assert computed(own_pool).rows == 1


def test_an_account_has_half_of_the_workers(monkeypatch):
    """Others get theirs while its second statement waits, and not for ever if nothing was paid for it."""
    monkeypatch.setattr(statement_pool, "MAX_WAIT_SECONDS", 0.0)
    begun, over = threading.Event(), threading.Event()

    def gone():
        begun.set()
        return over.is_set()

    with contextlib.closing(StatementPool(2)) as pool:
        running = threading.Thread(target=_ignoring_disconnects, args=(computed, pool, ENDLESS, "ann", gone))
        running.start()
        assert begun.wait(60)
        with pytest.raises(TooManyRequests):
            pool.check("ann", "SELECT 1", {})
        with pytest.raises(ClientDisconnected):
            computed(pool, account="ann", disconnected=lambda: True)
        pool.check("bob", "SELECT 1", {})
        over.set()
        running.join()
        monkeypatch.undo()
        pool.check("ann", "SELECT 1", {})


def test_the_next_worker_is_for_the_account_with_the_fewest():
    """An account that sends many statements does not delay the first one of another."""
    with contextlib.closing(StatementPool(4)) as pool, pool._free:
        pool._waiting.update({7: ("ann", False), 8: ("bob", False), 9: ("bob", False)})
        for taken, following in (({}, 7), ({"ann": 1}, 8), ({"ann": 2, "cat": 1}, 8), ({"ann": 2, "cat": 2}, None)):
            pool._taken = Counter({(account, False): slots for account, slots in taken.items()})
            assert pool._next() == following


def test_slow_statements_never_occupy_the_slots_of_quick_ones():
    """However many accounts send them: half of the slots are kept, and quick steps come first."""
    with contextlib.closing(StatementPool(4)) as pool, pool._free:
        pool._waiting.update({number: (f"eve{number}", True) for number in range(8)})
        slow = Counter({("eve8", True): 1, ("eve9", True): 1})
        for taken, following in ((Counter(), 0), (slow, None), (Counter({("eve8", True): 2}), None)):
            pool._taken = taken
            assert pool._next() == following
        pool._waiting[8] = ("ann", False)
        pool._waiting[9] = ("bob", False)
        pool._used["bob"] = pool._used["cat"] = 1.0, pool._clock()
        pool._waiting[7] = ("cat", False)
        for taken in (Counter(), slow, slow + Counter({("bob", False): 1})):
            pool._taken = taken
            assert pool._next() == 8
        pool._taken = Counter()
    with contextlib.closing(StatementPool(1)) as pool, pool._free:
        pool._waiting[0] = ("ann", True)
        assert pool._next() == 0, "a single slot is for all"


def test_an_account_has_quick_slots_for_some_cpu_time():
    """Beyond them its statements are slow, and quick again after a while; others are not affected."""
    now = [0.0]
    with contextlib.closing(StatementPool(2, lambda: now[0])) as pool:
        seen = []
        exchange = pool._exchange

        def watched(*arguments, slow):
            seen.append((arguments[0], slow))
            return exchange(*arguments, slow=slow)

        pool._exchange = watched
        pool._use("ann", 2.0)
        assert computed(pool).rows == computed(pool, account="bob").rows == 1
        now[0] += 2 * statement_pool.FORGOTTEN_SECONDS
        assert computed(pool).rows == 1
        for _ in range(100):
            pool._use("ann", 4.0)
        now[0] += 2 * statement_pool.FORGOTTEN_SECONDS
        assert computed(pool).rows == 1
    assert seen == [("ann", True), ("bob", False), ("ann", False), ("ann", False)]


def test_a_statement_that_is_not_quick_begins_again_at_the_lowest_priority(own_pool, monkeypatch):
    """It gets the same answer, and its worker's CPU time counts."""
    priorities = []
    monkeypatch.setattr("os.setpriority", lambda _, process, priority: priorities.append((process, priority)))
    used = own_pool._used_now("cat")
    digits = f"{DIGITS} y(e), {DIGITS} z(e), (VALUES (0), (3), (5), (7), (9)) w(e)"
    found = computed(own_pool, f"SELECT MAX(x.d % 7 + y.e * z.e * w.e) AS n FROM ({MANY}) x, {digits}", "cat")
    assert b'"rows":[[735]]' in found.content
    assert [priority for _, priority in priorities] == [19]
    assert own_pool._used_now("cat") > used + statement_pool.QUICK_SECONDS


def test_workers_are_in_the_session_of_the_service_and_not_in_its_process_group(own_pool):
    """Ctrl-C is for the service; Linux compares priorities of processes within a session (autogroup of sched(7))."""
    parent = own_pool._parent.pid
    assert os.getsid(parent) == os.getsid(0)
    assert os.getpgid(parent) != os.getpgid(0)


def _ignoring_disconnects(compute, pool, outer, account, gone):
    with contextlib.suppress(ClientDisconnected):
        compute(pool, outer, account, disconnected=gone)


def test_a_closed_pool_leaves_no_process():
    """Neither the parent nor workers, busy or ready."""
    pool = StatementPool(2)
    computed(pool)
    with pool._worker() as (_, process):
        parent = pool._parent.pid
        known = {parent, process, *children(parent)}
        pool.close()
    assert len(known) > 2
    assert not [each for each in known if Path(f"/proc/{each}").exists()]
    with pytest.raises(StatementsUnavailable):
        computed(pool)
