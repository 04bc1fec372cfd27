"""Running counts of a table: what one user moves, what a file holds, repeated answers, and all refusals."""

from __future__ import annotations

import collections
import datetime
import itertools
import json
import math
import random
import shutil
from operator import itemgetter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import discreet
from discreet.budget import Budget
from discreet.engines.duckdb import DuckDBEngine
from discreet.errors import BudgetExceeded, InputError
from discreet.head_request import And, Arrivals, Comparison, Constant, Derived, HeadRequest, Kind
from discreet.mechanisms.running import RunningCounts, price
from discreet.noise.correlated import factors, scales

pytestmark = pytest.mark.usefixtures("fixed_ids")
SECRET = b"thirty-two bytes of a public key"
FIRST = datetime.date(2026, 12, 1)
NOW = datetime.datetime(2026, 12, 20, 12, tzinfo=datetime.UTC)


def visits(users=6_000, items=12, days=6, seed=1):
    """Return rows of users who come on some days, each to a few items, of which the first are the largest."""
    rng = np.random.default_rng(seed)
    n = 3 * users
    return pa.table(
        {
            "who": rng.integers(0, users, n),
            "item": [f"p{k}" for k in np.minimum(rng.geometric(0.25, n), items)],
            "day": [FIRST + datetime.timedelta(int(day)) for day in rng.integers(0, days, n)],
        }
    )


def stream_of(table, path, now=NOW, secret=SECRET, **parts):
    """Return a stream of *table* with its file in the folder *path*."""
    given = {"column": "day", "first": "2026-12-01", "periods": 28, "groups_per_user": 2, "epsilon": 4.0}
    return discreet.scan(table, user="who").running(
        "item", secret=secret, answers=path / "answers.parquet", clock=lambda: now, **(given | parts)
    )


def kept(table, day, cap):
    """Return the number of users whose first *cap* items, by day, are decided without a hash, and hold each item."""
    first = {}
    for row in table.to_pylist():
        if row["day"] <= day:
            pair = row["who"], row["item"]
            first[pair] = min(first.get(pair, row["day"]), row["day"])
    sizes = {}
    for user, _ in first:
        sizes[user] = sizes.get(user, 0) + 1
    assert all(size <= cap for size in sizes.values())
    counts = {}
    for _, item in first:
        counts[item] = counts.get(item, 0) + 1
    return counts


def test_counts_so_far_are_published_on_every_day_from_the_listing_on(tmp_path):
    """The residuals have the stated error; what is listed stays listed; rows are those of the days so far."""
    table = visits(items=400, users=20_000)
    stream = stream_of(table, tmp_path, groups_per_user=40, epsilon=8.0)
    stream.begin()
    seen = set()
    for day in ("2026-12-01", "2026-12-02", "2026-12-04", "2026-12-06"):
        release = stream.refresh(day)
        exact = kept(table, datetime.date.fromisoformat(day), 40)
        rows = list(release)
        assert seen <= {row["item"] for row in rows}
        seen = {row["item"] for row in rows}
        errors = [(row["count"] - exact[row["item"]]) / row["std_error"] for row in rows]
        assert len(rows) >= 10
        assert abs(np.mean(errors)) < 4 / len(rows) ** 0.5
        assert 0.3 < np.std(errors) < 1.7
        assert all(row["high"] - row["count"] == math.ceil(1.96 * row["std_error"]) for row in rows)
        assert not release.complete
        assert release.guarantee.computational
        assert (release.guarantee.epsilon, release.guarantee.delta) == (8.0, 1e-8)


