"""The wheel and the source distribution, built from a copy of the checkout by a machine that has no npm."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from zipfile import ZipFile

_ROOT = Path(__file__).parents[1]
_NAMES = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md")


def _build(kind, checkout):
    script = f"import hatchling.build, sys; print(hatchling.build.build_{kind}(sys.argv[1]))"
    target = checkout / "dist"
    target.mkdir(exist_ok=True)
    built = subprocess.run(
        [sys.executable, "-c", script, target],
        check=False,
        cwd=checkout,
        env={"PATH": ""},
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    return target / built.stdout.split()[-1]


def test_a_wheel_has_every_file_of_the_package_and_so_has_one_built_from_the_source_distribution(tmp_path):
    """Templates, scripts and styles of the page among them."""
    checkout = tmp_path / "checkout"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(_ROOT / "src", checkout / "src", ignore=ignored)
    for name in _NAMES:
        shutil.copy(_ROOT / name, checkout)
    expected = {path.relative_to(checkout / "src").as_posix() for path in checkout.rglob("src/**/*") if path.is_file()}
    assert "discreet/service/doors/pages/assets/page.js" in expected
    with tarfile.open(_build("sdist", checkout)) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.glob("discreet-*")
    for source in (checkout, unpacked):
        names = set(ZipFile(_build("wheel", source)).namelist())
        assert {name for name in names if name.startswith("discreet/")} == expected
