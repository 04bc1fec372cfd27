"""A suite for stores of budgets: nobody overspends, whatever happens in whatever order. Needs pytest.

class TestMyStore(BudgetStoreSuite):
    @contextlib.contextmanager
    def opened(self, clock):
        store = MyStore.empty(clock)
        yield store
        store.close()
"""

from tests.budget.suite.answers import Answers
from tests.budget.suite.claims import Claims
from tests.budget.suite.failures import Failures
from tests.budget.suite.officers import Officers
from tests.budget.suite.periods import Periods
from tests.budget.suite.records import Records
from tests.budget.suite.together import Together
from tests.budget.suite.world import (
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

__all__ = ["ACT", "NOON_US", "TOTAL", "UNIT", "BudgetStoreSuite", "FakeClock", "account", "claim"]
__all__ += ["key_of", "set_limit", "set_mode", "set_period", "spend", "units"]


class BudgetStoreSuite(Claims, Failures, Answers, Periods, Officers, Records, Together):
    """Tests every store has to pass; a subclass says how one is opened. Each ends with a verified ledger."""
