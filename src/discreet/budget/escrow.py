"""Budgets that are split over data centres: each has a store with a share of the limit, and shares move. Pure.

    donor       limit - amount, the transfer pending      one transaction, ledger line "send"
       ---- transfer, repeated until its receipt arrives ------------->
    recipient   limit + amount, the number stored         one transaction, once per number, "take"
       <--- receipt, as often as the transfer comes ----
    donor       the transfer ended                        one transaction, "delivered"

A data centre spends its own share without contacting the others, so that one that is cut off continues until its share
is spent (escrow: O'Neil, ACM TODS 11(4), 1986). Between two stores an account has one transfer at a time, and they are
numbered: what is lost is sent again, and what arrives twice or late has a known number. A transfer can strand budget
while its recipient cannot be reached; it can never create any.

A recipient that has another account of that name stores the number and declines ("decline"); then the amount returns to
the donor ("return").

Two rules keep the sum over all data centres within the total:

- a donor sends only what it has left, so that what counts in a store is within its limit;
- a transfer is taken no earlier, by the recipient's clock, than it was sent by the donor's. Then all that is before a
  moment, each by its own clock, is a state in which nothing was taken that was not sent: any period or window, cut out
  of the ledgers by their own times, holds at most the total.

Shares move in the background, never during a query. A data centre that is short requests budget, and one with much more
sends half of the difference: afterwards both have the same, so that nothing moves back before three quarters of it are
spent. For a query that was refused because the share was too small, every data centre that has refused none sends what
is needed, so that small remainders are used, too.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from discreet.budget.errors import StoreBehind
from discreet.budget.model import NOTHING, Amount, Share
from discreet.errors import InputError, InvariantViolated
from discreet.values import Cost

if TYPE_CHECKING:
    from discreet.budget.model import Account


@dataclass(frozen=True, slots=True)
class Transfer:
    """A part of an account's limit that moves to another store.

    Args:
        donor: id of the store that sent it.
        recipient: id of the store that it is for.
        number: numbers the account's transfers from this donor to this recipient, from 1 without gaps.
        amount: nothing, if only the settings of the account are sent.
        sent_us: when it was sent, by the donor's clock.
        terms: the account as the donor has it now, with its share; the limit does not matter.
    """

    donor: str
    recipient: str
    number: int
    amount: Amount
    sent_us: int
    terms: Account

    @property
    def name(self) -> str:
        """The transfer's name."""
        return f"{self.donor}/{self.recipient}/{self.terms.id}/{self.number}"


@dataclass(frozen=True, slots=True)
class Receipt:
    """The decision of a recipient about the last transfer that it has.

    Args:
        taken: False if it was declined.
        version: the version of the settings that the recipient has.
    """

    account: str
    donor: str
    recipient: str
    number: int
    taken: bool
    version: int


@dataclass(frozen=True, slots=True)
class Outgoing:
    """What an account sent to one other store.

    Args:
        number: the number of the last transfer; 0 if there was none.
        given: the sum of all that was sent and did not return.
        pending: the amount of the last transfer until its receipt arrives, or None; it is in `given`.
        sent_us: when it was sent.
        version: the version of the settings that the other store is known to have; 0 if none.
    """

    number: int = 0
    given: Amount = NOTHING
    pending: Amount | None = None
    sent_us: int = 0
    version: int = 0


@dataclass(frozen=True, slots=True)
class Incoming:
    """What an account received from one other store.

    Args:
        number: the number of the last transfer that was decided; 0 if there was none.
        taken: False if that was declined.
        received: the sum of all that was taken.
    """

    number: int = 0
    taken: bool = True
    received: Amount = NOTHING


class Decision(Enum):
    """The decision of a recipient about a transfer."""

    TAKE = "take"
    DECLINE = "decline"
    KNOWN = "known"
    """Decided before, as the receipt says."""
    WAIT = "wait"
    """Too early to decide; it will be sent again."""


# ------------------------------------------------------------------------------------------------------ transfers


