"""Query a budget service from Python."""

from discreet.client.client import Answer, Client, Rows
from discreet.client.errors import BudgetShort, Busy, Forbidden, ServiceError, Suspended, Unauthorized
from discreet.errors import NotFound

__all__ = [
    "Answer",
    "BudgetShort",
    "Busy",
    "Client",
    "Forbidden",
    "NotFound",
    "Rows",
    "ServiceError",
    "Suspended",
    "Unauthorized",
]
