"""`discreet plan` and `discreet convert`: results that need no data."""

from __future__ import annotations

import json
import math

import pytest

SOURCE = ["nowhere.parquet", "--user", "u", "--item", "i"]


def plan(run, *arguments):
    """Return a plan as JSON."""
    return json.loads(run("plan", *SOURCE, *arguments, "--format", "json").out)


def test_a_plan_does_not_open_the_source(run):
    """The file of a plan need not exist."""
    ran = run("plan", *SOURCE, "-k", 5)
    assert ran.code == 0
    assert ran.out.splitlines()[0].split() == ["mechanism", "unknown-gumbel"]
    assert ran.err == ""


def test_k_makes_it_a_top_and_no_k_a_release(run):
    """The same arguments as the command that is planned."""
    assert plan(run, "-k", 5)["mechanism"] == "unknown-gumbel"
    assert plan(run, "-k", 6)["mechanism"] == "auto"
    assert plan(run)["mechanism"] == "auto"
    assert plan(run)["reads"] == "pairs"
    assert "it depends on how many items users have" in run("plan", *SOURCE).out
    assert plan(run, "--groups-per-user", 3)["mechanism"] == "unknown-laplace"
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


def test_converting_the_papers_budget_gives_its_numbers(run):
    """k* = 3000, l* = 30, eps_per = .15: rho 8.4375, simple 34.88, tight 33.78 (LinkedIn 2021, section 6)."""
    arguments = ["--information", 3000, "--calls", 30, "--epsilon-per", 0.15, "--delta-per", "1e-10", "--delta", "1e-9"]
    body = json.loads(run("convert", *arguments, "--format", "json").out)
    assert body["rho"] == 8.4375
    assert body["epsilon_simple"] == pytest.approx(34.8839, abs=1e-4)
    assert body["epsilon"] == pytest.approx(33.7818, abs=1e-4)
    assert body["delta"] == pytest.approx(4e-9, rel=1e-12)


def test_converting_there_and_back_stays_on_the_safe_side(run):
    """Rho of (1, 5e-9) as in the reference table; its epsilon is 1 again, except for the slack."""
    there = json.loads(run("convert", "--epsilon", 1, "--delta", "5e-9", "--format", "json").out)
    assert there["rho"] == pytest.approx(0.016468, abs=1e-6)
    assert there["rho_simple"] == pytest.approx(0.012748, abs=1e-6)
    back = json.loads(run("convert", "--rho", there["rho"], "--delta", "5e-9", "--format", "json").out)
    assert 0.999999 < back["epsilon"] <= 1 + 1e-11
    other = json.loads(run("convert", "--rho", there["rho"], "--epsilon", 1, "--format", "json").out)
    assert other["delta"] == pytest.approx(5e-9, rel=1e-6)


def test_converting_to_units_rounds_down(run):
    """Rho holds rho / (eps_per^2 / 8) whole units."""
    arguments = ["--epsilon", 1, "--delta", "5e-9", "--epsilon-per", "0.01", "--format", "json"]
    assert json.loads(run("convert", *arguments).out)["information"] == math.floor(0.016468352 / (0.01**2 / 8))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "give two of --rho, --epsilon and --delta"),
        (["--rho", "1"], "give two of"),
        (["--rho", "1", "--epsilon", "1", "--delta", "1e-8"], "give two of"),
        (["--rho", "-1", "--delta", "1e-8"], "rho must be at least 0"),
        (["--rho", "1", "--delta", "0"], "delta must be above 0 and below 1"),
        (["--epsilon", "0", "--delta", "1e-8"], "epsilon must be above 0"),
        (["--epsilon", "1", "--delta", "1e-8", "--epsilon-per", "0"], "epsilon per unit must be above 0"),
        (["--information", "5", "--epsilon-per", "0.1"], "units need --epsilon-per and --delta"),
        (["--calls", "5", "--epsilon-per", "0.1", "--delta", "1e-8"], "calls need --delta-per"),
        (["--information", "-5", "--epsilon-per", "0.1", "--delta", "1e-8"], "must not be negative"),
        (["--information", "5", "--rho", "1", "--epsilon-per", "0.1", "--delta", "1e-8"], "leave --rho and --epsilon"),
        (["--rho", "x", "--delta", "1e-8"], "--rho must be a finite number"),
    ],
)
def test_values_that_cannot_be_converted_are_refused(run, arguments, sentence):
    """One sentence with the allowed values, exit 2."""
    ran = run("convert", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert sentence in ran.err
    assert ran.err.count("\n") == 1
