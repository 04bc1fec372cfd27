"""The rules by which shares of a budget move between data centres."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.budget.errors import LedgerBroken, StoreBehind
from discreet.budget.ledger import account_of, settings_text, transfer_detail
from discreet.budget.ledger_replay import StoreTransfers, check_holdings
from discreet.budget.model import NOTHING, Account, Amount, Calendar, Share, Sliding
from discreet.budget.rules import DAY_US, bucket_end, still_counts
from discreet.budget.sharing import escrow
from discreet.budget.sharing.escrow import (
    Decision,
    Holding,
    Incoming,
    Outgoing,
    Receipt,
    ShareRequest,
    Transfer,
)
from discreet.errors import InputError, InvariantViolated
from tests.budget.sharing.escrow_simulation import HOUR_US, PERIODS, Simulation, simulation_of
from tests.budget.sharing.suite.base import check_whole, in_flight

ONE = Amount(1_000, 2_000)
TOTAL = Amount(10_000, 20_000)


def times(n):
    """Return *n* times `ONE`."""
    return Amount(ONE.rho * n, ONE.delta * n)


def account(limit=10, home="here", version=1, **rest):
    """Return an account with part of its total of ten; split unless *home* is None."""
    share = None if home is None else Share(TOTAL.cost, home, version)
    return Account("ann", times(limit).cost, Fraction(1, 2), share=share, **rest)


def transfer(number=1, sent_us=0, terms=None, **rest):
    """Return a transfer from "there" to "here"."""
    return Transfer("there", "here", number, ONE, sent_us, terms or account(home="there"), **rest)


def decide(arrived, own=None, incoming=Incoming(), now_us=0, parent=True):  # noqa: B008
    """Decide about a transfer as the store "here"."""
    return escrow.decide(arrived, own, incoming, now_us, store="here", parent_is_here=parent)


# ------------------------------------------------------------------------------------------------------ moves


def test_a_donor_gives_no_more_than_what_is_left():
    """I8: at most what is left of each part, and no negative amount."""
    assert escrow.sent(Outgoing(), ONE, ONE, 7) == Outgoing(1, ONE, ONE, 7, 0)
    for amount in (ONE + Amount(1, 0), ONE + Amount(0, 1), Amount(-1, 0), Amount(0, -1)):
        with pytest.raises(InvariantViolated):
            escrow.sent(Outgoing(), amount, ONE, 7)
    assert escrow.sent(Outgoing(), NOTHING, -ONE, 7).pending == NOTHING
    with pytest.raises(InvariantViolated):
        escrow.sent(Outgoing(), Amount(1, 0), -ONE, 7)


def test_one_transfer_at_a_time_is_pending():
    """The number of a transfer then identifies what a recipient has seen."""
    with pytest.raises(InvariantViolated):
        escrow.sent(escrow.sent(Outgoing(), ONE, TOTAL, 1), ONE, TOTAL, 2)


def test_a_receipt_is_applied_once():
    """Only the first receipt is applied; a second one, or one of an older transfer, changes nothing."""
    pending = escrow.sent(Outgoing(4, ONE), ONE, TOTAL, 1)
    receipt = Receipt("ann", "here", "there", 5, True, 3)
    after, back = escrow.acknowledged(pending, receipt, 9)
    assert (after, back) == (Outgoing(5, times(2), None, 1, 3), NOTHING)
    assert escrow.acknowledged(after, replace(receipt, taken=False), 9) == (after, NOTHING)
    assert escrow.acknowledged(pending, replace(receipt, number=4, taken=False), 9) == (pending, NOTHING)


def test_a_declined_amount_is_returned_once():
    """The donor gets it back once."""
    pending = escrow.sent(Outgoing(), ONE, TOTAL, 1)
    after, back = escrow.acknowledged(pending, Receipt("ann", "here", "there", 1, False, 0), 9)
    assert (after, back) == (Outgoing(1, NOTHING, None, 1, 9), ONE)


def test_a_restored_store_detects_missing_transfers():
    """F12: the first message of a peer shows that a store was restored from a backup."""
    with pytest.raises(StoreBehind):
        escrow.acknowledged(Outgoing(3), Receipt("ann", "here", "there", 4, True, 1), 1)
    with pytest.raises(StoreBehind):
        decide(transfer(number=3), incoming=Incoming(1))


@pytest.mark.parametrize(
    ("own", "parts", "decision"),
    [
        (None, {}, Decision.TAKE),
        (None, {"parent": False}, Decision.WAIT),
        (account(home="there"), {}, Decision.TAKE),
        (account(home="there"), {"now_us": -1}, Decision.WAIT),
        (account(home="there"), {"incoming": Incoming(1)}, Decision.KNOWN),
        (account(home="there"), {"incoming": Incoming(7), "now_us": -1}, Decision.KNOWN),
        (account(home="there", version=2, mode="observe"), {}, Decision.TAKE),
        (account(home="there", mode="observe"), {}, Decision.DECLINE),
        (account(home="here"), {}, Decision.DECLINE),
        (account(home=None), {}, Decision.DECLINE),
        (account(home="there", parent="org"), {}, Decision.DECLINE),
    ],
)
def test_a_recipient_accepts_each_transfer_once(own, parts, decision):
    """It accepts each number once, not before its time, and only for the same account."""
    assert decide(transfer(), own, **parts) is decision


def test_a_transfer_for_another_store_is_refused():
    """Such as one to a data centre that started from a copy of another's database."""
    for wrong in (
        replace(transfer(), recipient="elsewhere"),
        replace(transfer(), donor="here"),
        replace(transfer(), terms=account(home=None)),
    ):
        with pytest.raises(InputError, match="store of its own"):
            decide(wrong)


