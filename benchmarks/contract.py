"""Check the service against its OpenAPI description by Schemathesis, with all checks but one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from discreet.service.init_project import create_project

if TYPE_CHECKING:
    from collections.abc import Iterator

_PATHS = {
    "analyst": ["--exclude-path-regex", "^/v1/admin"],
    "officer": ["--include-path-regex", "^/v1/admin/(?!keys)"],
    "admin": ["--include-path-regex", "^/v1/admin/keys"],
}
"""Routes that each key may send requests to."""

_ARGUMENTS = (
    *("--checks", "all", "--exclude-checks", "positive_data_acceptance", "--continue-on-failure"),
    *("--suppress-health-check", "all", "--warnings", "off"),
)


def run() -> Iterator[str]:
    """Requests that Schemathesis generates from the description (DISCREET_EXAMPLES per operation, 20 by default).

    It omits the check that the service accepts every request allowed by the description, because JSON Schema
    cannot express which statements and combinations of options are allowed.
    """
    yield "| key | requests | failures |"
    yield "| --- | --- | --- |"
    with tempfile.TemporaryDirectory() as folder:
        made = create_project(Path(folder))
        settings = Path(folder) / "discreet.toml"
        settings.write_text(
            re.sub(r"#requests_per_minute = \d+", "requests_per_minute = 1000000", settings.read_text())
        )
        command = [sys.executable, "-m", "discreet", "serve", str(settings), "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as service:
            try:
                (url,) = re.findall(r"http://\S+", service.stderr.readline())
                for role, paths in _PATHS.items():
                    yield f"| {role} | {_requests(url, made.keys[role], paths)} | 0 |"
            finally:
                service.terminate()


def _requests(url: str, key: str, paths: list[str]) -> str:
    """Return the number of requests; exit with Schemathesis' output if a check failed."""
    tool = Path(sys.executable).with_name("schemathesis")
    command = [tool, "run", f"{url}/openapi.json", "--header", f"Authorization: Bearer {key}", *paths, *_ARGUMENTS]
    ran = subprocess.run(
        [*command, "--max-examples", os.environ.get("DISCREET_EXAMPLES", "20")],
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        sys.exit(ran.stdout[-20_000:])
    return re.findall(r"([\d,]+) generated", ran.stdout)[-1]
