"""The balance of an account of a budget service, on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from discreet.cli.query import bar, budget_as_text
from discreet.wire.queries import BudgetReport
from tests.client.scripted_server import ScriptedServer, problem, reply

KEY = "dsc_0123456789abcdef_" + "5ec2e7" * 10 + "abcd"
REPORT = {
    "account": "ann@sales",
    "mode": "enforce",
    "period": {"kind": "sliding", "days": 30, "unit": None, "zone": None},
    "limit": {"rho": 1.0, "delta": 1e-07},
    "used": {"rho": 0.5, "delta": 1e-08},
    "held": {"rho": 0.1, "delta": 0.0},
    "forfeited": {"rho": 0.0, "delta": 0.0},
    "left": {"rho": 0.4, "delta": 9e-08},
    "epsilon_limit": 5.0,
    "epsilon_spent": 6.1,
    "epsilon_left": 4.2,
    "conversion_delta": 1e-09,
    "units": None,
    "resets_at": "2026-12-01T01:30:00+01:00",
    "suspended_until": None,
    "suspended_by_officer": None,
    "guarantee": None,
    "queries_left": 3,
    "parents": [
        {
            "account": "sales",
            "mode": "observe",
            "limit": {"rho": 8.0, "delta": 1e-06},
            "left": {"rho": 6.0, "delta": 0.0},
            "resets_at": None,
        }
    ],
    "running": [],
}
TEXT = """\
ann@sales  40 % left, in any 30 days
  rho         [###############===............]  0.4 of 1 left
  delta       [###...........................]  9e-08 of 1e-07 left
  one answer  can have an epsilon of up to 4.2 (delta = 1e-09 and what answers may lose)
  resets      some comes back at 2026-12-01 00:30 UTC

sales  0 % left, shared with others
  rho         [########......................]  6 of 8 left
  delta       [##############################]  0 of 1e-06 left
  observed    nothing is refused, so nothing is guaranteed
"""


@pytest.fixture
def ask(run, monkeypatch):
    """Run the command with a server that returns this response."""
    monkeypatch.setenv("DISCREET_KEY", KEY)
    servers = []

    def ask(answer, *arguments):
        servers.append(ScriptedServer([answer]))
        return run("budget", "--url", servers[-1].url, *arguments)

    yield ask
    for server in servers:
        server.close()


def test_an_account_and_its_parents_are_shown_with_bars(ask):
    """Charged, held and remaining amounts, and when some are freed."""
    ran = ask(reply(body=json.dumps(REPORT).encode()))
    assert (ran.code, ran.out, ran.err) == (0, TEXT, "")


def test_the_page_shows_that_account():
    """The example of the page is the real output."""
    assert TEXT in (Path(__file__).resolve().parents[2] / "docs/cli.md").read_text()


def test_an_account_is_shown_as_json(ask):
    """The JSON is that of the service."""
    ran = ask(reply(body=json.dumps(REPORT).encode()), "--format", "json")
    assert json.loads(ran.out) == REPORT


def test_units_take_the_place_of_rho_and_delta():
    """Units for accounts that have them; forfeits and suspensions are shown."""
    units = {
        "epsilon_per": "0.15",
        "delta_per": "1e-10",
        "information": {"limit": 3000, "spent": 1500, "left": 1500},
        "calls": {"limit": 30, "spent": 1, "left": 29},
    }
    calendar = {"kind": "calendar", "days": None, "unit": "month", "zone": "Europe/Berlin"}
    more = {"forfeited": {"rho": 0.25, "delta": 0.0}, "suspended_until": "2026-11-21T10:00:00+00:00", "parents": []}
    lines = budget_as_text(
        BudgetReport.model_validate(REPORT | {"units": units, "period": calendar} | more)
    ).splitlines()
    assert lines[:3] == [
        "ann@sales  each month in Europe/Berlin",
        "  information [###############...............]  1,500 of 3,000 left",
        "  calls       [#.............................]  29 of 30 left",
    ]
    assert lines[4:6] == [
        "  forfeited   rho = 0.25, delta = 0: pays for the same query again",
        "  suspended   until 2026-11-21 10:00 UTC: too many runs failed",
    ]


def test_an_account_without_a_period_shows_no_reset():
    """The output has no line about a reset."""
    forever = {"kind": "forever", "days": None, "unit": None, "zone": None}
    text = budget_as_text(BudgetReport.model_validate(REPORT | {"period": forever, "resets_at": None, "parents": []}))
    assert text.startswith("ann@sales  40 % left, for all time\n")
    assert "resets" not in text


@pytest.mark.parametrize(
    ("charged", "held", "limit", "drawn"),
    [
        (0, 0, 1, 0 * "#" + 30 * "."),
        (1e-9, 0, 1, "#" + 29 * "."),
        (0, 1e-9, 1, "=" + 29 * "."),
        (1, 0, 1, 30 * "#"),
        (5, 5, 1, 30 * "#"),
        (0.5, 0.5, 1, 15 * "#" + 15 * "="),
        (0, 0, 0, 30 * "#"),
    ],
)
def test_a_bar_never_shows_more_room_than_there_is(charged, held, limit, drawn):
    """Rounding never shows more room than there is, and the width is constant."""
    assert bar(charged, held, limit) == f"[{drawn}]"


def test_an_error_is_one_sentence(ask):
    """The exit code depends on the kind of the error."""
    ran = ask(problem(401, "unauthorized", "Nobody knows the key."))
    assert (ran.code, ran.out, ran.err) == (2, "", "discreet: Nobody knows the key.\n")
