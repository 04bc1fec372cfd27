"""The ledger: an append-only chain of lines, each hashed together with the previous one. Pure.

The body of a line is text with tabs between its fields, in one form only:

    chain  seq  time_us  kind  reservation or -  detail  {account  bucket  part  rho  delta}*

The detail is canonical JSON; then come the changes of the accounts' buckets, each of one part: u(sed), h(eld),
f(orfeited), r(efunded). All balances are sums of these changes. hash = SHA-256(hash of the previous line + body); the
hash before the first line is made from `GENESIS` and the chain's number. Editing, removing, moving or adding a line
breaks the chain after it; checkpoints (`discreet.budget.checkpoints`) detect that all later lines were rewritten.

A store may keep several chains, so that writers need not wait for each other: the lines of a reservation, and lines
that create or alter an account or open its buckets, are in the chain of the account. Sums do not depend on the order of
the chains.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from discreet.budget.errors import LedgerBroken
from discreet.budget.model import NOTHING, Account, Amount, Calendar, Forever, Period, Share, Sliding, Tally, Units
from discreet.budget.rules import Event

GENESIS = b"discreet ledger 1 "

MOVE_KINDS = frozenset({"send", "take", "decline", "delivered", "return"})
"""Kinds of lines about transfers; their detail has {"transfer": {...}}, see `transfer_detail`."""

RESIZING_KINDS = frozenset({"send", "take", "return"})
"""Kinds of lines about transfers that change an account's limit; their detail has its settings, too."""

ACCOUNT_KINDS = RESIZING_KINDS | {"create", "alter", "refresh"}
"""Kinds of lines whose detail has the open bucket of an account: {"account": settings, "bucket": n, "end_us": ...}."""

ACTION_KINDS = frozenset({"create", "alter", "charge", "refund", "lift", "clock", "note", "prune"})
"""Kinds of lines of administrative actions.

Their detail has actor and reason, "name" if the actor has one, and {"action": {"id": ..., "sha256": ...}} if the action
has an id.

A note can have {"record": {"kind": ..., "name": ..., "sha256": of its text, or null}}; all other values are text. One
about a record can have {"shown": {...}}, what of the record is no secret.
A prune has {"base": SHA-256 in hexadecimal of the base (`ledger_replay`) that replaces the removed lines}.
"""

# A reserve or a refuse has {"question": {...}} if the claim said what is asked.
KINDS = ACCOUNT_KINDS | ACTION_KINDS | MOVE_KINDS | {"reserve", "replay", "refuse"} | {event.value for event in Event}

PARTS = "uhfr"
"""The letters of the parts of a `Tally`, in its order."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the ledger.

    Args:
        seq: the number of the line in the chain, from 1.
        body: the text that is hashed, as described in the module.
        hash: 32 bytes.
    """

    chain: int
    seq: int
    body: str
    hash: bytes


@dataclass(frozen=True, slots=True)
class Head:
    """The end of a chain: its number, and the number and the hash of its last line."""

    chain: int
    seq: int
    hash: bytes

    @classmethod
    def empty(cls, chain: int = 0) -> Head:
        """Return the head of a chain without lines."""
        return cls(chain, 0, hashlib.sha256(GENESIS + str(chain).encode()).digest())


@dataclass(frozen=True, slots=True)
class Entry:
    """The content of a line.

    Args:
        kind: one of `KINDS`.
        reservation: the id of the reservation, or None.
        detail: canonical JSON; never a secret.
        changes: account, number of the bucket, and change of its sums.
    """

    time_us: int
    kind: str
    reservation: str | None = None
    detail: str = "{}"
    changes: Sequence[tuple[str, int, Tally]] = ()


