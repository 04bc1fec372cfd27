"""A suite for stores of budgets: nobody overspends, whatever happens in whatever order. Needs pytest.

class TestMyStore(BudgetStoreSuite):
    @contextlib.contextmanager
    def opened(self, clock):
        store = MyStore.empty(clock)
        yield store
        store.close()
"""

from discreet.testing.budget.answers import Answers
from discreet.testing.budget.claims import Claims
from discreet.testing.budget.failures import Failures
from discreet.testing.budget.officers import Officers
from discreet.testing.budget.periods import Periods
from discreet.testing.budget.records import Records
from discreet.testing.budget.together import Together
from discreet.testing.budget.world import ACT, NOON_US, TOTAL, UNIT, FakeClock, account, claim, key_of, spend, units

__all__ = ["ACT", "NOON_US", "TOTAL", "UNIT", "BudgetStoreSuite", "FakeClock", "account", "claim"]
__all__ += ["key_of", "spend", "units"]


class BudgetStoreSuite(Claims, Failures, Answers, Periods, Officers, Records, Together):
    """Tests every store has to pass; a subclass says how one is opened. Each ends with a verified ledger."""
