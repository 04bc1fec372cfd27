"""Loaders of the papers' own tables from their official files, where you have them. Nothing is downloaded.

| name | file |
| --- | --- |
| ts-gowalla, ts-brightkite | SNAP: loc-gowalla_totalCheckins.txt.gz, loc-brightkite_totalCheckins.txt.gz |
| ts-foursquare | the folder of dataset_TSMC2014_NYC.txt and dataset_TSMC2014_TKY.txt, or one of them |
| pcr-finance | raw_analyst_ratings.csv or analyst_ratings_processed.csv (the one with 1,400,469 rows) |
| pcr-reddit, pcr-reddit-small | clean_askreddit.csv: author, clean_text (or body, if the text is still raw) |
| pcr-wikipedia | the abstracts as CSV, column abstract_original (no pickle: reading one can run anything) |
| pcr-movielens | ratings.csv of MovieLens 25M |
"""

from __future__ import annotations

import csv
import gzip
import re
import sys
from array import array
from typing import TYPE_CHECKING

import duckdb
import numpy as np

from papers.user_items import UserItems, numbered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

SMALL_SAMPLE = 341
"""Number of authors in the sample, the first of the file (Rogers 2024, Table 1; the text says 340)."""

_NOISE = re.compile(r"https?://.*|\[removed\]|\[deleted\]")
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]?[A-Z0-9])")
_WORD = re.compile(
    r"\w+(?=n['’]t\b)|n['’]t\b|['’](?:s|m|d|re|ve|ll)\b"  # do n't, it 's
    r"|\d+(?:[.,:]\d+)*|(?:\w\.){2,}|\w+(?:[-&.]\w+)*"
    r"|\.{2,}|--+|[^\w\s]",
    re.IGNORECASE,
)


def load(name: str, path: Path) -> UserItems:
    """Return the table *name*, from its official file or folder.

    Raises:
        KeyError: no paper has a table of that name, or the file lacks a column.
    """
    title, loader = LOADERS[name]
    return loader(title, path)


def tokenize(text: str) -> list[str]:
    """Split a text into word tokens as set-union experiments do: case and stop words stay, punctuation is a token.

    URLs are removed to the end of their line, and so are [removed] and [deleted]. Sentences are split first, then
    words, roughly as in the Penn Treebank: a full stop that ends a sentence is a token, contractions are split
    (do n't).
    """
    tokens: list[str] = []
    for sentence in _SENTENCE_END.split(_NOISE.sub(" ", text)):
        tokens += _WORD.findall(sentence)
    return tokens


def _check_ins(title: str, path: Path) -> UserItems:
    """Read SNAP check-ins: user, time, latitude, longitude, place; no header. Rows without a place are left out."""
    return _from_texts(title, ((fields[0], fields[4:5]) for fields in _tabbed(path) if fields[4]))


def _foursquare(title: str, path: Path) -> UserItems:
    """Read user and venue of each line. Ids of the two cities overlap, and the paper does not separate them."""
    files = sorted(path.glob("*.txt")) if path.is_dir() else [path]
    return _from_texts(title, ((fields[0], fields[1:2]) for file in files for fields in _tabbed(file)))


def _tabbed(path: Path) -> Iterator[list[str]]:
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="latin-1") as lines:
        for line in lines:
            yield line.rstrip("\r\n").split("\t")


def _ratings(title: str, path: Path) -> UserItems:
    with duckdb.connect() as connection:
        ratings = connection.read_csv(str(path), header=True)
        return numbered(title, ratings.project("userId AS user_id, movieId AS item"))


def _stocks(title: str, path: Path) -> UserItems:
    """Read stock symbols as items; each row is a user."""
    return _from_texts(title, ((str(i), [row["stock"]]) for i, row in enumerate(_rows(path)) if row["stock"]))


def _abstracts(title: str, path: Path) -> UserItems:
    texts = (row["abstract_original"] for row in _rows(path))
    return _from_texts(title, ((str(i), tokenize(text)) for i, text in enumerate(texts) if text))


def _comments(title: str, path: Path) -> UserItems:
    return _from_texts(title, _authors(path))


def _first_comments(title: str, path: Path) -> UserItems:
    chosen: set[str] = set()
    for author, _ in _authors(path):
        chosen.add(author)
        if len(chosen) == SMALL_SAMPLE:
            break
    return _from_texts(title, ((author, tokens) for author, tokens in _authors(path) if author in chosen))


def _authors(path: Path) -> Iterator[tuple[str, Iterable[str]]]:
    """Yield author and tokens of each comment; the column clean_text holds tokens separated by spaces."""
    for row in _rows(path):
        yield row["author"], row["clean_text"].split() if "clean_text" in row else tokenize(row["body"])


def _rows(path: Path) -> Iterator[dict[str, str]]:
    csv.field_size_limit(sys.maxsize)
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def _from_texts(title: str, texts: Iterable[tuple[str, Iterable[str]]]) -> UserItems:
    """Return the distinct pairs, numbered in order of appearance. Users without an item do not count."""
    users: dict[str, int] = {}
    items: dict[str, int] = {}
    pairs = array("q")
    for user, tokens in texts:
        distinct = set(tokens)
        if distinct:
            place = users.setdefault(user, len(users)) << 32
            pairs.extend(place | items.setdefault(token, len(items)) for token in sorted(distinct))
    numbers = np.unique(np.frombuffer(pairs, dtype=np.int64))
    return UserItems(title, numbers >> 32, numbers & 0xFFFFFFFF)


LOADERS: dict[str, tuple[str, Callable[[str, Path], UserItems]]] = {
    "ts-gowalla": ("Gowalla", _check_ins),
    "ts-brightkite": ("BrightKite", _check_ins),
    "ts-foursquare": ("Foursquare", _foursquare),
    "pcr-finance": ("Finance", _stocks),
    "pcr-reddit-small": ("Reddit small sample", _first_comments),
    "pcr-reddit": ("Reddit", _comments),
    "pcr-wikipedia": ("Wikipedia", _abstracts),
    "pcr-movielens": ("MovieLens 25M", _ratings),
}
