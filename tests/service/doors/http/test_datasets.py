"""GET /v1/datasets: granted datasets only."""

from __future__ import annotations

import pytest

from tests.service.deployment import CATALOG


def test_granted_datasets_are_listed(service):
    """By name, with their descriptions; datasets that are not granted are not listed."""
    assert service.get("/v1/datasets").json()["datasets"] == [
        {"name": "broken", "description": None},
        {"name": "daily", "description": None},
        {"name": "loose", "description": None},
        {"name": "reads", "description": "Who read what."},
    ]


def test_an_account_without_grants_sees_nothing(service):
    """The list is empty, and every dataset is not found."""
    service.open_account("new", 1.0)
    new = service.make_key("new")
    assert service.get("/v1/datasets", new).json() == {"datasets": []}
    assert service.get("/v1/datasets/reads", new).status_code == 404
    assert service.ask(who=new).status_code == 404


def test_a_dataset_lists_what_may_be_queried(service):
    """Granted columns, with bounds and listed labels; limits of the dataset and of the service."""
    body = service.get("/v1/datasets/READS").json()
    columns = {column.pop("name"): column for column in body.pop("columns")}
    assert body == {
        "name": "reads",
        "description": "Who read what.",
        "user": "reader",
        "rows": True,
        "groups_per_user": None,
        "rows_per_group": 3,
        "missing_labels": "drop",
        "min_users": None,
        "max_k": 50,
        "max_head_limit": 20_000,
        "retention_days": None,
        "data_version": "2026-11",
    }
    assert list(columns) == ["article", "country", "minutes", "day", "day_week", "day_month", "day_quarter", "day_year"]
    assert (columns["day_week"]["each"], columns["day_week"]["period_of"]) == ("week", "day")
    assert (columns["day"]["each"], columns["day"]["period_of"]) == (None, None)
    assert columns["country"]["labels"] == ["IN", "US", "XX"]
    assert columns["minutes"]["sum"] == {"low": 0.0, "high": 60.0, "private_bound": False}
    assert not columns["article"]["known_domain"]


@pytest.mark.parametrize("name", ["secret", "nothing", "..", "reads%20x", "%00"])
def test_a_dataset_that_is_not_granted_does_not_exist(service, services, name):
    """The response has the same bytes as on a service without the dataset, except for the request id."""
    answers = [
        service.get(f"/v1/datasets/{name}")
        for service in (service, services(catalog=CATALOG.split("[datasets.secret]", maxsplit=1)[0]))
    ]
    assert [answer.status_code for answer in answers] == [404, 404]
    one, other = (answer.text.replace(answer.json()["request_id"], "") for answer in answers)
    assert one == other


def test_the_version_has_the_form_of_documents(service):
    """The last moment of a schedule; no path of files; nothing for a view."""
    assert service.get("/v1/datasets/daily").json()["data_version"] == "2026-11-20T04:00+00:00"
    assert service.get("/v1/datasets/loose").json()["data_version"] is None


def test_a_dataset_of_an_unavailable_engine_lists_what_may_be_queried(service):
    """Everything but the version, which is unknown without the engine."""
    body = service.get("/v1/datasets/broken").json()
    assert (body["name"], body["data_version"]) == ("broken", None)
    assert [column["name"] for column in body["columns"]] == ["article"]


def test_long_domains_are_not_listed(services):
    """A thousand labels are listed, one more is not; the response shows that the domain is known."""
    for count, listed in ((1000, True), (1001, False)):
        labels = ", ".join(f'"{n}"' for n in range(count))
        service = services(f"many-{count}", catalog=CATALOG.replace('["IN", "US", "XX"]', f"[{labels}]"))
        (country,) = (c for c in service.get("/v1/datasets/reads").json()["columns"] if c["name"] == "country")
        assert (country["labels"] is not None) == listed
        assert country["known_domain"]
