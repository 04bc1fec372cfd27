"""I9: refusals depend on public values, such as the budget left and the worst case, and never on the data.

Deployments that differ only in their data, or in columns that are not granted, get the same requests, and their
responses are compared byte for byte: status, headers and body, except for the ids of requests.
"""

from __future__ import annotations

import pytest

from discreet.values import Cost
from tests.budget.suite import set_limit
from tests.service.deployment import ACT, CATALOG, DELTA, KNOWN, TOP, Deployment, table_of

ODD = {"epsilon": 1.0, "delta": "1e-8"}
LAPLACE = {**ODD, "mechanism": "laplace"}
SEQUENCE = (
    (KNOWN, LAPLACE),
    (TOP, ODD),
    (TOP.replace("GROUP", "WHERE country = 'IN' GROUP"), ODD),
    (TOP.replace("GROUP", "WHERE country = 'nowhere' GROUP"), ODD),
    (KNOWN.replace("GROUP", "WHERE article = 'article 1' GROUP"), LAPLACE),
    ("SELECT COUNT(DISTINCT reader) FROM reads", ODD),
    ("SELECT COUNT(DISTINCT reader) FROM reads WHERE article = 'nothing'", ODD),
    ("SELECT country, SUM(minutes) FROM reads GROUP BY country", ODD),
    (KNOWN, {**LAPLACE, "epsilon": 3.0}),
    (TOP, {**ODD, "epsilon": 0.9}),
    (TOP.replace("LIMIT 5", "LIMIT 200000"), ODD),
    (TOP.replace("article", "hidden"), ODD),
    (KNOWN, {**LAPLACE, "epsilon": 0.7}),
    (KNOWN, LAPLACE),
)
"""Queries with many rows and with none, repeated, too expensive, and not allowed."""


def seen(reply):
    """Return the response without the id of the request."""
    headers = {name: value for name, value in reply.headers.items() if name != "x-request-id"}
    return reply.status_code, headers, reply.content.replace(reply.headers["x-request-id"].encode(), b"-")


def refusals(replies):
    """Return the refusals and their positions in the sequence."""
    return [(n, seen(reply)) for n, reply in enumerate(replies) if reply.status_code != 200]


def costs(replies):
    """Return the charge and the number of items of each answer."""
    return [
        (reply.headers["discreet-charged"], len(reply.json()["items"])) for reply in replies if reply.status_code == 200
    ]


def asked(folder, table, sequence, rho):
    """Return the responses to *sequence*, of a deployment with that data where ann may spend *rho* in all."""
    deployment = Deployment(folder, table=table)
    with deployment.open() as service:
        set_limit(service.manager.store, "ann@sales", Cost(rho, DELTA / 4), DELTA, ACT)
        return [service.ask(question, key=str(n), **options) for n, (question, options) in enumerate(sequence)]


@pytest.mark.parametrize("rho", [0.02, 0.05, 0.11])
def test_one_user_more_changes_no_refusal(tmp_path, rho):
    """Near the end of three budgets the same queries are refused, in the same bytes; answers cost the same."""
    one, other = (
        asked(tmp_path / str(more), table_of(readers=True, more=more), SEQUENCE, Cost(rho, 0).rho) for more in (0, 1)
    )
    assert [reply.status_code for reply in one] == [reply.status_code for reply in other]
    assert refusals(one) == refusals(other)
    assert costs(one) == costs(other)
    assert {200, 403, 404, 422} == {reply.status_code for reply in one}


@pytest.mark.parametrize("rho", [0.02, 0.11])
def test_an_empty_table_changes_no_refusal(tmp_path, rho):
    """Where all labels are known, an empty table gets noise like any other, at the same price."""
    known = [(question, options) for question, options in SEQUENCE if "article, " not in question]
    full, empty = (
        asked(tmp_path / str(readers), table_of(readers=readers), known, Cost(rho, 0).rho) for readers in (True, False)
    )
    assert [reply.status_code for reply in full] == [reply.status_code for reply in empty]
    assert refusals(full) == refusals(empty)
    assert costs(full) == costs(empty)
    assert 403 in {reply.status_code for reply in full}


def test_an_empty_table_is_answered(tmp_path):
    """T16: no response reveals an empty table; an empty answer over unknown labels has its usual cost."""
    with Deployment(tmp_path / "deployment", table=table_of(readers=False)).open() as service:
        for question, options in SEQUENCE[:8]:
            assert service.ask(question, **options).status_code == 200


