"""Temporary folders for what DuckDB spills: stale ones are removed, and no others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from discreet.engines import spill
from discreet.engines.spill import SpillFolder

HOLD = """
import pathlib
from discreet.engines.spill import SpillFolder
folder = SpillFolder()
(pathlib.Path(folder.path) / "spilled").write_text("row")
print(folder.path, flush=True)
input()
"""


@pytest.fixture(autouse=True)
def parent(tmp_path, monkeypatch):
    """Let temporary files be made in an empty folder, whose stale folders no test has looked for."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    spill._remove_stale.cache_clear()
    return tmp_path


@pytest.fixture
def holder(parent):
    """Yield a process that has a folder with a file, and the folder."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD],
        env={**os.environ, "TMPDIR": str(parent)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process, Path(process.stdout.readline().strip())
        process.kill()


def test_folder_of_a_killed_process_is_removed(holder):
    """A process that was killed cannot delete its folder; the next one does."""
    process, held = holder
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert (held / "spilled").exists()
    folder = SpillFolder()
    assert not held.exists()
    assert Path(folder.path).is_dir()


def test_folders_in_use_stay(holder):
    """Folders of a running process, and of this one, are not removed."""
    _, held = holder
    first = SpillFolder()
    spill._remove_stale.cache_clear()
    second = SpillFolder()
    assert (held / "spilled").exists()
    assert Path(first.path).is_dir()
    second.close()
    assert not Path(second.path).exists()


@pytest.mark.parametrize("name", ["discreet-00000000", "discreet-spill-other-abc", "link"])
def test_other_folders_stay(parent, name):
    """Folders of older versions and other machines stay, and so does what a link with a name of ours points to."""
    target = parent / name
    target.mkdir()
    if name == "link":
        (parent / f"{spill._PREFIX}abc").symlink_to(target)
    SpillFolder()
    assert target.is_dir()


def test_folders_of_other_users_stay(parent, monkeypatch):
    """Even an account that may delete them leaves the folders of others."""
    stale = parent / f"{spill._PREFIX}abc"
    stale.mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: stale.stat().st_uid + 1)
    SpillFolder()
    assert stale.is_dir()


def test_folder_that_was_removed_before_it_was_locked_is_replaced(monkeypatch):
    """Between its creation and its lock, another process may take a folder for a stale one."""
    locked = spill._locked
    removed = []

    def remove_first(path, *, wait):
        if wait and not removed:
            removed.append(path)
            Path(path).rmdir()
        return locked(path, wait=wait)

    monkeypatch.setattr(spill, "_locked", remove_first)
    folder = SpillFolder()
    assert folder.path != removed[0]
    assert Path(folder.path).is_dir()
