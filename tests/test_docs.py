"""The documentation names everything there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import discreet
from discreet.cli import discreet as command
from discreet.mechanisms import MECHANISMS

DOCS = Path(__file__).resolve().parent.parent / "docs"


def headings(page: str) -> set[str]:
    """The headings of a page, without code marks, in lower case."""
    lines = (DOCS / page).read_text().splitlines()
    return {line.lstrip("#").strip().replace("`", "").lower() for line in lines if line.startswith("#")}


@pytest.mark.parametrize("name", sorted(command.commands))
def test_every_command_has_a_heading(name):
    """On the page about the command line."""
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
    """In the section of its command, or in those of `top` and `release`, whose options `plan` shares."""
    page = (DOCS / "cli.md").read_text()
    sections = re.split(r"^## discreet ", page, flags=re.MULTILINE)
    own = [section for section in sections if section.startswith((name, "top", "release"))]
    assert any(f"`{option}" in section or f", `{option}" in section for section in own)


@pytest.mark.parametrize("kind", sorted(MECHANISMS))
def test_every_mechanism_has_a_page(kind):
    """Under the name of its file."""
    page = DOCS / "mechanisms" / f"{MECHANISMS[kind].__module__.rpartition('.')[2]}.md"
    text = page.read_text()
    for heading in ("## Statement", "## Why it holds", "## Source and departures", "## What error to expect"):
        assert heading in text


@pytest.mark.parametrize(
    "name", sorted(name for name in discreet.__all__ if name.endswith(("Error", "Exceeded", "Head")))
)
def test_every_error_has_a_heading(name):
    """On the page about errors."""
    assert name.lower() in headings("errors.md")


@pytest.mark.parametrize("page", sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")))
def test_every_link_between_pages_leads_somewhere(page):
    """Files, not only pages: pictures and tables of numbers too."""
    for target in re.findall(r"\]\(([^)#\s]+)", (DOCS / page).read_text()):
        if "://" not in target:
            assert ((DOCS / page).parent / target).exists(), target
