"""The Python interface: scan, where, top, release, budgets, keys."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
import tempfile
import threading
import warnings
from decimal import Decimal
from fractions import Fraction

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

import discreet
from discreet.errors import BudgetExceeded, DiscreetError, InputError, UnknownColumn, WhereError
from discreet.noise import KeyedBits
from discreet.query.planning import make_plan
from discreet.query.query import Query
from discreet.table import Table
from discreet.testing.pairs import ArrayPairs
from discreet.values import Cost, exact
from tests.queries import query_of
from tests.release.builders import TinyEngine

SECRET = bytes(range(32))
COUNTS = {"a": 4000, "b": 3000, "c": 2000, "d": 1000}


def _rows():
    """Return rows: user u reads a if u < 4000, b if u < 3000, ..., all in country u % 2, and each an own item."""
    pairs = [(user, item) for item, users in COUNTS.items() for user in range(users)]
    pairs += [(user, f"own-{user}") for user in range(4000)]
    return pa.table(
        {
            "user": [user for user, _ in pairs],
            "item": [item for _, item in pairs],
            "country": ["AT" if user % 2 else "IN" for user, _ in pairs],
            "year": [2020 + user % 5 for user, _ in pairs],
        }
    )


ROWS = _rows()


@pytest.fixture
def table():
    """Return the table above."""
    return discreet.scan(ROWS, user="user")


def _bits(context="table"):
    return KeyedBits(SECRET, context)


def _found(release):
    """Return labels in order, and counts to the nearest hundred."""
    labels = [tuple(row.values()) for row in release.labels.to_pylist()]
    return [(*label, round(int(count), -2)) for label, count in zip(labels, release.counts, strict=True)]


def test_top_returns_the_largest_in_order(table):
    """Items of a single user are not released."""
    release = table.top("item", k=3, epsilon=4, bits=_bits())
    assert _found(release) == [("a", 4000), ("b", 3000), ("c", 2000)]
    assert (release.complete, release.ordered, release.mechanism) == (True, True, "unknown-gumbel")
    assert (release.query.k, release.query.options.epsilon, release.query.options.delta) == (3, 4, Fraction(1, 10**8))
    assert release.seconds > 0
    fewer = table.top("item", k=10, epsilon=4, bits=_bits("fewer"))
    assert [label for label, _ in _found(fewer)] == ["a", "b", "c", "d"]
    assert not fewer.complete


def test_release_returns_counts_with_errors_and_without_items_of_single_users(table):
    """Counts have their errors, and items of single users are not released."""
    release = table.release("item", epsilon=4, bits=_bits())
    truth = [COUNTS[label] for label in release.labels.column("item").to_pylist()]
    assert sorted(truth) == [1000, 2000, 3000, 4000]
    assert all(abs(release.counts - truth) < 4 * release.std_errors)
    assert all(release.std_errors < 0.1 * np.array(truth))
    assert (release.complete, release.mechanism, release.query.k) == (False, "auto", None)
    assert release.chosen == "light"
    assert "users" in release.why


def test_filters_are_chained(table):
    """Each `where` adds a condition, and the table itself is unchanged."""
    at = table.where("country = 'AT'")
    both = at.where("YEAR BETWEEN 2020 AND 2021 OR year = 2024")
    found = [_found(t.top("item", k=1, epsilon=8, bits=_bits(n))) for n, t in enumerate((table, at, both))]
    assert found == [[("a", 4000)], [("a", 2000)], [("a", 1200)]]
    nothing = table.where("year = 2020 AND NOT year = 2020").release("item", bits=_bits())
    assert len(nothing) == 0


def test_several_columns_name_an_item(table):
    """Items are a sequence of columns, and labels have their order."""
    release = table.top(["country", "item"], k=2, epsilon=8, bits=_bits())
    assert release.labels.column_names == ["country", "item"]
    assert sorted(_found(release)) == [("AT", "a", 2000), ("IN", "a", 2000)]


def test_a_domain_may_be_a_list_a_table_or_a_file(table, tmp_path):
    """Listed items without rows are included, and other items are not."""
    listed = pa.table({"item": ["a", "z"]})
    pyarrow.csv.write_csv(listed, tmp_path / "d.csv")
    pyarrow.parquet.write_table(listed, tmp_path / "d.parquet")
    domains = [["a", "z"], ("a", "z"), iter(["a", "z"]), listed, tmp_path / "d.csv", str(tmp_path / "d.parquet")]
    for domain in domains:
        release = table.release("item", epsilon=1, domain=domain, bits=_bits())
        assert (_found(release), release.complete) == ([("a", 4000), ("z", 0)], True)
        assert release.guarantee.delta == 0
    pairs = table.top(["country", "item"], k=1, epsilon=4, domain=[("AT", "b"), ("XX", "b")], bits=_bits())
    assert _found(pairs) == [("AT", "b", 1500)]


@pytest.mark.parametrize(
    "domain",
    [
        [],
        ["a", "a"],
        ["a", None],
        [1, "a"],
        [object()],
        [2**70],
        ["\ud800"],
        5,
        b"a",
        "missing.csv",
        pa.table({"other": ["a"]}),
        pa.table([["a"], ["b"]], ["item", "item"]),
        pa.table({"item": pa.array([], pa.string())}),
        pd.DataFrame({"item": ["a", "b"]}),
    ],
    ids=lambda domain: type(domain).__name__,
)
def test_an_invalid_domain_is_refused(table, domain):
    """Empty, duplicate, missing, of two types, unreadable: one sentence each."""
    with pytest.raises(InputError, match="domain") as error:
        table.release("item", domain=domain)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("tau", [1, 3])
def test_rows_are_clipped_per_user_and_item(tau):
    """One user with a million rows counts for tau."""
    rows = pa.table({"user": [n % 2000 for n in range(10_000)] + [1] * 90_000, "item": ["a"] * 100_000})
    release = discreet.scan(rows, user="user").top("item", k=1, epsilon=8, rows_per_group=tau, bits=_bits())
    assert _found(release) == [("a", 2000 * tau)]


def test_a_bound_on_the_items_of_a_user_is_enforced(table):
    """A user with m shared items and an own one keeps one: a shared one with probability m / (m + 1), 2717 in all."""
    release = table.release("item", epsilon=8, groups_per_user=1, bits=_bits())
    assert release.mechanism == "unknown-laplace"
    assert sum(count for _, count in _found(release)) == pytest.approx(1000 * (1 / 2 + 2 / 3 + 3 / 4 + 4 / 5), abs=150)
    whole = table.release("item", epsilon=8, groups_per_user=5, bits=_bits())
    assert _found(whole) == [("a", 4000), ("b", 3000), ("c", 2000), ("d", 1000)]


def test_times_to_the_second_are_named_with_their_period_before_and_after_they_are_paid_for():
    """A plan has a note, which a query warns of, and an empty answer says it; periods and listed times have neither."""
    times = pa.array(range(50), pa.timestamp("s"))
    table = discreet.scan(pa.table({"u": range(50), "at": times}), user="u")
    (note,) = table.plan("at").notes
    assert "count at:day, for example" in note
    assert f"note: {note}>" in repr(table.plan("at"))
    with pytest.warns(UserWarning, match="count at:day, for example"):
        release = table.release("at")
    assert f"more data help; {note.replace('at:day', 'its days')}" in str(release)
    assert table.plan("at:hour").notes == table.plan("at", domain=times.to_pylist()).notes == ()
    one = discreet.scan(pa.table({"u": [1], "at": times[:1]}), user="u").release("at:hour")
    assert len(one) == 0
    assert "its days" not in str(one)


def test_a_large_delta_warns_at_the_call(table):
    """There is one warning, at the caller's line, and an answer."""
    for ask in (table.top, table.release):
        with pytest.warns(UserWarning, match=r"delta = 0\.01 is large") as warned:
            ask("item", delta=0.01, bits=_bits())
        assert [warning.filename for warning in warned] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table.top("item", bits=_bits())