def next_line(head: Head, entry: Entry) -> Line:
    """Return *entry* as the line after *head*."""
    fields = [
        str(head.chain),
        str(head.seq + 1),
        str(entry.time_us),
        entry.kind,
        entry.reservation or "-",
        entry.detail,
    ]
    for account, bucket, change in entry.changes:
        parts = (change.used, change.held, change.forfeited, change.refunded)
        for part, amount in zip(PARTS, parts, strict=True):
            if amount:
                fields += (account, str(bucket), part, str(amount.rho), str(amount.delta))
    body = "\t".join(fields)
    return Line(head.chain, head.seq + 1, body, hashlib.sha256(head.hash + body.encode()).digest())


def head_of(line: Line) -> Head:
    """Return the head of a chain that ends with *line*."""
    return Head(line.chain, line.seq, line.hash)


def entry_of(line: Line) -> Entry:
    """Return the content of *line*, or raise `LedgerBroken`."""
    try:
        _, _, time, kind, reservation, detail, *rest = line.body.split("\t")
        sums: dict[tuple[str, int], list[Amount]] = {}
        for n in range(0, len(rest), 5):
            account, bucket, part, rho, delta = rest[n : n + 5]
            parts = sums.setdefault((account, int(bucket)), [NOTHING] * len(PARTS))
            parts[PARTS.index(part)] += Amount(int(rho), int(delta))
        changes = tuple((account, bucket, Tally(*parts)) for (account, bucket), parts in sums.items())
        return Entry(int(time), kind, None if reservation == "-" else reservation, detail, changes)
    except ValueError:
        raise LedgerBroken("a line cannot be read", line.chain, line.seq) from None


def canonical(value: Mapping[str, Any]) -> str:
    """Return *value* as canonical JSON: sorted, ASCII, no spaces, and therefore without tabs and line breaks."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def settings_text(account: Account) -> str:
    """Return the settings of *account* as canonical JSON; numbers are text, so that they are never read as floats."""
    limit = Amount.of(account.limit)
    units = account.units
    split = account.share
    share = {}  # for accounts that are not split over data centres
    if split is not None:
        total = Amount.of(split.total)
        share = {"share": [str(total.rho), str(total.delta), split.home, str(split.version)]}
    match account.period:
        case Forever():
            period = "forever"
        case Sliding(days):
            period = f"sliding {days}"
        case Calendar(unit, zone):
            period = f"{unit} {zone}"
    return canonical(
        share
        | {
            "id": account.id,
            "parent": account.parent,
            "rho": str(limit.rho),
            "delta": str(limit.delta),
            "total_delta": str(account.delta),
            "mode": account.mode,
            "period": period,
            "units": None
            if units is None
            else [str(units.epsilon_per), str(units.delta_per), str(units.information), str(units.calls)],
        }
        # only if set, so that the settings of all other accounts stay the text that earlier ledgers hold
        | ({"suspended": True} if account.suspended else {})
    )


def account_of(text: str) -> Account:
    """Parse an account that `settings_text` wrote."""
    read = json.loads(text)
    units = read["units"]
    share = read.get("share")
    return Account(
        read["id"],
        Amount(int(read["rho"]), int(read["delta"])).cost,
        Fraction(read["total_delta"]),
        read["parent"],
        period_of(read["period"]),
        read["mode"],
        None if units is None else Units(Fraction(units[0]), Fraction(units[1]), int(units[2]), int(units[3])),
        None if share is None else Share(Amount(int(share[0]), int(share[1])).cost, share[2], int(share[3])),
        read.get("suspended", False),
    )


def period_of(text: str) -> Period:
    """Parse a period: "forever", "sliding 30", "month Europe/Berlin"."""
    kind, _, rest = text.partition(" ")
    if kind == "forever":
        return Forever()
    if kind == "sliding":
        return Sliding(int(rest))
    return Calendar(kind, rest)  # type: ignore[arg-type]  # Calendar refuses other words


def transfer_detail(peer: str, number: int, amount: Amount) -> dict[str, Any]:
    """Return the detail of a ledger line about a transfer."""
    return {"transfer": {"peer": peer, "number": str(number), "rho": str(amount.rho), "delta": str(amount.delta)}}
