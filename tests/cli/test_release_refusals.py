"""Bad input: one clear sentence on standard error, exit code 2, nothing on standard output, nothing written."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

CASES = [
    # arguments added to `discreet top reads.parquet --user reader --item article`, and the expected sentence
    (["--user", "readr"], "there is no user column 'readr'; did you mean 'reader'?"),
    (["--item", "artcle"], "there is no item column 'artcle'; did you mean 'article'?"),
    (["--item", "article"], "an item column is named twice"),
    (["--item", "reader"], "column 'reader' cannot be both the user and an item"),
    (["--item", "score"], "column 'score' holds floating-point numbers"),
    (["--user", "score"], "column 'score' holds floating-point numbers"),
    (["--epsilon", "0"], "epsilon must be a number of at least 1e-06, not 0"),
    (["--epsilon", "-1"], "epsilon must be a number of at least 1e-06, not -1"),
    (["--epsilon", "nan"], "epsilon must be a number of at least 1e-06, not nan"),
    (["--epsilon", "inf"], "epsilon must be a number of at least 1e-06, not inf"),
    (["--epsilon", "101"], "epsilon must be at most 100"),
    (["--epsilon", "much"], "epsilon must be a number, not 'much'"),
    (["--delta", "0"], "delta must be below 1 and at least 1e-20, not 0"),
    (["--delta", "1"], "delta must be below 1 and at least 1e-20, not 1"),
    (["--delta", "-1e-8"], "delta must be below 1 and at least 1e-20, not -1e-08"),
    (["--epsilon", "101"], "above that nothing is protected; allow it with --force"),
    (["--delta", "nan"], "delta must be a finite number, not 'nan'"),
    (["-k", "0"], "k must be at least 1, not 0"),
    (["-k", "ten"], "'ten' is not a valid integer"),
    (["-k", "5", "--head-limit", "4"], "k must be at most the head limit, 4, not 5"),
    (["--head-limit", "0"], "the head limit must be from 1 to 10,000,000, not 0"),
    (["--groups-per-user", "0"], "groups per user must be at least 1"),
    (["--rows-per-group", "0"], "rows per user and item must be from 1"),
    (
        ["--mechanism", "magic"],
        "'magic' is not one of 'auto', 'gumbel', 'laplace', 'stable', 'head', ",
    ),
    (["--mechanism", "pcr"], "the pcr mechanism releases as many counts as it can"),
    (["--mechanism", "laplace"], "needs a bound on the items of one user (--groups-per-user)"),
    (["--mechanism", "stable"], "returns a set without counts; request labels only (--no-counts)"),
    (["--average", "year", "--bound", "9"], "an average of rows needs --rows-per-group: the most rows"),
    (["--average", "year", "--bound", "9"], "divide --sum year by the counts of users"),
    (["--average", "year", "--bound", "9", "--rows-per-group", "2", "--no-counts"], "leave out --no-counts"),
    (["--mean", "year"], "There is no option --mean: use --average"),
    (["--estimate"], "There is no option --estimate: use discreet plan"),
    (["--k", "5"], "There is no option --k: use -k"),
    (["--item", "rows_per_group"], "there is no item column 'rows_per_group'"),
    (["--where", '"rows_per_group" = 1'], "there is no column 'rows_per_group'"),
    (["--where", "reader IN (SELECT 1)"], "at character 1: subqueries are not allowed"),
    (["--where", "upper(article) = 'A'"], "at character 1: functions are not allowed"),
    (["--where", "year = 1; DROP TABLE x"], "at character 9: ; is not allowed"),
    (["--where", "year = 1 -- x"], "at character 10: comments are not allowed"),
    (["--where", "year = 'x'"], "column 'year' holds whole numbers and cannot be compared with text"),
    (["--where", "yaer = 1"], "there is no column 'yaer'; did you mean 'year'?"),
    (["--where", ""], "it is empty"),
    (["--domain", "nowhere.csv"], "there is no domain file 'nowhere.csv'"),
    (["--key", "nowhere.key"], "the noise key 'nowhere.key' cannot be read: no such file or directory"),
    (["--data-version", "1"], "--data-version has no effect without --key"),
    (["--table", "reads"], "is not a DuckDB database"),
    (["--format", "xml"], "'xml' is not one of"),
    (["--format", "parquet"], "name a file with --output"),
    (["--output", "nowhere/x.csv"], "there is no folder 'nowhere'"),
    (["--output", "."], "'.' is a folder; name a file"),
    (["--plot", "x.gif"], "plots end in .png, .svg or .pdf, not 'x.gif'"),
    (["--output", "x.png", "--format", "csv", "--plot", "x.png"], "the output and the plot cannot be the same file"),
    (["--output", "x.xlsx"], "'x.xlsx' chooses no format; end it in .csv, .json, .parquet or .txt"),
    (["--no-counts", "--plot", "x.png"], "labels without counts cannot be plotted"),
]


@pytest.fixture(autouse=True)
def empty_directory(tmp_path, monkeypatch):
    """Return an empty working directory, which must stay empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("arguments", "sentence"), CASES, ids=[" ".join(arguments) for arguments, _ in CASES])