@pytest.mark.parametrize(
    ("ask", "error"),
    [
        (lambda _: discreet.scan(ROWS, user="reader"), UnknownColumn),
        (lambda t: t.top("itme"), UnknownColumn),
        (lambda t: t.top(["item", "itme"]), UnknownColumn),
        (lambda t: t.top([]), InputError),
        (lambda t: t.top("user"), InputError),
        (lambda t: t.top(["item", "ITEM"]), InputError),
        (lambda t: t.where("itme = 'a'"), UnknownColumn),
        (lambda t: t.where("item = 1"), WhereError),
        (lambda t: t.where("item = 'a'; DROP TABLE t"), WhereError),
        (lambda t: t.top("item", k=0), InputError),
        (lambda t: t.top("item", epsilon=0), InputError),
        (lambda t: t.top("item", epsilon=101), InputError),
        (lambda t: t.top("item", delta="tiny"), InputError),
        (lambda t: t.top("item", delta="1/0"), InputError),
        (lambda t: t.top("item", delta=float("nan")), InputError),
        (lambda t: t.top("item", delta="1e400"), InputError),
        (lambda t: t.top("item", groups_per_user=0), InputError),
        (lambda t: t.top("item", rows_per_group=0), InputError),
        (lambda t: t.top("item", rows_per_group=1.5), InputError),
        (lambda t: t.top("item", noise="uniform"), InputError),
        (lambda t: t.top("item", mechanism="magic"), InputError),
        (lambda t: t.release("item", mechanism="two-round", rows_per_group=2), InputError),
        (lambda t: t.release("item", relative_error=2), InputError),
        (lambda t: t.release("item", relative_error="much"), InputError),
        (lambda t: t.top("item", bits=discreet.NoiseKey(b"short", "v")), InputError),
    ],
)
def test_an_impossible_query_is_refused_in_one_sentence(table, ask, error):
    """It is refused before data is read."""
    with pytest.raises(error) as raised:
        ask(table)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (1e-8, Fraction(1, 10**8)),
        ("1e-8", Fraction(1, 10**8)),
        (Decimal("1e-8"), Fraction(1, 10**8)),
        (np.float64(1e-8), Fraction(1, 10**8)),
        (0.1, Fraction(1, 10)),
        ("1/3", Fraction(1, 3)),
        (Fraction(1, 3), Fraction(1, 3)),
        (0, Fraction(0)),
    ],
)
def test_numbers_are_exact(given, meant):
    """1e-8 is one over a hundred million, not the nearest float."""
    assert exact(given, "delta") == meant


