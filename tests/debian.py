"""Install programs that no Python package has, from Debian's packages."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path


def install(name: str, *packages: str) -> None:
    """Install the Debian packages that contain the program *name*, one process of the tests at a time.

    Args:
        name: the program, as a refusal calls it.
        packages: the packages.

    Raises:
        RuntimeError: installing is not permitted, or this is not a Debian system.
        subprocess.CalledProcessError: apt-get failed.
    """
    apt_get = shutil.which("apt-get")
    if os.geteuid() or apt_get is None:
        raise RuntimeError(f"{name} is missing; install it: apt-get install {packages[0]}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    # Workers of pytest-xdist may need programs at once, and apt-get fails where another one holds its lock.
    with (Path(tempfile.gettempdir()) / "discreet-tests-apt.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for command in (["update", "-qq"], ["install", "-qq", "--no-install-recommends", *packages]):
            subprocess.run([apt_get, *command], env=environment, check=True)


def chromium() -> str:
    """Return the path of Chromium or Chrome, and install Chromium if both are missing."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        path = shutil.which(name)
        if path is not None:
            return path
    install("Chromium", "chromium", "fonts-dejavu-core")
    return chromium()
