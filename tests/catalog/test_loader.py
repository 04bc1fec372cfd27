"""Every mistake in a catalog has its own sentence with its place in the file."""

from __future__ import annotations

import hashlib
import re
from itertools import product
from pathlib import Path

import pytest
from pydantic import ValidationError

from discreet.catalog.loader import CatalogError, load_catalog, load_with_digest, validation_errors
from discreet.errors import InputError
from tests.catalog.cases import read_cases

SHORT = {
    "@engine": 'engines.w.url = "postgresql://reader@db/warehouse"',
    "@dataset": '[datasets.d]\nsource = "t.csv"\nuser = "u"\ncolumns.a = { type = "text", group = true }',
}
WORDS_OF_PYDANTIC = re.compile(
    r"pydantic|validation|Input|Field|input_|Extra|should|valid |instance|errors?\b", re.ASCII
)


CASES = read_cases("broken.txt", SHORT)


@pytest.fixture
def refusal(tmp_path):
    """Return the error of a catalog with a given text."""

    def load(text: str) -> CatalogError:
        path = tmp_path / "catalog.toml"
        path.write_text(text, "utf-8")
        with pytest.raises(CatalogError) as caught:
            load_catalog(path)
        return caught.value

    return load


@pytest.mark.parametrize(("text", "expected"), CASES, ids=[expected[0][:60] for _, expected in CASES])
def test_a_broken_catalog_is_refused_with_these_sentences(refusal, text, expected):
    """All mistakes are reported with their places, and the exception chain holds no error of a library."""
    error = refusal(text)
    assert [str(mistake) for mistake in error.mistakes] == expected
    assert str(error).splitlines()[1:] == [f"  {sentence}" for sentence in expected]
    assert error.__cause__ is None
    assert error.__context__ is None or error.__suppress_context__
    assert "hunter2" not in str(error)
    assert "battery" not in str(error)


def test_there_are_broken_catalogs():
    """The test above has enough catalogs, each with a mistake."""
    assert len(CASES) > 100
    assert all(expected for _, expected in CASES)


SETTINGS = {
    "engines.w": "url password_env timeout_seconds connections",
    "datasets.d": "description engine source table view user groups_per_user rows_per_group missing_labels "
    "data_version retention_days max_head_limit max_k columns",
    "datasets.d.data_version": "schedule at zone day query",
    "datasets.d.columns.b": "type group filter sum domain",
    "datasets.d.columns.b.sum": "low high",
    "datasets.d.columns.b.domain": "query file",
    "datasets.d.running.s": "items where column each first periods groups_per_user pilot epsilon delta answers account",
}
BESIDE = {
    "datasets.d.data_version": ('schedule = "weekly"', 'schedule = "hourly"'),
    "datasets.d.columns.b": ('type = "integer"\ngroup = true', 'type = "text"\ngroup = true', 'type = "float"'),
}
"""What stands in the same table, because it decides what else may."""
VALUES = [
    *("5", "-1", "0", "0.5", "1e400", "inf", "nan", "99999999999999999999999", "true", "false"),
    *('""', '"\\u0000"', '"hunter2"', '"postgresql://a:hunter2@b"', '"SELECT;"', "2026-11-20", "04:00:00"),
    *("2026-11-20T12:00:00Z", "[]", "[[]]", "[5, 'a', {}]", "{}", "{ x = 1 }", "{ low = 1 }", "{ low = 5, high = 1 }"),
    *("{ query = 5 }", "{ file = 5 }", "{ schedule = 5 }"),
]


@pytest.mark.parametrize("table", SETTINGS)
def test_every_setting_refuses_invalid_values_in_our_own_message(tmp_path, table):
    """For every setting and kind of value the message names the place, in no words of pydantic."""
    path = tmp_path / "catalog.toml"
    for setting, value, beside in product(SETTINGS[table].split(), VALUES, ("", *BESIDE.get(table, ()))):
        others = "\n".join(line for line in beside.splitlines() if not line.startswith(setting))
        path.write_text(f"mistake = 1\n[{table}]\n{setting} = {value}\n{others}\n", "utf-8")
        with pytest.raises(CatalogError) as caught:
            load_catalog(path)
        sentences = [str(mistake) for mistake in caught.value.mistakes]
        assert sentences[-1].startswith("'mistake' is not a setting"), sentences
        assert not any(found in sentence for sentence in sentences for found in ("~", "[key]", "hunter2")), sentences
        assert not any(map(WORDS_OF_PYDANTIC.search, sentences)), sentences


def test_an_unforeseen_mistake_is_reported_without_words_of_pydantic():
    """An error type that is unknown to this version has a general message."""
    location = ("datasets", "d", "user")
    error = ValidationError.from_exception_data(
        "Catalog", [{"type": "url_parsing", "loc": location, "ctx": {"error": "x"}}]
    )
    assert [str(mistake) for mistake in validation_errors(error)] == ["datasets.d.user: is not what this setting takes"]


def test_messages_of_pydantic_are_recognised():
    """The test above can fail: pydantic's messages for the most common mistakes are recognised."""
    for sentence in ("Input should be a valid integer", "Field required", "Extra inputs are not permitted"):
        assert WORDS_OF_PYDANTIC.search(sentence)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "there is no such file"),
        ("folder", "it cannot be read: is a directory"),
        (b"\xff\xfe", "it is not UTF-8 text"),
        (b"a = " + b"9" * 5000, "a number is too long, or lists are nested too deep"),
        (b"a = " + b"[" * 5000, "a number is too long, or lists are nested too deep"),
        (b"a = 1e99999999999999999999", "a number is too long, or lists are nested too deep"),
    ],
    ids=["missing", "folder", "bytes", "digits", "brackets", "exponent"],
)
def test_a_file_that_cannot_be_read_is_refused_with_its_name(tmp_path, content, expected):
    """The message for any unreadable file names the file and the problem."""
    path = tmp_path / "catalog.toml"
    if content == "folder":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match="cannot be used") as caught:
        load_catalog(path)
    assert isinstance(caught.value, CatalogError)
    assert caught.value.path == path
    assert str(path) in str(caught.value)
    assert expected in str(caught.value)


def test_the_digest_is_of_the_content_that_was_parsed(tmp_path, monkeypatch):
    """A file that is replaced while it is read is not taken for the new one."""
    text = '[datasets.{}]\nsource = "t.csv"\nuser = "u"\ncolumns.a = {{ type = "text", group = true }}\n'
    contents = [text.format(name).encode() for name in "ab"]
    left = iter(contents)
    monkeypatch.setattr(Path, "read_bytes", lambda _: next(left))
    digest, catalog = load_with_digest(tmp_path / "catalog.toml")
    assert (digest, list(catalog.datasets)) == (hashlib.sha256(contents[0]).hexdigest(), ["a"])
