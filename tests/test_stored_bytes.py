"""Bytes that outlive the code: forms of filters, names of releases, documents and bodies, as they were first written.

Ledgers hold hashes of documents, clients send the same body again, and an answer is found again by its name. If a case
must change, write the file again with `python -m tests.test_stored_bytes`, and say so in the changelog. If documents
change because bits are drawn in another order, change `keys.DRAWING` before, or `keys.drawing` of some mechanisms.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from fractions import Fraction
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

import discreet
from discreet.client.client import body_of
from discreet.head_request import Derived, HeadRequest, Kind
from discreet.noise.bits import encode as encode_context
from discreet.query.canonical import canonical
from discreet.query.predicates import bind_where
from discreet.query.pricing import PRESETS
from discreet.query.query import Measure, Select
from discreet.query.sql import parse_select, parse_where
from discreet.release import keys
from discreet.release.keys import fingerprint, release_context
from discreet.service.doors.http.openapi import openapi_document
from discreet.service.doors.http.query import QueryAPI
from discreet.wire.document import encode, question_of
from tests.service.deployment import declared

STORED = Path(__file__).with_name("stored_bytes.json")
KEY = bytes(range(32))

CATALOG = """
[datasets.reads]
source = "reads.parquet"
user = "reader"
data_version = "7"
rows_per_group = 3

[datasets.reads.columns.article]
type = "text"
group = true
filter = true

[datasets.reads.columns.country]
type = "text"
group = true
filter = true
domain = ["DE", "IN", "US"]

[datasets.reads.columns.size]
type = "integer"
filter = true
sum = { low = 0, high = 9 }

[datasets.reads.columns.delta]
type = "integer"
sum = { low = -3, high = 4 }

[datasets.reads.columns.price]
type = "decimal"
sum = { low = 0, high = 2.5, private_bound = true }

[datasets.reads.columns.day]
type = "date"
group = true
filter = true

[datasets.reads.columns.week]
of = "day"
each = "week"
type = "date"
group = true
filter = true

[datasets.bounded]
source = "reads.parquet"
user = "reader"
data_version = "7"
groups_per_user = 2
missing_labels = "keep"
rows_per_group = 3

[datasets.bounded.columns.article]
type = "text"
group = true
filter = true

