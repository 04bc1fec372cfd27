"""The real thing, I8: two services on two PostgreSQL servers that share budgets, cut off from each other, killed."""

from __future__ import annotations

import itertools

import pytest

from servers import postgres as server_of
from servers.tests.data_centres import DataCentres, until


@pytest.fixture(scope="module")
def two_servers(tmp_path_factory):
    """URLs of two servers of PostgreSQL, with a data directory and a port each."""
    folders = [tmp_path_factory.mktemp(name) for name in ("frankfurt", "dublin")]
    yield [server_of.start(folder) for folder in folders]
    for folder in folders:
        server_of.stop(folder)


@pytest.fixture
def centres(two_servers, tmp_path):
    """Two data centres; their shares add up in the end, by the ledger of each and by its own command."""
    made = DataCentres(tmp_path, two_servers)
    yield made
    made.heal()
    try:
        made.add_up()
        for centre in made.both:
            said = centre.run("ledger", "verify", "--config", str(centre.folder / "discreet.toml"))
            assert said.stdout.startswith("sound")
    finally:
        made.close()


def _spend(centre, numbers):
    """Ask until the budget is short; how many were answered."""
    for answered in itertools.count():
        status = centre.ask(next(numbers))
        if status != 200:
            assert status == 403
            return answered
    raise AssertionError


def test_a_data_centre_that_is_cut_off_serves_from_its_share_and_gets_more_when_it_is_not(centres):
    """One budget of an analyst and one of her organisation; after each step it adds up."""
    centres.start()
    centres.share()
    frankfurt, dublin = centres.both
    numbers = iter(range(1, 100))
    for centre in centres.both:
        assert centre.ask(next(numbers)) == 200
        centres.add_up()
    centres.cut()
    until(lambda: any(e["step"] == "unreachable" for e in frankfurt.events("share_moved")))
    shares = [centre.holding().limit for centre in centres.both]
    answered = _spend(dublin, numbers)
    assert answered > 0
    assert dublin.ask(next(numbers)) == 403
    assert [centre.holding().limit for centre in centres.both] == shares
    assert frankfurt.ask(next(numbers)) == 200
    centres.add_up()
    centres.heal()
    until(lambda: dublin.holding().limit != shares[1] and not centres.in_flight())
    centres.add_up()
    refused = next(numbers)
    until(lambda: dublin.ask(refused) == 200)
    for centre in centres.both * 2:
        _spend(centre, numbers)
    centres.add_up()
    total, spent = frankfurt.holding().total, [centre.holding().spent for centre in centres.both]
    assert (spent[0] + spent[1]).within(total)


def test_an_officer_changes_the_total_in_one_and_both_have_it(centres):
    """Up: the other one's next question is answered with it, and soon it knows of it."""
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
    until(lambda: dublin.ask(refused) == 200)
    centres.add_up()
    until(lambda: len({centre.holding().total for centre in centres.both}) == 1)
    centres.add_up()


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
def test_a_service_that_is_killed_half_way_through_a_move_finishes_it_later(centres, who, part, when):
    """The first share of an account, killed before and after each of its transactions; nothing is made or lost."""
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
    victim.died()
    centres.add_up()
    victim.start()
    victim.ready()
    until(lambda: centres.dublin.has("org") and not centres.in_flight())
    centres.add_up()
    odd = centres.frankfurt.holding("org").limit - centres.dublin.holding("org").limit
    assert {odd.rho, odd.delta} <= {0, 1}


def test_a_service_that_is_killed_after_it_gave_a_share_gives_it_once(centres):
    """Rebalancing, by the one that is asked."""
    centres.start()
    centres.share()
    frankfurt, dublin = centres.both
    frankfurt.stop()
    frankfurt.start("grant", "after")
    frankfurt.ready()
    numbers = iter(range(1, 100))
    _spend(dublin, numbers)
    frankfurt.died()
    centres.add_up()
    assert centres.in_flight()
    frankfurt.start()
    frankfurt.ready()
    until(lambda: not centres.in_flight())
    refused = next(numbers)
    until(lambda: dublin.ask(refused) == 200)
    centres.add_up()
