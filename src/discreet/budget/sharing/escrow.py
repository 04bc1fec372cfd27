"""Budgets that are split over data centres: each has a store with a share of the limit, and shares move. Pure.

    donor       limit - amount, the transfer pending      one transaction, ledger line "send"
       ---- transfer, repeated until its receipt arrives ------------->
    recipient   limit + amount, the number stored         one transaction, once per number, "take"
       <--- receipt, as often as the transfer comes ----
    donor       the transfer ended                        one transaction, "delivered"

A data centre spends its own share without contacting other data centres, so that one that is cut off continues until
its share is spent (escrow: O'Neil, ACM TODS 11(4), 1986). Between two stores an account has one transfer at a time, and
transfers are numbered: a lost one is sent again, and one that arrives twice or late is recognized by its number. A
transfer can strand budget while its recipient cannot be reached; it can never create any.

A recipient that has another account of that name stores the number and declines ("decline"); then the amount returns to
the donor ("return").

Two rules keep the sum over all data centres within the total:

- a donor sends only what it has left, so that the spent amount in each store is within its limit;
- a transfer is taken no earlier, by the recipient's clock, than it was sent by the donor's. Cut all ledgers at one
  timestamp, each by its own clock: no transfer is taken before the cut but sent after it. So any period or window, cut
  out of the ledgers by their own timestamps, holds at most the total.

Shares move in the background, never during a query. A data centre that is short requests budget, and one with much more
sends half of the difference: afterwards both have the same, so that nothing moves back before three quarters of it are
spent. For a query that was refused because the share was too small, every data centre without a refusal of its own
sends the missing amount, so that small remainders are used, too.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from enum import Enum

from discreet.budget.errors import StoreBehind
from discreet.budget.model import NOTHING, Account, Amount, Share
from discreet.errors import InputError, InvariantViolated
from discreet.values import Cost


@dataclass(frozen=True, slots=True)
class Transfer:
    """A part of an account's limit that moves to another store.

    Args:
        donor: id of the store that sent it.
        recipient: id of the store to which it is sent.
        number: consecutive number, from 1, of the account's transfers from this donor to this recipient.
        amount: the part of the limit; zero if only the settings of the account are sent.
        sent_us: when it was sent, by the donor's clock.
        terms: the account as the donor has it now, with its share; the limit is ignored.
    """

    donor: str
    recipient: str
    number: int
    amount: Amount
    sent_us: int
    terms: Account

    @property
    def name(self) -> str:
        """The unique name of the transfer: donor, recipient, account and number."""
        return f"{self.donor}/{self.recipient}/{self.terms.id}/{self.number}"


@dataclass(frozen=True, slots=True)
class Receipt:
    """The decision of a recipient about the last transfer that it received.

    Args:
        taken: False if it was declined.
        version: the version of the settings in the recipient's store.
    """

    account: str
    donor: str
    recipient: str
    number: int
    taken: bool
    version: int


@dataclass(frozen=True, slots=True)
class Outgoing:
    """The amounts that an account has sent to one other store.

    Args:
        number: the number of the last transfer; 0 if there was none.
        given: the sum of all amounts that were sent and not returned.
        pending: the amount of the last transfer until its receipt arrives, or None; included in `given`.
        sent_us: when the last transfer was sent.
        version: the latest version of the settings that the other store has confirmed; 0 if none.
    """

    number: int = 0
    given: Amount = NOTHING
    pending: Amount | None = None
    sent_us: int = 0
    version: int = 0


@dataclass(frozen=True, slots=True)
class Incoming:
    """The amounts that an account has received from one other store.

    Args:
        number: the number of the last transfer that was taken or declined; 0 if there was none.
        taken: False if the last transfer was declined.
        received: the sum of all amounts that were taken.
    """

    number: int = 0
    taken: bool = True
    received: Amount = NOTHING


class Decision(Enum):
    """The decision of a recipient about a transfer."""

    TAKE = "take"
    DECLINE = "decline"
    KNOWN = "known"
    """Decided before; the receipt is sent again."""
    WAIT = "wait"
    """Too early to decide; the donor will send the transfer again."""


# ------------------------------------------------------------------------------------------------------ transfers


def sent(outgoing: Outgoing, amount: Amount, remaining: Amount, now_us: int) -> Outgoing:
    """Return *outgoing* after *amount* is sent out of the amount *remaining*.

    Raises:
        InvariantViolated: a transfer is pending, or *amount* exceeds the amount left.
    """
    if outgoing.pending is not None:
        raise InvariantViolated("a transfer is sent while another one is pending")
    if not NOTHING.within(amount) or not amount.within(remaining.most(NOTHING)):
        raise InvariantViolated("a transfer takes more than what is left")
    return Outgoing(outgoing.number + 1, outgoing.given + amount, amount, now_us, outgoing.version)


def acknowledged(outgoing: Outgoing, receipt: Receipt, version: int) -> tuple[Outgoing, Amount]:
    """Return *outgoing* after a receipt, and the amount that returns to the donor's limit.

    Args:
        outgoing: the amounts sent to the store that sent the receipt.
        receipt: the receipt; if it is about an older transfer, nothing changes.
        version: the version of the settings in the donor's store.

    Raises:
        StoreBehind: the receipt is about a transfer that this store has not sent.
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
    transfer: Transfer, own: Account | None, incoming: Incoming, now_us: int, *, store: str, parent_is_here: bool
) -> Decision:
    """Return the decision of the recipient about a transfer.

    Args:
        own: the account of that name, or None if there is none yet.
        parent_is_here: True if the account has no parent, or the parent is in this store.

    Raises:
        InputError: the transfer is for another store, or from this one.
        StoreBehind: this store lost earlier transfers.
    """
    if transfer.recipient != store or transfer.donor == store or transfer.terms.share is None:
        raise InputError("a share for another store was sent here; each data centre needs a store of its own")
    if transfer.number <= incoming.number:
        return Decision.KNOWN
    if transfer.number > incoming.number + 1:
        raise StoreBehind("the store lost shares that it took from another data centre")
    if now_us < transfer.sent_us or (own is None and not parent_is_here):
        return Decision.WAIT
    return Decision.TAKE if own is None or _same_account(own, transfer.terms) else Decision.DECLINE


