"""The pipeline with an in-memory budget: what is charged in every case, and the order of steps."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import hmac
import math
import re
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from discreet.budget import Budget
from discreet.engines.base import RequestQueue
from discreet.errors import (
    BudgetExceeded,
    EngineError,
    EngineTimeout,
    EngineUnreachable,
    InexactHead,
    InputError,
    InvariantViolated,
    UnfitData,
)
from discreet.mechanisms import UnknownGumbel
from discreet.noise import KeyedBits, encode
from discreet.query.planning import make_plan
from discreet.query.sql import parse_where
from discreet.release import answer, keys
from discreet.release.answer import default_delta
from discreet.release.keys import RecordedPairs, _lossless, fingerprint
from discreet.testing.pairs import ArrayPairs, gathered, in_batches
from discreet.values import Cost, ExactHead, Sensitivity
from tests.queries import query_of

from .builders import TinyEngine


def _bits(context="answer"):
    return KeyedBits(bytes(range(32)), context)


def _plan(k=3, **parts):
    return make_plan(query_of("user", ("item",), 4.0, Fraction(1, 10**9), k=k, **parts), shared_budget=True)


def _replaced(plan, release):
    """Return *plan* with a mechanism whose release is *release*."""

    class Replaced(UnknownGumbel):
        pass

    Replaced.release = release
    fields = {field.name: getattr(plan.mechanism, field.name) for field in dataclasses.fields(plan.mechanism)}
    return dataclasses.replace(plan, mechanism=Replaced(**fields))


def test_the_worst_case_is_held_while_data_is_read_and_the_cost_is_charged_after():
    """Pay what you get: two items of five are above the threshold, so two peels and counts of five are charged."""
    budget, plan = Budget(5, 1e-8), _plan(k=5)
    held = []
    engine = TinyEngine((10_000, 9_000, 1, 1), before=lambda: held.append((budget.held, budget.spent)))
    release = answer(plan, engine, budget, _bits())
    assert held == [(plan.worst_cost, Cost())]
    assert len(release) == 2
    peel = plan.mechanism.epsilon**2 / 8
    assert budget.spent == release.charged == Cost(5 * peel, plan.worst_cost.delta)
    assert budget.held == Cost()
    assert release.charged.rho < plan.worst_cost.rho


@pytest.mark.parametrize("error", [InputError("no"), EngineUnreachable("no")], ids=repr)
def test_a_request_that_fails_its_check_costs_nothing(error):
    """I3: nothing was sent, so no row can have caused the failure; the error is raised unchanged."""
    budget = Budget(5, 1e-8)
    with pytest.raises(type(error)) as raised:
        answer(_plan(), TinyEngine(error=error), budget, _bits())
    assert raised.value is error
    assert (budget.spent, budget.held) == (Cost(), Cost())


@pytest.mark.parametrize(
    "error",
    [
        EngineError("no"),
        EngineTimeout("no"),
        InputError("no"),
        EngineUnreachable("no"),
        UnfitData("no"),
        InexactHead("no"),
        KeyboardInterrupt(),
        RuntimeError("no"),
    ],
    ids=repr,
)
def test_an_engine_failure_costs_the_worst_case(error):
    """I3: a failure that a row may have caused is never refunded, Ctrl-C included: refunds would reveal rows."""

    def fails():
        raise error

    budget, plan = Budget(5, 1e-8), _plan()
    with pytest.raises(type(error)) as raised:
        answer(plan, TinyEngine(before=fails), budget, _bits())
    assert raised.value is error
    assert (budget.spent, budget.held) == (plan.worst_cost, Cost())


@pytest.mark.parametrize(
    "error", [InvariantViolated("no"), InputError("no"), KeyboardInterrupt(), MemoryError()], ids=repr
)
def test_a_mechanism_failure_costs_the_worst_case(error):
    """The head was read, and the result may have been observed."""

    def fails(*_):
        raise error

    budget, plan = Budget(5, 1e-8), _plan()
    with pytest.raises(type(error)) as raised:
        answer(_replaced(plan, fails), TinyEngine(), budget, _bits())
    assert raised.value is error
    assert (budget.spent, budget.held) == (plan.worst_cost, Cost())


def test_a_mechanism_that_costs_more_than_its_worst_case_is_stopped():
    """The cost is compared with the worst case again at the end; the answer is dropped and the hold stays."""

    def dearer(self, head, bits):
        outcome = UnknownGumbel.release(self, head, bits)
        return dataclasses.replace(outcome, cost=self.worst_cost() + Cost(Fraction(1, 10**18)))

    budget, plan = Budget(5, 1e-8), _plan()
    with pytest.raises(InvariantViolated):
        answer(_replaced(plan, dearer), TinyEngine(), budget, _bits())
    assert budget.held + budget.spent == plan.worst_cost


def test_an_insufficient_budget_is_refused_before_data_is_read():
    """No query is sent, no bit is drawn, and nothing is charged."""
    budget, engine, bits = Budget(1, 1e-8), TinyEngine(), _bits()
    with pytest.raises(BudgetExceeded):
        answer(_plan(), engine, budget, bits)
    assert engine.requests == []
    assert (budget.spent, budget.held) == (Cost(), Cost())
    bits.uint64("race", 1)
    bits.uint64("groups", 1)


def test_without_a_budget_the_guarantee_is_the_plans_own():
    """Nothing is held, and everything else is the same."""
    alone = answer(_plan(), TinyEngine(), None, _bits())
    shared = answer(_plan(), TinyEngine(), Budget(5, 1e-8), _bits())
    assert alone.to_dict() == shared.to_dict()
    assert alone.guarantee == _plan().guarantee


def test_the_engine_gets_the_plans_request_and_the_callers_progress():
    """The seed of 256 bits is sent only if users are bounded, and differs for other bits."""
    engine, progress = TinyEngine(), [].append
    plans = [_plan(), _plan(sensitivity=Sensitivity(2)), _plan(sensitivity=Sensitivity(2))]
    for n, plan in enumerate(plans):
        answer(plan, engine, None, _bits(n), progress=progress)
    assert [request for request, _, _ in engine.requests] == [plan.request for plan in plans]
    assert all(given is progress for _, _, given in engine.requests)
    seeds = [seed for _, seed, _ in engine.requests]
    assert [len(seed) for seed in seeds] == [0, 32, 32]
    assert seeds[1:] == [_bits(n).uint64("groups", 4).tobytes() for n in (1, 2)]
    assert seeds[1] != seeds[2]


def test_the_same_bits_give_the_same_release():
    """Equal bits give equal bytes, and other bits another release."""
    releases = [answer(_plan(), TinyEngine(), None, _bits(context)).to_json() for context in ("a", "a", "b")]
    assert releases[0] == releases[1] != releases[2]


@pytest.mark.parametrize("computational", [False, True])
def test_keyed_noise_is_called_computational(computational):
    """The guarantee, its sentence and the exports say that the privacy of keyed noise is computational."""
    release = answer(_plan(), TinyEngine(), None, _bits(), computational=computational)
    assert release.guarantee == dataclasses.replace(_plan().guarantee, computational=computational)
    assert release.to_dict()["privacy"]["computational"] is computational
    assert ("computational differential privacy" in str(release.guarantee)) == computational


def test_labels_keep_their_counts():
    """With large gaps and little noise the release equals the head."""
    release = answer(_plan(k=3), TinyEngine((90_000, 60_000, 30_000, 2)), None, _bits())
    assert release.labels.column("item").to_pylist() == ["label-0", "label-1", "label-2"]
    assert [round(int(count), -3) for count in release.counts] == [90_000, 60_000, 30_000]
    assert (release.complete, release.ordered) == (True, True)


@pytest.mark.parametrize(
    ("counts", "error"),
    [((1000, 777_777), InvariantViolated), ((2**62 + 777_777,), UnfitData), ((777_777,) * 5000, InvariantViolated)],
)
def test_messages_about_a_wrong_head_hold_no_data(counts, error):
    """Messages do not quote what the engine returned, and the query is charged."""
    budget, plan = Budget(5, 1e-8), _plan()
    with pytest.raises(error) as raised:
        answer(plan, TinyEngine(counts, whole=True), budget, _bits())
    assert not re.search("label|777", str(raised.value) + repr(raised.value))
    assert (budget.spent, budget.held) == (plan.worst_cost, Cost())


class PairsEngine(TinyEngine):
    """An engine with pair queries on an array, which may fail at one of them."""

    has_pairs = True
    has_capped_sums = True

    def __init__(self, error=None, failing="clipped_sums", counts=(4000, 4000, 4000)):
        super().__init__(counts, error if failing == "head" else None)
        self.pair_error = error
        self.failing, self.closed = failing, False

    @contextlib.contextmanager
    def pairs(self, request, *, progress=None):
        """Return the pairs of 4,000 users who all have the first items."""
        self.requests.append((request, progress))
        table = pa.table({"item": [f"label-{n}" for n in range(6)]})
        users = np.arange(4000)
        pairs = ArrayPairs(np.tile(users, 3), np.repeat([0, 1, 5], 4000), table)
        if self.pair_error is not None and self.failing != "head":
            setattr(pairs, self.failing, self._fail)
        try:
            yield pairs
        finally:
            self.closed = True

    def _fail(self, *_):
        raise self.pair_error


class RecordingBudget(Budget):
    """A budget that keeps what it settled, and whose store may fail when a query ends."""

    is_broken = False
    settled = ()

    def settle(self, hold, cost, result, fingerprint=None):
        """Keep the result and its fingerprint."""
        self.settled = (result, fingerprint)
        return super().settle(hold, cost, result, fingerprint)

    def void(self, hold):
        """Free the hold, or fail."""
        if self.is_broken:
            raise BudgetExceeded("the store is gone")
        super().void(hold)

    def forfeit(self, hold):
        """Charge the hold, or fail."""
        if self.is_broken:
            raise BudgetExceeded("the store is gone")
        super().forfeit(hold)


@pytest.mark.parametrize("part", ["check", "head"])
def test_an_error_is_not_replaced_by_that_of_a_store_that_fails_after_it(part, monkeypatch):
    """The hold then ends with its lease."""
    engine, budget = TinyEngine(), RecordingBudget(5, 1e-8)
    budget.is_broken = True

    def fail(*_, **__):
        raise UnfitData("of the engine")

    monkeypatch.setattr(engine, part, fail)
    with pytest.raises(UnfitData, match="of the engine"):
        answer(_plan(), engine, budget, _bits())


def test_each_step_has_its_span():
    """In order; a mechanism that reads pairs draws its noise between their queries."""
    seen = []

    @contextlib.contextmanager
    def span(step):
        seen.append(step)
        yield

    answer(_plan(), TinyEngine(), None, _bits(), queue=RequestQueue(), span=span)
    assert seen == ["reserve", "queue", "engine", "reserve", "engine", "noise", "encode", "settle"]
    seen.clear()
    answer(_plan(k=None), PairsEngine(), None, _bits(), span=span)
    assert seen == ["reserve", "engine", "reserve", "engine", "encode", "settle"]


def test_what_is_stored_is_encoded_and_has_the_fingerprint_of_the_data_under_its_key():
    """Of the head or of the pairs; none without a key."""
    key, engine = b"k" * 32, PairsEngine()
    for k in (3, None):
        plan, budget = _plan(k=k), RecordingBudget(20, 1e-7)
        answer(plan, engine, budget, _bits(), encode=lambda release: ("encoded", len(release)))
        assert budget.settled == (("encoded", 3), None)
        answer(plan, engine, budget, _bits(), fingerprint_key=key)
        if k is None:
            with RecordedPairs(engine, plan.request) as recorded:
                recorded.labels(plan.mechanism.release(recorded, _bits()).positions)
            assert budget.settled[1] == recorded.fingerprint(plan, key)
        else:
            assert budget.settled[1] == fingerprint(engine.head(plan.request), plan.request, b"", key)


def test_the_progress_of_pair_queries_begins_at_0():
    """Before any query; the pairs are those of the plan's request."""
    shares, engine = [], PairsEngine()
    answer(_plan(k=None), engine, None, _bits(), progress=shares.append)
    assert [request for request, _ in engine.requests] == [_plan(k=None).request]
    assert shares[0] == 0.0