def test_accepted_amounts_are_counted():
    """The state has the sum of accepted amounts, and the last number of accepted or declined transfers."""
    took = escrow.taken(Incoming(), transfer())
    assert took == Incoming(1, True, ONE)
    assert escrow.declined(took, transfer(2)) == Incoming(2, False, ONE)


# ------------------------------------------------------------------------------------------------------ settings


def test_shares_are_serialized_and_read_back():
    """The text includes the account's settings; accounts that are not split keep their previous text."""
    for each in (account(3), account(home=None), account(0, version=7, period=Sliding(30), parent="org")):
        assert account_of(settings_text(each)) == each
    assert "share" not in settings_text(account(home=None))


def test_the_delta_of_an_account_is_above_that_of_its_total():
    """The guarantee of the account covers all data centres."""
    with pytest.raises(InputError, match="delta"):
        replace(account(1), delta=TOTAL.cost.delta)


def test_an_account_is_split_once_and_opened_with_an_empty_share():
    """Its total is the limit that it had when it was created."""
    once = escrow.split(account(10, home=None), "here")
    assert once.share == Share(TOTAL.cost, "here", 1)
    assert escrow.split(once, "elsewhere") is once
    assert escrow.resized(once, -ONE).limit == times(9).cost
    assert escrow.opened(once).limit == NOTHING.cost


def test_only_newer_settings_are_adopted():
    """Settings of a newer version are adopted, and the limit never is."""
    mine, newer = account(3, version=2), account(9, version=3, period=Sliding(7), mode="observe")
    assert escrow.adopted(mine, newer) == replace(newer, limit=mine.limit)
    assert escrow.adopted(mine, replace(newer, share=replace(newer.share, version=2))) is mine
    assert escrow.adopted(account(3, home=None), newer) == account(3, home=None)


def test_an_officer_changes_the_total_and_the_difference_is_taken_from_the_share_here():
    """It rises by any amount and falls by at most what is left; every change has a new version."""
    before, spent = account(4), times(3)
    assert escrow.altered(before, before, spent, "here").share.version == 2
    for change, limit in ((5, 9), (-1, 3)):
        wanted = replace(before, share=replace(before.share, total=times(10 + change).cost))
        after = escrow.altered(before, wanted, spent, "here")
        assert (after.limit, after.share) == (times(limit).cost, Share(times(10 + change).cost, "here", 2))
    wanted = replace(before, share=replace(before.share, total=(times(9) - Amount(0, 1)).cost))
    with pytest.raises(InputError, match="what is left in this data centre"):
        escrow.altered(before, wanted, spent, "here")


