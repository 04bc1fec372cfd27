"""A suite for stores whose budgets are split over data centres (`ShareStore`). Needs pytest.

class TestMyShares(ShareStoreSuite):
    @contextlib.contextmanager
    def opened(self, clock):
        store = MyStore.empty(clock)
        yield store
        store.close()
"""

from tests.budget.share_suite.anything import AnythingSuite
from tests.budget.share_suite.moving import MovingSuite
from tests.budget.share_suite.officers import OfficersSuite
from tests.budget.share_suite.periods import PeriodsSuite

__all__ = ["ShareStoreSuite"]


class ShareStoreSuite(MovingSuite, PeriodsSuite, OfficersSuite, AnythingSuite):
    """Tests every store has to pass; a subclass says how one is opened. Each ends with shares that add up."""