def test_equal_streams_give_the_same_bytes(tmp_path):
    """I4 for streams: another process with the file of before answers the same bytes; an answered day is not read."""
    table = visits()
    one = stream_of(table, tmp_path)
    one.begin()
    one.refresh("2026-12-02")
    (tmp_path / "other").mkdir()
    shutil.copy(tmp_path / "answers.parquet", tmp_path / "other")
    first = one.refresh("2026-12-05")
    second = stream_of(table, tmp_path / "other").refresh("2026-12-05")
    assert first.to_arrow() == second.to_arrow()
    held = (tmp_path / "answers.parquet").read_bytes()
    assert held == (tmp_path / "other" / "answers.parquet").read_bytes()
    empty = table.slice(0, 0)  # which an answered day does not read
    assert stream_of(empty, tmp_path).refresh("2026-12-05").to_arrow() == first.to_arrow()
    assert stream_of(empty, tmp_path).show().to_arrow() == first.to_arrow()
    assert (tmp_path / "answers.parquet").read_bytes() == held


@pytest.mark.parametrize("parts", [{}, {"groups_per_user": None, "periods": 6, "epsilon": 20.0}], ids=["one", "two"])
def test_a_state_from_before_answers_other_rows_with_other_noise(tmp_path, parts):
    """Of a backup, or of a process that was killed before it published: the same noise would show what changed."""
    table = visits()
    stream = stream_of(table, tmp_path, **parts)
    stream.begin()
    stream.refresh("2026-12-02")
    held = (tmp_path / "answers.parquet").read_bytes()
    answers = []
    late = {"who": 10**6, "item": "p1", "day": datetime.date(2026, 12, 4)}
    for rows in (table, table, pa.Table.from_pylist([*table.to_pylist(), late])):
        (tmp_path / "answers.parquet").write_bytes(held)
        stream = stream_of(rows, tmp_path, **parts)
        answers.append([{row["item"]: row["count"] for row in stream.refresh(f"2026-12-0{n}")} for n in (5, 6)])
    first, same, other = answers
    assert same == first
    for one, two in zip(first, other, strict=True):
        assert len(one.keys() & two.keys()) > 4
        assert sum(one[item] == two.get(item) for item in one) < len(one) / 2


def test_two_streams_of_one_declaration_share_no_noise(tmp_path):
    """After a lost file, the same declaration has another id: the same noise with another list would cost more."""
    table = visits()
    answers = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        stream = stream_of(table, tmp_path / name)
        stream.begin()
        answers.append({row["item"]: row["count"] for row in stream.refresh("2026-12-06")})
    assert sum(answers[0][item] == answers[1].get(item) for item in answers[0]) < len(answers[0]) / 2


def test_an_answer_of_a_stream_never_changes(tmp_path, monkeypatch):
    """Streams go on for years, across upgrades: other numbers here need another format, so that old streams end."""
    monkeypatch.setattr("os.urandom", bytes)
    monkeypatch.setattr("discreet._version.__version__", "99.9")
    days = [FIRST + datetime.timedelta(n % 6) for n in range(1_800)]
    rows = {"who": [n % 601 for n in range(1_800)], "item": [f"p{n * n % 7}" for n in range(1_800)], "day": days}
    stream = stream_of(pa.table(rows), tmp_path)
    stream.begin()
    found = [[(row["item"], row["count"]) for row in stream.refresh(day)] for day in ("2026-12-01", "2026-12-06")]
    assert found == GOLDEN


GOLDEN = [[("p4", 89), ("p1", 84), ("p2", 82), ("p0", 44)], [("p4", 412), ("p1", 333), ("p2", 274), ("p0", 189)]]


def test_one_charge_when_the_stream_begins(tmp_path):
    """The whole price, once; refreshes and what is shown are free; a budget that is too small writes nothing."""
    table = visits()
    budget = Budget(5.0, "1e-7")
    small = Budget(1.0, "1e-7")
    stream = stream_of(table, tmp_path)
    with pytest.raises(BudgetExceeded):
        stream.begin(small)
    assert not list(tmp_path.iterdir())
    assert small.spent.rho == small.held.rho == 0
    cost = stream.begin(budget)
    assert budget.spent == cost == RunningCounts.within(28, 2, *price(28, 4.0, cost.delta * 2)).worst_cost()
    stream.refresh()
    stream.show()
    with pytest.raises(InputError, match="has begun already"):
        stream.begin(budget)
    assert budget.spent == cost
    assert budget.held.rho == 0


