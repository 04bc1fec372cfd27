"""The documentation is complete, and its commands and examples work."""

from __future__ import annotations

import math
import re
import shlex
import warnings
from pathlib import Path

import click
import duckdb
import pytest

import discreet
from benchmarks.__main__ import BENCHMARKS
from discreet.cli import discreet as command
from discreet.cli import main
from discreet.mechanisms import MECHANISMS
from examples import daily
from examples.demo import LOG, make_log
from mkdocs_tables import on_page_markdown

DOCS = Path(__file__).resolve().parent.parent / "docs"


def headings(page: str) -> set[str]:
    """Return the headings of a page in lower case, without code marks."""
    lines = (DOCS / page).read_text().splitlines()
    return {line.lstrip("#").strip().replace("`", "").lower() for line in lines if line.startswith("#")}


def test_the_help_and_the_page_list_all_commands_in_one_order():
    """What a newcomer needs comes first."""
    listed = re.findall(r"^## discreet (\w+)", (DOCS / "cli.md").read_text(), re.MULTILINE)
    assert listed[0] == "top"
    assert listed == command.list_commands(click.Context(command))


@pytest.mark.parametrize(
    "name", ["", *(name for name, part in command.commands.items() if isinstance(part, click.Group))]
)
def test_the_help_cuts_no_line(name, capsys):
    """A terminal of 80 columns shows whole sentences about all commands."""
    with pytest.raises(SystemExit):
        main([*filter(None, [name]), "--help"])
    commands = capsys.readouterr().out.partition("Commands:")[2]
    assert commands
    assert "..." not in commands


@pytest.mark.parametrize("name", sorted(command.commands))
def test_every_command_has_a_heading(name):
    """Commands have headings on the page about the command line."""
    assert f"discreet {name}" in headings("cli.md")


@pytest.mark.parametrize(
    ("name", "option"),
    [
        (name, option)
        for name, part in command.commands.items()
        for o in part.params
        for option in o.opts
        if "-" in option
    ],
)
def test_every_option_is_explained(name, option):
    """An option is in the section of its command, or in those of `top` and `release`, which `plan` shares."""
    page = on_page_markdown((DOCS / "cli.md").read_text())
    sections = re.split(r"^## discreet ", page, flags=re.MULTILINE)
    own = [section for section in sections if section.startswith((name, "top", "release"))]
    assert any(f"`{option}" in section or f", `{option}" in section for section in own)


@pytest.mark.parametrize("kind", sorted(MECHANISMS))
def test_every_mechanism_has_a_page(kind):
    """The page has the name of the mechanism's file."""
    page = DOCS / "mechanisms" / f"{MECHANISMS[kind].__module__.rpartition('.')[2]}.md"
    text = page.read_text()
    for heading in ("## Statement", "## Why it holds", "## Source and departures", "## What error to expect"):
        assert heading in text


@pytest.mark.parametrize(
    "name", sorted(name for name in discreet.__all__ if name.endswith(("Error", "Exceeded", "Head")))
)
def test_every_error_has_a_heading(name):
    """Errors have headings on the page about errors."""
    assert name.lower() in headings("errors.md")


