"""The pipeline on a store: what is charged and what is released after a failure at any step."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import threading
from fractions import Fraction
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from discreet.budget.errors import BudgetRefused, DataChanged, LeaseLost, StoreUnavailable
from discreet.budget.manager import BudgetManager, StoredBudget
from discreet.budget.model import Account, AdminAction, InFlight, Replay, Settled, State
from discreet.budget.stores.sqlite import SQLiteStore
from discreet.catalog.loader import load_catalog
from discreet.errors import EngineError, InputError
from discreet.head_request import HeadRequest, SumBounds
from discreet.noise import SystemBits
from discreet.release import answer
from discreet.release.keys import DerivedKeys, fingerprint
from discreet.values import Cost, ExactHead
from discreet.warehouse import Warehouse
from discreet.wire.document import decode, encode, question_of

SECRET = b"s" * 32
ACT = AdminAction("officer", "test")
TOP = "SELECT article, COUNT(DISTINCT reader) FROM reads GROUP BY article LIMIT {}"
CATALOG = """
[datasets.reads]
source = "reads.parquet"
user = "reader"
data_version = "1"
columns.article = { type = "text", group = true, filter = true }
"""
WALK = ("reserve", "queue", "engine", "reserve", "engine", "noise", "encode", "settle")
"""The steps of a run: hold, probe, start, count, and so on."""


class RunFailed(Exception):
    """The error that interrupts a run in these tests."""


class StepHook:
    """Interrupts a run before or after a step, or calls a function there.

    Args:
        at: the number of the step, or None.
        after: True for when it is done.
        do: what is done there; breaks the run off by default.
    """

    def __init__(self, at=None, *, after=False, do=None):
        self.at, self.after, self.do = at, after, do
        self.names = []

    @contextlib.contextmanager
    def __call__(self, name):
        """Handle a step."""
        number = len(self.names)
        self.names.append(name)
        if number == self.at and not self.after:
            self._act()
        yield
        if number == self.at and self.after:
            self._act()

    def _act(self):
        if self.do is None:
            raise RunFailed
        self.do()


class Environment:
    """A table, a catalog, a store in a file, and accounts ann and bob of one organisation."""

    def __init__(self, folder):
        self.folder = folder
        self.write(1000)
        (folder / "catalog.toml").write_text(CATALOG)
        self.warehouse = Warehouse(load_catalog(folder / "catalog.toml"))
        self.now = 1_700_000_000_000_000
        self.names = itertools.count()
        self.store = SQLiteStore(folder / "budget.db", lambda: self.now)
        self.manager = BudgetManager(self.store, lambda: f"r{next(self.names)}", computational=True)
        self.manager.store.create(Account.of_epsilon("org", 60.0, Fraction(1, 10**6)), ACT)
        for name in ("ann", "bob"):
            self.manager.store.create(Account.of_epsilon(name, 30.0, Fraction(1, 10**6), "org"), ACT)
        self.keys = DerivedKeys(SECRET)

    def write(self, most):
        """Article n has n times as many readers as article 1, which has *most*."""
        rows = [(reader, f"article {n}") for n in range(1, 4) for reader in range(n * most)]
        table = pa.table({"reader": [reader for reader, _ in rows], "article": [article for _, article in rows]})
        pyarrow.parquet.write_table(table, self.folder / "reads.parquet")

    def plan(self, k=5, epsilon=2.0):
        """Return the plan of a top k."""
        return self.warehouse.plan(TOP.format(k), epsilon=epsilon, delta="1e-8", shared=True)

    def ask(self, account="ann", k=5, *, epsilon=2.0, engine=None, progress=None, steps=None, key=None, digest=b""):
        """Run a query as the service does."""
        plan = self.plan(k, epsilon)
        version, table = self.warehouse.key_context("reads")
        release_key = self.keys.release_key(plan, table, version)
        about = {"id": release_key.hex(), "dataset": table, "data_version": version}
        reserve = partial(self.manager.reserve, account, release_key, key=key, digest=digest)
        self.budget = budget = StoredBudget(self.manager.store, reserve)
        return answer(
            plan,
            engine or self.warehouse.versioned_reader("reads", version),
            budget,
            self.keys.bits(plan, table, version),
            encode=lambda release: encode(release, **about, question=question_of(plan.query, table)),
            fingerprint_key=self.keys.fingerprint_key(table, version),
            queue=self.warehouse.queue("reads"),
            computational=True,
            progress=progress,
            span=steps or StepHook(),
        )

    def spent(self, account):
        """Return all that counts against the limit of an account, held or not."""
        return self.manager.get(account).balance.spent

    def lose_leases(self):
        """Let all leases expire, and end them."""
        self.now += 61_000_000
        return self.manager.maintain()

    def close(self):
        """Close the engine and the store."""
        self.warehouse.close()
        self.store.close()


@pytest.fixture
def environment(tmp_path):
    """Return a store, a catalog and an engine for one test."""
    made = Environment(tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Return the answer of a run without failures, and its cost."""
    made = Environment(tmp_path_factory.mktemp("undisturbed"))
    answered = made.ask()
    spent = made.spent("ann")
    made.close()
    return answered, spent


