"""Sentences of the web page."""

from __future__ import annotations

from discreet.service.pages import text


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
