"""Data centres over HTTP: shares move between peers only, despite failures of the network."""

from __future__ import annotations

import json
import threading

import httpx
import pytest

from discreet.budget.errors import BudgetRefused, StoreBehind
from discreet.budget.model import NOTHING
from discreet.budget.sharing.escrow import ShareRequest
from discreet.errors import InputError
from discreet.service import peers
from discreet.service.answering.accounts import account_detail, account_summary
from discreet.service.doors.http.health import HealthAPI
from discreet.service.peers import PeerKeys, open_peers, peer_keys
from discreet.service.problems import KeyRefused
from discreet.service.settings import DataCentre, load_settings
from discreet.values import Cost
from tests.budget.sharing.suite.base import ONE, holding, limits
from tests.budget.suite import set_limit, set_mode
from tests.budget.suite.base import ACT, UNIT, account, claim, key_of, spend

from .data_centres import KEY, Centres

BEARER = {"Authorization": f"Bearer {KEY}"}


def _made(centres, units=12):
    """Create accounts ann and org in the first data centre."""
    centres[0].manager.store.create(account("org", 2 * units), ACT)
    centres[0].manager.store.create(account("ann", units, "org"), ACT)
    return centres


def _spend(centre, name, units):
    spend(centre.store, claim(name, worst=UNIT * units), UNIT * units)


# ---------------------------------------------------------------------------------------------------- moving


def test_a_new_account_is_shared_within_a_round():
    """Equal shares, parents first, the same settings everywhere; the next round moves nothing."""
    with _made(Centres(3)) as centres:
        centres[0].peers.exchange()
        assert (limits(centres.stores, "org"), limits(centres.stores)) == ([8, 8, 8], [4, 4, 4])
        heads = [store.heads() for store in centres.stores]
        centres.exchange(3)
        assert [store.heads() for store in centres.stores] == heads
        moved = [(e["peer"], e["account"], e["step"]) for e in centres[0].events("share_moved")]
        assert moved == [(peer, name, "sent") for peer in ("c1", "c2") for name in ("org", "ann")]


def test_thousands_of_accounts_are_shared_in_one_go():
    """A message has up to 64 transfers; as many messages as needed are sent."""
    with Centres() as centres:
        for n in range(200):
            centres[0].store.create(account(f"a{n}"), ACT)
        centres[0].peers.exchange()
        assert len(centres[1].store.accounts()) == 200
        assert len([path for _, path, _ in centres.wire.sent if path.endswith("transfers")]) == 4


def test_a_short_store_requests_and_gets_half_of_the_difference():
    """From the first peer with enough; less is requested from the next one, which has not so much more."""
    with _made(Centres(3), 24) as centres:
        centres.exchange()
        _spend(centres[1], "a", 8)
        centres[1].peers.exchange()
        assert limits(centres.stores) == [4, 12, 8]
        centres.exchange(2)
        assert limits(centres.stores) == [4, 12, 8]


def test_a_refused_query_is_answered_after_the_next_round():
    """A refused query gets the budget that it needs in the next round, to the last quantum available."""
    with _made(Centres()) as centres:
        centres.exchange()
        with pytest.raises(BudgetRefused) as refused:
            centres[1].manager.reserve("ann", key_of("q"), UNIT * 10)
        centres[1].peers.exchange()
        assert limits(centres.stores) == [6, 6]
        centres[1].peers.refused(refused.value.refusal)
        centres[1].peers.exchange()
        assert limits(centres.stores) == [2, 10]
        centres[1].manager.reserve("ann", key_of("q"), UNIT * 10)


def test_two_short_data_centres_do_not_drain_each_other():
    """A peer that has refused a query itself gives half of the difference at most."""
    with _made(Centres()) as centres:
        centres.exchange()
        for centre in centres.all:
            with pytest.raises(BudgetRefused) as refused:
                centre.manager.reserve("ann", key_of("q"), UNIT * 10)
            centre.peers.refused(refused.value.refusal)
        centres.exchange(3)
        assert limits(centres.stores) == [6, 6]