def test_a_stored_answer_is_returned_and_nothing_is_read():
    """A budget returns it in place of a hold."""
    engine, stored = TinyEngine(), object()
    budget = SimpleNamespace(reserve=lambda _: stored)
    assert answer(_plan(), engine, budget, _bits()) is stored
    assert engine.requests == []


def test_a_query_waits_in_the_queue_until_it_has_been_read():
    """The request is checked in its slot; the slot is free again when the release is encoded."""
    steps, shares, engine = [], [], TinyEngine(before=lambda: steps.append("head"))

    @contextlib.contextmanager
    def slot(progress):
        steps.append(progress)
        yield
        steps.append("left")

    engine.check = steps.append
    progress, queue = shares.append, SimpleNamespace(slot=slot)
    answer(_plan(), engine, None, _bits(), queue=queue, progress=progress, encode=lambda _: steps.append("encoded"))
    assert steps == [progress, _plan().request, "head", "left", "encoded"]


def test_delta_is_by_default_a_hundredth_of_the_budgets():
    """Or the share of it that a small epsilon takes of rho; and 1e-8 for a query alone."""
    budget = Budget(1, Fraction(1, 10**6))
    assert default_delta(None, {}) == "1e-8"
    assert default_delta(budget, {}) == Fraction(1, 10**8)
    assert 0 < default_delta(budget, {"epsilon": 0.01}) < Fraction(1, 10**9)
    with pytest.raises(InputError) as error:
        default_delta(1e-6, {})
    assert str(error.value) == "a budget is a discreet.Budget"


