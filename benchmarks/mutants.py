"""`make mutants`: change the code in one place at a time, and report the changes that no test notices.

mutmut makes the changes; all changes of a module are in one copy of it. The tests are collected once, and each change
is tried in a fork that runs those that reach the changed function, the shortest first. `mutants.toml` names the modules
and their tests. `equivalent_mutants.toml` lists, by module, the changes that need no test: the code removed, the code
added, and the reason. The command fails if another change survives or is not reached.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import click
import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent
COPIES = ROOT / "build" / "mutants"
NOTICED, SURVIVED, TIME_OUT, UNREACHED, EQUIVALENT = "noticed", "survived", "time-out", "not reached", "equivalent"
_KEPT = (NOTICED, TIME_OUT)
_CODES = {0: SURVIVED, 36: TIME_OUT}
"""How the fork of a change ends; anything else is a failed test, or a crash."""


def changeable(text: str) -> str:
    """Return the code of a module as mutmut gets it.

    It has no `lru_cache`, below which mutmut changes nothing. Protocols, whose methods nothing runs, and what `raise`
    states are excepted.
    """
    lines = re.sub(r"(?m)^@(functools\.)?lru_cache.*\n", "", text).splitlines()
    for node in ast.walk(ast.parse("\n".join(lines))):
        if isinstance(node, ast.Raise):
            for i in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[i] += "  # pragma: no mutate"
        elif isinstance(node, ast.ClassDef) and "Protocol" in {ast.unparse(base) for base in node.bases}:
            lines[node.lineno - 1] += "  # pragma: no mutate block"
    return "\n".join(lines) + "\n"


def make(module: str, folder: Path) -> dict[str, list[str]]:
    """Write a copy of the source with all changes of *module*; return what each removes and adds, by its name."""
    from mutmut.mutation.file_mutation import mutate_file_contents

    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    path, made_before = folder / "src" / "discreet" / f"{module}.py", folder / "made.json"
    text = changeable(path.read_text())
    if made_before.exists() and (earlier := json.loads(made_before.read_text()))["text"] == text:
        path.write_text(earlier["code"])
        return earlier["changes"]
    made = mutate_file_contents(str(path), text)
    code = made.code.replace("from mutmut.mutation.trampoline", f"from {__spec__.name}")
    path.write_text(code)
    lines = made.code.splitlines()

    def source(name: str) -> list[str]:
        span = made.line_span_by_function_name[name]
        text = "\n".join(lines[span.start - 1 : span.end])
        return text.replace(name, re.split("ǁ|^x_", name.partition("__mutmut_")[0])[-1]).splitlines()

    changes = {}
    for name in made.mutant_names:
        diff = difflib.ndiff(source(name.partition("__mutmut_")[0] + "__mutmut_orig"), source(name))
        changed = [line for line in diff if line[0] in "-+"]
        changes[name] = [" ".join(line[1:].strip() for line in changed if line[0] == sign) for sign in "-+"]
    made_before.write_text(json.dumps({"text": text, "code": code, "changes": changes}))
    return changes


def run(module: str, tests: list[str], equivalent: set[tuple[str, str]]) -> dict[str, list[str]]:
    """Try the changes of a module that are not known; return the result, code removed and added of each."""
    folder = COPIES / module.replace("/", "-")
    folder.mkdir(parents=True, exist_ok=True)
    changes, results = make(module, folder), folder / "results.json"
    earlier = json.loads(results.read_text()) if results.exists() else {}
    known = {
        name: state for name, (state, *change) in earlier.items() if state in _KEPT and changes.get(name) == change
    }
    known |= {name: EQUIVALENT for name, change in changes.items() if tuple(change) in equivalent}
    (folder / "changes.json").write_text(json.dumps({name: changes[name] for name in changes if name not in known}))
    (folder / "tried.txt").unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "--hypothesis-profile=mutants", "-p", "no:cacheprovider"]
    command += ["-p", "no:xdist", "-p", __spec__.name, *tests]
    command += ["--tb=native"]  # any other needs the syntax tree of the module with all its changes
    environment = os.environ | {"PYTHONPATH": f"{folder / 'src'}:{ROOT}", "CHANGES": str(folder)}
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    finally:  # also when interrupted: the next run goes on
        tried = (folder / "tried.txt").read_text() if (folder / "tried.txt").exists() else ""
        known |= dict(line.split("\t") for line in tried.splitlines())
        results.write_text(json.dumps({name: [state, *changes[name]] for name, state in known.items()}))
    if done.returncode or len(known) < len(changes):
        raise click.ClickException(
            f"the tests of {module} failed without a change:\n{(done.stdout + done.stderr)[-3000:]}"
        )
    return {name: [known[name], *changes[name]] for name in changes}


# What follows runs in the process of the tests, and in its forks.

MutantDict = dict
_chosen = os.environ.get("CHANGE", "")  # of a process that a test starts
_reached: set[str] = set()
_failed: list[str] = []
_reached_by_fixture: dict[str, set[str]] = {}
_fixture_seconds: dict[str, float] = {}


def wrap_in_trampoline(variants, is_classmethod=False):
    """Return a decorator of a function that has changes: it calls the chosen one, or the original."""

    def decorate(function):
        @functools.wraps(function)
        def call(*args, **kwargs):
            original = variants["_mutmut_orig"]
            _reached.add(original.__name__.partition("__mutmut_")[0])
            variant = variants.get(_chosen, original)
            if is_classmethod:
                return getattr(args[0], variant.__name__)(*args[1:], **kwargs)
            return variant(*args, **kwargs)

        return call

    return decorate


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef):
    """Take note of what a fixture reaches, and of its time: it is set up by whichever of its tests runs first."""
    before = set(_reached)
    _reached.clear()
    start = _cpu_seconds()
    value = yield
    if fixturedef.scope != "function":
        _reached_by_fixture[fixturedef.argname] = set(_reached)
        _fixture_seconds[fixturedef.argname] = _cpu_seconds() - start
    _reached.update(before)
    return value


def pytest_runtest_logreport(report) -> None:
    """Take note of a failure."""
    if report.failed:
        _failed.append(report.nodeid)


def pytest_runtestloop(session) -> bool:
    """Try the changes in place of running the tests once."""
    folder = Path(os.environ["CHANGES"])
    for name, module in list(sys.modules.items()):
        if name.startswith("discreet."):
            for value in vars(module).values():
                if isinstance(value, functools._lru_cache_wrapper):  # what it remembers would hide a change
                    value.cache_clear()
    measured = folder / "measured.json"
    measured.unlink(missing_ok=True)
    _wait({_fork(lambda: _measure(session.items, measured)): ""})
    seconds, reaching, failed = json.loads(measured.read_text())
    reached = {test for tests in reaching.values() for test in tests}
    items = sorted((i for i in session.items if i.nodeid in reached), key=lambda item: seconds[item.nodeid])
    if failed or _wait({_fork(lambda: _try("", items, seconds)): ""})[1] != SURVIVED:
        raise RuntimeError(f"tests fail without a change: {failed or 'in the order of their time'}")
    children: dict[int, str] = {}
    with (folder / "tried.txt").open("w") as tried:
        for name in json.loads((folder / "changes.json").read_text()):
            reach = set(reaching.get(name.partition("__mutmut_")[0], ()))
            chosen = [item for item in items if item.nodeid in reach]
            if not chosen:
                print(name, UNREACHED, sep="\t", file=tried, flush=True)
                continue
            children[_fork(functools.partial(_try, name, chosen, seconds))] = name
            while len(children) >= (os.cpu_count() or 1):
                print(*_wait(children), sep="\t", file=tried, flush=True)
        while children:
            print(*_wait(children), sep="\t", file=tried, flush=True)
    return True


def _measure(items, measured: Path) -> None:
    """Run the tests without a change; write their seconds, which of them reach a function, and which fail."""
    seconds: dict[str, float] = {}
    reaching: dict[str, list[str]] = {}
    for item, following in zip(items, [*items[1:], None], strict=True):
        _reached.clear()
        start = _cpu_seconds()
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        seconds[item.nodeid] = _cpu_seconds() - start + sum(_fixture_seconds.get(name, 0) for name in item.fixturenames)
        for name in _reached.union(*(_reached_by_fixture.get(name, ()) for name in item.fixturenames)):
            reaching.setdefault(name, []).append(item.nodeid)
    measured.write_text(json.dumps([seconds, reaching, _failed]))


def _cpu_seconds() -> float:
    """Return those of this process and of the processes that it started."""
    return sum(os.times()[:4])


def _try(name: str, items, seconds: dict[str, float]) -> None:
    """Run the tests with a change until one fails, and exit."""
    global _chosen  # noqa: PLW0603
    _chosen = os.environ["CHANGE"] = name
    signal.signal(signal.SIGPROF, lambda *_: os._exit(36))  # a loop; in CPU seconds, however busy the machine is
    for item, following in zip(items, [*items[1:], None], strict=True):
        signal.setitimer(signal.ITIMER_PROF, 5 + 10 * seconds[item.nodeid])  # it may compute what tests share
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if _failed:
            os._exit(1)


def _fork(work) -> int:
    """Run *work* in a fork, and return its process."""
    process = os.fork()
    if not process:
        code = 1
        with contextlib.suppress(BaseException):
            work()
            code = 0
        os._exit(code)
    return process


def _wait(children: dict[int, str]) -> tuple[str, str]:
    """Wait for a fork; return the name of its change and how it ended."""
    process, status = os.wait()
    return children.pop(process), _CODES.get(os.waitstatus_to_exitcode(status), NOTICED)


@click.command()
@click.argument("modules", nargs=-1)
def main(modules: tuple[str, ...]) -> None:
    """Run the mutants of MODULES, such as noise/bits, or of all."""
    tested = tomllib.loads((HERE / "mutants.toml").read_text())["modules"]
    listed = tomllib.loads((HERE / "equivalent_mutants.toml").read_text())
    unexplained = False
    print("| module | changes | noticed | in time-outs | not reached | equivalent | survived |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for module in modules or tested:
        equivalent = {(each["removed"], each["added"]) for each in listed.get(module, [])}
        states = run(module, tested[module], equivalent)
        count = Counter(state for state, *_ in states.values())
        cells = [len(states), *(count[state] for state in (NOTICED, TIME_OUT, UNREACHED, EQUIVALENT, SURVIVED))]
        print(f"| {module} | {' | '.join(map(str, cells))} |", flush=True)
        for name, (state, removed, added) in states.items():
            if state in (SURVIVED, UNREACHED):
                print(f"    {name}: {state}\n      - {removed}\n      + {added}", file=sys.stderr)
                unexplained = True
    sys.exit(unexplained)


if __name__ == "__main__":
    main()
