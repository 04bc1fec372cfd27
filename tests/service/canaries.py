"""A table whose true counts, users and labels are recognisable in any output, and the search for them."""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING

import duckdb

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

COUNTS = {"tides-magdalena": 1_031_717, "moss-ophelia": 1_093_519}
"""Readers of each article. Both are sequences of seven digits that no clock, port or price contains."""

RARE = "owls-desdemona"
"""An article of one user only, which must never be released."""

USER = "uq7z-"
"""Prefix of every user's name."""

TYPED = "falstaff-typed-this"
"""A constant in an analyst's filter."""

NOISE = b"noise-key-of-prospero-" + bytes(range(32))
"""The secret that noise is derived from."""

CATALOG = """
[datasets.reads]
source = "duckdb:///magic.db?table=reads"
user = "reader"
data_version = "1"
columns.article = { type = "text", group = true, filter = true }
columns.minutes = { type = "integer", filter = true, sum = { low = 0, high = 10 } }

[datasets.broken]
source = "duckdb:///magic.db?table=reads"
view = "SELECT reader, article, CAST(reader AS INTEGER) AS age FROM reads"
user = "reader"
data_version = "1"
columns.article = { type = "text", group = true }
columns.age = { type = "integer", filter = true }

[datasets.secret]
source = "duckdb:///magic.db?table=reads"
user = "reader"
data_version = "1"
columns.article = { type = "text", group = true }
"""
"""`broken` fails when it is filtered, with a user in DuckDB's message; `secret` is granted to no account."""


def make_table(folder: Path) -> None:
    """Write the table: it consists of views, so that it takes no disk space."""
    parts = [
        f"SELECT '{USER}' || i AS reader, '{article}' AS article, i % 10 AS minutes FROM range({count}) numbers(i)"
        for article, count in {**COUNTS, RARE: 1}.items()
    ]
    with duckdb.connect(folder / "magic.db") as database:
        database.execute(f"CREATE VIEW reads AS {' UNION ALL '.join(parts)}")


def secret_patterns(keys: Iterable[str]) -> Mapping[str, re.Pattern[bytes]]:
    """Return patterns, by name, of values that must not be in any output: counts, users and secrets, in every encoding.

    Args:
        keys: texts of API keys; their ids are public, the rest is not.
    """
    found = {f"the count {count}": _number(count) for count in (*COUNTS.values(), sum(COUNTS.values()))}
    found["a user"] = re.compile(re.escape(USER.encode()))
    found["an item of one user"] = re.compile(re.escape(RARE.encode()))
    for name, secret in (("the noise key", NOISE), *(("a key", key.rpartition("_")[2].encode()) for key in keys)):
        found[f"{name} {len(found)}"] = _secret(secret)
    return found


def private_patterns(keys: Iterable[str]) -> Mapping[str, re.Pattern[bytes]]:
    """Return these and patterns of labels and constants, which must not be in logs, metrics, spans or headers."""
    labels = {f"the label {label}": re.compile(re.escape(label.encode())) for label in COUNTS}
    return {**secret_patterns(keys), **labels, "a constant of a statement": re.compile(re.escape(TYPED.encode()))}


def find_leaks(evidence: Mapping[str, bytes], wanted: Mapping[str, re.Pattern[bytes]]) -> list[str]:
    """Return the places where a pattern was found, such as "the log: a user at 17"."""
    return [
        f"{place}: {name} at {match.start()}"
        for place, text in evidence.items()
        for name, pattern in wanted.items()
        if (match := pattern.search(text))
    ]


def _number(count: int) -> re.Pattern[bytes]:
    """Match a count in digits, with separators or without, as JSON's numbers, and as eight bytes."""
    grouped = f"{count:,}".replace(",", "[,_ .']?")
    digits = rf"(?<![0-9.]){grouped}(?![0-9])|{count / 10 ** (len(str(count)) - 1)!r}e\+?0?{len(str(count)) - 1}"
    machine = b"|".join(re.escape(count.to_bytes(8, order)) for order in ("little", "big"))
    return re.compile(digits.encode() + b"|" + machine)


def _secret(secret: bytes) -> re.Pattern[bytes]:
    """Match a secret as text, in hexadecimal digits, in base64, and as Python's repr of bytes."""
    forms = [secret, secret.hex().encode(), secret.hex().upper().encode(), repr(secret)[2:-1].encode()]
    forms += [base64.b64encode(secret).rstrip(b"=")[:-1], base64.urlsafe_b64encode(secret).rstrip(b"=")[:-1]]
    return re.compile(b"|".join(map(re.escape, dict.fromkeys(forms))))
