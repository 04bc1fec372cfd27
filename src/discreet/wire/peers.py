"""Messages between data centres about shares of budgets; amounts are text, so that no JSON reader rounds them."""

from __future__ import annotations

import json
import re
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer, PlainValidator

from discreet.budget.ledger import account_of, canonical, settings_text
from discreet.budget.model import Account, Amount
from discreet.errors import InputError
from discreet.wire.queries import request_error

MAX_ENTRIES = 64
"""The largest number of requests, transfers or receipts in a message."""

MAX_BODY_BYTES = 2**20
"""The largest size of a message."""

_WHOLE = re.compile(r"-?[0-9]{1,60}")  # bounded, because int() takes quadratic time


def _amount_of(sent: object) -> Amount:
    match sent:
        case Amount():
            return sent
        case {"rho": str(rho), "delta": str(delta), **rest} if not rest:  # no other keys
            if _WHOLE.fullmatch(rho) and _WHOLE.fullmatch(delta):
                return Amount(int(rho), int(delta))
    raise request_error("an amount has rho and delta, whole numbers as text")


def _not_negative(amount: Amount) -> Amount:
    if amount.rho < 0 or amount.delta < 0:
        raise request_error("a transfer must not be less than nothing")
    return amount


def _terms_of(sent: object) -> Account:
    if isinstance(sent, Account):
        return sent
    try:
        # the reader of the ledger, so that settings which arrive are exactly those that a ledger can hold
        return account_of(canonical(sent))  # type: ignore[arg-type]  # raises for values of other types
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, ArithmeticError, InputError):
        raise request_error("'terms' must be the settings of an account") from None


Quanta = Annotated[
    Amount,
    PlainValidator(_amount_of),
    PlainSerializer(lambda amount: {"rho": str(amount.rho), "delta": str(amount.delta)}),
]
"""An amount in whole quanta."""

Terms = Annotated[
    Account,
    PlainValidator(_terms_of),
    PlainSerializer(lambda account: json.loads(settings_text(account))),
]
"""The settings of an account."""

Name = Annotated[str, Field(min_length=1, max_length=200)]
Count = Annotated[int, Field(ge=0, lt=2**62)]  # fits a column of 64 bits, also when it is increased


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)


class _Entry(_Message):
    """Base of the JSON forms of values of `discreet.budget.sharing.escrow`; the fields have the same names."""

    @classmethod
    def of(cls, value: object) -> Self:
        """Return the JSON form of *value*."""
        return cls(**{name: getattr(value, name) for name in cls.model_fields})


class RequestSent(_Entry):
    """The JSON form of a `discreet.budget.sharing.escrow.ShareRequest`."""

    account: Name
    left: Quanta
    need: Quanta


class TransferSent(_Entry):
    """The JSON form of a `discreet.budget.sharing.escrow.Transfer`."""

    donor: Name
    recipient: Name
    number: int = Field(ge=1, lt=2**62)
    amount: Annotated[Quanta, AfterValidator(_not_negative)]
    sent_us: Count
    terms: Terms


class ReceiptSent(_Entry):
    """The JSON form of a `discreet.budget.sharing.escrow.Receipt`."""

    account: Name
    donor: Name
    recipient: Name
    number: Count
    taken: bool
    version: Count


class Requests(_Message):
    """A data centre's requests for shares of budgets.

    Args:
        centre: name of the sending data centre, for logs.
        requests: one for each account that is short; empty if the data centre only announces itself.
    """

    centre: Name
    store: Name
    requests: list[RequestSent] = Field(max_length=MAX_ENTRIES)


class PendingTransfers(_Message):
    """The response to `Requests`: the pending transfers to the sender, also those for earlier requests."""

    store: Name
    transfers: list[TransferSent] = Field(max_length=MAX_ENTRIES)


class Transfers(_Message):
    """Transfers of shares by a data centre, and receipts for the transfers that it received.

    Args:
        centre: name of the sending data centre, for logs.
        receipts: receipts for transfers from the receiving data centre.
    """

    centre: Name
    store: Name
    transfers: list[TransferSent] = Field(max_length=MAX_ENTRIES)
    receipts: list[ReceiptSent] = Field(max_length=MAX_ENTRIES)


class Transferred(_Message):
    """The response to `Transfers`: a receipt for each transfer that was accepted or declined."""

    store: Name
    receipts: list[ReceiptSent] = Field(max_length=MAX_ENTRIES)
