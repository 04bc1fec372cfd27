"""Threads and processes that use the PostgreSQL budget store concurrently, or die in the attempt, never overspend."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from discreet.budget.errors import DataChanged, KeyReused
from discreet.budget.model import AdminAction, Fingerprint, InFlight, Replay, Reservation, Suspension
from discreet.budget.stores import postgres, statements
from discreet.budget.stores.postgres import PostgresStore
from discreet.errors import DiscreetError
from discreet.values import Cost
from tests.budget.suite import ACT, UNIT, account, claim, units
from tests.servers.budget_schemas import AFTER, connect_to, exit_code, new_schema, prepare, start_child, wait_until

pytest_plugins = ["tests.servers.budget_stores"]

_RACE = """
import sys
from concurrent.futures import ThreadPoolExecutor
from discreet.budget.model import Reservation
from discreet.budget.stores.postgres import PostgresStore
from tests.budget.suite import claim
name, store = sys.argv[2], PostgresStore(sys.argv[1])
def ask(n):
    answers = [store.reserve(claim(f"{name}-{n}-{i}", ("ann", "bob")[i % 2])) for i in range(4)]
    return sum(isinstance(answer, Reservation) for answer in answers)
print("ready", flush=True)
sys.stdin.readline()
with ThreadPoolExecutor(8) as pool:
    print(sum(pool.map(ask, range(8))), flush=True)
store.close()
"""

_STOPS = """
import sys
from discreet.budget.stores.postgres import PostgresStore
from tests.budget.suite import UNIT, claim
store_url, method, where = sys.argv[1:]
def step(name):
    if name == where:
        print("there", flush=True)
        sys.stdin.readline()
store = PostgresStore(store_url, step)
{"reserve": lambda: store.reserve(claim("a")), "start": lambda: store.start("a"),
 "settle": lambda: store.settle("a", UNIT, b"child")}[method]()
"""

_LOCK_WAITS = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"


def test_recovery_ends_the_reservations_of_dead_processes_only(store_url, open_store):
    """I3: recovery ends a dead process's reservations before their lease expires, and no live process's."""
    live, dead = open_store(), PostgresStore(store_url)
    live.reserve(claim("living", "bob"))
    for name in ("held", "running"):
        dead.reserve(claim(name))
    dead.start("running")
    assert live.recover() == 0
    dead.close()
    successor = open_store()
    wait_until(lambda: (successor.recover(),))
    assert (units(successor, "ann"), units(successor, "bob")) == ((0, 0, 3), (0, 3, 0))
    assert isinstance(successor.reserve(claim("again", release="running")), Reservation)
    assert units(successor, "ann") == (0, 3, 0)


def test_a_heartbeat_renews_liveness_after_a_lost_connection(open_store):
    """After a lost connection a heartbeat renews liveness, and recovery ends none of the process's reservations."""
    store, other = open_store(), open_store()
    store.reserve(claim("a"))
    store._alive[0].close()
    wait_until(lambda: other.read(lambda db: db.query((statements.LOST, ())), "lost"))
    store.heartbeat()
    assert other.recover() == 0


def test_two_processes_of_eight_threads_overspend_nothing(store_url, open_store):
    """I1: of 64 concurrent claims of 3 units exactly as many are admitted as the organisation's limit allows."""
    children = [start_child(_RACE, store_url, name) for name in ("one", "two")]
    assert [each.stdout.readline() for each in children] == ["ready\n"] * 2
    for each in children:
        each.stdin.write("\n")
        each.stdin.flush()
    admitted = [int(each.stdout.readline()) for each in children]
    assert [exit_code(each) for each in children] == [0, 0]
    store = open_store()
    assert sum(admitted) == 20 // 3
    assert units(store, "org") == units(store, "data") == (0, 18, 0)


def _race(store_url, seconds, threads=8):
    """Return how many threads are admitted to a parent with room for one, and the amount held, when all read first."""
    together = threading.Barrier(threads)

    def step(name):
        if name == "decided":
            with contextlib.suppress(threading.BrokenBarrierError):
                together.wait(seconds)

    with contextlib.closing(PostgresStore(store_url, step)) as store:
        together.abort()
        store.create(account("tight", 3), ACT)
        for n in range(threads):
            store.create(account(f"a{n}", 3, "tight"), ACT)
        together.reset()
        with ThreadPoolExecutor(threads) as pool:
            answers = list(pool.map(lambda n: store.reserve(claim(f"t{n}", f"a{n}")), range(threads)))
        held = store.balance("tight").held
        store.verify()
    return sum(isinstance(answer, Reservation) for answer in answers), held


