"""`discreet plan`: results that need no data."""

from __future__ import annotations

import json
import math

import pytest

SOURCE = ["nowhere.parquet", "--user", "u", "--item", "i"]


def plan(run, *arguments):
    """Return a plan as JSON."""
    return json.loads(run("plan", *SOURCE, *arguments, "--format", "json").out)


def test_a_plan_does_not_open_the_source(run):
    """The file of a plan need not exist; there is a note if it does not."""
    ran = run("plan", *SOURCE, "-k", 5)
    assert ran.code == 0
    assert ran.out.splitlines()[0].split() == ["mechanism", "unknown-gumbel"]
    assert ran.err == "note: there is no file 'nowhere.parquet'; the plan does not depend on it\n"
    assert run("plan", *SOURCE, "--quiet").err == ""
    assert "note: no file matches 'no*.parquet'" in run("plan", "no*.parquet", "--user", "u", "--item", "i").err
    assert run("plan", "postgresql://nowhere/db?table=t", "--user", "u", "--item", "i").err == ""


def test_a_plan_without_items_is_of_a_total(run):
    """As a release is; a top needs items."""
    ran = run("plan", "nowhere.parquet", "--user", "u", "--format", "json")
    assert json.loads(ran.out)["query"]["items"] == []
    assert "--item COL is missing" in run("plan", "nowhere.parquet", "--user", "u", "-k", 3).err


def test_k_makes_it_a_top_and_no_k_a_release(run):
    """The same arguments as the command that is planned."""
    assert plan(run, "-k", 5)["mechanism"] == "unknown-gumbel"
    assert plan(run, "-k", 6)["mechanism"] == "auto"
    assert plan(run)["mechanism"] == "auto"
    assert plan(run)["reads"] == "pairs"
    shown = run("plan", *SOURCE).out
    assert "probably two-round: 5.19 up to 8.5 % of the count; otherwise head or light: 1.59 up to 10 %" in shown
    assert plan(run)["basis"] is None
    likely = plan(run, "-k", 6)["likely"]
    assert [each["name"] for each in likely] == ["unknown-gumbel", "two-round", "head", "light"]
    anchored = (1 + math.sqrt(6)) / (2 * math.sqrt(6))  # six counts share a part of their noise, five do not
    assert likely[0]["min_std_error"] > anchored * plan(run, "-k", 5)["std_error"]["most"]
    assert plan(run, "--groups-per-user", 3)["mechanism"] == "unknown-laplace"
    assert plan(run, "--groups-per-user", 3)["basis"] == "at most 3 items of a user"
    assert plan(run)["half_width"] == {"least": None, "most": None}
    width = plan(run, "--groups-per-user", 1)["half_width"]
    shown = f" for at most 1 item of a user; 95 % intervals are ± {width['least']} to {width['most']}\n"
    assert shown in run("plan", *SOURCE, "--groups-per-user", 1).out
    assert plan(run, "-k", 10, "--mechanism", "stable", "--no-counts")["mechanism"] == "top-stable"


def test_a_plan_shows_cost_error_and_smallest_count(run):
    """The worst cost is within the request; sigma = 2 / epsilon_per with 20 units of epsilon_per^2 / 8 in rho."""
    planned = plan(run, "-k", 10, "--epsilon", 1, "--delta", "1e-8", "--mechanism", "gumbel")
    assert planned["privacy"]["epsilon"] <= 1
    assert planned["privacy"]["delta"] <= 1e-8
    per = math.sqrt(8 * planned["worst_cost"]["rho"] / 20)
    assert planned["std_error"]["most"] == pytest.approx(2 / per, rel=1e-6)
    assert planned["smallest_count"] == math.ceil(1 + math.log(1000 / 5e-9) / per)
    assert planned["reads"] == 1001


def test_a_plan_shows_one_of_several_releases_that_cost_as_much_together(run):
    """Beside the whole: daily for four weeks needs several times as many users in an item."""
    shown = plan(run, "--epsilon", 4, "--releases", 28)
    assert (shown["releases"], shown["each"]["query"]["items"]) == (28, ["i"])
    assert 28 * shown["each"]["worst_cost"]["rho"] < shown["worst_cost"]["rho"]
    assert shown["each"]["likely"][0]["smallest_count"] > 4 * shown["likely"][0]["smallest_count"]
    assert "\n\none of 28 releases that cost as much together\nmechanism" in run("plan", *SOURCE, "--releases", 28).out
    assert "at least 1, not 0" in run("plan", *SOURCE, "--releases", 0).err


def test_a_plan_may_have_a_price_per_unit(run):
    """Ten items and counts over an unknown domain: 2 k + 1 units and a call, at the noise of a unit."""
    planned = plan(run, "-k", 10, "--epsilon-per", "0.15")
    assert planned["units"] == {"information": 21, "calls": 1}
    assert planned["std_error"]["most"] == pytest.approx(2 / 0.15)
    assert planned["worst_cost"]["delta"] == 1e-10
    assert plan(run, "--epsilon-per", "0.15", "--information", 40, "--delta-per", "1e-9")["units"]["information"] == 40
    assert plan(run, "-k", 10)["units"] is None
    text = run("plan", *SOURCE, "-k", 10, "--epsilon-per", "0.15").out
    assert "units           21 of information, 1 call\n" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epsilon-per", "0.15", "--epsilon", "1.0"], "leave --epsilon out"),
        (["--epsilon-per", "0.15", "--delta", "1e-8"], "leave --delta out"),
        (["--epsilon-per", "x"], "epsilon per unit must be a finite number, not 'x'"),
        (["--epsilon-per", "0.15", "--information", "0"], "information must be at least 1"),
        (["--sql", "SELECT 1"], "a statement needs a catalog"),
    ],
)
def test_a_plan_has_one_price(run, arguments, message):
    """Per unit, or an epsilon and a delta; both are refused with one sentence, exit code 2."""
    ran = run("plan", *SOURCE, *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err


def test_a_plan_accepts_all_arguments_of_the_command_it_plans(run, tmp_path):
    """Options of output are accepted without effect."""
    assert run("plan", *SOURCE, "--output", tmp_path / "x.csv", "--plot", tmp_path / "x.png", "-q").code == 0
    assert list(tmp_path.iterdir()) == []


def test_a_plan_refuses_an_invalid_query(run):
    """The query is checked as far as possible without a table."""
    assert "k must be at least 1" in run("plan", *SOURCE, "-k", 0).err
    assert "subqueries are not allowed" in run("plan", *SOURCE, "--where", "u IN (SELECT 1)").err
    assert "printed as table or json" in run("plan", *SOURCE, "--format", "csv").err
