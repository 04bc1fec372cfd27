"""Messages between data centres about shares of budgets; amounts are text, so that no JSON reader rounds them."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from discreet.budget.escrow import Ask, Receipt, Transfer
from discreet.budget.ledger import account_of, canonical, settings_text
from discreet.budget.model import Amount
from discreet.errors import InputError
from discreet.wire.problems import Malformed

ENTRIES_MOST = 64
"""The most requests, transfers or receipts in a message."""

BODY_MOST_BYTES = 2**20
"""The longest message."""

Whole = Annotated[str, Field(pattern=r"^-?[0-9]{1,60}$")]
Name = Annotated[str, Field(min_length=1, max_length=200)]


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)


class Amounts(_Message):
    """An amount in whole quanta."""

    rho: Whole
    delta: Whole

    @classmethod
    def of(cls, amount: Amount) -> Amounts:
        """Return the message of *amount*."""
        return cls(rho=str(amount.rho), delta=str(amount.delta))

    @property
    def amount(self) -> Amount:
        """Return what `of` was given."""
        return Amount(int(self.rho), int(self.delta))


class AskSent(_Message):
    """A `discreet.budget.escrow.Ask`."""

    account: Name
    left: Amounts
    need: Amounts

    @classmethod
    def of(cls, ask: Ask) -> AskSent:
        """Return the message of *ask*."""
        return cls(account=ask.account, left=Amounts.of(ask.left), need=Amounts.of(ask.need))

    @property
    def ask(self) -> Ask:
        """Return what `of` was given."""
        return Ask(self.account, self.left.amount, self.need.amount)


class TransferSent(_Message):
    """A `discreet.budget.escrow.Transfer`; *terms* are the settings of the account."""

    donor: Name
    recipient: Name
    number: int = Field(ge=1, lt=2**62)
    amount: Amounts
    sent_us: int = Field(ge=0, lt=2**62)
    terms: dict[str, Any]

    @classmethod
    def of(cls, transfer: Transfer) -> TransferSent:
        """Return the message of *transfer*."""
        return cls(
            donor=transfer.donor,
            recipient=transfer.recipient,
            number=transfer.number,
            amount=Amounts.of(transfer.amount),
            sent_us=transfer.sent_us,
            terms=json.loads(settings_text(transfer.terms)),
        )

    @property
    def transfer(self) -> Transfer:
        """Return what `of` was given.

        Raises:
            Malformed: the terms are of no account, or the amount is less than nothing.
        """
        amount = self.amount.amount
        try:
            terms = account_of(canonical(self.terms))
        except (ValueError, KeyError, TypeError, IndexError, ArithmeticError, InputError):
            raise Malformed("'terms' must be the settings of an account") from None
        if amount.rho < 0 or amount.delta < 0:
            raise Malformed("a transfer must not be less than nothing")
        return Transfer(self.donor, self.recipient, self.number, amount, self.sent_us, terms)


class ReceiptSent(_Message):
    """A `discreet.budget.escrow.Receipt`."""

    account: Name
    donor: Name
    recipient: Name
    number: int = Field(ge=0, lt=2**62)
    taken: bool
    version: int = Field(ge=0, lt=2**62)

    @classmethod
    def of(cls, receipt: Receipt) -> ReceiptSent:
        """Return the message of *receipt*."""
        return cls(**dataclasses.asdict(receipt))

    @property
    def receipt(self) -> Receipt:
        """Return what `of` was given."""
        return Receipt(**self.model_dump())


class Requests(_Message):
    """A data centre requests shares.

    Args:
        centre: its name, for logs.
        asks: what it is short of; empty if it only announces itself.
    """

    centre: Name
    store: Name
    asks: list[AskSent] = Field(max_length=ENTRIES_MOST)


class Requested(_Message):
    """The response: all transfers under way to it, whichever request they are for."""

    store: Name
    transfers: list[TransferSent] = Field(max_length=ENTRIES_MOST)


class Transfers(_Message):
    """A data centre sends shares, and receipts of the shares that it received.

    Args:
        centre: its name, for logs.
        transfers: to the other one.
        receipts: of transfers from the other one.
    """

    centre: Name
    store: Name
    transfers: list[TransferSent] = Field(max_length=ENTRIES_MOST)
    receipts: list[ReceiptSent] = Field(max_length=ENTRIES_MOST)


class Transferred(_Message):
    """The response: receipts of what was decided."""

    store: Name
    receipts: list[ReceiptSent] = Field(max_length=ENTRIES_MOST)