def test_of_eight_concurrent_claims_for_room_for_one_one_is_admitted(store_url):
    """I1: reading a balance locks its row, so that of eight concurrent claims for room for one, one is admitted."""
    assert _race(store_url, 1) == (1, UNIT * 3)  # the first waits for the others in vain


def test_check_then_update_without_a_lock_is_detected(server, monkeypatch):
    """Without the row lock (check, then update, as in the paper) all eight are admitted and verify detects it."""
    monkeypatch.setattr(statements, "LOCK_PATH", statements.LOCK_PATH.replace("{lock_account}", ""))
    with pytest.raises(DiscreetError, match="the ledger cannot be trusted"):
        _race(new_schema(server("postgres")), 60)


def test_overlapping_account_paths_do_not_deadlock(open_store, monkeypatch):
    """Concurrent claims, administrative acts and expiry on overlapping account paths cause no deadlock."""
    monkeypatch.setattr(postgres, "_RETRIED", (postgres.errors.UniqueViolation,))  # deadlocks are raised
    store, another = open_store(), open_store()

    def ask(n):
        own = (store, another)[n % 2]
        for i in range(6):
            who, name = ("ann", "bob", "org", "data")[(n + i) % 4], f"d{n}-{i}"
            if isinstance(own.reserve(claim(name, who, f"q{i}", UNIT)), Reservation):
                own.start(name)
                (own.forfeit(name) if i % 3 == 0 else own.settle(name, UNIT, b"x"))
            own.charge(who, Cost(), ACT)
            own.expire()
            own.heartbeat()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(8)))
    assert units(store, "ann")[1] == units(store, "data")[1] == 0


def test_fifty_requests_with_one_key_at_two_processes_are_one_charge(open_store):
    """I4: of fifty requests with one idempotency key at two processes, one is admitted."""
    stores, together = (open_store(), open_store()), threading.Barrier(50)

    def ask(n):
        together.wait(30)
        return stores[n % 2].reserve(claim(f"k{n}", release="q", key="k", digest=b"d"))

    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(ask, range(50)))
    (first,) = [answer for answer in answers if isinstance(answer, Reservation)]
    assert {answer.reservation for answer in answers if isinstance(answer, InFlight)} == {first.id}
    assert units(stores[0], "ann") == (0, 3, 0)


def test_a_claim_that_waited_for_a_lock_replays_the_release_stored_meanwhile(store_url, open_store):
    """I7: a claim that waited for a lock while its release was stored replays that release at no charge."""
    writing, go = threading.Event(), threading.Event()

    def step(name):
        if name == "decided" and threading.current_thread().name == "first":
            writing.set()
            assert go.wait(30)

    slow, store = open_store(step=step), open_store()
    prepare(store, "settle")
    first = threading.Thread(target=lambda: slow.settle("a", UNIT, b"x"), name="first")
    first.start()
    assert writing.wait(30)
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(lambda: store.reserve(claim("b", release="a")))
        with connect_to(store_url) as db:
            wait_until(lambda: db.execute(_LOCK_WAITS).fetchone())
        go.set()
        answer = second.result(30)
    first.join(30)
    assert isinstance(answer, Replay)
    assert answer.charged == Cost()
    assert units(store, "ann") == (1, 0, 0)


def test_a_settlement_that_waited_for_locks_returns_the_release_stored_meanwhile(store_url, open_store):
    """I7: a settlement that waited for locks rereads the release and returns the one stored meanwhile."""
    writing, go = threading.Event(), threading.Event()

    def step(name):
        if name == "decided" and threading.current_thread().name == "first":
            writing.set()
            assert go.wait(30)

    slow, store = open_store(step=step), open_store()
    for name, who in (("a", "ann"), ("b", "bob")):
        store.reserve(claim(name, who, "q"))
        store.start(name)
    seen = Fingerprint(bytes(32), bytes(32))
    first = threading.Thread(target=lambda: slow.settle("a", UNIT, b"first", seen), name="first")
    first.start()
    assert writing.wait(30)
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(lambda: store.settle("b", UNIT * 2, b"second", seen))
        with connect_to(store_url) as db:
            wait_until(lambda: db.execute(_LOCK_WAITS).fetchone())
        go.set()
        settled = second.result(30)
    first.join(30)
    assert (settled.release.result, settled.charged) == (b"first", UNIT)
    assert [units(store, who) for who in ("ann", "bob", "org")] == [(1, 0, 0)] * 3


