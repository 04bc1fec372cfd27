"""F2: kill -9 at every step of a query over HTTP, and under load.

A killed service leaves a store that the next one can serve from: a client that repeats its request with the same
idempotency key pays once and gets the same answer, and no unpaid answer was sent.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from discreet.service.answering.running import RECORD, STREAM
from discreet.values import Cost
from tests.service.answering.test_running import CATALOG, STREAM_TABLE, board, load
from tests.service.deployment import KNOWN, TOP, Service

from .processes import POINTS, Orders, Process, kill_refresh, reached, serving

LATER = 600.0
"""Seconds after which every lease is over."""


@pytest.fixture(scope="module")
def undisturbed(template, tmp_path_factory):
    """Return the answer to an undisturbed query, its cost, and its worst case."""
    deployment = template.copy_to(tmp_path_factory.mktemp("undisturbed") / "deployment")
    with serving(deployment, Orders(note=True)) as service:
        reply = ask(deployment, service.url)
        worst = httpx.post(f"{service.url}/v1/estimate", json={"sql": TOP}, headers=deployment.headers("ann"))
    with deployment.manager() as manager:
        deployment.check(manager)
        used = manager.get("ann@sales").balance.used
    assert 0 < float(used.rho) < worst.json()["worst_cost"]["rho"]
    return reply.content, used, reached(deployment.folder)


def ask(deployment, url, key="once", question=TOP, who="ann"):
    """Return the response to the query; a response that was sent is recorded."""
    reply = httpx.post(f"{url}/v1/query", json={"sql": question}, headers=deployment.headers(who, key), timeout=60)
    deployment.note(who, reply)
    return reply


def standing(deployment, *, checked=True):
    """Return what ann's account has used, forfeited and holds; that of sales is the same."""
    with deployment.manager() as manager:
        if checked:
            deployment.check(manager)
            assert manager.verify().failures == {}, "a killed run is no failed run"
        ann, sales = (manager.get(account).balance for account in ("ann@sales", "sales"))
    assert (ann.used, ann.held, ann.forfeited) == (sales.used, sales.held, sales.forfeited)
    return ann.used, ann.held, ann.forfeited


def test_an_undisturbed_query_passes_every_kill_point(undisturbed):
    """The test below depends on it: every point is reached, in order."""
    points = [point for n, point in enumerate(undisturbed[2]) if point not in undisturbed[2][:n]]
    assert tuple(points) == (*POINTS[: len(points)],)
    assert len(points) == len(POINTS)


@pytest.mark.parametrize("point", POINTS)
def test_a_query_killed_at_any_step_is_charged_once_and_has_one_answer(point, deployment, undisturbed):
    """I1-I4: the store agrees with its ledger after the kill; the retry gets one charge and the same bytes."""
    body, cost, _ = undisturbed
    service = Process(deployment, Orders(die=point))
    try:
        received = ask(deployment, service.url).content
    except httpx.TransportError:
        received = None
    service.wait_until_killed()
    used, held, forfeited = standing(deployment)
    at = POINTS.index(point)
    if at < POINTS.index("reserve: committed"):
        assert (used, held, forfeited) == (Cost(), Cost(), Cost()), "nothing was asked for"
    elif at < POINTS.index("settle: committed"):
        assert (used, forfeited) == (Cost(), Cost()), "nothing was answered"
        assert cost.within(held)
        assert held != cost
    else:
        assert (used, held, forfeited) == (cost, Cost(), Cost()), "it was settled, whether or not a reply arrived"
    assert received in (None, body)
    assert received is None or at >= POINTS.index("within reply"), "I2: nothing leaves before it is settled"
    service = Process(deployment, Orders(later=LATER))
    again = ask(deployment, service.url)
    anew = ask(deployment, service.url, key="another")
    service.kill()
    assert (again.status_code, again.content) == (200, body)
    assert (anew.content, anew.headers["discreet-replayed"]) == (body, "?1")
    assert standing(deployment) == (cost, Cost(), Cost())


def test_a_restart_ends_the_runs_of_a_killed_service_and_their_forfeits_pay_for_retries(deployment, undisturbed):
    """I3, I4: an SQLite file has one process, so the next one ends its runs; the same key is answered at once."""
    service = Process(deployment, Orders(die="before noise"))
    with pytest.raises(httpx.TransportError):
        ask(deployment, service.url)
    service.wait_until_killed()
    with serving(deployment):
        pass
    used, held, forfeited = standing(deployment)
    assert (used, held) == (Cost(), Cost())
    assert undisturbed[1].within(forfeited)
    with serving(deployment) as service:
        assert ask(deployment, service.url).content == undisturbed[0]
    assert standing(deployment) == (undisturbed[1], Cost(), Cost())


