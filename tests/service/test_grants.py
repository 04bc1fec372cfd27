"""What was not granted does not exist."""

from __future__ import annotations

import pytest

from discreet.budget.errors import UnknownAccount
from discreet.service.auth.grants import GRANT, Grants, RecordCache, grant_name, grant_text
from tests.service.deployment import Clock
from tests.service.memory_budget import CATALOG
from tests.service.memory_records import MemoryRecords


@pytest.fixture
def records():
    """Ann and Ben of the sales department, and Cem of nowhere."""
    records = MemoryRecords()
    records.paths = {"sales": None, "ann@sales": "sales", "ben@sales": "sales", "cem": None}
    return records


@pytest.fixture
def clock():
    """Noon."""
    return Clock()


@pytest.fixture
def grants(records, clock):
    """Of the catalog with two datasets."""
    return Grants(CATALOG, RecordCache(records, clock), records)


@pytest.fixture
def grant(records, clock):
    """Write a grant, and let the second pass in which an older one counts."""

    def grant(account, dataset, columns):
        records.put(GRANT, grant_name(account, dataset), None if columns is ... else grant_text(columns))
        clock.pass_(seconds=2)

    return grant


def seen(catalog) -> dict[str, list[str]]:
    """The datasets of a catalog with their columns."""
    return {name: list(dataset.columns) for name, dataset in catalog.datasets.items()}


def test_without_a_grant_nothing_exists(grants):
    """Not even for those who know the names."""
    assert seen(grants.catalog_for("cem")) == {}


def test_a_grant_shows_its_dataset_and_columns_and_nothing_else(grants, grant):
    """Columns that are not granted are not in the catalog that everything below sees."""
    grant("cem", "reads", frozenset({"article"}))
    catalog = grants.catalog_for("cem")
    assert seen(catalog) == {"reads": ["article"]}
    assert catalog.datasets["reads"].groupable == ("article",)
    assert catalog.datasets["reads"].filterable == ()


def test_a_grant_of_a_whole_dataset_shows_all_columns(grants, grant):
    """As the owner declared them."""
    grant("cem", "visits", None)
    assert grants.catalog_for("cem").datasets["visits"] is CATALOG.datasets["visits"]


def test_what_a_parent_was_granted_its_children_have(grants, grant):
    """In addition to their own, and no other account has it."""
    grant("sales", "reads", frozenset({"article"}))
    grant("ann@sales", "reads", frozenset({"country"}))
    assert seen(grants.catalog_for("ann@sales")) == {"reads": ["article", "country"]}
    assert seen(grants.catalog_for("ben@sales")) == {"reads": ["article"]}
    assert seen(grants.catalog_for("sales")) == {"reads": ["article"]}
    assert seen(grants.catalog_for("cem")) == {}


def test_what_a_child_was_granted_its_parent_does_not_have(grants, grant):
    """Grants go down, never up."""
    grant("ann@sales", "visits", None)
    assert seen(grants.catalog_for("sales")) == {}


@pytest.mark.parametrize("order", [("sales", "ann@sales"), ("ann@sales", "sales")])
def test_all_columns_and_some_are_all(grants, grant, order):
    """In whichever order they were granted."""
    for account in order:
        grant(account, "reads", None if account == "sales" else frozenset({"country"}))
    assert seen(grants.catalog_for("ann@sales")) == {"reads": ["article", "country"]}


def test_columns_and_datasets_that_are_gone_from_the_catalog_are_not_seen(grants, grant):
    """A grant is no promise that there is anything."""
    grant("cem", "reads", frozenset({"article", "colour"}))
    grant("cem", "clicks", None)
    assert seen(grants.catalog_for("cem")) == {"reads": ["article"]}


def test_a_grant_without_columns_allows_totals_only(grants, grant):
    """The dataset is there and nothing in it can be named."""
    grant("cem", "reads", frozenset())
    assert seen(grants.catalog_for("cem")) == {"reads": []}


def test_a_revoked_grant_is_gone_after_a_second(grants, grant):
    """And with it everything that it showed."""
    grant("cem", "reads", None)
    assert seen(grants.catalog_for("cem")) != {}
    grant("cem", "reads", ...)
    assert grants.cached("cem") is None
    assert seen(grants.catalog_for("cem")) == {}


def test_the_same_catalog_comes_back_until_a_record_changes(grants, grant, clock):
    """What is worked out from it can be kept by its identity."""
    grant("cem", "reads", None)
    first = grants.catalog_for("cem")
    clock.pass_(seconds=5)
    assert grants.catalog_for("cem") is first
    assert grants.cached("cem") is first
    grant("ann@sales", "reads", None)
    assert grants.catalog_for("cem") is not first


def test_without_an_account_nothing_is_visible(grants):
    """An unknown name and one without grants have different errors."""
    with pytest.raises(UnknownAccount):
        grants.catalog_for("dan")