def test_two_organisations_that_settle_one_release_at_once_return_the_first_result(open_store):
    """I7: two organisations without a common account that store one release get the first result; each is charged."""
    together = threading.Barrier(2)

    def step(name):
        if name == "decided" and threading.current_thread() is not threading.main_thread():
            with contextlib.suppress(threading.BrokenBarrierError):
                together.wait(30)
            together.abort()

    store = open_store(step=step)
    for n in range(2):
        store.create(account(f"alone{n}"), ACT)
        store.reserve(claim(f"s{n}", f"alone{n}", "q"))
        store.start(f"s{n}")
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda n: store.settle(f"s{n}", UNIT, b"%d" % n), range(2)))
    assert both[0].release == both[1].release
    assert [units(store, f"alone{n}") for n in range(2)] == [(1, 0, 0)] * 2


def _race_of(works, open_store):
    """Return each callable's result or exception type when all have decided before any writes."""
    together = threading.Barrier(len(works))

    def step(name):
        if name == "decided" and threading.current_thread() is not threading.main_thread():
            with contextlib.suppress(threading.BrokenBarrierError):
                together.wait(30)
            together.abort()

    store = open_store(step=step)

    def do(work):
        try:
            return work(store)
        except DiscreetError as error:
            return type(error)

    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(do, works))


def test_one_of_two_concurrent_settlements_with_different_fingerprints_is_refused(open_store):
    """Of two settlements without a common account and with different fingerprints, one raises DataChanged."""
    store = open_store()
    for n in range(2):
        store.create(account(f"alone{n}"), ACT)
        store.reserve(claim(f"s{n}", f"alone{n}"))
        store.start(f"s{n}")
    seen = [Fingerprint(bytes(32), bytes([n]) * 32) for n in range(2)]
    both = _race_of(
        [lambda store, n=n: store.settle(f"s{n}", UNIT, b"x", seen[n]).release.result for n in range(2)], open_store
    )
    assert set(both) == {b"x", DataChanged}


def test_one_id_is_one_action_for_all_accounts(open_store):
    """I4: of two concurrent charges to different accounts under one id, one succeeds and one raises KeyReused."""
    store = open_store()
    act = AdminAction("officer", "once", "act-1")
    both = _race_of([lambda store, who=who: store.charge(who, UNIT, act) for who in ("ann", "bob")], open_store)
    assert set(both) == {None, KeyReused}
    assert sorted(units(store, who)[0] for who in ("ann", "bob")) == [0, 1]


def test_records_and_failure_counts_are_shared_by_all_processes(open_store):
    """Records, their version and failure counts are shared by all processes."""
    one, another = open_store(), open_store()
    for n, store in enumerate((one, another, one, another, one)):
        store.put_record("key", "a", str(n), ACT)
        assert (one.records_version(), another.record("key", "a")) == (n + 1, str(n))
        store.reserve(claim(f"f{n}", worst=UNIT))
        store.start(f"f{n}")
        store.forfeit(f"f{n}")
    assert isinstance(another.reserve(claim("no")), Suspension)


@pytest.mark.parametrize("method", ["reserve", "start", "settle"])
@pytest.mark.parametrize("where", ["decided", "committed"])
def test_a_killed_process_leaves_a_whole_transaction_or_none_and_no_lock(store_url, open_store, method, where):
    """I3: after kill -9 in mid-transaction a retry does the operation or returns its stored result; no lock is left."""
    store = open_store()
    again = prepare(store, method)
    before = units(store, "ann")
    killed = start_child(_STOPS, store_url, method, where)
    assert killed.stdout.readline() == "there\n"
    if where != "committed":
        assert units(store, "ann") == before
    killed.kill()
    assert exit_code(killed) == -9
    answer = again()
    assert [units(store, name) for name in ("ann", "org", "data")] == [AFTER[method]] * 3
    if method == "settle":
        assert answer.release.result == (b"child" if where == "committed" else b"x")
