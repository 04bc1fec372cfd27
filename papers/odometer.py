"""An odometer: a bound on the privacy loss *so far* that holds whenever it is read.

A filter makes a guarantee about its whole limit. Reporting the epsilon of the rho spent so far instead,
`epsilon_tight(spent, delta)`, is not covered by a theorem. An analyst may stop because of an answer, at the
most revealing moment: with delta = 1e-6 the true delta is then 1.46 times that after 400 steps, and 2.8 times after
2,000 (tests/papers/test_odometer.py computes it). Whitehouse, Ramdas, Rogers & Wu 2023 give odometers
that bound the privacy loss by time-uniform martingale inequalities. This one is simpler, keeps the tight conversion,
and rests on nothing but the filter theorem: a union over filters at the fixed levels rho* / 2^i, i = 0..n-1.

Theorem. Let rho*, delta_lost* and delta be fixed in advance, with n levels. Let steps be chosen adaptively, step j
delta_j-approximately rho_j-zCDP given the answers before it, where rho_j and delta_j may depend on those; steps that
would exceed the limits are refused; the analyst stops by any rule that looks at the answers and at the odometer. At
that time let R be the reported epsilon: the tight conversion of the lowest level not below the rho spent, at delta/n,
and 0 if no rho was spent; let D be the sum of the delta_j spent, plus delta. Then, for neighbouring tables with
distributions P and Q of all answers, all events S and all numbers e and d that do not depend on the data, P(S and R
<= e and D <= d) <= exp(e) Q(S) + d.

Proof. First let all delta_j be 0. Let I be the level that is reported and B_i the event S and I = i. On B_i the rho
spent never passed level i, so B_i is an event of the run that is stopped by the filter of level i. That run is rho_i-
zCDP (the filter theorem), hence (epsilon_i, delta/n)-DP: P(B_i) <= exp(epsilon_i) Q(B_i) + delta/n. Where no rho was
spent P and Q agree. The B_i are disjoint; summing over those with epsilon_i <= e gives the claim, and more: P(S) <=
E_Q[exp(R); S] + delta. Now let mass be lost. By definition P = (1 - delta_j) P' + delta_j P'' in each step, and Q
correspondingly, with P' and Q' within rho_j-zCDP. Of a run, keep the part where no step drew its P'' (or Q''): under
both distributions it is the zCDP distribution times the same factor, the product of the 1 - delta_j.
So P_kept(B) - exp(epsilon_i) Q_kept(B) is at most the delta of the zCDP distributions, as before, and Q_kept <= Q.
What P loses on D <= d is at most the expected sum of the delta_j up to the last step that keeps it within d - delta:
at most d - delta. QED

The factor 2 between levels costs up to sqrt(2) in small epsilons, and n levels add ln(n) to ln(1 / delta).
A step whose cost depends on its own outcome (pay-what-you-get) is a sequence of steps: spend for each peel before it
runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from discreet.accounting.bounds import demand
from discreet.accounting.convert import epsilon_tight
from discreet.accounting.privacy_filter import PrivacyFilter
from discreet.values import Cost, float_above, float_below

LEVELS = 20
"""The default number of levels: the lowest level is about a millionth of the limit (2^-19)."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The guarantee of all answers so far.

    Args:
        epsilon: rounded up; 0 if no rho was spent.
        delta: rounded up; the mass lost so far plus the odometer's own delta.
        rho: rho spent so far, rounded up.
    """

    epsilon: float
    delta: float
    rho: float


class Odometer(PrivacyFilter):
    """A privacy filter that can be read at any time.

    Args:
        limit: the limit of the filter, fixed in advance.
        delta: failure probability of all readings together, on top of lost mass; above 0, below 1.
        levels: the number of levels, from 1 to 64; with 1 every reading is the guarantee of the filter.

    Raises:
        InputError: a value outside its range.
    """

    def __init__(self, limit: Cost, delta: Fraction, levels: int = LEVELS) -> None:
        demand(0 < delta < 1, "delta", "above 0 and below 1", delta)
        demand(1 <= levels <= 64, "levels", "from 1 to 64", levels)
        super().__init__(limit)
        self._delta = Fraction(delta)
        share = float_below(self._delta / levels)
        rhos = [limit.rho / 2**i for i in reversed(range(levels))]
        self._levels = [(rho, epsilon_tight(float_above(rho), share)) for rho in rhos]

    def reading(self) -> Reading:
        """Return the guarantee of all answers so far; it holds even if the answers decide when it is read."""
        spent = self.spent
        epsilon = 0.0 if spent.rho == 0 else next(epsilon for rho, epsilon in self._levels if rho >= spent.rho)
        return Reading(epsilon, float_above(spent.delta + self._delta), float_above(spent.rho))
