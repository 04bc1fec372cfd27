"""The two-round release and its switch: queries, caps, costs, intervals, and extreme tables."""

from __future__ import annotations

import math
import tracemalloc
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from discreet.accounting.convert import limit_for
from discreet.errors import InputError
from discreet.mechanisms import Request, auto
from discreet.mechanisms.auto import Auto
from discreet.mechanisms.light import Cap
from discreet.mechanisms.two_round import COST_UNIT, TwoRound, _clipping_loss, believable, continued, with_likely_tail
from discreet.noise import KeyedBits
from discreet.testing.pairs import ArrayPairs, gathered, in_batches, weights
from discreet.values import MAX_ITEM_COST, WEIGHT_UNIT, Cost, Sensitivity

REQUEST = Request(None, 1000)
DELTA = Fraction(1, 10**8)
LIMIT = Cost(Fraction(1, 5), DELTA)


class CountingPairs(ArrayPairs):
    """Pairs that count queries."""

    def __init__(self, users, items, **options):
        super().__init__(users, items, **options)
        self.queries = []

    def __getattribute__(self, name):
        if name in ("users_by_size", "weighted_sums", "users_by_scale", "clipped_sums"):
            self.queries.append(name)
        return super().__getattribute__(name)


def bits(run=0):
    """Return bits that follow from *run*."""
    return KeyedBits(b"a secret for two rounds of noise", run)


def zipf_rows(users=3000, items=200, seed=0):
    """Return users with few items, more of the popular ones."""
    rng = np.random.default_rng(seed)
    sizes = rng.geometric(0.25, users)
    chosen = np.floor(items * rng.random(sizes.sum()) ** 3).astype(np.int64)
    return np.repeat(np.arange(users), sizes), chosen


def shown(outcome):
    """Return all of an outcome that can be compared."""
    return (
        outcome.positions.tolist(),
        *(None if a is None else a.tolist() for a in (outcome.counts, outcome.std_errors, outcome.low, outcome.high)),
        outcome.cost,
        outcome.chosen,
    )


def test_every_run_makes_the_same_queries():
    """Theorem 1 needs all steps: without large items the queries are the same, even of an empty table."""
    asked = {
        tuple(pairs.queries)
        for pairs in (CountingPairs([], []), CountingPairs([1], [0]), CountingPairs(*zipf_rows(60)))
        if TwoRound.within_cost(LIMIT, REQUEST).release(pairs, bits())
    }
    assert asked == {("users_by_size", "weighted_sums", *["users_by_scale"] * 3, "clipped_sums")}


class Divided(ArrayPairs):
    """Pairs whose sums come in batches of seven."""

    def weighted_sums(self, limit):
        yield from in_batches(gathered(super().weighted_sums(limit)), 7)

    def capped_sums(self, cap):
        yield from in_batches(gathered(super().capped_sums(cap)), 7)


def one_item_each():
    """Return users with one item each, more of the popular ones."""
    rng = np.random.default_rng(4)
    return np.arange(60_000), np.floor(400 * rng.random(60_000) ** 3).astype(np.int64)


@pytest.mark.parametrize(
    ("rows", "k", "chosen"),
    [
        (zipf_rows(9000), None, "two-round"),
        (zipf_rows(9000), 30, "two-round"),
        ((np.repeat(np.arange(150), 300), np.tile(np.arange(300), 150)), None, "head"),
        (one_item_each(), None, "light"),
        (one_item_each(), 30, "light"),
    ],
)
def test_sums_in_batches_have_the_release_of_one_array(rows, k, chosen):
    """Noise is that of the items' numbers, and what is kept of a batch decides nothing."""
    mechanism = Auto.at_epsilon(Fraction(2), DELTA, replace(REQUEST, k=k))
    one, other = (mechanism.release(kind(*rows), bits()) for kind in (ArrayPairs, Divided))
    assert one.chosen == chosen
    assert len(one.positions)
    assert shown(one) == shown(other)


class Endless(ArrayPairs):
    """Pairs of a few items that pass for a million, of which no more than a batch exists at a time."""

    def count_items(self):
        return 1_000_000

    def weighted_sums(self, limit):  # noqa: ARG002 - the protocol's
        return (np.zeros(1000, dtype=np.int64) for _ in range(1000))

    capped_sums = weighted_sums


