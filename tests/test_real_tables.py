"""Real tables, where they are available (../shared/data beside the repository): exact heads, covering intervals."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest
from scipy import stats

import discreet
from discreet.engines.duckdb import DuckDBEngine
from discreet.head_request import HeadRequest
from discreet.noise import KeyedBits
from discreet.testing.engines import rows_of

FOLDER = Path(__file__).parents[2] / "shared" / "data"
FILES = sorted(path for path in FOLDER.glob("*.parquet") if path.stat().st_size < 1_000_000)
"""Larger tables take longer and test nothing else; `python -m papers` reads all of them."""


def _truth(path):
    """Return the number of users of each item: rows, because each pair of user and item is one row in these files."""
    with duckdb.connect() as connection:
        return dict(
            connection.execute("SELECT item, count(*) FROM read_parquet(?) GROUP BY item", [str(path)]).fetchall()
        )


def _ranked(truth):
    """Return items by count, ties by the bytes of the label."""
    ranked = sorted(truth.items(), key=lambda item: item[0].encode() if isinstance(item[0], str) else item[0])
    return [((label,), count) for label, count in sorted(ranked, key=lambda item: -item[1])]


def _holds(release, truth, limit):
    """Check that the released items are of the exact head, with near counts and intervals that cover often enough."""
    labels = release.labels.column(0).to_pylist()
    exact = [truth[label] for label in labels]
    cut = sorted(truth.values(), reverse=True)[limit:][:1] or [0]
    assert len(set(labels)) == len(labels)
    assert min(exact, default=cut[0] + 1) > cut[0]
    assert all(abs(release.counts - exact) <= 6 * release.std_errors)
    missed = len(exact) - sum((release.low <= exact) & (exact <= release.high))
    assert missed <= stats.binom.isf(1e-6, len(exact), 0.05)


if FILES:

    @pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
    def test_heads_and_answers_hold_on_real_tables(path):
        """The head is exact to the last tie; a top k and a release name items of the head, with honest intervals."""
        truth = _truth(path)
        engine = DuckDBEngine(path)
        assert rows_of(engine, HeadRequest("user_id", ("item",), 5000)) == _ranked(truth)[:5001]
        engine.close()
        table = discreet.scan(path, user="user_id")
        top = table.top("item", k=20, epsilon=2, delta="1e-8", bits=KeyedBits(bytes(32), path.stem))
        _holds(top, truth, 1000)
        release = table.release("item", epsilon=2, delta="1e-8", bits=KeyedBits(bytes(32), path.stem))
        _holds(release, truth, 10_000)
        assert len(release) > 0


if (FOLDER / "lastfm-plays.parquet").exists():

    @pytest.mark.parametrize("tau", [1, 20])
    def test_rows_are_clipped_on_a_real_table(tmp_path, tau):
        """A row for each time that a user played an artist, up to 40 of them: at most tau count."""
        path = FOLDER / "lastfm-plays.parquet"
        with duckdb.connect(str(tmp_path / "plays.db")) as connection:
            connection.execute(
                f"""CREATE TABLE plays AS SELECT user_id, item FROM
                (SELECT user_id, item, unnest(range(least(plays, 40))) FROM read_parquet('{path}'))"""
            )
            truth = dict(
                connection.execute(
                    f"SELECT item, sum(least(plays, {tau}))::BIGINT FROM read_parquet('{path}') GROUP BY item"
                ).fetchall()
            )
        engine = DuckDBEngine(tmp_path / "plays.db")
        request = HeadRequest("user_id", ("item",), 5000, rows_per_group=tau)
        assert rows_of(engine, request) == _ranked(truth)[:5001]
        engine.close()
        table = discreet.scan(tmp_path / "plays.db", user="user_id")
        asked = {"epsilon": 4, "delta": "1e-8", "rows_per_group": tau}
        top = table.top("item", k=10, bits=KeyedBits(bytes(32), tau), **asked)
        _holds(top, truth, 1000)
        assert len(top) == 10
        _holds(table.release("item", bits=KeyedBits(bytes(32), tau), **asked), truth, 10_000)
