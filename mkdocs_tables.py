"""Tables of options and settings, which mkdocs writes into the pages from the commands and the schemas.

A line `<!-- options: query -->` stands for the options of a command and its subcommands, and
`<!-- settings: catalog.schema.json Schedule -->` for the settings of a definition in a schema, or of the schema: `all`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click

from discreet.cli import discreet

DOCS = Path(__file__).parent / "docs"


def on_page_markdown(markdown: str, **_: object) -> str:
    """Return a page with its tables; mkdocs calls this for every page."""
    markdown = re.sub(r"<!-- options: (\w+) -->", lambda marked: _options(marked[1]), markdown)
    return re.sub(r"<!-- settings: (\S+) (\w+) -->", lambda marked: _settings(marked[1], marked[2]), markdown)


def _options(name: str) -> str:
    command = discreet.commands[name]
    parts = command.commands if isinstance(command, click.Group) else {"": command}
    commands: dict[tuple[str, str], list[str]] = {}
    for part, subcommand in parts.items():
        context = click.Context(subcommand)
        for parameter in subcommand.params:
            if isinstance(parameter, click.Option) and (record := parameter.get_help_record(context)) is not None:
                commands.setdefault(record, []).append(part)
    rows = []
    for (option, help_), of in commands.items():
        whose = ", ".join(f"`{part}`" for part in of if part)
        rows.append((f"`{option.replace(', -', '`, `-')}`", f"{whose}: {help_}" if whose else help_))
    return _table(("option", "meaning"), rows)


def _settings(file: str, name: str) -> str:
    schema = json.loads((DOCS / file).read_text("utf-8"))
    definition = schema if name == "all" else schema["$defs"][name]
    required = definition.get("required", [])
    rows = []
    for setting, form in definition["properties"].items():
        meaning = form["description"]
        if form.get("maximum", 2**31) < 2**31:  # others are those of a type
            meaning += f" From {form['minimum']:,} to {form['maximum']:,}."
        default: Any = "required" if setting in required else form.get("default", "")
        rows.append((f"`{setting}`", meaning, default if isinstance(default, str) else f"`{json.dumps(default)}`"))
    return _table(("setting", "meaning", "default"), rows)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines)
