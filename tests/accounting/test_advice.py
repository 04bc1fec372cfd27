"""The attacks of section 8.3 against the paper's numbers and exact probabilities, and advice that follows from them."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath as mp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from discreet.accounting import advice
from discreet.accounting.advice import Workload, advise


def laplace_mean_within(epsilon_per, answers, tolerance):
    """Return Pr[|mean of Laplace(2 / epsilon_per)| < tolerance] by the characteristic function (Gil-Pelaez)."""
    b, s = 2 / epsilon_per, tolerance * answers
    with mp.workdps(20):
        places = [n * mp.pi / s for n in range(41)] + [mp.inf]
        return float(2 / mp.pi * mp.quad(lambda t: mp.sin(t * s) / t * (1 + (b * t) ** 2) ** -answers, places))


@pytest.mark.parametrize(("epsilon_per", "answers", "tolerance"), [(0.15, 30, 0.5), (1.0, 3, 0.5), (0.4, 12, 2.0)])
def test_averaging_laplace_noise_is_exact(epsilon_per, answers, tolerance):
    """The mixture of gammas equals an integral of the characteristic function."""
    truth = laplace_mean_within(epsilon_per, answers, tolerance)
    assert advice.averaging(epsilon_per, answers, tolerance) == pytest.approx(truth, abs=1e-9)


def test_averaging_gaussian_noise_is_normally_distributed():
    """A mean of m Gaussians of sigma = 2 / epsilon_per is closer to 0 than with Laplace noise at the same price."""
    sigma = 2 / 0.15 / math.sqrt(30)
    truth = norm.cdf(0.5 / sigma) - norm.cdf(-0.5 / sigma)
    assert advice.averaging(0.15, 30, noise="gaussian") == pytest.approx(truth, rel=1e-12)
    assert truth > advice.averaging(0.15, 30)


def test_one_answer_is_averaged_as_one_laplace_variable():
    """For one answer the probability is 1 - e^(-epsilon tolerance / 2)."""
    for tolerance in (0.1, 0.5, 40.0, 1e5):
        assert advice.averaging(0.3, 1, tolerance) == pytest.approx(-math.expm1(-0.15 * tolerance), rel=1e-12)


def test_differencing_reproduces_p_k_and_the_information_budget():
    """8.3.2: p = 0.0368, k = 738, and 4 k + 2 = 2954, which the paper rounds to 3000."""
    found = advice.differencing(0.15)
    assert found.chance == pytest.approx(-math.expm1(-0.15 / 4), rel=1e-12)
    assert round(found.chance, 4) == 0.0368
    assert (found.items, found.information) == (738, 2954)
    assert round(found.information, -3) == 3000


@given(st.floats(0.01, 5.0), st.floats(0.05, 5.0), st.sampled_from(["laplace", "gaussian"]))
@settings(max_examples=60)
def test_differencing_gives_the_largest_k_that_shares_less_than_one(epsilon_per, tolerance, noise):
    """The hypergeometric mean p^2 k is below 1 for k items and not for k + 1."""
    found = advice.differencing(epsilon_per, tolerance, noise)
    assert found.chance**2 * found.items < 1
    assert found.chance**2 * (found.items + 1) >= 1 - 1e-12
    assert found.information == 2 * (2 * found.items + 1)


def test_advice_for_the_papers_use_is_the_papers_choice():
    """30 days, one large query a day, Laplace counts: epsilon_per = 0.15 and the differencing budget."""
    found = advise(Workload(period_days=30, queries_per_day=1, results_per_query=100, noise="laplace"))
    assert found.epsilon_per == Fraction("0.15")
    assert found.information == 2954
    assert found.calls == 30
    assert found.delta_per == Fraction("3e-10")
    assert found.guarantee.rho == pytest.approx(2954 * 0.15**2 / 8)
    assert found.guarantee.delta == pytest.approx(1.8e-8)


@given(st.integers(1, 400), st.integers(1, 500), st.integers(1, 40), st.sampled_from(["laplace", "gaussian"]))
@settings(max_examples=40)
def test_advice_makes_every_attack_as_unlikely_as_requested(days, queries, results, noise):
    """Averaging, differencing and unique counts all stay within the use's limits, and epsilon_per is not timid."""
    use = Workload(days, queries, results, noise=noise)
    found = advise(use)
    epsilon_per = float(found.epsilon_per)
    assert advice.averaging(epsilon_per, days, 0.5, noise) <= use.averaging_chance
    assert advice.averaging(epsilon_per * 1.12, days, 0.5, noise) > use.averaging_chance
    attack = advice.differencing(epsilon_per, 0.5, noise)
    assert found.calls == days * queries
    assert found.information == min(attack.information, found.calls * (2 * results + 1))
    assert found.calls * found.delta_per <= Fraction(use.leak_chance)
    assert 2 * found.calls * found.delta_per > Fraction(use.leak_chance) * Fraction(9, 10)
    assert found.guarantee.rho == pytest.approx(found.information * epsilon_per**2 / 8, rel=1e-9)


def test_every_parameter_has_one_sentence_of_reason_with_its_numbers():
    """Reasons are single sentences in the order of the parameters, with their numbers."""
    within = advise(Workload(30, 1, 10, noise="laplace"))
    names = ["epsilon_per", "information", "calls", "delta_per", "guarantee"]
    assert [reason.parameter for reason in within.reasons] == names
    for reason in within.reasons:
        assert reason.sentence[0].isupper()
        assert reason.sentence.endswith(".")
        assert ". " not in reason.sentence
    sentences = {reason.parameter: reason.sentence for reason in within.reasons}
    assert "30 in a period" in sentences["epsilon_per"]
    assert "11.7%" in sentences["epsilon_per"]
    assert "630 steps at most" in sentences["information"]
    assert "1 in 111,111,111" in sentences["delta_per"]
    assert str(within.guarantee) in sentences["guarantee"]

    beyond = advise(Workload(30, 100, 10, noise="laplace"))
    sentence = beyond.reasons[1].sentence
    assert "could cost 63,000 steps" in sentence
    assert "full answers: 140" in sentence


def test_a_leak_chance_per_call_of_a_power_of_ten_is_not_rounded_down_to_nothing():
    """The float 1e-6 is below 10^-6, and its logarithm is -6."""
    assert advise(Workload(1, 1, 1, leak_chance=1e-6)).delta_per == Fraction(9, 10**7)


def test_a_longer_period_or_a_wider_tolerance_needs_a_smaller_epsilon_per():
    """More answers to average, or a coarser definition of a revealed count, need more noise."""
    base = advise(Workload(30, 1, 10)).epsilon_per
    assert advise(Workload(60, 1, 10)).epsilon_per < base
    assert advise(Workload(30, 1, 10, tolerance=1.0)).epsilon_per < base
    assert advise(Workload(30, 1, 10, averaging_chance=0.3)).epsilon_per > base
