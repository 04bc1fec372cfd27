"""Made-up tables have the statistics they claim; official files are read as they are published."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import click
import duckdb
import numpy as np
import pytest

from papers.__main__ import parse_official
from papers.generators import GENERATORS, by_contributions, draw_distinct, quantiles, zipf
from papers.official import LOADERS, load, tokenize
from papers.tables import REAL, Tables

if TYPE_CHECKING:
    from papers.user_items import UserItems

TABLES = Tables()

# users, items, distinct items per user at 50, 75, 95 and 99 % (Rogers 2024, Table 1)
BY_CONTRIBUTIONS = {
    "pcr-finance": (1_400_469, 6_193, (1, 1, 1, 1)),
    "pcr-reddit-small": (341, 10_575, (23, 50, 128, 330)),
    "pcr-reddit": (223_388, 153_704, (23, 56, 194, 450)),
    "pcr-wikipedia": (245_103, 631_855, (84, 164, 390, 589)),
    "pcr-movielens": (162_541, 59_047, (71, 162, 554, 1228)),
}
# users, items, share of items with one user, users per item at 50, 99 and 100 % (Carvalho et al. 2020, Table 1)
BY_COUNTS = {
    "ts-gowalla": (107_092, 1_280_968, 0.49, (2, 24, 2931)),
    "ts-brightkite": (51_406, 772_966, 0.87, (1, 7, 3204)),
    "ts-foursquare": (2_293, 100_191, 0.60, (1, 28, 1274)),
}
LARGE = {"pcr-reddit": 20, "pcr-wikipedia": 40, "pcr-movielens": 40}


def duplicates(table: UserItems) -> int:
    """Return how many pairs occur in the table more than once."""
    pairs = np.sort(table.users * len(table.counts) + table.items)
    return int(np.count_nonzero(pairs[1:] == pairs[:-1]))


def test_every_table_of_the_two_papers_can_be_made_up_and_loaded():
    """Generators, loaders and the published statistics above are about the same tables."""
    assert {*BY_CONTRIBUTIONS, *BY_COUNTS} == set(LOADERS) <= set(GENERATORS)


@pytest.mark.parametrize("name", sorted(BY_CONTRIBUTIONS.keys() - LARGE.keys()))
def test_a_table_made_up_by_contributions_has_the_published_users_domain_and_percentiles(name):
    """All of Table 1's columns, the 99th percentile of the smallest to within one percent."""
    users, items, percentiles = BY_CONTRIBUTIONS[name]
    table = TABLES.made_up(name)
    assert (table.number_of_users, len(table.counts)) == (users, items)
    assert table.counts.min() >= 1
    assert np.percentile(table.contributions, (50, 75, 95, 99)) == pytest.approx(percentiles, rel=0.01)
    assert duplicates(table) == 0


@pytest.mark.parametrize("name", sorted(LARGE))
def test_a_part_of_a_large_table_has_the_published_percentiles_and_its_share_of_users(name):
    """The tables too large to make here: of a part, all but the domain is held to Table 1."""
    users, items, percentiles = BY_CONTRIBUTIONS[name]
    table = TABLES.made_up(f"{name}/{LARGE[name]}")
    assert table.number_of_users == users // LARGE[name]
    assert np.percentile(table.contributions, (50, 75, 95, 99)) == pytest.approx(percentiles, rel=0.002)
    assert items // LARGE[name] <= len(table.counts) <= items
    assert table.contributions.min() >= (20 if name == "pcr-movielens" else 1)
    assert table.counts.min() >= 1
    assert duplicates(table) == 0
    assert f"(made up, 1/{LARGE[name]} of the users)" in table.name


@pytest.mark.parametrize("name", sorted(BY_COUNTS))
def test_a_table_made_up_by_counts_has_the_published_users_domain_and_counts(name):
    """All of Table 1's columns; the largest count is one item's alone."""
    users, items, ones, percentiles = BY_COUNTS[name]
    table = TABLES.made_up(name)
    assert (table.number_of_users, len(table.counts)) == (users, items)
    assert np.mean(table.counts == 1) == pytest.approx(ones, abs=0.001)
    assert tuple(np.percentile(table.counts, (50, 99, 100))) == percentiles
    assert table.head[0] > table.head[1]
    assert table.contributions.min() >= 1
    assert duplicates(table) == 0


def test_a_part_of_a_table_made_up_by_counts_has_its_share_of_the_users_and_of_the_largest_count():
    """The users of a part are no special ones: the head shrinks as the users do."""
    whole, part = TABLES.made_up("ts-brightkite"), TABLES.made_up("ts-brightkite/4")
    assert part.number_of_users == whole.number_of_users // 4
    assert part.head[:10].sum() == pytest.approx(whole.head[:10].sum() / 4, rel=0.05)
    assert part.contributions.mean() == pytest.approx(whole.contributions.mean(), rel=0.05)