def test_settings_that_are_changed_at_home_arrive():
    """Settings and the total reach the other data centres."""
    with _made(Centres()) as centres:
        centres.exchange()
        set_mode(centres[0].manager.store, "ann", "observe", ACT)
        set_limit(centres[0].manager.store, "ann", UNIT * 20, account("x").delta, ACT)
        centres.exchange()
        found = centres[1].manager.store.account("ann")
        assert (found.mode, found.total_limit, found.limit) == ("observe", UNIT * 20, UNIT * 6)
        assert centres[1].manager.get("ann").guarantee is None
        set_mode(centres[0].manager.store, "ann", "enforce", ACT)
        centres.exchange()
        guarantees = [centre.manager.get("ann").guarantee for centre in centres.all]
        assert guarantees[0] == guarantees[1]  # of the total, not of a share
        for found in (centres[1].manager.store.account("ann"), account("ann", 6)):
            reply = account_summary(found)
            assert reply.limit.rho == pytest.approx(float(6 * UNIT.rho), rel=1e-15)
            assert (reply.total is None) == (found.share is None)
        reply = account_detail([centres[1].manager.get("ann")], centres[1].store)
        assert reply.total.rho == pytest.approx(float(20 * UNIT.rho), rel=1e-15)


def test_an_account_of_the_same_name_gets_nothing_and_loses_nothing():
    """Both logs have an event, and the transfer is not retried."""
    with Centres() as centres:
        for centre in centres.all:
            centre.manager.store.create(account("ann"), ACT)
        centres.exchange(3)
        assert limits(centres.stores) == [10, 10]
        for centre in centres.all:
            assert sorted(event["step"] for event in centre.events("share_moved")) == ["refused", "refused", "sent"]


def test_requests_that_got_nothing_are_repeated_less_often():
    """An account that is spent everywhere is not requested in every round."""
    with _made(Centres(), 2) as centres:
        centres.exchange()
        for n, centre in enumerate(centres.all):
            _spend(centre, f"a{n}", 1)
        del centres.wire.sent[:]
        for _ in range(40):
            centres[0].peers.exchange()
        asked = [n for n, (_, _, message) in enumerate(centres.wire.sent) if message["requests"]]
        assert asked == [0, 2, 5, 10, 19, 36]


# ---------------------------------------------------------------------------------------------------- networks


def test_a_data_centre_that_is_cut_off_goes_on_with_its_share():
    """I8: to the last quantum, as the others do; it is logged once, and pending transfers end afterwards."""
    with _made(Centres(3)) as centres:
        centres.exchange()
        centres.wire.cut = [{"c0", "c2"}, {"c1", "c2"}]
        _spend(centres[2], "a", 4)
        with pytest.raises(BudgetRefused):
            centres[2].manager.reserve("ann", key_of("b"), Cost(UNIT.rho / 1000))
        centres.exchange(3)
        assert [e["peer"] for e in centres[2].events("share_moved") if e["step"] == "unreachable"] == ["c0", "c1"]
        assert limits(centres.stores) == [4, 4, 4]
        _spend(centres[0], "c", 4)
        centres.exchange()
        assert limits(centres.stores) == [6, 2, 4]
        centres.wire.cut = []
        centres.exchange(2)
        assert sum(limits(centres.stores)) == 12
        assert all(holding(store).left.rho > 0 for store in centres.stores)


@pytest.mark.parametrize("lost", range(1, 9))
def test_a_transfer_whose_response_is_lost_is_completed_later(lost):
    """I8: the peer has acted and its reply is lost; the sum is checked after every step of every data centre."""
    with _made(Centres(), 24) as centres:
        centres.wire.lose = {lost}
        centres.exchange(2)
        _spend(centres[1], "a", 10)
        centres.exchange(2)
        _spend(centres[0], "b", 5)
        centres.exchange(2)
        assert len(centres.wire.sent) > lost
        assert all(not one.store.shares.pending(other.store.id, 9) for one in centres.all for other in centres.all)
        assert sum(limits(centres.stores)) == 24
        assert limits(centres.stores) != [12, 12]


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(200, html="<p>hello"),
        httpx.Response(200, json={"store": "x", "transfers": [{}]}),
        httpx.Response(200, json={"store": "x", "transfers": [], "more": 1}),
        httpx.Response(500, json={"store": "x", "transfers": []}),
        httpx.Response(302, headers={"Location": "http://c1/v1/peer/requests"}),
        httpx.Response(200, content=b" " * 2**20 + b'{"store": "x", "transfers": []}'),
    ],
)
def test_a_response_of_another_server_counts_as_unreachable(answer, monkeypatch):
    """A reply of a proxy, a captive portal or another version counts as unreachable, and changes nothing."""
    with _made(Centres()) as centres:
        monkeypatch.setattr(centres.wire, "carry", lambda *_: answer)
        before = centres[0].store.heads()
        centres[0].peers.exchange()
        assert centres[0].store.heads() == before
        assert [event["step"] for event in centres[0].events("share_moved")] == ["unreachable"]


