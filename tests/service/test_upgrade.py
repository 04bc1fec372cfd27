"""A store that version 0.2.0 wrote, opened by this code: every answer is found, free of charge, to the byte.

`answered_store.sql` is SQLite's dump of it, `answered_store.json` holds the requests and the answers. They are never
written again.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from discreet.budget.ledger import Line
from discreet.release import keys
from discreet.values import Cost
from tests.service.deployment import Deployment
from tests.service.trino_client import run

HERE = Path(__file__).parent
ANSWERED = json.loads((HERE / "answered_store.json").read_text())


@pytest.fixture
def old(tmp_path):
    """Return a deployment with the old store in place of its own."""
    deployment = Deployment(tmp_path / "deployment")
    path = deployment.folder / "budget.db"
    path.unlink()
    with sqlite3.connect(path) as database:
        database.executescript((HERE / "answered_store.sql").read_text())
    database.close()
    return deployment


def test_every_answer_of_the_version_before_is_replayed_free_of_charge(old, monkeypatch):
    """I2, I3: also with another order of drawing, over every door; the old lines are as they were, and verify.

    An average keeps its id, its bytes and its meaning, that of users, but is not what AVG asks for now.
    """
    monkeypatch.setattr(keys, "DRAWING", "another order")
    path = old.folder / "budget.db"
    with sqlite3.connect(path) as database:
        lines = [
            Line(*row) for row in database.execute("SELECT chain, seq, body, hash FROM budget_ledger ORDER BY seq")
        ]
    database.close()
    with old.open() as service:
        before = service.balance().spent
        old.keys["ann"] = service.make_key("ann@sales")
        for answered in ANSWERED:
            id_ = json.loads(answered["answer"])["id"]
            assert service.get(f"/v1/releases/{id_}").text == answered["answer"]
            if "AVG(" in answered["body"]["sql"]:
                continue  # the average of users then; the same text is another query now, for the average of rows
            reply = service.send("POST", "/v1/query", json=answered["body"])
            assert (reply.status_code, reply.text) == (200, answered["answer"]), answered["body"]
            assert reply.headers["discreet-replayed"] == "?1"
            session = {name: value for name, value in answered["body"].items() if name not in {"sql", "counts"}}
            if "counts" not in answered["body"]:
                assert "data" in run(service, answered["body"]["sql"], session=session)
        assert service.balance().spent == before != Cost()
        assert service.engines.queried == 0
        assert len(service.get("/v1/releases?limit=100").json()["releases"]) == len(ANSWERED)
        assert list(service.store.lines(0, 0, len(lines))) == lines


def test_a_new_order_of_drawing_uses_other_bits(tmp_path, monkeypatch):
    """T13: one stream read in two orders would give the difference of two draws of noise away."""
    answers = []
    for number, drawing in enumerate((keys.DRAWING, keys.DRAWING, "another order")):
        monkeypatch.setattr(keys, "DRAWING", drawing)
        with Deployment(tmp_path / str(number)).open() as service:
            reply = service.send("POST", "/v1/query", json=ANSWERED[0]["body"])
            answers.append([item["count"] for item in reply.json()["items"]])
            assert reply.json()["id"] == json.loads(ANSWERED[0]["answer"])["id"]
    assert answers[0] == answers[1] != answers[2]