def test_a_query_without_epsilon_takes_the_share_of_delta_of_epsilon_1():
    """The default of epsilon is 1; the budget is so large that this takes less than a hundredth of its delta."""
    budget = Budget(100, Fraction(1, 10**6))
    assert default_delta(budget, {}) == default_delta(budget, {"epsilon": 1}) < default_delta(budget, {"epsilon": 2})
    assert default_delta(budget, {"epsilon": 2}) < Fraction(1, 10**8)


@pytest.mark.parametrize("epsilon", [-1, 0, math.inf, math.nan])
def test_an_epsilon_outside_its_range_is_left_to_planning(epsilon):
    """It has the default of a query alone, so that the error is the same with and without a budget."""
    assert default_delta(Budget(1, Fraction(1, 10**6)), {"epsilon": epsilon}) == "1e-8"


def test_an_epsilon_that_is_no_number_is_refused_by_its_name():
    """With a budget and without."""
    for budget in (None, Budget(1, Fraction(1, 10**6))):
        with pytest.raises(InputError, match=r"^epsilon must be a number, not 'much'$"):
            default_delta(budget, {"epsilon": "much"})


def test_a_release_by_two_rounds_queries_pairs_and_charges_what_it_cost():
    """Labels are those of the released items, and the pairs are closed before the answer is returned."""
    budget, plan, engine = Budget(5, 1e-8), _plan(k=None), PairsEngine()
    release = answer(plan, engine, budget, _bits())
    assert sorted(release.labels.column("item").to_pylist()) == ["label-0", "label-1", "label-5"]
    assert (release.chosen, engine.closed) == ("two-round", True)
    assert budget.spent == release.charged
    assert release.charged.within(plan.worst_cost)