def test_a_change_concurrent_with_a_transfer_is_refused():
    """A change that is concurrent with a transfer creates no budget: the state that was read is outdated."""
    before = account(4)
    for wanted in (account(5), account(4, home=None)):
        with pytest.raises(InputError, match="moves by itself"):
            escrow.altered(before, wanted, NOTHING, "here")
    with pytest.raises(InputError, match="another data centre"):
        escrow.altered(before, replace(before, mode="observe"), NOTHING, "elsewhere")
    with pytest.raises(InputError, match="not split"):
        escrow.altered(account(home=None), before, NOTHING, "here")
    assert escrow.altered(account(home=None), account(3, home=None), NOTHING, "here") == account(3, home=None)


# ------------------------------------------------------------------------------------------------------ rebalancing

_PARTS = st.integers(-(10**6), 10**6)
_AMOUNTS = st.builds(Amount, _PARTS, _PARTS)


@given(_AMOUNTS, _AMOUNTS, _AMOUNTS.map(lambda a: a.most(NOTHING)), _AMOUNTS.map(lambda a: a.most(NOTHING)))
def test_a_grant_is_never_more_than_what_is_left(asked, left, need, own):
    """For any requested amount a grant is between zero and the remaining budget."""
    given_ = escrow.granted(ShareRequest("ann", asked, need), left, TOTAL, own)
    assert NOTHING.within(given_)
    assert given_.within(left.most(NOTHING))


@given(_AMOUNTS, _AMOUNTS)
def test_a_grant_is_not_requested_back_without_a_refused_query(asked, left):
    """After a move without a refused query, neither data centre is short compared with the other."""
    given_ = escrow.granted(ShareRequest("ann", asked), left, TOTAL)
    after, asker = left - given_, asked + given_
    back = escrow.granted(ShareRequest("ann", after), asker, TOTAL)
    for part in ("rho", "delta"):
        if getattr(given_, part):
            assert getattr(after, part) >= getattr(asker, part)
            assert not getattr(back, part)


def test_an_account_is_short_below_a_quarter_or_after_a_refusal():
    """An account is short if less than a quarter of the share is left, or if a query was refused."""
    assert not escrow.is_short(times(3), times(10), TOTAL)
    assert escrow.is_short(times(2), times(10), TOTAL)
    assert escrow.is_short(Amount(9_000, 1), times(10), TOTAL)
    assert not escrow.is_short(Amount(9_000, 0), Amount(10_000, 0), Amount(30_000, 0))
    assert escrow.is_short(times(9), times(10), TOTAL, need=times(9) + Amount(1, 0))
    assert not escrow.is_short(times(9), times(10), TOTAL, need=times(9))
    assert escrow.is_short(NOTHING, NOTHING, TOTAL)


def test_a_refused_query_gets_what_it_needs_unless_the_donor_refused_one_too():
    """Half of the difference would be insufficient for it."""
    asked = ShareRequest("ann", times(1), need=times(4))
    assert escrow.granted(asked, times(4), TOTAL) == times(3)
    assert escrow.granted(asked, times(2), TOTAL) == times(2)
    assert escrow.granted(asked, times(4), TOTAL, need=ONE) == NOTHING
    assert escrow.granted(asked, times(5), TOTAL, need=ONE) == times(2)


def test_tiny_differences_are_not_balanced():
    """Otherwise the last quanta would be halved indefinitely."""
    total = Amount(1024 * 100, 1024 * 100)
    assert escrow.granted(ShareRequest("ann", NOTHING), Amount(201, 199), total) == Amount(100, 0)