def test_a_part_of_a_large_table_looks_like_the_first_of_its_users():
    """A quarter of the users has a quarter of the head, whichever divisor made it."""
    larger, smaller = TABLES.made_up("pcr-reddit/20"), TABLES.made_up("pcr-reddit/80")
    assert smaller.head[:20] == pytest.approx(larger.head[:20] / 4, rel=0.05)


def test_a_made_up_table_is_reproducible_and_labelled_as_made_up():
    """Two makings agree pair by pair; another name has other pairs."""
    one, other = Tables().made_up("ts-foursquare"), Tables().made_up("ts-foursquare")
    assert np.array_equal(one.users, other.users)
    assert np.array_equal(one.items, other.items)
    assert one.name == "Foursquare (made up)"
    part = TABLES.made_up("ts-foursquare/2")
    assert part.name == "Foursquare (made up, 1/2 of the users)"


def test_the_head_of_made_up_words_is_near_the_head_of_real_ones():
    """Zipf's law with the shift and exponent of the word tables, with real contributions, gives real counts."""
    if not TABLES.has("imdb-words"):
        pytest.skip("the real table is not there")
    with duckdb.connect() as connection:
        pairs = connection.read_parquet(str(REAL / "imdb-words.parquet"))
        head, sizes = (
            pairs.query("pairs", f"SELECT count(*) AS n FROM pairs GROUP BY {column} ORDER BY n DESC").fetchnumpy()["n"]
            for column in ("item", "user_id")
        )
    places = np.linspace(0, 1, 21)
    percentiles = dict(zip(places.tolist(), np.quantile(sizes, places).astype(int).tolist(), strict=True))
    words_alike = by_contributions("words", len(sizes), len(head), percentiles, 1.2, 8)
    made = words_alike(20, np.random.default_rng(1))
    ranks = np.array([1, 10, 30, 100, 300, 1000]) - 1
    assert made.head[ranks] * 20 == pytest.approx(head[ranks], rel=0.2)


def test_rows_draw_distinct_columns_by_weight_and_every_covered_column_once():
    """Sizes are met, covered columns appear, and the last column's frequency is that of successive sampling."""
    rng = np.random.default_rng(7)
    sizes = np.full(40_000, 2)
    rows, columns = draw_distinct(sizes, np.array([3.0, 1.0, 1.0]), np.array([], dtype=np.int64), rng)
    assert np.array_equal(np.bincount(rows), sizes)
    # the heavy column is missed only if both draws are light ones: 2/5 then 1/4
    assert np.bincount(columns)[0] / 40_000 == pytest.approx(1 - 2 / 5 * 1 / 4, abs=0.006)
    rows, columns = draw_distinct(np.array([3, 1, 2]), zipf(100, 3, 0), np.array([97, 98, 99]), rng)
    assert np.bincount(columns, minlength=100)[97:].tolist() == [1, 1, 1]
    assert np.bincount(rows).tolist() == [3, 1, 2]


def test_quantiles_pass_through_what_is_given_and_never_fall():
    """A quantile function: given points are met, values ascend."""
    places = np.linspace(0, 1, 1001)
    found = quantiles({0: 3, 0.5: 20, 0.9: 100, 1: 5000}, places)
    assert found[[0, 500, 900, 1000]].tolist() == [3, 20, 100, 5000]
    assert (np.diff(found) >= 0).all()


def test_words_keep_case_and_punctuation_and_lose_urls_and_removed_comments():
    """The rule of the set-union experiments, on a text that has everything."""
    text = "Don't [removed] see https://a.b/c and the rest\nIt's U.S. news, \"ok\"? Yes [deleted] cost 3.50... end."
    assert tokenize(text) == [
        *("Do", "n't", "see", "It", "'s", "U.S.", "news", ",", '"', "ok", '"', "?"),
        *("Yes", "cost", "3.50", "...", "end", "."),
    ]


def test_check_ins_of_snap_are_read_from_their_compressed_file(tmp_path):
    """Users and places, each pair once; a check-in without a place is left out."""
    file = tmp_path / "loc-gowalla_totalCheckins.txt.gz"
    lines = ["0\t2010-10-19T23:55:27Z\t30.2\t-97.7\t22847", "0\t2010-10-18T22:17:43Z\t30.2\t-97.7\t22847"]
    lines += ["0\t2010-10-18T22:17:43Z\t30.3\t-97.6\t420315", "7\t2010-10-17T23:42:03Z\t30.2\t-97.7\t22847"]
    lines += ["9\t\t\t\t"]
    file.write_bytes(gzip.compress("\n".join(lines).encode()))
    table = load("ts-gowalla", file)
    assert table.name == "Gowalla"
    assert (table.users.tolist(), table.items.tolist()) == ([0, 0, 1], [0, 1, 0])
    assert load("ts-brightkite", file).name == "BrightKite"


