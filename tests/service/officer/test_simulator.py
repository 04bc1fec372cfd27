"""The simulator of privacy parameters, over plain HTTP."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from discreet.accounting.advice import averaging, differencing
from discreet.noise import SystemBits
from discreet.service.officer.simulator import SimulatorParameters, parameters_for, released_counts, simulate


def test_the_simulator_agrees_with_the_functions_that_choose_parameters(officer):
    """Its attacks are those of `discreet.accounting.advice`, and its budget ends where k* or l* does."""
    tried = SimulatorParameters(Fraction("0.15"), Fraction("1e-10"), 1_000, 3_000, 100, 10, 30, 10_000)
    found = simulate(tried, SystemBits)
    assert found.items == 10
    assert found.steps == 20
    assert found.queries == 100
    assert simulate(replace(tried, information=90), SystemBits).queries == 4
    assert found.averaging == averaging(0.15, 30, noise="gaussian")
    assert found.differencing == differencing(0.15, noise="gaussian")
    shown = officer.get("/officer/simulator?units=steps").text
    assert "100 <span>queries until the budget is exhausted" in shown
    for wrong in ("0", "many", "1e-999999999", "nan", "inf"):
        assert "epsilon_per must be" in officer.get(f"/officer/simulator?units=steps&epsilon_per={wrong}").text.lower()
    assert "k must be" in officer.get("/officer/simulator?k=2000&head_limit=20000").text.lower()


def test_the_simulator_speaks_epsilon_and_delta(officer):
    """A budget of ten times epsilon allows a hundred times as much; its guarantee is what was typed."""
    shape = {"head_limit": 1_000, "k": 10, "days": 30, "largest": 10_000}
    tried = parameters_for(0.5, Fraction("1e-9"), 5.0, Fraction("1e-7"), **shape)
    found = simulate(tried, SystemBits)
    assert 4.99 < found.guarantee.epsilon <= 5
    assert found.guarantee.delta <= 1.001e-7
    assert tried.calls == 100
    assert 0 < found.epsilon <= 0.5
    shown = officer.get("/officer/simulator").text
    assert "of the budget" in shown
    assert "steps" not in shown.partition("What they lead to")[2]
    assert "does not allow a single query" in officer.get("/officer/simulator?epsilon=6").text
    assert "epsilon must be" in officer.get("/officer/simulator?epsilon=many").text.lower()


def test_the_simulator_takes_the_counts_of_an_answer_as_they_are_copied_or_saved(officer):
    """No item beyond them is shown, and a line without a count is reported."""
    assert released_counts("300\n-4\n\n1200.7") == [1201, 300, 0]
    assert released_counts("article\tusers\t95 % interval\na1\t12\t9\na2\t40\t37") == [40, 12]
    assert released_counts('"rank","article","count"\n1,"a 1",7') == [7]
    officer.get("/officer/simulator")
    assert "A query returns 2 of the 10 items" in officer.post("/officer/simulator", counts="a,4000\nb,3000").text
    assert "Line 2 of the counts" in officer.post("/officer/simulator", counts="a,1\nb,few").text