@pytest.mark.parametrize("centres", [2, 3, 7])
def test_first_grants_are_equal_parts_and_never_more_than_what_is_left(centres):
    """The home keeps the remainder of the division."""
    given_ = escrow.first_grant(TOTAL, TOTAL, centres)
    assert given_ == Amount(TOTAL.rho // centres, TOTAL.delta // centres)
    assert escrow.first_grant(ONE, TOTAL, 2) == ONE
    assert escrow.first_grant(-ONE, TOTAL, 2) == NOTHING


@pytest.mark.parametrize("parts", [7, 29, 100, 1_001])
def test_a_data_centre_that_gets_all_queries_can_spend_the_whole_total(parts):
    """F16: three data centres start with equal shares; while they are connected, no budget is stranded."""
    cost = Amount(TOTAL.rho * 10**6 // parts, TOTAL.delta * 10**6 // parts)
    total = Amount(TOTAL.rho * 10**6, TOTAL.delta * 10**6)
    first = escrow.first_grant(total, total, 3)
    limits = [total - first - first, first, first]
    spent, admitted, moves = NOTHING, 0, 0
    for _ in range(parts + 100):
        left = limits[2] - spent
        if cost.within(left):
            spent, admitted = spent + cost, admitted + 1
            continue
        for n in (0, 1):
            moved = escrow.granted(ShareRequest("ann", limits[2] - spent, cost), limits[n], total)
            limits[n], limits[2], moves = limits[n] - moved, limits[2] + moved, moves + bool(moved)
    assert admitted == parts
    assert moves < 30


# ------------------------------------------------------------------------------------------------------ ledger


def _read(*lines):
    moves = StoreTransfers()
    for kind, number, amount in lines:
        detail = transfer_detail("there", number, amount)
        moves.read(kind, 5, detail | {"account": {"id": "ann"} if kind in {"send", "take", "return"} else "ann"})
    return moves


def test_the_ledger_records_sent_and_received_amounts():
    """The ledger has sent, received and pending amounts, with the time of pending ones."""
    moves = _read(
        ("send", 1, ONE), ("delivered", 1, ONE), ("take", 1, ONE), ("send", 2, times(2)), ("return", 2, times(2)),
        ("decline", 2, ONE), ("send", 3, ONE),
    )  # fmt: skip
    assert moves.outgoing["ann", "there"] == Outgoing(3, times(2), ONE, 5)
    assert moves.incoming["ann", "there"] == Incoming(2, False, ONE)
    away = account(9)
    holding = Holding(away, NOTHING, {"there": Outgoing(3, times(2), ONE, 5, 4)}, {"there": Incoming(2, False, ONE)})
    check_holdings("here", [holding], moves)
    for wrong in (
        replace(holding, account=account(10)),
        replace(holding, account=account(9, home="there")),
        replace(holding, outgoing={"there": Outgoing(3, times(2), None, 5)}),
        replace(holding, incoming={}),
    ):
        with pytest.raises(LedgerBroken):
            check_holdings("here", [wrong], moves)


@pytest.mark.parametrize(
    "lines",
    [
        [("send", 2, ONE)],
        [("send", 1, ONE), ("send", 2, ONE)],
        [("delivered", 1, ONE)],
        [("send", 1, ONE), ("return", 1, times(2))],
        [("send", 1, ONE), ("delivered", 1, ONE), ("return", 1, ONE)],
        [("take", 1, ONE), ("take", 1, ONE)],
        [("take", 1, ONE), ("decline", 3, ONE)],
        [("take", 1, -ONE)],
    ],
)
def test_impossible_sequences_of_lines_are_detected(lines):
    """A missing or repeated number, or the return of a transfer that was not sent, is detected."""
    with pytest.raises(ValueError, match=lines[-1][0]):
        _read(*lines)


def test_the_shares_of_all_stores_add_up_to_the_total():
    """The sum includes transfers in flight, also to a store that no longer exists."""
    out = Outgoing(1, ONE, ONE)
    here = Holding(account(7), NOTHING, {"there": out, "gone": Outgoing(4, times(2), ONE)}, {})
    there = Holding(account(2), NOTHING, {}, {})
    arrived = Holding(account(3), NOTHING, {}, {"here": Incoming(1, True, ONE)})
    unsplit = Holding(account(5, home=None), NOTHING)
    assert in_flight({"here": here, "there": there}) == times(2)
    assert in_flight({"here": here, "there": arrived}) == ONE
    whole = {"here": [replace(here, account=account(6)), unsplit], "there": [there]}
    check_whole(whole)
    check_whole({**whole, "here": [replace(here, account=account(6))], "there": [arrived, unsplit]})
    with pytest.raises(LedgerBroken, match="do not add up"):
        check_whole({"here": [here], "there": [there]})
    with pytest.raises(LedgerBroken, match="not here"):
        check_whole({"there": [there]})
    another = Holding(account(10, home="there"), NOTHING, {}, {"here": Incoming(1, False)})
    check_whole({"here": [replace(here, account=account(9), outgoing={"there": out})], "there": [another]})


# ------------------------------------------------------------------------------------------------------ periods


MIDNIGHT_US = 20_000 * DAY_US


def _all_that_b_can_spend(period, sent_us, b_us, *, rule):
    """Return its own half, and the half that *a* sends, if its clock admits that."""
    terms = account(5, home="a", period=period)
    out = escrow.sent(Outgoing(), times(5), times(5), sent_us)
    gift = Transfer("a", "b", 1, out.pending, out.sent_us, terms)
    now_us = b_us if rule else max(b_us, sent_us)
    taken = escrow.decide(gift, terms, Incoming(), now_us, store="b", parent_is_here=True) is Decision.TAKE
    return times(10) if taken else times(5)


@pytest.mark.parametrize("rule", [True, False])
def test_a_share_with_a_future_timestamp_is_accepted_at_that_time(rule):
    """I6, I8: otherwise a calendar day holds one and a half totals, where clocks are an hour apart."""
    day = Calendar("day")
    spent = times(5)  # in a, all of its share, at 23:59; a minute after midnight it has that again, and gives it away
    a_us = MIDNIGHT_US + HOUR_US // 60
    b_us = a_us - HOUR_US
    assert bucket_end(day, MIDNIGHT_US - 1) == bucket_end(day, b_us) == MIDNIGHT_US
    spent += _all_that_b_can_spend(day, a_us, b_us, rule=rule)
    assert spent == (TOTAL if rule else times(15))


@pytest.mark.parametrize("rule", [True, False])
def test_no_window_of_the_ledgers_times_holds_more_than_the_total(rule):
    """I6, I8: with clocks a day apart; by true time a sliding window would hold without the rule, too."""
    two_days, spent = Sliding(2), times(5)  # in a, at 23:00
    a_us = MIDNIGHT_US + 2 * DAY_US
    b_us = a_us - DAY_US
    assert still_counts(two_days, MIDNIGHT_US, a_us - 1)
    assert not still_counts(two_days, MIDNIGHT_US, a_us)
    spent += _all_that_b_can_spend(two_days, a_us, b_us, rule=rule)
    assert b_us - (MIDNIGHT_US - HOUR_US) < two_days.days * DAY_US  # all within 25 hours of the ledgers' times
    assert spent == (TOTAL if rule else times(15))


# ------------------------------------------------------------------------------------------------------ in the end


@pytest.mark.parametrize("seed", range(12))
def test_after_the_network_heals_nothing_stays_pending(seed):
    """Lost messages are sent again, and early ones are accepted in their time."""
    simulation = simulation_of(seed).run(1_500)
    simulation.heal()
    for centre in simulation.centres:
        centre.ahead_us = 0
    for _ in range(200):
        simulation.true_us += HOUR_US
        for centre in simulation.centres:
            centre.look(simulation.true_us)
            for peer, out in centre.outgoing.items():
                if out.pending is not None:
                    simulation.post(centre, simulation.by_id[peer], simulation.transfer(centre, peer, out))
        while simulation.network:
            sender, recipient, message = simulation.network.pop()
            if not isinstance(message, ShareRequest):
                simulation.arrive(sender, recipient, message)
        simulation.check()
    assert all(out.pending is None for centre in simulation.centres for out in centre.outgoing.values())


class _NeverHeals(Simulation):
    """A simulation in which blocked connections stay blocked."""

    def heal(self):
        """Do nothing."""


def test_a_data_centre_that_is_cut_off_spends_its_share_and_no_more():
    """I8: the other data centres spend theirs."""
    simulation = _NeverHeals(3, centres=3, period=PERIODS[0])
    home, cut = simulation.centres[0], simulation.centres[2]
    for peer in simulation.centres[1:]:
        amount = escrow.first_grant(home.limit, simulation.total, 3)
        simulation.give(home, peer, Outgoing(), amount)
    for centre in simulation.centres[1:]:
        out = home.outgoing[centre.id]
        simulation.arrive(home, centre, simulation.transfer(home, centre.id, out))
    share = cut.limit
    simulation.network.clear()
    simulation.cut = {(one.id, cut.id) for one in simulation.centres} | {(cut.id, one.id) for one in simulation.centres}
    simulation.run(6_000)
    assert cut.limit == share
    crumb = Amount(TOTAL.rho * 10**17 >> 6, TOTAL.delta * 10**17 >> 6)
    assert any((centre.limit - centre.spent).rho < crumb.rho for centre in simulation.centres[:2])
    assert (cut.limit - cut.spent).rho < crumb.rho
