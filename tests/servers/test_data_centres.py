"""I8: two services on two PostgreSQL servers share budgets while they are partitioned and killed."""

from __future__ import annotations

import itertools

import pytest

from tests.servers import postgres as server_of
from tests.servers.data_centres import DataCentres, wait_until


@pytest.fixture(scope="module")
def two_servers(tmp_path_factory):
    """Return the URLs of two PostgreSQL servers, each with its own data directory and port."""
    folders = [tmp_path_factory.mktemp(name) for name in ("frankfurt", "dublin")]
    yield [server_of.start(folder) for folder in folders]
    for folder in folders:
        server_of.stop(folder)


@pytest.fixture
def centres(two_servers, tmp_path):
    """Return two data centres; at the end, check that their shares add up and that `ledger verify` passes on both."""
    made = DataCentres(tmp_path, two_servers)
    yield made
    made.heal()
    try:
        made.check_sums()
        for centre in made.both:
            verified = centre.run("ledger", "verify", "--config", str(centre.folder / "discreet.toml"))
            assert verified.stdout.startswith("sound")
    finally:
        made.close()


def _spend(centre, numbers):
    """Send queries until the budget is exhausted, and return how many were answered."""
    for answered in itertools.count():
        status = centre.ask(next(numbers))
        if status != 200:
            assert status == 403
            return answered
    raise AssertionError


def test_a_partitioned_data_centre_spends_its_share_and_gets_more_when_it_is_connected(centres):
    """I8: under a partition each spends its own share only; when it heals, shares move. They always add up."""
    centres.start()
    centres.share()
    frankfurt, dublin = centres.both
    numbers = iter(range(1, 100))
    for centre in centres.both:
        assert centre.ask(next(numbers)) == 200
        centres.check_sums()
    centres.cut()
    wait_until(lambda: any(e["step"] == "unreachable" for e in frankfurt.events("share_moved")))
    shares = [centre.holding().limit for centre in centres.both]
    answered = _spend(dublin, numbers)
    assert answered > 0
    assert dublin.ask(next(numbers)) == 403
    assert [centre.holding().limit for centre in centres.both] == shares
    assert frankfurt.ask(next(numbers)) == 200
    centres.check_sums()
    centres.heal()
    wait_until(lambda: dublin.holding().limit != shares[1] and not centres.in_flight())
    centres.check_sums()
    refused = next(numbers)
    wait_until(lambda: dublin.ask(refused) == 200)
    for centre in centres.both * 2:
        _spend(centre, numbers)
    centres.check_sums()
    total, spent = frankfurt.holding().total, [centre.holding().spent for centre in centres.both]
    assert (spent[0] + spent[1]).within(total)


def test_a_total_changed_in_one_data_centre_is_changed_in_both(centres):
    """I8: a raised limit is usable in the other data centre, which soon reports the same total."""
    centres.start()
    centres.share()
    frankfurt, dublin = centres.both
    numbers = iter(range(1, 100))
    _spend(dublin, numbers)
    _spend(frankfurt, numbers)
    for name, epsilon in (("org", 12.0), ("ann", 8.0)):
        limit = {"limit": {"epsilon": epsilon, "delta": "1e-6"}, "reason": "a test"}
        frankfurt.call("PATCH", f"/v1/admin/accounts/{name}", "officer", json=limit)
    refused = next(numbers)
    wait_until(lambda: dublin.ask(refused) == 200)
    centres.check_sums()
    wait_until(lambda: len({centre.holding().total for centre in centres.both}) == 1)
    centres.check_sums()


@pytest.mark.parametrize(
    ("who", "part", "when"),
    [
        ("frankfurt", "announce", "after"),
        ("dublin", "receive", "before"),
        ("dublin", "receive", "after"),
        ("frankfurt", "acknowledge", "before"),
        ("frankfurt", "acknowledge", "after"),
    ],
)
def test_a_service_killed_during_a_transfer_finishes_it_after_a_restart(centres, who, part, when):
    """I8: a kill before or after each transaction of an account's first transfer creates or loses no budget."""
    victim = {centre.name: centre for centre in centres.both}[who]
    other = next(centre for centre in centres.both if centre is not victim)
    centres.start()
    victim.stop()
    victim.start(part, when)
    if victim.name == "frankfurt":
        victim.ready().open_account("org", 8.0)
    else:
        victim.ready()
        other.open_account("org", 8.0)
    victim.wait_until_killed()
    centres.check_sums()
    victim.start()
    victim.ready()
    wait_until(lambda: centres.dublin.has("org") and not centres.in_flight())
    centres.check_sums()
    odd = centres.frankfurt.holding("org").limit - centres.dublin.holding("org").limit
    assert {odd.rho, odd.delta} <= {0, 1}


def test_a_service_killed_after_granting_a_share_grants_it_once(centres):
    """I8: a data centre killed after granting a share during rebalancing grants it once."""
    centres.start()
    centres.share()
    frankfurt, dublin = centres.both
    frankfurt.stop()
    frankfurt.start("grant", "after")
    frankfurt.ready()
    numbers = iter(range(1, 100))
    _spend(dublin, numbers)
    frankfurt.wait_until_killed()
    centres.check_sums()
    assert centres.in_flight()
    frankfurt.start()
    frankfurt.ready()
    wait_until(lambda: not centres.in_flight())
    refused = next(numbers)
    wait_until(lambda: dublin.ask(refused) == 200)
    centres.check_sums()