def sent(outgoing: Outgoing, amount: Amount, left: Amount, now_us: int) -> Outgoing:
    """Return the state after *amount* was sent out of what is *left*.

    Raises:
        InvariantViolated: one is pending, or it is more than what is left.
    """
    if outgoing.pending is not None:
        raise InvariantViolated("a transfer is sent while another one is pending")
    if not NOTHING.within(amount) or not amount.within(left.most(NOTHING)):
        raise InvariantViolated("a transfer takes more than what is left")
    return Outgoing(outgoing.number + 1, outgoing.given + amount, amount, now_us, outgoing.version)


def acknowledged(outgoing: Outgoing, receipt: Receipt, version: int) -> tuple[Outgoing, Amount]:
    """Return the state after a receipt, and what returns to the donor's limit.

    Args:
        outgoing: what was sent to the store that sent the receipt.
        receipt: the receipt; if it is of an older transfer, nothing changes.
        version: the version of the settings that the donor has.

    Raises:
        StoreBehind: it is of a transfer that this store has not sent.
    """
    if receipt.number > outgoing.number:
        raise StoreBehind("the store lost shares that it sent to another data centre")
    if outgoing.pending is None or receipt.number < outgoing.number:
        return outgoing, NOTHING
    if receipt.taken:
        return Outgoing(outgoing.number, outgoing.given, None, outgoing.sent_us, receipt.version), NOTHING
    # the recipient declined these settings; they are sent again when they change
    return Outgoing(outgoing.number, outgoing.given - outgoing.pending, None, outgoing.sent_us, version), (
        outgoing.pending
    )


def decide(
    transfer: Transfer, own: Account | None, incoming: Incoming, now_us: int, *, here: str, parent_is_here: bool
) -> Decision:
    """Return the decision of the recipient about a transfer.

    Args:
        own: the account of that name, or None if there is none yet.
        parent_is_here: True if the account has no parent, or the store has it.

    Raises:
        InputError: it is for another store, or from this one.
        StoreBehind: this store lost earlier transfers.
    """
    if transfer.recipient != here or transfer.donor == here or transfer.terms.share is None:
        raise InputError("a share for another store was sent here; each data centre needs a store of its own")
    if transfer.number <= incoming.number:
        return Decision.KNOWN
    if transfer.number > incoming.number + 1:
        raise StoreBehind("the store lost shares that it took from another data centre")
    if now_us < transfer.sent_us or (own is None and not parent_is_here):
        return Decision.WAIT
    return Decision.TAKE if own is None or _same_account(own, transfer.terms) else Decision.DECLINE


def taken(incoming: Incoming, transfer: Transfer) -> Incoming:
    """Return the state after taking *transfer*, which `decide` allowed."""
    return Incoming(transfer.number, True, incoming.received + transfer.amount)


def declined(incoming: Incoming, transfer: Transfer) -> Incoming:
    """Return the state after declining *transfer*, which will never be taken."""
    return Incoming(transfer.number, False, incoming.received)


# ------------------------------------------------------------------------------------------------------ settings


def split(account: Account, here: str) -> Account:
    """Return *account* of the store *here* with a share, so that it can be split; unchanged if it has one."""
    return account if account.share else dataclasses.replace(account, share=Share(account.limit, here, 1))


def resized(account: Account, change: Amount) -> Account:
    """Return *account* with a limit that is larger by *change*, which may be negative."""
    return dataclasses.replace(account, limit=(Amount.of(account.limit) + change).cost)


def opened(terms: Account) -> Account:
    """Return the account that a recipient without one opens: with nothing to spend yet."""
    return dataclasses.replace(terms, limit=Cost())


def adopted(own: Account, terms: Account) -> Account:
    """Return *own* with the settings of *terms* if those are newer; the limit stays."""
    newer = own.share is not None and terms.share is not None and terms.share.version > own.share.version
    return dataclasses.replace(terms, limit=own.limit) if newer else own


