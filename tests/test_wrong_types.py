"""Values of wrong types are refused in one sentence."""

from __future__ import annotations

import inspect
import math
import warnings
from fractions import Fraction

import pyarrow as pa
import pyarrow.parquet
import pytest

import discreet
from discreet.catalog.loader import CatalogError
from discreet.errors import DiscreetError, InputError

THINGS = [
    None,
    "x",
    "",
    [],
    {},
    object(),
    b"x" * 32,
    ("a", "b"),
    float,
    1j,
    -1,
    0,
    3,
    1.5,
    True,
    math.nan,
    math.inf,
    10**400,
    Fraction(1, 3),
]
ROWS = pa.table({"u": list(range(300)) * 2, "a": ["x", "y"] * 300})
STATEMENT = "SELECT a, COUNT(DISTINCT u) FROM r GROUP BY a LIMIT 2"
CATALOG = """
[datasets.r]
source = "t.parquet"
user = "u"
data_version = "1"
columns.a = { type = "text", group = true, filter = true }
"""


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory):
    """Open a catalog with one dataset of 300 users."""
    folder = tmp_path_factory.mktemp("wrong")
    pyarrow.parquet.write_table(ROWS, folder / "t.parquet")
    (folder / "catalog.toml").write_text(CATALOG)
    with discreet.connect(folder / "catalog.toml") as made:
        yield made


@pytest.fixture(scope="module")
def table():
    """Return a table of 300 users without a budget."""
    return discreet.scan(ROWS, user="u")


def parameters_of(method):
    """Return the names of the method's parameters."""
    return [name for name in inspect.signature(method).parameters if name not in {"self", "progress"}]


def refusals(ask):
    """Return the messages of all refusals; errors that are not ours are raised."""
    sentences = []
    for thing in THINGS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                ask(thing)
            except CatalogError as error:
                sentences += map(str, error.mistakes)
            except DiscreetError as error:
                sentences.append(str(error))
    assert all(sentence and "\n" not in sentence for sentence in sentences)
    return sentences


@pytest.mark.parametrize("name", parameters_of(discreet.Warehouse.query))
def test_a_query_with_a_parameter_of_a_wrong_type_is_refused_in_one_sentence(warehouse, name):
    """Our own error and never a TypeError; values with a clear meaning are accepted."""
    given = {} if name == "query" else {"query": STATEMENT}
    sentences = refusals(lambda thing: warehouse.query(**given, **{name: thing}))
    assert sentences or name in {"counts", "force"}


@pytest.mark.parametrize("method", ["top", "release"])
@pytest.mark.parametrize("name", parameters_of(discreet.Table.top))
def test_a_table_refuses_wrong_types(table, method, name):
    """Each parameter of `top` and `release` is tested."""
    if name in parameters_of(getattr(discreet.Table, method)):
        given = {} if name == "item" else {"item": "a"}
        sentences = refusals(lambda thing: getattr(table, method)(**given, **{name: thing}))
        assert sentences or name in {"counts", "force"}


@pytest.mark.parametrize(
    ("sentences", "ask"),
    [
        ("epsilon must be", lambda thing: discreet.Budget(thing, 1e-6)),
        ("delta must be", lambda thing: discreet.Budget(1.0, thing)),
        ("it must be text", lambda thing: discreet.scan(ROWS, user="u").where(thing)),
        ("the name of a user column must be text", lambda thing: discreet.scan(ROWS, user=thing)),
        ("a noise secret", lambda thing: discreet.NoiseKey(thing, "1")),
        ("a data version", lambda thing: discreet.NoiseKey(b"x" * 32, thing)),
        ("a catalog is the path", discreet.connect),
        ("rho must be a number", discreet.Cost),
        ("delta must be a number", lambda thing: discreet.Cost(0, thing)),
        ("'dataset' must be a name", lambda thing: discreet.Select(thing, ("a",), discreet.Measure("rows"))),
        ("'items'", lambda thing: discreet.Select("r", thing, discreet.Measure("rows"))),
        ("'measure' must be", lambda thing: discreet.Select("r", ("a",), thing)),
        ("'where' must be", lambda thing: discreet.Select("r", ("a",), discreet.Measure("rows"), thing)),
        ("'k' must be", lambda thing: discreet.Select("r", ("a",), discreet.Measure("rows"), None, thing)),
        ("'measure.kind' must be", discreet.Measure),
    ],
)
def test_constructors_refuse_wrong_types_in_one_sentence(sentences, ask):
    """Budgets, filters, keys, catalogs, costs and queries."""
    assert any(sentences in sentence for sentence in refusals(ask))


def test_text_and_fractions_are_exact_numbers():
    """A budget of delta "1e-3" is a thousandth."""
    assert discreet.Budget("1", "1e-3").delta == discreet.Budget(1.0, Fraction(1, 1000)).delta == Fraction(1, 1000)
    with pytest.raises(InputError, match="delta must be above 0 and below 1, not 2"):
        discreet.Budget(1.0, 2)
