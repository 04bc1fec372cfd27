"""A suite for stores whose budgets are split over data centres (`ShareStore`). Needs pytest.

class TestMyShares(ShareStoreSuite):
    @contextlib.contextmanager
    def opened(self, clock):
        store = MyStore.empty(clock)
        yield store
        store.close()
"""

from tests.budget.sharing.suite.officers import OfficerTests
from tests.budget.sharing.suite.periods import PeriodTests
from tests.budget.sharing.suite.random_steps import RandomSteps
from tests.budget.sharing.suite.transfers import TransferTests

__all__ = ["ShareStoreSuite"]


class ShareStoreSuite(TransferTests, PeriodTests, OfficerTests, RandomSteps):
    """Tests that every store must pass; a subclass opens the store. Each test ends with shares that add up."""