@pytest.mark.parametrize(
    ("period", "message"),
    [
        ("2027-01-05", "declared for the periods 2026-12-01 to 2026-12-28"),
        ("2026-11-30", "declared for the periods"),
        ("2026-12-20", "is complete at 2026-12-21 01:00:00 UTC"),
        ("2026-12-04", "2026-12-05 was answered, so 2026-12-04 never will be"),
        ("tomorrow", "a date such as"),
    ],
)
def test_days_that_cannot_be_answered_are_refused(tmp_path, period, message):
    """Beyond the declaration, not complete, before the last answered one, or no day: one sentence, nothing written."""
    stream = stream_of(visits(600), tmp_path)
    stream.begin()
    stream.refresh("2026-12-05")
    held = (tmp_path / "answers.parquet").read_bytes()
    with pytest.raises(InputError, match=message):
        stream.refresh(period)
    assert (tmp_path / "answers.parquet").read_bytes() == held
    assert [path.name for path in tmp_path.iterdir()] == ["answers.parquet"]


def test_a_day_is_complete_an_hour_after_its_end(tmp_path):
    """Rows of a transaction that began on the day may arrive until then."""
    table = visits(600)
    stream_of(table, tmp_path).begin()
    almost = datetime.datetime(2026, 12, 4, 0, 59, 59, tzinfo=datetime.UTC)
    with pytest.raises(InputError, match="complete at 2026-12-04 01:00:00"):
        stream_of(table, tmp_path, almost).refresh("2026-12-03")
    stream_of(table, tmp_path, almost).refresh()
    assert pq.read_table(tmp_path / "answers.parquet")["day"].unique().to_pylist() == [datetime.date(2026, 12, 2)]
    stream_of(table, tmp_path, almost + datetime.timedelta(seconds=1)).refresh("2026-12-03")


@pytest.mark.parametrize("change", ["late row", "deleted row", "other item", "other day"])
def test_rows_of_answered_days_that_changed_are_refused(tmp_path, change):
    """The noise of past days on other rows would reveal them; whole users who were erased are allowed for."""
    table = visits()
    stream_of(table, tmp_path).begin()
    stream_of(table, tmp_path).refresh("2026-12-03")
    held = (tmp_path / "answers.parquet").read_bytes()
    rows = table.to_pylist()
    place = next(n for n, row in enumerate(rows) if row["day"] == datetime.date(2026, 12, 2) and row["item"] == "p1")
    match change:
        case "late row":
            rows.append({"who": 10**6, "item": "p1", "day": datetime.date(2026, 12, 3)})
        case "deleted row":
            rows = [row for row in rows if row["who"] != rows[place]["who"]]
        case "other item":
            rows = [row | {"item": "p2"} if row["who"] == rows[place]["who"] else row for row in rows]
        case "other day":
            rows = [
                row | {"day": datetime.date(2026, 12, 5)} if row["who"] == rows[place]["who"] else row for row in rows
            ]
    changed = stream_of(pa.Table.from_pylist(rows), tmp_path)
    with pytest.raises(InputError, match="added, changed or deleted after the answer"):
        changed.refresh("2026-12-05")
    assert (tmp_path / "answers.parquet").read_bytes() == held
    if change == "deleted row":
        changed.refresh("2026-12-05", erased=True)
        changed.refresh("2026-12-06")
    more = pa.Table.from_pylist([*table.to_pylist(), {"who": 10**6, "item": "p1", "day": datetime.date(2026, 12, 4)}])
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    (tmp_path / "answers.parquet").write_bytes(held)
    stream_of(more, tmp_path).refresh("2026-12-05")


