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
from discreet.errors import InputError


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
    assert advice.averaging(1e-17, 1) == pytest.approx(2.5e-18, rel=1e-12)
    assert advice.differencing(1e-17).items == pytest.approx(1.6e35)


def test_a_chance_is_from_0_to_1():
    """Also where rounding errors of many terms would leave that range, at the largest arguments and at tiny ones."""
    for answers in (8, 120, advice.MAX_ANSWERS):
        assert 1 - 1e-12 < advice.averaging(advice.MAX_EPSILON, answers, 1e3) <= 1
        assert 0 <= advice.averaging(1e-9, answers) < 1e-6


def test_differencing_reproduces_p_k_and_the_information_budget():
    """8.3.2: p = 0.0368, k = 738, and 4 k + 2 = 2954, which the paper rounds to 3000."""
    found = advice.differencing(0.15)
    assert found.chance == pytest.approx(-math.expm1(-0.15 / 4), rel=1e-12)
    assert round(found.chance, 4) == 0.0368
    assert (found.items, found.information) == (738, 2954)
    assert round(found.information, -3) == 3000
    assert advice.differencing(10.0, 1e3) == advice.Differencing(1.0, 0, 2)


@given(st.floats(0.01, 5.0), st.floats(0.05, 5.0), st.sampled_from(["laplace", "gaussian"]))
@settings(max_examples=60)
def test_differencing_gives_the_largest_k_that_shares_less_than_one(epsilon_per, tolerance, noise):
    """The hypergeometric mean p^2 k is below 1 for k items and not for k + 1."""
    found = advice.differencing(epsilon_per, tolerance, noise)
    assert found.chance == advice.averaging(epsilon_per, 1, tolerance, noise)
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
    """Reasons are single sentences in the order of the parameters."""
    found = advise(Workload(30, 1, 10, noise="laplace"))
    reasons = {reason.parameter: reason.sentence for reason in found.reasons}
    assert list(reasons) == ["epsilon_per", "information", "calls", "delta_per", "guarantee"]
    assert reasons == {
        "epsilon_per": "Averaging one query's daily answers (30 in a period) comes within 0.5 of the true count with "
        "probability 11.7%, at most the 12.0% allowed.",
        "information": "All answers of a period cost 630 steps at most, within the 2,954 steps up to which two results "
        "share less than one count precise enough to reveal a user by their difference.",
        "calls": "There are 30 calls in a period (days: 30, queries a day: 1).",
        "delta_per": "The chance that any answer of a period shows an item of a single user is at most 1 in "
        "111,111,111.",
        "guarantee": f"All answers of a period together satisfy {found.guarantee}.",
    }


def test_reasons_of_a_large_workload_say_how_many_full_answers_there_are():
    """Numbers have separators; the information budget is that of the differencing attack."""
    found = advise(Workload(4000, 100, 10, tolerance=0.25))
    reasons = {reason.parameter: reason.sentence for reason in found.reasons}
    assert found.information == advice.differencing(float(found.epsilon_per), 0.25, "gaussian").information
    assert reasons["information"] == (
        f"All answers of a period could cost 8,400,000 steps, but beyond {found.information:,} steps (full answers: "
        f"{found.information // 21:,}) two results would share a count precise enough to reveal a user by their "
        "difference."
    )
    chance = advice.averaging(float(found.epsilon_per), 4000, 0.25, "gaussian")
    averaged = f"(4,000 in a period) comes within 0.25 of the true count with probability {chance:.1%}"
    assert averaged in reasons["epsilon_per"]
    assert reasons["calls"] == "There are 400,000 calls in a period (days: 4,000, queries a day: 100)."


def test_two_full_answers_fit_the_information_budget_up_to_a_stated_size():
    """A larger answer is refused with the largest size: twice the k of the differencing attack."""
    most = 2 * advice.differencing(float(advise(Workload(1, 1, 1)).epsilon_per), noise="gaussian").items
    assert advise(Workload(1, 1, most)).information == 2 * most + 1
    both = advise(Workload(1, 2, most // 2))
    assert both.information == 2 * most + 2
    assert "within the" in both.reasons[1].sentence
    with pytest.raises(InputError, match=f"^results_per_query must be at most {most}, not {most + 1}$"):
        advise(Workload(1, 1, most + 1))


def test_a_leak_chance_per_call_of_a_power_of_ten_is_not_rounded_down_to_nothing():
    """The float 1e-6 is below 10^-6, and its logarithm is -6."""
    assert advise(Workload(1, 1, 1, leak_chance=1e-6)).delta_per == Fraction(9, 10**7)
    assert advise(Workload(1, 1, 1, leak_chance=1e-20)).delta_per == Fraction(9, 10**21)


def test_a_longer_period_or_a_wider_tolerance_needs_a_smaller_epsilon_per():
    """More answers to average, or a coarser definition of a revealed count, need more noise."""
    base = advise(Workload(30, 1, 10)).epsilon_per
    assert advise(Workload(60, 1, 10)).epsilon_per < base
    assert advise(Workload(30, 1, 10, tolerance=1.0)).epsilon_per < base
    assert advise(Workload(30, 1, 10, averaging_chance=0.3)).epsilon_per > base