def test_a_budget_is_charged_for_what_was_returned(table):
    """Few items cost little; the guarantee of each answer is its worst case."""
    budget = discreet.Budget(4, 1e-8)
    releases = [table.top("item", k=k, epsilon=1, mechanism="gumbel", budget=budget, bits=_bits(k)) for k in (2, 50)]
    assert budget.spent == releases[0].charged + releases[1].charged
    assert budget.held == Cost()
    peel = make_plan(releases[1].query, shared_budget=True).mechanism.epsilon ** 2 / 8
    assert releases[1].charged.rho == Cost(peel * (2 * len(releases[1]) + 1)).rho
    assert releases[1].query.options.delta == Fraction(1, 10**10)
    assert table.top(
        "item", k=2, epsilon=1, delta="1e-9", budget=budget, bits=_bits("d")
    ).query.options.delta == Fraction(1, 10**9)


def test_small_queries_use_up_the_epsilon_of_a_budget_before_its_delta():
    """With a hundredth of delta each, the hundred and first was refused with most of rho left."""
    budget = discreet.Budget(2, "1e-6")
    table = Table(TinyEngine((90_000, 80_000, 1)), "user")
    charged = table.top("item", k=1, epsilon=0.02, budget=budget, bits=_bits("small")).charged
    assert budget.limit.rho / charged.rho < budget.limit.delta / charged.delta
    assert budget.limit.delta / charged.delta > 1_000


class OldPairsEngine(TinyEngine):
    """An engine of another package, whose pair queries were written before `capped_sums` existed."""

    has_pairs = True

    @contextlib.contextmanager
    def pairs(self, request, *, progress=None):  # noqa: ARG002 - the protocol's
        """Return the pairs of 50,000 users with one item each, without capped sums."""
        found = ArrayPairs(
            np.arange(50_000), np.arange(50_000) % 7, pa.table({"item": [f"label-{n}" for n in range(7)]})
        )
        found.capped_sums = None
        yield found


