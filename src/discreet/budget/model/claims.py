"""Claims, reservations, stored releases, and what a store answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from discreet.budget.amount import NOTHING, Amount
from discreet.budget.model.names import check_digest, check_name
from discreet.errors import InputError

if TYPE_CHECKING:
    from discreet.budget.states import State
    from discreet.values import Cost

LEASE_MOST_MS = 24 * 3_600_000
"""The longest lease of a reservation: one day."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A question's wish to spend, worst case.

    Args:
        reservation: a new name for it, unique for ever. The same claim may be sent again when nobody knows what became
            of it: a store answers a name that it knows as it did the first time.
        account: who asks; its parents are charged too.
        release_key: names the answer: the canonical question with all parameters, the mechanism and the version of the
            data, keyed and hashed; 16 to 64 bytes.
        worst: the most that the answer can cost; the same for the same release key.
        key: the caller's idempotency key, or None; it is the account's own.
        digest: of the request that came with the key; up to 64 bytes.
        lease_ms: how long the reservation lives if nothing happens to it, from 1 to a day.
    """

    reservation: str
    account: str
    release_key: bytes
    worst: Cost
    key: str | None = None
    digest: bytes = b""
    lease_ms: int = 60_000

    def __post_init__(self) -> None:
        check_name(self.reservation, "the name of a reservation")
        check_digest(self.release_key, "a release key")
        if self.key is not None:
            check_name(self.key, "an idempotency key")
        if len(self.digest) > 64:
            raise InputError("a digest has at most 64 bytes")
        if not 1 <= self.lease_ms <= LEASE_MOST_MS:
            raise InputError(f"a lease lasts from 1 to {LEASE_MOST_MS:,} ms, not {self.lease_ms}")


@dataclass(frozen=True, slots=True)
class Hold:
    """What a reservation holds of one account on its path.

    Args:
        account: whose.
        bucket: the number of the account's bucket that it is charged to, now and when it is settled.
        amount: what is held; nothing if the account has paid for the release already.
        funded: the part of it that came out of a forfeit, and goes back to it if the reservation is voided.
    """

    account: str
    bucket: int
    amount: Amount
    funded: Amount = NOTHING


@dataclass(frozen=True, slots=True)
class Reservation:
    """A claim that was admitted.

    Args:
        id: as in the claim.
        account: who asks.
        release_key: as in the claim.
        worst: as in the claim.
        holds: one for each account on the path, that of the asking account first.
        state: of `discreet.budget.states`.
        lease_until_us: when it is taken away if nothing happens.
    """

    id: str
    account: str
    release_key: bytes
    worst: Cost
    holds: tuple[Hold, ...]
    state: State
    lease_until_us: int


@dataclass(frozen=True, slots=True)
class StoredRelease:
    """An answer, kept with its price: it is replayed, never computed again.

    Args:
        release_key: as in the claim.
        result: the exact bytes answered.
        cost: what it cost whom it was first answered to.
        time_us: when it was settled.
    """

    release_key: bytes
    result: bytes
    cost: Cost
    time_us: int


@dataclass(frozen=True, slots=True)
class Replay:
    """The answer was there already.

    Args:
        release: what to answer.
        charged: what the asking account paid just now: nothing if it had paid before.
    """

    release: StoredRelease
    charged: Cost


@dataclass(frozen=True, slots=True)
class Refusal:
    """An account on the path cannot pay the worst case. It depends on nothing but limits, charges and that worst case.

    Args:
        account: the first on the path that falls short.
        needed: the worst case, less what a forfeit of the same release pays.
        remaining: what is left.
        resets_at_us: when some of it comes back, or None if never.
    """

    account: str
    needed: Cost
    remaining: Cost
    resets_at_us: int | None


@dataclass(frozen=True, slots=True)
class Suspension:
    """Too many runs of the asking account failed after the data was asked: it is refused whatever it asks.

    Args:
        account: that asked.
        until_us: when it may ask again, if no officer lifts it before.
    """

    account: str
    until_us: int


@dataclass(frozen=True, slots=True)
class InFlight:
    """A reservation with the same idempotency key is under way: wait for it, or tell the caller to (409).

    Args:
        reservation: its name.
        lease_until_us: when it will have ended, one way or another.
    """

    reservation: str
    lease_until_us: int


@dataclass(frozen=True, slots=True)
class Settled:
    """A reservation that was settled.

    Args:
        release: what to answer. If somebody was faster, these are her bytes, not the caller's.
        charged: what the asking account paid.
    """

    release: StoredRelease
    charged: Cost


@dataclass(frozen=True, slots=True)
class Paid:
    """A release that an account has paid for.

    Args:
        number: rises with every release that the account pays for; for paging only.
        release: as it was answered.
        charged: what the account paid.
        time_us: when.
    """

    number: int
    release: StoredRelease
    charged: Cost
    time_us: int


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What an engine returned, so that a store notices data that changes under one version.

    Args:
        head_key: names what was asked of the engine, in this version of the data; keyed and hashed, 16 to 64 bytes.
        digest: of what it returned; keyed and hashed, 16 to 64 bytes.
    """

    head_key: bytes
    digest: bytes

    def __post_init__(self) -> None:
        check_digest(self.head_key, "a head key")
        check_digest(self.digest, "the digest of a head")
