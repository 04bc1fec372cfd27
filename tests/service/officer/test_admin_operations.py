"""Administrative operations: accounts, grants, the ledger."""

from __future__ import annotations

import hashlib
import json
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import pytest
from starlette.requests import Request
from starlette.routing import Route

from discreet.accounting.convert import limit_for
from discreet.budget.errors import KeyReused, UnknownAccount
from discreet.budget.model import LINKEDIN, AdminAction, Calendar, Forever, Sliding
from discreet.errors import InputError
from discreet.service.auth.access import RecordCache
from discreet.service.auth.identity import Identity
from discreet.service.doors.http.operation import Call
from discreet.service.middleware import KEY, RequestContext
from discreet.service.officer.admin import AdminAPI
from discreet.service.problems import NotFound
from discreet.service.settings import Settings
from discreet.values import Cost
from discreet.wire.administration import AdminRequest, ChangedAccount, NewAccount, NewGrant, Payment
from discreet.wire.queries import Malformed, read_body
from tests.service.deployment import Clock
from tests.service.memory_budget import CATALOG, LAUNCH, open_manager

DELTA = Fraction(1, 10**9)
EPSILON = {"epsilon": 2.0, "delta": "1e-9"}
UNITS = {"information": 100, "calls": 5, "epsilon_per": "0.15", "delta_per": "1e-10"}


class Administration:
    """The operations of officers, called without HTTP."""

    def __init__(self, manager, settings):
        self._api = AdminAPI(
            manager,
            RecordCache(manager.store, Clock()),
            None,
            SimpleNamespace(current=CATALOG),
            settings,
            SimpleNamespace(event=lambda _: None),
            Clock(),
            SimpleNamespace(listed=list),
        )

    def create(self, asked, act):
        return self._api.create_account(_call(act), asked)

    def change(self, account, asked, act):
        return self._api.change_account(_call(act, account=account), asked)

    def charge(self, account, asked, act):
        return self._api.charge(_call(act, account=account), asked)

    def refund(self, account, asked, act):
        return self._api.refund(_call(act, account=account), asked)

    def lift(self, account, act):
        return self._api.lift(_call(act, account=account), AdminRequest(reason=act.reason))

    def account(self, account):
        return self._api.account(_call(account=account))

    def accounts(self, after, limit):
        return self._api.accounts(_call(after=after, limit=limit))

    def grant(self, account, dataset, asked, act):
        return self._api.grant(_call(act, account=account, dataset=dataset), asked)

    def revoke_grant(self, account, dataset, act):
        return self._api.revoke_grant(_call(act, account=account, dataset=dataset, reason=act.reason))

    def grants(self, account, after, limit):
        return self._api.grants(_call(account=account, after=after, limit=limit))

    def confirm_clock(self, act):
        return self._api.confirm_clock(_call(act), AdminRequest(reason=act.reason))

    def ledger(self, chain, after, limit):
        return self._api.ledger(_call(chain=chain, after=after, limit=limit))

    def verify(self):
        return self._api.verify(_call())

    def settings(self):
        return self._api.settings(_call())


def _call(act=LAUNCH, **parameters):
    scope = {"type": "http", "method": "POST", "route": Route("/", lambda _: None), KEY: RequestContext("r", 0.0)}
    caller = Identity(act.actor, None, frozenset({"officer"}))
    return Call(Request(scope), caller, {"Idempotency-Key": act.id, **parameters})


@pytest.fixture
def manager():
    """Return a manager of an empty store."""
    manager = open_manager(Clock())
    yield manager
    manager.close()


@pytest.fixture
def administration(manager):
    """Operations on SQLite without checkpoints."""
    return Administration(manager, Settings.model_validate({"noise": {"key_env": "NOISE"}}))


def new(**fields) -> NewAccount:
    """Return a request for an account, as it is received."""
    asked = {"account": "ann", "limit": EPSILON, "reason": "new colleague"} | fields
    return read_body(NewAccount, json.dumps(asked).encode())


def change(**fields) -> ChangedAccount:
    """Return a request for a change."""
    return read_body(ChangedAccount, json.dumps({"reason": "less is enough"} | fields).encode())


