"""`discreet advise`: parameters, each with the attack that it resists."""

from __future__ import annotations

import io
import json
import sys

import pytest

USE = ["--period-days", 30, "--queries-per-day", 1, "--results-per-query", 50, "--tolerance", 0.5]


def test_the_use_of_the_paper_gets_the_parameters_of_the_paper(run):
    """LinkedIn 2021, section 8.3: .15 against averaging, about 3,000 against differencing, 30 calls."""
    body = json.loads(run("advise", *USE, "--noise", "laplace", "--format", "json").out)
    assert body["epsilon_per"] == 0.15
    assert 2_900 < body["information"] < 3_000
    assert body["calls"] == 30
    assert body["calls"] * body["delta_per"] <= 1e-8
    assert set(body["reasons"]) == {"epsilon_per", "information", "calls", "delta_per", "guarantee"}


def test_every_parameter_comes_with_its_reason(run):
    """For each, a line with the value and a line with the reason."""
    lines = run("advise", *USE).out.splitlines()
    assert [line.split()[0] for line in lines[::2]] == ["epsilon_per", "information", "calls", "delta_per", "guarantee"]
    assert all(line.startswith(" " * 14) and line.endswith(".") for line in lines[1::2])


def test_gaussian_counts_are_easier_to_average(run):
    """At equal cost they have lighter tails, so epsilon_per must be smaller."""
    gaussian, laplace = (
        json.loads(run("advise", *USE, "--noise", noise, "--format", "json").out)["epsilon_per"]
        for noise in ("gaussian", "laplace")
    )
    assert gaussian < laplace


def test_missing_values_are_prompted_for_on_a_terminal(run, monkeypatch):
    """Four prompts, on standard error, so that the output can still be piped."""
    terminal = io.StringIO("30\n1\n50\n\n")
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stdin", terminal)
    ran = run("advise", "--noise", "laplace", "--format", "json")
    assert json.loads(ran.out)["epsilon_per"] == 0.15
    assert ran.err.count("?") == 4


def test_the_picture_is_written(run, tmp_path):
    """Epsilon against the information budget, by every bound."""
    few = ["--period-days", 3, "--queries-per-day", 1, "--results-per-query", 5, "--tolerance", 0.5]
    assert run("advise", *few, "--plot", tmp_path / "advice.png").code == 0
    assert (tmp_path / "advice.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (USE[:6], "--tolerance is missing"),
        (["--period-days", 0, *USE[2:]], "period_days must be from 1 to 4,000"),
        ([*USE[:6], "--tolerance", "nan"], "tolerance must be"),
        ([*USE, "--averaging-chance", 0], "averaging_chance must be above 0 and below 1"),
        ([*USE, "--leak-chance", 1], "leak_chance must be at least 1e-20 and below 1"),
        ([*USE, "--plot", "x.gif"], "plots end in .png, .svg or .pdf"),
    ],
)
def test_an_invalid_use_is_refused(run, monkeypatch, arguments, sentence):
    """One sentence, exit 2; without a terminal there is no prompt."""
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    ran = run("advise", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert sentence in ran.err
    assert ran.err.count("\n") == 1
