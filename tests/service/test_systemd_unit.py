"""The systemd unit of `examples/deploy` runs what `discreet init` writes, with the rights that it grants."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from discreet.service.init_project import create_project
from discreet.service.settings import load_settings
from tests.service.process import ServiceProcess

UNIT = Path(__file__).parents[2] / "examples/deploy/discreet.service"
ENTER = ["unshare", "--map-root-user", "--mount"]
"""Runs a command in a namespace in which it may mount."""

SANDBOX = """
mount -t tmpfs none /var/lib
mkdir "$GRANTED"
mount --bind "$PROJECT" "$GRANTED"
mount --bind /tmp /tmp
mount -o remount,bind,ro /var/lib
mount -o remount,bind,ro /
cd "$GRANTED"
umask "$UMASK"
ulimit -n "$FILES"
if touch /var/lib/other /etc/other; then exit 99; fi
exec env -i HOME="$GRANTED" PATH="$PROGRAMS:/usr/bin:/bin" setpriv --no-new-privs --bounding-set=-all "$@"
"""
"""What systemd does for the unit: another root is mounted read-only, the capabilities and the environment are taken."""


@pytest.fixture
def unit():
    """Return the section of the service."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str
    parser.read(UNIT)
    return dict(parser["Service"])


def test_a_new_project_is_in_the_only_folder_that_the_unit_may_write(unit, tmp_path):
    """The store, the checkpoints, the key and the catalog are in the folder of the settings that the unit serves."""
    project = create_project(tmp_path / "new")
    settings = load_settings(project.settings)
    served = Path(unit["ExecStart"].split()[-1])
    assert (served.name, str(served.parent)) == (project.settings.name, unit["WorkingDirectory"])
    assert unit["ReadWritePaths"] == unit["WorkingDirectory"] == f"/var/lib/{unit['StateDirectory']}"
    for path in (settings.store.file, settings.checkpoints.file, settings.noise.key_file, settings.service.catalog):
        assert path.parent == tmp_path / "new"


def test_the_command_of_the_unit_answers_a_query_with_no_other_rights_than_the_unit_grants(unit, tmp_path, monkeypatch):
    """It starts, charges an answer and stores it, and stops with the code 0, which is no failure to systemd."""
    if (
        shutil.which("unshare") is None
        or subprocess.run([*ENTER, "mount", "-t", "tmpfs", "none", "/var/lib"], check=False).returncode
    ):
        pytest.skip("this machine lets no process mount in a namespace of its own")
    assert (unit["ProtectSystem"], unit["PrivateTmp"], unit["NoNewPrivileges"]) == ("strict", "yes", "yes")
    assert unit["CapabilityBoundingSet"] == ""
    project = create_project(tmp_path / "new")
    monkeypatch.setenv("GRANTED", unit["ReadWritePaths"])
    monkeypatch.setenv("PROJECT", str(tmp_path / "new"))
    monkeypatch.setenv("UMASK", unit["UMask"])
    monkeypatch.setenv("FILES", unit["LimitNOFILE"])
    monkeypatch.setenv("PROGRAMS", str(Path(sys.executable).parent))
    *serve, settings = unit["ExecStart"].split()
    with ServiceProcess(
        tmp_path, project.keys, serve=[*ENTER, "sh", "-euc", SANDBOX, "sh", *serve], settings=settings
    ) as service:
        assert service.url is not None, service.err
        assert service.get("/readyz").json()["status"] == "ready"
        assert service.ask().headers["discreet-replayed"] == "?0"
        assert service.ask().headers["discreet-replayed"] == "?1"
        assert service.stop() == 0


def test_systemd_accepts_the_unit():
    """A misspelt setting, which systemd would ignore, is a warning here."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd is not installed")
    verified = subprocess.run(
        [analyze, "verify", UNIT], capture_output=True, text=True, env=dict(os.environ, LANG="C"), check=False
    )
    assert (verified.returncode, verified.stderr) == (0, "")