def test_an_engine_that_lacks_a_pair_query_is_found_before_data_is_read():
    """Auto then takes the head, and says so in the answer; a mechanism that needs pairs is refused, free of charge."""
    engine, budget = OldPairsEngine((90_000, 80_000, 1)), discreet.Budget(4, "1e-7")
    release = Table(engine, "user").release("item", epsilon=2, bits=_bits("old"))
    assert (release.mechanism, release.chosen) == ("head", None)
    assert "no pair queries" in release.why
    with pytest.raises(InputError, match="choose head"):
        Table(engine, "user").release("item", epsilon=2, mechanism="two-round", budget=budget)
    assert budget.spent == Cost()
    engine.has_capped_sums = True
    with pytest.raises(TypeError):  # as if it had them: the failure of the first version of this test
        Table(engine, "user").release("item", epsilon=2, bits=_bits("old"))


def test_an_answer_says_what_its_engine_misses_only_if_it_does():
    """Not for a small top k, nor where the mechanism was named: another engine would answer alike."""
    table = Table(TinyEngine((90_000, 80_000, 1)), "user")
    assert "no pair queries" in table.release("item", bits=_bits(1)).why
    assert "no pair queries" in table.top("item", k=10, bits=_bits(2)).why
    assert table.top("item", k=2, bits=_bits(3)).why is None
    assert table.release("item", mechanism="head", bits=_bits(4)).why is None


def test_a_query_beyond_the_budget_is_refused_before_data_is_read():
    """The refused query reads no data, and the remaining budget can be spent."""
    engine, budget = TinyEngine((90_000, 80_000, 1)), discreet.Budget(1, 1e-8)
    table = Table(engine, "user")
    most = make_plan(query_of("user", ("item",), 0.3, budget.delta / 100, k=2), shared_budget=True).worst_cost.rho
    asked = int(budget.limit.rho / most)
    for n in range(asked):
        table.top("item", k=2, epsilon=0.3, budget=budget, bits=_bits(n))
    with pytest.raises(BudgetExceeded):
        table.top("item", k=2, epsilon=0.3, budget=budget, bits=_bits("refused"))
    assert len(engine.requests) == asked > 5
    before = budget.spent
    table.top("item", k=2, epsilon=0.05, budget=budget, bits=_bits("small"))
    assert len(engine.requests) == asked + 1
    assert before.rho < budget.spent.rho <= budget.limit.rho


def test_a_table_answers_several_threads_at_once(table):
    """With one budget every thread gets the answer to its own query, and all are charged."""
    budget, found, faults = discreet.Budget(20, 1e-8), {}, []
    domains = [["a", "b"], ["b", "c"], ["c", "d"], ["d", "a"]]
    start = threading.Barrier(4)

    def ask(n):
        try:
            start.wait()
            for _ in range(3):
                found[n] = table.release("item", epsilon=2, domain=domains[n], budget=budget)
        except Exception as fault:  # noqa: BLE001 - whatever it was, it is shown
            faults.append(repr(fault))

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert {n: sorted(_found(release)) for n, release in found.items()} == {
        n: sorted((item, COUNTS[item]) for item in domain) for n, domain in enumerate(domains)
    }
    assert budget.spent.rho == Cost(sum(3 * release.charged.rho for release in found.values())).rho


def test_a_noise_key_gives_equal_queries_equal_answers(table):
    """A repeated query gets the same bytes and a computational guarantee; a changed query gets other noise."""
    noise = discreet.NoiseKey(SECRET, "2024-01")

    def asked(ask, **parts):
        return ask("item", bits=noise, **parts).timed(0).to_json()

    again = discreet.scan(ROWS, user="user")
    assert asked(table.top) == asked(again.top)
    assert asked(table.release) == asked(again.release)
    assert table.top("item", bits=noise).guarantee.computational
    assert not table.top("item").guarantee.computational
    others = [asked(table.top, k=9), asked(table.top, epsilon=1.01), asked(table.where("year > 0").top)]
    assert len({asked(table.top), *others}) == 4


