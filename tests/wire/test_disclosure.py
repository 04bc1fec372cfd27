"""Release sheets, and YAML that every parser reads as it was meant."""

from __future__ import annotations

import json

import jsonschema
import pyarrow as pa
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import discreet
from discreet.errors import InputError
from discreet.mechanisms import MECHANISMS
from discreet.mechanisms.running import RunningCounts
from discreet.mechanisms.sums import ListedSums, RankedSums
from discreet.wire.disclosure import Deployment, mechanisms_used, release_sheet, to_yaml
from tests.registry import SCHEMA

NOW = "2026-11-24T12:00:00Z"
STATED = Deployment(
    name="Reading figures",
    curators=("The Library",),
    region="Europe",
    description="Readers by article.",
    intended_use="Planning.",
    justification="The committee of 3 May chose epsilon.",
)
SCALARS = st.text() | st.integers() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False)
NAMES = st.from_regex(r"[a-z_]{1,8}[a-z]", fullmatch=True).filter(
    lambda name: name not in {"yes", "no", "on", "off", "null", "true", "false"}
)


@given(
    st.recursive(
        st.dictionaries(NAMES, SCALARS | st.lists(st.text(), min_size=1, max_size=3), max_size=4),
        lambda inner: st.dictionaries(NAMES, inner | SCALARS, max_size=3),
        max_leaves=6,
    )
)
def test_yaml_is_read_as_it_was_written(value):
    """No text becomes a date, a number or a boolean, and no text breaks out of its place."""
    assert yaml.safe_load(to_yaml(value)) == (value or None)


def sheet_of(**options):
    """Return the sheet of a release of the library."""
    table = discreet.scan(pa.table({"reader": range(900), "article": ["a", "b", "c"] * 300}), user="reader")
    release = table.top("article", k=2, **options)
    return release, release_sheet(json.loads(json.dumps(release.to_dict())), NOW, STATED)


def test_a_release_has_a_sheet_with_its_guarantee_and_an_entry_of_the_registry():
    """Everything but what people state comes from the release."""
    release, sheet = sheet_of(epsilon=0.5, delta=1e-7)
    assert (sheet.privacy.epsilon, sheet.privacy.delta) == (release.guarantee.epsilon, release.guarantee.delta)
    assert [use.name for use in sheet.mechanisms] == [release.chosen or release.mechanism]
    assert sheet.datasets[0].user == "reader"
    entry = yaml.safe_load(to_yaml(sheet.registry_entry()))
    jsonschema.validate(entry, SCHEMA)
    assert entry["deployment"]["deployment_model"]["release_type"] == "One release"
    assert entry["deployment"]["privacy_loss"]["privacy_parameters"]["epsilon"] == release.guarantee.epsilon


@pytest.mark.parametrize(
    "name",
    [
        *MECHANISMS,
        *(kind.name for kind in RankedSums.__subclasses__()),
        *(ListedSums.name, RunningCounts.name),
        *("light", "capped", "scaled", "shared"),
    ],
)
def test_every_mechanism_of_an_answer_is_described(name):
    """Also what auto chooses, sums and running counts: a register must not read of a mechanism of another version."""
    (use,) = mechanisms_used({name: 1})
    assert use.name == name
    assert len(use.description) > 40
    assert "another version" not in use.description


def test_the_schema_of_the_registry_refuses_other_fields_and_values():
    """The check above can fail."""
    entry = sheet_of()[1].registry_entry()
    for spoil in (
        lambda part: part["deployment"].update(surprise=1),
        lambda part: part.pop("tier"),
        lambda part: part["deployment"]["dp_variant"].update(variant_name="DP"),
        lambda part: part["deployment"]["basic"].update(publication_date="1 May 2026"),
    ):
        spoiled = json.loads(json.dumps(entry))
        spoil(spoiled)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(spoiled, SCHEMA)


@pytest.mark.parametrize("document", [{}, {"query": 1, "privacy": {}}, {"privacy": None, "query": {}}])
def test_other_json_is_refused(document):
    """One sentence."""
    with pytest.raises(InputError, match="not the JSON of an answer"):
        release_sheet(document, NOW)


def test_an_entry_needs_what_only_people_know():
    """Nothing is made up."""
    with pytest.raises(InputError, match="section disclosure"):
        sheet_of()[1].model_copy(update={"deployment": None}).registry_entry()