def pay(**fields) -> Payment:
    """Return a request for a charge or a refund."""
    return read_body(Payment, json.dumps({"reason": "was answered by mail"} | fields).encode())


@pytest.mark.parametrize(
    ("written", "limit", "delta"),
    [
        (EPSILON, limit_for(2.0, DELTA), DELTA),
        ({"rho": "1/3", "lost": "1e-10", "delta": "1e-9"}, Cost.at_most(Fraction(1, 3), Fraction(1, 10**10)), DELTA),
        ({"preset": "linkedin"}, LINKEDIN.limit, LINKEDIN.limit.delta + DELTA),
        (UNITS, Cost(Fraction("0.28125"), Fraction(5, 10**10)), Fraction(15, 10**10)),
        (UNITS | {"conversion": "1e-8"}, Cost(Fraction("0.28125"), Fraction(5, 10**10)), Fraction("1.05e-8")),
    ],
)
def test_a_limit_has_four_forms(administration, manager, written, limit, delta):
    """Limits are exact: rounded down, and never converted through a float."""
    administration.create(new(limit=written), LAUNCH)
    account = manager.store.account("ann")
    assert (account.limit, account.delta) == (limit, delta)
    assert account.limit.rho <= limit.rho
    assert (account.units is not None) == ("epsilon_per" in written or "preset" in written)


@pytest.mark.parametrize(
    "limit",
    [
        {},
        {"epsilon": 1.0},
        {"epsilon": 1.0, "delta": "1e-9", "rho": 1},
        {"rho": 1, "delta": "1e-9"},
        {"preset": "linkedin", "delta": "1e-9"},
        {**UNITS, "delta": "1e-9"},
        {"preset": "google"},
        {"epsilon": "1", "delta": "1e-9"},
        {"epsilon": 1.0, "delta": "1e-9", "sigma": 1},
    ],
)
def test_a_limit_without_a_form_or_with_two_is_malformed(limit):
    """No form is chosen by default."""
    with pytest.raises(Malformed):
        new(limit=limit)


@pytest.mark.parametrize(
    "limit",
    [
        {"epsilon": 1.0, "delta": 0},
        {"epsilon": 1.0, "delta": 1},
        {"epsilon": 1.0, "delta": "-1e-9"},
        {"epsilon": -1.0, "delta": "1e-9"},
        {"epsilon": 0, "delta": "1e-9"},
        {"rho": -1, "lost": "1e-10", "delta": "1e-9"},
        {"rho": 1, "lost": "1e-9", "delta": "1e-9"},
        {"rho": "nan", "lost": 0, "delta": "1e-9"},
        {"rho": "1e999999999", "lost": 0, "delta": "1e-9"},
        {"rho": "1/0", "lost": 0, "delta": "1e-9"},
        {**UNITS, "epsilon_per": 0},
        {**UNITS, "delta_per": "1"},
        {**UNITS, "conversion": "0"},
    ],
)
def test_a_limit_outside_its_range_is_refused(administration, manager, limit):
    """The message names the range, and no account is made."""
    with pytest.raises(InputError):
        administration.create(new(limit=limit), LAUNCH)
    assert manager.store.accounts() == []


@pytest.mark.parametrize(
    ("written", "period"),
    [
        ({"kind": "sliding", "days": 30}, Sliding(30)),
        ({"kind": "calendar", "unit": "month"}, Calendar("month", "UTC")),
        ({"kind": "calendar", "unit": "week", "zone": "Europe/Berlin"}, Calendar("week", "Europe/Berlin")),
        ({"kind": "forever"}, Forever()),
    ],
)
def test_a_period_is_returned_as_it_was_sent(administration, manager, written, period):
    """There are three kinds of periods."""
    reply = administration.create(new(period=written), LAUNCH).period.model_dump(exclude_none=True)
    assert manager.store.account("ann").period == period
    assert reply == ({"zone": "UTC"} | written if written["kind"] == "calendar" else written)


