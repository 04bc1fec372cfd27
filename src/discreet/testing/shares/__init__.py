"""A suite for stores whose budgets are split over data centres (`discreet.budget.holdings.ShareStore`). Needs pytest.

class TestMyShares(ShareStoreSuite):
    @contextlib.contextmanager
    def opened(self, clock):
        store = MyStore.empty(clock)
        yield store
        store.close()
"""

from discreet.testing.shares.anything import AnythingSuite
from discreet.testing.shares.moving import MovingSuite
from discreet.testing.shares.officers import OfficersSuite
from discreet.testing.shares.periods import PeriodsSuite
from discreet.testing.shares.world import SplitStore

__all__ = ["ShareStoreSuite", "SplitStore"]


class ShareStoreSuite(MovingSuite, PeriodsSuite, OfficersSuite, AnythingSuite):
    """Tests every store has to pass; a subclass says how one is opened. Each ends with shares that add up."""
