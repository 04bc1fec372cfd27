"""Damaged files under a service: a damaged answer is not served, and another noise key charges nothing again."""

from __future__ import annotations

import pytest

from discreet.cli import main
from discreet.errors import InputError
from tests.service.deployment import slug


def _damage(service):
    """Change one byte of the one stored answer."""
    store = service.manager.store
    (paid,) = store.history("ann@sales")
    damaged = paid.release.result.replace(b'"id"', b'"ID"')
    values = damaged, paid.release_key
    change = [("UPDATE budget_releases SET result = ? WHERE release_key = ?", values)]
    store.write(lambda transaction: transaction.db.write(change), "damage")
    return paid.release_key.hex()


def test_a_damaged_answer_is_refused_and_named_and_the_others_are_listed(deployment):
    """I2, I3: nothing is charged, the log has a failure, and lists and pages show the rest."""
    with deployment.open(checked=False) as service:
        assert service.ask(key="one").status_code == 200
        damaged = _damage(service)
    with deployment.open(checked=False) as service:  # nothing is in memory
        assert service.ask("SELECT country, COUNT(DISTINCT reader) FROM reads GROUP BY 1", key="two").status_code == 200
        before = service.balance().spent
        for reply in (service.ask(key="three"), service.get(f"/v1/releases/{damaged}")):
            assert (reply.status_code, slug(reply)) == (503, "store-unavailable")
            assert "damaged" in reply.json()["detail"]
            assert "charged" not in reply.json()
        assert service.balance().spent == before
        assert [event["error"] for event in service.events("failed")] == ["ReleaseDamaged"] * 2
        listed = service.get("/v1/releases").json()
        assert listed["damaged"] == [damaged]
        assert len(listed["releases"]) == 1
        shown = service.get("/v1/admin/activity", "officer").json()["activity"]
        assert sum(each["kind"] == "answered" for each in shown) == 2
        assert service.act("POST", "/v1/admin/ledger/verify").json()["sound"] is False


def test_another_noise_key_is_refused_until_an_operator_accepts_it(deployment, capsys):
    """I3: with one changed bit of the key every query would be charged again, and get other noise."""
    with deployment.open() as service:
        paid = service.ask(key="one")
        assert paid.status_code == 200
    key = deployment.folder / "noise.key"
    secret = key.read_bytes()
    key.write_bytes(bytes([secret[0] ^ 1]) + secret[1:])
    with pytest.raises(InputError, match="discreet key accept"), deployment.open():
        pass
    key.write_bytes(secret)
    with deployment.open() as service:
        assert service.ask(key="again").content == paid.content
    key.write_bytes(bytes([secret[0] ^ 1]) + secret[1:])
    with pytest.raises(SystemExit) as ended:
        main(["key", "accept", "--config", str(deployment.folder / "discreet.toml"), "--reason", "the old one leaked"])
    assert ended.value.code == 0, capsys.readouterr().err
    with deployment.open() as service:
        assert service.ask(key="new").content != paid.content
        assert service.get(f"/v1/releases/{paid.json()['id']}").content == paid.content