@pytest.mark.parametrize("failing", ["users_by_size", "weighted_sums", "users_by_scale", "clipped_sums", "labels"])
def test_a_failed_pair_query_costs_the_worst_case(failing):
    """I3: rows may decide whether any of the pair queries fails."""
    budget, plan, engine = Budget(5, 1e-8), _plan(k=None), PairsEngine(EngineError("no"), failing)
    with pytest.raises(EngineError):
        answer(plan, engine, budget, _bits())
    assert (budget.spent, engine.closed) == (plan.worst_cost, True)


def test_pairs_that_cannot_be_written_cost_nothing():
    """I3: that is found by an empty table, before the start."""
    budget = Budget(5, 1e-8)
    engine = PairsEngine(EngineError("no"))
    engine.check_pairs = engine._fail
    with pytest.raises(EngineError):
        answer(_plan(k=None), engine, budget, _bits())
    assert (budget.spent, engine.requests) == (Cost(), [])


def test_a_top_whose_counts_stand_out_reads_the_head_and_no_pairs():
    """The race needs the head only; its labels are those of the head's rows."""
    budget, plan = Budget(5, 1e-8), _plan(k=6)
    engine = PairsEngine(EngineError("no"), "pairs", counts=[9000 - 500 * n for n in range(6)] + [3, 2])
    engine.pairs = engine._fail
    release = answer(plan, engine, budget, _bits())
    assert (release.chosen, len(engine.requests)) == ("unknown-gumbel", 1)
    assert sorted(release.labels.column("item").to_pylist()) == [f"label-{n}" for n in range(6)]
    assert budget.spent == release.charged
    assert release.charged.within(plan.worst_cost)


def test_a_top_whose_counts_do_not_stand_out_reads_the_head_and_then_pairs():
    """Labels are those of the pairs, which are closed before the answer is returned."""
    plan, engine = _plan(k=6), PairsEngine()
    release = answer(plan, engine, None, _bits())
    (head, _, _), (pairs, _) = engine.requests
    assert head == pairs == plan.request
    assert (release.chosen, engine.closed) == ("two-round", True)
    assert sorted(release.labels.column("item").to_pylist()) == ["label-0", "label-1", "label-5"]