def test_check_ins_of_foursquare_are_read_from_both_cities(tmp_path):
    """Latin-1 text with stray quotes; users with the same id in two cities are one, as in the paper."""
    line = '{}\t{}\t4bf5\tCaf\xe9 "x\t40.7\t-74.0\t-240\tTue Apr 03 18:00:09 +0000 2012\n'
    (tmp_path / "dataset_TSMC2014_NYC.txt").write_text(line.format(5, "a") + line.format(6, "b"), encoding="latin-1")
    (tmp_path / "dataset_TSMC2014_TKY.txt").write_text(line.format(5, "c"), encoding="latin-1")
    table = load("ts-foursquare", tmp_path)
    assert (table.number_of_users, len(table.counts), table.contributions.tolist()) == (2, 3, [2, 1])
    assert load("ts-foursquare", tmp_path / "dataset_TSMC2014_TKY.txt").number_of_users == 1


def test_ratings_of_movielens_are_read(tmp_path):
    """Header, four columns; a rating is a pair."""
    file = tmp_path / "ratings.csv"
    file.write_text("userId,movieId,rating,timestamp\n1,296,5.0,1147880044\n1,306,3.5,1147868817\n2,296,1.0,12\n")
    assert load("pcr-movielens", file).head.tolist() == [2, 1]


def test_stock_symbols_are_read_and_each_row_is_a_user(tmp_path):
    """A row without a symbol is no user."""
    file = tmp_path / "raw_analyst_ratings.csv"
    file.write_text(
        ',headline,url,publisher,date,stock\n0,"Up, up",http://x,P,2020-06-05,A\n1,Down,http://y,P,2020-06-05,A\n'
        "2,No,http://z,P,2020-06-05,\n3,B up,http://z,P,2020-06-05,B\n"
    )
    table = load("pcr-finance", file)
    assert (table.number_of_users, table.head.tolist()) == (3, [2, 1])


def test_comments_are_read_by_author_and_the_small_sample_is_the_first_authors(tmp_path):
    """Clean text is split at spaces; all comments of an author count together, also of an author of the sample."""
    file = tmp_path / "clean_askreddit.csv"
    file.write_text(",author,clean_text\n0,ann,I do n't\n1,bob,do it .\n2,ann,I do .\n")
    table = load("pcr-reddit", file)
    assert (table.contributions.tolist(), table.head.tolist()) == ([4, 3], [2, 2, 1, 1, 1])
    many = "".join(f"{i},a{i},w{i}\n" for i in range(400)) + "400,a0,again\n"
    file.write_text(",author,clean_text\n" + many)
    sample = load("pcr-reddit-small", file)
    assert (sample.number_of_users, len(sample.counts), sample.contributions[0]) == (341, 342, 2)
    file.write_text(",author,body\n0,ann,I don't http://x y z\n")
    assert load("pcr-reddit", file).contributions.tolist() == [3]


def test_abstracts_are_read_and_each_page_is_a_user(tmp_path):
    """Words of the abstract, each once a page; a page without an abstract is no user."""
    file = tmp_path / "abstracts.csv"
    file.write_text('title,abstract_original\nA,"The cat. The dog."\nB,\nC,The end\n')
    table = load("pcr-wikipedia", file)
    assert (table.contributions.tolist(), table.head.tolist()) == ([4, 2], [2, 1, 1, 1, 1])


def test_an_official_file_that_was_named_is_a_real_table(tmp_path):
    """Without one the paper's table is not there; with one it is, and no folder of real tables is needed."""
    file = tmp_path / "ratings.csv"
    file.write_text("userId,movieId,rating,timestamp\n1,296,5.0,1147880044\n")
    assert not Tables(tmp_path).has("pcr-movielens")
    tables = Tables(tmp_path, parse_official(None, None, (f"pcr-movielens={file}",)))
    assert tables.has("pcr-movielens")
    assert tables.real("pcr-movielens").name == "MovieLens 25M"


@pytest.mark.parametrize("value", ["pcr-movielens", "pcr-movielens=/no/such/file", "gowalla=.", "=."])
def test_an_official_file_that_is_not_there_or_of_no_paper_is_refused(value):
    """NAME=PATH, an existing path, a name that has a loader."""
    with pytest.raises(click.BadParameter, match="NAME=PATH"):
        parse_official(None, None, (value,))


def test_a_real_table_is_read_with_dense_numbers_and_each_pair_once(tmp_path):
    """Users and items are numbered in their own order."""
    with duckdb.connect() as connection:
        connection.sql(
            "SELECT * FROM (VALUES (30, 'b'), (10, 'a'), (30, 'b'), (30, 'a'), (20, 'c')) t(user_id, item)"
        ).write_parquet(str(tmp_path / "small.parquet"))
    tables = Tables(tmp_path)
    assert tables.has("small")
    assert not tables.has("absent")
    table = tables.real("small")
    assert list(zip(table.users.tolist(), table.items.tolist(), strict=True)) == [(0, 0), (1, 2), (2, 0), (2, 1)]
    assert tables.real("small") is table
