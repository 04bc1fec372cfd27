"""Running counts that are corrected for the bounds on users: what one user moves, what is published, and its state."""

from __future__ import annotations

import datetime
import json
import shutil

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from discreet.engines.duckdb import DuckDBEngine
from discreet.engines.sql import HeadStatement
from discreet.errors import InputError
from discreet.head_request import And, Arrivals, Comparison, Constant, Derived, HeadRequest, Kind
from discreet.noise.correlated import factors, scales
from discreet.release.corrected import CorrectedState

from .test_running import DAYS, FIRST, histories, stream_of

pytestmark = pytest.mark.usefixtures("fixed_ids")
PLACES = (2, 3, 5)


def reads(users, items, before=0, days=6, seed=1):
    """Return rows of users who have from one to *items* items of 400, from the day *before* the first one on."""
    rng = np.random.default_rng(seed)
    n = rng.integers(1, items + 1, users).sum()
    return pa.table(
        {
            "who": rng.integers(0, users, n),
            "item": [f"p{k}" for k in np.minimum(rng.geometric(0.08, n), 400)],
            "day": [FIRST + datetime.timedelta(int(day) - before) for day in rng.integers(0, days, n)],
        }
    )


def truth(table, day):
    """Return the users so far of each item."""
    query = (
        f"SELECT item, count(DISTINCT who) FROM reads WHERE day BETWEEN DATE '{FIRST}' AND DATE '{day}' GROUP BY item"
    )
    return dict(duckdb.from_arrow(table).query("reads", query).fetchall())


ONE_LEVEL = {"periods": 6, "pilot": "2026-11-25"}


def with_pilot(users, items):
    """Return rows of six days, and of as many users on the six days before."""
    return pa.concat_tables([reads(users, items), reads(users, items, before=6, seed=2)])


@pytest.mark.parametrize(
    ("table", "parts", "levels"),
    [(with_pilot(12_000, 5), ONE_LEVEL, 1), (reads(12_000, 22), {"periods": 28}, 2)],
    ids=["one level", "two levels"],
)
def test_counts_are_corrected_for_what_the_bounds_cut_off(tmp_path, table, parts, levels):
    """On average over items, counts are those of all users, though a tenth or more of the pairs is cut off."""
    stream = stream_of(table, tmp_path, groups_per_user=None, **parts)
    stream.begin()
    for day in ("2026-12-02", "2026-12-04", "2026-12-06"):
        release = stream.refresh(day)
        exact = truth(table, day)
        rows = list(release)
        assert len(rows) >= 5
        ratios = [row["count"] / exact[row["item"]] for row in rows]
        assert abs(np.mean(ratios) - 1) < 0.03
        assert np.mean(np.abs(np.array(ratios) - 1) < 0.1) > 0.8
        assert all(row["low"] < row["count"] < row["high"] for row in rows)
        assert all(row["std_error"] <= 0.086 * row["count"] for row in rows)
        assert [row["count"] for row in rows] == sorted((row["count"] for row in rows), reverse=True)
    state = stream._read().corrected
    assert (state.mechanism.counting is None) == (levels == 1)
    answered = stream._read().answered
    oldest = 1 if levels == 1 else 2  # the stream began, or items were first listed
    (error,) = state.mechanism.published.std_errors(6, [oldest]) / answered[-1].whole
    assert max(row["std_error"] for row in rows) == pytest.approx(error)
    assert stream.kept_share() == answered[-1].whole < 0.95
    assert stream.kept_share("2026-12-02") == answered[0].whole
    assert pq.read_table(tmp_path / "answers.parquet").column_names == ["day", "item", "users"]
    shown = stream.show("2026-12-02")
    assert shown.to_arrow() == stream.refresh("2026-12-02").to_arrow()


