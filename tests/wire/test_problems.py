"""Problems as JSON."""

from __future__ import annotations

import json

import pytest

from discreet.wire.problems import KINDS, Fitting, Problem, problem
from discreet.wire.queries import Spend


@pytest.mark.parametrize(
    ("cost", "budget", "share"),
    [((1, 0), (4, 0), 0.25), ((1, 1), (4, 2), 0.5), ((5, 0), (4, 1), 1), ((0, 1), (1, 0), 1), ((0, 0), (0, 0), 0)],
)
def test_a_share_is_the_larger_of_rho_and_delta(cost, budget, share):
    """It is at most 1; what costs nothing takes nothing, even of an empty budget."""
    spent, left = (Spend(rho=rho, delta=delta) for rho, delta in (cost, budget))
    assert spent.share_of(left) == share


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
