"""A suite for stores of budgets: no account is overspent, whatever the order of events. Needs pytest.

class TestMyStore(BudgetStoreSuite):
    @contextlib.contextmanager
    def opened(self, clock):
        store = MyStore.empty(clock)
        yield store
        store.close()
"""

from tests.budget.suite.answers import Answers
from tests.budget.suite.base import (
    ACT,
    NOON_US,
    TOTAL,
    UNIT,
    FakeClock,
    account,
    claim,
    key_of,
    set_limit,
    set_mode,
    set_period,
    spend,
    units,
)
from tests.budget.suite.claims import Claims
from tests.budget.suite.concurrency import Concurrency
from tests.budget.suite.failures import Failures
from tests.budget.suite.officers import Officers
from tests.budget.suite.periods import Periods
from tests.budget.suite.pruning import Pruning
from tests.budget.suite.records import Records

__all__ = ["ACT", "NOON_US", "TOTAL", "UNIT", "BudgetStoreSuite", "FakeClock", "account", "claim"]
__all__ += ["key_of", "set_limit", "set_mode", "set_period", "spend", "units"]


class BudgetStoreSuite(Claims, Failures, Answers, Periods, Officers, Pruning, Records, Concurrency):
    """Tests that every store must pass; a subclass opens the store. Each test ends with a verified ledger."""
