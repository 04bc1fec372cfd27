"""What budgets are made of: accounts, periods, claims, reservations, balances. Frozen values; nothing here decides.

Times are whole microseconds since 1970-01-01 UTC, by the clock of the database.
"""

from discreet.budget.model.accounts import (
    LINKEDIN,
    LINKEDIN_CONVERSION,
    Account,
    Balance,
    Calendar,
    Forever,
    Mode,
    Period,
    Sliding,
    Units,
)
from discreet.budget.model.acts import Act
from discreet.budget.model.claims import (
    LEASE_MOST_MS,
    Claim,
    Fingerprint,
    Hold,
    InFlight,
    Paid,
    Refusal,
    Replay,
    Reservation,
    Settled,
    StoredRelease,
    Suspension,
)
from discreet.budget.model.names import NAME_LONGEST, REASON_LONGEST, RECORD_LONGEST, RECORD_NAME_LONGEST
from discreet.budget.model.shares import Share

__all__ = [
    "LEASE_MOST_MS",
    "LINKEDIN",
    "LINKEDIN_CONVERSION",
    "NAME_LONGEST",
    "REASON_LONGEST",
    "RECORD_LONGEST",
    "RECORD_NAME_LONGEST",
    "Account",
    "Act",
    "Balance",
    "Calendar",
    "Claim",
    "Fingerprint",
    "Forever",
    "Hold",
    "InFlight",
    "Mode",
    "Paid",
    "Period",
    "Refusal",
    "Replay",
    "Reservation",
    "Settled",
    "Share",
    "Sliding",
    "StoredRelease",
    "Suspension",
    "Units",
]