def test_an_invalid_transfer_is_not_applied():
    """Settings of no account, and negative amounts."""
    with _made(Centres()) as centres:
        centres.exchange()
        terms = json.loads(json.dumps(_transfer(centres)["terms"]))
        for wrong in (
            {"terms": {}},
            {"terms": {**terms, "period": "fortnight"}},
            {"terms": {**terms, "rho": "1e9"}},
            {"terms": {**terms, "share": ["1", "1", 5, "1"]}},
            {"amount": {"rho": "-1", "delta": "0"}},
        ):
            answer = centres[1].app.post("/v1/peer/transfers", headers=BEARER, json=_sent(centres, wrong))
            assert (answer.status_code, answer.json()["type"]) == (400, "/problems/malformed")


def _transfer(centres):
    given = centres[0].store.shares.grant(centres[1].store.id, ShareRequest("ann", NOTHING, ONE), NOTHING)
    return peers.TransferSent.of(given).model_dump()


def _sent(centres, change):
    return {
        "centre": "c0",
        "store": centres[0].store.id,
        "transfers": [{**_transfer(centres), **change}],
        "receipts": [],
    }


def test_a_clock_that_runs_ahead_in_one_store_stops_no_other():
    """Only the transfers of a store with a wrong clock wait."""
    with _made(Centres(3), 24) as centres:
        centres.exchange()
        centres[0].manager.store.create(account("late", 12), ACT)
        centres[0].clock.advance(days=1)  # not so far that an officer has to confirm it
        centres.exchange()
        assert limits(centres.stores, "late") == [4, 0, 0]
        _spend(centres[2], "a", 8)
        centres.exchange()
        assert limits(centres.stores)[2] > 8
        for centre in centres.all[1:]:
            centre.clock.advance(days=1)
        centres.exchange()
        assert limits(centres.stores, "late") == [4, 4, 4]


# ---------------------------------------------------------------------------------------------------- who may


@pytest.mark.parametrize("header", [None, "", "Bearer", f"Basic {KEY}", f"Bearer {KEY}x", "Bearer \N{SNOWMAN}", KEY])
def test_requests_without_the_peers_key_are_refused(header):
    """All get the same 401; no body is read."""
    with _made(Centres()) as centres:
        headers = {} if header is None else {b"Authorization": header.encode()}
        for path in ("/v1/peer/requests", "/v1/peer/transfers"):
            answer = centres[0].app.post(path, headers=headers, content=b"{}")
            assert (answer.status_code, answer.json()["type"]) == (401, "/problems/unauthorized")
        assert centres[0].store.shares.unannounced("x", 9) == ["org", "ann"]


def test_the_peer_key_is_valid_for_two_routes_and_an_analysts_key_for_neither(service, monkeypatch):
    """A peer can only exchange transfers."""
    with Centres() as centres:
        monkeypatch.setattr("discreet.service.app.open_peers", lambda *_: centres[0].peers)
        _check_access(service, centres)


def _check_access(service, centres):
    service.settings = service.settings.model_copy(update={"datacentre": object()})
    service.reopen()
    for method, path in (("GET", "/v1/budget"), ("POST", "/v1/query"), ("GET", "/v1/admin/accounts")):
        assert service.send(method, path, KEY).status_code == 401
    message = {"centre": "c1", "store": "elsewhere", "requests": []}
    assert service.send("POST", "/v1/peer/requests", "ann", json=message).status_code == 401
    answer = service.send("POST", "/v1/peer/requests", KEY, json=message)
    assert (answer.status_code, answer.json()) == (200, {"store": centres[0].store.id, "transfers": []})
    assert service.events("requested")[-1]["actor"] == "peer"
    assert "/v1/peer/requests" not in service.get("/openapi.json", None).json()["paths"]


