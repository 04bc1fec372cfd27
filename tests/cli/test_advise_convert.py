"""`discreet convert`: conversions of guarantees, without data."""

from __future__ import annotations

import json
import math

import pytest


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