def test_bad_input_is_refused_in_one_sentence(ask, empty_directory, arguments, sentence):
    """Exit 2, a sentence that names the mistake, no traceback, no record, no file."""
    ran = ask("top", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("discreet: ")
    assert sentence in ran.err
    assert ran.err.count("\n") == 1
    assert list(empty_directory.iterdir()) == []


@pytest.mark.parametrize("error", ["0", "1", "-0.1", "2", "nan", "some"])
def test_a_relative_error_is_between_0_and_1(ask, error):
    """0 and 1 themselves are refused too."""
    ran = ask("release", "--relative-error", error)
    assert ran.code == 2
    assert "the relative error must be" in ran.err


def test_two_rounds_of_bounded_users_are_refused(ask):
    """`release --mechanism two-round` with a bound is refused with an alternative."""
    ran = ask("release", "--mechanism", "two-round", "--groups-per-user", 3)
    assert ran.code == 2
    assert "leave the bounds out" in ran.err


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("no.parquet", None, "there is no file 'no.parquet'"),
        ("empty.parquet", b"", "the file 'empty.parquet' is empty"),
        ("notes.txt", b"some notes", "the file 'notes.txt' is neither Parquet nor named as CSV"),
        ("half.parquet", b"PAR1 and no more", "half.parquet cannot be read as the table it should be"),
        ("wild.csv", b'\xff\xfe\x00,"\n"', "wild.csv cannot be read as the table it should be"),
        (".", None, "'.' is a folder; name its files"),
        ("*.parquet", None, "no file matches '*.parquet'"),
        ("duckdb:x", None, "a DuckDB URL looks like duckdb:///file.db?table=name"),
    ],
)
def test_a_source_that_is_no_table_is_refused(run, empty_directory, name, content, sentence):
    """For any content, the sentence names the file and shows nothing of it."""
    if content is not None:
        (empty_directory / name).write_bytes(content)
    ran = run("top", name, "--user", "u", "--item", "i")
    assert (ran.code, ran.out) == (2, "")
    assert sentence in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize("option", ["--output", "--plot"])
def test_an_existing_file_is_kept_unless_forced(ask, empty_directory, option):
    """Refused before counting; --force replaces it."""
    target = empty_directory / ("kept.txt" if option == "--output" else "kept.svg")
    target.write_text("kept")
    assert f"'{target.name}' exists; --force overwrites it" in ask("top", option, target.name).err
    assert target.read_text() == "kept"
    assert ask("top", option, target.name, "--force").code == 0
    assert target.read_text() != "kept"


def test_a_folder_that_cannot_be_written_is_refused_before_counting(ask):
    """Missing permission is detected before the charge."""
    ran = ask("top", "--output", "/proc/out.csv")
    assert ran.code == 2
    assert "does not allow writing 'out.csv'" in ran.err


def test_epsilon_above_100_can_be_forced(ask):
    """With --force, an epsilon above 100 is accepted."""
    assert ask("top", "--epsilon", "101", "--force").code == 0


def test_a_short_key_is_refused(ask, empty_directory):
    """A secret has 32 bytes or more; the sentence does not show it."""
    (empty_directory / "short.key").write_bytes(b"hunter2")
    (empty_directory / "short.key").chmod(0o600)
    ran = ask("top", "--key", "short.key", "--quiet")
    assert ran.code == 2
    assert "at least 32 bytes" in ran.err
    assert "hunter2" not in ran.err


def test_a_csv_label_is_text(run, empty_directory):
    """007 and 7 are two items, although they are equal as numbers."""
    rows = [f"{reader},{label}" for reader in range(300) for label in ("007", "7")]
    (empty_directory / "agents.csv").write_text("\n".join(["reader,agent", *rows]))
    ran = run("top", "agents.csv", "--user", "reader", "--item", "agent", "-k", 2, "--epsilon", 20, "--format", "csv")
    assert {line.split(",")[1] for line in ran.out.splitlines()[1:]} == {'"007"', '"7"'}


@pytest.mark.parametrize(("where", "found"), [("agent = '007'", {'"007"'}), ("agent = 7", {'"007"', '"7"'})])
def test_a_csv_label_is_read_with_the_type_of_the_constant(run, empty_directory, where, found):
    """Text with text, a number with numbers; no row decides how another is parsed."""
    rows = [f"{reader},{label}" for reader in range(300) for label in ("007", "7", "M")]
    (empty_directory / "agents.csv").write_text("\n".join(["reader,agent", *rows]))
    arguments = ("--user", "reader", "--item", "agent", "-k", 2, "--epsilon", 20, "--format", "csv", "--where", where)
    ran = run("top", "agents.csv", *arguments)
    assert {line.split(",")[1] for line in ran.out.splitlines()[1:]} == found


def test_an_engine_failure_exits_with_3_and_hides_the_engines_message(run, empty_directory):
    """An engine's message about the data is not shown."""
    items = [7_777_000 + n for n in range(100_000)]  # text is read when the file is opened, integers only by queries
    pq.write_table(pa.table({"u": range(100_000), "i": items}), empty_directory / "cut.parquet")
    whole = (empty_directory / "cut.parquet").read_bytes()
    (empty_directory / "cut.parquet").write_bytes(whole[:2000] + bytes(len(whole) - 4000) + whole[-2000:])
    ran = run("top", "cut.parquet", "--user", "u", "--item", "i")
    assert (ran.code, ran.out) == (3, "")
    assert "777" not in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["top"], ["top", "--nonsense"]])
def test_usage_errors_are_refused(run, arguments):
    """Usage errors are one sentence with a reference to the help; no arguments show the help."""
    ran = run(*arguments)
    assert ran.code == 2
    assert "--help" in ran.err
