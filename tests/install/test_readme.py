"""The lines of the README, in a clean environment that has pip and a shell, and neither npm nor make."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from examples.demo import make_log

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
LINES = [
    line.partition(" # ")[0].strip() for line in re.findall(r"^    (.*)$", README.replace("\\\n", ""), re.MULTILINE)
]


class Machine:
    """A copy of the checkout, and an environment whose PATH has its own programs and a shell."""

    def __init__(self, folder: Path) -> None:
        self.checkout, self._bin = folder / "checkout", folder / "environment/bin"
        tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for name in tracked.rstrip("\0").split("\0"):
            if (ROOT / name).exists():
                (self.checkout / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, self.checkout / name)
        subprocess.run([sys.executable, "-m", "venv", self._bin.parent], check=True)
        (self._bin / "sh").symlink_to(shutil.which("sh"))
        self.environment = {"PATH": str(self._bin), "HOME": str(folder), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        self.environment |= {name: os.environ[name] for name in os.environ if name.startswith("PIP_")}

    def run(self, line: str) -> str:
        """Run a line in the checkout, and return what it printed.

        Raises:
            AssertionError: it failed; the message has its output.
        """
        ran = subprocess.run(
            ["sh", "-c", line], cwd=self.checkout, env=self.environment, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, f"{line}\n{ran.stdout}\n{ran.stderr}"
        return ran.stdout

    def start(self, line: str) -> tuple[subprocess.Popen[str], str, dict[str, str]]:
        """Run `discreet init` and `discreet serve`; return the service, its URL and the keys that were printed."""
        init, _, serve = line.partition(" && ")
        keys = dict(re.findall(r"^  (admin|officer|analyst)\s+(dsc_\w+)", self.run(init), re.MULTILINE))
        command = [self._bin / "discreet", *serve.split()[1:], "--port", "0"]
        process = subprocess.Popen(command, cwd=self.checkout, env=self.environment, stderr=subprocess.PIPE, text=True)
        return process, next(found[0] for text in process.stderr if (found := re.search(r"http://\S+", text))), keys


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """Return a machine with the tables that the README names."""
    made = Machine(tmp_path_factory.mktemp("machine"))
    make_log(made.checkout / "reads.parquet")
    rows = [f"{visitor},home,{visitor % 60}" for visitor in range(1000)]
    (made.checkout / "visits.csv").write_text("\n".join(["visitor,page,minutes", *rows]))
    return made


def test_every_line_works_with_pip_alone(machine):
    """All lines in their order, but for those of make, and those that need a database or a client of others."""
    assert subprocess.run(["sh", "-c", "command -v npm node make"], env=machine.environment, check=False).returncode
    left_out = re.compile("make |.*(postgresql|catalog.toml|KEY@host|trino)")
    lines = [line for line in LINES if re.match("pip|discreet|export", line) and not left_out.match(line)]
    assert len(lines) >= 11
    served = []
    try:
        for line in lines:
            if "discreet serve" in line:
                served.append(machine.start(line))
                _, url, keys = served[-1]
                page = httpx.get(f"{url}/login")
                for file in re.findall(r"/assets/[^\"]+", page.text):
                    assert httpx.get(url + file).status_code == 200
                assert "page.js" in page.text
            elif line.startswith("export"):
                machine.environment |= {"DISCREET_URL": url, "DISCREET_KEY": keys["analyst"]}
            else:
                machine.run(line)
    finally:
        for process, _, _ in served:
            process.terminate()
            process.wait(30)
            process.stderr.close()