@pytest.mark.parametrize("point", ["settle: committed", "after settle"])
def test_a_statement_killed_between_its_charge_and_its_save_is_free_when_it_is_sent_again(point, deployment):
    """I4: no table is there after the kill, its answer is paid for, and the same statement saves it."""

    def send(sql):
        sent = {"sql": sql, "epsilon": 1}
        return httpx.post(f"{service.url}/v1/sql", json=sent, headers=deployment.headers("ann"), timeout=60)

    create = f"CREATE TABLE saved.x AS {KNOWN.replace('FROM', 'AS n FROM')}"
    service = Process(deployment, Orders(die=point))
    with pytest.raises(httpx.TransportError):
        send(create)
    service.wait_until_killed()
    charged = standing(deployment)
    assert charged[0].rho > 0
    assert charged[1:] == (Cost(), Cost())
    with serving(deployment, Orders(later=LATER)) as service:
        assert "no saved table 'x'" in send("SELECT * FROM saved.x").json()["detail"]
        again = send(create)
        rows = send("SELECT * FROM saved.x")
    assert (again.status_code, again.json()["rows"]) == (200, [[3]])
    assert len(rows.json()["rows"]) == 3
    assert standing(deployment) == charged


@pytest.mark.parametrize(
    ("transaction", "step"),
    [
        (2, "committed"),
        (3, "commit"),
    ],  # of reserve, start and publish: after the rows may be read, and before they are shown
    ids=["between charge and read", "between read and publish"],
)
def test_a_killed_refresh_publishes_the_same_numbers_and_is_charged_once(services, tmp_path, transaction, step):
    """I4: the record of the stream, which holds its random id, is stored with the charge; its noise follows from it."""
    service = services(catalog=CATALOG + STREAM_TABLE, accounts=board(), granted={"visits": None})
    load(service, 1)
    service._opened.close()
    kill_refresh(service.deployment, 1, "committed")  # the charge
    copy = service.deployment.copy_to(tmp_path / "copy")
    copy.clock = service.clock
    kill_refresh(copy, transaction, step)
    answers = []
    for deployment in (service.deployment, copy):
        with Service(deployment) as opened:
            opened.clock.pass_(hours=1)
            opened.streams.refresh()
            stream = STREAM.validate_json(opened.store.record(RECORD, "by_article"))
            (release,) = stream.releases.values()
            answers.append(opened.store.release(bytes.fromhex(release)).result)
            assert opened.balance("board").spent == stream.cost
            assert opened.manager.verify()
    assert answers[0] == answers[1]


class _Clients:
    """Clients that send queries one after the other, each until it is answered, to a service that is killed."""

    def __init__(self, deployment, kill_after):
        self._deployment, self._later, self._kill_after = deployment, 0.0, kill_after
        self._service = Process(deployment)
        self._change = threading.Condition()
        self.answers = {}

    def client(self, number, questions):
        """Send so many queries, each with a key of its own."""
        for n in range(questions):
            key = f"{number}-{n}"
            question = f"{KNOWN.partition(' GROUP')[0]} WHERE article <> '{key}' GROUP BY country"
            while key not in self.answers:
                with self._change:
                    url = self._service.url
                self._try(url, key, question)

    def _try(self, url, key, question):
        try:
            reply = ask(self._deployment, url, key, question, "ann" if key < "2" else "bob")
        except httpx.TransportError:
            with self._change:
                assert self._change.wait_for(lambda: self._service.url != url, 60)
            return
        assert reply.status_code in (200, 409, 429), reply.text
        if reply.status_code == 200:
            with self._change:
                self.answers[key] = reply.content
                if len(self.answers) in self._kill_after:
                    self._again()

    def _again(self):
        """Kill the service at a random moment, and restart it when all leases are over."""
        self._service.kill()
        self._later += LATER
        self._service = Process(self._deployment, Orders(later=self._later))
        self._change.notify_all()

    def end(self):
        """Kill the service a last time."""
        self._service.kill()


def test_killed_under_load_every_query_is_paid_once(deployment):
    """I1, I2, I4: four clients, four queries each, three kills; each costs its actual cost once."""
    clients = _Clients(deployment, {3, 7, 12})
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(clients.client, number, 4) for number in range(4)]:
            done.result(120)
    clients.end()
    assert len(clients.answers) == len(set(clients.answers.values())) == 16
    with deployment.manager() as manager:
        manager.maintain()
        deployment.check(manager)
        paid = {
            paid.release.release_key: paid.charged
            for who in ("ann", "bob")
            for paid in manager.store.history(f"{who}@sales")
        }
        assert len(paid) == 16
        sales = manager.get("sales").balance
        assert sales.used == sum(paid.values(), Cost())
        assert (sales.held, sales.forfeited) == (Cost(), Cost())