@pytest.mark.parametrize("page", sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")))
def test_every_link_between_pages_resolves(page):
    """Links to pictures, tables of numbers and other files are included."""
    for target in re.findall(r"\]\(([^)#\s]+)", (DOCS / page).read_text()):
        if "://" not in target:
            assert ((DOCS / page).parent / target).exists(), target


@pytest.mark.parametrize("page", sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")))
def test_every_page_begins_with_its_readers(page):
    """A page of a mechanism, an engine or a paper has those of the first page of its folder."""
    first = (DOCS / page).read_text().split("\n\n")[1]
    if page.startswith(("engines/", "mechanisms/", "papers/")):
        first = (DOCS / page).with_name("index.md").read_text().split("\n\n")[1]
    assert first.startswith(("For ", "You ", "Your ")), first


def shown() -> list[tuple[str, str, str]]:
    """Return the commands that pages show with their output: page, command, output."""
    found = []
    for page in sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")):
        for block in re.findall(r"^```console\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL):
            for part in block.split("$ ")[1:]:
                command, _, output = part.partition("\n")
                if command.startswith("discreet ") and output.strip():
                    found.append((page, command, output.rstrip("\n")))
    return found


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """Create what the pages assume: the demo's log, and some visits, in the working directory of the commands."""
    folder = tmp_path_factory.mktemp("checkout")
    make_log(folder / LOG)
    (folder / "reads.parquet").symlink_to(folder / LOG)
    visits = [f"{visitor},home,{visitor % 60},2026-01-{1 + visitor % 28:02} 12:00:00" for visitor in range(1000)]
    (folder / "visits.csv").write_text("\n".join(["visitor,page,minutes,read_at", *visits]))
    return folder


@pytest.mark.parametrize(("page", "line", "output"), shown())
def test_the_shown_output_is_the_printed_output(checkout, monkeypatch, capsys, page, line, output):
    """Equal character by character, except for the digits of counts with fresh noise."""
    monkeypatch.chdir(checkout)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    with pytest.raises(SystemExit):
        main(shlex.split(line)[1:])
    printed = capsys.readouterr()
    text = (printed.out or printed.err).rstrip("\n")
    if line.startswith("discreet top "):
        text, output = (re.sub(r"\d", "0", each) for each in (text, output))
    assert text == output, f"{page}: {line}"


def silent() -> list[tuple[str, str]]:
    """Return the commands that README and pages show without output: page, command; without placeholders."""
    found = []
    for page in [DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))]:
        text = page.read_text()
        printed = {line for name, line, _ in shown() if DOCS / name == page}
        for line in re.findall(r"^(?:\$ |    )(discreet (?:top|release|plan|catalog) .*)$", text, re.MULTILINE):
            command = line.partition(" # ")[0].strip()
            if command not in printed and not re.search(r"[A-Z]{4}|postgresql|\\$", command):
                found.append((page.name, command))
    return sorted(set(found))


@pytest.mark.parametrize(("page", "line"), silent())
def test_commands_without_output_run(checkout, monkeypatch, capsys, page, line):
    """Exit code 0, in a folder beside a catalog whose draft allows something."""
    monkeypatch.chdir(checkout)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    command, _, file = line.partition(" > ")
    draft = checkout / "catalog.toml"
    if "catalog.toml" in command and not draft.exists():
        assert _code(["catalog", "init", "reads.parquet", "--user", "reader"]) == 0
        draft.write_text(
            re.sub(r"^#(?=\[|type|group =|filter|of|each)", "", capsys.readouterr().out, flags=re.MULTILINE)
        )
    code = _code([*shlex.split(command)[1:], *(["--force"] if "--output" in command else [])])
    assert code == 0, f"{page}: {line}: {capsys.readouterr().err}"
    assert not file or capsys.readouterr().out


def _code(arguments: list[str]) -> object:
    with pytest.raises(SystemExit) as exited:
        main(arguments)
    return exited.value.code or 0


def test_the_pages_show_commands():
    """The tests above have enough commands."""
    assert len(shown()) >= 6
    assert len(silent()) >= 6


@pytest.mark.parametrize(
    "page", ["../README.md", *sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))]
)
def test_recipes_and_benchmarks_of_a_page_exist(page):
    """Targets of `make` and arguments of `python -m benchmarks` exist."""
    text = (DOCS / page).read_text()
    recipes = set(re.findall(r"^([a-z-]+):", (DOCS.parent / "Makefile").read_text(), re.MULTILINE))
    named = re.findall(r"(?:`|^\$ |^    )make ([a-z-]+)", text, re.MULTILINE)
    assert set(named) <= recipes
    for names in re.findall(r"python -m benchmarks((?:\s[a-z-]+)+)`", text):
        assert set(names.split()) <= set(BENCHMARKS)


def test_the_example_of_the_first_page_runs():
    """The Python example prints what the page shows."""
    text = (DOCS / "first-release.md").read_text()
    example = next(part for part in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "3000 // n" in part)
    expected = text.partition("```text\n")[2].partition("```")[0]
    code = example.replace("print(release)", "assert str(release).split() == expected.split()")
    exec(compile(code, "first-release.md", "exec"), {"expected": expected})  # noqa: S102 - the page's own words


def test_the_example_of_four_ways_shows_visitors_so_far(tmp_path, monkeypatch):
    """A stream is declared, refreshed on three days and shown, on a log of fewer visitors."""
    monkeypatch.setattr("examples.daily.VISITORS", 12_000)
    monkeypatch.setattr("examples.daily.EACH_DAY", daily.SHOWN_DAYS)
    daily.make_log(tmp_path / "visits.parquet")
    running = daily.running_counts(discreet.scan(tmp_path / "visits.parquet", user="visitor"))
    assert list(map(str, running)) == ["2026-06-07", "2026-06-14", "2026-06-28"]
    for day, release in running.items():
        (first,) = (item for item in release if item["page"] == "page 0")
        so_far = (
            f"SELECT count(DISTINCT visitor) FROM '{tmp_path}/visits.parquet' WHERE page = 'page 0' AND day <= '{day}'"
        )
        ((exact,),) = duckdb.sql(so_far).fetchall()
        assert abs(first["count"] - exact) < 5 * first["std_error"] < 0.5 * exact


def test_the_beliefs_beside_epsilon_are_rounded_up_from_their_formula():
    """A table for a committee: the posterior of an observer who holds both worlds to be equally likely."""
    rows = re.findall(r"^\| ([\d.]+) \| ([\d.]+) % \|$", (DOCS / "choosing-epsilon.md").read_text(), re.MULTILINE)
    assert len(rows) >= 5
    for epsilon, percent in rows:
        belief = 100 / (1 + math.exp(-float(epsilon)))
        assert belief <= float(percent) < belief + 0.11


@pytest.mark.parametrize("place", re.findall(r"`([a-z_]+/[\w/.]*)`", (DOCS / "how-it-is-built.md").read_text()))
def test_the_places_that_the_page_about_the_code_names_exist(place):
    """The page is how a newcomer finds the room of a feature."""
    package = DOCS.parent / "src" / "discreet"
    assert (package / place).exists() or (DOCS.parent / place).exists()


def test_nothing_says_to_install_the_project_by_its_name():
    """No index has it, so the name would install a package of others; RELEASING.md says what changes that."""
    root = DOCS.parent
    for path in [root / "README.md", *DOCS.rglob("*.md"), *root.glob("src/**/*.py"), *root.glob("src/**/*.html")]:
        assert not re.search(r"pip install '?discreet\[", path.read_text()), path
