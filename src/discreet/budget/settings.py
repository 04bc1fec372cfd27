"""An account's settings as text: what stores keep of an account and what the ledger says when it is made or altered."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from discreet.budget.amount import Amount
from discreet.budget.model import Account, Calendar, Forever, Share, Sliding, Units

if TYPE_CHECKING:
    from collections.abc import Mapping

    from discreet.budget.model import Period


def canonical(value: Mapping[str, Any]) -> str:
    """JSON in one form only: sorted, ASCII, no spaces. It holds no tab and no line break."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def settings_text(account: Account) -> str:
    """*account* as canonical JSON; numbers are text, so that no reader makes floats of them."""
    limit = Amount.of(account.limit)
    units = account.units
    return canonical(
        _share_text(account.share)
        | {
            "id": account.id,
            "parent": account.parent,
            "rho": str(limit.rho),
            "delta": str(limit.delta),
            "total_delta": str(account.delta),
            "mode": account.mode,
            "period": _period_text(account.period),
            "units": None
            if units is None
            else [str(units.epsilon_per), str(units.delta_per), str(units.information), str(units.calls)],
        }
    )


def account_of(text: str) -> Account:
    """The account that *text*, from `settings_text`, describes."""
    read = json.loads(text)
    units, share = read["units"], read.get("share")
    return Account(
        read["id"],
        Amount(int(read["rho"]), int(read["delta"])).cost,
        Fraction(read["total_delta"]),
        read["parent"],
        period_of(read["period"]),
        read["mode"],
        None if units is None else Units(Fraction(units[0]), Fraction(units[1]), int(units[2]), int(units[3])),
        None if share is None else Share(Amount(int(share[0]), int(share[1])).cost, share[2], int(share[3])),
    )


def period_of(text: str) -> Period:
    """The period that *text* describes: "forever", "sliding 30", "month Europe/Berlin"."""
    kind, _, rest = text.partition(" ")
    if kind == "forever":
        return Forever()
    if kind == "sliding":
        return Sliding(int(rest))
    return Calendar(kind, rest)  # type: ignore[arg-type]  # Calendar refuses other words


def _share_text(share: Share | None) -> dict[str, list[str]]:
    """Nothing for an account that is not split, so that its text is what it always was."""
    if share is None:
        return {}
    total = Amount.of(share.total)
    return {"share": [str(total.rho), str(total.delta), share.home, str(share.version)]}


def _period_text(period: Period) -> str:
    match period:
        case Forever():
            return "forever"
        case Sliding(days):
            return f"sliding {days}"
        case Calendar(unit, zone):
            return f"{unit} {zone}"