@pytest.mark.parametrize(
    "period",
    [
        {"kind": "sliding"},
        {"kind": "sliding", "days": 0},
        {"kind": "sliding", "days": 30, "zone": "UTC"},
        {"kind": "calendar"},
        {"kind": "calendar", "unit": "year"},
        {"kind": "forever", "days": 3},
    ],
)
def test_an_invalid_period_is_malformed(period):
    """An invalid period is not replaced by a default."""
    with pytest.raises(Malformed):
        new(period=period)


def test_without_a_period_a_limit_is_for_ever(administration, manager):
    """A missing period weakens no guarantee, and accounts enforce by default."""
    administration.create(new(), LAUNCH)
    assert (manager.store.account("ann").period, manager.store.account("ann").mode) == (Forever(), "enforce")


def test_a_time_zone_that_does_not_exist_is_refused(administration, manager):
    """An unknown time zone is refused, and no account is created."""
    with pytest.raises(InputError, match="time zone"):
        administration.create(new(period={"kind": "calendar", "unit": "day", "zone": "Mars/Olympus"}), LAUNCH)
    assert manager.store.accounts() == []


def test_an_account_is_created_once_per_action_id(administration, manager):
    """I4: a repeated request gets the same answer and changes nothing; another one with its id is refused."""
    act = AdminAction("key:1", "new colleague", "request-1")
    first = administration.create(new(), act)
    assert administration.create(new(), act).account == first.account
    assert sum(1 for _ in manager.store.lines()) == 1
    with pytest.raises(KeyReused):
        administration.create(new(account="ben"), act)
    with pytest.raises(InputError, match="ann"):
        administration.create(new(), AdminAction("key:1", "new colleague", "request-2"))


def test_omitted_fields_stay_unchanged(administration, manager):
    """A change of the limit keeps mode and period, and the reverse."""
    administration.create(new(period={"kind": "sliding", "days": 30}, mode="observe"), LAUNCH)
    administration.change("ann", change(limit=UNITS), LAUNCH)
    account = manager.store.account("ann")
    assert (account.mode, account.period, account.units.information) == ("observe", Sliding(30), 100)
    reply = administration.change("ann", change(mode="enforce"), LAUNCH)
    assert (reply.mode, reply.period.days, reply.units.information.limit) == ("enforce", 30, 100)
    assert administration.change("ann", change(limit=EPSILON), LAUNCH).units is None


def test_a_change_of_nothing_is_malformed():
    """An empty change would add a meaningless line to the ledger."""
    with pytest.raises(Malformed):
        change()


@pytest.mark.parametrize(
    "read",
    [
        lambda body: read_body(NewAccount, body),
        lambda body: read_body(ChangedAccount, body),
        lambda body: read_body(Payment, body),
        lambda body: read_body(NewGrant, body),
    ],
)
@pytest.mark.parametrize("reason", [None, "", 5, "x" * 2_001])
def test_an_action_without_a_reason_is_refused(read, reason):
    """The ledger keeps the reason and the actor."""
    asked = {"account": "a", "limit": EPSILON, "mode": "enforce", "rho": 1, "delta": 0, "columns": None}
    names = {"mode"} if reason is None else set()
    body = {name: value for name, value in asked.items() if name not in names}
    with pytest.raises(Malformed):
        read(json.dumps(body if reason is None else body | {"reason": reason}).encode())


def test_charges_and_refunds_are_in_rho_and_delta_or_in_units(administration):
    """Amounts are exact; charges are rounded up, refunds down."""
    administration.create(new(limit=UNITS), LAUNCH)
    reply = administration.charge("ann", pay(information=10, calls=1), LAUNCH)
    assert (reply.units.information.spent, reply.units.calls.spent) == (10, 1)
    reply = administration.refund("ann", pay(rho="0.0028125", delta="0"), LAUNCH)
    assert (reply.units.information.spent, reply.units.calls.spent) == (9, 1)
    administration.create(new(account="ben"), LAUNCH)
    with pytest.raises(InputError, match="no units"):
        administration.charge("ben", pay(information=1, calls=0), LAUNCH)


@pytest.mark.parametrize("amount", [{"rho": -1, "delta": 0}, {"rho": 0, "delta": "-1e-12"}])
def test_an_amount_is_not_negative(administration, amount):
    """A negative charge would be a refund."""
    administration.create(new(), LAUNCH)
    for act in (administration.charge, administration.refund):
        with pytest.raises(InputError, match="not be negative"):
            act("ann", pay(**amount), LAUNCH)