@pytest.mark.parametrize("step", ["two rounds", "head", "light"])
def test_memory_is_a_batch_and_the_candidates(step, monkeypatch):
    """One array of all items would take 8 MB."""
    monkeypatch.setattr("discreet.noise.rounded._BLOCK", 1000)
    pairs, mechanism = Endless([1], [0]), Auto.at_epsilon(Fraction(2), DELTA, REQUEST)
    run = {
        "two rounds": lambda: mechanism.two_round._first_round(
            mechanism.two_round.measure_sizes(pairs, bits()), pairs, bits(1)
        ),
        "head": lambda: auto._largest_counts(pairs, 1000),
        "light": lambda: mechanism.light.release(Cap(1, 1.0, 0.0, 0.0), pairs, bits()),
    }[step]
    run()
    tracemalloc.start()
    try:
        run()
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("error", [Fraction(1, 20), Fraction(1, 4), Fraction(3, 4)])
def test_no_item_of_a_later_step_was_dropped_in_the_first_round(error):
    """The release is that of a first round which keeps all items."""
    mechanism, least = TwoRound.at_epsilon(Fraction(2), DELTA, replace(REQUEST, relative_error=error)), TwoRound._least
    pairs = ArrayPairs(*zipf_rows(3000, 2000))
    for run in range(20):
        steps = iter([-math.inf])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TwoRound, "_least", lambda self, *given, steps=steps: next(steps, least(self, *given)))
            expected = shown(mechanism.release(pairs, bits(run)))
        assert shown(mechanism.release(pairs, bits(run))) == expected


@pytest.mark.parametrize("rows", [([], []), ([1], [0]), ([1, 2], [0, 0])])
def test_tiny_tables_release_nothing_and_cost_the_same(rows):
    """No row decides about the cost, and no item of two users is released."""
    mechanism = TwoRound.within_cost(LIMIT, REQUEST)
    outcome = mechanism.release(ArrayPairs(*rows), bits())
    assert len(outcome.positions) == 0
    assert outcome.cost == mechanism.worst_cost()


def test_the_order_of_rows_and_repeated_rows_change_nothing():
    """A release depends on the set of pairs."""
    users, items = zipf_rows()
    shuffled = np.random.default_rng(1).permutation(np.arange(len(users)).repeat(2))
    mechanism = Auto.at_epsilon(Fraction(4), DELTA, REQUEST)
    one = mechanism.release(ArrayPairs(users, items), bits())
    other = mechanism.release(ArrayPairs(users[shuffled], items[shuffled]), bits())
    assert len(one.positions) > 10
    assert shown(one) == shown(other)


def test_users_with_too_many_items_are_left_out():
    """The verification counts on at most K items per user; one with K + 1 counts as absent, one with K does not."""
    rows = ([1, 1, 1, 2, 2], [0, 1, 2, 0, 1])
    assert ArrayPairs(*rows, largest_basket=2).counts.tolist() == [1, 1]
    assert ArrayPairs(*rows, largest_basket=3).counts.tolist() == [2, 2, 1]


def test_first_round_weights_stay_within_the_limit_for_every_number_of_items():
    """Squared weights of n items add up to (W limit)^2 at most, in integers, whatever the root is rounded to."""
    n = np.arange(1, 10**6 + 1, dtype=np.int64)
    for limit in (0.3, 1.0, 2.0**0.5, 7.3, 1000 / 3):
        assert (weights(limit / np.sqrt(n)) ** 2 * n <= int(WEIGHT_UNIT**2 * Fraction(limit) ** 2)).all()


