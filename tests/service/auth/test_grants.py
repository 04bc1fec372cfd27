"""Data that is not granted does not exist for the account."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from discreet.budget.errors import UnknownAccount
from discreet.catalog.model import Catalog
from discreet.service.auth.access import GRANT, Grants, RecordCache, grant_name, grant_text
from tests.service.deployment import Clock
from tests.service.memory_budget import CATALOG
from tests.service.memory_records import MemoryRecords


@pytest.fixture
def records():
    """Return the accounts ann and ben of the sales department, and cem without a parent."""
    records = MemoryRecords()
    records.paths = {"sales": None, "ann@sales": "sales", "ben@sales": "sales", "cem": None}
    return records


@pytest.fixture
def clock():
    """Return a clock at noon."""
    return Clock()


@pytest.fixture
def grants(records, clock):
    """Grants on a catalog with two datasets."""
    return Grants(SimpleNamespace(catalog=CATALOG), RecordCache(records, clock), records)


@pytest.fixture
def grant(records, clock):
    """Write a grant, and advance the clock beyond the second for which an older one is cached."""

    def grant(account, dataset, columns):
        records.put(GRANT, grant_name(account, dataset), None if columns is ... else grant_text(columns))
        clock.pass_(seconds=2)

    return grant


def seen(catalog) -> dict[str, list[str]]:
    """Return the datasets of a catalog with their columns."""
    return {name: list(dataset.columns) for name, dataset in catalog.datasets.items()}


def test_without_a_grant_nothing_exists(grants):
    """Known names of datasets make no difference."""
    assert seen(grants.catalog_for("cem")) == {}


def test_a_grant_shows_only_its_dataset_and_columns(grants, grant):
    """Other columns are not in the catalog that queries are checked against."""
    grant("cem", "reads", frozenset({"article"}))
    catalog = grants.catalog_for("cem")
    assert seen(catalog) == {"reads": ["article"]}
    assert catalog.datasets["reads"].groupable == ("article",)
    assert catalog.datasets["reads"].filterable == ()


def test_a_grant_of_a_whole_dataset_shows_all_columns(grants, grant):
    """Columns of a whole dataset are as declared in the catalog."""
    grant("cem", "visits", None)
    assert grants.catalog_for("cem").datasets["visits"] is CATALOG.datasets["visits"]


def test_children_inherit_the_grants_of_their_parents(grants, grant):
    """In addition to their own; no other account has it."""
    grant("sales", "reads", frozenset({"article"}))
    grant("ann@sales", "reads", frozenset({"country"}))
    assert seen(grants.catalog_for("ann@sales")) == {"reads": ["article", "country"]}
    assert seen(grants.catalog_for("ben@sales")) == {"reads": ["article"]}
    assert seen(grants.catalog_for("sales")) == {"reads": ["article"]}
    assert seen(grants.catalog_for("cem")) == {}


def test_parents_do_not_inherit_the_grants_of_their_children(grants, grant):
    """Grants are inherited by children only."""
    grant("ann@sales", "visits", None)
    assert seen(grants.catalog_for("sales")) == {}


@pytest.mark.parametrize("order", [("sales", "ann@sales"), ("ann@sales", "sales")])
def test_a_grant_of_all_columns_covers_one_of_some(grants, grant, order):
    """A grant of all columns covers one of some columns, in any order."""
    for account in order:
        grant(account, "reads", None if account == "sales" else frozenset({"country"}))
    assert seen(grants.catalog_for("ann@sales")) == {"reads": ["article", "country"]}


def test_grants_of_removed_columns_and_datasets_have_no_effect(grants, grant):
    """A grant does not guarantee that the object exists."""
    grant("cem", "reads", frozenset({"article", "colour"}))
    grant("cem", "clicks", None)
    assert seen(grants.catalog_for("cem")) == {"reads": ["article"]}


def test_a_grant_without_columns_allows_totals_only(grants, grant):
    """The dataset exists, and no column of it can be named."""
    grant("cem", "reads", frozenset())
    assert seen(grants.catalog_for("cem")) == {"reads": []}


def test_periods_of_a_column_are_granted_with_it(records, clock, grant):
    """Weeks of a day that is not granted would show its counts; those of a granted one are granted with it."""
    columns = {name: {"type": "date", "group": True} for name in ("bought", "born")}
    sales = {"source": "sales.parquet", "user": "buyer", "columns": columns}
    catalog = Catalog.model_validate({"datasets": {"sales": sales}})
    grants = Grants(SimpleNamespace(catalog=catalog), RecordCache(records, clock), records)
    periods = [f"bought_{period}" for period in ("week", "month", "quarter", "year")]
    assert {*periods, "born_week"} < set(catalog.datasets["sales"].columns)
    grant("cem", "sales", frozenset({"bought"}))
    assert seen(grants.catalog_for("cem")) == {"sales": ["bought", *periods]}
    grant("cem", "sales", frozenset())
    assert seen(grants.catalog_for("cem")) == {"sales": []}


def test_a_revoked_grant_is_gone_after_a_second(grants, grant):
    """All columns of the grant are gone, too."""
    grant("cem", "reads", None)
    assert seen(grants.catalog_for("cem")) != {}
    grant("cem", "reads", ...)
    assert grants.cached("cem") is None
    assert seen(grants.catalog_for("cem")) == {}


def test_records_are_cached_for_a_second(records, clock):
    """Also at its end; this process sees its own changes at once."""
    cache = RecordCache(records, clock)
    first = cache.read()
    clock.pass_(seconds=1)
    assert cache.cached() is cache.read() is first
    records.put(GRANT, grant_name("cem", "reads"), grant_text(None))
    assert cache.read() is first
    cache.invalidate()
    assert cache.cached() is None
    assert cache.read().grants == {grant_name("cem", "reads"): grant_text(None)}


def test_the_same_catalog_comes_back_until_a_record_changes(grants, grant, clock):
    """Values derived from it can be cached by its identity."""
    grant("cem", "reads", None)
    first = grants.catalog_for("cem")
    clock.pass_(seconds=5)
    assert grants.catalog_for("cem") is first
    assert grants.cached("cem") is first
    grant("ann@sales", "reads", None)
    assert grants.catalog_for("cem") is not first


def test_without_an_account_nothing_is_visible(grants):
    """Unknown accounts and accounts without grants have different errors."""
    with pytest.raises(UnknownAccount):
        grants.catalog_for("dan")
