"""Problems as JSON."""

from __future__ import annotations

import json

import pytest

from discreet.wire.problems import KINDS, Fitting, Problem, Spend, problem


@pytest.mark.parametrize("slug", KINDS)
def test_a_problem_has_its_kind_and_omits_absent_fields(slug):
    """The type, the status and the title are those of the kind; there is no null."""
    made = problem(slug, "Why.", "id", needed=Spend(rho=1, delta=0), fits=Fitting(k=3))
    reply = json.loads(made.to_bytes())
    assert reply == {
        "type": f"/problems/{slug}",
        "title": KINDS[slug].title,
        "status": KINDS[slug].status,
        "detail": "Why.",
        "request_id": "id",
        "needed": {"rho": 1.0, "delta": 0.0},
        "fits": {"k": 3},
    }
    assert Problem.model_validate(reply) == made
    assert made.slug == slug