def test_a_refund_is_at_most_a_tenth_of_the_limit(administration):
    """It is a tenth of the limit: an officer cannot erase an account's charges."""
    administration.create(new(limit=UNITS), LAUNCH)
    administration.charge("ann", pay(information=100, calls=5), LAUNCH)
    with pytest.raises(InputError):
        administration.refund("ann", pay(information=11, calls=0), LAUNCH)
    assert administration.account("ann").units.information.spent == 100


def test_a_charge_is_made_once_per_action_id(administration):
    """I4: a request that is sent twice is charged once."""
    administration.create(new(limit=UNITS), LAUNCH)
    act = AdminAction("key:1", "was answered by mail", "request-1")
    for _ in range(2):
        reply = administration.charge("ann", pay(information=10, calls=0), act)
        assert reply.units.information.spent == 10


@pytest.mark.parametrize(
    "ask",
    [
        lambda administration: administration.account("eve"),
        lambda administration: administration.change("eve", change(mode="enforce"), LAUNCH),
        lambda administration: administration.charge("eve", pay(rho=0, delta=0), LAUNCH),
        lambda administration: administration.refund("eve", pay(rho=0, delta=0), LAUNCH),
        lambda administration: administration.lift("eve", LAUNCH),
        lambda administration: administration.grant("eve", "reads", NewGrant(columns=None, reason="r"), LAUNCH),
    ],
)
def test_an_unknown_account_is_refused(administration, manager, ask):
    """Operations on an unknown account write nothing."""
    with pytest.raises(UnknownAccount):
        ask(administration)
    assert list(manager.store.lines()) == []


def test_accounts_are_listed_page_by_page(administration):
    """Accounts are listed in the order of their names."""
    for name in ("c", "a", "e", "b", "d"):
        administration.create(new(account=name), LAUNCH)
    pages, after = [], None
    while True:
        page = administration.accounts(after, 2)
        pages.append([account.account for account in page.accounts])
        after = page.next
        if after is None:
            break
    assert pages == [["a", "b"], ["c", "d"], ["e"]]


def test_a_grant_is_stored_in_the_spelling_of_the_catalog(administration):
    """A grant is found under any spelling that the officer uses."""
    administration.create(new(), LAUNCH)
    reply = administration.grant("ann", "READS", NewGrant(columns=["Country", "ARTICLE"], reason="r"), LAUNCH)
    assert (reply.dataset, reply.columns) == ("reads", ["article", "country"])
    assert administration.grants(None, None, 10).grants == [reply]


@pytest.mark.parametrize(
    ("dataset", "columns"), [("clicks", None), ("reads", ["colour"]), ("reads", ["reader"]), ("reads", ["place"])]
)
def test_unknown_datasets_and_columns_cannot_be_granted(administration, dataset, columns):
    """This includes the user column, which cannot be queried."""
    administration.create(new(), LAUNCH)
    with pytest.raises(InputError):
        administration.grant("ann", dataset, NewGrant(columns=columns, reason="r"), LAUNCH)
    assert administration.grants(None, None, 10).grants == []


def test_a_grant_replaces_the_previous_one(administration):
    """A new grant replaces the columns of the previous one, and does not add to them."""
    administration.create(new(), LAUNCH)
    administration.grant("ann", "reads", NewGrant(columns=None, reason="r"), LAUNCH)
    administration.grant("ann", "reads", NewGrant(columns=[], reason="r"), LAUNCH)
    assert [grant.columns for grant in administration.grants(None, None, 10).grants] == [[]]


def test_a_revoked_grant_is_gone(administration):
    """It cannot be revoked twice; a grant of a dataset that the catalog no longer has can be revoked."""
    administration.create(new(), LAUNCH)
    administration.grant("ann", "reads", NewGrant(columns=None, reason="r"), LAUNCH)
    administration.revoke_grant("ann", "reads", LAUNCH)
    assert administration.grants(None, None, 10).grants == []
    with pytest.raises(NotFound):
        administration.revoke_grant("ann", "reads", LAUNCH)


