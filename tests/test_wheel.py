"""The wheel and the source distribution, built from a copy of the checkout."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest

_ROOT = Path(__file__).parents[1]
_HTMX = "discreet/service/pages/assets/vendor/htmx.min.js"


@pytest.fixture
def checkout(tmp_path):
    """Return a copy of the files that are built, without those of `make assets`."""
    copy = tmp_path / "checkout"
    shutil.copytree(_ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("vendor", "__pycache__"))
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "CHANGELOG.md", ".gitignore"):
        if (_ROOT / name).exists():
            shutil.copy(_ROOT / name, copy)
    return copy


def _build(kind, checkout):
    script = f"import hatchling.build, sys; print(hatchling.build.build_{kind}(sys.argv[1]))"
    target = checkout / "dist"
    target.mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, "-c", script, target], check=False, cwd=checkout, capture_output=True, text=True
    )


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_without_the_assets_nothing_is_built(checkout, kind):
    """A wheel whose page shows no live prices looks like any other."""
    built = _build(kind, checkout)
    assert built.returncode != 0
    assert "make assets" in built.stderr
    assert not list((checkout / "dist").iterdir())


def test_an_editable_install_needs_no_assets(checkout):
    """`make setup` installs before it fetches the assets, and without npm."""
    built = _build("editable", checkout)
    assert built.returncode == 0, built.stderr


def test_a_wheel_has_the_assets_and_so_has_one_built_from_the_source_distribution(checkout, tmp_path):
    """Both have the script and its licence."""
    vendor = checkout / "src" / Path(_HTMX).parent
    vendor.mkdir()
    for name in ("htmx.min.js", "htmx.LICENSE"):
        (vendor / name).write_text("made up")
    assert _build("sdist", checkout).returncode == 0
    (packed,) = (checkout / "dist").glob("*.tar.gz")
    with tarfile.open(packed) as archive:
        archive.extractall(tmp_path, filter="data")
    for source in (checkout, tmp_path / packed.name.removesuffix(".tar.gz")):
        built = _build("wheel", source)
        assert built.returncode == 0, built.stderr
        (wheel,) = (source / "dist").glob("*.whl")
        assert {_HTMX, _HTMX.replace("min.js", "LICENSE")} <= set(ZipFile(wheel).namelist())