def test_an_invalid_message_is_refused():
    """They get a problem that repeats nothing of the message."""
    with _made(Centres()) as centres:
        app, ask = centres[0].app, {"account": "ann", "left": {"rho": "0", "delta": "0"}}
        whole = {"centre": "c1", "store": "s", "requests": []}
        for body, status in (
            (b"s3cret", 400),
            (json.dumps({**whole, "more": "s3cret"}).encode(), 400),
            (json.dumps({**whole, "requests": [{**ask, "need": {"rho": "s3cret", "delta": "0"}}]}).encode(), 400),
            (json.dumps({**whole, "requests": [{**ask, "need": {"rho": "1.5", "delta": "0"}}]}).encode(), 400),
            (json.dumps({**whole, "requests": [{**ask, "need": ask["left"]}] * 65}).encode(), 400),
            (b" " * (2**20 + 1), 413),
        ):
            answer = app.post("/v1/peer/requests", headers={**BEARER, "Content-Type": "application/json"}, content=body)
            assert answer.status_code == status
            assert "s3cret" not in answer.text
        assert app.post("/v1/peer/requests", headers=BEARER, content=b"{}").status_code == 415
        assert app.post("/v1/peer/requests?x=1", headers=BEARER, json=whole).status_code == 422
        assert app.call("GET", "/v1/peer/requests", headers=BEARER).status_code == 405


def test_a_message_is_applied_for_its_own_store_only():
    """A transfer or a receipt in the name of a third store is ignored."""
    with _made(Centres(3)) as centres:
        centres.exchange()
        spoken = {**_sent(centres, {}), "store": centres[2].store.id}
        answer = centres[1].app.post("/v1/peer/transfers", headers=BEARER, json=spoken)
        assert answer.json()["receipts"] == []
        receipt = {"account": "ann", "donor": centres[0].store.id, "recipient": centres[1].store.id}
        spoken = {**spoken, "transfers": [], "receipts": [{**receipt, "number": 2, "taken": False, "version": 1}]}
        centres[0].app.post("/v1/peer/transfers", headers=BEARER, json=spoken)
        assert holding(centres[0].store).outgoing[centres[1].store.id].pending is not None


# ---------------------------------------------------------------------------------------------------- stores


def test_two_data_centres_with_the_same_store_exchange_nothing():
    """One is a copy of the other: both would spend the same budget."""
    with _made(Centres()) as centres:
        message = {"centre": "c1", "store": centres[0].store.id, "requests": []}
        answer = centres[0].app.post("/v1/peer/requests", headers=BEARER, json=message)
        assert (answer.status_code, "one of its own" in answer.json()["detail"]) == (422, True)
        centres.wire.apps["c1"] = centres[0].app
        centres[0].peers.exchange()
        assert [event["step"] for event in centres[0].events("share_moved")] == ["unreachable"]


@pytest.mark.parametrize("told_by", ["receipt", "transfer"])
def test_a_restored_store_stops_when_a_peer_detects_it(told_by, service):
    """F12: 503 to the others, a failing health check, and no more rounds."""
    with _made(Centres()) as centres:
        centres.exchange()
        sent = _sent(centres, {"number": 9})
        receipt = {"account": "ann", "donor": centres[1].store.id, "recipient": centres[0].store.id}
        if told_by == "receipt":
            sent = {**sent, "transfers": [], "receipts": [{**receipt, "number": 9, "taken": True, "version": 1}]}
        api = HealthAPI(lambda: service.warehouse.catalog, service.store, service.maintenance, centres[1].peers)
        assert api.checks()["shares"] == "ok"
        assert not centres[1].peers.behind
        answer = centres[1].app.post("/v1/peer/transfers", headers=BEARER, json=sent)
        assert (answer.status_code, answer.json()["type"]) == (503, "/problems/store-unavailable")
        assert centres[1].peers.behind
        with pytest.raises(StoreBehind):
            centres[1].peers.exchange()
        centres[0].peers.exchange()


def test_rounds_are_repeated_after_any_failure(monkeypatch):
    """Rounds are repeated until the exchange is closed."""
    monkeypatch.setattr(peers, "EVERY_SECONDS", 0.0)
    with _made(Centres()) as centres:
        rounds, failing = threading.Semaphore(0), threading.Event()

        def exchange():
            rounds.release()
            if not failing.is_set():
                failing.set()
                raise ZeroDivisionError

        monkeypatch.setattr(centres[0].peers, "exchange", exchange)
        with centres[0].peers.running():
            for _ in range(3):
                assert rounds.acquire(timeout=30)
        assert [event["where"] for event in centres[0].events("failed")] == ["peers"]
        assert not any(thread.name == "peers" for thread in threading.enumerate())