@pytest.mark.parametrize("parts", [ONE_LEVEL, {"periods": 6}], ids=["one level", "two levels"])
def test_equal_streams_that_are_corrected_give_the_same_bytes(tmp_path, parts):
    """I4: another process with the file of before answers the same; the pilot is read once, with the first answer."""
    table = with_pilot(3_000, 5)
    one = stream_of(table, tmp_path, groups_per_user=None, **parts)
    one.begin()
    one.refresh("2026-12-02")
    (tmp_path / "other").mkdir()
    shutil.copy(tmp_path / "answers.parquet", tmp_path / "other")
    one.refresh("2026-12-05")
    later = table.filter(pa.array([day >= FIRST for day in table["day"].to_pylist()]))  # without the pilot's rows
    stream_of(later, tmp_path / "other", groups_per_user=None, **parts).refresh("2026-12-05")
    held = (tmp_path / "answers.parquet").read_bytes()
    assert held == (tmp_path / "other" / "answers.parquet").read_bytes()
    state = one._read().corrected
    values = json.loads(json.dumps(state.to_dict(), default=str))
    assert CorrectedState.of_dict(values).to_dict() == state.to_dict()
    with pytest.raises(InputError, match="declared with pilot"):
        stream_of(table, tmp_path, groups_per_user=None, periods=6, pilot="2026-11-20").refresh()


GOLDEN = {
    "one": [
        [("p1", 217), ("p4", 216), ("p2", 211), ("p0", 106)],
        [("p2", 1289), ("p4", 1148), ("p1", 930), ("p0", 645)],
    ],
    "two": [
        [("p1", 215), ("p2", 211), ("p4", 209), ("p0", 110)],
        [("p2", 1295), ("p4", 1129), ("p1", 951), ("p0", 643)],
    ],
}


@pytest.mark.parametrize("levels", ["one", "two"])
def test_an_answer_of_a_corrected_stream_never_changes(tmp_path, monkeypatch, levels):
    """Streams go on for years, across upgrades: other numbers here need another format, so that old streams end."""
    monkeypatch.setattr("os.urandom", bytes)
    monkeypatch.setattr("discreet._version.__version__", "99.9")
    days = [FIRST + datetime.timedelta(n % 12 - 6) for n in range(9_000)]
    rows = {"who": [n % 3_001 for n in range(9_000)], "item": [f"p{n * n % 7}" for n in range(9_000)], "day": days}
    parts = ONE_LEVEL if levels == "one" else {"periods": 6}
    stream = stream_of(pa.table(rows), tmp_path, groups_per_user=None, **parts)
    stream.begin()
    found = [[(row["item"], row["count"]) for row in stream.refresh(day)] for day in ("2026-12-01", "2026-12-06")]
    assert found == GOLDEN[levels]


@pytest.mark.parametrize("parts", [ONE_LEVEL, {"periods": 6}], ids=["one level", "two levels"])
def test_rows_that_changed_are_refused_and_erased_users_are_allowed_for(tmp_path, parts):
    """A late row and a deleted one, of a listed item or another; items whose users were all erased stay listed."""
    table = with_pilot(6_000, 5)

    def stream(rows):
        return stream_of(rows, tmp_path, groups_per_user=None, **parts)

    stream(table).begin()
    stream(table).refresh("2026-12-03")
    held = (tmp_path / "answers.parquet").read_bytes()
    listed = stream(table)._read().corrected.listing
    assert len(listed) >= 4
    rows = table.to_pylist()
    late = [{"who": 10**6, "item": item, "day": datetime.date(2026, 12, 3)} for item in ("p1", "p19", "p400")]
    stream_of(pa.Table.from_pylist([*rows, late[2]]), tmp_path, groups_per_user=None, **parts).show()
    for changed in ([*rows, late[0]], [*rows, late[1]], [row for row in rows if row["item"] != "p2"]):
        with pytest.raises(InputError, match="added, changed or deleted after the answer"):
            stream(pa.Table.from_pylist(changed)).refresh("2026-12-05")
        assert (tmp_path / "answers.parquet").read_bytes() == held
    later = {"who": 10**6, "item": "p1", "day": datetime.date(2026, 12, 4)}
    stream(pa.Table.from_pylist([*rows, later])).refresh("2026-12-04")
    (tmp_path / "answers.parquet").write_bytes(held)
    gone = {row["who"] for row in rows if row["item"] in {"p1", "p2"}}
    rest = stream(pa.Table.from_pylist([row for row in rows if row["who"] not in gone]))
    rest.refresh("2026-12-05", erased=True)
    after = rest._read().corrected.listing
    kept = dict(zip(after["item"].to_pylist(), after["kept"].to_pylist(), strict=True))
    assert kept.keys() >= set(listed["item"].to_pylist())
    assert abs(kept["p1"]) < 60