class NoEngine:
    """Fails the test when it is used."""

    def __getattr__(self, name):
        raise AssertionError(f"the engine was used: {name}")


def test_an_answer_is_the_settled_bytes_and_charges_its_cost(environment):
    """Three of five items are charged to every account of the path, and the stored bytes are returned."""
    walked = StepHook()
    answered = environment.ask(steps=walked)
    assert tuple(walked.names) == WALK
    assert isinstance(answered, Settled)
    assert environment.store.release(answered.release.release_key).result == answered.release.result
    release = decode(answered.release.result)
    assert [item["article"] for item in release.to_dict()["items"]] == ["article 3", "article 2", "article 1"]
    assert answered.charged == environment.spent("ann") == environment.spent("org")
    assert answered.charged.rho < environment.plan().worst_cost.rho
    assert environment.store.reservation(environment.budget.reservation).state is State.SETTLED


def test_a_repeated_query_uses_no_engine_and_is_free(environment):
    """I7: the account gets the same bytes and pays nothing more."""
    first, spent = environment.ask(), environment.spent("ann")
    again = environment.ask(engine=NoEngine())
    assert (again.release, type(again), again.charged) == (first.release, Replay, Cost())
    assert environment.budget.reservation is None
    assert environment.spent("ann") == spent


def test_another_analyst_gets_the_same_bytes_and_pays_once(environment):
    """I7: the analyst's own account pays in full, and the shared one nothing."""
    first = environment.ask()
    org = environment.spent("org")
    other = environment.ask("bob", engine=NoEngine())
    assert (other.release, type(other)) == (first.release, Replay)
    assert other.charged == first.charged == environment.spent("bob")
    assert environment.spent("org") == org


def test_an_insufficient_budget_queries_no_engine(environment):
    """I9: a refusal depends on the worst case and the remaining budget; nothing is held."""
    with pytest.raises(BudgetRefused):
        environment.ask(epsilon=40.0, engine=NoEngine())
    assert environment.spent("ann") == Cost()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", range(len(WALK)), ids=[f"{n}-{name}" for n, name in enumerate(WALK)])
def test_a_run_that_fails_anywhere_releases_nothing_uncharged_and_a_retry_pays_once(
    environment, undisturbed, step, after
):
    """I1-I4: interrupted at any step and retried, a query has one answer at the price of an undisturbed run."""
    with pytest.raises(RunFailed):
        environment.ask(steps=StepHook(step, after=after))
    environment.lose_leases()
    spent, worst = environment.spent("ann"), environment.plan().worst_cost
    if (step, after) < (3, True):
        assert spent == Cost(), "nothing was asked"
    elif (step, after) < (7, True):
        assert spent == worst, "the data was asked, or may have been"
    else:
        assert spent == undisturbed[1], "settled, although the reply was lost"
    assert environment.manager.get("ann").balance.held == Cost()
    again = environment.ask()
    assert again.release.result == undisturbed[0].release.result
    assert environment.spent("ann") == environment.spent("org") == undisturbed[1]
    environment.manager.verify()


