"""An engine from another package: the example of the documentation, built as a wheel, installed and queried."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.feather
import pytest

import discreet
from discreet.engines.opening import open_engine
from discreet.errors import InputError
from tests.service.deployment import Deployment

_PAGE = (Path(__file__).parents[2] / "docs" / "engines" / "write-an-engine.md").read_text("utf-8")
_ENGINE, _ = re.findall(r"^```python\n(.*?)^```", _PAGE, re.MULTILINE | re.DOTALL)
_PROJECT, _CATALOG = re.findall(r"^```toml\n(.*?)^```", _PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Install the package into a folder that is on the path during the tests."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("target")
    (source / "discreet_feather.py").write_text(_ENGINE)
    (source / "pyproject.toml").write_text(_PROJECT)
    run = [sys.executable, "-m"]
    subprocess.run([*run, "hatchling", "build", "-t", "wheel"], cwd=source, check=True, capture_output=True)
    (wheel,) = (source / "dist").glob("*.whl")
    quiet = ["--quiet", "--no-index", "--no-deps", "--disable-pip-version-check"]
    subprocess.run([*run, "pip", "install", *quiet, "--target", target, wheel], check=True, capture_output=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(target)
        yield target
    sys.modules.pop("discreet_feather", None)
    importlib.invalidate_caches()


@pytest.fixture
def url(installed, tmp_path):  # noqa: ARG001 - the package must be there
    """Return the URL of a file with 900 readers of one article and 5 of another."""
    table = pa.table({"reader": range(905), "article": ["a"] * 900 + ["b"] * 5})
    pyarrow.feather.write_feather(table, str(tmp_path / "reads.arrow"), compression="uncompressed")
    return f"feather://{tmp_path / 'reads.arrow'}"


def test_scan_takes_the_scheme_of_an_installed_package(url):
    """`scan` opens a URL whose scheme another package registers."""
    release = discreet.scan(url, user="reader").release("article", epsilon=1)
    assert release.labels.column("article").to_pylist() == ["a"]


def test_a_service_answers_from_an_engine_of_another_package(url, tmp_path):
    """The catalog names only the URL of the engine."""
    catalog = _CATALOG.replace("feather:///data/reads.arrow", url)
    deployment = Deployment(tmp_path / "service", catalog=catalog, granted=None)
    with deployment.open() as service:
        query = {"sql": "SELECT article, COUNT(DISTINCT reader) AS n FROM reads GROUP BY article", "epsilon": 1}
        reply = service.send("POST", "/v1/query", json=query)
    assert reply.status_code == 200, reply.text
    assert [row["article"] for row in reply.json()["items"]] == ["a"]


@pytest.mark.usefixtures("installed")
def test_an_unknown_scheme_is_refused_with_a_list_of_schemes():
    """The list has our schemes and those of installed packages."""
    with pytest.raises(InputError, match=r"no engine reads nothing:// sources; there are .*duckdb, feather"):
        open_engine("nothing://host/table")


@pytest.mark.usefixtures("installed")
def test_an_engine_that_cannot_be_imported_or_is_registered_twice_is_refused(tmp_path, monkeypatch):
    """Each has one sentence, and no other engine is used instead."""
    folder = tmp_path / "other-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Name: other\nVersion: 1\n")
    (folder / "entry_points.txt").write_text("[discreet.engines]\nfeather = other:Engine\nbroken = nowhere:Engine\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        InputError, match="several packages provide an engine for feather:// sources: discreet-feather, o"
    ):
        open_engine("feather:///file")
    with pytest.raises(InputError, match="cannot be imported: nowhere:Engine"):
        open_engine("broken:///file")