def test_keyed_noise_does_not_depend_on_how_a_path_is_spelled(tmp_path, monkeypatch):
    """Fresh noise for equal queries by another path would average out."""
    folder = tmp_path / "data"
    folder.mkdir()
    pyarrow.parquet.write_table(ROWS, folder / "t.parquet")
    with duckdb.connect(str(folder / "t.db")) as database:
        database.execute("CREATE TABLE rows AS FROM ROWS")
    (tmp_path / "link.parquet").symlink_to(folder / "t.parquet")
    monkeypatch.chdir(folder)
    spellings = ["t.parquet", "./t.parquet", "../data/t.parquet", folder / "t.parquet", "t*.parquet", "../link.parquet"]
    databases = ["t.db", "../data/t.db", f"duckdb:///{folder}/t.db", "duckdb:///t.db?table=rows"]
    noise = discreet.NoiseKey(SECRET, "1")
    for sources in (spellings, databases):
        answers = [discreet.scan(source, user="user").top("item", bits=noise).to_csv() for source in sources]
        assert len(set(answers)) == 1


def test_lone_surrogates_are_refused(table):
    """Lone surrogates, as from a command line in another encoding, raise our own error with and without a key."""
    for bits in (None, discreet.NoiseKey(SECRET, "v")):
        with pytest.raises(DiscreetError):
            table.where("item = '\udcff'").top("item", bits=bits)
    with contextlib.suppress(DiscreetError):  # a version may also be taken as it is
        table.top("item", bits=discreet.NoiseKey(SECRET, "\udcff"))


def test_files_have_a_version_and_frames_do_not(table, tmp_path):
    """The version for a noise key changes with the file."""
    pyarrow.parquet.write_table(ROWS.slice(0, 10), tmp_path / "t.parquet")
    before = discreet.scan(tmp_path / "t.parquet", user="user").data_version
    os.utime(tmp_path / "t.parquet", (1, 1))
    after = discreet.scan(tmp_path / "t.parquet", user="user").data_version
    assert before != after
    assert str(tmp_path / "t.parquet") in before
    assert table.data_version is None


def test_progress_is_passed_to_the_engine():
    """The engine calls it with shares."""
    engine, progress = TinyEngine(), [].append
    Table(engine, "user").top("item", progress=progress, bits=_bits())
    assert [given for _, _, given in engine.requests] == [progress]


def test_temporary_tables_are_dropped(tmp_path, monkeypatch):
    """Neither files nor warnings, when a table is forgotten and when the program ends without a word."""
    pyarrow.parquet.write_table(ROWS, tmp_path / "t.parquet")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    discreet.scan(tmp_path / "t.parquet", user="user").top("item")
    gc.collect()
    assert list(temporary.iterdir()) == []
    script = (
        f"import discreet; t = discreet.scan({str(tmp_path / 't.parquet')!r}, user='user'); print(len(t.top('item')))"
    )
    environment = {**os.environ, "TMPDIR": str(temporary)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "4\n", "")
    assert list(temporary.iterdir()) == []


def test_the_query_is_kept_with_the_release(table):
    """The bound query: the table's own names, the filter, and what was declared."""
    release = table.where("YEAR = 2020").top("ITEM", k=2, groups_per_user=3, rows_per_group=2, bits=_bits())
    assert isinstance(release.query, Query)
    assert (release.query.request.user, release.query.request.items, release.query.k) == ("user", ("item",), 2)
    assert (release.query.sensitivity.groups_per_user, release.query.sensitivity.rows_per_group) == (3, 2)
    assert release.to_dict()["query"]["filtered"] is True


def test_leaving_a_table_closes_its_engine(tmp_path):
    """Temporary files and views go when the `with` block ends, not when the table is garbage."""
    log = tmp_path / "reads.csv"
    log.write_text("user,item\n" + "".join(f"{user},news\n" for user in range(500)))
    with discreet.scan(log, user="user") as table:
        assert len(table.top("item", k=1)) == 1
    with pytest.raises(discreet.EngineError, match="was closed; open it again"):
        table.top("item", k=1)