@pytest.mark.parametrize("failing", ["head", "users_by_size", "weighted_sums", "clipped_sums", "labels"])
def test_a_top_that_fails_before_or_after_the_gap_costs_the_worst_case(failing):
    """Rows may decide what fails; the gap's share alone would reveal that the pairs were queried."""
    budget, plan, engine = Budget(5, 1e-8), _plan(k=6), PairsEngine(EngineError("no"), failing)
    with pytest.raises(EngineError):
        answer(plan, engine, budget, _bits())
    assert (budget.spent, engine.closed) == (plan.worst_cost, failing != "head")


@pytest.mark.parametrize("counts", [(4000, 4000, 4000, 1), (9000,) * 6])
def test_the_fingerprint_of_a_top_changes_with_the_head(counts):
    """Also if the pairs are queried afterwards and are equal."""

    def seen(counts):
        plan = _plan(k=6)
        with RecordedPairs(PairsEngine(counts=counts), plan.request) as recorded:
            recorded.labels(plan.mechanism.release(recorded, _bits()).positions)
        return recorded.fingerprint(plan, b"k" * 32)

    assert seen(counts) == seen(counts)
    for other in ((*counts, 1), (counts[0] + 1, *counts[1:])):  # the second has the same labels
        assert seen(counts) != seen(other)
        assert seen(counts).head_key == seen(other).head_key


@pytest.mark.parametrize(("k", "first", "last", "statements"), [(None, 0.1, 0.9, 9), (6, 0.5, 0.95, 10)])
def test_the_progress_of_several_statements_never_falls_back(k, first, last, statements):
    """Each statement reports 0 to 1; a head that may be followed by pairs ends at a half, and these are ten at most."""

    class Reporting(PairsEngine):
        def head(self, request, *, seed=b"", progress=None):
            report(progress)
            return super().head(request, seed=seed)

        @contextlib.contextmanager
        def pairs(self, request, *, progress=None):
            report(progress)
            with super().pairs(request) as pairs:
                for name in (
                    "users_by_size",
                    "capped_sums",
                    "weighted_sums",
                    "users_by_scale",
                    "clipped_sums",
                    "labels",
                ):
                    setattr(pairs, name, reporting(progress, getattr(pairs, name)))
                yield pairs

    def report(progress):
        for share in (0.0, 0.5, 1.0):
            progress(share)
        ended.append(shown[-1])

    def reporting(progress, query):
        def run(*args):
            report(progress)
            return query(*args)

        return run

    shown, ended = [], []
    release = answer(_plan(k=k), Reporting(), None, _bits(), progress=shown.append)
    assert release.chosen == "two-round"
    assert shown == sorted(shown)
    assert (len(ended), ended[0], ended[-1]) == (statements, pytest.approx(first), pytest.approx(last))


def test_the_fingerprint_of_pairs_changes_with_the_data():
    """Equal data and bits have equal fingerprints; other data and other plans have others."""

    def seen(plan, users):
        pairs = ArrayPairs(users, np.zeros(len(users), np.int64), pa.table({"item": ["a"]}))
        engine = SimpleNamespace(pairs=lambda *_, **__: contextlib.nullcontext(pairs))
        with RecordedPairs(engine, plan.request) as recorded:
            outcome = plan.mechanism.release(recorded, _bits())
            recorded.labels(outcome.positions)
        return recorded.fingerprint(plan, b"k" * 32)

    one = seen(_plan(k=None), range(5000))
    assert one == seen(_plan(k=None), range(5000))
    assert one.head_key == seen(_plan(k=None), range(5001)).head_key
    assert one != seen(_plan(k=None), range(5001))
    assert one.head_key != seen(_plan(k=None, relative_error=Fraction(1, 5)), range(5000)).head_key


def recorded_pairs(plan, pairs, progress=None):
    """Return a record of pairs that an engine has."""
    engine = SimpleNamespace(pairs=lambda *_, **__: contextlib.nullcontext(pairs))
    return RecordedPairs(engine, plan.request, progress=progress)


