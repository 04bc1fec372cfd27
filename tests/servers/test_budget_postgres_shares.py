"""Shares in the PostgreSQL store: the suite, lost connections, races and tampering."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from discreet.budget.errors import LedgerBroken
from discreet.budget.model import NOTHING, Reservation
from discreet.budget.sharing.escrow import ShareRequest
from discreet.budget.stores.postgres import PostgresStore
from tests.budget.sharing.suite import ShareStoreSuite
from tests.budget.sharing.suite.base import ONE, PLENTY, add_up, announce, carry, holding, limits
from tests.budget.suite.base import ACT, UNIT, account, claim, units
from tests.budget.tampering import SHARE_CHANGES, prepare_shares
from tests.servers.budget_schemas import connect_to, new_schema
from tests.servers.proxies import LostCommitProxy
from tests.servers.test_budget_postgres import OnPostgres
from tests.servers.test_budget_postgres_faults import TerminateConnections


class TestPostgresShares(OnPostgres, ShareStoreSuite):
    """Run the whole suite."""


@pytest.fixture
def store_urls(server):
    """Return the URLs of two stores; the account ann was created in the first with 12 units."""
    url = server("postgres")
    both = [new_schema(url), new_schema(url)]
    with contextlib.closing(PostgresStore(both[0])) as home, contextlib.closing(PostgresStore(both[1])) as other:
        home.create(account("ann", 12), ACT)
        announce(home, other)
    yield both
    with contextlib.closing(PostgresStore(both[0])) as home, contextlib.closing(PostgresStore(both[1])) as other:
        carry(home, other)
        carry(other, home)
        add_up([home, other])


def _move(first, second, method):
    """Run the steps of a transfer that precede *method* and return a callable for that step."""
    need = ShareRequest("ann", NOTHING, ONE)
    if method == "grant":
        return lambda: first.shares.grant(second.id, need, NOTHING)
    transfer = first.shares.grant(second.id, need, NOTHING)
    if method == "receive":
        return lambda: second.shares.receive(transfer)
    receipt = second.shares.receive(transfer)
    return lambda: first.shares.acknowledge(receipt)


_AFTER = {"grant": [3, 6], "receive": [3, 9], "acknowledge": [3, 9]}
_LINES = {"grant": (1, 0), "receive": (0, 1), "acknowledge": (1, 0)}


@pytest.mark.parametrize("method", ["grant", "receive", "acknowledge"])
@pytest.mark.parametrize("where", ["locked", "decided"])
def test_a_transfer_whose_connection_ends_before_commit_is_made_once(store_urls, method, where):
    """F10, I8: a transaction whose connection ends before COMMIT is retried and takes effect once."""
    hook = TerminateConnections(where)
    with contextlib.ExitStack() as stack:
        stores = [stack.enter_context(contextlib.closing(PostgresStore(url, step=hook))) for url in store_urls]
        act = _move(*stores, method)
        before = [store.verify().lines for store in stores]
        hook.url = store_urls[0].partition("?")[0]
        act()
        assert hook.done
        assert limits(stores) == _AFTER[method]
        assert tuple(store.verify().lines - n for store, n in zip(stores, before, strict=True)) == _LINES[method]


@pytest.mark.parametrize("method", ["grant", "receive", "acknowledge"])
def test_a_transfer_whose_commit_response_is_lost_is_made_once(store_urls, method):
    """F6, I8: a step whose commit confirmation is lost is retried and has no second effect."""
    which = 1 if method == "receive" else 0
    with contextlib.ExitStack() as stack:
        proxy = stack.enter_context(contextlib.closing(LostCommitProxy(store_urls[which])))
        urls = list(store_urls)
        urls[which] = proxy.url + "&sslmode=disable&gssencmode=disable"
        stores = [stack.enter_context(contextlib.closing(PostgresStore(url))) for url in urls]
        act = _move(*stores, method)
        before = [store.verify().lines for store in stores]
        proxy.armed = True
        act()
        assert proxy.dropped == 1
        assert limits(stores) == _AFTER[method]
        assert tuple(store.verify().lines - n for store, n in zip(stores, before, strict=True)) == _LINES[method]


def test_a_transfer_delivered_concurrently_is_applied_once(store_urls):
    """I8: eight threads that grant, receive and acknowledge, each receipt twice, apply each transfer once."""
    together = threading.Barrier(8)
    with contextlib.ExitStack() as stack:
        firsts, seconds = (
            [stack.enter_context(contextlib.closing(PostgresStore(p))) for _ in range(4)] for p in store_urls
        )

        def move(n):
            first, second = firsts[n % 4], seconds[n // 2]
            together.wait(30)
            for _ in range(5):
                first.shares.grant(second.id, ShareRequest("ann", NOTHING, ONE), NOTHING)
                for transfer in first.shares.pending(second.id, PLENTY):
                    receipt = second.shares.receive(transfer)
                    first.shares.acknowledge(receipt)
                    first.shares.acknowledge(receipt)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(move, range(8)))
        first, second = firsts[0], seconds[0]
        carry(first, second)
        add_up([first, second])
        assert holding(first).outgoing[second.id].number == holding(second).incoming[first.id].number > 4


def test_an_account_announced_concurrently_is_opened_once(server):
    """Six concurrent receives of one announcement create one account with one share."""
    url = server("postgres")
    store_urls, together = [new_schema(url), new_schema(url)], threading.Barrier(6)
    with contextlib.ExitStack() as stack:
        home = stack.enter_context(contextlib.closing(PostgresStore(store_urls[0])))
        others = [stack.enter_context(contextlib.closing(PostgresStore(store_urls[1]))) for _ in range(6)]
        home.create(account("ann", 12), ACT)
        transfer = home.shares.announce(others[0].id, "ann", 2)

        def take(store):
            together.wait(30)
            return store.shares.receive(transfer)

        with ThreadPoolExecutor(6) as pool:
            assert len(set(pool.map(take, others))) == 1
        assert limits([home, others[0]]) == [6, 6]
        add_up([home, others[0]])


def test_a_grant_waits_for_a_concurrent_reservation(store_urls):
    """I1, I8: a grant that waits for a reservation's row lock gives only from the remaining budget."""
    reached, go_on = threading.Event(), threading.Event()

    def step(name):
        if name == "decided" and not reached.is_set():
            reached.set()
            assert go_on.wait(30)

    with contextlib.ExitStack() as stack:
        asking = stack.enter_context(contextlib.closing(PostgresStore(store_urls[0], step=step)))
        first, second = (stack.enter_context(contextlib.closing(PostgresStore(url))) for url in store_urls)
        with ThreadPoolExecutor(2) as pool:
            question = pool.submit(lambda: asking.reserve(claim("a", worst=UNIT * 5)))
            assert reached.wait(30)
            gift = pool.submit(lambda: first.shares.grant(second.id, ShareRequest("ann", NOTHING), NOTHING))
            go_on.set()
            assert isinstance(question.result(30), Reservation)
            transfer = gift.result(30)
        assert transfer.amount.rho == ONE.rho // 2
        assert units(first, "ann") == (0, 5, 0)


@pytest.mark.parametrize("change", SHARE_CHANGES.values())
def test_every_external_change_is_detected(server, change):
    """I5: verify detects a granted, received or pending share edited or removed by a superuser."""
    url = server("postgres")
    store_urls = [new_schema(url), new_schema(url)]
    with contextlib.ExitStack() as stack:
        stores = [stack.enter_context(contextlib.closing(PostgresStore(url))) for url in store_urls]
        prepare_shares(*stores)
        with connect_to(store_urls[0]) as db:
            assert db.execute(change).rowcount > 0
        with pytest.raises(LedgerBroken):
            stores[0].verify()
