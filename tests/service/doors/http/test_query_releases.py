"""GET /v1/releases: the releases that the account paid for."""

from __future__ import annotations

import pytest

from tests.service.deployment import TOP


def ids_of(page):
    """Return the ids of a page."""
    return [release["id"] for release in page["releases"]]


def test_paid_releases_are_listed_newest_first(service):
    """Each once, with its query and its price; releases of other accounts are not listed."""
    asked = []
    for k in (3, 4, 5):
        asked.append(service.ask(TOP.replace("5", str(k))))
        service.clock.pass_(seconds=1)
    service.ask()
    service.ask(TOP.replace("5", "2"), "bob")
    page = service.get("/v1/releases").json()
    assert ids_of(page) == [answer.headers["discreet-release"] for answer in reversed(asked)]
    newest = page["releases"][0]
    assert newest["question"] == asked[-1].json()["question"]
    assert newest["charged"] == asked[-1].json()["charged"]
    assert newest["time"] == "2026-11-20T12:00:02+00:00"
    assert (newest["dataset"], newest["mechanism"], newest["data_version"]) == ("reads", "unknown-gumbel", "2026-11")
    assert page["next"] is None


def test_pages_follow_each_other(service):
    """Every answer is on one page, in order; the last page is marked."""
    for k in range(1, 6):
        service.ask(TOP.replace("5", str(k)))
    whole = ids_of(service.get("/v1/releases").json())
    seen, before = [], ""
    while before is not None:
        page = service.get(f"/v1/releases?limit=2{f'&before={before}' if before else ''}").json()
        seen += ids_of(page)
        before = page["next"]
    assert seen == whole
    assert len(seen) == 5
    assert service.get("/v1/releases?limit=5").json()["next"] is None


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=101",
        "limit=x",
        "limit=1&limit=2",
        "before=0",
        "before=-1",
        "after=1",
        "limit=",
        "limit=1.0",
        "x",
    ],
)
def test_unknown_parameters_are_refused(service, query):
    """A misspelled parameter is not ignored."""
    answer = service.get(f"/v1/releases?{query}")
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/out-of-range")


def test_a_paid_release_can_be_read_again(service):
    """The stored bytes, in every form, also with no budget left."""
    first = service.ask()
    id_ = first.headers["discreet-release"]
    again = service.get(f"/v1/releases/{id_}")
    assert (again.content, again.headers["discreet-release"]) == (first.content, id_)
    csv = service.get(f"/v1/releases/{id_}", headers={"Accept": "text/csv"})
    assert csv.text.splitlines()[0] == '"rank","article","count","std_error","low","high"'
    assert service.get(f"/v1/releases/{id_}", headers={"Accept": "image/png"}).status_code == 406


def test_a_release_of_another_account_is_not_found(service):
    """I9: an account that has not paid for a release gets the response for an unknown id, to the byte."""
    id_ = service.ask().headers["discreet-release"]
    unknown = ("ab" * 32, "00" * 32, id_.upper(), id_[:-1], id_[:-2], id_ + "0", "x", "..%2F" + id_)
    answers = [service.get(f"/v1/releases/{name}", "bob") for name in (id_, *unknown)]
    assert {answer.status_code for answer in answers} == {404}
    assert len({answer.text.replace(answer.json()["request_id"], "") for answer in answers}) == 1
    service.ask(who="bob")
    assert service.get(f"/v1/releases/{id_}", "bob").status_code == 200