def altered(before: Account, wanted: Account, spent: Amount, here: str) -> Account:
    """Return an account after an administrator altered it.

    Args:
        wanted: the account with other settings. The difference to the total before comes out of the share of this
            store.

    Raises:
        InputError: another data centre has to do it, the limit was changed, or more would be taken from the total than
            what is left here.
    """
    if before.share is None:
        if wanted.share is not None:
            raise InputError(f"account {before.id!r} is not split over data centres")
        return wanted
    if before.share.home != here:
        raise InputError(f"account {before.id!r} was made in another data centre, where alone it can be altered")
    if wanted.share is None or wanted.limit != before.limit:
        raise InputError(
            f"the limit of account {before.id!r} is its share in this data centre, which moves by itself: change the "
            "total, and read the account again if the share moved meanwhile"
        )
    change = Amount.of(wanted.share.total) - Amount.of(before.share.total)
    left = Amount.of(before.limit) - spent
    if not (-change).within(left.most(NOTHING)):
        raise InputError(
            f"the total of account {before.id!r} can be lowered by what is left in this data centre; other data "
            "centres send more when this one is short"
        )
    share = Share(wanted.share.total, here, before.share.version + 1)
    return resized(dataclasses.replace(wanted, share=share), change)


def _same_account(own: Account, terms: Account) -> bool:
    """Return True if *terms* are of the account *own*, and equal if they have the same version."""
    if own.share is None or terms.share is None or own.share.home != terms.share.home or own.parent != terms.parent:
        return False
    return own.share.version != terms.share.version or _terms(own) == _terms(terms)


def _terms(account: Account) -> tuple[object, ...]:
    return account.delta, account.period, account.mode, account.units, account.share


SHORT = 4
"""A data centre is short that has left less than this part (1 / SHORT) of its share, or of what another has left."""

SMALLEST_PART = 1024
"""Less than this part (1 / SMALLEST_PART) of the total is not moved, unless a query needs it."""


@dataclass(frozen=True, slots=True)
class ShareRequest:
    """A request for a share, which a data centre that is short sends to the others.

    Args:
        left: what is left of its limit; negative if it is overdrawn.
        need: the largest worst case that was refused of late; nothing if none was.
    """

    account: str
    left: Amount
    need: Amount = NOTHING


def is_short(left: Amount, limit: Amount, total: Amount, need: Amount = NOTHING) -> bool:
    """Return True if a query was refused, or most of the share is spent.

    Args:
        left: what is left of the share.
        total: the limit of all data centres; a part that is 0 there is not considered.
    """
    if need and not need.within(left):
        return True
    rho = total.rho > 0 and left.rho * SHORT <= limit.rho
    return rho or (total.delta > 0 and left.delta * SHORT <= limit.delta)


def granted(request: ShareRequest, left: Amount, total: Amount, need: Amount = NOTHING) -> Amount:
    """Return what a data centre sends in answer to a request.

    Args:
        left: what is left of its own share.
        need: the largest worst case that it refused itself of late.
    """
    wanted = (
        (request.need - request.left).most(NOTHING).least(left.most(NOTHING)) if request.need and not need else NOTHING
    )
    return Amount(
        _granted_part(left.rho, request.left.rho, wanted.rho, total.rho),
        _granted_part(left.delta, request.left.delta, wanted.delta, total.delta),
    )


def first_grant(left: Amount, total: Amount, centres: int) -> Amount:
    """Return what a data centre without a share gets from the account's home: an equal part of the total.

    Args:
        centres: how many there are, the home among them.
    """
    return Amount(total.rho // centres, total.delta // centres).least(left.most(NOTHING))


def _granted_part(left: int, other: int, wanted: int, total: int) -> int:
    """Return what is sent of rho or of delta."""
    half = min((left - other) // 2, left)
    if other * SHORT >= left or half * SMALLEST_PART < total:
        half = 0
    return max(half, wanted)


@dataclass(frozen=True, slots=True)
class Holding:
    """An account in a store, with what it sent to other stores and received from them.

    Args:
        spent: what counts against its limit, as of the last transaction of the account.
        outgoing: what it sent, by the id of the other store.
        incoming: what it received, by the id of the other store.
    """

    account: Account
    spent: Amount
    outgoing: dict[str, Outgoing] = field(default_factory=dict)
    incoming: dict[str, Incoming] = field(default_factory=dict)

    @property
    def limit(self) -> Amount:
        """What may be spent here."""
        return Amount.of(self.account.limit)

    @property
    def total(self) -> Amount:
        """What may be spent in all data centres."""
        return Amount.of(self.account.share.total if self.account.share else self.account.limit)

    @property
    def left(self) -> Amount:
        """What may still be spent here; negative if it is overdrawn."""
        return self.limit - self.spent
