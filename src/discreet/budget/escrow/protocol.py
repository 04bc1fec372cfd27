"""Budgets that are split over data centres: each has a store with a share of the limit, and shares move. Pure.

    donor       limit - amount, the transfer pending      one transaction, ledger line "send"
       ---- transfer, again and again until its receipt is heard ---->
    recipient   limit + amount, the number remembered     one transaction, once per number, "take"
       <--- receipt, as often as the transfer comes ----
    donor       the transfer forgotten                    one transaction, "delivered"

A data centre spends its own share without asking the others, so that one that is cut off continues until its share is
spent (escrow: O'Neil, ACM TODS 11(4), 1986). Between two stores an account has one transfer at a time, and they are
numbered: what is lost is sent again, and what arrives twice or late has a known number. A transfer can strand budget
while its recipient cannot be reached; it can never create any.

A recipient that cannot have it (it has another account of that name) remembers the number and says "decline"; then the
donor takes the amount back ("return").

Two rules keep the sum over all data centres within the total:

- a donor gives only what it has left, so that what counts in a store is within its limit;
- a transfer is taken no earlier, by the recipient's clock, than it was sent by the donor's. Then all that is before a
  moment, each by its own clock, is a state in which nothing was taken that was not given: any period or window, cut out
  of the ledgers by their own times, holds at most the total.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from discreet.budget.errors import StoreBehind
from discreet.budget.fixed_point import NOTHING, Amount
from discreet.budget.model import Share
from discreet.errors import InputError, InvariantViolated
from discreet.values import Cost

if TYPE_CHECKING:
    from discreet.budget.model import Account


@dataclass(frozen=True, slots=True)
class Transfer:
    """A part of an account's limit on its way.

    Args:
        donor: id of the store that gave it.
        recipient: id of the store that it is for.
        number: of the account's transfers from this donor to this recipient, from 1 without gaps.
        amount: nothing, if it only tells the account's settings.
        sent_us: when the donor gave it, by the donor's clock.
        terms: the account as the donor knows it now, with its share; the limit does not matter.
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
    """What a recipient decided about the last transfer that it knows of.

    Args:
        account: whose limit.
        donor: as in the transfer.
        recipient: likewise.
        number: likewise.
        taken: False if it was declined.
        version: of the settings that the recipient has.
    """

    account: str
    donor: str
    recipient: str
    number: int
    taken: bool
    version: int


@dataclass(frozen=True, slots=True)
class Outgoing:
    """What an account gave to one other store.

    Args:
        number: of the last transfer; 0 if there was none.
        given: the sum of all that was given and did not come back.
        pending: the amount of the last transfer while its receipt was not heard, or None; it is in `given`.
        sent_us: when it was sent.
        version: of the settings that the other store is known to have; 0 if none.
    """

    number: int = 0
    given: Amount = NOTHING
    pending: Amount | None = None
    sent_us: int = 0
    version: int = 0


@dataclass(frozen=True, slots=True)
class Incoming:
    """What an account took from one other store.

    Args:
        number: of the last transfer that was decided; 0 if there was none.
        taken: False if that was declined.
        received: the sum of all that was taken.
    """

    number: int = 0
    taken: bool = True
    received: Amount = NOTHING


class Verdict(Enum):
    """What a recipient does with a transfer that arrives."""

    TAKE = "take"
    DECLINE = "decline"
    KNOWN = "known"
    """Decided before: the receipt says how."""
    WAIT = "wait"
    """Not now: it will come again."""


# ------------------------------------------------------------------------------------------------------ the moves


def sent(outgoing: Outgoing, amount: Amount, left: Amount, now_us: int) -> Outgoing:
    """Return the state after *amount* was given out of what is *left*.

    Raises:
        InvariantViolated: one is pending, or it is more than what is left.
    """
    if outgoing.pending is not None:
        raise InvariantViolated("a transfer is sent while another one is pending")
    if not NOTHING.within(amount) or not amount.within(left.most(NOTHING)):
        raise InvariantViolated("a transfer takes more than what is left")
    return Outgoing(outgoing.number + 1, outgoing.given + amount, amount, now_us, outgoing.version)


def heard(outgoing: Outgoing, receipt: Receipt, version: int) -> tuple[Outgoing, Amount]:
    """Return the state after a receipt, and what returns to the donor's limit.

    Args:
        outgoing: to the store whose receipt it is.
        receipt: perhaps of an older transfer; then nothing changes.
        version: of the settings that the donor has.

    Raises:
        StoreBehind: it is of a transfer that this store has not sent.
    """
    if receipt.number > outgoing.number:
        raise StoreBehind("the store has forgotten shares that it gave to another data centre")
    if outgoing.pending is None or receipt.number < outgoing.number:
        return outgoing, NOTHING
    if receipt.taken:
        return Outgoing(outgoing.number, outgoing.given, None, outgoing.sent_us, receipt.version), NOTHING
    # it has heard of these settings and will not have them; it is asked again when they change
    return Outgoing(outgoing.number, outgoing.given - outgoing.pending, None, outgoing.sent_us, version), (
        outgoing.pending
    )


def judge(
    transfer: Transfer, own: Account | None, incoming: Incoming, now_us: int, *, here: str, parent_is_here: bool
) -> Verdict:
    """Return what the recipient does with a transfer.

    Args:
        transfer: what arrived.
        own: the account of that name, or None if there is none yet.
        incoming: from that donor.
        now_us: by the recipient's clock.
        here: the recipient's id.
        parent_is_here: True if the account has no parent, or the store has it.

    Raises:
        InputError: it is for another store, or from this one.
        StoreBehind: there were transfers before that this store has forgotten.
    """
    if transfer.recipient != here or transfer.donor == here or transfer.terms.share is None:
        raise InputError("a share for another store was sent here; each data centre needs a store of its own")
    if transfer.number <= incoming.number:
        return Verdict.KNOWN
    if transfer.number > incoming.number + 1:
        raise StoreBehind("the store has forgotten shares that it took from another data centre")
    if now_us < transfer.sent_us or (own is None and not parent_is_here):
        return Verdict.WAIT
    return Verdict.TAKE if own is None or _same_account(own, transfer.terms) else Verdict.DECLINE


def taken(incoming: Incoming, transfer: Transfer) -> Incoming:
    """Return the state after taking *transfer*, which `judge` allowed."""
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
        before: the account.
        wanted: likewise, with other settings; with another total, of which the difference comes out of the share of
            this store.
        spent: what counts against the limit.
        here: id of this store.

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
            "total, and ask again if the share moved meanwhile"
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