def taken(incoming: Incoming, transfer: Transfer) -> Incoming:
    """Return *incoming* after taking *transfer*, which `decide` allowed."""
    return Incoming(transfer.number, True, incoming.received + transfer.amount)


def declined(incoming: Incoming, transfer: Transfer) -> Incoming:
    """Return *incoming* after declining *transfer*, which will never be taken."""
    return Incoming(transfer.number, False, incoming.received)


# ------------------------------------------------------------------------------------------------------ settings


def split(account: Account, store: str) -> Account:
    """Return *account* of the store *store* with a share, so that it can be split; unchanged if it has one."""
    return account if account.share else dataclasses.replace(account, share=Share(account.limit, store, 1))


def resized(account: Account, change: Amount) -> Account:
    """Return *account* with *change*, which may be negative, added to its limit."""
    return dataclasses.replace(account, limit=(Amount.of(account.limit) + change).cost)


def opened(terms: Account) -> Account:
    """Return the account that a recipient creates if it has none: with a limit of zero."""
    return dataclasses.replace(terms, limit=Cost())


def adopted(own: Account, terms: Account) -> Account:
    """Return *own* with the settings of *terms* if those are newer; the limit stays."""
    newer = own.share is not None and terms.share is not None and terms.share.version > own.share.version
    return dataclasses.replace(terms, limit=own.limit) if newer else own


def altered(before: Account, after: Account, spent: Amount, store: str) -> Account:
    """Return an account after an administrator altered it.

    Args:
        after: the account with the new settings. A change of the total changes the share of this store.

    Raises:
        InputError: the account's home is another data centre, the limit of a share was changed, or the total is lowered
            by more than is left in this store.
    """
    if before.share is None:
        if after.share is not None:
            raise InputError(f"account {before.id!r} is not split over data centres")
        return after
    if before.share.home != store:
        raise InputError(f"account {before.id!r} was made in another data centre, where alone it can be altered")
    if after.share is None or after.limit != before.limit:
        raise InputError(
            f"the limit of account {before.id!r} is its share in this data centre, which moves by itself: change the "
            "total, and read the account again if the share moved meanwhile"
        )
    change = Amount.of(after.share.total) - Amount.of(before.share.total)
    remaining = Amount.of(before.limit) - spent
    if not (-change).within(remaining.most(NOTHING)):
        raise InputError(
            f"the total of account {before.id!r} can be lowered by what is left in this data centre; other data "
            "centres send more when this one is short"
        )
    share = Share(after.share.total, store, before.share.version + 1)
    return resized(dataclasses.replace(after, share=share), change)