def test_a_listed_item_without_users_is_still_published(tmp_path):
    """If it vanished, it would say without noise that its users were erased."""
    table = visits()
    stream_of(table, tmp_path).begin()
    before = stream_of(table, tmp_path).refresh("2026-12-03")
    users = {row["who"] for row in table.to_pylist() if row["item"] == "p1"}
    rest = pa.Table.from_pylist([row for row in table.to_pylist() if row["who"] not in users])
    after = stream_of(rest, tmp_path).refresh("2026-12-05", erased=True)
    counts = {row["item"]: row["count"] for row in after}
    assert counts.keys() >= {row["item"] for row in before}
    assert abs(counts["p1"]) < 40


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"periods": 90}, "declared with periods = 28, not 90"),
        ({"epsilon": 5.0}, "declared with epsilon = '4', not '5'"),
        ({"groups_per_user": 3}, "declared with groups_per_user"),
        ({"first": "2026-12-02"}, "declared with first"),
        ({"each": "week", "first": "2026-11-30"}, "declared with each"),
        ({"secret": SECRET[::-1]}, "has another key"),
    ],
)
def test_another_declaration_or_key_is_another_stream(tmp_path, parts, message):
    """None of it can change during a stream; types of labels neither."""
    stream_of(visits(600), tmp_path).begin()
    held = (tmp_path / "answers.parquet").read_bytes()
    with pytest.raises(InputError, match=message):
        stream_of(visits(600), tmp_path, **parts).refresh("2026-12-01")
    numbered = visits(600).drop_columns("item").append_column("item", pa.array(range(1_800)))
    with pytest.raises(InputError, match="declared with kinds"):
        stream_of(numbered, tmp_path).refresh("2026-12-01")
    assert (tmp_path / "answers.parquet").read_bytes() == held


def test_a_lost_or_damaged_file_ends_the_stream(tmp_path):
    """Counting on from another list is another stream, so nothing begins by itself."""
    stream = stream_of(visits(600), tmp_path)
    for act in (stream.refresh, stream.show):
        with pytest.raises(InputError, match="if they were lost, it has ended"):
            act()
    for damaged in (b"", b"PAR1", b"\0" * 100):
        (tmp_path / "answers.parquet").write_bytes(damaged)
        with pytest.raises(InputError, match="does not hold the answers of a stream"):
            stream.refresh()
    pq.write_table(pa.table({"a": [1]}), tmp_path / "answers.parquet")
    with pytest.raises(InputError, match="does not hold the answers of a stream"):
        stream.refresh()


def test_periods_are_dates_or_text(tmp_path):
    """As `first` is."""
    stream = stream_of(visits(600), tmp_path, first=FIRST)
    stream.begin()
    release = stream.refresh(FIRST)
    for period in (FIRST, datetime.datetime(2026, 12, 1, 5), "2026-12-01"):
        assert stream.show(period).to_arrow().equals(release.to_arrow())
    with pytest.raises(InputError, match="from 1 to 3,653 periods, not 0"):
        stream_of(visits(600), tmp_path, periods=0)


def answered_stream(folder, groups):
    """Return a stream whose first period is answered, the same without its key, and the path of its answers."""
    stream = stream_of(visits(600), folder, groups_per_user=groups)
    stream.begin()
    stream.refresh("2026-12-01")
    keyless = stream_of(visits(600), folder, secret=None, groups_per_user=groups)
    return stream, keyless, folder / "answers.parquet"


@pytest.mark.parametrize("groups", [2, None])
def test_a_file_that_lacks_a_part_of_its_state_ends_the_stream(tmp_path, groups):
    """One sentence for whatever is missing or another value, with the key and without it."""
    stream, keyless, path = answered_stream(tmp_path, groups)
    held = pq.read_table(path)
    state = json.loads(held.schema.metadata[b"discreet-running"])
    damaged = [{name: value for name, value in state.items() if name != lost} for lost in state if lost != "format"]
    damaged += [[], None, state | {"declared": "[]"}, state | {"answered": [[1]]}, state | {"answered": 5}]
    damaged += [state | {"corrected": {}}, state | {"corrected": {"listing": "AAAA", "mechanism": {}}}]
    tables = [held.replace_schema_metadata({"discreet-running": json.dumps(part)}) for part in damaged]
    for table in [*tables, held.drop_columns("users")]:
        pq.write_table(table, path)
        for act in (stream.refresh, stream.show, keyless.show):
            with pytest.raises(InputError, match=r"answers.parquet does not hold the answers of a stream; restore it"):
                act()