[datasets.bounded.columns.size]
type = "integer"
sum = { low = 0, high = 9 }
"""

_TOP = "SELECT article, COUNT(DISTINCT reader) FROM reads GROUP BY article LIMIT 3"
QUERIES = {
    "top": (_TOP, {}),
    "top 8": (_TOP.replace("LIMIT 3", "LIMIT 8"), {}),
    "filtered": (_TOP.replace("GROUP", "WHERE country IN ('IN', 'it''s') AND NOT size > 5 GROUP"), {"epsilon": 0.7}),
    "no row": (_TOP.replace("GROUP", "WHERE size > 5 AND size < 3 GROUP"), {}),
    "laplace": (_TOP, {"noise": "laplace", "mechanism": "gumbel"}),
    "stable": (_TOP, {"mechanism": "stable", "counts": False}),
    "labels": (_TOP, {"counts": False, "delta": "1e-9", "head_limit": 500}),
    "rows": ("SELECT article, COUNT(*) FROM reads GROUP BY article LIMIT 3", {}),
    "all": ("SELECT article, COUNT(DISTINCT reader) FROM reads GROUP BY article", {"relative_error": "1/7"}),
    "pcr": ("SELECT article, COUNT(DISTINCT reader) FROM reads GROUP BY article", {"mechanism": "pcr"}),
    "two-round": ("SELECT article, COUNT(DISTINCT reader) FROM reads GROUP BY article", {"mechanism": "two-round"}),
    "head": ("SELECT article, COUNT(DISTINCT reader) FROM reads GROUP BY article", {"mechanism": "head"}),
    "known": ("SELECT country, COUNT(DISTINCT reader) FROM reads GROUP BY country", {}),
    "known top": ("SELECT country, COUNT(DISTINCT reader) FROM reads GROUP BY country LIMIT 2", {}),
    "known, gaussian": ("SELECT country, COUNT(DISTINCT reader) FROM reads GROUP BY country", {"noise": "gaussian"}),
    "known top, gaussian": (
        "SELECT country, COUNT(DISTINCT reader) FROM reads GROUP BY country LIMIT 2",
        {"noise": "gaussian"},
    ),
    "listed by a filter": (
        "SELECT article, COUNT(DISTINCT reader) FROM reads WHERE article IN ('a0', 'a1', 'a3', 'a4', 'a5') GROUP BY 1",
        {},
    ),
    "total": ("SELECT COUNT(DISTINCT reader) FROM reads WHERE day >= '2025-01-02'", {}),
    "derived": ("SELECT week, country, COUNT(DISTINCT reader) FROM reads GROUP BY 1, 2 LIMIT 3", {}),
    "sum of all": ("SELECT country, SUM(size) FROM reads GROUP BY country", {}),
    "sum of top": ("SELECT article, SUM(delta) FROM reads GROUP BY article LIMIT 3", {"epsilon": 3.0}),
    "sum, laplace": ("SELECT country, SUM(delta) FROM reads GROUP BY country", {"noise": "laplace"}),
    "average": ("SELECT article, AVG(size) FROM reads GROUP BY article LIMIT 3", {"epsilon": 3.0}),
    "private bound": ("SELECT country, SUM(price) FROM reads GROUP BY country", {"epsilon": 3.0}),
    "total of sums": ("SELECT SUM(price) FROM reads", {}),
    "per unit": (_TOP, {"per": PRESETS["linkedin"]}),
    "bounded": ("SELECT article, COUNT(DISTINCT reader) FROM bounded GROUP BY article", {}),
    "bounded sum": ("SELECT article, SUM(size) FROM bounded GROUP BY article LIMIT 3", {}),
    "bounded average": ("SELECT article, AVG(size) FROM bounded GROUP BY article", {"noise": "laplace"}),
}
FILTERS = [
    "size = 3",
    "NOT (size > 5 OR country = 'IN')",
    "size IN (1, 2, 3, 9) AND size <> 2",
    "size BETWEEN 3 AND 7 OR size IS NULL",
    "country LIKE 'a%' OR country IS NULL AND day < '2025-01-31'",
    "country LIKE 'it''s' AND NOT day IN ('2025-01-01', '2025-01-02')",
    "day > '2025-01-01' AND (country = 'a' OR size > 2.5)",
    "size > 5 AND size < 3",
    "size > 5 OR size <= 5 OR size IS NULL",
]


def rows():
    """Return 4,000 rows of 400 users."""
    n = range(4_000)
    return pa.table(
        {
            "reader": [f"u{i % 400}" for i in n],
            "article": [f"a{(i * i) % 11}" if i % 37 else None for i in n],
            "country": [("DE", "IN", "US")[(i // 400) % 3] for i in n],
            "size": [i % 7 for i in n],
            "delta": [i % 5 - 2 for i in n],
            "price": pa.array([f"{i % 4}.25" for i in n]).cast(pa.decimal128(9, 2)),
            "day": pa.array([20_000 + i % 30 for i in n], pa.int32()).cast(pa.date32()),
        }
    )


def current():
    """Return all cases as this code writes them: text, or a digest of bytes."""
    with tempfile.TemporaryDirectory() as folder:
        pyarrow.parquet.write_table(rows(), Path(folder) / "reads.parquet")
        (Path(folder) / "catalog.toml").write_text(CATALOG)
        with discreet.connect(Path(folder) / "catalog.toml") as warehouse:
            return _of_queries(warehouse) | _of_values()


def _of_queries(warehouse):
    contexts, requests, documents, drawings = {}, {}, {}, {}
    for name, (sql, options) in QUERIES.items():
        plan, dataset = warehouse.plan(sql, **options), parse_select(sql).dataset
        release = warehouse.query(sql, key=KEY, **options)
        question = question_of(plan.query, dataset)
        contexts[name] = _digest(encode_context(release_context(plan, dataset, "7")))
        document = encode(release, id="ab" * 32, dataset=dataset, question=question, data_version="7")
        documents[name] = document.decode()
        drawings[name] = keys.drawing(plan.mechanism)
        shared = warehouse.plan(sql, shared=True, **options)
        contexts[f"{name}, shared"] = _digest(encode_context(release_context(shared, dataset, "7")))
        if not plan.reads_pairs:
            head = warehouse.engine(dataset).head(plan.request, seed=bytes(32))
            requests[name] = [part.hex() for part in _parts(fingerprint(head, plan.request, bytes(32), KEY))]
    top = discreet.scan(rows(), user="reader").where("size > 1").top("article", k=2, bits=discreet.NoiseKey(KEY, "1"))
    shown = json.loads(top.timed(0.0).to_json())
    return {
        "drawing": drawings,
        "contexts": contexts,
        "fingerprints": requests,
        "documents": documents,
        "table": shown,
    }


def _parts(found):
    return [getattr(found, name) for name in found.__slots__]


def _of_values():
    kinds = {"size": "INTEGER", "country": "TEXT", "day": "DATE"}
    columns = {name: Kind[kind] for name, kind in kinds.items()}
    selects = [parse_select(sql) for sql, _ in QUERIES.values()]
    forms = {}
    for text in FILTERS:
        where = parse_where(text)
        form = canonical(bind_where(where, columns), columns)
        forms[text] = [Select("t", ("a",), Measure("rows"), each).to_dict()["where"] for each in (where, form)]
    price = {"epsilon": 0.5, "delta": Fraction(1, 10**8), "relative_error": "1/3", "counts": False, "noise": "laplace"}
    units = {"epsilon_per": "0.15", "information": 7, "mechanism": "pcr", "head_limit": 9, "delta": None}
    bodies = [body_of(QUERIES["top"][0], price), body_of(selects[2].to_dict(), units), body_of(selects[3], {})]
    request = HeadRequest(
        "u", ("week",), 9, parse_where("x = 1"), 2, 3, None, True, None, (Derived("week", "d", "week"),)
    )
    schemas = openapi_document(declared(QueryAPI))["components"]["schemas"]
    return {
        "questions": [select.to_dict() for select in selects],
        "filters": forms,
        "bodies": [body.decode() for body in bodies],
        "request": str(keys.encodable(request)),
        "schemas": {name: schemas[name] for name in ("QueryRequest", "StatementRequest", "ReleaseDocument")},
    }


def _digest(content):
    return hashlib.sha256(content).hexdigest()


@pytest.fixture(scope="module")
def written():
    """Return all cases as this code writes them."""
    return current()


@pytest.mark.parametrize("kind", json.loads(STORED.read_text()) if STORED.exists() else [])
def test_stored_bytes_are_written_as_before(written, kind):
    """A release is found by the same name, with the same noise, and its document has the same hash."""
    assert written[kind] == json.loads(STORED.read_text())[kind]


if __name__ == "__main__":
    cases, before = current(), json.loads(STORED.read_text())
    same = [name for name in before["documents"] if cases["drawing"][name] == before["drawing"][name]]
    items = [[json.loads(of["documents"][name])["items"] for name in same] for of in (cases, before)]
    if items[0] != items[1]:
        sys.exit("the same bits give other answers: change the order in discreet.release.keys first")
    STORED.write_text(json.dumps(cases, indent=1, ensure_ascii=False) + "\n")
