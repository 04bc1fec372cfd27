"""What the API says about the routes of officers and administrators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from discreet.service.api.openapi import About, parameter_of
from discreet.wire import administration as wire

if TYPE_CHECKING:
    from pydantic import BaseModel

    from discreet.wire.problems import Slug

_KEY = parameter_of(
    "Idempotency-Key",
    "header",
    {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[!-~]+$"},
    "Names the act: sent again with the same body, it is done once.",
)
_REASON = {
    **parameter_of(
        "reason", "query", {"type": "string", "minLength": 1, "maxLength": 2000}, "Why; it is kept in the ledger."
    ),
    "required": True,
}
_ACCOUNT = parameter_of("account", "path", {"type": "string"}, "Its name; characters such as / are quoted.")
_DATASET = parameter_of("dataset", "path", {"type": "string"}, "Its name in the catalog.")
_API_KEY = parameter_of("key", "path", {"type": "string"}, "The id of the key, 16 hexadecimal digits.")
_LIMIT = parameter_of(
    "limit", "query", {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}, "Of entries on the page."
)
_AFTER = parameter_of("after", "query", {"type": "string"}, "The `next` of the page before.")
_CHAIN = parameter_of("chain", "query", {"type": "integer", "minimum": 0, "default": 0}, "Of the ledger.")
_AFTER_LINE = parameter_of("after", "query", {"type": "integer", "minimum": 0, "default": 0}, "The line before.")
_ONLY = parameter_of("account", "query", {"type": "string"}, "Grants of this account only.")

_BODY: tuple[Slug, ...] = ("malformed", "too-large", "unsupported-media-type", "key-reused")
_CLOCK: tuple[Slug, ...] = ("clock",)
_MISSING: tuple[Slug, ...] = ("not-found",)


def _seen(
    name: str,
    path: str,
    summary: str,
    description: str,
    answer: type[BaseModel],
    *parameters: dict[str, object],
    problems: tuple[Slug, ...] = (),
) -> About:
    return About(name, "GET", path, summary, description, answer, problems, None, parameters, (), "administration")


def _done(
    name: str,
    method: str,
    path: str,
    summary: str,
    description: str,
    *parameters: dict[str, object],
    body: type[BaseModel] | None = None,
    answer: type[BaseModel] | None = None,
    problems: tuple[Slug, ...] = (),
) -> About:
    status = 204 if answer is None else 201 if answer is wire.MadeKey or name == "create_account" else 200
    return About(
        name,
        method,
        path,
        summary,
        description,
        answer,
        problems,
        body,
        (*parameters, _KEY),
        (),
        "administration",
        status,
    )


_ACCOUNTS, _ONE = "/v1/admin/accounts", "/v1/admin/accounts/{account:path}"
_KEYS, _GRANTS = "/v1/admin/keys", "/v1/admin/grants"

ROUTES: tuple[About, ...] = (
    _seen("accounts", _ACCOUNTS, "Accounts", "By name. For officers.", wire.AccountPage, _AFTER, _LIMIT),
    _done(
        "create_account",
        "POST",
        _ACCOUNTS,
        "Open an account",
        "Its parent never changes. For officers.",
        body=wire.NewAccount,
        answer=wire.AccountDetail,
        problems=(*_BODY, *_CLOCK),
    ),
    _done(
        "charge",
        "POST",
        f"{_ONE}/charge",
        "Charge an account by hand",
        "Such as for an answer that was given some other way. For officers.",
        _ACCOUNT,
        body=wire.Payment,
        answer=wire.AccountDetail,
        problems=(*_BODY, *_MISSING, *_CLOCK),
    ),
    _done(
        "refund",
        "POST",
        f"{_ONE}/refund",
        "Give back charges",
        "At most a tenth of the limit in a period; that a charge was for nothing is the officer's word. For officers.",
        _ACCOUNT,
        body=wire.Payment,
        answer=wire.AccountDetail,
        problems=(*_BODY, *_MISSING, *_CLOCK),
    ),
    _done(
        "lift",
        "POST",
        f"{_ONE}/lift",
        "End a suspension",
        "What failed until now counts no more towards one; charges stay. For officers.",
        _ACCOUNT,
        body=wire.Act,
        answer=wire.AccountDetail,
        problems=(*_BODY, *_MISSING),
    ),
    _seen(
        "account",
        _ONE,
        "How an account stands",
        "With what is left of the accounts above it. For officers.",
        wire.AccountDetail,
        _ACCOUNT,
        problems=_MISSING,
    ),
    _done(
        "change_account",
        "PATCH",
        _ONE,
        "Give an account another limit, period or mode",
        "What is left out stays. A limit below what is spent leaves nothing. For officers.",
        _ACCOUNT,
        body=wire.ChangedAccount,
        answer=wire.AccountDetail,
        problems=(*_BODY, *_MISSING, *_CLOCK),
    ),
    _seen("grants", _GRANTS, "Grants", "By account and dataset. For officers.", wire.GrantPage, _ONLY, _AFTER, _LIMIT),
    _done(
        "grant",
        "PUT",
        f"{_GRANTS}/{{account:path}}/{{dataset}}",
        "Let an account ask about a dataset",
        "And all accounts below it; in place of what it was granted before. For officers.",
        _ACCOUNT,
        _DATASET,
        body=wire.NewGrant,
        answer=wire.Grant,
        problems=(*_BODY, *_MISSING),
    ),
    _done(
        "revoke_grant",
        "DELETE",
        f"{_GRANTS}/{{account:path}}/{{dataset}}",
        "Take a grant back",
        "Within a second the dataset does not exist for the account. For officers.",
        _ACCOUNT,
        _DATASET,
        _REASON,
        problems=_MISSING,
    ),
    _seen("keys", _KEYS, "API keys", "By id, without their texts. For admins.", wire.KeyPage, _AFTER, _LIMIT),
    _done(
        "make_key",
        "POST",
        _KEYS,
        "Make an API key",
        "It is shown now and never again; who did not see it revokes it. For admins.",
        body=wire.NewKey,
        answer=wire.MadeKey,
        problems=(*_BODY, *_MISSING),
    ),
    _done(
        "rotate_key",
        "POST",
        f"{_KEYS}/{{key}}/rotate",
        "Replace an API key",
        "Another one for the same; both are good during the overlap. For admins.",
        _API_KEY,
        body=wire.RotatedKey,
        answer=wire.MadeKey,
        problems=(*_BODY, *_MISSING),
    ),
    _done(
        "revoke_key",
        "DELETE",
        f"{_KEYS}/{{key}}",
        "Revoke an API key",
        "Within a second it opens nothing any more. For admins.",
        _API_KEY,
        _REASON,
        problems=_MISSING,
    ),
    _seen(
        "ledger",
        "/v1/admin/ledger",
        "Lines of the ledger",
        "In order, with what is hashed, so that anybody can check the chain. For officers.",
        wire.LedgerPage,
        _CHAIN,
        _AFTER_LINE,
        _LIMIT,
    ),
    About(
        "verify",
        "POST",
        "/v1/admin/ledger/verify",
        "Check the ledger",
        "Reads all of it, and every balance against it. For officers.",
        wire.Verdict,
        tag="administration",
    ),
    _done(
        "confirm_clock",
        "POST",
        "/v1/admin/clock",
        "Confirm the clock",
        "Takes the time of the store as right after it ran ahead. For officers.",
        body=wire.Act,
        problems=_BODY,
    ),
    _seen(
        "settings",
        "/v1/admin/settings",
        "What the service runs with",
        "No secret and no path. For officers.",
        wire.RunningSettings,
    ),
)
"""Their handlers are in `discreet.service.api.admin`."""