@pytest.mark.parametrize("groups", [2, None])
def test_a_file_of_an_earlier_version_ends_the_stream(tmp_path, groups):
    """Also without the key: what it shows would have the standard errors of other noise."""
    stream, keyless, path = answered_stream(tmp_path, groups)
    assert len(keyless.show().std_errors) == len(stream.show())
    held = pq.read_table(path)
    state = json.loads(held.schema.metadata[b"discreet-running"])
    without = {name: value for name, value in state.items() if name != "format"}
    for earlier in (without, without | {"format": "discreet-running-2"}):
        pq.write_table(held.replace_schema_metadata({"discreet-running": json.dumps(earlier)}), path)
        for act in (stream.refresh, stream.show, keyless.show):
            with pytest.raises(InputError, match="an earlier version began it"):
                act()


def test_a_failure_leaves_the_file_of_before(tmp_path, monkeypatch):
    """The answer is in the file before it is shown; if writing fails, the period can be tried again."""
    stream = stream_of(visits(600), tmp_path)
    stream.begin()
    held = (tmp_path / "answers.parquet").read_bytes()

    def fail(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("pyarrow.parquet.write_table", fail)
        with pytest.raises(InputError, match="cannot be written"):
            stream.refresh()
    assert (tmp_path / "answers.parquet").read_bytes() == held
    assert [path.name for path in tmp_path.iterdir()] == ["answers.parquet"]
    assert len(stream.refresh())


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"each": "month"}, "hour, day, week"),
        ({"each": "week"}, "a Monday"),
        ({"first": "soon"}, "a date such as"),
        ({"periods": 0}, "from 1 to 3,653"),
        ({"periods": 1.5}, "whole number"),
        ({"pilot": "2026-11-01"}, "leave one of them out"),
        ({"pilot": "2026-11-01 05:00", "groups_per_user": None}, "the pilot of a stream by day is the start of a day"),
        ({"pilot": "2026-11-04", "groups_per_user": None}, "begins at 2026-11-03 00:00:00 at the latest"),
        ({"pilot": "soon", "groups_per_user": None}, "the pilot is a date such as"),
        ({"groups_per_user": 1_001}, "from 1 to 1,000"),
        ({"epsilon": 0.0}, "epsilon must be"),
        ({"epsilon": 101.0}, "nothing is protected$"),
        ({"delta": "2"}, "delta must be"),
        ({"column": "item"}, "computed by day"),
        ({"column": "none"}, "none"),
        ({"secret": b"short"}, "32 bytes"),
    ],
)
def test_what_cannot_be_declared_is_refused(tmp_path, parts, message):
    """One sentence that says what is allowed; no file is written."""
    with pytest.raises(InputError, match=message):
        stream_of(visits(600), tmp_path, **parts).begin()
    assert not list(tmp_path.iterdir())


def test_hours_and_names_of_the_file_and_several_columns(tmp_path):
    """A stream by hour of timestamps; items called as columns of the file; labels of several types."""
    at = [datetime.datetime(2026, 12, 1, hour % 4, 30) for hour in range(4_000)]
    table = pa.table(
        {"who": range(4_000), "users": [n % 2 for n in range(4_000)], "hour": ["a"] * 4_000, "at": pa.array(at)}
    )
    stream = discreet.scan(table, user="who").running(
        ["hour", "users"],
        column="at",
        each="hour",
        first="2026-12-01T01:00",
        periods=3,
        groups_per_user=1,
        epsilon=4,
        secret=SECRET,
        answers=tmp_path / "a.parquet",
        clock=lambda: NOW,
    )
    stream.begin()
    stream.refresh("2026-12-01 02:59")
    stream.refresh()
    rows = pq.read_table(tmp_path / "a.parquet")
    assert rows.column_names == ["hour", "hour_", "users_", "users"]
    assert [row["hour"].hour for row in rows.to_pylist()] == [2, 2, 3, 3]
    assert sorted(row["users_"] for row in rows.to_pylist()) == [0, 0, 1, 1]
    assert all(abs(row["users"] - (1_000 if row["hour"].hour == 2 else 1_500)) < 520 for row in rows.to_pylist())