def test_second_round_weights_stay_within_the_bound():
    """Costs times weight^2 add up to W^2 bound at most, in exact integers, up to the largest costs there are."""
    rng = np.random.default_rng(5)
    for bound in (1, 10**6, 2**40 // 7, 2**53):
        costs = np.concatenate([rng.integers(1, 2**43, 2000), 2 ** np.arange(63), [MAX_ITEM_COST]])
        share = weights(np.sqrt(bound / costs)).tolist()
        assert all(w * w * cost <= WEIGHT_UNIT**2 * bound for w, cost in zip(share, costs.tolist(), strict=True))


@pytest.mark.parametrize("epsilon", [Fraction(1, 1000), Fraction(1, 2), Fraction(4), Fraction(60)])
def test_the_steps_cost_mu_squared_together(epsilon):
    """Four histograms and two rounds: not a unit more than mu^2."""
    mechanism = TwoRound.at_epsilon(epsilon, DELTA, REQUEST)
    steps = mechanism.budget
    total = mechanism.mu**2 * COST_UNIT
    assert total - 1 < 3 * steps.histogram + steps.rest + steps.first + steps.second <= total


def test_the_published_mu_and_evidence():
    """Reference values of the exact curve at delta = 5e-9, of which a thousandth is for own items, and of 2 K Q(z)."""
    for epsilon, mu in ((0.5, 0.098879), (1, 0.191499), (2, 0.368747), (4, 0.702285), (8, 1.312594)):
        mechanism = TwoRound.at_epsilon(Fraction(epsilon), DELTA / 2, REQUEST)
        assert float(mechanism.mu) == pytest.approx(mu, abs=6e-7)
        assert mechanism._evidence() == pytest.approx(8.653371, abs=1e-6)


def test_a_release_alone_has_the_requested_epsilon_and_less_noise_than_in_a_shared_budget():
    """Theorem 1's exact curve applies to a single release."""
    alone = TwoRound.at_epsilon(Fraction(1), DELTA, REQUEST)
    assert alone.direct_epsilon() == 1
    assert alone.worst_cost().delta == DELTA
    shared = TwoRound.within_cost(Cost(Fraction(164684, 10**7), DELTA / 2), REQUEST)  # rho for (1, 5e-9)
    assert shared.direct_epsilon() is None
    assert shared.worst_cost().within(Cost(Fraction(164684, 10**7), DELTA / 2))
    assert 1.05 < alone.mu**2 / shared.mu**2 < 1.25


@pytest.mark.statistical
def test_counts_are_near_and_intervals_cover():
    """On a table of 4,000 users; the shares are those that docs/accuracy.md promises of every table."""
    pairs = ArrayPairs(*zipf_rows(20_000))
    mechanism = TwoRound.at_epsilon(Fraction(4), DELTA, REQUEST)
    found, near, covered = 0, 0, 0
    for run in range(10):
        outcome = mechanism.release(pairs, bits(run))
        truth = pairs.counts[outcome.positions]
        found += len(truth)
        near += int((abs(outcome.counts - truth) <= truth / 10).sum())
        covered += int(((outcome.low <= truth) & (truth <= outcome.high)).sum())
        assert (np.diff(outcome.counts) <= 0).all()
    assert found > 300
    assert near > 0.9 * found
    assert covered > 0.94 * found


def test_a_larger_relative_error_releases_more():
    """The relative error scales the noise, not only the filter."""
    pairs = ArrayPairs(*zipf_rows(20_000))
    few, more = (
        TwoRound.at_epsilon(Fraction(2), DELTA, Request(None, 1000, relative_error=error)).release(pairs, bits())
        for error in (Fraction(1, 20), Fraction(1, 5))
    )
    assert len(few.positions) < len(more.positions)


def test_labels_alone_are_the_labels_of_the_counts():
    """Without counts the same items come in the same order."""
    pairs = ArrayPairs(*zipf_rows(20_000))
    with_counts, without = (
        TwoRound.within_cost(LIMIT, Request(None, 1000, counts=counts)).release(pairs, bits())
        for counts in (True, False)
    )
    assert with_counts.positions.tolist() == without.positions.tolist()
    assert without.counts is None


def test_a_top_k_has_the_largest_verified_items():
    """In order, at the same price, and complete if k items are verified."""
    pairs = ArrayPairs(*zipf_rows(20_000))
    everything = TwoRound.within_cost(LIMIT, Request(None, 1000)).release(pairs, bits())
    top = TwoRound.within_cost(LIMIT, Request(8, 1000)).release(pairs, bits())
    assert top.positions.tolist() == everything.positions[:8].tolist()
    assert (top.complete, top.cost) == (True, everything.cost)
    more = TwoRound.within_cost(LIMIT, Request(1000, 1000)).release(pairs, bits())
    assert not more.complete
    assert set(everything.positions.tolist()) <= set(more.positions.tolist())


@pytest.mark.parametrize(
    "request_",
    [
        Request(None, 1000, known_domain=True),
        Request(None, 1000, Sensitivity(5)),
        Request(None, 1000, Sensitivity(None, 2)),
        Request(None, 1000, noise="laplace"),
        Request(None, 1000, relative_error=Fraction(0)),
    ],
)
def test_unsupported_requests_are_refused_before_data_is_read(request_):
    """Nothing is read for an unsupported request."""
    with pytest.raises(InputError):
        TwoRound.within_cost(LIMIT, request_)
    with pytest.raises(InputError):
        Auto.within_cost(LIMIT, request_)


def test_an_epsilon_that_is_too_small_is_refused():
    """The shares of the budget must be distinguishable."""
    with pytest.raises(InputError, match="too small"):
        TwoRound.at_epsilon(Fraction(1, 10**6), DELTA, REQUEST).expectation()


def test_noise_in_far_bins_is_not_taken_for_users():
    """A sparse histogram is unchanged, and a distant bin counts only if it is far above its noise."""
    noisy = np.array([500.0, 900.0, 300.0, 80.0, 9.0, -5.0, 12.0, -3.0, 11.0])
    result = believable(noisy, 6.0, 4.0)
    assert result[:4].tolist() == noisy[:4].tolist()
    assert result[5:].tolist() == [0, 0, 0, 0]
    assert believable(np.array([5.0, -3.0, 8.0]), 6.0, 4.0).tolist() == [0, 0, 0]


def test_a_bin_that_no_falling_fit_explains_counts_as_it_was_measured():
    """Five standard errors above the fit, whether that is 0 or not; not less, and the other bins stay."""
    for far, counted in ((60.0, 60), (30.0, 30), (29.0, 0)):
        assert believable(np.array([500.0, 0.0, 0.0, 0.0, 0.0, far]), 6.0, 4.0)[5] == counted
    noisy = np.array([900.0, 3.0, -7.0, 0.0, 200.0, 40.0])
    fit = believable(noisy, 6.0, 4.0)
    assert fit[[0, 4]].tolist() == [900, 200]
    assert 0 < fit[5] < 100
    assert continued(noisy, 6.0, 4.0, 1.0)[:5].tolist() == fit[:5].tolist()


@pytest.mark.parametrize(
    ("beyond", "tail"),
    [
        ([10, -5, 3], [10 * 40 - 5 * 9 + 3 * 1.35, 40**2 + 9**2 + 1.35**2]),
        ([79, 20, 0], [1, 1]),
        ([-30, -5, 3], [0, 1]),
    ],
)
def test_the_likely_tail_is_the_one_that_fits_the_bins_best(beyond, tail):
    """By least squares: of 2 standard errors, then by 400 over 3 of them less in each bin; whole at most, or none."""
    noisy = np.array([1000.0, 400.0, *beyond])
    share = tail[0] / tail[1]
    expected = [1000, 400, *(share * np.array([max(beyond[0], 40.0), 9.0, 1.35]))]
    assert with_likely_tail(noisy, 20.0, 4.0).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("epsilon", [0.5, 1, 2, 4, 8])
def test_one_item_at_the_least_noise_never_costs_more_than_a_user_may(epsilon):
    """Otherwise rounding marks users of one item as clipped, and all counts get a correction that is not needed."""
    mechanism = TwoRound.at_epsilon(Fraction(epsilon), DELTA, REQUEST)
    least = np.sqrt(np.array([COST_UNIT / mechanism.budget.second]))
    assert mechanism._precisions(least, mechanism.budget.second).max() <= mechanism.budget.second


def test_noise_is_widened_until_clipping_takes_no_more_than_allowed():
    """A user at v times the limit loses 1 - f/v of every item once noise is f times as wide; f is at most 2."""
    users = np.zeros(26)
    users[16] = 1000  # just below the limit
    assert _clipping_loss(users, users, users, 0, 0.05) == (1.0, 0.0, 0.0, 0.0, 0.0)
    users[18] = 40  # about 1.7 times above it
    assert _clipping_loss(users, users, users, 0, 0.3)[0] == 1.0
    wider, mean, spread, most, _ = _clipping_loss(users, users, users, 0, 0.05)
    assert spread == most
    assert 1 < wider < 2
    assert 0.045 < spread <= 0.05
    assert mean < spread
    users[25] = 1000
    assert _clipping_loss(users, users, users, 0, 0.1)[0] == 2.0


def test_a_bin_on_the_edge_does_not_halve_the_counts():
    """Noise is widened in proportion to what a bin has beyond 4 standard errors, and in full from 8 on."""
    noisy = np.array([900.0, 300.0, 0.0, 0.0, 0.0])
    counted = []
    for users in (23.9, 24.1, 36.0, 48.0, 60.0):  # with a standard error of 6
        noisy[2] = users
        assert believable(noisy, 6.0, 4.0, 8.0)[:2].tolist() == [900, 300]
        counted.append(believable(noisy, 6.0, 4.0, 8.0)[2])
    assert counted == pytest.approx([0, 24.1 * 0.1 / 24, 18, 48, 60])
    users, sure = np.zeros(26), np.zeros(26)
    users[[16, 18]] = sure[[16, 18]] = [1000, 40]
    sure[18] = 5
    wide, corrected, *_, most, beyond = _clipping_loss(users, users, users, 0, 0.05)
    narrow, mean, spread, more, none = _clipping_loss(sure, users, users, 0, 0.05)
    assert narrow < wide
    assert mean > corrected  # what is corrected, and upper ends, include all users of the bin
    assert more > max(most, spread)
    assert beyond == none == 0


def test_users_above_the_limit_that_noise_hides_are_in_the_interval():
    """The root mean square loss with 60 users more in the first bin above the limit; what is released is the same."""
    users = np.zeros(26)
    users[16] = 1000
    *shown, most, _ = _clipping_loss(users, users, users, 60, 0.05)
    users[17] = 60
    *_, spread, _, _ = _clipping_loss(users, users, users, 0, 1.0)
    assert shown == [1.0, 0.0, 0.0]
    assert spread < most < 1.1 * spread


class TestAuto:
    """The choice between two rounds and the head."""

    many = ArrayPairs(*zipf_rows(20_000))
    few = ArrayPairs(np.repeat(np.arange(150), 300), np.tile(np.arange(300), 150))

    @pytest.mark.parametrize(("pairs", "chosen"), [(many, "two-round"), (few, "head")])
    def test_a_plan_reports_its_choice_and_the_reason(self, pairs, chosen):
        """From noisy values: how many users there are, and the noise of the first round."""
        outcome = Auto.at_epsilon(Fraction(2), DELTA, REQUEST).release(pairs, bits())
        assert outcome.chosen == chosen
        assert outcome.why.startswith("many users" if chosen == "two-round" else "few users")

    @pytest.mark.parametrize("pairs", [many, few])
    def test_it_costs_the_histogram_and_the_branch(self, pairs):
        """Reserved is the larger branch; charged is the histogram and what ran."""
        mechanism = Auto.within_cost(LIMIT, REQUEST)
        outcome = mechanism.release(pairs, bits())
        assert mechanism.worst_cost().within(LIMIT)
        assert outcome.cost.within(mechanism.worst_cost())
        if outcome.chosen == "two-round":
            number = int(mechanism.two_round.mu**2 * COST_UNIT / 499)
            assert outcome.cost == mechanism.two_round.worst_cost() + Cost(Fraction(number, 2 * COST_UNIT))
        else:
            assert outcome.cost.rho > mechanism.two_round.budget.histogram / Fraction(2 * COST_UNIT)

    def test_the_head_is_read_after_the_histogram_only_if_it_is_chosen(self):
        """Queries: the histogram, then one for all counts."""
        pairs = CountingPairs(np.repeat(np.arange(150), 300), np.tile(np.arange(300), 150))
        Auto.at_epsilon(Fraction(2), DELTA, REQUEST).release(pairs, bits())
        assert pairs.queries == ["users_by_size", "weighted_sums"]

    @pytest.mark.parametrize("epsilon", [Fraction(1, 2), 1, 2, 4, 8])
    def test_alone_both_branches_get_nearly_all_that_each_would_have_by_itself(self, epsilon):
        """Theorem 2 pays for the worse branch, not for the sum of both."""
        mechanism = Auto.at_epsilon(Fraction(epsilon), DELTA, REQUEST)
        assert mechanism.direct_epsilon() == epsilon
        assert 0.9975 < mechanism.two_round.mu / TwoRound.at_epsilon(Fraction(epsilon), DELTA, REQUEST).mu < 0.999
        assert 1.005 < mechanism.head.limit.rho / limit_for(epsilon, DELTA).rho < 1.021

    @pytest.mark.parametrize(("epsilon", "chosen"), [(8, "unknown-gumbel"), (Fraction(1, 2), "two-round")])
    def test_top_k_uses_a_race_where_its_counts_are_far_above_the_rest(self, epsilon, chosen):
        """A race is complete and its counts are precise, so it is taken where count k is far above the cut-off."""
        mechanism = Auto.at_epsilon(Fraction(epsilon), DELTA, Request(20, 1000))
        outcome = mechanism.release(self.many, bits())
        assert outcome.chosen == chosen
        assert outcome.cost.within(mechanism.worst_cost())
        if chosen == "unknown-gumbel":
            assert outcome.complete
            assert outcome.cost.rho > mechanism.race.worst_cost().rho
            truth = np.sort(self.many.counts)[::-1][:20]
            assert abs(outcome.counts - truth).max() < 5 * outcome.std_errors.max()

    def test_the_gap_is_paid_for_within_the_limit(self):
        """Histogram, gap and either branch together are within the limit."""
        mechanism = Auto.within_cost(LIMIT, Request(20, 1000))
        assert mechanism.worst_cost().within(LIMIT)
        assert mechanism.worst_cost().rho > mechanism.two_round.worst_cost().rho
        assert mechanism.worst_cost().rho > LIMIT.rho * Fraction(999, 1000)
