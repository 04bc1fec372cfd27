"""One user with the extreme values of every column decides nothing in a warehouse: neither an error nor a label."""

from __future__ import annotations

import contextlib
import datetime
import itertools

import pyarrow as pa
import pyarrow.parquet
import pytest

from discreet.catalog.loader import load_catalog
from discreet.release.corrected import PeriodReader
from discreet.testing.outcomes import check_request
from discreet.warehouse import Warehouse

FIRST = datetime.date(2026, 11, 1)
ITEMS = [f"i{n}" for n in range(40)]
OWN = ["own", "", "NaN", "own \0", "own \U0010ffff", "own" * 2**17, *(f"own {n}" for n in range(3_000))]
"""Labels that only the extreme user has."""

LONG = 2**63 - 1
KEYS = [bytes([n]) * 32 for n in (1, 4, 5)]
CATALOG = """
[datasets.reads]
source = "reads.parquet"
user = "who"
data_version = "1"
rows_per_group = 1000
columns.item = { type = "text", group = true, filter = true }
columns.place = { type = "text", group = true, domain = ["a", "b", "c"], groups_per_user = 1 }
columns.day = { type = "date", group = true, filter = true }
columns.n = { type = "integer", sum = { low = 0, high = 1000000 }, filter = true }
columns.m = { type = "integer", sum = { low = 0, high = 10000000, private_bound = true } }

[datasets.reads.running.by_item]
items = ["item"]
column = "day"
first = "2026-11-01"
periods = 28
groups_per_user = 3
epsilon = 4
delta = 1e-8
answers = "answers.parquet"

[datasets.shown]
source = "reads.parquet"
user = "who"
data_version = "1"
min_users = 10
columns.item = { type = "text", group = true, pattern = "i[0-9]+|own.*" }
"""
LISTED = f"WHERE item IN ({', '.join(repr(item) for item in ITEMS)}) GROUP BY item"
QUESTIONS = {
    "users": ("SELECT item, COUNT(DISTINCT who) FROM reads GROUP BY item", 4),
    "most users": ("SELECT item, COUNT(DISTINCT who) FROM reads GROUP BY item LIMIT 10", 4),
    "users that are shown": ("SELECT item, COUNT(DISTINCT who) FROM shown GROUP BY item", 4),
    "users of a day": ("SELECT item, COUNT(DISTINCT who) FROM reads WHERE day = DATE '2026-11-02' GROUP BY item", 4),
    "users of days": ("SELECT day, COUNT(DISTINCT who) FROM reads GROUP BY day", 4),
    "rows": ("SELECT item, COUNT(*) FROM reads GROUP BY item", 4),
    "listed": (f"SELECT item, COUNT(DISTINCT who) FROM reads {LISTED}", 1),
    "listed, with a sum": (f"SELECT item, SUM(m) FROM reads {LISTED}", 4),
    "sum": ("SELECT SUM(n) FROM reads", 4),
    "average": ("SELECT AVG(n) FROM reads", 4),
    "sum to a private bound": ("SELECT item, SUM(m) FROM reads GROUP BY item LIMIT 5", 4),
    "average to a private bound": ("SELECT item, AVG(m) FROM reads GROUP BY item LIMIT 5", 4),
    "top of each place": (
        {
            "dataset": "reads",
            "each": ["place"],
            "items": ["item"],
            "measure": {"kind": "users", "column": "who"},
            "k": 5,
        },
        4,
    ),
}
"""Queries, in SQL or as JSON, with their epsilon."""


def rows_of(users, many):
    """Return a row of most users, and of *many* users one of each item."""
    cells = [(user, ITEMS[user * user % 7]) for user in range(users)]
    cells += [(user, item) for user in range(many) for item in ITEMS]
    return [
        {"who": f"u{user}", "item": item, "place": "abc"[user % 3], "day": FIRST + datetime.timedelta(user % 2)}
        | {"n": user % 10, "m": 60}
        for user, item in cells
    ]


def extreme_rows(items):
    """Return the rows of one user: *items*, with extreme values in all places."""
    values = itertools.product("abcz", (datetime.date(1, 1, 1), FIRST, datetime.date(9999, 12, 31), None))
    others = itertools.cycle(itertools.product(values, (LONG, -LONG, 0, None)))
    for item, ((place, day), number) in zip(items, others, strict=False):
        # Items of few users come later, so that the bound of running counts keeps one that is released.
        arrival = FIRST + datetime.timedelta(1) if day == FIRST and item not in ITEMS[:7] else day
        yield {"who": "z", "item": item, "place": place, "day": arrival, "n": number, "m": number}


