"""Sentences of the web page."""

from __future__ import annotations

from discreet.service.doors.pages import text
from discreet.wire.queries import Expected, LikelyRange


def test_the_plan_is_described_in_plain_words_and_then_for_experts():
    """An answer can be read without the name of a mechanism."""
    for chosen in ("unknown-gumbel", "head", "two-round"):
        release = {"mechanism": "auto", "chosen": chosen, "why": "because", "question": {"k": 10}}
        words = text.chosen_for_you(release)
        assert "counted" in words
        assert chosen not in words
        assert text.mechanism_of(release) == f"Answered by auto, which chose {chosen}: because."
        assert "noise" not in words, "whether the noise is little depends on the counts"
    assert text.chosen_for_you(release | {"chosen": None}) is None


def test_wide_and_lopsided_intervals_have_a_reason():
    """Counts, not sums, can be clipped; the target of an answer decides what is wide."""
    item = {"count": 100, "sum": 100, "low": 90, "high": 140}
    query = {"average": False, "summed": None, "counts": True, "relative_error": None}
    shown = text.interval_note_of({"items": [item], "query": query})
    assert shown == (
        "Intervals reach further up than down, because users with many items are clipped; intervals are wide where the "
        "noise is large for so few users."
    )
    assert "wide" not in text.interval_note_of({"items": [item], "query": query | {"relative_error": 0.2}})
    assert (
        text.interval_note_of({"items": [item], "query": query | {"summed": "minutes", "relative_error": 0.2}}) is None
    )
    assert text.interval_note_of({"items": [item | {"high": 110}], "query": query}) is None
    assert text.interval_note_of({"items": [{}], "query": query | {"counts": False}}) is None


def test_a_price_has_the_intervals_that_will_be_shown_and_says_what_the_error_of_an_average_depends_on():
    """Where counts select the items, or the noise is Laplace, intervals are wider than 1.96 standard errors."""
    fields = {"min_std_error": 84.2, "max_std_error": 84.2, "smallest_count": None, "sum_std_error": None}
    (shown,) = text.expected_error(Expected(**fields), "users")
    assert shown == "95 % of the counts are off by at most 165 users."
    (shown,) = text.expected_error(Expected(**fields, min_half_width=287, max_half_width=1_323), "users")
    assert shown == "95 % of the counts are off by at most 287 to 1,323 users."
    (shown,) = text.expected_error(Expected(**fields, min_half_width=33, max_half_width=33), "rows")
    assert shown == "95 % of the counts are off by at most 33 rows."
    likely = [
        LikelyRange(
            name=name,
            min_std_error=10,
            max_std_error=most,
            max_relative_error=share,
            smallest_count=9,
            max_smallest_count=9,
        )
        for name, most, share in (("two-round", None, 0.1), ("light", 20, None), ("head", 20, 0.1))
    ]
    expected = [Expected(**fields | {"likely": branches}) for branches in (likely[:1], [likely[1], likely[2]])]
    (alone,), (first,) = [text.expected_error(one, "users") for one in expected]
    assert alone == "95 % of the counts will probably be off by at most 19.6 users, or up to 20 % of the count."
    assert first == (
        "95 % of the counts will probably be off by at most 19.6 to 39.2 users; if another method answers, by 19.6 to "
        "39.2 users, or up to 20 % of the count."
    )
    laplace = likely[0].model_copy(update={"name": "light", "interval": 2.12})
    (shown,) = text.expected_error(Expected(**fields | {"likely": [laplace]}), "users")
    assert shown == "95 % of the counts will probably be off by at most 21.2 users, or up to 21 % of the count."
    basis = "an average of n rows, divided by n; 0.86 to 1 times that for averages up to 25"
    average = Expected(**dict.fromkeys(fields) | {"sum_std_error": 100, "basis": basis})
    (shown,) = text.expected_error(average, "average")
    assert (
        shown == "The error of an average of n rows is about ± 200 / n, and 0.86 to 1 times that for averages up to 25."
    )
    (shown,) = text.expected_error(average, "sum")
    assert (
        shown
        == "Noise moves about 95 % of the sums by at most 200, after what each user adds is limited to the bounds."
    )


def test_a_large_epsilon_is_said_to_promise_next_to_nothing():
    """Rounded, its percentage would be one of a promise; smaller epsilons have theirs."""
    assert "could become certain" in text.guarantee_in_words(7.5, 1e-6)
    assert "can become at most 99.8 % sure, except with probability 1e-6." in text.guarantee_in_words(6, 1e-6)