@pytest.mark.parametrize("step", [4, 5, 6])
def test_a_run_of_a_dead_process_is_forfeited_when_its_lease_ends(environment, undisturbed, step):
    """I3: the reservation of a dead process is forfeited when its lease ends, and pays for the retry."""

    def die():
        environment.manager.store.forfeit = environment.manager.store.void = lambda _: None
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        environment.ask(steps=StepHook(step, do=die))
    del environment.manager.store.forfeit, environment.manager.store.void
    assert environment.manager.get("ann").balance.held == environment.plan().worst_cost
    assert environment.lose_leases() == 1
    assert environment.manager.get("ann").balance.forfeited == environment.plan().worst_cost
    assert environment.ask().release.result == undisturbed[0].release.result
    assert environment.spent("ann") == undisturbed[1]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupted_run_is_forfeited(environment, error):
    """I3: the data was queried before Ctrl-C or the end of the process."""

    def stop():
        raise error

    with pytest.raises(error):
        environment.ask(steps=StepHook(5, do=stop))
    assert environment.manager.get("ann").balance.forfeited == environment.plan().worst_cost


@pytest.mark.parametrize("step", [5, 6, 7])
def test_an_answer_whose_lease_was_lost_is_dropped(environment, undisturbed, step):
    """I3: a run that lost its lease settles nothing; the next query pays once, with the forfeit."""
    with pytest.raises(LeaseLost):
        environment.ask(steps=StepHook(step, do=environment.lose_leases))
    assert environment.store.release(undisturbed[0].release.release_key) is None
    assert environment.ask().release.result == undisturbed[0].release.result
    assert environment.spent("ann") == undisturbed[1]


def test_a_lease_lost_before_the_data_is_read_costs_nothing(environment):
    """An expired reservation that was not started is voided."""
    with pytest.raises(LeaseLost):
        environment.ask(steps=StepHook(2, do=environment.lose_leases))
    assert environment.spent("ann") == Cost()


def test_an_unreachable_engine_costs_nothing(environment):
    """The engine is checked before the start."""

    class Gone:
        def check(self, _):
            raise EngineError("away")

    with pytest.raises(EngineError, match="away"):
        environment.ask(engine=Gone())
    assert environment.spent("ann") == Cost()


@pytest.mark.parametrize("error", [EngineError("no"), InputError("no"), MemoryError(), ValueError("row 7")], ids=repr)
def test_an_engine_failure_is_charged(environment, error):
    """I3: any message of the engine is only the cause of the error, and not repeated."""

    class Fails:
        def check(self, _):
            return None

        def head(self, *_, **__):
            raise error

    with pytest.raises(type(error)) as failed:
        environment.ask(engine=Fails())
    assert failed.value is error
    assert environment.budget.forfeited
    assert environment.store.reservation(environment.budget.reservation).state is State.FORFEIT
    assert environment.spent("ann") == environment.plan().worst_cost


def test_a_client_that_leaves_before_start_costs_nothing_and_after_it_the_worst_case(environment):
    """Progress is checked before the start, and stops the engine after it."""

    def gone(_):
        raise RunFailed

    with pytest.raises(RunFailed):
        environment.ask(progress=gone)
    assert environment.spent("ann") == Cost()
    calls = []

    def gone_later(share):
        calls.append(share)
        if len(calls) > 1:
            raise RunFailed

    class Slow:
        """An engine that reports progress."""

        def check(self, _):
            return None

        def head(self, _, progress, **__):
            progress(0.5)

    with pytest.raises(RunFailed):
        environment.ask(engine=Slow(), progress=gone_later)
    assert environment.spent("ann") == environment.plan().worst_cost