EVERY = (*ITEMS * 5, *OWN, None)
TABLES = {"few": (1_500, 60, EVERY), "many": (12_000, 300, EVERY), "one item": (1_500, 0, ["own"] * 5)}
"""Users, how many of them have all items, and the items of the extreme one by row; its fifth row has a valid day."""

CHOSEN = {
    ("few", "users"): {"light", "head"},  # that after a second histogram
    ("one item", "users"): {"light"},
    ("many", "users"): {"two-round"},
    ("few", "listed"): {"capped"},
    ("many", "listed"): {"shared"},
}
"""What answers some questions with one of the keys."""


@pytest.fixture(scope="module", params=TABLES)
def neighbours(request, tmp_path_factory):
    """Return warehouses of a table with the extreme user, and of the table without."""
    users, many, items = TABLES[request.param]
    rows = rows_of(users, many)
    schema = pa.schema([(name, pa.string()) for name in ("who", "item", "place")] + [("day", pa.date32())])
    schema = schema.append(pa.field("n", pa.int64())).append(pa.field("m", pa.int64()))
    with contextlib.ExitStack() as stack:
        opened = []
        for name, more in (("with", extreme_rows(items)), ("without", ())):
            folder = tmp_path_factory.mktemp(name)
            pyarrow.parquet.write_table(pa.Table.from_pylist([*rows, *more], schema), folder / "reads.parquet")
            (folder / "catalog.toml").write_text(CATALOG)
            clock = lambda: datetime.datetime(2026, 11, 20, tzinfo=datetime.UTC)  # noqa: E731
            opened.append(stack.enter_context(Warehouse(load_catalog(folder / "catalog.toml"), clock=clock)))
        yield request.param, *opened


@pytest.mark.parametrize("name", QUESTIONS)
def test_one_extreme_user_decides_no_answer_of_a_warehouse(neighbours, name):
    """The exact data are neighbours; and with the same noise both are answered, without a label of that user alone."""
    question, epsilon = QUESTIONS[name]
    table, *warehouses = neighbours
    with_user, without = warehouses
    plan = without.plan(question, epsilon=epsilon)
    assert with_user.plan(question, epsilon=epsilon) == plan
    dataset = without.question(question).name
    engines = [warehouse.engine(dataset) for warehouse in warehouses]
    check_request(*engines, plan.request, b"s" * 32)
    chosen = set()
    for key in KEYS:
        released = [warehouse.query(question, epsilon=epsilon, key=key) for warehouse in warehouses]
        chosen |= {release.chosen for release in released}
        for release in released:
            assert release.charged.within(plan.worst_cost)
            assert release.to_json()
            if "item" in plan.request.items:
                assert not {*OWN} & {*release.to_arrow()["item"].to_pylist()}
    assert chosen >= CHOSEN.get((table, name), set())


def test_one_extreme_user_decides_no_running_count(neighbours, monkeypatch):
    """Nor where a period is answered again from an older file: with the same noise, at most three counts differ, by 1.

    Three is odd, so that the user changes the parity of the sum of all counts.
    """
    monkeypatch.setattr("os.urandom", bytes)  # equal ids of both streams, and noise that does not depend on the rows
    monkeypatch.setattr(PeriodReader, "_digests_of", lambda *_: [])
    table, *warehouses = neighbours
    answers = []
    for warehouse in warehouses:
        stream = warehouse.running("by_item", KEYS[2])  # with which the user counts for released items
        stream.begin()
        releases = [stream.refresh("2026-11-01")]
        older = stream.answers.read_bytes()
        releases.append(stream.refresh("2026-11-02"))
        stream.answers.write_bytes(older)
        releases.append(stream.refresh("2026-11-02"))
        tables = [release.to_arrow() for release in releases]
        answers.append(
            [dict(zip(*(column.to_pylist() for column in table.columns[:2]), strict=True)) for table in tables]
        )
        assert answers[-1][1] == answers[-1][2]
    for with_user, without in zip(*answers, strict=True):
        assert 3 <= len(without) <= len(ITEMS)
        assert without.keys() <= with_user.keys() <= {*ITEMS}
        more = with_user.keys() - without.keys()  # which one user lifts to the threshold
        changes = [with_user[item] - without[item] for item in without]
        assert {*changes} == ({0} if table == "one item" else {0, 1})
        assert sum(changes) + len(more) <= 3
