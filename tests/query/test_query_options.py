"""The options of a query: one list of names for Python, JSON and the command line."""

from __future__ import annotations

from fractions import Fraction
from typing import get_args

import numpy as np
import pytest

from discreet.cli.query import query, rehearse
from discreet.cli.release import plan, release, top
from discreet.errors import InputError
from discreet.query.planning import make_plan
from discreet.query.pricing import PRESETS
from discreet.query.query import Options, QueryOptions
from discreet.values import MechanismChoice, NoiseName, Sensitivity
from discreet.wire.queries import QueryRequest, StatementRequest
from tests.queries import changed, query_of


def test_json_has_every_option_of_python():
    """A request has the options, and what is asked."""
    assert QueryRequest.model_fields.keys() - {"sql", "query"} == Options.__annotations__.keys()
    assert StatementRequest.model_fields.keys() - {"sql", "rehearse", "intervals"} == Options.__annotations__.keys()


@pytest.mark.parametrize("command", [query, plan])
def test_the_command_line_has_every_option_of_python(command):
    """Labels only are asked for by --no-counts."""
    names = {parameter.name for parameter in command.params} | {"counts"}
    assert names >= Options.__annotations__.keys() | {"no_counts"}


@pytest.mark.parametrize("command", [query, rehearse, top, release, plan])
def test_the_command_line_offers_every_mechanism_and_noise(command):
    """The names are those of the library."""
    choices = {
        parameter.name: parameter.type.choices for parameter in command.params if hasattr(parameter.type, "choices")
    }
    assert (choices["mechanism"], choices["noise"]) == (get_args(MechanismChoice), get_args(NoiseName))


@pytest.mark.parametrize("name", get_args(MechanismChoice))
def test_every_name_is_that_of_a_mechanism(name):
    """Each answers some query."""
    parts = {"k": None if name in {"pcr", "two-round", "head"} else 3, "counts": name != "stable"}
    parts |= {"sensitivity": Sensitivity(2)} if name == "laplace" else {}
    assert make_plan(changed(query_of(**parts), mechanism=name)).mechanism


def test_missing_options_have_their_defaults():
    """None is a missing option; numbers of any kind become Python's."""
    assert QueryOptions.of({}) == QueryOptions.of(dict.fromkeys(Options.__annotations__)) == QueryOptions()
    given = QueryOptions.of({"epsilon": np.float32(2), "delta": "1/3", "head_limit": np.int64(9), "counts": np.False_})
    assert given == QueryOptions(2.0, Fraction(1, 3), counts=False, head_limit=9)
    assert [type(value) for value in (given.epsilon, given.head_limit, given.counts)] == [float, int, bool]
    assert QueryOptions.of({}, delta="1e-9").delta == Fraction(1, 10**9)


def test_a_price_per_unit_takes_missing_parts_from_the_preset():
    """LinkedIn's prices."""
    assert QueryOptions.of({"information": 7}).per == QueryOptions.of({"epsilon_per": "0.15", "information": 7}).per
    assert QueryOptions.of({"epsilon_per": 0.15}).per == PRESETS["linkedin"]


@pytest.mark.parametrize(
    ("given", "per", "words"),
    [
        ({"epsilon": 1.0, "epsilon_per": 0.1}, None, "not both"),
        ({"delta": "1e-8", "information": 3}, None, "not both"),
        ({"delta": "1e-8"}, PRESETS["linkedin"], "not both"),
        ({"information": 3}, PRESETS["linkedin"], "not both"),
        ({"epsilom": 1.0}, None, "there is no option 'epsilom'; choose from epsilon, delta, "),
    ],
)
def test_two_prices_and_unknown_options_are_refused(given, per, words):
    """A query has one price."""
    with pytest.raises(InputError, match=words):
        QueryOptions.of(given, per=per)