NOT_TO_BE_SEEN = (
    "SELECT hidden, COUNT(DISTINCT reader) FROM reads GROUP BY hidden LIMIT 5",
    "SELECT HIDDEN, COUNT(DISTINCT reader) FROM reads GROUP BY HIDDEN LIMIT 5",
    "SELECT hiden, COUNT(DISTINCT reader) FROM reads GROUP BY hiden LIMIT 5",
    "SELECT article, COUNT(DISTINCT reader) FROM reads WHERE hidden = 'h' GROUP BY article LIMIT 5",
    "SELECT article, COUNT(DISTINCT reader) FROM reads WHERE hidden > 3 GROUP BY article LIMIT 5",
    "SELECT article, COUNT(DISTINCT hidden) FROM reads GROUP BY article LIMIT 5",
    "SELECT article, SUM(hidden) FROM reads GROUP BY article LIMIT 5",
    "SELECT article, COUNT(DISTINCT reader) FROM secret GROUP BY article LIMIT 5",
    "SELECT article, COUNT(DISTINCT reader) FROM Secret GROUP BY article LIMIT 5",
    "SELECT article, COUNT(DISTINCT reader) FROM secrets GROUP BY article LIMIT 5",
    "SELECT article, COUNT(*) FROM secret WHERE hidden = 1 GROUP BY article",
)
PATHS = (
    "/v1/datasets",
    "/v1/datasets/secret",
    "/v1/datasets/SECRET",
    "/v1/datasets/reads",
    "/v1/budget",
    "/v1/releases",
)


def test_datasets_that_are_not_granted_change_no_response(tmp_path):
    """T3: responses are the same as of a deployment whose catalog has only what is granted."""
    begin = CATALOG.index("[datasets.secret]")
    less = CATALOG[:begin].replace('columns.hidden = { type = "text", group = true, filter = true }\n', "")
    seen_responses = []
    for name, catalog in (("more", CATALOG), ("less", less)):
        with Deployment(tmp_path / name, catalog=catalog).open() as service:
            replies = [service.ask(question) for question in NOT_TO_BE_SEEN]
            replies += [service.send("POST", "/v1/estimate", json={"sql": question}) for question in NOT_TO_BE_SEEN]
            replies += [service.send("GET", path) for path in PATHS]
            assert service.engines.queried == 0
            assert service.balance().spent == Cost()
            seen_responses.append([seen(reply) for reply in replies])
    assert seen_responses[0] == seen_responses[1]
    assert {status for status, _, _ in seen_responses[0][:-6]} <= {404, 422}


def test_a_refusal_does_not_depend_on_a_stored_release(template, tmp_path):
    """I9: ann's budget is below the worst case, whether bob has paid for the answer or not."""
    seen_responses = []
    for stored in (True, False):
        with template.copy_to(tmp_path / str(stored)).open() as service:
            if stored:
                cost = service.manager.get("bob@sales").balance.used
                assert service.ask(who="bob").status_code == 200
                assert cost != service.manager.get("bob@sales").balance.used
            worst = service.opened.warehouse.plan(TOP, epsilon=1.0, delta="1e-8", shared=True).worst_cost
            short = Cost(worst.rho * 9 / 10, DELTA / 4)
            set_limit(service.manager.store, "ann@sales", short, DELTA, ACT)
            assert service.balance("bob@sales").used.within(short) or not stored, "it would have been enough"
            seen_responses.append([seen(service.ask()), seen(service.ask(epsilon=0.9)), seen(service.ask(epsilon=0.9))])
    assert seen_responses[0][0] == seen_responses[1][0]
    assert seen_responses[0][0][0] == 403


def test_a_short_parent_is_reported_whatever_others_spent(template, tmp_path):
    """The refusal has the name and the remaining budget of the shared account; not its spenders or queries."""
    seen_responses = []
    for questions in ((KNOWN,), (KNOWN.replace("GROUP", "WHERE article = 'article 1' GROUP"),)):
        with template.copy_to(tmp_path / str(len(seen_responses))).open() as service:
            worst = service.opened.warehouse.plan(KNOWN, **LAPLACE, shared=True).worst_cost
            set_limit(service.manager.store, "sales", Cost(worst.rho, DELTA / 2), DELTA, ACT)
            assert service.ask(questions[0], "bob", **LAPLACE).status_code == 200
            seen_responses.append(seen(service.ask(**ODD)))
    assert seen_responses[0] == seen_responses[1]
    assert seen_responses[0][0] == 403