def test_pairs_are_written_by_whichever_query_is_the_first():
    """Also by a count of items, or by labels without any query before."""
    table = ArrayPairs([0, 1, 1], [0, 0, 1], pa.table({"item": ["a", "b"]}))
    with recorded_pairs(_plan(k=None), table) as recorded:
        assert recorded.count_items() == 2
    with recorded_pairs(_plan(k=None), table) as recorded:
        assert recorded.labels(np.array([1])).column("item").to_pylist() == ["b"]
    with RecordedPairs(engine := PairsEngine(), _plan(k=6).request) as recorded:
        recorded.head(7)
    assert [request.limit for request, *_ in engine.requests] == [7]


def test_the_digest_of_pairs_is_that_of_each_result_and_all_labels():
    """Fingerprints of earlier versions remain valid: a length of eight bytes before each result."""
    numbers = np.array([7, 3, 0])
    pairs = SimpleNamespace(
        users_by_size=lambda _: numbers, count_items=lambda: 2, labels=lambda _: pa.table({"item": ["a", "b"]})
    )
    with recorded_pairs(_plan(k=None), pairs) as recorded:
        recorded.users_by_size(numbers)
        digest = hashlib.sha256((3).to_bytes(8, "little") + numbers.tobytes())
        assert recorded._digest.digest() == digest.digest()
        recorded.labels(np.arange(2))
        digest.update(encode(_lossless(pa.table({"item": ["a", "b"]}))))
        assert recorded._digest.digest() == digest.digest()
    head = SimpleNamespace(head=lambda *_, **__: ExactHead(numbers, 3, pa.table({"item": ["a", "b", "c"]})))
    with RecordedPairs(head, _plan(k=6).request) as recorded:
        recorded.head(3)
        labels = encode(_lossless(pa.table({"item": ["a", "b", "c"]})))
        expected = hashlib.sha256(labels + (3).to_bytes(8, "little") + numbers.tobytes())
        assert recorded._digest.digest() == expected.digest()


def test_the_fingerprint_of_pairs_belongs_to_the_request_with_its_list():
    """Another filter, other items and another list have another key; a list is written without loss."""
    listed = [pa.table({"item": items}) for items in (["a", "b", "c", "d"], ["a", "b", "c", None])]
    plans = [_plan(k=None), _plan(k=None, where=parse_where("x = 1")), *(_plan(k=None, domain=of) for of in listed)]
    with recorded_pairs(plans[0], ArrayPairs([0], [0])) as recorded:
        found = [recorded.fingerprint(plan, b"k" * 32) for plan in plans]
    assert len({seen.head_key for seen in found}) == len(plans)
    for plan, seen in zip(plans, found, strict=True):
        rows = keys.encodable(dataclasses.replace(plan.request, domain=None))
        domain = () if plan.request.domain is None else _lossless(plan.request.domain)
        sent = encode((rows, keys.encodable(plan.mechanism), *domain))
        assert seen.head_key == hmac.digest(b"k" * 32, sent, hashlib.sha256)


def test_no_listed_item_has_users():
    """The places are an empty list of whole numbers, with which arrays can be indexed."""
    plan = _plan(k=None, domain=pa.table({"item": ["a", "b", "c", "d"]}))
    with recorded_pairs(plan, ArrayPairs([], [], pa.table({"item": pa.array([], pa.string())}))) as recorded:
        places = recorded.places()
    assert (places.dtype, len(places)) == (np.int64, 0)


def test_progress_ends_at_1_however_many_queries_there_are():
    """The number of queries is bounded, but no share is shown above 1."""
    shares = []
    with recorded_pairs(_plan(k=None), ArrayPairs([0], [0]), shares.append) as recorded:
        for _ in range(15):
            recorded.users_by_size(np.array([1]))
            recorded._report(1.0)
    assert (shares == sorted(shares), shares[-1]) == (True, 1.0)


@pytest.mark.parametrize("query", ["weighted_sums", "capped_sums"])
@pytest.mark.parametrize("size", [1, 4, 100])
def test_the_digest_of_sums_is_that_of_one_array(query, size):
    """Fingerprints of answers before sums came in batches remain valid: the number of items, then all sums."""
    whole = np.arange(10)
    pairs = SimpleNamespace(count_items=lambda: 10, **{query: lambda _: in_batches(whole, size)})
    engine = SimpleNamespace(pairs=lambda *_, **__: contextlib.nullcontext(pairs))
    with RecordedPairs(engine, _plan(k=None).request) as recorded:
        assert gathered(getattr(recorded, query)(1)).tolist() == whole.tolist()
    assert recorded._digest.digest() == hashlib.sha256((10).to_bytes(8, "little") + whole.tobytes()).digest()
