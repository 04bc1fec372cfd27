"""Noise and fingerprints of queries are those of one version of one table, whose version is checked after the read."""

from __future__ import annotations

import pyarrow.parquet
import pytest

from tests.service.deployment import table_of

DATASET = """
[datasets.{name}]
source = "{file}"
user = "reader"
data_version = {version}
columns.article = {{ type = "text", group = true }}
"""
HOURLY = '{ schedule = "hourly", at = ":30", zone = "UTC" }'
QUERY = "SELECT article, COUNT(DISTINCT reader) FROM {} GROUP BY article LIMIT 5"


def catalog(**files):
    """Return a catalog with a dataset of version 1 for each file."""
    return "".join(DATASET.format(name=name, file=file, version='"1"') for name, file in files.items())


def counts(reply):
    """Return the released counts of a response."""
    assert reply.status_code == 200, reply.text
    return [item["count"] for item in reply.json()["items"]]


@pytest.fixture
def two(services):
    """Return a service with two datasets of equal rows and a third with other rows, all of version 1."""
    service = services(catalog=catalog(one="reads.parquet", same="reads.parquet", other="more.parquet"), granted=None)
    pyarrow.parquet.write_table(table_of(readers=True, more=7), service.folder / "more.parquet")
    service.maintenance.refresh_sources()
    return service


def test_equal_rows_of_two_tables_have_independent_noise(two):
    """Noise that both share would cancel in the difference of their counts."""
    assert counts(two.ask(QUERY.format("one"))) != counts(two.ask(QUERY.format("same")))


def test_each_table_has_its_own_fingerprints(two):
    """The same query of another table returns other rows, which is no change of the first one's data."""
    for name in ("one", "other"):
        counts(two.ask(QUERY.format(name)))


def test_each_version_has_its_own_fingerprints_and_noise(two):
    """With a new version a query of other rows is answered; with one of equal rows its noise is drawn again."""
    before = counts(two.ask(QUERY.format("one")))
    text = (two.folder / "catalog.toml").read_text()
    (two.folder / "catalog.toml").write_text(text.replace('"1"', '"2"').replace("more.parquet", "most.parquet"))
    pyarrow.parquet.write_table(table_of(readers=True, more=90), two.folder / "most.parquet")
    counts(two.ask(QUERY.format("other")))
    two.reopen()
    assert counts(two.ask(QUERY.format("one"))) != before
    counts(two.ask(QUERY.format("other")))


def test_an_answer_is_refused_if_its_version_ended_during_the_read(services):
    """The rows may be those of the next version, whose noise and fingerprints are others."""
    service = services(
        catalog=DATASET.format(name="reads", file="reads.parquet", version=HOURLY), granted={"reads": None}
    )

    def count(head, _):
        service.clock.pass_(hours=1)
        return head()

    service.engines.head = count
    assert service.ask(QUERY.format("reads")).status_code == 503
    assert [event["cause"] for event in service.events("forfeited")] == ["engine"]