def _same_account(own: Account, terms: Account) -> bool:
    """Return True if *terms* belong to the account *own*; with an equal version, their settings must be equal."""
    if own.share is None or terms.share is None or own.share.home != terms.share.home or own.parent != terms.parent:
        return False
    return own.share.version != terms.share.version or _terms(own) == _terms(terms)


def _terms(account: Account) -> tuple[object, ...]:
    return account.delta, account.period, account.mode, account.units, account.share, account.suspended


SHORT = 4
"""A data centre is short if at most 1 / SHORT of its share is left, or less than 1 / SHORT of the amount that another
data centre has left."""

MIN_PART = 1024
"""Amounts below 1 / MIN_PART of the total are not moved, unless a query needs them."""


@dataclass(frozen=True, slots=True)
class ShareRequest:
    """A request for a share, which a data centre that is short sends to all other data centres.

    Args:
        left: the amount left of its limit; negative if it is overdrawn.
        need: the largest worst case that it refused recently; zero if none.
    """

    account: str
    left: Amount
    need: Amount = NOTHING


def is_short(remaining: Amount, limit: Amount, total: Amount, need: Amount = NOTHING) -> bool:
    """Return True if a query was refused, or most of the share is spent.

    Args:
        remaining: the amount left of the share.
        total: the limit of all data centres; a part of it that is 0 is ignored.
    """
    if need and not need.within(remaining):
        return True
    rho = total.rho > 0 and remaining.rho * SHORT <= limit.rho
    return rho or (total.delta > 0 and remaining.delta * SHORT <= limit.delta)


def granted(request: ShareRequest, rest: Amount, total: Amount, need: Amount = NOTHING) -> Amount:
    """Return the amount that a data centre sends in response to a request.

    Args:
        rest: the amount left of its own share.
        need: the largest worst case that it refused recently itself.
    """
    needed = (
        (request.need - request.left).most(NOTHING).least(rest.most(NOTHING)) if request.need and not need else NOTHING
    )
    return Amount(
        max(_half(rest.rho, request.left.rho, total.rho), needed.rho),
        max(_half(rest.delta, request.left.delta, total.delta), needed.delta),
    )


def first_grant(remaining: Amount, total: Amount, centres: int) -> Amount:
    """Return the first amount that the account's home sends to a data centre: an equal part of the total.

    Args:
        centres: the number of data centres, including the home.
    """
    return Amount(total.rho // centres, total.delta // centres).least(remaining.most(NOTHING))


def _half(rest: int, others_rest: int, total: int) -> int:
    """Return the part of rho or of delta, in quanta, after which both data centres have equally much left.

    It is 0 if the other data centre is not short, or if the part is too small a share of *total* to be moved.
    """
    half = min((rest - others_rest) // 2, rest)
    return 0 if others_rest * SHORT >= rest or half * MIN_PART < total else half


@dataclass(frozen=True, slots=True)
class Holding:
    """An account in a store, with the amounts that it sent to other stores and received from them.

    Args:
        spent: the amount used, held or forfeited, as of the last transaction of the account.
        outgoing: the amounts sent, by the id of the other store.
        incoming: the amounts received, by the id of the other store.
    """

    account: Account
    spent: Amount
    outgoing: dict[str, Outgoing] = field(default_factory=dict)
    incoming: dict[str, Incoming] = field(default_factory=dict)

    @property
    def limit(self) -> Amount:
        """The limit in this store."""
        return Amount.of(self.account.limit)

    @property
    def total(self) -> Amount:
        """The limit of all data centres together."""
        return Amount.of(self.account.share.total if self.account.share else self.account.limit)

    @property
    def left(self) -> Amount:
        """The amount left in this store; negative if it is overdrawn."""
        return self.limit - self.spent
