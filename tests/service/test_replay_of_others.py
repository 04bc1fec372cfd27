"""What an account is shown of a release that another one paid for first: nothing that its release key does not hold."""

from __future__ import annotations

import pytest

from discreet.wire.queries import QueryRequest
from tests.service.deployment import Service, fake_runtime

PLAIN = "SELECT article, COUNT(DISTINCT reader) FROM reads WHERE country IN ('IN', 'US') GROUP BY article LIMIT 5"
SPELLED = (
    "SELECT reads.article, COUNT(DISTINCT READER) AS planted_name FROM Reads "
    "WHERE NOT (country <> 'US') OR country = 'IN' GROUP BY 1 ORDER BY planted_name DESC LIMIT 5"
)
AS_JSON = {
    "dataset": "READS",
    "items": ["Article"],
    "measure": {"kind": "users", "column": "READER"},
    "where": {"column": "Country", "in": [{"text": "US"}, {"text": "IN"}, {"text": "US"}]},
    "k": 5,
}
PLANTED = {
    "sql": [SPELLED],
    "query": [AS_JSON],
    "epsilon": [1.0, 0.7301],
    "delta": ["1e-8", "0.00000001", "7.301e-9"],
    "counts": [True, False],
    "mechanism": ["gumbel", "auto"],
    "noise": ["laplace", "gaussian"],
    "head_limit": [777],
    "relative_error": [0.0737],
    "epsilon_per": ["0.0733"],
    "information": [73],
}
"""Values of each field of a request, by its name."""


def asked(service, who, key=None, **body):
    """Return the id of the release and the bytes of its answer, and whether it was paid before."""
    query = {} if "query" in body else {"sql": PLAIN}
    reply = service.send("POST", "/v1/query", who, json={**query, **body}, key=key)
    assert reply.status_code == 200, reply.text
    return reply.headers["discreet-release"], reply.content, reply.headers["discreet-replayed"] == "?1"


def test_every_field_of_a_request_has_a_planted_value():
    """A field that is added to requests is planted too."""
    assert QueryRequest.model_fields.keys() == PLANTED.keys()


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in PLANTED.items() for value in values], ids=str
)
def test_a_replay_holds_nothing_of_the_request_that_paid(template, tmp_path, field, value):
    """The bytes are those that the account would have got if it had paid first, or the release is another one."""
    replies = []
    for name, others in (("alone", ()), ("after", ("bob",))):
        deployment = template.copy_to(tmp_path / name)
        with Service(deployment, runtime=fake_runtime(deployment.clock)) as service:
            paid = [asked(service, who, "planted-key", **{field: value}) for who in others]
            replies.append(asked(service, "ann"))
    (release, content, _), (again, seen, replayed) = replies
    assert release == again
    assert replayed == (paid[0][0] == release)
    assert seen == content
    if field in {"sql", "query"}:
        assert replayed, "another spelling is the same query"