def test_grants_are_listed_page_by_page_and_account_by_account(administration):
    """The order is by account and dataset."""
    for name in ("ann", "ben"):
        administration.create(new(account=name), LAUNCH)
        for dataset in ("visits", "reads"):
            administration.grant(name, dataset, NewGrant(columns=None, reason="r"), LAUNCH)
    pages, after = [], None
    while True:
        page = administration.grants(None, after, 3)
        pages.append([(grant.account, grant.dataset) for grant in page.grants])
        after = page.next
        if after is None:
            break
    assert pages == [[("ann", "reads"), ("ann", "visits"), ("ben", "reads")], [("ben", "visits")]]
    assert [grant.account for grant in administration.grants("ben", None, 10).grants] == ["ben", "ben"]


def test_every_action_is_in_the_ledger_with_its_actor_and_reason(administration, manager):
    """T26: the ledger has the operation, its actor and its reason."""
    act = [AdminAction(f"key:{n}", f"reason {n}") for n in range(9)]
    administration.create(new(limit=UNITS, reason="reason 1"), act[1])
    administration.change("ann", change(mode="observe", reason="reason 2"), act[2])
    administration.charge("ann", pay(information=1, calls=0, reason="reason 3"), act[3])
    administration.refund("ann", pay(information=1, calls=0, reason="reason 4"), act[4])
    administration.lift("ann", act[5])
    administration.grant("ann", "reads", NewGrant(columns=None, reason="reason 6"), act[6])
    administration.revoke_grant("ann", "reads", act[7])
    administration.confirm_clock(act[8])
    lines = administration.ledger(0, 0, 100).lines
    for n in range(1, 9):
        assert sum(f"key:{n}" in line.body and f"reason {n}" in line.body for line in lines) == 1
    assert manager.verify().lines == len(lines)


def test_the_ledger_is_paginated_and_its_hashes_can_be_verified(administration):
    """I5: each hash is SHA-256 of the previous hash and the body, from the first line on."""
    for n in range(5):
        administration.create(new(account=f"a{n}"), LAUNCH)
    administration.charge("a0", pay(rho="1e-3", delta="1e-12"), LAUNCH)
    lines, after = [], 0
    while after is not None:
        page = administration.ledger(0, after, 4)
        lines += page.lines
        after = page.next
    assert [line.seq for line in lines] == [1, 2, 3, 4, 5, 6]
    last = hashlib.sha256(b"discreet ledger 1 0").digest()
    for line in lines:
        last = hashlib.sha256(last + line.body.encode()).digest()
        assert line.hash == last.hex()
    (changed,) = lines[-1].changes
    assert (changed.account, changed.part, changed.rho, changed.delta) == ("a0", "used", 1e-3, 1e-12)
    assert administration.ledger(7, 0, 10).lines == []


def test_a_valid_ledger_verifies(administration):
    """The result has the number of lines."""
    administration.create(new(), LAUNCH)
    verdict = administration.verify()
    assert (verdict.sound, verdict.mistake, verdict.lines, verdict.chains) == (True, None, 1, 1)
    assert not verdict.checkpointed


def test_the_settings_are_shown_without_paths_and_secrets(manager, tmp_path):
    """T9: the locations of secrets are not shown either."""
    settings = Settings.model_validate(
        {
            "noise": {"key_file": "secret-noise.key"},
            "checkpoints": {"file": "secret-checkpoints", "signing_key_file": "secret-checkpoints.key"},
            "store": {"url": "sqlite:secret-budget.db"},
            "oidc": {"issuer": "https://login.example.org", "audience": "discreet"},
            "defaults": {"preset": "linkedin"},
        },
        context=Path(tmp_path),
    )
    reply = Administration(manager, settings).settings()
    text = reply.model_dump_json()
    assert "secret" not in text
    assert str(tmp_path) not in text
    assert (reply.store, reply.checkpoints, reply.datasets) == ("sqlite", True, ["reads", "visits"])
    assert reply.defaults == {"epsilon_per": "3/20", "delta_per": "1/10000000000", "information": "100"}
