"""What this data centre asks the others for: shares of which most is spent, and what refused questions would need."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from discreet.budget.amount import NOTHING, Amount
from discreet.budget.errors import UnknownAccount
from discreet.budget.rebalance import Ask, is_short
from discreet.wire.peers import ENTRIES_MOST

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from discreet.budget.escrow import Receipt, Transfer
    from discreet.budget.holdings import SplitStore
    from discreet.budget.model import Refusal

ACCOUNTS_AT_ONCE = 1_000
"""Accounts that are looked at in a round; the next round goes on with others."""

PATIENCE_MOST = 64
"""Rounds that an account waits at most after the others had nothing for it."""


@dataclass(slots=True)
class Round:
    """What is asked of one data centre after the other.

    Args:
        asks: by account.
        gained: accounts that got something.
    """

    asks: dict[str, Ask]
    gained: set[str] = field(default_factory=set)

    def add(self, receipts: Iterable[Receipt], transfers: Iterable[Transfer]) -> None:
        """Something arrived: the next one is asked for less."""
        taken = {receipt.account for receipt in receipts if receipt.taken}
        for transfer in transfers:
            ask = self.asks.get(transfer.terms.id)
            if ask is not None and ask.account in taken:
                self.asks[ask.account] = Ask(ask.account, ask.left + transfer.amount, ask.need)
                self.gained.add(ask.account)


@dataclass(slots=True)
class _Patience:
    """How many rounds an account still waits, and how many it will wait the next time."""

    left: int = 0
    next: int = 1


class Asks:
    """See above.

    Args:
        store: of this data centre.
    """

    def __init__(self, store: SplitStore) -> None:
        self._store, self._lock = store, threading.Lock()
        self._needs: dict[str, Amount] = {}  # since the last round
        self._asked: dict[str, Amount] = {}  # in the last round
        self._patience: dict[str, _Patience] = {}
        self._after = ""

    def refused(self, refusal: Refusal) -> None:
        """A question was refused for want of a share."""
        needed = Amount.of(refusal.needed)
        with self._lock:
            self._needs[refusal.account] = self._needs.get(refusal.account, NOTHING).most(needed)

    def need(self, account: str) -> Amount:
        """The largest worst case that was refused of late, part by part."""
        with self._lock:
            return self._needs.get(account, NOTHING).most(self._asked.get(account, NOTHING))

    @contextlib.contextmanager
    def round(self) -> Iterator[Round]:
        """A round of asking; who got nothing waits longer each time."""
        with self._lock:
            needs, self._needs = self._needs, {}
            self._asked = needs
        found = Round({ask.account: ask for ask in self._short(needs)})
        yield found
        for account in found.asks:
            if account in found.gained:
                self._patience.pop(account, None)
            else:
                patience = self._patience.setdefault(account, _Patience())
                patience.left, patience.next = patience.next, min(2 * patience.next, PATIENCE_MOST)

    def _short(self, needs: dict[str, Amount]) -> Iterator[Ask]:
        """What is asked for: first what refused questions need, then what is nearly spent."""
        names = [*list(needs)[:ENTRIES_MOST], *(name for name in self._nearly_spent() if name not in needs)]
        for name in names[:ENTRIES_MOST]:
            with contextlib.suppress(UnknownAccount):
                balance = self._store.balance(name)  # as the next question would find it
                account, need = balance.account, needs.get(name, NOTHING)
                limit = Amount.of(account.limit)
                left = limit - Amount.of(balance.spent)
                if account.share is not None and is_short(left, limit, Amount.of(account.whole), need):
                    yield Ask(name, left, need)

    def _nearly_spent(self) -> Iterator[str]:
        """Accounts that look as if they were short, of a part of all accounts."""
        holdings = self._store.shares.holdings(self._after, ACCOUNTS_AT_ONCE)
        self._after = holdings[-1].account.id if len(holdings) == ACCOUNTS_AT_ONCE else ""
        found, before = 0, ""
        for holding in holdings:
            name, patience = holding.account.id, self._patience.get(holding.account.id)
            if patience is not None and patience.left:
                patience.left -= 1
            elif holding.account.share is not None and is_short(holding.left, holding.limit, holding.total):
                if found == ENTRIES_MOST:
                    self._after = before
                    return
                found += 1
                yield name
            before = name