# ---------------------------------------------------------------------------------------------------- settings

_SETTINGS = """
[noise]
key_file = "noise.key"
[datacentre]
name = "frankfurt"
key_file = "peer.key"
peers.dublin = "https://discreet.dublin.example.org/"
peers.near = "http://127.0.0.1:8081"
"""


def test_other_data_centres_are_named_in_the_settings(tmp_path):
    """The settings have a name and a URL for each peer."""
    (tmp_path / "discreet.toml").write_text(_SETTINGS)
    found = load_settings(tmp_path / "discreet.toml").datacentre
    assert dict(found.peers) == {"dublin": "https://discreet.dublin.example.org", "near": "http://127.0.0.1:8081"}
    assert (found.name, found.key_file) == ("frankfurt", tmp_path / "peer.key")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("https://discreet.dublin", "http://discreet.dublin", "datacentre.peers.dublin.*must be an https URL"),
        ("https://discreet.dublin", "https://user:s3cret@dublin", "must be an https URL"),
        ('key_file = "peer.key"', "", "either key_file or key_env"),
        ('key_file = "peer.key"', 'key_file = "peer.key"\nkey_env = "KEY"', "not both"),
        ('name = "frankfurt"', 'name = "dublin"', "must not name this data centre itself"),
        ('name = "frankfurt"', 'name = "frank furt"', "must have up to 64 letters"),
        ("peers.near", "peers.'ne ar'", "must have up to 64 letters"),
        ('peers.dublin = "https://discreet.dublin.example.org/"\npeers.near = "http://127.0.0.1:8081"', "", "peers"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(tmp_path, old, new, message):
    """Invalid settings of data centres are refused, and the message holds no secret."""
    (tmp_path / "discreet.toml").write_text(_SETTINGS.replace(old, new))
    with pytest.raises(InputError, match=message) as caught:
        load_settings(tmp_path / "discreet.toml")
    assert "s3cret" not in str(caught.value)


def test_peer_keys_can_be_changed_one_data_centre_at_a_time():
    """The first key is sent, all are accepted; none is shown."""
    old, both = PeerKeys(["o" * 32]), PeerKeys(["n" * 32, "o" * 32])
    both.check(old.header)
    both.check(both.header)
    with pytest.raises(KeyRefused):
        old.check(both.header)
    assert "n" * 32 not in repr(both)


def test_the_key_comes_from_a_file_or_the_environment(tmp_path):
    """The file must be readable by its owner only."""
    file = tmp_path / "peer.key"
    file.write_text(f"{'f' * 32}\n{'g' * 32}\n")
    centre = DataCentre(name="a", peers={"b": "https://b"}, key_file=file)
    file.chmod(0o644)
    with pytest.raises(InputError, match="others can read"):
        peer_keys(centre, {})
    file.chmod(0o600)
    assert peer_keys(centre, {}).header == f"Bearer {'f' * 32}"
    centre = DataCentre(name="a", peers={"b": "https://b"}, key_env="PEER_KEY")
    assert peer_keys(centre, {"PEER_KEY": "e" * 32}).header == f"Bearer {'e' * 32}"
    for environment in ({}, {"PEER_KEY": "short"}, {"PEER_KEY": "\N{SNOWMAN}" * 32}):
        with pytest.raises(InputError, match=r"32 or more|is not set"):
            peer_keys(centre, environment)


def test_a_store_belongs_to_one_data_centre(tmp_path):
    """A copy of it is not served in another data centre."""
    with Centres() as centres:
        here = DataCentre(name="here", peers={"b": "https://b"}, key_env="KEY")
        for _ in range(2):
            open_peers(here, centres[0].store, {"KEY": KEY}, None).close()
        there = DataCentre(name="there", peers={"b": "https://b"}, key_env="KEY")
        with pytest.raises(InputError, match="'here', not of 'there'"):
            open_peers(there, centres[0].store, {"KEY": KEY}, None)
        for text in (None, "no certificate"):
            if text is not None:
                (tmp_path / "ca.pem").write_text(text)
            odd = DataCentre(name="here", peers={"b": "https://b"}, key_env="KEY", ca_file=tmp_path / "ca.pem")
            with pytest.raises(InputError, match="certificates"):
                open_peers(odd, centres[0].store, {"KEY": KEY}, None)