def head(engine, day, among, bound, listed_on):
    """Return the head of one level on *day*: counts of each item, and users by place."""
    listed = {item: FIRST + datetime.timedelta(found - 1) for item, found in listed_on.items()}
    table = pa.table({"item": list(listed), "day:day": pa.array(list(listed.values()), pa.date32())})
    request = HeadRequest(
        "who",
        ("item",),
        1_000,
        And((Comparison("day:day", "<=", Constant(Kind.DATE, str(FIRST + datetime.timedelta(day - 1)))),)),
        groups_per_user=bound,
        domain=table if listed else None,
        derived=(Derived("day:day", "day", "day"),),
        arrivals=Arrivals("day:day", 1, among=among, reached=PLACES if among == "listed" else ()),
    )
    if among == "listed" and not listed:
        return {}, np.zeros(len(PLACES))
    result = engine.head(request, seed=b"s" * 32)
    counts = dict(zip(result.labels["item"].to_pylist(), result.counts.tolist(), strict=True))
    return counts, np.zeros(len(PLACES)) if result.reached is None else result.reached.sum(axis=0)


def shifts(rows, user, bound, listed_on):
    """Return the squared shifts of listing, counting and users by place by one user, in units of what each claims."""
    moved = {"unlisted": {}, "listed": {}, "places": {}}
    engines = [DuckDBEngine(pa.Table.from_pylist(part)) for part in (rows, [r for r in rows if r["who"] != user])]
    for day in range(1, DAYS + 1):
        for among, until in (("unlisted", day - 1), ("listed", day)):
            known = {item: found for item, found in listed_on.items() if found <= until}
            (one, places), (other, without) = (head(engine, day, among, bound, known) for engine in engines)
            for item in one | other:
                moved[among].setdefault(item, np.zeros(DAYS + 1))[day] = one.get(item, 0) - other.get(item, 0)
            for place, number in enumerate(places - without):
                moved["places"].setdefault(place, np.zeros(DAYS + 1))[day] += number
    for engine in engines:
        engine.close()
    weights = factors(DAYS)
    totals = {}
    for part, items in moved.items():
        total = 0.0
        for item, values in items.items():
            last = listed_on.get(item, DAYS) if part == "unlisted" else DAYS  # a listed item is not published there
            changes = np.diff(values[: last + 1]) / scales(DAYS)[:last]
            total += sum(sum(weights[t - s] * changes[s] for s in range(t + 1)) ** 2 for t in range(last))
        totals[part] = total / (len(PLACES) if part == "places" else bound)
    return totals


def test_a_user_moves_both_levels_and_the_places_by_what_the_proof_says():
    """Single 1s: at most C where items are listed, at most C where they are counted, and one for each place."""
    largest = dict.fromkeys(("unlisted", "listed", "places"), 0.0)
    for history in histories(6):
        for part, value in shifts(*history).items():
            largest[part] = max(largest[part], value)
    assert max(largest.values()) <= 1 + 1e-9
    assert min(largest["unlisted"], largest["listed"]) > 0.9


def history(pairs, listed_on):
    """Return a history of one user with the bound 1, from the items by day; another user has all of them."""
    rows = [{"who": 1, "item": item, "day": FIRST + datetime.timedelta(day - 1)} for item, day in pairs.items()]
    others = [{"who": 2, "item": item, "day": FIRST} for item in pairs]
    return [*rows, *others], 1, 1, listed_on


@pytest.mark.parametrize(
    ("part", "case", "correct", "planted"),
    [
        ("unlisted", history({"a": 1, "b": 2}, {"a": 1}), "f IS NULL OR d <= f", "f IS NULL"),
        ("unlisted", history({"a": 2, "b": 3}, {"a": 2}), "f IS NULL OR d <= f", "f IS NULL OR d < f"),
        ("listed", history({"a": 2, "b": 1}, {"a": 2, "b": 3}), "greatest(d, f) AS d", "d"),
    ],
    ids=["places of listed items are given back", "listed on the day itself", "in the order of first days"],
)
def test_planted_errors_of_the_statements_move_more(monkeypatch, part, case, correct, planted):
    """Each makes one user move a second item, or take a count back; the statements as they are do not."""
    assert shifts(*case)[part] <= 1
    write = HeadStatement._arrived

    def wrong(self, arrivals):
        text = write(self, arrivals)
        assert self.request.domain is None or arrivals.among != part or correct in text
        return text.replace(correct, planted)

    monkeypatch.setattr(HeadStatement, "_arrived", wrong)
    assert shifts(*case)[part] > 1.2