def test_two_concurrent_first_queries_get_the_same_bytes(environment):
    """Both run and settle; each analyst pays, and the organisation once."""
    meet, answers = threading.Barrier(2, timeout=60), {}

    def ask(account):
        answers[account] = environment.ask(account, steps=StepHook(7, do=meet.wait))

    threads = [threading.Thread(target=ask, args=(account,)) for account in ("ann", "bob")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers["ann"].release.result == answers["bob"].release.result
    assert [type(answered) for answered in answers.values()] == [Settled, Settled]
    assert environment.spent("ann") == environment.spent("bob") == environment.spent("org") == answers["ann"].charged


def test_two_concurrent_queries_with_system_noise_get_one_answer(environment):
    """Without keyed noise the runs differ, and the slower one returns the answer that was settled first."""
    meet, answers = threading.Barrier(2, timeout=60), []
    plan = environment.plan()

    def ask(account):
        release_key = environment.keys.release_key_once("ann", "key", b"")
        reserve = partial(environment.manager.reserve, account, release_key)
        answers.append(
            answer(
                plan,
                environment.warehouse.versioned_reader("reads", None),
                StoredBudget(environment.manager.store, reserve),
                SystemBits(),
                encode=lambda release: release.to_csv().encode(),
                span=StepHook(7, do=meet.wait),
            )
        )

    threads = [threading.Thread(target=ask, args=(account,)) for account in ("ann", "bob")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers[0].release.result == answers[1].release.result
    assert answers[0].charged == answers[1].charged == environment.spent("org")


def test_a_key_whose_query_still_runs_is_in_flight(environment):
    """I4: an idempotency key has one run, and then its answer."""
    seen = []
    walked = StepHook(5, do=lambda: seen.append(environment.ask(key="k", digest=b"d", engine=NoEngine())))
    answered = environment.ask(key="k", digest=b"d", steps=walked)
    assert isinstance(answered, Settled)
    assert isinstance(seen[0], InFlight)
    assert environment.ask(key="k", digest=b"d", engine=NoEngine()).release.result == answered.release.result


def test_a_failed_settlement_releases_nothing(environment, undisturbed):
    """I2: what is not durable is not released; the worst case pays for the retry."""
    settle = environment.manager.store.settle

    def fails(*_):
        raise StoreUnavailable("the disk is full")

    environment.manager.store.settle = fails
    with pytest.raises(StoreUnavailable):
        environment.ask()
    environment.manager.store.settle = settle
    assert environment.spent("ann") == environment.plan().worst_cost
    assert environment.ask().release.result == undisturbed[0].release.result
    assert environment.spent("ann") == undisturbed[1]


def test_a_retry_after_a_lost_settlement_reply_is_free(environment, undisturbed):
    """I2: the release was settled, and the retry finds it."""
    settle = environment.manager.store.settle

    def loses(*arguments):
        settle(*arguments)
        raise StoreUnavailable("the connection broke")

    environment.manager.store.settle = loses
    with pytest.raises(StoreUnavailable):
        environment.ask()
    environment.manager.store.settle = settle
    again = environment.ask(engine=NoEngine())
    assert (again.release.result, type(again), again.charged) == (undisturbed[0].release.result, Replay, Cost())


def test_data_that_changes_within_one_version_is_detected(environment):
    """T13: equal noise on another head would show the change, so the answer is refused and forfeited."""
    first = environment.ask()
    environment.write(1001)
    environment.warehouse.refresh()
    with pytest.raises(DataChanged):
        environment.ask(epsilon=2.5)
    assert environment.manager.get("ann").balance.forfeited == environment.plan(epsilon=2.5).worst_cost
    assert environment.ask(engine=NoEngine()).release.result == first.release.result, "what was answered stays answered"
    environment.write(1000)
    environment.warehouse.refresh()
    assert environment.ask(epsilon=2.5).charged.rho > 0


def test_data_that_changes_with_its_version_is_answered(environment):
    """Every version has its own fingerprints, or the first query of a new one would fail and be charged."""
    environment.ask()
    environment.write(1001)
    text = CATALOG.replace('data_version = "1"', 'data_version = "2"')
    (environment.folder / "catalog.toml").write_text(text)
    environment.warehouse.close()
    environment.warehouse = Warehouse(load_catalog(environment.folder / "catalog.toml"))
    assert environment.ask().charged.rho > 0


HEAD = ExactHead(pa.array([3, 2, 1]).to_numpy().astype("<i8"), 5, pa.table({"a": ["x", "", None]}))
BOUNDED = dataclasses.replace(HEAD, scaled=np.ones((3, 2), dtype=np.int64), users=np.ones(2, dtype=np.int64))
REQUEST = HeadRequest("user", ("a",), 5)


@pytest.mark.parametrize(
    "head",
    [
        dataclasses.replace(HEAD, counts=HEAD.counts + 1),
        dataclasses.replace(HEAD, labels=pa.table({"a": ["x", None, ""]})),
        dataclasses.replace(HEAD, labels=pa.table({"b": ["x", "", None]})),
        dataclasses.replace(HEAD, labels=pa.table({"a": ["x", "", '"']})),
        dataclasses.replace(HEAD, sums=HEAD.counts),
        BOUNDED,
        dataclasses.replace(BOUNDED, scaled=BOUNDED.scaled + 1),
        dataclasses.replace(BOUNDED, users=BOUNDED.users + 1),
    ],
)
def test_a_fingerprint_covers_all_that_an_engine_returned(head):
    """Counts, labels, missing labels, sums, and what a bound is chosen from."""
    one, other, bounded = (fingerprint(found, REQUEST, b"", b"k" * 32) for found in (HEAD, head, BOUNDED))
    assert one.head_key == other.head_key
    assert other.digest not in ({one.digest} if head is BOUNDED else {one.digest, bounded.digest})
    assert fingerprint(dataclasses.replace(HEAD), REQUEST, b"", b"k" * 32) == one


@pytest.mark.parametrize(
    ("request_", "seed", "key"),
    [
        (dataclasses.replace(REQUEST, limit=6), b"", b"k"),
        (dataclasses.replace(REQUEST, domain=pa.table({"a": ["x"]})), b"", b"k"),
        (dataclasses.replace(REQUEST, summed=SumBounds(Fraction(0), Fraction(1), column="m")), b"", b"k"),
        (dataclasses.replace(REQUEST, summed=SumBounds(Fraction(0), Fraction(1), private=True, column="m")), b"", b"k"),
        (REQUEST, b"seed", b"k"),
        (REQUEST, b"", b"l"),
    ],
)
def test_another_head_has_another_fingerprint_key(request_, seed, key):
    """Another request, seed or secret has another key."""
    assert fingerprint(HEAD, request_, seed, key * 32).head_key != fingerprint(HEAD, REQUEST, b"", b"k" * 32).head_key


def test_a_release_key_is_of_the_query_the_version_and_the_secret(environment):
    """Each of them changes the key, and without the secret no key can be computed."""
    one, other = environment.plan(), environment.plan(4)
    keys = {
        environment.keys.release_key(one, "reads", "1"),
        environment.keys.release_key(other, "reads", "1"),
        environment.keys.release_key(one, "reads", "2"),
        environment.keys.release_key(one, "twin", "1"),
        DerivedKeys(b"t" * 32).release_key(one, "reads", "1"),
        environment.keys.release_key_once("ann", "reads", b"1"),
        environment.keys.fingerprint_key("reads", "1"),
        environment.keys.fingerprint_key("reads", "2"),
        environment.keys.fingerprint_key("twin", "1"),
        DerivedKeys(b"t" * 32).fingerprint_key("reads", "1"),
    }
    assert len(keys) == 10
    assert repr(environment.keys) == "DerivedKeys(...)"
    with pytest.raises(InputError):
        DerivedKeys(b"short")
