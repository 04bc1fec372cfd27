"""The routes of officers and administrators, over HTTP."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest

from discreet.service.auth.access import GRANT, KEY
from discreet.service.officer.admin import AdminAPI
from discreet.wire import administration as wire
from tests.service.deployment import declared

EPSILON = {"epsilon": 2.0, "delta": "1e-9"}
WHY = {"reason": "because"}
ADMIN = "/v1/admin"


@pytest.fixture
def admin_service(service):
    """Return a service with an officer and an administrator, who are no analysts."""
    service.keys |= {role: service.make_key(None, (role,)) for role in ("officer", "admin")}
    return service


def act(service, method, path, body=None, who="officer", key=None, **request):
    """Return the response to an administrative action."""
    headers = {} if key is None else {"Idempotency-Key": key}
    return service.send(method, f"{ADMIN}{path}", who, json=body, headers=headers, **request)


def remove(service, path, who="officer", key=None, reason="because"):
    """Return the response to a removal."""
    headers = {} if key is None else {"Idempotency-Key": key}
    return service.send("DELETE", f"{ADMIN}{path}", who, params={"reason": reason}, headers=headers)


OFFICERS = [
    ("GET", "/accounts", None),
    ("POST", "/accounts", {"account": "new", "limit": EPSILON, **WHY}),
    ("GET", "/accounts/sales", None),
    ("PATCH", "/accounts/sales", {"mode": "observe", **WHY}),
    ("POST", "/accounts/sales/charge", {"rho": "0.001", "delta": 0, **WHY}),
    ("POST", "/accounts/sales/refund", {"rho": 0, "delta": 0, **WHY}),
    ("POST", "/accounts/sales/lift", WHY),
    ("POST", "/accounts/sales/suspend", WHY),
    ("POST", "/accounts/sales/preview", {"mode": "enforce"}),
    ("GET", "/spending", None),
    ("GET", "/grants", None),
    ("PUT", "/grants/sales/secret", {"columns": None, **WHY}),
    ("GET", "/ledger", None),
    ("GET", "/activity", None),
    ("GET", "/disclosure", None),
    ("POST", "/import", {"people": [{"account": "new", "limit": EPSILON}], **WHY}),
    ("POST", "/ledger/verify", {}),
    ("POST", "/catalog", WHY),
    ("POST", "/clock", WHY),
    ("GET", "/settings", None),
    ("GET", "/running", None),
]
OFFICERS += [("PUT", "/tables/ann@sales/top", {"published": False, **WHY})]
ADMINS = [
    ("GET", "/keys", None),
    ("POST", "/keys", {"account": "ann@sales", "roles": ["analyst"], **WHY}),
]


@pytest.mark.parametrize(("method", "path", "body"), OFFICERS, ids=lambda part: str(part)[:30])
def test_every_operation_of_an_officer_succeeds(admin_service, method, path, body):
    """Every operation of an officer returns 200, 201 or 204."""
    assert act(admin_service, method, path, body).status_code in {200, 201, 204}


@pytest.mark.parametrize(("method", "path", "body"), ADMINS, ids=lambda part: str(part)[:30])
def test_every_operation_of_an_administrator_succeeds(admin_service, method, path, body):
    """An administrator manages keys, and nothing else."""
    assert act(admin_service, method, path, body, "admin").status_code in {200, 201}


@pytest.mark.parametrize(
    ("method", "path", "body", "who"),
    [(*request, who) for request in OFFICERS for who in ("admin", "ann", None)]
    + [(*request, who) for request in ADMINS for who in ("officer", "ann", None)]
    + [("DELETE", "/grants/sales/reads?reason=r", None, who) for who in ("admin", "ann", None)]
    + [("POST", "/running/by_article/erased", WHY, who) for who in ("admin", "ann", None)]
    + [("DELETE", "/keys/0123456789abcdef?reason=r", None, who) for who in ("officer", "ann", None)]
    + [("POST", "/keys/0123456789abcdef/rotate", WHY, who) for who in ("officer", "ann", None)],
    ids=lambda part: str(part)[:30],
)
def test_requests_outside_a_role_are_refused(admin_service, method, path, body, who):
    """403 for known keys, 401 for all others, and nothing changes."""
    before = admin_service.manager.store.heads()
    response = act(admin_service, method, path, body, who)
    assert response.status_code == (401 if who is None else 403)
    assert response.json()["type"] == ("/problems/unauthorized" if who is None else "/problems/forbidden")
    assert admin_service.manager.store.heads() == before


@pytest.mark.parametrize("route", declared(AdminAPI), ids=lambda route: route.name)
def test_every_route_is_tested_for_roles(route):
    """Each route is in one of the lists above, or in the removals."""
    path = route.path.removeprefix(ADMIN)
    known = {
        (method, path)
        for method, path in [
            *((method, path.replace("sales/secret", "{account:path}/{dataset}")) for method, path, _ in OFFICERS),
            ("PUT", "/tables/{account:path}/{name}"),
            *((method, path) for method, path, _ in ADMINS),
            ("DELETE", "/grants/{account:path}/{dataset}"),
            ("POST", "/running/{name}/erased"),
            ("DELETE", "/keys/{key}"),
            ("POST", "/keys/{key}/rotate"),
        ]
    }
    assert (route.method, path.replace("/accounts/{account:path}", "/accounts/sales")) in known


@pytest.mark.parametrize("role", ["officer", "admin"])
def test_officers_and_admins_cannot_query(admin_service, role):
    """T23: the role that sets budgets does not spend them, unless the key has both roles."""
    assert admin_service.ask(who=role).status_code == 403
    assert admin_service.get("/v1/budget", role).status_code == 403


def test_an_account_is_opened_and_returned(admin_service):
    """201, with the same body as a later GET."""
    asked = {"account": "cem@sales", "parent": "sales", "limit": {"preset": "linkedin"}, **WHY}
    response = act(admin_service, "POST", "/accounts", asked)
    assert response.status_code == 201
    reply = wire.AccountDetail.model_validate_json(response.content)
    assert (reply.account, reply.parent, reply.units.information.limit) == ("cem@sales", "sales", 3_000)
    assert [parent.account for parent in reply.parents] == ["sales"]
    assert act(admin_service, "GET", "/accounts/cem@sales").json()["limit"] == response.json()["limit"]


@pytest.mark.parametrize("name", ["a/b", "größe", "a%2Fb", "x/charge", "a+b", "..", "a?b"])
def test_any_account_name_is_valid_in_a_path(admin_service, name):
    """Names are quoted in the path, as every client quotes them."""
    assert act(admin_service, "POST", "/accounts", {"account": name, "limit": EPSILON, **WHY}).status_code == 201
    path = f"/accounts/{quote(name, safe='') if name != '..' else '%2E%2E'}"
    if name != "..":  # clients normalise it as a parent directory
        assert act(admin_service, "GET", path).json()["account"] == name
        assert act(admin_service, "POST", f"{path}/charge", {"rho": "0.001", "delta": 0, **WHY}).status_code == 200
        assert (
            act(admin_service, "PUT", f"/grants/{quote(name, safe='')}/reads", {"columns": [], **WHY}).status_code
            == 200
        )
    assert name in {account["account"] for account in act(admin_service, "GET", "/accounts").json()["accounts"]}


def test_lists_come_in_pages(admin_service):
    """By the parameters after and limit; the last page is marked."""
    first = act(admin_service, "GET", "/accounts", params={"limit": 2}).json()
    assert [account["account"] for account in first["accounts"]] == ["ann@sales", "bob@sales"]
    last = act(admin_service, "GET", "/accounts", params={"limit": 2, "after": first["next"]}).json()
    assert ([account["account"] for account in last["accounts"]], last["next"]) == (["sales"], None)


@pytest.mark.parametrize(
    ("path", "parameters"),
    [
        ("/accounts", {"limit": "0"}),
        ("/accounts", {"limit": "1001"}),
        ("/accounts", {"limit": "x"}),
        ("/accounts", {"page": "2"}),
        ("/accounts/sales", {"limit": "1"}),
        ("/grants", {"dataset": "reads"}),
        ("/ledger", {"chain": "-1"}),
        ("/ledger", {"after": "1e3"}),
        ("/settings", {"x": ""}),
    ],
)
def test_unknown_parameters_are_refused(admin_service, path, parameters):
    """422, so that a misspelled parameter is not ignored."""
    assert act(admin_service, "GET", path, params=parameters).status_code == 422


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        request
        for request in OFFICERS + ADMINS
        if request[2] is not None and not request[1].endswith(("/verify", "/preview"))
    ],
    ids=lambda part: str(part)[:30],
)
def test_an_action_without_a_reason_is_refused(admin_service, method, path, body):
    """400, and no line in the ledger."""
    before = admin_service.manager.store.heads()
    asked = {name: value for name, value in body.items() if name != "reason"}
    response = act(admin_service, method, path, asked, "admin" if path == "/keys" else "officer")
    assert (response.status_code, response.json()["type"]) == (400, "/problems/malformed")
    assert "reason" in response.json()["detail"]
    assert admin_service.manager.store.heads() == before


@pytest.mark.parametrize("path", ["/grants/sales/reads", "/keys/0123456789abcdef"])
def test_a_removal_without_a_reason_is_refused(admin_service, path):
    """422, and no line in the ledger."""
    before = admin_service.manager.store.heads()
    who = "admin" if "keys" in path else "officer"
    assert admin_service.send("DELETE", f"{ADMIN}{path}", who).status_code == 422
    assert remove(admin_service, path, who, reason="").status_code == 422
    assert admin_service.manager.store.heads() == before


def test_the_ledger_records_actor_and_reason(admin_service):
    """The actor is the id of the key, not the key."""
    act(admin_service, "PATCH", "/accounts/sales", {"mode": "observe", "reason": "phased launch"}, key="act-1")
    line = act(admin_service, "GET", "/ledger").json()["lines"][-1]
    assert line["kind"] == "alter"
    assert line["detail"]["reason"] == "phased launch"
    assert line["detail"]["actor"] == "key:" + admin_service.keys["officer"].split("_")[1]
    assert admin_service.keys["officer"] not in json.dumps(act(admin_service, "GET", "/ledger").json())


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/accounts", {"account": "new", "limit": EPSILON, **WHY}),
        ("PATCH", "/accounts/sales", {"mode": "observe", **WHY}),
        ("POST", "/accounts/sales/charge", {"rho": "0.001", "delta": 0, **WHY}),
        ("PUT", "/grants/sales/secret", {"columns": None, **WHY}),
        ("POST", "/catalog", WHY),
        ("POST", "/clock", WHY),
    ],
)
def test_a_repeated_action_is_done_once(admin_service, method, path, body):
    """I4: the same Idempotency-Key and body get the same answer and one line in the ledger; another body is 409."""
    first = act(admin_service, method, path, body, key="act-1")
    after = admin_service.manager.store.heads()
    again = act(admin_service, method, path, body, key="act-1")
    assert again.status_code == first.status_code
    assert admin_service.manager.store.heads() == after
    other = act(admin_service, method, path, {**body, "reason": "another"}, key="act-1")
    assert (other.status_code, other.json()["type"]) == (409, "/problems/key-reused")
    assert admin_service.manager.store.heads() == after


def test_a_key_is_shown_once_and_valid_until_it_is_revoked(admin_service):
    """T1, T9: it is shown nowhere else, not even in the list."""
    asked = {"account": "ann@sales", "roles": ["analyst"], "label": "laptop", "days": 30, **WHY}
    response = act(admin_service, "POST", "/keys", asked, "admin", key="act-1")
    made = wire.CreatedKey.model_validate_json(response.content)
    assert response.status_code == 201
    assert admin_service.get("/v1/budget", made.key).json()["account"] == "ann@sales"
    assert act(admin_service, "POST", "/keys", asked, "admin", key="act-1").status_code == 409
    listed = act(admin_service, "GET", "/keys", who="admin")
    assert made.key.rpartition("_")[2] not in listed.text
    (entry,) = (key for key in listed.json()["keys"] if key["id"] == made.id)
    assert (entry["label"], entry["roles"], entry["account"]) == ("laptop", ["analyst"], "ann@sales")
    assert entry["last_used"] is not None
    assert remove(admin_service, f"/keys/{made.id}", "admin").status_code == 204
    assert admin_service.get("/v1/budget", made.key).status_code == 401
    assert remove(admin_service, f"/keys/{made.id}", "admin").status_code == 404
    secret = made.key.rpartition("_")[2]
    assert secret not in admin_service.log.getvalue()
    assert all(secret not in line.body for line in admin_service.manager.store.lines())


def test_a_key_is_replaced_by_another(admin_service):
    """Both keys are valid during the overlap."""
    made = act(admin_service, "POST", "/keys", {"account": "ann@sales", "roles": ["analyst"], **WHY}, "admin").json()
    other = act(admin_service, "POST", f"/keys/{made['id']}/rotate", {"overlap_hours": 1, **WHY}, "admin")
    assert other.status_code == 201
    for key in (made["key"], other.json()["key"]):
        assert admin_service.get("/v1/budget", key).status_code == 200
    admin_service.clock.pass_(hours=1)
    assert admin_service.get("/v1/budget", made["key"]).status_code == 401
    assert admin_service.get("/v1/budget", other.json()["key"]).status_code == 200


def test_grants_and_revocations_take_effect_at_once(admin_service):
    """Grants and revocations are effective at once."""
    seen = lambda: {dataset["name"] for dataset in admin_service.get("/v1/datasets").json()["datasets"]}  # noqa: E731
    assert "secret" not in seen()
    act(admin_service, "PUT", "/grants/sales/secret", {"columns": ["article"], **WHY})
    assert "secret" in seen()
    assert remove(admin_service, "/grants/sales/secret").status_code == 204
    assert "secret" not in seen()
    assert admin_service.get("/v1/datasets/secret").status_code == 404


def test_a_lowered_limit_takes_effect_at_once(admin_service):
    """The next query after a limit is lowered is refused."""
    assert admin_service.ask(epsilon=1.0, delta="1e-8").status_code == 200
    act(admin_service, "PATCH", "/accounts/ann@sales", {"limit": {"epsilon": 0.001, "delta": "1e-7"}, **WHY})
    refused = admin_service.ask(
        "SELECT country, COUNT(*) FROM reads GROUP BY country LIMIT 2", epsilon=1.0, delta="1e-8"
    )
    assert (refused.status_code, refused.json()["type"]) == (403, "/problems/budget-short")


def test_the_ledger_is_verified_over_http(admin_service):
    """An edited ledger is reported, with the line."""
    sound = act(admin_service, "POST", "/ledger/verify", {}).json()
    assert sound["sound"]
    assert sound["lines"] == admin_service.manager.store.heads()[0].seq
    admin_service.store._db.execute(
        "UPDATE budget_ledger SET body = replace(body, 'officer', 'somebody') WHERE seq = 1"
    )
    broken = act(admin_service, "POST", "/ledger/verify", {}).json()
    assert (broken["sound"], broken["lines"]) == (False, None)
    assert "line 1" in broken["mistake"]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/accounts/eve", None),
        ("PATCH", "/accounts/eve", {"mode": "observe", **WHY}),
        ("POST", "/accounts/eve/lift", WHY),
        ("POST", "/accounts/eve/suspend", WHY),
        ("PUT", "/grants/eve/reads", {"columns": None, **WHY}),
        ("DELETE", "/grants/ann@sales/reads?reason=r", None),
        ("GET", "/nothing", None),
    ],
)
def test_missing_accounts_keys_and_grants_are_not_found(admin_service, method, path, body):
    """The status is 404, and nothing is written."""
    before = admin_service.manager.store.heads()
    assert act(admin_service, method, path, body).status_code == 404
    assert admin_service.manager.store.heads() == before


def test_actions_are_logged_with_their_actor_and_subject(admin_service):
    """Events have the route; the reason is in the ledger."""
    act(admin_service, "PATCH", "/accounts/sales", {"mode": "observe", "reason": "a private reason"})
    (event,) = admin_service.events("admin_changed")
    assert (event["subject"], event["actor"]) == ("sales", "key:" + admin_service.keys["officer"].split("_")[1])
    assert event["route"] == "PATCH /v1/admin/accounts/{account:path}"
    assert "private reason" not in admin_service.log.getvalue()


def test_a_refused_action_is_not_logged_as_done(admin_service):
    """A failed action has no such event."""
    act(admin_service, "PATCH", "/accounts/eve", {"mode": "observe", **WHY})
    act(admin_service, "PATCH", "/accounts/sales", {"mode": "observe", **WHY}, "admin")
    assert admin_service.events("admin_changed") == []


def test_settings_are_shown_without_secrets(admin_service):
    """T9: the settings are shown without keys and paths."""
    text = act(admin_service, "GET", "/settings").text
    assert str(admin_service.folder) not in text
    assert "noise.key" not in text
    assert json.loads(text)["store"] == "sqlite"


def test_records_are_read_by_no_other_role(admin_service):
    """Routes of analysts return neither hashes of keys nor grants of other accounts."""
    hashes = [json.loads(text)["sha256"] for _, text in admin_service.manager.store.records(KEY)]
    assert admin_service.manager.store.records(GRANT)
    for path in ("/v1/budget", "/v1/datasets", "/v1/releases", "/openapi.json", "/metrics"):
        assert not any(digest in admin_service.get(path).text for digest in hashes)


def test_the_openapi_document_describes_the_administrative_routes(admin_service):
    """The document has every route with the schemas of its request and response."""
    schema = admin_service.get("/openapi.json").json()
    for route in declared(AdminAPI):
        path = schema["paths"][route.path.replace(":path", "")][route.method.lower()]
        assert str(route.status) in path["responses"]
        if route.body is not None:
            reference = path["requestBody"]["content"]["application/json"]["schema"]["$ref"]
            assert reference.rpartition("/")[2] in schema["components"]["schemas"]
        if route.answer is not None:
            content = path["responses"][str(route.status)]["content"]["application/json"]
            assert content["schema"]["$ref"].rpartition("/")[2] in schema["components"]["schemas"]