DAYS = 4


def heads(engine, day, listed, cap, seed):
    """Return the users so far of each item that an engine returns on *day*."""
    period = Derived("day:day", "day", "day")
    last = Constant(Kind.DATE, str(FIRST + datetime.timedelta(day - 1)))
    request = HeadRequest(
        "who",
        ("item",),
        1_000,
        And((Comparison("day:day", "<=", last),)),
        groups_per_user=cap,
        domain=pa.table({"item": listed}) if listed else None,
        derived=(period,),
        arrivals=Arrivals("day:day", 1),
    )
    head = engine.head(request, seed=seed)
    return dict(zip(head.labels["item"].to_pylist(), head.counts.tolist(), strict=True))


def shifts(seeds):
    """Return the squared shifts of streams by one user each, in units of the claim, on random histories of their lists.

    All histories with the same cap are in one table, with users and items of their own.
    """
    moved = collections.defaultdict(lambda: np.zeros(DAYS + 1))
    caps = {}
    for cap, several in itertools.groupby(sorted(histories(25), key=itemgetter(2)), key=itemgetter(2)):
        rows, fewer, listed_on = [], [], {}
        for part, user, _, found in several:
            n = len(caps)
            caps[n] = cap
            own = [row | {"who": 10 * n + row["who"], "item": f"{n} {row['item']}"} for row in part]
            rows += own
            fewer += [row for row in own if row["who"] != 10 * n + user]
            listed_on |= {f"{n} {item}": day for item, day in found.items()}
        engines = [DuckDBEngine(pa.Table.from_pylist(table)) for table in (rows, fewer)]
        for day in range(1, DAYS + 1):
            listed = sorted(item for item, found in listed_on.items() if found < day)
            one, other = (heads(engine, day, listed, cap, seeds[day - 1]) for engine in engines)
            for item in one | other:
                moved[item][day] = one.get(item, 0) - other.get(item, 0)
        for engine in engines:
            engine.close()
    weights = factors(DAYS)
    totals = dict.fromkeys(caps, 0.0)
    for item, values in moved.items():
        n = int(item.partition(" ")[0])
        changes = np.diff(values) / scales(DAYS)
        squares = [sum(weights[t - s] * changes[s] for s in range(t + 1)) ** 2 for t in range(DAYS)]
        totals[n] += sum(squares) / caps[n]
    return list(totals.values())


def histories(n):
    """Yield random tables of few users and items, a user, a cap, and days on which items are listed."""
    rng = random.Random(5)  # noqa: S311 - of test data
    for _ in range(n):
        items = [f"i{k}" for k in range(6)]
        rows = [
            {"who": who, "item": rng.choice(items), "day": FIRST + datetime.timedelta(rng.randrange(DAYS))}
            for who in range(4)
            for _ in range(rng.randrange(1, 9))
        ]
        rows.append({"who": 9, "item": "i0", "day": FIRST})  # so that a table is never empty
        listed_on = {item: rng.randrange(1, DAYS) for item in items if rng.random() < 0.5}
        yield rows, rng.randrange(4), rng.randrange(1, 4), listed_on


def test_a_user_moves_the_statement_by_what_the_proof_says():
    """Single 1s for at most C items, whatever is listed when: the squared shift is within the claim."""
    moved = shifts([b"s" * 32] * DAYS)
    assert len(moved) == 25
    assert max(moved) <= 1 + 1e-9
    assert max(moved) > 0.9


def test_an_order_that_changes_by_day_would_cost_more():
    """Planted: another seed each day, as a data version or the day in the key would give; the replays find it."""
    assert max(shifts([bytes([day]) * 32 for day in range(DAYS)])) > 1.2
