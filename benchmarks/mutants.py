"""`make mutants`: change the code in one place at a time, and report the changes that no test notices.

mutmut makes the changes and runs the tests that reach the changed function, in a copy of the checkout for each module.
`mutants.toml` names the modules and their tests. `equivalent_mutants.toml` lists, by module, the changes that need no
test: the code removed, the code added, and the reason. The command fails if another change survives.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import click

HERE = Path(__file__).parent
ROOT = HERE.parent
COPIES = ROOT / "build" / "mutants"
_FAILED = 1
"""mutmut's code of a change that made a test fail."""

CONFIGURATION = """
[tool.mutmut]
source_paths = ["src/"]
only_mutate = ["src/discreet/{module}.py"]
pytest_add_cli_args_test_selection = {tests}
pytest_add_cli_args = ["--hypothesis-profile=mutants", "-p", "no:cacheprovider", "-p", "no:xdist"]
also_copy = ["pyproject.toml"]
use_git_change_detection = false
track_dependencies = false
timeout_constant = 1.0
timeout_multiplier = 4.0
"""


def run(module: str, tests: list[str]) -> dict[str, str]:
    """Run all mutants of a module that no test noticed before, and return the state of each."""
    copy = COPIES / module.replace("/", "-")
    copy.mkdir(parents=True, exist_ok=True)
    if not (copy / "tests").exists():
        (copy / "tests").symlink_to(ROOT / "tests")
    changed = copy / "src" / "discreet" / f"{module}.py"
    text = re.sub(r"(?m)^@(functools\.)?lru_cache.*\n", "", (ROOT / "src" / "discreet" / f"{module}.py").read_text())
    if not changed.exists() or changed.read_text() != text:  # mutmut changes no function below a decorator
        shutil.copytree(ROOT / "src", copy / "src", dirs_exist_ok=True)
        changed.write_text(text)
    (copy / "mutants" / "mutmut-stats.json").unlink(missing_ok=True)  # which test reaches what may have changed
    results = copy / "mutants" / "src" / "discreet" / f"{module}.py.meta"
    if results.exists():
        known = json.loads(results.read_text())
        codes = known["exit_code_by_key"]
        known["exit_code_by_key"] = {name: code if code == _FAILED else None for name, code in codes.items()}
        results.write_text(json.dumps(known))
    configuration = CONFIGURATION.format(module=module, tests=json.dumps(tests))
    (copy / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text() + configuration)
    _mutmut(copy, "run", "--max-children", str(os.cpu_count() or 1))
    lines = _mutmut(copy, "results", "--all", "true").splitlines()
    return dict(line.strip().rsplit(": ", 1) for line in lines if ": " in line)


def change_of(module: str, mutant: str) -> tuple[str, str]:
    """Return the code that a mutant removes and adds, which identify it better than its number."""
    diff = _mutmut(COPIES / module.replace("/", "-"), "show", mutant).splitlines()
    changed = [line for line in diff if re.match(r"[-+](?![-+])", line)]
    return tuple(" ".join(line[1:].strip() for line in changed if line[0] == sign) for sign in "-+")  # type: ignore[return-value]


def _mutmut(folder: Path, *arguments: str) -> str:
    command = [Path(sys.executable).parent / "mutmut", *arguments]
    environment = {**os.environ, "COLUMNS": "200", "TERM": "dumb"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(f"mutmut {arguments[0]} failed in {folder}:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


@click.command()
@click.argument("modules", nargs=-1)
def main(modules: tuple[str, ...]) -> None:
    """Run the mutants of MODULES, such as noise/bits, or of all."""
    tested = tomllib.loads((HERE / "mutants.toml").read_text())["modules"]
    known = tomllib.loads((HERE / "equivalent_mutants.toml").read_text())
    equivalent = {(name, each["removed"], each["added"]) for name, listed in known.items() for each in listed}
    unexplained = False
    print("| module | changes | noticed | in time-outs | not reached | equivalent | survived |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for module in modules or tested:
        states = run(module, tested[module])
        count = Counter(states.values())
        survivors = [(name, *change_of(module, name)) for name, state in states.items() if state == "survived"]
        left = [(name, *change) for name, *change in survivors if (module, *change) not in equivalent]
        cells = [
            len(states),
            count["killed"],
            count["timeout"],
            count["no tests"],
            len(survivors) - len(left),
            len(left),
        ]
        print(f"| {module} | {' | '.join(map(str, cells))} |", flush=True)
        for name, removed, added in left:
            print(f"    {name}\n      - {removed}\n      + {added}", file=sys.stderr)
        unexplained |= bool(left)
    sys.exit(unexplained)


if __name__ == "__main__":
    main()
